"""What recomputing costs: cutting models, summing over layers, fitting, and a server's time to first token."""

from __future__ import annotations

import http.server
import json
import os
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvplan import probe, probe_host, probe_prefill
from kvplan.catalog import gpu as catalogued_gpu
from kvplan.documents import (
    Compute,
    Estimate,
    GpuDevice,
    Host,
    ModelConfig,
    ModelRef,
    Parallel,
    PrefillPoint,
    Probe,
    ProbeOptions,
)
from kvplan.errors import KvplanError, UsageError
from kvplan.model import load_config
from kvplan.planning.recompute import prefill_cost
from kvplan.probing import cutmodel, ttft
from kvplan.probing.cutmodel import MORE
from kvplan.probing.cutting import cut_config
from kvplan.probing.passes import OutOfMemory, TorchPasses
from kvplan.probing.prefill_fit import fit
from kvplan.units import GiB, MiB

torch = pytest.importorskip("torch")
torch.set_num_threads(1)  # several threads of a busy machine wait for each other
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")

SMALL = {
    "vocab_size": 64,
    "hidden_size": 32,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "intermediate_size": 48,
    "max_position_embeddings": 4096,
}
DENSE = {**SMALL, "model_type": "qwen3", "num_hidden_layers": 7}
GEMMA = {**SMALL, "model_type": "gemma3_text", "num_hidden_layers": 8, "sliding_window": 16}
MOE = {
    **SMALL,
    "model_type": "qwen3_moe",
    "num_hidden_layers": 6,
    "num_experts": 16,
    "num_experts_per_tok": 4,
    "moe_intermediate_size": 16,
    "decoder_sparse_step": 2,
    "mlp_only_layers": [3],
}
LATENT = {
    **{key: value for key, value in SMALL.items() if key != "head_dim"},
    "model_type": "deepseek_v3",
    "num_hidden_layers": 5,
    "num_key_value_heads": 4,
    "first_k_dense_replace": 2,
    "q_lora_rank": 16,
    "kv_lora_rank": 16,
    "qk_rope_head_dim": 4,
    "qk_nope_head_dim": 8,
    "v_head_dim": 8,
    "moe_intermediate_size": 16,
    "n_routed_experts": 8,
    "num_experts_per_tok": 2,
    "n_group": 2,
    "topk_group": 1,
}


def host(**more: Any) -> Host:
    fields: dict[str, Any] = {
        "system": "Linux",
        "kernel": "6.8",
        "cpu": "Example",
        "cores": 2,
        "memory_total_bytes": 64 * GiB,
        "memory_available_bytes": 60 * GiB,
        "usable_memory_bytes": 60 * GiB,
    }
    return Host(**{**fields, **more})


class Known:
    """A device on which every pass costs what a formula says, with a fixed cost of each kind of layer."""

    device, how, gpus, element_bytes = "Example", "by formula", None, 4

    def __init__(self, *, free: int = 60 * GiB, most_tokens: int = 10**9, cost: Any = None) -> None:
        self.free, self.most, self.built = free, most_tokens, []
        self.cost = cost or (lambda kind, n, p: 1e-6 * n * (3 if "sliding" in kind else 2))

    def typical(self, seconds: Any) -> float:
        return min(seconds)

    def free_bytes(self) -> int:
        return self.free

    def build(self, config: Any, like: Any = None) -> Any:
        self.built.append(config)
        return config

    def prefilled(self, model: Any, tokens: int) -> int:
        return tokens

    def seconds(self, model: Any, tokens: int, prefix: int | None) -> float:
        if tokens + (prefix or 0) > self.most:
            raise OutOfMemory("CUDA out of memory")
        kinds = getattr(model, "layer_types", None) or ["plain"] * model.num_hidden_layers
        return 1e-4 + sum(self.cost(kind, tokens, prefix or 0) for kind in kinds)


def run(raw: dict[str, Any], device: Any, **more: Any) -> probe_prefill.PrefillResult:
    fields: dict[str, Any] = {"seconds": 5.0, "tokens": (64, 128, 256), "rounds": 1}
    return probe_prefill.measure(raw, "example", device, **{**fields, **more})


