"""Cron's five fields: read strictly, the times that they name, and the same in the dialects of other schedulers.

Times follow Debian's cron (https://manpages.debian.org/bookworm/cron/cron.8.en.html): what is due within an hour that
the clock skips is due when the clock has moved, what is due in an hour that comes twice is due once; but a schedule
with `*` first in its minutes or hours follows the clock as it goes. Both day fields given means either of them, unless
one begins with `*`: https://manpages.debian.org/bookworm/cron/crontab.5.en.html
"""

from __future__ import annotations

import re
from datetime import datetime, timedelta, timezone, tzinfo
from typing import Final, Iterator, Mapping, Sequence
from zoneinfo import ZoneInfo

from stoker.core.errors import SettingsError, did_you_mean
from stoker.core.values import frozen

_MONTHS: Final = ["jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec"]
_DAYS: Final = ["sun", "mon", "tue", "wed", "thu", "fri", "sat"]
_FIELDS: Final[Sequence[tuple[str, int, int, Mapping[str, int]]]] = (
    ("minute", 0, 59, {}),
    ("hour", 0, 23, {}),
    ("day of the month", 1, 31, {}),
    ("month", 1, 12, {name: number for number, name in enumerate(_MONTHS, 1)}),
    ("day of the week", 0, 7, {name: number for number, name in enumerate(_DAYS)}),
)
"""Name, least, most, and names of numbers of each field."""
_WORDS: Final = {
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
    "@monthly": "0 0 1 * *",
    "@weekly": "0 0 * * 0",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@hourly": "0 * * * *",
}
_LONGEST_MONTHS: Final = (31, 29, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31)
_MINUTE: Final = timedelta(minutes=1)
_DAY: Final = timedelta(days=1)
_GRAMMAR: Final = "minute hour day-of-month month day-of-week, such as '0 6 * * 1-5'"
_SUNDAY: Final = 7


