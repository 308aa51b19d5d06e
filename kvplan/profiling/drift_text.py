"""Drift in logs of text: why prompts that ought to share part company, from what their parts are made of.

A request is held against one that it ought to continue: the one of its session that it shares most with, or, for tools
and system prompt, the last one of the same application. The first part that differs gives the class, and how far the
two still agree without what varies most (see documents.Texts) what it is that varies.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from kvplan import reuse
from kvplan.documents import Drift, Requests, Texts
from kvplan.documents.requests import PARTS

Ints: TypeAlias = NDArray[np.int64]
Part: TypeAlias = tuple[int, int, int, int]  # kind, exact, near, loose

_MODEL, _TEMPLATE, _TOOLS, _SYSTEM, _USER, _ASSISTANT, _TOOL, _REASONED = range(len(PARTS))
_MOST_VARIANTS = 20

# What each class is called, and what to do about it.
FIXES = {
    "clock": (
        "a date or time stands in {part}: move it behind all that is shared, or round it (to a day: one miss a day)"
    ),
    "number or id": "a number or an id in {part} changes: move it behind all that is shared, or leave it out",
    "tool order": "the same tools come in other orders: sort tools by name and their keys before sending",
    "tools changed": "the list of tools changes: keep it the same in a conversation, or add tools at the end of it",
    "template switch": (
        "a switch of the chat template (thinking, effort) is rendered near the start: keep it the same in a "
        "conversation; every setting keeps a cache of its own"
    ),
    "system-prompt version": "the system prompt was changed: what follows it is computed anew, so change it rarely",
    "tenant text": (
        "system prompts begin alike and then differ by tenant or user: put what they share first and what is their own "
        "last"
    ),
    "stripped reasoning": (
        "later prompts leave out the reasoning of earlier answers, so that all behind it moves: keep it in the history "
        "where the model allows that, or count only prompts as reusable"
    ),
    "new tokens": (
        "an answer's text, sent back, is encoded in other tokens than were decoded: send token ids, or let the server "
        "keep the conversation"
    ),
    "cut history": "the oldest turns are left out as the conversation grows: cut rarely and much at a time",
    "rewritten history": "earlier turns come back changed (shortened, summarized, edited): change them rarely, or last",
    "another model": "one conversation goes to several models, or with several cache salts, which share nothing",
    "rendered anew": "the chat template renders equal messages differently later: look at what it does with old turns",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """A request that leaves an earlier one after `depth` blocks, and loses `lost` blocks by it."""

    row: int
    earlier: int
    depth: int
    lost: int


@dataclass(frozen=True, slots=True, kw_only=True)
class _Heads:
    """By request: numbers of its model, template switches, tools and system prompt (-1: none), and of its application.

    Requests of one application have one model, and system prompts and tools that are equal but for details.
    """

    model: Ints
    template: Ints
    tools: Ints
    system: Ints
    application: Ints


def find(within: Iterable[Pair], runs: reuse.Runs, requests: Requests, earlier: Ints) -> tuple[Drift, ...]:
    """The classes of drift, costliest first. `within` are pairs of one session, `earlier` by request whom it continues.

    Raises nothing: a log without sessions says what its heads say.
    """
    texts = requests.texts
    assert texts is not None
    heads = _heads(texts)
    depths = reuse.hit_depths(runs, requests)
    found: dict[str, list[Pair]] = {}
    parts: dict[str, Counter[int]] = {}
    seen = set()
    for pair in within:
        name, part = _class(pair, texts, heads, requests)
        found.setdefault(name, []).append(pair)
        parts.setdefault(name, Counter())[part] += 1
        seen.add(pair.row)
    for pair in _head_pairs(requests, heads, depths, runs, seen):
        name, part = _head_class(pair, texts, heads, requests)
        found.setdefault(name, []).append(pair)
        parts.setdefault(name, Counter())[part] += 1
    for name, pair in _answers(requests, texts, depths, earlier, seen):
        found.setdefault(name, []).append(pair)
        parts.setdefault(name, Counter())[_ASSISTANT] += 1
    rows = [_row(name, pairs, parts[name].most_common(1)[0][0], requests, heads) for name, pairs in found.items()]
    return tuple(sorted(rows, key=lambda row: (-row.lost_tokens, row.kind)))


def _row(name: str, pairs: list[Pair], part: int, requests: Requests, heads: _Heads) -> Drift:
    lost = sum(pair.lost for pair in pairs) * requests.block_tokens
    whole = int(requests.input_tokens.sum())
    called = {_SYSTEM: "the system prompt", _USER: "a message of the user", _TOOL: "a tool's result"}
    return Drift(
        kind=name,
        position_tokens=int(np.median([pair.depth for pair in pairs])) * requests.block_tokens,
        requests=len({pair.row for pair in pairs}),
        lost_tokens=lost,
        fix=FIXES[name].format(part=called.get(part, "the prompt")),
        gain_ratio=min(lost / whole, 1.0) if whole else None,
        variants=_variants(name, pairs, part, heads),
    )


def _variants(name: str, pairs: list[Pair], part: int, heads: _Heads) -> tuple[int, ...]:
    """How many requests of the log have each of the texts that stand there, the most used first."""
    column = {_TEMPLATE: heads.template, _TOOLS: heads.tools, _SYSTEM: heads.system}.get(part)
    if column is None:
        return ()
    rows = np.array([row for pair in pairs for row in (pair.row, pair.earlier)])
    counts = Counter(column[np.isin(column, np.unique(column[rows]))].tolist())
    return tuple(count for _, count in counts.most_common(_MOST_VARIANTS))


# ------------------------------------------------------------------------------------------------ heads


def _parts(texts: Texts, row: int) -> list[Part]:
    low, high = int(texts.offsets[row]), int(texts.offsets[row + 1])
    columns = (texts.kind, texts.exact, texts.near, texts.loose)
    return list(zip(*(column[low:high].tolist() for column in columns), strict=True))


def _said(texts: Texts, row: int) -> list[Part]:
    """The parts but for the model and the switches of its template."""
    return [part for part in _parts(texts, row) if part[0] not in (_MODEL, _TEMPLATE)]


def _head(parts: list[Part]) -> list[Part]:
    """The parts before the first message that is not the system's."""
    for i, part in enumerate(parts):
        if part[0] not in (_MODEL, _TEMPLATE, _TOOLS, _SYSTEM):
            return parts[:i]
    return parts


