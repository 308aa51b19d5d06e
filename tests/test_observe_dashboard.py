"""The dashboard and the alert rules: well formed here, and for promtool and Grafana's own model where installed."""

from __future__ import annotations

import itertools
import json
import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import samples
from typer.testing import CliRunner

from kvplan.cli import app
from kvplan.engines.metrics import SYSTEMS, by_name
from kvplan.errors import KvplanError, UsageError
from kvplan.files import dump
from kvplan.observe import monitoring
from kvplan.observing import rules

PLAN = samples.plan()


@pytest.fixture(scope="module")
def promtool() -> str:
    found = os.environ.get("KVPLAN_PROMTOOL") or shutil.which("promtool")
    if not found:
        pytest.skip(
            "promtool is not installed (Debian: prometheus) nor named by KVPLAN_PROMTOOL: rules not checked by it"
        )
    return found


def board(*systems: str) -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads(monitoring(systems, "{}", PLAN.data)[0])
    return loaded


def expressions(dashboard: dict[str, Any]) -> list[str]:
    return [target["expr"] for panel in dashboard["panels"] for target in panel.get("targets", ())]


# ------------------------------------------------------------------------------------------------ the dashboard


def test_panels_have_their_own_places_and_one_row_a_system() -> None:
    dashboard = board()
    panels = dashboard["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    assert [panel["title"] for panel in panels if panel["type"] == "row"] == [system.title for system in SYSTEMS]
    taken = set()
    for panel in panels:
        place = panel["gridPos"]
        cells = {(place["x"] + x, place["y"] + y) for x in range(place["w"]) for y in range(place["h"])}
        assert place["x"] + place["w"] <= 24
        assert not cells & taken, panel["title"]
        taken |= cells


def test_every_query_asks_the_chosen_source_and_only_variables_that_exist() -> None:
    dashboard = board()
    known = {variable["name"] for variable in dashboard["templating"]["list"]}
    assert known == {"datasource", "job", "instance"}
    for panel in dashboard["panels"]:
        for target in panel.get("targets", ()):
            assert target["datasource"]["uid"] == "${datasource}"
    for expression in expressions(dashboard):
        used = set(re.findall(r"\$\{?(\w+)", expression)) - {"__rate_interval"}
        assert used <= known
        assert expression.count("(") == expression.count(")")
        assert "vector(" in expression or 'job=~"$job"' in expression


def test_a_system_shows_every_tier_copy_and_wait_that_it_counts() -> None:
    titles = {panel["title"] for panel in board("vllm")["panels"]}
    assert {
        "Hit ratio by tier",
        "Bytes moved a second",
        "Rate while copies run",
        "queue wait",
        "As configured",
    } <= titles
    hits = next(panel for panel in board("vllm")["panels"] if panel["title"] == "Hit ratio by tier")
    assert [target["legendFormat"] for target in hits["targets"]] == [
        *("all tiers", "GPU", "host memory", "disk", "remote store", "below the GPU", "planned, all tiers")
    ]
    assert f"vector({PLAN.data.budgets.host.hit_ratio:.6g})" == hits["targets"][-1]["expr"]


def test_grafanas_own_model_reads_it() -> None:
    models = pytest.importorskip(
        "grafana_foundation_sdk.models.dashboard", reason="grafana-foundation-sdk is not installed: model not checked"
    )
    from grafana_foundation_sdk.cog.encoder import JSONEncoder

    given = board()
    read = json.loads(JSONEncoder(sort_keys=True).encode(models.Dashboard.from_json(given)))
    assert read["title"] == given["title"]
    assert len(read["panels"]) == len(given["panels"])
    for ours, theirs in zip(given["panels"], read["panels"], strict=True):
        lost = {key for key in ours if key not in theirs and ours[key] not in ("", [], {})}
        assert not lost, f"fields of a {ours['type']} panel that Grafana's model does not know: {lost}"


# ------------------------------------------------------------------------------------------------ the alert rules


def parsed(text: str) -> dict[str, Any]:
    yaml = pytest.importorskip("yaml", reason="PyYAML is not installed: the YAML was not read back")
    loaded: dict[str, Any] = yaml.safe_load(text)
    return loaded


def test_rules_are_yaml_with_names_of_their_own_and_words_for_people() -> None:
    text = monitoring([], '{job="it\'s",}', PLAN.data)[1]
    groups = parsed(text)["groups"]
    assert [group["name"] for group in groups] == [f"kvplan-{system.name}" for system in SYSTEMS]
    every = list(itertools.chain.from_iterable(group["rules"] for group in groups))
    assert len({rule["alert"] for rule in every}) == len(every)
    for rule in every:
        assert 'job="it\'s"' in rule["expr"]
        assert re.fullmatch(r"[1-9][0-9]*m", rule["for"])
        assert rule["labels"]["severity"] in ("warning", "critical")
        assert rule["annotations"]["summary"]
        assert rule["annotations"]["description"][-1] in ".?"


def test_every_failure_that_observe_finds_has_a_rule() -> None:
    for system in SYSTEMS:
        names = {rule["alert"] for rule in parsed(rules.build([system]))["groups"][0]["rules"]}
        expected = sum(watch.kind != "idle" for watch in system.watches)
        expected += sum(bool(loss.trouble) for loss in system.losses)
        assert len(names) == expected + 1  # and one for a metric that is gone


def test_promtool_reads_rules_and_every_query_of_the_dashboard(promtool: str, tmp_path: Path) -> None:
    (tmp_path / "alerts.yaml").write_text(monitoring([], '{job="vllm"}', PLAN.data)[1])
    queries = "".join(
        f"  - record: query:{index}\n    expr: '{expression.replace('$__rate_interval', '5m')}'\n"
        for index, expression in enumerate(expressions(board()))
    )
    (tmp_path / "queries.yaml").write_text(f"groups:\n- name: queries\n  rules:\n{queries}")
    done = subprocess.run(
        [promtool, "check", "rules", "alerts.yaml", "queries.yaml"],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


_CASES = {
    "KvCacheVllmPendingStoresGrowing": (
        {"vllm:simple_kv_offload_pending_store_blocks": "1+2x120"},
        {"vllm:simple_kv_offload_pending_store_blocks": "5 3 8 2 4+0x116"},
    ),
    "KvCacheVllmStoresStuck": (
        {
            "vllm:simple_kv_offload_pending_store_blocks": "4+0x120",
            'vllm:simple_kv_offload_save_outcomes_total|outcome="stored"': "100+0x120",
        },
        {
            "vllm:simple_kv_offload_pending_store_blocks": "4+0x120",
            'vllm:simple_kv_offload_save_outcomes_total|outcome="stored"': "100+10x120",
        },
    ),
    "KvCacheVllmStoresWithoutLoads": (
        {"vllm:kv_offload_store_bytes_total": "0+1000x120", "vllm:kv_offload_load_bytes_total": "0+0x120"},
        {"vllm:kv_offload_store_bytes_total": "0+1000x120", "vllm:kv_offload_load_bytes_total": "0+1x120"},
    ),
    "KvCacheVllmHitsZero": (
        {
            "vllm:prefix_cache_queries_total": "0+100x120",
            "vllm:prefix_cache_hits_total": "0+0x120",
            "vllm:external_prefix_cache_hits_total": "0+0x120",
        },
        {
            "vllm:prefix_cache_queries_total": "0+100x120",
            "vllm:prefix_cache_hits_total": "0+0x120",
            "vllm:external_prefix_cache_hits_total": "0+5x120",
        },
    ),
    "KvCacheVllmHitsBelowPlan": (
        {"vllm:prefix_cache_queries_total": "0+100x120", "vllm:prefix_cache_hits_total": "0+30x120"},
        {
            "vllm:prefix_cache_queries_total": "0+100x120",
            "vllm:prefix_cache_hits_total": "0+30x120",
            "vllm:external_prefix_cache_hits_total": "0+30x120",
        },
    ),
    "KvCacheLmcacheUnhealthy": ({"lmcache:lmcache_is_healthy": "0+0x120"}, {"lmcache:lmcache_is_healthy": "1+0x120"}),
    "KvCacheLmcacheServerL2PrefetchFailureChunks": (
        {'lmcache_mp_l2_prefetch_failure_chunks_total|reason="l1_oom"': "0+1x120"},
        {'lmcache_mp_l2_prefetch_failure_chunks_total|reason="l1_oom"': "7+0x120"},
    ),
    "KvCacheVllmMetricMissing": ({"up": "1+0x120"}, {"vllm:prefix_cache_queries_total": "1+0x120"}),
}


@pytest.mark.parametrize("alert", _CASES)
def test_promtool_sees_an_alert_fire_and_stay_silent(alert: str, promtool: str, tmp_path: Path) -> None:
    """Two hours of a made-up server, a page a minute: once the alert must fire, once it must not."""
    (tmp_path / "alerts.yaml").write_text(monitoring([], '{job="vllm"}', PLAN.data)[1])
    for series, fires in zip(_CASES[alert], (True, False), strict=True):
        listed = []
        for name, values in series.items():
            metric, _, label = name.partition("|")
            labels = 'job="vllm",instance="a"' + (f",{label}" if label else "")
            listed.append({"series": f"{metric}{{{labels}}}", "values": values})
        case = {
            "rule_files": ["alerts.yaml"],
            "evaluation_interval": "1m",
            "tests": [
                {
                    "interval": "1m",
                    "input_series": listed,
                    "promql_expr_test": [
                        {
                            "expr": f'count(ALERTS{{alertname="{alert}",alertstate="firing"}}) or vector(0)',
                            "eval_time": "119m",
                            "exp_samples": [{"labels": "{}", "value": int(fires)}],
                        }
                    ],
                }
            ],
        }
        (tmp_path / "case.yaml").write_text(json.dumps(case))
        done = subprocess.run(
            [promtool, "test", "rules", "case.yaml"], capture_output=True, text=True, cwd=tmp_path, check=False
        )
        assert done.returncode == 0, f"{alert} {'did not fire' if fires else 'fired'}: {done.stdout}{done.stderr}"


# ------------------------------------------------------------------------------------------------ the command


def test_the_command_writes_both_files_for_the_plans_engine(tmp_path: Path) -> None:
    (tmp_path / "plan.json").write_text(dump(PLAN))
    done = CliRunner().invoke(
        app, ["observe", "--dashboard", str(tmp_path / "out"), "--plan", str(tmp_path / "plan.json")]
    )
    assert done.exit_code == 0, done.output
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["kvplan-alerts.yaml", "kvplan-dashboard.json"]
    assert json.loads((tmp_path / "out" / "kvplan-dashboard.json").read_text())["title"] == "KV cache: vLLM"


def test_unknown_systems_and_mixed_commands_are_refused(tmp_path: Path) -> None:
    with pytest.raises(KvplanError, match=r"no metrics known of 'tgi' \(known: vllm, "):
        by_name("tgi")
    for arguments in (["--dashboard", str(tmp_path), "--url", "x"], ["--for-system", "vllm", "--url", "x"]):
        assert isinstance(CliRunner().invoke(app, ["observe", *arguments]).exception, UsageError)
    with pytest.raises(UsageError):
        monitoring([], 'job="vllm"')


@pytest.mark.parametrize(
    "more", [["--for", "10m"], ["--elapsed", "1h"], ["--prompt-tokens", "9"], ["--json"], ["-o", "x.json"]]
)
def test_options_of_reading_are_refused_where_nothing_is_read(more: list[str], tmp_path: Path) -> None:
    done = CliRunner().invoke(app, ["observe", "--dashboard", str(tmp_path / "out"), *more])
    assert isinstance(done.exception, UsageError)
    assert str(done.exception).startswith(more[0])
    assert not (tmp_path / "out").exists()
