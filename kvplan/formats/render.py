"""Chat requests to tokens to block keys, as a server does it: the model's template, its tokenizer, chained hashes."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

import msgspec
import numpy as np
from numpy.typing import NDArray

from kvplan.errors import KvplanError
from kvplan.formats.parts import Parts, Reply, from_system, placed

Tokens: TypeAlias = NDArray[np.uint32]

_KEY_BYTES = 8
_VERBATIM = ("PreTrainedTokenizerFast", "TokenizersBackend")


class _TokenizerConfig(msgspec.Struct):
    tokenizer_class: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """One request to render and count: its body as sent, what keeps its cache apart, and the answer where logged."""

    body: dict[str, Any]
    seed: tuple[str, ...]
    reply: Reply | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Done:
    """A prompt in tokens and block keys (64-bit, one after another), and its answer in tokens where that was logged.

    `parts` are those of a chat prompt (parts.PART, in bytes) and `head_tokens` the tokens before its first message that
    is not the system's, -1 unknown. `answer_keys` are those of the full blocks of prompt and answer together, from the
    first that the answer fills.
    """

    tokens: int
    keys: bytes
    reply_tokens: int | None
    images: int
    parts: bytes = b""
    head_tokens: int = -1
    answer_keys: bytes = b""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Chat:
    """A chat request on its way: its text, its parts, and where its head ends in the text."""

    text: str
    parts: bytes
    head_end: int
    messages: list[dict[str, Any]]
    media: list[str]


class Renderer:
    """A local tokenizer folder with its chat template. Importing transformers takes seconds: only logs of text do."""

    def __init__(self, folder: Path, image_tokens: int | None = None) -> None:
        if not folder.is_dir():
            raise KvplanError(
                f"{folder}: no such folder: --tokenizer wants the folder with the model's tokenizer files"
            )
        try:
            self._tokenizer: Any = _loaded(folder)
        except Exception as error:  # the libraries raise bare Exceptions too, for whatever the folder's files hold
            what = str(error).strip().splitlines() or [type(error).__name__]
            raise KvplanError(f"{folder}: holds no tokenizer that transformers loads: {what[0]}") from None
        self._folder = folder
        self._parts = Parts()
        self._image_tokens = image_tokens

    def need_template(self) -> None:
        """Raise KvplanError where the tokenizer has no chat template, which logs of messages need."""
        if not self._tokenizer.chat_template:
            raise KvplanError(
                f"{self._folder}: its tokenizer has no chat template: take the folder of the served (chat) model"
            )

    def done(self, works: Sequence[Work], block_tokens: int) -> list[Done | str]:
        """Each request rendered, counted and hashed, or what is wrong with it."""
        results: list[Done | str] = []
        chats: dict[int, _Chat] = {}
        tokens: dict[int, Tokens] = {}
        heads: dict[int, int] = {}
        for i, work in enumerate(works):
            results.append("")
            try:
                if "messages" in work.body:
                    chats[i] = self._chat(*plain_messages(work.body), work)
                else:
                    tokens[i] = self._prompt(work.body.get("prompt"))
            except ValueError as error:
                results[i] = str(error)
        encodings = self._encodings([chat.text for chat in chats.values()], False)
        for (i, chat), (ids, place) in zip(chats.items(), encodings, strict=True):
            heads[i] = place(chat.head_end)
            tokens[i] = self._with_images(ids, chat, place)
        answers = self._answers({i: work for i, work in enumerate(works) if i in tokens and work.reply}, chats)
        for i, ids in tokens.items():
            if self._doubled_start(ids):
                results[i] = "the prompt starts with two beginning-of-sequence tokens"
                continue
            reply, answer = works[i].reply, answers.get(i)
            known = answer is not None and reply is not None and reply.whole
            keys, more = chained(ids, answer if known and answer is not None else ids[:0], block_tokens, works[i].seed)
            results[i] = Done(
                tokens=ids.size,
                keys=keys,
                reply_tokens=None if answer is None else answer.size,
                images=len(chats[i].media) if i in chats else 0,
                parts=chats[i].parts if i in chats else b"",
                head_tokens=heads.get(i, -1),
                answer_keys=more,
            )
        return results

    def _with_images(self, ids: Tokens, chat: _Chat, place: Callable[[int], int]) -> Tokens:
        """The tokens with as many for each image as it has in the model, all of a value that its content gives."""
        if self._image_tokens is None:
            return ids
        pieces, done, after = [], 0, 0
        for mark in chat.media:
            at = chat.text.find(mark, after)
            first, last = place(at), place(at + len(mark) - 1)
            if not _is_image(mark) or at < 0 or min(first, last) < done:
                continue
            value = int.from_bytes(hashlib.blake2b(mark.encode(), digest_size=4).digest(), "little") | 1 << 31
            pieces += [ids[done:first], np.full(self._image_tokens, value, np.uint32)]
            done, after = last + 1, at + len(mark)
        return np.concatenate([*pieces, ids[done:]])

    def _chat(self, messages: list[dict[str, Any]], media: list[str], work: Work) -> _Chat:
        text = self._rendered(messages, work.body)
        tools_first, head_end = placed(text, messages, work.body.get("tools"))
        parts = self._parts.of(messages, work.body, work.seed, tools_first)
        return _Chat(text=text, parts=parts, head_end=head_end, messages=messages, media=media)

    def _answers(self, works: dict[int, Work], chats: dict[int, _Chat]) -> dict[int, Tokens]:
        """The tokens of the answers: as they were decoded where the log has their ids, else of their text."""
        texts, found = {}, {}
        for i, work in works.items():
            reply = work.reply
            if reply is not None and reply.ids is not None:
                found[i] = np.array(reply.ids, np.uint32)
            elif reply is not None:
                texts[i] = (
                    self._thought(reply, work.body, chats[i]) if reply.reasoning and i in chats else reply.content
                )
        return found | dict(zip(texts, self._encoded(list(texts.values()), False), strict=True))

    def _thought(self, reply: Reply, body: dict[str, Any], chat: _Chat) -> str:
        """What follows the prompt where the template shows an answer's reasoning; else its reasoning and its text."""
        try:
            text = self._rendered([*chat.messages, reply.message()], {**body, "add_generation_prompt": False})
        except ValueError:
            text = ""
        if text.startswith(chat.text) and reply.reasoning.strip() in text[len(chat.text) :]:
            return text[len(chat.text) :]
        return reply.reasoning + reply.content

    def _rendered(self, messages: list[dict[str, Any]], body: dict[str, Any]) -> str:
        """The prompt of one chat request, whole. Raises ValueError for a request that the template cannot take."""
        options = body.get("chat_template_kwargs")
        if options is not None and not isinstance(options, dict):
            raise ValueError("'chat_template_kwargs' is no object")
        generation = body.get("add_generation_prompt")
        effort = body.get("reasoning_effort")
        arguments = {
            "tools": body.get("tools") or None,
            "add_generation_prompt": True if generation is None else bool(generation),
            **({"reasoning_effort": effort} if effort is not None else {}),
            **(options or {}),
            "tokenize": False,
        }
        try:
            text = self._tokenizer.apply_chat_template(messages, **arguments)
        except Exception as error:  # a template is a program of the model's maker and may raise anything
            raise ValueError(f"the chat template refuses the request: {error}") from None
        if not isinstance(text, str):
            raise ValueError("the chat template gave no text")
        return text

    def _prompt(self, prompt: object) -> Tokens:
        """The tokens of a completion's prompt, which servers put a beginning-of-sequence token before."""
        if isinstance(prompt, str):
            return self._encoded([prompt], True)[0]
        return token_ids(prompt)

    def _encoded(self, texts: list[str], special: bool) -> list[Tokens]:
        """The tokens of texts. A template has already placed every special token of a rendered prompt."""
        return [ids for ids, _ in self._encodings(texts, special)]

    def _encodings(self, texts: list[str], special: bool) -> list[tuple[Tokens, Callable[[int], int]]]:
        """The tokens of each text, and how many of them stand before a character of it (-1: not known)."""
        if not texts:
            return []
        encoded = self._tokenizer(
            texts,
            add_special_tokens=special,
            return_attention_mask=False,
            return_token_type_ids=False,
            verbose=False,
        )
        fast = encoded.encodings or [None] * len(texts)
        ids = [np.array(ids, np.uint32) for ids in encoded["input_ids"]]
        return [(one, partial(_tokens_before, encoding)) for one, encoding in zip(ids, fast, strict=True)]

    def _doubled_start(self, tokens: Tokens) -> bool:
        """Whether a prompt starts with two beginning-of-sequence tokens, which no model was trained on."""
        start = self._tokenizer.bos_token_id
        return start is not None and tokens.size > 1 and bool((tokens[:2] == start).all())


