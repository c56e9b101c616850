"""What a step logs of itself while it runs: series of numbers by name, and facts. Pure: it opens nothing.

A row is what one call says: `[time, rank, step, {name: number}]`, or `[time, rank, null, {name: fact}]` for facts.
Rows become a `MetricBook`, whose series keep their extremes when they are thinned. Numbers may be NaN or infinite,
also in JSON, as Python writes it.
"""

from __future__ import annotations

import json
import math
import sys
import zlib
from array import array
from typing import Any, Final, Iterable, Iterator, Mapping, Sequence

import attrs

from stoker.core.codec import parse_json, parse_object
from stoker.core.errors import SettingsError, StoreError, UsageError
from stoker.core.values import define, frozen
from stoker.core.words import shown

MOST_POINTS: Final = 4096
"""Points of a series beyond which it is thinned to a half: more than a chart has columns."""
LONGEST_NAME: Final = 200
"""Characters of a name."""
MOST_NAMES: Final = 1000
"""Series of one rank, and facts, of an attempt: more are left out, and counted."""
LONGEST_FACT: Final = 10_000
"""Characters of a fact as JSON."""
_MOST_BYTES: Final = 1 << 30
"""Bytes of a book, so that a few bytes of a spoiled store do not become gigabytes."""
_KEPT: Final = 5
"""Points that a part of a series keeps: its first, lowest, highest and last, and the first that is no finite number."""

Row = Sequence[Any]


def checked_fact(name: str, fact: Any) -> str:
    """A fact as JSON; a `UsageError` for what JSON lacks or is too long."""
    try:
        text = json.dumps(fact)
    except (TypeError, ValueError, RecursionError) as error:
        raise UsageError(
            f"metadata {shown(name)} is {type(fact).__name__}, which JSON lacks: {error}",
            fix="log texts, numbers, lists and dicts; save anything larger as an artifact",
        ) from None
    if len(text) > LONGEST_FACT:
        raise UsageError(
            f"metadata {shown(name)} has {len(text):,} characters as JSON; at most {LONGEST_FACT:,} are kept",
            fix="save it as an artifact, and log what it is called",
        )
    return text


@frozen
class Point:
    """One value of a series."""

    time: float
    """Seconds since the epoch."""
    step: float
    """The step of the training that the caller gave, or how many values the process had logged under the name."""
    value: float


