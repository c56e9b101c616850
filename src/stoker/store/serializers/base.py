"""The protocol of serializers: they turn values of some types into bytes and back, exactly.

The one of secrets is here: it keeps a `Secret`'s reference, and its value is in no artifact.
"""

from __future__ import annotations

import io
from typing import Any, BinaryIO, Final, Mapping, Protocol, runtime_checkable

from stoker.core.artifact import StoredArtifact
from stoker.core.secret import Secret
from stoker.core.values import frozen
from stoker.store.blobs import Blobs


@frozen
class Stored:
    """The bytes of a saved value, for `Serializer.load`."""

    artifact: StoredArtifact
    blobs: Blobs

    @property
    def meta(self) -> Mapping[str, Any]:
        """What `Serializer.save` returned."""
        return self.artifact.meta

    def open(self) -> BinaryIO:
        """The bytes as a file open for reading."""
        if self.artifact.inline is not None:
            return io.BytesIO(self.artifact.inline)
        return self.blobs.open(self.artifact.digest, self.artifact.size)

    def path(self, *, beside: bool = False) -> str | None:
        """A local file with the bytes, to map but never to write; None for bytes that are part of the artifact.

        With `beside`, the content is still being checked while a step already reads it: for bytes that are data and
        nothing else, so that damaged ones only give a wrong value, which is discarded.
        """
        if self.artifact.inline is not None:
            return None
        return self.blobs.path(self.artifact.digest, self.artifact.size, beside=beside)


@runtime_checkable
class Serializer(Protocol):
    """Turns values of some types into bytes and back, exactly.

    `name` is stored with the values and must never change. The bytes must depend on the value alone: equal bytes are
    stored once, and a step whose inputs have the same bytes is not run again. They must not depend on a device.
    """

    @property
    def name(self) -> str:
        """The name that is stored with saved values."""

    def fits(self, value: Any) -> bool:
        """Whether this value would load as the same value; if not, the next serializer is tried, and pickle at last."""

    def save(self, value: Any, file: BinaryIO) -> Mapping[str, Any]:
        """Write the value's bytes to `file`, which has `write` and `tell`, not `seek`. The result is stored as JSON."""

    def load(self, stored: Stored) -> Any:
        """Load the value."""


def full_name(kind: type) -> str:
    """`module.Qualified.Name`."""
    return f"{kind.__module__}.{kind.__qualname__}"


class SecretReference:
    """Saves a secret as the text of its reference."""

    name = "secret"

    def fits(self, value: Any) -> bool:
        """Whether it is one."""
        return type(value) is Secret

    def save(self, value: Secret, file: BinaryIO) -> Mapping[str, Any]:
        """Write the reference."""
        file.write(value.reference.encode())
        return {}

    def load(self, stored: Stored) -> Secret:
        """The secret by its reference; what runs a step puts the value in its place."""
        with stored.open() as file:
            return Secret.parse(file.read().decode())


SECRET: Final = SecretReference()
