"""What the same log would reuse otherwise: apart by tenant, over replicas, in tiers, in larger granules, and more.

Each is exact for the log, from a cold start, unless its docstring calls it a bound. docs/workload.md defines them.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any, TypeAlias

import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from kvplan import paths, reuse
from kvplan.documents import Finding, Granularity, Hits, Isolation, Replicas, Requests, Tier
from kvplan.errors import KvplanError, UsageError
from kvplan.kernels import compiled, part
from kvplan.paths import block_at, stretch_of

Ints: TypeAlias = NDArray[np.int64]
Narrow: TypeAlias = NDArray[np.int32]

_MOST_REPLICAS = 64  # a bit each in a word
_FARTHEST = 2**31 - 1
_AFFINE = 0.5  # a router follows a cached prefix that is more than this share of the prompt


# ------------------------------------------------------------------------------------------------ curves


def curve(runs: reuse.Runs, requests: Requests, capacities: Sequence[int], first: int = 0) -> tuple[Hits, ...]:
    """Hits of LRU caches of `capacities` blocks (ascending), by the runs of any variant of the log.

    Ratios are over the input tokens of the requests from `first` on.
    """
    one_class = np.array([2**62], np.int64)
    swept = reuse.sweep(runs, requests, np.array(capacities, np.int64), one_class)
    whole = int(requests.input_tokens[first:].sum())
    return tuple(
        Hits(
            capacity_blocks=capacity,
            hit_requests=int(swept.requests[i, 0]),
            hit_blocks=int(swept.hit_blocks[i]),
            hit_tokens=int(swept.tokens[i, 0]),
            hit_ratio=int(swept.tokens[i, 0]) / whole if whole else 0.0,
        )
        for i, capacity in enumerate(capacities)
    )


def shared_blocks(requests: Requests, references: reuse.Stretches) -> Narrow:
    """By request: its leading blocks that other requests have too, int32 (requests,).

    LRU that stores these alone does without the blocks with one reference, which the log never uses again.
    """
    shared = paths.tree(requests).shared.copy()  # what a request has from another has two at least
    again = references.references > 1
    np.maximum.at(shared, references.request[again], references.end[again])
    return shared


# ---------------------------------------------------------------------------------------------- tenants


def isolated(requests: Requests, by: NDArray[Any] | None = None) -> Requests:
    """The log with its blocks kept apart by tenant, as a cache salt does, or by another group of requests."""
    group = reuse.as_ints(requests.tenant if by is None else by)
    return replace(requests, paths=paths.rearranged(paths.tree(requests), np.arange(group.size), group))


def isolation(runs: reuse.Runs, requests: Requests, capacities: Sequence[int]) -> Isolation | None:
    """What is lost if tenants share nothing; None where the log has not two of them."""
    if np.unique(requests.tenant).size < 2:
        return None
    apart = isolated(requests)
    points = curve(reuse.find_runs(apart), apart, [*capacities, reuse.unique_blocks(apart)])
    return Isolation(
        hit_tokens=int(reuse.run_tokens(runs, requests).sum()),
        isolated_hit_tokens=points[-1].hit_tokens,
        blocks=reuse.unique_blocks(requests),
        isolated_blocks=reuse.unique_blocks(apart),
        curve=points[:-1],
    )


# ------------------------------------------------------------------------------------- larger granules


def coarser(requests: Requests, block_tokens: int) -> Requests:
    """The log in blocks of `block_tokens` tokens, a multiple of its own. Raises KvplanError for any other size.

    Exact: a larger block is named by the last smaller block in it, which names all before it too. The remainder of a
    log with partial last blocks stays a partial block, that of a log of full blocks is left out.
    """
    factor, rest = divmod(block_tokens, requests.block_tokens)
    if rest or not factor:
        raise KvplanError(
            f"blocks of {block_tokens} tokens: the log has hashes of {requests.block_tokens} tokens each, which can be "
            f"joined but not split: give a multiple of {requests.block_tokens}"
        )
    offsets = reuse.as_ints(requests.offsets)
    count = np.diff(offsets)
    partial = bool((count * requests.block_tokens >= requests.input_tokens).all())
    fewer = -(-count // factor) if partial else count // factor
    starts = np.concatenate((np.zeros(1, np.int64), np.cumsum(fewer)))
    index = np.arange(starts[-1]) - np.repeat(starts[:-1], fewer)
    last = np.minimum((index + 1) * factor, np.repeat(count, fewer)) - 1
    kept = requests.blocks[np.repeat(offsets[:-1], fewer) + last]
    text = f"Blocks of {requests.block_tokens} tokens were joined to blocks of {block_tokens}."
    finding = Finding(severity="info", code="blocks-joined", text=text)
    return replace(
        requests,
        block_tokens=block_tokens,
        offsets=starts,
        paths=paths.from_ids(kept, starts),
        findings=(*requests.findings, finding),
    )


def granularities(runs: reuse.Runs, requests: Requests) -> tuple[Granularity, ...]:
    """The engine's rule with ever larger granules: blocks, or distances between state checkpoints."""
    tokens = reuse.usable_depths(runs, requests)
    tokens *= requests.block_tokens
    whole, longest = int(requests.input_tokens.sum()), int(tokens.max(initial=0))
    ladder: list[Granularity] = []
    granule = requests.block_tokens
    while not ladder or granule <= longest:
        hit = int((tokens // granule * granule).sum())
        ladder.append(Granularity(granule_tokens=granule, hit_tokens=hit, hit_ratio=hit / whole if whole else 0.0))
        granule *= 2
    return tuple(ladder)


def prompt_end_hit_tokens(runs: reuse.Runs, requests: Requests) -> int:
    """Hits where a state can be taken up only at the end of an earlier prompt (its last full block).

    That is a recurrent model whose server keeps one checkpoint a prompt. Infinite cache, last token computed.
    """
    tree = paths.tree(requests)
    full = reuse.as_ints(requests.input_tokens // requests.block_tokens)
    np.minimum(full, paths.counts(tree), out=full)
    taken = _to_prompt_end(tree.parent, tree.shared, reuse.usable_depths(runs, requests), full)
    return int(taken.sum()) * requests.block_tokens


@compiled
def _to_prompt_end(parent: Narrow, shared: Narrow, depths: Ints, full: Ints) -> Ints:
    # By stretch, the depths at which prompts have ended in it: a list, ascending.
    head, after = np.full(depths.size, -1, np.int32), np.full(depths.size, -1, np.int32)  # by the request that ended
    taken = np.zeros(depths.size, np.int64)
    for r in range(depths.size):
        s, limit = r, depths[r]
        while s >= 0 and limit > 0 and taken[r] == 0:
            ended = head[s]
            while ended >= 0 and full[ended] <= limit:
                taken[r] = full[ended]
                ended = after[ended]
            limit = min(limit, shared[s])
            s = parent[s]
        if full[r] > 0:
            s = r
            while shared[s] >= full[r]:
                s = parent[s]
            before, ended = -1, head[s]
            while ended >= 0 and full[ended] < full[r]:
                before, ended = ended, after[ended]
            if ended < 0 or full[ended] > full[r]:
                after[r] = ended
                if before < 0:
                    head[s] = r
                else:
                    after[before] = r
    return taken


def decoded_hit_tokens(requests: Requests) -> int | None:
    """Tokens an infinite cache hits that also keeps decoded blocks, as later prompts render the answers of the log.

    None where the log holds no answers.
    """
    texts = requests.texts
    if texts is None or not len(texts.answer_blocks):
        return None
    counts = np.diff(reuse.as_ints(requests.offsets))
    owner = np.repeat(np.arange(counts.size), counts)
    answered = np.repeat(np.arange(counts.size), np.diff(reuse.as_ints(texts.answer_offsets)))
    size = max(int(requests.blocks.max(initial=-1)), int(texts.answer_blocks.max())) + 1
    first = np.full(size, counts.size, np.int64)  # by block: the first request that brings it
    np.minimum.at(first, requests.blocks, owner)
    np.minimum.at(first, texts.answer_blocks, answered)
    # Ids name whole prefixes: where a block has been seen, so have all before it.
    depths = np.bincount(owner[first[requests.blocks] < owner], minlength=counts.size)
    return int(np.minimum(depths * requests.block_tokens, reuse.covered_tokens(requests)).sum())


def decoded_hit_blocks(runs: reuse.Runs, requests: Requests) -> int:
    """Blocks that could be hit beyond the ceiling if decoded blocks are cached too: an upper bound.

    A prompt that leaves the tree right after the last full block of another one may continue that one's output, as far
    as both go. Two prompts that continue the same output share its blocks, so that each output serves one; which serves
    which is not known: the longest are paired with the longest, whatever their order in time.
    """
    tree = paths.tree(requests)
    columns = (tree.parent, tree.shared, tree.first, reuse.as_ints(requests.input_tokens))
    outputs = _ends(*columns, reuse.as_ints(requests.output_tokens), requests.block_tokens, True)
    outputs.sort()
    prompts = _ends(*columns, reuse.hit_depths(runs, requests), requests.block_tokens, False)
    prompts.sort()
    return int(_continued(tree.shared, tree.first, outputs, prompts))


@part
def _pair(block: Any, reach: Any) -> Any:
    """A block and up to which depth something goes on after it, in one number; of one block the farthest has the least.

    A prompt has fewer than 2^31 blocks; how much further an output reaches does not matter.
    """
    return (block << 31) + _FARTHEST - min(reach, _FARTHEST)


@compiled
def _ends(
    parent: Narrow, shared: Narrow, first: Narrow, input_tokens: Ints, more: Ints, block_tokens: int, outputs: bool
) -> Ints:
    """Where prompts end, and how many blocks there are with what goes on there: two ways, one loop to compile.

    Of `outputs` that fill blocks (`more` is their tokens): the last full block of their prompt. Else of prompts that
    leave the tree before their end (`more` is their hits in blocks): the last block they share, and their full blocks.
    """
    pairs, found = np.empty(shared.size, np.int64), 0
    for r in range(shared.size):
        at = min(input_tokens[r] // block_tokens, shared[r] + first[r + 1] - first[r])
        if outputs:
            reach = (input_tokens[r] + more[r]) // block_tokens
        else:
            at, reach = more[r], at
        if 0 < at < reach:
            pairs[found] = _pair(block_at(parent, shared, first, r, at - 1), reach)
            found += 1
    return pairs[:found]


@compiled
def _continued(shared: Narrow, first: Narrow, outputs: Ints, prompts: Ints) -> int:
    """Blocks that prompts hit beyond the block they leave at if each continues one output that starts there."""
    total, i, j = 0, 0, 0
    while i < outputs.size and j < prompts.size:
        block = prompts[j] >> 31
        if outputs[i] >> 31 != block:
            if outputs[i] >> 31 < block:
                i += 1
            else:
                j += 1
            continue
        stretch = stretch_of(first, shared.size, block)
        depth = shared[stretch] + block - first[stretch] + 1
        while i < outputs.size and j < prompts.size and outputs[i] >> 31 == block and prompts[j] >> 31 == block:
            reach = _FARTHEST - max(outputs[i] & _FARTHEST, prompts[j] & _FARTHEST)
            total += max(reach - depth, 0)
            i, j = i + 1, j + 1
        while i < outputs.size and outputs[i] >> 31 == block:
            i += 1
        while j < prompts.size and prompts[j] >> 31 == block:
            j += 1
    return total


# --------------------------------------------------------------------------------------------- replicas


def replicas(requests: Requests, count: int, capacities: Sequence[int]) -> tuple[Replicas, ...]:
    """The log over `count` servers by each routing that it allows; capacities (blocks) are those of one server.

    Raises UsageError for a count that is not 1 to 64.
    """
    if not 1 <= count <= _MOST_REPLICAS:
        raise UsageError(f"--replicas {count}: from 1 to {_MOST_REPLICAS}")
    ways = {"round-robin": np.arange(len(requests.input_tokens)) % count}
    if (requests.session >= 0).any():
        ways["session"] = _by_session(requests, count)
    ways["affinity"] = _by_prefix(
        reuse.block_ids(requests),
        reuse.as_ints(requests.offsets),
        reuse.as_ints(requests.input_tokens),
        requests.block_tokens,
        reuse.unique_blocks(requests),
        count,
    )
    return tuple(_spread(requests, count, way, server, capacities) for way, server in ways.items())


def _by_session(requests: Requests, count: int) -> Ints:
    """A session stays where its first request went; sessions, and requests without one, go round."""
    own = np.where(requests.session >= 0, requests.session, -1 - np.arange(len(requests.session)))
    _, first, inverse = np.unique(own, return_index=True, return_inverse=True)
    turn = np.empty(first.size, np.int64)
    turn[np.argsort(first)] = np.arange(first.size)
    server: Ints = turn[inverse] % count
    return server


@compiled
def _by_prefix(
    blocks: NDArray[Any], offsets: Ints, input_tokens: Ints, block_tokens: int, unique: int, count: int
) -> Ints:
    """To a server that holds the longest beginning, if that is most of the prompt; else to the least loaded."""
    holders = np.zeros(unique, np.uint64)
    load = np.zeros(count, np.int64)
    server = np.zeros(input_tokens.size, np.int64)
    everyone = np.uint64(0xFFFFFFFFFFFFFFFF)
    for r in range(input_tokens.size):
        held, depth = everyone, offsets[r]
        while depth < offsets[r + 1] and held & holders[blocks[depth]]:
            held &= holders[blocks[depth]]
            depth += 1
        if (depth - offsets[r]) * block_tokens <= _AFFINE * input_tokens[r]:
            held = everyone
        chosen = -1
        for one in range(count):
            if held >> np.uint64(one) & np.uint64(1) and (chosen < 0 or load[one] < load[chosen]):
                chosen = one
        server[r] = chosen
        load[chosen] += input_tokens[r]
        for position in range(offsets[r], offsets[r + 1]):
            holders[blocks[position]] |= np.uint64(1) << np.uint64(chosen)
    return server


def _spread(requests: Requests, count: int, way: str, server: Ints, capacities: Sequence[int]) -> Replicas:
    unique = reuse.unique_blocks(requests)
    sums = np.zeros((len(capacities) + 1, 3), np.int64)
    load, computed = np.zeros(count, np.int64), np.zeros(count, np.int64)
    for one in range(count):
        rows = np.flatnonzero(server == one)
        points = curve(reuse.find_runs(requests, rows=rows), requests, [*capacities, unique])
        sums += [(point.hit_requests, point.hit_blocks, point.hit_tokens) for point in points]
        load[one] = requests.input_tokens[rows].sum()
        computed[one] = load[one] - points[-1].hit_tokens
    whole = int(requests.input_tokens.sum())
    merged = [
        Hits(capacity_blocks=c, hit_requests=r, hit_blocks=b, hit_tokens=t, hit_ratio=t / whole if whole else 0.0)
        for c, (r, b, t) in zip([*capacities, unique], sums.tolist(), strict=True)
    ]
    return Replicas(
        replicas=count,
        routing=way,
        ceiling=merged[-1],
        load_imbalance=_imbalance(load),
        computed_imbalance=_imbalance(computed),
        curve=tuple(merged[:-1]),
    )


def _imbalance(load: Ints) -> float:
    return float(load.max() / load.mean()) if load.any() else 1.0


# ------------------------------------------------------------------------------------------------ tiers


def tiers(runs: reuse.Runs, requests: Requests, capacities: Sequence[int]) -> tuple[Tier, ...]:
    """What each tier of a stack adds and has written to it, top first, inclusive and exclusive; capacities in blocks.

    Recency is updated on every use, whichever tier serves it. Raises UsageError where a tier is no larger than the one
    above it.
    """
    if any(low >= high for low, high in pairwise(capacities)):
        raise UsageError("--tiers: name them from the smallest, at the top, to the largest, at least a block apart")
    if capacities[0] < 1:
        raise UsageError(f"--tiers: a tier holds at least one block, which is {requests.block_tokens} tokens here")
    stacked = np.cumsum(capacities).tolist()
    references, unique = int(requests.offsets[-1]), reuse.unique_blocks(requests)
    rows = []
    for arrangement, reach in (("inclusive", list(capacities)), ("exclusive", stacked)):
        points = curve(runs, requests, reach)
        for level, (capacity, point) in enumerate(zip(capacities, points, strict=True)):
            above = points[level - 1] if level else None
            if arrangement == "inclusive" or above is None:
                written = references - point.hit_blocks
            else:  # what the tiers above have dropped: all they took in, less what they still hold
                written = references - above.hit_blocks - min(reach[level - 1], unique)
            rows.append(
                Tier(
                    arrangement="inclusive" if arrangement == "inclusive" else "exclusive",
                    level=level + 1,
                    capacity_blocks=capacity,
                    hit_blocks=point.hit_blocks - (above.hit_blocks if above else 0),
                    hit_tokens=point.hit_tokens - (above.hit_tokens if above else 0),
                    written_blocks=written,
                )
            )
    return tuple(rows)
