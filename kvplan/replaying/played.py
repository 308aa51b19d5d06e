"""A schedule file as it is about to be played: what it holds, and whether a load generator can play it."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from kvplan.documents import ReplaySchedule
from kvplan.errors import KvplanError
from kvplan.files import reason


@dataclass(frozen=True, slots=True, kw_only=True)
class Played:
    """A schedule's facts. `form` is of its lines; `model` is named in payloads; `block_tokens` known for ids alone."""

    path: Path
    form: str
    model: str | None
    block_tokens: int | None
    document: ReplaySchedule


class _Payload(msgspec.Struct):
    model: str | None = None
    stream: bool = False


class _Line(msgspec.Struct):
    timestamp: float | None = None
    session_id: str | None = None
    input_length: int | None = None
    block_size: int | None = None
    payload: _Payload | None = None


def played(path: Path) -> Played:
    """Read a schedule that `export` wrote, or one alike. Raises KvplanError naming what cannot be played."""
    digest, sessions, count, timed = hashlib.sha256(), set[str](), 0, True
    first: _Line | None = None
    decode = msgspec.json.Decoder(_Line).decode
    try:
        with path.open("rb") as stream:
            for number, text in enumerate(stream, 1):
                digest.update(text)
                if text.startswith(b"\x1f\x8b"):
                    raise KvplanError(f"{path}: is compressed, which load generators do not read: unpack it")
                if not text.strip():
                    continue
                line = _decoded(path, number, text, decode)
                again = line.session_id is not None and line.session_id in sessions
                first = first or line
                _alike(path, number, line, first, again)
                timed = timed and (line.timestamp is not None or again)
                sessions.add(line.session_id or f"\x00{number}")
                count += 1
    except OSError as error:
        raise KvplanError(f"{path}: {reason(error)}") from None
    if first is None:
        raise KvplanError(f"{path}: no requests in it")
    return Played(
        path=path,
        form="payload" if first.payload else "ids",
        model=first.payload.model if first.payload else None,
        block_tokens=first.block_size,
        document=ReplaySchedule(
            name=path.name, sha256=digest.hexdigest(), requests=count, sessions=len(sessions), timed=timed
        ),
    )


def _decoded(path: Path, number: int, text: bytes, decode: Any) -> _Line:
    try:
        line: _Line = decode(text)
    except msgspec.DecodeError as error:
        raise KvplanError(f"{path}, line {number}: not a line of a schedule: {error}") from None
    return line


def _alike(path: Path, number: int, line: _Line, first: _Line, again: bool) -> None:
    """Refuse what would be played otherwise than it reads."""
    where = f"{path}, line {number}"
    if line.payload is None and line.input_length is None:
        raise KvplanError(f"{where}: neither a payload nor input_length: write it with `kvplan replay export`")
    if (line.payload is None) != (first.payload is None):
        raise KvplanError(f"{where}: payloads and block ids in one file: export one form")
    if line.payload is not None and not line.payload.stream:
        raise KvplanError(f"{where}: the payload does not ask for a stream, without which there is no first token")
    if line.payload is None and again:
        raise KvplanError(
            f"{where}: a later turn with block ids, before whose prompt AIPerf would put the turns before once more: "
            "export with --payload, or with --no-sessions"
        )
