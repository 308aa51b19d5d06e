"""A simulation for people: the same schedule in every arm, side by side."""

from __future__ import annotations

from kvplan.documents import Arm, ArmResult, Document, Fault, Simulation, Spread, TierUse
from kvplan.page import Block, Fact, Facts, Page, Row, Section, Table, Text
from kvplan.pages import parts
from kvplan.pages import simulation_figures as figures
from kvplan.units import show_bytes, show_duration, show_percent, show_rate, show_tokens


def page(document: Document[Simulation], growth: float = 1.0) -> Page:
    """What a person wants to see of a simulation; `growth` is how many times the log's demand its plan is for."""
    simulation = document.data
    sections = (
        _arms(simulation),
        *_rates(simulation, growth),
        _trust(simulation),
        *parts.findings(simulation.findings),
        *_waiting(simulation),
        *_phases(simulation),
        _slices(simulation),
        _tiers(simulation),
        _removals(simulation),
        *_faults(simulation),
        _engine(simulation),
    )
    return Page(
        kind=document.kind,
        title=f"{simulation.requests:,} requests to {_model(simulation)}, played",
        lead=_lead(simulation),
        origin=parts.origin(document),
        sections=sections,
    )


def _lead(simulation: Simulation) -> str:
    """The second arm (offload on) against the first (off): the rates that hold where they are known, else times."""
    off, *others = simulation.arms
    pace = f"With {_pace(simulation)}"
    if not any(one.input_tokens for one in simulation.arms):
        return f"{pace}: no request was served in any arm, so nothing can be said of hits and waiting."
    if not others:
        return f"{pace}, arm {off.arm.name} alone: {show_percent(off.hit_ratio)} of input tokens hit."
    on = others[0]
    line = f"{pace}, arm {on.arm.name} against {off.arm.name}: hits {show_percent(off.hit_ratio)} to "
    line += show_percent(on.hit_ratio)
    before, after = off.sustainable, on.sustainable
    if before and after and before.requests_per_s and after.requests_per_s:
        target = show_duration(before.slo_ttft_s)
        rates = f"{before.requests_per_s:.3g}/s to {after.requests_per_s:.3g}/s"
        return f"{line}, sustainable rate at p90 TTFT {target} {rates}."
    if off.ttft is None or on.ttft is None:
        return f"{line}."
    line += f", p90 TTFT {show_duration(off.ttft.p90)} to {show_duration(on.ttft.p90)}"
    if simulation.loop.kind == "concurrency":
        line += f", {_throughput(off)} to {_throughput(on)} answers a second"
    return f"{line}."


def _throughput(one: ArmResult) -> str:
    return parts.UNKNOWN if one.completed_per_s is None else f"{one.completed_per_s:.3g}"


def _model(simulation: Simulation) -> str:
    return "an engine given by its figures" if simulation.model is None else parts.model_name(simulation.model)


def _pace(simulation: Simulation) -> str:
    """How requests come."""
    loop = simulation.loop
    if loop.kind == "concurrency":
        return f"{parts.plural(loop.concurrency or 0, 'client')}, each waiting for its answer (closed loop)"
    if loop.kind == "sessions":
        return f"{simulation.follow_ups:,} later turns that wait for the answer before (closed loop)"
    if simulation.requests_per_s is not None:
        return f"{simulation.requests_per_s:.3g} requests/s (open loop)"
    return "one request" if simulation.requests == 1 else "all requests at one moment (open loop)"


def _spread(times: Spread | None) -> str:
    """'p50 / p90 / p99' of a time."""
    if times is None:
        return parts.NONE
    return " / ".join(show_duration(value) for value in (times.p50, times.p90, times.p99))


def _what(arm: Arm) -> str:
    tiers = ((arm.host_bytes, "host memory"), (arm.disk_bytes, "disk"))
    words = [f"{show_bytes(size)} of {name}" for size, name in tiers if size] or ["the GPU alone"]
    rules = (
        (arm.policy.upper(), "LRU"),
        (f"host admission on {arm.admission}", "host admission on all"),
        (f"disk admission on {arm.disk_admission}", "disk admission on all"),
        (f"stores {arm.store}", "stores write-through"),
        (f"prefixes in flight: {arm.in_flight}", "prefixes in flight: recompute"),
    )
    words += [value for value, usual in rules if value != usual]
    if arm.ttl_s is not None:
        words.append(f"blocks unused for {show_duration(arm.ttl_s)} dropped")
    if arm.share != "all":
        words.append({"tenant": "shared within a tenant", "none": "nothing shared between requests"}[arm.share])
    if arm.host_link_bytes_per_s is not None:
        words.append(f"a host link of {show_rate(arm.host_link_bytes_per_s)}")
    return ", ".join(words)


