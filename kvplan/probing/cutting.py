"""Cut a model's config to a few of its layers, with every setting that speaks of single layers.

`picks` are the layers to keep, by their number in the whole model and in the order wanted; one may occur several times.
A setting in no rule here stays as it is: the caller compares the cut model's layers with the whole model's before it
believes the cut.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

Picks = Sequence[int]
Json = Mapping[str, Any]

# Settings that only add draft layers after the last one; a prefill does not run them.
_DRAFTS = ("num_nextn_predict_layers", "mtp_num_hidden_layers", "num_mtp_modules", "mtp_layers_block_type")
# Number of dense layers before the first one with experts.
_LEADING = ("first_k_dense_replace", "num_dense_layers", "moe_num_dense_layers")
# Numbers (from 0) of the layers that something holds for.
NUMBERED = ("mlp_only_layers", "moe_layers", "attn_layer_indices", "full_attn_idxs", "cross_attention_layers")
# Every period-th layer from an offset on is of one kind.
_PERIODIC = (("attn_layer_period", "attn_layer_offset"), ("expert_layer_period", "expert_layer_offset"))
_PER_LAYER_TABLE = "per_layer_config"
# Lists that may go on after the last layer, with the draft layers.
_LONGER = ("layer_types", "mlp_layer_types", "indexer_types", "attn_type_list", "compress_ratios")


def cut_config(config: Json, layers: int, picks: Picks, count_key: str = "num_hidden_layers") -> dict[str, Any]:
    """The config of a model with just the picked layers of one with `layers`."""
    cut = {key: _cut_value(key, value, layers, picks) for key, value in config.items() if key not in _DRAFTS}
    for key in _DRAFTS:
        if isinstance(config.get(key), int):
            cut[key] = 0
    for rule in _RULES:
        rule(config, cut, picks)
    if count_key in config:
        cut[count_key] = len(picks)
    return cut


def _cut_value(key: str, value: Any, layers: int, picks: Picks) -> Any:
    """A list or string with one entry a layer, cut; anything else as it is."""
    if key in NUMBERED or not isinstance(value, list | tuple | str) or key == "architectures":
        return value
    if len(value) != layers and not (key in _LONGER and len(value) > layers):
        return value
    chosen = [value[pick] for pick in picks]
    if isinstance(value, str):
        return "".join(chosen) if "pattern" in key else value
    return chosen


def _leading(config: Json, cut: dict[str, Any], picks: Picks) -> None:
    for key in _LEADING:
        if isinstance(config.get(key), int):
            cut[key] = sum(pick < config[key] for pick in picks)


def _numbered(config: Json, cut: dict[str, Any], picks: Picks) -> None:
    for key in NUMBERED:
        if isinstance(config.get(key), list | tuple):
            held = set(config[key])
            cut[key] = [place for place, pick in enumerate(picks) if pick in held]


def _sparse_step(config: Json, cut: dict[str, Any], picks: Picks) -> None:
    """Every `decoder_sparse_step`-th layer holds experts but for `mlp_only_layers`: stated by the latter alone."""
    step = config.get("decoder_sparse_step")
    if not isinstance(step, int) or step < 1:
        return
    dense = set(config.get("mlp_only_layers") or ())
    cut["decoder_sparse_step"] = 1
    cut["mlp_only_layers"] = [at for at, pick in enumerate(picks) if pick in dense or (pick + 1) % step]


def _periodic(config: Json, cut: dict[str, Any], picks: Picks) -> None:
    """The shortest period that gives just the picked layers; none may, and then the comparison of layers shows it."""
    for period, offset in _PERIODIC:
        every, first = config.get(period), config.get(offset)
        if not isinstance(every, int) or not isinstance(first, int) or every < 1:
            continue
        wanted = [pick % every == first for pick in picks]
        for trial in range(1, len(picks) + 2):
            at = next((at for at in range(trial) if [i % trial == at for i in range(len(picks))] == wanted), None)
            if at is not None:
                cut[period], cut[offset] = trial, at
                break


def _table(config: Json, cut: dict[str, Any], picks: Picks) -> None:
    table = config.get(_PER_LAYER_TABLE)
    if isinstance(table, Mapping):
        by_number = {int(key): value for key, value in table.items() if str(key).isdecimal()}
        cut[_PER_LAYER_TABLE] = {str(at): by_number[pick] for at, pick in enumerate(picks) if pick in by_number}


_RULES: tuple[Callable[[Json, dict[str, Any], Picks], None], ...] = (
    _leading,
    _numbered,
    _sparse_step,
    _periodic,
    _table,
)
