"""Documents as files: the envelope, JSON text, the JSON Schema, and writing that never leaves half a file."""

from __future__ import annotations

import datetime
import os
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, TypeVar

import msgspec

from kvplan import __version__
from kvplan.documents import (
    ConfigCheck,
    Document,
    Estimate,
    Estimates,
    Export,
    LiveComparison,
    LogFit,
    Model,
    Observation,
    Plan,
    Probe,
    Replay,
    Residency,
    Simulation,
    Workload,
)
from kvplan.errors import KvplanError

SCHEMA = 1

T = TypeVar("T")

_TYPES: dict[str, Any] = {
    "kvplan.model": Document[Model],
    "kvplan.estimate": Document[Estimate],
    "kvplan.estimates": Document[Estimates],
    "kvplan.fit": Document[LogFit],
    "kvplan.workload": Document[Workload],
    "kvplan.probe": Document[Probe],
    "kvplan.plan": Document[Plan],
    "kvplan.simulation": Document[Simulation],
    "kvplan.residency": Document[Residency],
    "kvplan.export": Document[Export],
    "kvplan.check": Document[ConfigCheck],
    "kvplan.observation": Document[Observation],
    "kvplan.replay": Document[Replay],
    "kvplan.comparison": Document[LiveComparison],
}
_KINDS: dict[type[Any], str] = {
    Model: "kvplan.model",
    Estimate: "kvplan.estimate",
    Estimates: "kvplan.estimates",
    LogFit: "kvplan.fit",
    Workload: "kvplan.workload",
    Probe: "kvplan.probe",
    Plan: "kvplan.plan",
    Simulation: "kvplan.simulation",
    Residency: "kvplan.residency",
    Export: "kvplan.export",
    ConfigCheck: "kvplan.check",
    Observation: "kvplan.observation",
    Replay: "kvplan.replay",
    LiveComparison: "kvplan.comparison",
}


def now() -> str:
    """The time stamp of a new document, UTC. SOURCE_DATE_EPOCH fixes it, as reproducible builds do."""
    epoch = os.environ.get("SOURCE_DATE_EPOCH")
    moment = datetime.datetime.fromtimestamp(int(epoch), datetime.UTC) if epoch else datetime.datetime.now(datetime.UTC)
    return moment.strftime("%Y-%m-%dT%H:%M:%SZ")


def wrap(data: T) -> Document[T]:
    """Put one stage's result in its envelope."""
    return Document(kind=_KINDS[type(data)], schema=SCHEMA, kvplan=__version__, created=now(), data=data)


def dump(document: Document[Any]) -> str:
    """The document as indented JSON, the same text for the same content, with a final newline.

    It is read back once on the way, so that nothing leaves that could not be loaded and 3 and 3.0 are written alike.
    """
    checked = msgspec.json.decode(msgspec.json.encode(document), type=_TYPES[document.kind])
    return msgspec.json.format(msgspec.json.encode(checked), indent=2).decode() + "\n"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Head:
    kind: str
    schema: int


def parse(text: bytes, name: str) -> Document[Any]:
    """Read any kvplan document from its JSON text; `name` is what an error calls it.

    Raises KvplanError for text that is no JSON, no kvplan document, a newer schema or a field of the wrong type.
    """
    if not text.strip():
        raise KvplanError(f"{name}: is empty: what wrote it failed, or has not ended")
    try:
        head = msgspec.json.decode(text, type=_Head)
    except msgspec.ValidationError:
        message = f"{name}: not a kvplan document (no 'kind' and 'schema'): make one with a kvplan command and -o FILE"
        raise KvplanError(message) from None
    except msgspec.DecodeError as error:
        raise KvplanError(f"{name}: not valid JSON: {error}") from None
    if head.kind not in _TYPES:
        raise KvplanError(f"{name}: unknown document kind {head.kind!r} (known: {', '.join(_TYPES)})")
    if head.schema > SCHEMA:
        message = f"{name}: has schema {head.schema}, kvplan {__version__} reads up to schema {SCHEMA}: upgrade kvplan"
        raise KvplanError(message)
    try:
        document: Document[Any] = msgspec.json.decode(text, type=_TYPES[head.kind])
    except msgspec.ValidationError as error:
        raise KvplanError(f"{name}: {error}") from None
    return document


