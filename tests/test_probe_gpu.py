"""The GPU probe against a stand-in that moves real bytes, honest or not; and the real one where a CUDA device is."""

from __future__ import annotations

import ctypes
import mmap
import os
import signal
import sys
import threading
import time
import warnings
from collections.abc import Iterator
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
from fake_gpu import FakeGpu, TimedGpu
from hypothesis import given, settings
from hypothesis import strategies as st

from kvplan import probe, probe_gpu, probe_host
from kvplan.documents import GpuDevice, Host, NumaNode, ProbeOptions
from kvplan.errors import KvplanError, UsageError
from kvplan.probing import (
    affinity,
    contention,
    cuda,
    gpu_copies,
    gpu_extras,
    gpu_run,
    mechanisms,
    nvml,
    pinning,
    pipeline,
    together,
)
from kvplan.units import GiB, KiB, MiB

BUFFER = 4 * MiB


def host(**more: Any) -> Host:
    fields: dict[str, Any] = {
        "system": "Linux",
        "kernel": "6.8",
        "cpu": "Example",
        "cores": 2,
        "memory_total_bytes": 64 * GiB,
        "memory_available_bytes": 60 * GiB,
        "usable_memory_bytes": 60 * GiB,
        "gpu_status": "1 GPU",
    }
    return Host(**{**fields, **more})


def device(**more: Any) -> GpuDevice:
    fields: dict[str, Any] = {"index": 0, "name": "Example", "total_bytes": 80 * GiB, "free_bytes": 79 * GiB}
    return GpuDevice(**{**fields, **more})


def measure(gpu: FakeGpu, **more: Any) -> probe_gpu.GpuResult:
    fields: dict[str, Any] = {"seconds": 0.0, "buffer_bytes": BUFFER, "pin_bytes": 2 * BUFFER, "host": host()}
    fields.update(more)
    return probe_gpu.measure(gpu, fields.pop("host"), **fields)


def copies_of(gpu: FakeGpu, direction: mechanisms.Direction, size: int, granule: int) -> gpu_copies.Copies:
    buffer = np.zeros(size, dtype=np.uint8)
    lane = gpu_copies.Lane(direction=direction, host=buffer, memory=gpu.allocate(size), stream="stream")
    return gpu_copies.Copies(gpu, lane, granule, None, cuda.base_words(size), np.random.default_rng(0))


@pytest.fixture(autouse=True)
def silent_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    """These machines are made up: the kernel of the one they run on does not tell where their memory is."""
    monkeypatch.setattr(gpu_run, "node_of", lambda address: None)


@pytest.fixture(scope="module")
def honest() -> tuple[FakeGpu, probe_gpu.GpuResult]:
    gpu = FakeGpu()
    return gpu, measure(gpu, seconds=1.0, granules=(81_920,))


# ---- an honest device


def test_every_cell_is_there_and_clean(honest: tuple[FakeGpu, probe_gpu.GpuResult]) -> None:
    _, found = honest
    shapes = {(link.direction, link.granule_bytes, link.concurrent, "pageable" in link.flags) for link in found.links}
    sizes = (64 * KiB, 81_920, 256 * KiB, MiB, 4 * MiB)
    alone = {(way, size, "none", False) for way in ("h2d", "d2h") for size in sizes}
    both = {(way, size, "opposite direction", False) for way in ("h2d", "d2h") for size in (81_920, MiB, 4 * MiB)}
    pageable = {(way, size, "none", True) for way in ("h2d", "d2h") for size in (MiB, 4 * MiB)}
    assert shapes == alone | both | pageable
    others = [link for link in found.links if link.preset]
    assert {(link.direction, link.granule_bytes, link.method.split(",")[0]) for link in others} == {
        (way, 81_920, mechanisms.WORDS[name]) for way in ("h2d", "d2h") for name in ("batch", "gather")
    }
    assert len(found.links) == len(shapes) + len(others)
    assert not [finding for finding in found.findings if finding.severity == "error"]
    for link in found.links:
        assert (link.source, link.target) == (("host", "gpu0") if link.direction == "h2d" else ("gpu0", "host"))
        assert set(link.flags) <= {"pageable", "not-steady"}
        assert 0 < link.p5_bytes_per_s <= link.p50_bytes_per_s <= link.p95_bytes_per_s
        assert 0 < link.p50_latency_s <= link.p99_latency_s
        assert link.depth == 1
        assert ("page-locked" in link.method) != ("pageable" in link.flags)


def test_page_locked_memory_is_given_back(honest: tuple[FakeGpu, probe_gpu.GpuResult]) -> None:
    gpu, found = honest
    assert gpu.peak_pinned == found.pinning.pinned_bytes == found.pinning.requested_bytes == 2 * BUFFER
    assert (found.pinning.largest_bytes, found.pinning.stopped) == (BUFFER, None)
    assert gpu.pinned == {}


def test_progress_names_cell_and_rate() -> None:
    said: list[str] = []
    measure(FakeGpu(), progress=lambda what, done=None: said.append(what))
    assert said[0] == "gpu0: page-locking host memory"
    assert any(line.startswith("gpu0: h2d 1.00 MiB beside the opposite direction: ") for line in said)


def test_uneven_pieces_move_the_whole_buffer() -> None:
    found = measure(FakeGpu(), granules=(MiB + 40_961,))
    assert [link.granule_bytes for link in found.links if link.granule_bytes > MiB][2:4] == [MiB + 40_968] * 2
    assert not any("corrupt" in link.flags for link in found.links)


# ---- devices that lie


@pytest.mark.parametrize("after", [12 * MiB, 20 * MiB + 3, 31 * MiB, 52 * MiB - 1])
def test_one_corrupted_byte_is_caught_in_the_cell_it_hit(after: int) -> None:
    """The first cell warms up with three trains of 4 MiB, then times five trains and five single copies."""
    found = measure(FakeGpu(corrupt_after=after))
    assert ["corrupt" in link.flags for link in found.links] == [True] + [False] * (len(found.links) - 1)
    assert [finding.code for finding in found.findings if finding.severity == "error"] == ["gpu-corrupt"]


def test_one_corrupted_byte_in_a_billion_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_copies, "_FEWEST_TRAINS", 14)
    seen = copies_of(FakeGpu(corrupt_after=10**9), "h2d", 64 * MiB, 16 * MiB).measure(0.0)
    assert seen.wrong_words == 1


