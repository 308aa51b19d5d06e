"""A probe for people: what the host allows, and what its links really carry at each granule."""

from __future__ import annotations

from kvplan.documents import BlockDevice, Disk, Document, GpuDevice, Host, Prefill, Probe
from kvplan.page import Axis, Block, Fact, Facts, Figure, Page, Plot, Row, Section, Series
from kvplan.pages import parts, probe_links, probe_meeting
from kvplan.pages.parts import fact
from kvplan.pages.probe_links import WORDS, is_plain
from kvplan.units import show_bytes, show_duration, show_rate


def page(document: Document[Probe]) -> Page:
    """What a person wants to see of a probe."""
    probe = document.data
    sections = (
        _summary(probe),
        *probe_links.quickest(probe),
        *parts.findings(probe.findings),
        *_prefill(probe),
        *probe_links.throughput(probe),
        *probe_links.engines(probe),
        *probe_links.means(probe),
        *probe_meeting.contention(probe),
        *probe_meeting.pipeline(probe),
        *probe_links.cells(probe),
        _limits(probe.host),
        *_pinning(probe),
        *_drives(probe),
        *_gpus(probe.host),
        _evidence(probe),
    )
    return Page(
        kind=document.kind,
        title=f"Host: {probe.host.cpu}",
        lead=_lead(probe),
        origin=parts.origin(document),
        sections=sections,
    )


def _lead(probe: Probe) -> str:
    host = probe.host
    usable, total = show_bytes(host.usable_memory_bytes), show_bytes(host.memory_total_bytes)
    line = f"{usable} of {total} host memory usable; {host.gpu_status}"
    rates = []
    for direction in ("h2d", "d2h", "read", "write"):
        clean = [
            link.p50_bytes_per_s
            for link in probe.links
            if link.direction == direction and is_plain(link) and not link.flags and link.concurrent == "none"
        ]
        if clean:
            rates.append(f"{WORDS[direction]} up to {show_rate(max(clean))}")
    return f"{line}; {', '.join(rates)}." if rates else f"{line}; no link measured."


def _summary(probe: Probe) -> Section:
    host = probe.host
    total, shm = show_bytes(host.memory_total_bytes), parts.bytes_or_unknown(host.shm_total_bytes)
    gpu = host.gpus[0].name if host.gpus else "none"
    facts = [
        fact("usable memory", show_bytes(host.usable_memory_bytes), f"of {total}, cgroups honoured", "measured"),
        fact("CPU", parts.plural(host.cores, "core"), host.cpu, "measured"),
        fact("GPU", gpu, host.gpu_status, "measured"),
        fact("/dev/shm", parts.bytes_or_unknown(host.shm_free_bytes), f"free of {shm}", "measured"),
    ]
    for disk in probe.capacity:
        note = f"free of {show_bytes(disk.total_bytes)}, {disk.filesystem}, direct I/O {disk.direct}"
        note += f"; not to be trusted: {', '.join(disk.flags)}" if disk.flags else ""
        facts.append(fact(f"disk {disk.path}", show_bytes(disk.free_bytes), note, "measured"))
    return Section(name="summary", heading="At a glance", blocks=(Facts(items=tuple(facts)),), first=True)


# ------------------------------------------------------------------------------------------------- prefill


def prefill_facts(prefill: Prefill) -> tuple[Fact, ...]:
    """The recompute cost as its three numbers and their reach."""
    linear, square = (
        f"{prefill.a_s_per_token * 1e6:.3g} µs a token",
        f"{prefill.b_s_per_token_sq * 1e9:.3g} ns a token²",
    )
    cost, origin = f"{show_duration(prefill.t0_s)} + {linear} + {square}", prefill.provenance
    facts = [fact(f"recompute on {prefill.device}", cost, f"{prefill.model}; {prefill.source}", origin)]
    if (prefill.low_ratio, prefill.high_ratio) != (1.0, 1.0):
        span = f"{prefill.low_ratio:.2f} to {prefill.high_ratio:.2f} times"
        facts.append(fact("range of the true time", span, "of what the three numbers give", origin))
    if prefill.worst_relative_error is not None:
        most = prefill.max_measured_tokens
        reach = "" if most is None else f"measured up to {most:,} tokens"
        facts.append(fact("worst error of the fit", f"{prefill.worst_relative_error * 100:.1f} %", reach, origin))
    return tuple(facts)


