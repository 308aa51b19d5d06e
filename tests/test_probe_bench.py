"""The comparison with fio: its arithmetic on rounds whose ratios are known, and one real pair where fio is."""

from __future__ import annotations

import importlib.util
import math
import shutil
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from kvplan.probing import scratch
from kvplan.units import MiB


@pytest.fixture(scope="module")
def bench() -> ModuleType:
    path = Path(__file__).resolve().parents[1] / "benchmarks/disk.py"
    spec = importlib.util.spec_from_file_location("bench_disk", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up there
    spec.loader.exec_module(module)
    return module


def shot(bench: ModuleType, factor: float) -> Any:
    """A run whose every figure is `factor` times a common one."""
    return bench.Shot(rate=1e9 * factor, p50=1e-3 * factor, p99=5e-3 * factor, cpu_s_per_gb=0.1 * factor)


def test_pairs_are_taken_over_the_geometric_mean_of_alike_runs(bench: ModuleType) -> None:
    rounds = [
        bench.Round(ours=shot(bench, 2.0), one=shot(bench, 4.0), two=shot(bench, 1.0), queue=shot(bench, 8.0)),
        bench.Round(ours=shot(bench, 1.0), one=shot(bench, 1.0), two=shot(bench, 1.0), queue=shot(bench, 1.0)),
    ]
    cells = [bench.Cell("read", MiB, 1, rounds)]
    for what in ("rate", "p50", "p99", "cpu_s_per_gb"):
        assert bench.logs(cells, "kvplan / fio", what) == pytest.approx([0.0, 0.0])
        assert bench.logs(cells, "fio / fio", what) == pytest.approx([math.log(4.0), 0.0])
        assert bench.logs(cells, "kvplan / libaio", what) == pytest.approx([math.log(0.25), 0.0])
        assert bench.logs(cells, "libaio / fio", what) == pytest.approx([math.log(4.0), 0.0])


def test_a_mean_with_its_interval(bench: ModuleType) -> None:
    """Of the logarithms 0.1 and 0.3: mean 0.2, standard deviation 0.1 x √2, half an interval 1.96 x 0.1."""
    low, high = math.exp(0.2 - 0.196), math.exp(0.2 + 0.196)
    assert bench.summary([0.1, 0.3]) == f"{math.exp(0.2):.3f} [{low:.3f}, {high:.3f}]"


@pytest.mark.skipif(shutil.which("fio") is None, reason="fio is not installed: the tools were not compared")
@pytest.mark.parametrize("way", ["read", "write"])
def test_one_round_with_fio(bench: ModuleType, way: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    if scratch.look(tmp_path).memory:
        pytest.skip(f"{tmp_path} is in memory: point pytest's --basetemp at a drive")
    cell = bench.Cell(way, MiB, 4)
    with bench.written(tmp_path, 64 * MiB) as descriptor:
        bench.measure(descriptor, [cell], 64 * MiB, 16 * MiB, 1)
    (one,) = cell.rounds
    for run in (one.ours, one.one, one.two, one.queue):
        assert 0 < run.p50 <= run.p99 < 60
        assert 1e5 < run.rate < 1e12
    bench.report([cell])
    page = capsys.readouterr().out
    assert "throughput" in page
    assert "latency p99" in page
    assert "1 pairs" in page
