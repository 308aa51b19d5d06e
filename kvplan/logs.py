"""Any known request log to one table of requests with block ids: ordered by time, ids dense and proven to chain.

What a file says in its own way is read by kvplan/formats. Nothing but counts, times and numbers that tell what is equal
leaves this stage: no text, no token, no hash (a tenant's name does, where the user asks for tenants).
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import msgspec
import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from kvplan import paths as path_trees
from kvplan.documents import Finding, LogSource, PathTree, Requests, Texts
from kvplan.errors import KvplanError, UsageError
from kvplan.formats import FAMILIES, Family, anonymous, checks, delimited, mooncake, parquet, roles
from kvplan.formats.ids import Ids, chain, dense, first_unchained
from kvplan.formats.keyed import Keyed
from kvplan.formats.lines import Lines
from kvplan.formats.parts import numbered
from kvplan.formats.rows import Options, Rows, Sink, joined, malformed
from kvplan.progress import Progress, silent
from kvplan.units import counted, show_duration, show_percent

Ints: TypeAlias = NDArray[np.int64]

# Lines whose fields --columns names are told apart as if they had Mooncake's names.
_OWN = {one: mooncake.OWN[one] for one in ("input_tokens", "hash_ids")}
_TIES_WORTH_SAYING = 0.1
_MOST_NAMED = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class _File:
    lines: Lines
    rows: Rows
    format: str
    detected: bool


def read(
    paths: Sequence[Path | str],
    *,
    format: str | None = None,
    block_tokens: int | None = None,
    tokenizer: Path | None = None,
    tenant_by: str | None = None,
    columns: Mapping[str, str] | None = None,
    bytes_per_token: float | None = None,
    text_block_tokens: int | None = None,
    image_tokens: int | None = None,
    processes: int = 1,
    skip_bad: int = 0,
    sink: Sink | None = None,
    progress: Progress = silent,
) -> Requests:
    """Read request logs into one table ordered by arrival.

    `paths` are files, plain or compressed, URLs of objects that fsspec opens, or '-' for standard input; all of one
    format. `format` names it, else the first lines decide. `block_tokens` is needed where the log does not imply it;
    `tokenizer` (a folder) where the log holds text; `tenant_by` is the field, dotted, that names a request's tenant;
    `columns` says which column of a table, or field of a line, holds what (`{"time_s": "t"}`). `bytes_per_token`
    stands in for a tokenizer; `text_block_tokens` is the block size of logs of text unless `block_tokens` is given, and
    `image_tokens` what an image adds to a prompt. With several `processes` large logs of text are tokenized by as many.
    Up to `skip_bad` unusable lines are left out and counted, one more is an error. Raises KvplanError naming file and
    line.

    With a `sink` the block ids go there as they are read, some requests at a time, and the table has none: for logs
    larger than memory. Such a log must be in order of time, and its ids are not checked to name whole prefixes.
    """
    if not paths:
        raise UsageError("no log given: name a file, or - for standard input")
    if block_tokens is not None and block_tokens < 1:
        raise UsageError(f"--block-tokens {block_tokens}: a block holds at least one token")
    if bytes_per_token is not None and not 0 < bytes_per_token < 1e6:
        raise UsageError(
            f"--approximate-tokens {bytes_per_token:g}: give the bytes of text that make a token, such as 4"
        )
    roles.check(columns or {})
    options = Options(
        block_tokens=block_tokens,
        tokenizer=tokenizer,
        tenant_by=tenant_by,
        columns=columns or {},
        bytes_per_token=bytes_per_token,
        text_block_tokens=text_block_tokens,
        image_tokens=image_tokens,
        processes=processes,
        sink=sink,
        keyed=Keyed(len(paths)),
        progress=progress,
    )
    files = _files(paths, format, options, skip_bad)
    progress("checking the block ids")
    return _table(files, options)


def _files(paths: Sequence[Path | str], format: str | None, options: Options, skip_bad: int) -> list[_File]:
    """Each file as its format's reader gives it."""
    files: list[_File] = []
    for path in paths:
        lines = Lines(path, skip_bad - sum(file.lines.skipped for file in files), options.progress)
        with contextlib.closing(lines):
            _open(lines)
            family = _named(format) if format else _detected(lines, options)
            roles.refuse(lines, family.name, options.columns, family.roles)
            if options.sink is not None and (skip_bad or not family.streams):
                _refuse_to_stream(lines, family, skip_bad)
            rows = family.read(lines, options)
        if not rows.line.size:
            raise KvplanError(f"{lines.name}: no requests in it")
        files.append(_File(lines=lines, rows=rows, format=family.name, detected=format is None))
    return files


