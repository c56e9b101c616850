"""Writes artifacts into one pickle without having more than one of them in memory: `dump --file`.

The pickle is a dict of dicts, opcode by opcode; each value is a pickle of its own in it, without its end. Protocol 3
numbers what a value refers to by itself, so that each may start again from 0, and has no frames, which an end inside
would break. Bytes are copied from where they lie.
"""

from __future__ import annotations

import pickle
import shutil
import struct
from pathlib import Path
from typing import Any, BinaryIO, ClassVar, Final, Iterable

from stoker.flows.client import DataArtifact, Task
from stoker.store import artifacts

_PROTOCOL: Final = 3
_PIECE: Final = 1 << 20


def write(path: str, wanted: Iterable[tuple[Task, Iterable[DataArtifact]]]) -> None:
    """Write {RUN/STEP/TASK: {name: value}}; the file is whole or as it was."""
    beside = Path(path).with_name(f".{Path(path).name}.part")
    try:
        with beside.open("wb") as file:
            file.write(pickle.PROTO + bytes([_PROTOCOL]) + pickle.EMPTY_DICT)
            for task, chosen in wanted:
                _write_value(task.pathspec.partition("/")[2], file)
                file.write(pickle.EMPTY_DICT)
                for artifact in chosen:
                    _write_value(artifact.id, file)
                    _write_artifact(artifact, file)
                    file.write(pickle.SETITEM)
                file.write(pickle.SETITEM)
            file.write(pickle.STOP)
        beside.replace(path)
    finally:
        beside.unlink(missing_ok=True)


def _write_artifact(artifact: DataArtifact, file: BinaryIO) -> None:
    stored, blobs = artifact._artifact, artifact._task._run._store.blobs
    if stored.serializer != "bytes" or stored.inline is not None:
        _write_value(artifacts.load(stored, blobs), file)
        return
    file.write(pickle.BINBYTES8 + struct.pack("<Q", stored.size))
    with blobs.open(stored.digest, stored.size) as content:
        shutil.copyfileobj(content, file, _PIECE)


def _write_value(value: Any, file: BinaryIO) -> None:
    start = file.tell()
    try:
        pickle.Pickler(file, _PROTOCOL).dump(value)
    except OverflowError:
        file.seek(start)
        file.truncate()
        _LongPickler(file, _PROTOCOL).dump(value)
    file.seek(-len(pickle.STOP), 1)


_PICKLER: Final[Any] = pickle._Pickler
"""The pickler that is written in Python: the one in C can be taught no other opcodes for texts and bytes."""


class _LongPickler(_PICKLER):  # type: ignore[misc]
    """Writes texts and bytes of 4 GiB and more by opcodes that are not of protocol 3, but that every reader knows."""

    dispatch: ClassVar[dict[type, Any]] = dict(_PICKLER.dispatch)

    def save_bytes(self, obj: bytes) -> None:
        """Bytes of any length."""
        self._save_long(obj, pickle.BINBYTES8, obj)

    def save_str(self, obj: str) -> None:
        """A text of any length."""
        self._save_long(obj, pickle.BINUNICODE8, obj.encode("utf-8", "surrogatepass"))

    def _save_long(self, obj: Any, opcode: bytes, data: bytes) -> None:
        self.write(opcode + struct.pack("<Q", len(data)))
        self.write(data)
        self.memoize(obj)

    dispatch[bytes] = save_bytes
    dispatch[str] = save_str
