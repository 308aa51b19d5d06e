"""The disk probe on this machine's own drive, its verdicts on drives that lie, and its refusals."""

from __future__ import annotations

import errno
import mmap
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvplan import probe, probe_disk
from kvplan.documents import Probe, ProbeOptions
from kvplan.errors import KvplanError, UsageError
from kvplan.planning.links import disk_rates
from kvplan.probing import blockdev, directio, disk_io, disk_verdict, scratch, timing
from kvplan.probing.pattern import Pattern
from kvplan.units import GiB, KiB, MiB, show_bytes

SIZES = (81_920, 128 * KiB, MiB, 2 * MiB, 4 * MiB)
TINY = {"budget_s": 0.6, "write_budget_bytes": 256 * MiB, "file_bytes": 64 * MiB, "sweep_only": True}


def tiny_plan(folder: Path, **more: Any) -> probe_disk.DiskPlan:
    fields = {"seconds": 0.5, "write_bytes": 256 * MiB, "file_bytes": 64 * MiB, "sweep_only": True}
    return probe_disk.plan(folder, **{**fields, **more})


@pytest.fixture
def drive(tmp_path: Path) -> Path:
    """A folder on a drive; some machines keep their temporary files in memory."""
    if scratch.look(tmp_path).memory:
        pytest.skip(f"{tmp_path} is in memory: point pytest's --basetemp at a drive")
    return tmp_path


@pytest.fixture
def descriptor(drive: Path) -> Iterator[int]:
    """A nameless direct-I/O file of 8 MiB, reserved but not written."""
    with scratch.scratch_file(scratch.look(drive), 8 * MiB) as file:
        yield file.descriptor


