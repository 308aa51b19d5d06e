"""A small OpenAI-compatible server for tests: streams answers, keeps an LRU prefix cache of token blocks, counts hits.

Run as a script (`python fake_server.py PORT [BLOCKS [SECONDS_A_TOKEN]]`) or in a thread with `serving`.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

BLOCK = 32


class Cache:
    """Full blocks of prompts by their whole prefix, the least recently used dropped first."""

    def __init__(self, blocks: int, seconds_a_token: float) -> None:
        self.blocks = blocks
        self.seconds_a_token = seconds_a_token
        self.held: OrderedDict[tuple[Any, ...], None] = OrderedDict()
        self.hits = 0
        self.queries = 0
        self.requests = 0
        self.lock = threading.Lock()

    def look_up(self, prompt: Any) -> int:
        """Cached tokens of a prompt, whose blocks are then cached."""
        tokens = list(prompt)
        keys = [tuple(tokens[:end]) for end in range(BLOCK, len(tokens) + 1, BLOCK)]
        with self.lock:
            usable = keys[: (len(tokens) - 1) // BLOCK]
            hit = next((i for i, key in enumerate(usable) if key not in self.held), len(usable))
            for key in reversed(keys):
                self.held[key] = None
                self.held.move_to_end(key)
            while len(self.held) > self.blocks:
                self.held.popitem(last=False)
            self.hits += hit * BLOCK
            self.queries += len(tokens)
            self.requests += 1
        return hit * BLOCK


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    cache: Cache

    def log_message(self, format: str, *args: object) -> None:
        pass

    def _text(self, text: str, kind: str = "text/plain") -> None:
        self.send_response(200)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text.encode())

    def do_GET(self) -> None:
        if self.path == "/metrics":
            cache = self.cache
            self._text(
                "# TYPE vllm:prefix_cache_hits_total counter\n"
                f'vllm:prefix_cache_hits_total{{model_name="m"}} {float(cache.hits)}\n'
                f'vllm:prefix_cache_queries_total{{model_name="m"}} {float(cache.queries)}\n'
                f'vllm:num_requests_running{{model_name="m"}} 0\n'
                f'vllm:request_success_total{{finished_reason="length",model_name="m"}} {float(cache.requests)}\n'
            )
        else:
            self._text('{"data": [{"id": "m"}]}', "application/json")

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if self.path == "/reset_prefix_cache":
            self.cache.held.clear()
            return self._text("")
        prompt, answer = body["prompt"], body["max_tokens"]
        cached = self.cache.look_up(prompt)
        time.sleep((len(prompt) - cached) * self.cache.seconds_a_token)
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Connection", "close")
        self.end_headers()
        head = {"id": "1", "object": "text_completion", "created": 0, "model": body["model"]}
        for number in range(answer):
            last = "length" if number == answer - 1 else None
            self._event({**head, "choices": [{"index": 0, "text": f" t{number}", "finish_reason": last}]})
        usage = {
            "prompt_tokens": len(prompt),
            "completion_tokens": answer,
            "total_tokens": len(prompt) + answer,
            "prompt_tokens_details": {"cached_tokens": cached},
        }
        self._event({**head, "choices": [], "usage": usage})
        self.wfile.write(b"data: [DONE]\n\n")
        self.close_connection = True
        return None

    def _event(self, event: dict[str, Any]) -> None:
        self.wfile.write(b"data: " + json.dumps(event).encode() + b"\n\n")
        self.wfile.flush()


class Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128


@contextmanager
def serving(blocks: int = 1000, seconds_a_token: float = 0.0, port: int = 0) -> Iterator[tuple[str, Cache]]:
    """A running server's address and its cache."""
    cache = Cache(blocks, seconds_a_token)
    server = Server(("127.0.0.1", port), type("Bound", (Handler,), {"cache": cache}))
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}", cache
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


if __name__ == "__main__":
    _port = int(sys.argv[1])
    with serving(*(float(x) if "." in x else int(x) for x in sys.argv[2:4]), port=_port):  # type: ignore[arg-type]
        threading.Event().wait()
