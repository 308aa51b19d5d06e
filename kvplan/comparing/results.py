"""From what a user names to runs of two arms: result files, folders of them, or what `kvplan replay run` left."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import msgspec

from kvplan.comparing import aiperf, counters, guidellm, vllm_bench
from kvplan.comparing.records import Result, Run
from kvplan.documents import Replay, ReplayRun
from kvplan.errors import KvplanError, UsageError
from kvplan.files import load, reason

MANIFEST = "replay.json"
YEAR_S, MOST_TOKENS = 3.2e7, 1e9
UNIX_S = 1e9  # seconds since 1970 are more than that, and seconds since a start are not


@dataclass(frozen=True, slots=True, kw_only=True)
class Format:
    """A load generator's results: told from what they start with, read whole."""

    name: str
    looks: Callable[[dict[str, Any]], bool]
    read: Callable[[Path, bytes], Result]


FORMATS = (
    Format(name="AIPerf (profile_export.jsonl)", looks=aiperf.looks, read=aiperf.read),
    Format(name="GuideLLM (benchmarks.json)", looks=guidellm.looks, read=guidellm.read),
    Format(name="vllm bench serve (--save-detailed)", looks=vllm_bench.looks, read=vllm_bench.read),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Loaded:
    """All runs, in the order they were made where that is `in_turn`, and the manifests they came with."""

    runs: tuple[Run, ...]
    replays: tuple[Replay, ...]
    in_turn: bool = True


def loaded(paths: Sequence[Path]) -> Loaded:
    """Runs of one folder of `kvplan replay run`, or of two: off and on. Raises KvplanError, UsageError."""
    for path in paths:
        if not path.exists():
            raise KvplanError(f"{path}: no such file or folder")
    if len(paths) == 1:
        manifest = _manifest(paths[0])
        if manifest is None:
            raise UsageError(f"{paths[0]}: one result has one arm: name off and on, or a folder of `kvplan replay run`")
        return _of_manifest(manifest, None)
    if len(paths) != 2:
        raise UsageError(f"{len(paths)} results given: name off and on, or one folder of `kvplan replay run`")
    if paths[0].resolve() == paths[1].resolve():
        raise UsageError(f"{paths[0]}: named for both arms: name the result without offload, then the one with it")
    both = [_arm(path, arm) for path, arm in zip(paths, ("off", "on"), strict=True)]
    runs = [run for one in both for run in one.runs]
    begun = [min((record.start_s for record in run.result.records), default=0.0) for run in runs]
    in_turn = all(moment > UNIX_S for moment in begun)  # else each file counts from a moment of its own
    if in_turn:
        runs = [run for _, run in sorted(zip(begun, runs, strict=True), key=lambda pair: pair[0])]
    return Loaded(runs=tuple(runs), replays=tuple(r for one in both for r in one.replays), in_turn=in_turn)


def _manifest(path: Path) -> Path | None:
    """Where the manifest of a folder is, or the file itself where it is one."""
    if path.is_dir():
        return path / MANIFEST if (path / MANIFEST).exists() else None
    return path if path.name == MANIFEST else None


def _arm(path: Path, arm: str) -> Loaded:
    manifest = _manifest(path)
    if manifest is not None:
        return _of_manifest(manifest, arm)
    beside = path.parent / MANIFEST
    if beside.exists() and path.is_dir():
        return _of_manifest(beside, arm, path.name)
    files = _files(path)
    return Loaded(
        runs=tuple(_run(result(file), arm, number) for number, file in enumerate(files, 1)),
        replays=(),
    )


def _run(made: Result, arm: str, number: int) -> Run:
    which: Literal["off", "on"] = "off" if arm == "off" else "on"
    return Run(arm=which, number=number, result=made)


def _of_manifest(path: Path, arm: str | None, folder: str | None = None) -> Loaded:
    """Runs of a manifest, or the one in `folder`; `arm` takes them for that arm, as where each was replayed alone."""
    document = load(path)
    if not isinstance(document.data, Replay):
        raise KvplanError(f"{path}: is a {document.kind}, not what `kvplan replay run` wrote")
    replay = document.data
    chosen = [run for run in replay.runs if folder in (None, run.folder)]
    if not chosen:
        raise KvplanError(f"{path}: no run{f' in the folder {folder}' if folder else ''} came to its end")
    arms = {run.arm for run in chosen}
    if arm is None and len(arms) < 2:
        raise KvplanError(f"{path}: has runs of {arms.pop()} alone: let it run to its end, or name off and on")
    if arm is not None and len(arms) == 2:
        raise UsageError(f"{path}: holds both arms: name it alone")
    runs = [_of_folder(path.parent, one, arm or one.arm) for one in chosen]
    return Loaded(runs=tuple(runs), replays=(replay,))


def _of_folder(folder: Path, one: ReplayRun, arm: str) -> Run:
    made = _run(result(folder / one.folder / aiperf.FILE), arm, one.number)
    if one.metrics_before is None or one.metrics_after is None:
        return made
    pages = (counters.read(folder / one.metrics_before), counters.read(folder / one.metrics_after))
    return Run(arm=made.arm, number=made.number, result=made.result, counters=pages)


def _files(path: Path) -> list[Path]:
    """The result files at a path: the file, the one in a folder, or those of the folders in it."""
    if not path.is_dir():
        return [path]
    if found := _known(path):
        return [found]
    inner = [found for folder in sorted(path.iterdir()) if folder.is_dir() and (found := _known(folder))]
    if not inner:
        raise KvplanError(f"{path}: no {aiperf.FILE} or {guidellm.FILE} in it: name the result file")
    return inner


def _known(folder: Path) -> Path | None:
    return next((folder / name for name in (aiperf.FILE, guidellm.FILE) if (folder / name).exists()), None)


def result(path: Path) -> Result:
    """Read one result file of any known load generator. Raises KvplanError naming it."""
    try:
        text = path.read_bytes()
    except OSError as error:
        raise KvplanError(f"{path}: {reason(error)}") from None
    first = _first(text)
    for known in FORMATS:
        if first is not None and known.looks(first):
            return _sane(known.read(path, text))
    names = ", ".join(known.name for known in FORMATS)
    raise KvplanError(f"{path}: not a result of a load generator that kvplan reads ({names})")


def _sane(made: Result) -> Result:
    """The result, if its figures can be: counts and times not negative, less than a year, no more cached than asked."""
    for record in made.records:
        counts = (record.prompt_tokens, record.output_tokens, record.cached_tokens or 0)
        times = (record.ttft_s, record.latency_s, record.start_s)
        can_be = all(0 <= count < MOST_TOKENS for count in counts) and counts[2] <= counts[0]
        if not (can_be and all(map(math.isfinite, times)) and all(0 <= time < YEAR_S for time in times[:2])):
            raise KvplanError(f"{made.name}: request {record.key}: {counts} tokens and {times[:2]} seconds cannot be")
    stated = (made.span_s, made.lag_p99_s or 0.0)
    if not all(0 <= time < YEAR_S for time in stated) or not all(map(math.isfinite, made.lag_s)):
        raise KvplanError(f"{made.name}: a run of {made.span_s:g} s, sent {made.lag_p99_s} s late, cannot be")
    return made


def _first(text: bytes) -> dict[str, Any] | None:
    """The document of a JSON file, or the first of JSON Lines."""
    for part in (text.lstrip().partition(b"\n")[0], text):
        try:
            made = msgspec.json.decode(part)
        except msgspec.DecodeError:
            continue
        return made if isinstance(made, dict) else None
    return None
