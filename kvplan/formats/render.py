"""Chat requests to tokens to block keys, as a server does it: the model's template, its tokenizer, chained hashes."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypeAlias

import msgspec
import numpy as np
from numpy.typing import NDArray

from kvplan.errors import KvplanError

Tokens: TypeAlias = NDArray[np.uint32]

_KEY_BYTES = 8
_VERBATIM = ("PreTrainedTokenizerFast", "TokenizersBackend")


class _TokenizerConfig(msgspec.Struct):
    tokenizer_class: str | None = None


class Renderer:
    """A local tokenizer folder with its chat template. Importing transformers takes seconds: only logs of text do."""

    def __init__(self, folder: Path) -> None:
        if not folder.is_dir():
            raise KvplanError(
                f"{folder}: no such folder: --tokenizer wants the folder with the model's tokenizer files"
            )
        try:
            self._tokenizer: Any = _loaded(folder)
        except Exception as error:  # the libraries raise bare Exceptions too, for whatever the folder's files hold
            what = str(error).strip().splitlines() or [type(error).__name__]
            raise KvplanError(f"{folder}: holds no tokenizer that transformers loads: {what[0]}") from None
        if not self._tokenizer.chat_template:
            raise KvplanError(
                f"{folder}: its tokenizer has no chat template: take the folder of the served (chat) model"
            )

    def text(self, body: dict[str, Any]) -> str:
        """The prompt of one chat request, rendered whole. Raises ValueError for a request the template cannot take."""
        messages = body.get("messages")
        if not isinstance(messages, list) or not messages:
            raise ValueError("'messages' is no list of messages")
        options = body.get("chat_template_kwargs")
        if options is not None and not isinstance(options, dict):
            raise ValueError("'chat_template_kwargs' is no object")
        generation = body.get("add_generation_prompt")
        arguments = {
            "tools": body.get("tools") or None,
            "add_generation_prompt": True if generation is None else bool(generation),
            **(options or {}),
            "tokenize": False,
        }
        plain = [_message(message, number) for number, message in enumerate(messages, 1)]
        try:
            text = self._tokenizer.apply_chat_template(plain, **arguments)
        except Exception as error:  # a template is a program of the model's maker and may raise anything
            raise ValueError(f"the chat template refuses the request: {error}") from None
        if not isinstance(text, str):
            raise ValueError("the chat template gave no text")
        return text

    def tokens(self, texts: Sequence[str]) -> list[Tokens]:
        """The tokens of rendered prompts; the template has already placed every special token."""
        encoded = self._tokenizer(
            list(texts),
            add_special_tokens=False,
            return_attention_mask=False,
            return_token_type_ids=False,
            verbose=False,
        )
        return [np.array(ids, np.uint32) for ids in encoded["input_ids"]]

    def doubled_start(self, tokens: Tokens) -> bool:
        """Whether a prompt starts with two beginning-of-sequence tokens, which no model was trained on."""
        start = self._tokenizer.bos_token_id
        return start is not None and tokens.size > 1 and bool((tokens[:2] == start).all())


def _loaded(folder: Path) -> Any:
    """The folder's tokenizer, as AutoTokenizer gives it.

    Where the folder names the class that runs tokenizer.json as it stands, that class is taken at once: AutoTokenizer
    would come to the same one, after importing torch where it is installed.
    """
    config = folder / "tokenizer_config.json"
    named = msgspec.json.decode(config.read_bytes(), type=_TokenizerConfig) if config.is_file() else _TokenizerConfig()
    if named.tokenizer_class in _VERBATIM and (folder / "tokenizer.json").is_file():
        from transformers import PreTrainedTokenizerFast as Loader
    else:
        from transformers import AutoTokenizer as Loader
    return Loader.from_pretrained(str(folder), local_files_only=True)


def _message(message: object, number: int) -> dict[str, Any]:
    """A message in the form templates expect: text parts as one text, the arguments of tool calls as objects."""
    if not isinstance(message, dict) or not isinstance(message.get("role"), str):
        raise ValueError(f"message {number} has no role")
    message = dict(message)
    if isinstance(message.get("content"), list):
        message["content"] = "\n".join(_part(part, number) for part in message["content"])
    if isinstance(message.get("tool_calls"), list):
        message["tool_calls"] = [_tool_call(call) for call in message["tool_calls"]]
    return message


def _part(part: object, number: int) -> str:
    if isinstance(part, str):
        return part
    if isinstance(part, dict) and isinstance(part.get("text"), str):
        return str(part["text"])
    kind = part.get("type", "unknown") if isinstance(part, dict) else type(part).__name__
    raise ValueError(f"message {number} has a part of type {kind!r}: only text has tokens that can be counted here")


def _tool_call(call: Any) -> Any:
    function = call.get("function") if isinstance(call, dict) else None
    if not isinstance(function, dict) or not isinstance(function.get("arguments"), str):
        return call
    try:
        arguments = msgspec.json.decode(function["arguments"])
    except (msgspec.DecodeError, RecursionError):
        return call
    return {**call, "function": {**function, "arguments": arguments}}


def block_keys(tokens: Tokens, block_tokens: int, seed: Sequence[str]) -> NDArray[np.int64]:
    """One 64-bit key a block, the partial last one included, each a hash of `seed` and of all tokens up to its end.

    `seed` holds what keeps caches apart: the model, a cache salt.
    """
    digest = hashlib.blake2b(msgspec.json.encode(seed), digest_size=_KEY_BYTES)
    data = memoryview(tokens.tobytes())
    step = block_tokens * tokens.itemsize
    keys = bytearray()
    for start in range(0, len(data), step):
        digest.update(data[start : start + step])
        keys += digest.digest()
    return np.frombuffer(bytes(keys), np.int64)
