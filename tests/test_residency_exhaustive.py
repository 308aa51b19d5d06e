"""Every sequence of up to seven events over three models and two places, against the rules written a second time.

`python tests/test_residency_exhaustive.py` plays the whole space; the test plays all short sequences and a fixed share
of the long ones.
"""

from __future__ import annotations

import itertools
import math
import multiprocessing
import sys
from collections.abc import Iterable, Iterator

import pytest
import residency_reference as reference

from kvplan.documents import Machine, ResidencyPolicy, ResidentModel
from kvplan.resident.costs import shared_memory, units
from kvplan.resident.play import Play
from kvplan.resident.table import INTERRUPTED, LEFT, SERVED, Log

LOAD_S = (3, 7, 13)
STEP = 10
# What one event may be: a request for one of three models that is short, long, or long with a client that soon leaves.
KINDS = ((2, None), (35, None), (15, 9))
EVENTS = [(model, runs, patience) for model in range(3) for runs, patience in KINDS]
MODELS = tuple(ResidentModel(name="abc"[i], weights_bytes=1, load_s=float(LOAD_S[i])) for i in range(3))
MACHINE = Machine(memory_bytes=2)
POLICIES = (ResidencyPolicy(name="router", max_models=2), ResidencyPolicy(name="bytes", budget_bytes=2))
SHARED = shared_memory(MODELS, MACHINE)

Sequence7 = tuple[tuple[int, int, int | None], ...]


def played(events: Sequence7, policy: ResidencyPolicy) -> Play:
    log = Log(
        name="",
        time_s=[float(STEP * index) for index in range(len(events))],
        model=[model for model, _, _ in events],
        service_s=[float(runs) for _, runs, _ in events],
        timeout_s=[math.inf if patience is None else float(patience) for _, _, patience in events],
        session=[-1] * len(events),
        context_tokens=[0] * len(events),
    )
    run = Play(MODELS, units(MODELS, MACHINE, SHARED), log, policy, MACHINE)
    run.run()
    return run


def check(events: Sequence7, policy: ResidencyPolicy) -> None:
    asked = [reference.Asked(STEP * i, model, runs, patience) for i, (model, runs, patience) in enumerate(events)]
    story = reference.tell(asked, 2, list(LOAD_S))
    run = played(events, policy)
    for index, one in enumerate(asked):
        if one.left:
            assert run.status[index] == LEFT, events
        else:
            assert run.status[index] == SERVED, events
            assert run.wait_s[index] == (one.started or 0) - one.at, events
    swaps = [(swap.at_s, "abc".index(swap.model), "abc".index(swap.wanted_by or "")) for swap in run.swaps]
    assert swaps == story.evictions, events
    loads = [(span.from_s, "abc".index(span.model)) for span in run.spans if span.state == "loading"]
    assert sorted(loads) == sorted(story.loads), events
    invariants(events, run)


def invariants(events: Sequence7, run: Play) -> None:
    assert INTERRUPTED not in run.status, events  # no busy victim
    assert all(status in (SERVED, LEFT) for status in run.status), events  # no request is lost
    assert run.peak_count <= 2, events
    assert run.peak_bytes <= 2, events
    assert run.bytes == run.count == sum(unit.state != "unloaded" for unit in run.units), events
    assert not run.queue, events


def sequences(length: int) -> Iterator[Sequence7]:
    return itertools.product(EVENTS, repeat=length)


def share(length: int, every: int) -> Iterable[Sequence7]:
    return itertools.islice(sequences(length), length, None, every)


# Step through the long ones by a prime, so that every position takes every event.
@pytest.mark.parametrize(("length", "every"), [(1, 1), (2, 1), (3, 1), (4, 1), (5, 13), (6, 211), (7, 1999)])
def test_sequences_equal_the_rules_written_a_second_time(length: int, every: int) -> None:
    for number, events in enumerate(share(length, every)):
        check(events, POLICIES[number % 2])


def test_the_share_meets_every_event_at_every_place() -> None:
    met = {(place, event) for events in share(7, 1999) for place, event in enumerate(events)}
    assert len(met) == 7 * len(EVENTS)


def test_the_reference_can_disagree() -> None:
    """With one place instead of two the same log tells another story: the comparison is not empty."""
    asked = [reference.Asked(0, 0, 15), reference.Asked(10, 1, 15), reference.Asked(20, 0, 15)]
    one, two = reference.tell(asked, 1, list(LOAD_S)), reference.tell(asked, 2, list(LOAD_S))
    assert one.loads != two.loads


def named_in_order(length: int, known: int = 0) -> Iterator[Sequence7]:
    """One sequence of all that differ only in the names of their models: a is asked for first, then b, then c."""
    if not length:
        yield ()
        return
    for event in EVENTS[: len(KINDS) * min(known + 1, 3)]:
        now_known = max(known, event[0] + 1)
        for rest in named_in_order(length - 1, now_known):
            yield (event, *rest)


@pytest.mark.parametrize("length", [1, 2, 3, 4])
def test_every_sequence_is_one_of_those_named_in_order_under_other_names(length: int) -> None:
    renamed = [
        tuple((names[model], runs, patience) for model, runs, patience in events)
        for events in named_in_order(length)
        for names in itertools.permutations(range(3))
    ]
    assert set(renamed) == set(sequences(length))
    assert len(set(named_in_order(length))) == sum(1 for _ in named_in_order(length))


def play_part(part: tuple[int, Sequence7, bool]) -> int:
    """The sequences of that length with that beginning, under every name or one; how many there are."""
    length, begin, every_name = part
    known = max(model for model, _, _ in begin) + 1
    rest = length - len(begin)
    count = 0
    for events in sequences(rest) if every_name else named_in_order(rest, known):
        check(begin + events, POLICIES[count % 2])
        count += 1
    return count


def main() -> None:
    """Play every sequence of up to seven events (or as many as an argument says) on every core.

    Of those that differ in the names of models alone one is played, unless an argument is "all": the rules know no
    name, but the three models load in different times, so that the others are runs of their own.
    """
    numbers = [int(word) for word in sys.argv[1:] if word != "all"]
    every_name = "all" in sys.argv[1:]
    total = 0
    with multiprocessing.Pool() as pool:
        for length in range(1, max(numbers, default=7) + 1):
            begins = (sequences if every_name else named_in_order)(min(3, length))
            parts = [(length, begin, every_name) for begin in begins]
            for done, count in enumerate(pool.imap_unordered(play_part, parts), 1):
                total += count
                if not done % 20:
                    print(f"{total:,} sequences equal so far", flush=True)
            print(f"every sequence of up to {length} events: {total:,} equal", flush=True)


if __name__ == "__main__":
    main()
