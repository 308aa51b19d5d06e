"""Schedules held against AIPerf itself: its own loader takes every form, and a run of it can be compared.

Run: python benchmarks/replay_aiperf.py AIPERF [LOG]. AIPERF is the program (`make check-aiperf` installs one in an
environment of its own). A small server of the tests answers; exit status 1 where anything is taken otherwise.
"""

from __future__ import annotations

import json
import random
import subprocess
import sys
import tempfile
from importlib import import_module
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
REQUESTS, BLOCK = 40, 32

# In AIPerf's own Python: what its loader makes of a file, as the number of turns and the ids and payloads it saw.
LOADER = """
import json, sys
from aiperf.dataset.loader.models import MooncakeTrace
from aiperf.dataset.loader.mooncake_trace import MooncakeTraceDatasetLoader
rows = [json.loads(line) for line in open(sys.argv[1])]
assert all(MooncakeTraceDatasetLoader.can_load(row) for row in rows)
traces = [MooncakeTrace.model_validate(row) for row in rows]
print(json.dumps([[t.timestamp, t.session_id, t.delay, t.input_length, t.output_length, t.hash_ids, t.payload]
                  for t in traces]))
"""


def log(path: Path) -> Path:
    """Conversations that grow, with their sessions, in blocks of 32."""
    draw, rows, fresh = random.Random(3), [], 0
    paths: dict[int, list[int]] = {}
    for number in range(REQUESTS):
        session = draw.randrange(8)
        before = paths.get(session, [])
        added = draw.randint(1, 6)
        paths[session] = before + list(range(fresh, fresh + added))
        fresh += added
        length = BLOCK * len(paths[session])
        rows.append(
            {"timestamp": 150 * number, "session_id": f"u{session}", "input_length": length, "output_length": 4}
        )
        rows[-1] |= {"hash_ids": paths[session], "block_size": BLOCK}
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def kvplan(*words: str | Path) -> str:
    """Run the command line. Raises CalledProcessError."""
    line = [sys.executable, "-m", "kvplan", *map(str, words)]
    return subprocess.run(line, check=True, stdout=subprocess.PIPE, text=True).stdout


def loaded(aiperf: Path, schedule: Path) -> bool:
    """Whether AIPerf's loader sees in a file what the file says."""
    python = aiperf.parent / "python"
    done = subprocess.run([python, "-c", LOADER, schedule], check=True, stdout=subprocess.PIPE, text=True)
    names = ("timestamp", "session_id", "delay", "input_length", "output_length", "hash_ids", "payload")
    rows = [json.loads(line) for line in schedule.read_text().splitlines()]
    same = bool(json.loads(done.stdout) == [[row.get(name) for name in names] for row in rows])
    print(f"{schedule.name}: {len(rows)} lines, {'as written' if same else 'TAKEN OTHERWISE'}")
    return same


def main() -> int:
    """Export in each form, load, play, compare."""
    aiperf = Path(sys.argv[1]).absolute()
    sys.path.insert(0, str(ROOT / "tests"))
    serving = import_module("fake_server").serving

    with tempfile.TemporaryDirectory(prefix="kvplan-aiperf-") as name:
        folder = Path(name)
        source = Path(sys.argv[2]) if len(sys.argv) > 2 else log(folder / "log.jsonl")
        forms = {
            "ids.jsonl": (),
            "closed.jsonl": ("--closed-loop",),
            "payload.jsonl": ("--payload", "--model", "m", "--vocab", "1000"),
        }
        for file, words in forms.items():
            kvplan("replay", "export", source, "--limit", str(REQUESTS), "-o", folder / file, *words)
        good = sum(loaded(aiperf, folder / file) for file in forms) == len(forms)
        slow = 1e-4
        with serving(5, slow) as (off, _), serving(5000, slow) as (on, _):
            servers = ("--server-off", off, "--server-on", on, "--aiperf", aiperf, "--order", "AB")
            kvplan("replay", "run", folder / "payload.jsonl", *servers, "-o", folder / "runs", "-q")
        print(kvplan("compare", folder / "runs", "--max-lag", "60s"))
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
