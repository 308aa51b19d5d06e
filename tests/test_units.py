"""Units: what is printed can be read back, and what is ambiguous is refused."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvplan import units
from kvplan.errors import UsageError


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("512GiB", 512 * 2**30),
        ("512GB", 512 * 10**9),
        ("4TB", 4 * 10**12),
        ("1.5 GiB", 3 * 2**29),
        ("0B", 0),
        ("64kb", 64_000),
        ("1_024MiB", 2**30),
    ],
)
def test_sizes_say_their_base(text: str, count: int) -> None:
    assert units.parse_size(text) == count


@pytest.mark.parametrize("text", ["512", "512G", "512k", "1M", "GiB", "", "-1GiB", "1e9B", "12 parsecs", "nanGiB"])
def test_a_size_without_a_clear_unit_is_refused(text: str) -> None:
    with pytest.raises(UsageError):
        units.parse_size(text)


def test_the_refusal_offers_both_spellings() -> None:
    with pytest.raises(UsageError, match=r"512GiB.*512GB"):
        units.parse_size("512G")


@given(st.integers(0, 2**60))
def test_exact_bytes_can_be_read_back(count: int) -> None:
    assert units.parse_size(units.show_exact(count).split("(")[0].replace(",", "")) == count


@given(st.integers(2**30, 2**50))
def test_shown_memory_reads_back_to_its_last_digit(count: int) -> None:
    assert abs(units.parse_size(units.show_bytes(count).replace(",", "")) - count) <= 0.005 * 2**30


@pytest.mark.parametrize(
    ("text", "seconds"), [("30s", 30), ("5m", 300), ("5min", 300), ("24h", 86400), ("7d", 604800), ("250ms", 0.25)]
)
def test_durations(text: str, seconds: float) -> None:
    assert units.parse_duration(text) == pytest.approx(seconds)


@pytest.mark.parametrize("text", ["30", "5M", "fast", ""])
def test_a_duration_without_a_unit_is_refused(text: str) -> None:
    with pytest.raises(UsageError):
        units.parse_duration(text)


@pytest.mark.parametrize(("text", "tokens"), [("32768", 32768), ("32k", 32768), ("1M", 2**20), ("0.5k", 512)])
def test_token_counts(text: str, tokens: int) -> None:
    assert units.parse_tokens(text) == tokens


@pytest.mark.parametrize("text", ["1.5", "32kB", "ten", ""])
def test_a_strange_token_count_is_refused(text: str) -> None:
    with pytest.raises(UsageError):
        units.parse_tokens(text)


def test_gigabytes_and_gibibytes_per_second_differ() -> None:
    assert units.parse_rate("64GiB/s") / units.parse_rate("64GB/s") == pytest.approx(1.0737, abs=1e-4)


@pytest.mark.parametrize("text", ["25", "25GB", "25GB/h", "25Gb/s/s"])
def test_a_strange_rate_is_refused(text: str) -> None:
    with pytest.raises(UsageError):
        units.parse_rate(text)


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [
        (0, "0 s"),
        (2e-6, "2 µs"),
        (0.043, "43 ms"),
        (1.2, "1.2 s"),
        (252, "4.2 min"),
        (11160, "3.1 h"),
        (1036800, "12 d"),
    ],
)
def test_durations_are_shown_at_their_scale(seconds: float, shown: str) -> None:
    assert units.show_duration(seconds) == shown


def test_tokens_rates_and_shares_are_shown_short() -> None:
    assert units.show_tokens(99_999) == "99,999"
    assert units.show_tokens(1_234_567) == "1.23 M"
    assert units.show_rate(25.1e9) == "25.10 GB/s"
    assert units.show_rate(12e6) == "12.00 MB/s"
    assert units.show_percent(0.37362) == "37.4 %"
    assert [units.counted(count, "request") for count in (0, 1, 1234)] == ["0 requests", "1 request", "1,234 requests"]
