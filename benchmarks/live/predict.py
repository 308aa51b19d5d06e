"""What kvplan's own code says of a schedule on vLLM: the reuse kernel one by one, the simulator side by side."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from msgspec.structs import replace

from kvplan import reuse, simulate
from kvplan.documents import Arm, EngineModel, Loop, Requests
from kvplan.profiling import whatif
from live.client import Answer


def with_answers(requests: Requests) -> Requests:
    """The log as vLLM caches it: full blocks of prompt and answer, the last token's own KV not computed.

    What an answer fills nobody asks for again (the schedule's prompts were made before there were answers), so such
    blocks have names of their own. They take room all the same.
    """
    size = requests.block_tokens
    full = reuse.as_ints(requests.input_tokens) // size
    held = np.maximum(full, (reuse.as_ints(requests.input_tokens + requests.output_tokens) - 1) // size)
    offsets = np.concatenate((np.zeros(1, np.int64), np.cumsum(held)))
    blocks = np.empty(int(offsets[-1]), np.int64)
    fresh = reuse.unique_blocks(requests)
    for r, count in enumerate(full):
        start, end = offsets[r], offsets[r + 1]
        first = requests.offsets[r]
        blocks[start : start + count] = requests.blocks[first : first + count]
        blocks[start + count : end] = np.arange(fresh, fresh + end - start - count)
        fresh += int(end - start - count)
    return replace(requests, offsets=offsets, paths=blocks)


def one_by_one(requests: Requests, blocks: int) -> int:
    """Tokens hit when requests come one after the other to a vLLM with `blocks` blocks of the log's size.

    One block is the null block, and one is the running request's partly filled last one. vLLM always computes the
    last token of a prompt, so a prompt of whole blocks never hits its last one.
    """
    cached = with_answers(requests)
    runs = reuse.find_runs(cached)
    usable = (reuse.as_ints(requests.input_tokens) - 1) // requests.block_tokens
    length = np.minimum(runs.length, usable[runs.request] - runs.depth)
    clipped = reuse.Runs(
        request=runs.request, toucher=runs.toucher, depth=runs.depth, length=length, rank=runs.rank
    ).where(length > 0)
    return whatif.curve(clipped, cached, [blocks - 2])[0].hit_tokens


def engine(blocks: int, block_tokens: int, answers: Sequence[Answer]) -> EngineModel:
    """vLLM on this machine as the simulator sees it: step times from answers that came one by one.

    The hits hang on the order in which requests end, and little on how long they take.
    """
    fresh = np.array([answer.prompt_tokens - (answer.cached_tokens or 0) for answer in answers], float)
    first = np.array([answer.ttft_s or 0.0 for answer in answers])
    slope, start = np.polyfit(fresh, first, 1)
    steps = [(answer.end_s - (answer.first_s or 0.0)) / max(1, answer.output_tokens - 1) for answer in answers]
    return EngineModel(
        kv_tokens=(blocks - 1) * block_tokens,
        block_tokens=block_tokens,
        tier_bytes_per_token=1,
        t0_s=max(float(start), 1e-4),
        a_s_per_token=max(float(slope), 1e-7),
        b_s_per_token_sq=0.0,
        weights_s=max(float(np.median(steps)), 1e-5),
        kv_s_per_token=0.0,
        max_num_batched_tokens=4096,
        output_blocks="keep",
        same_step_hits=True,
    )


def side_by_side(requests: Requests, model: EngineModel, concurrency: int) -> int:
    """Tokens hit when so many clients send the schedule in order, each its next request when its last one ended."""
    loop = Loop(kind="concurrency", concurrency=concurrency)
    result = simulate.play(requests, model, Arm(name="off"), loop=loop)
    return result.tiers[0].hit_tokens
