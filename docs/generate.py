"""Writes what can be derived, so that no page drifts from the code.

docs/cli.md from the commands, the map in AGENTS.md from the modules' first lines, and the output of README's examples
by running them. Run: python docs/generate.py (writes) or with --check (exit 1 where a page is not current).
"""

from __future__ import annotations

import ast
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
BEGIN, END = "<!-- map: begin -->", "<!-- map: end -->"
EXAMPLE = re.compile(r"(<!-- run: (?P<command>[^>]+?) -->\n).*?(<!-- end -->)", re.DOTALL)
WIDTH = "100"


def reference() -> str:
    """The command reference as typer writes it."""
    command = [sys.executable, "-m", "typer", "kvplan.cli", "utils", "docs", "--name", "kvplan"]
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=ROOT)
    return done.stdout.strip() + "\n"


def code_map() -> str:
    """One line a module: its path and the first line of its docstring."""
    lines = []
    for path in sorted((ROOT / "kvplan").rglob("*.py"), key=lambda path: (len(path.parts), str(path))):
        words = ast.get_docstring(ast.parse(path.read_text())) or "runs the command line as python -m kvplan."
        sentence = " ".join(words.split("\n\n")[0].split())
        lines.append(f"- `{path.relative_to(ROOT)}`: {sentence}")
    return "\n".join(lines)


def example(command: str) -> str:
    """What a command of the README prints, as a code block; the date of the run is taken out."""
    words = shlex.split(command)
    environment = dict(os.environ, COLUMNS=WIDTH, NO_COLOR="1", HF_HUB_OFFLINE="1", PYTHONIOENCODING="utf-8")
    done = subprocess.run(
        [sys.executable, "-m", "kvplan", *words[1:]],
        capture_output=True,
        text=True,
        check=True,
        cwd=ROOT,
        env=environment,
    )
    kept = (line.rstrip() for line in done.stdout.splitlines() if not re.match(r"kvplan \d+\.\d+\.\d+, ", line))
    text = re.sub(r"\n{3,}", "\n\n", "\n".join(kept)).strip()
    return f"```text\n$ {command}\n{text}\n```\n"


def pages() -> dict[Path, str]:
    """Every derived page with the text it should have."""
    agents, readme = ROOT / "AGENTS.md", ROOT / "README.md"
    head, _, rest = agents.read_text().partition(BEGIN)
    tail = rest.partition(END)[2]
    return {
        ROOT / "docs/cli.md": reference(),
        agents: f"{head}{BEGIN}\n{code_map()}\n{END}{tail}",
        readme: EXAMPLE.sub(lambda found: found[1] + example(found["command"]) + found[3], readme.read_text()),
    }


def main() -> None:
    """Write the pages, or check them."""
    for path, text in pages().items():
        current = path.read_text() if path.exists() else ""
        if "--check" in sys.argv and current != text:
            sys.exit(f"{path.relative_to(ROOT)} is not current: run `make docs`")
        if current != text:
            path.write_text(text)


if __name__ == "__main__":
    main()
