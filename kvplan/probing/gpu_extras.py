"""What a GPU's link gives to serving beyond copies alone: beside decoding, and on the way to a drive."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from kvplan.documents import Contention, KvMove, Pipeline
from kvplan.errors import KvplanError
from kvplan.files import reason
from kvplan.probing import contention, pipeline, scratch
from kvplan.probing.cuda import DecodeLoad, Gpu
from kvplan.probing.gpu_cells import shapes, whole_words
from kvplan.probing.gpu_copies import Copies, Lane
from kvplan.probing.mechanisms import Direction, Mechanism
from kvplan.progress import Progress
from kvplan.units import GiB, KiB, MiB, show_bytes

BLOCK = 2 * MiB
PIPE_BYTES = 128 * MiB
# Passes that write to the drive: filling once, then for each number of slots the drive alone, serial and overlapped.
PASSES = 1 + 3 * len(pipeline.SLOTS)
_LARGE, _SMALL = 1 * MiB, 32 * KiB
_STEP_BYTES = 8 * GiB  # read by one step of decoding: the weights of a small model
_LEAST_STEP_BYTES = 1 * GiB  # still many times any GPU's cache
_TRIED_STEPS = 5
_TRAIN = 64 * MiB  # copied at a time beside decoding
_LEAST_GRACE_S, _GRACE_S = 10.0, 20.0  # half of its time more, within these
# Steps that one cell must have time for: alone and disturbed, with some to warm up.
_STEPS_A_CELL = 2.5 * contention.FEWEST


@dataclass(frozen=True, slots=True, kw_only=True)
class Extras:
    """What to measure besides copies alone: seconds beside decoding, and drives to go to with the bytes of a pass."""

    contention_s: float = 0.0
    folders: tuple[Path, ...] = ()
    pass_bytes: int = PIPE_BYTES


@dataclass(frozen=True, slots=True, kw_only=True)
class Rig:
    """One GPU with a page-locked lane each way, and the pattern that fills them."""

    gpu: Gpu
    index: int
    lanes: Mapping[Direction, Lane]
    base: NDArray[np.uint64]
    random: np.random.Generator
    mechanisms: tuple[Mechanism, ...] = ("loop",)


def beside_decoding(
    rig: Rig, granules: Sequence[int], moves: Sequence[KvMove], seconds: float, progress: Progress
) -> tuple[tuple[Contention, ...], dict[str, str]]:
    """Large pieces beside a load like decoding, and those of `moves` as their engines move them.

    Without moves every mechanism both ways, at the smallest size asked for. Also what could not be measured, and why.
    """
    todo = _beside(rig, granules, moves)
    until = time.monotonic() + seconds
    found: list[Contention] = []
    missing: dict[str, str] = {}
    try:
        load = _load(rig.gpu, seconds / max(1, len(todo)))
    except KvplanError as error:
        return (), {"copies beside decoding": str(error)}
    for position, (mechanism, size, way) in enumerate(todo):
        progress(f"gpu{rig.index}: {way} {show_bytes(size)} by {mechanism} beside decoding", position / len(todo))
        left = max(0.0, until - time.monotonic()) / (len(todo) - position)
        if time.monotonic() > until + min(_GRACE_S, max(_LEAST_GRACE_S, seconds / 2)):
            missing[f"{len(todo) - position} cells beside decoding"] = "no time left: give a longer budget"
            break
        try:
            copies = Copies(rig.gpu, rig.lanes[way], size, None, rig.base, rig.random, mechanism, _TRAIN)
            found.append(contention.measure(rig.gpu, rig.index, copies, load, mechanism=mechanism, seconds=left))
        except KvplanError as error:
            missing[f"{way} {show_bytes(size)} by {mechanism} beside decoding"] = str(error)
    return tuple(found), missing


def _beside(rig: Rig, granules: Sequence[int], moves: Sequence[KvMove]) -> list[tuple[Mechanism, int, Direction]]:
    """(mechanism, piece, direction) of the cells beside decoding, in pieces that fit the lanes."""
    wanted: list[tuple[Mechanism, int, Direction]] = [("loop", _LARGE, way) for way in rig.lanes]
    wanted += shapes(moves)
    if not moves:
        small = whole_words(min(granules, default=_SMALL))
        wanted += [(mechanism, small, way) for mechanism in rig.mechanisms for way in rig.lanes]
    found = [
        (name if name in rig.mechanisms else "loop", min(size, len(rig.lanes[way].host)), way)
        for name, size, way in wanted
    ]
    return list(dict.fromkeys(found))


def _load(gpu: Gpu, seconds: float) -> DecodeLoad:
    """A load whose steps read much memory, but less where a slow GPU could not do enough of them in a cell's time."""
    size = min(gpu.free_bytes() // 4, _STEP_BYTES)
    load = gpu.decode_load(size)
    gpu.step(load)
    start = gpu.mark(load.stream)
    for _ in range(_TRIED_STEPS):
        gpu.step(load)
    step_s = gpu.seconds(start, gpu.mark(load.stream)) / _TRIED_STEPS
    most = seconds / _STEPS_A_CELL
    if step_s <= most or size <= _LEAST_STEP_BYTES:
        return load
    del load  # its memory, before as much is asked for again
    return gpu.decode_load(max(_LEAST_STEP_BYTES, int(size * most / step_s)))


def through_drive(rig: Rig, folder: Path, pass_bytes: int, progress: Progress) -> tuple[tuple[Pipeline, ...], int]:
    """Stores and loads between the GPU and a scratch file, with each number of slots; and the bytes written.

    Raises KvplanError where the folder has no room or the drive fails. The file is gone at the end.
    """
    lane = rig.lanes["h2d"]
    blocks = min(pass_bytes, len(lane.host)) // BLOCK
    if blocks < max(pipeline.SLOTS):
        raise KvplanError(f"{folder}: too little to write for a pipeline of {max(pipeline.SLOTS)} blocks")
    looked = scratch.look(folder)
    scratch.check_room(looked, blocks * BLOCK)
    slots = tuple(lane.host[at : at + BLOCK] for at in range(0, max(pipeline.SLOTS) * BLOCK, BLOCK))
    found = []
    with scratch.scratch_file(looked, blocks * BLOCK) as file:
        ends = pipeline.Ends(
            gpu=rig.gpu,
            index=rig.index,
            memory=lane.memory[: blocks * BLOCK],
            stream=lane.stream,
            slots=slots,
            descriptor=file.descriptor,
            disk=f"disk:{folder}",
            blocks=blocks,
        )
        try:
            pipeline.fill_file(ends)
            for way in ("load", "store"):
                for count in pipeline.SLOTS:
                    progress(f"gpu{rig.index} and {folder}: {way} through {count} slots", None)
                    one = pipeline.measure(ends, way, count)
                    found.append(one if file.direct else _buffered(one))
        except OSError as error:
            raise KvplanError(f"{folder}: the pipeline's file failed: {reason(error)}") from None
        finally:
            rig.gpu.wait(lane.stream)
            os.ftruncate(file.descriptor, 0)
    return tuple(found), PASSES * blocks * BLOCK


def _buffered(one: Pipeline) -> Pipeline:
    return replace(one, flags=(*one.flags, "page-cache"))