@pytest.fixture(autouse=True, scope="module")
def _patient() -> Iterator[None]:
    """Other programs may keep the drive busy: the file is written whole all the same."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(probe_disk, "_SHORTEST_FILL_S", 60.0)
        patch.setattr(probe_disk, "LEAST_S", 600.0)
        yield


@pytest.fixture(autouse=True)
def _no_thread_left() -> Iterator[None]:
    yield
    assert [thread.name for thread in threading.enumerate() if thread.name == "kvplan-disk"] == []


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Probe, list[str]]:
    folder = tmp_path_factory.mktemp("drive")
    said: list[str] = []
    options = ProbeOptions(disks=(str(folder),), only=("disk",), granule_bytes=(81_920,), **TINY)
    if scratch.look(folder).memory:
        pytest.skip(f"{folder} is in memory: point pytest's --basetemp at a drive")
    return folder, probe.measure(options, lambda what, done=None: said.append(what)), said


# ---- the whole


def test_every_cell_is_measured_and_adds_up(measured: tuple[Path, Probe, list[str]]) -> None:
    folder, found, _ = measured
    steady = [link for link in found.links if "first-write" not in link.flags]
    reads = {(link.granule_bytes, link.depth) for link in steady if link.direction == "read"}
    assert reads == {(size, depth) for size, depth in product(SIZES, (1, 8, 32)) if size * depth <= 64 * MiB}
    for link in found.links:
        ends = (f"disk:{folder}", "host")
        assert (link.source, link.target) == (ends if link.direction == "read" else ends[::-1])
        # On a busy machine a short window may see no transfer end, so the slowest one can be 0.
        assert 0 <= link.p5_bytes_per_s <= link.p50_bytes_per_s <= link.p95_bytes_per_s > 0
        assert 0 < link.p50_latency_s <= link.p95_latency_s <= link.p99_latency_s
        assert link.samples >= link.depth
        assert link.cpu_s_per_gb is not None
    writes = {(link.granule_bytes, link.depth) for link in steady if link.direction == "write"}
    assert {(size, depth) for size in (81_920, 128 * KiB) for depth in (1, 8)} <= writes
    (told,) = [finding.text for finding in found.findings if finding.code == "disk-cells-left-out"]
    assert told.startswith(f"{folder}: not measured, for want of write budget, space or file size: ")
    absent = set(told.split(": ")[2].split(", "))
    every = {(way, size, depth) for way, size, depth in product(("read", "write"), SIZES, (1, 8, 32))}
    there = {(link.direction, link.granule_bytes, link.depth) for link in steady}
    assert absent == {f"{way} {show_bytes(size)} x {depth}" for way, size, depth in every - there}
    assert "read 4.00 MiB x 32" in absent
    assert 64 * MiB < found.written_bytes <= TINY["write_budget_bytes"]
    assert list(folder.iterdir()) == []


class Meeting:
    """A side whose first transfers all wait for one another: they end only if so many are in flight at once."""

    def __init__(self, barrier: threading.Barrier, now: set[int], most: list[int], size: int) -> None:
        self.barrier, self.now, self.most, self.size = barrier, now, most, size

    def prepare(self, index: int) -> None:
        pass

    def move(self, index: int) -> int:
        self.now.add(threading.get_ident())
        self.most.append(len(self.now))
        if not self.barrier.broken and len(self.most) <= self.barrier.parties:
            self.barrier.wait(timeout=60)
        self.now.remove(threading.get_ident())
        return self.size

    def wrong_pages(self, index: int) -> int:
        return 0


@pytest.mark.parametrize("depth", [1, 8, 32])
def test_depth_transfers_are_in_flight_and_never_more(depth: int) -> None:
    barrier, now, most = threading.Barrier(depth), set[int](), list[int]()
    job = disk_io.Job(
        direction="write",
        granule=128 * KiB,
        depth=depth,
        file_bytes=8 * MiB,
        seconds=60,
        limit=4 * depth,
        pattern=Pattern(0, 1, 128 * KiB),
        make_side=lambda job, writes: Meeting(barrier, now, most, job.granule),
    )
    done = disk_io.run(-1, job, lambda rate: None)
    assert (done.transfers, max(most)) == (4 * depth, depth)


def test_first_write_is_its_own_link(measured: tuple[Path, Probe, list[str]]) -> None:
    first = [link for link in measured[1].links if "first-write" in link.flags]
    assert [(link.direction, link.samples) for link in first] == [("write", 16)]
    assert "first write" in first[0].method


def test_the_drive_under_the_tests_is_proven_direct(measured: tuple[Path, Probe, list[str]]) -> None:
    disk = measured[1].capacity[0]
    if disk.filesystem not in ("ext4", "xfs"):
        pytest.skip(f"{disk.filesystem} under the tests: only ext4 and xfs are expected to be provable")
    told = [line for line in disk.proof if "does not say" in line]
    if told:
        pytest.skip(f"this kernel is too old to prove it: {told[0]}")
    assert disk.direct == "proven"
    assert disk.proof[1].startswith("0 pages")
    assert disk.flags == ()
    assert disk.scratch_bytes == 64 * MiB


def test_progress_names_folder_cell_and_rate(measured: tuple[Path, Probe, list[str]]) -> None:
    folder, _, said = measured
    assert any(f"{folder}: read 1.00 MiB x 8: " in line and "B/s" in line for line in said)


def test_the_plan_says_what_will_be_written(drive: Path) -> None:
    before = list(drive.iterdir())
    (line,) = probe.announce(ProbeOptions(disks=(str(drive),), only=("disk",), **{**TINY, "budget_s": 600.0}))
    assert str(drive) in line
    (todo,) = probe.plan_of(ProbeOptions(disks=(str(drive),), only=("disk",), **TINY)).disks
    assert f"at most {show_bytes(todo.write_bytes)} into a nameless file of 64.00 MiB" in line
    assert list(drive.iterdir()) == before


@pytest.mark.parametrize("budget", [64 * MiB, 100 * MiB, 300 * MiB, 8 * GiB, 1000 * GiB])
@pytest.mark.parametrize("granules", [(), (5 * 81_920,), (32 * MiB,)])
def test_a_plan_never_exceeds_its_write_budget(drive: Path, budget: int, granules: tuple[int, ...]) -> None:
    todo = probe_disk.plan(drive, seconds=1, write_bytes=budget, granules=granules)
    assert todo.file_bytes <= todo.write_bytes <= budget
    assert todo.file_bytes <= scratch.look(drive).room_bytes
    assert {cell.depth <= todo.file_bytes // cell.granule for cell in todo.cells} == {True}


# ---- refusals, each one clear line


def refused(folder: Path, **more: Any) -> str:
    with pytest.raises(KvplanError) as caught:
        probe.measure(ProbeOptions(disks=(str(folder),), only=("disk",), **{**TINY, **more}))
    text = str(caught.value)
    assert "\n" not in text
    return text


def test_a_size_that_the_file_holds_not_once_is_refused_and_one_that_it_holds_takes_from_nobody(drive: Path) -> None:
    with pytest.raises(KvplanError, match=r"--granule 3.00 GiB is more than the scratch file of 2.00 GiB"):
        probe_disk.plan(drive, seconds=60, write_bytes=8 * GiB, file_bytes=2 * GiB, granules=(MiB, 3 * GiB))
    options = {"seconds": 60, "write_bytes": 8 * GiB, "file_bytes": 256 * MiB}
    plain = probe_disk.plan(drive, **options)
    asked = probe_disk.plan(drive, **options, granules=(32 * MiB,))
    assert {(cell.depth, cell.direction) for cell in asked.cells if cell.granule == 32 * MiB and not cell.preset} == {
        (depth, way) for depth in (1, 8) for way in ("read", "write")
    }
    named = [(cell.granule, cell.depth) for cell in asked.left_out]
    assert named.count((32 * MiB, 32)) == 2  # deeper than the file, in both directions, and said
    others = [cell for cell in asked.cells if cell.granule != 32 * MiB]
    assert [str(cell) for cell in others] == [str(cell) for cell in plain.cells if cell.granule != 32 * MiB]


def test_missing_folder(tmp_path: Path) -> None:
    assert refused(tmp_path / "none") == f"{tmp_path}/none: cannot open the folder: no such file or directory"


def test_file_as_folder(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"keep")
    assert "not a folder" in refused(path)
    assert path.read_bytes() == b"keep"


def test_memory_is_no_drive_unless_told() -> None:
    """Memory given as a drive is refused; told so, it is measured and flagged, and no plan takes it for a drive."""
    if not os.path.isdir("/dev/shm") or not scratch.look(Path("/dev/shm")).memory:
        pytest.skip("no /dev/shm here: memory given as a drive was not tried")
    before = set(os.listdir("/dev/shm"))
    with pytest.raises(KvplanError, match="/dev/shm: is on tmpfs, which is memory and not a drive"):
        probe.measure(ProbeOptions(disks=("/dev/shm",), only=("disk",), **TINY))
    found = probe.measure(ProbeOptions(disks=("/dev/shm",), only=("disk",), allow_memory=True, **TINY))
    (disk,) = found.capacity
    assert (disk.direct in ("unproven", "no"), "memory" in disk.flags, disk.filesystem) == (True, True, "tmpfs")
    assert "tmpfs is memory, not a drive" in disk.proof
    assert found.links
    assert all("memory" in link.flags for link in found.links)
    assert disk_rates(found, MiB, 1, allow_flagged=False, preset=None)[0] is None
    assert disk_rates(found, MiB, 1, allow_flagged=True, preset=None)[0] is not None
    assert set(os.listdir("/dev/shm")) == before


def test_unwritable_folder(tmp_path: Path) -> None:
    """As another user where the tests run as root, whom no mode stops."""
    folder = tmp_path / "locked"
    folder.mkdir(mode=0o555)
    code = (
        "import sys; from kvplan import probe; from kvplan.documents import ProbeOptions; from kvplan.errors import *\n"
        f"try: probe.measure(ProbeOptions(disks=({str(folder)!r},), only=('disk',), write_budget_bytes=2**28))\n"
        "except KvplanError as error: sys.exit(str(error))"
    )
    if os.getuid() == 0:
        for parent in (folder, *folder.parents):
            if parent.owner() == "root" and parent != Path("/") and not parent.stat().st_mode & 0o001:
                parent.chmod(parent.stat().st_mode | 0o011)
        code = f"import os, numpy, msgspec; import kvplan.probe; os.setgid(65534); os.setuid(65534)\n{code}"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stderr == f"{folder}: cannot create a scratch file: permission denied\n"
    assert done.returncode == 1


def test_read_only_file_system(drive: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.open

    def read_only(path: Any, flags: int, *rest: Any, **more: Any) -> int:
        if flags & os.O_RDWR:
            raise OSError(errno.EROFS, os.strerror(errno.EROFS))
        return real(path, flags, *rest, **more)

    monkeypatch.setattr(os, "open", read_only)
    assert refused(drive).endswith("cannot create a scratch file: read-only file system")


def squeeze(monkeypatch: pytest.MonkeyPatch, total: int, free: int) -> None:
    real = os.fstatvfs

    def small(descriptor: int) -> Any:
        facts = list(real(descriptor))
        facts[1:5] = [4096, total // 4096, free // 4096, free // 4096]
        return os.statvfs_result(facts)

    monkeypatch.setattr(os, "fstatvfs", small)


def test_nearly_full_drive(drive: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    squeeze(monkeypatch, 100 * GiB, 10 * GiB)
    text = refused(drive)
    assert "only 10.00 GiB free" in text
    assert "has to leave 10.00 GiB" in text
    assert list(drive.iterdir()) == []


def test_small_drive_can_be_probed(drive: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    squeeze(monkeypatch, 4 * GiB, 2 * GiB)
    assert probe_disk.plan(drive, seconds=1, write_bytes=8 * GiB).file_bytes == 512 * MiB


def test_space_taken_between_plan_and_start(drive: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(descriptor: int, offset: int, size: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "posix_fallocate", full)
    assert refused(drive) == f"{drive}: cannot reserve 64.00 MiB: no space left on device"
    assert list(drive.iterdir()) == []


@pytest.mark.parametrize(
    ("code", "words"), [(errno.ENOSPC, "no space left on device"), (errno.EIO, "input/output error")]
)
def test_drive_failing_in_mid_run(drive: Path, monkeypatch: pytest.MonkeyPatch, code: int, words: str) -> None:
    """As copy-on-write file systems do, which may refuse to overwrite what was reserved."""
    real, count = os.pwritev, [0]

    def fails(*arguments: Any) -> int:
        count[0] += 1
        if count[0] > 20:
            raise OSError(code, os.strerror(code))
        return real(*arguments)

    monkeypatch.setattr(os, "pwritev", fails)
    descriptors = len(os.listdir("/proc/self/fd"))
    assert refused(drive) == f"{drive}: the probe could not go on: {words}"
    assert list(drive.iterdir()) == []
    assert len(os.listdir("/proc/self/fd")) == descriptors


def test_folder_vanishing_in_mid_run(drive: Path) -> None:
    folder = drive / "gone"
    folder.mkdir()

    def remove(what: str, done: float | None = None) -> None:
        if "read 128.00 KiB x 8" in what and folder.exists():
            folder.rmdir()

    options = ProbeOptions(disks=(str(folder),), only=("disk",), **TINY)
    with pytest.raises(KvplanError, match="gone: vanished while it was probed"):
        probe.measure(options, remove)
    folder.mkdir()
    with pytest.raises(KvplanError, match="was replaced"):
        scratch.check_still_there(scratch.Folder(**{**as_fields(scratch.look(folder)), "inode": 1}))


def as_fields(folder: scratch.Folder) -> dict[str, Any]:
    return {name: getattr(folder, name) for name in folder.__slots__}


def test_interrupt_in_mid_run(drive: Path) -> None:
    descriptors = len(os.listdir("/proc/self/fd"))

    def press(what: str, done: float | None = None) -> None:
        if "read 1.00 MiB" in what:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        probe_disk.measure(tiny_plan(drive), progress=press)
    assert list(drive.iterdir()) == []
    assert len(os.listdir("/proc/self/fd")) == descriptors


def test_a_drive_too_slow_for_the_whole_file_gets_a_shorter_one(drive: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    todo = tiny_plan(drive, file_bytes=512 * MiB, write_bytes=700 * MiB)
    real = disk_io.run

    def slow(descriptor: int, job: disk_io.Job, listen: disk_io.Listener) -> disk_io.Done:
        if job.sequential and job.direction == "write":
            fields = {name: getattr(job, name) for name in job.__slots__}
            job = disk_io.Job(**{**fields, "file_bytes": 96 * MiB})
        return real(descriptor, job, listen)

    monkeypatch.setattr(disk_io, "run", slow)
    result = probe_disk.measure(todo)
    assert result.disk.scratch_bytes == 96 * MiB
    assert "disk-slow" in [finding.code for finding in result.findings]


@pytest.mark.parametrize("options", [{"only": ("disc",)}, {"only": ("disk",)}, {"budget_s": 0.0}])
def test_options_without_meaning(options: dict[str, Any]) -> None:
    with pytest.raises(UsageError):
        probe.plan_of(ProbeOptions(**options))


def test_write_budget_below_the_smallest_file(drive: Path) -> None:
    assert "does not cover" in refused(drive, write_budget_bytes=32 * MiB)


# ---- the scratch file


def test_scratch_file_is_private_and_nameless(drive: Path) -> None:
    with scratch.scratch_file(scratch.look(drive), 8 * MiB) as file:
        status = os.fstat(file.descriptor)
        assert (status.st_nlink, status.st_mode & 0o777, status.st_size) == (0, 0o600, 8 * MiB)
        assert list(drive.iterdir()) == []


def test_file_systems_without_nameless_files(drive: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real, made = os.open, []

    def old(path: Any, flags: int, mode: int = 0o777, **more: Any) -> int:
        if flags & os.O_TMPFILE == os.O_TMPFILE:
            raise OSError(errno.EOPNOTSUPP, os.strerror(errno.EOPNOTSUPP))
        if flags & os.O_CREAT:
            made.append((flags, mode, os.stat(Path(path).parent).st_mode & 0o777))
        return real(path, flags, mode, **more)

    monkeypatch.setattr(os, "open", old)
    with scratch.scratch_file(scratch.look(drive), 8 * MiB) as file:
        assert os.fstat(file.descriptor).st_nlink == 0
        assert list(drive.iterdir()) == []
    ((flags, mode, folder_mode),) = made
    assert flags & os.O_EXCL
    assert flags & os.O_NOFOLLOW
    assert (mode, folder_mode) == (0o600, 0o700)


def test_file_systems_without_direct_io_are_measured_and_flagged(drive: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.open

    def buffered(path: Any, flags: int, *rest: Any, **more: Any) -> int:
        if flags & os.O_DIRECT:
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
        return real(path, flags, *rest, **more)

    monkeypatch.setattr(os, "open", buffered)
    result = probe_disk.measure(tiny_plan(drive))
    assert result.disk.direct == "no"
    assert {link.flags[0] for link in result.links} == {"first-write", "page-cache"}
    assert all("page-cache" in link.flags and "buffered" in link.method for link in result.links)
    assert "disk-not-proven-direct" in [finding.code for finding in result.findings]


def test_direct_io_refused_at_the_first_write(drive: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def picky(descriptor: int, data: Any, offset: int) -> int:
        raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))

    monkeypatch.setattr(os, "pwrite", picky)
    with scratch.scratch_file(scratch.look(drive), 8 * MiB) as file:
        assert not file.direct
        assert os.writev(file.descriptor, [b"unaligned"]) == 9


# ---- what Linux tells of a file


def test_extents_tell_unwritten_and_sparse_from_written(descriptor: int) -> None:
    reserved = directio.extents(descriptor, 8 * MiB)
    if reserved is None:
        pytest.skip("this file system has no FIEMAP: sparse and unwritten files were not tried")
    assert not reserved.whole
    with mmap.mmap(-1, MiB) as data:
        os.pwrite(descriptor, data, 2 * MiB)
        partly = directio.extents(descriptor, 8 * MiB)
        os.ftruncate(descriptor, 0)
        os.ftruncate(descriptor, 8 * MiB)
        sparse = directio.extents(descriptor, 8 * MiB)
        for offset in range(0, 8 * MiB, MiB):
            os.pwrite(descriptor, data, offset)
    assert partly is not None
    assert partly.unwritten_bytes == 7 * MiB - scratch.PAGE  # one page tried direct I/O at the start
    assert sparse is not None
    assert sparse.hole_bytes == 8 * MiB
    assert directio.extents(descriptor, 8 * MiB) == directio.Extents(hole_bytes=0, unwritten_bytes=0, encoded_bytes=0)


@pytest.mark.parametrize("count", [directio._cachestat, lambda fd: directio._mincore(fd, 8 * MiB)])
def test_cached_pages_are_seen(drive: Path, count: Any) -> None:
    with open(drive / "cached", "w+b", buffering=0) as file:
        file.write(bytes(8 * MiB))
        pages = count(file.fileno())
        if pages is None:
            pytest.skip("this kernel has no cachestat: mincore alone is used")
        assert pages == 8 * MiB // mmap.PAGESIZE


@pytest.mark.parametrize("kind", ["reserved", "sparse"])
def test_sweep_over_an_unwritten_file_is_flagged(drive: Path, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    """A file that was never filled reads at the speed of clearing memory: the probe must notice."""
    real = disk_io.run
    if kind == "sparse":
        monkeypatch.setattr(os, "posix_fallocate", lambda descriptor, offset, size: os.ftruncate(descriptor, size))

    def pretends(descriptor: int, job: disk_io.Job, listen: disk_io.Listener) -> disk_io.Done:
        if not (job.sequential and job.direction == "write"):
            return real(descriptor, job, listen)
        fields = {name: getattr(job, name) for name in job.__slots__}
        done = real(descriptor, disk_io.Job(**{**fields, "file_bytes": 16 * MiB}), listen)
        fields = {name: getattr(done, name) for name in done.__slots__}
        return disk_io.Done(**{**fields, "moved_bytes": job.file_bytes})

    monkeypatch.setattr(disk_io, "run", pretends)
    result = probe_disk.measure(tiny_plan(drive))
    assert result.disk.direct == "unproven"
    assert {"unwritten", "corrupt"} <= set(result.disk.flags)
    assert all({"unwritten", "corrupt"} <= set(link.flags) for link in result.links)


def test_a_page_cached_file_is_flagged(drive: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As ext4 with data=journal does: it accepts O_DIRECT and caches all the same."""
    real = os.open
    monkeypatch.setattr(os, "open", lambda path, flags, *rest, **more: real(path, flags & ~os.O_DIRECT, *rest, **more))
    result = probe_disk.measure(tiny_plan(drive))
    assert result.disk.direct == "unproven"
    assert "page-cache" in result.disk.flags


