"""Cases from public threads about prefix reuse: what was got wrong in the field, and what is right.

One test a case, named by its number; the list of cases itself is checked for one that has none.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from records import replace
from test_reuse import make

from kvplan.documents import Drift, Requests, Workload
from kvplan.errors import KvplanError
from kvplan.logs import read
from kvplan.profiling import whatif
from kvplan.workload import profile

ROOT = Path(__file__).resolve().parents[1]
TOKENIZER = ROOT / "examples/tokenizer"
PUMP = 537  # the token of " pump"
Writer = Callable[[list[dict[str, Any]]], Path]
Message = dict[str, Any]

# A template with a switch before everything else, and one that drops the reasoning of answers before the last question.
SWITCH = "{%- if effort %}{{ 'Effort: ' + effort + '\\n' }}{% endif %}"
THINKING = (
    "{%- set last = namespace(at=0) %}{%- for message in messages %}{%- if message.role == 'user' %}"
    "{%- set last.at = loop.index0 %}{%- endif %}{%- endfor %}{%- for message in messages %}"
    "{{- '<|im_start|>' + message.role + '\\n' }}"
    "{%- if message.reasoning_content and loop.index0 > last.at %}"
    "{{- '<think>' + message.reasoning_content + '</think>' }}{%- endif %}"
    "{{- message.content + '<|im_end|>\\n' }}{%- endfor %}"
    "{%- if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)


def test_every_case_has_a_test(shared: Path) -> None:
    text = (shared / "cases" / "cases.md").read_text()
    cases = re.findall(r"^### C(\d+)", text, flags=re.MULTILINE)
    assert len(cases) == 10
    missing = [number for number in cases if f"test_c{number}" not in {name[:8] for name in globals()}]
    assert not missing


@pytest.fixture
def write(tmp_path: Path) -> Writer:
    def writer(rows: list[dict[str, Any]]) -> Path:
        path = tmp_path / f"log-{len(list(tmp_path.iterdir()))}.jsonl"
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
        return path

    return writer


@pytest.fixture(scope="module")
def templates(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Makes a folder of the example's tokenizer with another template."""

    def folder(template: str) -> Path:
        path: Path = tmp_path_factory.mktemp("tokenizer")
        config = json.loads((TOKENIZER / "tokenizer_config.json").read_text())
        own = template + config["chat_template"] if template == SWITCH else template
        (path / "tokenizer_config.json").write_text(json.dumps({**config, "chat_template": own}))
        (path / "tokenizer.json").write_bytes((TOKENIZER / "tokenizer.json").read_bytes())
        return path

    return folder


def says(role: str, text: str, **more: Any) -> Message:
    return {"role": role, "content": text, **more}


def chat(time: float, messages: list[Message], session: str | None = "s", **more: Any) -> dict[str, Any]:
    return {"timestamp": time, "session_id": session, "messages": messages, **more}


def answered(text: str, ids: list[int] | None = None, **more: Any) -> dict[str, Any]:
    choice: dict[str, Any] = {"message": {"role": "assistant", "content": text, **more}}
    return {"response": {"body": {"choices": [choice if ids is None else {**choice, "token_ids": ids}]}}}


def only(workload: Workload, kind: str) -> Drift:
    assert [row.kind for row in workload.drift] == [kind]
    return workload.drift[0]


def encoded(text: str, folder: Path = TOKENIZER) -> list[int]:
    from transformers import PreTrainedTokenizerFast

    ids: list[int] = PreTrainedTokenizerFast.from_pretrained(str(folder)).encode(text, add_special_tokens=False)
    return ids


# ------------------------------------------------------------------------------------------------ C01 to C05


