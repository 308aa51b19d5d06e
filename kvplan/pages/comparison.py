"""Live runs for people: what was run, and what offload changed, request by request."""

from __future__ import annotations

from kvplan.documents import Document, Estimated, Grade, LiveComparison, MeasuredArm, MeasuredRun, Replay
from kvplan.page import Code, Decision, Fact, Facts, Page, Row, Section, Tone
from kvplan.pages import comparison_figures as figures
from kvplan.pages import parts
from kvplan.units import show_duration, show_percent


def page(document: Document[LiveComparison]) -> Page:
    """What a person wants to see of a comparison."""
    data = document.data
    return Page(
        kind=document.kind,
        title=f"Offload off against on: {data.paired.requests:,} requests, measured",
        lead=_lead(data),
        origin=parts.origin(document),
        sections=(
            _answer(data),
            _arms(data),
            *_grades(data),
            *parts.findings(data.findings),
            Section(name="requests", heading="Request by request", blocks=figures.by_request(data)),
            _runs(data),
            _method(data),
        ),
    )


def _change(estimated: Estimated) -> str:
    """'-120 ms (-140 to -98)': a change of a time with its interval."""
    return f"{_signed(estimated.value)} ({_signed(estimated.low)} to {_signed(estimated.high)})"


def _signed(seconds: float) -> str:
    return f"+{show_duration(seconds)}" if seconds > 0 else show_duration(seconds)


def _percent(estimated: Estimated) -> str:
    low, high = estimated.low * 100, estimated.high * 100
    return f"{estimated.value * 100:+.1f} % ({low:+.1f} to {high:+.1f})"


def _tone(data: LiveComparison) -> tuple[str, Tone]:
    """What the interval of the mean change says."""
    change, drift = data.paired.ttft_change_s, data.paired.drift_s
    if drift is not None and abs(drift) > abs(change.value):
        return "no difference told from what time alone changed", "warning"
    if change.high < 0:
        return "first tokens came earlier with offload", "good"
    if change.low > 0:
        return "first tokens came later with offload", "bad"
    return "no difference shown", "warning"


def _lead(data: LiveComparison) -> str:
    change = data.paired
    what = f"{_tone(data)[0]}: TTFT {_percent(change.ttft_change_ratio)} on average"
    if data.off.hit_ratio is None or data.on.hit_ratio is None:
        return f"{what[:1].upper()}{what[1:]}; hits unknown."
    hits = f"hits {show_percent(data.off.hit_ratio)} to {show_percent(data.on.hit_ratio)}"
    return f"{what[:1].upper()}{what[1:]}; {hits}."


def _answer(data: LiveComparison) -> Section:
    change, (headline, tone) = data.paired, _tone(data)
    facts = [
        Fact(label="mean TTFT, on less off", value=_change(change.ttft_change_s), provenance="measured"),
        Fact(label="relative to off", value=_percent(change.ttft_change_ratio), provenance="measured"),
        Fact(label="median change", value=_change(change.ttft_median_change_s), provenance="measured"),
        Fact(label="whole answer", value=_change(change.latency_change_s), provenance="measured"),
        Fact(label="earlier with offload", value=f"{show_percent(change.faster_ratio)} of requests"),
    ]
    if (cached := change.cached_tokens_change) is not None:
        tokens = f"{cached.value:+,.1f} ({cached.low:+,.1f} to {cached.high:+,.1f})"
        facts.append(Fact(label="cached tokens of a request", value=tokens, provenance="measured"))
    block = Decision(headline=headline[:1].upper() + headline[1:], tone=tone, facts=tuple(facts))
    reading = (
        f"Each request against itself; in parentheses the interval that {change.share:.0%} of {change.resamples:,} "
        f"draws of {change.sessions:,} sessions fall in."
    )
    return Section(name="change", heading="What offload changed", reading=reading, blocks=(block,), first=True)