def test_large_weights_are_drawn_in_part_and_are_of_the_same_kind() -> None:
    drawn = torch.Tensor.normal_
    with cutmodel._drawn_in_part():
        large = torch.empty(1500, 1024).normal_(1.0, 0.02, generator=torch.Generator().manual_seed(1))
        small = torch.empty(64, 64).normal_(generator=torch.Generator().manual_seed(1))
        torn = torch.empty(1024, 2048).t().uniform_(-1, 1)
    assert torch.Tensor.normal_ is drawn
    assert torch.isfinite(large).all()
    assert abs(float(large.mean()) - 1.0) < 1e-3
    assert abs(float(large.std()) - 0.02) < 1e-3
    assert len({tuple(row[:4].tolist()) for row in large}) == len(large)  # no row is another's copy
    piece = cutmodel._DRAWN
    assert torch.equal(large.view(-1)[piece:], large.view(-1)[: large.numel() - piece])
    assert torch.equal(small, torch.empty(64, 64).normal_(generator=torch.Generator().manual_seed(1)))
    assert abs(float(torn.mean())) < 0.01
    with pytest.raises(ZeroDivisionError), cutmodel._drawn_in_part():
        raise ZeroDivisionError
    assert torch.Tensor.normal_ is drawn


class Slow(Known):
    """A device that takes the time that it says, on a clock of its own; building takes a minute of it."""

    def __init__(self, now: list[float], **more: Any) -> None:
        super().__init__(**more)
        self.now = now

    def build(self, config: Any, like: Any = None) -> Any:
        self.now[0] += 60.0
        return super().build(config, like)

    def prefilled(self, model: Any, tokens: int) -> int:
        self.now[0] += super().seconds(model, tokens, 0)
        return tokens

    def seconds(self, model: Any, tokens: int, prefix: int | None) -> float:
        spent = super().seconds(model, tokens, prefix)
        self.now[0] += spent
        return spent


