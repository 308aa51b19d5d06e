"""Programs that a replay starts: each in a group of its own, ended as a whole, whatever ends the replay."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

from kvplan.errors import KvplanError
from kvplan.files import reason

_ERROR = re.compile(r"[\w.]*(Error|Exception): \S")  # as Python ends a traceback
_MOST_READ = 1 << 20
_GRACE_S = 15.0  # a server writes out its state, a load generator its results


def run(command: Sequence[str] | str, log: Path, environment: Mapping[str, str] | None = None, *, what: str) -> None:
    """Run a program, or a shell line, to its end, its words in `log`. Raises KvplanError where it fails.

    What a shell line leaves running in the background stays, as a service that it started is meant to.
    """
    with _started(command, log, environment) as child:
        code = child.wait()
    if code:
        raise KvplanError(f"{what} ended with exit code {code}: {_last_words(log)} (more in {log})")


@contextmanager
def serving(line: str, log: Path, environment: Mapping[str, str]) -> Iterator[subprocess.Popen[bytes]]:
    """A shell line that runs while the block does, and is ended with everything it started."""
    with _started(line, log, environment) as child:
        try:
            yield child
        finally:
            _end(child)


@contextmanager
def _started(
    command: Sequence[str] | str, log: Path, environment: Mapping[str, str] | None
) -> Iterator[subprocess.Popen[bytes]]:
    """A program of a group of its own, which ends with the block where that ends by an exception."""
    shell = isinstance(command, str)
    try:
        with log.open("ab") as words:
            child = subprocess.Popen(
                command,
                shell=shell,
                stdin=subprocess.DEVNULL,
                stdout=words,
                stderr=subprocess.STDOUT,
                env={**os.environ, **(environment or {})},
                start_new_session=True,
            )
    except OSError as error:
        raise KvplanError(f"{command if shell else command[0]}: cannot start: {reason(error)}") from None
    try:
        yield child
    except BaseException:
        _end(child)
        raise


def _end(child: subprocess.Popen[bytes]) -> None:
    """End a program and all it started: asked first, then forced. A second interrupt meanwhile changes nothing."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(child.pid, number)
        with contextlib.suppress(subprocess.TimeoutExpired, KeyboardInterrupt):
            child.wait(_GRACE_S)
        if child.poll() is not None:
            break
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(child.pid, signal.SIGKILL)  # what its children left behind


def _last_words(log: Path) -> str:
    """The first error that a log names, as those after it follow from it; else its last line that says something."""
    try:
        lines = [line.strip() for line in log.read_bytes()[-_MOST_READ:].decode(errors="replace").splitlines()]
    except OSError:
        return "no output"
    named = next((line for line in lines if _ERROR.match(line)), None)
    said = named or next((line for line in reversed(lines) if any(map(str.isalnum, line))), "no output")
    return said[:300]


@contextmanager
def terminated_as_interrupted() -> Iterator[None]:
    """SIGTERM raises KeyboardInterrupt inside, so that children end with a replay that a job scheduler stops."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def interrupt(number: int, frame: FrameType | None) -> Any:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
