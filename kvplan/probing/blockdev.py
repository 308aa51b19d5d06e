"""Which drive a folder is on: its mount, the block device, and the physical drives below partitions, RAID and LVM."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from kvplan.documents import BlockDevice

NETWORK_FILE_SYSTEMS = frozenset(
    (
        "nfs",
        "nfs4",
        "cifs",
        "smb3",
        "smbfs",
        "ceph",
        "lustre",
        "gpfs",
        "beegfs",
        "9p",
        "virtiofs",
        "afs",
        "gfs2",
        "wekafs",
    )
)

_PCI = re.compile(r"[0-9a-f]{4}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]")


@dataclass(frozen=True, slots=True, kw_only=True)
class Mount:
    """One line of mountinfo: where, what kind of file system, from which device."""

    id: int
    device: str
    point: str
    kind: str
    source: str

    @property
    def remote(self) -> bool:
        """The data is on another machine, or behind a user-space program that may put it anywhere."""
        return self.kind in NETWORK_FILE_SYSTEMS or self.kind.split(".")[0] in ("fuse", "fuseblk")


def mounts(root: Path = Path("/")) -> tuple[Mount, ...]:
    """Every mount this process sees, in the order made."""
    try:
        lines = (root / "proc/self/mountinfo").read_text(errors="replace").splitlines()
    except OSError:
        return ()
    found = []
    for line in lines:
        left, _, right = line.partition(" - ")
        fields, tail = left.split(), right.split()
        if len(fields) >= 5 and len(tail) >= 2:
            point, source = _plain(fields[4]), _plain(tail[1])
            found.append(Mount(id=int(fields[0]), device=fields[2], point=point, kind=tail[0], source=source))
    return tuple(found)


def _plain(text: str) -> str:
    """mountinfo writes space, tab, newline and backslash as octal escapes."""
    return re.sub(r"\\([0-7]{3})", lambda match: chr(int(match[1], 8)), text)


def mount_of(path: Path, identity: int | None, found: tuple[Mount, ...]) -> Mount | None:
    """The mount a folder is on: by the kernel's mount id where known, else the longest mount point above it."""
    if identity is not None:
        for mount in found:
            if mount.id == identity:
                return mount
    real = os.path.realpath(path)
    above = [mount for mount in found if os.path.commonpath([real, mount.point]) == mount.point]
    # The last of equal mount points covers the earlier ones.
    return max(reversed(above), key=lambda mount: len(mount.point), default=None)


def drives(device: int, root: Path = Path("/")) -> tuple[BlockDevice, ...]:
    """The drives below a block device (st_dev), the device itself where it is one; empty where sysfs shows none."""
    link = root / f"sys/dev/block/{os.major(device)}:{os.minor(device)}"
    if not link.exists():
        return ()
    unique = {leaf.name: leaf for leaf in _leaves(Path(os.path.realpath(link)))}
    return tuple(_describe(unique[name], root) for name in sorted(unique))


def not_a_drive(device: int, root: Path = Path("/")) -> str | None:
    """Why direct I/O to a block device (st_dev) still does not reach a drive; None where nothing tells of that."""
    link = root / f"sys/dev/block/{os.major(device)}:{os.minor(device)}"
    for leaf in _leaves(Path(os.path.realpath(link))) if link.exists() else ():
        if leaf.name.startswith(("zram", "ram")):
            return f"{leaf.name} is memory"
        if leaf.name.startswith("loop") and _text(leaf / "loop/dio") != "1":
            return f"{leaf.name} is a file that is read and written through the page cache"
    return None


def _leaves(device: Path) -> Iterator[Path]:
    """Down through partitions to their disk and through device mapper and md to their members."""
    if (device / "partition").exists():
        device = device.parent
    members = sorted((device / "slaves").glob("*")) if (device / "slaves").is_dir() else []
    if not members:
        yield device
    for member in members:
        yield from _leaves(Path(os.path.realpath(member)))


def _describe(device: Path, root: Path) -> BlockDevice:
    queue = device / "queue"
    sectors, largest = _number(device / "size"), _number(queue / "max_sectors_kb")
    rotational = _number(queue / "rotational")
    # The last address in the path is the drive's own controller, the ones before it are bridges.
    addresses = _PCI.findall(str(device))
    pci = addresses[-1] if addresses else None
    model = _text(device / "device/model")
    return BlockDevice(
        name=device.name,
        size_bytes=None if sectors is None else sectors * 512,
        model=model,
        rotational=None if rotational is None else bool(rotational),
        pci=pci,
        link=_link(root / "sys/bus/pci/devices" / pci, "current") if pci else None,
        max_link=_link(root / "sys/bus/pci/devices" / pci, "max") if pci else None,
        link_bytes_per_s=_link_rate(root / "sys/bus/pci/devices" / pci) if pci else None,
        bridges=tuple(addresses[:-1]),
        numa_node=_number(root / "sys/bus/pci/devices" / pci / "numa_node") if pci else None,
        scheduler=_scheduler(_text(queue / "scheduler")),
        requests=_number(queue / "nr_requests"),
        max_io_bytes=None if largest is None else largest * 1024,
        max_segments=_number(queue / "max_segments"),
        logical_block_bytes=_number(queue / "logical_block_size"),
    )


def _link_rate(device: Path) -> float | None:
    """What the link carries one way as it runs: transfers a second, width, and the code's overhead."""
    speed, width = _text(device / "current_link_speed"), _number(device / "current_link_width")
    found = re.match(r"([\d.]+) GT/s", speed or "")
    if found is None or not width:
        return None
    transfers = float(found[1]) * 1e9
    # 8b/10b code up to generation 2, 128b/130b from 3, and flits of 242 useful bytes in 256 from 6.
    useful = 8 / 10 if transfers < 6e9 else 128 / 130 if transfers < 60e9 else 242 / 256
    return transfers * width * useful / 8


def _link(device: Path, which: str) -> str | None:
    """'16.0 GT/s PCIe x4', the current or the max link, where the device is on PCI Express and says so."""
    speed, width = _text(device / f"{which}_link_speed"), _number(device / f"{which}_link_width")
    if speed is None or speed.startswith("Unknown") or not width:
        return None
    return f"{speed} x{width}"


def _scheduler(text: str | None) -> str | None:
    """The one in brackets of 'none [mq-deadline] kyber'."""
    chosen = re.search(r"\[(\S+)\]", text or "")
    return chosen[1] if chosen else text


def _text(path: Path) -> str | None:
    try:
        return path.read_text(errors="replace").strip() or None
    except OSError:
        return None


def _number(path: Path) -> int | None:
    """A count; the kernel's -1 (no NUMA node) is unknown."""
    text = _text(path)
    return int(text) if text and text.isdigit() else None
