"""What a probe with an estimate measures is what a plan of it looks for, whatever the engine and its layer."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from functools import partial
from typing import Any

import pytest
import samples
from fake_gpu import TimedGpu
from hypothesis import given, settings
from hypothesis import strategies as st
from records import replace
from test_probe_gpu import copies_of, device, host

from kvplan import probe, probe_gpu, probe_host
from kvplan.catalog import gpu
from kvplan.documents import Estimate, EstimateOptions, KvMove, KvPieces, Link, Parallel, Plan, Policy, ProbeOptions
from kvplan.engines.profiles import layers_of, profile
from kvplan.errors import KvplanError
from kvplan.estimate import estimate
from kvplan.model import load_model
from kvplan.plan import make
from kvplan.planning.links import shape
from kvplan.probe import kv_block, kv_moves
from kvplan.probing import cuda, gpu_cells, gpu_copies, gpu_extras, gpu_run, nvml
from kvplan.units import KiB, MiB

BUFFER = 1 * MiB
OPPOSITE = gpu_cells.OPPOSITE
PAIRS = layers_of("none")
# Grouped heads, latents, latents with an indexer, windows beside full layers, states beside full layers, a small model.
MODELS = ("llama-3.1-70b", "deepseek-v3", "deepseek-v3.2", "gemma-3-27b", "qwen3-next-80b-a3b", "qwen3-0.6b")
LENGTHS = (32, 300, 6000, 90_000)


def made(model: str, engine: str, tp: int = 1) -> Estimate:
    return estimate(load_model(model), EstimateOptions(engine=engine, parallel=Parallel(tp=tp)))


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    """Trains of few pieces over a small buffer: what is measured, not how well."""
    for name, value in (("_MOST_PIECES", 32), ("_FEWEST_TRAINS", 1), ("_FEWEST_SINGLES", 1), ("_AGREEING", 1)):
        monkeypatch.setattr(gpu_copies, name, value)
    for name in ("_GRACE_S", "_LEAST_GRACE_S"):  # a busy machine is no matter here
        monkeypatch.setattr(gpu_run, name, 1e6)


def swept(of: Estimate, card: TimedGpu | None = None, **more: Any) -> probe_gpu.GpuResult:
    sizes = {"buffer_bytes": BUFFER, "pin_bytes": 2 * BUFFER}
    return probe_gpu.measure(card or TimedGpu(), host(), seconds=0.0, moves=kv_moves(of), **sizes, **more)


def planned(of: Estimate, links: tuple[Link, ...], offload: str, engine: str, length: int) -> Plan:
    log = samples.workload()
    workload = replace(log, data=replace(log.data, input_tokens=length * log.data.requests))
    policy = Policy(engine=engine, offload=offload)  # type: ignore[arg-type]
    found = samples.envelope("probe", replace(samples.probe().data, links=links))
    return make(samples.envelope("estimate", of), workload, found, gpu("h100-80gb"), policy)


# ---- a plan finds every piece it looks for


@pytest.mark.usefixtures("short")
@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("asked", ["vllm", "sglang", "tensorrt-llm", "llama.cpp", "none"])
def test_a_plan_misses_no_piece_that_its_estimate_named(model: str, asked: str) -> None:
    try:
        of = made(model, asked, 2 if model == "llama-3.1-70b" and asked != "llama.cpp" else 1)
    except KvplanError as error:
        pytest.skip(f"no estimate to probe with: {error}")
    found = swept(of)
    assert not [finding for finding in found.findings if finding.severity != "info"]
    for engine, offload in layers_of(of.engine):
        for length in LENGTHS if engine == "llama.cpp" else LENGTHS[-1:]:
            try:
                plan = planned(of, found.links, offload, engine, length)
            except KvplanError as error:
                if "no whole number of the engine's blocks" not in str(error):
                    raise
                continue
            told = [f"{one.code}: {one.text}" for one in plan.findings if one.code.startswith("link-")]
            assert told == [], (engine, offload, length)


def test_the_models_above_can_be_estimated_for_most_engines() -> None:
    """So that the skips above cannot swallow the test."""
    able = Counter[str]()
    for model in MODELS:
        for engine in ("vllm", "sglang", "tensorrt-llm", "llama.cpp", "none"):
            try:
                able[made(model, engine).engine] += 1
            except KvplanError:
                continue
    assert set(able) == {"vllm", "sglang", "tensorrt-llm", "llama.cpp", "none"}
    assert min(able.values()) >= 3


@pytest.mark.parametrize(("engine", "offload"), PAIRS)
@given(model=st.sampled_from(MODELS), tp=st.sampled_from([1, 2, 4]), length=st.integers(32, 200_000))
@settings(max_examples=15, deadline=None)
def test_what_is_named_is_what_a_plan_looks_for(engine: str, offload: str, model: str, tp: int, length: int) -> None:
    """Against the plan's own reckoning: its very piece and mechanism, or of sequences one half to twice as long."""
    try:
        of = made(model, engine, tp)
    except KvplanError:
        return
    rules, moves = profile(engine, offload), kv_moves(of)
    per_token = kv_block(of).block_bytes // max(1, of.block_tokens)
    load, store = (shape(move, of, per_token, rules, length) for move in (rules.load, rules.store))
    mine = [move for move in moves if offload == "native" or f"{engine} with {offload}" in move.source]
    for looked, sides in ((load, [move.load for move in mine]), (store, [move.store for move in mine])):
        sizes = [one.piece_bytes for one in sides if one.mechanism == looked.mechanism]
        if rules.load.span == "sequence":
            assert min(max(size, looked.piece) / min(size, looked.piece) for size in sizes) <= 2 or looked.piece > MiB
        else:
            assert looked.piece in sizes


