"""An engine's start-up lines -> what a request costs there: a fixed part and a slope a token, fitted.

vLLM says how many tokens a pool holds at its longest sequence, which mixes both; two starts at different lengths tell
them apart. SGLang and llama.cpp say bytes and tokens of each pool, so one start is enough.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from msgspec.structs import replace

from kvplan.documents import Finding, LogFit, LogPoint, Model
from kvplan.errors import KvplanError, UsageError
from kvplan.files import reason
from kvplan.units import GiB, MiB, parse_size, parse_tokens

LIMIT = 256 * MiB
DISAGREE = 1.02

VLLM_POOL = re.compile(r"Available KV cache memory:?\s+([\d.]+)\s*GiB")
VLLM_TOKENS = re.compile(r"GPU KV cache size:?\s+([\d,]+) tokens")
VLLM_CONCURRENCY = re.compile(r"Maximum concurrency for ([\d,]+) tokens per request:?\s+([\d.]+)x")
SGLANG_POOL = re.compile(
    r"KV Cache is allocated\..*?#tokens: (\d+),(?: K size: ([\d.]+) GB, V size: ([\d.]+) GB|.*?KV size: ([\d.]+) GB)"
)
SGLANG_STATE = re.compile(
    r"Mamba Cache is allocated\. max_mamba_cache_size: (\d+), conv_state size: ([\d.]+)GB, ssm_state size: ([\d.]+)GB"
)
SGLANG_CONTEXT = re.compile(r"context_len=(\d+)")
LLAMA_CELLS = re.compile(
    r"size =\s+([\d.]+) MiB \(\s*(\d+) cells,\s*\d+ layers,\s*(\d+)(?:/(\d+))? seqs[^)]*\)(?:, (K|R) \()?"
)
LLAMA_WINDOW = re.compile(r"creating\s+SWA KV cache|creating\s+(?:non-SWA|main|indexer) KV cache")
LLAMA_CONTEXT = re.compile(r"n_ctx_seq\s*=\s*(\d+)")


@dataclass(frozen=True, slots=True)
class Direct:
    """What an engine says of its pools outright: growth a token, a fixed part a sequence, and the length it was for."""

    slope: float
    fixed: float
    point: LogPoint


def fit(inputs: Sequence[str], *, hybrid: bool | None = None) -> LogFit:
    """The cost of a request fitted to start-up lines: log files, or points written tokens=N,len=N,pool=SIZE.

    `hybrid` says whether the model keeps anything besides what grows with length; None where no model is known. Raises
    KvplanError for what is not found or not read, and where one point cannot tell a slope from a fixed part.
    """
    if not inputs:
        raise UsageError("--from-log is empty: give log files, or points written tokens=398000,len=50000,pool=24.5GiB")
    read = [_read(one) for one in inputs]
    engines = {engine for engine, _ in read}
    if len(engines) > 1:
        raise KvplanError(f"logs of {' and '.join(sorted(engines))}: a fit is of one engine")
    engine = engines.pop()
    direct = [found for _, found in read if isinstance(found, Direct)]
    if direct:
        return _direct(engine, direct)
    return _fitted(engine, [found for _, found in read if isinstance(found, LogPoint)], hybrid)


def _direct(engine: str, found: Sequence[Direct]) -> LogFit:
    """The mean of what the logs say outright, with their spread as the error."""
    slope = sum(one.slope for one in found) / len(found)
    fixed = sum(one.fixed for one in found) / len(found)
    worst = max((abs(one.slope - slope) / slope if slope else 0.0) for one in found)
    return LogFit(
        engine=engine,
        points=tuple(one.point for one in found),
        bytes_per_token=slope,
        bytes_per_sequence=fixed,
        worst_relative_error=worst,
    )


def _fitted(engine: str, points: Sequence[LogPoint], hybrid: bool | None) -> LogFit:
    """Bytes of a request against its length, a straight line by least squares."""
    lengths = {point.context_tokens for point in points}
    requests = [(point.context_tokens, point.pool_bytes * point.context_tokens / point.tokens) for point in points]
    if len(lengths) == 1:
        if hybrid is not False:
            whose = "this model keeps a fixed part a request" if hybrid else "without --model nobody knows"
            raise KvplanError(
                f"one length cannot tell a slope from a fixed part, and {whose} (windows, state):"
                " start the engine once more with another --max-model-len and give both logs"
            )
        slope, fixed = sum(size for _, size in requests) / sum(length for length, _ in requests), 0.0
    else:
        slope, fixed = _line(requests)
    if slope < 0 or fixed < 0:
        text = "the fit is negative in one part: the starts differ in more than their length"
        notes: tuple[Finding, ...] = (Finding(severity="warning", code="fit-negative", text=text),)
    else:
        notes = ()
    worst = max(abs(fixed + slope * length - size) / size for length, size in requests)
    return LogFit(
        engine=engine,
        points=tuple(points),
        bytes_per_token=slope,
        bytes_per_sequence=fixed,
        worst_relative_error=worst,
        findings=(*notes, *_disagreements(points)),
    )


def _line(points: Sequence[tuple[int, float]]) -> tuple[float, float]:
    """Slope and intercept of least squares."""
    count = len(points)
    middle, mean = sum(x for x, _ in points) / count, sum(y for _, y in points) / count
    spread = sum((x - middle) ** 2 for x, _ in points)
    slope = sum((x - middle) * (y - mean) for x, y in points) / spread
    return slope, mean - slope * middle


def _disagreements(points: Sequence[LogPoint]) -> tuple[Finding, ...]:
    """Logs whose own token figure is not what their concurrency says: the latter is the one that requests meet."""
    found = []
    for point in points:
        stated = point.stated_tokens
        if stated and max(point.tokens, stated) > DISAGREE * min(point.tokens, stated):
            text = f"{point.source}: the log says {stated:,} tokens, and its concurrency {point.tokens:,} at"
            text += f" {point.context_tokens:,}: {point.tokens / stated:.2f} times; the concurrency is trusted"
            found.append(Finding(severity="warning", code="log-tokens-disagree", text=text))
    return tuple(found)


def keeps_fixed_part(model: Model) -> bool:
    """Whether a request of this model costs something besides what grows with its length."""
    caches = [cache for layer in model.layers for cache in layer.caches]
    return any(cache.window_tokens is not None or cache.state or cache.kind == "cross" for cache in caches)


# ------------------------------------------------------------------------------- reading


def _read(text: str) -> tuple[str, LogPoint | Direct]:
    """One input: a point written out, or a log file. The engine's name comes with it."""
    if "=" in text and not Path(text).exists():
        return "vllm", _point(text)
    path = Path(text).expanduser()
    try:
        if path.stat().st_size > LIMIT:
            raise KvplanError(f"{path}: too large for a start-up log: give its first lines")
        lines = path.read_text(encoding="utf-8", errors="replace")
    except OSError as error:
        raise KvplanError(f"{path}: {reason(error)}") from None
    if VLLM_TOKENS.search(lines) or VLLM_CONCURRENCY.search(lines):
        return "vllm", _vllm(lines, str(path))
    if SGLANG_POOL.search(lines):
        return "sglang", _sglang(lines, str(path))
    if LLAMA_CELLS.search(lines):
        return "llama.cpp", _llama_cpp(lines, str(path))
    raise KvplanError(f"{path}: no start-up lines of vLLM, SGLang or llama.cpp that say how large the KV cache is")


