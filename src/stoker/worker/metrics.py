"""What a running step logs of itself: `from stoker import log_metrics, log_metadata`.

A call appends a line of JSON to a file that belongs to the attempt (`core.metrics` says what is in it): any process and
any thread of the step may call, nothing waits for a reader, and what was said before a kill is there. Whoever started
the worker reads the file while the step runs (`worker.metrics`).
"""

from __future__ import annotations

import contextlib
import json
import os
import threading
import time
import zlib
from typing import TYPE_CHECKING, Any, Final, Mapping

from stoker.core.codec import to_json
from stoker.core.errors import StoreError, UsageError
from stoker.core.graph import CARD
from stoker.core.metrics import checked_fact
from stoker.core.registry import LOGGED, LoggedName
from stoker.core.values import lazy_pattern
from stoker.core.words import shown
from stoker.worker.context import context

if TYPE_CHECKING:
    from stoker.core.metrics import Row

_SAFE: Final = lazy_pattern(r"[^A-Za-z0-9_-]+")
_PIECE: Final = 1 << 22
"""Bytes that are read of a file at once, so that a step that logs without end does not fill its reader's memory."""
_PAUSE: Final = 0.5
"""Seconds between two looks at a file while its step runs."""


def log_metrics(metrics: Mapping[str, Any], step: float | None = None) -> None:
    """Log numbers of this moment, by name: `log_metrics({"loss": 0.3, "lr": 1e-4}, step=100)`.

    A value is a number, or what `float()` takes: a NumPy scalar, a tensor of one element. `step` is where the training
    is; without it, values of a name are numbered from 0 in each process. Each rank has series of its own. Costs a few
    microseconds and never waits. Raises `UsageError` outside a step, and for a name or a value that is none.
    """
    document = context.document_for("log_metrics")
    numbers = {}
    for name, value in metrics.items():
        if type(value) is not float and type(value) is not int:
            value = _float(name, value)  # noqa: PLW2901  # the value as a number
        numbers[name if type(name) is str else _name(name)] = value
    if step is not None:
        place = step if type(step) is int or type(step) is float else _float("step", step)
        _writer.write(document, [(place, numbers)])
    elif numbers:
        _writer.count(document, numbers)


def log_metadata(metadata: Mapping[str, Any]) -> None:
    """Log facts of this attempt by name, such as the dataset's size or a commit; a later one replaces an earlier.

    A fact is anything that JSON has, at most 10,000 characters of it. Raises `UsageError` outside a step, and for a
    fact that JSON lacks or that is too long.
    """
    document = context.document_for("log_metadata")
    facts = {name if type(name) is str else _name(name): fact for name, fact in metadata.items()}
    for name, fact in facts.items():
        checked_fact(name, fact)
    if facts:
        _writer.write(document, [(None, facts)])


def register(entry: LoggedName, caller: str) -> None:
    """Tell the driver what to register by name; a `StoreError` where it cannot be told, so that nothing is lost.

    Of several ranks the main one tells it.
    """
    document = context.document_for(caller)
    if not _writer.write(document, [(None, {LOGGED: to_json(entry)})]):
        raise StoreError(
            f"{caller}: what is to be registered as '{entry.name}' could not be told to the driver",
            fix="free space on the disk of Stoker's home where the step runs, or return the value from the step",
        )


def keep_card(wire: Mapping[str, Any], *, node: int | None = None) -> None:
    """Log where the components of the task's card are, for who looks at it while it runs; a later call replaces it.

    `wire` is the JSON form of an artifact of the store, `node` the number of a gang's node.
    """
    document = context.document_for("current.card.refresh")
    _writer.write(document, [(None, {f"{CARD}{'' if node is None else node}": dict(wire)})])


def _float(name: Any, value: Any) -> float:
    try:
        return float(value)
    except (TypeError, ValueError, RuntimeError) as error:  # torch says RuntimeError of a tensor with many elements
        raise UsageError(
            f"log_metrics: {shown(name)} is {type(value).__name__} and no number: {error}",
            fix="log one number, such as values.mean(); texts and settings go to log_metadata",
        ) from None


def _name(name: Any) -> str:
    raise UsageError(f"the name {shown(name)} is {type(name).__name__}", fix="write names as texts")


