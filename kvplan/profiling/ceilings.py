"""What an infinite cache hits: by each definition in use, under an engine's rule, and tenant by tenant."""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from kvplan import reuse
from kvplan.documents import HitRates, Requests, Tenant
from kvplan.kernels import compiled

Ints: TypeAlias = NDArray[np.int64]

_MOST_TENANTS = 100


def hit_rates(runs: reuse.Runs, requests: Requests, first: int) -> HitRates:
    """The infinite cache's hits of the requests from `first` on, by token, by block and by request."""
    depths = reuse.hit_depths(runs, requests)[first:]
    references = int(requests.offsets[-1] - requests.offsets[first])
    covered = reuse.covered_tokens(requests)[first:]
    whole, blocks, any_hit = int(requests.input_tokens[first:].sum()), int(depths.sum()), int((depths > 0).sum())
    depths *= requests.block_tokens
    tokens = int(np.minimum(depths, covered, out=depths).sum())
    return HitRates(
        measured_from=first,
        requests=depths.size,
        block_references=references,
        input_tokens=whole,
        hit_requests=any_hit,
        hit_blocks=blocks,
        hit_tokens=tokens,
        token_hit_ratio=ratio(tokens, whole),
        block_hit_ratio=ratio(blocks, references),
        request_any_hit_ratio=ratio(any_hit, depths.size),
    )


def ratio(part: int, whole: int) -> float:
    """A share, 0 of nothing."""
    return part / whole if whole else 0.0


def engine_hit_tokens(runs: reuse.Runs, requests: Requests) -> int:
    """Hits under an engine's rule: full blocks only, and the last token of a prompt is always computed."""
    return int(reuse.usable_depths(runs, requests).sum()) * requests.block_tokens


def reused_novel_tokens(runs: reuse.Runs, requests: Requests) -> int:
    """Tokens that were reused at least once, each counted once: where a run reaches what its toucher brought in.

    Where one id names blocks of two sizes, at most what the toucher brought in: more of it nobody stored.
    """
    depths, covered = reuse.hit_depths(runs, requests), reuse.covered_tokens(requests)
    return int(
        _reused_novel(runs.request, runs.toucher, runs.depth, runs.length, depths, covered, requests.block_tokens)
    )


@compiled
def _reused_novel(
    request: reuse.Whole,
    toucher: reuse.Whole,
    depth: reuse.Whole,
    length: reuse.Whole,
    created_from: Ints,
    covered: Ints,
    block_tokens: int,
) -> int:
    total = 0
    for i in range(request.size):
        whole = min(covered[request[i]], covered[toucher[i]])
        end = min((depth[i] + length[i]) * block_tokens, whole)
        total += max(end - max(depth[i], created_from[toucher[i]]) * block_tokens, 0)
    return total


def tenants(runs: reuse.Runs, requests: Requests, tokens: reuse.Whole) -> tuple[Tenant, ...]:
    """Each tenant's hits in a shared infinite cache and in one of its own, largest first."""
    if not requests.tenants:
        return ()
    names = ("(none)", *requests.tenants)
    tenant = np.asarray(requests.tenant, np.int64) + 1
    depths = reuse.hit_depths_within(requests, tenant)
    alone = np.minimum(depths * requests.block_tokens, reuse.covered_tokens(requests))
    hits = np.zeros(tenant.size, np.int64)
    np.add.at(hits, runs.request, tokens)
    columns = (np.ones(tenant.size, np.int64), requests.input_tokens, hits, alone)
    sums = np.zeros((4, len(names)), np.int64)
    for row, column in zip(sums, columns, strict=True):
        np.add.at(row, tenant, column)
    order = [i for i in np.argsort(-sums[1], kind="stable").tolist() if sums[0, i]]
    rows = [(names[i], *sums[:, i].tolist()) for i in order[:_MOST_TENANTS]]
    if rest := order[_MOST_TENANTS:]:
        rows.append((f"({len(rest)} others)", *sums[:, rest].sum(axis=1).tolist()))
    return tuple(
        Tenant(tenant=name, requests=count, input_tokens=total, hit_tokens=hit, isolated_hit_tokens=own)
        for name, count, total, hit, own in rows
    )