def _point(text: str) -> LogPoint:
    """tokens=N,len=N,pool=SIZE, and concurrency=X where the log gives it."""
    parts = dict(part.partition("=")[::2] for part in text.split(","))
    unknown = set(parts) - {"tokens", "len", "pool", "concurrency"}
    if unknown or "len" not in parts or "pool" not in parts or not {"tokens", "concurrency"} & set(parts):
        raise UsageError(
            f"--from-log {text}: write tokens=398000,len=50000,pool=24.5GiB, or concurrency=33.04 for tokens"
        )
    length, pool = parse_tokens(parts["len"]), parse_size(parts["pool"])
    tokens = parse_tokens(parts["tokens"]) if "tokens" in parts else None
    try:
        times = float(parts["concurrency"].rstrip("x")) if "concurrency" in parts else None
    except ValueError:
        raise UsageError(f"--from-log {text}: {parts['concurrency']!r} is no concurrency") from None
    return _counted(text, length, tokens, times, pool)


def _counted(source: str, length: int, tokens: int | None, times: float | None, pool: int) -> LogPoint:
    held = round(times * length) if times is not None else tokens
    if not held or length < 1 or pool < 1:
        raise KvplanError(f"{source}: no tokens, no length or no pool to divide by")
    point = LogPoint(source=source, context_tokens=length, tokens=held, pool_bytes=pool)
    return replace(point, stated_tokens=tokens) if times is not None and tokens is not None else point


