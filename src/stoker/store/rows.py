"""The rows of a store as values, and how each becomes a tuple of columns and back.

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
_NOTHING: Final[Mapping[str, Any]] = {}


@attrs.frozen(kw_only=True, slots=True)
class RunRow:
    """One run. `token` belongs to the driver that may change it; `driver` says which process that is.

    `asked`: "cancel" or "now" when somebody else wants the run to end; its driver looks there every second.
    """

    id: str
    pipeline: str
    status: RunStatus = "running"
    created: float = 0.0
    started: float | None = None
    ended: float | None = None
    parameters: Mapping[str, Any] = _NOTHING
    tags: Sequence[str] = ()
    source: str = ""
    stack: str = ""
    failure_mode: str = "fail_fast"
    dynamic: int = attrs.field(default=0, converter=int)
    driver: Mapping[str, Any] = _NOTHING
    token: str = ""
    heartbeat: float | None = None
    error: str = ""
    sessions: int = 1
    asked: str = ""


@attrs.frozen(kw_only=True, slots=True)
class StepRow:
    """One step, one fan-out (`count` elements), or one element (`idx`) of the fan-out `parent`."""

    run_id: str
    key: str
    name: str
    position: int = 0
    parent: str = ""
    idx: int | None = None
    status: StepStatus = "pending"
    started: float | None = None
    ended: float | None = None
    cause: str = ""
    message: str = ""
    cached_from: str = ""
    inputs: Mapping[str, Any] = _NOTHING
    cache_key: str = ""
    attempts: int = 0
    count: int | None = None
    usage: Mapping[str, Any] = _NOTHING


@attrs.frozen(kw_only=True, slots=True)
class StepProgress:
    """What changes of a step that has its row: all of these columns are set."""

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
    usage: Mapping[str, Any] = _NOTHING


@attrs.frozen(kw_only=True, slots=True)
class OutputRow:
    """A named result of a step, and its place among them as they were declared."""

    run_id: str
    key: str
    name: str
    artifact: StoredArtifact
    place: int = 0


@attrs.frozen(kw_only=True, slots=True)
class AttemptRow:
    """One try at a step. `changes`: what of its request was not as asked, as `core.ladder.Change` documents."""

    run_id: str
    key: str
    number: int
    status: str
    backend: str = ""
    job: str = ""
    started: float | None = None
    ended: float | None = None
    cause: str = ""
    message: str = ""
    error: Mapping[str, Any] = _NOTHING
    exit_code: int | None = None
    usage: Mapping[str, Any] = _NOTHING
    changes: Sequence[Mapping[str, Any]] = ()


@attrs.frozen(kw_only=True, slots=True)
class CacheRow:
    """A step's results under the digest of all that they depend on; `outputs` are `StoredArtifact.wire` documents."""

    key: str
    run_id: str
    step_key: str
    created: float
    expires: float | None = None
    outputs: Mapping[str, Mapping[str, Any]] = _NOTHING


@attrs.frozen(kw_only=True, slots=True)
class RungRow:
    """The changes with which a step worked that had run out of memory, under the digest of what it had asked for."""

    key: str
    run_id: str
    created: float
    changes: Mapping[str, Any] = _NOTHING


@attrs.frozen(kw_only=True, slots=True)
class EventRow:
    """Something that happened in a run, in the order of `seq`."""

    run_id: str
    seq: int
    time: float
    kind: str
    key: str = ""
    data: Mapping[str, Any] = _NOTHING


_encode = json.JSONEncoder(separators=(",", ":"), ensure_ascii=False).encode


def text(value: Any) -> str:
    """JSON for a column; the empty text for nothing."""
    if not value:
        return ""
    written = _encode(value)
    if not written.isascii():
        try:
            written.encode()
        except UnicodeEncodeError:  # half a surrogate pair, as in the name of a file that is not UTF-8
            return json.dumps(value, separators=(",", ":"))
    return written


def clean(value: Any) -> Any:
    """A column that every database takes: no half of a surrogate pair and no NUL in a text."""
    if not isinstance(value, str):
        return value
    return value.encode("utf-8", "replace").decode().replace("\0", "\ufffd")


def parsed(column: str) -> dict[str, Any]:
    """The object of a JSON column."""
    value: dict[str, Any] = json.loads(column) if column else {}
    return value


class Table(Generic[Row]):
    """How rows of one kind are laid out."""

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
        for place in self._json:
            values[place] = text(values[place])
        return values

    def row_of(self, values: Sequence[Any]) -> Row:
        """The row of columns, as a query returned them."""
        filled = list(values)
        for place in self._json:
            column = filled[place]
            filled[place] = tuple(json.loads(column) if column else ()) if place in self._lists else parsed(column)
        return self._kind(**dict(zip(self.columns, filled)))


RUNS: Final = Table(RunRow, json_columns=("parameters", "driver"), lists=("tags",))
STEPS: Final = Table(StepRow, json_columns=("inputs", "usage"))
PROGRESS: Final = Table(StepProgress, json_columns=("usage",))
ATTEMPTS: Final = Table(AttemptRow, json_columns=("error", "usage"), lists=("changes",))
CACHE: Final = Table(CacheRow, json_columns=("outputs",))
RUNGS: Final = Table(RungRow, json_columns=("changes",))
EVENTS: Final = Table(EventRow, json_columns=("data",))

OUTPUT_COLUMNS: Final = ("run_id", "key", "name", "digest", "serializer", "type", "size", "meta", "inline", "place")


def output_columns(row: OutputRow) -> tuple[Any, ...]:
    """The columns of an output; its artifact is spread over them."""
    artifact = row.artifact
    return (
        row.run_id,
        row.key,
        row.name,
        artifact.digest,
        artifact.serializer,
        artifact.type,
        artifact.size,
        text(artifact.meta),
        artifact.inline,
        row.place,
    )


def output_row(values: Sequence[Any]) -> OutputRow:
    """The output of columns, as a query returned them."""
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
            meta=parsed(meta),
            inline=None if inline is None else bytes(inline),
        ),
    )


RECEIPT_COLUMNS: Final = ("run_id", "key", "number", "verdict", "receipt", "tracks")
