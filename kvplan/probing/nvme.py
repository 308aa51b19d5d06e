"""What an NVMe drive tells of its wear and rated endurance: its SMART and endurance-group logs, where we may ask.

Asking is an ioctl on the controller's device, which needs root. Every figure is None where the drive, the kernel or the
rights do not give it. Logs and their bytes: NVM Express Base Specification 2.0, sections 5.16.1.3 and 5.16.1.10.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import re
import struct
from collections.abc import Callable, Iterable
from pathlib import Path

from msgspec.structs import replace

from kvplan.documents import BlockDevice

_ADMIN_COMMAND = 0xC0484E41  # NVME_IOCTL_ADMIN_CMD
_GET_LOG_PAGE = 0x02
_SMART, _ENDURANCE_GROUP = 0x02, 0x09
_LOG_BYTES = 512
_DATA_UNIT = 512_000
_BILLION = 10**9
_ANY_NAMESPACE = 0xFFFFFFFF
_CONTROLLER = re.compile(r"(nvme\d+)(c\d+)?n\d+")

Ask = Callable[[str, int, int], bytes | None]


def with_wear(drives: Iterable[BlockDevice], root: Path = Path("/"), ask: Ask | None = None) -> tuple[BlockDevice, ...]:
    """The drives with what the NVMe ones among them tell of their wear."""
    return tuple(
        _with_wear(drive, ask or (lambda path, page, group: _log(root / path, page, group))) for drive in drives
    )


def _with_wear(drive: BlockDevice, ask: Ask) -> BlockDevice:
    name = _CONTROLLER.fullmatch(drive.name)
    if name is None:
        return drive
    path = f"dev/{name[1]}"
    smart = ask(path, _SMART, 0)
    group = ask(path, _ENDURANCE_GROUP, 1)
    return replace(
        drive,
        used_ratio=smart[5] / 100 if smart else None,
        lifetime_written_bytes=_long(smart, 48) * _DATA_UNIT if smart else None,
        rated_endurance_bytes=(_long(group, 32) * _BILLION or None) if group else None,
    )


def _long(log: bytes, place: int) -> int:
    """A 128-bit little-endian counter."""
    return int.from_bytes(log[place : place + 16], "little")


def _log(device: Path, page: int, group: int) -> bytes | None:
    """A log page of a controller, None where it cannot be had; `group` is the endurance group asked for."""
    answer = ctypes.create_string_buffer(_LOG_BYTES)
    # struct nvme_admin_cmd: opcode, flags, rsvd1, nsid, cdw2, cdw3, metadata, addr, metadata_len, data_len, cdw10 to
    # cdw15, timeout_ms, result. The number of words wanted, less one, stands in the upper half of cdw10.
    words = (_LOG_BYTES // 4 - 1) << 16 | page
    command = struct.pack(
        "=BBHIIIQQIIIIIIIIII",
        *(_GET_LOG_PAGE, 0, 0, _ANY_NAMESPACE, 0, 0, 0, ctypes.addressof(answer), 0, _LOG_BYTES),
        *(words, group << 16, 0, 0, 0, 0, 0, 0),
    )
    try:
        descriptor = os.open(device, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        fcntl.ioctl(descriptor, _ADMIN_COMMAND, bytearray(command))
    except OSError:
        return None
    finally:
        os.close(descriptor)
    return answer.raw