def _tokens_before(encoding: Any, character: int) -> int:
    """How many tokens stand before a character; -1 where a slow tokenizer does not say."""
    if encoding is None or character < 0:
        return -1
    token = encoding.char_to_token(character)
    return -1 if token is None else int(token)


class Approximation:
    """Stands in for a tokenizer that is not at hand: so many bytes of text count as a token.

    Messages are put one after another behind the tools, each under its role; blocks are chunks of that text's bytes.
    What requests share is found as with tokens, how long it is only about.
    """

    def __init__(self, bytes_per_token: float, image_tokens: int | None = None) -> None:
        self._bytes = bytes_per_token
        self._image_bytes = 0 if image_tokens is None else round(image_tokens * bytes_per_token)
        self._parts = Parts()

    def need_template(self) -> None:
        """It needs none."""

    def done(self, works: Sequence[Work], block_tokens: int) -> list[Done | str]:
        """Each request counted and hashed, or what is wrong with it."""
        return [self._one(work, block_tokens) for work in works]

    def _one(self, work: Work, block_tokens: int) -> Done | str:
        images, parts, head = 0, b"", -1
        try:
            if "messages" in work.body:
                messages, media = plain_messages(work.body, self._image_bytes)
                images = len(media)
                lines = [b"\n" + msgspec.json.encode(message) for message in messages]
                tools = msgspec.json.encode(work.body.get("tools") or [])
                text = tools + b"".join(lines)
                parts = self._parts.of(messages, work.body, work.seed, tools_first=True)
                first = next((i for i, message in enumerate(messages) if not from_system(message)), len(lines))
                head = int((len(tools) + sum(map(len, lines[:first]))) // self._bytes)
            elif isinstance(prompt := work.body.get("prompt"), str):
                text = prompt.encode("utf-8", "surrogatepass")
            else:
                ids = token_ids(prompt)
                keys, _ = chained(ids, ids[:0], block_tokens, work.seed)
                return Done(tokens=ids.size, keys=keys, reply_tokens=None, images=0)
        except ValueError as error:
            return str(error)
        data = np.frombuffer(text, np.uint8)
        keys, _ = chained(data, data[:0], max(1, round(block_tokens * self._bytes)), work.seed)
        blocks = len(keys) // _KEY_BYTES
        tokens = max(-(-len(text) // self._bytes), 1)
        # so that the count of blocks is that of the tokens, whatever rounding does
        tokens = min(max(int(tokens), (blocks - 1) * block_tokens + 1), blocks * block_tokens)
        return Done(
            tokens=tokens,
            keys=keys,
            reply_tokens=self._reply_tokens(work.reply),
            images=images,
            parts=parts,
            head_tokens=head,
        )

    def _reply_tokens(self, reply: Reply | None) -> int | None:
        if reply is None:
            return None
        if reply.ids is not None:
            return len(reply.ids)
        return int(-(-len((reply.reasoning + reply.content).encode("utf-8", "surrogatepass")) // self._bytes))


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


def _is_image(mark: str) -> bool:
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
    return mark.ljust(image_bytes if _is_image(mark) else 0, "."), True


def _tool_call(call: Any) -> Any:
    function = call.get("function") if isinstance(call, dict) else None
    if not isinstance(function, dict) or not isinstance(function.get("arguments"), str):
        return call
    try:
        arguments = msgspec.json.decode(function["arguments"])
    except (msgspec.DecodeError, RecursionError):
        return call
    return {**call, "function": {**function, "arguments": arguments}}


def chained(tokens: NDArray[Any], answer: NDArray[Any], block_tokens: int, seed: Sequence[str]) -> tuple[bytes, bytes]:
    """The keys of a prompt's blocks, and of those that its answer fills behind it: 64-bit, one after another.

    Each is a hash of `seed` (what keeps caches apart: the model, a cache salt) and of all tokens up to the block's end.
    The prompt's partial last block has one; of prompt and answer together only full blocks do, from the first that
    holds any of the answer.
    """
    digest = hashlib.blake2b(msgspec.json.encode(seed), digest_size=_KEY_BYTES)
    step = block_tokens * tokens.itemsize
    data = memoryview(tokens.tobytes())
    whole = len(data) // step * step
    keys, more = bytearray(), bytearray()
    for start in range(0, whole, step):
        digest.update(data[start : start + step])
        keys += digest.digest()
    rest = data[whole:]
    if rest:
        partial_block = digest.copy()
        partial_block.update(rest)
        keys += partial_block.digest()
    if answer.size:
        decoded = bytes(rest) + answer.tobytes()
        for start in range(0, len(decoded) // step * step, step):
            digest.update(decoded[start : start + step])
            more += digest.digest()
    return bytes(keys), bytes(more)
