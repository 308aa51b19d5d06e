"""Pages over HTTP, as servers and Prometheus give them when all is well and when it is not, through the command."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import pytest
import samples
from typer.testing import CliRunner

from kvplan.cli import app
from kvplan.errors import KvplanError, UsageError
from kvplan.files import dump
from kvplan.observe import ask, observe, watch
from kvplan.observing import rangequery, scrape

PAGES = Path(__file__).parent / "metrics"
BEFORE, AFTER = ((PAGES / f"vllm_tiers_{when}.txt").read_text() for when in ("before", "after"))

Reply = tuple[int, dict[str, str], bytes]


@contextmanager
def serving(answer: Callable[[str, dict[str, str]], Reply]) -> Iterator[str]:
    """A server on this machine that gives `answer(path, headers)`; its address."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            form = self.rfile.read(int(self.headers["Content-Length"])).decode()
            self.answer(f"{self.path}?{form}")

        def do_GET(self) -> None:
            self.answer(self.path)

        def answer(self, path: str) -> None:
            status, headers, body = answer(path, dict(self.headers))
            self.send_response(status)
            for name, value in headers.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def page(text: str) -> Reply:
    return 200, {"Content-Type": "text/plain; version=0.0.4"}, text.encode()


def pages(*texts: str) -> Callable[[str, dict[str, str]], Reply]:
    """Each page in turn, the last one from then on."""
    left = list(texts)
    return lambda _path, _headers: page(left.pop(0) if len(left) > 1 else left[0])


def run(*arguments: str) -> tuple[int, str]:
    done = CliRunner().invoke(app, ["observe", *arguments])
    if isinstance(done.exception, KvplanError):
        return done.exception.exit_code, str(done.exception)
    assert done.exception is None or isinstance(done.exception, SystemExit), done.exception
    return done.exit_code, done.output


# ------------------------------------------------------------------------------------------------ live servers


def test_one_page_at_the_usual_path_through_the_command() -> None:
    asked: list[str] = []

    def answer(path: str, headers: dict[str, str]) -> Reply:
        asked.append(path)
        return page(AFTER)

    with serving(answer) as url:
        code, out = run("--url", url, "--json")
    data = json.loads(out)["data"]
    assert (code, asked) == (0, ["/metrics"])
    assert (data["since_start"], data["hit_ratio"]) == (True, 0.54)
    assert data["sources"][0]["where"] == f"{url}/metrics"


def test_a_series_of_two_servers_beside_a_plan(tmp_path: Path) -> None:
    (tmp_path / "plan.json").write_text(dump(samples.plan()))
    with serving(pages(BEFORE, AFTER)) as one, serving(pages(BEFORE, AFTER)) as other:
        code, out = run(
            *("--url", one, "--url", other, "--every", "50ms", "--for", "100ms"),
            *("--plan", str(tmp_path / "plan.json"), "--json"),
        )
    data = json.loads(out)["data"]
    assert code == 0
    assert (data["rounds"], data["prompt_tokens"], data["hit_ratio"]) == (3, 2_000_000, 0.6)
    assert data["systems"][0]["engines"] == 4
    assert [round(moment["prompt_tokens"]) for moment in data["moments"]] == [2_000_000, 0]
    assert {check["what"] for check in data["beside_plan"]} >= {
        "hits, all tiers",
        "hits, GPU",
        "host pool of one engine",
    }


def test_a_server_that_stops_answering_is_counted_and_the_rest_is_kept() -> None:
    times = iter(range(100))
    clock = [0.0]

    def sleep(seconds: float) -> None:
        clock[0] += seconds

    def answer(path: str, headers: dict[str, str]) -> Reply:
        return page(BEFORE) if next(times) == 0 else (503, {}, b"loading model")

    with serving(answer) as url:
        taken = scrape.live([f"{url}/metrics"], seconds=30, every_s=10, now=lambda: clock[0], sleep=sleep)
    seen = observe(taken)
    assert (seen.rounds, seen.sources[0].pages, seen.sources[0].missed) == (4, 1, 3)
    assert "status 503: loading model" in (seen.sources[0].reason or "")
    assert seen.span_s == 30


