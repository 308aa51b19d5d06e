"""A request log as a schedule: times from 0, full blocks, tenants apart where they must be."""

from __future__ import annotations

from typing import Literal, TypeAlias

import numpy as np

from kvplan.documents import Arm, EngineModel, Loop, Requests
from kvplan.errors import KvplanError
from kvplan.simulation.loops import OPEN, answers, turns
from kvplan.simulation.world import Schedule

Share: TypeAlias = Literal["all", "tenant", "none"]


def schedule_for(
    engine: EngineModel, requests: Requests, arm: Arm, rate_scale: float, limit: int | None, loop: Loop = OPEN
) -> Schedule:
    """The schedule as one engine sees it in one arm: slots compare whole prompts, a paged cache its full blocks."""
    names_output, partial = engine.output_blocks == "reuse", engine.slots is not None
    return schedule_of(requests, rate_scale, limit, arm.share, loop, names_output, partial)


def schedule_of(
    requests: Requests,
    rate_scale: float,
    limit: int | None,
    share: Share = "all",
    loop: Loop = OPEN,
    names_output: bool = False,
    partial: bool = False,
) -> Schedule:
    """The first `limit` requests, arriving `rate_scale` times as fast as logged.

    Whoever must not share gets blocks of its own: each tenant (requests that name none are one), or each request. In a
    closed loop of sessions the scale is for first turns alone: people do not think faster. `names_output` says which
    blocks answers become, `partial` keeps the block that a prompt only begins. Raises KvplanError for a log without
    time stamps (clients need none), blocks or requests.
    """
    count = len(requests.time_s) if limit is None else min(limit, len(requests.time_s))
    if not count:
        raise KvplanError("the log has no requests: there is nothing to play")
    if not requests.hashed:
        raise KvplanError(
            "the log has lengths only, so what it reuses is unknown: play a log with block hashes or text"
        )
    if loop.kind != "concurrency" and np.isnan(requests.time_s[:count]).any():
        raise KvplanError("the log has no time stamps, so nothing can be said about waiting: give a log that has them")
    offsets = requests.offsets[: count + 1]
    blocks = requests.blocks[: offsets[-1]].astype(np.int64)
    if share != "all" and blocks.size:
        owner = requests.tenant[:count].astype(np.int64) + 1 if share == "tenant" else np.arange(count)
        blocks = np.unique(np.repeat(owner, np.diff(offsets)) * (int(blocks.max()) + 1) + blocks, return_inverse=True)[
            1
        ].ravel()
    unique = 1 + int(max(blocks.max(initial=-1), requests.blocks.max(initial=-1) if names_output else -1))
    names, starts, inputs = blocks.tolist(), offsets.tolist(), requests.input_tokens[:count].tolist()
    size = requests.block_tokens
    paths = [names[starts[r] : min(starts[r + 1], starts[r] + inputs[r] // size)] for r in range(count)]
    times = np.zeros(count) if loop.kind == "concurrency" else (requests.time_s[:count] - requests.time_s[0])
    after = turns(requests, paths) if names_output or loop.kind == "sessions" else []
    return Schedule(
        times=(times / rate_scale).tolist(),
        sizes=list(zip(inputs, requests.output_tokens[:count].tolist(), strict=True)),
        paths=[names[starts[r] : starts[r + 1]] for r in range(count)] if partial else paths,
        sessions=requests.session[:count].tolist(),
        unique=unique,
        block_tokens=size,
        after=after if loop.kind == "sessions" else (),
        answers=answers(requests, paths, after, share == "all") if names_output else (),
        clients=loop.concurrency if loop.kind == "concurrency" else None,
    )
