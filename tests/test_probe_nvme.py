"""What an NVMe drive tells of its wear, from answers laid out byte for byte as the specification publishes them."""

from __future__ import annotations

import ctypes
import errno
import fcntl
import struct
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvplan.documents import BlockDevice
from kvplan.probing import nvme

LONG = ctypes.c_uint8 * 16


class Smart(ctypes.LittleEndianStructure):
    """SMART / Health Information (log 02h), the fields up to the counters that are read, in the published order."""

    _pack_ = 1
    _fields_ = (
        ("critical_warning", ctypes.c_uint8),
        ("composite_temperature", ctypes.c_uint16),
        ("available_spare", ctypes.c_uint8),
        ("available_spare_threshold", ctypes.c_uint8),
        ("percentage_used", ctypes.c_uint8),
        ("endurance_group_warning", ctypes.c_uint8),
        ("reserved_7", ctypes.c_uint8 * 25),
        ("data_units_read", LONG),
        ("data_units_written", LONG),
        ("host_read_commands", LONG),
        ("host_write_commands", LONG),
        ("rest", ctypes.c_uint8 * 416),
    )


class Group(ctypes.LittleEndianStructure):
    """Endurance Group Information (log 09h)."""

    _pack_ = 1
    _fields_ = (
        ("critical_warning", ctypes.c_uint8),
        ("features", ctypes.c_uint8),
        ("reserved_2", ctypes.c_uint8),
        ("available_spare", ctypes.c_uint8),
        ("available_spare_threshold", ctypes.c_uint8),
        ("percentage_used", ctypes.c_uint8),
        ("domain", ctypes.c_uint16),
        ("reserved_8", ctypes.c_uint8 * 24),
        ("endurance_estimate", LONG),
        ("data_units_read", LONG),
        ("data_units_written", LONG),
        ("media_units_written", LONG),
        ("rest", ctypes.c_uint8 * 416),
    )


class Namespace(ctypes.LittleEndianStructure):
    """Identify Namespace (CNS 00h) of the NVM command set."""

    _pack_ = 1
    _fields_ = (
        ("sizes", ctypes.c_uint64 * 3),
        ("nsfeat_to_dlfeat", ctypes.c_uint8 * 10),
        ("nawun_to_noiob", ctypes.c_uint16 * 7),
        ("nvmcap", LONG),
        ("npwg_to_mssrl", ctypes.c_uint16 * 6),
        ("mcl", ctypes.c_uint32),
        ("msrc", ctypes.c_uint8),
        ("reserved_81", ctypes.c_uint8 * 11),
        ("anagrpid", ctypes.c_uint32),
        ("reserved_96", ctypes.c_uint8 * 3),
        ("nsattr", ctypes.c_uint8),
        ("nvmsetid", ctypes.c_uint16),
        ("endgid", ctypes.c_uint16),
        ("nguid", LONG),
        ("rest", ctypes.c_uint8 * (4096 - 120)),
    )


def long(value: int) -> Any:
    return LONG(*value.to_bytes(16, "little"))


class Drive:
    """A drive behind the kernel's ioctl: it reads the command where it lies and writes its answer where that says."""

    def __init__(self, number: int = 1, group: int = 0, **logs: Any) -> None:
        self.number, self.group = number, group
        self.smart = Smart(**logs)
        self.estimate = 0
        self.refuses: dict[int, int] = {}
        self.asked: list[tuple[int, int, int, int]] = []

    def ioctl(self, descriptor: int, request: int, argument: bytearray | int = 0) -> int:
        if request == 0x4E40:
            return self.number
        assert request == 0xC0484E41
        assert isinstance(argument, bytearray)
        assert len(argument) == 72
        opcode, nsid = struct.unpack_from("<BxxxI", argument, 0)
        address, size = struct.unpack_from("<QxxxxI", argument, 24)
        cdw10, cdw11 = struct.unpack_from("<II", argument, 40)
        self.asked.append((opcode, nsid, cdw10 & 0xFF, cdw11))
        if opcode == 6:
            answer: Any = Namespace(endgid=self.group)
        elif cdw10 & 0xFF == 2:
            answer = self.smart
        else:
            estimate = self.estimate if cdw11 >> 16 == self.group else 0
            answer = Group(endurance_estimate=long(estimate))
        if opcode == 2:
            assert (cdw10 >> 16) + 1 == size // 4
        assert ctypes.sizeof(answer) == size
        if (status := self.refuses.get(cdw10 & 0xFF if opcode == 2 else 0)) is not None:
            if status < 0:
                raise OSError(-status, "refused")
            return status
        ctypes.memmove(address, ctypes.addressof(answer), size)
        return 0


def asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, drive: Drive) -> BlockDevice:
    (tmp_path / "dev").mkdir(exist_ok=True)
    (tmp_path / "dev/nvme0n1").touch()
    monkeypatch.setattr(fcntl, "ioctl", drive.ioctl)
    return nvme.with_wear((BlockDevice(name="nvme0n1"),), root=tmp_path)[0]


def test_structures_are_as_long_as_their_logs() -> None:
    assert [ctypes.sizeof(one) for one in (Smart, Group, Namespace)] == [512, 512, 4096]
    assert (Smart.percentage_used.offset, Smart.data_units_written.offset) == (5, 48)
    assert (Group.endurance_estimate.offset, Namespace.endgid.offset) == (32, 102)


def test_wear_of_a_drive_with_an_endurance_group(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    drive = Drive(number=3, group=2, percentage_used=12, data_units_written=long(1000), data_units_read=long(7))
    drive.estimate = 7_008_000
    found = asked(tmp_path, monkeypatch, drive)
    assert (found.used_ratio, found.lifetime_written_bytes) == (0.12, 512_000_000)
    assert found.rated_endurance_bytes == 7_008_000 * 10**9
    assert drive.asked == [(2, 0xFFFFFFFF, 2, 0), (6, 3, 0, 0), (2, 0xFFFFFFFF, 9, 2 << 16)]


def test_a_drive_past_its_rated_life_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert asked(tmp_path, monkeypatch, Drive(percentage_used=255)).used_ratio == 2.55


def test_no_group_or_no_estimate_is_unknown_endurance(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    without = Drive(group=0)
    assert asked(tmp_path, monkeypatch, without).rated_endurance_bytes is None
    assert [what[2] for what in without.asked if what[0] == 2] == [2]
    assert asked(tmp_path, monkeypatch, Drive(group=1)).rated_endurance_bytes is None


@pytest.mark.parametrize("status", [0x4109, 0x2, -errno.EACCES, -errno.ENOTTY])
def test_a_refused_log_is_unknown_and_never_zero(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, status: int) -> None:
    """The kernel raises nothing for what the drive itself refuses: it returns the drive's status."""
    drive = Drive(group=1, percentage_used=12)
    drive.estimate = 5
    drive.refuses = {2: status}
    found = asked(tmp_path, monkeypatch, drive)
    assert (found.used_ratio, found.lifetime_written_bytes, found.rated_endurance_bytes) == (None, None, 5 * 10**9)
    drive.refuses = {0: status}
    found = asked(tmp_path, monkeypatch, drive)
    assert (found.used_ratio, found.rated_endurance_bytes) == (0.12, None)


@given(st.integers(0, 2**128 - 1), st.integers(0, 255))
def test_counters_of_any_size(units: int, used: int) -> None:
    smart = bytes(Smart(percentage_used=used, data_units_written=long(units)))
    found = nvme.told(BlockDevice(name="nvme0n1"), None, lambda *what: smart)
    assert found.lifetime_written_bytes == units * 512_000
    assert found.used_ratio == used / 100
    assert found.rated_endurance_bytes is None


def test_other_drives_and_drives_that_may_not_be_asked_stay_unknown(tmp_path: Path) -> None:
    (tmp_path / "dev").mkdir()
    (tmp_path / "dev/nvme0n1").write_text("no device")
    drives = tuple(BlockDevice(name=name) for name in ("nvme0n1", "nvme7n1", "sda", "nvme0n1p2"))
    assert nvme.with_wear(drives, root=tmp_path) == drives
