"""A client that sends a schedule to an OpenAI-style completion server and keeps what each answer says."""

from __future__ import annotations

import http.client
import json
import threading
import time
import urllib.request
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
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
    url: str, payload: Mapping[str, Any], *, leave_after_s: float | None = None, timeout_s: float = 300.0
) -> Answer:
    """Send one streamed completion and read it to its end, or hang up after `leave_after_s`."""
    place = urlsplit(url)
    line = http.client.HTTPConnection(place.hostname or "", place.port, timeout=leave_after_s or timeout_s)
    body = {**payload, "stream": True, "stream_options": {"include_usage": True}}
    sent = time.monotonic()
    first, status, finished = None, 0, False
    usage: dict[str, Any] = {}
    timings: dict[str, float] = {}
    try:
        line.request("POST", "/v1/completions", json.dumps(body), {"Content-Type": "application/json"})
        answer = line.getresponse()
        status = answer.status
        for raw in answer:
            if not raw.startswith(b"data: ") or status != 200:
                continue
            if raw.startswith(b"data: [DONE]"):
                finished = True
                break
            event = json.loads(raw[6:])
            if event.get("choices") and first is None:
                first = time.monotonic()
            usage = event.get("usage") or usage
            timings = event.get("timings") or timings
    except TimeoutError:
        if leave_after_s is None:
            raise
    finally:
        line.close()
    details = usage.get("prompt_tokens_details") or {}
    return Answer(
        sent_s=sent,
        first_s=first,
        end_s=time.monotonic(),
        status=status,
        finished=finished,
        prompt_tokens=usage.get("prompt_tokens", 0),
        cached_tokens=details.get("cached_tokens"),
        output_tokens=usage.get("completion_tokens", 0),
        served_s=(timings["prompt_ms"] + timings["predicted_ms"]) / 1000 if timings else None,
    )


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