def _vllm(text: str, name: str) -> LogPoint:
    pool, tokens, times = (_last(pattern, text) for pattern in (VLLM_POOL, VLLM_TOKENS, VLLM_CONCURRENCY))
    if pool is None or times is None:
        missing = "Available KV cache memory" if pool is None else "Maximum concurrency"
        raise KvplanError(f"{name}: no line {missing!r} of vLLM, which says what the tokens take")
    stated = int(tokens[1].replace(",", "")) if tokens else None
    length, many = int(times[1].replace(",", "")), float(times[2])
    # Two decimals of a small concurrency are coarse; the token figure says the same exactly where both agree.
    if stated is not None and abs(many * length - stated) <= 0.006 * length:
        return _counted(name, length, stated, None, round(float(pool[1]) * GiB))
    return _counted(name, length, stated, many, round(float(pool[1]) * GiB))


def _last(pattern: re.Pattern[str], text: str) -> re.Match[str] | None:
    found = None
    for found in pattern.finditer(text):  # noqa: B007 - only the last start of a log counts
        pass
    return found


def _sglang(text: str, name: str) -> Direct:
    """Pools of full layers and windows in the order made; the longest pool has all the tokens."""
    pools = [
        (int(found[1]), (float(found[2]) + float(found[3]) if found[2] else float(found[4])) * GiB)
        for found in SGLANG_POOL.finditer(text)
    ]
    tokens = max(count for count, _ in pools)
    slope = sum(size / count for count, size in pools if count == tokens)
    fixed = 0.0
    state = _last(SGLANG_STATE, text)
    if state is not None:
        fixed = (float(state[2]) + float(state[3])) * GiB / (int(state[1]) + 1)
    length = _last(SGLANG_CONTEXT, text)
    size = sum(size for _, size in pools)
    point = LogPoint(
        source=name, context_tokens=int(length[1]) if length else tokens, tokens=tokens, pool_bytes=round(size)
    )
    return Direct(slope, fixed, point)


def _llama_cpp(text: str, name: str) -> Direct:
    """Caches of full layers grow with the context; windows and state are fixed for each slot."""
    slope, fixed, cells, slots, windowed, total = 0.0, 0.0, 0, 1, False, 0.0
    for line in text.splitlines():
        made = LLAMA_WINDOW.search(line)
        if made:
            windowed = "non-SWA" not in made[0] and "SWA" in made[0]
        found = LLAMA_CELLS.search(line)
        if not found:
            continue
        size, count = float(found[1]) * MiB, int(found[2])
        slots, streams = int(found[3]), int(found[4] or found[3])
        total += size
        if found[5] == "R" or windowed:
            fixed += size / max(1, slots)
        else:
            slope += size / (count * streams)
            cells = max(cells, count * streams)
    length = _last(LLAMA_CONTEXT, text)
    point = LogPoint(
        source=name, context_tokens=int(length[1]) if length else cells or 1, tokens=cells or 1, pool_bytes=round(total)
    )
    return Direct(slope, fixed, point)
