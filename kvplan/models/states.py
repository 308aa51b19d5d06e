"""What recurrent, convolutional and delta-net layers keep per sequence, whatever its length.

Builders as in caches.py: config and layer index in, the caches that this layer owns out.
"""

from __future__ import annotations

from collections.abc import Callable

from kvplan.documents import LayerCache, Recurrence, StateTensor
from kvplan.errors import KvplanError
from kvplan.models.caches import Caches, attention, head_dim, kv_heads
from kvplan.models.config import Config, shown

STATE_DTYPES = {"float32": "fp32", "bfloat16": "bf16", "float16": "fp16"}
LSTM_WIDTH = 64  # xLSTM rounds the widths of its heads, taken together, up to a multiple of this


def _recurrent(c: Config, recurrence: Recurrence, *state: StateTensor) -> Caches:
    return (LayerCache(kind="recurrent", state=state, recurrence=recurrence, keys=c.keys()),)


def _state_dtype(c: Config) -> str | None:
    stated = c.get("ssm_dtype")
    if stated is None or stated == "auto":
        return None
    if not isinstance(stated, str) or stated not in STATE_DTYPES:
        raise KvplanError(f"{c.where}: unknown state dtype {shown(stated)} (known: {', '.join(STATE_DTYPES)})")
    return STATE_DTYPES[stated]


def mamba1(c: Config, index: int) -> Caches:
    """Mamba: state of (inner width, state size), convolution over the inner width."""
    c = c.asking()
    inner = c.optional("mamba_intermediate_size") or c.number("ssm_expand") * c.number("hidden_size")
    state, kernel = c.number("ssm_state"), c.number("ssm_kernel")
    return _recurrent(
        c,
        "mamba1",
        StateTensor(role="conv", shape=(inner, kernel - 1), split=((inner, 1),)),
        StateTensor(role="state", shape=(inner, state), dtype=_state_dtype(c), split=((inner, 1),)),
    )


def mamba2(c: Config, index: int) -> Caches:
    """Mamba-2: state of (heads, head width, state size); the convolution also runs over both state projections."""
    c = c.asking()
    heads, groups = c.number("ssm_heads"), c.number("ssm_groups")
    width = c.get("ssm_head_dim")
    if width is None or width == "auto":
        width = c.number("ssm_expand") * c.number("hidden_size") // heads
    width = c.checked("ssm_head_dim", width, 1)
    state, kernel = c.number("ssm_state"), c.number("ssm_kernel")
    channels = heads * width + 2 * groups * state
    return _recurrent(
        c,
        "mamba2",
        StateTensor(role="conv", shape=(channels, kernel - 1), split=((heads, width), (groups, 2 * state))),
        StateTensor(role="state", shape=(heads, width, state), dtype=_state_dtype(c), split=((heads, 1),)),
    )


def both(first: Callable[[Config, int], Caches], second: Callable[[Config, int], Caches]) -> Callable[..., Caches]:
    """A layer that keeps what two kinds of layer keep: side by side (Falcon-H1) or one after the other (Zamba)."""
    return lambda c, index: first(c, index) + second(c, index)


def delta_net(c: Config, index: int) -> Caches:
    """Gated delta net: a (key width, value width) state per value head, convolution over queries, keys, values."""
    c = c.asking()
    key_heads, key_dim = c.number("linear_num_key_heads"), c.number("linear_key_head_dim")
    value_heads, value_dim = c.number("linear_num_value_heads"), c.number("linear_value_head_dim")
    kernel = c.number("linear_conv_kernel_dim")
    channels = 2 * key_heads * key_dim + value_heads * value_dim
    split = ((key_heads, 2 * key_dim), (value_heads, value_dim))
    shape = (value_heads, key_dim, value_dim)
    return _recurrent(
        c,
        "delta",
        StateTensor(role="conv", shape=(channels, kernel - 1), split=split),
        StateTensor(role="state", shape=shape, dtype=_state_dtype(c), split=((value_heads, 1),)),
    )


def kimi_delta(c: Config, index: int) -> Caches:
    """Kimi delta attention: one square state per head, convolutions over queries, keys and values."""
    c = c.asking()
    sizes = c.table("linear_attn_config") or {}
    heads = sizes.get("num_heads") or c.number("linear_num_heads")
    width = sizes.get("head_dim") or c.number("linear_head_dim")
    kernel = sizes.get("short_conv_kernel_size") or c.number("linear_conv_kernel_dim")
    heads, width = c.checked("num_heads", heads, 1), c.checked("head_dim", width, 1)
    columns = c.checked("short_conv_kernel_size", kernel, 1) - 1
    return _recurrent(
        c,
        "kimi-delta",
        StateTensor(role="conv", shape=(3 * heads * width, columns), split=((heads, 3 * width),)),
        StateTensor(role="state", shape=(heads, width, width), dtype=_state_dtype(c), split=((heads, 1),)),
    )


