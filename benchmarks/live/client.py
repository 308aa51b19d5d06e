"""A client that sends a schedule to an OpenAI-style completion server and keeps what each answer says."""

from __future__ import annotations

import http.client
import json
import threading
import time
import urllib.request
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """One request's fate. Times are of time.monotonic(); `cached_tokens` None where the server does not say."""

    sent_s: float
    first_s: float | None
    end_s: float
    status: int
    finished: bool
    prompt_tokens: int = 0
    cached_tokens: int | None = None
    output_tokens: int = 0
    served_s: float | None = None  # by the server's own clock, where it says

    @property
    def ttft_s(self) -> float | None:
        """Seconds to the first token."""
        return None if self.first_s is None else self.first_s - self.sent_s


def complete(
    url: str,
    payload: Mapping[str, Any],
    *,
    stream: bool = True,
    leave_after_s: float | None = None,
    timeout_s: float = 300.0,
) -> Answer:
    """Send one completion and read its answer to the end, or hang up where nothing came for `leave_after_s`."""
    place = urlsplit(url)
    line = http.client.HTTPConnection(place.hostname or "", place.port, timeout=leave_after_s or timeout_s)
    body = {**payload, "stream": stream}
    if stream:
        body["stream_options"] = {"include_usage": True}
    sent, status, read = time.monotonic(), 0, _Read()
    try:
        line.request("POST", "/v1/completions", json.dumps(body), {"Content-Type": "application/json"})
        answer = line.getresponse()
        status = answer.status
        if status == 200:
            read.take(answer, stream)
    except TimeoutError:
        if leave_after_s is None:
            raise
    finally:
        line.close()
    details = read.usage.get("prompt_tokens_details") or {}
    clock = read.timings
    return Answer(
        sent_s=sent,
        first_s=read.first_s,
        end_s=time.monotonic(),
        status=status,
        finished=read.finished,
        prompt_tokens=read.usage.get("prompt_tokens", 0),
        cached_tokens=details.get("cached_tokens"),
        output_tokens=read.usage.get("completion_tokens", 0),
        served_s=(clock["prompt_ms"] + clock["predicted_ms"]) / 1000 if clock else None,
    )


@dataclass(slots=True)
class _Read:
    """What an answer has said so far."""

    first_s: float | None = None
    finished: bool = False
    usage: dict[str, Any] = field(default_factory=dict)
    timings: dict[str, float] = field(default_factory=dict)

    def take(self, answer: http.client.HTTPResponse, stream: bool) -> None:
        """Read to the end: events of a stream, or one object."""
        if not stream:
            self._event(json.loads(answer.read()))
            self.finished = True
            return
        for raw in answer:
            if raw.startswith(b"data: [DONE]"):
                self.finished = True
                return
            if raw.startswith(b"data: "):
                self._event(json.loads(raw[6:]))

    def _event(self, event: Mapping[str, Any]) -> None:
        if event.get("choices") and self.first_s is None:
            self.first_s = time.monotonic()
        self.usage = event.get("usage") or self.usage
        self.timings = event.get("timings") or self.timings


def post(url: str, path: str) -> None:
    """POST nothing to an address. Raises OSError where it is refused."""
    with urllib.request.urlopen(urllib.request.Request(url + path, method="POST"), timeout=30):
        pass


def replay(url: str, payloads: Sequence[Mapping[str, Any]], concurrency: int = 1) -> list[Answer]:
    """Send them in their order, `concurrency` at a time: the next one leaves when any answer has ended."""
    answers: list[Answer | None] = [None] * len(payloads)
    failures: list[BaseException] = []
    turn = iter(range(len(payloads)))
    lock = threading.Lock()

    def work() -> None:
        while not failures:
            with lock:
                place = next(turn, None)
            if place is None:
                return
            try:
                answers[place] = complete(url, payloads[place])
            except BaseException as error:
                failures.append(error)

    workers = [threading.Thread(target=work, daemon=True) for _ in range(concurrency)]
    for worker in workers:
        worker.start()
    for worker in workers:
        while worker.is_alive():
            worker.join(0.2)
    if failures:
        raise failures[0]
    return [one for one in answers if one is not None]
