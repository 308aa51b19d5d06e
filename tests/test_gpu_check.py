"""The check of a whole GPU host, over stand-ins: its page, its verdict, and what it does on a bare machine."""

from __future__ import annotations

import re
import runpy
import subprocess
import sys
import time
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from fake_gpu import FakeGpu, TimedGpu
from records import replace
from test_probe_gpu import BUFFER, device, host

from kvplan import probe, probe_gpu, probe_host
from kvplan.documents import Host, ProbeOptions
from kvplan.files import load
from kvplan.probing import contention, cuda, gpu_copies, gpu_extras, gpu_run, nvml
from kvplan.units import KiB, MiB

CHECK = Path(__file__).resolve().parents[1] / "benchmarks/gpu_check.py"


@pytest.fixture
def check(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """The check's names, over one card that is made up and a buffer that is small."""
    torch = pytest.importorskip("torch")
    if torch.cuda.is_available():
        pytest.skip("a CUDA device is here: the page would be of it")
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(contention, "STEPS", 200)
    monkeypatch.setattr(gpu_extras, "BLOCK", 256 * KiB)
    monkeypatch.setattr(gpu_copies, "_MOST_PIECES", 64)
    for room in (gpu_run, gpu_extras):  # a busy machine is no matter here
        monkeypatch.setattr(room, "_GRACE_S", 1e6)
        monkeypatch.setattr(room, "_LEAST_GRACE_S", 1e6)
    card = device(pci="0000:01:00.0", max_link_generation=5, max_link_width=16)
    monkeypatch.setattr(probe_host, "inventory", lambda: host(gpus=(card,)))
    monkeypatch.setattr(nvml, "link_state", lambda pci: nvml.LinkState(generation=5, width=16))
    small = partial(probe_gpu.measure, buffer_bytes=BUFFER, pin_bytes=2 * BUFFER)

    def measured(gpu: FakeGpu, on: Host, **more: Any) -> probe_gpu.GpuResult:
        extras = replace(more["extras"], contention_s=0.01)
        return small(gpu, on, **{**more, "seconds": 0.0, "extras": extras})

    monkeypatch.setattr(probe_gpu, "measure", measured)
    return runpy.run_path(str(CHECK))


@pytest.mark.parametrize(
    ("fault", "code", "verdict"),
    [
        ({}, 0, "gpu-check: all measured and right, in "),
        (
            {"corrupt_after": 20 * MiB},
            1,
            "gpu0: copies of 1 cells did not arrive as they were sent: distrust this link",
        ),
        ({"refuses": ("batch",)}, 1, ": 1 parts were not measured, named above"),
        ({"refuses": ("decode",)}, 1, ": 1 parts were not measured, named above"),
    ],
)
def test_the_page_of_the_gpu_check(
    check: dict[str, Any],
    fault: dict[str, Any],
    code: int,
    verdict: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> None:
    document = tmp_path / "host.json"
    monkeypatch.setattr(sys, "argv", ["gpu_check.py", "--disk", str(tmp_path), "--output", str(document)])
    gpu = TimedGpu(pci="0000:01:00.0", step_s=1e-4, **fault)
    monkeypatch.setattr(cuda, "devices", lambda: (gpu,))
    assert check["main"]() == code
    page, progress = capsys.readouterr()
    assert verdict in page.splitlines()[-1]
    assert "Link      generation 5 x16 under load, generation 5 x16 possible; raw 63.01 GB/s each way" in page
    assert "Pinned    8.00 MiB of 8.00 MiB" in page
    arrived = r": 1 of \d+ cells held wrong data" if "corrupt_after" in fault else ": every word arrived as it was sent"
    assert re.search(r"^Verified  [\d,]+ timed copies" + arrived, page, re.MULTILINE)
    assert ("Decoding  nothing, " in page) == ("decode" not in fault.get("refuses", ()))
    pipes = [line.split()[:2] for line in page.splitlines() if line.split()[:1] in (["load"], ["store"])]
    assert pipes == [[way, slots] for way in ("load", "store") for slots in ("2", "4", "8")]
    rows = [line.split() for line in page.splitlines() if "us " in line and "GB/s" in line]
    assert ["2.00", "KiB", "gather"] in [row[:3] for row in rows]
    assert [line.split()[0] for line in page.splitlines() if "GB/s" in line and "iB " in line][:2] == ["2.00", "32.00"]
    assert sum(line.startswith("Plans ") and " stores " in line for line in page.splitlines()) == 6
    assert ("(link-mechanism)" in page) == ("batch" in fault.get("refuses", ()))
    assert "0 s  gpu0: " in progress
    assert load(document).data.links


def test_the_gpu_check_asks_less_of_many_gpus(check: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[ProbeOptions] = []
    monkeypatch.setattr(probe, "measure", lambda options, progress: asked.append(options))
    for count in (1, 8):
        cards = tuple(device(index=index) for index in range(count))
        monkeypatch.setattr(probe_host, "inventory", lambda cards=cards: host(gpus=cards))
        check["_measured"](None)
    assert [options.budget_s for options in asked] == [150.0, 110.0]
    assert [options.granule_bytes for options in asked] == [(32 * KiB, 2 * MiB), ()]
    assert asked[0].moves == asked[1].moves != ()


def test_the_gpu_check_leaves_out_gpus_that_it_has_no_time_for(
    check: dict[str, Any], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    cards = tuple(device(index=n, pci=f"0000:{n + 1:02x}:00.0") for n in range(3))
    monkeypatch.setattr(sys, "argv", ["gpu_check.py"])
    monkeypatch.setattr(probe_host, "inventory", lambda: host(gpus=cards))
    gpus = tuple(TimedGpu(index=n, pci=cards[n].pci, step_s=1e-4) for n in range(3))
    monkeypatch.setattr(cuda, "devices", lambda: gpus)
    real, began = probe_gpu.measure, time.monotonic()

    def late(gpu: FakeGpu, on: Host, **more: Any) -> probe_gpu.GpuResult:
        if gpu.index == 1:
            monkeypatch.setattr(time, "monotonic", lambda now=time.monotonic: now() + 1000.0)
        return real(gpu, on, **more)

    monkeypatch.setattr(probe_gpu, "measure", late)
    assert check["main"]() == 1
    page = capsys.readouterr().out
    assert time.monotonic() - began > 1000
    assert "gpu0      Example" in page
    assert "not measured: gpu1: page-locking host memory: no time left" in page
    assert "not measured: gpu2: page-locking host memory: no time left" in page
    assert all(gpu.pinned == {} for gpu in gpus)


def test_the_gpu_check_on_a_host_without_a_gpu(
    check: dict[str, Any], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["gpu_check.py"])
    monkeypatch.setattr(probe_host, "inventory", lambda: host(gpu_status="no GPU: the driver shows none"))
    assert check["main"]() == 1
    assert capsys.readouterr().out.splitlines()[-1].endswith("nothing was measured: no GPU: the driver shows none")


def test_the_gpu_check_says_what_a_python_lacks(tmp_path: Path) -> None:
    """On a bare machine: an empty environment, and one with all but CUDA."""
    bare = subprocess.run([sys.executable, "-S", str(CHECK)], capture_output=True, text=True, check=False, cwd=tmp_path)
    assert (bare.returncode, bare.stdout) == (1, "")
    assert bare.stderr == (
        "gpu-check: this Python has no msgspec, numpy, torch: `make gpu-check` makes an environment that has it\n"
    )
    torch = pytest.importorskip("torch")
    if torch.version.cuda is not None:
        pytest.skip("torch has CUDA here: its absence was not tried")
    ready = subprocess.run([sys.executable, str(CHECK), "--ready"], capture_output=True, text=True, check=False)
    assert ready.returncode == 1
    assert f"torch {torch.__version__} was built without CUDA" in ready.stderr


def test_the_gpu_check_needs_no_more_than_it_says(check: dict[str, Any]) -> None:
    """Everything that it imports but the prefill, on a Python that has nothing but what it names."""
    program = f"""
import importlib.util, sys

class Absent:
    def find_spec(self, name, path=None, target=None):
        top = name.partition(".")[0]
        if top in {{"typer", "rich", "pandas", "transformers", "numba", "yaml", "huggingface_hub", "jinja2", "pynvml"}}:
            raise ModuleNotFoundError(f"No module named {{top!r}}", name=top)

sys.meta_path.insert(0, Absent())
sys.path[:0] = [{str(CHECK.parent)!r}, {str(CHECK.parents[1])!r}]
import gpu_check, gpu_page
from kvplan import probe
from kvplan.files import dump, wrap
from kvplan.planning import links
print(len(probe.kv_moves(gpu_check._estimate())))
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert (done.stderr, done.returncode) == ("", 0)
    assert int(done.stdout) > 4
