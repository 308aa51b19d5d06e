"""Memory limits of the control groups this process lives in: version 1 and 2, every level up to what is visible.

A container sees the machine's memory in /proc/meminfo but is killed at the limit of its own group, or of any group
above it. Page cache counts as used there although the kernel gives it back on demand, so a limit is compared
with what is used minus clean file pages.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from kvplan.documents import CgroupLevel

_NO_LIMIT = 1 << 60  # version 1 writes "no limit" as the largest page-aligned number; nobody has an exbibyte


@dataclass(frozen=True, slots=True, kw_only=True)
class _Version:
    """Where one version of the interface keeps its figures. The lowest of `limits` binds."""

    limits: tuple[str, ...]
    usage: str
    prefix: str  # of the counters in memory.stat that include the groups below


_V1 = _Version(limits=("memory.limit_in_bytes",), usage="memory.usage_in_bytes", prefix="total_")
# Above memory.high a group is throttled and reclaimed without end: for planning it is the limit.
_V2 = _Version(limits=("memory.max", "memory.high"), usage="memory.current", prefix="")


def levels(root: Path = Path("/")) -> tuple[CgroupLevel, ...]:
    """The groups of this process that account memory, innermost first. `root` is where /proc and /sys are looked up."""
    groups = _memberships(_text(root / "proc/self/cgroup"))
    found: list[CgroupLevel] = []
    for version, visible, point in _mounts(_text(root / "proc/self/mountinfo")):
        path = groups.get("" if version is _V2 else "memory")
        if path is not None:
            top = root / point.lstrip("/")
            found.extend(_walk(top, _below(path, visible), version, root))
    return tuple(found)


def usable_bytes(available: int, found: Iterable[CgroupLevel]) -> int:
    """Bytes that may still be taken: the least of what the machine has available and of the room under each limit."""
    rooms = [available]
    for level in found:
        if level.limit_bytes is not None:
            held = max(0, (level.current_bytes or 0) - (level.reclaimable_bytes or 0))
            rooms.append(max(0, level.limit_bytes - held))
    return min(rooms)


def _text(path: Path) -> str:
    """The file's text, or nothing where it is absent or unreadable: an unknown, which callers keep as such."""
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""


def _memberships(text: str) -> dict[str, str]:
    """Controller -> group path from /proc/self/cgroup; version 2 has the empty name."""
    paths: dict[str, str] = {}
    for line in text.splitlines():
        _, controllers, path = line.split(":", 2)
        for name in controllers.split(","):
            paths[name] = path
    return paths


def _mounts(text: str) -> Iterable[tuple[_Version, str, str]]:
    """(version, group shown at the mount point, mount point) of each mounted hierarchy that accounts memory."""
    for line in text.splitlines():
        left, _, right = line.partition(" - ")
        fields, kind = left.split(), right.split()
        if len(fields) < 5 or not kind:
            continue
        if kind[0] == "cgroup2":
            yield _V2, fields[3], fields[4]
        elif kind[0] == "cgroup" and "memory" in kind[-1].split(","):
            yield _V1, fields[3], fields[4]


def _below(path: str, visible: str) -> str:
    """The group's path below the mount point; the mount point itself where the group lies outside of what is shown."""
    if ".." in Path(path).parts:
        return ""
    if visible == "/":
        return path.strip("/")
    inside = path == visible or path.startswith(visible.rstrip("/") + "/")
    return path[len(visible) :].strip("/") if inside else ""


def _walk(top: Path, below: str, version: _Version, root: Path) -> Iterable[CgroupLevel]:
    parts = Path(below).parts
    for count in range(len(parts), -1, -1):
        directory = top.joinpath(*parts[:count])
        if any((directory / name).exists() for name in version.limits):
            yield _level(directory, version, "/" + str(directory.relative_to(root)))


def _level(directory: Path, version: _Version, shown: str) -> CgroupLevel:
    limits = [_number(directory / name) for name in version.limits]
    known = [limit for limit in limits if limit is not None and limit < _NO_LIMIT]
    return CgroupLevel(
        path=shown,
        limit_bytes=min(known, default=None),
        current_bytes=_number(directory / version.usage),
        reclaimable_bytes=_reclaimable(_counters(_text(directory / "memory.stat")), version.prefix),
    )


def _number(path: Path) -> int | None:
    text = _text(path).strip()
    return int(text) if text.isdigit() else None


def _counters(text: str) -> dict[str, int]:
    pairs = (line.split() for line in text.splitlines())
    return {pair[0]: int(pair[1]) for pair in pairs if len(pair) == 2 and pair[1].isdigit()}


def _reclaimable(counters: Mapping[str, int], prefix: str) -> int | None:
    """Clean file pages: those on the two file lists less what must first be written back."""
    files = [counters.get(f"{prefix}{name}") for name in ("inactive_file", "active_file")]
    known = [count for count in files if count is not None]
    if not known:
        return None
    dirty_names = ("file_dirty", "file_writeback") if not prefix else ("total_dirty", "total_writeback")
    return max(0, sum(known) - sum(counters.get(name, 0) for name in dirty_names))
