"""`kvplan observe` beside a replay: what it reads from a server's metrics while requests run."""

from __future__ import annotations

import contextlib
import json
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

EVERY_S = 2.0


@dataclass(slots=True)
class Seen:
    """The hit ratio, once the watch is over. None where observe knows none."""

    hit_ratio: float | None = None


def _heeds_interrupts() -> None:
    """A shell starts background jobs deaf to Ctrl-C, and what they start would be as well."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


@contextlib.contextmanager
def watching(url: str) -> Iterator[Seen]:
    """Observe a server while the body runs, ended as a user ends it, with Ctrl-C. Raises RuntimeError."""
    words = [sys.executable, "-m", "kvplan", "observe", "--url", f"{url}/metrics", "--every", f"{EVERY_S:g}s"]
    program = subprocess.Popen(
        [*words, "--for", "1h", "--json", "-q"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        preexec_fn=_heeds_interrupts,
    )
    seen = Seen()
    try:
        time.sleep(4 * EVERY_S)  # its first page is from before the first request, also on a busy machine
        yield seen
        time.sleep(2 * EVERY_S)  # and its last one from after the last
        program.send_signal(signal.SIGINT)
        out, errors = program.communicate(timeout=60)
    finally:
        program.kill()
        program.wait()
    if not out:
        raise RuntimeError(f"kvplan observe said nothing: {errors.decode()}")
    seen.hit_ratio = json.loads(out)["data"]["hit_ratio"]


def of_pages(before: Path, after: Path, elapsed_s: float) -> float | None:
    """The hit ratio that observe reads from two saved pages."""
    words = [sys.executable, "-m", "kvplan", "observe", str(before), str(after), "--elapsed", f"{elapsed_s:g}s"]
    done = subprocess.run([*words, "--json", "-q"], stdout=subprocess.PIPE, check=True)
    ratio: float | None = json.loads(done.stdout)["data"]["hit_ratio"]
    return ratio
