"""Cron: read strictly, due when a well-kept library says so, and the same in the dialects of other schedulers."""

from __future__ import annotations

import itertools
import re
import shutil
import subprocess
from datetime import datetime, timedelta, timezone
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

import cronsim
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stoker.core.cron import Cron, check_zone
from stoker.core.errors import SettingsError

ZONES = ("UTC", "Europe/Berlin", "America/New_York", "Australia/Lord_Howe", "Asia/Kolkata")
"""Lord Howe's clock moves by half an hour."""


def fields(least: int, most: int, names: str = "") -> st.SearchStrategy[str]:
    number = st.integers(least, most)
    word = st.sampled_from(names.split()) if names else number.map(str)
    span = st.tuples(number, number).map(lambda pair: f"{min(pair)}-{max(pair)}")
    step = st.integers(1, most)
    wide = span.filter(lambda text: len(set(text.split("-"))) == 2)  # the library takes 5-5/2 for 5-59/2
    stepped = st.tuples(wide | st.just("*"), step).map(lambda pair: f"{pair[0]}/{pair[1]}")
    return st.lists(number.map(str) | word | span | stepped | st.just("*"), min_size=1, max_size=3).map(",".join)


EXPRESSIONS = st.tuples(
    fields(0, 59),
    fields(0, 23),
    fields(1, 31),
    fields(1, 12, "jan feb mar apr may jun jul aug sep oct nov dec"),
    fields(0, 7, "sun mon tue wed thu fri sat SAT"),
).map(" ".join)
NEAR_CHANGES = [
    f"2025-{day} {hour:02}:20"
    for day in ("03-08", "03-09", "03-29", "03-30", "04-05", "10-04", "10-25", "10-26", "11-01", "11-02")
    for hour in (0, 5, 12, 23)
]
"""Around changes of the clock in all these zones."""
TIMES = st.integers(1704067200, 1830297600).map(lambda seconds: datetime.fromtimestamp(seconds, timezone.utc)) | (
    st.sampled_from(NEAR_CHANGES).map(lambda text: datetime.fromisoformat(text).replace(tzinfo=timezone.utc))
)


def due(text: str, after: datetime, zone: str, number: int = 5) -> list[datetime]:
    found = itertools.islice(Cron.parse(text).times(after, zone), number)
    return [moment.astimezone(timezone.utc) for moment in found]


def parsed(text: str) -> bool:
    try:
        Cron.parse(text)
    except SettingsError:
        return False
    return True


@given(EXPRESSIONS, TIMES, st.sampled_from(ZONES))
def test_due_when_a_well_kept_library_says_so(text: str, moment: datetime, zone: str) -> None:
    after = moment.astimezone(ZoneInfo(zone))
    try:
        expected = cronsim.CronSim(text, after)
    except cronsim.CronSimError:
        assert not parsed(text), text
        return
    times = [one.astimezone(timezone.utc) for one in itertools.islice(expected, 12)]
    times = sorted({one for one in times if one > after})[:5]  # it repeats a time that the clock was moved to
    assert due(text, after, zone, len(times)) == times


@pytest.mark.parametrize(
    ("text", "message", "fix"),
    [
        ("0 6 * *", "'0 6 * *' has 4 fields, and a schedule has 5", "write minute hour"),
        ("0 0 6 * * 1", "has 6 fields, and a schedule has 5 (cron has no seconds and no years)", "write minute hour"),
        ("60 6 * * *", "column 1 (minute): 60 is no minute", "write 0 to 59"),
        ("0 6 * * mo", "column 9 (day of the week): 'mo' is no day of the week, did you mean 'mon'", "sun to sat"),
        ("0 22-2 * * *", "column 3 (hour): the range '22-2' goes backwards", "write 22-23,0-2"),
        ("0 0 * * fri-sun", "the range 'fri-sun' goes backwards", "write fri-7"),
        ("0 0 * * sat-mon", "the range 'sat-mon' goes backwards", "write 6,0-1"),
        ("5/15 * * * *", "'5/15' has a step and no range", "write 5-59/15"),
        ("*/0 * * * *", "column 3 (minute): '0' is no step", "write a number from 1 to 59"),
        ("0,,5 * * * *", "column 3 (minute): a number is missing beside a comma", "leave the comma out"),
        ("0 0 ٣ * *", "'٣' is no day of the month", "write a number from 1 to 31"),
        ("0 0 31 2,4 *", "is never due: none of its months has a day 31", "up to 30"),
        ("@dayly", "'@dayly' is no schedule, did you mean '@daily'", "write minute hour"),
        ("@reboot", "'@reboot' is no schedule", "write minute hour"),
    ],
)
def test_a_mistake_has_a_place_and_a_proposal(text: str, message: str, fix: str) -> None:
    with pytest.raises(SettingsError) as caught:
        Cron.parse(text)
    assert message in str(caught.value)
    assert fix in caught.value.fix


