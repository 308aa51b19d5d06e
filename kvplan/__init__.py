"""kvplan: how much GPU, host and disk memory to give to the KV cache, and why."""

__version__ = "0.1.0"
