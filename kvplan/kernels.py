"""Compiling numeric loops: once, kept between runs, and said beforehand, as the first time takes seconds."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from numba import njit

from kvplan.progress import Progress

F = TypeVar("F", bound=Callable[..., Any])


def compiled(function: F) -> F:
    """Compile `function` on first use and keep the machine code between runs, where any folder can be written."""
    try:
        return njit(cache=True, nogil=True, no_cfunc_wrapper=True)(function)  # type: ignore[no-any-return]
    except RuntimeError:  # numba found no folder to cache in: the package's and the user's are read-only
        return njit(nogil=True, no_cfunc_wrapper=True)(function)  # type: ignore[no-any-return]


def part(function: F) -> F:
    """A function that only compiled loops call: no way into it from Python, which would take as long to compile."""
    return njit(nogil=True, no_cpython_wrapper=True, no_cfunc_wrapper=True)(function)  # type: ignore[no-any-return]


def must_compile(kernel: Any) -> bool:
    """Whether calling `kernel` will compile it: no machine code for this source is in memory or on disk."""
    if kernel.signatures:
        return False
    folder = kernel.stats.cache_path
    if not folder or not os.path.isdir(folder):
        return True
    source = os.stat(kernel.py_func.__code__.co_filename).st_mtime
    name = f"*{kernel.py_func.__name__}-*.nbi"
    return not any(index.stat().st_mtime >= source for index in Path(folder).glob(name))


def announce(progress: Progress, *kernels: Any) -> None:
    """Say that the first run compiles, if it will."""
    if any(must_compile(kernel) for kernel in kernels):
        progress("compiling for this machine (once, a few seconds; later runs load it)")
