"""What the live benchmarks share, without their servers: schedules, predictions, models, a client, a server's end."""

from __future__ import annotations

import http.server
import json
import os
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvplan.documents import EngineModel, EstimateOptions, Requests
from kvplan.estimate import estimate
from kvplan.logs import read
from kvplan.model import load_model

BENCHMARKS = Path(__file__).resolve().parents[1] / "benchmarks"
if not BENCHMARKS.is_dir():
    pytest.skip("the benchmarks are not here: a source package leaves them out", allow_module_level=True)
sys.path.insert(0, str(BENCHMARKS))

from live import client, metrics, models, predict, router, schedule, server  # noqa: E402

SIZE = 4


# ------------------------------------------------------------------------------------------ schedules


def exported(folder: Path, **more: Any) -> schedule.Sent:
    log = schedule.conversations(folder / "log.jsonl", 40, seed=3, users=5)
    given = {"limit": 40, "block_tokens": 16, "output_tokens": 3, "longest": 600, "vocabulary": "3:90"}
    return schedule.exported(log, folder, model="m", extra={"min_tokens": 3}, **given | more)


def test_what_is_sent_is_what_kvplan_reads(tmp_path: Path) -> None:
    sent = exported(tmp_path)
    requests = sent.requests
    assert [len(body["prompt"]) for body in sent.bodies] == requests.input_tokens.tolist()
    assert sent.prompt_tokens == sum(len(body["prompt"]) for body in sent.bodies)
    assert {(body["max_tokens"], body["min_tokens"], body["model"]) for body in sent.bodies} == {(3, 3, "m")}
    assert all(3 <= token < 90 for body in sent.bodies for token in body["prompt"])
    paths = [requests.blocks[a:b].tolist() for a, b in zip(requests.offsets, requests.offsets[1:], strict=False)]
    for number in range(1, len(paths)):
        shared = sum(a == b for a, b in zip(paths[number - 1], paths[number], strict=False)) * 16
        one, other = sent.bodies[number - 1]["prompt"], sent.bodies[number]["prompt"]
        same = min(shared, len(one), len(other))
        assert one[:same] == other[:same]
        assert one[: same + 16] != other[: same + 16] or same == len(one)


def test_a_seed_gives_the_same_conversations(tmp_path: Path) -> None:
    one = schedule.conversations(tmp_path / "a", 30, seed=1).read_bytes()
    assert one == schedule.conversations(tmp_path / "b", 30, seed=1).read_bytes()
    assert one != schedule.conversations(tmp_path / "c", 30, seed=2).read_bytes()


# ---------------------------------------------------------------------- vLLM's block pool, by its rules


class Pool:
    """Blocks of a vLLM: a queue of free ones, those without a name in front; names of full blocks."""

    def __init__(self, blocks: int) -> None:
        self.free = list(range(1, blocks))  # block 0 is the null block
        self.name: dict[int, Any] = {}
        self.held: dict[Any, int] = {}

    def take(self) -> int:
        block = self.free.pop(0)
        if block in self.name:
            del self.held[self.name.pop(block)]
        return block

    def serve(self, prompt: list[Any], answer: list[Any]) -> int:
        """Tokens hit by a request that is alone."""
        mine: list[int] = []
        for end in range(SIZE, len(prompt), SIZE):
            block = self.held.get(tuple(prompt[:end]))
            if block is None:
                break
            self.free.remove(block)
            mine.append(block)
        hit = len(mine) * SIZE
        computed = prompt + answer[:-1]
        while len(mine) * SIZE < len(computed):
            mine.append(self.take())
        for place, block in enumerate(mine):
            path = tuple(computed[: (place + 1) * SIZE])
            if len(path) == (place + 1) * SIZE and block not in self.name and path not in self.held:
                self.name[block], self.held[path] = path, block
        named = [block for block in reversed(mine) if block in self.name]
        self.free = [block for block in reversed(mine) if block not in self.name] + self.free + named
        return hit


