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
from kvplan.formats.messages import is_image, plain_messages, token_ids
from kvplan.formats.parts import Parts, Reply, placed
from kvplan.formats.rows import malformed
from kvplan.formats.work import Done, Work, chained

Tokens: TypeAlias = NDArray[np.uint32]

_TOKENIZERS = (
    *("tokenizer.json", "tokenizer_config.json", "tokenizer.model", "tekken.json"),
    *("vocab.json", "vocab.txt", "spiece.model", "sentencepiece.bpe.model"),
)
_VERBATIM = ("PreTrainedTokenizerFast", "TokenizersBackend")


class _TokenizerConfig(msgspec.Struct):
    tokenizer_class: str | None = None


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
        if not any((folder / name).is_file() for name in _TOKENIZERS):
            raise KvplanError(
                f"{folder}: holds no tokenizer.json nor another tokenizer file: --tokenizer wants the folder with the "
                "served model's"
            )
        try:
            self._tokenizer: Any = _loaded(folder)
        except Exception as error:  # the libraries raise bare Exceptions too, for whatever the folder's files hold
            what = str(error).strip().splitlines() or [type(error).__name__]
            raise KvplanError(
                f"{folder}: holds no tokenizer that transformers loads ({what[0].rstrip(': ')}): "
                "take the folder of the served model"
            ) from None
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
            except (ValueError, RecursionError) as error:
                results[i] = malformed(error)
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
            if not is_image(mark) or at < 0 or min(first, last) < done:
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
