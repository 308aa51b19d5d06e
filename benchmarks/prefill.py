"""Does a model cut to a few layers tell what the whole model's prefill takes? Predicted against measured, on this CPU.

Four small models of 8 to 12 layers, one a family of cost: grouped-query attention, experts, latent attention with
leading dense layers, sliding and full attention. Processor time of one thread, whole model and cut models in turn.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from kvplan.probing import cutmodel
from kvplan.probing.cutmodel import MORE
from kvplan.probing.passes import TorchPasses

LENGTHS = (64, 128, 256, 512, 1024)
ROUNDS = 5
WORST, MEAN = 0.10, 0.05
_COMMON = {"vocab_size": 4096, "max_position_embeddings": 4096, "hidden_size": 512, "num_attention_heads": 8}

MODELS: dict[str, dict[str, Any]] = {
    "dense GQA (Qwen3)": {
        **_COMMON,
        "model_type": "qwen3",
        "num_hidden_layers": 12,
        "num_key_value_heads": 2,
        "head_dim": 64,
        "intermediate_size": 1536,
    },
    "experts (Qwen3-MoE)": {
        **_COMMON,
        "model_type": "qwen3_moe",
        "num_hidden_layers": 10,
        "num_key_value_heads": 2,
        "head_dim": 64,
        "moe_intermediate_size": 384,
        "num_experts": 16,
        "num_experts_per_tok": 4,
    },
    "MLA (DeepSeek-V3)": {
        **_COMMON,
        "model_type": "deepseek_v3",
        "num_hidden_layers": 10,
        "num_key_value_heads": 8,
        "first_k_dense_replace": 2,
        "q_lora_rank": 192,
        "kv_lora_rank": 128,
        "qk_rope_head_dim": 32,
        "qk_nope_head_dim": 64,
        "v_head_dim": 64,
        "intermediate_size": 1536,
        "moe_intermediate_size": 384,
        "n_routed_experts": 16,
        "num_experts_per_tok": 4,
        "n_group": 4,
        "topk_group": 2,
        "n_shared_experts": 1,
    },
    "sliding/full (Gemma 3)": {
        **_COMMON,
        "model_type": "gemma3_text",
        "num_hidden_layers": 12,
        "num_key_value_heads": 4,
        "head_dim": 64,
        "intermediate_size": 1536,
        "sliding_window": 256,
    },
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One model at one length: seconds predicted from cuts, and measured on the whole model."""

    tokens: int
    predicted: float
    measured: float

    @property
    def error(self) -> float:
        """Predicted over measured, minus one."""
        return self.predicted / self.measured - 1


def compare(
    name: str, raw: dict[str, Any], lengths: tuple[int, ...], rounds: int, device: TorchPasses
) -> Iterator[Row]:
    """Whole and cut models in turn, at each length."""
    whole = cutmodel.read(raw, name)
    pairs = cutmodel.pairs(whole)
    configs = {picks: config for p in pairs for picks, config in ((p.base, p.base_config), (p.more, p.more_config))}
    models = {picks: device.build(config) for picks, config in configs.items()}
    models[()] = device.build(whole.config)
    base = pairs[0].base
    for tokens in lengths:
        times: dict[tuple[int, ...], list[float]] = {picks: [] for picks in models}
        for turn in range(rounds + 1):
            for picks, model in models.items():
                for _ in range(max(2, 1024 // tokens)):  # short passes more often: the cache is cold after a turn
                    spent = device.seconds(model, tokens, None)
                    if turn:
                        times[picks].append(spent)
        least = {picks: device.typical(seconds) for picks, seconds in times.items()}
        more = sum(p.missing(base) * (least[p.more] - least[p.base]) / MORE for p in pairs)
        yield Row(tokens=tokens, predicted=least[base] + more, measured=least[()])


def main() -> int:
    """Print the table; 1 where the prediction is further off than it may be."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    rounds = parser.parse_args().rounds
    import torch

    torch.set_num_threads(1)
    print(f"predicted from cuts / measured whole - 1, processor time of one thread, {rounds} rounds")
    print(f"{'model':24}" + "".join(f"{n:>9}" for n in LENGTHS) + f"{'mean |error|':>14}")
    worst, means = 0.0, list[float]()
    for name, raw in MODELS.items():
        device = TorchPasses(name, "cpu", "this processor", 2**40, clock=time.process_time)
        errors = [row.error for row in compare(name, raw, LENGTHS, rounds, device)]
        mean = float(np.mean(np.abs(errors)))
        worst, means = max(worst, *map(abs, errors)), [*means, mean]
        print(f"{name:24}" + "".join(f"{100 * error:+8.1f}%" for error in errors) + f"{100 * mean:13.1f}%", flush=True)
    ok = worst <= WORST and max(means) <= MEAN
    print(
        f"worst {100 * worst:.1f} % (limit {100 * WORST:.0f} %), mean {100 * np.mean(means):.1f} % (limit 5 % a model)"
    )
    return 0 if ok else 1


if __name__ == "__main__":
    sys.exit(main())
