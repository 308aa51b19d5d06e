"""Model list and request log of several models, read once and checked at the border.

The list is TOML or JSON with a `[machine]` and `[[model]]` tables; sizes, rates and times are text with a unit, as on
the command line. The log is JSON Lines or CSV, plain or gzip, with `time`, `model` and either `service_s` or token
counts.
"""

from __future__ import annotations

import csv
import gzip
import itertools
import math
import tomllib
import zlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, TypeAlias

import msgspec

from kvplan.documents import Document, Estimate, Machine, ResidentModel
from kvplan.errors import KvplanError, UsageError
from kvplan.files import load, reason
from kvplan.resident.drive import probed
from kvplan.resident.table import Log
from kvplan.units import parse_duration, parse_rate, parse_size

_Natural: TypeAlias = Annotated[int, msgspec.Meta(ge=0)]


_WANTED = "wanted is a list of models in TOML, a [machine] and a [[model]] each (docs/residency.md)"


class _Machine(msgspec.Struct, forbid_unknown_fields=True):
    memory: str
    unified: bool = False
    probe: str | None = None
    drive: str | None = None
    read_rate: str | None = None
    pattern: str = "mmap"
    pattern_ratio: float | None = None
    warm_rate: str | None = None
    ram: str | None = None
    host_kv: str | None = None
    reserved: str | None = None
    kv_save_rate: str | None = None
    kv_restore_rate: str | None = None


class _Model(msgspec.Struct, forbid_unknown_fields=True):
    name: str
    weights: str | None = None
    kv: str | None = None
    compute: str | None = None
    estimate: str | None = None
    context_tokens: _Natural | None = None
    load: str | None = None
    warm_load: str | None = None
    stop: str | None = None
    group: str | None = None
    pinned: bool = False
    kv_bytes_per_token: _Natural | None = None
    prefill_tokens_per_s: float | None = None
    decode_tokens_per_s: float | None = None
    path: str | None = None


class _List(msgspec.Struct, forbid_unknown_fields=True):
    machine: _Machine
    model: list[_Model]


class _Request(msgspec.Struct, forbid_unknown_fields=False):
    time: float
    model: str
    service_s: float | None = None
    prompt_tokens: _Natural | None = None
    output_tokens: _Natural | None = None
    timeout_s: float | None = None
    session: str | int | None = None
    context_tokens: _Natural = 0


def read_models(path: Path) -> tuple[Machine, tuple[ResidentModel, ...]]:
    """Machine and models of a list. Raises KvplanError naming the file and the key."""
    try:
        text = path.read_bytes()
    except OSError as error:
        raise KvplanError(f"{path}: {reason(error)}") from None
    try:
        raw: Any = msgspec.json.decode(text) if path.suffix == ".json" else tomllib.loads(text.decode("utf-8"))
        given = msgspec.convert(raw, _List)
    except UnicodeDecodeError:
        raise KvplanError(f"{path}: is no text: {_WANTED}") from None
    except (tomllib.TOMLDecodeError, msgspec.DecodeError) as error:
        raise KvplanError(f"{path}: {error}: {_WANTED}") from None
    if not given.model:
        raise KvplanError(f"{path}: no [[model]]: name at least one")
    models = tuple(_model(path, one) for one in given.model)
    for name in {model.name for model in models}:
        if sum(model.name == name for model in models) > 1:
            raise KvplanError(f"{path}: two models are called {name!r}")
    return _machine(path, given.machine), models


def _value(path: Path, key: str, text: str | None, parse: Any) -> Any:
    if text is None:
        return None
    try:
        return parse(text)
    except UsageError as error:
        raise KvplanError(f"{path}: {key}: {error}") from None


