"""The rows of a store as values, and their conversion to tuples of columns and back.

A row's attributes are its table's columns, in order. Knows no SQL and opens nothing.
"""

from __future__ import annotations

import json
from operator import attrgetter
from typing import Any, Callable, Final, Generic, Mapping, Sequence, TypeVar

import attrs

from stoker.core.artifact import StoredArtifact
from stoker.core.status import RunStatus, StepStatus

Row = TypeVar("Row")
_EMPTY: Final[Mapping[str, Any]] = {}


@attrs.frozen(kw_only=True, slots=True)
class RunRow:
    """One run."""

    id: str
    pipeline: str
    status: RunStatus = "running"
    created: float = 0.0
    started: float | None = None
    """When the first session began; None before."""
    ended: float | None = None
    """When the last session ended; None while one runs."""
    parameters: Mapping[str, Any] = _EMPTY
    """The pipeline's arguments."""
    tags: Sequence[str] = ()
    source: str = ""
    """Where the pipeline is defined, as file:line."""
    stack: str = ""
    failure_mode: str = "fail_fast"
    dynamic: int = attrs.field(default=0, converter=int)
    """1 if the pipeline's function decides the graph while it runs."""
    driver: Mapping[str, Any] = _EMPTY
    """The process that drives the run (host, pid, start), or `DRIVER_PLACE` if it has not begun."""
    token: str = ""
    """Held by the driver that may change the run."""
    heartbeat: float | None = None
    """When the driver was last alive; it writes this every second."""
    error: str = ""
    """What ended the run, if it was no failure of a step."""
    sessions: int = 1
    """How many drivers worked on the run."""
    asked: str = ""
    """A request to end the run, "cancel" or "now"; the driver reads it every second."""


@attrs.frozen(kw_only=True, slots=True)
class StepRow:
    """One step, one fan-out, or one element of a fan-out."""

    run_id: str
    key: str
    name: str
    position: int = 0
    """Its place in the pipeline's order."""
    parent: str = ""
    """The fan-out's key, for an element."""
    idx: int | None = None
    """The index, for an element."""
    status: StepStatus = "pending"
    started: float | None = None
    """When the last attempt began."""
    ended: float | None = None
    cause: str = ""
    """The class of the failure."""
    message: str = ""
    """The failure in a sentence."""
    cached_from: str = ""
    """The run that computed the outputs, if they came from the cache."""
    inputs: Mapping[str, Any] = _EMPTY
    """Parameter → digest of its value."""
    cache_key: str = ""
    attempts: int = 0
    """Number of attempts that have begun."""
    count: int | None = None
    """Number of elements, for a fan-out."""
    usage: Mapping[str, Any] = _EMPTY
    """CPU seconds and peak bytes of the last attempt."""


@attrs.frozen(kw_only=True, slots=True)
class StepProgress:
    """The columns of a step's row that change while it runs, as in `StepRow`; all of them are written."""

    run_id: str
    key: str
    status: StepStatus
    started: float | None = None
    ended: float | None = None
    cause: str = ""
    message: str = ""
    cached_from: str = ""
    attempts: int = 0
    count: int | None = None
    usage: Mapping[str, Any] = _EMPTY


@attrs.frozen(kw_only=True, slots=True)
class OutputRow:
    """A named result of a step."""

    run_id: str
    key: str
    name: str
    artifact: StoredArtifact
    place: int = 0
    """Its position among the step's declared outputs."""


@attrs.frozen(kw_only=True, slots=True)
class AttemptRow:
    """One attempt at a step; the row is written when it has ended."""

    run_id: str
    key: str
    number: int
    """From 1."""
    status: str
    backend: str = ""
    job: str = ""
    """The backend's name of the job."""
    started: float | None = None
    ended: float | None = None
    cause: str = ""
    """The class of the failure; empty for a success."""
    message: str = ""
    error: Mapping[str, Any] = _EMPTY
    """The exception and its explanation."""
    exit_code: int | None = None
    """Negative for a signal; None if unknown."""
    usage: Mapping[str, Any] = _EMPTY
    """CPU seconds and peak bytes."""
    changes: Sequence[Mapping[str, Any]] = ()
    """Differences from the step's request, as documents of `core.ladder.Change`."""


@attrs.frozen(kw_only=True, slots=True)
class CacheRow:
    """The results of a step, for reuse."""

    key: str
    """The digest of everything that the results depend on."""
    run_id: str
    step_key: str
    created: float
    expires: float | None = None
    """Seconds since the epoch; None for never."""
    outputs: Mapping[str, Mapping[str, Any]] = _EMPTY
    """Name of an output → the `StoredArtifact.wire` document."""


