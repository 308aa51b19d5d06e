"""Cases from public threads on measuring links and drives: what was got wrong in the field, and what is right.

One test a case, named by its number; the list of cases itself is checked for one that has none.
"""

from __future__ import annotations

import errno
import os
import re
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
import samples
from fake_gpu import FakeGpu, TimedGpu
from hypothesis import given
from hypothesis import strategies as st
from records import replace
from test_probe_gpu import copies_of, device, host
from typer.testing import CliRunner

from kvplan import probe, probe_disk, probe_gpu, probe_host
from kvplan.catalog import gpu
from kvplan.cli import app
from kvplan.documents import (
    EstimateOptions,
    GpuDevice,
    Link,
    NumaNode,
    Parallel,
    Plan,
    Policy,
    Probe,
    ProbeOptions,
)
from kvplan.engines.profiles import Mechanism, profile
from kvplan.estimate import estimate
from kvplan.files import wrap
from kvplan.model import load_model
from kvplan.plan import make
from kvplan.planning.links import Rates, Shape, disk_rates, host_rates, shape
from kvplan.planning.placement import by_node
from kvplan.probing import (
    cuda,
    disk_cells,
    disk_io,
    disk_links,
    gpu_cells,
    gpu_run,
    mechanisms,
    memory_copy,
    pinning,
    scratch,
)
from kvplan.probing.disk_cells import Cell
from kvplan.probing.disk_runner import Outcome
from kvplan.probing.fragments import fragments
from kvplan.probing.kv_block import kv_block
from kvplan.probing.pattern import Buffer
from kvplan.probing.steadiness import Steadiness
from kvplan.probing.timing import summarise
from kvplan.report import markdown, sections
from kvplan.units import GB, GiB, KiB, MiB

OPPOSITE = gpu_cells.OPPOSITE
WAYS = ("h2d", "d2h")
H100 = gpu("h100-80gb")


def test_every_case_has_a_test(shared: Path) -> None:
    text = (shared / "cases" / "cases.md").read_text()
    cases = re.findall(r"^### D(\d+)", text, flags=re.MULTILINE)
    assert len(cases) >= 7
    missing = [number for number in cases if f"test_d{number}" not in {name[:8] for name in globals()}]
    assert not missing


def found(*links: Link, **more: Any) -> Probe:
    return replace(samples.probe().data, links=links, **more)


def both(piece: int, mechanism: Mechanism = "loop") -> tuple[Shape, Shape]:
    """Loads and stores in pieces of one size by one mechanism."""
    return (Shape(piece=piece, mechanism=mechanism),) * 2


def copies(*cells: tuple[int, float], preset: str | None = None, **more: Any) -> tuple[Link, ...]:
    """Cells of both directions of a GPU's link: bytes of a piece, GB/s."""
    return tuple(samples.link(way, size, 1, rate, preset=preset, **more) for size, rate in cells for way in WAYS)


def rates_of(cells: tuple[Link, ...], piece: int, mechanism: Mechanism = "loop") -> tuple[Rates, list[str]]:
    rates, told = host_rates(found(*cells), *both(piece, mechanism), False)
    assert rates is not None
    return rates, [finding.code for finding in told]


def plan_with(cells: tuple[Link, ...], engine: str, tp: int = 1, offload: Any = "native") -> Plan:
    """A plan of Llama-3.1-8B on the sample host whose GPU link has these cells."""
    made = estimate(load_model("llama-3.1-8b"), EstimateOptions(engine=engine, parallel=Parallel(tp=tp), gpu=H100))
    document = replace(samples.probe(), data=found(*cells))
    policy = Policy(offload=offload, forbid_disk=True, minimum_gain_ratio=0.0)
    return make(wrap(made), samples.workload(), document, H100, policy)


def shown(probe: Probe) -> str:
    """The page as Markdown."""
    return markdown(sections(wrap(probe)), "figures")[0]


def measured_at(rate: float, **cell: Any) -> Outcome:
    """A cell whose transfers came to so many bytes a second."""
    size = cell.get("granule", MiB)
    start = np.arange(200) * size / rate
    done = SimpleNamespace(rates=summarise(start, start + size / rate, size, 0.0, 200 * size / rate), cpu_s_per_gb=0.1)
    return Outcome(
        cell=Cell(**{"direction": "read", "granule": MiB, "depth": 1, **cell}),
        direction="read",
        done=cast(disk_io.Done, done),
    )


