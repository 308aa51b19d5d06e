"""Slots and whole prompts: the simulation against the server's loop on real tokens, its rules alone, and its books."""

from __future__ import annotations

import json
from collections import deque
from dataclasses import dataclass, field
from itertools import takewhile
from pathlib import Path

import msgspec
import numpy as np
import pytest
import samples
from hypothesis import given, settings
from hypothesis import strategies as st
from records import replace
from test_simulate import BLOCK, ENGINE, OFF, TOKEN, conversations, host, log_of
from test_simulation_faults import failing, gone, left, restarts, shocks, slow
from typer.testing import CliRunner

from kvplan import cli, files, logs, report, simulate
from kvplan.documents import (
    Document,
    EngineModel,
    Fault,
    LinkModel,
    LlamaCppOptions,
    Loop,
    Plan,
    Requests,
    Slots,
    Switches,
)
from kvplan.engines.llamacpp_cache import CELL_BYTES, CacheRules, cached_tokens
from kvplan.errors import KvplanError, UsageError
from kvplan.simulation.live import DONE, GONE
from kvplan.simulation.schedule import schedule_for
from kvplan.simulation.shocks import shocked
from kvplan.simulation.slots import SlotReplica
from kvplan.simulation.world import World

PLENTY = 10**9
ONE_BY_ONE = Loop(kind="concurrency", concurrency=1)


def engine(count: int = 1, context: int = 10**6, unified: bool = False, **more: object) -> EngineModel:
    """An engine with slots of `context` tokens."""
    cells = context if unified else context * count
    slots = Slots(count=count, context_tokens=context, unified=unified)
    return replace(ENGINE, kv_tokens=cells, slots=slots, output_blocks="keep", **more)


def with_tails(log: Requests, short: list[int]) -> Requests:
    """The log with `short` tokens less in each prompt's last block, which is there."""
    blocks = np.diff(log.offsets) * log.block_tokens
    return replace(log, input_tokens=blocks - np.resize(short, len(blocks)))


def books_balance(world: World) -> None:
    """After every event: what came is there or left, no slot has two requests, and none runs without one."""
    for replica in world.replicas:
        assert isinstance(replica, SlotReplica)
        cache = replica.cache
        assert replica.running.keys() == replica.slot.keys()
        assert len(replica.running) == len(replica.prefilling) + replica.decoding
        assert sorted(replica.slot.values()) == [n for n, slot in enumerate(cache.slots) if slot.busy]
        inside = sum(slot.kept_blocks for slot in cache.slots)
        for store, there in ((replica.store, inside), (replica.tiers.stores[0], 0)):
            if store is not None:
                books = store.books()
                assert books.inserted == books.blocks + there + sum(books.removed.values())
                assert 0 <= books.never_hit <= sum(books.removed.values())
                assert 0 <= books.kept_never_hit <= books.blocks
        assert cache.kept_tokens == sum(one.tokens for one in cache.kept)
        assert cache.bytes_kept() <= replica.arm.host_bytes


def hits_of(world: World) -> list[int]:
    return [sum(one.hits) for one in world.requests]


# --------------------------------------------------------------------- one by one: the cache's rules alone


@settings(max_examples=80)
@given(
    st.integers(0, 10**6),
    st.integers(1, 4),
    st.booleans(),
    st.sampled_from([0, 20, 90, 10**5]),
    st.lists(st.integers(0, BLOCK - 1), min_size=1, max_size=7),
)
def test_one_by_one_it_hits_what_the_rules_of_the_cache_say(
    seed: int, count: int, unified: bool, blocks: int, short: list[int]
) -> None:
    log = with_tails(conversations(60, 1.0, seed=seed, output=1 + seed % 40), short)
    model, arm = engine(count, unified=unified), host(blocks)
    world = World(schedule_for(model, log, arm, 1.0, None, ONE_BY_ONE), model, arm, watch=books_balance)
    world.play()
    rules = CacheRules(
        kv_bytes_per_token=TOKEN,
        context_tokens=model.kv_tokens,
        cache_ram_bytes=arm.host_bytes,
        slots=count,
        unified=unified,
    )
    assert hits_of(world) == cached_tokens(log, rules)


# ----------------------------------------------------------- many at once: the server's loop, step by step


