"""The rows of a store as values, and their conversion to tuples of columns and back; times as `datetime` and text.

A row's attributes are its table's columns, in order. Knows no SQL and opens nothing.
"""

from __future__ import annotations

import contextlib
import functools
import json
import typing
from datetime import datetime, timezone
from operator import attrgetter
from typing import Any, Callable, Final, Generic, Mapping, Sequence, TypeVar, get_args

import attrs

from stoker.core.artifact import StoredArtifact
from stoker.core.errors import StoreError
from stoker.core.status import RunStatus, StepStatus
from stoker.core.values import frozen
from stoker.core.words import shown

Row = TypeVar("Row")
_EMPTY: Final[Mapping[str, Any]] = {}


@frozen(kw_only=True)
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
    """The process that drives the run (host, pid, start), or `DRIVER_PLACE` if it has not begun or waits to go on."""
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
    origin: str = ""
    """The run that this one repeats (`stoker rerun`, a flow's `resume`); empty for a run of its own."""
    active: Mapping[str, Any] = _EMPTY
    """Element of a fan-out that runs → its attempt, and since when; of many the first. Written with the heartbeat."""
    revision: str = ""
    """The commit that was checked out; empty outside of a repository."""
    branch: str = ""
    """The branch that was checked out, or that CI names."""
    author: str = ""
    """Who started it, as "user@host"; empty for a run of an earlier version."""
    worktree: str = ""
    """"clean" where the files were those of the commit; else the digest of the difference, a text among the sources, or
    "changed" where none is kept. Empty where it is unknown."""
    damage: str = ""
    """Which cells cannot be read; no column."""


@frozen(kw_only=True)
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
    recipe: str = ""
    """The name of what its cache key is made of beside its inputs (`RecipeRow`)."""
    damage: str = ""
    """Which cells cannot be read; no column."""


@frozen(kw_only=True)
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


@frozen(kw_only=True)
class OutputRow:
    """A named result of a step."""

    run_id: str
    key: str
    name: str
    artifact: StoredArtifact
    place: int = 0
    """Its position among the step's declared outputs."""
    damage: str = ""
    """Why it cannot be read; no column."""


@frozen(kw_only=True)
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
    damage: str = ""
    """Which cells cannot be read; no column."""


@frozen(kw_only=True)
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


@frozen(kw_only=True)
class RungRow:
    """The changes with which a step worked after it had run out of memory."""

    key: str
    """The digest of the request."""
    run_id: str
    created: float
    changes: Mapping[str, Any] = _EMPTY
    """The rungs that were used, and the changes that they made."""


@frozen(kw_only=True)
class RecipeRow:
    """What cache keys are made of beside inputs; it is never changed."""

    digest: str
    created: float
    document: Mapping[str, Any]
    """As `plan.cachekey` makes it."""


@frozen(kw_only=True)
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
    damage: str = ""
    """Which cells cannot be read; no column."""


DRIVER_PLACE: Final = "place"
"""Key of `RunRow.driver` for a run whose driver has not begun, or has left the run to the next start of its job: what
will start it, in words. A driver that begins replaces the document by one without this key."""
DRIVER_JOB: Final = "job"
"""Key of `RunRow.driver` of a driver that its platform starts again: the job in words (`place`), and what the next
start needs (`run.detaching`)."""
DRIVER_OUTPUT: Final = "output"
"""Key of `RunRow.driver` beside `DRIVER_PLACE`: the file that the driver will write to."""

_encode = json.JSONEncoder(separators=(",", ":"), ensure_ascii=False).encode
_decode = json.JSONDecoder().decode


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


def require_whole(row: RunRow | StepRow | OutputRow) -> None:
    """Raise `StoreError` for a row whose cells could not all be read: nothing is computed from it."""
    if row.damage:
        raise StoreError(
            f"a row of the store is damaged: {row.damage}",
            fix="start the pipeline again, or restore the database from a copy",
        )