# ---- D01


@dataclass
class CallGpu(TimedGpu):
    """A GPU for which every copy costs a fixed time besides its bytes."""

    call_s: float = 2.3e-6

    def _move(self, stream: str, piece: Any) -> None:
        super()._move(stream, piece)
        self._advance(stream, self.call_s, True)


@pytest.mark.parametrize(
    ("granule", "call_s", "rate"), [(256, 2.3e-6, 0.111), (4 * KiB, 5.3e-6, 0.75), (512 * KiB, 2.3e-6, 24.9)]
)
def test_d01_the_piece_decides_and_not_the_link(granule: int, call_s: float, rate: float) -> None:
    seen = copies_of(CallGpu(copy_rate=28e9, call_s=call_s), "h2d", MiB, granule).measure(0.0)
    assert float(np.median(seen.rates)) / GB == pytest.approx(rate, rel=0.03)


def test_d01_pieces_of_a_model_are_what_is_measured_and_planned_with() -> None:
    """8 KV heads of 128 in 2 bytes, tensor parallel over 2: a block of 16 tokens is a page of 32 KiB in two halves."""
    model = load_model("llama-3.1-8b")
    (piece,) = fragments(model, block_tokens=16, tp=2)
    assert (piece.bytes, 2 * piece.bytes) == (16 * 4 * 128 * 2, 32_768)
    assert piece.pieces == 2 * 32
    planned = kv_block(estimate(model, EstimateOptions(engine="vllm", parallel=Parallel(tp=2))))
    asked = probe._granules(ProbeOptions(kv=planned))
    assert asked == (16_384, 32_768)
    swept = {cell.granule for cell in gpu_cells.cells(asked, 256 * MiB, ("loop", "batch"))}
    assert {16_384, 64 * MiB, 256 * MiB} <= swept
    assert planned.block_bytes in {cell.granule for cell in disk_cells.engine_cells(planned)}


def test_d01_a_plan_takes_the_piece_and_the_page_prints_both() -> None:
    both = (("h2d", 16_384, 4.0), ("h2d", 64 * MiB, 55.0), ("d2h", 16_384, 3.5), ("d2h", 64 * MiB, 53.0))
    data = found(*(samples.link(way, size, 1, rate) for way, size, rate in both))
    rates, _ = host_rates(data, Shape(piece=16_384), Shape(piece=16_384), False)
    assert rates is not None
    assert (rates.load_bytes_per_s, rates.store_bytes_per_s) == (4.0 * GB, 3.5 * GB)
    assert "16,384 B a piece" in rates.source
    page = shown(data)
    assert "16.00 KiB" in page
    assert "64.00 MiB" in page


@pytest.mark.parametrize(
    ("piece", "rate", "large"), [(256, 0.111, (64 * MiB, 55.0)), (4 * KiB, 0.75, (512 * KiB, 24.0))]
)
@pytest.mark.parametrize("mechanism", ["loop", "batch", "gather"])
def test_d01_the_slow_small_piece_is_planned_with(
    piece: int, rate: float, large: tuple[int, float], mechanism: Mechanism
) -> None:
    preset = None if mechanism == "loop" else mechanism
    cells = (*copies((piece, rate), large, preset=preset), *copies((64 * MiB, 55.0)))
    rates, told = rates_of(cells, piece, mechanism)
    assert (rates.load_bytes_per_s, rates.store_bytes_per_s) == (rate * GB, rate * GB)
    assert rates.as_moved
    assert not told
    assert f"{piece:,} B a piece" in rates.source


def test_d01_another_mechanism_never_stands_for_the_engines_own() -> None:
    """Batches of 64 KiB were measured: neither a quicker gather, nor one large copy, is taken for them."""
    cells = (
        *copies((64 * KiB, 12.0), (MiB, 50.0), preset="batch"),
        *copies((64 * KiB, 40.0), preset="gather"),
        *copies((64 * KiB, 9.0), (64 * MiB, 55.0)),
    )
    for mechanism, rate in (("batch", 12.0), ("gather", 40.0), ("loop", 9.0)):
        rates, told = rates_of(cells, 64 * KiB, mechanism)  # type: ignore[arg-type]
        assert rates.load_bytes_per_s == rate * GB
        assert not told