@pytest.mark.parametrize("budget", [0.5, 3.0, 10.0, 40.0, 400.0])
@pytest.mark.parametrize("asked", [(256, 512), (256, 512, 1024, 2048), ()])
def test_the_time_of_passes_keeps_to_the_budget(
    budget: float, asked: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [1000.0]
    monkeypatch.setattr(probe_prefill, "time", SimpleNamespace(monotonic=lambda: now[0]))
    device = Slow(now, cost=lambda kind, n, p: 2e-3 * n)
    found = run(DENSE, device, tokens=asked, seconds=budget, rounds=3, longest=4096)
    first = (asked or probe_prefill.LADDER)[0]
    round_s = 2e-3 * first * (1 + 1 + MORE)  # one pass of the base, one of the base and three more
    spent = now[0] - 1000.0 - 60.0 * len(device.built)
    assert spent <= max(budget, 2.05 * round_s)  # the first length is warmed up and timed once, whatever it takes
    assert found.prefill.points
    told = {finding.code for finding in found.findings}
    lengths = asked or tuple(n for n in probe_prefill.LADDER if n <= 4096)
    whole = sum(3 if n >= 512 else 1 for n in lengths)
    assert ("prefill-time" in told) is (len(found.prefill.points) < whole)
    assert "prefill-hurried" not in told or budget < 400.0


# ---- cutting


@pytest.mark.parametrize(
    ("raw", "kinds"),
    [
        (DENSE, {"full attention, dense": 7}),
        (GEMMA, {"sliding attention, dense": 7, "full attention, dense": 1}),
        (MOE, {"attention, dense": 4, "attention, experts": 2}),
        (LATENT, {"attention, dense": 2, "attention, experts": 3}),
    ],
)
def test_kinds_of_layer_and_their_cuts(raw: dict[str, Any], kinds: dict[str, int]) -> None:
    whole = cutmodel.read(raw, "example")
    assert {kind.words: len(kind.layers) for kind in whole.kinds} == kinds
    theirs = cutmodel.decoder_layers(cutmodel._laid_out(whole.config), whole.layers, "example")
    for pair in cutmodel.pairs(whole):
        assert len(pair.more) - len(pair.base) == 3
        assert set(pair.more) - set(pair.base) <= set(pair.kind.layers)
        ours = cutmodel.decoder_layers(cutmodel._laid_out(pair.more_config), len(pair.more), "example")
        for place, pick in enumerate(pair.more):
            shapes = [[tuple(p.shape) for p in layer.parameters()] for layer in (ours[place], theirs[pick])]
            assert shapes[0] == shapes[1]


def test_a_cut_that_gives_other_layers_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """A setting that a rule does not know: here none of them is cut, only their number."""
    monkeypatch.setattr(cutmodel, "cut_config", lambda config, n, picks, key: {**config, key: len(picks)})
    with pytest.raises(KvplanError, match=r"example: its layers of attention, experts cannot be cut out: .*--server"):
        cutmodel.pairs(cutmodel.read({**LATENT, "first_k_dense_replace": 4}, "example"))


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_every_list_follows_the_picks(data: st.DataObject) -> None:
    layers = data.draw(st.integers(1, 12))
    picks = data.draw(st.lists(st.integers(0, layers - 1), min_size=1, max_size=5))
    dense = sorted(data.draw(st.sets(st.integers(0, layers - 1))))
    step, leading = data.draw(st.integers(1, 4)), data.draw(st.integers(0, layers))
    config = {
        "num_hidden_layers": layers,
        "layer_types": [f"kind {i}" for i in range(layers)] + ["draft"],
        "hybrid_override_pattern": "M*E-"[:1] * layers,
        "mlp_only_layers": dense,
        "decoder_sparse_step": step,
        "first_k_dense_replace": leading,
        "num_nextn_predict_layers": 1,
        "hidden_size": 32,
    }
    cut = cut_config(config, layers, picks)
    assert cut["num_hidden_layers"] == len(picks) == len(cut["hybrid_override_pattern"])
    assert cut["layer_types"] == [f"kind {i}" for i in picks]
    assert cut["first_k_dense_replace"] == sum(pick < leading for pick in picks)
    assert cut["num_nextn_predict_layers"] == 0

    def sparse(settings: Any, at: int) -> bool:
        return at not in settings["mlp_only_layers"] and (at + 1) % settings["decoder_sparse_step"] == 0

    assert [sparse(cut, at) for at in range(len(picks))] == [sparse(config, pick) for pick in picks]


@pytest.mark.parametrize(
    ("raw", "says"),
    [
        ({"model_type": "no-such-model"}, "transformers has no model of type 'no-such-model'"),
        ({**DENSE, "hidden_size": "wide"}, "transformers cannot build this"),
        ({"model_type": "t5", "num_layers": 2, "d_model": 32}, "has an encoder"),
    ],
)
def test_what_cannot_be_cut_is_one_clear_line(raw: dict[str, Any], says: str) -> None:
    with pytest.raises(KvplanError, match=says):
        cutmodel.read(raw, "example")


def test_every_published_config_is_cut_or_refused(shared: Path) -> None:
    """A few families; cutting proves itself by comparing layers, so what is cut is right."""
    names = ("openai--gpt-oss-20b", "google--gemma-4-26B-A4B", "ai21labs--Jamba-v0.1", "deepseek-ai--DeepSeek-V3.2")
    for name in names:
        raw = json.loads((shared / f"configs/{name}.json").read_text())
        whole = cutmodel.read(raw, name)
        pairs = cutmodel.pairs(whole)
        base = pairs[0].base
        assert len(base) + sum(pair.missing(base) for pair in pairs) == whole.layers
    raw = json.loads((shared / "configs/google--gemma-3n-E4B-it.json").read_text())
    with pytest.raises(KvplanError, match="read the cache of another"):
        cutmodel.read(raw, "gemma-3n")


# ---- summing and fitting


@pytest.mark.parametrize(("raw", "layers"), [(DENSE, 7 * 2), (GEMMA, 7 * 3 + 2), (LATENT, 5 * 2)])
def test_layers_add_up(raw: dict[str, Any], layers: int) -> None:
    found = run(raw, Known()).prefill
    assert [point.tokens for point in found.points] == [64, 128, 256]
    for point in found.points:
        assert point.seconds == pytest.approx(1e-4 + layers * 1e-6 * point.tokens)
    assert found.t0_s == pytest.approx(1e-4)
    assert found.a_s_per_token == pytest.approx(layers * 1e-6)
    assert found.b_s_per_token_sq == pytest.approx(0.0, abs=1e-15)
    assert found.worst_relative_error is None  # three points, three numbers
    assert (found.max_measured_tokens, found.device, found.provenance) == (256, "Example", "measured")


def test_chunks_behind_a_prefix_are_points_of_their_own() -> None:
    device = Known(cost=lambda kind, n, p: 1e-6 * n + 1e-9 * ((n + p) ** 2 - p**2))
    found = run(DENSE, device, tokens=(512, 1024)).prefill
    assert [(point.tokens, point.prefix_tokens) for point in found.points] == [
        (512, 0),
        (256, 256),
        (128, 384),
        (1024, 0),
        (512, 512),
        (256, 768),
    ]
    assert found.b_s_per_token_sq == pytest.approx(7e-9)
    assert found.seconds(1024, 768) == pytest.approx(found.points[-1].seconds)
    assert found.max_measured_tokens == 1024


@settings(max_examples=100, deadline=None)
@given(
    st.tuples(*(st.just(0.0) | st.floats(most / 1e3, most) for most in (1.0, 1e-3, 1e-7))).filter(any),
    st.lists(st.tuples(st.integers(1, 10**5), st.integers(0, 10**5)), min_size=1, max_size=12),
    st.lists(st.floats(0.8, 1.25), min_size=12, max_size=12),
)
def test_the_fit_is_never_negative_and_says_its_error(
    truth: tuple[float, float, float], cells: list[tuple[int, int]], noise: list[float]
) -> None:
    def seconds(n: int, p: int, of: tuple[float, float, float]) -> float:
        return of[0] + of[1] * n + of[2] * ((n + p) ** 2 - p**2)

    times = [seconds(n, p, truth) * factor for (n, p), factor in zip(cells, noise, strict=False)]
    points = [
        PrefillPoint(tokens=n, prefix_tokens=p, seconds=t) for (n, p), t in zip(cells, times, strict=True) if t > 0
    ]
    if not points:
        return
    found = fit(points)
    numbers = (found.t0, found.a, found.b)
    assert min(numbers) >= 0
    errors = [seconds(pt.tokens, pt.prefix_tokens, numbers) / pt.seconds - 1 for pt in points]
    assert found.worst == pytest.approx(max(map(abs, errors)), abs=1e-6)
    squares = sum(error**2 for error in errors)
    theirs = sum((seconds(pt.tokens, pt.prefix_tokens, truth) / pt.seconds - 1) ** 2 for pt in points)
    assert squares <= theirs + 1e-6


def test_a_form_that_does_not_fit_is_a_finding() -> None:
    device = Known(cost=lambda kind, n, p: 1.0 if n == 128 else 0.01)
    found = run(DENSE, device, tokens=(64, 128, 256, 300))
    assert "prefill-fit" in [finding.code for finding in found.findings]
    assert found.prefill.low_ratio < 1 < found.prefill.high_ratio


def test_a_busy_processor_is_told_of(monkeypatch: pytest.MonkeyPatch) -> None:
    for load, told in ((100.0, True), (0.0, False)):
        monkeypatch.setattr(os, "getloadavg", lambda load=load: (load, load, load))
        assert ("prefill-disturbed" in [finding.code for finding in run(DENSE, Known()).findings]) == told


# ---- limits


def test_experts_are_fewer_where_memory_is_short_and_marked() -> None:
    whole = cutmodel.read(LATENT, "example")
    full, half = (
        probe_prefill._weights(cutmodel.pairs(whole, **change)) * 4 for change in ({}, {"n_routed_experts": 4})
    )
    device = Known(free=int((full + half) / 2 / 0.8))
    found = run(LATENT, device, tokens=(1, 2, 4))
    (finding,) = [finding for finding in found.findings if finding.code == "prefill-differs"]
    assert "4 of 8 experts a layer, as many to a token as in full" in finding.text
    assert {config.n_routed_experts for config in device.built} == {4}
    assert {config.num_experts_per_tok for config in device.built} == {2}


def test_what_does_not_fit_is_refused_before_it_is_built() -> None:
    device = Known(free=MiB // 8)
    with pytest.raises(KvplanError, match=r"example: cut to a few layers it still takes .* Example can spare"):
        run(LATENT, device)
    assert device.built == []


def test_lengths_stop_where_memory_or_time_ends() -> None:
    found = run(DENSE, Known(most_tokens=200))
    assert [point.tokens for point in found.prefill.points] == [64, 128]
    assert any("256 tokens do not fit" in finding.text for finding in found.findings)
    found = run(DENSE, Known(), tokens=(), seconds=0.0)
    assert [point.tokens for point in found.prefill.points] == [128]
    assert found.prefill.max_measured_tokens == 128
    assert {"prefill-time", "prefill-few"} <= {finding.code for finding in found.findings}
    assert found.prefill.t0_s == found.prefill.b_s_per_token_sq == 0  # one point is taken as proportional
    with pytest.raises(KvplanError, match="do not fit"):
        run(DENSE, Known(most_tokens=10))


def test_layers_without_cost_give_no_point() -> None:
    with pytest.raises(KvplanError, match="more layers took no more time"):
        run(DENSE, Known(cost=lambda kind, n, p: 0.0))


# ---- on this processor


@pytest.mark.parametrize("raw", [DENSE, GEMMA, MOE, LATENT])
def test_a_real_model_runs_and_its_prefixes_count(raw: dict[str, Any]) -> None:
    device = TorchPasses("example", "cpu", "this processor", 4 * GiB, clock=time.process_time)
    found = probe_prefill.measure(raw, "example", device, seconds=60.0, tokens=(256, 512), rounds=3).prefill
    assert {(point.tokens, point.prefix_tokens) for point in found.points} & {(512, 0), (256, 256), (128, 384)}
    assert all(point.seconds > 0 for point in found.points)
    assert "float32" in found.source
    assert found.gpus is None


def test_a_cached_prefix_is_left_as_it_was() -> None:
    device = TorchPasses("example", "cpu", "this processor", 4 * GiB)
    model = device.build(cutmodel.read(DENSE, "example").config)
    cache = device.prefilled(model, 24)
    for _ in range(2):
        device.seconds(model, 8, cache)
    assert cache.get_seq_length() == 24


def test_embeddings_are_shared_between_cut_models() -> None:
    device = TorchPasses("example", "cpu", "this processor", 4 * GiB)
    first, second = (device.build(cutmodel.read(DENSE, "example").config) for _ in range(2))
    third = device.build(cutmodel.read(DENSE, "example").config, first)
    assert third.get_input_embeddings() is first.get_input_embeddings()
    assert third.get_output_embeddings() is first.get_output_embeddings()
    assert second.get_input_embeddings() is not first.get_input_embeddings()


# ---- the whole probe


def config(tmp_path: Path, raw: dict[str, Any]) -> ModelConfig:
    path = tmp_path / "config.json"
    path.write_text(json.dumps(raw))
    return load_config(str(path))


def test_the_probe_measures_prefill_on_a_host_without_gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probe_host, "inventory", host)
    options = ProbeOptions(
        only=("prefill",), model=config(tmp_path, DENSE), budget_s=5.0, prefill_tokens=(16, 32), seed=1
    )
    assert probe.announce(options)[0].startswith(f"prefill of {tmp_path}")
    (found,) = probe.measure(options).prefill
    assert found.device.startswith("Example, ")
    assert "threads" in found.device
    assert [point.tokens for point in found.points] == [16, 32]


def test_a_processor_never_speaks_for_a_gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    card = GpuDevice(index=0, name="NVIDIA Example", total_bytes=GiB, free_bytes=GiB)
    monkeypatch.setattr(probe_host, "inventory", lambda: host(gpus=(card,)))
    if torch.cuda.is_available():
        pytest.skip("a CUDA device is here: its absence was not tried")
    with pytest.raises(KvplanError, match=r"this host has NVIDIA Example, and torch .* cannot use it"):
        probe.measure(ProbeOptions(only=("prefill",), model=config(tmp_path, DENSE)))


def test_a_server_that_does_not_answer_is_an_error_where_nothing_else_was_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(probe_host, "inventory", host)
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))  # and never listens: nobody can be there
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        for only in ((), ("prefill",), ("gpu", "prefill")):
            with pytest.raises(KvplanError, match=f"{url}: no answer"):
                probe.measure(ProbeOptions(server=url, only=only))
        disk = ProbeOptions(server=url, disks=(str(tmp_path),), budget_s=0.5, write_budget_bytes=256 * MiB)
        for options in (ProbeOptions(server=url, only=("host", "prefill")), disk):
            found = probe.measure(options)
            (told,) = [one.text for one in found.findings if one.code == "prefill-not-measured"]
            assert f"{url}: no answer" in told
        assert found.links