def _heads(texts: Texts) -> _Heads:
    rows = texts.head_tokens.size
    columns = np.full((_SYSTEM + 2, rows), -1, np.int64)
    systems: dict[tuple[int, ...], int] = {}
    applications: dict[tuple[tuple[int, int], ...], int] = {}
    for row in range(rows):
        head = _head(_parts(texts, row))
        for kind, exact, _, _ in head:
            columns[kind, row] = exact
        own = tuple(exact for kind, exact, _, _ in head if kind == _SYSTEM)
        if own:
            columns[_SYSTEM, row] = systems.setdefault(own, len(systems))
        named = tuple((kind, loose) for kind, _, _, loose in head if kind != _TEMPLATE)
        if any(kind != _MODEL for kind, _ in named):
            columns[-1, row] = applications.setdefault(named, len(applications))
    return _Heads(
        model=columns[_MODEL],
        template=columns[_TEMPLATE],
        tools=columns[_TOOLS],
        system=columns[_SYSTEM],
        application=columns[-1],
    )


def _head_pairs(requests: Requests, heads: _Heads, depths: Ints, runs: reuse.Runs, seen: set[int]) -> Iterator[Pair]:
    """Requests whose tools and system prompt were not cached whole though they, or some that begin alike, came before.

    Lost is the rest of the head: what follows it is another conversation's.
    """
    assert requests.texts is not None
    head = np.maximum(requests.texts.head_tokens, 0) // requests.block_tokens
    toucher = np.full(head.size, -1, np.int64)
    toucher[runs.request] = runs.toucher  # the deepest run comes last
    last: dict[int, int] = {}
    last_tools: dict[int, int] = {}
    for row in range(head.size):
        application, tools = int(heads.application[row]), int(heads.tools[row])
        if application >= 0 and depths[row] < head[row] and row not in seen:
            alike = last_tools.get(tools, -1) if tools >= 0 else -1
            earlier = last.get(application, int(toucher[row]) if toucher[row] >= 0 else alike)
            if earlier >= 0 and heads.model[row] == heads.model[earlier]:
                lost = int(head[row] - depths[row])
                yield Pair(row=row, earlier=earlier, depth=int(depths[row]), lost=lost)
        last[application] = last_tools[tools] = row