def reason(error: OSError) -> str:
    """The operating system's own words for an error, as the tail of a sentence."""
    return (error.strerror or str(error)).lower()


def load(path: Path) -> Document[Any]:
    """Read a document from a file, or from standard input for '-'. Raises KvplanError naming the file."""
    if str(path) == "-":
        return parse(sys.stdin.buffer.read(), "standard input")
    try:
        text = path.read_bytes()
    except OSError as error:
        raise KvplanError(f"{path}: {reason(error)}") from None
    return parse(text, str(path))


@contextmanager
def replacing(path: Path) -> Iterator[BinaryIO]:
    """A stream whose bytes become `path` when the block ends well, so a reader sees the old file or the new one.

    A device or a pipe, such as /dev/null, is written into, never replaced. Raises KvplanError naming the path where the
    folder is missing, unwritable or full; then the old file stays.
    """
    if _is_special(path):
        with _into(path) as stream:
            yield stream
        return
    shown, path = path, Path(os.path.realpath(path))  # a link stays one: what it points at is replaced
    try:
        descriptor, temporary = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    except OSError as error:
        raise KvplanError(f"{shown}: cannot write: {reason(error)}") from None
    try:
        with os.fdopen(descriptor, "wb") as stream:
            yield stream
        mask = os.umask(0)
        os.umask(mask)
        os.chmod(temporary, 0o666 & ~mask)
        os.replace(temporary, path)
    except BaseException as error:
        os.unlink(temporary)
        if isinstance(error, OSError):
            raise KvplanError(f"{shown}: cannot write: {reason(error)}") from None
        raise


def _is_special(path: Path) -> bool:
    """Whether there is something that is neither a file nor a folder: a device, a pipe, a socket."""
    return path.exists() and not path.is_file() and not path.is_dir()


@contextmanager
def _into(path: Path) -> Iterator[BinaryIO]:
    try:
        with open(path, "wb") as stream:
            yield stream
    except OSError as error:
        raise KvplanError(f"{path}: cannot write: {reason(error)}") from None


def can_replace(path: Path) -> None:
    """Raises KvplanError, as `replacing` would after the work, where `path` cannot be written."""
    if path.is_dir():
        raise KvplanError(f"{path}: cannot write: is a folder")
    if _is_special(path):
        return
    try:
        with tempfile.TemporaryFile(dir=Path(os.path.realpath(path)).parent):
            pass
    except OSError as error:
        raise KvplanError(f"{path}: cannot write: {reason(error)}") from None


def write_atomically(path: Path, text: str) -> None:
    """Write `text` to `path`, whole or not at all. Raises KvplanError as `replacing`."""
    with replacing(path) as stream:
        stream.write(text.encode())


def json_schema(kind: str) -> dict[str, Any]:
    """JSON Schema of one document kind ('estimate' or 'kvplan.estimate'). Raises KvplanError for an unknown one."""
    full = kind if kind.startswith("kvplan.") else f"kvplan.{kind}"
    if full not in _TYPES:
        known = ", ".join(name.removeprefix("kvplan.") for name in _TYPES)
        raise KvplanError(f"unknown document kind {kind!r} (known: {known})")
    schema: dict[str, Any] = msgspec.json.schema(_TYPES[full])
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": full, **schema}


def make_folder(path: Path) -> None:
    """Make a folder for files that belong to a document. Raises KvplanError naming it."""
    try:
        path.mkdir(exist_ok=True)
    except OSError as error:
        raise KvplanError(f"{path}: cannot make folder: {reason(error)}") from None