def test_prefill_needs_a_model() -> None:
    with pytest.raises(UsageError, match="--only prefill needs a model"):
        probe.plan_of(ProbeOptions(only=("prefill",)))


# ---- a running server


class Serving:
    """What the local server does: seconds a token, tokens a word, what it says it cached, how it misbehaves."""

    def __init__(self) -> None:
        self.models = ["organisation/Example-7B"]
        self.per_token, self.cached, self.fault = 2e-5, 0, ""
        self.says_cached = True
        self.prompts: list[str] = []


@pytest.fixture
def serving() -> Iterator[tuple[Serving, str]]:
    state = Serving()

    class Handler(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *_: Any) -> None:
            pass

        def _send(self, body: bytes, kind: str = "application/json", status: int = 200) -> None:
            self.send_response(status)
            self.send_header("Content-Type", kind)
            self.send_header("Connection", "close")
            self.end_headers()
            self.wfile.write(body)
            self.close_connection = True

        def do_GET(self) -> None:
            self._send(json.dumps({"data": [{"id": name, "max_model_len": 5000} for name in state.models]}).encode())

        def do_POST(self) -> None:
            request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            state.prompts.append(request["prompt"])
            tokens = 2 * len(request["prompt"].split())
            if state.fault == "status":
                self._send(b"no such thing", status=503)
                return
            self._send(b": hello\n\n", "text/event-stream")
            time.sleep(state.per_token * tokens)
            self._event({"choices": [{"text": "7"}]})
            self.wfile.flush()
            time.sleep(0.01)  # what comes after the first token is no part of the time to it
            usage: dict[str, Any] = {"prompt_tokens": tokens}
            if state.says_cached:
                usage["prompt_tokens_details"] = {"cached_tokens": state.cached if tokens > 1000 else 0}
            if state.fault != "usage":
                self._event({"choices": [], "usage": usage})
            self.wfile.write(b"data: [DONE]\n\n")

        def _event(self, body: dict[str, Any]) -> None:
            self.wfile.write(b"data: " + json.dumps(body).encode() + b"\n\n")

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    yield state, f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


