"""Where transfers meet other work: copies beside a decode-like load, and a pipeline between a GPU and a drive."""

from __future__ import annotations

from kvplan.documents import Contention, Pipeline, Probe
from kvplan.page import Row, Section
from kvplan.pages import parts
from kvplan.units import show_bytes, show_duration, show_rate

_WAYS = {"h2d": "host to GPU", "d2h": "GPU to host"}


def contention(probe: Probe) -> tuple[Section, ...]:
    """What copies and decoding take from each other."""
    if not probe.contention:
        return ()
    columns = (
        "for|what|by|>piece|>copies alone|>beside decoding|>step p50 alone|>disturbed|>step p99 alone|>disturbed"
        "|not to be trusted because"
    )
    reading = "Copies while steps that read the GPU's memory as decoding does run on another stream."
    blocks = (parts.table(columns, [_disturbed(one) for one in probe.contention]),)
    return (Section(name="contention", heading="Copies beside decoding", reading=reading, blocks=blocks),)


def _disturbed(one: Contention) -> Row:
    steps = (one.step_alone_p50_s, one.step_loaded_p50_s, one.step_alone_p99_s, one.step_loaded_p99_s)
    cells = (
        f"gpu{one.gpu}",
        _WAYS[one.direction],
        one.mechanism,
        show_bytes(one.granule_bytes),
        show_rate(one.copy_alone_bytes_per_s),
        show_rate(one.copy_loaded_bytes_per_s),
        *(show_duration(step) for step in steps),
        ", ".join(one.flags),
    )
    return Row(cells=cells, tone="warning" if one.flags else "plain")


def pipeline(probe: Probe) -> tuple[Section, ...]:
    """Copies and the drive at the same time, against one after the other."""
    if not probe.pipeline:
        return ()
    columns = (
        "for|`drive|what|>slots|>block|>copies|>drive|>one after the other|>overlapped|>of the slower"
        "|not to be trusted because"
    )
    reading = "Blocks through page-locked slots: with enough of them the slower stage alone decides."
    blocks = (parts.table(columns, [_piped(one) for one in probe.pipeline]),)
    return (Section(name="pipeline", heading="GPU to drive and back", reading=reading, blocks=blocks),)


def _piped(one: Pipeline) -> Row:
    cells = (
        f"gpu{one.gpu}",
        one.disk,
        one.direction,
        f"{one.slots}",
        show_bytes(one.block_bytes),
        show_rate(one.copy_bytes_per_s),
        show_rate(one.disk_bytes_per_s),
        show_rate(one.serial_bytes_per_s),
        show_rate(one.overlapped_bytes_per_s),
        f"{one.overlap_ratio:.2f}",
        ", ".join(one.flags),
    )
    return Row(cells=cells, tone="warning" if one.flags else "plain")