@frozen(kw_only=True)
class Cron:
    """When something is due."""

    text: str
    """Five fields."""
    minutes: tuple[int, ...]
    hours: tuple[int, ...]
    days: tuple[int, ...]
    months: tuple[int, ...]
    weekdays: tuple[int, ...]
    """0 is Sunday."""

    @classmethod
    def parse(cls, text: str) -> Cron:
        """Read five fields or a word such as @daily; a `SettingsError` says where it is wrong and what to write."""
        written = text.strip()
        if written.startswith("@"):
            if written.lower() not in _WORDS:
                hint = did_you_mean(written, _WORDS) or f" (known: {', '.join(_WORDS)})"
                raise SettingsError(f"'{text}' is no schedule{hint}", fix=f"write {_GRAMMAR}")
            written = _WORDS[written.lower()]
        words = [(found.group(), found.start()) for found in re.finditer(r"\S+", written)]
        if len(words) != len(_FIELDS):
            extra = " (cron has no seconds and no years)" if len(words) > len(_FIELDS) else ""
            raise SettingsError(
                f"'{text}' has {len(words)} fields, and a schedule has 5{extra}", fix=f"write {_GRAMMAR}"
            )
        numbers = [_Field(written, start, *field).numbers(word) for (word, start), field in zip(words, _FIELDS)]
        cron = cls(
            text=" ".join(word for word, _ in words),
            minutes=numbers[0],
            hours=numbers[1],
            days=numbers[2],
            months=numbers[3],
            weekdays=tuple(sorted({number % _SUNDAY for number in numbers[4]})),
        )
        longest = max(_LONGEST_MONTHS[month - 1] for month in cron.months)
        if not cron.either_day and min(cron.days) > longest:
            raise SettingsError(
                f"'{text}' is never due: none of its months has a day {min(cron.days)}",
                fix=f"write a day of the month up to {longest}",
            )
        return cron

    @property
    def fields(self) -> list[str]:
        """The five fields as they are written."""
        return self.text.split()

    @property
    def either_day(self) -> bool:
        """Whether a day is due by its number or by its weekday; else it needs both."""
        return not self.fields[2].startswith("*") and not self.fields[4].startswith("*")

    def times(self, after: datetime, zone: str) -> Iterator[datetime]:
        """The due times after a time, in a time zone, in order."""
        place = _place(zone)
        if any(field.startswith("*") for field in self.fields[:2]):
            yield from self._by_the_clock(after, place)
            return
        wall = after.astimezone(place).replace(tzinfo=None)
        last = after
        for due in self._walls(wall - _DAY):
            moment = _moved(due.replace(tzinfo=place))
            if moment > last:
                yield moment
                last = moment

    def last(self, before: datetime, zone: str, *, since: datetime) -> datetime | None:
        """The last due time up to a moment and after another; None where there is none."""
        for back in (timedelta(hours=1), timedelta(days=1), timedelta(days=32), before - since):
            found = None
            for due in self.times(max(since, before - back), zone):
                if due > before:
                    break
                found = due
            if found is not None or before - back <= since:
                return found
        return None

    def _walls(self, wall: datetime) -> Iterator[datetime]:
        """The due times after a time without a zone."""
        wall = wall.replace(second=0, microsecond=0)
        day = wall.replace(hour=0, minute=0)
        while True:
            if self._has_day(day):
                for hour in self.hours:
                    for minute in self.minutes:
                        due = day.replace(hour=hour, minute=minute)
                        if due > wall:
                            yield due
            day += _DAY

    def _by_the_clock(self, after: datetime, place: tzinfo) -> Iterator[datetime]:
        moment = after.astimezone(timezone.utc).replace(second=0, microsecond=0) + _MINUTE
        while True:
            wall = moment.astimezone(place)
            if not self._has_day(wall):
                midnight = wall.replace(hour=0, minute=0, fold=0) + _DAY
                moment = max(_moved(midnight).astimezone(timezone.utc), moment + _MINUTE)
            elif wall.hour not in self.hours:
                moment += _MINUTE * (60 - wall.minute)  # clocks change at full hours
            elif wall.minute not in self.minutes:
                moment += _MINUTE
            else:
                yield wall
                moment += _MINUTE

    def _has_day(self, day: datetime) -> bool:
        if day.month not in self.months:
            return False
        rules = (day.day in self.days, day.isoweekday() % _SUNDAY in self.weekdays)
        return any(rules) if self.either_day else all(rules)

    # The same in other dialects: where the days need both rules or either, not every dialect can say so.

    def five_fields(self) -> str:
        """Five fields in numbers, as Kubernetes and Slurm read them.

        Both take `*/2` in one day field, and a day of the week in the other, for either of them:
        https://pkg.go.dev/github.com/robfig/cron/v3#hdr-CRON_Expression_Format
        """
        days, weekdays = self._day_rules()
        if days and weekdays and not self.either_day:
            raise _refused(self, "needs a day's number and its weekday, which this scheduler cannot say")
        return " ".join(
            [
                *(_listed(numbers, field) for numbers, field in ((self.minutes, _FIELDS[0]), (self.hours, _FIELDS[1]))),
                _listed(days, _FIELDS[2]) if days else "*",
                _listed(self.months, _FIELDS[3]),
                _listed(weekdays, _FIELDS[4]) if weekdays else "*",
            ]
        )

    def calendar_events(self, zone: str) -> tuple[str, ...]:
        """The texts of systemd's OnCalendar=, of which any is due.
        https://www.freedesktop.org/software/systemd/man/latest/systemd.time.html#Calendar%20Events"""
        days, weekdays = self._day_rules()
        month = _listed(self.months, _FIELDS[3], dash="..")
        hours, minutes = _listed(self.hours, _FIELDS[1], dash=".."), _listed(self.minutes, _FIELDS[0], dash="..")
        number = _listed(days, _FIELDS[2], dash="..") if days else "*"
        names = ",".join(_DAYS[day].capitalize() for day in weekdays)
        dates = [f"{names} *-{month}-{number}".strip()]
        if days and weekdays and self.either_day:
            dates = [f"*-{month}-{number}", f"{names} *-{month}-*"]
        return tuple(f"{date} {hours}:{minutes}:00 {zone}" for date in dates)

    def eventbridge(self) -> str:
        """EventBridge's `cron(…)`: six fields, `?` for the day that is not given, Sunday is 1.
        https://docs.aws.amazon.com/scheduler/latest/UserGuide/schedule-types.html#cron-based"""
        days, weekdays = self._day_rules()
        if days and weekdays:
            how = "either a day's number or its weekday" if self.either_day else "a day's number and its weekday"
            raise _refused(self, f"names {how}, and EventBridge takes one of the two")
        fields = (
            _listed(self.minutes, _FIELDS[0]),
            _listed(self.hours, _FIELDS[1]),
            "?" if weekdays else _listed(days, _FIELDS[2]) if days else "*",
            _listed(self.months, _FIELDS[3]),
            ",".join(str(day + 1) for day in weekdays) if weekdays else "?",
            "*",
        )
        return f"cron({' '.join(fields)})"

    def _day_rules(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """(numbers, weekdays) that a day must have, empty for every one."""
        days = () if len(self.days) == 31 else self.days
        weekdays = () if len(self.weekdays) == _SUNDAY else self.weekdays
        if self.either_day and not (days and weekdays):
            return (), ()  # one of the two is every day
        return days, weekdays


@frozen
class _Field:
    """One field, at its place in a text."""

    text: str
    start: int
    name: str
    least: int
    most: int
    names: Mapping[str, int]

    def numbers(self, word: str) -> tuple[int, ...]:
        found: set[int] = set()
        at = self.start
        for item in word.split(","):
            found.update(self._item(item, at))
            at += len(item) + 1
        return tuple(sorted(found))

    def _item(self, item: str, at: int) -> range:
        if not item:
            raise self._error(at, "a number is missing beside a comma", "leave the comma out")
        span, slash, step_text = item.partition("/")
        step = 1
        if slash:
            if not step_text.isdecimal() or not step_text.isascii() or not 1 <= int(step_text[:9]) <= self.most:
                what = f"'{step_text}' is no step of the {self.name}"
                raise self._error(at + len(span) + 1, what, f"write a number from 1 to {self.most} behind the /")
            step = int(step_text)
        if span == "*":
            return range(self.least, self.most + 1, step)
        first, dash, last = span.partition("-")
        low = self._number(first, at)
        if not dash:
            if slash:
                raise self._error(at, f"'{item}' has a step and no range", f"write {span}-{self.most}/{step}")
            return range(low, low + 1)
        high = self._number(last, at + len(first) + 1)
        if low > high:
            top = self.most - (1 if self.most == _SUNDAY else 0)
            rest = f"{low}-{top}" if low < top else f"{low}"
            fix = f"write {first}-7" if self.most == _SUNDAY and high == 0 else f"write {rest},{self.least}-{high}"
            raise self._error(at, f"the range '{span}' goes backwards", fix)
        return range(low, high + 1, step)

    def _number(self, text: str, at: int) -> int:
        if text.isdecimal() and text.isascii():
            number = int(text[:9])
            if self.least <= number <= self.most:
                return number
            raise self._error(at, f"{text[:9]} is no {self.name}", f"write {self.least} to {self.most}")
        if text.lower() in self.names:
            return self.names[text.lower()]
        near = did_you_mean(text, self.names)
        names = f", or {next(iter(self.names))} to {list(self.names)[-1]}" if self.names else ""
        raise self._error(
            at, f"'{text}' is no {self.name}{near}", f"write a number from {self.least} to {self.most}{names}"
        )

    def _error(self, at: int, what: str, fix: str) -> SettingsError:
        return SettingsError(f"'{self.text}', column {at + 1} ({self.name}): {what}", fix=fix)


def check_zone(name: str) -> str:
    """The name of a time zone, such as "Europe/Berlin"; a `SettingsError` for one that is not known here."""
    _place(name)
    return name


def _place(name: str) -> tzinfo:
    """A time zone. UTC is known everywhere, the others where there are files of time zones."""
    if name == "UTC":
        return timezone.utc
    try:
        return ZoneInfo(name)
    except (KeyError, ValueError, OSError):  # ZoneInfoNotFoundError is a KeyError; a folder's name is an OSError
        raise SettingsError(
            f"there is no time zone '{name}' here",
            fix='write a name such as "UTC" or "Europe/Berlin"; in an image without any, install tzdata',
        ) from None


def _moved(moment: datetime) -> datetime:
    """A time that the clock skips as the first one after the gap; every other as it is."""
    there = _by_utc(moment)
    while there.replace(tzinfo=None) != moment.replace(tzinfo=None):
        moment += _MINUTE  # on the wall: both have the same zone
        there = _by_utc(moment)
    return there


def _by_utc(moment: datetime) -> datetime:
    """The same moment by a clock of its zone that is never wrong."""
    return moment.astimezone(timezone.utc).astimezone(moment.tzinfo)


def _listed(numbers: Sequence[int], field: tuple[str, int, int, Mapping[str, int]], *, dash: str = "-") -> str:
    """Numbers as `*`, or as a list of ranges."""
    _, least, most, names = field
    count = most - least + (0 if most == _SUNDAY and names else 1)
    if len(numbers) == count:
        return "*"
    parts: list[list[int]] = []
    for number in numbers:
        if parts and parts[-1][1] == number - 1:
            parts[-1][1] = number
        else:
            parts.append([number, number])
    return ",".join(str(low) if low == high else f"{low}{dash}{high}" for low, high in parts)


def _refused(cron: Cron, why: str) -> SettingsError:
    return SettingsError(f"'{cron.text}' {why}", fix="add two schedules, or leave one of the days *")