def serve(url: str, model: str | None = None, **more: Any) -> probe_prefill.PrefillResult:
    fields: dict[str, Any] = {"seconds": 20.0, "tokens": (256, 1024, 4096)}
    return probe_prefill.measure_server(url, model, host(), **{**fields, **more})


def test_a_server_is_measured_to_its_first_token(serving: tuple[Serving, str]) -> None:
    state, url = serving
    found = serve(f"{url}/v1", "example-7b")
    assert found.prefill.model == "organisation/Example-7B"
    assert found.prefill.device == "server 127.0.0.1"
    assert [point.tokens for point in found.prefill.points] == [256, 1024, 4096]
    for point in found.prefill.points:
        assert point.seconds >= point.tokens * state.per_token
    assert len(set(state.prompts)) == len(state.prompts)
    heads = [prompt[:14] for prompt in state.prompts]
    assert len(set(heads)) == len(heads)
    assert found.prefill.gpus is None
    assert "no prompt cached, as the server says" in found.prefill.source


def test_a_cached_prompt_gives_no_point(serving: tuple[Serving, str]) -> None:
    state, url = serving
    state.cached = 512
    found = serve(url)
    assert [point.tokens for point in found.prefill.points] == [256]
    assert "512 tokens of a unique prompt of 1,024 were cached: no point" in found.findings[0].text


