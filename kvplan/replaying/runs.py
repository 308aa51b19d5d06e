"""Runs of one schedule over two arms in a fixed order, each with its commands, its server, its metrics, its folder."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from msgspec.structs import replace

from kvplan.documents import Replay, ReplayRun
from kvplan.errors import KvplanError, UsageError
from kvplan.files import dump, make_folder, now, wrap, write_atomically
from kvplan.progress import Progress, silent
from kvplan.replaying import aiperf, children, server
from kvplan.replaying.aiperf import Load, Program
from kvplan.replaying.played import Played

MANIFEST = "replay.json"
ARMS = {"A": "off", "B": "on"}
STEPS = ("before", "serve", "after")


@dataclass(frozen=True, slots=True, kw_only=True)
class Arms:
    """Where each arm is, and the user's shell lines by (step, arm): before a run, its server, after it."""

    servers: Mapping[str, str]
    lines: Mapping[tuple[str, str], str] = field(default_factory=dict)
    wait_s: float = 120.0


def order_of(text: str, repeats: int = 1) -> str:
    """An order of A (off) and B (on), such as ABBA, `repeats` times. Raises UsageError for anything else."""
    if not re.fullmatch("[ABab]+", text):
        raise UsageError(f"--order {text}: write A for off and B for on, such as ABBA")
    return text.upper() * repeats


def run(
    played: Played,
    arms: Arms,
    load: Load,
    program: Program,
    order: str,
    folder: Path,
    progress: Progress = silent,
) -> Replay:
    """Play a schedule once for each letter of `order`, results in `folder`, which must be empty.

    The document of what was run so far is written after every run. Everything started is ended where a run fails or is
    interrupted. Raises KvplanError naming the run and what of it failed.
    """
    _checked(arms, order)
    words = aiperf.command(program, played, load, load.tokenizer or "TOKENIZER", "SERVER", "FOLDER")
    _emptied(folder)
    tokenizer = aiperf.tokenizer_of(load, folder)
    replay = Replay(
        schedule=played.document,
        order=order,
        generator=f"aiperf {program.version}",
        command=tuple(words),
        commands=tuple((f"{step}-{arm}", line) for (step, arm), line in sorted(arms.lines.items())),
        concurrency=load.concurrency,
        request_rate=load.request_rate,
        runs=(),
    )
    with children.terminated_as_interrupted():
        for number, letter in enumerate(order, 1):
            progress(f"run {number} of {len(order)}: {ARMS[letter]}", (number - 1) / len(order))
            place = folder / f"{number:02d}-{ARMS[letter]}"
            words = aiperf.command(program, played, load, tokenizer, arms.servers[ARMS[letter]], place)
            one = _one(arms, words, place, number, ARMS[letter])
            replay = replace(replay, runs=(*replay.runs, one))
            write_atomically(folder / MANIFEST, dump(wrap(replay)))
    return replay


def _checked(arms: Arms, order: str) -> None:
    own = any(arm in ("off", "on") and step != "after" for step, arm in arms.lines)
    told = own or ("before", "each") in arms.lines or ("serve", "each") in arms.lines
    if len(set(order)) == 2 and arms.servers["off"] == arms.servers["on"] and not told:
        raise UsageError(
            "off and on would be the same server in the same state: give --server-off and --server-on, or commands "
            "that change it, such as --serve-off and --serve-on or --before-arm"
        )


def _emptied(folder: Path) -> None:
    make_folder(folder)
    if any(folder.iterdir()):
        raise KvplanError(f"{folder}: is not empty: name a new folder, so that no result is lost or mixed up")


def _one(arms: Arms, words: list[str], place: Path, number: int, arm: str) -> ReplayRun:
    make_folder(place)
    url, what = arms.servers[arm], f"run {number} ({arm})"
    variables = {"KVPLAN_ARM": arm, "KVPLAN_RUN": str(number), "KVPLAN_SERVER": url}
    _lines(arms, "before", arm, place, variables, what)
    with _server(arms, arm, place, variables):
        before = server.scrape(url, place / "metrics-before.txt")
        started, clock = now(), time.monotonic()
        children.run(words, place / "aiperf.log", aiperf.environment(), what=f"{what}: aiperf")
        seconds = time.monotonic() - clock
        if not (place / "profile_export.jsonl").exists():
            raise KvplanError(f"{what}: aiperf left no profile_export.jsonl in {place}: see {place / 'aiperf.log'}")
        after = server.scrape(url, place / "metrics-after.txt")
    _lines(arms, "after", arm, place, variables, what)
    return ReplayRun(
        number=number,
        arm="off" if arm == "off" else "on",
        server=url,
        folder=place.name,
        started=started,
        seconds=seconds,
        metrics_before=f"{place.name}/metrics-before.txt" if before else None,
        metrics_after=f"{place.name}/metrics-after.txt" if after else None,
    )


def _lines(arms: Arms, step: str, arm: str, place: Path, variables: Mapping[str, str], what: str) -> None:
    """Run the shell lines of a step: those of every arm, then those of this one."""
    for whose in ("each", arm):
        if line := arms.lines.get((step, whose)):
            children.run(line, place / f"{step}.log", variables, what=f"{what}: {line!r}")


@contextmanager
def _server(arms: Arms, arm: str, place: Path, variables: Mapping[str, str]) -> Iterator[None]:
    """The arm's server, ready: started here where the user gave a line for it, else already there."""
    line = arms.lines.get(("serve", arm)) or arms.lines.get(("serve", "each"))
    if line is None:
        server.wait_until_ready(arms.servers[arm], arms.wait_s)
        yield
        return
    with children.serving(line, place / "server.log", variables) as child:
        server.wait_until_ready(arms.servers[arm], arms.wait_s, lambda: child.poll() is None)
        yield
