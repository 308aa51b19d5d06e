"""A disk probe that is stopped by a signal at any moment leaves nothing behind and ends as the shell expects."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from kvplan.probing import interrupts, scratch

# As the command line does: Ctrl-C ends with 130, a SIGTERM handler that exits runs the same clean-up.
PROGRAM = """
import signal, sys, threading
from kvplan import probe
from kvplan.documents import KvBlock, ProbeOptions
if {handle}:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
def say(what, done=None):
    print(what, flush=True)
try:
    kv = KvBlock(block_bytes=256 << 10, pieces=4, chunk_bytes=1 << 20, source="a small model")
    sizes = dict(file_bytes=64 << 20, write_budget_bytes=1 << 30, budget_s=4.0, kv=kv)
    probe.measure(ProbeOptions(disks=({folder!r},), only=("disk",), **sizes), say)
except KeyboardInterrupt:
    assert threading.active_count() == 1, threading.enumerate()
    sys.exit(130)
except SystemExit:
    assert threading.active_count() == 1, threading.enumerate()
    raise
"""


@pytest.fixture
def drive(tmp_path: Path) -> Path:
    if scratch.look(tmp_path).memory:
        pytest.skip(f"{tmp_path} is in memory: point pytest's --basetemp at a drive")
    return tmp_path


@pytest.mark.parametrize(
    ("number", "handle", "code", "moment"),
    [
        *((signal.SIGINT, False, 130, moment) for moment in range(10)),
        *((signal.SIGTERM, False, -signal.SIGTERM, moment) for moment in range(10)),
        *((signal.SIGTERM, True, 143, moment) for moment in range(3)),
        *((signal.SIGKILL, False, -signal.SIGKILL, moment) for moment in range(10)),
    ],
)
def test_nothing_is_left(drive: Path, number: signal.Signals, handle: bool, code: int, moment: int) -> None:
    program = PROGRAM.format(folder=str(drive), handle=handle)
    run = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert run.stdout is not None
    assert "reading what this host is" in run.stdout.readline()
    # From the first instant of the work, over the sweep, to the engines' shapes with a file for every block.
    wait = random.Random(f"{number}{handle}{moment}").uniform(0, 1.5) if moment else 0.0
    run.stdout.readline()
    time.sleep(wait)
    run.send_signal(number)
    _, errors = run.communicate(timeout=30)
    assert (run.returncode, errors) == (code, "")
    assert list(drive.iterdir()) == []
    assert _open_deleted_files(run.pid) == []


def _open_deleted_files(pid: int) -> list[str]:
    """Files that a process still holds: none once it is gone, and with them goes the space."""
    try:
        return os.listdir(f"/proc/{pid}/fd")
    except FileNotFoundError:
        return []


def test_a_second_interrupt_does_not_cut_the_clean_up_short(drive: Path) -> None:
    program = PROGRAM.format(folder=str(drive), handle=False)
    run = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert run.stdout is not None
    while "read 128.00 KiB" not in run.stdout.readline():
        pass
    run.send_signal(signal.SIGINT)
    run.send_signal(signal.SIGINT)
    _, errors = run.communicate(timeout=30)
    assert run.returncode in (130, -signal.SIGINT, 1)  # the second may land after the clean-up, outside any handler
    assert "Bad file descriptor" not in errors
    assert list(drive.iterdir()) == []


def test_the_command_ends_with_130_on_ctrl_c(drive: Path) -> None:
    command = [sys.executable, "-m", "kvplan", "probe", "--disk", str(drive), "--only", "disk", "-o", "probe.json"]
    run = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=drive)
    assert run.stderr is not None
    assert f"{drive}: writes at most" in run.stderr.readline()
    time.sleep(0.3)
    run.send_signal(signal.SIGINT)
    _, errors = run.communicate(timeout=30)
    assert run.returncode == 130
    assert "Traceback" not in errors
    assert list(drive.iterdir()) == []


@pytest.mark.parametrize(("name", "code"), [("SIGINT", 130), ("SIGTERM", 143)])
def test_a_signal_in_a_destructor_is_heard_at_the_next_chance(name: str, code: int) -> None:
    """Python drops what rises in a destructor, an interrupt too, and would go on as if nobody had pressed a key."""
    program = f"""
