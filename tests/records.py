"""One `replace` for everything the code holds: documents are structs, what lives inside a stage are dataclasses."""

from __future__ import annotations

import dataclasses
from typing import Any, TypeVar

import msgspec

T = TypeVar("T")


def replace(record: T, **changes: Any) -> T:
    """A copy of a document or of a dataclass with some fields changed."""
    if isinstance(record, msgspec.Struct):
        return msgspec.structs.replace(record, **changes)
    return dataclasses.replace(record, **changes)  # type: ignore[type-var]
