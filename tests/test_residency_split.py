"""One host memory between a plan's KV tier and the models: the choice against one made by trying everything."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import samples
from hypothesis import given, settings
from hypothesis import strategies as st
from records import replace

from kvplan import cli
from kvplan.documents import Machine, MemorySplit, Plan, ResidencyPolicy, ResidentModel, TierPoint
from kvplan.errors import KvplanError, LimitError
from kvplan.files import dump, parse, wrap
from kvplan.report import markdown, sections
from kvplan.residency import Log, policies, residency, share, with_host_memory
from kvplan.resident.measure import play
from kvplan.units import GB, GiB

Sizes = list[tuple[int, float]]
ONE = ResidencyPolicy(name="one", max_models=1)
# Cold 10 s, warm 1 s; both files are 20 GB.
MODELS = tuple(ResidentModel(name=name, weights_bytes=10 * GB, load_s=10.0, warm_load_s=1.0) for name in "ab")
MACHINE = Machine(memory_bytes=10 * GB, ram_bytes=32 * GB, reserved_bytes=2 * GB)


def planned(*sizes: tuple[int, float], takes: int = 0, **policy: Any) -> Plan:
    """A plan whose host tier nets so many seconds an hour at each size, and that takes one of them."""
    plan = samples.plan().data
    points = tuple(TierPoint(tier="host", bytes=size, tokens=1, hit_ratio=0.5, net_s_per_hour=s) for size, s in sizes)
    return replace(
        plan,
        curve=points,
        policy=replace(plan.policy, **{"replicas": 1, **policy}),
        budgets=replace(plan.budgets, host=replace(plan.budgets.host, requested_bytes=takes)),
    )


def turns(count: int, every_s: float = 60.0) -> Log:
    """a and b in turns, each for a second."""
    return Log(
        name="log",
        time_s=[every_s * i for i in range(count)],
        model=[i % 2 for i in range(count)],
        service_s=[1.0] * count,
        timeout_s=[float("inf")] * count,
        session=[-1] * count,
        context_tokens=[0] * count,
    )


def test_the_arithmetic_of_a_split() -> None:
    """61 requests in turns over an hour, 61 loads: all cold 610 s; warm after the first two 20 + 59 = 79 s."""
    plan = planned((8 * GB, 100.0), (16 * GB, 400.0), (30 * GB, 700.0), (31 * GB, 999.0), takes=30 * GB)
    machine, split = share(MACHINE, MODELS, turns(61), ONE, plan)
    assert split is not None
    assert [(one.host_kv_bytes // GB, one.every_swap_cold) for one in split.points] == [
        (0, False),
        (8, False),
        (16, True),
        (30, True),
    ]  # 31 GB and the reserve are more than there is
    assert [one.loading_s_per_hour for one in split.points] == [79, 79, 610, 610]
    assert [one.net_s_per_hour for one in split.points] == [-79, 21, -210, 90]
    assert (split.best_bytes, machine.host_kv_bytes) == (30 * GB, 30 * GB)
    cheap = planned((8 * GB, 100.0), (16 * GB, 400.0), (30 * GB, 600.0), takes=30 * GB)
    machine, split = share(MACHINE, MODELS, turns(61), ONE, cheap)
    assert split is not None
    assert (split.best_bytes, machine.host_kv_bytes) == (8 * GB, 8 * GB)
    assert "would spare 10 min an hour of prefill and cost the models 10.2 min" in split.why


def test_nothing_is_chosen_where_nothing_pays() -> None:
    _, split = share(MACHINE, MODELS, turns(61), ONE, planned((16 * GB, 40.0), takes=16 * GB))
    assert split is not None
    assert split.best_bytes == 0
    assert split.why.startswith("No tier is worth what it costs. The plan's own 14.90 GiB would spare 40 s an hour")
    _, none = share(MACHINE, MODELS, turns(61), ONE, planned())
    assert none is not None
    assert [one.host_kv_bytes for one in none.points] == [0]
    assert any("no size of a host tier" in text for text in none.assumed)


def test_every_replica_of_the_host_takes_its_tier_and_brings_its_seconds() -> None:
    plan = planned((5 * GB, 100.0), (15 * GB, 150.0), replicas=2, replicas_per_host=2)
    machine, split = share(MACHINE, MODELS, turns(61), ONE, plan)
    assert split is not None
    assert [(one.host_kv_bytes // GB, one.kv_saved_s_per_hour) for one in split.points] == [(0, 0), (5, 200), (15, 300)]
    assert (split.best_bytes, machine.host_kv_bytes) == (5 * GB, 10 * GB)


def test_in_unified_memory_a_tier_leaves_models_less_room() -> None:
    """20 GB hold both models or one and a tier: two loads in all, or 61."""
    machine = Machine(memory_bytes=20 * GB, unified=True)
    asked, _ = policies(machine)
    _, split = share(machine, MODELS, turns(61), asked, planned((5 * GB, 100.0), (10 * GB, 900.0), (11 * GB, 999.0)))
    assert split is not None
    assert [(one.models_bytes // GB, one.loads) for one in split.points] == [(20, 2), (15, 61), (10, 61)]
    assert split.best_bytes == 10 * GB
    divided, split = share(machine, MODELS, turns(61), asked, planned((10 * GB, 589.0)))
    assert split is not None
    assert (split.best_bytes, divided.models_bytes) == (0, 20 * GB)
    # A count lets both load where they do not fit: that is worse than any seconds.
    two = ResidencyPolicy(name="two", max_models=2)
    _, split = share(machine, MODELS, turns(61), two, planned((10 * GB, 9999.0)))
    assert split is not None
    assert [one.harm for one in split.points] == [0, 1]
    assert split.best_bytes == 0
    with pytest.raises(LimitError, match=r"leave no room in 8\.38 GiB"):
        share(replace(machine, memory_bytes=9 * GB), MODELS, turns(61), asked, planned())


def everything_tried(machine: Machine, models: tuple[ResidentModel, ...], log: Log, sizes: Sizes) -> tuple[int, float]:
    """The best (tier, net seconds an hour): each size weighed alone, by what its log says request for request."""
    best: tuple[int, float] | None = None
    for size, saved in sorted([(0, 0.0), *sizes]):
        if size + machine.reserved_bytes > (machine.ram_bytes or 0):
            continue
        left = (machine.ram_bytes or 0) - machine.reserved_bytes - size
        warm = sum(model.weights_bytes for model in models) <= left
        loads = [one for one in models if not warm]
        slow = tuple(replace(one, warm_load_s=one.load_s) if one in loads else one for one in models)
        alone = replace(machine, ram_bytes=10**15, host_kv_bytes=0)
        run = play(slow, alone, log, ONE)
        lost = sum(span.to_s - span.from_s for span in run.spans if span.state == "loading")
        net = saved - lost * 3600 / log.time_s[-1]
        if best is None or net > best[1] + 1e-9:
            best = size, net
    assert best is not None
    return best


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.tuples(st.integers(1, 32), st.integers(-50, 700)), max_size=5, unique_by=lambda one: one[0]),
    st.lists(st.integers(1, 12), min_size=2, max_size=3),
    st.integers(2, 30),
    st.integers(20, 200),
)
def test_the_choice_is_the_best_of_all(sizes: Sizes, weights: list[int], count: int, every: int) -> None:
    models = tuple(
        ResidentModel(name="abc"[i], weights_bytes=size * GB, load_s=float(size), warm_load_s=size / 8)
        for i, size in enumerate(weights)
    )
    given_ = [(size * GB, float(seconds)) for size, seconds in sizes]
    log = replace(turns(count, float(every)), model=[i % len(models) for i in range(count)])
    machine = replace(MACHINE, memory_bytes=12 * GB)
    _, split = share(machine, models, log, ONE, planned(*given_))
    assert split is not None
    size, net = everything_tried(machine, models, log, given_)
    assert split.best.net_s_per_hour == pytest.approx(net)
    assert split.best_bytes == size


def test_without_host_memory_nothing_is_divided() -> None:
    plan = planned((8 * GB, 100.0), takes=8 * GB)
    machine, split = share(replace(MACHINE, ram_bytes=None), MODELS, turns(3), ONE, plan)
    assert split is None
    assert machine.host_kv_bytes == 8 * GB
    assert with_host_memory(machine, 64 * GiB).ram_bytes == 64 * GiB
    assert with_host_memory(machine, None) == machine
    with pytest.raises(KvplanError, match="unified"):
        with_host_memory(replace(machine, unified=True), 64 * GiB)
    with pytest.raises(KvplanError, match="spans no time"):
        share(MACHINE, MODELS, turns(1), ONE, plan)


def test_a_split_is_written_read_and_shown() -> None:
    plan = planned((8 * GB, 100.0), (30 * GB, 600.0), takes=30 * GB)
    machine, split = share(MACHINE, MODELS, turns(61), ONE, plan)
    made = residency(machine, MODELS, turns(61), ONE, split=split)
    document = parse(dump(wrap(made)).encode(), "residency.json")
    assert document.data.split == split
    assert any(finding.code == "host-memory" for finding in made.findings)
    text, _ = markdown(sections(document), "files")
    assert "One host memory" in text
    assert split is not None
    assert split.why in text
    assert all(sentence in text for sentence in split.assumed)


def test_the_command_divides(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    listed, requests, plan = tmp_path / "models.toml", tmp_path / "log.jsonl", tmp_path / "plan.json"
    named = "".join(f'\n[[model]]\nname = "{n}"\nweights = "10GB"\nload = "10s"\nwarm_load = "1s"\n' for n in "ab")
    listed.write_text('[machine]\nmemory = "10GB"\nreserved = "2GB"\n' + named)
    lines = [json.dumps({"time": 60 * i, "model": "ab"[i % 2], "service_s": 1}) for i in range(61)]
    requests.write_text("\n".join(lines))
    plan.write_text(dump(wrap(planned((8 * GB, 100.0), (30 * GB, 600.0), takes=30 * GB))))
    words = ["kvplan", "residency", str(listed), str(requests), "--plan", str(plan), "--host-memory", "32GB", "--json"]
    monkeypatch.setattr("sys.argv", [*words, "--models-max", "1"])
    with pytest.raises(SystemExit) as end:
        cli.main()
    assert not end.value.code
    data = json.loads(capsys.readouterr().out)["data"]
    assert data["split"]["best_bytes"] == 8 * GB
    assert data["machine"]["host_kv_bytes"] == 8 * GB
    assert data["shared"]["every_swap_cold"] is False


def severity(machine: Machine, split: MemorySplit | None) -> str:
    made = residency(machine, MODELS, turns(61), ONE, split=split, searched=False)
    return next(one.severity for one in made.findings if one.code == "host-memory")


def test_a_size_that_costs_the_models_as_much_as_the_plans_own_is_said_without_alarm() -> None:
    """8 GB and 9 GB both leave the files their room: the larger one spares a little more, and neither hurts."""
    plan = planned((8 * GB, 100.0), (9 * GB, 101.0), takes=8 * GB)
    machine, split = share(MACHINE, MODELS, turns(61), ONE, plan)
    assert split is not None
    assert split.best_bytes == 9 * GB
    assert "costs the models no more than no tier" in split.why
    assert "would spare 100 s an hour of prefill and cost the models as much" in split.why
    assert severity(machine, split) == "info"
    hurting = planned((8 * GB, 100.0), (16 * GB, 101.0), takes=16 * GB)
    assert severity(*share(MACHINE, MODELS, turns(61), ONE, hurting)) == "warning"
