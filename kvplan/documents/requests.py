"""A request log as one table."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeAlias

import msgspec

from kvplan.documents.common import Finding
from kvplan.documents.workload import LogSource

if TYPE_CHECKING:  # NumPy costs a tenth of a second that the readers of finished documents need not pay
    import numpy as np
    from numpy.typing import NDArray

    IntArray: TypeAlias = NDArray[np.integer[Any]]
    NarrowArray: TypeAlias = NDArray[np.int32]
    FloatArray: TypeAlias = NDArray[np.floating[Any]]


# What a prompt of text is made of; `Texts.kind` counts places in this tuple.
# A reasoned part is an answer together with its reasoning, a model part the model with what else keeps caches apart.
PARTS = ("model", "template", "tools", "system", "user", "assistant", "tool", "reasoned")


class Texts(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """What the prompts of a log of text are made of, as numbers: equal numbers are equal texts, and say nothing else.

    Parts `offsets[r]` to `offsets[r + 1]` are those of request r in the order of its prompt: its model, the switches of
    its chat template, its tools, its messages. `exact` numbers a part's text, `near` its text without dates and times,
    an order of tools or of keys, or an answer's reasoning, `loose` also without numbers and ids. `head_tokens` is how
    many tokens stand before the first message that is not the system's, -1 unknown.

    `answer_exact` and `answer_near` are the numbers of the request's own answer, as a later prompt that repeats it has
    them; -1 where the log keeps none. Its blocks `answer_blocks[answer_offsets[r]:answer_offsets[r + 1]]` are the full
    ones of prompt and answer together from the first that the answer fills; ids that no prompt has count on from those
    of the prompts. `answer_told` says that they are from the ids that were decoded, not from the answer's text.
    """

    offsets: IntArray
    kind: IntArray
    exact: IntArray
    near: IntArray
    loose: IntArray
    head_tokens: IntArray
    answer_exact: IntArray
    answer_near: IntArray
    answer_offsets: IntArray
    answer_blocks: IntArray
    answer_told: IntArray


class PathTree(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """The paths of a log as the tree that they make: of each, what it shares with an earlier one, and what it adds.

    The path of request r is the first `shared[r]` blocks of the path of request `parent[r]`, the earlier one that
    brought in the last of them (-1 and 0: it shares none), followed by the blocks that r brings in:
    `first[r]`, `first[r] + 1`, … below `first[r + 1]`. So ids count from 0 in the order in which blocks first appear,
    and a log costs 12 bytes a request, however long its paths are. All are int32; a tree has fewer than 2^31 blocks.
    """

    parent: NarrowArray
    shared: NarrowArray
    first: NarrowArray

    def blocks(self) -> NarrowArray:
        """The block ids of all paths one after another, int32 (references,)."""
        import numpy as np

        ends = np.cumsum(self.shared + np.diff(self.first), dtype=np.int64)
        blocks = np.empty(int(ends[-1]) if ends.size else 0, np.int32)
        starts = [0, *ends.tolist()]
        columns = (self.parent.tolist(), self.shared.tolist(), self.first[:-1].tolist())
        for r, (parent, shared, first) in enumerate(zip(*columns, strict=True)):
            start, end = starts[r], starts[r + 1]
            if shared:
                blocks[start : start + shared] = blocks[starts[parent] : starts[parent] + shared]
            if start + shared < end:
                blocks[start + shared : end] = np.arange(first, first + end - start - shared, dtype=np.int32)
        return blocks


class Requests(msgspec.Struct, frozen=True, kw_only=True, eq=False, dict=True):
    """A request log as one table, ordered by arrival; never saved, so it holds NumPy arrays.

    Request r has blocks `blocks[offsets[r]:offsets[r + 1]]`: dense ids from 0, each naming a whole prefix (one
    parent, one depth), `block_tokens` tokens each. `paths` holds them, as a tree or as that flat array; `blocks` is
    made from a tree when somebody asks for it, with 4 bytes a reference. The last block of a request holds only the
    remainder of `input_tokens[r]` where `input_tokens[r]` is less than `blocks * block_tokens`; a tail without a block
    (full blocks only) is never reused. `output_tokens` is 0 and `duration_s` NaN where the log does not say; `time_s`
    is NaN for every request where the log has no time stamps (the order is then the file's). `tenant` and `session`
    index `tenants` and count from 0; -1 means the log names none. Where `hashed` is false the log has lengths only:
    there are no blocks, `block_tokens` is 1, and what it reuses is not known, which is not zero. `texts` is None where
    the log holds no text.

    A log too large to hold its blocks has none in `paths`: `offsets` still counts them, and `unique` how many differ.
    """

    block_tokens: int
    time_s: FloatArray
    input_tokens: IntArray
    output_tokens: IntArray
    duration_s: FloatArray
    offsets: IntArray
    paths: PathTree | IntArray
    tenant: IntArray
    session: IntArray
    tenants: tuple[str, ...]
    sources: tuple[LogSource, ...]
    findings: tuple[Finding, ...] = ()
    hashed: bool = True
    texts: Texts | None = None
    unique: int | None = None

    @cached_property
    def blocks(self) -> IntArray:
        """The block ids of all requests one after another."""
        return self.paths.blocks() if isinstance(self.paths, PathTree) else self.paths