@pytest.mark.parametrize("direction", ["h2d", "d2h"])
@pytest.mark.parametrize("fault", ["corrupt", "lose"])
def test_every_timed_copy_is_verified(
    direction: mechanisms.Direction, fault: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whichever copy of any timed train or single goes wrong, it is seen."""
    monkeypatch.setattr(gpu_copies.Copies, "_warm", lambda self, seconds, seen: None)
    size = 64 * KiB
    for copy in range(5 * 8 + 5):  # five trains of eight pieces, then five single copies
        gpu = FakeGpu(**{f"{fault}_after": copy * size + 17})
        seen = copies_of(gpu, direction, 8 * size, size).measure(0.0)
        assert seen.copies == 45
        assert seen.wrong_words == (1 if fault == "corrupt" else size // 8)


def test_a_copy_that_moves_nothing_is_caught() -> None:
    found = measure(FakeGpu(lose_after=20 * MiB))
    assert any("corrupt" in link.flags for link in found.links)


# ---- page-locking


def test_pinning_that_stops_is_reported_with_what_worked() -> None:
    gpu = FakeGpu(pin_limit=500_000_000)
    with pinning.pin(gpu, 0, 1024 * MiB, chunk=256 * MiB) as arena:
        report = arena.report
        assert 500_000_000 - MiB < report.pinned_bytes <= 500_000_000
        assert report.largest_bytes == 256 * MiB
        assert report.stopped == "cudaHostRegister: out of memory"
        assert sum(gpu.pinned.values()) == report.pinned_bytes
        pair = arena.pair(64 * MiB)
        assert pair is not None
        assert [len(half) for half in pair] == [64 * MiB] * 2
        assert all(gpu.is_pinned(half) for half in pair)
    assert gpu.pinned == {}


def test_limited_pinning_is_a_finding() -> None:
    found = measure(FakeGpu(pin_limit=6 * MiB))
    (finding,) = [finding for finding in found.findings if finding.code == "gpu-pinning-limited"]
    assert "only 6.00 MiB of 8.00 MiB could be page-locked: cudaHostRegister: out of memory" in finding.text
    assert {link.granule_bytes for link in found.links} >= {64 * KiB, MiB}


def test_a_cap_on_a_single_registration_is_worked_around() -> None:
    gpu = FakeGpu(largest_pin=2 * MiB)
    found = measure(gpu)
    assert (found.pinning.pinned_bytes, found.pinning.largest_bytes) == (2 * BUFFER, 2 * MiB)
    assert found.pinning.stopped is None
    assert max(link.granule_bytes for link in found.links) == 2 * MiB  # no copy crosses two registrations


@pytest.mark.parametrize("gpu", [FakeGpu(pin_limit=0), FakeGpu(admits_pinned=False)])
def test_without_page_locked_memory_it_ends_unless_told(gpu: FakeGpu) -> None:
    with pytest.raises(probe_gpu.NotPinnedError, match=r"gpu0: no host memory could be page-locked .*--allow-pageable"):
        measure(gpu)
    found = measure(gpu, allow_pageable=True)
    assert found.pinning.pinned_bytes == 0
    assert {finding.code for finding in found.findings if finding.severity == "error"} == {"gpu-not-pinned"}
    assert found.links
    assert all("pageable" in link.flags for link in found.links)
    assert gpu.pinned == {}


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 24), st.integers(0, 40), st.integers(1, 40))
def test_pairs_lie_in_one_registration_each(chunk: int, limit: int, wanted: int) -> None:
    gpu = FakeGpu(pin_limit=limit * MiB)
    with pinning.pin(gpu, 0, 32 * MiB, chunk=chunk * MiB) as arena:
        assert arena.report.pinned_bytes == min(32, limit) * MiB
        pair = arena.pair(wanted * MiB)
        if pair is None:
            assert limit < 2
            return
        first, second = pair
        assert len(first) == len(second) <= wanted * MiB
        assert gpu.is_pinned(first)
        assert gpu.is_pinned(second)
        gap = abs(first.ctypes.data - second.ctypes.data)
        assert gap >= len(first)


# ---- failures


@pytest.mark.parametrize("error", [KvplanError("gpu0: could not copy: CUDA error"), KeyboardInterrupt()])
def test_a_failing_or_interrupted_run_gives_the_memory_back(error: BaseException) -> None:
    gpu = FakeGpu(error=error)  # type: ignore[arg-type]
    before = os.sched_getaffinity(0)
    with pytest.raises(type(error)):
        measure(gpu)
    assert gpu.peak_pinned == 2 * BUFFER
    assert gpu.pinned == {}
    assert gpu.waits >= 2  # both streams were empty before it went
    assert os.sched_getaffinity(0) == before


class Impatient(FakeGpu):
    """Interrupted while it copies, and twice more while that is cleaned up, as by a user who presses Ctrl-C again."""

    interrupts = 3

    def _interrupt(self, at: int) -> None:
        if self.interrupts == at:
            self.interrupts -= 1
            os.kill(os.getpid(), signal.SIGINT)

    def _move(self, stream: Any, piece: Any) -> None:
        super()._move(stream, piece)
        if self.moved["h2d"] >= 8 * MiB:
            self._interrupt(3)

    def wait(self, stream: Any) -> None:
        self._interrupt(2)
        super().wait(stream)

    def unpin(self, address: int) -> None:
        assert self.waits >= 2, "page-locked memory was given back under copies"
        self._interrupt(1)
        super().unpin(address)


def test_interrupts_do_not_cut_giving_back_short() -> None:
    gpu = Impatient()
    with pytest.raises(KeyboardInterrupt):
        measure(gpu)
    assert gpu.interrupts == 0
    assert gpu.pinned == {}
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


class Busy(FakeGpu):
    """Held by another process alone (exclusive compute mode)."""

    def free_bytes(self) -> int:
        raise KvplanError(f"gpu{self.index}: could not open the device: CUDA error: all CUDA-capable devices are busy")

    def pin(self, address: int, size: int) -> None:
        raise AssertionError("nothing is page-locked for a device that does not open")


def test_a_device_that_others_hold_is_told_before_anything_is_page_locked() -> None:
    with pytest.raises(KvplanError, match="could not open the device: CUDA error: all CUDA-capable devices are busy"):
        measure(Busy())


def test_a_full_gpu_is_one_clear_line() -> None:
    with pytest.raises(KvplanError, match=r"gpu0: only 8.00 MiB of device memory free, the probe needs 16.00 MiB"):
        measure(FakeGpu(memory_bytes=8 * MiB))


def test_a_host_without_memory_to_lock_is_one_clear_line() -> None:
    with pytest.raises(KvplanError, match="too little to page-lock"):
        measure(FakeGpu(), host=host(usable_memory_bytes=8 * MiB))


# ---- what stands around a copy


def test_the_gpu_is_found_by_its_address_and_its_node_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    """CUDA_VISIBLE_DEVICES=1 makes the second card CUDA's first."""
    cpus = sorted(os.sched_getaffinity(0))
    cards = tuple(device(index=index, pci=f"0000:{index + 1:02x}:00.0", numa_node=index) for index in range(2))
    nodes = tuple(NumaNode(node=n, total_bytes=GiB, free_bytes=GiB, cpus=str(cpus[-1]) if n else "") for n in range(2))
    seen: list[set[int]] = []
    monkeypatch.setattr(nvml, "link_state", lambda pci: nvml.LinkState(generation=4, width=8))
    machine = host(gpus=cards, numa=nodes)
    gpu = FakeGpu(pci="0000:02:00.0")
    found = measure(gpu, host=machine, progress=lambda *_: seen.append(os.sched_getaffinity(0)))
    assert found.gpu is not None
    assert found.gpu.index == found.pinning.gpu == 1
    assert {link.source for link in found.links} == {"host", "gpu1"}
    assert "node 1" in found.links[0].method
    assert seen[-1] == {cpus[-1]}
    assert os.sched_getaffinity(0) == set(cpus)


def test_a_slow_link_a_hot_gpu_and_company_are_findings(monkeypatch: pytest.MonkeyPatch) -> None:
    state = nvml.LinkState(generation=3, width=16, throttled=("hot",), other_processes=2, mig=True, confidential=True)
    monkeypatch.setattr(nvml, "link_state", lambda pci: state)
    card = device(pci="0000:01:00.0", link_generation=1, max_link_generation=5, link_width=16, max_link_width=16)
    found = measure(FakeGpu(pci="0000:01:00.0"), host=host(gpus=(card,)))
    assert found.gpu is not None
    assert found.gpu.link_generation == 3  # under load, not the idle 1 of the inventory
    told = {finding.code: finding.text for finding in found.findings}
    assert told["gpu-link-downgraded"] == "gpu0: PCIe link generation is 3 under load, 5 is possible"
    assert set(told) == {"gpu-link-downgraded", "gpu-throttled", "gpu-shared", "gpu-mig", "gpu-confidential"}


def test_what_the_driver_does_not_say_stays_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    """A driver that answers one question and refuses the next."""

    class Refused(Exception):
        pass

    def refuse(*_: Any) -> None:
        raise Refused

    driver = SimpleNamespace(
        NVMLError=Refused,
        nvmlDeviceGetHandleByPciBusId=lambda pci: "handle",
        nvmlDeviceGetMigMode=lambda handle: (1, 1),
        nvmlSystemGetConfComputeState=refuse,
    )
    monkeypatch.setattr(nvml, "session", lambda: nullcontext(driver))
    assert nvml.link_state("0000:01:00.0") == nvml.LinkState(mig=True)
    driver.nvmlDeviceGetMigMode = refuse
    driver.nvmlSystemGetConfComputeState = lambda: SimpleNamespace(ccFeature=1)
    assert nvml.link_state("0000:01:00.0") == nvml.LinkState(confidential=True)


@pytest.mark.parametrize(
    ("text", "cpus"), [("", set()), ("3", {3}), ("0-2,8", {0, 1, 2, 8}), ("0-1,4-5", {0, 1, 4, 5})]
)
def test_cpu_lists(text: str, cpus: set[int]) -> None:
    assert affinity.parse_cpus(text) == cpus


def test_a_mapping_is_on_the_node_of_most_of_its_pages(tmp_path: Path) -> None:
    maps = tmp_path / "numa_maps"
    maps.write_text(
        "7f0000000000 default file=/dev/zero\\040(deleted) dirty=9 N0=3 N1=6 kernelpagesize_kB=4\n"
        "7f0000100000 default\n"
        "7f0000200000 bind:1 anon=2 dirty=2 N1=2 kernelpagesize_kB=4\n"
    )
    at = 0x7F0000000000
    assert [affinity.node_of(at + more, maps) for more in (0, 4096, 0x100000, 0x300000)] == [1, 1, None, 1]
    assert affinity.node_of(4096, maps) is None
    assert affinity.node_of(at, tmp_path / "absent") is None


def test_memory_of_this_process_is_on_a_node_of_this_host() -> None:
    if not Path("/proc/self/numa_maps").exists():
        pytest.skip("this kernel has no numa_maps: where memory lies was not asked")
    area = np.frombuffer(mmap.mmap(-1, MiB), dtype=np.uint8)
    area.fill(1)
    nodes = {node.node for node in probe_host.inventory().numa}
    assert affinity.node_of(area.ctypes.data) in nodes


def test_memory_that_came_from_another_node_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """A container that may not use the processors or the memory of the GPU's node."""
    monkeypatch.setattr(gpu_run, "node_of", lambda address: 0)
    found = measure(FakeGpu(pci="0000:01:00.0"), host=host(gpus=(device(pci="0000:01:00.0", numa_node=1),)))
    (told,) = [finding.text for finding in found.findings if finding.code == "gpu-memory-elsewhere"]
    assert told.startswith("gpu0: host memory came from node 0, but the GPU is at node 1")
    assert all("node 0" in link.method for link in found.links if "pageable" not in link.flags)
    monkeypatch.setattr(gpu_run, "node_of", lambda address: None)
    found = measure(FakeGpu(pci="0000:01:00.0"), host=host(gpus=(device(pci="0000:01:00.0", numa_node=1),)))
    assert "node unknown" in found.links[0].method  # no processor of that node to run on, and nobody who tells


def test_a_node_whose_memory_is_not_given_is_not_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_run, "node_of", lambda address: 0)
    cpus = sorted(os.sched_getaffinity(0))
    nodes = tuple(NumaNode(node=n, total_bytes=GiB, free_bytes=GiB, cpus=str(cpus[n % len(cpus)])) for n in range(2))
    found = measure(FakeGpu(pci="0000:01:00.0"), host=host(gpus=(device(pci="0000:01:00.0", numa_node=0),), numa=nodes))
    assert not any("remote-node" in link.flags for link in found.links)
    told = [finding.text for finding in found.findings if finding.code == "gpu-part-not-measured"]
    assert told == ["gpu0: memory of node 1: not measured: this process is given memory of node 0 instead"]


