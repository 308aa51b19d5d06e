"""An estimate for people: what one token costs, what one GPU holds, and how it grows with length."""

from __future__ import annotations

from kvplan.documents import CacheGroup, Document, Estimate, GpuMemory, PageKind
from kvplan.page import (
    Axis,
    Block,
    Fact,
    Facts,
    Figure,
    Page,
    Part,
    Plot,
    Role,
    Row,
    Rule,
    Section,
    Series,
    Stack,
    Table,
)
from kvplan.pages import estimate_more, parts
from kvplan.units import show_bytes, show_exact, show_tokens

_LONGEST = 131_072  # where the model names no longest sequence, the chart stops here


def page(document: Document[Estimate]) -> Page:
    """What a person wants to see of an estimate."""
    estimate = document.data
    sections = (
        _costs(estimate),
        *_memory(estimate),
        *_lengths(estimate),
        *estimate_more.growth(estimate),
        *estimate_more.mix(estimate),
        *estimate_more.media(estimate),
        *estimate_more.log(estimate),
        *parts.findings(estimate.findings),
        _layers(estimate),
        _growth(estimate),
        *_engine_view(estimate),
        _evidence(estimate),
    )
    return Page(
        kind=document.kind,
        title=f"KV cache of {parts.model_name(estimate.model)}",
        lead=_lead(estimate),
        origin=parts.origin(document),
        sections=sections,
    )


def _lead(estimate: Estimate) -> str:
    kv = estimate.kv
    cost = f"{show_exact(kv.bytes_per_token)} a token" if kv.bytes_per_token else "No growth with length"
    fixed = f" and {show_bytes(kv.bytes_per_sequence)} a sequence" if kv.bytes_per_sequence else ""
    line = f"{cost}{fixed} in {estimate.kv_dtype}."
    if estimate.memory is not None:
        line += f" One {_card(estimate.memory)} holds {show_tokens(estimate.memory.kv_tokens)} tokens of it."
    return line


def _card(memory: GpuMemory) -> str:
    """A GPU by its name, or by the memory that was stated for it."""
    if memory.gpu in ("", "as stated"):
        return "GPU" if memory.total_bytes is None else f"GPU of {show_bytes(memory.total_bytes)}"
    return memory.gpu


def _costs(estimate: Estimate) -> Section:
    kv = estimate.kv
    facts = [
        Fact(label="per cached token", value=show_bytes(kv.bytes_per_token), note="whole model, one copy"),
        Fact(
            label="per sequence besides",
            value=show_bytes(kv.bytes_per_sequence),
            note="full windows, state, cross attention",
        ),
        Fact(
            label="per token on the fullest GPU",
            value=show_bytes(kv.bytes_per_token_per_gpu),
            note=parts.parallel(estimate.parallel),
        ),
        Fact(
            label="per token in a host or disk tier",
            value=show_bytes(kv.offload_bytes_per_token),
            note="all ranks together",
        ),
    ]
    if estimate.weights is not None:
        weights = estimate.weights
        count = "" if weights.params is None else f", {weights.params / 1e9:,.2f} G parameters"
        note = f"{show_bytes(weights.bytes_per_gpu)} on the fullest GPU{count}"
        facts.append(Fact(label="weights", value=show_bytes(weights.bytes), note=note, provenance=weights.provenance))
    facts.append(
        Fact(
            label="engine",
            value=estimate.engine,
            note=f"{estimate.kv_dtype}, blocks of {parts.plural(estimate.block_tokens, 'token')}",
        )
    )
    return Section(name="cost", heading="What it costs", blocks=(Facts(items=tuple(facts)),), first=True)


def gpu_parts(memory: GpuMemory) -> tuple[Part, ...]:
    """One GPU's memory as parts of a bar."""
    known = memory.total_bytes is not None and memory.usable_bytes is not None
    sizes: tuple[tuple[str, int | None, Role], ...] = (
        ("weights", memory.weights_bytes, "fourth"),
        ("overhead", memory.overhead_bytes, "second"),
        ("KV cache", memory.kv_bytes, "main"),
        ("left alone", (memory.total_bytes or 0) - (memory.usable_bytes or 0) if known else None, "faint"),
    )
    return tuple(Part(name=name, value=float(size), role=role) for name, size, role in sizes if size)


