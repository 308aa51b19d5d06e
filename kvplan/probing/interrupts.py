"""Ctrl-C that is never lost: one that lands where Python cannot raise it is raised at the next chance."""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

from kvplan.progress import Progress


def join_all(threads: Iterable[threading.Thread]) -> None:
    """Wait for every thread that was started, whatever a signal raises meanwhile; the first of it is raised at last."""
    raised: BaseException | None = None
    for thread in threads:
        while thread.ident is not None and thread.is_alive():
            try:
                thread.join()
            except BaseException as error:  # Ctrl-C, or what a handler of SIGTERM raises to end the program
                raised = raised or error
    if raised is not None:
        raise raised


@contextmanager
def heeded(progress: Progress) -> Iterator[Progress]:
    """`progress`, which raises KeyboardInterrupt when an interrupt went unheard.

    Python drops an exception that rises in a destructor or in a callback from C, and prints that it did; a probe has
    many of both. Outside the main thread, or where somebody else handles SIGINT, this does nothing.
    """
    main = threading.current_thread() is threading.main_thread()
    if not main or signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        yield progress
        return
    seen = False
    ignored = sys.unraisablehook

    def handle(number: int, frame: FrameType | None) -> None:
        nonlocal seen
        seen = True
        signal.default_int_handler(number, frame)

    def unraisable(what: Any) -> None:
        if what.exc_type is not KeyboardInterrupt:  # this one is raised below
            ignored(what)

    def listen(what: str, done: float | None = None) -> None:
        if seen:
            raise KeyboardInterrupt
        progress(what, done)

    signal.signal(signal.SIGINT, handle)
    sys.unraisablehook = unraisable
    try:
        yield listen
        if seen:
            raise KeyboardInterrupt
    finally:
        sys.unraisablehook = ignored
        signal.signal(signal.SIGINT, signal.default_int_handler)
