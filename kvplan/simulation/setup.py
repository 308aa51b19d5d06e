"""A plan as an engine to simulate: each figure taken from the plan's own documents, with its origin."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from kvplan.catalog import gpu as catalogue_gpu
from kvplan.documents import Arm, EngineModel, Evidence, LinkModel, Loop, ModelRef, Plan, Prefill, Provenance, Slots
from kvplan.engines.profiles import engine_of, profile
from kvplan.errors import KvplanError, UsageError
from kvplan.units import show_duration, show_rate, show_tokens

ERROR = 0.29  # published simulators err by 18 % of mean and 29 % of p99 TTFT against real servers
BAND = (
    "published simulators of serving engines err by 18 % (mean) to 29 % (p99) on TTFT; to this the error of the "
    "recompute cost is added. Compare arms with each other before any of them with a clock"
)
_COPIES = "copies that slow computing on the same GPU, and computing that slows copies"
_BLOCKS = "blocks smaller than the log's: a prefix is reused in whole blocks of the log"
_TOKENS = "prompts that part within a block of the log: they are taken to part where it begins"
NOT_MODELLED = (
    "CPU time of the scheduler, tokenizer and network",
    "speculative decoding, hybrid and windowed layers, prefill and decoding on separate engines",
)
_ANSWERS = "reuse of generated tokens before a later prompt of the log brings them back under its own ids"
_OPEN = "clients that wait for an answer before they ask again: arrivals stay where the log has them"
_SAME_STEP = ("vllm",)  # names a block when the step that fills it is planned
_KEEPS_OUTPUT = ("vllm", "sglang", "tensorrt-llm", "llama.cpp")  # they hold answers like prompts
_BATCHED_TOKENS, _SLOTS_BATCHED_TOKENS = 8192, 2048  # of a step: usual on large GPUs; llama-server's --batch-size
_SLOTS = 4  # of llama-server where --parallel says nothing; they share their cells then


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """What the plan does not say: the step's limits, and the memory rate of a GPU that the catalogue lacks."""

    max_num_batched_tokens: int | None = None
    max_num_seqs: int = 256
    memory_bytes_per_s: float | None = None
    kv_tokens: int | None = None
    output_blocks: Literal["forget", "keep", "reuse"] | None = None
    slots: int | None = None
    kv_unified: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """What is played: an engine, where its figures are from, its usual arms, and how far its times may be off."""

    engine: EngineModel
    evidence: tuple[Evidence, ...]
    arms: tuple[Arm, ...]
    band: tuple[float, float]
    model: ModelRef | None


def subject_of(plan: Plan | EngineModel, block_tokens: int, options: Options) -> Subject:
    """A plan's engine and arms, or an engine given by its figures. Raises KvplanError where they do not go together."""
    if not isinstance(plan, EngineModel):
        engine, evidence = model_of(plan, block_tokens, options)
        model = plan.inputs.estimate.data.model
        return Subject(engine=engine, evidence=evidence, arms=default_arms(plan), band=band(plan.prefill), model=model)
    if plan.block_tokens != block_tokens:
        raise KvplanError(
            f"the engine has blocks of {plan.block_tokens:,} tokens and the log of {block_tokens:,}: read the log in "
            "the engine's blocks (--block-tokens, for logs with text), or play an engine with the log's"
        )
    what = f"{show_tokens(plan.kv_tokens)} tokens of KV cache, {show_duration(plan.a_s_per_token)} a token"
    given = _evidence("engine", what, "configured", "figures given to the simulation")
    alone = (Arm(name="off"),)
    return Subject(engine=plan, evidence=(given,), arms=alone, band=(1 - ERROR, 1 + ERROR), model=None)


def not_modelled(engine: EngineModel, loop: Loop) -> tuple[str, ...]:
    """What the figures leave out."""
    answers = () if engine.output_blocks == "reuse" else (_ANSWERS,)
    own = (_TOKENS,) if engine.slots is not None else (_COPIES, _BLOCKS)
    return (*own, *NOT_MODELLED, *answers, *((_OPEN,) if loop.kind == "open" else ()))


