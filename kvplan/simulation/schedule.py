"""A request log as a schedule: times from 0, full blocks, tenants apart where they must be."""

from __future__ import annotations

from typing import Literal, TypeAlias

import numpy as np

from kvplan.documents import Requests
from kvplan.errors import KvplanError
from kvplan.simulation.world import Schedule

Share: TypeAlias = Literal["all", "tenant", "none"]


def schedule_of(requests: Requests, rate_scale: float, limit: int | None, share: Share = "all") -> Schedule:
    """The first `limit` requests, arriving `rate_scale` times as fast as logged.

    Whoever must not share gets blocks of its own: each tenant (requests that name none are one), or each request.
    Raises KvplanError for a log without time stamps, blocks or requests.
    """
    count = len(requests.time_s) if limit is None else min(limit, len(requests.time_s))
    if not count:
        raise KvplanError("the log has no requests: there is nothing to play")
    if not requests.hashed:
        raise KvplanError(
            "the log has lengths only, so what it reuses is unknown: play a log with block hashes or text"
        )
    if np.isnan(requests.time_s[:count]).any():
        raise KvplanError("the log has no time stamps, so nothing can be said about waiting: give a log that has them")
    offsets = requests.offsets[: count + 1]
    blocks = requests.blocks[: offsets[-1]].astype(np.int64)
    if share != "all" and blocks.size:
        owner = requests.tenant[:count].astype(np.int64) + 1 if share == "tenant" else np.arange(count)
        blocks = np.unique(np.repeat(owner, np.diff(offsets)) * (int(blocks.max()) + 1) + blocks, return_inverse=True)[
            1
        ].ravel()
    unique = int(blocks.max()) + 1 if blocks.size else 0
    names, starts, inputs = blocks.tolist(), offsets.tolist(), requests.input_tokens[:count].tolist()
    size = requests.block_tokens
    return Schedule(
        times=((requests.time_s[:count] - requests.time_s[0]) / rate_scale).tolist(),
        sizes=list(zip(inputs, requests.output_tokens[:count].tolist(), strict=True)),
        paths=[names[starts[r] : min(starts[r + 1], starts[r] + inputs[r] // size)] for r in range(count)],
        sessions=requests.session[:count].tolist(),
        unique=unique,
        block_tokens=size,
    )
