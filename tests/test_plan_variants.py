"""Plans beside a plan: what documents can tell is derived, what they cannot is asked for, what moved is explained."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import samples
from records import replace
from test_plan import H100, Parallel, Plan, Policy, estimate_with, planned, workload_with
from typer.testing import CliRunner

from kvplan.catalog import gpu
from kvplan.cli import app
from kvplan.documents import CacheGroup, Estimate, EstimateOptions, GpuMemory, LlamaCppOptions, PlanInputs, Switches
from kvplan.errors import KvplanError, UsageError
from kvplan.estimate import estimate
from kvplan.files import dump, load
from kvplan.model import load_model
from kvplan.plan import against, make, what_if
from kvplan.planning.variants import vary, with_kv_dtype
from kvplan.units import GiB, TiB

run = CliRunner().invoke


def inputs() -> PlanInputs:
    return PlanInputs(estimate=samples.estimate(), workload=samples.workload(), probe=samples.probe(), gpu=H100)


# ------------------------------------------------------------------------------------------------- KV dtype


def test_fp8_halves_every_byte_of_plain_attention_and_back() -> None:
    data = samples.estimate().data
    half = with_kv_dtype(data, "fp8")
    assert half is not None
    assert half.kv_dtype == "fp8"
    assert half.kv.bytes_per_token == half.kv.offload_bytes_per_token == 65_536
    assert half.groups[0].bytes_per_token == 65_536
    again = with_kv_dtype(half, "bf16")
    assert again is not None
    assert again.kv == replace(data.kv, bytes_at=())


def test_the_context_of_llama_cpp_follows_the_dtype_as_an_estimate_with_it_has_it() -> None:
    options = EstimateOptions(engine="llama.cpp", kv_dtype="f16", llama_cpp=LlamaCppOptions(ctx_size=65_536, slots=2))
    made = {dtype: estimated(replace(options, kv_dtype=dtype)) for dtype in ("f16", "f32", "q8_0")}
    derived = with_kv_dtype(made["f16"], "f32")
    assert derived is not None
    assert derived.kv == replace(made["f32"].kv, bytes_at=())
    view = made["f32"].engine_view
    assert {key: view[key] for key in derived.engine_view} == derived.engine_view
    assert view["context_bytes"] == 2 * int(str(made["f16"].engine_view["context_bytes"]))
    document = replace(samples.estimate(), data=made["f16"])
    inputs = PlanInputs(estimate=document, workload=samples.workload(), probe=samples.probe(), gpu=H100)
    changed, _ = vary(inputs, Policy(engine="llama.cpp"), "kv-dtype=f32")
    plans = [
        planned(Policy(engine="llama.cpp"), estimate=replace(document, data=data))
        for data in (changed.estimate.data, made["f32"])
    ]
    assert plans[0].budgets == plans[1].budgets
    for other in ("q8_0", "fp8"):
        assert with_kv_dtype(made["f16"], other) is None
        with pytest.raises(KvplanError, match=f"--engine llama.cpp --kv-dtype {other}"):
            vary(inputs, Policy(engine="llama.cpp"), f"kv-dtype={other}")


def estimated(options: EstimateOptions) -> Estimate:
    return estimate(load_model("llama-3.1-8b"), options)


@pytest.mark.parametrize("kind", ["recurrent", "indexer"])
def test_what_does_not_follow_the_dtype_is_not_derived(kind: Any) -> None:
    data = samples.estimate().data
    other = CacheGroup(kind=kind, layers=1, bytes_per_token=0, bytes_per_sequence=8)
    mixed = replace(data, groups=(*data.groups, other))
    assert with_kv_dtype(mixed, "fp8") is None
    assert with_kv_dtype(data, "q8_0") is None
    assert with_kv_dtype(replace(data, groups=()), "fp8") is None
    plan = planned(estimate=estimate_with(groups=mixed.groups))
    assert "KV dtype" not in {line.what for line in plan.sensitivity}
    with pytest.raises(KvplanError, match=r"kvplan estimate --model .* --kv-dtype fp8 … -o other.json"):
        what_if(plan, ["kv-dtype=fp8"])


def test_sensitivity_to_the_kv_dtype_is_the_plan_with_it() -> None:
    plan = planned()
    line = next(line for line in plan.sensitivity if line.what == "KV dtype")
    half = with_kv_dtype(samples.estimate().data, "fp8")
    direct = planned(estimate=samples.envelope("estimate", half))
    assert line.host_bytes == direct.budgets.host.requested_bytes
    assert line.net_s_per_hour == direct.benefit.gpu_s_per_hour_saved


# ------------------------------------------------------------------------------------------------- what if


def test_a_what_if_is_the_plan_of_the_changed_inputs() -> None:
    plan = what_if(planned(), ["growth=2,headroom=0.2", "gpu=h200-141gb", "replicas=2, routing=round-robin"])
    first, grown, card, blind = plan.what_if
    assert first.change == "this plan"
    assert first.net_s_per_hour == plan.benefit.gpu_s_per_hour_saved
    direct = planned(Policy(growth=2.0, headroom_ratio=0.2))
    assert grown.host_bytes == direct.budgets.host.requested_bytes
    assert grown.gpu_bytes == direct.budgets.gpu.bytes
    assert card.gpu_bytes == planned(gpu=gpu("h200-141gb")).budgets.gpu.bytes
    assert card.grade == "C"
    assert blind.hit_ratio < first.hit_ratio
    assert replace(plan, what_if=()) == planned()


def test_a_what_if_that_exceeds_a_limit_names_it() -> None:
    plan = what_if(planned(), ["growth=12"])
    assert "GPU memory" in plan.what_if[1].limits
    assert plan.what_if[0].limits == ()


def test_other_documents_stand_in(tmp_path: Path) -> None:
    kv = replace(samples.estimate().data.kv, bytes_per_token_per_gpu=65_536)
    four = estimate_with(parallel=Parallel(tp=2), kv=kv)
    path = tmp_path / "tp2.json"
    path.write_text(dump(four), encoding="utf-8")
    plan = what_if(planned(), [f"estimate={path}"])
    assert plan.what_if[1].gpu_bytes == planned(estimate=four).budgets.gpu.bytes
    with pytest.raises(KvplanError, match=r"workload=.*: this is a kvplan\.estimate document"):
        what_if(planned(), [f"workload={path}"])


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("speed=3", r"keys: kv-dtype, tp"),
        ("growth", r"write key=value"),
        ("growth=much", r"growth: 'much' is not a number"),
        ("replicas=0", r"replicas: '0' is not a whole number above 0"),
        ("host-memory=512G", r"host-memory: .*does not say its unit"),
        ("share=some", r"share: 'some' is none of all, tenant, none"),
    ],
)
def test_a_change_without_meaning_is_refused(text: str, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        vary(inputs(), Policy(), text)


def test_what_only_the_model_can_tell_is_asked_for() -> None:
    with pytest.raises(KvplanError, match=r"kvplan estimate --model .*--tp 4 … -o other\.json.*estimate=other\.json"):
        vary(inputs(), Policy(), "tp=4")
    assert vary(inputs(), Policy(), "tp=1, kv-dtype=bf16, ") == (inputs(), Policy())
    memory = GpuMemory(
        gpu="stated",
        total_bytes=None,
        usable_bytes=None,
        weights_bytes=None,
        overhead_bytes=None,
        kv_bytes=GiB,
        kv_tokens=0,
    )
    stated = replace(inputs(), estimate=estimate_with(memory=memory))
    with pytest.raises(KvplanError, match="whatever the GPU"):
        vary(stated, Policy(), "gpu=h200-141gb")


# ------------------------------------------------------------------------------------------------- an earlier plan


def test_what_changed_and_why() -> None:
    old = samples.envelope("plan", planned())
    log = samples.requests(600, seed=5)
    new = planned(Policy(growth=1.5), workload=samples.envelope("workload", samples.workload_of(log)))
    found = against(new, old).against
    assert found is not None
    assert found.created == samples.CREATED
    assert found.decision == old.data.decision
    moved = {one.what: (one.before, one.after) for one in found.results}
    assert moved["GPU time saved an hour"][0] != moved["GPU time saved an hour"][1]
    assert {"policy: growth", "hit curve"} <= {one.what for one in found.inputs}
    causes = {one.change: one for one in found.causes}
    assert list(causes) == ["the earlier inputs", "the new workload alone", "the new policy alone", "all of them"]
    assert causes["the earlier inputs"].net_s_per_hour == old.data.benefit.gpu_s_per_hour_saved
    assert causes["the new policy alone"].net_s_per_hour == planned(Policy(growth=1.5)).benefit.gpu_s_per_hour_saved
    assert causes["all of them"].net_s_per_hour == new.benefit.gpu_s_per_hour_saved


def test_policies_that_differ_are_shown_in_units() -> None:
    old = samples.envelope("plan", planned(Policy(disk_bytes=TiB, ttl_s=600.0)))
    new = planned(Policy(disk_bytes=2 * TiB, headroom_ratio=0.2, host_link_bytes_per_s=25e9))
    found = against(new, old).against
    assert found is not None
    shown = {one.what: (one.before, one.after) for one in found.inputs}
    assert shown["policy: disk"] == ("1,024.00 GiB", "2,048.00 GiB")
    assert shown["policy: ttl"] == ("10 min", "not set")
    assert shown["policy: headroom"] == ("10.0 %", "20.0 %")
    assert shown["policy: host link"] == ("not set", "25.00 GB/s")


def test_nothing_changed() -> None:
    found = against(planned(), samples.envelope("plan", planned())).against
    assert found is not None
    assert found.results == found.inputs == ()
    assert [one.change for one in found.causes] == ["the earlier inputs", "all of them"]


def test_an_input_that_does_not_go_with_the_earlier_ones_is_no_cause() -> None:
    """The new policy asks for tenants that the earlier log does not name."""
    old = samples.envelope("plan", planned(workload=workload_with(tenants=())))
    found = against(planned(Policy(share="tenant")), old).against
    assert found is not None
    assert "the new policy alone" not in [one.change for one in found.causes]


# ------------------------------------------------------------------------------------------------- the command


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in ("estimate", "workload", "probe", "plan"):
        (tmp_path / f"{name}.json").write_text(dump(getattr(samples, name)()), encoding="utf-8")
    return tmp_path


def command(folder: Path, *more: str) -> tuple[int, Plan | None]:
    names = [str(folder / f"{name}.json") for name in ("estimate", "workload", "probe")]
    out = folder / "new.json"
    done = run(app, ["plan", *names, "--gpu", "h100-80gb", "-q", "-o", str(out), *more])
    if isinstance(done.exception, KvplanError):
        raise done.exception
    return done.exit_code, load(out).data if out.exists() else None


def test_every_flag_of_the_policy_reaches_it(folder: Path) -> None:
    flags = (
        *("--replicas", "4", "--replicas-per-host", "2", "--routing", "round-robin", "--share", "tenant"),
        *("--growth", "1.5", "--gpu-memory-utilization", "0.8", "--headroom", "0.2", "--allow-flagged-links"),
        *("--reserve", "other-models=40GiB", "--reserve", "engine=12GiB", "--restart-every", "24h"),
        *(
            "--expansion",
            "1.2",
            "--disk-admission",
            "second-use",
            "--disk-own",
            "1TiB",
            "--price-view",
            "owned",
            "--offload",
            "lmcache",
        ),
    )
    code, plan = command(folder, *flags)
    assert code == 0
    assert plan is not None
    policy = plan.policy
    assert (policy.replicas, policy.replicas_per_host, policy.routing, policy.share) == (4, 2, "round-robin", "tenant")
    assert (policy.growth, policy.gpu_memory_utilization, policy.headroom_ratio) == (1.5, 0.8, 0.2)
    assert policy.allow_flagged_links
    assert {one.name: one.bytes for one in policy.reserves} == {"other-models": 40 * GiB, "engine": 12 * GiB}
    assert (policy.restart_every_s, policy.expansion, policy.disk_own_bytes) == (86_400.0, 1.2, TiB)
    assert (policy.disk_admission, policy.offload) == ("second-use", "lmcache")


def test_what_if_against_and_prices_on_the_command_line(folder: Path) -> None:
    prices = folder / "prices.toml"
    prices.write_text("date = 2026-01-31\nconfirmed = true\n[gpu]\nusd_per_hour = 3\n", encoding="utf-8")
    more = ("--prices", str(prices), "--what-if", "growth=2", "--what-if", "kv-dtype=fp8")
    code, plan = command(folder, *more, "--against", str(folder / "plan.json"))
    assert code == 0
    assert plan is not None
    assert [one.change for one in plan.what_if] == ["this plan", "growth=2", "kv-dtype=fp8"]
    assert [one.view for one in plan.costs] == ["owned"]
    assert plan.against is not None
    assert plan.inputs.prices is not None


def test_exit_3_when_a_limit_does_not_hold(folder: Path) -> None:
    code, plan = command(folder, "--slo-ttft", "100ms")
    assert code == 3
    assert plan is not None
    assert [limit.name for limit in plan.limits if not limit.ok] == ["time to first token"]
    assert command(folder)[0] == 0


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (("--reserve", "other-models"), "other-models=40GiB"),
        (("--reserve", "other-models=40"), "--reserve: .*unit"),
        (("--prices", "/nowhere/prices.toml"), "no such file"),
        (("--against", "{folder}/probe.json"), "no plan document given"),
        (("--what-if", "tp=4"), "estimate=other.json"),
    ],
)
def test_a_flag_that_cannot_be_followed_is_one_line(folder: Path, flags: tuple[str, ...], words: str) -> None:
    with pytest.raises(KvplanError, match=words) as caught:
        command(folder, *(flag.format(folder=folder) for flag in flags))
    assert "\n" not in str(caught.value)


def test_the_inputs_of_a_plan_make_it_again() -> None:
    plan = planned()
    again = make(plan.inputs.estimate, plan.inputs.workload, plan.inputs.probe, plan.inputs.gpu, plan.policy)
    assert again == plan


@pytest.mark.parametrize("engine", ["vllm", "sglang", "tensorrt-llm"])
def test_the_fraction_of_the_estimate_is_the_plans(engine: str) -> None:
    given = inputs()
    data = replace(given.estimate.data, engine=engine, memory=None, switches=Switches(utilization=0.6))
    of_it = replace(given.estimate, data=data)
    for policy, fraction in ((Policy(), 0.6), (Policy(gpu_memory_utilization=0.5), 0.5)):
        made = make(of_it, given.workload, given.probe, given.gpu, policy)
        assert made.settings is not None
        assert made.settings.utilization == fraction