def _head_class(pair: Pair, texts: Texts, heads: _Heads, requests: Requests) -> tuple[str, int]:
    name, part = _class(pair, texts, heads, requests, head_only=True)
    if name != "system-prompt version":
        return name, part
    # Two system prompts side by side are variants; where one ends when the other begins, it was replaced.
    uses = np.flatnonzero(heads.application == heads.application[pair.earlier])
    return ("tenant text" if uses[-1] > pair.row else name), part


# ------------------------------------------------------------------------------------------------ classes


def _class(pair: Pair, texts: Texts, heads: _Heads, requests: Requests, head_only: bool = False) -> tuple[str, int]:
    """The class of a divergence, and the part it lies in."""
    if heads.model[pair.row] != heads.model[pair.earlier]:
        return "another model", _MODEL
    in_head = pair.depth * requests.block_tokens < texts.head_tokens[pair.row] or texts.head_tokens[pair.row] < 0
    if in_head and heads.template[pair.row] != heads.template[pair.earlier]:
        return "template switch", _TEMPLATE
    mine, theirs = _said(texts, pair.row), _said(texts, pair.earlier)
    if head_only:
        mine, theirs = _head(mine), _head(theirs)
    for i, (one, other) in enumerate(zip(mine, theirs, strict=False)):
        if one != other:
            return _difference(one, other, {part[1] for part in theirs[i + 1 :]})
    if any(part[0] == _REASONED for part in theirs):
        return "stripped reasoning", _ASSISTANT
    if head_only and len(mine) != len(theirs):
        longer = max(mine, theirs, key=len)[min(len(mine), len(theirs))]
        return ("tools changed" if longer[0] == _TOOLS else "system-prompt version"), longer[0]
    return "rendered anew", _ASSISTANT


def _difference(one: Part, other: Part, later: set[int]) -> tuple[str, int]:
    """The class of two parts that differ; `later` are the texts that follow the earlier one."""
    kind = one[0]
    if _TOOLS in (kind, other[0]):
        return ("tool order" if kind == other[0] and one[2] == other[2] else "tools changed"), _TOOLS
    if one[1] in later:
        return "cut history", kind
    if kind in (_ASSISTANT, _REASONED) and other[0] in (_ASSISTANT, _REASONED):
        if one[2] == other[2]:
            return "stripped reasoning", _ASSISTANT
    elif kind == other[0] and one[2] == other[2]:
        return "clock", kind
    elif kind == other[0] and one[3] == other[3]:
        return "number or id", kind
    if _SYSTEM in (kind, other[0]):
        return "system-prompt version", _SYSTEM
    return "rewritten history", kind


def _answers(
    requests: Requests, texts: Texts, depths: Ints, earlier: Ints, seen: set[int]
) -> Iterator[tuple[str, Pair]]:
    """Prompts that repeat an earlier prompt whole, but not its answer as it was decoded."""
    full = np.minimum(requests.input_tokens // requests.block_tokens, np.diff(reuse.as_ints(requests.offsets)))
    for row in np.flatnonzero(earlier >= 0).tolist():
        before = int(earlier[row])
        answer = texts.answer_blocks[texts.answer_offsets[before] : texts.answer_offsets[before + 1]]
        if row in seen or not answer.size or depths[row] < full[before]:
            continue
        start = int(requests.offsets[row] + full[before])
        own = requests.blocks[start : min(start + answer.size, int(requests.offsets[row]) + int(full[row]))]
        same = int(np.argmin(np.append(own == answer[: own.size], False)))
        same = max(same, min(int(depths[row] - full[before]), answer.size))
        name = _answer_class(row, before, texts)
        if same < answer.size and name:
            yield name, Pair(row=row, earlier=before, depth=int(full[before]) + same, lost=answer.size - same)


def _answer_class(row: int, before: int, texts: Texts) -> str | None:
    """Why a prompt does not repeat an answer's tokens, None where nothing tells."""
    mine, count = _said(texts, row), len(_said(texts, before))
    if count >= len(mine) or mine[count][0] not in (_ASSISTANT, _REASONED):
        return None
    kind, exact, near, _ = mine[count]
    if exact == texts.answer_exact[before]:
        if kind == _REASONED:
            return "stripped reasoning"
        return "new tokens" if texts.answer_told[before] else None
    return "stripped reasoning" if near == texts.answer_near[before] else "rewritten history"
