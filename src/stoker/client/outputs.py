"""The results of a step: one, and all of them by name."""

from __future__ import annotations

import io
import sys
from typing import Any, BinaryIO, Callable, Iterable, Iterator, Mapping

from stoker.client.keys import NoSuchKey
from stoker.core.artifact import Preview, StoredArtifact
from stoker.core.words import memory_text
from stoker.store import artifacts
from stoker.store.rows import OutputRow, require_whole
from stoker.store.store import Store


class Output:
    """A result of a step: its type and size without loading it, and `load()`."""

    def __init__(self, store: Store, row: OutputRow) -> None:
        self._store = store
        self._row = row
        self._artifact = row.artifact
        self.run_id = row.run_id
        self.step = row.key
        self.name = row.name

    @property
    def digest(self) -> str:
        """The SHA-256 of the bytes; equal values of one type have equal digests."""
        return self._artifact.digest

    @property
    def type(self) -> str:
        """The name of the value's Python type, with its module unless that is `builtins`."""
        return self._artifact.type.removeprefix("builtins.")

    @property
    def size(self) -> int:
        """Bytes as stored."""
        return self._artifact.size

    @property
    def serializer(self) -> str:
        """The serializer that reads the bytes."""
        return self._artifact.serializer

    @property
    def shape(self) -> tuple[int, ...] | None:
        """The shape of an array or a table; None for other values."""
        shape = self._artifact.meta.get("shape")
        return tuple(shape) if isinstance(shape, (list, tuple)) else None

    @property
    def dtype(self) -> str | None:
        """The dtype of an array; None for other values."""
        dtype = self._artifact.meta.get("dtype")
        return None if dtype is None else str(dtype)

    @property
    def stored(self) -> StoredArtifact:
        """What the store has of it."""
        return self._artifact

    def load(self) -> Any:
        """The value. A class of yours must be importable under the name that it had in the step."""
        require_whole(self._row)
        return artifacts.load(self._artifact, self._store.blobs)

    def open(self) -> BinaryIO:
        """Its bytes as they are stored, to be read; the value is not loaded, so that no code of it runs."""
        require_whole(self._row)
        inline = self._artifact.inline
        return io.BytesIO(inline) if inline is not None else self._store.blobs.open(self.digest, self.size)

    @property
    def meta(self) -> Mapping[str, Any]:
        """What its serializer says of it, such as the name of a file."""
        return self._artifact.meta

    def preview(self) -> Preview:
        """What the value looks like, without running anything of it: some rows, a picture, a histogram, a tree."""
        from stoker.store import previews

        return previews.preview(self._artifact, self._store.blobs)

    @property
    def producers(self) -> list[Output]:
        """Every output with these bytes, oldest run first: that run computed them, later ones may have reused them."""
        return [Output(self._store, row) for row in self._store.records.lineage(self.digest)]

    def as_dict(self) -> dict[str, Any]:
        """All but the value, as JSON."""
        return {
            "name": self.name,
            "step": self.step,
            "run": self.run_id,
            "digest": self.digest,
            "type": self.type,
            "size": self.size,
            "shape": None if self.shape is None else list(self.shape),
            "dtype": self.dtype,
            "serializer": self.serializer,
        }

    def __repr__(self) -> str:
        facts = [self.type, memory_text(self.size)]
        if self.shape is not None:
            shape = "×".join(map(str, self.shape)) or "scalar"
            facts.insert(1, f"{shape} {self.dtype}" if self.dtype else shape)
        return f"<Output '{self.name}' of '{self.step}': {', '.join(facts)}>"

    def _repr_html_(self) -> str:
        from stoker.client import html

        return html.output(self.as_dict(), self.preview())


class Outputs(Mapping[str, Output]):
    """A step's results by name; a result without a name is "output"."""

    def __init__(
        self,
        outputs: Iterable[Output],
        *,
        missing: Callable[[str], NoSuchKey],
        default: Callable[[str], Output] | None = None,
    ) -> None:
        self._outputs = {output.name: output for output in outputs}
        self._missing = missing
        self._default = default

    def __getitem__(self, name: str) -> Output:
        output = self._outputs.get(name)
        if output is not None:
            return output
        if self._default is not None:
            return self._default(name)
        raise self._missing(name)

    def __iter__(self) -> Iterator[str]:
        return iter(self._outputs)

    def __len__(self) -> int:
        return len(self._outputs)

    def __repr__(self) -> str:
        return f"<Outputs {', '.join(map(repr, self._outputs.values())) or 'none'}>"

    def _ipython_key_completions_(self) -> list[str]:
        return list(self)


def gather_output(store: Store, run_id: str, key: str, name: str, parts: Iterable[StoredArtifact]) -> Output:
    """A fan-out's output, which loads as the list of its elements' values. Nothing is written."""
    combined = artifacts.gather(parts, store.blobs, inline_limit=sys.maxsize)
    return Output(store, OutputRow(run_id=run_id, key=key, name=name, artifact=combined))
