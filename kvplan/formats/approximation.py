"""Chat requests counted without a tokenizer: so many bytes of text are a token, and blocks are chunks of bytes."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np

from kvplan.formats.messages import plain_messages, token_ids
from kvplan.formats.parts import Parts, Reply, from_system
from kvplan.formats.rows import malformed
from kvplan.formats.work import KEY_BYTES, Done, Work, chained


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
        except (ValueError, RecursionError) as error:
            return malformed(error)
        data = np.frombuffer(text, np.uint8)
        keys, _ = chained(data, data[:0], max(1, round(block_tokens * self._bytes)), work.seed)
        blocks = len(keys) // KEY_BYTES
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