PATHS = st.lists(
    st.tuples(st.lists(st.integers(0, 2), min_size=1, max_size=5), st.integers(1, SIZE - 1), st.integers(1, 9)),
    min_size=1,
    max_size=25,
)


def logged(asked: list[tuple[list[int], int, int]], folder: Path) -> tuple[Requests, list[list[Any]]]:
    names: dict[tuple[int, ...], int] = {}
    lines, prompts = [], []
    for path, short, answer in asked:
        blocks = [names.setdefault(tuple(path[: end + 1]), len(names)) for end in range(len(path))]
        tokens = [(block, place) for block in blocks for place in range(SIZE)]
        prompts.append(tokens[: len(tokens) - short])
        row = {"timestamp": len(lines), "input_length": len(prompts[-1]), "output_length": answer, "hash_ids": blocks}
        lines.append(json.dumps(row) + "\n")
    log = folder / "log.jsonl"
    log.write_text("".join(lines))
    return read([log], block_tokens=SIZE), prompts


@settings(max_examples=60, deadline=None)
@given(PATHS, st.integers(0, 12))
def test_hits_one_by_one_are_those_of_vllms_block_pool(asked: list[tuple[list[int], int, int]], more: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        requests, prompts = logged(asked, Path(folder))
    blocks = 9 + more  # the longest request takes seven
    pool = Pool(blocks)
    hits = [
        pool.serve(prompt, [("answer", r, place) for place in range(asked[r][2])]) for r, prompt in enumerate(prompts)
    ]
    # The prediction sets a block aside for the partly filled one, which not every request has at its end. Prompts of
    # whole blocks are left out: vLLM computes their last block twice, and holds both, until one is evicted.
    least, most = predict.one_by_one(requests, blocks), predict.one_by_one(requests, blocks + 1)
    assert least <= sum(hits) <= most


def test_the_simulator_with_one_client_hits_what_the_kernel_says(tmp_path: Path) -> None:
    sent = exported(tmp_path)
    for blocks in (50, 70, 400):
        engine = EngineModel(
            kv_tokens=(blocks - 1) * 16,
            block_tokens=16,
            tier_bytes_per_token=1,
            t0_s=0.01,
            a_s_per_token=0.001,
            b_s_per_token_sq=0.0,
            weights_s=0.01,
            kv_s_per_token=0.0,
            output_blocks="keep",
            same_step_hits=True,
        )
        alone = predict.side_by_side(sent.requests, engine, 1)
        kernel = predict.one_by_one(sent.requests, blocks)
        assert abs(alone - kernel) <= 0.005 * sent.prompt_tokens


def test_step_times_are_fitted_from_answers_one_by_one() -> None:
    answers = [
        client.Answer(
            sent_s=0.0,
            first_s=0.02 + 0.001 * fresh,
            end_s=0.02 + 0.001 * fresh + 7 * 0.005,
            status=200,
            finished=True,
            prompt_tokens=fresh + 32,
            cached_tokens=32,
            output_tokens=8,
        )
        for fresh in (10, 100, 350)
    ]
    engine = predict.engine(200, 32, answers)
    assert engine.kv_tokens == 199 * 32
    assert (engine.t0_s, engine.a_s_per_token, engine.weights_s) == pytest.approx((0.02, 0.001, 0.005))


# --------------------------------------------------------------------------------------------- models


def test_the_models_keep_as_much_as_kvplan_says(tmp_path: Path) -> None:
    shape = models.Shape(layers=3, width=64, heads=4, kv_heads=2)
    assert shape.kv_bytes_per_token == 2 * 2 * 3 * 2 * 16
    gguf, folder = models.write_gguf(tmp_path / "m.gguf", shape, 1), models.write_folder(tmp_path / "m", shape, 1)
    for path, engine in ((gguf, "llama.cpp"), (folder, "vllm")):
        made = estimate(load_model(str(path)), EstimateOptions(engine=engine, kv_dtype="bf16"))
        assert made.kv.bytes_per_token == shape.kv_bytes_per_token


# --------------------------------------------------------------------------------------------- router


def ask(at: float, model: int, runs: float, patience: float = float("inf")) -> router.Ask:
    return router.Ask(at_s=at, model=model, runs_s=runs, patience_s=patience)


def test_a_story_of_the_router_by_hand() -> None:
    asks = [ask(0, 0, 5), ask(1, 1, 1), ask(2, 1, 1), ask(2.5, 2, 1, 1.0), ask(3, 1, 1)]
    story = router.predicted(asks, 1, load_s=0.5)
    assert story.events == (
        ("queue", "a", "1"),
        ("load", "a", ""),
        ("queue", "b", "1"),
        ("join", "b", "2"),
        ("queue", "c", "2"),
        ("join", "b", "3"),
        ("evict", "a", ""),
        ("load", "b", ""),
    )
    assert story.fates == ("served", "served", "served", "left", "served")
    assert story.resident == {"b"}


def test_a_routers_log_is_read_in_the_same_words() -> None:
    lines = """
0.00.1 I srv          join: request for name=b queued at position 1
0.00.2 I srv          load: spawning server instance with name=b on port 4711
0.00.2 I srv          load: spawning server instance with args:
0.01.0 I srv          join: request for name=a queued at position 2
0.01.1 I srv          join: request for name=a joined the queue, 2 waiting
0.02.0 I srv          tick: evicting idle LRU name=b for a queued request
0.02.1 I srv  ensure_model: proxying request to model a on port 4712
""".splitlines()
    assert router.events(lines) == (
        ("queue", "b", "1"),
        ("load", "b", ""),
        ("queue", "a", "2"),
        ("join", "a", "2"),
        ("evict", "b", ""),
    )


@pytest.mark.parametrize("models_max", [1, 2])
def test_drawn_schedules_have_everything_and_hang_on_no_split_second(models_max: int) -> None:
    for seed in range(5):
        asks = router.draw(seed, models_max, 0.3)
        story = router.predicted(asks, models_max, 0.3)
        assert {"queue", "join", "evict", "load"} == {kind for kind, _, _ in story.events}
        assert "left" in story.fates
        assert "cut" not in story.fates
        assert router.steady(asks, models_max, 0.3, 0.1)
        assert asks == router.draw(seed, models_max, 0.3)


def test_a_schedule_that_hangs_on_a_split_second_is_known() -> None:
    asks = [ask(0, 0, 1.0), ask(0.5, 1, 1.0, 1.01)]  # the client leaves as the other answer ends
    assert not router.steady(asks, 1, 0.5, 0.1)


# ------------------------------------------------------------------------------------ client and server


class Talker(http.server.BaseHTTPRequestHandler):
    """Answers a completion of two tokens, streamed or whole; never where the prompt says so."""

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if body["prompt"] == "never":
            time.sleep(1.0)
            return
        self.send_response(200 if body["prompt"] != "refused" else 503)
        self.end_headers()
        usage = {"prompt_tokens": 9, "completion_tokens": 2, "prompt_tokens_details": {"cached_tokens": 5}}
        last = {"choices": [], "usage": usage, "timings": {"prompt_ms": 20.0, "predicted_ms": 5.0}}
        if body["stream"]:
            for event in ({"choices": [{"text": "a"}]}, {"choices": [{"text": "b"}]}, last):
                self.wfile.write(b"data: " + json.dumps(event).encode() + b"\n\n")
            if body["prompt"] != "cut":
                self.wfile.write(b"data: [DONE]\n\n")
        else:
            self.wfile.write(json.dumps(last | {"choices": [{"text": "ab"}]}).encode())

    def log_message(self, *_: object) -> None:
        """Say nothing."""


class Quiet(http.server.ThreadingHTTPServer):
    """A client that hangs up is no news."""

    def handle_error(self, *_: object) -> None:
        """Say nothing."""


@pytest.fixture
def talker() -> Iterator[str]:
    with Quiet(("127.0.0.1", 0), Talker) as one:
        thread = threading.Thread(target=one.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{one.server_port}"
        one.shutdown()
        thread.join()


def test_an_answer_says_what_was_cached_and_whether_it_is_whole(talker: str) -> None:
    for stream in (True, False):
        answer = client.complete(talker, {"prompt": "x"}, stream=stream)
        assert (answer.finished, answer.prompt_tokens, answer.cached_tokens, answer.output_tokens) == (True, 9, 5, 2)
        assert answer.served_s == 0.025
        assert answer.ttft_s is not None
    assert not client.complete(talker, {"prompt": "cut"}).finished
    refused = client.complete(talker, {"prompt": "refused"})
    assert (refused.status, refused.finished) == (503, False)


def test_a_client_that_leaves(talker: str) -> None:
    answer = client.complete(talker, {"prompt": "never"}, leave_after_s=0.1)
    assert not answer.finished
    with pytest.raises(OSError, match="timed out"):
        client.complete(talker, {"prompt": "never"}, timeout_s=0.1)


def test_a_replay_keeps_its_order_and_hands_failures_on(talker: str) -> None:
    answers = client.replay(talker, [{"prompt": "x"}] * 9, 3)
    assert len(answers) == 9
    assert all(answer.finished for answer in answers)
    with pytest.raises(OSError, match="refused"):
        client.replay(f"http://127.0.0.1:{server.free_port()}", [{"prompt": "x"}], 2)


PROGRAM = """
import http.server, subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
print("child", child.pid, flush=True)
class Health(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200); self.end_headers(); self.wfile.write(b"ok")
    def log_message(self, *a): pass
http.server.HTTPServer(("127.0.0.1", int(sys.argv[1])), Health).serve_forever()
"""


def alive(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    return "Z" not in Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="looks at processes in /proc")
def test_a_server_is_stopped_with_its_children_whatever_happens(tmp_path: Path) -> None:
    port = server.free_port()
    command = [sys.executable, "-c", PROGRAM, str(port)]
    children = []

    def interrupted() -> None:
        with server.running(command, port, tmp_path / "log") as one:
            assert one.get("/health") == "ok"
            children.append(int(one.lines()[0].split()[1]))
            assert alive(children[0])
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    child = children[0]
    for _ in range(50):
        if not alive(child):
            break
        time.sleep(0.1)
    assert not alive(child)


def test_a_server_that_does_not_come_up_says_why(tmp_path: Path) -> None:
    command = [sys.executable, "-c", "raise SystemExit('no such model')"]
    with (
        pytest.raises(RuntimeError, match="no such model"),
        server.running(command, server.free_port(), tmp_path / "log"),
    ):
        pass


def test_counters_are_summed_over_labels() -> None:
    page = '# HELP x y\nhits_total{engine="0"} 3\nhits_total{engine="1"} 4.5\nplain 2e3\n'
    totals = metrics.totals(page)
    assert totals == {"hits_total": 7.5, "plain": 2000.0}
    assert metrics.moved({"plain": 500.0}, totals, "plain") == 1500.0
    with pytest.raises(KeyError):
        metrics.moved({}, totals, "missing")


def test_answers_have_blocks_of_their_own() -> None:
    def array(*values: int) -> np.ndarray:
        return np.array(values, np.int64)

    requests = Requests(
        block_tokens=SIZE,
        time_s=np.zeros(2),
        input_tokens=array(6, 8),
        output_tokens=array(3, 5),
        duration_s=np.full(2, np.nan),
        offsets=array(0, 2, 4),
        paths=array(0, 1, 0, 2),
        tenant=array(-1, -1),
        session=array(-1, -1),
        tenants=(),
        sources=(),
    )
    made = predict.with_answers(requests)
    # 6 + 2 computed tokens are two blocks, the second one's end an answer's; 8 + 4 are three.
    assert made.offsets.tolist() == [0, 2, 5]
    assert made.blocks.tolist() == [0, 3, 0, 2, 4]
