"""A plan's inputs with something changed: what documents alone can tell is derived, the rest is asked for."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from kvplan.catalog import gpu as catalogue_gpu
from kvplan.documents import Document, Estimate, PlanInputs, Policy
from kvplan.errors import KvplanError, UsageError
from kvplan.files import load
from kvplan.units import parse_duration, parse_rate, parse_size

BITS = {"fp32": 32, "bf16": 16, "fp16": 16, "fp8": 8}
_GGML_BITS = {"f32": 32, "bf16": 16, "f16": 16}  # quantised types pack elements, which not every head divides into
# Kinds of cache whose every element is of the KV dtype; latents too, but for sparse attention's packed slots.
_PLAIN = {"full", "sliding", "chunked", "cross", "draft", "latent"}

Variant = tuple[PlanInputs, Policy]


def vary(inputs: PlanInputs, policy: Policy, text: str) -> Variant:
    """The inputs with the changes of 'key=value,key=value'.

    Raises UsageError naming a key or value without meaning, KvplanError saying which document is needed.
    """
    for part in filter(None, (piece.strip() for piece in text.split(","))):
        key, equals, value = (piece.strip() for piece in part.partition("="))
        if not equals or key not in _CHANGES:
            raise UsageError(f"--what-if {part!r}: write key=value (keys: {', '.join(_CHANGES)})")
        try:
            inputs, policy = _CHANGES[key](inputs, policy, value)
        except UsageError as error:
            raise UsageError(f"--what-if {key}: {error}") from None
    return inputs, policy


def with_kv_dtype(estimate: Estimate, dtype: str) -> Estimate | None:
    """The estimate with another KV dtype, where its groups say that every cached byte follows it; None where not.

    Recurrent states, packed indexer keys and slots, and dtypes with scales beside them do not follow it. A context
    that is allocated whole at start does.
    """
    known = _GGML_BITS if estimate.engine == "llama.cpp" else BITS
    before, after = known.get(estimate.kv_dtype), known.get(dtype)
    if before is None or after is None or any(group.kind not in _PLAIN for group in estimate.groups):
        return None
    kv, groups = estimate.kv, estimate.groups
    sizes = [kv.bytes_per_token_per_gpu, kv.bytes_per_sequence_per_gpu, kv.offload_bytes_per_token]
    if not groups or any(size * after % before for size in sizes):
        return None

    def sized(size: int) -> int:
        return -(-size * after // before)

    context = estimate.engine_view.get("context_bytes")
    whole = context if isinstance(context, int) else None
    return replace(
        estimate,
        kv_dtype=dtype,
        engine_view={} if whole is None else {"type_k": dtype, "type_v": dtype, "context_bytes": sized(whole)},
        groups=tuple(
            replace(
                group,
                bytes_per_token=sized(group.bytes_per_token),
                bytes_per_sequence=sized(group.bytes_per_sequence),
                arithmetic=f"{group.arithmetic}, {after}/{before} of it for {dtype}" if group.arithmetic else "",
            )
            for group in groups
        ),
        kv=replace(
            kv,
            bytes_per_token=sized(kv.bytes_per_token),
            bytes_per_sequence=sized(kv.bytes_per_sequence),
            bytes_per_token_per_gpu=sized(kv.bytes_per_token_per_gpu),
            bytes_per_sequence_per_gpu=sized(kv.bytes_per_sequence_per_gpu),
            offload_bytes_per_token=sized(kv.offload_bytes_per_token),
            bytes_at=(),
            growth=tuple(
                replace(
                    stretch,
                    bytes_per_token=sized(stretch.bytes_per_token),
                    bytes_at_start=sized(stretch.bytes_at_start),
                )
                for stretch in kv.growth
            ),
        ),
    )


def _kv_dtype(inputs: PlanInputs, policy: Policy, value: str) -> Variant:
    estimate = inputs.estimate
    if value == estimate.data.kv_dtype:
        return inputs, policy
    derived = with_kv_dtype(estimate.data, value)
    if derived is None:
        raise KvplanError(_ask(estimate.data, "kv-dtype", f"--kv-dtype {value}"))
    return replace(inputs, estimate=replace(estimate, data=derived)), policy


def _parallel(name: str) -> Callable[[PlanInputs, Policy, str], Variant]:
    def change(inputs: PlanInputs, policy: Policy, value: str) -> Variant:
        estimate = inputs.estimate.data
        if value == str(getattr(estimate.parallel, name)):
            return inputs, policy
        raise KvplanError(_ask(estimate, name, f"--{name} {value}"))

    return change


def _ask(estimate: Estimate, key: str, flag: str) -> str:
    return (
        f"--what-if {key}: the estimate alone does not tell the bytes of this: make one with `kvplan estimate --model "
        f"{estimate.model.id} --engine {estimate.engine} {flag} … -o other.json` and give --what-if estimate=other.json"
    )


def _document(kind: str) -> Callable[[PlanInputs, Policy, str], Variant]:
    def change(inputs: PlanInputs, policy: Policy, value: str) -> Variant:
        document: Document[Any] = load(Path(value))
        if document.kind != f"kvplan.{kind}":
            raise KvplanError(f"--what-if {kind}={value}: this is a {document.kind} document")
        changed: dict[str, Any] = {kind: document}
        return replace(inputs, **changed), policy

    return change


def _gpu(inputs: PlanInputs, policy: Policy, value: str) -> Variant:
    estimate = inputs.estimate
    memory = estimate.data.memory
    if memory is not None and memory.usable_bytes is None:
        raise KvplanError("--what-if gpu: the estimate states what is left for the cache, whatever the GPU")
    return replace(inputs, gpu=catalogue_gpu(value)), policy


def _field(name: str, parse: Callable[[str], Any]) -> Callable[[PlanInputs, Policy, str], Variant]:
    def change(inputs: PlanInputs, policy: Policy, value: str) -> Variant:
        changed: dict[str, Any] = {name: parse(value)}
        return inputs, replace(policy, **changed)

    return change


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise UsageError(f"{text!r} is not a number") from None


def _whole(text: str) -> int:
    if not text.isdecimal() or not int(text):
        raise UsageError(f"{text!r} is not a whole number above 0")
    return int(text)


def _one_of(*words: str) -> Callable[[str], str]:
    def parse(text: str) -> str:
        if text not in words:
            raise UsageError(f"{text!r} is none of {', '.join(words)}")
        return text

    return parse


def _yes(text: str) -> bool:
    return _one_of("yes", "no")(text) == "yes"


_CHANGES: dict[str, Callable[[PlanInputs, Policy, str], Variant]] = {
    "kv-dtype": _kv_dtype,
    "tp": _parallel("tp"),
    "pp": _parallel("pp"),
    "gpu": _gpu,
    "estimate": _document("estimate"),
    "workload": _document("workload"),
    "probe": _document("probe"),
    "replicas": _field("replicas", _whole),
    "replicas-per-host": _field("replicas_per_host", _whole),
    "growth": _field("growth", _number),
    "host-memory": _field("host_memory_bytes", parse_size),
    "disk": _field("disk_bytes", parse_size),
    "host-link": _field("host_link_bytes_per_s", parse_rate),
    "gpu-memory-utilization": _field("gpu_memory_utilization", _number),
    "ttl": _field("ttl_s", parse_duration),
    "restart-every": _field("restart_every_s", parse_duration),
    "headroom": _field("headroom_ratio", _number),
    "expansion": _field("expansion", _number),
    "share": _field("share", _one_of("all", "tenant", "none")),
    "routing": _field("routing", _one_of("affinity", "session", "round-robin")),
    "disk-admission": _field("disk_admission", _one_of("all", "second-use")),
    "offload": _field("offload", _one_of("native", "lmcache", "lmcache-server")),
    "price-view": _field("price_view", _one_of("owned", "bought", "rented")),
    "forbid-disk": _field("forbid_disk", _yes),
    "forbid-host": _field("forbid_host", _yes),
}
