"""SGLang: one pool of token slots, or two where the model has windows, and state slots beside them.

The pool is sized once at start: full layers and windows in a fixed ratio of tokens, state and KV in a fixed ratio of
bytes. The rules are those of SGLang 0.5.23's pool configurator, read in its source, not measured on a server.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property

from kvplan.documents import EngineValue, EstimateOptions, Finding, Model
from kvplan.engines.layout import grouped, is_windowed, resolve_dtype
from kvplan.engines.paged import FP8_LATENT, PagedLayout, checked, pages
from kvplan.errors import KvplanError

VERSION = "0.5.23"
PAGE_TOKENS = 1
SPARSE_PAGE_TOKENS = 64  # sparse latent attention; MiniMax-M3 reads pages of the block that its indexer picks
WINDOW_RATIO = Fraction(8, 10)  # --swa-full-tokens-ratio: tokens of window layers for each token of full ones
STATE_RATIO = Fraction(9, 10)  # --mamba-full-memory-ratio: bytes of state for each byte of KV
STATE_SLOTS = 3  # state slots of one running request where prefixes are cached
DTYPES = ("bf16", "fp16", "fp8")

# Model types whose windows have a pool of their own; in all others SGLang keeps every layer as long as the sequence.
OWN_WINDOW_POOL = frozenset(
    {"gpt_oss", "llama4_text", "mimo_v2", "mimo_v2_flash", "step3p5", "step3p7", "gemma4_text", "laguna", "mellum"}
)


@dataclass(frozen=True, slots=True)
class Pools:
    """Tokens of full layers, tokens of window layers (None without), and state slots (None without)."""

    full: int
    windows: int | None
    states: int | None


@dataclass(frozen=True)
class SglangLayout(PagedLayout):
    """One model in SGLang."""

    def _pools(self, kv_bytes: int) -> Pools:
        """The pools of the fullest rank: each stage sizes its own, the smallest counts."""
        found = [self._sized(place, kv_bytes) for place in range(len(self.shares))]
        windows = [one.windows for one in found if one.windows is not None]
        states = [one.states for one in found if one.states is not None]
        return Pools(min(one.full for one in found), min(windows, default=None), min(states, default=None))

    def _sized(self, place: int, kv_bytes: int) -> Pools:
        share, page, left = self.shares[place], self.block_tokens, kv_bytes
        states = None
        if share.fixed and self._recurrent:
            budget = int(kv_bytes * STATE_RATIO / (1 + STATE_RATIO))
            states = max(0, (budget - share.fixed) // share.fixed)
            left = max(0, left - (states + 1) * share.fixed)
        windows = sum((each for _, each in share.windows), Fraction())
        cell = share.growing + WINDOW_RATIO * windows if share.growing else windows
        full = int(left / cell) // page * page if cell else 0
        if not windows or not share.growing:
            return Pools(full, None, states)
        return Pools(full, int(full * WINDOW_RATIO) // page * page, states)

    @cached_property
    def _recurrent(self) -> bool:
        return any(group.cache.kind == "recurrent" for group in grouped(self.model))

    def sequences_held(self, kv_bytes: int, tokens: int) -> float:
        """Sequences of `tokens` tokens: whichever pool runs out first."""
        if not any(share.growing or share.windows or share.fixed for share in self.shares):
            return 0.0
        held, page = self._pools(kv_bytes), self.block_tokens
        limits = []
        if any(share.growing or share.windows for share in self.shares) and tokens:
            window = min((length for share in self.shares for length, _ in share.windows), default=tokens)
            stop = tokens if any(share.growing for share in self.shares) else min(window, tokens)
            limits.append(held.full / pages(stop, page))
            if held.windows is not None:
                limits.append(held.windows / (pages(min(window, tokens), page) + page))
        if held.states is not None:
            limits.append(held.states / (STATE_SLOTS if self.options.prefix_caching else 1))
        return min(limits, default=0.0)

    def view(self, kv_bytes: int | None, tokens: int | None) -> Mapping[str, EngineValue]:
        """What SGLang says when its pools are made."""
        full, windows = (
            max(one)
            for one in zip(
                *((share.growing, sum((each for _, each in share.windows), Fraction())) for share in self.shares),
                strict=True,
            )
        )
        found: dict[str, EngineValue] = {
            "page_size": self.block_tokens,
            "kv_cache_dtype": self.stored_dtype,
            "bytes_per_token": float(full) if full.denominator > 1 else int(full),
        }
        if windows:
            found["window_bytes_per_token"] = float(windows) if windows.denominator > 1 else int(windows)
        if kv_bytes is not None:
            held = self._pools(kv_bytes)
            found["max_total_num_tokens"] = held.full
            if held.windows is not None:
                found["swa_max_total_num_tokens"] = held.windows
            if held.states is not None:
                found["max_mamba_cache_size"] = held.states
        return found

    @cached_property
    def findings(self) -> tuple[Finding, ...]:
        """What is shared by all paged engines, and where the rules were read."""
        text = f"rules read in the source of SGLang {VERSION}, with its defaults for the ratio of window tokens"
        text += f" ({float(WINDOW_RATIO)}) and of state bytes ({float(STATE_RATIO)}); not held against a running server"
        return (*super().findings, Finding(severity="info", code="engine-source", text=text))


@dataclass(frozen=True)
class SglangEngine:
    """SGLang."""

    name: str = "sglang"

    def lay_out(self, model: Model, options: EstimateOptions) -> SglangLayout:
        """SGLang's layout. Raises KvplanError for what it refuses, and for caches that are not laid out here."""
        checked(model, options, "SGLang")
        caches = [group.cache for group in grouped(model)]
        if any(cache.kind == "cross" for cache in caches):
            raise KvplanError("SGLang's cache of encoder-decoder models is not laid out here: use --engine vllm")
        dtype = resolve_dtype(model, options, DTYPES)
        sparse = any(cache.kind == "indexer" for cache in caches)
        latent = any(cache.kind == "latent" for cache in caches)
        page = options.block_tokens or PAGE_TOKENS
        if sparse:
            step = SPARSE_PAGE_TOKENS if latent else max(cache.selects_tokens for cache in caches)
            page = -(-page // step) * step
        if not options.hybrid_manager and any(is_windowed(cache.kind) for cache in caches):
            windows = False
        else:
            windows = model.ref.model_type in OWN_WINDOW_POOL or all(is_windowed(cache.kind) for cache in caches)
        return SglangLayout(
            model=model,
            options=options,
            kv_dtype=dtype,
            stored_dtype=FP8_LATENT if sparse and latent and dtype == "fp8" else dtype,
            block_tokens=page,
            windows=windows,
            engine="SGLang",
        )


ENGINE = SglangEngine()