def lightning(c: Config, index: int) -> Caches:
    """Lightning attention (MiniMax-01): one square state per query head."""
    c = c.asking()
    heads, width = c.number("num_attention_heads"), head_dim(c)
    return _recurrent(
        c,
        "lightning",
        StateTensor(role="state", shape=(heads, width, width), dtype=_state_dtype(c), split=((heads, 1),)),
    )


def convolution(c: Config, index: int) -> Caches:
    """A short gated convolution (LFM2): its last inputs, as wide as the hidden state."""
    c = c.asking()
    hidden, kernel = c.number("hidden_size"), c.number("conv_L_cache")
    return _recurrent(c, "short-conv", StateTensor(role="conv", shape=(hidden, kernel - 1), split=((hidden, 1),)))


def real_gated(c: Config, index: int) -> Caches:
    """RecurrentGemma's RG-LRU: one value per channel, behind a short convolution."""
    c = c.asking()
    width = c.optional("lru_width") or c.number("hidden_size")
    columns = c.number("conv1d_width") - 1
    return _recurrent(
        c,
        "rg-lru",
        StateTensor(role="conv", shape=(width, columns), split=((width, 1),)),
        StateTensor(role="state", shape=(width,), dtype="fp32", split=((width, 1),)),
    )


def rwkv(c: Config, index: int) -> Caches:
    """RWKV-4: the token before for both mixers, and numerator, denominator and maximum of the average in fp32."""
    c = c.asking()
    hidden = c.number("hidden_size")
    width = c.optional("attention_hidden_size") or hidden
    return _recurrent(
        c,
        "rwkv",
        StateTensor(role="buffer", shape=(2, hidden)),
        StateTensor(role="state", shape=(3, width), dtype="fp32"),
    )


def matrix_lstm(c: Config, index: int) -> Caches:
    """xLSTM: per head a matrix, a normaliser and a stabiliser."""
    c = c.asking()
    heads, hidden = c.number("num_attention_heads"), c.number("hidden_size")
    keys = _rounded(c, hidden, "qk_dim_factor") // heads
    values = _rounded(c, hidden, "v_dim_factor") // heads
    return _recurrent(
        c, "mlstm", StateTensor(role="state", shape=(heads, keys * values + keys + 1), split=((heads, 1),))
    )


def _rounded(c: Config, hidden: int, key: str) -> int:
    """`hidden` by a factor, rounded up as xLSTM does."""
    factor = c.get(key)
    if not isinstance(factor, int | float) or isinstance(factor, bool) or not 0 < factor < 1000:
        raise KvplanError(f"{c.where}: {key!r} must be a positive number, not {shown(factor)}")
    return -(-int(hidden * factor) // LSTM_WIDTH) * LSTM_WIDTH


def compressed_convolution(c: Config, index: int) -> Caches:
    """ZAYA: attention whose queries and keys pass two short convolutions, and half of the values come a token late."""
    own = attention(c, index)
    c = c.asking()
    heads, width = c.number("num_attention_heads"), head_dim(c)
    few = kv_heads(c, index)
    columns = c.number("cca_time0") + c.number("cca_time1") - 2
    state = _recurrent(
        c,
        "cca",
        StateTensor(role="conv", shape=((heads + few) * width, columns)),
        StateTensor(role="buffer", shape=(few * width // 2,)),
    )
    return own + state


def four_convolutions(c: Config, index: int) -> Caches:
    """Inkling: short convolutions over keys, values and both residual branches of a layer."""
    c = c.asking()
    return _convolutions(c, kv_heads(c, index) * head_dim(c))


def windowed_convolutions(c: Config, index: int) -> Caches:
    """The same in a layer that slides, whose heads have their own count and width."""
    c = c.asking()
    return _convolutions(c, c.number("swa_num_key_value_heads") * c.number("swa_head_dim"))


def _convolutions(c: Config, width: int) -> Caches:
    hidden, columns = c.number("hidden_size"), c.number("conv_kernel_size") - 1
    return _recurrent(
        c,
        "short-conv",
        *[StateTensor(role="conv", shape=(channels, columns)) for channels in (width, width, hidden, hidden)],
    )