@dataclass
class Task:
    number: int
    when: float
    prompt: list[object]
    answer: list[object]
    done: int = 0  # of the prompt
    said: int = 0
    first: float | None = None
    past: int = 0


@dataclass
class Server:
    """llama-server's loop with whole token lists: tasks take slots between steps, every step is played by itself."""

    model: EngineModel
    limit: int
    held: list[list[object]]
    tasks: list[Task | None]
    used: list[tuple[float, int]]
    kept: list[list[object]] = field(default_factory=list)
    now: float = 0.0

    @staticmethod
    def lcp(one: list[object], other: list[object]) -> int:
        return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=False)))

    def copied(self, tokens: list[object], rate: float) -> None:
        self.now += len(tokens) * (TOKEN + CELL_BYTES) / rate

    def save(self, tokens: list[object]) -> None:
        size = TOKEN + CELL_BYTES
        if not tokens or any(self.lcp(one, tokens) == len(tokens) for one in self.kept):
            return
        if size * len(tokens) > self.limit:
            return
        self.kept = [one for one in self.kept if self.lcp(one, tokens) != len(one)]
        while self.kept and size * (sum(map(len, self.kept)) + len(tokens)) > self.limit:
            del self.kept[0]
        self.kept.append(list(tokens))
        assert self.model.host_link is not None
        self.copied(tokens, self.model.host_link.store_bytes_per_s)

    def load(self, place: int, prompt: list[object]) -> list[object] | None:
        held = self.held[place]
        common = self.lcp(held, prompt)
        keep, similar, best = common / len(held) if held else -1.0, common / len(prompt), None
        for one in self.kept:
            common = self.lcp(one, prompt)
            if common / len(one) >= 0.25 and keep < common / len(one) and similar < common / len(prompt):
                keep, similar, best = common / len(one), common / len(prompt), one
        if best is not None:
            self.held[place] = best
            self.kept.remove(best)
        return best

    def launch(self, task: Task) -> bool:
        idle = [place for place in range(len(self.held)) if self.tasks[place] is None]
        if not idle:
            return False
        chosen, best = None, np.float32(0)
        for place in idle:
            similar = np.float32(self.lcp(self.held[place], task.prompt)) / np.float32(len(task.prompt))
            if self.held[place] and similar > best and similar > np.float32(0.1):
                chosen, best = place, similar
        update = chosen is None or best * np.float32(len(task.prompt)) / np.float32(len(self.held[chosen])) < 0.5
        if chosen is None:
            oldest = min(self.used[place] for place in idle)
            chosen = max(place for place in idle if self.used[place] == oldest)
        moved = None
        if update and self.limit:
            self.save(self.held[chosen])
            moved = self.load(chosen, task.prompt)
        task.past = min(self.lcp(self.held[chosen], task.prompt), len(task.prompt) - 1)
        task.done = task.past
        self.tasks[chosen] = task
        if self.limit:
            for place in range(len(self.held)):
                if self.tasks[place] is None:
                    self.save(self.held[place])
        if moved is not None:
            assert self.model.host_link is not None
            self.copied(moved, self.model.host_link.load_bytes_per_s)
        return True

    def step(self) -> None:
        budget = self.model.max_num_batched_tokens
        decoding = [task for task in self.tasks if task and task.said]
        tokens, squares, read = len(decoding), 0, 0
        read = sum(len(task.prompt) + task.said - 1 for task in decoding)
        budget -= tokens
        begun: list[tuple[Task, int]] = []
        for task in self.tasks:
            if task and not task.said and budget > 0:
                chunk = min(budget, len(task.prompt) - task.done)
                begun.append((task, chunk))
                tokens, squares, budget = tokens + chunk, squares + chunk * (2 * task.done + chunk), budget - chunk
        model = self.model
        work = model.a_s_per_token * tokens + model.b_s_per_token_sq * squares
        self.now += model.t0_s + max(work, model.weights_s) + read * model.kv_s_per_token
        for task in decoding:
            task.said += 1
        for task, chunk in begun:
            task.done += chunk
            if task.done == len(task.prompt):
                task.said, task.first = 1, self.now
        for place, task in enumerate(self.tasks):
            if task and task.said >= len(task.answer):
                self.held[place], self.used[place] = task.prompt + task.answer[:-1], (self.now, place)
                self.tasks[place] = None

    def play(self, tasks: list[Task]) -> None:
        coming, queue = deque(tasks), deque[Task]()
        while coming or queue or any(self.tasks):
            if not queue and not any(self.tasks):
                self.now = max(self.now, coming[0].when)
            while coming and coming[0].when <= self.now:
                queue.append(coming.popleft())
            while queue and self.launch(queue[0]):
                queue.popleft()
                while coming and coming[0].when <= self.now:  # came while contexts were copied
                    queue.append(coming.popleft())
            self.step()


