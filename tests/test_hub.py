"""The Hub code against a small server that speaks its resolve endpoint, and against the cache with no server at all."""

from __future__ import annotations

import hashlib
import json
import os
import struct
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import unquote

import pytest

from kvplan.models import hub as hub_module

COMMIT = "0123456789abcdef0123456789abcdef01234567"
CONFIG = {
    "model_type": "llama",
    "num_hidden_layers": 2,
    "hidden_size": 64,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "torch_dtype": "bfloat16",
}
HEADER = json.dumps({"w": {"dtype": "BF16", "shape": [8, 8], "data_offsets": [0, 128]}}).encode()
INDEX = json.dumps({"metadata": {"total_size": 123456}, "weight_map": {"w": "model-00001-of-00001.safetensors"}})


@dataclass
class Hub:
    """What the server holds, and what it was asked."""

    url: str
    files: dict[str, bytes] = field(default_factory=dict)
    asked: list[str] = field(default_factory=list)


def answer(hub: Hub, method: str, path: str) -> tuple[int, dict[str, str], bytes]:
    """Status, headers and body of one request for /organisation/name/resolve/revision/file."""
    owner, name, _, revision, file = path.lstrip("/").split("/", 4)
    hub.asked.append(f"{method} {name} {file}")
    if name == "gated":
        return 401, {"X-Error-Code": "GatedRepo", "X-Error-Message": "Access is restricted"}, b""
    if name == "refused":
        return 403, {"X-Error-Code": "GatedRepo", "X-Error-Message": "You are not in the list"}, b""
    if name == "missing":
        return 404, {"X-Error-Code": "RepoNotFound"}, b""
    if name == "broken":
        return 500, {}, b""
    if revision not in ("main", COMMIT):
        return 404, {"X-Error-Code": "RevisionNotFound"}, b""
    body = hub.files.get(f"{owner}/{name}/{file}")
    if body is None:
        return 404, {"X-Error-Code": "EntryNotFound", "X-Repo-Commit": COMMIT}, b""
    return 200, {"X-Repo-Commit": COMMIT, "ETag": f'"{hashlib.sha1(body).hexdigest()}"'}, body


@pytest.fixture
def hub() -> Iterator[Hub]:
    class Handler(BaseHTTPRequestHandler):
        def log_message(self, format: str, *args: object) -> None:
            """Stay silent."""

        def do_HEAD(self) -> None:
            self.reply("HEAD")

        def do_GET(self) -> None:
            self.reply("GET")

        def reply(self, method: str) -> None:
            status, headers, body = answer(found, method, unquote(self.path.partition("?")[0]))
            first, _, last = (self.headers.get("Range") or "").removeprefix("bytes=").partition("-")
            whole = len(body)
            if status == 200 and last and method == "GET":
                status, body = 206, body[int(first) : int(last) + 1]
                headers = {**headers, "Content-Range": f"bytes {first}-{int(first) + len(body) - 1}/{whole}"}
            self.send_response(status)
            for key, value in {**headers, "Content-Length": str(len(body))}.items():
                self.send_header(key, value)
            self.end_headers()
            if method == "GET":
                self.wfile.write(body)

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    found = Hub(url=f"http://127.0.0.1:{server.server_port}")
    found.files["org/small/config.json"] = json.dumps(CONFIG).encode()
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield found
    server.shutdown()
    server.server_close()
    thread.join()


def load(spec: str, home: Path, hub: Hub | None, *, revision: str = "", offline: bool = False) -> tuple[int, str, str]:
    """`load_model` in a fresh interpreter, since huggingface_hub reads its environment once: exit code, out, err."""
    script = (
        "import sys, json, time\n"
        "time.sleep = lambda seconds: None\n"  # huggingface_hub waits between its retries
        "from kvplan.errors import KvplanError\n"
        "from kvplan.model import load_model\n"
        "try:\n"
        "    model = load_model(sys.argv[1], sys.argv[2] or None)\n"
        "except KvplanError as error:\n"
        "    sys.exit(f'{error}')\n"
        "ref, weights = model.ref, model.weights\n"
        "print(json.dumps([ref.id, ref.source, ref.revision, weights and weights.bytes, model.kv_dtype]))\n"
    )
    environment = {key: value for key, value in os.environ.items() if not key.startswith(("HF_", "HUGGING"))}
    environment |= {"HF_HOME": str(home), "HF_HUB_DISABLE_TELEMETRY": "1", "HF_HUB_DISABLE_XET": "1"}
    environment |= {"HF_ENDPOINT": hub.url if hub else "http://127.0.0.1:9", "HF_HUB_OFFLINE": "1" if offline else "0"}
    done = subprocess.run(
        [sys.executable, "-c", script, spec, revision], env=environment, capture_output=True, text=True, timeout=120
    )
    return done.returncode, done.stdout, done.stderr


