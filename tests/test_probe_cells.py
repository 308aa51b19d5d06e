"""What a drive's probe measures beyond sizes and depths: engines' shapes, other means, long writes, wear."""

from __future__ import annotations

import errno
import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from records import replace

from kvplan import probe, probe_disk
from kvplan.documents import BlockDevice, KvBlock, Probe, ProbeOptions
from kvplan.errors import KvplanError
from kvplan.files import wrap
from kvplan.pages import probe as probe_page
from kvplan.planning.links import clean
from kvplan.probing import (
    block_files,
    blockdev,
    disk_cells,
    disk_io,
    disk_links,
    interrupts,
    kernel_queues,
    neighbours,
    queued_io,
    scratch,
)
from kvplan.probing.directio import Statx
from kvplan.probing.disk_cells import GRANULES, Cell, all_cells, within
from kvplan.probing.disk_findings import Facts, findings
from kvplan.probing.disk_io import Done
from kvplan.probing.disk_runner import Outcome
from kvplan.probing.disk_verdict import Evidence, Verdict
from kvplan.probing.pattern import PAGE, Buffer, Pattern
from kvplan.probing.steadiness import Steadiness, first_and_last_second, steady
from kvplan.probing.timing import summarise
from kvplan.units import GB, GiB, KiB, MiB

KV = KvBlock(block_bytes=256 * KiB, pieces=4, chunk_bytes=1 * MiB, source="a small model")
LEAST_S = probe_disk.LEAST_S
WHOLE: dict[str, Any] = {"budget_s": 1.5, "write_budget_bytes": 1 * GiB, "file_bytes": 96 * MiB, "kv": KV}


@pytest.fixture
def drive(tmp_path: Path) -> Path:
    if scratch.look(tmp_path).memory:
        pytest.skip(f"{tmp_path} is in memory: point pytest's --basetemp at a drive")
    return tmp_path


@pytest.fixture
def written(drive: Path) -> Iterator[tuple[int, Pattern]]:
    """A nameless direct-I/O file of 16 MiB, written whole in a pattern."""
    pattern = Pattern(0, 1, 4 * MiB)
    with scratch.scratch_file(scratch.look(drive), 16 * MiB) as file:
        fill = disk_io.Job(
            direction="write",
            granule=4 * MiB,
            depth=1,
            file_bytes=16 * MiB,
            seconds=60,
            pattern=pattern,
            sequential=True,
        )
        disk_io.run(file.descriptor, fill, lambda rate: None)
        yield file.descriptor, pattern