def test_without_an_engine_every_engine_is_named_and_without_rules_none() -> None:
    moves = kv_moves(made("llama-3.1-8b", "none"))
    names = {name for move in moves for name in move.source.split(", ")}
    assert names == {engine if layer == "native" else f"{engine} with {layer}" for engine, layer in PAIRS}
    assert {move.pageable for move in moves if move.source == "llama.cpp"} == {True}
    assert kv_moves(replace(made("llama-3.1-8b", "none"), engine="transformers")) == ()


# ---- the cells


def move(load: tuple[int, str], store: tuple[int, str], **more: Any) -> KvMove:
    sides = [KvPieces(piece_bytes=size, mechanism=name) for size, name in (load, store)]  # type: ignore[arg-type]
    return KvMove(load=sides[0], store=sides[1], source="an engine", **more)


def beyond(*moves: KvMove, mechanisms: Any = ("loop", "batch", "gather"), buffer: int = MiB) -> list[gpu_cells.Cell]:
    plain = set(gpu_cells.cells((), buffer))
    return [cell for cell in gpu_cells.cells((), buffer, mechanisms, moves) if cell not in plain]


def test_each_way_has_its_piece_alone_and_beside_the_other_ways_piece() -> None:
    found = beyond(move((1003, "gather"), (40 * KiB, "batch")))
    told = [(cell.direction, cell.granule, cell.mechanism, cell.duplex) for cell in found]
    assert told == [
        ("h2d", 1008, "loop", False),
        ("d2h", 40 * KiB, "loop", False),
        ("h2d", 1008, "gather", False),
        ("d2h", 40 * KiB, "batch", False),
        ("h2d", 1008, "gather", True),
        ("d2h", 40 * KiB, "batch", True),
    ]
    assert [cell.beside for cell in found[-2:]] == [
        KvPieces(piece_bytes=40 * KiB, mechanism="batch"),
        KvPieces(piece_bytes=1008, mechanism="gather"),
    ]


def test_pieces_longer_than_the_buffer_fill_it_and_none_is_measured_twice() -> None:
    one = move((4 * MiB, "batch"), (4 * MiB, "loop"))
    told = [(cell.direction, cell.granule, cell.mechanism, cell.duplex) for cell in beyond(one, one)]
    assert told == [("h2d", MiB, "batch", False), ("h2d", MiB, "batch", True)]  # loops of a whole buffer are there


def test_where_the_host_has_no_batched_copy_its_pieces_go_one_by_one() -> None:
    found = beyond(move((1008, "gather"), (40 * KiB, "batch")), mechanisms=("loop", "gather"))
    stores = [(cell.mechanism, cell.duplex) for cell in found if cell.direction == "d2h"]
    assert stores == [("loop", False), ("loop", True)]
    (loads,) = [cell for cell in found if cell.direction == "h2d" and cell.duplex]
    assert loads.beside == KvPieces(piece_bytes=40 * KiB, mechanism="loop")


