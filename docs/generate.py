"""Writes what can be derived: docs/cli.md from the commands, the map in AGENTS.md from the modules' first lines.

Run: python docs/generate.py (writes) or python docs/generate.py --check (exit 1 where a page is not current).
"""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
BEGIN, END = "<!-- map: begin -->", "<!-- map: end -->"


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


def pages() -> dict[Path, str]:
    """Every derived page with the text it should have."""
    agents = ROOT / "AGENTS.md"
    head, _, rest = agents.read_text().partition(BEGIN)
    tail = rest.partition(END)[2]
    return {ROOT / "docs/cli.md": reference(), agents: f"{head}{BEGIN}\n{code_map()}\n{END}{tail}"}


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