# ---- verdicts on evidence


def evidence(**more: Any) -> disk_verdict.Evidence:
    """Of a clean run: 100 bytes each way, all of them counted by the device."""
    fields: dict[str, Any] = {
        "direct": True,
        "alignment": directio.Statx(mount=1, memory_align=512, offset_align=512),
        "extents": directio.Extents(hole_bytes=0, unwritten_bytes=0, encoded_bytes=0),
        "cached_pages": 0,
        "read_bytes": 100,
        "written_bytes": 100,
        "before": directio.Moved(device_read=0, device_written=0, process_read=0, process_written=0),
        "after": directio.Moved(device_read=100, device_written=100, process_read=100, process_written=100),
    }
    return disk_verdict.Evidence(**{**fields, **more})


UNKNOWN = directio.Moved(device_read=None, device_written=None, process_read=None, process_written=None)
PROCESS = {"device_read": None, "device_written": None}


@pytest.mark.parametrize(
    ("changes", "direct", "flags"),
    [
        ({}, "proven", ()),
        ({"direct": False}, "no", ("page-cache",)),
        ({"alignment": directio.Statx(mount=1, memory_align=0, offset_align=0)}, "unproven", ("unproven-direct",)),
        (
            {"alignment": directio.Statx(mount=None, memory_align=None, offset_align=None)},
            "unproven",
            ("unproven-direct",),
        ),
        ({"cached_pages": 249}, "unproven", ("page-cache",)),
        ({"cached_pages": None}, "unproven", ("unproven-direct",)),
        (
            {"after": directio.Moved(device_read=90, device_written=100, process_read=100, process_written=100)},
            "unproven",
            ("unproven-direct",),
        ),
        (
            {"after": directio.Moved(device_read=96, device_written=300, process_read=0, process_written=0)},
            "proven",
            (),
        ),
        ({"before": UNKNOWN, "after": UNKNOWN}, "unproven", ("unproven-direct",)),
        (
            {
                "before": directio.Moved(**PROCESS, process_read=0, process_written=0),
                "after": directio.Moved(**PROCESS, process_read=100, process_written=99),
            },
            "proven",
            (),
        ),
        ({"extents": None}, "unproven", ("unproven-direct",)),
        (
            {"extents": directio.Extents(hole_bytes=0, unwritten_bytes=4096, encoded_bytes=0)},
            "unproven",
            ("unproven-direct", "unwritten"),
        ),
        ({"wrong_pages": 1}, "proven", ("corrupt",)),
        ({"not_a_drive": "zram0 is memory"}, "unproven", ("unproven-direct",)),
    ],
)
def test_verdict(changes: dict[str, Any], direct: str, flags: tuple[str, ...]) -> None:
    judged = disk_verdict.verdict(evidence(**changes), None)
    assert (judged.direct, judged.flags) == (direct, flags)
    assert bool(judged.missing) == (direct != "proven")


