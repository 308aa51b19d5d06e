"""What planning knows of engines: which figures it must not give without a word."""

from __future__ import annotations

import pytest

from kvplan.engines.profiles import whole_prompt_cache


def test_hits_of_blocks_are_an_upper_bound_where_whole_prompts_are_kept() -> None:
    (finding,) = whole_prompt_cache("llama.cpp")
    assert finding.code == "whole-prompt-cache"
    assert finding.severity == "warning"


@pytest.mark.parametrize("engine", ["vllm", "sglang", "tensorrt-llm"])
def test_engines_with_blocks_need_no_such_word(engine: str) -> None:
    assert whole_prompt_cache(engine) == ()