def _prefill(probe: Probe) -> tuple[Section, ...]:
    if not probe.prefill:
        return ()
    blocks: list[Block] = []
    for index, prefill in enumerate(probe.prefill):
        blocks.append(Facts(items=prefill_facts(prefill)))
        if prefill.points:
            blocks.append(_prefill_figure(prefill, index))
    return (Section(name="prefill", heading="What recomputing costs", blocks=tuple(blocks), first=True),)


def _prefill_figure(prefill: Prefill, index: int) -> Figure:
    fresh = sorted((float(point.tokens), point.seconds) for point in prefill.points if point.prefix_tokens == 0)
    fit = tuple((n, prefill.seconds(n)) for n, _ in fresh)
    plot = Plot(
        x=Axis(title="tokens", unit="length", log=True),
        y=Axis(title="prefill time", unit="s", log=True),
        series=(
            Series(name="fit", points=fit, role="recompute"),
            Series(name="measured", points=tuple(fresh), role="main", style="dots"),
        ),
    )
    error = prefill.worst_relative_error
    reading = (
        "The fit"
        + ("" if error is None else f" is at most {error * 100:.1f} % off")
        + f" over {parts.plural(len(prefill.points), 'measured length')}."
    )
    return Figure(
        name=f"prefill-{index + 1}",
        title=f"Prefill of {prefill.model}",
        reading=reading,
        alt=f"Measured prefill times against tokens with the fitted curve. {reading}",
        charts=(plot,),
    )


# -------------------------------------------------------------------------------------------------- limits


def _limits(host: Host) -> Section:
    rows = [("memory", show_bytes(host.memory_total_bytes), f"{show_bytes(host.memory_available_bytes)} available now")]
    for level in host.cgroups:
        used, clean = parts.bytes_or_unknown(level.current_bytes), parts.bytes_or_unknown(level.reclaimable_bytes)
        most = "no limit" if level.limit_bytes is None else show_bytes(level.limit_bytes)
        rows.append((f"cgroup {level.path}", most, f"{used} in use, {clean} of it reclaimable"))
    rows.append(
        ("memlock", _no_limit(host.memlock_bytes), "soft limit of mlock; it does not bound what CUDA page-locks")
    )
    rows.append(
        (
            "/dev/shm",
            parts.bytes_or_unknown(host.shm_total_bytes),
            f"{parts.bytes_or_unknown(host.shm_free_bytes)} free",
        )
    )
    for node in host.numa:
        rows.append(
            (
                f"NUMA node {node.node}",
                show_bytes(node.total_bytes),
                f"{show_bytes(node.free_bytes)} free, CPUs {node.cpus}",
            )
        )
    blocks = (parts.table("limit|>size|note", rows),)
    return Section(name="limits", heading="What the host allows", blocks=blocks)


def _no_limit(size: int | None) -> str:
    return "no limit" if size is None else show_bytes(size)


def _pinning(probe: Probe) -> tuple[Section, ...]:
    if not probe.pinning:
        return ()
    rows = [
        Row(
            cells=(
                f"gpu{one.gpu}",
                show_bytes(one.requested_bytes),
                show_bytes(one.pinned_bytes),
                show_bytes(one.largest_bytes),
                show_duration(one.touch_s),
                show_duration(one.register_s),
                one.stopped or "",
            ),
            tone="warning" if one.stopped else "plain",
        )
        for one in probe.pinning
    ]
    columns = "for|>asked|>page-locked|>largest at once|>first touch|>registering|stopped by"
    return (Section(name="pinning", heading="Page-locked memory", blocks=(parts.table(columns, rows),)),)