def test_a_network_file_system_is_never_proven() -> None:
    mount = blockdev.Mount(id=1, device="0:50", point="/data", kind="nfs4", source="server:/data")
    judged = disk_verdict.verdict(evidence(), mount)
    assert (judged.direct, judged.flags) == ("unproven", ("unproven-direct", "network"))
    assert judged.missing == ("nfs4 is a file system on another machine or in user space",)


# ---- content


@settings(max_examples=30, deadline=None)
@given(
    granule=st.sampled_from([4096, 81_920, 128 * KiB, 5 * 4096]),
    index=st.integers(0, 40),
    byte=st.integers(0, 4095),
    bit=st.integers(0, 7),
)
def test_one_flipped_bit_is_one_wrong_page(granule: int, index: int, byte: int, bit: int) -> None:
    pattern = Pattern(3, 2, granule)
    area, block = pattern.writer()
    data = bytearray(block(index)[0])
    assert pattern.wrong_pages(data, index * granule) == 0
    assert pattern.wrong_pages(data, (index + pattern.slots) * granule) == granule // 4096  # right bytes, wrong place
    assert Pattern(3, 1, granule).wrong_pages(data, index * granule) == granule // 4096  # of an earlier cell
    data[byte] ^= 1 << bit
    assert pattern.wrong_pages(data, index * granule) == 1
    del area