def test_a_server_that_hides_what_it_cached_is_told_of(serving: tuple[Serving, str]) -> None:
    state, url = serving
    state.says_cached = False
    assert "does not say what it cached" in serve(url, tokens=(256,)).prefill.source


def test_lengths_beyond_the_server_are_left_out(serving: tuple[Serving, str]) -> None:
    _, url = serving
    found = serve(url, tokens=(256, 8192))
    assert [point.tokens for point in found.prefill.points] == [256]
    assert "8,192 tokens are more than the server admits (5,000)" in found.findings[0].text


@pytest.mark.parametrize(("fault", "says"), [("status", "status 503: no such thing"), ("usage", "no usage")])
def test_a_failing_server_is_one_clear_line(serving: tuple[Serving, str], fault: str, says: str) -> None:
    state, url = serving
    state.fault = fault
    with pytest.raises(KvplanError, match=says):
        serve(url)


def test_the_wrong_model_or_address_is_one_clear_line(serving: tuple[Serving, str]) -> None:
    state, url = serving
    with pytest.raises(KvplanError, match=r"does not serve other \(it serves: organisation/Example-7B\)"):
        serve(url, "other")
    state.models.append("second")
    with pytest.raises(KvplanError, match="serves several models, choose one with --model"):
        serve(url)
    for address, says in (("ftp://x", "not the address"), ("http://127.0.0.1:1", "no answer"), ("http://x:y", "port")):
        with pytest.raises(KvplanError, match=says):
            ttft.connect(address, None)