def test_a_body_shorter_than_announced_is_a_cut_page() -> None:
    short = BEFORE[: BEFORE.index("vllm:kv_offload_load_bytes_total")]  # ends with a whole line
    announced = {"Content-Length": str(len(BEFORE.encode()))}
    with serving(lambda _path, _headers: (200, announced, short.encode())) as url:
        assert scrape.scrape(f"{url}/metrics").cut


def test_a_token_and_a_password_are_sent_and_never_shown(tmp_path: Path) -> None:
    seen: list[str] = []

    def answer(path: str, headers: dict[str, str]) -> Reply:
        seen.append(headers.get("Authorization", ""))
        return page(AFTER)

    (tmp_path / "token").write_text("s3cret\n")
    with serving(answer) as url:
        _, out = run("--url", url, "--token-file", str(tmp_path / "token"), "--json")
        _, other = run("--url", url.replace("http://", "http://me:pa%40ss@"), "--json")
    assert seen == ["Bearer s3cret", "Basic bWU6cGFAc3M="]
    assert "s3cret" not in out
    assert "ss@" not in other


def test_a_secret_does_not_follow_a_redirect_to_another_host(tmp_path: Path) -> None:
    told: list[str | None] = []

    def other(path: str, headers: dict[str, str]) -> Reply:
        told.append(headers.get("Authorization"))
        return page(AFTER)

    (tmp_path / "token").write_text("s3cret")
    with serving(other) as target, serving(lambda _p, _h: (302, {"Location": f"{target}/metrics"}, b"")) as url:
        code, _ = run("--url", url, "--token-file", str(tmp_path / "token"), "--json")
    assert (code, told) == (0, [None])


@pytest.mark.parametrize(
    ("reply", "says"),
    [
        ((200, {}, b"<html>login</html>"), "a web page, not metrics"),
        ((200, {}, b""), "an empty page: are metrics switched on"),
        ((200, {}, b'{"models": []}'), "JSON, not metrics"),
        ((200, {}, b"vllm:x{ 1\n"), "line 1: not a metric"),
        ((200, {}, b"go_threads 1\n"), "metrics of no serving system known"),
        ((404, {}, b"Not Found"), "status 404 (no page there: metrics are usually at /metrics): Not Found"),
        ((501, {}, b'{"error":{"message":"start it with --metrics"}}'), "status 501 (metrics are not switched on)"),
        ((401, {}, b""), "status 401 (not allowed: give --token-file"),
    ],
)
def test_what_a_server_gives_instead_of_metrics_is_one_line(reply: Reply, says: str) -> None:
    with serving(lambda _path, _headers: reply) as url:
        code, said = run("--url", url)
    assert (code, said.count("\n")) == (1, 0)
    assert said.startswith(f"{url}/metrics: ")
    assert says in said


def test_no_server_no_host_and_no_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    assert run("--url", f"127.0.0.1:{port}") == (
        1,
        f"http://127.0.0.1:{port}/metrics: connection refused: nothing listens there",
    )
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        monkeypatch.setattr(scrape, "TIMEOUT_S", 0.1)
        code, said = run("--url", f"http://127.0.0.1:{silent.getsockname()[1]}")
    assert code == 1
    assert said.endswith("no answer within 0.1 s")
    code, said = run("--url", "ftp://x")
    assert (code, said) == (2, "ftp://x: not the address of a server: give http://HOST:PORT/metrics")


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ([], "name what to read"),
        (["x.txt", "--url", "http://localhost"], "name what to read"),
        (["x.txt", "--for", "10m"], "--for is for live servers"),
        (["--url", "http://localhost", "--elapsed", "1m"], "--elapsed is for saved pages"),
        (["--url", "http://localhost", "--for", "1s"], "--for must be at least as long as --every"),
        (["--prometheus", "http://localhost"], "--prometheus needs --for"),
        (["--prometheus", "http://localhost", "--for", "1h", "--selector", "vllm:x"], "give labels in braces"),
        (["--prometheus", "http://localhost", "--for", "365d"], "makes too many points"),
    ],
)
def test_a_command_line_without_a_meaning(arguments: list[str], says: str) -> None:
    code, said = run(*arguments)
    assert code == 2
    assert says in said