def anonymize(requests: Requests, path: Path, progress: Progress = silent) -> None:
    """Write a log as a Mooncake trace that may be shared and profiles the same: lengths, times, numbered blocks.

    Times are whole milliseconds from the first request; sessions and tenants become numbers. Where `path` ends in .gz
    the trace is compressed. The file is written whole or not at all. Raises KvplanError naming `path`.
    """
    anonymous.write(requests, path, progress)


def _named(name: str) -> Family:
    for family in FAMILIES:
        if family.name == name:
            return family
    raise UsageError(f"--format {name}: unknown (known: {', '.join(family.name for family in FAMILIES)})")


def _open(lines: Lines) -> None:
    """Take a file that is one JSON document, an array or an object over many lines, as such."""
    if lines.magic() == parquet.MAGIC:
        return
    first = lines.peek(1)
    if first and first[0][1].lstrip()[:1] in b"{[" and not _is_object(first[0][1]):
        lines.read_as_document()


def _detected(lines: Lines, options: Options) -> Family:
    if lines.magic() == parquet.MAGIC:
        return _named("parquet")
    first = lines.peek(2)
    names = delimited.header(first[0][1]) if first and not _is_object(first[0][1]) else None
    if names and delimited.detect(names, options):
        return _named("csv")
    problem = None
    rows: list[tuple[int, dict[str, Any]]] = []
    for number, line in lines.peek(20):
        try:
            row: Any = msgspec.json.decode(line)
        except (ValueError, RecursionError) as error:
            problem = problem or f"line {number}: {malformed(error)}"
            continue
        if isinstance(row, dict):
            told = {field: row[options.columns[one]] for one, field in _OWN.items() if options.columns.get(one) in row}
            rows.append((number, row | told))
        else:
            problem = problem or f"line {number} is no JSON object"
    if not rows and names and delimited.is_table([line for _, line in first]):
        raise KvplanError(
            f"{lines.name}: a CSV file with the columns {', '.join(names)}: name that of prompt lengths, and others, "
            "with --columns input_tokens=NAME,time_s=NAME"
        )
    if not rows:
        raise KvplanError(f"{lines.name}: not a request log kvplan reads: {problem or 'nothing in it'}")
    for family in FAMILIES:
        if family.detect and any(family.detect(row) for _, row in rows):
            return family
    keys = ", ".join(sorted(map(str, rows[0][1]))[:8]) or "none"
    known = "; ".join(f"{family.name}: {family.looks}" for family in FAMILIES)
    raise KvplanError(f"{lines.where(rows[0][0])}: not a known log format: has the keys {keys} (known: {known})")


def _is_object(line: bytes) -> bool:
    try:
        return isinstance(msgspec.json.decode(line), dict)
    except (ValueError, RecursionError):
        return False


def _refuse_to_stream(lines: Lines, family: Family, skip_bad: int) -> None:
    if skip_bad:
        raise UsageError("--skip-bad: lines cannot be left out of a log whose blocks are not kept in memory")
    known = ", ".join(family.name for family in FAMILIES if family.streams)
    raise KvplanError(
        f"{lines.name}: a log of format {family.name} is read into memory whole; --sample and --buckets take {known}"
    )


def _table(files: list[_File], options: Options) -> Requests:
    findings = _about(files)
    findings += _compatible(files)
    rows = joined([file.rows for file in files])
    order = _order(files, rows.time_s, findings)
    if options.sink is not None:
        return _streamed(files, rows, order, findings, options.tenant_by)
    if order is not None:
        rows = rows.take(order)
    tree, texts, broken = _tree(rows, options)
    if broken is not None:
        findings.append(_unchained(_where(files, broken if order is None else int(order[broken]))))
    findings += _sizes(files, order, tree, rows)
    findings += checks.repeats(rows, tree)
    return replace(_requests(files, rows, order, findings, options.tenant_by), paths=tree, texts=texts)


def _tree(rows: Rows, options: Options) -> tuple[PathTree, Texts | None, int | None]:
    """The paths of all rows; what prompts of text are made of; the first row whose ids do not name whole prefixes."""
    if rows.keys is None:
        found = options.keyed.paths(rows.streamed)
        if isinstance(found, PathTree):
            return found, None, None
        ids, unique, texts = found, int(found.max(initial=-1)) + 1, None
    else:
        ids, unique, texts = _numbered_blocks(rows)
    offsets = rows.offsets
    broken = first_unchained(ids, offsets, unique)
    if broken is None:
        tree = path_trees.from_ids(ids, offsets)
        return tree, None if texts is None else _renumbered(texts, ids, tree), None
    chained, _ = chain(ids, offsets)
    row = int(np.searchsorted(offsets, broken, side="right")) - 1
    return path_trees.from_ids(chained, offsets), None, row


