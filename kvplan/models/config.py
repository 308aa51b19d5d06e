"""A model's config as read: every value remembers which key, or which class default, gave it.

A published config.json leaves out what its transformers class knows. `Config` answers from the file first, then from
the defaults that the caller brings (a small table here, or the transformers class itself), and raises `MissingKey`
where neither says: what is unknown is named, never assumed.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from kvplan.errors import KvplanError

Json = Mapping[str, Any]

ALIASES: dict[str, tuple[str, ...]] = {
    "num_hidden_layers": ("num_hidden_layers", "n_layer", "n_layers", "num_layers"),
    "num_attention_heads": ("num_attention_heads", "n_head", "n_heads", "num_heads"),
    "num_key_value_heads": (
        "num_key_value_heads",
        "num_kv_heads",
        "n_head_kv",
        "multi_query_group_num",
        "num_query_groups",
    ),
    "hidden_size": ("hidden_size", "n_embd", "d_model", "dim"),
    "head_dim": ("head_dim", "attention_head_dim", "hidden_size_per_head", "kv_channels"),
    "max_position_embeddings": (
        "max_position_embeddings",
        "n_positions",
        "max_sequence_length",
        "max_seq_len",
        "seq_length",
        "model_max_length",
        "max_target_positions",
    ),
    "intermediate_size": ("intermediate_size", "n_inner", "ffn_hidden_size"),
    "num_experts": ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts"),
    "num_experts_per_tok": ("num_experts_per_tok", "num_experts_per_token", "experts_per_token", "top_k_experts"),
    "n_shared_experts": ("n_shared_experts", "num_shared_experts"),
    "dtype": ("dtype", "torch_dtype"),
    # State-space layers: every family has its own words for the same five sizes.
    "ssm_heads": ("mamba_num_heads", "mamba_n_heads", "n_mamba_heads"),
    "ssm_head_dim": ("mamba_head_dim", "mamba_d_head", "mamba_headdim"),
    "ssm_groups": ("n_groups", "mamba_n_groups", "mamba_ngroups"),
    "ssm_state": ("ssm_state_size", "mamba_d_state", "state_size"),
    "ssm_kernel": ("conv_kernel", "mamba_d_conv"),
    "ssm_expand": ("mamba_expand", "expand"),
    "ssm_dtype": ("mamba_ssm_cache_dtype", "mamba_ssm_dtype"),
}

# Where the config of the decoder that generates sits inside a multimodal one; the deepest wins.
NESTS = (
    "text_config",
    "thinker_config",
    "language_config",
    "llm_config",
    "language_model",
    "decoder",
    "decoder_config",
)
LIMIT = 10**12


class MissingKey(KvplanError):
    """Neither the config nor the class defaults at hand say the value of `key`."""

    def __init__(self, key: str, where: str) -> None:
        super().__init__(f"{where}: no {key!r}, and without it the cache of this architecture is unknown")
        self.key = key


class MissingMap(KvplanError):
    """A hybrid model does not say which of its layers attend; its class's own default would be a guess."""

    def __init__(self, key: str, where: str) -> None:
        super().__init__(f"{where}: no {key!r}, and without it nobody knows which layers of this hybrid attend")