@pytest.fixture(autouse=True, scope="module")
def _patient() -> Iterator[None]:
    """Other programs may keep the drive busy: the file is written whole all the same."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(probe_disk, "_SHORTEST_FILL_S", 60.0)
        patch.setattr(probe_disk, "LEAST_S", 600.0)
        yield


@pytest.fixture(autouse=True)
def _nothing_left() -> Iterator[None]:
    before = len(os.listdir("/proc/self/fd"))
    yield
    assert [thread.name for thread in threading.enumerate() if thread.name == "kvplan-disk"] == []
    assert len(os.listdir("/proc/self/fd")) == before


def job(pattern: Pattern, **more: Any) -> disk_io.Job:
    fields = {"direction": "read", "granule": 1 * MiB, "depth": 1, "file_bytes": 16 * MiB, "seconds": 0.05}
    return disk_io.Job(**{**fields, "pattern": pattern, **more})


# ---- the whole


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Probe]:
    folder = tmp_path_factory.mktemp("drive")
    if scratch.look(folder).memory:
        pytest.skip(f"{folder} is in memory: point pytest's --basetemp at a drive")
    return folder, probe.measure(ProbeOptions(disks=(str(folder),), only=("disk",), **WHOLE))


def test_every_engine_is_measured_with_loads_beside_stores(whole: tuple[Path, Probe]) -> None:
    _, found = whole
    shapes = {
        (link.preset, link.direction, link.granule_bytes, link.depth)
        for link in found.links
        if link.concurrent == "opposite direction" and link.preset
    }
    expected = {("vllm-disk", 256 * KiB, 1), ("vllm-fs", 256 * KiB, 16), ("lmcache", 1 * MiB, 1)}
    assert shapes == {(name, way, size, depth) for name, size, depth in expected for way in ("read", "write")}
    vector = next(link for link in found.links if link.preset == "vllm-disk")
    assert "4 scattered pieces of 64.00 KiB, one call for all" in vector.method


def test_the_whole_leaves_nothing_and_keeps_its_budget(whole: tuple[Path, Probe]) -> None:
    folder, found = whole
    assert list(folder.iterdir()) == []
    assert 96 * MiB < found.written_bytes <= WHOLE["write_budget_bytes"]
    assert not [one for one in found.findings if one.severity == "error"]
    assert found.capacity[0].flags == ()


def test_other_means_are_there_or_said_to_be_missing_and_no_plan_rests_on_them(whole: tuple[Path, Probe]) -> None:
    _, found = whole
    compared = [link for link in found.links if "comparison" in link.flags]
    missing = " ".join(one.text for one in found.findings if one.code == "disk-cells-not-here")
    for queue in queued_io.QUEUES:
        assert any(f", {queue}, " in link.method for link in compared) or queue in missing
    for words in ("a call each", "fdatasync after each", "measured again later"):
        assert [link for link in compared if words in link.method]
    assert not [link for link in clean(found.links, False) if "comparison" in link.flags]


def test_reads_and_writes_meet_and_mix(whole: tuple[Path, Probe]) -> None:
    _, found = whole
    duplex = [link for link in found.links if link.concurrent == "opposite direction" and link.preset is None]
    assert {(link.direction, link.granule_bytes, link.depth) for link in duplex} == {
        ("read", MiB, 4),
        ("write", MiB, 4),
    }
    (mixed,) = [link for link in found.links if link.direction == "mixed"]
    assert "two preadv to one pwritev" in mixed.method
    assert [link.preset for link in found.links].count("sustained") == 1


def test_the_page_shows_shapes_and_means_apart_from_the_sweep(whole: tuple[Path, Probe]) -> None:
    _, found = whole
    sections = {section.name: section for section in probe_page.page(wrap(found)).sections}
    assert {"links", "engines", "means", "cells", "drives"} <= set(sections)

    def rows(name: str) -> list[tuple[str, ...]]:
        return [tuple(map(str, row.cells)) for row in sections[name].blocks[0].rows]

    assert len(rows("links")) == 2  # the quickest read and the quickest write, of plain cells
    assert {row[0] for row in rows("engines")} == {"vllm-disk", "vllm-fs", "lmcache", "sustained"}
    assert len(rows("means")) == len([link for link in found.links if "comparison" in link.flags])
    assert len(rows("cells")) == len(found.links)


def test_no_name_is_ever_created_where_the_file_system_can_do_without(
    drive: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    created, real = [], os.open

    def noted(path: Any, flags: int, *rest: Any, **more: Any) -> int:
        if flags & os.O_CREAT and flags & os.O_TMPFILE != os.O_TMPFILE:
            created.append(path)
        return real(path, flags, *rest, **more)

    monkeypatch.setattr(os, "open", noted)
    probe.measure(ProbeOptions(disks=(str(drive),), only=("disk",), **{**WHOLE, "budget_s": 0.3}))
    assert created == []


def test_a_full_drive_among_the_files_of_an_engine(drive: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = block_files.BlockFiles.create

    def full(self: block_files.BlockFiles, views: Any) -> int:
        if len(self.files) > 5:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return real(self, views)

    monkeypatch.setattr(block_files.BlockFiles, "create", full)
    with pytest.raises(KvplanError, match="no space left"):
        probe.measure(ProbeOptions(disks=(str(drive),), only=("disk",), **{**WHOLE, "budget_s": 0.3}))
    assert list(drive.iterdir()) == []


def test_a_file_system_without_nameless_files_says_so(drive: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(self: block_files.BlockFiles, views: Any) -> int:
        raise OSError(errno.EOPNOTSUPP, os.strerror(errno.EOPNOTSUPP))

    monkeypatch.setattr(block_files.BlockFiles, "create", refused)
    found = probe.measure(ProbeOptions(disks=(str(drive),), only=("disk",), **{**WHOLE, "budget_s": 0.3}))
    (missing,) = [one.text for one in found.findings if one.code == "disk-cells-not-here" and "O_TMPFILE" in one.text]
    assert "vllm-fs" in missing
    assert "lmcache" in missing
    assert not [link for link in found.links if link.preset in ("vllm-fs", "lmcache")]


def test_a_kernel_without_queues_says_so(drive: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(number: int, *arguments: object) -> int:
        raise kernel_queues.UnavailableError("EPERM: Operation not permitted")

    monkeypatch.setattr(kernel_queues, "_opened", refused)
    found = probe.measure(ProbeOptions(disks=(str(drive),), only=("disk",), **{**WHOLE, "budget_s": 0.3}))
    missing = [one.text for one in found.findings if one.code == "disk-cells-not-here" and "EPERM" in one.text]
    assert all(queue in " ".join(missing) for queue in queued_io.QUEUES)


# ---- plans


@settings(max_examples=100, deadline=None)
@given(
    block=st.integers(4096, 64 * MiB),
    pieces=st.integers(1, 200),
    budget=st.integers(64 * MiB, 64 * GiB),
    only=st.booleans(),
)
def test_cells_share_the_write_budget_and_never_exceed_it(block: int, pieces: int, budget: int, only: bool) -> None:
    kv = KvBlock(block_bytes=block, pieces=pieces, chunk_bytes=16 * block, source="any")
    cells = disk_cells.share_out(disk_cells.all_cells(disk_cells.GRANULES, kv, only), budget)
    assert sum(cell.limit_bytes or 0 for cell in cells) <= budget
    for cell in cells:
        assert cell.granule % (cell.pieces * PAGE) == 0
        assert (cell.limit_bytes is None) == (not cell.writes)
        if cell.files and cell.enough:
            writes = (cell.limit_bytes or 0) // cell.granule - cell.file_count
            assert cell.file_count // 2 >= cell.depth
            assert writes >= 2 * cell.depth


def test_a_block_is_padded_to_whole_pages_a_piece() -> None:
    kv = KvBlock(block_bytes=16 * 576 * 2 * 61, pieces=61, chunk_bytes=0, source="latent cache of 61 layers")
    assert disk_cells.whole_pages(kv) == (61 * 5 * PAGE, 61)


# ---- pieces, directions, ranges


@settings(max_examples=40, deadline=None)
@given(
    pieces=st.sampled_from([1, 2, 4, 16]),
    index=st.integers(0, 99),
    piece=st.integers(0, 15),
    byte=st.integers(0, 8191),
)
def test_scattered_pieces_hold_a_block_in_order(pieces: int, index: int, piece: int, byte: int) -> None:
    pattern = Pattern(1, 2, 128 * KiB)
    _, block = pattern.writer(pieces)
    data = b"".join(bytes(view) for view in block(index))
    assert pattern.wrong_pages(data, index * 128 * KiB) == 0
    _, one = pattern.writer()
    assert bytes(one(index)[0]) == data
    target = Buffer(128 * KiB, pieces)
    for view, part in zip(target.views[0], block(index), strict=True):
        view[:] = part
    target.views[0][piece % pieces][byte] ^= 1
    assert pattern.wrong_pages(target.content(), index * 128 * KiB) == 1


@pytest.mark.parametrize("separate", [False, True])
@pytest.mark.parametrize("direction", ["read", "write"])
def test_one_call_for_all_pieces_or_one_each(
    written: tuple[int, Pattern], monkeypatch: pytest.MonkeyPatch, direction: str, separate: bool
) -> None:
    descriptor, filled = written
    name = "preadv" if direction == "read" else "pwritev"
    calls, real = [], getattr(os, name)

    def noted(fd: int, views: Any, at: int) -> int:
        calls.append((len(views), at))
        return int(real(fd, views, at))

    monkeypatch.setattr(os, name, noted)
    pattern = filled if direction == "read" else Pattern(0, 7, MiB)
    done = disk_io.run(
        descriptor,
        job(pattern, direction=direction, pieces=4, separate=separate, limit=3, seconds=60),
        lambda rate: None,
    )
    assert [count for count, _ in calls] == ([1] * 12 if separate else [4] * 3)
    assert (done.transfers, done.wrong_pages, done.moved_bytes) == (3, 0, 3 * MiB)
    if separate:
        assert [at - calls[0][1] for _, at in calls[:4]] == [0, 256 * KiB, 512 * KiB, 768 * KiB]
    if direction == "write":
        assert disk_io.read_back(descriptor, pattern, done.touched) == (3 * MiB, 0)


def test_mixed_and_meeting_jobs_keep_to_their_halves(written: tuple[int, Pattern]) -> None:
    descriptor, filled = written
    new = Pattern(0, 9, MiB)
    mixed = disk_io.run(
        descriptor, job(filled, direction="mixed", written=new, depth=2, limit=30, seconds=60), lambda rate: None
    )
    assert (mixed.transfers, mixed.written_bytes, mixed.read_bytes) == (30, 10 * MiB, 20 * MiB)
    reads, writes = disk_io.run_together(
        descriptor,
        (job(filled, file_bytes=8 * MiB), job(new, direction="write", start_bytes=8 * MiB)),
        lambda rate: None,
    )
    assert reads.written_bytes == 0 == writes.read_bytes
    assert reads.wrong_pages == 0
    assert reads.until_s == writes.until_s
    first = disk_io.run(descriptor, job(filled, file_bytes=8 * MiB, sequential=True, check=True, seconds=60), print)
    assert (first.checked_bytes, first.wrong_pages) == (8 * MiB, 0)
    assert min(mixed.touched + writes.touched) >= 8


def test_a_job_beside_another_ends_with_it(written: tuple[int, Pattern]) -> None:
    descriptor, filled = written
    short = job(Pattern(0, 3, MiB), direction="write", start_bytes=8 * MiB, limit=2, seconds=60)
    reads, writes = disk_io.run_together(descriptor, (job(filled, file_bytes=8 * MiB, seconds=60), short), print)
    assert writes.transfers == 2
    assert reads.until_s < 30


def test_a_side_that_wakes_after_the_end_still_moves_something(written: tuple[int, Pattern]) -> None:
    descriptor, filled = written
    writes = job(Pattern(0, 3, MiB), direction="write", start_bytes=8 * MiB, depth=8, seconds=0)
    pair = disk_io.run_together(descriptor, (job(filled, file_bytes=8 * MiB, depth=8, seconds=0), writes), print)
    assert [done.transfers for done in pair] == [8, 8]


@pytest.mark.parametrize("kind", [KeyboardInterrupt, SystemExit])
def test_what_a_signal_raises_while_threads_end_waits_for_them_and_is_not_lost(
    written: tuple[int, Pattern], monkeypatch: pytest.MonkeyPatch, kind: type[BaseException]
) -> None:
    descriptor, filled = written
    real, pressed = time.sleep, []

    def sleep(seconds: float) -> None:
        if len(pressed) < 2:
            pressed.append(True)
            raise kind
        real(seconds)

    monkeypatch.setattr(disk_io, "_wait", lambda *_: None)
    monkeypatch.setattr(interrupts, "time", SimpleNamespace(sleep=sleep, monotonic=time.monotonic))
    with pytest.raises(kind):
        disk_io.run(descriptor, job(filled, depth=4, seconds=0.3), lambda rate: None)
    assert pressed
    assert threading.active_count() == 1


def test_a_thread_whose_start_was_interrupted_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """It has no number yet when the interrupt comes, and runs all the same; one never started is not waited for."""
    ran: list[bool] = []
    thread = threading.Thread(target=lambda: ran.append(True))

    def interrupted(timeout: float | None = None) -> bool:
        raise KeyboardInterrupt

    monkeypatch.setattr(thread._started, "wait", interrupted)  # type: ignore[attr-defined]
    with pytest.raises(KeyboardInterrupt):
        thread.start()
    interrupts.join_all([thread, threading.Thread()])
    assert (ran, threading.active_count()) == ([True], 1)


# ---- the kernel's queues


@pytest.mark.parametrize("queue", queued_io.QUEUES)
@pytest.mark.parametrize("direction", ["read", "write"])
def test_queues_move_what_threads_move(written: tuple[int, Pattern], queue: str, direction: str) -> None:
    descriptor, filled = written
    pattern = filled if direction == "read" else Pattern(0, 5, MiB)
    wanted = job(pattern, direction=direction, depth=4, limit=40, seconds=60)
    try:
        done = queued_io.run(descriptor, wanted, queue, lambda rate: None)
    except kernel_queues.UnavailableError as error:
        pytest.skip(f"{queue} is not available here: {error}")
    assert (done.transfers, done.moved_bytes, done.wrong_pages) == (40, 40 * MiB, 0)
    in_flight = (done.end_s - done.start_s).sum() / done.end_s.max()
    assert 1 < in_flight <= 4
    if direction == "write":
        assert disk_io.read_back(descriptor, pattern, done.touched)[1] == 0
    else:
        assert done.checked_bytes == 4 * MiB
        wrong = queued_io.run(descriptor, job(Pattern(1, 1, 4 * MiB), depth=4, limit=8), queue, lambda rate: None)
        assert wrong.wrong_pages == 4 * 256


@pytest.mark.parametrize("queue", queued_io.QUEUES)
def test_a_failing_transfer_in_a_queue_is_an_error(written: tuple[int, Pattern], queue: str) -> None:
    """Beyond the end of the file nothing is there to read."""
    descriptor, filled = written
    beyond = job(filled, depth=2, start_bytes=16 * MiB, file_bytes=20 * MiB, limit=4)
    try:
        with pytest.raises(OSError, match="moved only 0"):
            queued_io.run(descriptor, beyond, queue, lambda rate: None)
    except kernel_queues.UnavailableError as error:
        pytest.skip(f"{queue} is not available here: {error}")


# ---- a file for every block


def test_a_store_replaces_a_blocks_file_and_frees_the_old(drive: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pattern = Pattern(0, 2, 128 * KiB)
    with block_files.block_files(drive, pattern, direct=True) as files:
        files.fill(8)
        held = len(os.listdir("/proc/self/fd"))
        before, created, real = list(files.files), [], files.create
        monkeypatch.setattr(files, "create", lambda views: created.append(real(views)) or created[-1])
        stores = job(
            pattern,
            direction="write",
            granule=128 * KiB,
            start_bytes=512 * KiB,
            file_bytes=1 * MiB,
            limit=9,
            seconds=60,
        )
        done = disk_io.run(-1, disk_io_with(stores, files), lambda rate: None)
        assert files.files[:4] == before[:4]
        assert len(created) == 9
        assert set(files.files[4:]) <= set(created)
        assert len(os.listdir("/proc/self/fd")) == held
        assert files.read_back(done.touched)[1] == 0
        assert files.read_back(tuple(range(8))) == (MiB, 0)
        loads = job(pattern, granule=128 * KiB, file_bytes=512 * KiB, check=True, limit=8, seconds=60)
        assert disk_io.run(-1, disk_io_with(loads, files), lambda rate: None).wrong_pages == 0
        os.pwrite(files.files[0], Buffer(4096).views[0][0], 0)
        assert files.read_back((0,))[1] == 1
    assert list(drive.iterdir()) == []


def disk_io_with(job: disk_io.Job, files: block_files.BlockFiles) -> disk_io.Job:
    fields = {name: getattr(job, name) for name in job.__slots__}
    return disk_io.Job(**{**fields, "make_side": files.side})


# ---- long writes and later reads


def test_a_rate_is_steady_when_three_averages_agree() -> None:
    assert not steady([1.0, 1.0, 1.0, 1.0])
    assert steady([1.0] * 5)
    assert steady([9.0, 1.0, 1.02, 0.98, 1.0, 1.01])
    assert not steady([5.0, 4.0, 3.0, 2.0, 1.0])


def test_a_long_write_stops_when_it_is_steady_beyond_a_fast_cache_and_not_before() -> None:
    heard = Steadiness()
    stops = [second for second in range(1, 60) if heard.enough(float(second), second * 2 * GB)]
    assert stops[0] == 10  # 20 GB
    slow = Steadiness()
    falling = np.cumsum([5.0 * 0.8**second for second in range(40)])
    assert not any(slow.enough(float(at + 1), int(moved * GB)) for at, moved in enumerate(falling))


def transfers(rates: list[float], size: int = MiB) -> Done:
    """One thread that moves at each rate for a second."""
    starts, ends, now = [], [], 0.0
    for second, rate in enumerate(rates):
        while now < second + 1:
            starts.append(now)
            now += size / rate
            ends.append(now)
    start, end = np.array(starts), np.array(ends)
    return Done(
        rates=summarise(start, end, size, 0.0, now),
        transfers=len(start),
        moved_bytes=len(start) * size,
        written_bytes=len(start) * size,
        cpu_s_per_gb=0.1,
        touched=(),
        checked_bytes=0,
        wrong_pages=0,
        start_s=start,
        end_s=end,
        until_s=now,
    )


def test_first_and_last_second() -> None:
    ends = first_and_last_second(transfers([2e9, 2e9, 2e9, 1e9]))
    assert ends == pytest.approx((2e9, 1e9), rel=0.01)
    assert first_and_last_second(transfers([1e9])) is None


def test_time_that_runs_out_costs_comparisons_first_and_the_middle_of_the_sweep_last() -> None:
    cells = all_cells(GRANULES, None, False)
    assert within(cells, 1e9, lambda cell: 1.0) == cells
    assert within(cells, 0.5, lambda cell: 1.0) == []
    before: list[Cell] = []
    for count in range(1, len(cells) + 1):
        kept = within(cells, count + 0.5, lambda cell: 1.0)
        assert len(kept) == count
        assert kept == [cell for cell in cells if cell in kept]  # in their order
        assert set(before) <= set(kept)
        before = kept
    plain = sum(not cell.comparison for cell in cells)
    assert not [cell for cell in within(cells, plain + 0.5, lambda cell: 1.0) if cell.comparison]
    least = within(cells, 8.5, lambda cell: 1.0)
    assert {(cell.direction, cell.depth) for cell in least} == {("read", 8), ("write", 8)}


def test_a_drive_whose_cells_take_longer_than_they_are_given_keeps_to_the_time(
    drive: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a clock of its own, each cell takes a second more than it is given: the rest is left out, and named."""
    monkeypatch.setattr(probe_disk, "LEAST_S", LEAST_S)
    now = [0.0]
    monkeypatch.setattr(probe_disk, "time", SimpleNamespace(monotonic=lambda: now[0]))
    real = probe_disk.Runner.run

    def slow(self: Any, cell: Cell, size: int, filled: Any, seconds: float, share: float) -> list[Outcome]:
        found = real(self, cell, size, filled, 0.02, share)
        now[0] += seconds + 1.0
        return found

    monkeypatch.setattr(probe_disk.Runner, "run", slow)
    todo = probe_disk.plan(drive, seconds=12.0, write_bytes=256 * MiB, file_bytes=64 * MiB, sweep_only=True)
    found = probe_disk.measure(todo)
    assert 10.0 < now[0] <= 12.0 + 1.1
    (late,) = [one.text for one in found.findings if one.code == "disk-cells-late"]
    measured = len(found.links) - 1  # the first write is no cell
    assert late.count(" x ") + measured == len(todo.cells)
    assert {link.direction for link in found.links[1:]} == {"read", "write"}