def test_d01_what_was_not_measured_falls_to_the_nearest_plain_piece_and_is_said() -> None:
    cells = (*copies((64 * KiB, 9.0), (64 * MiB, 55.0)), *copies((64 * KiB, 40.0), preset="gather"))
    rates, told = rates_of(cells, 64 * KiB, "batch")
    assert rates.load_bytes_per_s == 9.0 * GB
    assert told == ["link-mechanism"] * 2
    assert not rates.as_moved
    findings = host_rates(found(*cells), *both(2 * KiB, "batch"), False)[1]
    assert [finding.code for finding in findings] == ["link-mechanism", "link-piece"] * 2
    assert "as little as 281.25 MB/s" in findings[1].text  # 2 KiB where 64 KiB take 7.28 us
    assert "--granule 2048" in findings[1].text
    assert "2,048 B (one piece) by cuMemcpyBatchAsync" in findings[0].text


def test_d01_a_mechanism_measured_far_from_the_piece_gives_way_to_a_nearer_plain_cell() -> None:
    """Batches of 4 KiB say nothing of pieces of 64 KiB, nor the other way round, where plain cells do."""
    plain = copies((4 * KiB, 0.75), (64 * KiB, 21.0), (64 * MiB, 55.0))
    for measured, piece, rate in ((4 * KiB, 64 * KiB, 21.0), (64 * KiB, 4 * KiB, 0.75)):
        rates, told = rates_of((*plain, *copies((measured, 3.0), preset="batch")), piece, "batch")
        assert rates.load_bytes_per_s == rate * GB
        assert told == ["link-mechanism"] * 2
    rates, told = rates_of((*plain, *copies((32 * KiB, 3.0), preset="batch")), 64 * KiB, "batch")
    assert rates.load_bytes_per_s == 3.0 * GB
    assert not told


@given(st.integers(6, 26), st.sets(st.integers(6, 26), min_size=1), st.sets(st.integers(6, 26), min_size=1))
def test_d01_no_plan_rests_on_a_piece_when_one_nearer_was_measured(
    piece: int, batch: set[int], plain: set[int]
) -> None:
    cells = copies(*((2**n, float(n)) for n in plain))
    cells += copies(*((2**n, 100.0 + n) for n in batch), preset="batch")
    rates, told = rates_of(cells, 2**piece, "batch")
    rate = round(rates.load_bytes_per_s / GB)
    own, size = rate > 100, rate % 100
    nearest = min(abs(n - piece) for n in batch | plain)
    assert abs(size - piece) <= max(1, nearest)
    assert own == ("link-mechanism" not in told)
    assert ("link-piece" in told) == (size > piece + 1 and piece < 20)


def test_d01_a_mechanism_measured_alone_is_bounded_by_what_copies_carry_beside_the_other_direction() -> None:
    alone = copies((64 * KiB, 46.0), preset="batch")
    beside = copies((MiB, 10.0), (64 * MiB, 11.0), concurrent=OPPOSITE)
    rates, _ = rates_of((*alone, *beside, *copies((64 * MiB, 55.0))), 64 * KiB, "batch")
    assert rates.load_bytes_per_s == 11.0 * GB
    assert "bounded by what copies carry beside the opposite direction" in rates.source
    own = copies((64 * KiB, 9.5), preset="batch", concurrent=OPPOSITE)
    rates, _ = rates_of((*alone, *own, *beside), 64 * KiB, "batch")
    assert rates.load_bytes_per_s == 9.5 * GB