@settings(max_examples=60)
@given(
    st.integers(0, 10**6),
    st.integers(1, 4),
    st.sampled_from([0, 20, 90, 10**5]),
    st.sampled_from([1e30, 3e6]),
    st.sampled_from([0.003, 0.03, 0.3]),
    st.sampled_from([48, 256]),
)
def test_many_at_once_it_plays_the_servers_loop(
    seed: int, count: int, blocks: int, rate: float, gap_s: float, budget: int
) -> None:
    log = conversations(40, gap_s, seed=seed, output=1 + seed % 23)
    log = with_tails(log, [seed % BLOCK, 3])
    link = LinkModel(load_bytes_per_s=rate, store_bytes_per_s=2 * rate)
    model, arm = engine(count, max_num_batched_tokens=budget, host_link=link), host(blocks)
    world = World(schedule_for(model, log, arm, 1.0, None), model, arm, watch=books_balance)
    world.play()
    starts, tasks = log.offsets.tolist(), []
    for r in range(40):
        ids = log.blocks[starts[r] : starts[r + 1]].tolist()
        prompt: list[object] = [(block, place) for block in ids for place in range(BLOCK)]
        del prompt[log.input_tokens[r] :]
        answer: list[object] = [("answer", r, place) for place in range(log.output_tokens[r])]
        tasks.append(Task(number=r, when=float(log.time_s[r]), prompt=prompt, answer=answer))
    server = Server(model, arm.host_bytes, [[] for _ in range(count)], [None] * count, [(-1.0, -1)] * count)
    server.play(tasks)
    assert hits_of(world) == [task.past for task in tasks]
    firsts = [one.first_token_at for one in world.requests]
    assert firsts == pytest.approx([task.first for task in tasks], rel=1e-9, abs=1e-9)


# -------------------------------------------------------------------------------------- one thing at a time


def test_a_host_tier_of_nothing_is_off_to_the_byte() -> None:
    log, model = conversations(100, 0.01, output=40), engine(2)
    off, on = simulate.play(log, model, OFF), simulate.play(log, model, host(0))
    assert msgspec.json.encode(replace(on, arm=OFF)) == msgspec.json.encode(off)


def test_copies_hold_up_everybody() -> None:
    """b pushes a out of the one slot, which is copied at 1 MB/s; then a pushes b out and comes back."""
    log = log_of([[0, 1], [2, 3], [0, 1]], [0.0, 10.0, 20.0], [1, 1, 1], tail=0)
    link = LinkModel(load_bytes_per_s=2e6, store_bytes_per_s=1e6)
    model = engine(1, host_link=link)
    world = World(schedule_for(model, log, host(100), 1.0, None), model, host(100))
    world.play()
    size = 2 * BLOCK * (TOKEN + CELL_BYTES)
    free = World(schedule_for(model, log, OFF, 1.0, None), model, OFF)
    free.play()
    waits = [one.first_token_at - one.arrived_at for one in world.requests if one.first_token_at]
    plain = [one.first_token_at - one.arrived_at for one in free.requests if one.first_token_at]
    assert waits[1] - plain[1] == pytest.approx(size / 1e6)
    assert world.requests[2].hits == (0, 2 * BLOCK - 1, 0)
    again = model.t0_s + max(model.weights_s, model.a_s_per_token)
    assert waits[2] == pytest.approx(size / 1e6 + size / 2e6 + again, abs=1e-5)
    result = simulate.play(log, model, host(100))
    assert result.tiers[1].stored_bytes == 2 * size
    assert result.tiers[1].loaded_bytes == size
    assert result.load_wait is not None
    assert result.load_wait.mean == pytest.approx(1.5 * size / 1e6)


