"""Who reuses what: the stretches of prompt that save most, the hot set, and whose blocks a request finds."""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from kvplan import reuse
from kvplan.documents import HotSet, Requests, ReuseSource, SharedPrefix
from kvplan.kernels import compiled

Ints: TypeAlias = NDArray[np.int64]
Narrow: TypeAlias = NDArray[np.int32]

_TOP = 10
_SHARES = (0.25, 0.5, 0.75, 0.9, 0.99)
_SOURCES = ("same session", "same tenant", "another tenant", "unknown")


@compiled
def _most_saving(
    request: Narrow, first: Narrow, end: Narrow, references: Narrow, covered: Ints, block_tokens: int, most: int
) -> Ints:
    """The `most` stretches that save most, unordered: which, up to which token, and saved tokens of each."""
    best = np.zeros((most, 3), np.int64)
    least = 0
    for i in range(request.size):
        to = min(end[i] * block_tokens, covered[request[i]])
        saved = (references[i] - 1) * (to - first[i] * block_tokens)
        if saved > best[least, 2]:
            best[least, 0], best[least, 1], best[least, 2] = i, to, saved
            least = 0
            for one in range(1, most):
                if best[one, 2] < best[least, 2]:
                    least = one
    return best


def top_prefixes(requests: Requests, references: reuse.Stretches) -> tuple[SharedPrefix, ...]:
    """The ten stretches of prompt, each shared by the same requests, that an infinite cache saves most with."""
    found = references
    columns = (found.request, found.first, found.end, found.references)
    best = _most_saving(*columns, reuse.covered_tokens(requests), requests.block_tokens, _TOP)
    rows = [
        SharedPrefix(
            from_tokens=int(found.first[at]) * requests.block_tokens,
            to_tokens=to,
            requests=int(found.references[at]),
            saved_tokens=saved,
            first_request=int(found.request[at]),
        )
        for at, to, saved in best.tolist()
        if saved
    ]
    return tuple(sorted(rows, key=lambda row: (-row.saved_tokens, row.first_request, row.from_tokens)))


def hot_set(references: reuse.Stretches) -> tuple[HotSet, ...]:
    """The fewest blocks that give some shares of all block hits: the most referenced ones."""
    blocks = references.end - references.first
    blocks_with = np.bincount(references.references, weights=blocks).astype(np.int64)  # by number of references
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


def reused_from(runs: reuse.Runs, requests: Requests, tokens: reuse.Whole) -> tuple[ReuseSource, ...]:
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