def _machine(path: Path, given: _Machine) -> Machine:
    sizes = {key: _value(path, f"[machine] {key}", getattr(given, key), parse_size) for key in ("ram", "memory")}
    more = {key: _value(path, f"[machine] {key}", getattr(given, key), parse_size) for key in ("host_kv", "reserved")}
    rates = {
        key: _value(path, f"[machine] {key}", getattr(given, key), parse_rate)
        for key in ("read_rate", "warm_rate", "kv_save_rate", "kv_restore_rate")
    }
    _positive(path, "[machine]", rates)
    if given.pattern not in ("mmap", "direct"):
        raise KvplanError(f"{path}: [machine] pattern = {given.pattern!r}: write mmap or direct")
    if given.pattern_ratio is not None and not 0 < given.pattern_ratio <= 1:
        raise KvplanError(f"{path}: [machine] pattern_ratio = {given.pattern_ratio}: write a share above 0 and up to 1")
    if given.unified and given.ram is not None:
        raise KvplanError(f"{path}: [machine] ram: unified memory is the host's: leave ram out, memory says it")
    found = None if given.probe is None else probed(path.parent / given.probe, given.drive)
    by_probe = found is not None and rates["read_rate"] is None and found.read_bytes_per_s is not None
    ram_by_probe = found is not None and sizes["ram"] is None and not given.unified
    return Machine(
        memory_bytes=sizes["memory"],
        unified=given.unified,
        read_source=f"{found.source}: {found.cell}" if found and by_probe else None,
        ram_source=found.source if found and ram_by_probe else None,
        read_bytes_per_s=found.read_bytes_per_s if found and by_probe else rates["read_rate"],
        pattern="mmap" if given.pattern == "mmap" else "direct",
        pattern_ratio=given.pattern_ratio,
        warm_bytes_per_s=rates["warm_rate"],
        ram_bytes=found.ram_bytes if found and ram_by_probe else sizes["ram"],
        host_kv_bytes=more["host_kv"] or 0,
        reserved_bytes=more["reserved"] or 0,
        kv_save_bytes_per_s=rates["kv_save_rate"],
        kv_restore_bytes_per_s=rates["kv_restore_rate"],
    )


def _positive(path: Path, where: str, values: Mapping[str, float | None]) -> None:
    for key, value in values.items():
        if value is not None and not (value > 0 and math.isfinite(value)):
            raise KvplanError(f"{path}: {where} {key} is {value}: write a rate above 0")


def _model(path: Path, given: _Model) -> ResidentModel:
    where = f"[[model]] {given.name}"
    sizes = {
        key: _value(path, f"{where}: {key}", getattr(given, key), parse_size) for key in ("weights", "kv", "compute")
    }
    times = {
        key: _value(path, f"{where}: {key}", getattr(given, key), parse_duration)
        for key in ("load", "warm_load", "stop")
    }
    _positive(path, where, {k: getattr(given, k) for k in ("prefill_tokens_per_s", "decode_tokens_per_s")})
    per_token = given.kv_bytes_per_token
    if given.estimate is not None:
        estimate = _estimate(path, where, given.estimate)
        per_token = estimate.kv.bytes_per_token if per_token is None else per_token
        if sizes["weights"] is None and estimate.weights is not None:
            sizes["weights"] = estimate.weights.bytes
        if sizes["kv"] is None and given.context_tokens is not None:
            sizes["kv"] = per_token * given.context_tokens + estimate.kv.bytes_per_sequence
    elif sizes["kv"] is None and given.context_tokens is not None and per_token is not None:
        sizes["kv"] = per_token * given.context_tokens
    if sizes["weights"] is None:
        raise KvplanError(f"{path}: {where}: weights is missing: write a size, or estimate = a file that knows it")
    return ResidentModel(
        name=given.name,
        weights_bytes=sizes["weights"],
        kv_bytes=sizes["kv"] or 0,
        compute_bytes=sizes["compute"] or 0,
        load_s=times["load"],
        warm_load_s=times["warm_load"],
        stop_s=times["stop"] or 0.0,
        group=given.group,
        pinned=given.pinned,
        kv_bytes_per_token=per_token,
        prefill_tokens_per_s=given.prefill_tokens_per_s,
        decode_tokens_per_s=given.decode_tokens_per_s,
        path=given.path,
    )


def _estimate(path: Path, where: str, name: str) -> Estimate:
    document: Document[Any] = load(path.parent / name)
    if document.kind != "kvplan.estimate":
        raise KvplanError(f"{path}: {where}: {name} is a {document.kind}, not an estimate")
    estimate: Estimate = document.data
    return estimate


# ---------------------------------------------------------------------------------------------- log