@pytest.mark.parametrize(
    ("engine", "offload", "tp", "load", "store"),
    [
        ("vllm", "native", 1, (65_536, "batch"), (65_536, "batch")),
        ("vllm", "native", 4, (16_384, "gather"), (16_384, "batch")),
        ("vllm", "lmcache", 1, (2048, "gather"), (256 * 131_072, "loop")),
        ("vllm", "lmcache-server", 1, (32_768, "batch"), (32_768, "batch")),
        ("sglang", "native", 1, (2048, "gather"), (65_536, "batch")),
        ("tensorrt-llm", "native", 1, (32 * 131_072, "loop"), (32 * 131_072, "loop")),
        ("llama.cpp", "native", 1, (1000 * 2048, "loop"), (1000 * 2048, "loop")),
    ],
)
def test_d01_every_engine_has_its_piece_and_its_mechanism(
    engine: str, offload: str, tp: int, load: tuple[int, str], store: tuple[int, str]
) -> None:
    """Llama-3.1-8B: 131,072 B a token in 32 layers, 2,048 B of keys alone; sequences of 1,000 tokens."""
    made = estimate(load_model("llama-3.1-8b"), EstimateOptions(engine=engine, parallel=Parallel(tp=tp)))
    rules = profile(engine, offload)
    for move, expected in ((rules.load, load), (rules.store, store)):
        one = shape(move, made, made.kv.bytes_per_token_per_gpu, rules, 1000)
        assert (one.piece, one.mechanism) == expected
        assert one.source


def test_d01_latents_lie_in_one_piece_and_an_estimate_without_engine_takes_the_engines_block() -> None:
    made = estimate(load_model("deepseek-v3"), EstimateOptions(engine="sglang"))
    assert shape(profile("sglang").load, made, 61 * 1152, profile("sglang"), 1).piece == 1152
    free = estimate(load_model("llama-3.1-8b"), EstimateOptions())
    assert shape(profile("vllm").load, free, 131_072, profile("vllm"), 1).piece == 65_536


CELLS = (
    *copies((64 * KiB, 12.0), (32 * KiB, 7.0), (16 * KiB, 4.0), preset="batch"),
    *copies((2 * KiB, 30.0), (16 * KiB, 38.0), preset="gather"),
    *copies((64 * KiB, 9.0), (2 * MiB, 48.0), (64 * MiB, 55.0)),
)


@pytest.mark.parametrize(
    ("engine", "tp", "offload", "load"),
    [
        ("vllm", 1, "native", (12.0, "65,536 B a piece by cuMemcpyBatchAsync")),
        ("vllm", 4, "native", (38.0, "16,384 B a piece by a kernel on mapped host memory")),
        ("vllm", 1, "lmcache", (30.0, "2,048 B a piece by a kernel on mapped host memory")),
        ("sglang", 1, "native", (30.0, "2,048 B a piece by a kernel on mapped host memory")),
    ],
)
def test_d01_a_plan_names_piece_mechanism_and_cell_and_moves_the_same_bytes(
    engine: str, tp: int, offload: str, load: tuple[float, str]
) -> None:
    plan = plan_with(CELLS, engine, tp, offload)
    row = next(row for row in plan.break_even if row.tier == "host")
    assert row.link_bytes_per_s == load[0] * GB
    moved = row.prefix_tokens * 131_072 // tp
    assert row.load_s == pytest.approx(moved / (load[0] * GB), rel=0.01)
    lines = {line.what: line for line in plan.evidence}
    assert load[1] in lines["host link"].source
    assert lines["pieces on the host link"].value.count(" by ") == 2
    assert lines["pieces on the host link"].provenance == "published"
    assert not [finding for finding in plan.findings if finding.code.startswith("link-")]


def test_d01_a_plan_with_large_copies_alone_says_what_is_missing() -> None:
    plan = plan_with(copies((64 * KiB, 9.0), (64 * MiB, 55.0)), "vllm")
    assert next(row.link_bytes_per_s for row in plan.break_even if row.tier == "host") == 9.0 * GB
    assert [finding.code for finding in plan.findings].count("link-mechanism") == 2
    assert "the host link was measured near the pieces that the engine moves" in plan.confidence.reasons
    none = make(samples.estimate(), samples.workload(), samples.probe_without_gpu(), H100, Policy())
    assert "link-large-copies" in [finding.code for finding in none.findings]