def test_a_part_of_a_divided_gpu_has_its_own_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nvml, "link_state", lambda pci: nvml.LinkState(mig=True))
    card = device(pci="0000:01:00.0")
    found = measure(FakeGpu(pci=card.pci, memory_bytes=18 * GiB), host=host(gpus=(card,)))
    assert found.gpu is not None
    assert (found.gpu.total_bytes, found.gpu.free_bytes) == (18 * GiB, 18 * GiB)
    (told,) = [finding.text for finding in found.findings if finding.code == "gpu-mig"]
    assert told.endswith("its link is shared with the others, and the 18.00 GiB are those of this instance")


def test_a_driver_that_tells_nothing_is_asked_once(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    monkeypatch.setattr(nvml, "link_state", lambda pci: asked.append(pci) or nvml.LinkState())
    measure(FakeGpu(pci="0000:01:00.0"), host=host(gpus=(device(pci="0000:01:00.0"),)))
    assert asked == ["0000:01:00.0"]


def test_coherent_host_memory_is_not_behind_pci_express(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nvml, "link_state", lambda pci: nvml.LinkState(generation=1, width=1, coherent=True))
    card = device(pci="0000:01:00.0", max_link_generation=5, max_link_width=16)
    found = measure(FakeGpu(pci=card.pci), host=host(gpus=(card,)))
    codes = [finding.code for finding in found.findings]
    assert "gpu-coherent" in codes
    assert "gpu-link-downgraded" not in codes


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("00000000:3B:00.0", "0000:3b:00.0"),
        ("0001:00:00.0", "0001:00:00.0"),
        ("00010001:00:00.0", "10001:00:00.0"),
        ("", None),
        ("nonsense:x", None),
    ],
)
def test_pci_addresses_as_sysfs_writes_them(text: str, address: str | None) -> None:
    assert nvml.pci_address(text) == address