import os, signal, sys
from kvplan.probing.interrupts import heeded

signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))

class Last:
    def __del__(self):
        os.kill(os.getpid(), signal.{name})
        for _ in range(1000):
            pass

try:
    with heeded(lambda what, done=None: print(what)) as progress:
        progress("before")
        Last()
        progress("after")
except KeyboardInterrupt:
    sys.exit(130)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (code, "before\n", "")


GPU_PROGRAM = """
import random, signal, sys
sys.path.insert(0, {tests!r})
from fake_gpu import FakeGpu
from kvplan import probe, probe_gpu, probe_host
from kvplan.documents import GpuDevice, ProbeOptions
from kvplan.probing import cuda, nvml
from kvplan.units import MiB
from msgspec.structs import replace
signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))

class Watched(FakeGpu):
    under_way = 0
    def submit(self, stream, pieces):
        Watched.under_way += 1
        super().submit(stream, pieces)
    def wait(self, stream):
        super().wait(stream)
        Watched.under_way = 0
    def unpin(self, address):
        assert not Watched.under_way, "page-locked memory was given back under copies"
        super().unpin(address)

card = GpuDevice(index=0, name="Example", total_bytes=1 << 36, free_bytes=1 << 36, pci="0000:01:00.0")
host = replace(probe_host.inventory(), gpus=(card,))
probe_host.inventory = lambda: host
nvml.link_state = lambda pci: nvml.LinkState()
gpu = Watched(pci=card.pci)
cuda.devices = lambda: (gpu,)
real = probe_gpu.measure
probe_gpu.measure = lambda gpu, on, **more: real(gpu, on, **more, buffer_bytes=4 * MiB, pin_bytes=8 * MiB)
def say(what, done=None):
    print(what, flush=True)
code = 0
try:
    probe.measure(ProbeOptions(only=("gpu",), budget_s=20.0), say)
except KeyboardInterrupt:
    code = 130
except SystemExit as end:
    code = end.code
assert gpu.peak_pinned == 8 * MiB and gpu.pinned == {{}}, gpu.pinned
sys.exit(code)
"""


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
@pytest.mark.parametrize("moment", range(4))
def test_page_locked_memory_is_given_back_after_its_copies(number: signal.Signals, code: int, moment: int) -> None:
    program = GPU_PROGRAM.format(tests=str(Path(__file__).parent))
    run = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert run.stdout is not None
    while "h2d" not in run.stdout.readline():
        pass
    time.sleep(random.Random(f"{number}{moment}").uniform(0, 1.0))
    run.send_signal(number)
    if moment % 2:
        time.sleep(0.001)
        run.send_signal(number)  # again, while it cleans up
    _, errors = run.communicate(timeout=30)
    if moment % 2 and run.returncode == -number:
        return  # the second came when all was given back and Python had ended
    assert (run.returncode, errors) == (code, "")


def interrupt() -> None:
    os.kill(os.getpid(), signal.SIGINT)
    for _ in range(1000):
        pass


def test_a_signal_right_behind_another_says_nothing_new_and_a_later_one_does(monkeypatch: pytest.MonkeyPatch) -> None:
    came = []

    def impatient() -> None:
        with interrupts.heeded(lambda what, done=None: None):
            for wait in (1000.0, 1000.0, 0.0):
                monkeypatch.setattr(interrupts, "_UNWINDING_S", wait)
                try:
                    interrupt()
                except KeyboardInterrupt:
                    came.append(wait)

    with pytest.raises(KeyboardInterrupt):  # of a probe that heard and went on all the same
        impatient()
    assert came == [1000.0, 0.0]
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_held_signals_come_at_the_end_and_once() -> None:
    steps = []

    def clean_up() -> None:
        with interrupts.held():
            for step in range(3):
                interrupt()
                steps.append(step)

    with pytest.raises(KeyboardInterrupt):
        clean_up()
    assert steps == [0, 1, 2]
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