def test_d01_states_in_pageable_memory_take_pageable_cells_and_else_say_so() -> None:
    locked = copies((64 * KiB, 9.0), (MiB, 40.0), (64 * MiB, 55.0))
    one = Shape(piece=2 * MiB, pageable=True)
    rates, told = host_rates(found(*locked, *copies((MiB, 6.0), flags=("pageable",))), one, one, False)
    assert rates is not None
    assert rates.load_bytes_per_s == 6.0 * GB
    assert not told
    rates, told = host_rates(found(*locked), one, one, False)
    assert rates is not None
    assert rates.load_bytes_per_s == 40.0 * GB
    assert [finding.code for finding in told] == ["link-pageable"] * 2
    plan = plan_with((), "llama.cpp")
    assert plan.confidence.grade == "C"
    assert "link-pageable" in [finding.code for finding in plan.findings]


# ---- D02


def test_d02_pageable_copies_stand_beside_and_no_plan_rests_on_them() -> None:
    cells = gpu_cells.cells((), 256 * MiB)
    assert {cell.granule for cell in cells if not cell.pinned} == {MiB, 256 * MiB}
    pageable = [samples.link(way, 2 * MiB, 1, 11.4, flags=("pageable",)) for way in ("h2d", "d2h")]
    rates, told = host_rates(found(*pageable), *both(2 * MiB), False)
    assert rates is None
    assert "pageable" in told[0].text


def test_d02_memory_that_cannot_be_page_locked_ends_the_probe_unless_told(monkeypatch: pytest.MonkeyPatch) -> None:
    card = device(pci="0000:01:00.0")
    monkeypatch.setattr(probe_host, "inventory", lambda: host(gpus=(card,)))
    monkeypatch.setattr(cuda, "devices", lambda: (FakeGpu(pci=card.pci, pin_limit=0),))
    monkeypatch.setattr(probe_gpu, "BUFFER", 4 * MiB)
    small = probe_gpu.measure
    monkeypatch.setattr(
        probe_gpu,
        "measure",
        lambda gpu, on, **more: small(
            gpu, on, **{**more, "seconds": 0.0, "buffer_bytes": 4 * MiB, "pin_bytes": 8 * MiB}
        ),
    )
    for only in ([], ["--only", "gpu"]):
        ended = CliRunner().invoke(app, ["probe", *only, "--json", "--budget", "1s"])
        assert ended.exit_code == 1
        assert "no host memory could be page-locked" in str(ended.exception)
    told = CliRunner().invoke(app, ["probe", "--only", "gpu", "--json", "-q", "--budget", "1s", "--allow-pageable"])
    assert told.exit_code == 0
    assert '"gpu-not-pinned"' in told.stdout
    assert '"pageable"' in told.stdout


# ---- D03


def test_d03_directions_that_meet_are_measured_and_planned_with() -> None:
    cells = gpu_cells.cells((81_920,), 256 * MiB)
    for size in (81_920, MiB, 256 * MiB):
        ways = {(cell.direction, cell.duplex) for cell in cells if cell.granule == size and cell.pinned}
        assert ways == {(way, beside) for way in ("h2d", "d2h") for beside in (False, True)}
    links = [samples.link(way, 2 * MiB, 1, 24.8) for way in ("h2d", "d2h")]
    links += [samples.link("h2d", 2 * MiB, 1, 11.0, concurrent=OPPOSITE)]
    links += [samples.link("d2h", 2 * MiB, 1, 24.0, concurrent=OPPOSITE)]
    rates, _ = host_rates(found(*links), *both(2 * MiB), False)
    assert rates is not None
    assert (rates.load_bytes_per_s, rates.store_bytes_per_s) == (11.0 * GB, 24.0 * GB)
    assert OPPOSITE in rates.source


# ---- D05


def nodes(count: int) -> tuple[NumaNode, ...]:
    cpus = sorted(os.sched_getaffinity(0))
    return tuple(
        NumaNode(node=n, total_bytes=512 * GiB, free_bytes=GiB, cpus=str(cpus[n % len(cpus)])) for n in range(count)
    )


