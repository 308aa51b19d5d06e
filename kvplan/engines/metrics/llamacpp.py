"""llama.cpp server's metrics. It counts prompt tokens that it computed, and not those it found cached."""

from __future__ import annotations

from kvplan.engines.metrics.system import Level, System, pick, total

LLAMA_CPP = System(
    name="llama.cpp",
    title="llama.cpp server",
    version="0.6.0-dev",
    prefix="llamacpp:",
    needed=(pick("llamacpp:prompt_tokens_total"), pick("llamacpp:requests_processing")),
    levels=(
        Level(what="requests running", pick=pick("llamacpp:requests_processing"), unit="requests"),
        Level(what="requests waiting", pick=pick("llamacpp:requests_deferred"), unit="requests"),
        Level(what="KV cache in use by requests", pick=pick("llamacpp:kv_cache_usage_ratio"), unit="ratio", over="max"),
    ),
    computed=total("llamacpp:prompt_tokens_total"),
    computed_s=total("llamacpp:prompt_seconds_total"),
    uncounted=("hits of its prompt cache: give --prompt-tokens, what clients sent in that time, to know them",),
    source="llama.cpp server, --metrics",
)