def _drives(probe: Probe) -> tuple[Section, ...]:
    if not probe.capacity:
        return ()
    columns = "`folder|drive|filesystem|>size|>free|direct I/O|proof|>rated writes|flags"
    blocks: list[Block] = [parts.table(columns, [_drive(disk) for disk in probe.capacity])]
    members = {drive.name: drive for disk in probe.capacity for drive in disk.members}
    if members:
        columns = (
            "device|`PCI|link|>NUMA node|scheduler|>requests|>largest I/O|>segments|>written in its life|>life used"
        )
        blocks.append(parts.table(columns, [_member(drive) for drive in members.values()]))
    return (Section(name="drives", heading="Drives", blocks=tuple(blocks)),)


def _member(drive: BlockDevice) -> tuple[str, ...]:
    def word(value: object) -> str:
        return parts.UNKNOWN if value is None else str(value)

    path = " > ".join((*drive.bridges, drive.pci)) if drive.pci else parts.UNKNOWN
    link = word(drive.link) + (f" (up to {drive.max_link})" if drive.max_link not in (None, drive.link) else "")
    return (
        drive.name,
        path,
        link,
        word(drive.numa_node),
        word(drive.scheduler),
        word(drive.requests),
        parts.bytes_or_unknown(drive.max_io_bytes),
        word(drive.max_segments),
        parts.bytes_or_unknown(drive.lifetime_written_bytes),
        parts.UNKNOWN if drive.used_ratio is None else f"{drive.used_ratio:.0%}",
    )


def _drive(disk: Disk) -> Row:
    kind = {True: "rotating", False: "solid state", None: ""}[disk.rotational]
    name = ", ".join(text for text in (disk.device, disk.model or "", kind) if text)
    rated = parts.bytes_or_unknown(disk.rated_endurance_bytes)
    cells = (
        disk.path,
        name,
        disk.filesystem,
        show_bytes(disk.total_bytes),
        show_bytes(disk.free_bytes),
        disk.direct,
        "; ".join(disk.proof),
        rated,
        ", ".join(disk.flags),
    )
    return Row(cells=cells, tone="plain" if disk.direct == "proven" and not disk.flags else "warning")


def _gpus(host: Host) -> tuple[Section, ...]:
    if not host.gpus:
        return ()
    columns = ">index|name|>memory|>free|`PCI|>NUMA node|link|driver|compute"
    return (Section(name="gpus", heading="GPUs", blocks=(parts.table(columns, [_gpu(gpu) for gpu in host.gpus]),)),)


def _gpu(gpu: GpuDevice) -> tuple[str, ...]:
    def word(value: object) -> str:
        return parts.UNKNOWN if value is None else str(value)

    link = (
        f"Gen{word(gpu.link_generation)} x{word(gpu.link_width)}"
        if gpu.link_generation or gpu.link_width
        else parts.UNKNOWN
    )
    if gpu.max_link_generation or gpu.max_link_width:
        link += f" (up to Gen{word(gpu.max_link_generation)} x{word(gpu.max_link_width)})"
    return (
        f"{gpu.index}",
        gpu.name,
        show_bytes(gpu.total_bytes),
        show_bytes(gpu.free_bytes),
        word(gpu.pci),
        word(gpu.numa_node),
        link,
        word(gpu.driver),
        word(gpu.compute_capability),
    )


def _evidence(probe: Probe) -> Section:
    host = probe.host
    system = f"kernel {host.kernel}" + (f", in {host.container}" if host.container else "")
    facts = [
        fact("system", host.system, system, "measured"),
        fact("probing took", show_duration(probe.wall_s), f"wrote {show_bytes(probe.written_bytes)}", "measured"),
    ]
    copied = [disk.memory_copy_bytes_per_s for disk in probe.capacity if disk.memory_copy_bytes_per_s is not None]
    if copied:
        note = "all processors at once; a drive above half of that would be a cache"
        facts.append(fact("copying in memory", show_rate(max(copied)), note, "measured"))
    return Section(name="evidence", heading="Where the figures come from", blocks=(Facts(items=tuple(facts)),))
