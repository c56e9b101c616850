"""What a value looks like, as data: who shows it decides how."""

from __future__ import annotations

import base64
from typing import Any, ClassVar, Final, Mapping

import attrs

from stoker.core.values import frozen

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
