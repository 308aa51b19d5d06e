"""What users install is what the code imports: nothing missing hides behind a development package."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import tomllib
from importlib.metadata import packages_distributions
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def declared() -> set[str]:
    lines = [*PROJECT["dependencies"], *(line for extra in PROJECT["optional-dependencies"].values() for line in extra)]
    return {re.split(r"[<>=!~\[; ]", line)[0].lower().replace("_", "-") for line in lines}


def imported() -> dict[str, str]:
    """Top-level names that the package imports, each with one file that does."""
    names: dict[str, str] = {}
    for path in (ROOT / "kvplan").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                found = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom) and node.level == 0:
                found = [node.module or ""]
            else:
                continue
            names.update({name.split(".")[0]: str(path.relative_to(ROOT)) for name in found})
    return names


def test_every_import_is_declared() -> None:
    providers = packages_distributions()
    undeclared = {
        name: where
        for name, where in imported().items()
        if name != "kvplan"
        and name not in sys.stdlib_module_names
        and not {dist.lower().replace("_", "-") for dist in providers.get(name, [name])} & declared()
    }
    assert undeclared == {}


def test_the_chosen_packages_stay_declared_and_in_use() -> None:
    chosen = {"typer", "rich", "transformers", "huggingface-hub", "pandas", "torch"}
    assert chosen <= declared()
    assert {name.replace("-", "_") for name in chosen} <= set(imported())


def test_what_a_library_needs_for_our_use_of_it_is_declared() -> None:
    """transformers renders chat templates through Jinja, which it does not require by itself."""
    assert "jinja2" in declared()


def test_torch_is_no_burden_of_a_laptop() -> None:
    assert not [line for line in PROJECT["dependencies"] if line.startswith("torch")]


def test_python_dash_m_is_the_same_command() -> None:
    done = subprocess.run([sys.executable, "-m", "kvplan", "--version"], capture_output=True, text=True, check=True)
    assert re.fullmatch(r"kvplan \d+\.\d+\.\d+\n", done.stdout)


def test_data_files_travel_with_the_package() -> None:
    tracked = subprocess.run(["git", "ls-files", "kvplan"], capture_output=True, text=True, cwd=ROOT, check=False)
    for name in tracked.stdout.splitlines():
        assert Path(name).suffix in {".py", ".toml", ".json", ".typed", ".css", ".js", ".html", ".jinja"}, name