def test_an_answer_ends_with_its_context_and_a_prompt_without_room_is_turned_away() -> None:
    log = log_of([[0], [1, 2], [3, 4, 5]], [0.0, 1.0, 2.0], [30, 30, 1], tail=0)
    made = simulate.run(engine(2, context=3 * BLOCK), log)
    (arm,) = made.arms
    assert (arm.completed, arm.cancelled) == (2, {"does not fit": 1})
    assert [finding.code for finding in made.findings].count("answers-cut") == 1
    world = World(schedule_for(made.engine, log, OFF, 1.0, None), made.engine, OFF)
    world.play()
    assert [one.emitted for one in world.requests] == [30, BLOCK, 0]


def test_shared_cells_are_taken_from_idle_slots_first_and_then_refused_to_all() -> None:
    """Cells for five blocks: the third prompt empties the first idle slot, that of the second one, as they fill from
    the last; two prompts of three blocks at once do not fit."""
    one_by_one = log_of([[0, 1], [2, 3], [4, 5], [0, 1]], [0.0, 10.0, 20.0, 30.0], [1] * 4, tail=0)
    model = engine(3, context=5 * BLOCK, unified=True)
    result = simulate.play(one_by_one, model, OFF)
    assert result.completed == 4
    assert result.tiers[0].removed_blocks == {"capacity": 2}
    assert result.tiers[0].hit_tokens == 2 * BLOCK - 1
    assert result.tiers[0].full_at_s == 20.0
    together = log_of([[0, 1, 2], [3, 4, 5]], [0.0, 0.0], [40, 40], tail=0)
    refused = simulate.play(together, replace(model, max_num_batched_tokens=32), OFF)
    assert refused.cancelled == {"context exceeded": 2}
    apart = simulate.play(together, engine(2, context=6 * BLOCK, max_num_batched_tokens=32), OFF)
    assert apart.completed == 2


def test_answers_that_come_back_in_prompts_are_hit_where_asked_for() -> None:
    log = log_of([[0, 1], [0, 1, 2, 3, 4]], [0.0, 10.0], [2 * BLOCK + 1, 1], tail=0)
    log = replace(log, session=np.zeros(2, int))
    kept = simulate.play(log, engine(), OFF)
    reused = simulate.play(log, replace(engine(), output_blocks="reuse"), OFF)
    assert [one.tiers[0].hit_tokens for one in (kept, reused)] == [2 * BLOCK, 4 * BLOCK]


@settings(max_examples=80)
@given(
    st.integers(0, 10**6),
    st.lists(st.one_of(restarts, slow, failing, gone, left, shocks), max_size=10),
    st.sampled_from([0, 40, 10**5]),
    st.booleans(),
    st.sampled_from([0.0, 0.02, 0.4]),
    st.sampled_from([1, 3]),
)
def test_random_faults_lose_no_request(
    seed: int, faults: list[Fault], blocks: int, unified: bool, gap_s: float, replicas: int
) -> None:
    log = conversations(50, gap_s, seed=seed, output=1 + seed % 30)
    model = engine(1 + seed % 4, context=60 * BLOCK, unified=unified, replicas=replicas)
    faults = [
        fault for fault in faults if (fault.kind != "worker-gone" or replicas > 1) and "host" not in fault.survives
    ]
    arm = host(blocks)
    world = World(shocked(schedule_for(model, log, arm, 1.0, None), faults), model, arm, faults, watch=books_balance)
    world.play()
    assert all(one.state in (DONE, GONE) for one in world.requests)
    result = simulate.play(log, model, arm, faults)
    assert result.completed + sum(result.cancelled.values()) == result.submitted
    for replica in world.replicas:
        assert not replica.running
        assert replica.decoding == replica.kv_tokens == 0


# --------------------------------------------------------------------------------------- plans and commands


