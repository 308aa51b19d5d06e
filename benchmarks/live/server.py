"""A server that is started, waited for, and stopped whatever happens, with everything that it started."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

HOST = "127.0.0.1"
STOP_S = 15.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Server:
    """A running server: where it listens and what it writes."""

    port: int
    log: Path

    @property
    def url(self) -> str:
        """Its base address."""
        return f"http://{HOST}:{self.port}"

    def get(self, path: str) -> str:
        """The body of a GET. Raises OSError where it does not answer."""
        with urllib.request.urlopen(self.url + path, timeout=30) as answer:
            text: str = answer.read().decode()
            return text

    def lines(self) -> list[str]:
        """What it has logged so far."""
        return self.log.read_text(errors="replace").splitlines()


def free_port() -> int:
    """A TCP port that nobody listens on now."""
    with socket.socket() as one:
        one.bind((HOST, 0))
        port: int = one.getsockname()[1]
        return port


def stop_on_sigterm() -> None:
    """A SIGTERM ends the program like Ctrl-C, so that servers are stopped."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))


@contextlib.contextmanager
def running(
    command: Sequence[str], port: int, log: Path, environment: Mapping[str, str] | None = None, wait_s: float = 180.0
) -> Iterator[Server]:
    """Start `command`, wait until its /health answers, stop it and all its children at the end.

    Raises RuntimeError with the end of its log where it does not come up.
    """
    with log.open("wb") as out:
        process = subprocess.Popen(
            command,
            stdout=out,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            env={**os.environ, **(environment or {})},
            start_new_session=True,
        )
    server = Server(port=port, log=log)
    try:
        _wait(process, server, wait_s)
        yield server
    finally:
        _stop(process)


def _wait(process: subprocess.Popen[bytes], server: Server, wait_s: float) -> None:
    until = time.monotonic() + wait_s
    while time.monotonic() < until:
        if process.poll() is not None:
            break
        with contextlib.suppress(OSError, urllib.error.URLError):
            server.get("/health")
            return
        time.sleep(0.1)
    end = "\n".join(server.lines()[-20:])
    raise RuntimeError(f"the server did not come up (exit status {process.poll()}); the end of its log:\n{end}")


def _stop(process: subprocess.Popen[bytes]) -> None:
    """SIGTERM to the server, then SIGKILL to whatever is left of its process group."""
    with contextlib.suppress(ProcessLookupError):
        process.terminate()
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(STOP_S)
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait(STOP_S)
