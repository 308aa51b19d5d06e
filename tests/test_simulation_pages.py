"""A simulation for people: alone, and in the review of the plan that it plays."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import samples
from records import replace
from test_simulate import ENGINE, OFF, conversations, host
from typer.testing import CliRunner

from kvplan import charts, files, report, simulate
from kvplan.documents import ArmResult, Document, Fault, Loop, Simulation
from kvplan.errors import KvplanError
from kvplan.page import Bars, Figure, Page, Plot
from kvplan.pages import simulation_figures


@pytest.fixture(scope="module")
def played() -> Document[Simulation]:
    """A small engine at a rate that tells arms apart, with two faults."""
    faults = (Fault(at_s=30.0, kind="restart", value=1.0, survives=("host",)), Fault(at_s=45.0, kind="scan", value=20))
    made = simulate.run(ENGINE, conversations(400, 0.2, output=8), arms=[host(400)], faults=faults, slo_ttft_s=0.2)
    return files.wrap(made)


def figures(page: Page) -> dict[str, Figure]:
    return {block.name: block for section in page.sections for block in section.blocks if isinstance(block, Figure)}


def plots(figure: Figure) -> list[Plot]:
    return [chart for chart in figure.charts if isinstance(chart, Plot)]


def test_the_page_draws_what_the_document_says(played: Document[Simulation]) -> None:
    off, on = played.data.arms
    drawn = figures(report.sections(played))
    assert list(drawn) == ["sustained", "headroom", "ttft", "cold-start", "occupancy"]
    bars = drawn["sustained"].charts[0]
    assert isinstance(bars, Bars)
    assert off.sustainable
    assert on.sustainable
    assert [bar.value for bar in bars.bars] == [off.sustainable.requests_per_s, on.sustainable.requests_per_s]
    assert bars.bars[1].interval == (on.sustainable.low_per_s, on.sustainable.high_per_s)
    curves = plots(drawn["ttft"])
    assert [len(curve.series) for curve in curves] == [2, 2, 2]
    assert {share: seconds for seconds, share in curves[1].series[1].points}[0.9] == next(
        point.seconds for point in on.loads[1].ttft if point.share == 0.9
    )
    held, given_up = plots(drawn["occupancy"])
    assert [series.name for series in held.series] == ["on"]
    assert held.series[0].points[-1][1] == on.timeline[-1].host_bytes
    assert held.x.domain == given_up.x.domain
    width = on.timeline[1].from_s
    lost = sum(rate * width for _, rate in given_up.series[0].points[:-1])
    assert lost == pytest.approx(sum(part.host_removed_bytes or 0 for part in on.timeline))
    assert [rule.label for rule in plots(drawn["cold-start"])[0].rules] == ["restart", "scan"]
    for figure in drawn.values():
        for chart in figure.charts:
            assert charts.svg(chart, charts.PRINT).startswith("<svg")


def test_a_curve_of_load_and_latency_has_every_rate_played_up_to_where_a_queue_grows(
    played: Document[Simulation],
) -> None:
    arm = played.data.arms[0]
    assert arm.sustainable
    (plot,) = plots(figures(report.sections(played))["headroom"])
    rates = [rate for rate, _ in plot.series[0].points]
    assert rates == sorted(rates)
    everything = {one.requests_per_s for one in (*arm.sustainable.tried, *arm.loads)}
    assert set(rates) <= everything
    assert {load.requests_per_s for load in arm.loads} <= set(rates)
    assert {rule.axis for rule in plot.rules} >= {"y"}


def test_what_was_not_played_is_not_drawn() -> None:
    made = simulate.run(ENGINE, conversations(50, 1.0), arms=[host(0)], loop=Loop(kind="concurrency", concurrency=2))
    page = report.sections(files.wrap(made))
    assert list(figures(page)) == ["cold-start"]
    assert "2 clients, each waiting for its answer (closed loop)" in page.lead
    assert page.lead.endswith("answers a second.")
    names = [section.name for section in page.sections]
    assert "rates" not in names
    assert "waiting" not in names


def test_a_document_of_an_earlier_version_has_a_page_too(played: Document[Simulation]) -> None:
    def earlier(one: ArmResult) -> ArmResult:
        tiers = tuple(replace(use, removed_never_hit_blocks=None, kept_never_hit_blocks=None) for use in one.tiers)
        bare = replace(one, timeline=(), phases=(), loads=(), tiers=tiers, completed_per_s=None)
        assert one.sustainable
        return replace(bare, sustainable=replace(one.sustainable, tried=(), low_per_s=None, high_per_s=None))

    old = replace(played, data=replace(played.data, arms=tuple(map(earlier, played.data.arms))))
    text, _ = report.markdown(report.sections(old), "pictures")
    assert list(figures(report.sections(old))) == ["sustained"]
    assert "unknown" in text


def test_a_file_written_before_there_were_loops_and_phases_is_still_read() -> None:
    made = json.loads(files.dump(samples.simulation()))
    for name in ("loop", "follow_ups"):
        del made["data"][name]
    for one in made["data"]["arms"]:
        for name in ("timeline", "phases", "loads", "completed_per_s"):
            del one[name]
        for name in ("tried", "low_per_s", "high_per_s"):
            del one["sustainable"][name]
    read = files.parse(json.dumps(made).encode(), "old.json")
    assert read.data.loop == Loop(kind="open")
    assert report.markdown(report.sections(read), "pictures")[0]


def test_every_fault_has_words(played: Document[Simulation]) -> None:
    kinds = {*simulation_figures.FAULTS, "client-gone"}
    faults = tuple(Fault(at_s=1.0, kind=kind, value=1.0, request=0) for kind in sorted(kinds))  # type: ignore[arg-type]
    page = report.sections(replace(played, data=replace(played.data, faults=faults)))
    assert {section.name for section in page.sections} >= {"faults", "phases"}


# ------------------------------------------------------------------------------------------------ reviews


def test_a_review_takes_the_simulation_of_its_plan() -> None:
    page = report.page_of([samples.plan(), samples.simulation()])
    names = [section.name for section in page.sections]
    assert names[0] == "decision"
    assert names.index("break-even") < names.index("simulation-arms") < names.index("policy")
    own = figures(report.sections(samples.plan()))
    both = figures(page)
    assert set(both) - set(own) == {f"simulation-{name}" for name in figures(report.sections(samples.simulation()))}
    assert [section.name for section in page.sections if section.first and "simulation" in section.name] == [
        "simulation-arms",
        "simulation-rates",
    ]
    for shown in (report.html(page), report.markdown(page, "pictures")[0]):
        assert "Sustainable rate" in shown or "sustainable rate" in shown


def test_what_is_planned_for_is_marked_beside_what_the_log_has(played: Document[Simulation]) -> None:
    (calm,) = simulation_figures.headroom(replace(played.data, requests_per_s=1.0), 1.0)
    (grown,) = simulation_figures.headroom(replace(played.data, requests_per_s=1.0), 2.0)
    marks = [[rule.label for rule in plots(figure)[0].rules if rule.axis == "x"] for figure in (calm, grown)]
    assert marks == [["the log 1/s"], ["the log 1/s", "planned 2/s"]]
    assert "2 times the log's demand" in grown.reading
    (beyond,) = simulation_figures.headroom(replace(played.data, requests_per_s=1e6), 1.0)
    assert "no arm sustains it" in beyond.reading
    assert not [rule for rule in plots(beyond)[0].rules if rule.axis == "x"]


def test_two_simulations_have_names_of_their_own() -> None:
    page = report.page_of([samples.plan(), samples.simulation(), samples.simulation()])
    names = [section.name for section in page.sections]
    assert len(set(names)) == len(names)
    assert {"simulation-1-arms", "simulation-2-arms"} <= set(names)


def test_a_simulation_of_another_model_is_refused() -> None:
    document = samples.simulation()
    assert document.data.model
    other = replace(document.data.model, config_sha256="1" * 64, id="other/model")
    foreign = replace(document, data=replace(document.data, model=other))
    with pytest.raises(KvplanError, match="the simulation is of other/model"):
        report.page_of([samples.plan(), foreign])
    assert report.page_of([samples.plan(), replace(document, data=replace(document.data, model=None))])
    with pytest.raises(KvplanError, match="2 simulations make no review"):
        report.page_of([document, document])


def test_the_command_reports_a_plan_with_its_simulation(tmp_path: Path) -> None:
    from kvplan.cli import app

    plan, simulation = tmp_path / "plan.json", tmp_path / "simulation.json"
    plan.write_text(files.dump(samples.plan()))
    simulation.write_text(files.dump(samples.simulation()))
    out = ["-o", str(tmp_path / "review.html"), "-o", str(tmp_path / "review.md")]
    ran = CliRunner().invoke(app, ["report", str(plan), str(simulation), *out, "-q"])
    assert ran.exit_code == 0, ran.output
    assert "simulation-sustained.svg" in {path.name for path in (tmp_path / "review-files").iterdir()}
    screen = CliRunner().invoke(app, ["report", str(plan), str(simulation)])
    assert "requests a second with p90 TTFT within 2 s" in screen.stdout
    alone = CliRunner().invoke(app, ["report", str(simulation)])
    assert "requests a second with p90 TTFT within 2 s" in alone.stdout


def test_arms_without_host_memory_have_no_room_to_draw() -> None:
    made = simulate.run(ENGINE, conversations(50, 1.0), arms=[replace(OFF, name="wait", in_flight="wait")])
    assert "occupancy" not in figures(report.sections(files.wrap(made)))


def test_the_first_screen_says_what_each_arm_has() -> None:
    words = (
        "arc:host=1GiB,disk=2GiB,policy=arc,admission=second-use,ttl=10m,share=tenant,in-flight=wait,host-link=12GB/s"
    )
    arm = simulate.arm_of(words)
    made = simulate.run(replace(ENGINE, replicas=2, disk_link=ENGINE.host_link), conversations(20, 1.0), arms=[arm])
    text, _ = report.markdown(report.sections(files.wrap(made)), "figures")
    assert "Arm off has the GPU alone; arc has 1.00 GiB of host memory, 2.00 GiB of disk, ARC" in text
    for said in ("second-use", "10 min", "within a tenant", "wait", "12.00 GB/s for each replica", "all replicas"):
        assert said in text


def test_a_file_without_arms_is_refused() -> None:
    raw = json.loads(files.dump(samples.simulation()))
    raw["data"]["arms"] = []
    with pytest.raises(KvplanError, match="arms"):
        files.parse(json.dumps(raw).encode(), "empty.json")


def test_a_simulation_of_another_plan_of_the_model_is_said() -> None:
    plan = samples.plan()
    made = simulate.run(plan.data, replace(conversations(5, 1.0), block_tokens=512))
    same = report.markdown(report.page_of([plan, files.wrap(made)]), "figures")[0]
    assert "another plan of this model" not in same
    other = replace(made, engine=replace(made.engine, replicas=made.engine.replicas + 1))
    text = report.markdown(report.page_of([plan, files.wrap(other)]), "figures")[0]
    assert f"replicas {made.engine.replicas + 1}, planned {made.engine.replicas}" in text