def llama_plan(told: LlamaCppOptions | None = None, engine_free: bool = False) -> Document[Plan]:
    """The sample's plan, from an estimate for llama.cpp, or from an engine-free one and planned for llama.cpp."""
    document = samples.plan()
    inputs = document.data.inputs
    data = replace(inputs.estimate.data, engine="none" if engine_free else "llama.cpp")
    data = replace(data, switches=Switches(llama_cpp=told or LlamaCppOptions()))
    inputs = replace(inputs, estimate=replace(inputs.estimate, data=data))
    policy = replace(document.data.policy, engine="llama.cpp")
    return replace(document, data=replace(document.data, inputs=inputs, policy=policy))


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    path = tmp_path / "trace.jsonl"
    log = conversations(40, 5.0, output=20)
    rows = [
        {
            "timestamp": int(1000 * log.time_s[r]),
            "input_length": int(log.input_tokens[r]) - 1,
            "output_length": 20,
            "hash_ids": log.blocks[log.offsets[r] : log.offsets[r + 1]].tolist(),
        }
        for r in range(40)
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def run(*words: object) -> tuple[int, str, str]:
    result = CliRunner().invoke(cli.app, [str(word) for word in words])
    error = str(result.exception) if isinstance(result.exception, KvplanError) else result.stderr
    return result.exit_code, result.stdout, error if result.exit_code else ""


def test_a_plan_for_llama_cpp_is_played_with_its_slots(tmp_path: Path, trace: Path) -> None:
    (tmp_path / "plan.json").write_text(files.dump(llama_plan()))
    out = tmp_path / "simulation.json"
    words = ("simulate", tmp_path / "plan.json", "--log", trace, "--concurrency", 1, "--kv-tokens", 4096, "-q")
    code, _, error = run(*words, "--slots", 2, "--arm", "ram:host=1GiB", "-o", out)
    assert (code, error) == (0, "")
    made = files.load(out).data
    assert made.engine.slots == Slots(count=2, context_tokens=2048)
    assert made.engine.max_num_batched_tokens == 2048
    assert "whole-prompt-cache" not in [finding.code for finding in made.findings]
    log = logs.read([trace])
    played = {one.arm.name: one for one in made.arms}
    for name, size in (("off", 0), ("ram", 1 << 30)):
        rules = CacheRules(
            kv_bytes_per_token=made.engine.tier_bytes_per_token, context_tokens=4096, cache_ram_bytes=size, slots=2
        )
        told = sum(cached_tokens(log, rules))
        assert sum(tier.hit_tokens for tier in played[name].tiers) == told > 0
    assert "2, of 2,048 tokens at most" in report.markdown(report.sections(files.load(out)), "figures")[0]
    assert next(row for row in made.evidence if row.what == "slots").provenance == "configured"


@pytest.mark.parametrize(
    ("plan", "slots", "unified", "provenance"),
    [
        (llama_plan(engine_free=True), 4, True, "default"),
        (llama_plan(), 1, False, "configured"),
        (llama_plan(LlamaCppOptions(slots=8)), 8, False, "configured"),
        (llama_plan(LlamaCppOptions(slots=8, unified=True)), 8, True, "configured"),
    ],
)
def test_without_a_word_slots_are_the_estimates_or_the_servers(
    tmp_path: Path, trace: Path, plan: Document[Plan], slots: int, unified: bool, provenance: str
) -> None:
    (tmp_path / "plan.json").write_text(files.dump(plan))
    out = tmp_path / "simulation.json"
    code, _, error = run("simulate", tmp_path / "plan.json", "--log", trace, "-q", "-o", out)
    assert (code, error) == (0, "")
    made = files.load(out).data
    assert made.engine.slots is not None
    assert (made.engine.slots.count, made.engine.slots.unified) == (slots, unified)
    assert next(row for row in made.evidence if row.what == "slots").provenance == provenance
    assert not any("whole blocks" in one or "copies" in one for one in made.not_modelled)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--arm", "x:host=1GiB,disk=1TiB"], "disk has no meaning for llama.cpp"),
        (["--arm", "x:host=1GiB,policy=arc"], "policy has no meaning for llama.cpp"),
        (["--arm", "x:host=1GiB,ttl=5m"], "ttl has no meaning for llama.cpp"),
        (["--fault", "1m:restart-keep-host=5s"], "restart-keep-host"),
        (["--output-blocks", "forget"], "keep or reuse"),
    ],
)
def test_what_llama_cpp_does_not_have_is_refused(tmp_path: Path, trace: Path, words: list[str], said: str) -> None:
    (tmp_path / "plan.json").write_text(files.dump(llama_plan()))
    code, _, error = run("simulate", tmp_path / "plan.json", "--log", trace, "-q", *words)
    assert code
    assert said in error.replace("\n", " ")


def test_engines_with_blocks_have_no_slots() -> None:
    with pytest.raises(UsageError, match=r"--slots and --kv-unified are llama\.cpp's"):
        simulate.run(samples.plan().data, conversations(5, 1.0), options=simulate.Options(slots=2))
