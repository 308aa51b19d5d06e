"""What a checkpoint's quantization config says: the KV dtype it asks for, and bits per stored weight."""

from __future__ import annotations

from collections.abc import Mapping

from kvplan.documents import Finding, Weights
from kvplan.models.config import Config, Json, shown
from kvplan.models.params import Counts

BESIDE = "hf_quant_config.json"  # where ModelOpt checkpoints keep what others put into config.json
BITS = {"bf16": 16, "fp16": 16, "fp32": 32}


def _scheme(root: Json, c: Config) -> Json:
    for place in (root, c.raw):
        found = place.get("quantization_config")
        if isinstance(found, Mapping):
            return found
    return {}


def from_beside(whole: Json) -> Json:
    """A ModelOpt checkpoint's own file as the quantization_config that its config.json leaves out."""
    inner = whole.get("quantization")
    return {"quant_method": "modelopt", **inner} if isinstance(inner, Mapping) else {}


def kv_dtype(root: Json, c: Config) -> str | None:
    """The KV dtype that the checkpoint asks for ("fp8"), or None.

    Both spellings in use count: `kv_cache_scheme` with bits and type, `kv_cache_quant_algo` with a name. A scheme
    without a `quant_method` is not read by engines, and so not here.
    """
    scheme = _scheme(root, c)
    if not scheme.get("quant_method"):
        return None
    asked = scheme.get("kv_cache_scheme")
    if isinstance(asked, Mapping) and asked.get("num_bits") == 8 and asked.get("type") == "float":
        return "fp8"
    return "fp8" if scheme.get("kv_cache_quant_algo") == "FP8" else None


def unread_scheme(root: Json, c: Config) -> Finding | None:
    """A finding where the checkpoint asks for a KV format that is not read here, None where all is understood."""
    scheme = _scheme(root, c)
    asked = scheme.get("kv_cache_scheme") or scheme.get("kv_cache_quant_algo")
    if not asked or kv_dtype(root, c) is not None:
        return None
    text = f"the checkpoint asks for a KV cache of {shown(asked)}, counted in its own dtype here: --kv-dtype says else"
    return Finding(severity="warning", code="kv-scheme-unread", text=text)


def _expert_bits(scheme: Json) -> float | None:
    """Bits per quantised weight, scales included; None for a scheme whose layers differ."""
    method = str(scheme.get("quant_method", "")).lower()
    if scheme.get("quant_algo") == "MIXED_PRECISION" or scheme.get("quantized_layers"):
        return None
    if method == "mxfp4":
        return 4 + 8 / 32  # one 8-bit exponent per 32 elements
    if method == "fp8" or scheme.get("quant_algo") == "FP8":
        return 8.0
    return None


def weights(counts: Counts | None, root: Json, c: Config, dtype: str) -> Weights | None:
    """Bytes of the checkpoint from counted weights, or None where the count or the scheme is not known.

    Embedding, output head and routers stay in the model's dtype; MXFP4 quantises the experts alone.
    """
    if counts is None:
        return None
    scheme = _scheme(root, c)
    plain = BITS[dtype]
    bits: float = plain
    source = f"counted from the config, {dtype}"
    quantised = 0
    if scheme:
        known = _expert_bits(scheme)
        if known is None:
            return None
        bits = known
        experts_only = str(scheme.get("quant_method", "")).lower() == "mxfp4"
        quantised = counts.experts if experts_only else counts.total - counts.embedding - counts.head - counts.routers
        source = f"counted from the config, {bits:g} bits a quantised weight, the rest {dtype}"
    size = round((quantised * bits + (counts.total - quantised) * plain) / 8)
    return Weights(
        bytes=size,
        bytes_per_gpu=size,
        params=counts.total,
        provenance="configured",
        source=source,
        experts_bytes=round(counts.experts * bits / 8),
        embedding_bytes=counts.embedding * plain // 8,
        head_bytes=counts.head * plain // 8,
    )
