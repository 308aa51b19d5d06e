"""Who reuses what: the stretches of prompt that save most, the hot set, and whose blocks a request finds."""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from kvplan import reuse
from kvplan.documents import HotSet, Requests, ReuseSource, SharedPrefix
from kvplan.kernels import compiled

Ints: TypeAlias = NDArray[np.int64]

_TOP = 10
_SHARES = (0.25, 0.5, 0.75, 0.9, 0.99)
_SOURCES = ("same session", "same tenant", "another tenant", "unknown")


@compiled
def _segments(
    blocks: NDArray[Any], offsets: Ints, depths: Ints, covered: Ints, references: Ints, block_tokens: int, most: int
) -> Ints:
    """The `most` stretches that save most, unordered: request, first and end block, references, saved tokens each.

    A request brings in what lies below its hit prefix; a stretch ends where references change. Every block is brought
    in once, so that every block lies in one stretch.
    """
    best = np.zeros((most, 5), np.int64)
    for r in range(depths.size):
        first = depths[r]
        n = offsets[r + 1] - offsets[r]
        while first < n:
            times = references[blocks[offsets[r] + first]]
            if times < 2:
                break
            end = first + 1
            while end < n and references[blocks[offsets[r] + end]] == times:
                end += 1
            saved = (times - 1) * (min(end * block_tokens, covered[r]) - first * block_tokens)
            least = np.argmin(best[:, 4])
            if saved > best[least, 4]:
                best[least, 0], best[least, 1], best[least, 2], best[least, 3] = r, first, end, times
                best[least, 4] = saved
            first = end
    return best


def top_prefixes(runs: reuse.Runs, requests: Requests, references: Ints) -> tuple[SharedPrefix, ...]:
    """The ten stretches of prompt, each shared by the same requests, that an infinite cache saves most with."""
    best = _segments(
        reuse.block_ids(requests),
        reuse.as_ints(requests.offsets),
        reuse.hit_depths(runs, requests),
        reuse.covered_tokens(requests),
        references,
        requests.block_tokens,
        _TOP,
    )
    covered = reuse.covered_tokens(requests)
    order = np.lexsort((best[:, 1], best[:, 0], -best[:, 4]))
    return tuple(
        SharedPrefix(
            from_tokens=first * requests.block_tokens,
            to_tokens=min(end * requests.block_tokens, int(covered[request])),
            requests=times,
            saved_tokens=saved,
            first_request=request,
        )
        for request, first, end, times, saved in best[order].tolist()
        if saved
    )


def hot_set(references: Ints) -> tuple[HotSet, ...]:
    """The fewest blocks that give some shares of all block hits: the most referenced ones."""
    blocks_with = np.bincount(references)  # by number of references
    hits = blocks_with * np.maximum(np.arange(blocks_with.size) - 1, 0)
    times = np.arange(blocks_with.size)[::-1]
    reached = np.cumsum(hits[::-1])
    counted = np.cumsum(blocks_with[::-1])
    if not reached.size or not reached[-1]:
        return ()
    rows = []
    for share in _SHARES:
        wanted = int(np.ceil(share * reached[-1]))
        at = int(np.searchsorted(reached, wanted))
        before = int(reached[at - 1]) if at else 0
        some = -(-(wanted - before) // int(times[at] - 1))
        rows.append(HotSet(hit_share_ratio=share, blocks=(int(counted[at - 1]) if at else 0) + some))
    return tuple(rows)


def reused_from(runs: reuse.Runs, requests: Requests, tokens: Ints) -> tuple[ReuseSource, ...]:
    """Hit tokens of an infinite cache by who used them last; empty where the log names neither session nor tenant."""
    if (requests.session < 0).all() and (requests.tenant < 0).all():
        return ()
    here, there = runs.request, runs.toucher
    session, tenant = np.asarray(requests.session), np.asarray(requests.tenant)
    same_session = (session[here] >= 0) & (session[here] == session[there])
    named = (tenant[here] >= 0) & (tenant[there] >= 0)
    same_tenant = named & (tenant[here] == tenant[there])
    kind = np.select([same_session, same_tenant, named], [0, 1, 2], 3)
    sums = np.zeros(len(_SOURCES), np.int64)
    np.add.at(sums, kind, tokens)
    return tuple(
        ReuseSource(who=who, tokens=count)  # type: ignore[arg-type]
        for who, count in zip(_SOURCES, sums.tolist(), strict=True)
        if count
    )
