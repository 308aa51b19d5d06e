"""Bailian traces: Mooncake's fields with times in seconds, blocks of 16 tokens, and a tree of chats."""

from __future__ import annotations

from typing import Any

import numpy as np

from kvplan.documents import Finding
from kvplan.formats import hashed
from kvplan.formats.lines import Lines
from kvplan.formats.rows import Options, Rows
from kvplan.formats.scan import Field, Scanner, known

_BLOCK_TOKENS = 16
_FIELDS = (
    Field(name="input_length", needed=True),
    Field(name="output_length"),
    Field(name="chat_id", needed=True, label=True),
    Field(name="parent_chat_id", least=-1, label=True),
)


def detect(row: dict[str, Any]) -> bool:
    """Whether a decoded line is of this format."""
    return "hash_ids" in row and "input_length" in row and "chat_id" in row


def read(lines: Lines, options: Options) -> Rows:
    """Read a whole file. Raises KvplanError naming the line that is malformed or contradicts the block size."""
    scanned = Scanner(lines, options, time="timestamp", ids="hash_ids", fields=_FIELDS).read()
    chats, parents = scanned.numbers["chat_id"], scanned.numbers["parent_chat_id"]
    size = options.block_tokens or _BLOCK_TOKENS
    columns = hashed.Columns(
        line=scanned.line,
        time_s=scanned.time,
        input_tokens=known(scanned.numbers["input_length"]),
        output_tokens=known(scanned.numbers["output_length"]),
        count=scanned.count,
        keys=None,
        start=scanned.start,
        sizes=np.broadcast_to(size, scanned.line.shape),
        tenant=scanned.tenant,
        session=_conversations(chats.tolist(), parents.tolist()),
    )
    text = "Arrival times are those of 'timestamp', in seconds as Bailian traces have them."
    findings = [] if np.isnan(scanned.time).all() else [Finding(severity="info", code="times", text=text)]
    named_by = "--block-tokens" if options.block_tokens else "the format"
    return hashed.rows(lines, options, columns, findings, named_by)


def _conversations(chats: list[int], parents: list[int]) -> list[str | None]:
    """The first chat of each one's conversation: a chat whose parent is not in the log starts one."""
    root: dict[int, int] = {}
    for chat, parent in zip(chats, parents, strict=True):
        root[chat] = root.get(parent, chat)
    return [str(root[chat]) for chat in chats]