def test_less_time_than_a_drive_takes_is_refused_with_the_time_that_would_do(
    drive: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(probe_disk, "LEAST_S", LEAST_S)
    other = drive / "other"
    other.mkdir()
    options = ProbeOptions(disks=(str(drive), str(other)), only=("disk",), budget_s=8.0)
    with pytest.raises(KvplanError, match=r"leaves 4 s for it, and a drive takes 5 s: give --budget 10 s or more"):
        probe.announce(options)
    assert probe.announce(replace(options, budget_s=10.0))


def verdict_of(
    drive: Path,
    outcomes: list[Outcome],
    members: tuple[BlockDevice, ...] = (),
    memory_copy: float | None = None,
    others: neighbours.Others | None = None,
) -> dict[str, str]:
    """Findings by code, for outcomes alone."""
    most = disk_links.bounds(members, memory_copy)
    clean_verdict = Verdict(direct="proven", proof=(), missing=(), flags=())
    links = [disk_links.link(str(drive), one, direct=True, flags=(), most=most) for one in outcomes]
    facts = Facts(
        folder=scratch.look(drive),
        evidence=Evidence(direct=True, alignment=Statx(mount=None, memory_align=512, offset_align=512)),
        judged=clean_verdict,
        members=members,
        planned_bytes=1,
        measured_bytes=1,
        left_out=(),
        late=(),
        not_here={},
        outcomes=outcomes,
        links=links,
        most=most,
        others=others,
    )
    return {one.code: one.text for one in findings(facts)}


def test_a_write_that_falls_and_reads_that_fall_are_said(drive: Path) -> None:
    long = Cell(direction="write", granule=MiB, depth=1, sustained=True, preset="sustained")
    fell = Outcome(cell=long, direction="write", done=transfers([3e9, 3e9, 1.005e9, 1.005e9]), held=False)
    found = verdict_of(drive, [fell])
    assert "from 3.00 GB/s in the first second to 1.01 GB/s in the last" in found["disk-write-fell"]
    assert "disk-write-not-settled" in found
    read = Cell(direction="read", granule=MiB, depth=4)
    again = Cell(direction="read", granule=MiB, depth=4, again=True)
    slow = [
        Outcome(cell=read, direction="read", done=transfers([2e9] * 3)),
        Outcome(cell=again, direction="read", done=transfers([1.5e9] * 3)),
    ]
    assert "2.00 GB/s at first and 1.50 GB/s later" in verdict_of(drive, slow)["disk-read-fell"]
    same = [slow[0], Outcome(cell=again, direction="read", done=transfers([1.9e9] * 3))]
    assert "disk-read-fell" not in verdict_of(drive, same)


# ---- what the drive is


def test_a_rate_above_the_links_own_is_a_cache_and_flagged(drive: Path) -> None:
    gen3 = BlockDevice(name="nvme0n1", link="8.0 GT/s PCIe x4", link_bytes_per_s=3.94e9)
    read = Outcome(cell=Cell(direction="read", granule=MiB, depth=4), direction="read", done=transfers([6e9] * 2))
    for members, flags in (
        ((gen3,), ("above-link",)),
        ((gen3, gen3), ()),
        ((gen3, BlockDevice(name="sda")), ()),
    ):
        most = disk_links.bounds(members, None)
        assert disk_links.link("/x", read, direct=True, flags=(), most=most).flags == flags
    assert "disk-above-link" in verdict_of(drive, [read], (gen3,))


def test_a_link_below_its_best_and_a_worn_drive_are_said(drive: Path) -> None:
    narrow = BlockDevice(name="nvme0n1", link="16.0 GT/s PCIe x2", max_link="16.0 GT/s PCIe x4", used_ratio=0.93)
    found = verdict_of(drive, [], (narrow,))
    assert "nvme0n1 runs at 16.0 GT/s PCIe x2, and could at 16.0 GT/s PCIe x4" in found["disk-link-downgraded"]
    assert "93%" in found["disk-worn"]


@pytest.mark.parametrize(
    ("speed", "width", "rate"),
    [
        ("5.0 GT/s PCIe", "4", 2.0e9),
        ("8.0 GT/s PCIe", "4", 3.938e9),
        ("16.0 GT/s PCIe", "4", 7.877e9),
        ("32.0 GT/s PCIe", "4", 15.754e9),
        ("64.0 GT/s PCIe", "4", 30.25e9),
        ("Unknown", "4", None),
        ("16.0 GT/s PCIe", "0", None),
    ],
)
def test_what_a_pci_express_link_carries(tmp_path: Path, speed: str, width: str, rate: float | None) -> None:
    (tmp_path / "current_link_speed").write_text(f"{speed}\n")
    (tmp_path / "current_link_width").write_text(f"{width}\n")
    assert blockdev._link_rate(tmp_path) == (None if rate is None else pytest.approx(rate, rel=1e-3))


# ---- who else uses it


def counted(root: Path, sectors: tuple[int, int], processes: dict[int, tuple[str, int, int]]) -> neighbours.Look:
    """A look at a machine whose partition 259:1 is on a drive that has moved so many sectors."""
    disk = root / "sys/devices/nvme0n1"
    (disk / "nvme0n1p1").mkdir(parents=True, exist_ok=True)
    (disk / "nvme0n1p1/partition").write_text("1\n")
    (disk / "nvme0n1p1/stat").write_text("0 0 7 0 0 0 7 0\n")
    (disk / "stat").write_text(f"11 0 {sectors[0]} 5 22 0 {sectors[1]} 6 0 0 0\n")
    (root / "sys/dev/block").mkdir(parents=True, exist_ok=True)
    link = root / "sys/dev/block/259:1"
    if not link.is_symlink():
        link.symlink_to(disk / "nvme0n1p1")
    for number, (name, started, moved) in processes.items():
        place = root / f"proc/{number}"
        place.mkdir(parents=True, exist_ok=True)
        before = " ".join(["S", *["0"] * 18])
        (place / "stat").write_text(f"{number} ({name}) {before} {started} 0 0\n")
        (place / "io").write_text(f"rchar: 9\nwchar: 9\nread_bytes: {moved}\nwrite_bytes: {moved}\n")
    (root / "proc/self").mkdir(parents=True, exist_ok=True)
    return neighbours.look(os.makedev(259, 1), root)


def test_others_on_the_whole_drive_are_seen_and_named(tmp_path: Path, drive: Path) -> None:
    """The partition's counters stand still: it is the drive below it that others use."""
    old = {10: ("postgres: (x) y", 5, 100 * MiB), 20: ("gone", 5, 9), 30: ("renewed", 5, 500 * MiB)}
    before = counted(tmp_path, (1000, 2000), old)
    new = {10: ("postgres: (x) y", 5, 150 * MiB), 30: ("renewed", 77, 3 * MiB), 40: ("idle", 6, 1000)}
    ours = (2 * GiB, GiB)
    after = counted(tmp_path, (1000 + (ours[0] + GiB) // 512, 2000 + (ours[1] + GiB // 2) // 512), new)
    found = neighbours.between(before, after, *ours)
    assert found == neighbours.Others(
        read_bytes=GiB,
        written_bytes=GiB // 2,
        share=0.5,
        busiest=(("postgres: (x) y (10)", 100 * MiB), ("renewed (30)", 6 * MiB)),
    )
    said = verdict_of(drive, [], others=found)["disk-shared"]
    assert "others read 1.00 GiB and wrote 512.00 MiB on its drive while it was measured, 50%" in said
    assert "postgres: (x) y (10) 100.00 MiB, renewed (30) 6.00 MiB" in said


def test_nobody_else_is_nothing_to_say(tmp_path: Path) -> None:
    before = counted(tmp_path, (1000, 2000), {})
    after = counted(tmp_path, (1000 + (GiB + 10 * MiB) // 512, 2000), {})
    assert neighbours.between(before, after, GiB, 0) is None
    assert neighbours.between(before, after, 2 * GiB, 0) is None  # counters behind what was moved: no negative others
    nowhere = neighbours.look(os.makedev(0, 44), tmp_path)
    assert (nowhere.read_bytes, neighbours.between(nowhere, nowhere, 0, 0)) == (None, None)


def test_this_process_and_its_drive_can_be_read(drive: Path) -> None:
    before = neighbours.look(os.stat(drive).st_dev)
    if before.read_bytes is None:
        pytest.skip("the file system under the tests has no block device of its own")
    (drive / "file").write_bytes(os.urandom(8 * MiB))
    with open(drive / "file", "rb") as file:
        os.fsync(file.fileno())
    after = neighbours.look(os.stat(drive).st_dev)
    assert (after.written_bytes or 0) - (before.written_bytes or 0) >= 8 * MiB
    assert os.getpid() in after.processes