def _renumbered(texts: Texts, ids: Ids, tree: PathTree) -> Texts:
    """The answers' blocks numbered as the tree numbers those of prompts; others count on from there."""
    number = np.full(int(max(ids.max(initial=-1), texts.answer_blocks.max(initial=-1))) + 1, -1, np.int64)
    number[ids] = tree.blocks()
    others = np.flatnonzero(number < 0)
    number[others] = int(tree.first[-1]) + np.arange(others.size)
    return replace(texts, answer_blocks=number[texts.answer_blocks])


def _streamed(
    files: list[_File], rows: Rows, order: Ints | None, findings: list[Finding], tenant_by: str | None
) -> Requests:
    """The table of a log whose blocks went elsewhere as they were read."""
    if order is not None:
        names = ", ".join(file.lines.name for file in files[:_MOST_NAMED])
        raise KvplanError(f"{names}: not in order of time: sort the log by its time stamps first")
    if not rows.hashed:
        raise KvplanError(f"{files[0].lines.name}: has lengths only, so that there is no reuse to sample or to split")
    text = "The block ids were taken to name whole prefixes, as in Mooncake traces: with so many it is not checked."
    findings.append(Finding(severity="info", code="ids-unchecked", text=text))
    return _requests(files, rows, order, findings, tenant_by)


def _requests(
    files: list[_File], rows: Rows, order: Ints | None, findings: list[Finding], tenant_by: str | None
) -> Requests:
    """The table but for its blocks."""
    if (late := checks.leap(rows.time_s)) is not None:
        where = _where(files, late if order is None else int(order[late]))
        findings.append(checks.leap_finding(where, rows.time_s, late))
    tenants, tenant = _numbered(rows.tenant, rows.line.size)
    if tenant_by and not tenants:
        raise KvplanError(f"{files[0].lines.name}: no line has the field {tenant_by!r} that --tenant-by names")
    return Requests(
        block_tokens=rows.block_tokens,
        time_s=rows.time_s,
        input_tokens=rows.input_tokens,
        output_tokens=rows.output_tokens,
        duration_s=rows.duration_s,
        offsets=rows.offsets,
        paths=np.zeros(0, np.int32),
        tenant=tenant,
        session=_numbered(rows.session, rows.line.size)[1],
        tenants=tenants,
        sources=tuple(_source(file) for file in files),
        hashed=rows.hashed,
        findings=tuple(findings),
    )


def _numbered_blocks(rows: Rows) -> tuple[Ids, int, Texts | None]:
    """Dense block ids, how many there are, and what prompts of text are made of; answers' blocks are numbered last."""
    assert rows.keys is not None
    if not rows.texts:
        ids, unique = dense(rows.keys)
        return ids, unique, None
    answers = np.frombuffer(b"".join(row.answer_keys for row in rows.texts), np.int64)
    ids, _ = dense(np.concatenate((rows.keys, answers)))
    blocks = ids[: rows.keys.size]
    return blocks, int(blocks.max(initial=-1)) + 1, numbered(rows.texts, ids[rows.keys.size :])


def _source(file: _File) -> LogSource:
    return LogSource(
        name=Path(file.lines.name).name,
        format=file.format,
        sha256=file.lines.sha256,
        requests=file.rows.line.size,
        skipped=file.lines.skipped,
    )


def _about(files: list[_File]) -> list[Finding]:
    """How the files were read, and what their readers found; the same finding of several files once."""
    findings: list[Finding] = []
    for file in files[:_MOST_NAMED]:
        name = Path(file.lines.name).name
        how = "detected from its content" if file.detected else "as told"
        text = f"{name}: {counted(file.rows.line.size, 'request')}, format {file.format} ({how})."
        findings.append(Finding(severity="info", code="log-format", text=text))
    if rest := files[_MOST_NAMED:]:
        requests = sum(file.rows.line.size for file in rest)
        text = f"{counted(len(rest), 'more file')}: {counted(requests, 'request')}, format {rest[0].format}."
        findings.append(Finding(severity="info", code="log-format", text=text))
    findings += dict.fromkeys(finding for file in files for finding in file.rows.findings)
    for file in files:
        if file.lines.skipped:
            name = Path(file.lines.name).name
            text = (
                f"{name}: left out {counted(file.lines.skipped, 'unusable line')}; the first: {file.lines.first_bad}."
            )
            findings.append(Finding(severity="warning", code="bad-lines", text=text))
    return findings