@define(kw_only=True)
class Series:
    """The values that one rank logged under one name, in the order in which they came."""

    name: str
    rank: int = 0
    count: int = 0
    """How many values were logged; `times`, `steps` and `values` may have fewer."""
    low: Point | None = None
    """The lowest finite value; None while there is none."""
    high: Point | None = None
    odd: Point | None = None
    """The first value that is no finite number."""
    times: array[float] = attrs.field(factory=lambda: array("d"))
    steps: array[float] = attrs.field(factory=lambda: array("d"))
    values: array[float] = attrs.field(factory=lambda: array("d"))

    @property
    def last(self) -> Point | None:
        """The value that came last."""
        return Point(self.times[-1], self.steps[-1], self.values[-1]) if self.values else None

    @property
    def points(self) -> Iterator[Point]:
        """The values that are kept."""
        return map(Point, self.times, self.steps, self.values)

    def add(self, point: Point) -> None:
        """Add a value."""
        self._note(point)
        self.count += 1
        self.times.append(point.time)
        self.steps.append(point.step)
        self.values.append(point.value)
        self._thin()

    def extend(self, other: Series) -> None:
        """Add the values of the same series that came later."""
        for point in (other.low, other.high, other.odd):
            if point is not None:
                self._note(point)
        self.count += other.count
        self.times.extend(other.times)
        self.steps.extend(other.steps)
        self.values.extend(other.values)
        self._thin()

    def _note(self, point: Point) -> None:
        if not math.isfinite(point.value):
            self.odd = self.odd or point
            return
        if self.low is None or point.value < self.low.value:
            self.low = point
        if self.high is None or point.value > self.high.value:
            self.high = point

    def _thin(self) -> None:
        if len(self.values) > MOST_POINTS:
            kept = thinned(self.steps, self.values, MOST_POINTS // 2)
            for name in ("times", "steps", "values"):
                values = getattr(self, name)
                setattr(self, name, array("d", [values[index] for index in kept]))


def thinned(places: Sequence[float], values: Sequence[float], most: int) -> list[int]:
    """The indexes of at most about `most` values, of which each part of the axis keeps its extremes.

    The axis from the lowest to the highest of `places` is divided into equal parts; of each part stay the first, the
    lowest, the highest and the last value, and the first that is no finite number.
    """
    if len(values) <= most:
        return list(range(len(values)))
    first, end = min(places), max(places)
    width = (end - first) / max(1, most // _KEPT) or 1.0
    if not math.isfinite(width):
        first, width, places = 0.0, len(values) / max(1, most // _KEPT), range(len(values))
    # first, lowest, highest, last, first odd: by part of the axis
    buckets: dict[int, list[int]] = {}
    for index, place in enumerate(places):
        number = int((place - first) / width)
        value = values[index]
        bucket = buckets.get(number)
        odd = not math.isfinite(value)
        if bucket is None:
            buckets[number] = [index, index, index, index, index if odd else -1]
            continue
        bucket[3] = index
        if odd:
            bucket[4] = index if bucket[4] < 0 else bucket[4]
            continue
        if not value >= values[bucket[1]]:  # also where the bucket began with an odd one
            bucket[1] = index
        if not value <= values[bucket[2]]:
            bucket[2] = index
    return sorted({index for bucket in buckets.values() for index in bucket if index >= 0})


class MetricBook:
    """All series and facts of one attempt."""

    def __init__(self) -> None:
        self.series: dict[tuple[str, int], Series] = {}
        self.facts: dict[str, Any] = {}
        self.left_out = 0
        """Values and facts whose names were too many."""

    def __bool__(self) -> bool:
        return bool(self.series or self.facts or self.left_out)

    def add(self, rows: Iterable[Row]) -> None:
        """Add what calls said; a row that is none is passed over."""
        for row in rows:
            if len(row) != 4 or not isinstance(row[3], Mapping) or type(row[1]) is not int:
                continue
            time, rank, step, values = _number(row[0]), row[1], _number(row[2]), row[3]
            if time is None:
                continue
            if step is None:
                self._add_facts(values)
                continue
            for name, value in values.items():
                number = _number(value)
                if number is not None:
                    self._add_value(str(name)[:LONGEST_NAME], rank, Point(time, step, number))

    def _add_value(self, name: str, rank: int, point: Point) -> None:
        series = self.series.get((name, rank))
        if series is None:
            if sum(key[1] == rank for key in self.series) >= MOST_NAMES:
                self.left_out += 1
                return
            series = self.series[name, rank] = Series(name=name, rank=rank)
        series.add(point)

    def _add_facts(self, facts: Mapping[str, Any]) -> None:
        for name, fact in facts.items():
            if name in self.facts or len(self.facts) < MOST_NAMES:
                self.facts[str(name)[:LONGEST_NAME]] = fact
            else:
                self.left_out += 1

    def merge(self, later: MetricBook) -> None:
        """Add what came later."""
        for key, series in later.series.items():
            if key in self.series:
                self.series[key].extend(series)
            else:
                self.series[key] = series
        self.facts.update(later.facts)
        self.left_out += later.left_out

    def packed(self) -> bytes:
        """The book as bytes: a line of compressed JSON, and the numbers of all series behind each other."""
        head = {
            "series": [
                [one.name, one.rank, one.count, len(one.values), _triple(one.low), _triple(one.high), _triple(one.odd)]
                for one in self.series.values()
            ],
            "facts": self.facts,
            "left_out": self.left_out,
        }
        pieces = [json.dumps(head, separators=(",", ":")).encode() + b"\n"]
        for one in self.series.values():
            pieces += [_little(numbers).tobytes() for numbers in (one.times, one.steps, one.values)]
        return zlib.compress(b"".join(pieces), 1)


def book_of(data: bytes) -> MetricBook:
    """The book whose bytes these are; raises `StoreError` for any others."""
    book = MetricBook()
    try:
        inflater = zlib.decompressobj()
        text = inflater.decompress(data, _MOST_BYTES)
        if not inflater.eof:
            raise StoreError("the metrics are cut off")
        head, _, numbers = text.partition(b"\n")
        document = parse_object(head)
        offset = 0
        for name, rank, count, length, low, high, odd in document["series"]:
            columns = []
            for _ in range(3):
                column = array("d")
                column.frombytes(numbers[offset : offset + 8 * length])
                offset += 8 * length
                if len(column) != length:
                    raise StoreError("the metrics are cut off")
                columns.append(_little(column))
            times, steps, values = columns
            book.series[str(name), int(rank)] = Series(
                name=str(name),
                rank=int(rank),
                count=int(count),
                low=_point(low),
                high=_point(high),
                odd=_point(odd),
                times=times,
                steps=steps,
                values=values,
            )
        book.facts = dict(document["facts"])
        book.left_out = int(document["left_out"])
    except (zlib.error, SettingsError, KeyError, TypeError, ValueError) as error:
        raise StoreError(f"the metrics cannot be read: {error}") from None
    return book


def rows_of(data: bytes) -> list[Row]:
    """The rows in lines of JSON; a line that is none, such as a half one at the end of a full disk, is passed over."""
    rows: list[Row] = []
    for line in data.split(b"\n"):
        if not line:
            continue
        try:
            row = parse_json(line)
        except SettingsError:
            continue
        if isinstance(row, list):
            rows.append(row)
    return rows


def _number(value: Any) -> float | None:
    """A number of a row; one that is too large for a float is infinite."""
    if not isinstance(value, (int, float)):
        return None
    try:
        return float(value)
    except OverflowError:
        return math.inf if value > 0 else -math.inf


def _triple(point: Point | None) -> list[float] | None:
    return None if point is None else [point.time, point.step, point.value]


def _point(values: Any) -> Point | None:
    return None if values is None else Point(*map(float, values))


def _little(numbers: array[float]) -> array[float]:
    """The numbers in the byte order of what is kept, which is that of nearly every machine."""
    if sys.byteorder == "little":
        return numbers
    turned = array("d", numbers)
    turned.byteswap()
    return turned
