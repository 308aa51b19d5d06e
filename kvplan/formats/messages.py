"""What requests send, in the form that templates expect: messages with their parts as one text, images as hashes."""

from __future__ import annotations

import hashlib
from typing import Any, TypeAlias

import msgspec
import numpy as np
from numpy.typing import NDArray

Tokens: TypeAlias = NDArray[np.uint32]


def token_ids(prompt: object) -> Tokens:
    """The tokens of a prompt that was sent as such. Raises ValueError."""
    if not isinstance(prompt, list) or not prompt:
        raise ValueError("'prompt' is neither text nor a list of token ids")
    if not all(isinstance(token, int) and not isinstance(token, bool) and 0 <= token < 2**32 for token in prompt):
        raise ValueError("'prompt' holds something that is no token id")
    return np.array(prompt, np.uint32)


def plain_messages(body: dict[str, Any], image_bytes: int = 0) -> tuple[list[dict[str, Any]], list[str]]:
    """The messages of a chat request in the form templates expect, and what stands in them for images, in order.

    What stands for an image is filled up to `image_bytes`. Raises ValueError.
    """
    messages = body.get("messages")
    if not isinstance(messages, list) or not messages:
        raise ValueError("'messages' is no list of messages")
    media: list[str] = []
    plain = []
    for number, message in enumerate(messages, 1):
        done, found = _message(message, number, image_bytes)
        plain.append(done)
        media += found
    return plain, media


def _message(message: object, number: int, image_bytes: int) -> tuple[dict[str, Any], list[str]]:
    """A message with its text parts as one text, the arguments of tool calls as objects, images as hashes."""
    if not isinstance(message, dict) or not isinstance(message.get("role"), str):
        raise ValueError(f"message {number} has no role")
    message = dict(message)
    media = []
    if isinstance(message.get("content"), list):
        parts = [_part(part, number, image_bytes) for part in message["content"]]
        message["content"] = "\n".join(text for text, _ in parts)
        media = [text for text, stands in parts if stands]
    if isinstance(message.get("tool_calls"), list):
        message["tool_calls"] = [_tool_call(call) for call in message["tool_calls"]]
    return message, media


def is_image(mark: str) -> bool:
    """Whether what stands for a part stands for an image, and no sound or file."""
    return "image" in mark.split(" ")[0]


def _part(part: object, number: int, image_bytes: int) -> tuple[str, bool]:
    """The text of a part of a message, and whether it stands for an image (sound, file) by a hash of its content."""
    if isinstance(part, str):
        return part, False
    if isinstance(part, dict) and isinstance(part.get("text"), str):
        return str(part["text"]), False
    kind = part.get("type", "unknown") if isinstance(part, dict) else type(part).__name__
    content = {key: value for key, value in part.items() if key != "type" and value} if isinstance(part, dict) else {}
    if not content:
        raise ValueError(f"message {number} has a part of type {kind!r} without content")
    digest = hashlib.blake2b(msgspec.json.encode(content, order="deterministic"), digest_size=16)
    mark = f"<{kind} {digest.hexdigest()}>"
    return mark.ljust(image_bytes if is_image(mark) else 0, "."), True


def _tool_call(call: Any) -> Any:
    function = call.get("function") if isinstance(call, dict) else None
    if not isinstance(function, dict) or not isinstance(function.get("arguments"), str):
        return call
    try:
        arguments = msgspec.json.decode(function["arguments"])
    except (msgspec.DecodeError, RecursionError):
        return call
    return {**call, "function": {**function, "arguments": arguments}}
