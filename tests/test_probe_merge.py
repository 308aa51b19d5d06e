"""Several probes of one host made one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import samples
from records import replace
from typer.testing import CliRunner

from kvplan.cli import app
from kvplan.documents import Contention, Document, Finding, Pipeline, Probe
from kvplan.errors import KvplanError, UsageError
from kvplan.files import dump, load, wrap
from kvplan.pages.probe import page
from kvplan.probe import kv_block, merge


def made(at: str, **changes: Any) -> Document[Probe]:
    document = samples.probe()
    return replace(document, created=at, data=replace(document.data, **changes))


def test_parts_measured_apart_add_up() -> None:
    whole = samples.probe().data
    disks = made(
        "2026-01-01T00:00:00Z",
        pinning=(),
        prefill=(),
        links=tuple(one for one in whole.links if "disk" in one.source + one.target),
    )
    gpus = made(
        "2026-01-02T00:00:00Z", capacity=(), links=tuple(one for one in whole.links if "gpu" in one.source + one.target)
    )
    found = merge([gpus, disks])
    assert set(found.links) == set(whole.links)
    assert (found.capacity, found.pinning, found.prefill) == (whole.capacity, whole.pinning, whole.prefill)
    assert found.wall_s == pytest.approx(2 * whole.wall_s)
    assert found.written_bytes == 2 * whole.written_bytes


def test_of_what_was_measured_twice_the_later_stands_whatever_the_order() -> None:
    old = made("2026-01-01T00:00:00Z")
    link = replace(old.data.links[0], p50_bytes_per_s=1.0, flags=("not-steady",))
    new = made("2026-02-01T00:00:00Z", links=(link,))
    for order in ([old, new], [new, old]):
        found = merge(order)
        assert len(found.links) == len(old.data.links)
        assert [one for one in found.links if one.p50_bytes_per_s == 1.0] == [link]


def test_findings_of_a_folder_measured_again_are_those_of_the_later() -> None:
    path = samples.probe().data.capacity[0].path
    stale = Finding(severity="warning", code="disk-not-steady", text=f"{path}: slowed down")
    other = Finding(severity="info", code="disk-slow", text="/elsewhere: slow")
    nothing = Finding(severity="info", code="no-disk", text="no folder was given")
    old = made("2026-01-01T00:00:00Z", findings=(stale, other, nothing))
    new = made("2026-02-01T00:00:00Z", findings=(other,))
    assert merge([old, new]).findings == (other,)
    only_gpu = made("2026-02-01T00:00:00Z", findings=(nothing,), capacity=())
    assert merge([old, only_gpu]).findings == (stale, other)


def test_gpus_seen_once_are_kept() -> None:
    seen = made("2026-01-01T00:00:00Z")
    blind = made("2026-02-01T00:00:00Z", host=replace(seen.data.host, gpus=(), gpu_status="no GPU driver"))
    assert merge([seen, blind]).host.gpus == seen.data.host.gpus


@pytest.mark.parametrize(
    "change",
    [{"cpu": "another"}, {"memory_total_bytes": 10}, {"gpus": "others"}],
    ids=lambda change: next(iter(change)),
)
def test_other_hosts_are_refused(change: dict[str, Any]) -> None:
    one = made("2026-01-01T00:00:00Z")
    if "gpus" in change:
        change = {"gpus": tuple(replace(gpu, name="another") for gpu in one.data.host.gpus)}
    with pytest.raises(KvplanError, match="different hosts"):
        merge([one, made("2026-02-01T00:00:00Z", host=replace(one.data.host, **change))])


def test_one_probe_is_nothing_to_merge() -> None:
    with pytest.raises(UsageError):
        merge([samples.probe()])


def test_a_merged_probe_is_a_document_like_any(tmp_path: Path) -> None:
    path = tmp_path / "host.json"
    path.write_text(dump(wrap(merge([made("2026-01-01T00:00:00Z"), made("2026-02-01T00:00:00Z")]))))
    assert load(path).data == merge([made("2026-01-01T00:00:00Z"), made("2026-02-01T00:00:00Z")])


def test_the_command_merges_files_and_measures_nothing(tmp_path: Path) -> None:
    paths = [tmp_path / name for name in ("a.json", "b.json")]
    for path, at in zip(paths, ("2026-01-01T00:00:00Z", "2026-02-01T00:00:00Z"), strict=True):
        path.write_text(dump(made(at)))
    arguments = [word for path in paths for word in ("--merge", str(path))]
    result = CliRunner().invoke(app, ["probe", *arguments, "-q", "-o", str(tmp_path / "host.json")])
    assert result.exit_code == 0, result.output
    assert load(tmp_path / "host.json").data == merge([made("2026-01-01T00:00:00Z"), made("2026-02-01T00:00:00Z")])


def test_a_block_of_an_estimate_is_one_ranks() -> None:
    estimate = samples.estimate().data
    block = kv_block(estimate)
    per_token = max(estimate.kv.bytes_per_token_per_gpu, estimate.kv.offload_bytes_per_token // estimate.parallel.gpus)
    assert block.block_bytes == max(1, estimate.block_tokens) * per_token
    assert block.chunk_bytes == 256 * per_token
    assert block.pieces == sum(group.layers for group in estimate.groups if group.bytes_per_token)
    halved = replace(estimate, parallel=replace(estimate.parallel, pp=2))
    assert kv_block(halved).pieces == -(-block.pieces // 2)
    empty = replace(estimate.kv, bytes_per_token_per_gpu=0, offload_bytes_per_token=0)
    with pytest.raises(KvplanError, match="keeps nothing per token"):
        kv_block(replace(estimate, kv=empty))


def test_copies_beside_decoding_and_pipelines_are_shown_and_the_later_stands() -> None:
    beside = Contention(
        gpu=0,
        direction="h2d",
        mechanism="copy engine",
        granule_bytes=1 << 20,
        copy_alone_bytes_per_s=50e9,
        copy_loaded_bytes_per_s=40e9,
        step_alone_p50_s=0.01,
        step_alone_p99_s=0.012,
        step_loaded_p50_s=0.011,
        step_loaded_p99_s=0.02,
        steps=2000,
        load="reads of GPU memory",
    )
    piped = Pipeline(
        gpu=0,
        disk="/mnt/nvme",
        direction="load",
        slots=4,
        block_bytes=2 << 20,
        blocks=100,
        copy_bytes_per_s=50e9,
        disk_bytes_per_s=6e9,
        serial_bytes_per_s=5e9,
        overlapped_bytes_per_s=5.9e9,
        overlap_ratio=0.98,
        flags=("corrupt",),
    )
    old = made("2026-01-01T00:00:00Z", contention=(replace(beside, steps=1),), pipeline=(piped,))
    found = merge([old, made("2026-02-01T00:00:00Z", contention=(beside,))])
    assert (found.contention, found.pipeline) == ((beside,), (piped,))
    shown = {section.name: section for section in page(wrap(found)).sections}
    (row,) = shown["contention"].blocks[0].rows
    assert [str(cell) for cell in row.cells][4:6] == ["50.00 GB/s", "40.00 GB/s"]
    (row,) = shown["pipeline"].blocks[0].rows
    assert (row.tone, str(row.cells[-1]), str(row.cells[-2])) == ("warning", "corrupt", "0.98")
