"""Live runs for people: what was run, and what offload changed, request by request."""

from __future__ import annotations

from kvplan.documents import Document, Replay
from kvplan.page import Code, Fact, Facts, Page, Section
from kvplan.pages import parts
from kvplan.units import show_duration


def replay_page(document: Document[Replay]) -> Page:
    """What a person wants to see of runs that were made."""
    replay = document.data
    whole = len(replay.runs) == len(replay.order)
    lead = f"{len(replay.runs)} runs in the order {replay.order}" if whole else _cut(replay)
    rows = [
        (str(one.number), one.arm, one.server, show_duration(one.seconds), _scraped(one.metrics_after), one.folder)
        for one in replay.runs
    ]
    runs = parts.table(">run|arm|server|>took|metrics|folder", rows)
    return Page(
        kind=document.kind,
        title=f"{replay.schedule.requests:,} requests, played live",
        lead=f"{lead}: `kvplan compare` says what they show.",
        origin=parts.origin(document),
        sections=(
            Section(name="runs", heading="Runs", blocks=(runs,), first=True),
            Section(name="how", heading="How they were made", blocks=(_how(replay), _command(replay))),
        ),
    )


def _cut(replay: Replay) -> str:
    return f"{len(replay.runs)} of {len(replay.order)} runs in the order {replay.order}, cut short"


def _scraped(path: str | None) -> str:
    return "saved" if path else "the server has none"


def _how(replay: Replay) -> Facts:
    pace = "as the schedule says"
    if replay.concurrency is not None:
        pace = f"{replay.concurrency} at a time"
    if replay.request_rate is not None:
        pace = f"{replay.request_rate:g} a second"
    schedule = replay.schedule
    facts = (
        Fact(label="schedule", value=schedule.name, note=f"sha256 {schedule.sha256[:12]}"),
        Fact(label="sessions", value=f"{schedule.sessions:,}"),
        Fact(label="sent", value=pace),
        Fact(label="load generator", value=replay.generator),
    )
    return Facts(items=facts + tuple(Fact(label=step, value=line) for step, line in replay.commands))


def _command(replay: Replay) -> Code:
    return Code(text=" ".join(replay.command), title="The load generator's command")
