"""Damaged configs through every engine: an answer that is a document, or an error of one line; never a traceback."""

from __future__ import annotations

import json
import random
from collections import Counter
from pathlib import Path
from typing import Any

from kvplan.documents import EstimateOptions, ModelRef, Parallel
from kvplan.errors import KvplanError
from kvplan.estimate import estimate
from kvplan.files import dump, wrap
from kvplan.model import from_config

SEED, MUTATIONS = 20261129, 400
VALUES = [0, 1, 2, 3, 7, -1, 10**9, 2**40, 1.5, None, "x", [], [1], {}, True, False, 64, 128, 4096]
ENGINES = ("none", "vllm", "sglang", "llama.cpp", "tensorrt-llm")


def mutated(config: dict[str, Any], rng: random.Random) -> dict[str, Any]:
    """The config with one to three keys dropped or given another value, at any depth."""
    changed: dict[str, Any] = json.loads(json.dumps(config))
    for _ in range(rng.randint(1, 3)):
        place = changed
        while True:
            nested = [key for key, value in place.items() if isinstance(value, dict) and value]
            if not nested or rng.random() < 0.4:
                break
            place = place[rng.choice(nested)]
        if not place:
            continue
        key = rng.choice(sorted(place))
        if rng.random() < 0.15:
            del place[key]
        else:
            place[key] = rng.choice(VALUES)
    return changed


def options(engine: str, rng: random.Random) -> EstimateOptions:
    own = engine == "llama.cpp"
    return EstimateOptions(
        engine=engine,
        kv_dtype=rng.choice(["auto", "q8_0"] if own else ["auto", "fp8"]),
        parallel=Parallel(tp=1 if own else rng.choice([1, 2, 8]), pp=rng.choice([1, 2])),
        at=(rng.randint(0, 10**6),),
        kv_memory_bytes=rng.choice([None, 2**33, 1]),
        max_model_len=rng.choice([None, 1, 4096]),
    )


def test_no_damaged_config_is_a_traceback(shared: Path) -> None:
    rng = random.Random(SEED)
    configs = [json.loads(path.read_text()) for path in sorted((shared / "configs").glob("*.json"))]
    outcome: Counter[str] = Counter()
    ref = ModelRef(id="mutated", source="path", model_type="", config_sha256="")
    for _ in range(MUTATIONS):
        config = mutated(rng.choice(configs), rng)
        try:
            model = from_config(config, ref, "config.json")
        except KvplanError as error:
            assert "\n" not in str(error)  # noqa: PT017 - either an answer or its reason in one line
            outcome["no model"] += 1
            continue
        for engine in ENGINES:
            try:
                dump(wrap(estimate(model, options(engine, rng))))
            except KvplanError as error:
                assert "\n" not in str(error)  # noqa: PT017
                outcome["refused"] += 1
            else:
                outcome["answered"] += 1
    assert outcome["answered"] > 2 * MUTATIONS
    assert min(outcome["no model"], outcome["refused"]) > MUTATIONS / 20
