"""Sizes, durations and counts: what is taken, what is refused and in which words, and that printing is exact."""

from __future__ import annotations

import copy
import pickle
from datetime import timedelta
from typing import Any, Callable

import attrs
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stoker.core import units
from stoker.core.errors import SettingsError
from stoker.core.resources import ResourceSettings
from stoker.core.units import UNSET


@pytest.mark.parametrize(
    ("written", "count"),
    [
        ("16GB", 16 * 10**9),
        ("16GiB", 16 * 2**30),
        ("16Gi", 16 * 2**30),
        ("16G", 16 * 10**9),
        ("1.5 GB", 1_500_000_000),
        ("512 MB", 512 * 10**6),
        ("8gb", 8 * 10**9),
        (".5KiB", 512),
        ("4096", 4096),
        ("12B", 12),
        (" 2 TiB ", 2 * 2**40),
        ("1PB", 10**15),
        (1024, 1024),
        (1e9, 10**9),
    ],
)
def test_size(written: Any, count: int) -> None:
    found = units.size(written)
    assert found == count
    assert type(found) is int


@pytest.mark.parametrize(
    ("written", "words"),
    [
        ("lots", "'lots' is not a size"),
        ("", "'' is not a size"),
        ("16 QB", "unknown unit 'QB'"),
        ("16GBs", "did you mean"),
        ("-1GB", "'-1GB' is not a size"),
        ("1e3", "unknown unit 'e'|is not a size"),
        ("0GB", "more than nothing"),
        (0, "more than nothing"),
        (-5, "more than nothing"),
        (1.5, "not whole"),
        (True, "True is not a size"),
        (float("nan"), "finite"),
        (float("inf"), "finite"),
        ([], r"\[\] is not a size"),
    ],
)
def test_size_refused(written: Any, words: str) -> None:
    with pytest.raises(SettingsError, match=words) as caught:
        units.size(written)
    assert '"16GB"' in caught.value.fix


@pytest.mark.parametrize(
    ("written", "words", "fix"),
    [
        (16, "16 is 16B, which is too little", 'write "16GB"'),
        ("16", "'16' is 16B", 'write "16GB"'),
        ("0.5KB", "500B", 'write "0.5GB"'),
        (512, "512 is 512B", 'write "512MB" or "512GB"'),
        (16000, "16000 is 16KB", 'write "16000MB"'),
        ("800KB", "800KB", 'write "800MB" or "800GB"'),
        (10**6 - 1, "999999B", 'write "999999MB"'),
    ],
)
def test_a_size_below_any_use_is_refused_with_what_it_may_mean(written: Any, words: str, fix: str) -> None:
    with pytest.raises(SettingsError) as error:
        units.parse_size(written)
    assert words in error.value.message
    assert error.value.fix == fix
    assert units.size(written) < units.LEAST_SIZE


def test_the_least_size_and_every_larger_one_are_taken() -> None:
    assert units.parse_size(2**20) == units.parse_size("1MiB") == 2**20
    assert units.parse_size("64MiB") == 2**26


@pytest.mark.parametrize("field", ["memory", "shared_memory", "disk", "gpu_memory"])
def test_every_size_of_a_step_is_checked(field: str) -> None:
    with pytest.raises(SettingsError, match=rf"{field}: 16 is 16B") as error:
        ResourceSettings(**{field: 16})
    assert error.value.fix == 'write "16GB"'


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (16_000_000_000, "16GB"),
        (17_179_869_184, "16GiB"),
        (1_500_000_000, "1500MB"),
        (1024, "1KiB"),
        (1000, "1KB"),
        (1025, "1025B"),
        (10**15, "1PB"),
    ],
)
def test_size_text(count: int, text: str) -> None:
    assert units.size_text(count) == text


@given(st.integers(min_value=1, max_value=2**60))
def test_size_comes_back(count: int) -> None:
    assert units.size(units.size_text(count)) == count


@given(st.integers(min_value=1, max_value=10**6), st.sampled_from(sorted({**units.DECIMAL, **units.BINARY})))
def test_size_of_any_unit_is_exact(amount: int, unit: str) -> None:
    assert units.size(f"{amount}{unit}") == amount * {**units.DECIMAL, **units.BINARY}[unit]


