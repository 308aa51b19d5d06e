"""How long steps take, and at which step something is due."""

from __future__ import annotations

import heapq
import math
from typing import TypeAlias

from kvplan.documents import EngineModel
from kvplan.simulation.live import Live

Agenda: TypeAlias = list[tuple[int, int, int, Live]]  # a heap: decode step, request, its epoch then, itself
NEVER = 1 << 60


def stale(entry: tuple[int, int, int, Live]) -> bool:
    """Whether the request has lost its place since the entry was made."""
    return entry[2] != entry[3].epoch


def first_due(agenda: Agenda) -> int:
    """The step of the first entry that still means something."""
    while agenda and stale(agenda[0]):
        heapq.heappop(agenda)
    return agenda[0][0] if agenda else NEVER


def step_seconds(model: EngineModel, tokens: int, squares: int, kv_tokens: int) -> float:
    """One step of `tokens` tokens, of which chunks of prefill give sum chunk * (2 * context + chunk) = `squares`."""
    work = model.a_s_per_token * tokens + model.b_s_per_token_sq * squares
    return model.t0_s + max(work, model.weights_s) + kv_tokens * model.kv_s_per_token


def decode_run(model: EngineModel, decoding: int, kv_tokens: int, most: int, gap_s: float) -> tuple[int, float]:
    """Steps of decoding alone until the first that ends `gap_s` or more from now, at most `most`; all their seconds.

    Each step is longer than the one before by what its `decoding` new tokens cost to read: an arithmetic series.
    """
    step = step_seconds(model, decoding, 0, kv_tokens)
    growth = decoding * model.kv_s_per_token

    def seconds(count: int) -> float:
        return count * step + growth * count * (count - 1) / 2

    if gap_s >= seconds(most):
        return most, seconds(most)
    slope = step - growth / 2
    root = (math.sqrt(slope**2 + 2 * growth * gap_s) - slope) / growth if growth else gap_s / step
    count = max(1, min(most, int(root) - 1))  # a step early, as the root is rounded; the loop makes it exact
    while count < most and seconds(count) < gap_s:
        count += 1
    return count, seconds(count)