def test_pages_differ_and_do_not_compress() -> None:
    import zlib

    pattern = Pattern(0, 1, 128 * KiB)
    _, block = pattern.writer()
    data = b"".join(bytes(block(index)[0]) for index in range(4))
    assert len({data[at : at + 4096] for at in range(0, len(data), 4096)}) == len(data) // 4096
    assert len(zlib.compress(data, 1)) > 0.99 * len(data)


def test_reading_at_another_size_than_was_written_verifies(descriptor: int) -> None:
    pattern = Pattern(0, 1, 4 * MiB)
    fill = disk_io.Job(
        direction="write", granule=4 * MiB, depth=2, file_bytes=8 * MiB, seconds=5, pattern=pattern, sequential=True
    )
    disk_io.run(descriptor, fill, lambda rate: None)
    read = disk_io.Job(
        direction="read", granule=81_920, depth=3, file_bytes=8 * MiB, seconds=0.05, pattern=pattern, check=True
    )
    done = disk_io.run(descriptor, read, lambda rate: None)
    assert done.checked_bytes == done.moved_bytes > 0
    assert done.wrong_pages == 0


@pytest.mark.parametrize("lies", ["corrupts", "moves nothing"])
def test_a_drive_that_lies_is_caught(drive: Path, monkeypatch: pytest.MonkeyPatch, lies: str) -> None:
    real, count = os.preadv, [0]

    def lying(descriptor: int, buffers: Any, offset: int) -> int:
        count[0] += 1
        if count[0] != 5:
            return real(descriptor, buffers, offset)
        if lies == "corrupts":
            size = real(descriptor, buffers, offset)
            buffers[0][1000] ^= 1
            return size
        return len(buffers[0])

    monkeypatch.setattr(os, "preadv", lying)
    result = probe_disk.measure(tiny_plan(drive))
    assert "corrupt" in result.disk.flags
    assert all("corrupt" in link.flags for link in result.links)
    assert [finding.severity for finding in result.findings if finding.code == "disk-corrupt"] == ["error"]