# ---- the whole probe


def test_the_probe_joins_every_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    cards = tuple(device(index=index, pci=f"0000:{index + 1:02x}:00.0") for index in range(2))
    monkeypatch.setattr(probe_host, "inventory", lambda: host(gpus=cards))
    monkeypatch.setattr(cuda, "devices", lambda: tuple(FakeGpu(index=n, pci=cards[n].pci) for n in range(2)))
    monkeypatch.setattr(nvml, "link_state", lambda pci: nvml.LinkState(generation=5, width=16))
    small = partial(probe_gpu.measure, buffer_bytes=BUFFER, pin_bytes=2 * BUFFER)
    monkeypatch.setattr(probe_gpu, "measure", lambda gpu, on, **more: small(gpu, on, **{**more, "seconds": 0.0}))
    together = partial(probe_gpu.measure_together, buffer_bytes=BUFFER)
    monkeypatch.setattr(probe_gpu, "measure_together", together)
    found = probe.measure(ProbeOptions(only=("gpu",), budget_s=1.0))
    assert {link.source for link in found.links} == {"host", "gpu0", "gpu1"}
    assert [report.gpu for report in found.pinning] == [0, 1]
    assert [card.link_generation for card in found.host.gpus] == [5, 5]


def test_a_gpu_that_torch_cannot_reach(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probe_host, "inventory", lambda: host(gpus=(device(),)))
    monkeypatch.setattr(cuda.importlib.util, "find_spec", lambda name: None)
    found = probe.measure(ProbeOptions())
    assert "gpu-not-measured" in [finding.code for finding in found.findings]
    with pytest.raises(KvplanError, match=r"install kvplan\[gpu\]"):
        probe.measure(ProbeOptions(only=("gpu",)))


# ---- the torch side, as far as it goes without a GPU


def test_torch_and_numpy_agree_on_the_pattern() -> None:
    torch = pytest.importorskip("torch")
    size, key = MiB + 64, 0xFEDCBA9876543210
    memory = torch.zeros(size, dtype=torch.uint8)
    cuda.fill_tensor(memory, key)
    expected = np.empty(size, dtype=np.uint8)
    cuda.fill_host(expected, cuda.base_words(size), key)
    assert np.array_equal(memory.numpy(), expected)
    assert cuda.wrong_tensor_words(memory, key, size) == 0
    memory[size - 1] ^= 1
    memory[3] ^= 1
    assert cuda.wrong_tensor_words(memory, key, size) == 2
    assert cuda.wrong_tensor_words(memory, key, size - 8) == 1
    assert cuda.wrong_tensor_words(memory, key ^ 1, size) == size // 8


def test_torch_pieces_cover_the_buffer_in_both_directions() -> None:
    torch = pytest.importorskip("torch")
    buffer = torch.arange(100, dtype=torch.uint8)
    memory = torch.zeros(100, dtype=torch.uint8)
    for pairs in (mechanisms.pairs_of("h2d", buffer, memory, 16), mechanisms.pairs_of("d2h", buffer, memory, 16)):
        for target, source in mechanisms.shuffled(pairs):
            mechanisms.Plain(target, source).submit(None)
        assert torch.equal(memory, buffer)
        assert memory.any()
        buffer.zero_()


def test_torch_without_cuda_is_one_clear_line() -> None:
    torch = pytest.importorskip("torch")
    if torch.cuda.is_available():
        pytest.skip("a CUDA device is here: its absence was not tried")
    with pytest.raises(KvplanError, match="measuring a GPU needs torch with CUDA, but torch"):
        cuda.devices()


def test_cuda_that_does_not_start_is_one_clear_line(monkeypatch: pytest.MonkeyPatch) -> None:
    """What torch warns of, and what it raises: a driver older than its CUDA, a driver that lost its devices."""
    torch = pytest.importorskip("torch")

    def warns() -> bool:
        warnings.warn("CUDA initialization: The NVIDIA driver on your system is too old\n(found 12040)", stacklevel=2)
        return False

    monkeypatch.setattr(torch.cuda, "is_available", warns)
    with pytest.raises(
        KvplanError, match=r"\(CUDA initialization: The NVIDIA driver on your system is too old\): check"
    ):
        cuda.devices()

    def raises(ordinal: int) -> None:
        raise RuntimeError("CUDA unknown error\nmore")

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(cuda, "TorchGpu", raises)
    with pytest.raises(KvplanError, match=r"^measuring a GPU: CUDA does not start: CUDA unknown error$"):
        cuda.devices()


class Runtime:
    """CUDA's runtime as torch exposes it; refuses registrations above a size and then keeps the error, as CUDA does."""

    def __init__(self, largest: int) -> None:
        self.largest, self.last_error = largest, 0
        self.registered: set[int] = set()
        self.library: Library | None = None
        self.settled = 0

    def cudaHostRegister(self, address: int, size: int, flags: int) -> int:
        self.last_error = 2 if size > self.largest else 0
        self.registered |= set() if self.last_error else {address}
        return self.last_error

    def cudaHostUnregister(self, address: int) -> int:
        self.last_error = 0 if address in self.registered else 713
        self.registered.discard(address)
        return self.last_error

    def cudaGetErrorString(self, status: int) -> str:
        return "out of memory"


@pytest.fixture
def cpu_as_cuda(monkeypatch: pytest.MonkeyPatch) -> Runtime:
    """torch with its CPU in place of a CUDA device: the same tensors and copies, streams and events that do nothing."""
    torch = pytest.importorskip("torch")
    runtime = Runtime(largest=2 * MiB)

    def ones(*sizes: int, device: Any) -> Any:
        if runtime.last_error:
            runtime.last_error = 0
            raise RuntimeError("CUDA error: out of memory\nCompile with TORCH_USE_CUDA_DSA")
        return torch.zeros(*sizes) + 1

    event = SimpleNamespace(record=lambda stream: None, synchronize=lambda: None, elapsed_time=lambda other: 2.0)
    fake = {
        "cudart": lambda: runtime,
        "device": lambda device: nullcontext(),
        "stream": lambda stream: nullcontext(),
        "Stream": lambda device: SimpleNamespace(synchronize=lambda: None, cuda_stream=7),
        "Event": lambda enable_timing: event,
        "synchronize": lambda device: setattr(runtime, "settled", runtime.settled + 1),
        "mem_get_info": lambda device: (GiB, GiB),
        "is_available": lambda: True,
        "device_count": lambda: 1,
        "get_device_properties": lambda n: SimpleNamespace(pci_domain_id=0, pci_bus_id=0x3B, pci_device_id=0),
    }
    shim = ModuleType("torch")
    shim.__dict__.update({name: getattr(torch, name) for name in ("zeros", "uint8", "int64", "arange")})
    shim.__dict__.update(ones=ones, device=lambda *_: torch.device("cpu"), cuda=SimpleNamespace(**fake))

    shim.__dict__.update(from_numpy=torch.from_numpy, index_select=torch.index_select)
    monkeypatch.setattr(torch.Tensor, "is_pinned", lambda tensor: tensor.data_ptr() in runtime.registered)
    monkeypatch.setitem(sys.modules, "torch", shim)
    monkeypatch.setattr(mechanisms, "driver", lambda: runtime.library and mechanisms.Driver(runtime.library))
    return runtime


