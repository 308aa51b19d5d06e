"""Start-up lines of engines: what a request costs, fitted, and what disagrees."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvplan.documents import EstimateOptions, Model
from kvplan.errors import KvplanError, UsageError
from kvplan.estimate import estimate
from kvplan.model import load_model
from kvplan.startuplog import fit, keeps_fixed_part
from kvplan.units import GiB, MiB

VLLM = """INFO 11-29 10:00:00 [gpu_worker.py:413] Available KV cache memory: {pool:.2f} GiB
INFO 11-29 10:00:01 [kv_cache_utils.py:2329] GPU KV cache size: {tokens:,} tokens, \
Maximum concurrency for {length:,} tokens per request: {times:.2f}x
"""
SGLANG = """[2026-11-29 10:00:00] Load weight end. type=LlamaForCausalLM, avail mem=62.10 GB, mem usage=15.08 GB.
[2026-11-29 10:00:01] KV Cache is allocated. dtype: torch.bfloat16, #tokens: 425984, K size: 26.00 GB, V size: 26.00 GB
[2026-11-29 10:00:02] max_total_num_tokens=425984, chunked_prefill_size=8192, context_len=131072
"""
SGLANG_HYBRID = """Mamba Cache is allocated. max_mamba_cache_size: 127, conv_state size: 1.00GB, ssm_state size: 7.00GB
KV Cache is allocated. dtype: torch.bfloat16, #tokens: 100000, K size: 1.00 GB, V size: 1.00 GB
"""
LLAMA = """llama_context: n_ctx_seq             = 4096
llama_kv_cache_iswa: creating non-SWA KV cache, size = 4096 cells
llama_kv_cache: size =  320.00 MiB (  4096 cells,  10 layers,  1/1 seqs), K (f16):  160.00 MiB, V (f16):  160.00 MiB
llama_kv_cache_iswa: creating     SWA KV cache, size = 1536 cells
llama_kv_cache: size =  624.00 MiB (  1536 cells,  52 layers,  1/1 seqs), K (f16):  312.00 MiB, V (f16):  312.00 MiB
"""
LLAMA_STATE = """llama_kv_cache: size =   64.00 MiB (  4096 cells,   4 layers,  2/2 seqs), K (f16): 32 MiB, V (f16): 32
llama_memory_recurrent: size =   16.00 MiB (     2 cells,  32 layers,  2 seqs  0 rs_seq), R (f32):  2.6 MiB, S (f32): 1
"""


@cache
def model(name: str) -> Model:
    return load_model(name)


def log(tmp_path: Path, text: str, name: str = "start.log") -> str:
    (tmp_path / name).write_text(text)
    return str(tmp_path / name)


def vllm_log(tmp_path: Path, name: str, length: int, pool_gib: float) -> str:
    """The lines that vLLM prints for a model, by its own rules."""
    options = EstimateOptions(engine="vllm", kv_memory_bytes=round(pool_gib * GiB), max_model_len=length)
    view = estimate(model(name), options).engine_view
    tokens, times = int(str(view["kv_cache_size_tokens"])), float(str(view["max_concurrency"]))
    text = VLLM.format(pool=pool_gib, tokens=tokens, length=length, times=times)
    return log(tmp_path, text, f"{length}.log")


def test_one_start_is_enough_for_a_plain_model(tmp_path: Path) -> None:
    found = fit([vllm_log(tmp_path, "llama-3.1-8b", 32768, 20.0)], hybrid=keeps_fixed_part(model("llama-3.1-8b")))
    assert (found.engine, found.bytes_per_sequence) == ("vllm", 0.0)
    assert found.bytes_per_token == pytest.approx(131072, rel=1e-4)


def test_two_starts_tell_a_slope_from_a_fixed_part(tmp_path: Path) -> None:
    """gpt-oss-20b: windows and what admission reserves for them are the fixed part."""
    logs = [vllm_log(tmp_path, "gpt-oss-20b", length, 24.0) for length in (32768, 65536, 131072)]
    facts = model("gpt-oss-20b")
    with pytest.raises(KvplanError, match="this model keeps a fixed part a request"):
        fit(logs[:1], hybrid=keeps_fixed_part(facts))
    found = fit(logs, hybrid=True)
    assert found.bytes_per_token == pytest.approx(24576, rel=0.001)
    assert found.bytes_per_sequence == pytest.approx((127 + 16384 + 16) * 24576, rel=0.01)
    assert found.worst_relative_error < 0.001
    held = estimate(facts, EstimateOptions(engine="vllm"), log=found)
    assert held.log is not None
    assert [point.expected_tokens for point in held.log.points] == [point.tokens for point in held.log.points]
    assert not held.log.findings


def test_what_the_config_says_otherwise_is_printed(tmp_path: Path) -> None:
    found = fit([vllm_log(tmp_path, "llama-3.1-8b", 32768, 20.0)], hybrid=False)
    held = estimate(model("llama-3.1-8b"), EstimateOptions(engine="vllm", kv_dtype="fp8"), log=found)
    (finding,) = [finding for finding in held.findings if finding.code == "log-disagrees"]
    assert "(0.50 times)" in finding.text


def test_the_concurrency_of_older_builds_is_trusted(tmp_path: Path) -> None:
    """Case A32: the token line divides by the number of groups."""
    text = "Available KV cache memory: 44.5 GiB\nGPU KV cache size: 290,864 tokens\n"
    text += "Maximum concurrency for 32,768 tokens per request: 33.04x\n"
    found = fit([log(tmp_path, text)], hybrid=False)
    assert (found.points[0].tokens, found.points[0].stated_tokens) == (1082655, 290864)
    assert "3.72 times" in found.findings[0].text


def test_sglang_says_bytes_and_tokens(tmp_path: Path) -> None:
    found = fit([log(tmp_path, SGLANG)])
    assert (found.engine, found.bytes_per_token, found.bytes_per_sequence) == ("sglang", 131072.0, 0.0)
    assert found.points[0].context_tokens == 131072
    state = fit([log(tmp_path, SGLANG_HYBRID)])
    assert state.bytes_per_sequence == 8 * GiB / 128
    assert state.bytes_per_token == pytest.approx(2 * GiB / 100000)


def test_llama_cpp_says_cells_and_layers(tmp_path: Path) -> None:
    found = fit([log(tmp_path, LLAMA)])
    assert (found.engine, found.bytes_per_token) == ("llama.cpp", 81920.0)
    assert found.bytes_per_sequence == 624 * MiB
    held = estimate(model("gemma-3-27b"), EstimateOptions(engine="llama.cpp"), log=found)
    assert held.log is not None
    assert held.log.points[0].expected_tokens == 4096
    state = fit([log(tmp_path, LLAMA_STATE)])
    assert (state.bytes_per_token, state.bytes_per_sequence) == (8192.0, 8 * MiB)


def test_points_can_be_written_out() -> None:
    """Case A08: two starts of one model, at 50,000 and 500,000 tokens."""
    found = fit(["tokens=398000,len=50000,pool=24.5GiB", "tokens=2450k,len=500k,pool=24.5GiB"])
    assert found.bytes_per_token == pytest.approx(4586, rel=0.05)
    written = fit(["concurrency=33.04x,tokens=290864,len=32768,pool=44.5GiB"], hybrid=False)
    assert written.points[0].tokens == 1082655


@pytest.mark.parametrize(
    ("points", "message"),
    [
        ([], "--from-log is empty"),
        (["tokens=1,len=2"], "write tokens=398000"),
        (["tokens=1,len=2,pool=1GiB,x=3"], "write tokens=398000"),
        (["tokens=1,len=2,pool=24"], "GiB"),
        (["concurrency=many,len=2,pool=1GiB"], "is no concurrency"),
        (["tokens=0,len=2,pool=1GiB"], "no tokens"),
        (["nowhere.log"], "nowhere.log: no such file"),
        (["tokens=1000,len=2000,pool=1GiB"], "one length cannot tell"),
    ],
)
def test_bad_input_is_one_line(points: list[str], message: str) -> None:
    with pytest.raises((KvplanError, UsageError), match=message):
        fit(points)


def test_logs_that_do_not_say(tmp_path: Path) -> None:
    with pytest.raises(KvplanError, match=r"no start-up lines of vLLM, SGLang or llama\.cpp"):
        fit([log(tmp_path, "hello\n")])
    with pytest.raises(KvplanError, match="no line 'Available KV cache memory'"):
        fit(
            [log(tmp_path, "GPU KV cache size: 1,000 tokens\nMaximum concurrency for 10 tokens per request: 100.00x\n")]
        )
    with pytest.raises(KvplanError, match="a fit is of one engine"):
        fit([log(tmp_path, LLAMA), log(tmp_path, SGLANG, "other.log")])


def test_starts_that_differ_in_more_than_length_are_said() -> None:
    found = fit(["tokens=100000,len=1000,pool=1GiB", "tokens=100000000,len=2000,pool=1GiB"])
    assert [finding.code for finding in found.findings] == ["fit-negative"]


@given(
    slope=st.integers(100, 10**6),
    fixed=st.integers(0, 10**10),
    shorter=st.integers(1000, 50_000),
    times=st.integers(2, 20),
)
def test_a_line_is_found_again(slope: int, fixed: int, shorter: int, times: int) -> None:
    pool = 10**15
    points = []
    for length in (shorter, shorter * times):
        tokens = round(pool * length / (fixed + slope * length))
        points.append(f"tokens={tokens},len={length},pool={pool}B")
    found = fit(points)
    assert found.bytes_per_token == pytest.approx(slope, rel=1e-3, abs=1)
    assert found.bytes_per_sequence == pytest.approx(fixed, rel=1e-3, abs=slope)