def test_a_server_of_this_host_speaks_for_its_gpu(serving: tuple[Serving, str]) -> None:
    _, url = serving
    card = GpuDevice(index=0, name="NVIDIA Example", total_bytes=GiB, free_bytes=GiB)
    found = probe_prefill.measure_server(url, None, host(gpus=(card, card)), seconds=1.0, tokens=(64,))
    assert found.prefill.device == "NVIDIA Example"


# ---- what a plan takes of it


def priced(device: str, *, cards: tuple[str, ...] = (), gpu: str | None = None, model: str = "a/example") -> str:
    """Where the cost that a plan works with comes from."""
    measured = probe_prefill.fitted(
        (PrefillPoint(tokens=100, prefix_tokens=0, seconds=1.0),), model=model, device=device, source="", gpus=None
    )
    devices = tuple(GpuDevice(index=0, name=name, total_bytes=GiB, free_bytes=GiB) for name in cards)
    found = Probe(host=host(gpus=devices), prefill=(measured,))
    ref = ModelRef(id="b/Example", source="path", model_type="qwen3", config_sha256="")
    compute = Compute(linear_flops_per_token=1e9, attention_flops_per_token_sq=1e3, provenance="configured", source="")
    estimate = cast(Estimate, SimpleNamespace(model=ref, compute=compute, weights=None, parallel=Parallel()))
    return prefill_cost(estimate, found, catalogued_gpu(gpu) if gpu else None)[0].device


def test_a_processor_prices_no_gpu_plan() -> None:
    assert priced("Example, 2 threads", gpu="h100-80gb") != "Example, 2 threads"
    assert priced("NVIDIA X", cards=("NVIDIA X",), gpu="h100-80gb") == "NVIDIA X"
    assert priced("Example, 2 threads") == "Example, 2 threads"  # a host without a GPU, and none planned
    with pytest.raises(KvplanError, match="give --gpu NAME"):
        priced("Example, 2 threads", cards=("NVIDIA X",))
    assert priced("server far.example", gpu="h100-80gb") == "server far.example"


def test_two_config_files_are_not_one_model() -> None:
    with pytest.raises(KvplanError, match="give --gpu NAME"):
        priced("Example, 2 threads", model="/models/other/config.json")
    assert priced("Example, 2 threads", model="/models/Example/config.json") == "Example, 2 threads"


def test_a_device_that_fails_in_a_pass_is_one_clear_line(monkeypatch: pytest.MonkeyPatch) -> None:
    """A torch built without this GPU's kernels, a device that is lost: anything but too little memory."""
    pytest.importorskip("torch")
    device = TorchPasses("example", "cpu", "Example GPU", 4 * GiB)

    def fails(*_: Any, **__: Any) -> Any:
        raise RuntimeError("CUDA error: no kernel image is available for execution on the device\nmore")

    monkeypatch.setattr(device, "_ids", fails)
    for call in (lambda: device.seconds(None, 8, None), lambda: device.prefilled(None, 8)):
        with pytest.raises(
            KvplanError, match=r"^example: a pass failed on Example GPU: CUDA error: no kernel image.*--s"
        ):
            call()


def test_cuda_that_does_not_start_for_prefill_is_one_clear_line(monkeypatch: pytest.MonkeyPatch) -> None:
    torch = pytest.importorskip("torch")

    def busy(index: int) -> str:
        raise RuntimeError("CUDA error: all CUDA-capable devices are busy or unavailable\nmore")

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_name", busy)
    with pytest.raises(KvplanError, match=r"^measuring prefill: CUDA does not start: CUDA error: all .* unavailable$"):
        probe_prefill.device(probe_host.inventory(), "example")


@pytest.mark.parametrize("name", ["llama-3.1-8b", "llama-3.1-405b", "llama-3.2-1b", "llama-4-scout", "qwen3-8b"])
def test_models_of_the_catalogue_can_be_cut(name: str) -> None:
    """The catalogue keeps what positions are computed from: without it transformers builds no model of these."""
    raw = dict(load_config(name).raw)
    assert cutmodel.read(raw, name).layers == raw.get("text_config", raw)["num_hidden_layers"]
