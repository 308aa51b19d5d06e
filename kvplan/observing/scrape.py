"""Pages of live servers, once or every so often, and pages that were saved."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path

from kvplan.engines.metrics import found
from kvplan.errors import KvplanError, UsageError
from kvplan.files import reason
from kvplan.observing import fetch
from kvplan.observing.exposition import Page, parse
from kvplan.observing.recording import Recording, Track
from kvplan.progress import Progress, silent
from kvplan.units import show_duration

TIMEOUT_S = 10.0
_ACCEPT = "text/plain;version=0.0.4, */*;q=0.1"  # the form without exemplars, escapes of names and other extras
_START = "process_start_time_seconds"


@dataclass(slots=True)
class Taken:
    """A recording, why rounds have no page (by source), and whether somebody stopped it before its time."""

    recording: Recording
    missed: dict[int, str] = field(default_factory=dict)
    stopped: bool = False
    notes: list[str] = field(default_factory=list)


def scrape(url: str, token: str | None = None) -> Page:
    """One page of one server. Raises KvplanError naming the address and what is wrong."""
    where = fetch.shown(url)
    answer = fetch.get(url, timeout_s=TIMEOUT_S, token=token, accept=_ACCEPT)
    if answer.status != 200:
        said = " ".join(answer.text.split())[:200]
        raise KvplanError(f"{where}: status {answer.status}{_advice(answer.status)}{f': {said}' if said else ''}")
    page = parse(answer.text, where)
    return replace(page, cut=page.cut or answer.cut)


def _advice(status: int) -> str:
    match status:
        case 401 | 403:
            return " (not allowed: give --token-file, or name and password in the address)"
        case 404:
            return " (no page there: metrics are usually at /metrics)"
        case 501:
            return " (metrics are not switched on)"
        case _:
            return ""


def live(
    urls: Sequence[str],
    *,
    seconds: float | None,
    every_s: float,
    token: str | None = None,
    progress: Progress = silent,
    now: Callable[[], float] | None = None,
    sleep: Callable[[float], None] = time.sleep,
) -> Taken:
    """Pages of each address: one, or one every `every_s` for `seconds`.

    The first round must succeed everywhere; later ones may fail and are counted, as a server that restarts is worth
    seeing. Ctrl-C ends the recording early and keeps it, unless there is nothing yet. Raises KvplanError.
    """
    if now is None:
        now = _steady()
    rounds: list[list[Page | None]] = [[scrape(url, token) for url in urls]]
    began = now()
    times, missed = [began], dict[int, str]()
    stopped = False
    count = 0 if seconds is None else max(1, round(seconds / every_s))
    try:
        for index in range(1, count + 1):
            progress(f"page {index} of {count + 1} in, {show_duration(every_s)} apart", index / (count + 1))
            sleep(max(0.0, began + index * every_s - now()))
            moment = now()
            rounds.append(_round(urls, token, missed))
            times.append(moment)
    except KeyboardInterrupt:
        stopped = True
    rounds = rounds[: len(times)]
    tracks = [Track(fetch.shown(url), tuple(pages[i] for pages in rounds)) for i, url in enumerate(urls)]
    return Taken(_recording([*times], tracks), missed, stopped)


def _steady() -> Callable[[], float]:
    """Unix seconds that never leap, as they are the system's time now and go on by a clock that nobody sets."""
    offset = time.time() - time.monotonic()
    return lambda: offset + time.monotonic()


def _round(urls: Sequence[str], token: str | None, missed: dict[int, str]) -> list[Page | None]:
    pages: list[Page | None] = []
    for index, url in enumerate(urls):
        try:
            pages.append(scrape(url, token))
        except KvplanError as error:
            missed[index] = str(error)
            pages.append(None)
    return pages


def saved(paths: Sequence[Path], elapsed_s: float | None) -> Taken:
    """Pages that somebody saved from one server, oldest first. Raises KvplanError naming the file.

    How far apart they are: `elapsed_s` from the first to the last in equal steps; else the times in them; else when the
    files were last changed, which is said; else not known, and then there are no rates.
    """
    pages = [_file(path) for path in paths]
    _one_server(paths, pages)
    notes: list[str] = []
    times: list[float | None]
    if elapsed_s is not None:
        if len(pages) < 2:
            raise UsageError("--elapsed is the time between pages: give the page before and the page after")
        times = [elapsed_s * index / (len(pages) - 1) for index in range(len(pages))]
    else:
        times = [page.at for page in pages]
        if any(time is None for time in times) and len(pages) > 1:
            times = [path.stat().st_mtime if str(path) != "-" else None for path in paths]
            notes.append("times are those at which the files were last changed: give --elapsed if they were copied")
        if not _rise(times) and len(pages) > 1:
            times = [None] * len(pages)
            notes = ["how far apart the pages are is not known: give --elapsed to have rates"]
    where = " … ".join(dict.fromkeys((str(paths[0]), str(paths[-1]))))
    return Taken(_recording(times, [Track(where, tuple(pages))]), notes=notes)


def _one_server(paths: Sequence[Path], pages: Sequence[Page]) -> None:
    """Raises KvplanError for pages that cannot be one server's, oldest first."""
    for index in range(1, len(pages)):
        old, new = pages[index - 1], pages[index]
        names = f"{paths[index - 1]} and {paths[index]}"
        mine, theirs = ({one.name for one in found(page.names)} for page in (old, new))
        if mine and theirs and not mine & theirs:
            raise KvplanError(
                f"{names}: metrics of {', '.join(sorted(mine))} and of {', '.join(sorted(theirs))}: give pages of one "
                "server, oldest first"
            )
        if _start_of(old) is not None and _start_of(old) == _start_of(new) and _fell(old, new):
            raise KvplanError(f"{names}: the same process counts less on the later page: give the oldest page first")
        if (_start_of(new) or math.inf) < (_start_of(old) or 0.0):
            raise KvplanError(f"{names}: the later page is of a process started earlier: give the oldest page first")


def _start_of(page: Page) -> float | None:
    """When the process started, where the page is of one process alone."""
    starts = {value for (name, _), value in page.samples.items() if name == _START}
    return starts.pop() if len(starts) == 1 else None


def _fell(old: Page, new: Page) -> bool:
    """Whether every counter of requests or tokens that moved went down."""
    moved = [
        new.samples[key] - value
        for key, value in old.samples.items()
        if key[0].endswith(("_total", "_count")) and new.samples.get(key, value) != value
    ]
    return bool(moved) and max(moved) < 0


def _rise(times: Sequence[float | None]) -> bool:
    known = [time for time in times if time is not None]
    return len(known) == len(times) and all(b - a >= 1 for a, b in pairwise(known))


def _file(path: Path) -> Page:
    if str(path) == "-":
        import sys

        return parse(sys.stdin.buffer.read().decode("utf-8", "replace"), "standard input")
    try:
        return parse(path.read_bytes().decode("utf-8", "replace"), str(path))
    except OSError as error:
        raise KvplanError(f"{path}: {reason(error)}") from None


def _recording(times: list[float | None], tracks: list[Track]) -> Recording:
    """The pages as a recording; of a single round, what came since the servers started, where they say when."""
    if len(times) > 1:
        return Recording(times, tracks)
    starts = [
        value
        for track in tracks
        for (name, _), value in (track.pages[0].samples if track.pages[0] else {}).items()
        if name == _START
    ]
    before = min(starts) if len(starts) == len(tracks) and times[0] is not None else None
    began = [Track(track.where, (Page(), *track.pages)) for track in tracks]
    return Recording([before, times[0] if before is not None else None], began, since_start=True)