def test_pageable_pieces_are_pageable_alone() -> None:
    found = beyond(move((64 * KiB, "loop"), (64 * KiB, "loop"), pageable=True))
    assert [(cell.direction, cell.pinned, cell.duplex) for cell in found] == [
        (way, False, False) for way in ("h2d", "d2h")
    ]


@pytest.mark.usefixtures("short")
def test_the_method_says_what_ran_beside() -> None:
    found = swept(made("llama-3.1-8b", "sglang"))
    (link,) = [one for one in found.links if one.preset == "gather" and one.concurrent == OPPOSITE]
    assert (link.direction, link.granule_bytes) == ("h2d", 2 * KiB)
    assert link.method.startswith("gather kernel")
    assert "beside 65,536 B a piece by cuMemcpyBatchAsync" in link.method


@pytest.mark.usefixtures("short")
@pytest.mark.parametrize("refused", [("batch",), ("gather",), ("batch", "gather")])
def test_what_a_driver_refuses_leaves_the_other_cells(refused: tuple[str, ...]) -> None:
    """The opposite direction then goes one by one, and the piece has its plain cell."""
    found = swept(made("llama-3.1-8b", "sglang"), TimedGpu(refuses=refused))
    assert {one.preset for one in found.links} == {None, "batch", "gather"} - set(refused)
    assert len([one for one in found.findings if one.code == "gpu-part-not-measured"]) == len(refused)
    plain = {(one.direction, one.granule_bytes) for one in found.links if one.preset is None}
    assert {("h2d", 2 * KiB), ("d2h", 64 * KiB)} <= plain
    beside = [one.method for one in found.links if one.preset and one.concurrent == OPPOSITE]
    assert all("beside" in method for method in beside)
    assert not any(name in method for method in beside for name in ("cuMemcpyBatchAsync",) if "batch" in refused)


# ---- the opposite direction is at work throughout


@dataclass
class Lopsided(TimedGpu):
    """Copies to the host are so many times as quick as those from it."""

    quicker: float = 1.0

    def _move(self, stream: str, piece: Any) -> None:
        rate, self.copy_rate = self.copy_rate, self.copy_rate * (self.quicker if piece[0] == "d2h" else 1.0)
        super()._move(stream, piece)
        self.copy_rate = rate

    def seconds(self, start: float, end: float) -> float:
        """Waits for the later mark, as the real one does."""
        self.waited = max(self.waited, end)
        return super().seconds(start, end)


def beside(gpu: TimedGpu, direction: Any, mine: KvPieces, theirs: KvPieces, size: int = MiB) -> gpu_copies.Copies:
    one = copies_of(gpu, direction, size, mine.piece_bytes)
    other = copies_of(gpu, "d2h" if direction == "h2d" else "h2d", size, theirs.piece_bytes)
    lanes = [replace_lane(copies.lane, name) for copies, name in ((one, "mine"), (other, "theirs"))]
    random = one.random
    return gpu_copies.Copies(
        gpu, lanes[0], mine.piece_bytes, lanes[1], cuda.base_words(size), random, mine.mechanism, None, theirs
    )


def replace_lane(lane: gpu_copies.Lane, stream: str) -> gpu_copies.Lane:
    return gpu_copies.Lane(direction=lane.direction, host=lane.host, memory=lane.memory, stream=stream)


@pytest.mark.parametrize("quicker", [1.0, 6.0, 25.0])
@pytest.mark.parametrize("mechanism", ["loop", "batch"])
def test_a_quick_opposite_direction_gets_enough_to_do(quicker: float, mechanism: Any) -> None:
    pieces = KvPieces(piece_bytes=64 * KiB, mechanism=mechanism)
    copies = beside(Lopsided(quicker=quicker), "h2d", pieces, pieces)
    seen = copies.measure(0.0)
    assert seen.concurrent
    assert copies.repeats == {1.0: 2, 6.0: 8, 25.0: 32}[quicker]
    assert seen.wrong_words == 0


@dataclass
class Hurried(Lopsided):
    """Copies to the host become so many times as quick after the warm-up, in some trains: at these bytes of theirs."""

    after: int = 0

    def _move(self, stream: str, piece: Any) -> None:
        self.quicker = 8.0 if self.moved["d2h"] >= self.after else 1.0
        super()._move(stream, piece)


