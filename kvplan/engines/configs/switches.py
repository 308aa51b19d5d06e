"""What an estimate was told of its engine beside sizes, as each engine's own flags; what has no flag is said."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping

from kvplan.documents import Finding, LlamaCppOptions, Switches
from kvplan.engines.configs.common import Given, finding

Words = Mapping[str, tuple[str, ...]]  # an engine's words for each switch, by its name in `_TOLD`

_TOLD: Mapping[str, Callable[[Switches], str | None]] = {  # as `kvplan estimate` was told; None where it was not
    "block": lambda one: f"--block-tokens {one.block_tokens}" if one.block_tokens else None,
    "batch": lambda one: (
        f"--max-num-batched-tokens {one.max_num_batched_tokens}" if one.max_num_batched_tokens else None
    ),
    "hybrid": lambda one: None if one.hybrid_manager else "--no-hybrid-kv-cache-manager",
    "async": lambda one: None if one.async_scheduling else "--no-async-scheduling",
    "prefix": lambda one: None if one.prefix_caching else "--no-prefix-caching",
    "draft": lambda one: f"--draft {one.draft}" if one.draft not in (None, "none") else None,
    "unified": lambda one: "--kv-unified" if one.llama_cpp.unified else None,
    "swa": lambda one: "--swa-full" if one.llama_cpp.swa_full else None,
    "ubatch": lambda one: (
        f"--ubatch {one.llama_cpp.ubatch}" if one.llama_cpp.ubatch != LlamaCppOptions().ubatch else None
    ),
    "flash": lambda one: None if one.llama_cpp.flash_attention else "--no-flash-attn",
}


def told(switches: Switches) -> dict[str, str]:
    """The switches that are not as the engine has them by itself, as options of `kvplan estimate`."""
    found = ((name, text(switches)) for name, text in _TOLD.items())
    return {name: text for name, text in found if text}


def vllm(given: Given) -> Words:
    """vLLM 0.32. Layers of multi-token prediction guess one token each; of a draft model the number is not known."""
    told = given.switches
    found: dict[str, tuple[str, ...]] = {
        "block": ("--block-size", str(told.block_tokens)),
        "batch": ("--max-num-batched-tokens", str(told.max_num_batched_tokens)),
        "hybrid": ("--disable-hybrid-kv-cache-manager",),
        "async": ("--no-async-scheduling",),
        "prefix": ("--no-enable-prefix-caching",),
    }
    method, _, layers = (told.draft or "").partition(":")
    if method == "mtp" and layers:
        config = {"method": "mtp", "num_speculative_tokens": int(layers)}
        found["draft"] = ("--speculative-config", json.dumps(config))
    return found


def sglang(given: Given) -> Words:
    """SGLang 0.5.23, whose page size is written with the rest; it refuses a host tier without its radix tree."""
    found: dict[str, tuple[str, ...]] = {
        "block": (),
        "batch": ("--chunked-prefill-size", str(given.switches.max_num_batched_tokens)),
        "hybrid": ("--disable-hybrid-swa-memory",),
        "async": ("--disable-overlap-schedule",),
    }
    return found if given.host_bytes else {**found, "prefix": ("--disable-radix-cache",)}


def tensorrt_llm(given: Given) -> Words:
    """Lines of TensorRT-LLM's options; block size and reuse are keys of kv_cache_config, written with the rest."""
    return {
        "block": (),
        "prefix": (),
        "batch": (f"max_num_tokens: {given.switches.max_num_batched_tokens}",),
        "async": ("disable_overlap_scheduler: true",),
    }


def llama_cpp(given: Given) -> Words:
    """llama.cpp's server."""
    return {
        "unified": ("--kv-unified",),
        "swa": ("--swa-full",),
        "ubatch": ("--ubatch-size", str(given.switches.llama_cpp.ubatch)),
        "flash": ("--flash-attn", "off"),
    }


_ENGINES: Mapping[str, Callable[[Given], Words]] = {
    "vllm": vllm,
    "sglang": sglang,
    "tensorrt-llm": tensorrt_llm,
    "llama.cpp": llama_cpp,
}
_INSTEAD = {
    "ngram": '{"method": "ngram", "num_speculative_tokens": N}',
    "model": '{"model": "%s", "num_speculative_tokens": N}',
}


def words(engine: str, given: Given) -> list[tuple[str, ...]]:
    """What is added to an engine's command or options for the switches that the estimate was told."""
    known = _ENGINES[engine](given)
    return [known[name] for name in told(given.switches) if known.get(name)]


def left_out(engine: str, given: Given) -> Iterator[Finding]:
    """The switches that the estimate was told and that are in no flag of the engine here: somebody must set them."""
    known = _ENGINES[engine](given)
    missing = {name: text for name, text in told(given.switches).items() if name not in known}
    if missing:
        text = f"the estimate was made with {', '.join(missing.values())}, which is not in these flags"
        if engine == "vllm" and "draft" in missing:
            draft = given.switches.draft or ""
            config = _INSTEAD.get(draft) or _INSTEAD["model"] % draft
            text += f": add --speculative-config '{config}', N as you serve"
        else:
            text += ": set it by the engine's own means, or estimate without it"
        yield finding("warning", "switch-left-out", text)
