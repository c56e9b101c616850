"""A named result of a step, and all results of one."""

from __future__ import annotations

import sys
from typing import Any, Callable, Iterable, Iterator, Mapping

from stoker.client.missing import NoSuchKey
from stoker.core.artifact import StoredArtifact
from stoker.core.words import memory_text
from stoker.store import artifacts
from stoker.store.rows import OutputRow
from stoker.store.store import Store


class Output:
    """A result of a step: what is known of it without loading it, and `load()`."""

    def __init__(self, store: Store, row: OutputRow) -> None:
        self._store = store
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
        """How the bytes are read."""
        return self._artifact.serializer

    @property
    def shape(self) -> tuple[int, ...] | None:
        """Of an array or a table."""
        shape = self._artifact.meta.get("shape")
        return None if shape is None else tuple(shape)

    @property
    def dtype(self) -> str | None:
        """Of an array."""
        dtype = self._artifact.meta.get("dtype")
        return None if dtype is None else str(dtype)

    def load(self) -> Any:
        """The value. A class of yours must be importable here, by the name that it had there."""
        return artifacts.load(self._artifact, self._store.blobs)

    @property
    def producers(self) -> list[Output]:
        """Every output with these bytes, oldest run first: there they were computed, later ones may be cached."""
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

        return html.output(self.as_dict())


class Outputs(Mapping[str, Output]):
    """A step's results by name; one that has no name is "output"."""

    def __init__(
        self,
        found: Iterable[Output],
        *,
        missing: Callable[[str], NoSuchKey],
        every: Callable[[str], Output] | None = None,
    ) -> None:
        self._found = {output.name: output for output in found}
        self._missing = missing
        self._every = every

    def __getitem__(self, name: str) -> Output:
        found = self._found.get(name)
        if found is not None:
            return found
        if self._every is not None:
            return self._every(name)
        raise self._missing(name)

    def __iter__(self) -> Iterator[str]:
        return iter(self._found)

    def __len__(self) -> int:
        return len(self._found)

    def __repr__(self) -> str:
        return f"<Outputs {', '.join(map(repr, self._found.values())) or 'none'}>"

    def _ipython_key_completions_(self) -> list[str]:
        return list(self)


def gathered(store: Store, run_id: str, key: str, name: str, parts: Iterable[StoredArtifact]) -> Output:
    """A fan-out's output: one that loads as the list of its elements' values. Nothing is written."""
    whole = artifacts.gather(parts, store.blobs, inline_limit=sys.maxsize)
    return Output(store, OutputRow(run_id=run_id, key=key, name=name, artifact=whole))
