"""llama.cpp server's metrics. Prompt tokens are those computed; newer builds count those found cached as well."""

from __future__ import annotations

from kvplan.engines.metrics.system import Hits, Level, System, pick, total

_COMPUTED = total("llamacpp:prompt_tokens_total")
_CACHED = total("llamacpp:prompt_tokens_cached_total")

LLAMA_CPP = System(
    name="llama.cpp",
    title="llama.cpp server",
    version="0.6.0-dev",
    prefix="llamacpp:",
    engine=True,
    needed=(pick("llamacpp:prompt_tokens_total"), pick("llamacpp:requests_processing")),
    levels=(
        Level(what="requests running", pick=pick("llamacpp:requests_processing"), unit="requests"),
        Level(what="requests waiting", pick=pick("llamacpp:requests_deferred"), unit="requests"),
        Level(what="KV cache in use by requests", pick=pick("llamacpp:kv_cache_usage_ratio"), unit="ratio", over="max"),
    ),
    hits=(Hits(tier="all", hits=_CACHED, of=(*_COMPUTED, *_CACHED), note="its slots and --cache-ram together"),),
    computed=_COMPUTED,
    computed_s=total("llamacpp:prompt_seconds_total"),
    without_hits="hits of its prompt cache: give --prompt-tokens, what clients sent in that time, to know them",
    source="llama.cpp server, --metrics",
)
