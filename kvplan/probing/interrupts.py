"""Ctrl-C that is never lost: one that lands where Python cannot raise it is raised at the next chance."""

from __future__ import annotations

import signal
import sys
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

from kvplan.progress import Progress

_LOOK_S = 1e-3


def join_all(threads: Iterable[threading.Thread]) -> None:
    """Wait for every thread that was started, whatever a signal raises meanwhile; the first of it is raised at last."""
    waiting = [thread for thread in threads if thread.ident is not None]
    raised: BaseException | None = None
    while waiting:
        try:
            _wait(waiting)
        except BaseException as error:  # Ctrl-C, or what a handler of SIGTERM raises to end the program
            raised = raised or error
    if raised is not None:
        raise raised


def _wait(waiting: list[threading.Thread]) -> None:
    """Take out of the list what has ended, until nothing is left.

    Not by Thread.join: interrupted, it takes a thread that still runs for one that has ended (CPython 3.11).
    """
    while waiting:
        running = threading.enumerate()
        waiting[:] = [thread for thread in waiting if thread in running]
        if waiting:
            time.sleep(_LOOK_S)


@contextmanager
def heeded(progress: Progress) -> Iterator[Progress]:
    """`progress`, which raises KeyboardInterrupt when an interrupt went unheard, and SystemExit likewise.

    Python drops an exception that rises in a destructor or in a callback from C, and prints that it did; a probe has
    many of both. Outside the main thread, or where somebody else handles SIGINT, this does nothing.
    """
    main = threading.current_thread() is threading.main_thread()
    if not main or signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        yield progress
        return
    unheard: list[BaseException] = []
    ignored = sys.unraisablehook

    def handle(number: int, frame: FrameType | None) -> None:
        unheard.append(KeyboardInterrupt())
        signal.default_int_handler(number, frame)

    def unraisable(what: Any) -> None:
        if what.exc_type is SystemExit:  # of a handler of SIGTERM: raised below
            unheard.append(what.exc_value or SystemExit())
        elif what.exc_type is not KeyboardInterrupt:
            ignored(what)

    def listen(what: str, done: float | None = None) -> None:
        if unheard:
            raise unheard[0]
        progress(what, done)

    signal.signal(signal.SIGINT, handle)
    sys.unraisablehook = unraisable
    try:
        yield listen
        if unheard:
            raise unheard[0]
    finally:
        sys.unraisablehook = ignored
        signal.signal(signal.SIGINT, signal.default_int_handler)
