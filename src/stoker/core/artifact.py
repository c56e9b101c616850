"""An artifact as a value: what its bytes are called, how they are read, and the bytes themselves when they are few.

The bytes live in `store`; a job's message and a row carry this description. Small values travel inside it.
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
class Artifact:
    """A stored value: the SHA-256 of its bytes, the serializer that reads them, its Python type, size and shape."""

    digest: str
    serializer: str
    type: str
    size: int
    meta: Mapping[str, Any] = attrs.field(factory=dict)
    inline: bytes | None = None

    def wire(self) -> dict[str, Any]:
        """The JSON form, inline bytes included."""
        document: dict[str, Any] = {"d": self.digest, "s": self.serializer, "t": self.type, "n": self.size}
        if self.meta:
            document["m"] = dict(self.meta)
        if self.inline is not None:
            text = self.serializer in TEXT_SERIALIZERS
            document["i"] = self.inline.decode() if text else base64.b64encode(self.inline).decode()
        return document


def from_wire(document: Mapping[str, Any]) -> Artifact:
    """The artifact of a JSON form; keys that a newer version added are ignored."""
    inline = document.get("i")
    data: bytes | None = None
    if inline is not None:
        data = inline.encode() if document["s"] in TEXT_SERIALIZERS else base64.b64decode(inline)
    return Artifact(
        digest=document["d"],
        serializer=document["s"],
        type=document["t"],
        size=document["n"],
        meta=document.get("m") or {},
        inline=data,
    )