def _arms(simulation: Simulation) -> Section:
    rows = [
        (
            one.arm.name,
            show_percent(one.hit_ratio) if one.input_tokens else parts.NONE,
            _spread(one.ttft),
            _spread(one.queue_wait),
            show_percent(one.gpu_busy_ratio),
            f"{one.completed:,} of {one.submitted:,}",
            _throughput(one),
            f"{one.preemptions:,}",
        )
        for one in simulation.arms
    ]
    columns = "arm|>hits|>TTFT p50 / p90 / p99|>queue wait p50 / p90 / p99|>GPU busy|>completed|->a second|->preempted"
    same = "arrivals" if simulation.loop.kind == "open" else "clients, whose requests come when answers do"
    reading = f"Every arm sees the same {same}. A hit is an input token that need not be computed when first admitted."
    each = " for each replica" if simulation.engine.replicas > 1 else ""
    has = "; ".join(f"{one.arm.name} has {_what(one.arm)}{each if _below(one.arm) else ''}" for one in simulation.arms)
    blocks = (parts.table(columns, rows), Text(text=f"Arm {has}."))
    return Section(name="arms", heading="Arms", reading=reading, blocks=blocks, first=True)


def _below(arm: Arm) -> bool:
    """Whether an arm has anything below the GPU."""
    return bool(arm.host_bytes or arm.disk_bytes)


def _rates(simulation: Simulation, growth: float) -> tuple[Section, ...]:
    rows = []
    for one in simulation.arms:
        found = one.sustainable
        if found is not None:
            holds = parts.NONE if found.requests_per_s is None else f"{found.requests_per_s:.3g}/s"
            fails = "never" if found.fails_at is None else f"{found.fails_at:.3g}/s"
            rows.append((one.arm.name, holds, fails, show_duration(found.slo_ttft_s), f"{found.requests:,}"))
    if not rows:
        return ()
    reading = "The highest rate at which 90 % of requests have their first token in time: what a tier is worth."
    block = parts.table("arm|>holds up to|>fails at|>TTFT target|>requests played", rows)
    blocks: list[Block] = [*figures.rates(simulation), block, *figures.headroom(simulation, growth)]
    return (Section(name="rates", heading="Sustainable rate", reading=reading, blocks=tuple(blocks), first=True),)


def _waiting(simulation: Simulation) -> tuple[Section, ...]:
    """TTFT in every arm at equal loads, where a rate was searched."""
    drawn = figures.ttft(simulation)
    if not drawn:
        return ()
    rows = []
    for one in simulation.arms:
        for load in one.loads:
            times = {point.share: show_duration(point.seconds) for point in load.ttft}
            spread = " / ".join(times.get(share, parts.NONE) for share in (0.5, 0.9, 0.99))
            busy, hits = show_percent(load.gpu_busy_ratio), show_percent(load.hit_ratio)
            rows.append(
                (f"{load.load_ratio * 100:.0f} %", f"{load.requests_per_s:.3g}/s", one.arm.name, hits, busy, spread)
            )
    rows.sort(key=lambda row: float(row[0].rstrip(" %")))
    table = parts.table(">load|>rate|arm|>hits|>GPU busy|>TTFT p50 / p90 / p99", rows)
    reading = f"Load is the share of what arm {simulation.arms[0].arm.name} sustains: the same rate in every arm."
    return (Section(name="waiting", heading="TTFT at equal load", reading=reading, blocks=(*drawn, table)),)


_PHASES = {"cold": "cold start", "full": "a tier is full", "scan-over": "the scan is over"}


def _phases(simulation: Simulation) -> tuple[Section, ...]:
    """What an arm goes through, where there is more than a cold start."""
    rows = [
        (
            one.arm.name,
            _PHASES.get(phase.name) or figures.FAULTS[phase.name],
            show_duration(phase.from_s),
            f"{phase.requests:,}",
            show_percent(phase.hit_ratio) if phase.requests else parts.NONE,
            parts.seconds_or_unknown(phase.ttft_p50_s) if phase.requests else parts.NONE,
            parts.seconds_or_unknown(phase.ttft_p90_s) if phase.requests else parts.NONE,
        )
        for one in simulation.arms
        for phase in one.phases
    ]
    if len(rows) <= len(simulation.arms):
        return ()
    reading = "A phase begins when the largest tier has to give up its first block, or when something happens."
    table = parts.table("arm|phase|>from|>requests|>hits|>p50 TTFT|>p90 TTFT", rows)
    return (Section(name="phases", heading="Phases", reading=reading, blocks=(table,)),)


def _trust(simulation: Simulation) -> Section:
    low, high = simulation.time_low_ratio, simulation.time_high_ratio
    band = f"A real server's times are expected between {low:.2f} and {high:.2f} times these: {simulation.band}."
    missing = Text(text="Not modelled: " + "; ".join(simulation.not_modelled) + ".")
    return Section(name="trust", heading="How far to trust it", blocks=(Text(text=band), missing), first=True)


def _tiers(simulation: Simulation) -> Section:
    rows = [_tier(one, use) for one in simulation.arms for use in one.tiers]
    columns = "arm|tier|>hits|>loaded|>stored|>link busy, loads|>link busy, stores|>blocks at the end|>of"
    return Section(name="tiers", heading="Tier by tier", blocks=(parts.table(columns, rows),))