def test_the_torch_device_runs_the_whole_probe(cpu_as_cuda: Runtime, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuda.importlib.util, "find_spec", lambda name: True)
    (gpu,) = cuda.devices()
    assert gpu.pci == "0000:3b:00.0"
    found = probe_gpu.measure(gpu, host(), seconds=0.0, buffer_bytes=BUFFER, pin_bytes=2 * BUFFER)
    assert [finding.code for finding in found.findings] == []
    assert not any("corrupt" in link.flags for link in found.links)
    assert (found.pinning.pinned_bytes, found.pinning.largest_bytes) == (2 * BUFFER, 2 * MiB)
    assert cpu_as_cuda.registered == set()


def test_a_refused_page_lock_leaves_no_error_behind(cpu_as_cuda: Runtime) -> None:
    gpu = cuda.TorchGpu(0)
    with pytest.raises(cuda.PinError, match="cudaHostRegister: out of memory"):
        gpu.pin(4096, 4 * MiB)
    assert cpu_as_cuda.last_error == 0


def test_memory_that_is_not_registered_leaves_no_error_behind_either(cpu_as_cuda: Runtime) -> None:
    gpu = cuda.TorchGpu(0)
    gpu.unpin(4096)
    assert cpu_as_cuda.last_error == 0


def test_the_driver_tells_the_address_where_torch_does_not(cpu_as_cuda: Runtime) -> None:
    cpu_as_cuda.library = Library("cuDeviceGet", "cuDeviceGetPCIBusId")
    assert cuda.TorchGpu(0).pci == "0001:1a:00.0"
    cpu_as_cuda.library = Library("cuDeviceGet", "cuDeviceGetPCIBusId", status=101)
    assert cuda.TorchGpu(0).pci == "0000:3b:00.0"


def test_a_cuda_failure_is_one_clear_line(cpu_as_cuda: Runtime) -> None:
    gpu = cuda.TorchGpu(0)
    cpu_as_cuda.last_error = 700

    def fails(*_: Any, **__: Any) -> None:
        raise RuntimeError("CUDA error: an illegal memory access was encountered\nFor debugging …")

    piece = mechanisms.Plain(SimpleNamespace(copy_=fails), None)
    with pytest.raises(
        KvplanError, match=r"^gpu0: could not copy: CUDA error: an illegal memory access was encountered$"
    ):
        gpu.submit(gpu.stream(), [piece])


class Library:
    """The CUDA driver's library as far as it is called; `names` are the functions it has. Copies really copy."""

    def __init__(self, *names: str, status: int = 0, moved: int = 0) -> None:
        self.calls: list[str] = []
        for name in names:
            setattr(self, name, partial(getattr(self, f"_{name.removesuffix('_v2')}"), name))
        self.status, self.moved = status, moved

    def _cuMemcpyBatchAsync(
        self, name: str, targets: Any, sources: Any, sizes: Any, count: int, attributes: Any, first: Any, *rest: Any
    ) -> int:
        self.calls.append(name)
        assert (len(sizes), attributes._obj.order, first._obj.value, rest[0], rest[-1]) == (count, 1, 0, 1, 7)
        assert ctypes.sizeof(attributes._obj) == 24  # enum, two locations of an enum and an int, flags
        assert len(rest) == (2 if name.endswith("_v2") else 3)  # the older signature also tells which copy failed
        for target, source, size in zip(targets, sources, sizes, strict=True):
            ctypes.memmove(target, source, size)
        return self.status

    def _cuMemcpyHtoDAsync(self, name: str, target: int, source: int, size: int, stream: int) -> int:
        self.calls.append(name)
        assert stream == 7
        ctypes.memmove(target, source, size)
        return self.status

    _cuMemcpyDtoHAsync = _cuMemcpyHtoDAsync

    def _cuMemHostGetDevicePointer(self, name: str, found: Any, host: int, flags: int) -> int:
        self.calls.append(name)
        found._obj.value = host + self.moved
        return self.status

    def _cuDeviceGet(self, name: str, handle: Any, ordinal: int) -> int:
        handle._obj.value = ordinal + 40
        return self.status

    def _cuDeviceGetPCIBusId(self, name: str, text: Any, size: int, handle: int) -> int:
        assert (len(text), handle) == (size, 40)
        text.value = b"0001:1A:00.0"
        return self.status

    def _cuGetErrorName(self, name: str, status: int, text: Any) -> int:
        text._obj.value = {801: b"CUDA_ERROR_NOT_SUPPORTED"}.get(status)
        return 0 if status == 801 else 1


STREAM = SimpleNamespace(cuda_stream=7, synchronize=lambda: None)
SINGLES = ("cuMemcpyHtoDAsync_v2", "cuMemcpyDtoHAsync_v2")


@pytest.mark.parametrize("names", [("cuMemcpyBatchAsync",), ("cuMemcpyBatchAsync", "cuMemcpyBatchAsync_v2")])
def test_a_batch_is_one_call_of_the_newest_signature(names: tuple[str, ...]) -> None:
    torch = pytest.importorskip("torch")
    library = Library(*names)
    driver = mechanisms.Driver(library)
    assert driver.batches
    buffer, memory = torch.arange(200, dtype=torch.uint8), torch.zeros(200, dtype=torch.uint8)
    pairs = mechanisms.shuffled(mechanisms.pairs_of("h2d", buffer, memory, 16))
    mechanisms.Batch(driver, pairs).submit(7)
    assert torch.equal(memory, buffer)
    assert library.calls == [names[-1]]
    refusing = mechanisms.Driver(Library(*names, "cuGetErrorName", status=801))
    with pytest.raises(KvplanError, match="cuMemcpyBatchAsync: CUDA_ERROR_NOT_SUPPORTED"):
        mechanisms.Batch(refusing, pairs).submit(7)
    with pytest.raises(KvplanError, match="cuMemcpyBatchAsync: CUDA error 1"):
        mechanisms.Batch(mechanisms.Driver(Library(*names, status=1)), pairs).submit(7)
    assert not mechanisms.Driver(Library()).batches


