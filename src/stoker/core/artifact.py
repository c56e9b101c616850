"""The description of a stored value, which rows and messages carry, the bytes of a small value with it; and what a
value looks like, as data.

The other values' bytes are in `store`, under their digest.
"""

from __future__ import annotations

import base64
import functools
from typing import Any, ClassVar, Final, Iterable, Mapping

import attrs

from stoker.core.errors import StoreError
from stoker.core.usercode import is_own_package
from stoker.core.values import frozen
from stoker.core.words import shown

INLINE_LIMIT: Final = 4096
"""Bytes up to which a value lives inside the row. A committed row costs 0.016 ms, a file beside it 0.04-0.15 ms more;
above one 4 KiB database page a row spills into overflow pages and the advantage shrinks."""

TEXT_SERIALIZERS: Final = frozenset({"json", "str"})
"""Serializers whose bytes are UTF-8, so that their inline form needs no base64 in a JSON message."""
MEDIA: Final[Mapping[bytes, str]] = {
    b"\x89PNG\r\n\x1a\n": "image/png",
    b"\xff\xd8\xff": "image/jpeg",
    b"GIF87a": "image/gif",
    b"GIF89a": "image/gif",
}
"""How the bytes begin of pictures that every browser shows → what they are: the formats' own signatures, in the PNG,
JPEG (JFIF) and GIF89a specifications (https://www.w3.org/TR/png-3/#5PNG-file-signature,
https://www.w3.org/Graphics/JPEG/itu-t81.pdf, https://www.w3.org/Graphics/GIF/spec-gif89a.txt). SVG is not among them:
it can hold scripts."""
LONGEST: Final = 200_000
"""Characters of a preview's document that is kept."""
CELL: Final = 80
"""Characters of a cell."""
COLUMNS: Final = 12


@frozen(kw_only=True)
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


def content_of(document: Mapping[str, Any]) -> str:
    """What identifies a value's content in cache keys: the digest of its bytes, where they depend on it alone.

    The serializer's `meta` may have another digest, "content": the bytes of a set follow the process's hash seed. The
    name of a file or folder is part of its content, since steps can read it.
    """
    meta = document.get("m") or {}
    digest = f"{document['s']}:{meta.get('content') or document['d']}"
    if document["s"] == "path":
        digest += f":{meta.get('name', '')}" + (":executable" if meta.get("executable") else "")
    return digest


def names_in(documents: Iterable[Mapping[str, Any]]) -> dict[str, list[str]]:
    """The "code" and "packages" that the values of JSON forms refer to, sorted; what is empty is left out.

    Code is what serializers noted in `meta`, as "module:name"; packages are those, and what the values' types are from.
    """
    code, packages = set[str](), set[str]()
    for document in documents:
        meta, kind = document.get("m"), document["t"]
        if meta:
            code.update(meta.get("code", ()))
            packages.update(meta.get("packages", ()))
            if any(kind.startswith(name.partition(":")[0] + ".") for name in meta.get("code", ())):
                continue
        package = _package_of(kind)
        if package:
            packages.add(package)
    if not code and not packages:
        return {}
    names = {"code": sorted(code), "packages": sorted(packages)}
    return {kind: values for kind, values in names.items() if values}


@functools.lru_cache(maxsize=4096)
def _package_of(kind: str) -> str:
    """The package that a value's type is from; empty where it has no version that counts."""
    module = kind.partition(".")[0]
    return "" if is_own_package(module) else module


def from_wire(document: Mapping[str, Any]) -> StoredArtifact:
    """The artifact of a JSON form; keys that a newer version added are ignored. A `StoreError` for another form."""
    try:
        digest, serializer, kind, size = document["d"], document["s"], document["t"], document["n"]
        inline, meta = document.get("i"), document.get("m") or {}
        data: bytes | None = None
        if inline is not None:
            data = inline.encode() if serializer in TEXT_SERIALIZERS else base64.b64decode(inline)
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise StoreError(f"{shown(document)} describes no stored value: {type(error).__name__}: {error}") from None
    strings = type(digest) is type(serializer) is type(kind) is str
    if not (strings and type(size) is int and (type(meta) is dict or isinstance(meta, Mapping))):
        raise StoreError(f"{shown(document)} describes no stored value: its fields have other types")
    return StoredArtifact(digest=digest, serializer=serializer, type=kind, size=size, meta=meta, inline=data)


def cell(value: Any) -> str:
    """A value as a table's cell shows it."""
    text = f"{value:.6g}" if isinstance(value, float) else str(value)
    return text if len(text) <= CELL else f"{text[: CELL - 1]}…"


def picture_type(head: bytes) -> str:
    """The type of the picture that begins so; empty for what is none that every browser shows as it is."""
    if head[:4] == b"RIFF" and head[8:12] == b"WEBP":
        return "image/webp"
    return next((media for signature, media in MEDIA.items() if head.startswith(signature)), "")


@frozen(kw_only=True)
class Histogram:
    """How many values are in each of equal parts between two numbers."""

    low: float
    high: float
    counts: tuple[int, ...]


@frozen(kw_only=True)
class Picture:
    """A picture of one of the formats that every browser shows."""

    media: str
    """Such as "image/png"."""
    data: bytes = attrs.field(repr=False)


@frozen(kw_only=True)
class ChartCurve:
    """A line of a chart: a finite number at each place."""

    name: str = ""
    places: tuple[float, ...]
    values: tuple[float, ...]


@frozen(kw_only=True)
class Preview:
    """What is known of a value; what does not fit it is empty."""

    words: str = ""
    """A sentence."""
    text: str = ""
    """The value, or its beginning, as a text."""
    headers: tuple[str, ...] = ()
    rows: tuple[tuple[str, ...], ...] = ()
    more: str = ""
    """What is left out of the rows or of the text, in words."""
    histogram: Histogram | None = None
    curves: tuple[ChartCurve, ...] = ()
    picture: Picture | None = None


@frozen(kw_only=True)
class KeptPreview:
    """A preview as it is kept beside an artifact, which the worker made when it saved the value."""

    COMPACT: ClassVar = True
    version: int = 1
    words: str = ""
    text: str = ""
    headers: tuple[str, ...] = ()
    rows: tuple[tuple[str, ...], ...] = ()
    more: str = ""
    curves: tuple[ChartCurve, ...] = ()
    picture: str = ""
    """In base64."""

    @classmethod
    def of(cls, preview: Preview) -> KeptPreview:
        """A preview in the form that is kept; a histogram is not among what a worker makes."""
        data = "" if preview.picture is None else base64.b64encode(preview.picture.data).decode("ascii")
        return cls(
            words=preview.words,
            text=preview.text,
            headers=preview.headers,
            rows=preview.rows,
            more=preview.more,
            curves=preview.curves,
            picture=data,
        )

    def preview(self) -> Preview:
        """The preview; of a picture its bytes say what it is, whoever wrote them."""
        data = base64.b64decode(self.picture)
        media = picture_type(data[:16])
        picture = Picture(media=media, data=data) if media else None
        return Preview(
            words=self.words,
            text=self.text,
            headers=self.headers,
            rows=self.rows,
            more=self.more,
            curves=self.curves,
            picture=picture,
        )
