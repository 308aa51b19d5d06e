"""A request log as one table."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias

import msgspec

from kvplan.documents.common import Finding
from kvplan.documents.workload import LogSource

if TYPE_CHECKING:  # NumPy costs a tenth of a second that the readers of finished documents need not pay
    import numpy as np
    from numpy.typing import NDArray

    IntArray: TypeAlias = NDArray[np.integer[Any]]
    FloatArray: TypeAlias = NDArray[np.floating[Any]]


class Requests(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """A request log as one table, ordered by arrival; never saved, so it holds NumPy arrays.

    Request r has blocks `blocks[offsets[r]:offsets[r + 1]]`: dense ids from 0, each naming a whole prefix (one
    parent, one depth), `block_tokens` tokens each. The last one holds only the remainder of `input_tokens[r]` where
    `input_tokens[r]` is less than `blocks * block_tokens`; a tail without a block (full blocks only) is never reused.
    `output_tokens` is 0 and `duration_s` NaN where the log does not say; `time_s` is NaN for every request where the
    log has no time stamps (the order is then the file's). `tenant` and `session` index `tenants` and count from 0;
    -1 means the log names none. Where `hashed` is false the log has lengths only: there are no blocks, `block_tokens`
    is 1, and what it reuses is not known, which is not zero.
    """

    block_tokens: int
    time_s: FloatArray
    input_tokens: IntArray
    output_tokens: IntArray
    duration_s: FloatArray
    offsets: IntArray
    blocks: IntArray
    tenant: IntArray
    session: IntArray
    tenants: tuple[str, ...]
    sources: tuple[LogSource, ...]
    findings: tuple[Finding, ...] = ()
    hashed: bool = True