def test_saved_pages_without_times_give_no_rates_and_say_so(tmp_path: Path) -> None:
    for name, text in (("before", BEFORE), ("after", AFTER)):
        (tmp_path / f"{name}.txt").write_text(text)
        os.utime(tmp_path / f"{name}.txt", (1_000, 1_000))
    both = [str(tmp_path / "before.txt"), str(tmp_path / "after.txt")]
    data = json.loads(run(*both, "--json")[1])["data"]
    assert (data["hit_ratio"], data["span_s"]) == (0.6, None)
    assert "give --elapsed" in data["findings"][-1]["text"]
    os.utime(tmp_path / "after.txt", (1_600, 1_600))
    data = json.loads(run(*both, "--json")[1])["data"]
    assert (data["span_s"], data["transfers"][0]["mean_bytes_per_s"]) == (600.0, 1e8)
    assert "last changed" in data["findings"][-1]["text"]
    data = json.loads(run(*both, "--elapsed", "20m", "--json")[1])["data"]
    assert (data["span_s"], data["findings"][-1]["code"]) == (1200.0, "failed-host")


def test_ctrl_c_keeps_what_was_seen(tmp_path: Path) -> None:
    """A reading of an hour, stopped after a few pages: the document is there and the exit code says how it ended."""
    asked = threading.Semaphore(0)
    turn = pages(BEFORE, AFTER)

    def answer(path: str, headers: dict[str, str]) -> Reply:
        asked.release()
        return turn(path, headers)

    with serving(answer) as url:
        command = ["observe", "--url", url, "--every", "200ms", "--for", "1h", "-o", "seen.json"]
        process = subprocess.Popen(
            [sys.executable, "-m", "kvplan", *command],
            cwd=tmp_path,
            env=dict(os.environ, PYTHONPATH=str(Path(__file__).resolve().parents[1])),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for _ in range(3):
            assert asked.acquire(timeout=60), "the server was not asked"
        time.sleep(0.05)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=60)
    assert process.returncode == 130, err
    data = json.loads((tmp_path / "seen.json").read_text())["data"]
    assert data["hit_ratio"] == 0.6
    assert data["findings"][-1]["code"] == "stopped"
    assert "60.0 %" in out
    assert "stopped by hand" in err


# ------------------------------------------------------------------------------------------------ a Prometheus server


def matrix(*rows: tuple[dict[str, str], list[tuple[float, float]]]) -> Reply:
    result = [{"metric": labels, "values": [[at, str(value)] for at, value in points]} for labels, points in rows]
    return 200, {}, json.dumps({"status": "success", "data": {"resultType": "matrix", "result": result}}).encode()


def series(
    name: str, instance: str, *points: tuple[float, float], **labels: str
) -> tuple[dict[str, str], list[tuple[float, float]]]:
    return {"__name__": name, "job": "vllm", "instance": instance, **labels}, list(points)


def test_a_range_query_gives_what_pages_would() -> None:
    asked: list[dict[str, list[str]]] = []

    def answer(path: str, headers: dict[str, str]) -> Reply:
        asked.append({"path": [urlsplit(path).path], **parse_qs(urlsplit(path).query)})
        return matrix(
            series("vllm:prefix_cache_queries_total", "a:8000", (0, 100), (15, 200), (30, 50)),  # it restarts
            series("vllm:prefix_cache_hits_total", "a:8000", (0, 10), (15, 60), (30, 20)),
            series("vllm:prefix_cache_queries_total", "b:8000", (15, 1000), (30, 1100)),  # it joins
            series("vllm:prefix_cache_hits_total", "b:8000", (15, 1000), (30, 1050)),
            series("vllm:num_requests_running", "a:8000", (0, 1), (15, 2), (30, 3)),
        )

    with serving(answer) as url:
        seen = observe(ask(url, '{job="vllm",}', seconds=3600, every_s=15))
    assert asked[0]["path"] == ["/api/v1/query_range"]
    assert asked[0]["step"] == ["15"]
    assert asked[0]["query"][0].startswith('{job="vllm",__name__=~"vllm[:_](')
    # a: 100 and, anew, 50; b: 100 of what was seen of it
    assert (seen.prompt_tokens, seen.span_s, seen.rounds) == (250, 30, 3)
    assert tuple(round(one.hit_tokens) for one in seen.hits) == (120, 120)
    assert [source.restarts for source in seen.sources] == [1, 0]
    assert 'instance="b:8000"' in seen.sources[1].where
    assert seen.systems[0].engines == 2


