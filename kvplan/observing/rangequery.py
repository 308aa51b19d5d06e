"""A Prometheus server's range query -> a recording: one source for each target that it scraped."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from typing import Annotated, Any
from urllib.parse import urlencode

import msgspec

from kvplan.engines.metrics import SYSTEMS, plain, read_of
from kvplan.errors import KvplanError, UsageError
from kvplan.observing import fetch
from kvplan.observing.exposition import Key, Page
from kvplan.observing.recording import Recording, Track
from kvplan.observing.scrape import Taken
from kvplan.units import show_duration

TIMEOUT_S = 60.0
MOST_POINTS = 11_000  # of one series, which a Prometheus server refuses to exceed
_TARGET = ("job", "instance", "namespace", "pod", "cluster", "replica")


class _Row(msgspec.Struct):
    metric: Mapping[str, str]
    values: tuple[tuple[float, str], ...] = ()


class _Matrix(msgspec.Struct, rename="camel"):
    result_type: str
    result: tuple[_Row, ...]


class _Reply(msgspec.Struct, rename="camel"):
    status: str
    data: msgspec.Raw = msgspec.Raw(b"null")
    error_type: str = ""
    error: str = ""
    warnings: Annotated[tuple[str, ...], msgspec.Meta()] = ()


def matcher(selector: str) -> str:
    """A selector such as '{job="vllm"}' with the names of all systems known added. Raises UsageError for another form.

    A selector with a name of its own (`vllm:num_requests_running{…}`, `{__name__=…}`) asks for less than is needed.
    """
    text = selector.strip()
    if not (text.startswith("{") and text.endswith("}")) or "__name__" in text:
        raise UsageError(f'--selector {selector!r}: give labels in braces without a name, such as {{job="vllm"}}')
    inner = text[1:-1].strip().rstrip(",")
    return "{" + (f"{inner}," if inner else "") + f'__name__=~"{_names()}"' + "}"


def _names() -> str:
    """A pattern of the metrics that are read, whatever became of their colon and suffix. All others would be ten times
    as much to send."""
    parts = []
    for system in SYSTEMS:
        prefix = plain(system.prefix)
        names = "|".join(name.removeprefix(prefix) for name in read_of(system))
        parts.append(f"{system.prefix.replace(':', '[:_]')}({names})(_total|_bucket|_count|_sum)?")
    return "|".join((*parts, "process_start_time_seconds"))


def query(
    server: str, selector: str, *, seconds: float, every_s: float, token: str | None = None, until: float | None = None
) -> Taken:
    """What a Prometheus server kept of `seconds` up to now, a point every `every_s`.

    Raises KvplanError with the server's own words where it refuses, and where nothing matches.
    """
    if seconds / every_s > MOST_POINTS:
        least = show_duration(seconds / MOST_POINTS)
        raise UsageError(
            f"--every {show_duration(every_s)} makes too many points: a server gives {MOST_POINTS:,}: {least}"
        )
    end = time.time() if until is None else until
    asked = {"query": matcher(selector), "start": f"{end - seconds:.3f}", "end": f"{end:.3f}", "step": f"{every_s:g}"}
    base = fetch.address(server, "/").rstrip("/")
    # As a form, which a Prometheus server takes as well: names are more than some proxies allow in an address.
    reply = fetch.get(f"{base}/api/v1/query_range", timeout_s=TIMEOUT_S, token=token, form=urlencode(asked))
    where = fetch.shown(base)
    matrix, warnings = _matrix(reply, where)
    if not any(row.values for row in matrix.result):
        raise KvplanError(
            f"{where}: no metrics of a serving system match {selector} in the last {show_duration(seconds)}"
        )
    recording = _recorded(matrix, where, selector)
    if recording.rounds < 2:
        raise KvplanError(
            f"{where}: {selector} has one point in the last {show_duration(seconds)}: ask for a longer --for"
        )
    return Taken(recording, notes=[f"{where}: {warning}" for warning in warnings])


def _matrix(reply: fetch.Answer, where: str) -> tuple[_Matrix, tuple[str, ...]]:
    """The reply's rows and warnings. Raises KvplanError for an error, another kind of reply, and what is no reply."""
    try:
        answer = msgspec.json.decode(reply.text, type=_Reply)
        if answer.status == "success":
            if reply.cut:
                raise msgspec.DecodeError("cut")
            return _rows(answer.data, where), answer.warnings
    except msgspec.DecodeError:
        said = " ".join(reply.text.split())[:120]
        kind = "ended early" if reply.cut else f"is not that of a Prometheus server (status {reply.status}): {said!r}"
        raise KvplanError(f"{where}: the answer to query_range {kind}") from None
    what = f"{answer.error_type}: {answer.error}" if answer.error else f"status {answer.status!r}"
    raise KvplanError(f"{where}: the Prometheus server says: {what}")


def _rows(data: msgspec.Raw, where: str) -> _Matrix:
    try:
        matrix = msgspec.json.decode(data, type=_Matrix)
    except msgspec.ValidationError as error:
        kind = json.loads(bytes(data) or b"null")
        got = kind.get("resultType") if isinstance(kind, dict) else type(kind).__name__
        raise KvplanError(f"{where}: the answer to query_range is not a matrix ({got}): {error}") from None
    if matrix.result_type != "matrix":
        raise KvplanError(f"{where}: the answer to query_range is a {matrix.result_type}, not a matrix")
    return matrix


def _recorded(matrix: _Matrix, where: str, selector: str) -> Recording:
    """Series -> rounds: every moment that any series has a point at, and each target's samples at it."""
    moments = sorted({moment for row in matrix.result for moment, _ in row.values})
    index = {moment: number for number, moment in enumerate(moments)}
    targets: dict[tuple[tuple[str, str], ...], list[dict[Key, float] | None]] = {}
    for row in matrix.result:
        labels = dict(row.metric)
        name = plain(labels.pop("__name__", ""))
        target = tuple((label, labels[label]) for label in _TARGET if label in labels)
        pages = targets.setdefault(target, [None] * len(moments))
        key = (name, tuple(sorted(labels.items())))
        for moment, text in row.values:
            page = pages[index[moment]]
            if page is None:
                page = pages[index[moment]] = {}
            page[key] = _value(text, where)
    tracks = [
        Track(_target(where, target, selector), tuple(None if page is None else Page(page) for page in pages))
        for target, pages in sorted(targets.items())
    ]
    return Recording(list[Any](moments), tracks)


def _target(where: str, target: tuple[tuple[str, str], ...], selector: str) -> str:
    labels = ",".join(f'{name}="{value}"' for name, value in target)
    return f"{where} {{{labels}}}" if labels else f"{where} {selector}"


def _value(text: str, where: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise KvplanError(f"{where}: {text!r} is not a sample's value") from None
