"""The description of a stored value, which rows and messages carry; the bytes of a small value are part of it.

The other values' bytes are in `store`, under their digest.
"""

from __future__ import annotations

import base64
from typing import Any, Final, Mapping

import attrs

INLINE_LIMIT: Final = 4096
"""Bytes up to which a value lives inside the row. A committed row costs 0.016 ms, a file beside it 0.04-0.15 ms more;
above one 4 KiB database page a row spills into overflow pages and the advantage shrinks."""

TEXT_SERIALIZERS: Final = frozenset({"json", "str"})
"""Serializers whose bytes are UTF-8, so that their inline form needs no base64 in a JSON message."""


@attrs.frozen(kw_only=True, slots=True)
class StoredArtifact:
    """The description of a stored value."""

    digest: str
    """The SHA-256 of its bytes."""
    serializer: str
    """The name of the serializer that reads them."""
    type: str
    """The value's Python type, such as "builtins.int"."""
    size: int
    """How many bytes."""
    meta: Mapping[str, Any] = attrs.field(factory=dict)
    """What the serializer says of the value, such as its shape."""
    inline: bytes | None = None
    """The bytes themselves, up to `INLINE_LIMIT`; None where only the store has them."""

    def wire(self) -> dict[str, Any]:
        """The JSON form, inline bytes included."""
        document: dict[str, Any] = {"d": self.digest, "s": self.serializer, "t": self.type, "n": self.size}
        if self.meta:
            document["m"] = dict(self.meta)
        if self.inline is not None:
            text = self.serializer in TEXT_SERIALIZERS
            document["i"] = self.inline.decode() if text else base64.b64encode(self.inline).decode()
        return document


def from_wire(document: Mapping[str, Any]) -> StoredArtifact:
    """The artifact of a JSON form; keys that a newer version added are ignored."""
    inline = document.get("i")
    data: bytes | None = None
    if inline is not None:
        data = inline.encode() if document["s"] in TEXT_SERIALIZERS else base64.b64decode(inline)
    return StoredArtifact(
        digest=document["d"],
        serializer=document["s"],
        type=document["t"],
        size=document["n"],
        meta=document.get("m") or {},
        inline=data,
    )