def model_of(plan: Plan, block_tokens: int, options: Options) -> tuple[EngineModel, tuple[Evidence, ...]]:
    """The replica that a plan describes. Raises KvplanError naming what it lacks."""
    estimate, prefill = plan.inputs.estimate.data, plan.prefill
    per_token = max(1, estimate.kv.offload_bytes_per_token)
    gpus = max(1, estimate.parallel.gpus)
    per_gpu = max(estimate.kv.bytes_per_token_per_gpu, -(-per_token // gpus))
    rate, rate_from, rate_source = _memory_rate(plan, options.memory_bytes_per_s)
    weights = estimate.weights.bytes_per_gpu if estimate.weights else 0
    tokens = _kv_tokens(plan, per_gpu * gpus, block_tokens, options)
    slots = _slots(plan, tokens, options)
    step_tokens = estimate.switches.max_num_batched_tokens or (_SLOTS_BATCHED_TOKENS if slots else _BATCHED_TOKENS)
    model = EngineModel(
        kv_tokens=tokens,
        block_tokens=block_tokens,
        tier_bytes_per_token=per_token,
        t0_s=prefill.t0_s,
        a_s_per_token=prefill.a_s_per_token,
        b_s_per_token_sq=prefill.b_s_per_token_sq,
        weights_s=weights / rate,
        kv_s_per_token=per_gpu / rate,
        max_num_batched_tokens=options.max_num_batched_tokens or step_tokens,
        max_num_seqs=slots.count if slots else options.max_num_seqs,
        replicas=plan.policy.replicas * max(1, estimate.parallel.dp),
        routing=plan.policy.routing,
        output_blocks=options.output_blocks or ("keep" if engine_of(plan) in _KEEPS_OUTPUT else "forget"),
        same_step_hits=engine_of(plan) in _SAME_STEP,
        host_link=_link(plan, "host", per_token),
        disk_link=None if slots else _link(plan, "disk", per_token),
        slots=slots,
    )
    memory = _evidence("GPU memory rate", show_rate(rate), rate_from, rate_source)
    return model, (*_evidences(plan, model, prefill, options), memory)


def _kv_tokens(plan: Plan, bytes_per_token: int, block_tokens: int, options: Options) -> int:
    """Tokens of KV cache in one replica: those asked for, or what its GPUs have room for beside weights and overhead.

    A plan whose active requests need more than that has a budget larger than its GPUs: only what is there is played.
    """
    if options.kv_tokens is not None:
        if options.kv_tokens < block_tokens:
            raise UsageError(
                f"--kv-tokens {options.kv_tokens:,}: less than one block of {block_tokens:,} tokens, so nothing fits"
            )
        return options.kv_tokens
    tokens = min(plan.budgets.gpu.usable_bytes, room_for_kv(plan)) // bytes_per_token
    if tokens < block_tokens:
        raise KvplanError(
            f"the plan leaves {tokens:,} tokens of KV cache on the GPU, less than one block of {block_tokens:,}: "
            "plan with a larger GPU or smaller weights"
        )
    return tokens


def _slots(plan: Plan, tokens: int, options: Options) -> Slots | None:
    """The slots of an engine that keeps whole prompts: as asked for, else the estimate's, else the server's own."""
    engine = engine_of(plan)
    if not profile(engine).whole_prompts:
        if options.slots is not None or options.kv_unified:
            raise UsageError(f"--slots and --kv-unified are llama.cpp's, and the plan is for {engine}")
        return None
    if options.output_blocks == "forget":
        raise UsageError("--output-blocks forget: llama.cpp's slots hold answers too: keep or reuse")
    estimate = plan.inputs.estimate.data
    own = estimate.switches.llama_cpp if estimate.engine == engine else None
    count = options.slots or (own.slots if own else _SLOTS)
    unified = options.kv_unified or (options.slots is None and (own.unified if own else True))
    each = tokens if unified else tokens // count
    longest = estimate.model.max_context_tokens
    return Slots(count=count, unified=unified, context_tokens=min(each, longest or each))


def check_arms(engine: EngineModel, arms: Sequence[Arm]) -> None:
    """Raises UsageError for an arm that asks of slots what they do not have."""
    if engine.slots is None:
        return
    usual = Arm(name="")
    for arm in arms:
        asked = (
            ("disk", arm.disk_bytes != 0),
            ("policy", arm.policy != usual.policy),
            ("admission", arm.admission != usual.admission or arm.disk_admission != usual.disk_admission),
            ("store", arm.store != usual.store),
            ("ttl", arm.ttl_s is not None),
            ("in-flight", arm.in_flight != usual.in_flight),
        )
        for key, given in asked:
            if given:
                raise UsageError(f"--arm {arm.name}: {key} has no meaning for llama.cpp, which keeps whole prompts")


def room_for_kv(plan: Plan) -> int:
    """Bytes that the GPUs of one replica have beside what is not KV cache; the budget itself where it has no limit."""
    budget = plan.budgets.gpu
    if budget.limit_bytes is None:
        return budget.usable_bytes
    other = sum(item.bytes for item in budget.items if item.name in ("weights", "engine overhead"))
    return max(0, budget.limit_bytes - other)


def _evidence(what: str, value: str, provenance: Provenance, source: str) -> Evidence:
    return Evidence(what=what, value=value, provenance=provenance, source=source)


def _evidences(plan: Plan, model: EngineModel, prefill: Prefill, options: Options) -> tuple[Evidence, ...]:
    cost = f"{show_duration(prefill.seconds(8192))} for 8,192 tokens"
    limits = f"{model.max_num_batched_tokens:,} tokens a step, {model.max_num_seqs:,} sequences"
    stated = options.max_num_batched_tokens or plan.inputs.estimate.data.switches.max_num_batched_tokens
    rows = [
        _evidence(
            "KV cache of a replica",
            f"{show_tokens(model.kv_tokens)} tokens",
            "configured",
            "--kv-tokens" if options.kv_tokens is not None else "the plan",
        ),
        _evidence("recompute cost", cost, prefill.provenance, prefill.source),
        _evidence(
            "step limits",
            limits,
            "configured" if stated else "default",
            "--max-num-batched-tokens and --max-num-seqs",
        ),
    ]
    if (slots := model.slots) is not None:
        value = f"{slots.count}, of {show_tokens(slots.context_tokens)} tokens at most, cells "
        value += "shared by all" if slots.unified else "apart"
        rows.append(_evidence("slots", value, *_slots_from(plan, options)))
    rules = {"forget": "free at once", "keep": "stay until their turn to go", "reuse": "stay and can be hit"}
    told = options.output_blocks is not None
    source = "--output-blocks" if told else f"what {engine_of(plan)} does"
    rule = rules[model.output_blocks]
    rows.append(_evidence("full blocks of answers", rule, "configured" if told else "default", source))
    assumed = assumed_stores(plan)
    for tier, name, link in (("host", "host link", model.host_link), ("disk", "disk", model.disk_link)):
        if link is not None:
            rows.append(_evidence(f"{name}, loads", show_rate(link.load_bytes_per_s), *_origin(plan, name)))
            stores: tuple[Provenance, str] = _origin(plan, name)
            if tier in assumed:
                stores = "assumed", "as fast as loads: no clean store was measured"
            rows.append(_evidence(f"{name}, stores", show_rate(link.store_bytes_per_s), *stores))
    return tuple(rows)


def _slots_from(plan: Plan, options: Options) -> tuple[Provenance, str]:
    """Where the number of slots is from."""
    if options.slots is not None:
        return "configured", "--slots"
    if plan.inputs.estimate.data.engine == engine_of(plan):
        return "configured", "the estimate's --parallel"
    return "default", "llama-server's own; --slots"


def assumed_stores(plan: Plan) -> tuple[str, ...]:
    """Tiers whose links are played as storing at the rate of loads, because nothing says how fast they store."""
    return tuple(
        tier
        for tier in ("host", "disk")
        if any(row.tier == tier for row in plan.break_even)
        and not (tier == "host" and plan.policy.host_link_bytes_per_s)
        and _store_rate(plan, tier, _granule(plan)) is None
    )


def _granule(plan: Plan) -> int:
    """Bytes of one block that one GPU moves."""
    estimate = plan.inputs.estimate.data
    per_token = max(1, estimate.kv.offload_bytes_per_token)
    return max(1, max(1, estimate.block_tokens) * per_token // max(1, estimate.parallel.gpus))


def _origin(plan: Plan, name: str) -> tuple[Provenance, str]:
    """Where the plan has a link's rate from."""
    for one in plan.evidence:
        if one.what == name or one.what.startswith(name):
            return one.provenance, one.source
    return "assumed", "the plan's break-even table"


def _memory_rate(plan: Plan, given: float | None) -> tuple[float, Provenance, str]:
    if given is not None:
        if given <= 0:
            raise UsageError("--memory-rate: memory without a rate reads nothing: give one above 0, such as 4.8TB/s")
        return given, "configured", "--memory-rate"
    spec, probe, estimate = plan.inputs.gpu, plan.inputs.probe, plan.inputs.estimate.data
    names = [one.name for one in probe.data.host.gpus] if probe else []
    names += [estimate.memory.gpu] if estimate.memory else []
    for name in () if spec is not None else names:
        try:
            spec = catalogue_gpu(name)
        except KvplanError:
            continue
    if spec is None:
        raise KvplanError(
            "the GPU's memory rate is unknown, and decoding is bound by it: give --memory-rate, such as 4.8TB/s, "
            "or plan with --gpu NAME"
        )
    return spec.memory_bytes_per_s, "published", spec.source


def _link(plan: Plan, tier: str, per_token: int) -> LinkModel | None:
    """The link of a tier as the plan's break-even table has it, all ranks together; None where it has none.

    The table gives load times of two lengths: their difference is the rate, the rest of it the latency.
    """
    rows = [row for row in plan.break_even if row.tier == tier]
    if len(rows) < 2:
        return None
    first, last = rows[0], rows[-1]
    seconds = (last.load_s - first.load_s) / (last.prefix_tokens - first.prefix_tokens)
    if seconds <= 0:
        return None
    latency = max(0.0, first.load_s - seconds * first.prefix_tokens)
    store = _store_rate(plan, tier, _granule(plan))
    load = per_token / seconds
    return LinkModel(load_bytes_per_s=load, store_bytes_per_s=store or load, latency_s=latency)


def _store_rate(plan: Plan, tier: str, granule: int) -> float | None:
    """The rate of stores that the plan was made with, all ranks; else the clean measured cell nearest to a granule.

    Of equals the slowest; None where no store was measured.
    """
    planned = next((row.store_bytes_per_s for row in plan.break_even if row.tier == tier), None)
    if planned is not None:
        return planned * max(1, plan.inputs.estimate.data.parallel.gpus)
    probe = plan.inputs.probe
    direction, gpus = ("d2h", plan.inputs.estimate.data.parallel.gpus) if tier == "host" else ("write", 1)
    if probe is None or (tier == "host" and plan.policy.host_link_bytes_per_s):
        return None
    cells = [
        (abs(math.log(max(1, link.granule_bytes) / granule)), link.p50_bytes_per_s)
        for link in probe.data.links
        if link.direction == direction and link.concurrent == "none" and not link.flags and link.p50_bytes_per_s > 0
    ]
    return min(cells)[1] * max(1, gpus) if cells else None


def band(prefill: Prefill) -> tuple[float, float]:
    """True times over stated ones, lowest and highest."""
    return max(0.0, prefill.low_ratio * (1 - ERROR)), prefill.high_ratio * (1 + ERROR)


def default_arms(plan: Plan) -> tuple[Arm, ...]:
    """Offload off, and on as the plan recommends (with its largest option where it recommends nothing)."""
    policy = plan.policy
    host, disk = plan.budgets.host.usable_bytes, plan.budgets.disk.usable_bytes
    if profile(engine_of(plan)).whole_prompts:
        off, on = Arm(name="off", share=policy.share), Arm(name="on", host_bytes=host, share=policy.share)
        return (off, on) if host else (off,)
    off = Arm(name="off", ttl_s=policy.ttl_s, share=policy.share)
    if not host and not disk:
        return (off,)
    on = Arm(
        name="on",
        host_bytes=host,
        disk_bytes=disk,
        disk_admission=policy.disk_admission,
        ttl_s=policy.ttl_s,
        share=policy.share,
    )
    return off, on