def _arms(data: LiveComparison) -> Section:
    rows = [_arm(arm) for arm in (data.off, data.on)]
    columns = "arm|>runs|>hits|>TTFT mean|>p50|>p90|>p99|->whole answer, mean|>requests/s|->output tokens/s"
    reading = "A hit is a prompt token that the server took from its cache, over all prompt tokens."
    table = parts.table(columns, rows)
    return Section(name="arms", heading="Arms", reading=reading, blocks=(table,), first=True)


def _arm(arm: MeasuredArm) -> tuple[str, ...]:
    times = (arm.ttft.mean, arm.ttft.p50, arm.ttft.p90, arm.ttft.p99, arm.latency.mean)
    return (
        arm.arm,
        f"{arm.runs:,}",
        parts.percent(arm.hit_ratio),
        *map(show_duration, times),
        f"{arm.requests_per_s:.3g}",
        f"{arm.output_tokens_per_s:,.1f}",
    )


def _grades(data: LiveComparison) -> tuple[Section, ...]:
    if not data.grades:
        return ()
    tones: dict[str, Tone] = {"good": "good", "fair": "plain", "poor": "bad"}
    rows = [
        Row(cells=(grade.what, grade.arm, *_graded(grade), grade.grade), tone=tones[grade.grade])
        for grade in data.grades
    ]
    table = parts.table("what|arm|>simulated|>measured|>error|>good up to|grade", rows)
    reading = f"{data.simulated} against these runs; hits and changes differ in points, times in per cent."
    return (Section(name="grades", heading="The simulation, graded", reading=reading, blocks=(table,), first=True),)


def _graded(grade: Grade) -> tuple[str, str, str, str]:
    if grade.what in ("hit ratio", "TTFT change"):
        shown = [f"{value * 100:.1f} %" for value in (grade.predicted, grade.measured)]
        return shown[0], shown[1], f"{grade.error * 100:+.1f} points", f"{grade.good * 100:g} points"
    times = [show_duration(value) for value in (grade.predicted, grade.measured)]
    return times[0], times[1], f"{grade.error * 100:+.1f} %", f"{grade.good * 100:g} %"


def _runs(data: LiveComparison) -> Section:
    rows = [_run(number, run) for number, run in enumerate(data.runs, 1)]
    columns = ">run|arm|>requests|>failed|>hits|hits from|>TTFT mean|>p90|>sent late, p99|>lasted|-file"
    return Section(name="runs", heading="Run by run", blocks=(*figures.in_turn(data), parts.table(columns, rows)))


def _run(number: int, run: MeasuredRun) -> tuple[str, ...]:
    return (
        f"{number}",
        run.arm,
        f"{run.requests:,}",
        f"{run.failed:,}",
        parts.percent(run.hit_ratio),
        run.hits_from or parts.UNKNOWN,
        show_duration(run.ttft.mean),
        show_duration(run.ttft.p90),
        parts.seconds_or_unknown(run.lag_p99_s),
        show_duration(run.span_s),
        run.name,
    )


def _method(data: LiveComparison) -> Section:
    change, schedule = data.paired, data.schedule
    facts = [
        Fact(label="order", value=data.order or parts.UNKNOWN, note="A is off, B is on"),
        Fact(label="load generator", value=data.runs[0].generator),
        Fact(
            label="drawn", value=f"{change.sessions:,} sessions", note=f"{change.resamples:,} times, seed {change.seed}"
        ),
        Fact(label="left out first", value=f"{data.skipped:,} requests"),
        Fact(label="change within one arm", value=parts.seconds_or_unknown(change.drift_s), note="first run to last"),
    ]
    if schedule is not None:
        facts.insert(0, Fact(label="schedule", value=schedule.name, note=f"sha256 {schedule.sha256[:12]}"))
    return Section(name="method", heading="How it was compared", blocks=(Facts(items=tuple(facts)),))


# ------------------------------------------------------------------------------------------------ replays


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