def clocked(when: str, turns: int, at_the_end: bool = False) -> list[Message]:
    """28,160 bytes to the clock, where it leads, and a history of 22,000 bytes that grows by 7,200 a turn."""
    before = '[]\n{"role":"system","content":"'
    rules = "r" * (28_159 - len(before)) + " "
    history = [says("user" if turn % 2 == 0 else "assistant", f"{turn}".ljust(7_165, "h")) for turn in range(turns)]
    opening = says("user", "o".ljust(21_950, "h"))
    if at_the_end:
        return [says("system", rules), opening, *history, says("user", when)]
    return [says("system", f"{rules}{when}"), opening, *history]


def test_c01_a_clock_in_the_system_prompt(write: Writer) -> None:
    """Six requests: 28,160 tokens are shared, then a time, then a history that grows from 22 K to 58 K tokens."""
    rows = [chat(turn, clocked(f"2026-03-0{turn + 1}T08:1{turn}:22Z", turn)) for turn in range(6)]
    requests = read([write(rows)], bytes_per_token=1)
    workload = profile(requests)
    assert round(requests.input_tokens[-1] - 28_160, -3) == 58_000
    assert workload.cold is not None
    assert workload.cold.hit_tokens == 5 * 28_160
    assert 28_160 / requests.input_tokens[-1] == pytest.approx(0.327, abs=0.001)
    row = only(workload, "clock")
    assert (row.position_tokens, row.requests, row.variants) == (28_160, 5, (1,) * 6)
    assert "a date or time stands in the system prompt: move it behind all that is shared" in row.fix
    full = requests.input_tokens // 16 * 16
    assert row.lost_tokens == (full[:-1] - 28_160).sum()
    assert row.gain_ratio == row.lost_tokens / requests.input_tokens.sum()
    rows = [chat(turn, clocked(f"2026-03-0{turn + 1}T08:1{turn}:22Z", turn, at_the_end=True)) for turn in range(6)]
    moved = profile(read([write(rows)], bytes_per_token=1))
    assert moved.drift == ()
    assert moved.ceiling_hit_ratio is not None
    assert workload.ceiling_hit_ratio is not None
    assert moved.ceiling_hit_ratio == pytest.approx(workload.ceiling_hit_ratio + row.gain_ratio, abs=0.001)


def test_c01_a_date_alone_is_one_miss_a_day(write: Writer) -> None:
    rows = [
        chat(
            86_400 * day + i,
            [says("system", f"{'r' * 500} It is 2026-03-0{day + 1}. {'t' * 500}"), says("user", f"q{i}")],
            f"{day} {i}",
        )
        for day in range(3)
        for i in range(4)
    ]
    row = only(profile(read([write(rows)], bytes_per_token=1)), "clock")
    assert (row.requests, row.variants) == (2, (4, 4, 4))
    assert 2 * 480 <= row.lost_tokens <= 2 * 560


@pytest.mark.parametrize(("block", "reused", "lost"), [(1, 1000, 2018), (16, 992, 2016)])
def test_c02_reasoning_that_the_next_turn_leaves_out(
    write: Writer, templates: Callable[[str], Path], block: int, reused: int, lost: int
) -> None:
    """1,000 tokens of prompt, 48 of thought, 1,970 of answer: without it all 2,018 decoded are lost."""
    folder = templates(THINKING)
    frame = len(encoded("<|im_start|>user\n<|im_end|>\n<|im_start|>assistant\n"))
    question, answer = says("user", " pump" * (1000 - frame)), " pump" * 1970
    thought = [
        *encoded("<think>"),
        *[PUMP] * (48 - len(encoded("<think>")) - len(encoded("</think>"))),
        *encoded("</think>"),
    ]
    ids = thought + [PUMP] * 1970
    assert len(ids) == 2018
    told = answered(answer, ids, reasoning_content=" pump" * 20)
    again = [question, says("assistant", answer), says("user", " Go on.")]
    rows = [chat(0, [question], **told), chat(1, again)]
    requests = read([write(rows)], tokenizer=folder, block_tokens=block)
    assert requests.input_tokens[0] == 1000
    stripped = profile(requests)
    row = only(stripped, "stripped reasoning")
    assert (row.position_tokens, row.requests, row.lost_tokens) == (reused, 1, lost)
    assert stripped.decoded_hit_ratio == reused / requests.input_tokens.sum()
    # the same text as decoded, thought and all, when it is sent back: nothing is lost
    whole = f"<think>{' pump' * thought.count(PUMP)}</think>{answer}"
    kept = [question, says("assistant", whole), says("user", " Go on.")]
    requests = read(
        [write([chat(0, [question], **answered(whole, ids)), chat(1, kept)])], tokenizer=folder, block_tokens=block
    )
    workload = profile(requests)
    assert workload.drift == ()
    assert workload.decoded_hit_ratio == 3018 // block * block / requests.input_tokens.sum()


