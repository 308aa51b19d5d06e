"""Bytes, rates, durations and token counts: read them from a command line, print them for a person.

Inside kvplan every quantity is a number in its base unit (bytes, seconds, tokens). This module is
the only place where a unit is written or read as text. Memory prints in binary units (GiB) and
bandwidth in decimal ones (GB/s), as memory and drive vendors do; input must say which it means.
"""

from __future__ import annotations

import re

from kvplan.errors import UsageError

KiB, MiB, GiB, TiB = 1024, 1024**2, 1024**3, 1024**4
KB, MB, GB, TB = 10**3, 10**6, 10**9, 10**12

_SIZES = {
    "B": 1,
    "KIB": KiB,
    "MIB": MiB,
    "GIB": GiB,
    "TIB": TiB,
    "PIB": 1024**5,
    "KB": KB,
    "MB": MB,
    "GB": GB,
    "TB": TB,
    "PB": 10**15,
}
_DURATIONS = {"ms": 0.001, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86400.0, "w": 604800.0}
_TOKENS = {"": 1, "k": 1024, "K": 1024, "m": 1024**2, "M": 1024**2}
_NUMBER = re.compile(r"^\s*([0-9][0-9_]*(?:\.[0-9]+)?)\s*([A-Za-z/]*)\s*$")


def _split(text: str, what: str, example: str) -> tuple[float, str]:
    match = _matched(text, what, example)
    return float(match[1].replace("_", "")), match[2]


def _matched(text: str, what: str, example: str) -> re.Match[str]:
    match = _NUMBER.match(text)
    if match is None:
        raise UsageError(f"{text!r} is not {what}: write for example {example}")
    return match


def parse_size(text: str) -> int:
    """Bytes in a size such as '512GiB' (1024-based) or '4TB' (1000-based).

    A bare number and the ambiguous 'G' or 'k' are refused: the two readings of 512G differ by 7 %.
    """
    match = _matched(text, "a size", "512GiB or 512GB")
    number, unit = match[1].replace("_", ""), match[2]
    factor = _SIZES.get(unit.upper())
    if factor is None:
        letter = unit[:1].upper() if unit[:1].upper() in "KMGTP" and unit else "G"
        raise UsageError(
            f"{text!r} does not say its unit: write {number}{letter}iB (1024-based) or {number}{letter}B (1000-based)"
        )
    whole, _, decimals = number.partition(".")  # not through a float, which cannot count past 9 PB by the byte
    return int(whole) * factor + round(float(f"0.{decimals or 0}") * factor)


def parse_duration(text: str) -> float:
    """Seconds in a duration such as '90s', '5m', '24h' or '250ms'."""
    value, unit = _split(text, "a duration", "30s, 5m or 24h")
    factor = _DURATIONS.get(unit)
    if factor is None:
        raise UsageError(f"{text!r} does not say its unit: write for example 30s, 5m, 24h or 7d")
    return value * factor


def parse_tokens(text: str) -> int:
    """Tokens in a count such as '32768', '32k' or '1M' (1024-based, as context lengths are named)."""
    value, unit = _split(text, "a token count", "32768 or 32k")
    factor = _TOKENS.get(unit)
    if factor is None or value * factor != int(value * factor):
        raise UsageError(f"{text!r} is not a token count: write for example 32768 or 32k (32 x 1024)")
    return int(value * factor)


def parse_rate(text: str) -> float:
    """Bytes per second in a rate such as '25GB/s' or '3GiB/s'."""
    value, unit = _split(text, "a rate", "25GB/s")
    size, slash, per = unit.partition("/")
    factor = _SIZES.get(size.upper())
    if factor is None or not slash or per != "s":
        raise UsageError(f"{text!r} is not a rate: write for example 25GB/s or 25GiB/s")
    return value * factor


def show_bytes(count: float) -> str:
    """'40.00 GiB'; below 1 GiB the largest binary unit that leaves a number of at least 1."""
    for unit, factor in (("GiB", GiB), ("MiB", MiB), ("KiB", KiB)):
        if abs(count) >= factor:
            return f"{count / factor:,.2f} {unit}"
    return f"{count:,.0f} B"


def show_exact(count: int) -> str:
    """'131,072 B (128.00 KiB)': the exact integer with its reading."""
    return f"{count:,} B ({show_bytes(count)})" if count >= KiB else f"{count:,} B"


def show_rate(bytes_per_s: float) -> str:
    """'25.10 GB/s', decimal, as links and drives are sold."""
    for unit, factor in (("GB/s", GB), ("MB/s", MB)):
        if bytes_per_s >= factor:
            return f"{bytes_per_s / factor:,.2f} {unit}"
    return f"{bytes_per_s / KB:,.1f} kB/s"


def show_duration(seconds: float) -> str:
    """'1.20 s', '43 ms', '4.2 min', '3.1 h', '12 d'."""
    size = abs(seconds)
    if size == 0:
        return "0 s"
    if size < 0.001:
        return f"{seconds * 1e6:.0f} µs"
    if size < 1:
        return f"{seconds * 1e3:.3g} ms"
    if size < 120:
        return f"{seconds:.3g} s"
    if size < 7200:
        return f"{seconds / 60:.3g} min"
    if size < 172800:
        return f"{seconds / 3600:.3g} h"
    return f"{seconds / 86400:,.3g} d"


def show_tokens(count: float) -> str:
    """'1,234' up to 99,999, then '1.23 M' and '4.5 G' (decimal)."""
    if abs(count) < 100_000:
        return f"{count:,.0f}"
    for unit, factor in (("T", 1e12), ("G", 1e9), ("M", 1e6)):
        if abs(count) >= factor:
            return f"{count / factor:.3g} {unit}"
    return f"{count / 1e3:.3g} k"


def counted(count: int, noun: str) -> str:
    """'1 request', '1,234 requests'."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def show_percent(ratio: float) -> str:
    """'37.4 %' of a ratio 0..1."""
    return f"{ratio * 100:.1f} %"
