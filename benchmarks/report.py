"""CPU seconds of a plan's page in each form, a fresh process each time, next to reading the plan alone.

Run: python benchmarks/report.py [RUNS]. The plan is that of the tests, or PLAN=FILE. Wall time is left out: on a shared
machine it speaks of the neighbours. For the same reason each form's bound is a multiple of reading the plan.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

PLAN = Path(__file__).resolve().parents[1] / "tests" / "golden" / "plan.v1.json"
# What each form may take, as multiples of `report --json`, which reads the plan, checks it and writes it again.
FORMS: dict[str, tuple[list[str], float]] = {
    "read and write the plan": (["--json"], 1.0),
    "first screen": ([], 3.0),
    "whole page, terminal": (["--full"], 3.0),
    "Markdown and SVG": (["-o", "review.md"], 7.0),
    "HTML, script kept": (["-o", "review.html"], 7.0),
    "HTML, script made": (["-o", "review.html"], 12.0),
}


def cpu_seconds(plan: Path, arguments: list[str], folder: str, cache: str) -> float:
    """User and system seconds of one fresh process; `cache` is where it keeps the charts' script."""
    process = subprocess.Popen(
        [sys.executable, "-m", "kvplan", "report", str(plan), *arguments],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        cwd=folder,
        env={**os.environ, "XDG_CACHE_HOME": cache},
    )
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise SystemExit(f"kvplan report {' '.join(arguments)} ended with {process.returncode}")
    return usage.ru_utime + usage.ru_stime


def main(runs: int) -> None:
    """Print one row a form; end with status 1 where one takes more than its multiple."""
    plan = Path(os.environ.get("PLAN", PLAN)).resolve()
    slow = []
    with tempfile.TemporaryDirectory() as folder:
        kept = os.path.join(folder, "kept")
        cpu_seconds(plan, ["-o", "review.html"], folder, kept)
        base = 0.0
        for form, (arguments, most) in FORMS.items():
            caches = [os.path.join(folder, f"{form} {n}") if "made" in form else kept for n in range(runs)]
            best = min(cpu_seconds(plan, arguments, folder, cache) for cache in caches)
            base = base or best
            print(f"{form:26} best {best:5.2f} CPU s of {runs}, {best / base:5.1f} times reading (at most {most:g})")
            if best > most * base:
                slow.append(form)
    if slow:
        raise SystemExit(f"too slow: {', '.join(slow)}")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 5)
