"""What prefill costs in floating point operations, from a model's counted weights and its layers.

2 operations per weight that a token passes, and heads x (key width + value width) per pair of tokens in causal
attention (half of the full square). docs/bytes.md derives it.
"""

from __future__ import annotations

import math

from kvplan.documents import Compute, LayerCache
from kvplan.models.architecture import Facts
from kvplan.models.config import Config
from kvplan.models.params import Counts


def compute(counts: Counts | None, facts: Facts) -> Compute | None:
    """What prefill costs, or None where the weights are not counted or the prompt goes through an encoder.

    Formula: docs/bytes.md. Windows, chunks and the tokens that an indexer selects bound
    the second factor and so move from the square to the linear term.
    """
    if counts is None or counts.encoder:
        return None
    linear, square = 2.0 * counts.active, 0.0
    for index, layer in enumerate(facts.layers):
        times = facts.order.count(index)
        for cache in layer.caches:
            per_token, per_pair = _attention_work(facts.config, cache)
            linear += times * per_token
            square += times * per_pair
    return Compute(
        linear_flops_per_token=linear,
        attention_flops_per_token_sq=square,
        provenance="configured",
        source="counted from the config: 2 operations per active weight, causal attention by heads and widths",
    )


def _attention_work(c: Config, cache: LayerCache) -> tuple[float, float]:
    """Operations per token, and per square of tokens, beside the weights of one cache's layer."""
    if cache.kind == "recurrent":
        return 4.0 * sum(math.prod(tensor.shape) for tensor in cache.state if tensor.role == "state"), 0.0
    if cache.kind == "indexer":
        return 0.0, float((c.optional("index_n_heads") or 1) * cache.k_dim)
    pair = float(c.number("num_attention_heads") * (cache.k_dim + cache.v_dim))
    if cache.kind == "latent":
        pair = float(
            c.number("num_attention_heads")
            * (c.number("qk_nope_head_dim") + c.number("qk_rope_head_dim", least=0) + c.number("v_head_dim"))
        )
        chosen = c.optional("index_topk")
        return (2.0 * pair * chosen, 0.0) if chosen else (0.0, pair)
    if cache.kind == "chunked":
        return pair * (cache.window_tokens or 0), 0.0
    if cache.kind == "sliding":
        return 2.0 * pair * (cache.window_tokens or 0), 0.0
    return 0.0, pair
