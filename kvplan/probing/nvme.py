"""What an NVMe drive tells of its wear and rated endurance: its SMART and endurance-group logs, where we may ask.

Asking is an ioctl on the drive's own block device, which needs root. Every figure is None where the drive, the kernel
or the rights do not give it. Bytes of the answers: NVM Express Base Specification 2.0, sections 5.16.1.3 (log 02h) and
5.16.1.10 (log 09h); NVM Command Set Specification 1.0, section 4.1.5.1 (Identify Namespace).
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

_NAMESPACE_ID = 0x4E40  # NVME_IOCTL_ID
_ADMIN_COMMAND = 0xC0484E41  # NVME_IOCTL_ADMIN_CMD
_GET_LOG_PAGE, _IDENTIFY = 0x02, 0x06
_SMART, _ENDURANCE_GROUP = 0x02, 0x09
_LOG_BYTES, _IDENTIFY_BYTES = 512, 4096
# Where in an answer what stands: percentage used and data units written; group of a namespace; endurance estimate.
_USED, _UNITS_WRITTEN = 5, 48
_GROUP_OF_NAMESPACE = 102
_ESTIMATE = 32
_DATA_UNIT = 512_000  # a thousand units of 512 bytes
_BILLION = 10**9
_ANY_NAMESPACE = 0xFFFFFFFF
_NAMESPACE = re.compile(r"nvme\d+(c\d+)?n\d+")

# (opcode, namespace, cdw10, cdw11, bytes wanted) to what the drive answers; None where it does not.
Ask = Callable[[int, int, int, int, int], bytes | None]


def with_wear(drives: Iterable[BlockDevice], root: Path = Path("/")) -> tuple[BlockDevice, ...]:
    """The drives with what the NVMe ones among them tell of their wear."""
    return tuple(_asked(drive, root / "dev" / drive.name) for drive in drives)


def _asked(drive: BlockDevice, path: Path) -> BlockDevice:
    if _NAMESPACE.fullmatch(drive.name) is None:
        return drive
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return drive
    try:
        return told(drive, *_ioctls(descriptor))
    finally:
        os.close(descriptor)


def told(drive: BlockDevice, namespace: int | None, ask: Ask) -> BlockDevice:
    """The drive with what its answers say: share of its rated life that is used, bytes written, bytes it may take."""
    smart = ask(_GET_LOG_PAGE, _ANY_NAMESPACE, _log(_SMART), 0, _LOG_BYTES)
    return replace(
        drive,
        used_ratio=smart[_USED] / 100 if smart else None,
        lifetime_written_bytes=_long(smart, _UNITS_WRITTEN) * _DATA_UNIT if smart else None,
        rated_endurance_bytes=_endurance(namespace, ask),
    )


def _endurance(namespace: int | None, ask: Ask) -> int | None:
    """Bytes that may be written to the namespace's endurance group in its life; a drive without groups has none."""
    identity = ask(_IDENTIFY, namespace, 0, 0, _IDENTIFY_BYTES) if namespace else None
    group = int.from_bytes(identity[_GROUP_OF_NAMESPACE : _GROUP_OF_NAMESPACE + 2], "little") if identity else 0
    log = ask(_GET_LOG_PAGE, _ANY_NAMESPACE, _log(_ENDURANCE_GROUP), group << 16, _LOG_BYTES) if group else None
    return (_long(log, _ESTIMATE) * _BILLION or None) if log else None


def _log(page: int) -> int:
    """Double word 10 of Get Log Page: the number of double words wanted, less one, in its upper half."""
    return (_LOG_BYTES // 4 - 1) << 16 | page


def _long(log: bytes, place: int) -> int:
    """A 128-bit little-endian counter."""
    return int.from_bytes(log[place : place + 16], "little")


def _ioctls(descriptor: int) -> tuple[int | None, Ask]:
    """The namespace's number, and how to ask its drive, through its open block device."""
    try:
        namespace: int | None = fcntl.ioctl(descriptor, _NAMESPACE_ID)
    except OSError:
        namespace = None
    return namespace, lambda *what: _command(descriptor, *what)


def _command(descriptor: int, opcode: int, namespace: int, cdw10: int, cdw11: int, size: int) -> bytes | None:
    """An admin command that fetches `size` bytes; None where the kernel or the drive refuses it."""
    answer = ctypes.create_string_buffer(size)
    try:
        # The kernel returns the drive's own status: anything but zero is its refusal, with nothing in the answer.
        status = fcntl.ioctl(
            descriptor, _ADMIN_COMMAND, packed(opcode, namespace, cdw10, cdw11, size, ctypes.addressof(answer))
        )
    except OSError:
        return None
    return answer.raw if status == 0 else None


def packed(opcode: int, namespace: int, cdw10: int, cdw11: int, size: int, address: int) -> bytearray:
    """struct nvme_admin_cmd of <linux/nvme_ioctl.h>: opcode, flags, rsvd1, nsid, cdw2, cdw3, metadata, addr,
    metadata_len, data_len, cdw10 to cdw15, timeout_ms, result.
    """
    head = (opcode, 0, 0, namespace, 0, 0, 0, address, 0, size)
    return bytearray(struct.pack("=BBHIIIQQIIIIIIIIII", *head, cdw10, cdw11, 0, 0, 0, 0, 0, 0))