class TableSchema(Generic[Row]):
    """Converts rows of one kind to tuples of columns and back."""

    def __init__(self, kind: type[Row], *, json_columns: Sequence[str] = (), lists: Sequence[str] = ()) -> None:
        names = kind.__annotations__  # `attrs.fields` would make all kinds of rows, of which a run writes some
        self._notes_damage = "damage" in names
        self.columns: tuple[str, ...] = tuple(name for name in names if name != "damage")
        self._kind = kind
        self._get = attrgetter(*self.columns)
        self._json = tuple(self.columns.index(name) for name in (*json_columns, *lists))
        self._lists = frozenset(self.columns.index(name) for name in lists)

    def tuple_of(self, row: Row) -> list[Any]:
        """The columns of a row."""
        values = list(self._get(row))
        for index in self._json:
            values[index] = json_text(values[index]) if values[index] else ""
        return values

    def row_of(self, values: Sequence[Any]) -> Row:
        """The row for the columns that a query returned.

        A cell that cannot be read has its column's default, and the row says so in `damage`; a row of another kind that
        has no such field is a `StoreError`.
        """
        fields = list(values)
        damage = []
        for index, read in enumerate(self._readers):
            try:
                fields[index] = read(fields[index])
            except (ValueError, TypeError, RecursionError) as error:
                name = self.columns[index]
                damage.append(f"{name} is {shown(fields[index], 60)}: {str(error) or type(error).__name__}")
                fields[index] = self._substitute(name, fields[index])
        row = dict(zip(self.columns, fields))
        if damage:
            if not self._notes_damage:
                raise StoreError(f"a row of the store is damaged: {'; '.join(damage)}")
            row["damage"] = "; ".join(damage)
        return self._kind(**row)

    @functools.cached_property
    def _readers(self) -> tuple[Callable[[Any], Any], ...]:
        """What reads each column; worked out when the first row is read."""
        annotations = typing.get_type_hints(self._kind)
        return tuple(_reader_of(name, annotations[name]) for name in self.columns)

    def _substitute(self, name: str, cell: Any) -> Any:
        kind: Any = self._kind
        default = getattr(attrs.fields(kind), name).default
        if default is not attrs.NOTHING:
            return default
        annotation = self._readers[self.columns.index(name)]
        return 0.0 if annotation in (_time, _optional_time) else 0 if annotation is _whole_number else shown(cell, 60)


RUNS: Final = TableSchema(RunRow, json_columns=("parameters", "driver", "active"), lists=("tags",))
STEPS: Final = TableSchema(StepRow, json_columns=("inputs", "usage"))
PROGRESS: Final = TableSchema(StepProgress, json_columns=("usage",))
ATTEMPTS: Final = TableSchema(AttemptRow, json_columns=("error", "usage"), lists=("changes",))
CACHE: Final = TableSchema(CacheRow, json_columns=("outputs",))
RUNGS: Final = TableSchema(RungRow, json_columns=("changes",))
RECIPES: Final = TableSchema(RecipeRow, json_columns=("document",))
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
        json_text(artifact.meta) if artifact.meta else "",
        artifact.inline,
        row.place,
    )


def output_row(values: Sequence[Any]) -> OutputRow:
    """The output for the columns that a query returned; of one that cannot be read, its names and its `damage`."""
    run_id, key, name, digest, serializer, kind, size, meta, inline, place = values
    try:
        return OutputRow(
            run_id=_text(run_id),
            key=_text(key),
            name=_text(name),
            place=_whole_number(place),
            artifact=StoredArtifact(
                digest=_text(digest),
                serializer=_text(serializer),
                type=_text(kind),
                size=_size(size),
                meta=_object(meta),
                inline=None if inline is None else _bytes(inline),
            ),
        )
    except (ValueError, TypeError, RecursionError) as error:
        return OutputRow(
            run_id=run_id if isinstance(run_id, str) else shown(run_id),
            key=key if isinstance(key, str) else shown(key),
            name=name if isinstance(name, str) else shown(name),
            artifact=StoredArtifact(digest="", serializer="", type="unreadable", size=0),
            damage=f"an output of step {shown(key)}: {str(error) or type(error).__name__}",
        )


# What reads the cells of a column; each raises ValueError or TypeError for what no cell of it can hold


def _reader_of(name: str, annotation: Any) -> Callable[[Any], Any]:
    if name in _FEW:
        return _optional_count if type(None) in get_args(annotation) else _count
    return _READERS.get(annotation, _text)


def _text(cell: Any) -> str:
    if type(cell) is not str:
        raise TypeError("it is no text")
    return cell