@pytest.mark.parametrize("direction", ["h2d", "d2h"])
def test_a_loop_is_one_call_of_the_driver_a_piece(direction: mechanisms.Direction, cpu_as_cuda: Runtime) -> None:
    library = Library(*SINGLES)
    cpu_as_cuda.library = library
    gpu = cuda.TorchGpu(0)
    assert gpu.mechanisms == ("loop", "gather")
    buffer, memory = np.zeros(1000, dtype=np.uint8), gpu.allocate(1000)
    (buffer if direction == "h2d" else memory)[:] = 7
    gpu.submit(STREAM, gpu.prepare(direction, buffer, memory, 64))
    assert (buffer == 7).all()
    assert bool((memory == 7).all())
    assert library.calls == [SINGLES[direction == "d2h"]] * 16
    library.status = 700
    with pytest.raises(KvplanError, match=r"^gpu0: could not copy: cuMemcpyAsync: CUDA error 700$"):
        gpu.submit(STREAM, gpu.prepare(direction, buffer, memory, 64))


@pytest.mark.parametrize("direction", ["h2d", "d2h"])
def test_a_gather_moves_every_row_and_the_rest(
    direction: mechanisms.Direction, cpu_as_cuda: Runtime, monkeypatch: pytest.MonkeyPatch
) -> None:
    cpu_as_cuda.library = Library(*SINGLES)
    monkeypatch.setattr(mechanisms, "mapped", lambda torch, driver, host, device: torch.from_numpy(host))
    gpu = cuda.TorchGpu(0)
    buffer, memory = np.zeros(1000, dtype=np.uint8), gpu.allocate(1000)
    (buffer if direction == "h2d" else memory)[:] = 7
    before = cpu_as_cuda.settled
    pieces = gpu.prepare(direction, buffer, memory, 48, "gather")
    assert cpu_as_cuda.settled == before + 1  # its index is made on one stream and read on another
    gpu.submit(STREAM, pieces)
    assert (buffer == 7).all()
    assert bool((memory == 7).all())


@pytest.mark.parametrize(
    ("names", "status", "moved", "why"),
    [
        ((), 0, 0, "cuMemHostGetDevicePointer: not in this driver"),
        (("cuMemHostGetDevicePointer_v2",), 801, 0, "cuMemHostGetDevicePointer: CUDA error 801"),
        (("cuMemHostGetDevicePointer_v2",), 0, 0, "for cpu's own and copies it"),
    ],
)
def test_host_memory_that_kernels_do_not_reach_is_no_gather(
    names: tuple[str, ...], status: int, moved: int, why: str, cpu_as_cuda: Runtime
) -> None:
    """The last: torch hands back memory of its own, so that a kernel would never cross the link."""
    torch = pytest.importorskip("torch")
    cpu_as_cuda.library = Library(*SINGLES, *names, status=status, moved=moved)
    torch.as_tensor = lambda memory, device: torch.zeros(memory.__cuda_array_interface__["shape"][0], dtype=torch.uint8)
    gpu = cuda.TorchGpu(0)
    buffer = np.zeros(1000, dtype=np.uint8)
    with pytest.raises(KvplanError, match=f"gpu0: could not map host memory: .*{why}"):
        gpu.prepare("h2d", buffer, gpu.allocate(1000), 48, "gather")


def test_a_kernel_uses_the_address_that_the_device_has(cpu_as_cuda: Runtime) -> None:
    library = Library("cuMemHostGetDevicePointer_v2", moved=1 << 40)
    assert mechanisms.Driver(library).device_pointer(4096) == 4096 + (1 << 40)


# ---- what a driver refuses


@pytest.mark.parametrize("refused", [("batch",), ("gather",), ("batch", "gather")])
def test_a_refused_mechanism_is_not_measured_and_the_rest_is(refused: tuple[str, ...]) -> None:
    found = measure(FakeGpu(refuses=refused), granules=(81_920,))
    assert {link.preset for link in found.links} == {None, "batch", "gather"} - set(refused)
    told = [finding.text for finding in found.findings if finding.code == "gpu-part-not-measured"]
    assert told == [
        f"gpu0: copies by {name}: not measured: gpu0: could not copy: CUDA_ERROR_NOT_SUPPORTED" for name in refused
    ]
    assert [finding for finding in found.findings if finding.severity == "error"] == []


def test_a_gpu_that_dies_keeps_what_was_measured_and_gives_the_memory_back() -> None:
    gpu = FakeGpu(dies_after=200 * MiB)
    found = measure(gpu, extras=gpu_extras.Extras(contention_s=0.01))
    assert 0 < len(found.links) < 20
    told = {finding.text.partition(": not measured: ")[0]: finding.text for finding in found.findings}
    assert "gpu0: copies beside decoding" in told or any("beside decoding" in what for what in told)
    assert any("cells from h2d" in what or "cells from d2h" in what for what in told)
    assert gpu.pinned == {}


def test_a_load_that_cannot_be_made_leaves_the_copies() -> None:
    found = measure(FakeGpu(refuses=("decode",)), extras=gpu_extras.Extras(contention_s=0.01))
    assert found.links
    assert found.contention == ()
    told = [finding.text for finding in found.findings if finding.code == "gpu-part-not-measured"]
    assert told == [
        "gpu0: copies beside decoding: not measured: gpu0: could not prepare a decoding load: CUDA out of memory"
    ]


def test_one_gpu_that_fails_leaves_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    cards = tuple(device(index=index, pci=f"0000:{index + 1:02x}:00.0") for index in range(2))
    monkeypatch.setattr(probe_host, "inventory", lambda: host(gpus=cards))
    gpus = (FakeGpu(index=0, pci=cards[0].pci, dies_after=0), FakeGpu(index=1, pci=cards[1].pci))
    monkeypatch.setattr(cuda, "devices", lambda: gpus)
    small = partial(probe_gpu.measure, buffer_bytes=BUFFER, pin_bytes=2 * BUFFER)
    monkeypatch.setattr(probe_gpu, "measure", lambda gpu, on, **more: small(gpu, on, **{**more, "seconds": 0.0}))
    found = probe.measure(ProbeOptions(only=("gpu",), budget_s=1.0))
    assert {link.source for link in found.links} == {"host", "gpu1"}
    told = [finding.text for finding in found.findings if finding.code == "gpu-not-measured"]
    assert told == ["not measured: gpu0: could not copy: CUDA error: unspecified launch failure"]
    gpus[1].dies_after = 0
    with pytest.raises(KvplanError, match="gpu0: could not copy"):
        probe.measure(ProbeOptions(only=("gpu",), budget_s=1.0))
    assert "gpu-not-measured" in [finding.code for finding in probe.measure(ProbeOptions(budget_s=1.0)).findings]


