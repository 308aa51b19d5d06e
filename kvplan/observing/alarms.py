"""Failures that a serving system counts but does not report, as findings whose codes are for scripts."""

from __future__ import annotations

from collections.abc import Sequence

from kvplan.documents import Finding, Severity, TierLoss
from kvplan.engines.metrics.system import Loss, Sum, System, Watch
from kvplan.observing.recording import Recording

_ENOUGH_ROUNDS = 3  # two readings may happen to rise
_ENOUGH_ZEROS = 5  # a gauge that is above zero half the time reads 0 that often once in thirty
_SEVERITY: dict[str, Severity] = {"growing": "error", "stuck": "error", "down": "error", "idle": "info"}
_MOSTLY = 0.1  # a queue that once falls back by more than this share of its rise is being worked off


def watched(system: System, recording: Recording) -> list[Finding]:
    """Each watch of the system that the recording trips."""
    return [finding for watch in system.watches if (finding := _tripped(system, watch, recording)) is not None]


def _tripped(system: System, watch: Watch, recording: Recording) -> Finding | None:
    match watch.kind:
        case "growing":
            said = _growing(watch, recording)
        case "stuck":
            said = _stuck(watch, recording)
        case "silent":
            said = _silent(watch, recording)
        case "idle":
            said = _idle(watch, recording)
        case "down":
            said = _down(watch, recording)
    if said is None:
        return None
    severity = _SEVERITY.get(watch.kind, "warning")
    return Finding(severity=severity, code=watch.code, text=f"{system.title}: {watch.text} ({said})")


def _growing(watch: Watch, recording: Recording) -> str | None:
    """A queue that grows from page to page: a gauge, or what was begun over what was done since the first page."""
    if watch.waiting is not None:
        queue = [value for value in recording.levels(watch.waiting) if value is not None]
    else:
        begun, done = recording.steps(watch.started), recording.steps(watch.done)
        queue = _running_total(begun, done) if begun is not None and done is not None else []
    if recording.since_start or len(queue) < _ENOUGH_ROUNDS or not only_grows(queue):
        return None
    done_steps = recording.steps(watch.done)
    still = "" if done_steps is None else f", while {sum(done_steps):,.0f} were done"
    return f"{queue[0]:,.0f} to {queue[-1]:,.0f} over {len(queue)} pages{still}"


def _stuck(watch: Watch, recording: Recording) -> str | None:
    """Something waited on each of the last pages, and between them nothing was done."""
    done = recording.steps(watch.done)
    if watch.waiting is None or done is None or recording.since_start or recording.rounds < _ENOUGH_ROUNDS:
        return None
    waiting = recording.levels(watch.waiting)[-_ENOUGH_ROUNDS:]
    if any(value is None or value <= 0 for value in waiting) or sum(done[-_ENOUGH_ROUNDS + 1 :]) > 0:
        return None
    return f"{waiting[-1]:,.0f} waiting on the last page, 0 done over the last {_ENOUGH_ROUNDS}"


def _idle(watch: Watch, recording: Recording) -> str | None:
    """A gauge that read 0 on every page while work was counted."""
    work = _most_there(watch.work, recording)
    if watch.waiting is None or not work or recording.since_start:
        return None
    read = [value for value in recording.levels(watch.waiting) if value is not None]
    return None if len(read) < _ENOUGH_ZEROS or any(read) else f"0 on all of {len(read)} pages"


def only_grows(queue: Sequence[float]) -> bool:
    """Whether a queue ended higher than it began and never fell back by more than a tenth of its rise."""
    rise = queue[-1] - min(queue)
    if queue[-1] <= queue[0] or rise <= 0:
        return False
    most = queue[0]
    for value in queue:
        if most - value > _MOSTLY * rise:
            return False
        most = max(most, value)
    return queue[-1] >= most


def _running_total(begun: Sequence[float], done: Sequence[float]) -> list[float]:
    queue = [0.0]
    for more, less in zip(begun, done, strict=True):
        queue.append(queue[-1] + more - less)
    return queue


def _silent(watch: Watch, recording: Recording) -> str | None:
    """Work that was done for nothing. A metric that is on no page says nothing, and nothing is concluded from it."""
    work = _most_there(watch.work, recording)
    use = _most_there(watch.use, recording)
    if not work or use is None or use > 0:
        return None
    return f"{work:,.0f} against 0 in {' + '.join(pick.names[0] for pick in watch.use if recording.has(pick))}"


def _most_there(picks: Sum, recording: Recording) -> float | None:
    """The most that any of `picks` gained; None where none is on a page, or what one gained cannot be told. Some are
    older names of the same count."""
    if any(recording.has(pick) and recording.untold(pick) for pick in picks):
        return None
    there = [value for pick in picks if (value := recording.increase((pick,))) is not None]
    return max(there) if there else None


def _down(watch: Watch, recording: Recording) -> str | None:
    if watch.waiting is None:
        return None
    levels = recording.levels(watch.waiting)
    full = recording.levels(watch.full) if watch.full is not None else [1.0] * len(levels)
    low = [(a, b) for a, b in zip(levels, full, strict=True) if a is not None and b is not None and a < b]
    return None if not low else f"{low[-1][0]:,.0f} of {low[-1][1]:,.0f}, on {len(low)} of {len(levels)} pages"


def lost(system: System, losses: Sequence[tuple[Loss, TierLoss]]) -> list[Finding]:
    """What was refused or failed where any at all is a sign of something wrong."""
    findings = []
    for row, one in losses:
        if row.trouble and one.amount:
            text = f"{system.title}: {one.amount:,} {one.unit} {one.what} ({one.reason}): {row.trouble}"
            findings.append(Finding(severity="warning", code=f"{one.what}-{one.tier}", text=text))
    return findings


def missing(system: System, recording: Recording) -> list[Finding]:
    """Metrics that this system always has and that no page shows, with what there is under a name like it."""
    findings = []
    cut = any(page is not None and page.cut for track in recording.tracks for page in track.pages)  # which is said
    for pick in system.needed:
        if recording.has(pick):
            if pick.names[0].endswith("_total") and recording.untold(pick) and not cut:
                text = f"{system.title}: {pick.names[0]} can be read on one page alone: what it gained is not known"
                findings.append(Finding(severity="warning", code="metric-missing", text=text))
            continue
        near = _near(pick.names[0], recording)
        text = f"{system.title}: no page has {pick.names[0]}" + (f"; alike: {', '.join(near)}" if near else "")
        text += (
            f": renamed since {system.version}, switched off, or filtered on its way; figures made of it are missing"
        )
        findings.append(Finding(severity="warning", code="metric-missing", text=text))
    return findings


def _near(name: str, recording: Recording) -> list[str]:
    from difflib import get_close_matches

    from kvplan.engines.metrics import plain

    return get_close_matches(plain(name), sorted(recording.names), n=2, cutoff=0.75)
