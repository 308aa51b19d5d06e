"""What a replay asks a server besides its load: whether it answers, and its /metrics page."""

from __future__ import annotations

import http.client
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from urllib.parse import urlsplit

from kvplan.errors import KvplanError, UsageError
from kvplan.files import write_atomically

_POLL_S = 0.5
_TIMEOUT_S = 30.0


def address(text: str, flag: str) -> str:
    """A server's address without its path to the API. Raises UsageError for anything else."""
    parts = urlsplit(text if "://" in text else f"http://{text}")
    try:
        port = parts.port
    except ValueError:
        raise UsageError(f"{flag} {text}: not a port number") from None
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise UsageError(f"{flag} {text}: not the address of a server: give http://HOST:PORT")
    host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
    path = parts.path.rstrip("/").removesuffix("/v1")
    return f"{parts.scheme}://{host}{f':{port}' if port else ''}{path}"


def wait_until_ready(url: str, seconds: float, alive: Callable[[], bool] = lambda: True) -> None:
    """Wait until /v1/models answers anything but 'not yet'. Raises KvplanError after `seconds`, or when it died."""
    until = time.monotonic() + seconds
    while True:
        status, _ = _get(url, "/v1/models")
        if status is not None and status < 500:
            return
        if not alive():
            raise KvplanError(f"{url}: the server ended before it answered")
        if time.monotonic() >= until:
            said = "no answer" if status is None else f"status {status}"
            raise KvplanError(f"{url}: not ready after {seconds:g} s ({said}): raise --wait, or look at the server")
        time.sleep(_POLL_S)


def scrape(url: str, path: Path) -> bool:
    """Save the server's /metrics page; False where it has none. Raises KvplanError where the server does not answer."""
    status, body = _get(url, "/metrics")
    if status is None:
        raise KvplanError(f"{url}: no answer when asked for /metrics")
    if status != 200:
        return False
    write_atomically(path, body.decode(errors="replace"))
    return True


def _get(url: str, path: str) -> tuple[int | None, bytes]:
    """Status and body, None where there is no answer."""
    parts = urlsplit(url)
    kind = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
    with closing(kind(parts.hostname or "", parts.port, timeout=_TIMEOUT_S)) as line:
        try:
            line.request("GET", parts.path + path)
            answer = line.getresponse()
            return answer.status, answer.read()
        except (OSError, http.client.HTTPException):
            return None, b""
