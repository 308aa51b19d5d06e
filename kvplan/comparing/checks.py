"""What makes a comparison of two arms worthless is refused, in one line that says what to do."""

from __future__ import annotations

from collections.abc import Sequence

from kvplan.comparing.pairing import Pairs
from kvplan.comparing.records import Result, Run, p99
from kvplan.documents import Replay
from kvplan.errors import KvplanError
from kvplan.units import show_duration

MOST_FAILED = 0.01


def alike(runs: Sequence[Run], replays: Sequence[Replay]) -> None:
    """Refuse runs of different load generators, schedules or paces, and runs of which many requests failed."""
    for run in runs:
        result = run.result
        if not result.records:
            raise KvplanError(f"{result.name}: none of its {len(result.failed):,} requests succeeded{_first(result)}")
        every = len(result.failed) + len(result.records)
        if len(result.failed) > MOST_FAILED * every:
            raise KvplanError(
                f"{result.name}: {len(result.failed):,} of {every:,} requests failed, and those left would flatter "
                f"their arm: mend that and run again{_first(result)}"
            )
    generators = sorted({run.result.generator for run in runs})
    if len(generators) > 1:
        raise KvplanError(f"{' and '.join(generators)} measure times differently: run both arms with one")
    paces = list(dict.fromkeys(run.result.pace for run in runs if run.result.pace is not None))
    if len(paces) > 1:
        raise KvplanError(
            f"the arms were sent at different paces ({'; '.join(paces)}): send both with the same options"
        )
    for one in replays[1:]:
        first = replays[0]
        if one.schedule.sha256 != first.schedule.sha256:
            raise KvplanError(
                f"the arms played different schedules ({first.schedule.name} and {one.schedule.name} differ): "
                "replay one file in both"
            )
        if (one.concurrency, one.request_rate) != (first.concurrency, first.request_rate):
            raise KvplanError("the arms were sent at different paces: replay both with the same options")


def _first(result: Result) -> str:
    return f" (the first: {result.error})" if result.error else ""


def on_time(runs: Sequence[Run], max_lag_s: float) -> None:
    """Refuse a run whose requests were sent late: its waiting is partly the load generator's."""
    for run in runs:
        lag = lag_p99_s(run)
        if lag is not None and lag > max_lag_s:
            raise KvplanError(
                f"{run.result.name}: 1 % of its requests were sent {show_duration(lag)} late or more, over --max-lag "
                f"{show_duration(max_lag_s)}: lower the rate, or give the load generator more CPUs"
            )


def lag_p99_s(run: Run) -> float | None:
    """How late a run's requests were sent, at the 99th percentile, against the one sent least late.

    The constant part is no lag: clocks of schedule and run start apart.
    """
    if run.result.lag_p99_s is not None or not run.result.lag_s:
        return run.result.lag_p99_s
    least = min(run.result.lag_s)
    return p99(tuple(lag - least for lag in run.result.lag_s))


def same_work(pairs: Pairs) -> None:
    """Refuse pairs whose prompts or answers differ in length: another length is another amount of work."""
    for what, by_run, cure in (
        ("a prompt", pairs.prompt_tokens, "the runs did not play the same schedule"),
        ("an answer", pairs.output_tokens, "fix the answers' length (ignore_eos and max_tokens) and run again"),
    ):
        differs = (by_run != by_run[0]).any(axis=0)
        if differs.any():
            at = int(differs.argmax())
            lengths = sorted(set(by_run[:, at].tolist()))
            raise KvplanError(
                f"{int(differs.sum()):,} of {differs.size:,} requests have {what} of another length in another run, "
                f"the first session {pairs.sessions[at]} turn {pairs.turns[at]} ({' and '.join(map(str, lengths))} "
                f"tokens): {cure}"
            )
