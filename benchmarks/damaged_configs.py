"""Reads mutations of real configs: each must give a model that survives its own JSON, or be refused in one line.

Run: python benchmarks/damaged_configs.py [COUNT] [SEED]. Ends with a traceback and the config for the first that does
neither.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

from mutated_configs import originals, run

COUNT, SEED = 10_000, 20261129


def main(arguments: list[str]) -> int:
    """So many mutations of one seed."""
    count = int(arguments[0]) if arguments else COUNT
    seed = int(arguments[1]) if len(arguments) > 1 else SEED
    started = time.process_time()
    counts = run(count, seed)
    print(
        f"{count} mutations of {len(originals())} configs, seed {seed}: {counts['read']} read, {counts['refused']}"
        f" refused in one line, none else ({time.process_time() - started:.0f} CPU s)"
    )
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