def _memory(estimate: Estimate) -> tuple[Section, ...]:
    memory = estimate.memory
    if memory is None:
        return ()
    bars = gpu_parts(memory)
    usable = None if memory.usable_bytes is None else float(memory.usable_bytes)
    figure = Figure(
        name="gpu-memory",
        title="One GPU's memory",
        reading=f"{show_bytes(memory.kv_bytes)} are left for KV cache: {show_tokens(memory.kv_tokens)} tokens.",
        alt="Bar of one GPU's memory: " + ", ".join(f"{part.name} {show_bytes(part.value)}" for part in bars) + ".",
        charts=(Stack(title=_card(memory), unit="bytes", parts=bars, limit=usable, limit_label="usable"),),
        plot=True,
    )
    blocks: list[Block] = [figure]
    if memory.overhead_bytes is not None:
        overhead = Fact(
            label="overhead",
            value=show_bytes(memory.overhead_bytes),
            note=memory.overhead_source,
            provenance=memory.overhead_provenance,
        )
        blocks.append(Facts(items=(overhead,)))
    rows = [(f"{one.context_tokens:,}", f"{one.sequences:,.2f}") for one in memory.max_concurrency]
    if rows:
        blocks.append(parts.table(">context tokens|>sequences at once", rows, title="How many sequences fit"))
    return (Section(name="memory", heading="What one GPU holds", blocks=tuple(blocks), first=True),)


def _lengths(estimate: Estimate) -> tuple[Section, ...]:
    """Bytes at the lengths asked for: three columns where they differ, one where they do not."""
    at = estimate.kv.bytes_at
    if not at:
        return ()
    sizes = [(one.steady_bytes, one.admission_bytes, one.hybrid_off_bytes) for one in at]
    apart = any(len(set(three)) > 1 for three in sizes)
    columns = ">tokens|>sequences|>" + ("in steady use|>as admitted|>hybrid manager off" if apart else "bytes")
    rows = [
        (f"{one.tokens:,}", f"{one.sequences:,}", *(show_bytes(size) for size in (three if apart else three[:1])))
        for one, three in zip(at, sizes, strict=True)
    ]
    reading = ""
    if apart:
        reading = "What is in use, what must be free before the engine admits them, and with every window held in full."
    block = parts.table(columns, rows)
    return (Section(name="lengths", heading="At the lengths asked for", reading=reading, blocks=(block,), first=True),)


def _layers(estimate: Estimate) -> Section:
    rows = [
        (
            group.kind,
            f"{group.layers}",
            show_bytes(group.bytes_per_token),
            show_bytes(group.bytes_per_sequence),
            "" if group.window_tokens is None else f"{group.window_tokens:,}",
            group.arithmetic,
            ", ".join(group.keys),
        )
        for group in estimate.groups
    ]
    columns = "layers|>how many|>per token|>per sequence|>window|arithmetic|`config keys"
    reading = "Layers with a window stop growing once it is full; state and cross attention never grow."
    return Section(name="layers", heading="Layer by layer", reading=reading, blocks=(parts.table(columns, rows),))


def sequence_bytes(group: CacheGroup, tokens: int) -> int:
    """What one sequence of `tokens` tokens holds in this group: growth up to the window, fixed parts besides."""
    if group.window_tokens is None:
        return group.bytes_per_token * tokens + group.bytes_per_sequence
    return min(group.bytes_per_token * tokens, group.bytes_per_sequence)