def test_a_train_that_ran_partly_alone_gives_no_rate(monkeypatch: pytest.MonkeyPatch) -> None:
    """Three trains to warm up and two more with twice the work beside; then eight times as much has to be found."""
    pieces = KvPieces(piece_bytes=64 * KiB, mechanism="loop")
    copies = beside(Hurried(after=5 * 2 * MiB, slowed=1.0), "h2d", pieces, pieces)
    trains: list[float] = []
    real = copies._train

    def train() -> tuple[float, float]:
        took, lasted = real()
        trains.append(lasted)
        return took, lasted

    monkeypatch.setattr(copies, "_train", train)
    seen = copies.measure(0.0)
    assert seen.concurrent
    assert sum(lasted < 1 for lasted in trains) == 2  # with 2 and 4 times the work; 8 times is enough
    assert len(seen.rates) == 5
    assert len(trains) == 3 + 5 + 2


def test_an_opposite_direction_that_cannot_last_is_told() -> None:
    pieces = KvPieces(piece_bytes=64 * KiB, mechanism="loop")
    copies = beside(Lopsided(quicker=1000.0), "h2d", pieces, pieces)
    assert not copies.measure(0.0).concurrent


def test_trains_of_unlike_length_are_weighed_by_their_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_copies, "_MOST_PIECES", 16)
    small, large = KvPieces(piece_bytes=KiB, mechanism="gather"), KvPieces(piece_bytes=64 * KiB, mechanism="loop")
    copies = beside(TimedGpu(), "d2h", large, small)
    assert (len(copies.lane.host), copies.repeats) == (8 * 16 * KiB, 16)  # never more than eight times as long
    copies = beside(TimedGpu(), "h2d", small, large)
    assert (len(copies.lane.host), copies.repeats) == (16 * KiB, 1)


# ---- beside decoding, and through the probe


def test_beside_decoding_are_the_engines_own_pieces() -> None:
    gpu = TimedGpu()
    lanes = {way: copies_of(gpu, way, 128 * KiB, KiB).lane for way in gpu_cells.BOTH_WAYS}
    rig = gpu_extras.Rig(
        gpu=gpu,
        index=0,
        lanes=lanes,
        base=cuda.base_words(KiB),
        random=None,
        mechanisms=("loop", "gather"),  # type: ignore[arg-type]
    )
    moves = [move((2 * KiB, "gather"), (64 * KiB, "batch")), move((KiB, "loop"), (MiB, "loop"), pageable=True)]
    assert gpu_extras._beside(rig, (), moves) == [
        ("loop", 128 * KiB, "h2d"),
        ("loop", 128 * KiB, "d2h"),
        ("gather", 2 * KiB, "h2d"),
        ("loop", 64 * KiB, "d2h"),
    ]


@pytest.mark.usefixtures("short")
def test_the_probe_measures_and_announces_the_estimates_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    card = device(pci="0000:01:00.0")
    monkeypatch.setattr(probe_host, "inventory", lambda: host(gpus=(card,)))
    monkeypatch.setattr(cuda, "devices", lambda: (TimedGpu(pci=card.pci),))
    monkeypatch.setattr(nvml, "link_state", lambda pci: nvml.LinkState(generation=5, width=16))
    small = partial(probe_gpu.measure, buffer_bytes=BUFFER, pin_bytes=2 * BUFFER)
    monkeypatch.setattr(probe_gpu, "measure", lambda gpu, on, **more: small(gpu, on, **{**more, "seconds": 0.0}))
    of = made("llama-3.1-8b", "vllm")
    options = ProbeOptions(only=("gpu",), kv=kv_block(of), moves=kv_moves(of))
    (told,) = probe.announce(options)
    assert "and the pieces of vllm, vllm with lmcache, vllm with lmcache-server; up to 60 s" in told
    found = probe.measure(options)
    cells = {(one.direction, one.granule_bytes, one.preset, one.concurrent) for one in found.links}
    for way, size, preset in (
        ("h2d", 64 * KiB, "batch"),
        ("d2h", 64 * KiB, "batch"),
        ("h2d", 2 * KiB, "gather"),
        ("d2h", MiB, None),  # a chunk of all layers, as much of it as the buffer holds
        ("h2d", 32 * KiB, "batch"),
        ("d2h", 32 * KiB, "batch"),
    ):
        assert {(way, size, preset, "none"), (way, size, preset, OPPOSITE)} <= cells