def _tier(one: ArmResult, use: TierUse) -> tuple[str, ...]:
    below = use.tier != "gpu"
    return (
        one.arm.name,
        parts.TIERS[use.tier],
        show_percent(use.hit_tokens / one.input_tokens if one.input_tokens else 0.0),
        show_bytes(use.loaded_bytes) if below else "",
        show_bytes(use.stored_bytes) if below else "",
        show_percent(use.load_busy_ratio) if below else "",
        show_percent(use.store_busy_ratio) if below else "",
        f"{use.blocks:,}",
        f"{use.capacity_blocks:,}",
    )


def _removals(simulation: Simulation) -> Section:
    rows = []
    for one in simulation.arms:
        for use in one.tiers:
            name = parts.TIERS[use.tier]
            kept, left = use.kept_never_hit_blocks, use.removed_never_hit_blocks
            rows.append((one.arm.name, name, "kept until the end", f"{use.blocks:,}", _count(kept)))
            gone = sum(use.removed_blocks.values())
            if len(use.removed_blocks) > 1:
                rows.append((one.arm.name, name, "removed", f"{gone:,}", _count(left)))
            only = _count(left) if len(use.removed_blocks) == 1 else ""
            rows += [(one.arm.name, name, f"removed: {why}", f"{n:,}", only) for why, n in use.removed_blocks.items()]
            rows += [(one.arm.name, name, f"not taken: {why}", f"{n:,}", "") for why, n in use.refused_blocks.items()]
    block = parts.table("arm|tier|what became of blocks|>blocks|>never hit while there", rows)
    return Section(name="removals", heading="Why blocks stayed or went", blocks=(block,))


def _count(number: int | None) -> str:
    return parts.UNKNOWN if number is None else f"{number:,}"


def _slices(simulation: Simulation) -> Section:
    tables: list[Table] = []
    for one in simulation.arms:
        rows = [
            (
                show_duration(part.from_s),
                f"{part.requests:,}",
                show_percent(part.hit_ratio),
                parts.seconds_or_unknown(part.ttft_p90_s),
                show_bytes(part.host_bytes),
            )
            for part in one.slices
        ]
        all_ = ", all replicas" if simulation.engine.replicas > 1 else ""
        columns = f">from|>requests|>hits|>p90 TTFT|>host memory filled{all_}"
        tables.append(parts.table(columns, rows, title=f"Arm {one.arm.name}"))
    reading = "Tenths of the schedule: a cold start warms up, a fault shows where it struck."
    blocks: list[Block] = [*figures.cold_start(simulation), *figures.occupancy(simulation), *tables]
    return Section(name="slices", heading="Over time", reading=reading, blocks=tuple(blocks))


def _faults(simulation: Simulation) -> tuple[Section, ...]:
    if not simulation.faults:
        return ()
    rows = [(show_duration(fault.at_s), _fault(fault)) for fault in simulation.faults]
    counts = "; ".join(
        f"{one.arm.name}: {one.failed_loads:,} loads failed, {one.submitted - one.completed:,} requests not completed"
        for one in simulation.arms
    )
    blocks = (parts.table(">at|what happened", rows), Text(text=f"{counts}."))
    return (Section(name="faults", heading="Faults", blocks=blocks, first=True),)


def _fault(fault: Fault) -> str:
    keeps = f", {' and '.join(fault.survives)} kept" if fault.survives else ""
    words = {
        "restart": f"the engine restarts, away for {show_duration(fault.value)}{keeps}",
        "tier-lost": f"the {fault.tier} tier is lost",
        "link": f"the link of the {fault.tier} tier runs at {fault.value:g} times its rate",
        "load-failure": f"{show_percent(min(1.0, fault.value))} of loads fail from now on",
        "client-gone": f"the client of request {fault.request} is gone",
        "worker-gone": f"replica {fault.value:.0f} leaves for good",
        "scan": f"{fault.value:,.0f} requests that share nothing come on top",
        "churn": "everything asked for from then on is new",
    }
    return words[fault.kind]


def _engine(simulation: Simulation) -> Section:
    engine = simulation.engine
    facts = (
        Fact(label="KV cache of a replica", value=f"{show_tokens(engine.kv_tokens)} tokens"),
        Fact(label="blocks", value=f"{engine.block_tokens:,} tokens", note="the log's"),
        Fact(label="replicas", value=f"{engine.replicas:,}", note=engine.routing),
        Fact(label="arrivals", value=_pace(simulation), note=f"{simulation.rate_scale:g} x the log"),
    )
    rows = [Row(cells=(one.what, one.value, one.provenance, one.source, one.date or "")) for one in simulation.evidence]
    table = parts.table("what|value|?from|source|date", rows)
    return Section(name="engine", heading="The engine that was played", blocks=(Facts(items=facts), table))