def _whole_number(cell: Any) -> int:
    if type(cell) is not int or not -(2**31) <= cell < 2**31:
        raise TypeError("it is no whole number")
    return cell


def _count(cell: Any) -> int:
    if type(cell) is not int or not 0 <= cell <= _MOST:
        raise TypeError("it is no count")
    return cell


def _size(cell: Any) -> int:
    if type(cell) is not int or cell < 0:
        raise TypeError("it is no size")
    return cell


def _time(cell: Any) -> float:
    if type(cell) not in (float, int) or not -_LATEST < cell < _LATEST:
        raise TypeError("it is no time")
    return float(cell)


def _bytes(cell: Any) -> bytes:
    if isinstance(cell, (str, int, float)):
        raise TypeError("it is not bytes")
    return bytes(cell)


def _object(cell: Any) -> dict[str, Any]:
    document = _decode(cell) if cell else {}
    if type(document) is not dict:
        raise TypeError("it is no JSON object")
    return document


def objects_of(texts: Sequence[Any]) -> list[dict[str, Any]]:
    """The JSON objects of many cells, parsed at once; those of cells that cannot be read are left out."""
    with contextlib.suppress(ValueError, TypeError, RecursionError):
        documents = _decode(f"[{','.join(texts)}]")
        if len(documents) == len(texts):
            return [document for document in documents if type(document) is dict]
    found = []
    for text in texts:
        with contextlib.suppress(ValueError, TypeError, RecursionError):
            found.append(_object(text))
    return found


def _objects(cell: Any) -> dict[str, Any]:
    document = _object(cell)
    if not all(type(part) is dict for part in document.values()):
        raise TypeError("it holds no JSON objects")
    return document


def _list(cell: Any) -> tuple[Any, ...]:
    document = _decode(cell) if cell else ()
    if type(document) not in (list, tuple):
        raise TypeError("it is no JSON list")
    return tuple(document)


def _texts(cell: Any) -> tuple[str, ...]:
    texts = _list(cell)
    if not all(type(part) is str for part in texts):
        raise TypeError("it holds no texts")
    return texts


def _documents(cell: Any) -> tuple[Any, ...]:
    documents = _list(cell)
    if not all(type(part) is dict for part in documents):
        raise TypeError("it holds no JSON objects")
    return documents


def _optional_number(cell: Any) -> int | None:
    return None if cell is None else _whole_number(cell)


def _optional_count(cell: Any) -> int | None:
    return None if cell is None else _count(cell)


def _optional_time(cell: Any) -> float | None:
    return None if cell is None else _time(cell)


_FEW: Final = frozenset({"count", "idx", "attempts", "position", "sessions"})
"""Columns of numbers that count something of a run."""
_MOST: Final = 10_000_000
"""The largest of them: a fan-out is listed element by element."""
_LATEST: Final = 253_402_300_799.0
"""Seconds from the epoch to the end of the year 9999, the last that Python's `datetime` has."""
_READERS: Final[Mapping[Any, Callable[[Any], Any]]] = {
    int: _whole_number,
    int | None: _optional_number,
    float: _time,
    float | None: _optional_time,
    Mapping[str, Any]: _object,
    Mapping[str, Mapping[str, Any]]: _objects,
    Sequence[str]: _texts,
    Sequence[Mapping[str, Any]]: _documents,
}
"""Type of a field → what reads its column; all others hold texts."""


RECEIPT_COLUMNS: Final = ("run_id", "key", "number", "verdict", "receipt", "tracks")
METRIC_COLUMNS: Final = ("run_id", "key", "number", "piece", "data")


def local_time(seconds: float) -> datetime:
    """Seconds since the epoch as a time in the local zone."""
    return datetime.fromtimestamp(seconds, timezone.utc).astimezone()


def optional_time(seconds: float | None) -> datetime | None:
    """The same for a time that may be None."""
    return None if seconds is None else local_time(seconds)


def iso_text(time: datetime | None) -> str | None:
    """A time as ISO 8601 with its zone, to the millisecond."""
    return None if time is None else time.isoformat(timespec="milliseconds")


def seconds_between(start: float | None, end: float | None) -> float | None:
    """Seconds from start to end; None if one of them is unknown."""
    return None if start is None or end is None else max(0.0, end - start)