def test_c02_reasoning_that_the_template_leaves_out(write: Writer, templates: Callable[[str], Path]) -> None:
    """The history is sent back with its reasoning, and the template renders it only after the last question."""
    folder = templates(THINKING)
    question = says("user", " pump" * 400)
    answer = says("assistant", " pump" * 200, reasoning_content=" pump" * 48)
    told = answered(answer["content"], reasoning_content=answer["reasoning_content"])
    rows = [chat(0, [question], **told), chat(1, [question, answer, says("user", "Go on.")])]
    requests = read([write(rows)], tokenizer=folder)
    row = only(profile(requests), "stripped reasoning")
    assert row.position_tokens == requests.input_tokens[0] // 16 * 16
    assert 240 <= row.lost_tokens <= 288


def test_c03_a_switch_near_the_first_token(write: Writer, templates: Callable[[str], Path]) -> None:
    """An effort line before everything: three families of prompts, and each change computes all anew."""
    folder = templates(SWITCH)
    history = [says("system", " pump" * 900), says("user", "Hello.")]
    efforts = ["low", "low", "high", "high", "high", "low"]
    rows = []
    for turn, effort in enumerate(efforts):
        rows.append(chat(turn, list(history), chat_template_kwargs={"effort": effort}))
        history += [says("assistant", " pump" * 100), says("user", f"And {turn}?")]
    requests = read([write(rows)], tokenizer=folder)
    row = only(profile(requests), "template switch")
    assert (row.position_tokens, row.requests, row.variants) == (0, 1, (3, 3))
    assert row.lost_tokens == requests.input_tokens[1] // 16 * 16
    head = len(encoded("Effort: high\n<|im_start|>system\n" + " pump" * 900 + "<|im_end|>\n<|im_start|>user\n"))
    rows = [
        chat(turn, rows[0]["messages"], f"{turn}", chat_template_kwargs={"effort": effort})
        for turn, effort in enumerate(efforts)
    ]
    row = only(profile(read([write(rows)], tokenizer=folder)), "template switch")
    assert (row.requests, row.variants, row.lost_tokens) == (1, (3, 3), head // 16 * 16)


def tool(name: str, flip: bool) -> dict[str, Any]:
    schema = {"type": "object", "required": ["b", "a"] if flip else ["a", "b"], "description": " pump" * 30}
    function = {"name": name, "parameters": schema}
    return {"type": "function", "function": dict(reversed(function.items())) if flip else function}


def test_c04_tools_in_another_order(write: Writer) -> None:
    names = [f"tool_{i}" for i in range(12)]

    def row(time: int, flip: bool) -> dict[str, Any]:
        tools = [tool(name, flip) for name in (reversed(names) if flip else names)]
        messages = [says("system", " pump" * 100), says("user", f"{time} Where is order 7?")]
        return chat(time, messages, f"{time}", tools=tools)

    rows = [row(time, time % 2 == 1) for time in range(2)]
    requests = read([write(rows)], tokenizer=TOKENIZER)
    actual = profile(requests)
    found = only(actual, "tool order")
    starts = len(encoded("<|im_start|>system\n" + " pump" * 100 + "\n\nTools:\n"))
    assert actual.cold is not None
    assert actual.cold.hit_tokens <= starts  # nothing is shared after the tools start
    assert (found.requests, found.variants, found.position_tokens) == (1, (1, 1), actual.cold.hit_tokens)
    canonical = profile(read([write([row(time, False) for time in range(2)])], tokenizer=TOKENIZER))
    assert canonical.drift == ()
    assert canonical.cold is not None
    assert canonical.cold.hit_tokens == actual.cold.hit_tokens + found.lost_tokens
    more = rows[0]["tools"] + [tool("tool_99", False)]
    changed = profile(
        read([write([rows[0], {**rows[0], "timestamp": 1, "tools": more, "session_id": "0"}])], tokenizer=TOKENIZER)
    )
    assert [one.kind for one in changed.drift] in ([], ["tools changed"])


def test_c05_the_same_text_in_other_tokens(write: Writer) -> None:
    """A full stop and a blank line, decoded as three tokens, encoded again as two: all after it is lost."""
    question, text = says("user", " pump" * 300), f"Yes.\n\n{' pump' * 200}"
    ids = [*encoded("Yes."), *encoded("\n"), *encoded("\n"), *[PUMP] * 200]
    assert len(ids) == len(encoded(text)) + 1
    again = chat(1, [question, says("assistant", text), says("user", "Go on.")])
    requests = read([write([chat(0, [question], **answered(text, ids)), again])], tokenizer=TOKENIZER)
    first = int(requests.input_tokens[0])
    row = only(profile(requests), "new tokens")
    assert row.position_tokens == (first + len(encoded("Yes."))) // 16 * 16
    assert row.lost_tokens == (first + len(ids)) // 16 * 16 - row.position_tokens
    # Decoded as it is encoded, it is all reused; and where only the text is told, nothing is claimed.
    for told in (answered(text, encoded(text)), answered(text)):
        assert profile(read([write([chat(0, [question], **told), again])], tokenizer=TOKENIZER)).drift == ()


def test_c05_prompts_are_encoded_whole(write: Writer) -> None:
    rows = [{"prompt": f"{first}{second}", "timestamp": 0} for first, second in (("the p", "ump"), ("pum", "p"))]
    requests = read([write(rows)], tokenizer=TOKENIZER)
    assert requests.input_tokens.tolist() == [len(encoded("the pump")), len(encoded("pump"))]
    assert len(encoded("pump")) < len(encoded("pum")) + len(encoded("p"))


def test_c05_two_first_tokens_are_refused(write: Writer, tmp_path: Path) -> None:
    config = json.loads((TOKENIZER / "tokenizer_config.json").read_text())
    folder = tmp_path / "doubled"
    folder.mkdir()
    (folder / "tokenizer.json").write_bytes((TOKENIZER / "tokenizer.json").read_bytes())
    (folder / "tokenizer_config.json").write_text(json.dumps({**config, "bos_token": "<|im_start|>"}))
    with pytest.raises(KvplanError, match="starts with two beginning-of-sequence tokens"):
        read([write([{"prompt": "<|im_start|><|im_start|>user", "timestamp": 0}])], tokenizer=folder)


# ------------------------------------------------------------------------------------------------ other classes


def test_c01_versions_and_tenants_of_a_system_prompt(write: Writer) -> None:
    """One text that replaces another is a version; texts side by side are tenants'."""

    def rows(who: Callable[[int], str]) -> list[dict[str, Any]]:
        text = "r" * 800
        return [
            chat(i, [says("system", f"{text} {who(i)} {text}"), says("user", f"{i}".ljust(40, "q"))], f"{i}")
            for i in range(12)
        ]

    def profiled(who: Callable[[int], str]) -> Workload:
        return profile(read([write(rows(who))], bytes_per_token=1))

    version = only(profiled(lambda i: "Be brief." if i < 7 else "Be thorough."), "system-prompt version")
    assert (version.requests, version.variants) == (1, (7, 5))
    tenants = only(profiled(lambda i: ("Acme", "Brown", "Cole")[i % 3]), "tenant text")
    assert (tenants.requests, tenants.variants) == (2, (4, 4, 4))
    assert 2 * 780 < tenants.lost_tokens < 2 * 900
    number = only(profiled(lambda i: f"request {i * 7919:x}-77"), "number or id")
    assert number.requests == 11


def test_c02_history_that_is_cut_or_rewritten(write: Writer) -> None:
    turns = [says("user" if i % 2 == 0 else "assistant", f"{i}".ljust(200, "t")) for i in range(21)]
    head = [says("system", "r" * 400)]
    cut = [chat(i, [*head, *turns[max(0, 2 * i - 6) : 2 * i + 1]]) for i in range(8)]
    row = only(profile(read([write(cut)], bytes_per_token=1)), "cut history")
    assert row.requests == 4
    short = [
        *head,
        says("user", "q" * 300),
        says("tool", "output " * 100),
        says("assistant", "a" * 100),
        says("user", "n" * 900),
    ]
    rows = [chat(0, short[:3]), chat(1, [*short[:2], says("tool", "output left out"), *short[3:]])]
    row = only(profile(read([write(rows)], bytes_per_token=1)), "rewritten history")
    assert row.requests == 1
    models = [chat(i, [*head, *turns[: 2 * i + 1]], model=f"m{i % 2}") for i in range(4)]
    assert only(profile(read([write(models)], bytes_per_token=1)), "another model").position_tokens == 0


# ------------------------------------------------------------------------------------------------ C07 to C12


def repeated(tokens: int, block: int) -> Requests:
    """The same prompt twice, in blocks of which the last may be partial."""
    path = list(range(-(-tokens // block)))
    return replace(make([path, path], [tokens, tokens]), block_tokens=block)


@pytest.mark.parametrize(
    ("tokens", "block", "hit"),
    [
        *((2_015, 3584, 0), (8_015, 3584, 7_168), (32_015, 3584, 28_672), (47_074, 3584, 46_592)),
        *((240, 784, 0), (240, 16, 224), (552, 528, 528), (979, 528, 528), (528, 528, 0)),
    ],
)
def test_c07_whole_blocks_and_never_the_last_token(tokens: int, block: int, hit: int) -> None:
    workload = profile(repeated(tokens, block))
    assert workload.engine_hit_ratio == pytest.approx(hit / (2 * tokens))
    assert hit == (tokens - 1) // block * block
    known = {(552, 528): 0.957, (979, 528): 0.539}
    assert (tokens, block) not in known or hit / tokens == pytest.approx(known[tokens, block], abs=0.0006)


def test_c08_every_hit_rate_names_its_denominator() -> None:
    requests = make([[0, 1, 2, 3], [0, 1, 2, 3], [0], [9], [8, 7]], [16, 14, 4, 4, 8])
    workload = profile(requests, measure_from=0.2)
    for rates, first in ((workload.cold, 0), (workload.warm, 1)):
        assert rates is not None
        assert (rates.measured_from, rates.requests) == (first, 5 - first)
        assert rates.token_hit_ratio == rates.hit_tokens / requests.input_tokens[first:].sum() <= 1
        assert rates.block_hit_ratio == rates.hit_blocks / np.diff(requests.offsets)[first:].sum() <= 1
        assert rates.request_any_hit_ratio == rates.hit_requests / rates.requests == 2 / (5 - first)
    assert workload.cold is not None
    assert len({workload.cold.token_hit_ratio, workload.cold.block_hit_ratio, workload.cold.request_any_hit_ratio}) == 3
    fields = list(msgspec.to_builtins(workload))
    assert fields.index("ceiling_hit_ratio") < fields.index("curve")  # the bound comes first


def mooncake(time: int, tokens: int, ids: list[int], **more: Any) -> dict[str, Any]:
    return {"timestamp": time, "input_length": tokens, "output_length": 1, "hash_ids": ids, **more}


def test_c09_block_ids_that_cannot_be(write: Writer) -> None:
    with pytest.raises(KvplanError, match="20 tokens"):
        read([write([mooncake(0, 20, [1, 2])])], block_tokens=512)
    rows = [mooncake(0, 1024, [0, 1]), mooncake(1, 20_480, list(range(40))), mooncake(2, 20_481, list(range(41)))]
    sound = read([write(rows)])
    assert sound.block_tokens == 512
    assert any("512" in finding.text and finding.code == "block-size" for finding in sound.findings)
    sizes = read([write([mooncake(0, 512, [7]), mooncake(1, 182, [7])])], block_tokens=512)
    assert any(finding.code == "id-sizes" for finding in sizes.findings)
    contents = read([write([mooncake(0, 1024, [1, 2]), mooncake(1, 1024, [3, 2])])], block_tokens=512)
    assert any(finding.code == "ids-rechained" for finding in contents.findings)
    assert contents.blocks.max() == 3
    with pytest.raises(KvplanError, match=r"multiple|finer|split"):
        whatif.coarser(sound, 16)


def test_c09_turns_are_cut_into_blocks_together(write: Writer) -> None:
    """32,000 and then 20,000 tokens are 102 blocks of 512, not 63 and 40."""
    first = mooncake(0, 32_000, list(range(63)), session_id="s")
    del first["output_length"]
    rows = [
        {**first, "output_length": 0},
        {"session_id": "s", "delay": 1, "input_length": 20_000, "output_length": 0, "hash_ids": list(range(100, 140))},
    ]
    requests = read([write(rows)], format="mooncake-delta", block_tokens=512)
    assert np.diff(requests.offsets).tolist() == [63, 102]


def test_c10_what_servers_do_not_tell_is_unknown(write: Writer) -> None:
    def row(time: int, usage: dict[str, Any]) -> dict[str, Any]:
        return {"timestamp": time, "messages": [says("user", "p" * 90)], "usage": {"prompt_tokens": 100, **usage}}

    nothing = read([write([row(0, {"prompt_tokens_details": {"cached_tokens": None}})])], bytes_per_token=1)
    assert not [finding for finding in nothing.findings if finding.code == "cached-tokens"]
    named = [{"prompt_cache_hit_tokens": 64}, {"prompt_tokens_details": {"cached_tokens": 0}}, {}]
    told = read([write([row(i, usage) for i, usage in enumerate(named)])], bytes_per_token=1)
    text = next(finding.text for finding in told.findings if finding.code == "cached-tokens")
    assert text.startswith("2 of 3 requests tell their cached tokens: 32.0 %")
    assert "not zero" in text
    lengths = [{"timestamp": 0, "input_length": 9, "output_length": 1}]
    assert profile(read([write(lengths)])).ceiling_hit_ratio is None


def test_c12_replicas_dilute_reuse_and_affinity_overloads() -> None:
    """One shared prefix: round-robin misses once a server, affinity once, and then one server does all the work."""
    one = make([[0]] * 12, [4] * 12)
    by_routing = {found.routing: found for found in whatif.replicas(one, 4, [1])}
    assert 12 - by_routing["round-robin"].ceiling.hit_requests == 4
    assert 12 - by_routing["affinity"].ceiling.hit_requests == 1
    assert by_routing["round-robin"].load_imbalance == 1
    assert by_routing["affinity"].load_imbalance == 4
    few = {found.routing: found for found in whatif.replicas(make([[0]] * 3, [4] * 3), 4, [1])}
    assert 3 - few["round-robin"].ceiling.hit_requests == 3
    # Of many conversations in any order, the second turn finds its first on one server in four.
    random = np.random.default_rng(3)
    order = random.permutation(np.repeat(np.arange(4_000), 2))
    many = whatif.replicas(make([[int(i)] for i in order], [4] * 8_000), 4, [1])
    dealt = next(found for found in many if found.routing == "round-robin")
    assert dealt.ceiling.hit_requests / 4_000 == pytest.approx(1 / 4, abs=0.03)
