"""Signals that are never lost: what one raises where Python cannot raise it is raised at the next chance."""

from __future__ import annotations

import signal
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

from kvplan.progress import Progress

Handler = Callable[[int, FrameType | None], Any]

_LOOK_S = 1e-3
_UNWINDING_S = 1.0  # from a signal to where its clean-up begins, on a busy host
_STARTING_S = 5.0  # a thread whose start was cut short runs by then, or never will


def join_all(threads: Iterable[threading.Thread]) -> None:
    """Wait for every thread that was started, whatever a signal raises meanwhile; the first of it is raised at last."""
    waiting, began = list(threads), time.monotonic()
    raised: BaseException | None = None
    while waiting:
        try:
            _wait(waiting, began + _STARTING_S)
        except BaseException as error:  # Ctrl-C, or what a handler of SIGTERM raises to end the program
            raised = raised or error
    if raised is not None:
        raise raised


def _wait(waiting: list[threading.Thread], started_by: float) -> None:
    """Take out of the list what has ended or was never started, until nothing is left.

    Not by Thread.join: interrupted, it takes a thread that still runs for one that has ended (CPython 3.11). A thread
    whose start was interrupted has no number yet, and runs all the same.
    """
    while waiting:
        running = threading.enumerate()
        late = time.monotonic() > started_by
        waiting[:] = [thread for thread in waiting if thread in running and not (late and thread.ident is None)]
        if waiting:
            time.sleep(_LOOK_S)


@contextmanager
def held() -> Iterator[None]:
    """What SIGINT and SIGTERM would raise, at the end of the block and not in the middle of it: for cleaning up.

    Outside the main thread, where no handler runs, this does nothing.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    came: list[int] = []
    found = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    handlers = {number: handler for number, handler in found.items() if callable(handler)}
    for number in handlers:
        signal.signal(number, lambda number, frame: came.append(number))
    try:
        yield
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
    for first in came[:1]:
        handlers[signal.Signals(first)](first, None)


@contextmanager
def heeded(progress: Progress) -> Iterator[Progress]:
    """`progress`, which raises what a handler of SIGINT or SIGTERM raised and nobody heard.

    Python drops an exception that rises in a destructor or in a callback from C, and mostly prints that it did; a probe
    has many of both. Outside the main thread, where no handler runs, this does nothing.
    """
    if threading.current_thread() is not threading.main_thread():
        yield progress
        return
    unheard: list[BaseException] = []
    when: list[float] = []
    ignored = sys.unraisablehook

    def unraisable(what: Any) -> None:
        if not any(isinstance(one, what.exc_type) for one in unheard):  # those are raised below
            ignored(what)

    def listen(what: str, done: float | None = None) -> None:
        if unheard:
            raise unheard[0]
        progress(what, done)

    found = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    handlers = {number: handler for number, handler in found.items() if callable(handler)}
    for number, handler in handlers.items():
        signal.signal(number, _remembering(handler, unheard, when))
    sys.unraisablehook = unraisable
    try:
        yield listen
        if unheard:
            raise unheard[0]
    finally:
        sys.unraisablehook = ignored
        for number, handler in handlers.items():
            signal.signal(number, handler)


def _remembering(handler: Handler, raised: list[BaseException], when: list[float]) -> Handler:
    """The handler, which keeps what it raises and when. A signal soon after one that raised says nothing new.

    It would meet code that is on its way to a clean-up, and cut that short.
    """

    def handle(number: int, frame: FrameType | None) -> None:
        if when and time.monotonic() - when[-1] < _UNWINDING_S:
            return
        try:
            handler(number, frame)
        except BaseException as error:
            raised.append(error)
            when.append(time.monotonic())
            raise

    return handle