def test_d05_every_other_node_is_measured_and_none_planned_with(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_run, "node_of", lambda address: None)  # the nodes are made up
    card = device(pci="0000:01:00.0", numa_node=0)
    gpu = FakeGpu(pci=card.pci)
    result = probe_gpu.measure(
        gpu, host(gpus=(card,), numa=nodes(3)), seconds=0.0, buffer_bytes=4 * MiB, pin_bytes=8 * MiB
    )
    remote = [link for link in result.links if "remote-node" in link.flags]
    assert {(link.direction, re.search(r"node (\d)", link.method)[1]) for link in remote} == {  # type: ignore[index]
        (way, node) for way in ("h2d", "d2h") for node in ("1", "2")
    }
    rates, told = host_rates(found(*remote), *both(4 * MiB), False)
    assert rates is None
    assert "remote-node" in told[0].text


def test_d05_equal_nodes_do_not_end_the_matter_all_gpus_copy_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    cards = tuple(device(index=n, pci=f"0000:0{n + 1}:00.0", numa_node=n) for n in range(2))
    monkeypatch.setattr(probe_host, "inventory", lambda: host(gpus=cards, numa=nodes(2)))
    monkeypatch.setattr(cuda, "devices", lambda: tuple(TimedGpu(index=n, pci=cards[n].pci) for n in range(2)))
    small, together = probe_gpu.measure, probe_gpu.measure_together
    sizes = {"seconds": 0.0, "buffer_bytes": 4 * MiB}
    monkeypatch.setattr(
        probe_gpu, "measure", lambda gpu, on, **more: small(gpu, on, **{**more, **sizes, "pin_bytes": 8 * MiB})
    )
    monkeypatch.setattr(probe_gpu, "measure_together", lambda gpus, on, **more: together(gpus, on, **{**more, **sizes}))
    result = probe.measure(ProbeOptions(only=("gpu",)))
    assert {link.concurrent for link in result.links} == {"none", OPPOSITE, gpu_cells.ALL_GPUS}
    assert "gpus-together" in [finding.code for finding in result.findings]
    assert not [finding for finding in result.findings if "irrelevant" in finding.text]


