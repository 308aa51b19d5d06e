"""kvplan: how much GPU, host and disk memory to give to the KV cache, and why."""

from importlib.metadata import PackageNotFoundError, version

try:
    __version__ = version("kvplan")
except PackageNotFoundError:  # a source tree that was never installed
    __version__ = "0.0.0"
