"""What steps logged of themselves, by name."""

from __future__ import annotations

from typing import Any, Final, Iterator, Mapping, Sequence

import attrs

from stoker.client.keys import NoSuchKey
from stoker.core.errors import UsageError, nearest
from stoker.core.graph import CARD
from stoker.core.metrics import MetricBook, Point, Series, book_of
from stoker.core.values import frozen, lazy_pattern
from stoker.core.words import memory_text, time_text
from stoker.store.records import Records

_CARD: Final = lazy_pattern(f"{CARD}[0-9]{{0,9}}")
_RANK: Final = lazy_pattern(r"[0-9]{1,9}")
_TELLING: Final = 0.1
"""The share of a rank's time below which waiting for others is not worth a word."""
_MOST: Final = 1e18
"""Seconds and bytes above it are no measurement."""


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


@frozen(kw_only=True)
class LostTime:
    """What failures cost a step."""

    work: float | None = None
    """Seconds of work after the last checkpoint, which was to be done again; None where that is not known."""
    restarting: float = 0.0
    """Seconds from failures until ranks, or another attempt, began again: waiting for a retry and in a queue count."""

    def __str__(self) -> str:
        parts = [f"{time_text(self.work)} of work"] if self.work else []
        parts += [f"{time_text(self.restarting)} to restart"] if self.restarting else []
        return f"lost {' and '.join(parts)}" if parts else ""


@frozen(kw_only=True)
class Usage:
    """What a step used; None for what was not measured."""

    cpu: float | None = None
    """Seconds of CPU time."""
    peak_memory: int | None = None
    """Bytes: the most that all processes of the step held at one time; of several nodes, the sum of their peaks."""
    rank_peaks: Mapping[int, int] = attrs.field(factory=dict)
    """Of a step with a launcher: the peak of each rank with what it started, in bytes, by rank."""

    rank_waits: Mapping[int, float] = attrs.field(factory=dict)
    """Of a step with a launcher: the share of its time that each rank spent in collective operations of
    `torch.distributed`, and waited for others in backward passes of DistributedDataParallel, by rank. Empty where no
    rank was in any."""

    lost: float | None = None
    """Seconds of work after the last checkpoint that failures ended: restarted ranks, or the next attempt, do it
    again. None where nothing failed, or the checkpoints are not to be seen from the driver."""
    restarting: float | None = None
    """Seconds from the failure of ranks until their launcher had started them again; None where it did not."""

    def as_dict(self) -> dict[str, Any]:
        """The figures as JSON."""
        ranks: dict[str, Any] = {}
        for name, figures in (("rank_peaks", self.rank_peaks), ("rank_waits", self.rank_waits)):
            ranks |= {name: {str(rank): figure for rank, figure in figures.items()}} if figures else {}
        costs = {"lost": self.lost, "restarting": self.restarting}
        ranks |= {name: seconds for name, seconds in costs.items() if seconds is not None}
        return {"cpu": self.cpu, "peak_memory": self.peak_memory, **ranks}

    @property
    def rank_text(self) -> str:
        """The peaks of the ranks from the smallest to the largest: "1.2 GB" or "1.1 to 1.3 GB"."""
        sizes = [memory_text(peak) for peak in (min(self.rank_peaks.values()), max(self.rank_peaks.values()))]
        return " to ".join(dict.fromkeys(sizes))

    @property
    def imbalance(self) -> tuple[int, float]:
        """The slowest rank, which waited least for others, and how much more of its time another one waited, from 0 to
        1. Rank 0 and 0 where that is not known."""
        if len(self.rank_waits) < 2:
            return 0, 0.0
        slowest = min(self.rank_waits, key=lambda rank: (self.rank_waits[rank], rank))
        return slowest, max(self.rank_waits.values()) - self.rank_waits[slowest]

    @property
    def imbalance_text(self) -> str:
        """The same in words; empty below a tenth."""
        slowest, share = self.imbalance
        return f"rank {slowest} slowest, others waited up to {share:.0%} for it" if share >= _TELLING else ""

    def __str__(self) -> str:
        facts = [] if self.cpu is None else [f"cpu {time_text(self.cpu)}"]
        facts += [] if self.peak_memory is None else [f"peak {memory_text(self.peak_memory)}"]
        facts += [f"{self.rank_text} a rank"] if self.rank_peaks else []
        facts += [self.imbalance_text] if self.imbalance_text else []
        facts += [text] if (text := str(LostTime(work=self.lost, restarting=self.restarting or 0.0))) else []
        return ", ".join(facts)


def usage_of_document(document: Mapping[str, Any]) -> Usage:
    """The usage in what `Usage.as_dict` made."""
    peaks = {int(rank): int(peak) for rank, peak in document.get("rank_peaks", {}).items()}
    waits = {int(rank): float(share) for rank, share in document.get("rank_waits", {}).items()}
    return Usage(
        cpu=document.get("cpu"),
        peak_memory=document.get("peak_memory"),
        rank_peaks=peaks,
        rank_waits=waits,
        lost=document.get("lost"),
        restarting=document.get("restarting"),
    )


def usage_of(recorded: Mapping[str, Any]) -> Usage:
    """The usage in a row's document."""
    cpu, peak = (_figure(recorded.get(name)) for name in ("cpu", "peak"))
    sizes, waits = (_of_ranks(recorded.get(name)) for name in ("ranks", "waits"))
    return Usage(
        cpu=cpu,
        peak_memory=None if peak is None else int(peak),
        rank_peaks={rank: int(size) for rank, size in sizes.items()},
        rank_waits=waits,
        lost=_figure(recorded.get("lost")),
        restarting=_figure(recorded.get("restarting")),
    )


def _of_ranks(figures: Any) -> dict[int, float]:
    """The figures of ranks in a document, as far as they are figures, and of ranks."""
    known = {rank: _figure(size) for rank, size in (figures if isinstance(figures, dict) else {}).items()}
    return {int(rank): size for rank, size in known.items() if size is not None and _RANK.fullmatch(rank)}


def _figure(value: Any) -> float | None:
    """A number of a document; None for what is none."""
    return float(value) if isinstance(value, (int, float)) and 0 <= value < _MOST else None


def total_usage(recorded: Sequence[Mapping[str, Any]]) -> Usage:
    """The usage in the documents of several that may have run at once: the sum of their CPU time, the largest peak."""
    times = [cpu for one in recorded if (cpu := _figure(one.get("cpu"))) is not None]
    peaks = [peak for one in recorded if (peak := _figure(one.get("peak"))) is not None]
    return Usage(cpu=sum(times) if times else None, peak_memory=int(max(peaks)) if peaks else None)