def test_d05_a_plan_says_how_much_memory_on_each_node() -> None:
    cards = tuple(GpuDevice(index=n, name="Example", total_bytes=1, free_bytes=1, numa_node=n // 4) for n in range(8))
    machine = host(gpus=cards, numa=nodes(2), memory_total_bytes=1024 * GiB, usable_memory_bytes=1000 * GiB)
    facts = cast(Any, SimpleNamespace(machine=machine, on_host=1, gpus=8))
    assert [(one.node, one.bytes) for one in by_node(facts, 400 * GiB)] == [(0, 200 * GiB), (1, 200 * GiB)]


# ---- D06


def test_d06_page_locking_that_stops_is_found_with_what_worked() -> None:
    """Docker on WSL2 refuses above about 500 MB: the ceiling is found to the MiB, and memory is given back."""
    gpu = FakeGpu(pin_limit=500_000_000)
    with pinning.pin(gpu, 0, 768 * MiB, chunk=64 * MiB) as arena:
        report = arena.report
    assert 0 <= 500_000_000 - report.pinned_bytes < MiB
    assert report.largest_bytes == 64 * MiB
    assert report.stopped == "cudaHostRegister: out of memory"
    assert gpu.pinned == {}


@pytest.mark.parametrize("direction", ["h2d", "d2h"])
def test_d06_a_copy_that_succeeds_and_moves_nothing_is_caught(direction: mechanisms.Direction) -> None:
    gpu = FakeGpu(lose_after=7 * MiB)
    assert copies_of(gpu, direction, MiB, 64 * KiB).measure(0.0).wrong_words == 64 * KiB // 8


def test_d06_the_page_says_where_it_ran_and_what_may_be_locked() -> None:
    page = shown(found(host=host(container="wsl2", memlock_bytes=8 * MiB)))
    assert "in wsl2" in page
    assert re.search(r"memlock.*8\.00 MiB", page)


def test_d06_wsl2_is_told_by_its_kernel(tmp_path: Path) -> None:
    release = tmp_path / "proc/sys/kernel/osrelease"
    release.parent.mkdir(parents=True)
    release.write_text("5.15.167.4-microsoft-standard-WSL2\n")
    (tmp_path / ".dockerenv").touch()
    assert probe_host._container(tmp_path, {}) == "wsl2"


# ---- D07


@pytest.fixture
def drive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(probe_disk, "_SHORTEST_FILL_S", 60.0)  # other programs may keep the drive busy
    if scratch.look(tmp_path).memory:
        pytest.skip(f"{tmp_path} is in memory: point pytest's --basetemp at a drive")
    return tmp_path


@pytest.mark.parametrize("code", [errno.EINVAL, errno.EOPNOTSUPP])
@pytest.mark.parametrize(
    ("told", "accepts", "step", "direct"),
    [
        ((512, 512), 4096, 4096, True),  # XFS: finer than a page is never needed
        ((4096, 4096), 4096, 4096, True),
        ((0, 0), 4096, 4096, True),  # OpenZFS says nothing and does it: tried out
        (None, 4096, 4096, True),  # a kernel that does not say
        ((512, 512), MiB, MiB, True),  # cluster file systems want coarser steps than they say
        ((512, 512), None, 4096, False),  # accepted at open, refused at write
    ],
)
def test_d07_the_step_that_works_is_found_by_writing(
    drive: Path,
    monkeypatch: pytest.MonkeyPatch,
    told: tuple[int, int] | None,
    accepts: int | None,
    step: int,
    direct: bool,
    code: int,
) -> None:
    real, tried = os.pwrite, []

    def refusing(descriptor: int, data: Any, offset: int) -> int:
        tried.append(len(data))
        if accepts is None or len(data) % accepts:
            raise OSError(code, os.strerror(code))
        return real(descriptor, data, offset)

    monkeypatch.setattr(os, "pwrite", refusing)
    memory, offset = told or (None, None)
    monkeypatch.setattr(
        scratch.directio,
        "statx",
        lambda descriptor: scratch.directio.Statx(mount=None, memory_align=memory, offset_align=offset),
    )
    with scratch.scratch_file(scratch.look(drive), 8 * MiB) as file:
        assert (file.direct, file.alignment) == (direct, step)
    assert tried[0] == 4096


def test_d07_refused_at_every_write_is_buffered_flagged_and_never_planned_with(
    drive: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is measured all the same: through the page cache, dropped before each cell."""
    real = os.pwrite

    def refusing(descriptor: int, data: Any, offset: int) -> int:
        if len(data) in (4096, MiB):
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
        return real(descriptor, data, offset)

    monkeypatch.setattr(os, "pwrite", refusing)
    todo = probe_disk.plan(drive, seconds=0.4, write_bytes=200 * MiB, file_bytes=64 * MiB, sweep_only=True)
    result = probe_disk.measure(todo)
    assert result.disk.direct == "no"
    assert all("page-cache" in link.flags and "buffered" in link.method for link in result.links)
    assert "the file system refuses O_DIRECT" in result.disk.proof
    rates, _ = disk_rates(found(*result.links, capacity=(result.disk,)), MiB, 1, False, None)
    assert rates is None


@pytest.mark.parametrize(("granule", "pieces"), [(4096, 1), (128 * KiB, 1), (2 * MiB, 32)])
def test_d07_buffers_are_page_aligned(granule: int, pieces: int) -> None:
    """An unaligned buffer is what a plain XFS refused 57 stores for, with the service healthy."""
    for view in Buffer(granule, pieces).views[0]:
        assert np.frombuffer(view, dtype=np.uint8).ctypes.data % 4096 == 0


# ---- D08


def test_d08_more_than_half_of_what_memory_copies_was_no_drive() -> None:
    """24.7 GB/s to one process was memory; 6.46 GiB/s at 2 MiB over a link of 7.88 GB/s was a drive."""
    fourth = samples.disk().members or ()
    most = disk_links.bounds(fourth, 40 * GB)
    ram = disk_links.link("/x", measured_at(24.7 * GB), direct=True, flags=(), most=most)
    assert "above-memory" in ram.flags
    real = disk_links.link(
        "/x",
        measured_at(6.46 * GiB, granule=2 * MiB, depth=8),
        direct=True,
        flags=(),
        most=disk_links.Bounds(link=7.88 * GB, memory=disk_links.bounds((), 40 * GB).memory),
    )
    assert real.flags == ()
    above = disk_links.Bounds(link=3.94 * GB)
    assert disk_links.link("/x", measured_at(6.46 * GiB), direct=True, flags=(), most=above).flags == ("above-link",)


@pytest.mark.parametrize(("rate", "flags"), [(19.9, ()), (20.1, ("above-memory",))])
def test_d08_the_bound_is_half_and_a_plan_refuses_what_is_above(rate: float, flags: tuple[str, ...]) -> None:
    most = disk_links.bounds((), 40 * GB)
    made = disk_links.link("/mnt/nvme", measured_at(rate * GB), direct=True, flags=(), most=most)
    assert made.flags == flags
    stores = samples.link("write", MiB, 1, 3.0)
    rates, told = disk_rates(found(made, stores), MiB, 1, False, None)
    assert (rates is None) == bool(flags)
    assert bool(told) == bool(flags)


def test_d08_this_host_is_held_against_its_own_memory(drive: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A host said to copy next to nothing: then every rate of its drive must have come from a cache."""
    plan = probe_disk.plan(drive, seconds=0.4, write_bytes=200 * MiB, file_bytes=64 * MiB, sweep_only=True)
    honest = probe_disk.measure(plan)
    assert honest.disk.memory_copy_bytes_per_s is not None
    monkeypatch.setattr(memory_copy, "bytes_per_s", lambda usable: 1e6)
    result = probe_disk.measure(plan)
    assert all("above-memory" in link.flags for link in result.links)
    (told,) = [finding.text for finding in result.findings if finding.code == "disk-above-memory"]
    assert "measured above half of what this host copies in memory (500.0 kB/s)" in told


def test_d08_copying_in_memory_is_measured_and_needs_some() -> None:
    rate = memory_copy.bytes_per_s(4 * GiB)
    assert rate is not None
    assert 1e8 < rate < 1e13
    assert memory_copy.bytes_per_s(32 * MiB) is None


def test_d08_sizes_depths_and_a_long_write() -> None:
    cells = disk_cells.all_cells(disk_cells.GRANULES, None, False)
    for way in ("read", "write"):
        plain = {(cell.granule, cell.depth) for cell in cells if cell.direction == way and not cell.preset}
        assert {(size, depth) for size in (128 * KiB, MiB, 2 * MiB) for depth in (1, 8, 32)} <= plain
    shared = disk_cells.share_out(cells, 30 * GiB)
    (long,) = [cell for cell in shared if cell.sustained]
    assert (long.limit_bytes or 0) >= 20 * GiB
    assert probe_disk._SUSTAINED_SHARE * 300 >= 30  # seconds, of --budget 5m
    assert sum(cell.limit_bytes or 0 for cell in shared) <= 30 * GiB
    # Not before 20 GB, whatever the rate: an SLC cache may hold as much.
    steady = Steadiness()
    assert not any(steady.enough(second, int(second * 1e9)) for second in np.arange(0.25, 19.9, 0.25))


def test_d08_the_long_write_says_how_long_it_was() -> None:
    cell = {"direction": "write", "granule": 4 * MiB, "depth": 4, "sustained": True, "preset": "sustained"}
    made = measured_at(GB, **cell)
    made = Outcome(cell=made.cell, direction="write", done=made.done, held=False)
    made.done.moved_bytes = 5 * GiB  # type: ignore[misc]
    link = disk_links.link("/x", made, direct=True, flags=(), most=disk_links.Bounds())
    assert "5.00 GiB written" in link.method
    assert link.flags == ("not-steady",)


def test_d08_the_chunk_of_a_model_is_measured_and_shown() -> None:
    model = load_model("llama-3.1-8b")
    block = kv_block(estimate(model, EstimateOptions(engine="vllm")))
    assert block.chunk_bytes == 256 * 131_072 == 32 * MiB
    (chunked,) = [cell for cell in disk_cells.engine_cells(block) if cell.preset == "lmcache"]
    assert chunked.granule == 32 * MiB
    page = shown(found(samples.link("read", chunked.granule, 1, 3.0, preset="lmcache")))
    assert re.search(r"lmcache.*32\.00 MiB", page)
