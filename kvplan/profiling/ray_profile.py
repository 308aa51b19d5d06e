"""The bucketed profile on Ray Data, for logs that one machine cannot hold. Needs the extra `ray`."""

from __future__ import annotations

from typing import Any

import numpy as np

from kvplan import reuse
from kvplan.documents import Requests
from kvplan.errors import KvplanError
from kvplan.profiling import buckets
from kvplan.progress import Progress, silent

_BUCKETS_A_CORE = 2


def find_runs(requests: Requests, address: str, progress: Progress = silent) -> reuse.Runs:
    """What reuse.find_runs gives, from buckets on the Ray cluster at `address` ('local' starts one on this machine).

    Raises KvplanError where Ray is not installed or no cluster answers.
    """
    ray = _ray()
    import pandas as pd

    started = not ray.is_initialized()
    try:
        if started:
            progress(f"connecting to Ray ({address})")
            ray.init(address=address, log_to_driver=False)
        progress("finding every reuse on Ray")
        paths = np.split(reuse.as_ints(requests.blocks), reuse.as_ints(requests.offsets)[1:-1])
        table = pd.DataFrame({"request": np.arange(len(paths)), "hash_ids": pd.Series(paths, dtype=object)})
        cores = int(ray.cluster_resources().get("CPU", 1))
        whole = histogram(ray.data.from_pandas(table), max(1, _BUCKETS_A_CORE * cores))
    except (ConnectionError, ValueError, RuntimeError) as error:
        raise KvplanError(f"--ray {address}: {error}") from None
    finally:
        if started and ray.is_initialized():
            ray.shutdown()
    return buckets.runs(whole, np.diff(reuse.as_ints(requests.offsets)))


def _ray() -> Any:
    try:
        import ray
        import ray.data
    except ImportError:
        raise KvplanError("profiling on Ray needs it: pip install 'kvplan[ray]'") from None
    return ray


def histogram(rows: Any, count: int) -> buckets.Histogram:
    """The histogram of a Ray dataset with a row a request: `request`, its number in order of arrival, and `hash_ids`.

    Shuffles block references by bucket and profiles each of `count` buckets in one task, which holds that bucket in
    memory. Exact: equal to the histogram of one process. Raises KvplanError where Ray is not installed.
    """
    _ray()
    flat = rows.select_columns(["request", "hash_ids"]).map_batches(
        buckets.references, fn_args=(count,), batch_format="pandas"
    )
    tables = flat.groupby("bucket").map_groups(buckets.profile_frame, batch_format="pandas")
    return buckets.from_frame(tables.to_pandas())