def test_a_sweep_takes_half_of_its_time_more_at_most(monkeypatch: pytest.MonkeyPatch) -> None:
    """By a clock that every cell moves by six seconds: of 16 cells in 20 s, those that begin within 30 s."""
    now = [0.0]
    monkeypatch.setattr(gpu_run.time, "monotonic", lambda: now[0])
    seen = gpu_copies.Seen(rates=[1e9], latencies=[1e-3])

    def cell(self: gpu_run.Run, cell: Any, seconds: float) -> gpu_copies.Seen:
        now[0] += 6.0
        return seen

    monkeypatch.setattr(gpu_run.Run, "_cell", cell)
    found = measure(FakeGpu(), seconds=20.0)
    assert len(found.links) == 6
    (told,) = [finding.text for finding in found.findings if finding.code == "gpu-part-not-measured"]
    assert told.startswith("gpu0: 10 cells from ")


def test_a_sweep_without_time_names_what_it_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_run, "_GRACE_S", -1e9)
    found = measure(FakeGpu())
    (told,) = [finding.text for finding in found.findings if finding.code == "gpu-part-not-measured"]
    assert found.links == ()
    assert told.startswith("gpu0: 16 cells from h2d 4.00 MiB on: not measured: no time left")


@pytest.mark.parametrize(
    ("seconds", "size"), [(None, 256 * MiB), (0.0, 256 * MiB), (100.0, 256 * MiB), (14.5, 64 * MiB), (1.0, 32 * MiB)]
)
def test_less_time_takes_a_smaller_buffer(seconds: float | None, size: int) -> None:
    """Of 66 cells in 14.5 s each has 0.22 s: filling and comparing 64 MiB some times fits into that."""
    assert probe_gpu._in_time(256 * MiB, (32 * KiB, 128 * KiB, 2 * MiB), (), FakeGpu(), seconds) == size