@dataclass(frozen=True)
class Config:
    """The decoder's config inside a file.

    `raw` is the file's own mapping for that decoder, `prefix` where it sits ("text_config."), `name` what errors
    call the file, `defaults` the class defaults, `names` other names of keys in this family. `used` collects what was
    asked.
    """

    raw: Json
    name: str
    prefix: str = ""
    root: Json = field(default_factory=dict)
    defaults: Json = field(default_factory=dict)
    names: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    used: dict[str, None] = field(default_factory=dict)
    overridden: bool = False

    @property
    def model_type(self) -> str:
        """The decoder's model type, or else the whole config's."""
        kind = self.raw.get("model_type") or self.root.get("model_type")
        return kind if isinstance(kind, str) else ""

    @property
    def where(self) -> str:
        """How an error names this config: file, place in it, model type."""
        place = f" ({self.prefix.rstrip('.')})" if self.prefix else ""
        kind = f" of model type {self.model_type!r}" if self.model_type else ""
        return f"{self.name}{place}{kind}"

    def asking(self) -> Config:
        """The same config with an empty record of the keys asked."""
        return replace(self, used={})

    def keys(self) -> tuple[str, ...]:
        """The keys asked for since `asking`, in order, class defaults marked."""
        return tuple(self.used)

    def layer(self, index: int) -> Config:
        """The config as one layer sees it, where `per_layer_config` overrides keys for it."""
        _, table, _ = self._find("per_layer_config")
        if not isinstance(table, Mapping):
            return self
        for key, overrides in table.items():
            if str(key).isdecimal() and int(key) == index and isinstance(overrides, Mapping):
                self.used["per_layer_config"] = None
                return replace(self, raw={**self.raw, **overrides}, overridden=True)
        return self

    def _find(self, key: str) -> tuple[str, Any, bool]:
        """The name, value and origin of a key. A null in the file is the file's word: no default replaces it."""
        names = self.names.get(key) or ALIASES.get(key, (key,))
        stated = [name for name in names if name in self.raw]
        for name in stated:
            if self.raw[name] is not None:
                return name, self.raw[name], False
        if not stated:
            for name in names:
                if name in self.defaults:
                    return name, self.defaults[name], True
        return names[0], None, False

    def get(self, key: str) -> Any:
        """The value of a key (or of one of its other names), recorded as used; None where nothing says."""
        name, value, default = self._find(key)
        if value is not None:
            self.used[f"{self.prefix}{name}" + (" (class default)" if default else "")] = None
        return value

    def states(self, key: str) -> bool:
        """Whether the file itself speaks of the key, be it as null."""
        return any(name in self.raw for name in self.names.get(key) or ALIASES.get(key, (key,)))

    def number(self, key: str, *, least: int = 1) -> int:
        """A whole number that must be there. Raises MissingKey, or KvplanError for a wrong type or range."""
        value = self.optional(key, least=least)
        if value is None:
            raise MissingKey(key, self.where)
        return value

    def optional(self, key: str, *, least: int = 1) -> int | None:
        """A whole number, or None where nothing says. Raises KvplanError for a wrong type or range."""
        value = self.get(key)
        if value is None:
            return None
        return self.checked(key, value, least)

    def checked(self, key: str, value: object, least: int) -> int:
        """`value` as a whole number of at least `least`. Raises KvplanError naming the key."""
        if isinstance(value, float) and value.is_integer() and math.isfinite(value):
            value = int(value)
        if isinstance(value, bool) or not isinstance(value, int):
            raise KvplanError(f"{self.where}: {key!r} must be a whole number, not {shown(value)}")
        if not least <= value < LIMIT:
            raise KvplanError(f"{self.where}: {key!r} is {value}, which no model can have (at least {least})")
        return value

    def flag(self, key: str, otherwise: bool) -> bool:
        """A true or false key; `otherwise` where nothing says."""
        value = self.get(key)
        if value is None:
            return otherwise
        if not isinstance(value, bool) and value not in (0, 1):
            raise KvplanError(f"{self.where}: {key!r} must be true or false, not {shown(value)}")
        return bool(value)

    def words(self, key: str) -> list[str] | None:
        """A list of words, one a layer, or None where nothing says."""
        value = self.items(key)
        if value is not None and not all(isinstance(item, str) for item in value):
            raise KvplanError(f"{self.where}: {key!r} must be a list of words")
        return value

    def items(self, key: str) -> list[Any] | None:
        """A list, or None where nothing says."""
        value = self.get(key)
        if value is None:
            return None
        if not isinstance(value, list | tuple):
            raise KvplanError(f"{self.where}: {key!r} must be a list, not {shown(value)}")
        return list(value)

    def table(self, key: str) -> Json | None:
        """A nested object, or None where nothing says."""
        value = self.get(key)
        if value is None:
            return None
        if not isinstance(value, Mapping):
            raise KvplanError(f"{self.where}: {key!r} must be an object, not {shown(value)}")
        return value


def shown(value: object) -> str:
    """A foreign value in an error message, cut short."""
    text = repr(value)
    return text if len(text) <= 40 else f"{text[:37]}..."
