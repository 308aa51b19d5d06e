"""The examples are what their makers write, they read without a network, and they show what they are meant to show."""

from __future__ import annotations

import gzip
import sys
from pathlib import Path

import pytest

from kvplan.documents import Workload
from kvplan.logs import read
from kvplan.workload import profile

EXAMPLES = Path(__file__).resolve().parents[1] / "examples"
sys.path.insert(0, str(EXAMPLES))

import make_chat_log  # noqa: E402
import make_tokenizer  # noqa: E402


@pytest.fixture(scope="module")
def workload() -> Workload:
    requests = read([EXAMPLES / "chat.jsonl.gz"], tokenizer=EXAMPLES / "tokenizer", tenant_by="tenant")
    assert {finding.severity for finding in requests.findings} == {"info"}
    return profile(requests)


def test_the_committed_log_is_what_its_maker_writes(tmp_path: Path) -> None:
    """Compared as text: compressors may differ between builds of Python, the log must not."""
    assert make_chat_log.write(tmp_path / "chat.jsonl.gz") == 1998
    made, committed = (gzip.decompress((folder / "chat.jsonl.gz").read_bytes()) for folder in (tmp_path, EXAMPLES))
    assert made == committed
    assert (EXAMPLES / "chat.jsonl.gz").stat().st_size < 1_500_000


def test_the_committed_tokenizer_is_what_its_maker_writes(tmp_path: Path) -> None:
    make_tokenizer.write(tmp_path)
    committed = sorted((EXAMPLES / "tokenizer").iterdir())
    assert [path.name for path in committed] == sorted(path.name for path in tmp_path.iterdir())
    for path in committed:
        assert path.read_bytes() == (tmp_path / path.name).read_bytes(), path.name
    assert sum(path.stat().st_size for path in committed) < 200_000


def test_the_tokenizer_loses_nothing() -> None:
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(str(EXAMPLES / "tokenizer"))
    for text in ("The pump station reports 1234 millibar.", "Ünïcödé – 数据\n\n\ttabs  and \x00 bytes", "<|im_end|>"):
        assert tokenizer.decode(tokenizer.encode(text, add_special_tokens=False)) == text
    assert len(tokenizer.encode(" the warehouse", add_special_tokens=False)) == 2


def test_the_log_has_what_the_walk_through_is_about(workload: Workload) -> None:
    """Shared prompts, sessions, one-off uploads, two tenants, a few hours, and a curve with a knee."""
    assert workload.requests == 1998
    assert workload.span_s is not None
    assert 2 * 3600 < workload.span_s < 4 * 3600
    assert [tenant.tenant for tenant in workload.tenants] == ["borealis", "acme"]
    assert 0.7 < workload.ceiling_hit_ratio < 0.9
    assert workload.one_off_tokens_ratio > 0.4
    hits = {point.capacity_tokens: point.hit_ratio for point in workload.curve}
    assert hits[8000] < 0.8 * workload.ceiling_hit_ratio < 0.9 * workload.ceiling_hit_ratio < hits[32_000]
    assert workload.service is not None
    assert workload.service.provenance == "measured"