@pytest.mark.parametrize(
    ("reply", "says"),
    [
        (
            (400, {}, b'{"status":"error","errorType":"bad_data","error":"parse error: unexpected end"}'),
            "says: bad_data: parse error",
        ),
        (
            (503, {}, b'{"status":"error","errorType":"timeout","error":"query timed out"}'),
            "says: timeout: query timed out",
        ),
        ((200, {}, b"<html>"), "is not that of a Prometheus server (status 200)"),
        ((200, {}, b'{"status":"success","data":{"resultType":"vector","result":[]}}'), "is a vector, not a matrix"),
        (
            (200, {}, b'{"status":"success","data":{"resultType":"matrix","result":[]}}'),
            "no metrics of a serving system match",
        ),
        ((200, {}, b'{"status":"success","data":null}'), "is not a matrix"),
        ((200, {}, b'{"status":"success"'), "is not that of a Prometheus server"),
        ((404, {}, b"404 page not found"), "is not that of a Prometheus server (status 404)"),
        (matrix(series("vllm:num_requests_running", "a", (0, 1))), "one point"),
    ],
)
def test_what_a_prometheus_server_answers_instead(reply: Reply, says: str) -> None:
    with serving(lambda _path, _headers: reply) as url:
        code, said = run("--prometheus", url, "--selector", '{job="vllm"}', "--for", "1h")
    assert (code, said.count("\n")) == (1, 0)
    assert says in said


def test_warnings_of_a_prometheus_server_are_passed_on() -> None:
    status, headers, body = matrix(
        series("vllm:prefix_cache_queries_total", "a", (0, 1), (15, 2)),
        series("vllm:prefix_cache_hits_total", "a", (0, 1), (15, 2)),
    )
    reply = {**json.loads(body), "warnings": ["results truncated"]}
    with serving(lambda _path, _headers: (status, headers, json.dumps(reply).encode())) as url:
        seen = observe(ask(url, "{}", seconds=60, every_s=15))
    assert any("results truncated" in finding.text for finding in seen.findings)


def test_a_selector_takes_the_names_of_all_systems() -> None:
    pattern = re.fullmatch(r'\{job="x",__name__=~"(.*)"\}', rangequery.matcher('{job="x"}'))
    assert pattern is not None
    for name in ("vllm:prefix_cache_hits_total", "vllm_prefix_cache_hits", "kvbm_matched_tokens", "sglang:token_usage"):
        assert re.fullmatch(pattern[1], name), name
    for name in ("vllm:request_queue_time_seconds_bucket", "lmcache_mp_l0_l1_load_throughput_GB_per_second_sum"):
        assert re.fullmatch(pattern[1], name), name
    assert not re.fullmatch(pattern[1], "vllm:inter_token_latency_seconds_bucket")
    with pytest.raises(UsageError):
        rangequery.matcher('{__name__="up"}')


def test_reading_needs_sense() -> None:
    with pytest.raises(UsageError):
        watch(["http://localhost"], seconds=10, every_s=0)


def test_an_answer_longer_than_any_page_is_refused_and_not_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kvplan.observing.fetch._MOST_BYTES", 1000)
    with serving(pages("vllm:num_requests_running 1\n" * 100)) as url, pytest.raises(KvplanError, match="more than"):
        scrape.scrape(url + "/metrics")
