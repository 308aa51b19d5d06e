"""What is sent: a log, exported by kvplan's own `replay export` stage in the two forms that are needed here.

`exported` writes the schedule (block ids, which kvplan reads again to predict) and the request bodies (which are sent).
Without a trace at hand, `conversations` draws a log from a seed.
"""

from __future__ import annotations

import dataclasses
import json
import random
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kvplan import replay
from kvplan.documents import Requests
from kvplan.logs import read

LOG_BLOCK = 512  # tokens of a block in Mooncake traces, and in the log drawn here


@dataclass(frozen=True, slots=True, kw_only=True)
class Sent:
    """The request bodies in order, the file that holds them, and the same schedule as kvplan reads it."""

    bodies: tuple[Mapping[str, Any], ...]
    path: Path
    ids: Path
    requests: Requests

    @property
    def prompt_tokens(self) -> int:
        """Tokens of all prompts."""
        return int(self.requests.input_tokens.sum())


def exported(
    log: Path,
    folder: Path,
    *,
    limit: int,
    block_tokens: int,
    output_tokens: int,
    longest: int,
    vocabulary: str,
    model: str,
    extra: Mapping[str, Any],
) -> Sent:
    """The first `limit` requests of a log in blocks of `block_tokens`, those over `longest` tokens left out.

    Sessions are in the schedule of ids, for whoever pairs results, and not in the bodies.
    """
    options = replay.Options(limit=limit, block_tokens=block_tokens, output_tokens=output_tokens, max_model_len=longest)
    requests = read([log])
    ids, path = folder / "schedule.jsonl", folder / "payloads.jsonl"
    replay.write(replay.schedule_of(requests, options), ids, "ids")
    # A load generator would play one session after the other where it knows of any; the order is to be the log's.
    made = replay.schedule_of(requests, dataclasses.replace(options, sessions=False))
    request = replay.Request(model=model, symbols=replay.symbols_of(vocabulary, None), extra=extra)
    replay.write(made, path, "payload", request)
    bodies = tuple(json.loads(line)["payload"] for line in path.read_text().splitlines())
    return Sent(bodies=bodies, path=path, ids=ids, requests=read([ids], block_tokens=block_tokens))


def conversations(path: Path, requests: int, seed: int, users: int = 24) -> Path:
    """A Mooncake log of conversations that take turns: a beginning that all share, one to four new blocks a turn."""
    draw = random.Random(seed)
    fresh = iter(range(10_000_000))
    system = [next(fresh) for _ in range(4)]
    history = [list(system) for _ in range(users)]
    lines = []
    for place in range(requests):
        user = int(users * draw.random() ** 1.5)
        history[user] += [next(fresh) for _ in range(draw.randint(1, 4))]
        row = {
            "timestamp": 250 * place,
            "input_length": len(history[user]) * LOG_BLOCK - draw.randrange(LOG_BLOCK),
            "output_length": 100,
            "block_size": LOG_BLOCK,
            "hash_ids": list(history[user]),
            "session_id": f"user {user}",
        }
        lines.append(json.dumps(row) + "\n")
        if len(history[user]) > 40:
            history[user] = list(system)
    path.write_text("".join(lines))
    return path
