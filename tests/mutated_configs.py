"""Configs with something wrong in them: what they are made of, and what reading one must come to."""

from __future__ import annotations

import copy
import gzip
import json
import math
import random
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from kvplan.catalog import models as catalogued
from kvplan.documents import EstimateOptions, ModelRef
from kvplan.errors import KvplanError
from kvplan.estimate import estimate
from kvplan.files import dump, parse, wrap
from kvplan.model import from_config

SHARED = Path(__file__).resolve().parents[2] / "shared"
WORDS = (None, True, False, -1, 0, 1, 2, 7, 300, 10**30, 1.5, math.inf, math.nan, "", "x", "auto")
NESTED = ([], {}, [None], [0, 8], {"a": 1}, [[]], {"model_type": "llama"}, [{"attention": None}], "full_attention")


def originals() -> dict[str, dict[str, Any]]:
    """The catalogue's configs, real and recorded tiny ones where they are at hand; no towers of images."""
    found = {entry.name: dict(entry.config) for entry in catalogued.models().values()}
    for path in SHARED.glob("configs/*.json"):
        config = json.loads(path.read_text())
        found[path.stem] = {key: value for key, value in config.items() if key not in ("vision_config", "auto_map")}
    for path in SHARED.glob("truth/hf.jsonl.gz"):
        with gzip.open(path, "rt") as stream:
            rows = (json.loads(line) for line in stream)
            found |= {f"tiny {row['model_type']}": row["config"] for row in rows if "config" in row}
    return found


def places(config: Any, prefix: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Every place in a config that a mutation can change, lists by their first and last item."""
    found = []
    if isinstance(config, dict):
        for key, value in config.items():
            found += [(*prefix, key), *places(value, (*prefix, key))]
    elif isinstance(config, list) and config:
        for index in {0, len(config) - 1}:
            found += [(*prefix, index), *places(config[index], (*prefix, index))]
    return found


def mutate(config: dict[str, Any], place: tuple[Any, ...], value: Any, *, drop: bool) -> None:
    """Change or take away what stands at one place."""
    spot: Any = config
    for key in place[:-1]:
        spot = spot[key]
    if drop:
        del spot[place[-1]]
    else:
        spot[place[-1]] = copy.deepcopy(value)


def outcome(config: Mapping[str, Any]) -> str:
    """ "read", or the one line that refuses; anything else is a bug and raises.

    A model that is read must survive its own JSON, and both engines that need no options must lay it out.
    """
    try:
        model = from_config(config, ModelRef(id="m", source="path", model_type="", config_sha256=""), "config.json")
        for engine in ("none", "transformers"):
            estimate(model, EstimateOptions(engine=engine, at=(1, 4096), encoder_tokens=3))
    except KvplanError as error:
        line = str(error)
        assert line, "an empty line"
        assert "\n" not in line, line
        return line
    document = wrap(model)
    assert parse(dump(document).encode(), "model") == document
    return "read"


def run(count: int, seed: int) -> dict[str, int]:
    """Read `count` mutations; how many were read and refused. Raises AssertionError with the config that broke."""
    chance, known = random.Random(seed), originals()
    names, counts = sorted(known), {"read": 0, "refused": 0}
    for number in range(count):
        config = copy.deepcopy(known[chance.choice(names)])
        for _ in range(chance.randint(1, 3)):
            spots = places(config)
            if spots:
                value = chance.choice((*WORDS, *NESTED, chance.randint(-5, 300)))
                mutate(config, chance.choice(spots), value, drop=chance.random() < 0.3)
        try:
            counts["read" if outcome(config) == "read" else "refused"] += 1
        except Exception as error:
            raise AssertionError(f"mutation {number} of seed {seed}: {error!r} for {json.dumps(config)}") from error
    return counts