@pytest.mark.parametrize(
    ("written", "seconds"),
    [
        ("2h", 7200.0),
        ("90s", 90.0),
        ("1h30m", 5400.0),
        ("1h 30m", 5400.0),
        ("500ms", 0.5),
        ("1.5 hours", 5400.0),
        ("2 days", 172800.0),
        ("10 min", 600.0),
        ("45", 45.0),
        (0, 0.0),
        (2.5, 2.5),
        (timedelta(minutes=2), 120.0),
    ],
)
def test_duration(written: Any, seconds: float) -> None:
    assert units.duration(written) == seconds


@pytest.mark.parametrize(
    ("written", "words"),
    [
        ("soon", "'soon' is not a duration"),
        ("", "'' is not a duration"),
        ("2 fortnights", "unknown unit 'fortnights'"),
        ("30m1h", "from large to small"),
        ("1h1h", "from large to small"),
        ("1h and more", "not a duration|unknown unit"),
        (-1, "negative"),
        (timedelta(seconds=-3), "negative"),
        (False, "False is not a duration"),
        (float("inf"), "finite"),
        (None, "None is not a duration"),
    ],
)
def test_duration_refused(written: Any, words: str) -> None:
    with pytest.raises(SettingsError, match=words) as caught:
        units.duration(written)
    assert '"1h30m"' in caught.value.fix


def test_a_limit_of_nothing_is_refused() -> None:
    assert units.positive_duration("1ms") == 0.001
    with pytest.raises(SettingsError, match="no time at all"):
        units.positive_duration(0)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(5400.0, "1h 30m"), (0.5, "500ms"), (0.0, "0s"), (86_400.0, "1d"), (90.25, "1m 30s 250ms"), (0.0001, "0.0001s")],
)
def test_duration_text(seconds: float, text: str) -> None:
    assert units.duration_text(seconds) == text


@given(st.integers(min_value=0, max_value=10**11))
def test_duration_comes_back(thousandths: int) -> None:
    seconds = thousandths / 1000
    assert units.duration(units.duration_text(seconds)) == pytest.approx(seconds, rel=1e-12, abs=1e-12)


@pytest.mark.parametrize(
    ("parse", "written", "value"),
    [
        (units.number, "2", 2.0),
        (units.number, 0.5, 0.5),
        (units.count, "2", 2),
        (units.count, 0, 0),
        (units.count, 4.0, 4),
    ],
)
def test_numbers(parse: Callable[[Any], float], written: Any, value: float) -> None:
    found = parse(written)
    assert found == value
    assert not isinstance(found, bool)


@pytest.mark.parametrize(
    ("parse", "written", "words"),
    [
        (units.number, 0, "not above 0"),
        (units.number, "-1", "'-1' is not a number"),
        (units.number, True, "True is not a number"),
        (units.number, float("nan"), "finite"),
        (units.count, 1.5, "not whole"),
        (units.count, "1.5", "not whole"),
        (units.count, -1, "-1 is less than 0"),
        (units.count, False, "False is not a whole number"),
        (units.count, "two", "'two' is not a whole number"),
    ],
)
def test_numbers_refused(parse: Callable[[Any], float], written: Any, words: str) -> None:
    with pytest.raises(SettingsError, match=words):
        parse(written)


def test_unset_is_one_false_thing() -> None:
    assert not UNSET
    assert repr(UNSET) == "UNSET"
    assert copy.deepcopy(UNSET) is UNSET
    assert pickle.loads(pickle.dumps(UNSET)) is UNSET
    assert units.value_or(UNSET, 3) == 3
    assert units.value_or(None, 3) == 3
    assert units.value_or(0, 3) == 0


def _doubled(value: int) -> int:
    if value < 0:
        raise SettingsError("too small", fix="more")
    return 2 * value


@units.strict
@attrs.frozen
class _Pair:
    first: int = 1
    second: int = attrs.field(default=0, converter=_doubled, kw_only=True)


def test_strict_names_what_is_wrong() -> None:
    assert _Pair(5, second=0) == _Pair(first=5)
    with pytest.raises(SettingsError, match="_Pair has no field 'secnd', did you mean 'second'"):
        _Pair(secnd=1)  # type: ignore[call-arg]
    with pytest.raises(SettingsError, match="second: too small") as caught:
        _Pair(second=-1)
    assert caught.value.fix == "more"
    with pytest.raises(SettingsError, match="fields by name"):
        _Pair(1, 2)  # type: ignore[call-arg]


@settings(max_examples=50)
@given(st.text(max_size=12))
def test_any_text_parses_or_is_refused_in_our_words(text: str) -> None:
    for parse in (units.size, units.duration, units.number, units.count):
        try:
            found: float | str = parse(text)
        except SettingsError as error:
            found = error.fix
        assert found if isinstance(found, str) else found >= 0
