"""Time to first token of a running OpenAI-compatible server, over prompt lengths.

Every prompt is of numbers drawn anew, so that no prefix of it can be cached; a server that says it had part of a prompt
cached gives no point. Lengths are the server's own count of tokens.
"""

from __future__ import annotations

import http.client
import json
import random
import secrets
import time
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

from kvplan.documents import PrefillPoint
from kvplan.errors import KvplanError
from kvplan.progress import Progress, silent
from kvplan.units import show_duration

TIMEOUT_S = 300.0
_ROUNDS = 3
_LOCAL = ("localhost", "127.0.0.1", "::1")


@dataclass(frozen=True, slots=True, kw_only=True)
class Server:
    """A server that answered: where it is and the model it serves under which name."""

    scheme: str
    host: str
    port: int | None
    path: str
    model: str
    limit: int | None = None

    @property
    def is_local(self) -> bool:
        """Whether its address is this host's own."""
        return self.host in _LOCAL


@dataclass(slots=True, kw_only=True)
class Found:
    """What was measured, why points were refused, and how, in words."""

    points: tuple[PrefillPoint, ...] = ()
    refused: list[str] = field(default_factory=list)
    says_cached: bool = True

    @property
    def how(self) -> str:
        """What the server's figures rest on."""
        return "no prompt cached, as the server says" if self.says_cached else "the server does not say what it cached"


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """One streamed reply: seconds to its first token, and the usage that the server stated."""

    seconds: float
    prompt_tokens: int
    cached_tokens: int | None


def connect(url: str, model: str | None) -> Server:
    """Ask the server what it serves. Raises KvplanError where it does not answer or does not serve `model`."""
    parts = urlsplit(url if "://" in url else f"http://{url}")
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise KvplanError(f"{url}: not the address of a server: give http://HOST:PORT")
    try:
        port = parts.port
    except ValueError:
        raise KvplanError(f"{url}: not a port number") from None
    path = parts.path.rstrip("/").removesuffix("/v1")
    server = Server(scheme=parts.scheme, host=parts.hostname, port=port, path=path, model="")
    with closing(_open(server)) as line:
        try:
            line.request("GET", f"{path}/v1/models")
            answer = line.getresponse()
            status, body = answer.status, json.loads(answer.read())
            known = [item for item in body["data"] if isinstance(item.get("id"), str)] if status == 200 else []
        except (OSError, http.client.HTTPException) as error:
            raise KvplanError(f"{url}: no answer: {error}") from None
        except (ValueError, KeyError, TypeError, AttributeError):
            raise KvplanError(f"{url}: its answer to /v1/models is not that of an OpenAI-compatible server") from None
    chosen = [item for item in known if model is None or _same(item["id"], model)]
    if len(chosen) != 1:
        names = ", ".join(item["id"] for item in known) or "none"
        what = f"does not serve {model}" if model else "serves several models, choose one with --model"
        raise KvplanError(f"{url}: {what} (it serves: {names})")
    limit = chosen[0].get("max_model_len")
    found = chosen[0]["id"]
    return Server(
        scheme=server.scheme,
        host=server.host,
        port=port,
        path=path,
        model=found,
        limit=limit if isinstance(limit, int) else None,
    )


def _same(served: str, wanted: str) -> bool:
    """A model is served by the end of its name, whatever folder or organisation stands before it."""
    return served.rstrip("/").rpartition("/")[2].lower() == wanted.rstrip("/").rpartition("/")[2].lower()


def _open(server: Server) -> http.client.HTTPConnection:
    kind = http.client.HTTPSConnection if server.scheme == "https" else http.client.HTTPConnection
    return kind(server.host, server.port, timeout=TIMEOUT_S)