class Session:
    """Answers as told, one after another; an exception is raised."""

    def __init__(self, *answers: str | None) -> None:
        self.answers = list(answers)

    def head(self, url: str, **options: object) -> None:
        name = self.answers.pop(0)
        if name:
            raise type(name, (Exception,), {})


@pytest.mark.parametrize(
    ("answers", "reached"),
    [
        ((None,), True),
        (("ReadTimeout",), True),  # slow, and there
        (("RemoteProtocolError",), True),
        (("ConnectError", None), True),
        (("ConnectError", "ReadTimeout"), True),
        (("ConnectError", "ConnectError"), False),
        (("ConnectError", "ConnectTimeout"), False),
    ],
)
def test_only_connections_that_cannot_be_made_say_that_there_is_no_hub(
    answers: tuple[str | None, ...], reached: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    session, waited = Session(*answers), list[float]()
    monkeypatch.setattr("huggingface_hub.get_session", lambda: session)
    monkeypatch.setattr(hub_module.time, "sleep", waited.append)
    hub_module._reachable.cache_clear()
    assert hub_module._reachable() is reached
    assert session.answers == []
    assert sum(waited) <= 1.0
    hub_module._reachable.cache_clear()


def test_without_a_network_nothing_waits_for_long(tmp_path: Path) -> None:
    """Every wait between attempts counts, those of huggingface_hub too."""
    script = (
        "import time; waits = []; time.sleep = waits.append\n"
        "from kvplan.errors import KvplanError; from kvplan.model import load_model\n"
        "try: load_model('org/small')\n"
        "except KvplanError as error: print(sum(waits), error)\n"
    )
    environment = {key: value for key, value in os.environ.items() if not key.startswith(("HF_", "HUGGING"))}
    environment |= {"HF_HOME": str(tmp_path), "HF_ENDPOINT": "http://127.0.0.1:9"}
    done = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True, timeout=120)
    waited, _, said = done.stdout.partition(" ")
    assert float(waited) <= 1.0
    assert "cannot be reached" in said


def test_a_config_with_its_commit_and_the_size_in_the_index(hub: Hub, tmp_path: Path) -> None:
    hub.files["org/small/model.safetensors.index.json"] = INDEX.encode()
    quantization = {"quantization": {"quant_algo": "FP8", "kv_cache_quant_algo": "FP8"}}
    hub.files["org/small/hf_quant_config.json"] = json.dumps(quantization).encode()
    code, out, err = load("org/small", tmp_path, hub)
    assert (code, err) == (0, "")
    assert json.loads(out) == ["org/small", "hub", COMMIT, 123456, "fp8"]
    assert not any("model-00001" in line for line in hub.asked)
    # What was fetched serves without the Hub from then on.
    assert json.loads(load("org/small", tmp_path, None, offline=True)[1]) == json.loads(out)


def test_the_header_of_a_single_file_is_read_by_range(hub: Hub, tmp_path: Path) -> None:
    hub.files["org/small/model.safetensors"] = struct.pack("<Q", len(HEADER)) + HEADER + bytes(128)
    code, out, err = load("org/small", tmp_path, hub, revision="main")
    assert (code, err) == (0, "")
    assert json.loads(out)[3] == 128
    assert not list(tmp_path.rglob("*.safetensors"))


@pytest.mark.parametrize(
    ("spec", "revision", "said"),
    [
        ("org/gated", "", "org/gated: gated on the Hub: accept its terms there and set HF_TOKEN"),
        ("org/refused", "", "org/refused: gated on the Hub: accept its terms there and set HF_TOKEN"),
        ("org/missing", "", "org/missing: no such repository on the Hub, or a private one"),
        ("org/small", "v9", "org/small: the repository exists, but has no revision 'v9'"),
        ("org/empty", "", "org/empty: the repository has no config.json"),
        ("org/broken", "", "org/broken: "),
        ("org/..", "", "org/..: not a Hub id"),
    ],
)
def test_each_failure_is_one_line_that_says_what_to_do(
    hub: Hub, tmp_path: Path, spec: str, revision: str, said: str
) -> None:
    code, out, err = load(spec, tmp_path, hub, revision=revision)
    assert (code, out) == (1, "")
    assert err.startswith(said)
    assert err.count("\n") == 1


def test_offline_and_not_cached(tmp_path: Path) -> None:
    code, _, err = load("org/small", tmp_path, None, offline=True)
    assert code == 1
    assert err == "org/small: not in the local cache, and HF_HUB_OFFLINE is set\n"


def test_no_server_and_not_cached(tmp_path: Path) -> None:
    code, _, err = load("org/small", tmp_path, None)
    assert code == 1
    assert "cannot be reached" in err
    assert "HF_HUB_OFFLINE=1" in err
    assert err.count("\n") == 1


def test_the_catalogue_is_named_where_it_could_help(tmp_path: Path) -> None:
    code, _, err = load("meta-llama/Llama-3.1-8B-Instruct", tmp_path, None, offline=True)
    assert code == 1
    assert err.endswith("; the catalogue has its figures: --model llama-3.1-8b\n")
