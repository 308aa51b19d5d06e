"""What a prompt of text is made of, as hashes: enough to tell later why two prompts part, and nothing of what they say.

Each part has three hashes. `exact` is that of the text. `near` leaves out what changes most often although nothing was
meant to: the order of tools and of their keys, dates and times, an answer's reasoning. `loose` leaves out more: numbers
and ids, everything of a tool but its name, the layout of an answer.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import msgspec
import numpy as np
from numpy.typing import NDArray

from kvplan.documents import Texts
from kvplan.documents.requests import PARTS

Hashes: TypeAlias = tuple[int, int, int]

# One part as it is kept and sent between processes: its place in PARTS, and its three hashes.
PART = np.dtype([("kind", "u1"), ("exact", "<i8"), ("near", "<i8"), ("loose", "<i8")])

_MOST_KNOWN = 1 << 18

REASONING = ("reasoning_content", "reasoning")
_THOUGHT_ENDS = ("</think>", "</thinking>", "</reasoning>")
_NAMES = "Mon|Tues?|Wed(?:nes)?|Thu(?:rs)?|Fri|Sat(?:ur)?|Sun"
_MONTHS = (
    "Jan(?:uary)?|Feb(?:ruary)?|Mar(?:ch)?|Apr(?:il)?|May|June?|July?|Aug(?:ust)?|Sept?(?:ember)?|Oct(?:ober)?|"
    "Nov(?:ember)?|Dec(?:ember)?"
)
# ISO dates and times, clock times, dates of words (12 March 2026, Mar 12, 2026), years, Unix times. Each alternative
# starts with what few places have, so that a text is passed once.
_MOMENT = re.compile(
    rf"\b\d{{4}}-\d\d?-\d\d?(?:[T ]\d\d?:\d\d(?::\d\d)?(?:[.,]\d+)?(?:Z|[+-]\d\d:?\d\d)?)?"
    rf"|\b\d\d?:\d\d(?::\d\d)?(?:[.,]\d+)?(?: ?[AaPp]\.?[Mm]\b\.?)?"
    rf"|\b\d\d?[./]\d\d?[./]\d\d(?:\d\d)?\b|\b\d{{4}}/\d\d?/\d\d?\b"
    rf"|\b1[5-9]\d{{8}}(?:\d{{3}})?\b"
    rf"|\b(?:\d\d?(?:st|nd|rd|th)?,? )?(?:{_MONTHS})\b\.?(?: \d\d?(?:st|nd|rd|th)?\b)?,?(?: \d{{4}}\b)?"
    rf"|\b(?:{_NAMES})(?:day)?\b"
    rf"|\b(?:UTC|GMT)\b(?:[+-]\d\d?(?::?\d\d)?)?"
)
# A word with a digit in it: numbers, versions, UUIDs, hashes. It starts where no such word goes on.
_ID = re.compile(r"(?<![\w-])[A-Za-z_-]*\d[\w:.+/-]*|\b[0-9a-fA-F]{8}-[0-9a-fA-F-]{27}\b")


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """An answer as logged: its text and reasoning, the ids of its tokens where they are, and whether that is all.

    An answer that also calls tools is not `whole`: how the calls were written is not known.
    """

    content: str
    reasoning: str = ""
    ids: tuple[int, ...] | None = None
    whole: bool = True

    def message(self) -> dict[str, Any]:
        """The answer as a message of a later request would repeat it."""
        return {
            "role": "assistant",
            "content": self.content,
            **({"reasoning_content": self.reasoning} if self.reasoning else {}),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Told:
    """What is kept of one prompt's text: its parts (PART, in bytes), and its answer's hashes and block keys.

    `head_tokens` stand before the first message that is not the system's (-1 unknown), `answer` are the exact and near
    hashes of the answer, `from_ids` says that its keys are from the ids that were decoded.
    """

    parts: bytes
    head_tokens: int
    answer: tuple[int, int] | None
    answer_keys: bytes
    from_ids: bool


def reply_of(message: object, ids: object = None) -> Reply | None:
    """The answer in an assistant message, None where it holds no text."""
    if not isinstance(message, dict):
        return None
    thought = _thought(message)
    content = message.get("content")
    if not isinstance(content, str) and not thought:
        return None
    valid = isinstance(ids, list) and bool(ids) and all(type(one) is int and 0 <= one < 2**32 for one in ids)
    return Reply(
        content=content if isinstance(content, str) else "",
        reasoning=thought,
        ids=tuple(ids) if valid and isinstance(ids, list) else None,
        whole=not message.get("tool_calls"),
    )


class Parts:
    """Makes the parts of prompts. What a conversation repeats is hashed in full once; only hashes are remembered."""

    def __init__(self) -> None:
        self._known: dict[bytes, bytes] = {}

    def of(
        self, messages: Sequence[dict[str, Any]], body: dict[str, Any], seed: Sequence[str], tools_first: bool
    ) -> bytes:
        """The parts of a chat prompt in the order in which the template puts them, as an array of PART in bytes.

        `messages` are in plain form, `seed` keeps caches apart; `tools_first`: tools stand before the system prompt.
        """
        switches = {key: body[key] for key in ("chat_template_kwargs", "reasoning_effort") if body.get(key)}
        rows = [self._row("model", seed), *([self._row("template", switches)] if switches else [])]
        said = [self._row("message", message) for message in messages]
        tools = [self._row("tools", body["tools"])] if body.get("tools") else []
        leading = 0 if tools_first else next((i for i, one in enumerate(messages) if not from_system(one)), len(said))
        return b"".join((*rows, *said[:leading], *tools, *said[leading:]))

    def _row(self, kind: str, value: Any) -> bytes:
        """One PART, in bytes."""
        name = hashlib.blake2b(msgspec.json.encode(value), digest_size=16, person=kind.encode()).digest()
        row = self._known.get(name)
        if row is None:
            called = _kind(value) if kind == "message" else kind
            row = np.array([(PARTS.index(called), *_HASHES[kind](value))], PART).tobytes()
            if len(self._known) >= _MOST_KNOWN:
                self._known.clear()
            self._known[name] = row
        return row


def told(reply: Reply | None, parts: bytes, head_tokens: int, answer_keys: bytes) -> Told:
    """What is kept of a prompt's text."""
    return Told(
        parts=parts,
        head_tokens=head_tokens,
        answer=None if reply is None or not reply.whole else _assistant(reply.message())[:2],
        answer_keys=answer_keys,
        from_ids=reply is not None and reply.ids is not None,
    )


