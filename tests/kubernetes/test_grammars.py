"""Quantities and times of the API over the whole of their grammars, which are written down here from their
specifications."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from stoker.backends.kubernetes.objects import amount, nanoseconds, seconds, version_numbers
from stoker.backends.kubernetes.settings import KubernetesSettings
from stoker.core.errors import SettingsError

# https://pkg.go.dev/k8s.io/apimachinery/pkg/api/resource#Quantity

DIGITS = st.text("0123456789", min_size=1, max_size=30)
NUMBERS = st.one_of(
    DIGITS,
    DIGITS.map(lambda whole: f"{whole}."),
    DIGITS.map(lambda part: f".{part}"),
    st.tuples(DIGITS, DIGITS).map(".".join),
)
SIGNS = st.sampled_from(["", "+", "-"])
BINARY = {"Ki": 10, "Mi": 20, "Gi": 30, "Ti": 40, "Pi": 50, "Ei": 60}
DECIMAL = {"n": -9, "u": -6, "m": -3, "": 0, "k": 3, "M": 6, "G": 9, "T": 12, "P": 15, "E": 18}
EXPONENTS = st.tuples(st.sampled_from("eE"), SIGNS, st.integers(0, 60)).map(lambda parts: "".join(map(str, parts)))
SUFFIXES = st.sampled_from([*BINARY, *DECIMAL]) | EXPONENTS


def exactly(sign: str, number: str, suffix: str) -> Fraction:
    """The value of a quantity: what is finer than 10^-9 is rounded away from zero, and binary ones end at 2^63 - 1."""
    whole, _, part = number.partition(".")
    value = Fraction(int(whole + part or "0"), 10 ** len(part))
    if suffix in BINARY:
        value *= 2 ** BINARY[suffix]
    else:
        value *= Fraction(10) ** (DECIMAL[suffix] if suffix in DECIMAL else int(suffix[1:]))
    value = Fraction(-(-value.numerator * 10**9 // value.denominator), 10**9)
    if suffix in BINARY:
        value = min(value, Fraction(2**63 - 1))
    return -value if sign == "-" else value


@given(SIGNS, NUMBERS, SUFFIXES)
@example("", "24581696", "Ki")
@example("", "1", "E")
@example("-", ".5", "e-60")
def test_every_quantity_has_its_value(sign: str, number: str, suffix: str) -> None:
    found = amount(f"{sign}{number}{suffix}")
    assert found is not None
    assert Fraction(found) == exactly(sign, number, suffix)


@given(st.integers(-(10**25), 10**25) | st.floats(-1e25, 1e25))
def test_a_number_of_json_is_a_quantity(number: float) -> None:
    found = amount(number)
    assert found is not None and abs(Fraction(found) - Fraction(str(number))) < Fraction(1, 10**9)


BROKEN = (
    lambda sign, number, suffix: f"{sign}{number}{suffix}B",
    lambda sign, number, suffix: f"{sign}+{number}{suffix}" if sign else f"++{number}{suffix}",
    lambda sign, number, suffix: f"{sign}{number}.1.{suffix}",
    lambda sign, number, suffix: f"{sign}{number} {suffix or 'k'}",
    lambda sign, number, suffix: f"{sign}{suffix}" if not suffix[1:].isdecimal() else sign,
    lambda sign, number, suffix: f"{sign}{number}{suffix}i" if suffix not in [*"KMGTPE", "k"] else "i",
    lambda sign, number, suffix: f"{sign}{number}{suffix}_",
    lambda sign, number, suffix: f"{sign}٣{number}{suffix}",
    lambda sign, number, suffix: f"{sign}{number}e{suffix}x",
    lambda sign, number, suffix: f"{sign}{number}K",
    lambda sign, number, suffix: "0" * 2000 + number,
)


@given(st.sampled_from(BROKEN), SIGNS, NUMBERS, SUFFIXES)
def test_what_is_no_quantity_is_unknown(broken: Any, sign: str, number: str, suffix: str) -> None:
    assert amount(broken(sign, number, suffix)) is None


@pytest.mark.parametrize(
    "value", [None, True, False, "", ".", "+", "Ki", {}, [], "1e", "1e99999999999999", "NaN", "Inf"]
)
def test_what_is_no_number_at_all_is_unknown(value: Any) -> None:
    assert amount(value) is None


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"pod_resources": {"limits": {"memory": "16GB"}}}, ('limits.memory: \'16GB\' is no quantity', 'write "16G"')),
        ({"pod_resources": {"requests": {"cpu": "two"}}}, ("requests.cpu: 'two' is no quantity", "write a number")),
        ({"pod_resources": {"requests": {"cpu": -1}}}, ("requests.cpu: -1 is no quantity", "write a number such")),
        ({"extended_resources": {"example.com/fpga": "one"}}, ("example.com/fpga: 'one' is no quantity", "write")),
        (
            {"volumes": [{"name": "scratch", "emptyDir": {"medium": "Memory", "sizeLimit": "512mb"}}]},
            ("emptyDir.sizeLimit: '512mb' is no quantity", 'write "512M"'),
        ),
        ({"pod_spec": {"overhead": {"memory": "64mib"}}}, ("overhead.memory: '64mib' is no quantity", 'write "64Mi"')),
        (
            {"overlay": {"spec": {"containers": [{"name": "step", "resources": {"limits": {"cpu": "1 core"}}}]}}},
            ("spec.containers[0].resources.limits.cpu: '1 core' is no quantity", "write"),
        ),
        ({"pod_settings": {"resources": {"limits": {"memory": "1 GiB"}}}}, ("'1 GiB' is no quantity", 'write "1Gi"')),
    ],
)  # fmt: skip
def test_a_quantity_that_a_person_writes_is_one(settings: dict[str, Any], words: tuple[str, str]) -> None:
    with pytest.raises(SettingsError) as error:
        KubernetesSettings(**settings)
    assert words[0] in error.value.message and words[1] in error.value.fix


# https://www.rfc-editor.org/rfc/rfc3339#section-5.6

MOMENTS = st.datetimes(timezones=st.just(timezone.utc)).map(lambda each: each.replace(microsecond=0))
ZONES = st.just(("Z", 0)) | st.tuples(SIGNS.filter(bool), st.integers(0, 23), st.integers(0, 59)).map(
    lambda zone: (f"{zone[0]}{zone[1]:02}:{zone[2]:02}", (zone[1] * 60 + zone[2]) * (-1 if zone[0] == "-" else 1))
)
EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)


@given(MOMENTS, st.just("") | DIGITS, ZONES, st.booleans(), st.booleans())
@example(datetime(2026, 11, 21, 4, 53, 50, tzinfo=timezone.utc), "816630166", ("Z", 0), False, False)
def test_every_time_has_its_moment(
    moment: datetime, fraction: str, zone: tuple[str, int], small: bool, leap: bool
) -> None:
    leap = leap and moment.second == 59
    text = f"{moment:%H:%M:%S}" if not leap else f"{moment:%H:%M}:60"
    text = f"{moment.year:04}-{moment:%m-%d}T{text}{f'.{fraction}' if fraction else ''}{zone[0]}"
    whole = (moment - EPOCH) // timedelta(seconds=1) + leap - zone[1] * 60
    expected = whole * 10**9 + int(fraction[:9].ljust(9, "0"))
    assert nanoseconds(text.lower() if small else text) == expected
    assert seconds(text) == pytest.approx(expected / 10**9)


@given(MOMENTS.map(datetime.isoformat), st.data())
def test_what_is_no_time_is_unknown(text: str, data: st.DataObject) -> None:
    at = data.draw(st.integers(0, len(text) - 1))
    assert nanoseconds(text) is not None
    for broken in (text[:at] + text[at + 1 :], text[:at] + "x" + text[at + 1 :], text[:19], text.replace("T", " "), ""):
        assert nanoseconds(broken) is None, broken
    assert seconds("2026-02-30T00:00:00Z") is seconds("2026-01-01T24:00:00Z") is seconds(None) is None


@pytest.mark.parametrize(
    ("major", "minor", "numbers"),
    [("1", "36", (1, 36)), ("1", "29+", (1, 29)), ("1", "9-gke.2", (1, 9)), ("", "", None), (None, "30", None)],
)
def test_versions_of_servers(major: Any, minor: Any, numbers: Any) -> None:
    assert version_numbers({"major": major, "minor": minor}) == numbers
    assert version_numbers({}) is None