@attrs.frozen(kw_only=True, slots=True)
class RungRow:
    """The changes with which a step worked after it had run out of memory."""

    key: str
    """The digest of the request."""
    run_id: str
    created: float
    changes: Mapping[str, Any] = _EMPTY
    """The rungs that were used, and the changes that they made."""


@attrs.frozen(kw_only=True, slots=True)
class EventRow:
    """Something that happened in a run."""

    run_id: str
    seq: int
    """Orders the events of a run, from 0."""
    time: float
    kind: str
    key: str = ""
    """The step's key; empty for the run."""
    data: Mapping[str, Any] = _EMPTY


DRIVER_PLACE: Final = "place"
"""Key of `RunRow.driver` for a run whose driver has not begun: what will start it, in words. A driver that begins
replaces the document by one without this key."""
DRIVER_OUTPUT: Final = "output"
"""Key of `RunRow.driver` beside `DRIVER_PLACE`: the file that the driver will write to."""

_encode = json.JSONEncoder(separators=(",", ":"), ensure_ascii=False).encode


def json_text(value: Any) -> str:
    """JSON for a column; empty for an empty value."""
    if not value:
        return ""
    document = _encode(value)
    if not document.isascii():
        try:
            document.encode()
        except UnicodeEncodeError:  # half a surrogate pair, as in the name of a file that is not UTF-8
            return json.dumps(value, separators=(",", ":"))
    return document


def clean_text(value: Any) -> Any:
    """A value that every database accepts: without halves of surrogate pairs and NULs in a text."""
    if not isinstance(value, str):
        return value
    return value.encode("utf-8", "replace").decode().replace("\0", "\ufffd")


def parse_object(column: str) -> dict[str, Any]:
    """The object of a JSON column."""
    value: dict[str, Any] = json.loads(column) if column else {}
    return value


class TableSchema(Generic[Row]):
    """Converts rows of one kind to tuples of columns and back."""

    def __init__(self, kind: type[Row], *, json_columns: Sequence[str] = (), lists: Sequence[str] = ()) -> None:
        fields: Any = kind
        self.columns: tuple[str, ...] = tuple(field.name for field in attrs.fields(fields))
        self._kind: Callable[..., Row] = kind
        self._get = attrgetter(*self.columns)
        self._json = tuple(self.columns.index(name) for name in (*json_columns, *lists))
        self._lists = frozenset(self.columns.index(name) for name in lists)

    def tuple_of(self, row: Row) -> list[Any]:
        """The columns of a row."""
        values = list(self._get(row))
        for index in self._json:
            values[index] = json_text(values[index])
        return values

    def row_of(self, values: Sequence[Any]) -> Row:
        """The row for the columns that a query returned."""
        fields = list(values)
        for index in self._json:
            column = fields[index]
            fields[index] = (
                tuple(json.loads(column) if column else ()) if index in self._lists else parse_object(column)
            )
        return self._kind(**dict(zip(self.columns, fields)))


RUNS: Final = TableSchema(RunRow, json_columns=("parameters", "driver"), lists=("tags",))
STEPS: Final = TableSchema(StepRow, json_columns=("inputs", "usage"))
PROGRESS: Final = TableSchema(StepProgress, json_columns=("usage",))
ATTEMPTS: Final = TableSchema(AttemptRow, json_columns=("error", "usage"), lists=("changes",))
CACHE: Final = TableSchema(CacheRow, json_columns=("outputs",))
RUNGS: Final = TableSchema(RungRow, json_columns=("changes",))
EVENTS: Final = TableSchema(EventRow, json_columns=("data",))

OUTPUT_COLUMNS: Final = ("run_id", "key", "name", "digest", "serializer", "type", "size", "meta", "inline", "place")


def output_columns(row: OutputRow) -> tuple[Any, ...]:
    """The columns of an output, among them the fields of its artifact."""
    artifact = row.artifact
    return (
        row.run_id,
        row.key,
        row.name,
        artifact.digest,
        artifact.serializer,
        artifact.type,
        artifact.size,
        json_text(artifact.meta),
        artifact.inline,
        row.place,
    )


def output_row(values: Sequence[Any]) -> OutputRow:
    """The output for the columns that a query returned."""
    run_id, key, name, digest, serializer, kind, size, meta, inline, place = values
    return OutputRow(
        run_id=run_id,
        key=key,
        name=name,
        place=place,
        artifact=StoredArtifact(
            digest=digest,
            serializer=serializer,
            type=kind,
            size=size,
            meta=parse_object(meta),
            inline=None if inline is None else bytes(inline),
        ),
    )


RECEIPT_COLUMNS: Final = ("run_id", "key", "number", "verdict", "receipt", "tracks")
