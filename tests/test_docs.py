"""Documentation that drifts is worse than none: what can be checked is checked."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]


def commands() -> list[str]:
    from kvplan.cli import app

    return [command.name or command.callback.__name__ for command in app.registered_commands]  # type: ignore[union-attr]


def test_derived_pages_are_current() -> None:
    """The command reference and the map of the code are written by `make docs`."""
    done = subprocess.run(
        [sys.executable, "docs/generate.py", "--check"], capture_output=True, text=True, check=False, cwd=ROOT
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("command", commands())
def test_every_command_is_in_the_readme_and_has_help(command: str) -> None:
    assert f"kvplan {command}" in (ROOT / "README.md").read_text()


@pytest.mark.parametrize("page", ["README.md", "AGENTS.md", *(f"docs/{p.name}" for p in (ROOT / "docs").glob("*.md"))])
def test_every_link_to_a_file_leads_somewhere(page: str) -> None:
    text = (ROOT / page).read_text()
    for target in re.findall(r"\]\(([^)#:]+)\)", text):
        assert (ROOT / page).parent.joinpath(target).exists(), f"{page}: {target}"
