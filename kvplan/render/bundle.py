"""The charts' script, made once a version of its maker and kept in the user's cache: making it takes over a second."""

from __future__ import annotations

import hashlib
import os
import sys
from collections.abc import Callable
from pathlib import Path

from kvplan.errors import KvplanError
from kvplan.files import write_atomically

_MARK = "/* kvplan "  # the first line of a kept file: what it is made of, and the digest of the rest


def folder() -> Path | None:
    """Where this user's programs keep what they can make again, or None where there is no such place."""
    if sys.platform == "darwin":
        base = Path("~/Library/Caches")
    else:
        base = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache")
    try:
        base = base.expanduser()
    except RuntimeError:  # no home
        return None
    return base / "kvplan" if base.is_absolute() else None


def kept(name: str, make: Callable[[], str]) -> str:
    """What `make` gives, from the cache where it is there and whole; `name` says all that it depends on.

    A cache that cannot be read or written is done without: the text is the same, it only takes longer.
    """
    place = folder()
    path = None if place is None else place / f"{name}.js"
    text = None if path is None else _read(path, name)
    if text is None:
        text = make()
        if path is not None:
            _write(path, name, text)
    return text


def _read(path: Path, name: str) -> str | None:
    try:
        head, _, text = path.read_bytes().decode("utf-8", "replace").partition("\n")
    except OSError:
        return None
    return text if head == _head(name, text) else None


def _head(name: str, text: str) -> str:
    return f"{_MARK}{name} {hashlib.sha256(text.encode('utf-8', 'replace')).hexdigest()} */"


def _write(path: Path, name: str, text: str) -> None:
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        write_atomically(path, f"{_head(name, text)}\n{text}")
    except (OSError, KvplanError):
        return  # a read-only or full home: the next run makes it again
