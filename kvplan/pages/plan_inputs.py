"""What went into a plan, and how to make it again."""

from __future__ import annotations

import shlex
from collections.abc import Callable

from msgspec.structs import fields

from kvplan.documents import Plan, Policy
from kvplan.page import Code, Row, Section
from kvplan.pages import parts
from kvplan.render.scales import show
from kvplan.units import show_bytes, show_duration, show_percent, show_rate

_DEFAULT = Policy()
# Policy fields that the command line sets, with their flags; `_SWITCHES` are flags without a value.
_FLAGS: dict[str, tuple[str, Callable[..., str]]] = {
    "engine": ("--engine", str),
    "gpu_memory_utilization": ("--gpu-memory-utilization", "{:g}".format),
    "host_memory_bytes": ("--host-memory", "{}B".format),
    "disk_bytes": ("--disk", "{}B".format),
    "disk_own_bytes": ("--disk-own", "{}B".format),
    "disk_admission": ("--disk-admission", str),
    "ttl_s": ("--ttl", "{:g}s".format),
    "slo_ttft_s": ("--slo-ttft", "{:g}s".format),
    "restart_every_s": ("--restart-every", "{:g}s".format),
    "replicas": ("--replicas", str),
    "replicas_per_host": ("--replicas-per-host", str),
    "routing": ("--routing", str),
    "share": ("--share", str),
    "growth": ("--growth", "{:g}".format),
    "headroom_ratio": ("--headroom", "{:g}".format),
    "offload": ("--offload", str),
    "expansion": ("--expansion", "{:g}".format),
    "host_link_bytes_per_s": ("--host-link", "{:.0f}B/s".format),
    "price_view": ("--price-view", str),
}
_SWITCHES = {"forbid_disk": "--forbid-disk", "allow_flagged_links": "--allow-flagged-links"}
_SHORT = {"gpu": "GPU", "ttl": "TTL", "slo": "SLO", "ttft": "TTFT"}
_UNITS: dict[str, Callable[[float], str]] = {
    "_bytes_per_s": show_rate,
    "_bytes": show_bytes,
    "_ratio": show_percent,
    "_s": show_duration,
}


def inputs(plan: Plan) -> Section:
    """The documents that the plan embeds, and every line of the policy."""
    given = plan.inputs
    estimate = given.estimate.data
    layout = f"{estimate.model.id}, {estimate.engine}, {estimate.kv_dtype}, {parts.parallel(estimate.parallel)}"
    rows = [("estimate", layout, parts.model_source(estimate.model), given.estimate.created)]
    for log in given.workload.data.sources:
        text = f"{log.name}: {parts.plural(log.requests, 'request')}, {log.format}"
        rows.append(("workload", text, f"sha256 {log.sha256[:12]}", given.workload.created))
    if given.probe is not None:
        host = given.probe.data.host
        machine = f"{host.cpu}, {show_bytes(host.memory_total_bytes)}, {host.gpu_status}"
        rows.append(("probe", machine, f"{host.system}, kernel {host.kernel}", given.probe.created))
    if given.gpu is not None:
        rows.append(("GPU", given.gpu.name, given.gpu.source, given.gpu.date))
    if given.prices is not None:
        price = f"GPU {show(given.prices.gpu_usd_per_hour, 'usd')} an hour"
        rows.append(("prices", price, given.prices.source, given.prices.date))
    blocks = (
        parts.table("document|what|identity|date", rows),
        parts.table("policy|value|?from", [_line(plan.policy, one.name) for one in fields(Policy)], title="Policy"),
    )
    return Section(name="inputs", heading="What went in", blocks=blocks)


def _line(policy: Policy, name: str) -> Row:
    value = getattr(policy, name)
    kept = value == getattr(_DEFAULT, name)
    unit = next((suffix for suffix in _UNITS if name.endswith(suffix)), "")
    words = (_SHORT.get(word, word) for word in name.removesuffix(unit).split("_"))
    return Row(cells=(" ".join(words), _value(value, unit), "default" if kept else "configured"), strong=not kept)


def _value(value: object, unit: str) -> str:
    match value:
        case None:
            return "not set"
        case bool():
            return "yes" if value else "no"
        case int() | float():
            return (_UNITS[unit](value) if value else "none") if unit else f"{value:g}"
        case tuple():
            return ", ".join(f"{one.name} {show_bytes(one.bytes)}" for one in value) or "none"
        case _:
            return str(value)


def policy_flags(policy: Policy) -> list[str]:
    """The command-line flags that set this policy; the engine always, the rest where it is not the default."""
    flags = []
    for name, (flag, text) in _FLAGS.items():
        value = getattr(policy, name)
        if name == "engine" or value != getattr(_DEFAULT, name):
            flags += [flag, text(value)]
    for part in policy.reserves:
        flags += ["--reserve", f"{part.name}={part.bytes}B"]
    return flags + [flag for name, flag in _SWITCHES.items() if getattr(policy, name)]


def unflagged(policy: Policy) -> list[str]:
    """Policy fields that are not at their default and that no flag sets."""
    flagged = {*_FLAGS, *_SWITCHES, "reserves"}
    names = (one.name for one in fields(Policy) if one.name not in flagged)
    return [name for name in names if getattr(policy, name) != getattr(_DEFAULT, name)]


def reproduce(plan: Plan) -> Section:
    """The command that makes this plan from the documents in it, and what it cannot say."""
    given = plan.inputs
    documents = ["estimate.json", "workload.json"] + (["probe.json"] if given.probe is not None else [])
    gpu = ["--gpu", given.gpu.name] if given.gpu is not None else []
    prices = ["--prices", "prices.toml"] if given.prices is not None else []
    more = [*gpu, *policy_flags(plan.policy), *prices]
    for line in plan.what_if[1:]:
        more += ["--what-if", line.change]
    command = shlex.join(["kvplan", "plan", *documents, *more, "-o", "plan.json"])
    reading = "From the documents that this plan embeds, saved under these names: the same input gives the same plan."
    other = [name.replace("_", " ") for name in unflagged(plan.policy)]
    if other:
        reading += f" Not set by a flag, but through the Python interface: {', '.join(other)}."
    return Section(name="reproduce", heading="Do it again", reading=reading, blocks=(Code(text=command),))