def test_words_and_zones() -> None:
    assert Cron.parse(" @Weekly ").text == "0 0 * * 0"
    with pytest.raises(SettingsError, match="there is no time zone 'Europe/Berln' here"):
        check_zone("Europe/Berln")
    for name in ("", "../etc/passwd", "Europe"):
        with pytest.raises(SettingsError, match="there is no time zone"):
            check_zone(name)


@pytest.mark.parametrize(
    ("text", "five", "systemd", "aws"),
    [
        ("0 6 * * 1-5", "0 6 * * 1-5", ("Mon,Tue,Wed,Thu,Fri *-*-* 6:0:00 UTC",), "cron(0 6 ? * 2,3,4,5,6 *)"),
        ("*/20 * 1 jan *", "0,20,40 * 1 1 *", ("*-1-1 *:0,20,40:00 UTC",), "cron(0,20,40 * 1 1 ? *)"),
        ("0 0 * * 7", "0 0 * * 0", ("Sun *-*-* 0:0:00 UTC",), "cron(0 0 ? * 1 *)"),
        # Either day: the 1st, and every Friday.
        ("0 0 1 * 5", "0 0 1 * 5", ("*-*-1 0:0:00 UTC", "Fri *-*-* 0:0:00 UTC"), None),
        # Both: every other day, if it is a Friday. Kubernetes and Slurm take it for either.
        ("0 0 */10 * 5", None, ("Fri *-*-1,11,21,31 0:0:00 UTC",), None),
        # Either of which one is every day.
        ("0 0 1-31 * 5", "0 0 * * *", ("*-*-* 0:0:00 UTC",), "cron(0 0 * * ? *)"),
        ("@hourly", "0 * * * *", ("*-*-* *:0:00 UTC",), "cron(0 * * * ? *)"),
    ],
)
def test_the_same_in_other_dialects(text: str, five: str | None, systemd: tuple[str, ...], aws: str | None) -> None:
    cron = Cron.parse(text)
    assert cron.calendar_events("UTC") == systemd
    for expected, written in ((five, cron.five_fields), (aws, cron.eventbridge)):
        if expected is None:
            with pytest.raises(SettingsError, match="a day's number") as caught:
                written()
            assert "add two schedules" in caught.value.fix
        else:
            assert written() == expected


@given(EXPRESSIONS, TIMES)
def test_five_fields_name_the_same_times(text: str, moment: datetime) -> None:
    if not parsed(text):
        return
    try:
        other = Cron.parse(text).five_fields()
    except SettingsError:
        return
    assert due(other, moment, "UTC") == due(text, moment, "UTC")


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd-analyze is not installed")
@pytest.mark.parametrize(
    "text",
    ["0 6 * * 1-5", "*/7 3,4 * * *", "30 2 29 2 *", "0 0 1 * 5", "0 12 */10 * 5", "5 4 1-7,15 6-8 *", "0 0 * * 0"],
)
def test_systemd_computes_the_same_times(text: str) -> None:
    now = datetime.now(timezone.utc)
    for zone in ("UTC", "Asia/Kolkata"):
        found: set[datetime] = set()
        for event in Cron.parse(text).calendar_events(zone):
            command = [
                "systemd-analyze",
                "calendar",
                "--iterations=6",
                f"--base-time={now:%Y-%m-%d %H:%M:%S} UTC",
                event,
            ]
            lines = subprocess.run(
                command, capture_output=True, text=True, check=True, env={"TZ": "UTC", "PATH": "/usr/bin:/bin"}
            )
            for line in re.findall(r"(?:Next elapse|Iter. #\d+): \w+ ([0-9: -]+) UTC", lines.stdout):
                found.add(datetime.strptime(line, "%Y-%m-%d %H:%M:%S").replace(tzinfo=timezone.utc))
        expected = due(text, now.replace(microsecond=0) - timedelta(seconds=1), zone, 6)
        assert sorted(found)[:6] == expected


def test_where_there_are_no_time_zones(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in an image without tzdata."""

    def none(name: str) -> ZoneInfo:
        raise ZoneInfoNotFoundError(name)

    monkeypatch.setattr("stoker.core.cron.ZoneInfo", none)
    moment = datetime(2025, 6, 6, 5, 0, tzinfo=timezone.utc)
    assert due("0 6 * * *", moment, "UTC", 1) == [moment + timedelta(hours=1)]
    with pytest.raises(SettingsError, match="no time zone 'Europe/Berlin' here") as refused:
        due("0 6 * * *", moment, "Europe/Berlin", 1)
    assert "install tzdata" in refused.value.fix
