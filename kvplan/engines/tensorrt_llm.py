"""TensorRT-LLM: pages of 32 tokens, windows that free what they pass, a fraction of the memory that weights left.

The rules are those of its documentation (1.2); no server and no source were at hand to hold them against.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from kvplan.documents import EstimateOptions, Finding, Model
from kvplan.engines.layout import grouped, resolve_dtype
from kvplan.engines.paged import PagedLayout, checked
from kvplan.errors import KvplanError

VERSION = "1.2"
BLOCK_TOKENS = 32  # kv_cache_config.tokens_per_block
DTYPES = ("bf16", "fp16", "fp8", "nvfp4")


@dataclass(frozen=True)
class TensorRtLlmLayout(PagedLayout):
    """One model in TensorRT-LLM."""

    @cached_property
    def findings(self) -> tuple[Finding, ...]:
        """What is shared by all paged engines, and that documentation is all there is behind these rules."""
        text = f"rules from the documentation of TensorRT-LLM {VERSION} only: hold them against a server's own start-up"
        return (*super().findings, Finding(severity="warning", code="documentation-only", text=text))


@dataclass(frozen=True)
class TensorRtLlmEngine:
    """TensorRT-LLM."""

    name: str = "tensorrt-llm"

    def lay_out(self, model: Model, options: EstimateOptions) -> TensorRtLlmLayout:
        """TensorRT-LLM's layout. Raises KvplanError for caches that its documentation does not describe."""
        checked(model, options, "TensorRT-LLM")
        dtype = resolve_dtype(model, options, DTYPES)
        latent = any(group.cache.kind == "latent" for group in grouped(model))
        if latent and dtype == "nvfp4":
            raise KvplanError("TensorRT-LLM documents no nvfp4 cache for latent attention: use fp8")
        block = options.block_tokens or BLOCK_TOKENS
        if block & (block - 1):
            raise KvplanError(f"--block-tokens {block}: TensorRT-LLM takes a power of two")
        return TensorRtLlmLayout(
            model=model,
            options=options,
            kv_dtype=dtype,
            stored_dtype=dtype,
            block_tokens=block,
            windows=options.hybrid_manager,
            engine="TensorRT-LLM",
        )


ENGINE = TensorRtLlmEngine()
