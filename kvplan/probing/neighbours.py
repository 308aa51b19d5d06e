"""Who else used a drive while it was measured: its counters less what the probe moved, and the busiest processes."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from kvplan.units import MiB

_SECTOR = 512
_NAMED = 3
# What a file system's own book-keeping and a few log lines come to; less than this is nobody.
_LEAST_BYTES, _LEAST_SHARE = 16 * MiB, 0.02
_LEAST_OF_PROCESS = 1 * MiB


@dataclass(frozen=True, slots=True, kw_only=True)
class Process:
    """A process and the bytes it has caused to be read from and written to storage, any drive, so far."""

    name: str
    started: str
    bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """The whole drive's counters and every process that may be read, at one moment; None where nothing counts."""

    read_bytes: int | None
    written_bytes: int | None
    processes: Mapping[int, Process]


@dataclass(frozen=True, slots=True, kw_only=True)
class Others:
    """What others moved on the drive, and who moved most meanwhile: (name and number, bytes), on whatever drive."""

    read_bytes: int
    written_bytes: int
    share: float
    busiest: tuple[tuple[str, int], ...]


def look(device: int, root: Path = Path("/")) -> Look:
    """Read the counters of the drive below a file system (st_dev) and of the processes."""
    read, written = _drive(device, root)
    return Look(read_bytes=read, written_bytes=written, processes=dict(_processes(root / "proc")))


def between(before: Look, after: Look, read_bytes: int, written_bytes: int) -> Others | None:
    """What others moved between two looks, in which the probe moved so much; None where that is next to nothing.

    Also None where the drive has no counters. A process that ended meanwhile is in the drive's sum and not among the
    names.
    """
    if None in (before.read_bytes, after.read_bytes, before.written_bytes, after.written_bytes):
        return None
    read = max(0, (after.read_bytes or 0) - (before.read_bytes or 0) - read_bytes)
    written = max(0, (after.written_bytes or 0) - (before.written_bytes or 0) - written_bytes)
    mine = max(1, read_bytes + written_bytes)
    if read + written < max(_LEAST_BYTES, _LEAST_SHARE * mine):
        return None
    return Others(
        read_bytes=read, written_bytes=written, share=(read + written) / mine, busiest=_busiest(before, after)
    )


def _busiest(before: Look, after: Look) -> tuple[tuple[str, int], ...]:
    found = []
    for number, now in after.processes.items():
        then = before.processes.get(number)
        base = then.bytes if then is not None and then.started == now.started else 0
        if number != os.getpid() and now.bytes - base >= _LEAST_OF_PROCESS:
            found.append((f"{now.name} ({number})", now.bytes - base))
    return tuple(sorted(found, key=lambda one: -one[1])[:_NAMED])


def _drive(device: int, root: Path) -> tuple[int | None, int | None]:
    """Bytes read and written so far on the whole drive that a partition is part of; of RAID, on the array."""
    place = root / f"sys/dev/block/{os.major(device)}:{os.minor(device)}"
    try:
        real = place.resolve(strict=True)
        whole = real.parent if (real / "partition").exists() else real
        fields = (whole / "stat").read_text().split()
        return int(fields[2]) * _SECTOR, int(fields[6]) * _SECTOR
    except (OSError, ValueError, IndexError):
        return None, None


def _processes(proc: Path) -> Iterator[tuple[int, Process]]:
    """Every process whose counters this user may read."""
    for entry in os.listdir(proc) if proc.is_dir() else ():
        if entry.isdigit():
            try:
                counts = dict(line.split(": ", 1) for line in (proc / entry / "io").read_text().splitlines())
                # Behind the name, which may hold anything: state is the first field, start time the twentieth.
                name, _, rest = (proc / entry / "stat").read_text().partition("(")[2].rpartition(")")
                moved = int(counts["read_bytes"]) + int(counts["write_bytes"])
                yield int(entry), Process(name=name, started=rest.split()[19], bytes=moved)
            except (OSError, ValueError, KeyError, IndexError):
                continue