def numbered(rows: Sequence[Told], answer_blocks: NDArray[Any]) -> Texts:
    """The parts of all prompts as numbers that say nothing but which are equal; `answer_blocks` are dense ids."""
    parts = np.frombuffer(b"".join(row.parts for row in rows), PART)
    answer = np.array([row.answer or (0, 0) for row in rows], np.int64).reshape(len(rows), 2)
    has = np.array([row.answer is not None for row in rows], np.bool_)
    exact, answer_exact = _numbers(parts["exact"], answer[:, 0], has)
    near, answer_near = _numbers(parts["near"], answer[:, 1], has)
    return Texts(
        offsets=_offsets([len(row.parts) // PART.itemsize for row in rows]),
        kind=parts["kind"].copy(),
        exact=exact,
        near=near,
        loose=_numbers(parts["loose"], answer[:0, 0], has[:0])[0],
        head_tokens=np.array([row.head_tokens for row in rows], np.int64),
        answer_exact=answer_exact,
        answer_near=answer_near,
        answer_offsets=_offsets([len(row.answer_keys) // 8 for row in rows]),
        answer_blocks=answer_blocks,
        answer_told=np.array([row.from_ids for row in rows], np.bool_),
    )


def _numbers(hashes: NDArray[Any], answers: NDArray[Any], has: NDArray[np.bool_]) -> tuple[NDArray[Any], NDArray[Any]]:
    """Hashes of parts and of answers as numbers from 0, equal for equal ones; -1 for an answer that there is not."""
    _, numbers = np.unique(np.concatenate((hashes, answers)), return_inverse=True)
    return numbers[: hashes.size], np.where(has, numbers[hashes.size :], -1)


def _offsets(counts: list[int]) -> NDArray[Any]:
    return np.concatenate((np.zeros(1, np.int64), np.cumsum(np.array(counts, np.int64))))


def _kind(message: dict[str, Any]) -> str:
    role = {"developer": "system", "function": "tool"}.get(message["role"], message["role"])
    text = message.get("content")
    if role == "assistant" and (_thought(message) or (isinstance(text, str) and _said(message) != text.strip())):
        return "reasoned"
    return role if role in PARTS else "user"


def _message(message: dict[str, Any]) -> Hashes:
    if message["role"] == "assistant":
        return _assistant(message)
    text = message.get("content")
    if not isinstance(text, str):
        text = _json(text)
    undated = _MOMENT.sub("#", text)
    return _hash(text), _hash(undated), _hash(_ID.sub("#", undated))


def _assistant(message: dict[str, Any]) -> Hashes:
    text = message.get("content")
    calls = message.get("tool_calls")
    calls = calls if isinstance(calls, list) else []
    called = _json([_sorted(call.get("function")) if isinstance(call, dict) else None for call in calls])
    said = _said(message)
    whole = f"{_thought(message)}\0{text if isinstance(text, str) else ''}\0{_json(calls)}"
    return _hash(whole), _hash(f"{said}\0{called}"), _hash("".join(said.split()) + called)


def _thought(message: dict[str, Any]) -> str:
    return next((message[name] for name in REASONING if isinstance(message.get(name), str)), "")


def _said(message: dict[str, Any]) -> str:
    """An answer's text without the reasoning in it."""
    text = message.get("content")
    text = text if isinstance(text, str) else ""
    end = max(text.rfind(mark) + len(mark) if mark in text else 0 for mark in _THOUGHT_ENDS)
    return text[end:].strip()


def _tools(tools: object) -> Hashes:
    """As sent; in a fixed order, of tools, keys and sets; by their names."""
    listed = tools if isinstance(tools, list) else [tools]
    fixed = sorted(_json(_sorted(tool)) for tool in listed)
    names = sorted(str(_named(tool)) for tool in listed)
    return _hash(_json(tools)), _hash(_json(fixed)), _hash(_json(names))


def _named(tool: object) -> object:
    inner = tool.get("function", tool) if isinstance(tool, dict) else None
    return inner.get("name") if isinstance(inner, dict) else None


def _sorted(value: Any) -> Any:
    """A JSON value with its keys in order, and the lists that are sets (`required`); other lists mean their order."""
    if isinstance(value, dict):
        return {
            key: sorted(map(_json, inner)) if key == "required" and isinstance(inner, list) else _sorted(inner)
            for key, inner in sorted(value.items(), key=lambda item: str(item[0]))
        }
    return [_sorted(inner) for inner in value] if isinstance(value, list) else value


def _fixed(values: object) -> Hashes:
    exact = _hash(_json(_sorted(values)))
    return exact, exact, exact


def _json(value: object) -> str:
    return msgspec.json.encode(value).decode("utf-8", "replace")


def _hash(text: str) -> int:
    digest = hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8)
    return int.from_bytes(digest.digest(), "little", signed=True)


_HASHES: dict[str, Callable[[Any], Hashes]] = {
    "model": _fixed,
    "template": _fixed,
    "tools": _tools,
    "message": _message,
}


def from_system(message: dict[str, Any]) -> bool:
    """Whether a message belongs to a prompt's head."""
    return message["role"] in ("system", "developer")


def placed(text: str, messages: list[dict[str, Any]], tools: object) -> tuple[bool, int]:
    """Whether tools stand before the system prompt of a rendered text, and where its head ends (-1: not found).

    The head is all that stands before the first message that is not the system's.
    """
    after = 0
    before = len(text)
    for message in messages:
        content = message.get("content")
        said = content.strip() if isinstance(content, str) else ""
        at = text.find(said, after) if said else -1
        if not from_system(message):
            return _first_tool(text, tools) < before, at
        if at >= 0:
            before, after = min(before, at), at + len(said)
    return _first_tool(text, tools) < before, -1


def _first_tool(text: str, tools: object) -> int:
    """Where the first tool's name stands, the end of the text where none does."""
    names = [_named(tool) for tool in tools] if isinstance(tools, list) else []
    spots = [text.find(f'"{name}"') for name in names[:1]]
    return spots[0] if spots and spots[0] >= 0 else len(text)
