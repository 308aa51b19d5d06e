"""Arms and faults from the texts of a command line."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from kvplan.documents import Arm, Fault, Loop
from kvplan.errors import UsageError
from kvplan.units import parse_duration, parse_rate, parse_size


def _one_of(*words: str) -> Callable[[str], str]:
    def parse(text: str) -> str:
        if text not in words:
            raise UsageError(f"{text!r} is none of {', '.join(words)}")
        return text

    return parse


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise UsageError(f"{text!r} is not a number") from None


_ADMISSION = _one_of("all", "second-use")
_ARM: dict[str, tuple[str, Callable[[str], Any]]] = {
    "host": ("host_bytes", parse_size),
    "disk": ("disk_bytes", parse_size),
    "policy": ("policy", _one_of("lru", "arc")),
    "admission": ("admission", _ADMISSION),
    "disk-admission": ("disk_admission", _ADMISSION),
    "store": ("store", _one_of("write-through", "on-eviction")),
    "ttl": ("ttl_s", parse_duration),
    "share": ("share", _one_of("all", "tenant", "none")),
    "in-flight": ("in_flight", _one_of("recompute", "wait")),
    "host-link": ("host_link_bytes_per_s", parse_rate),
}


def arm_of(text: str) -> Arm:
    """An arm from 'NAME:key=value,key=value'. Raises UsageError naming what has no meaning."""
    name, colon, rest = text.partition(":")
    if not name.strip() or not colon:
        raise UsageError(f"--arm {text!r}: write a name and what it has, such as big:host=1TiB,policy=arc")
    values: dict[str, Any] = {}
    for part in filter(None, (piece.strip() for piece in rest.split(","))):
        key, equals, value = (piece.strip() for piece in part.partition("="))
        if not equals or key not in _ARM:
            raise UsageError(f"--arm {part!r}: write key=value (keys: {', '.join(_ARM)})")
        field, parse = _ARM[key]
        try:
            values[field] = parse(value)
        except UsageError as error:
            raise UsageError(f"--arm {key}: {error}") from None
    if values.get("host_link_bytes_per_s") == 0:
        raise UsageError("--arm host-link: a link without a rate carries nothing: give one above 0")
    return Arm(name=name.strip(), **values)


def output_rule(text: str) -> Any:
    """What becomes of the blocks of answers: forget, keep or reuse."""
    return _one_of("forget", "keep", "reuse")(text)


def loop_of(sessions: bool, concurrency: int | None) -> Loop:
    """Open where neither closed loop is asked for. Raises UsageError where both are."""
    if sessions and concurrency is not None:
        raise UsageError("--closed-loop and --concurrency are two different loops: ask for one of them")
    if concurrency is not None:
        return Loop(kind="concurrency", concurrency=concurrency)
    return Loop(kind="sessions" if sessions else "open")


_FAULTS = (
    "restart, restart-keep-host, lose-host, lose-disk, slow-host, slow-disk, fail-loads, client-gone, worker-gone, "
    "scan, churn"
)


def fault_of(text: str) -> Fault:
    """A fault from 'TIME:WHAT' or 'TIME:WHAT=VALUE', such as 10m:restart=90s or 5m:slow-host=0.5.

    Raises UsageError naming what has no meaning.
    """
    when, _, rest = text.partition(":")
    what, _, value = (piece.strip() for piece in rest.partition("="))
    try:
        at = parse_duration(when)
        match what:
            case "restart":
                return Fault(at_s=at, kind="restart", value=parse_duration(value or "0s"))
            case "restart-keep-host":
                down = parse_duration(value or "0s")
                return Fault(at_s=at, kind="restart", value=down, survives=("host", "disk"))
            case "lose-host" | "lose-disk":
                return Fault(at_s=at, kind="tier-lost", tier=_tier(what))
            case "slow-host" | "slow-disk":
                return Fault(at_s=at, kind="link", tier=_tier(what), value=_above_zero(value))
            case "fail-loads":
                return Fault(at_s=at, kind="load-failure", value=_share(value))
            case "client-gone":
                return Fault(at_s=at, kind="client-gone", request=_count(value))
            case "worker-gone":
                return Fault(at_s=at, kind="worker-gone", value=_count(value or "0"))
            case "scan":
                return Fault(at_s=at, kind="scan", value=int(_above_zero(value)))
            case "churn":
                return Fault(at_s=at, kind="churn")
    except UsageError as error:
        raise UsageError(f"--fault {text!r}: {error}") from None
    raise UsageError(f"--fault {text!r}: write TIME:WHAT, where WHAT is one of {_FAULTS}")


def _tier(what: str) -> Any:
    return what.partition("-")[2]


def _count(text: str) -> int:
    if not text.isdecimal():
        raise UsageError(f"{text!r} is no number of 0 or more")
    return int(text)


def _share(text: str) -> float:
    value = _above_zero(text)
    if value > 1:
        raise UsageError(f"{text!r} is more than all of them: give a share of 1 or less")
    return value


def _above_zero(text: str) -> float:
    value = _number(text)
    if not 0 < value < float("inf"):
        raise UsageError(f"{text!r} is not above 0")
    return value
