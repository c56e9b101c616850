"""What steps logged of themselves, by name."""

from __future__ import annotations

from typing import Any, Final, Iterator, Mapping, Sequence

from stoker.client.keys import NoSuchKey
from stoker.core.errors import UsageError, nearest
from stoker.core.flow import CARD
from stoker.core.metrics import MetricBook, Point, Series, book_of
from stoker.core.values import lazy_pattern
from stoker.store.records import Records

_CARD: Final = lazy_pattern(f"{CARD}[0-9]{{0,9}}")


class Metric:
    """The numbers that a step logged under one name: those of its main rank, or of the one that `rank()` chooses.

    `low` and `high` are exact for all that was logged, `points` are thinned where they were many: their extremes stay.
    """

    def __init__(self, ranks: Mapping[int, Series], rank: int) -> None:
        self._ranks = ranks
        self._series = ranks[rank]
        self.name = self._series.name
        self.number = rank

    @property
    def ranks(self) -> tuple[int, ...]:
        """The ranks that logged it."""
        return tuple(sorted(self._ranks))

    def rank(self, number: int) -> Metric:
        """What another rank logged under the name."""
        if number not in self._ranks:
            raise UsageError(f"rank {number} logged no {self.name}", fix=f"choose of {', '.join(map(str, self.ranks))}")
        return Metric(self._ranks, number)

    @property
    def count(self) -> int:
        """How many values were logged; `points` may have fewer."""
        return self._series.count

    @property
    def last(self) -> float:
        """The value that came last."""
        last = self._series.last
        return float("nan") if last is None else last.value

    @property
    def low(self) -> Point | None:
        """The lowest finite value, with its step and its time; None where there is none."""
        return self._series.low

    @property
    def high(self) -> Point | None:
        """The highest finite value."""
        return self._series.high

    @property
    def odd(self) -> Point | None:
        """The first value that is no finite number; None where all are."""
        return self._series.odd

    @property
    def points(self) -> list[Point]:
        """The values in the order in which they came; each has `time` (seconds since the epoch), `step` and `value`."""
        return list(self._series.points)

    @property
    def curve(self) -> tuple[Sequence[float], Sequence[float]]:
        """The steps and the values of `points`: of hundreds of curves a `Point` for each value takes too long."""
        return self._series.steps, self._series.values

    def frame(self) -> Any:
        """A pandas DataFrame with the columns `step`, `time` and `value`, a row for each point; needs pandas."""
        import pandas as pd

        one = self._series
        return pd.DataFrame(
            {"step": one.steps, "time": pd.to_datetime(one.times, unit="s", utc=True), "value": one.values}
        )

    def as_dict(self) -> dict[str, Any]:
        """The metric as JSON, without its points. Numbers that JSON lacks are null."""
        return {
            "count": self.count,
            "last": _json_number(self.last),
            "low": _point_document(self.low),
            "high": _point_document(self.high),
            "odd": None if self.odd is None else {"step": self.odd.step, "value": str(self.odd.value)},
            "rank": self.number,
            "ranks": list(self.ranks),
        }

    def __repr__(self) -> str:
        span = "" if self.low is None or self.high is None else f", {self.low.value:g} to {self.high.value:g}"
        return f"<Metric {self.name}: {self.last:g} after {self.count:,}{span}>"


class Metrics(Mapping[str, Metric]):
    """What one attempt logged: metrics by name, and `facts`."""

    def __init__(self, book: MetricBook, where: str) -> None:
        self._where = where
        self._ranks: dict[str, dict[int, Series]] = {}
        for (name, rank), series in book.series.items():
            self._ranks.setdefault(name, {})[rank] = series
        self.facts: Mapping[str, Any] = {name: fact for name, fact in book.facts.items() if not name.startswith(CARD)}
        """What `log_metadata` said."""
        self.cards: Mapping[int, Any] = {
            int(name.removeprefix(CARD) or 0): fact for name, fact in book.facts.items() if _CARD.fullmatch(name)
        }
        """Node → the artifact with the components of its card, in its JSON form, as of the last `refresh`."""
        self.left_out = book.left_out
        """Values that were not kept, since names were too many."""

    @classmethod
    def none(cls) -> Metrics:
        """What an attempt logged that logged nothing."""
        return cls(MetricBook(), "it")

    def __getitem__(self, name: str) -> Metric:
        if name not in self._ranks:
            raise NoSuchKey(f"{self._where} logged no metric '{name}'{nearest(name, self._ranks)}")
        ranks = self._ranks[name]
        return Metric(ranks, min(ranks))

    def __iter__(self) -> Iterator[str]:
        return iter(self._ranks)

    def __len__(self) -> int:
        return len(self._ranks)

    def __repr__(self) -> str:
        return f"<Metrics of {self._where}: {', '.join(f'{name} {self[name].last:g}' for name in self) or 'none'}>"


def last_metrics(records: Records, run_id: str, *, parent: str | None = None) -> dict[str, Metrics]:
    """What the last attempts of a run's steps and elements logged, by key; with `parent` those of one fan-out.

    Cached ones have what was logged where their result was made. Those that logged nothing are left out.
    """
    found = _read(records, run_id, "" if parent is None else f"{parent}[", None)
    origins: dict[tuple[str, str], dict[str, list[str]]] = {}
    for key, origin in records.cached_from(run_id, parent=parent).items():
        run, _, original = origin.partition("/")
        # Elements that are cached are those of one fan-out, as a rule: read together.
        prefix = original if parent is None else original.rpartition("[")[0] + "["
        origins.setdefault((run, "" if parent is None else prefix), {}).setdefault(original, []).append(key)
    for (run, prefix), keys in origins.items():
        found.update(_read(records, run, prefix, keys))
    return {key: metrics for key, metrics in found.items() if metrics or metrics.facts}


def _read(records: Records, run_id: str, prefix: str, wanted: Mapping[str, Sequence[str]] | None) -> dict[str, Metrics]:
    """What was logged under keys that begin so; of those that are `wanted`, by the keys for which it is."""
    books: dict[str, tuple[MetricBook, str]] = {}
    for key, number, data in records.last_metric_pieces(run_id, prefix=prefix):
        for name in [key] if wanted is None else wanted.get(key, ()):
            book, _ = books.setdefault(name, (MetricBook(), f"attempt {number} of {key}"))
            book.merge(book_of(data))
    return {name: Metrics(book, where) for name, (book, where) in books.items()}


def metrics_of(records: Records, run_id: str, key: str, number: int) -> Metrics:
    """What an attempt logged; empty where that is nothing. Raises `StoreError` for a piece that cannot be read."""
    book = MetricBook()
    for _, data in records.metric_pieces(run_id, key, number):
        book.merge(book_of(data))
    return Metrics(book, f"attempt {number} of {key}")


def _json_number(value: float) -> float | None:
    return value if value - value == 0 else None


def _point_document(point: Point | None) -> dict[str, float] | None:
    return None if point is None else {"step": point.step, "value": point.value}