def lengths(
    server: Server, wanted: Sequence[int], *, seconds: float, rounds: int = _ROUNDS, progress: Progress = silent
) -> Found:
    """The middle of `rounds` requests at each length, shortest first, until the time is spent."""
    found = Found()
    points: list[PrefillPoint] = []
    until, last = time.monotonic() + seconds, 0.0
    words = random.Random(secrets.randbits(64))
    # Twice: the first request also pays for what a server does once, the second counts tokens a word.
    for _ in range(2):
        first = _ask(server, _prompt(words, 64))
    per_word = first.prompt_tokens / 64
    for length in sorted(set(wanted)):
        if server.limit is not None and length + 1 > server.limit:
            found.refused.append(f"{length:,} tokens are more than the server admits ({server.limit:,})")
            break
        if time.monotonic() + 2 * rounds * last > until and points:
            break
        progress(f"time to first token at {length:,} tokens", None)
        replies = []
        for _ in range(rounds):
            replies.append(_ask(server, _prompt(words, max(1, round(length / per_word)))))
            last = max(reply.seconds for reply in replies)
        point = _point(replies, found)
        if point is not None:
            points.append(point)
            progress(f"time to first token at {point.tokens:,} tokens: {show_duration(point.seconds)}", None)
    found.points = tuple(points)
    return found


def _point(replies: Sequence[Reply], found: Found) -> PrefillPoint | None:
    cached = max((reply.cached_tokens or 0) for reply in replies)
    found.says_cached &= all(reply.cached_tokens is not None for reply in replies)
    middle = sorted(replies, key=lambda reply: reply.seconds)[len(replies) // 2]
    if cached:
        found.refused.append(f"{cached:,} tokens of a unique prompt of {middle.prompt_tokens:,} were cached: no point")
        return None
    return PrefillPoint(tokens=middle.prompt_tokens, prefix_tokens=0, seconds=middle.seconds)


def _prompt(words: random.Random, count: int) -> str:
    """So many numbers of six digits, never the same ones again. How many tokens that is the server says."""
    return " ".join(f"{words.randrange(10**6):06}" for _ in range(count))


def _ask(server: Server, prompt: str) -> Reply:
    """One streamed request for one token. The connection is made before the clock starts."""
    url = f"{server.host}{server.path}/v1/completions"
    body = {
        "model": server.model,
        "prompt": prompt,
        "max_tokens": 1,
        "temperature": 0,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    with closing(_open(server)) as line:
        try:
            line.connect()
            began = time.perf_counter()
            line.request(
                "POST",
                f"{server.path}/v1/completions",
                body=json.dumps(body),
                headers={"Content-Type": "application/json"},
            )
            answer = line.getresponse()
            if answer.status != 200:
                raise KvplanError(f"{url}: status {answer.status}: {answer.read(300).decode(errors='replace')}")
            return _reply(_events(answer), began, url)
        except (OSError, http.client.HTTPException) as error:
            raise KvplanError(f"{url}: the reply broke off: {error}") from None


def _events(answer: http.client.HTTPResponse) -> Iterator[dict[str, Any]]:
    """The JSON of each server-sent event."""
    while line := answer.readline():
        if line.startswith(b"data:") and (text := line[5:].strip()) not in (b"", b"[DONE]"):
            try:
                event = json.loads(text)
            except ValueError:
                continue
            if isinstance(event, dict):
                yield event


def _reply(events: Iterator[dict[str, Any]], began: float, url: str) -> Reply:
    first: float | None = None
    usage: dict[str, Any] = {}
    for event in events:
        if event.get("error"):
            raise KvplanError(f"{url}: {str(event['error'])[:300]}")
        if first is None and event.get("choices"):
            first = time.perf_counter() - began
        usage = event.get("usage") or usage
    tokens = usage.get("prompt_tokens")
    if first is None or not isinstance(tokens, int):
        raise KvplanError(f"{url}: the reply has no {'token' if first is None else 'usage with prompt_tokens'}")
    details = usage.get("prompt_tokens_details")
    cached = details.get("cached_tokens") if isinstance(details, dict) else None
    return Reply(seconds=first, prompt_tokens=tokens, cached_tokens=cached if isinstance(cached, int) else None)
