"""One HTTP answer, or one line that says why there is none."""

from __future__ import annotations

import base64
import http.client
import socket
import ssl
import urllib.error
import urllib.request
from dataclasses import dataclass
from urllib.parse import SplitResult, unquote, urlsplit, urlunsplit

from kvplan.errors import KvplanError, UsageError
from kvplan.files import reason
from kvplan.units import show_bytes

_MOST_BYTES = 256 * 1024**2
_LOCAL = ("localhost", "127.0.0.1", "::1")


@dataclass(frozen=True, slots=True)
class Answer:
    """The body of an answer as text; `cut` where it ended before the server said it would."""

    status: int
    text: str
    cut: bool = False


def address(url: str, path: str) -> str:
    """`url` with its scheme, and with `path` where it has none of its own. Raises UsageError for what is no address."""
    parts = urlsplit(url if "://" in url else f"http://{url}")
    try:
        bad = parts.scheme not in ("http", "https") or not parts.hostname or parts.port == 0
    except ValueError:
        bad = True
    if bad:
        raise UsageError(f"{url}: not the address of a server: give http://HOST:PORT{path}")
    return urlunsplit(parts._replace(path=path if parts.path in ("", "/") else parts.path, fragment=""))


def shown(url: str) -> str:
    """An address without the name and password in it, as messages and documents may carry it."""
    parts = urlsplit(url)
    return urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2]))


def get(
    url: str, *, timeout_s: float, token: str | None = None, accept: str = "*/*", form: str | None = None
) -> Answer:
    """The answer, whatever its status. Raises KvplanError where there is none, naming the address and the reason.

    A name and password in the address are sent as basic authentication, `token` as a bearer token, `form` (encoded) is
    posted.
    """
    parts = urlsplit(url)
    where = shown(url)
    headers = {"Accept": accept, "User-Agent": "kvplan"}
    try:
        request = urllib.request.Request(where, data=None if form is None else form.encode(), headers=headers)
        secret = _secret(parts, token)
        if secret is not None:
            request.add_unredirected_header("Authorization", secret)  # another host has no right to it
        with _opener(parts.hostname or "").open(request, timeout=timeout_s) as answer:
            return _read(answer.status, answer, where)
    except urllib.error.HTTPError as error:
        with error:
            return _read(error.code, error, where)
    except urllib.error.URLError as error:
        raise KvplanError(f"{where}: {_why(error.reason, timeout_s)}") from None
    except (OSError, http.client.HTTPException, ValueError) as error:
        raise KvplanError(f"{where}: {_why(error, timeout_s)}") from None


def _secret(parts: SplitResult, token: str | None) -> str | None:
    if token is not None:
        return f"Bearer {token}"
    if parts.username is None:
        return None
    pair = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
    return "Basic " + base64.b64encode(pair.encode()).decode()


def _opener(host: str) -> urllib.request.OpenerDirector:
    """A proxy is for servers elsewhere."""
    handlers = (urllib.request.ProxyHandler({}),) if host in _LOCAL else ()
    return urllib.request.build_opener(*handlers)


def _read(status: int, answer: http.client.HTTPResponse | urllib.error.HTTPError, where: str) -> Answer:
    try:
        body, cut = answer.read(_MOST_BYTES + 1), False
    except http.client.IncompleteRead as error:
        body, cut = error.partial, True
    short = answer.headers.get("Content-Length", "") if answer.headers else ""
    # A read with a limit does not raise where the connection closed early.
    cut = cut or (short.isdigit() and len(body) < min(int(short), _MOST_BYTES))
    if len(body) > _MOST_BYTES:  # half of an answer would be read as all of it
        raise KvplanError(f"{where}: an answer of more than {show_bytes(_MOST_BYTES)}: no metrics page is so long")
    return Answer(status, body.decode("utf-8", "replace"), cut)


def _why(error: object, timeout_s: float) -> str:
    """What went wrong, in words for the person who gave the address."""
    if isinstance(error, TimeoutError):
        return f"no answer within {timeout_s:g} s"
    if isinstance(error, ConnectionRefusedError):
        return "connection refused: nothing listens there"
    if isinstance(error, socket.gaierror):
        return "no such host"
    if isinstance(error, ssl.SSLError):
        return f"TLS: {error.reason or error}"
    if isinstance(error, OSError):
        return reason(error)
    return f"the answer is not HTTP: {error}" if isinstance(error, http.client.HTTPException) else str(error)
