"""Durations and sizes: what is read, what is refused, and how they are shown."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter, ValidationError

from cloudtrain.job.model import (
    MAX_DURATION,
    MAX_SIZE,
    Duration,
    exact_duration,
    format_duration,
    format_size,
    parse_duration,
    parse_size,
)

SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 604800}
BYTES = {"": 1, "b": 1, "k": 2**10, "m": 2**20, "g": 2**30, "t": 2**40}


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("90", 90), (90, 90), ("90s", 90), ("2h", 7200), ("1h30m", 5400), ("1h 30m", 5400), ("1.5d", 129600), (" 2 H ", 7200),
     ("1.1h", 3960), ("0.7m", 42), ("2w", 1209600)],
)  # fmt: skip
def test_durations_that_are_read(text: object, seconds: int) -> None:
    """Numbers are seconds; fractions are exact (1.1 h is 3960 s, which binary floats miss)."""
    assert parse_duration(text) == seconds


BAD_DURATIONS = ["1.5", "-1h", "nan", "inf", "1e9h", "٣h", "1h٣", "", " ", "h", "2x", "1h-2m", "0", "0s", "1.5s", "2h\n",
                 "9" * 13, "999999999999w", 0, -5, 1.5, 2.0, True, False, float("nan"), [], 2**31]  # fmt: skip


@pytest.mark.parametrize("value", BAD_DURATIONS)
def test_durations_that_are_refused(value: object) -> None:
    """Fractions without a unit, signs, exponents, other digits, zero and more than 32 bits are no durations."""
    with pytest.raises(ValueError, match=r"second|duration|68 years"):
        parse_duration(value)
    with pytest.raises(ValidationError):
        TypeAdapter(Duration).validate_python(value)


BAD_SIZES = ["1.5", "-1g", "nan", "1e9g", "٣g", "", "g", "2x", "0", "0g", "0.3k", "9" * 13, "99999999999t", 0, -1, 1.5, True, None,
             "1 g g", "64gg", "64ib", 2**63]  # fmt: skip


@pytest.mark.parametrize("value", BAD_SIZES)
def test_sizes_that_are_refused(value: object) -> None:
    """The same for sizes."""
    with pytest.raises(ValueError, match=r"byte|size|8 EiB"):
        parse_size(value)


@pytest.mark.parametrize(
    ("text", "size"),
    [("64g", 64 * 2**30), ("64GiB", 64 * 2**30), ("64 gb", 64 * 2**30), ("512m", 2**29), ("1.5t", 3 * 2**39), ("1024", 1024), (7, 7),
     ("12b", 12)],
)  # fmt: skip
def test_sizes_that_are_read(text: object, size: int) -> None:
    """Units are powers of 1024 however they are spelt."""
    assert parse_size(text) == size


@given(
    st.integers(1, 10**6),
    st.sampled_from(sorted(SECONDS)),
    st.sampled_from(["", " "]),
    st.booleans(),
)
def test_a_duration_is_its_number_times_its_unit(
    count: int, unit: str, gap: str, upper: bool
) -> None:
    """Whatever the case and the gap; or it is too long, and says so."""
    text = f"{count}{gap}{unit.upper() if upper else unit}"
    seconds = count * SECONDS[unit]
    if seconds > MAX_DURATION:
        with pytest.raises(ValueError, match="68 years"):
            parse_duration(text)
    else:
        assert parse_duration(text) == seconds


@given(st.integers(1, 10**9), st.sampled_from(sorted(BYTES)))
def test_a_size_is_its_number_times_its_unit(count: int, unit: str) -> None:
    """Up to what fits in 63 bits."""
    size = count * BYTES[unit]
    if size <= MAX_SIZE:
        assert parse_size(f"{count}{unit}") == size


@given(st.text(max_size=12))
def test_any_text_is_a_duration_or_one_clear_error(text: str) -> None:
    """No text makes anything else than a whole number of seconds or a ValueError."""
    try:
        seconds = parse_duration(text)
    except ValueError:
        return
    assert 1 <= seconds <= MAX_DURATION


@given(st.integers(10, 10**8))
def test_a_shown_duration_reads_back(seconds: int) -> None:
    """Two units are shown, so what is lost is less than one of the smaller unit."""
    shown = format_duration(seconds)
    smallest = min(SECONDS[unit] for unit in shown if unit in SECONDS)
    assert (
        0
        <= seconds - parse_duration(shown)
        < max(SECONDS[next(u for u in shown if u in SECONDS)], smallest)
    )


@given(st.integers(1, 1023), st.sampled_from(["B", "KiB", "MiB", "GiB", "TiB"]))
def test_a_shown_size_reads_back(count: int, unit: str) -> None:
    """Whole numbers of a unit are shown exactly."""
    size = count * BYTES[unit[0].lower() if unit != "B" else "b"]
    assert parse_size(format_size(size).removesuffix(" B")) == size


def test_the_field_says_what_to_write() -> None:
    """The error names the value; the hint gives examples."""
    with pytest.raises(ValueError, match='`"soon"` is not a duration'):
        parse_duration("soon")


@pytest.mark.parametrize(
    ("seconds", "text"), [(0, "0s"), (2.44, "2.4s"), (45, "45s"), (5400, "1h30m"), (90061, "1d1h")]
)
def test_how_durations_are_shown(seconds: float, text: str) -> None:
    """The two largest units; short ones with a decimal."""
    assert format_duration(seconds) == text


@given(st.integers(1, 2**31 - 1))
def test_exact_durations_read_back(seconds: int) -> None:
    """With all their units."""
    assert parse_duration(exact_duration(seconds)) == seconds