def test_a_thread_visits_all_its_blocks_before_any_again_and_no_others(
    descriptor: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: dict[int, list[int]] = {}
    real = os.pwritev

    def noted(fd: int, data: Any, at: int) -> int:
        seen.setdefault(threading.get_ident(), []).append(at // (128 * KiB))
        return real(fd, data, at)

    monkeypatch.setattr(os, "pwritev", noted)
    pattern = Pattern(0, 1, 128 * KiB)
    job = disk_io.Job(
        direction="write", granule=128 * KiB, depth=4, file_bytes=8 * MiB, seconds=30, pattern=pattern, limit=200
    )
    assert disk_io.run(descriptor, job, lambda rate: None).transfers == 200
    lanes = [set(blocks) for blocks in seen.values()]
    assert sum(map(len, lanes)) == len(set().union(*lanes)) <= 64
    for blocks in seen.values():
        assert len(set(blocks[:16])) == min(16, len(blocks))
        assert blocks[16:32] == blocks[: len(blocks[16:32])]


# ---- rates


@settings(max_examples=50, deadline=None)
@given(
    st.lists(st.tuples(st.floats(0, 5), st.floats(0.001, 2)), min_size=1, max_size=30),
    st.floats(0.5, 6),
)
def test_window_rates_equal_brute_force(transfers: list[tuple[float, float]], finish: float) -> None:
    start = np.array([at for at, _ in transfers])
    end = start + np.array([length for _, length in transfers])
    rates = timing.window_rates(start, end, 1000, 0.0, finish)
    width = finish / len(rates)
    for number, rate in enumerate(rates):
        low, high = number * width, (number + 1) * width
        overlap = sum(max(0.0, min(e, high) - max(s, low)) / (e - s) for s, e in zip(start, end, strict=True))
        assert rate * width == pytest.approx(overlap * 1000, rel=1e-6, abs=1e-3)


def test_slowing_down_is_told_from_noise() -> None:
    assert timing.slowed(np.array([10.0, 10, 9, 7, 6, 5, 4, 4, 4]))
    assert not timing.slowed(np.array([10.0, 3, 9, 7, 6, 5, 4, 4, 4]))
    assert not timing.slowed(np.array([10.0, 10, 9, 9, 9, 9, 8.5, 8.5, 8.4]))


# ---- which drive


def tree(root: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def test_raid_over_nvme_partitions_lists_its_drives(tmp_path: Path) -> None:
    for bus, name, speed in (("01", "nvme0n1", "16.0 GT/s PCIe"), ("02", "nvme1n1", "32.0 GT/s PCIe")):
        pci = f"sys/devices/pci0000:00/0000:00:01.0/0000:{bus}:00.0"
        drive = f"{pci}/nvme/{name}"
        tree(
            tmp_path,
            {
                f"{drive}/size": "8000000000\n",
                f"{drive}/device/model": f"MODEL {bus} \n",
                f"{drive}/queue/rotational": "0\n",
                f"{drive}/queue/scheduler": "[none] mq-deadline\n",
                f"{drive}/queue/max_sectors_kb": "512\n",
                f"{drive}/queue/nr_requests": "1023\n",
                f"{drive}/queue/max_segments": "127\n",
                f"{drive}/{name}p1/partition": "1\n",
                f"sys/bus/pci/devices/0000:{bus}:00.0/current_link_speed": f"{speed}\n",
                f"sys/bus/pci/devices/0000:{bus}:00.0/current_link_width": "4\n",
                f"sys/bus/pci/devices/0000:{bus}:00.0/numa_node": "-1\n" if bus == "01" else "1\n",
            },
        )
        slaves = tmp_path / "sys/devices/virtual/block/md0/slaves"
        slaves.mkdir(parents=True, exist_ok=True)
        (slaves / f"{name}p1").symlink_to(tmp_path / drive / f"{name}p1")
    (tmp_path / "sys/dev/block").mkdir(parents=True)
    (tmp_path / "sys/dev/block/9:0").symlink_to(tmp_path / "sys/devices/virtual/block/md0")
    first, second = blockdev.drives(os.makedev(9, 0), tmp_path)
    assert (first.name, first.model, first.pci, first.numa_node) == ("nvme0n1", "MODEL 01", "0000:01:00.0", None)
    assert (first.link, first.scheduler, first.rotational) == ("16.0 GT/s PCIe x4", "none", False)
    assert (first.size_bytes, first.max_io_bytes, first.requests) == (4_096_000_000_000, 524_288, 1023)
    assert (second.name, second.numa_node, second.link) == ("nvme1n1", 1, "32.0 GT/s PCIe x4")


@pytest.mark.parametrize(
    ("name", "direct", "why"),
    [
        ("loop3", "0", "loop3 is a file that is read and written through the page cache"),
        ("loop3", "1", None),
        ("zram0", None, "zram0 is memory"),
        ("nvme0n1", None, None),
    ],
)
def test_devices_that_are_no_drives(tmp_path: Path, name: str, direct: str | None, why: str | None) -> None:
    device = tmp_path / "sys/devices/virtual/block" / name
    tree(tmp_path, {f"sys/devices/virtual/block/{name}/size": "8\n"})
    if direct is not None:
        tree(device, {"loop/dio": f"{direct}\n"})
    (tmp_path / "sys/dev/block").mkdir(parents=True)
    (tmp_path / "sys/dev/block/7:3").symlink_to(device)
    assert blockdev.not_a_drive(os.makedev(7, 3), tmp_path) == why


def test_the_mount_of_a_folder(tmp_path: Path) -> None:
    tree(
        tmp_path,
        {
            "proc/self/mountinfo": (
                "20 1 8:1 / / rw - ext4 /dev/sda1 rw\n"
                "21 20 0:30 / /data rw - overlay overlay rw\n"
                "22 20 9:0 / /data rw shared:1 - xfs /dev/md0 rw\n"
                "23 20 0:31 / /data\\040set rw - nfs4 host:/x rw\n"
            )
        },
    )
    found = blockdev.mounts(tmp_path)
    assert blockdev.mount_of(Path("/data/kv"), None, found) == found[2]  # the later mount covers the earlier
    assert blockdev.mount_of(Path("/database"), None, found) == found[0]
    assert blockdev.mount_of(Path("/data set/x"), None, found) == found[3]
    assert blockdev.mount_of(Path("/data/kv"), 21, found) == found[1]  # the kernel's own word
    assert found[3].remote
    assert not found[2].remote


def test_several_drives_are_planned_one_after_another_and_added_up(drive: Path) -> None:
    folders = [drive / name for name in ("a", "b")]
    for folder in folders:
        folder.mkdir()
    options = ProbeOptions(disks=tuple(map(str, folders)), only=("disk",), **{**TINY, "write_budget_bytes": 300 * MiB})
    *each, total = probe.plan_of(options).lines()
    todo = probe.plan_of(options)
    assert [line.split(":")[0] for line in each] == list(map(str, folders))
    assert total == f"all drives, one after another: {show_bytes(todo.write_bytes)} and 600 ms at most"
    assert todo.write_bytes <= 300 * MiB