class _Writer:
    """Appends rows to the file of the attempt that runs in this process."""

    def __init__(self) -> None:
        self._file = -1
        self._path = ""
        self._rank = 0
        self._document: Mapping[str, Any] | None = None
        self._counts: dict[str, int] = {}
        self._lock = threading.Lock()
        if hasattr(os, "register_at_fork"):
            # A fork while another thread holds the lock would leave it locked in the child, for ever.
            release = self._lock.release
            os.register_at_fork(before=self._lock.acquire, after_in_parent=release, after_in_child=release)

    def count(self, document: Mapping[str, Any], numbers: Mapping[str, float]) -> None:
        """Write numbers at the steps that their names have reached in this process."""
        with self._lock:
            if document is not self._document:
                self._open(document)
            rows: dict[int, dict[str, float]] = {}
            for name, number in numbers.items():
                place = self._counts.get(name, 0)
                self._counts[name] = place + 1
                rows.setdefault(place, {})[name] = number
        self.write(document, list(rows.items()))

    def write(self, document: Mapping[str, Any], rows: list[tuple[float | None, Mapping[str, Any]]]) -> bool:
        """Write rows: each a step, or None for facts, and what was logged; whether that could be done."""
        if document is not self._document:
            with self._lock:
                if document is not self._document:
                    self._open(document)
        if self._file < 0:
            return False
        now, rank = time.time(), self._rank
        text = "".join(json.dumps((now, rank, place, values)) + "\n" for place, values in rows)
        # One call, so that lines of several processes do not mix. A full disk must not end a training.
        try:
            return os.write(self._file, data := text.encode()) == len(data)
        except OSError:
            return False

    def _open(self, document: Mapping[str, Any]) -> None:
        if self._file >= 0:
            os.close(self._file)
        self._file, self._counts = -1, {}
        self._rank = int(document.get("rank", 0))
        folder = document.get("metrics")
        if folder:
            path = os.path.join(folder, file_name(document["run"], document["key"], document["attempt"]))
            try:
                os.makedirs(folder, exist_ok=True)
                self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
            except OSError:
                self._file = -1  # what the step computes is worth more than what it says of itself
        self._document = document


_writer: Final = _Writer()


def file_name(run: str, key: str, attempt: int) -> str:
    """The name of the file of an attempt of a step."""
    return f"{_SAFE.sub('-', key)[:100]}-{zlib.crc32(f'{run}/{key}'.encode()):08x}-{attempt}"


class MetricFiles:
    """The files of the attempts that one process started, below one folder, read while their steps write them."""

    def __init__(self, folder: str) -> None:
        self.folder = folder
        self._offsets: dict[str, int] = {}
        self._look_at = 0.0
        self._folder_exists = False

    def are_due(self) -> bool:
        """Whether it is time for the next look at what steps that still run have written."""
        now = time.monotonic()
        if now < self._look_at:
            return False
        self._look_at = now + _PAUSE
        return self._has_folder()

    def read(self, job: str, *, over: bool = False) -> list[Row]:
        """The rows that are new of a job, "run/key/attempt"; with `over`, all that remain, and the file is removed."""
        rows: list[Row] = []
        if not self._has_folder():
            return rows
        path = self._path(job)
        while True:
            offset = self._offsets.get(path, 0)
            try:
                with open(path, "rb") as file:
                    file.seek(offset)
                    data = file.read(_PIECE)
            except OSError:
                break  # nothing was logged
            from stoker.core.metrics import rows_of  # only for steps that log something

            whole = len(data) if over and len(data) < _PIECE else data.rfind(b"\n") + 1
            if not whole and len(data) == _PIECE:
                whole = len(data)  # no line is as long
            rows += rows_of(data[:whole])
            self._offsets[path] = offset + whole
            if not over or len(data) < _PIECE:
                break
        if over and path in self._offsets:
            del self._offsets[path]
            with contextlib.suppress(FileNotFoundError):
                os.unlink(path)
        return rows

    def close(self) -> None:
        """Remove the folder, unless others of this process have files there."""
        with contextlib.suppress(OSError):
            os.rmdir(self.folder)

    def _has_folder(self) -> bool:
        """Whether any step has logged something: the first one that does makes the folder."""
        self._folder_exists = self._folder_exists or os.path.isdir(self.folder)
        return self._folder_exists

    def _path(self, job: str) -> str:
        run, _, key_and_attempt = job.partition("/")
        key, _, attempt = key_and_attempt.rpartition("/")
        return os.path.join(self.folder, file_name(run, key, int(attempt) if attempt.isdecimal() else 0))