def test_cells_that_take_too_long_make_later_ones_copy_less(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (("_SLOW", 0.0), ("_PACE_S", 0.0), ("_LEAST_TRAIN", MiB)):
        monkeypatch.setattr(gpu_run, name, value)
    found = measure(FakeGpu())
    copies = {(link.direction, link.granule_bytes, link.concurrent): link.samples for link in found.links}
    assert copies["h2d", 64 * KiB, "none"] < 5 * 4 * MiB // (64 * KiB)  # five trains of the whole buffer would be more
    assert copies["h2d", 4 * MiB, "opposite direction"] >= 5  # a piece is never cut
    assert not any("corrupt" in link.flags for link in found.links)


def test_a_slow_gpu_gets_a_smaller_load() -> None:
    gpu = TimedGpu(memory_bytes=64 * GiB, step_s=0.02)
    assert gpu_extras._load(gpu, 1000.0).step_bytes == 8 * GiB
    assert gpu_extras._load(gpu, 5.0).step_bytes == 4 * GiB
    assert gpu_extras._load(gpu, 0.0).step_bytes == 1 * GiB


# ---- copies beside decoding


def contended(gpu: TimedGpu, **more: Any) -> Any:
    load = gpu.decode_load(8 * MiB)
    fields: dict[str, Any] = {"mechanism": "loop", "seconds": 0.0, "steps": 400}
    return contention.measure(gpu, 0, copies_of(gpu, "h2d", MiB, 64 * KiB), load, **{**fields, **more})


def test_copies_and_decoding_that_share_nothing() -> None:
    found = contended(TimedGpu(copy_rate=1e9, step_s=1e-3))
    assert found.step_alone_p50_s == found.step_alone_p99_s == pytest.approx(1e-3)
    assert found.step_loaded_p99_s == pytest.approx(1e-3)
    assert found.copy_alone_bytes_per_s == pytest.approx(1e9)
    assert found.copy_loaded_bytes_per_s == pytest.approx(1e9)
    assert (found.flags, found.direction, found.granule_bytes) == ((), "h2d", 64 * KiB)
    assert found.steps >= 200
    assert found.load.startswith("nothing, 8 GB/s")


def test_copies_and_decoding_that_slow_each_other() -> None:
    found = contended(TimedGpu(copy_rate=1e9, step_s=1e-3, slowed=1.5))
    assert found.step_alone_p99_s == pytest.approx(1e-3)
    assert found.step_loaded_p50_s == pytest.approx(1.5e-3)
    assert found.copy_alone_bytes_per_s == pytest.approx(1e9)
    assert found.copy_loaded_bytes_per_s == pytest.approx(1e9 / 1.5, rel=0.1)


def test_copies_beside_decoding_are_verified_too() -> None:
    gpu = TimedGpu(copy_rate=1e9, lose_after=10 * MiB)
    assert contended(gpu).flags == ()  # lost in a train before the last: overwritten by it
    gpu.lose_after = None
    gpu._move = lambda stream, piece: gpu._advance(stream, 1e-4, True)  # type: ignore[method-assign]
    assert "corrupt" in contended(gpu).flags


# ---- a pipeline over a real file


class WatchingGpu(FakeGpu):
    """Sees whether the drive is at work while it copies."""

    drive_at_work = False
    met = 0

    def _move(self, stream: Any, piece: Any) -> None:
        super()._move(stream, piece)
        time.sleep(2e-3)
        self.met += self.drive_at_work


@pytest.fixture
def ends(tmp_path: Path) -> Iterator[pipeline.Ends]:
    gpu, blocks, size = WatchingGpu(), 16, 64 * KiB
    area = np.frombuffer(mmap.mmap(-1, 4 * size), dtype=np.uint8)
    descriptor = os.open(tmp_path / "file", os.O_RDWR | os.O_CREAT)
    yield pipeline.Ends(
        gpu=gpu,
        index=0,
        memory=gpu.allocate(blocks * size),
        stream="stream",
        slots=tuple(area[at : at + size] for at in range(0, 4 * size, size)),
        descriptor=descriptor,
        disk="disk",
        blocks=blocks,
    )
    os.close(descriptor)


@pytest.mark.parametrize("way", ["load", "store"])
def test_a_pipeline_moves_every_block(ends: pipeline.Ends, way: pipeline.Way) -> None:
    pipeline.fill_file(ends)
    found = pipeline.measure(ends, way, 4)
    assert (found.flags, found.blocks, found.block_bytes, found.slots) == ((), 16, 64 * KiB, 4)
    slower = min(found.copy_bytes_per_s, found.disk_bytes_per_s)
    assert found.overlap_ratio == pytest.approx(found.overlapped_bytes_per_s / slower)
    assert (found.disk, found.direction, found.gpu) == ("disk", way, 0)


@pytest.mark.parametrize("way", ["load", "store"])
def test_one_slot_takes_turns_and_several_overlap(
    ends: pipeline.Ends, way: pipeline.Way, monkeypatch: pytest.MonkeyPatch
) -> None:
    gpu, real = cast(WatchingGpu, ends.gpu), pipeline._disk_call

    def watched(of: pipeline.Ends, to: pipeline.Way) -> Any:
        call = real(of, to)

        def inside(block: int, slot: Any) -> None:
            gpu.drive_at_work = True
            time.sleep(4e-3)
            call(block, slot)
            gpu.drive_at_work = False

        return inside

    monkeypatch.setattr(pipeline, "_disk_call", watched)
    pipeline.fill_file(ends)
    pipeline._run(ends, way, 1)
    assert gpu.met == 0
    pipeline._run(ends, way, 4)
    assert gpu.met > 0


@pytest.mark.parametrize("way", ["load", "store"])
def test_a_pipeline_that_loses_a_block_is_flagged(ends: pipeline.Ends, way: pipeline.Way) -> None:
    pipeline.fill_file(ends)
    ends.gpu.lose_after = 16 * 64 * KiB * 2 + 70_000  # type: ignore[attr-defined]
    assert pipeline.measure(ends, way, 2).flags == ("corrupt",)


def test_a_drive_that_fails_ends_the_pipeline(ends: pipeline.Ends) -> None:
    with pytest.raises(OSError, match="only 0 of 65536 bytes moved"):
        pipeline._run(ends, "load", 2)  # the file is empty
    assert threading.active_count() == 1


# ---- all GPUs at once


def test_all_gpus_at_once_by_the_root_they_hang_from(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    addresses = [f"0000:0{n}:00.0" for n in (1, 2, 3)]
    links = tmp_path / "sys/bus/pci/devices"
    links.mkdir(parents=True)
    for address, root in zip(addresses, ("pci0000:00", "pci0000:00", "pci0000:80"), strict=True):
        place = tmp_path / "sys/devices" / root / address
        place.mkdir(parents=True)
        (links / address).symlink_to(place)
    assert together.root_of(addresses[2], str(tmp_path)) == "pci0000:80"
    assert together.root_of("0000:ff:00.0", str(tmp_path)) is None
    monkeypatch.setattr(together, "root_of", partial(together.root_of, root=str(tmp_path)))
    cards = tuple(device(index=n, pci=address) for n, address in enumerate(addresses))
    gpus = [TimedGpu(index=n, pci=address, copy_rate=(n + 1) * 1e9) for n, address in enumerate(addresses)]
    gpus[1].lose_after = 10**12
    found, findings = probe_gpu.measure_together(gpus, host(gpus=cards), seconds=0.0, buffer_bytes=MiB)
    assert {link.concurrent for link in found} == {"all GPUs"}
    rates = {(link.direction, link.source, link.target): link.p50_bytes_per_s for link in found}
    assert rates["h2d", "host", "gpu2"] == pytest.approx(3e9)
    assert rates["d2h", "gpu0", "host"] == pytest.approx(1e9)
    told = [finding.text for finding in findings]
    assert "gpu0, gpu1 (pci0000:00) carry 3.00 GB/s h2d together while all GPUs copy" in told
    assert "gpu2 (pci0000:80) carry 3.00 GB/s h2d together while all GPUs copy" in told
    assert all(gpu.pinned == {} for gpu in gpus)
    assert not any(link.flags for link in found)


def test_memory_of_another_node_is_measured_beside(monkeypatch: pytest.MonkeyPatch) -> None:
    cpus = sorted(os.sched_getaffinity(0))
    nodes = tuple(NumaNode(node=n, total_bytes=GiB, free_bytes=GiB, cpus=str(cpus[n % len(cpus)])) for n in range(2))
    found = measure(FakeGpu(pci="0000:01:00.0"), host=host(gpus=(device(pci="0000:01:00.0", numa_node=0),), numa=nodes))
    remote = [link for link in found.links if "remote-node" in link.flags]
    assert {(link.direction, link.granule_bytes) for link in remote} == {("h2d", BUFFER), ("d2h", BUFFER)}
    assert all("node 1" in link.method for link in remote)
    assert all("node 0" in link.method for link in found.links if not link.flags)
    assert os.sched_getaffinity(0) == set(cpus)


# ---- all of it through the probe


def probed(gpu: FakeGpu, monkeypatch: pytest.MonkeyPatch, **more: Any) -> Any:
    card = device(pci="0000:01:00.0")
    gpu.pci = card.pci
    monkeypatch.setattr(probe_host, "inventory", lambda: host(gpus=(card,)))
    monkeypatch.setattr(cuda, "devices", lambda: (gpu,))
    small = partial(probe_gpu.measure, buffer_bytes=32 * MiB, pin_bytes=64 * MiB)
    monkeypatch.setattr(probe_gpu, "measure", lambda gpu, on, **more: small(gpu, on, **more))
    monkeypatch.setattr(contention, "STEPS", 300)
    fields: dict[str, Any] = {"budget_s": 0.1, "write_budget_bytes": 4 * GiB}
    return probe.measure(ProbeOptions(**{**fields, **more}))


def test_the_probe_measures_beside_decoding_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    gpu = TimedGpu(copy_rate=1e10, step_s=1e-4)
    found = probed(gpu, monkeypatch, only=("contention",), granule_bytes=(40_960,))
    assert found.links == ()
    shapes = {(one.mechanism, one.granule_bytes, one.direction) for one in found.contention}
    assert shapes == {
        (mechanism, size, way)
        for mechanism, size in (("loop", MiB), ("loop", 40_960), ("batch", 40_960), ("gather", 40_960))
        for way in ("h2d", "d2h")
    }
    assert gpu.pinned == {}


def test_the_probe_goes_through_to_a_drive(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    gpu = FakeGpu()
    options = {"only": ("pipeline",), "disks": (str(tmp_path),)}
    found = probed(gpu, monkeypatch, **options)
    assert {(one.direction, one.slots) for one in found.pipeline} == {
        (w, n) for w in ("load", "store") for n in (2, 4, 8)
    }
    assert all(set(one.flags) <= {"page-cache"} for one in found.pipeline)
    assert all(one.disk == f"disk:{tmp_path}" for one in found.pipeline)
    told = probe.announce(ProbeOptions(**options, write_budget_bytes=4 * GiB))
    assert "writes 1,024.00 MiB for each of them" in told[0]
    assert found.written_bytes == 10 * 32 * MiB  # less than announced: no more than the buffer
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(UsageError, match="--only pipeline needs a folder"):
        probe.plan_of(ProbeOptions(only=("pipeline",)))
    with pytest.raises(KvplanError, match=r"a write budget of 1\.00 MiB is too little for a pipeline"):
        probed(gpu, monkeypatch, **options, write_budget_bytes=MiB)
    with pytest.raises(KvplanError, match="cannot open the folder"):
        probed(gpu, monkeypatch, only=("pipeline",), disks=(str(tmp_path / "absent"),))
    found = probed(gpu, monkeypatch, only=("contention", "pipeline"), disks=(str(tmp_path),), write_budget_bytes=GiB)
    assert found.pipeline


@pytest.mark.gpu
def test_a_real_gpu() -> None:
    torch = pytest.importorskip("torch")
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device: the real copies were not tried")
    found = probe.measure(ProbeOptions(only=("gpu",), budget_s=20.0))
    assert not [finding for finding in found.findings if finding.severity == "error"]
    pinned = [link for link in found.links if not link.flags and link.concurrent == "none"]
    assert {link.direction for link in pinned} == {"h2d", "d2h"}
