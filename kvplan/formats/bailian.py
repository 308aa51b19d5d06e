"""Bailian traces: Mooncake's fields with times in seconds, blocks of 16 tokens, and a tree of chats."""

from __future__ import annotations

from typing import Any

import numpy as np

from kvplan.formats import hashed, times
from kvplan.formats.columns import absent, known
from kvplan.formats.lines import Lines
from kvplan.formats.roles import Fields
from kvplan.formats.rows import Options, Rows
from kvplan.formats.scan import Field, Scanner

_BLOCK_TOKENS = 16
_OWN = {
    "time": "timestamp",
    "input_tokens": "input_length",
    "output_tokens": "output_length",
    "hash_ids": "hash_ids",
}


def detect(row: dict[str, Any]) -> bool:
    """Whether a decoded line is of this format."""
    return "hash_ids" in row and "input_length" in row and "chat_id" in row


def read(lines: Lines, options: Options) -> Rows:
    """Read a whole file. Raises KvplanError naming the line that is malformed or contradicts the block size."""
    names = Fields(_OWN, options.columns)
    fields = (
        Field(name=names["input_tokens"], needed=True),
        Field(name=names["output_tokens"]),
        Field(name="chat_id", needed=True, label=True),
        Field(name="parent_chat_id", least=-1, label=True),
    )
    scanned = Scanner(lines, options, time=names["time"], ids=names["hash_ids"], fields=fields).read()
    names.need(lines, "output_tokens", not absent(scanned.numbers[names["output_tokens"]]))
    names.need(lines, "time", not np.isnan(scanned.time).all())
    time_s, findings = times.read(scanned.time, names["time"], names.role("time"), "s", "Bailian traces")
    chats, parents = scanned.numbers["chat_id"], scanned.numbers["parent_chat_id"]
    size = options.block_tokens or _BLOCK_TOKENS
    columns = hashed.Columns(
        line=scanned.line,
        time_s=time_s,
        input_tokens=known(scanned.numbers[names["input_tokens"]]),
        output_tokens=known(scanned.numbers[names["output_tokens"]]),
        count=scanned.count,
        keys=None,
        start=scanned.start,
        sizes=np.broadcast_to(size, scanned.line.shape),
        tenant=scanned.tenant,
        session=_conversations(chats.tolist(), parents.tolist()),
    )
    named_by = "--block-tokens" if options.block_tokens else "the format"
    return hashed.rows(lines, options, columns, findings, named_by)


def _conversations(chats: list[int], parents: list[int]) -> list[str | None]:
    """The first chat of each one's conversation: a chat whose parent is not in the log starts one."""
    root: dict[int, int] = {}
    for chat, parent in zip(chats, parents, strict=True):
        root[chat] = root.get(parent, chat)
    return [str(root[chat]) for chat in chats]
