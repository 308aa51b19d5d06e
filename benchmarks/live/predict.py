"""What kvplan's own code says of a schedule: the reuse kernel for vLLM one by one, the simulator for all else."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import numpy as np
from msgspec.structs import replace

from kvplan import reuse, simulate
from kvplan.documents import Arm, EngineModel, LinkModel, Loop, Requests, Slots
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
    fresh = [answer.prompt_tokens - (answer.cached_tokens or 0) for answer in answers]
    first = [answer.ttft_s or 0.0 for answer in answers]
    steps = [(answer.end_s - (answer.first_s or 0.0)) / max(1, answer.output_tokens - 1) for answer in answers]
    return EngineModel(
        kv_tokens=(blocks - 1) * block_tokens,
        block_tokens=block_tokens,
        tier_bytes_per_token=1,
        max_num_batched_tokens=4096,
        output_blocks="keep",
        same_step_hits=True,
        **step_times(fresh, first, steps),
    )


def step_times(fresh: Sequence[int], first_s: Sequence[float], steps_s: Sequence[float]) -> dict[str, Any]:
    """Seconds of a step from answers that came one by one: tokens computed, time to first token, of a later token."""
    slope, start = np.polyfit(np.array(fresh, float), np.array(first_s, float), 1)
    return {
        "t0_s": max(float(start), 1e-4),
        "a_s_per_token": max(float(slope), 1e-7),
        "b_s_per_token_sq": 0.0,
        "weights_s": max(float(np.median(steps_s)), 1e-5),
        "kv_s_per_token": 0.0,
    }


def slot_engine(
    slots: int, context: int, unified: bool, block_tokens: int, kv_bytes_per_token: int, times: dict[str, Any]
) -> EngineModel:
    """llama-server on this machine as the simulator sees it, each slot with `context` tokens; contexts are copied as
    fast as this program copies memory."""
    rate = copies_per_s()
    return EngineModel(
        kv_tokens=context if unified else slots * context,
        block_tokens=block_tokens,
        tier_bytes_per_token=kv_bytes_per_token,
        max_num_batched_tokens=2048,
        output_blocks="keep",
        slots=Slots(count=slots, context_tokens=context, unified=unified),
        host_link=LinkModel(load_bytes_per_s=rate, store_bytes_per_s=rate),
        **times,
    )


def copies_per_s(size: int = 64 << 20) -> float:
    """Bytes that one core copies in a second from memory to memory, the median of seven."""
    source, target = np.ones(size, np.uint8), np.zeros(size, np.uint8)
    seconds = []
    for _ in range(7):
        begin = time.perf_counter()
        np.copyto(target, source)
        seconds.append(time.perf_counter() - begin)
    return size / float(np.median(seconds))


def side_by_side(requests: Requests, model: EngineModel, concurrency: int) -> int:
    """Tokens hit when so many clients send the schedule in order, each its next request when its last one ended."""
    loop = Loop(kind="concurrency", concurrency=concurrency)
    result = simulate.play(requests, model, Arm(name="off"), loop=loop)
    return result.tiers[0].hit_tokens