def _compatible(files: list[_File]) -> list[Finding]:
    first = files[0]
    for file in files[1:]:
        if file.format != first.format or file.rows.block_tokens != first.rows.block_tokens:
            raise KvplanError(
                f"{file.lines.name}: is {file.format} in blocks of {file.rows.block_tokens} tokens, "
                f"{first.lines.name} {first.format} in {first.rows.block_tokens}: read them apart"
            )
        if np.isnan(file.rows.time_s).any() != np.isnan(first.rows.time_s).any():
            raise KvplanError(f"{file.lines.name} and {first.lines.name}: only one has time stamps: read them apart")
    if len(files) == 1 or not first.rows.hashed:
        return []
    text = f"The block ids of the {len(files)} files were taken as one set: equal ids are equal blocks."
    if any(file.rows.local for file in files):
        text = f"The block ids of the {len(files)} files were kept apart: they are local to each."
    return [Finding(severity="info", code="shared-ids", text=text)]


def _where(files: list[_File], row: int) -> str:
    """File and line of a row, counted over all files in the order they were given."""
    for file in files:
        if row < file.rows.line.size:
            return file.lines.where(int(file.rows.line[row]))
        row -= file.rows.line.size
    raise AssertionError(row)


def _order(files: list[_File], time_s: NDArray[np.float64], findings: list[Finding]) -> Ints | None:
    """The rows in order of time, None where they are; equal times keep the order of the file."""
    if np.isnan(time_s).any():
        text = "The log has no time stamps: its order is taken as that of arrival, and nothing over time is known."
        findings.append(Finding(severity="warning", code="no-times", text=text))
        return None
    if (np.diff(time_s) >= 0).all():
        findings += _ties(time_s)
        return None
    parts, start = [], 0
    for file in files:
        part = np.arange(start, start + file.rows.line.size)
        step = np.diff(file.rows.time_s)
        if (step < 0).any() and not (step > 0).any():
            part = part[::-1]  # so that ties come in their true order too
            text = f"{Path(file.lines.name).name} lists its newest request first: read backwards."
            findings.append(Finding(severity="info", code="newest-first", text=text))
        parts.append(part)
        start += file.rows.line.size
    order = np.concatenate(parts)
    late = int((time_s[order] < np.maximum.accumulate(time_s[order])).sum())
    if late:
        text = f"{counted(late, 'request')} stood behind a later one: sorted by time, equal times kept as they stood."
        findings.append(Finding(severity="info", code="sorted", text=text))
        findings += _set_back(files)
        order = order[np.argsort(time_s[order], kind="stable")]
    findings += _ties(time_s[order])
    return None if (order == np.arange(order.size)).all() else order


def _set_back(files: list[_File]) -> list[Finding]:
    """Warnings of files whose clock was set back."""
    found = []
    for file in files:
        if (back := checks.set_back(file.rows.time_s, file.rows.session)) is not None:
            row, back_s, rows = back
            found.append(checks.set_back_finding(file.lines.where(int(file.rows.line[row])), back_s, rows))
    return found


def _ties(time_s: NDArray[np.float64]) -> list[Finding]:
    """How many requests of a log in order have the time of the one before, where they are many."""
    step = np.diff(time_s)
    ties = float((step == 0).mean()) if step.size else 0.0
    if ties <= _TIES_WORTH_SAYING:
        return []
    tick = float(step[step > 0].min()) if (step > 0).any() else 0.0
    text = (
        f"{show_percent(ties)} of the requests have the time stamp of the one before "
        f"(the finest step is {show_duration(tick)}): reuse and load within a step are not resolved."
    )
    return [Finding(severity="info", code="ties", text=text)]


def _unchained(where: str) -> Finding:
    text = (
        f"{where}: a block id follows another block than before, so ids name contents and not prefixes: "
        "each was combined with all blocks before it, as a prefix cache does."
    )
    return Finding(severity="warning", code="ids-rechained", text=text)


def _sizes(files: list[_File], order: Ints | None, tree: PathTree, rows: Rows) -> list[Finding]:
    """A warning where one id names a block of two sizes, which a hash of its content cannot."""
    two, first = checks.two_sizes(rows, tree)
    if not two:
        return []
    text = (
        f"In {counted(two, 'request')} the id of the last block names another number of tokens elsewhere, the first at "
        f"{_where(files, first if order is None else int(order[first]))}: "
        "each reuse of it counts what the reusing request has."
    )
    return [Finding(severity="warning", code="id-sizes", text=text)]


def _numbered(names: Sequence[str | None], size: int) -> tuple[tuple[str, ...], Ints]:
    """The distinct names in order of appearance, and each row's number, -1 where it has none."""
    numbers: dict[str | None, int] = {None: -1}
    column = [numbers.setdefault(name, len(numbers) - 1) for name in names]
    index = np.array(column, np.int64) if names else np.broadcast_to(np.int64(-1), size)
    return tuple(name for name in numbers if name is not None), index