def _growth(estimate: Estimate) -> Section:
    longest = estimate.model.max_context_tokens or _LONGEST
    lengths = sorted({min(1 << power, longest) for power in range(7, 31) if 1 << power < 2 * longest})
    total = tuple((float(n), float(sum(sequence_bytes(group, n) for group in estimate.groups))) for n in lengths)
    series = [Series(name="one sequence, whole model", points=total, role="main")]
    if len(estimate.groups) > 1:
        roles: tuple[Role, ...] = ("second", "third", "fourth", "gpu", "muted", "recompute")
        series += [
            Series(
                name=f"{group.kind} layers",
                points=tuple((float(n), float(sequence_bytes(group, n))) for n in lengths),
                role=roles[index % len(roles)],
                style="dashed",
            )
            for index, group in enumerate(estimate.groups)
        ]
    rules: tuple[Rule, ...] = ()
    if estimate.memory is not None and estimate.memory.kv_bytes < total[-1][1]:
        rules = (Rule(axis="y", value=float(estimate.memory.kv_bytes), label="KV memory of one GPU", role="danger"),)
    plot = Plot(
        x=Axis(title="tokens in the sequence", unit="length", log=True),
        y=Axis(title="bytes held", unit="bytes", log=True),
        series=tuple(series),
        rules=rules,
    )
    last = f"{show_bytes(total[-1][1])} at {lengths[-1]:,} tokens"
    figure = Figure(
        name="growth",
        title="Bytes against length",
        reading=f"One sequence holds {last}.",
        alt=f"Bytes of one sequence by length, from {show_bytes(total[0][1])} at {lengths[0]} tokens to {last}.",
        charts=(plot,),
        plot=bool(estimate.kv.bytes_at),
    )
    asked = bool(estimate.kv.bytes_at)  # whoever asks for lengths sees the curve at once
    return Section(name="growth", heading="How it grows", blocks=(figure,), first=asked)


def _engine_view(estimate: Estimate) -> tuple[Section, ...]:
    if not estimate.engine_view:
        return ()
    plain = {name: value for name, value in estimate.engine_view.items() if not isinstance(value, tuple)}
    rows = [(name, parts.UNKNOWN if value is None else _plain(value)) for name, value in plain.items()]
    version = f" {estimate.engine_version}" if estimate.engine_version else ""
    reading = f"The figures that {estimate.engine} itself would print or take, under its own names"
    reading += f", by the rules of{version}." if version else "."
    blocks: list[Block] = [parts.table("`name|>value", rows)]
    for name, value in estimate.engine_view.items():
        if isinstance(value, tuple):
            blocks.append(_pages(name, value))
    return (
        Section(
            name="engine", heading=f"As {estimate.engine} says it", reading=reading, blocks=tuple(blocks), first=True
        ),
    )


def _pages(name: str, kinds: tuple[PageKind, ...]) -> Table:
    rows = [
        (
            kind.kind,
            f"{kind.layers}",
            "" if kind.window_tokens is None else f"{kind.window_tokens:,}",
            f"{kind.block_tokens:,}",
            show_exact(kind.page_bytes),
        )
        for kind in kinds
    ]
    return parts.table("layers|>how many|>window|>tokens a block|>a page of one layer", rows, title=name.capitalize())


def _plain(value: int | float | str) -> str:
    if isinstance(value, str):
        return value
    return f"{value:,}" if isinstance(value, int) else f"{value:,.4g}"


def _evidence(estimate: Estimate) -> Section:
    model = estimate.model
    rows = [
        Row(
            cells=(
                "model",
                f"{model.model_type}, {model.id}",
                "configured",
                parts.model_source(model),
                model.date or "",
            )
        )
    ]
    if estimate.weights is not None:
        weights = estimate.weights
        rows.append(Row(cells=("weights", show_exact(weights.bytes), weights.provenance, weights.source, "")))
    memory = estimate.memory
    if memory is not None and memory.overhead_bytes is not None:
        overhead = (show_exact(memory.overhead_bytes), memory.overhead_provenance, memory.overhead_source)
        rows.append(Row(cells=("overhead", *overhead, "")))
    if estimate.compute is not None:
        compute = estimate.compute
        cost = (
            f"{compute.linear_flops_per_token:.3g} FLOP a token + {compute.attention_flops_per_token_sq:.3g} a token²"
        )
        rows.append(Row(cells=("prefill work", cost, compute.provenance, compute.source, "")))
    block = parts.table("what|value|?from|source|date", rows)
    return Section(name="evidence", heading="Where the figures come from", blocks=(block,))
