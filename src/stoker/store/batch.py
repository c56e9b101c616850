"""`RowBatch`: the rows that a driver writes in one transaction."""

from __future__ import annotations

from operator import attrgetter
from typing import TYPE_CHECKING, Any, Final, Mapping, Sequence

from stoker.store import registry, rows
from stoker.store.rows import AttemptRow, CacheRow, EventRow, OutputRow, RecipeRow, RungRow, StepProgress, StepRow

if TYPE_CHECKING:
    from stoker.store.receipts import ReceiptRow
    from stoker.store.registry import LoggedFacts, Registration

_ORDER: Final = (
    "steps",
    "progress",
    "outputs",
    "attempts",
    "receipts",
    "joined_metrics",
    "metrics",
    "cache",
    "events",
    "rungs",
    "forget_rung",
    "recipes",
    "registrations",
)
"""The order in which a batch is written: a step's row comes before its progress."""
_lists_of: Final = attrgetter(*_ORDER)
_ALL_PIECES: Final = 2**31 - 1


class RowBatch:
    """Collects rows for one transaction. A row replaces the one with its key; an event never replaces another."""

    __slots__ = (
        "attempts",
        "cache",
        "events",
        "forget_rung",
        "joined_metrics",
        "metrics",
        "outputs",
        "progress",
        "receipts",
        "recipes",
        "registrations",
        "rungs",
        "steps",
    )

    def __init__(self) -> None:
        self.steps: list[Sequence[Any]] = []
        self.progress: list[Sequence[Any]] = []
        self.outputs: list[Sequence[Any]] = []
        self.attempts: list[Sequence[Any]] = []
        self.receipts: list[Sequence[Any]] = []
        self.joined_metrics: list[Sequence[Any]] = []
        self.metrics: list[Sequence[Any]] = []
        self.cache: list[Sequence[Any]] = []
        self.events: list[Sequence[Any]] = []
        self.rungs: list[Sequence[Any]] = []
        self.forget_rung: list[Sequence[Any]] = []
        self.recipes: list[Sequence[Any]] = []
        self.registrations: list[Sequence[Any]] = []

    def step(self, row: StepRow) -> None:
        """Add a step."""
        self.steps.append(rows.STEPS.tuple_of(row))

    def change(self, row: StepProgress) -> None:
        """Add the progress of a step that has a row in the store or in this batch."""
        columns = rows.PROGRESS.tuple_of(row)
        self.progress.append((*columns[2:], *columns[:2]))

    def output(self, row: OutputRow) -> None:
        """Add a result of a step."""
        self.outputs.append(rows.output_columns(row))

    def attempt(self, row: AttemptRow) -> None:
        """Add an attempt."""
        self.attempts.append(rows.ATTEMPTS.tuple_of(row))

    def receipt(self, row: ReceiptRow) -> None:
        """Add the receipt of an attempt."""
        self.receipts.append(row.columns())

    def metric_piece(self, run_id: str, key: str, number: int, piece: int, data: bytes) -> None:
        """Add a piece of what an attempt logged (`core.metrics.MetricBook.packed`)."""
        self.metrics.append((run_id, key, number, piece, data))

    def join_metrics(self, run_id: str, key: str, number: int, last: int, data: bytes) -> None:
        """Replace an attempt's pieces up to the `last` by one that has them all."""
        self.joined_metrics.append((run_id, key, number, last))
        self.metrics.append((run_id, key, number, 0, data))

    def forget_metrics(self, run_id: str, key: str, number: int) -> None:
        """Remove what an attempt logged; pieces of this batch stay."""
        self.joined_metrics.append((run_id, key, number, _ALL_PIECES))

    def remember(self, row: CacheRow) -> None:
        """Add an entry of the cache."""
        self.cache.append(rows.CACHE.tuple_of(row))

    def event(self, row: EventRow) -> None:
        """Add an event."""
        self.events.append(rows.EVENTS.tuple_of(row))

    def recipe(self, row: RecipeRow) -> None:
        """Add what cache keys are made of."""
        self.recipes.append(rows.RECIPES.tuple_of(row))

    def register(self, entry: Registration | LoggedFacts) -> None:
        """Add a named output, or metadata of a named artifact or a model."""
        self.registrations.append(registry.document_of(entry))

    def learn(self, row: RungRow) -> None:
        """Add the changes with which a request worked."""
        self.rungs.append(rows.RUNGS.tuple_of(row))

    def forget(self, key: str) -> None:
        """Remove the changes of a request."""
        self.forget_rung.append((key,))

    def as_dict(self) -> dict[str, list[Sequence[Any]]]:
        """The rows by their kind, as columns; without kinds that have none."""
        return {name: values for name, values in zip(_ORDER, _lists_of(self)) if values}

    @classmethod
    def from_dict(cls, rows_of: Mapping[str, list[Sequence[Any]]]) -> RowBatch:
        """The batch whose `as_dict` this is."""
        batch = cls()
        for name in _ORDER:
            getattr(batch, name).extend(rows_of.get(name, ()))
        return batch

    def __len__(self) -> int:
        return sum(map(len, _lists_of(self)))

    def __bool__(self) -> bool:  # of every turn of a driver; a step's progress is in most batches
        return bool(self.progress) or any(_lists_of(self))