def read_log(path: Path, models: Sequence[ResidentModel]) -> Log:
    """Requests of a log, ordered by time (the file's order among equals). Raises KvplanError naming the line."""
    known = {model.name: index for index, model in enumerate(models)}
    sessions: dict[str, int] = {}
    columns: tuple[list[Any], ...] = ([], [], [], [], [], [])
    time, which, service, timeout, session, context = columns
    for line, request in _requests(path):
        index = known.get(request.model)
        if index is None:
            raise KvplanError(f"{path}:{line}: model {request.model!r} is not in the model list")
        time.append(request.time)
        which.append(index)
        service.append(_service(f"{path}:{line}", request, models[index]))
        timeout.append(math.inf if request.timeout_s is None else request.timeout_s)
        session.append(-1 if request.session is None else sessions.setdefault(str(request.session), len(sessions)))
        context.append(request.context_tokens)
        numbers = (request.time, service[-1], request.timeout_s or 0.0, float(request.context_tokens))
        if not all(map(math.isfinite, numbers)) or min(numbers[1:]) < 0:
            message = f"{path}:{line}: times must be finite, and service_s, timeout_s and context_tokens at least 0"
            raise KvplanError(message)
    if not time:
        raise KvplanError(f"{path}: holds no request")
    behind = sum(latest > here for latest, here in zip(itertools.accumulate(time, max), time, strict=True))
    if behind:
        order = sorted(range(len(time)), key=time.__getitem__)
        time, which, service, timeout, session, context = ([column[i] for i in order] for column in columns)
    start = time[0]
    return Log(
        name=path.name,
        time_s=[value - start for value in time],
        model=which,
        service_s=service,
        timeout_s=timeout,
        session=session,
        context_tokens=context,
        behind=behind,
    )


def _service(where: str, request: _Request, model: ResidentModel) -> float:
    """Seconds of service: as logged, or tokens over the model's rates."""
    if request.service_s is not None:
        return request.service_s
    if request.prompt_tokens is None or request.output_tokens is None:
        raise KvplanError(f"{where}: no service_s, and not both prompt_tokens and output_tokens")
    if model.prefill_tokens_per_s is None or model.decode_tokens_per_s is None:
        message = f"{where}: token counts need prefill_tokens_per_s and decode_tokens_per_s of model {model.name!r}"
        raise KvplanError(message)
    return request.prompt_tokens / model.prefill_tokens_per_s + request.output_tokens / model.decode_tokens_per_s


def _requests(path: Path) -> Iterator[tuple[int, _Request]]:
    packed = path.suffix == ".gz"
    try:
        with (gzip.open if packed else open)(path, "rt", encoding="utf-8", newline="") as stream:
            if (path.with_suffix("") if packed else path).suffix == ".csv":
                yield from _csv(path, stream)
            else:
                decode = msgspec.json.Decoder(_Request).decode
                for line, text in enumerate(stream, 1):
                    if not text.isspace():
                        yield line, _decoded(path, line, decode, text)
    except (OSError, UnicodeDecodeError) as error:
        message = reason(error) if isinstance(error, OSError) else f"not UTF-8 text: {error}"
        raise KvplanError(f"{path}: {message}") from None
    except (EOFError, zlib.error) as error:
        raise KvplanError(f"{path}: broken compressed data: {error}") from None


def _csv(path: Path, stream: Any) -> Iterator[tuple[int, _Request]]:
    reader = csv.DictReader(stream, strict=True)
    try:
        for row in reader:
            given = {key: value for key, value in row.items() if key is not None and value not in ("", None)}
            if None in row:
                raise KvplanError(f"{path}:{reader.line_num}: more cells than columns")
            yield reader.line_num, _decoded(path, reader.line_num, _from_strings, given)
    except csv.Error as error:
        raise KvplanError(f"{path}:{reader.line_num}: {error}") from None


def _from_strings(given: Any) -> _Request:
    return msgspec.convert(given, _Request, strict=False)


def _decoded(path: Path, line: int, decode: Any, text: Any) -> _Request:
    try:
        made: _Request = decode(text)
    except msgspec.DecodeError as error:
        raise KvplanError(f"{path}:{line}: {error}") from None
    return made
