"""Kubernetes quantities: '241Gi', '100G', '1.5Ti' or a bare count of bytes."""

from __future__ import annotations

import re
from decimal import Decimal

from kvplan.errors import KvplanError
from kvplan.units import GiB, KiB, MiB, TiB

_UNITS = {
    "": 1,
    "k": 10**3,
    "M": 10**6,
    "G": 10**9,
    "T": 10**12,
    "P": 10**15,
    "Ki": KiB,
    "Mi": MiB,
    "Gi": GiB,
    "Ti": TiB,
    "Pi": 1024**5,
}


def quantity(value: object, source: str, key: str) -> int:
    """Bytes of a quantity. Raises KvplanError naming the key."""
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)([A-Za-z]*)\s*", str(value))
    if match is None or match[2] not in _UNITS:
        raise KvplanError(f"{source}: {key}: {value!r} is not a quantity such as 241Gi")
    return int(Decimal(match[1]) * _UNITS[match[2]])


def show(size: int) -> str:
    """A quantity of whole GiB that is not below `size` bytes."""
    return f"{-(-size // GiB)}Gi"
