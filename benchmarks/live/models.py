"""Tiny random models: a GGUF file for llama.cpp, a folder for vLLM. Weights are noise, so answers mean nothing."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np

BYTES = 256
SPECIAL = 3
GGUF_VOCABULARY = 4096  # more than a schedule has blocks, so that no two blocks begin with the same token
WORDS = 1000  # vocabulary of the vLLM model: w0, w1, …


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """A Llama architecture. `kv_bytes_per_token` at two bytes a number."""

    layers: int
    width: int
    heads: int
    kv_heads: int
    context: int = 4096

    @property
    def head_width(self) -> int:
        """Numbers of one head."""
        return self.width // self.heads

    @property
    def kv_bytes_per_token(self) -> int:
        """Keys and values of one token in all layers, 16 bits a number."""
        return 2 * 2 * self.layers * self.kv_heads * self.head_width


def _weights(shape: Shape, vocabulary: int, seed: int) -> dict[str, np.ndarray]:
    """Matrices by role, rows are outputs."""
    draw = np.random.default_rng(seed)
    kv = shape.kv_heads * shape.head_width
    sizes = {"embedding": (vocabulary, shape.width), "output": (vocabulary, shape.width)}
    for layer in range(shape.layers):
        sizes |= {
            f"{layer} q": (shape.width, shape.width),
            f"{layer} k": (kv, shape.width),
            f"{layer} v": (kv, shape.width),
            f"{layer} o": (shape.width, shape.width),
            f"{layer} gate": (2 * shape.width, shape.width),
            f"{layer} up": (2 * shape.width, shape.width),
            f"{layer} down": (shape.width, 2 * shape.width),
        }
    return {name: draw.standard_normal(size, dtype=np.float32) * np.float32(0.05) for name, size in sizes.items()}


def write_gguf(path: Path, shape: Shape, seed: int) -> Path:
    """A model of this shape for llama.cpp, 32-bit weights, a vocabulary of bytes."""
    import gguf

    writer = gguf.GGUFWriter(str(path), "llama")
    writer.add_context_length(shape.context)
    writer.add_embedding_length(shape.width)
    writer.add_block_count(shape.layers)
    writer.add_feed_forward_length(2 * shape.width)
    writer.add_head_count(shape.heads)
    writer.add_head_count_kv(shape.kv_heads)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_dimension_count(shape.head_width)
    writer.add_vocab_size(GGUF_VOCABULARY)
    words = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(BYTES))]
    words += [f"\u2581t{number}" for number in range(GGUF_VOCABULARY - len(words))]
    kinds = [2, 3, 3, *[6] * BYTES, *[1] * (GGUF_VOCABULARY - SPECIAL - BYTES)]
    writer.add_tokenizer_model("llama")
    writer.add_token_list(words)
    writer.add_token_scores([0.0] * GGUF_VOCABULARY)
    writer.add_token_types(kinds)
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_unk_token_id(0)
    writer.add_add_bos_token(False)
    names = {"q": "attn_q", "k": "attn_k", "v": "attn_v", "o": "attn_output"}
    names |= {"gate": "ffn_gate", "up": "ffn_up", "down": "ffn_down"}
    ones = np.ones(shape.width, dtype=np.float32)
    for name, matrix in _weights(shape, GGUF_VOCABULARY, seed).items():
        layer, _, role = name.partition(" ")
        writer.add_tensor(f"blk.{layer}.{names[role]}.weight" if role else _GGUF_ENDS[name], matrix)
    for number in range(shape.layers):
        writer.add_tensor(f"blk.{number}.attn_norm.weight", ones)
        writer.add_tensor(f"blk.{number}.ffn_norm.weight", ones)
    writer.add_tensor("output_norm.weight", ones)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


_GGUF_ENDS = {"embedding": "token_embd.weight", "output": "output.weight"}
_HF_ENDS = {"embedding": "model.embed_tokens.weight", "output": "lm_head.weight"}


def write_folder(folder: Path, shape: Shape, seed: int) -> Path:
    """A model of this shape as a folder of config, weights and a tokenizer whose words are w0, w1, …"""
    from safetensors.numpy import save_file
    from tokenizers import Tokenizer, models, pre_tokenizers

    folder.mkdir(parents=True, exist_ok=True)
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": shape.width,
        "intermediate_size": 2 * shape.width,
        "num_hidden_layers": shape.layers,
        "num_attention_heads": shape.heads,
        "num_key_value_heads": shape.kv_heads,
        "head_dim": shape.head_width,
        "vocab_size": WORDS,
        "max_position_embeddings": shape.context,
        "rms_norm_eps": 1e-5,
        "hidden_act": "silu",
        "tie_word_embeddings": False,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "torch_dtype": "float32",
    }
    (folder / "config.json").write_text(json.dumps(config, indent=2))
    names = {"q": "self_attn.q_proj", "k": "self_attn.k_proj", "v": "self_attn.v_proj", "o": "self_attn.o_proj"}
    names |= {"gate": "mlp.gate_proj", "up": "mlp.up_proj", "down": "mlp.down_proj"}
    tensors: dict[str, np.ndarray] = {"model.norm.weight": np.ones(shape.width, dtype=np.float32)}
    for name, matrix in _weights(shape, WORDS, seed).items():
        layer, _, role = name.partition(" ")
        tensors[f"model.layers.{layer}.{names[role]}.weight" if role else _HF_ENDS[name]] = matrix
    for number in range(shape.layers):
        for norm in ("input_layernorm", "post_attention_layernorm"):
            tensors[f"model.layers.{number}.{norm}.weight"] = np.ones(shape.width, dtype=np.float32)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    words = Tokenizer(models.WordLevel({f"w{number}": number for number in range(WORDS)}, unk_token="w0"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    words.save(str(folder / "tokenizer.json"))
    kind = {"tokenizer_class": "PreTrainedTokenizerFast", "unk_token": "w0", "bos_token": "w1", "eos_token": "w2"}
    (folder / "tokenizer_config.json").write_text(json.dumps(kind))
    return folder
