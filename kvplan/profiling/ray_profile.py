"""The bucketed profile on Ray Data, for logs that one machine cannot hold. Needs the extra `ray`."""

from __future__ import annotations

from typing import Any

from kvplan.errors import KvplanError
from kvplan.profiling import buckets


def histogram(rows: Any, count: int) -> buckets.Histogram:
    """The histogram of a Ray dataset with a row a request: `request`, its number in order of arrival, and `hash_ids`.

    Shuffles block references by bucket and profiles each of `count` buckets in one task, which holds that bucket in
    memory. Exact: equal to the histogram of one process. Raises KvplanError where Ray is not installed.
    """
    try:
        import ray.data  # noqa: F401
    except ImportError:
        raise KvplanError("profiling on Ray needs it: pip install 'kvplan[ray]'") from None
    flat = rows.select_columns(["request", "hash_ids"]).map_batches(
        buckets.references, fn_args=(count,), batch_format="pandas"
    )
    tables = flat.groupby("bucket").map_groups(buckets.profile_frame, batch_format="pandas")
    return buckets.from_frame(tables.to_pandas())
