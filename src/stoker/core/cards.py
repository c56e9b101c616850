"""What a step may put on its card: text, tables, pictures and values, as plain data.

A component becomes a document (JSON), is kept with the task's outputs, and is made into HTML where a page is made:
nothing here knows how it looks, and no text of it is ever taken for HTML.
"""

from __future__ import annotations

import base64
import io
import math
from typing import Any, Final, Iterable, Sequence

import attrs

from stoker.core.errors import ParameterError
from stoker.core.preview import MEDIA

LONGEST: Final = 100_000
"""Characters of a text that a card keeps, and of a value that is shown on it: a page is for reading."""
MOST_ROWS: Final = 1_000
"""Rows of a table that a card keeps."""
LARGEST: Final = 10 * 2**20
"""Bytes of a picture: it stands in the page itself, a third larger than it is."""
Document = dict[str, Any]


@attrs.frozen
class Markdown:
    """Text on a card: headings, lists, code, emphasis and links of Markdown. HTML in it is shown as it is written."""

    text: str

    def document(self) -> Document:
        """It as JSON."""
        return {"kind": "markdown", "text": _cut(str(self.text))}


@attrs.frozen
class Artifact:
    """A value on a card, as its `repr` shows it."""

    artifact: Any
    name: str | None = None
    compressed: bool = True

    def document(self) -> Document:
        """It as JSON; with `compressed` a long value is shown in part."""
        text = repr(self.artifact)
        shown = text if not self.compressed or len(text) <= _SHORT else f"{text[: _SHORT - 1]}…"
        return {"kind": "artifact", "name": self.name or "", "text": _cut(shown)}


_SHORT: Final = 1_000
"""Characters of a value that is shown in part."""


@attrs.frozen
class Image:
    """A picture on a card, of PNG, JPEG or GIF bytes."""

    src: bytes = attrs.field(repr=False)
    label: str | None = None

    @classmethod
    def from_matplotlib(cls, plot: Any, label: str | None = None) -> Image:
        """A figure, or the figure of axes, as PNG."""
        figure = plot if hasattr(plot, "savefig") else plot.get_figure()
        buffer = io.BytesIO()
        figure.savefig(buffer, format="png", bbox_inches="tight")
        return cls(buffer.getvalue(), label)

    @classmethod
    def from_pil_image(cls, pilimage: Any, label: str | None = None) -> Image:
        """A picture of Pillow's as PNG."""
        buffer = io.BytesIO()
        pilimage.save(buffer, format="PNG")
        return cls(buffer.getvalue(), label)

    @classmethod
    def from_altair(cls, chart: Any, label: str | None = None) -> Image:
        """A chart of Altair's as PNG; needs the package `vl-convert-python`, which needs no browser."""
        buffer = io.BytesIO()
        chart.save(buffer, format="png")
        return cls(buffer.getvalue(), label)

    def document(self) -> Document:
        """It as JSON, the bytes in base64."""
        if not isinstance(self.src, (bytes, bytearray)):
            raise ParameterError(f"Image({type(self.src).__name__}): not the bytes of a picture", fix=_PICTURE)
        kind = next((kind for signature, kind in MEDIA.items() if self.src.startswith(signature)), None)
        if kind is None:
            raise ParameterError("Image: these bytes are no PNG, JPEG or GIF", fix=_PICTURE)
        if len(self.src) > LARGEST:
            raise ParameterError(
                f"Image: {len(self.src):,} bytes are more than a card takes ({LARGEST:,})", fix="make it smaller"
            )
        data = base64.b64encode(self.src).decode("ascii")
        return {"kind": "image", "type": kind, "data": data, "label": self.label or ""}


_PICTURE: Final = "read a file's bytes, or use Image.from_matplotlib(figure)"


@attrs.frozen
class Table:
    """A table on a card: rows of values, or of other components."""

    data: Sequence[Sequence[Any]] = ()
    headers: Sequence[Any] = ()

    @classmethod
    def from_dataframe(cls, dataframe: Any, truncate: bool = True) -> Table:
        """A DataFrame with its index; without `truncate` all rows that a card takes."""
        shown = dataframe.head(_TRUNCATED) if truncate else dataframe.head(MOST_ROWS)
        rows = [[index, *row] for index, row in zip(shown.index, shown.itertuples(index=False, name=None))]
        return cls(rows, ["", *shown.columns])

    def document(self) -> Document:
        """It as JSON; values are shown as text."""
        rows = list(self.data)
        if any(isinstance(row, (str, bytes)) or not isinstance(row, Iterable) for row in rows):
            raise ParameterError("Table: a row is no list of values", fix="write Table([[1, 2], [3, 4]], ['a', 'b'])")
        return {
            "kind": "table",
            "headers": [_cut(str(header)) for header in self.headers],
            "rows": [[_cell(value) for value in row] for row in rows[:MOST_ROWS]],
            "left": max(0, len(rows) - MOST_ROWS),
        }


_TRUNCATED: Final = 5
"""Rows of a DataFrame that are shown unless all are asked for: as many as pandas' own `head`."""


@attrs.define
class ProgressBar:
    """How far something is: `bar.update(step)`, then `current.card.refresh()`. A card shows the value that it has then.

    `max` is the value at which it is full, `unit` a word behind the values, `metadata` a few words beside the bar.
    """

    max: float = 100
    label: str | None = None
    value: float = 0
    unit: str | None = None
    metadata: str | None = None

    def update(self, new_value: float, metadata: str | None = None) -> None:
        """Set the value, and the words beside the bar where they are given."""
        self.value = new_value
        if metadata is not None:
            self.metadata = metadata

    def document(self) -> Document:
        """It as JSON."""
        numbers = []
        for name, number in (("max", self.max), ("value", self.value)):
            try:
                numbers.append(float(number))
            except (TypeError, ValueError) as error:
                raise ParameterError(f"ProgressBar: {name}={number!r} is no number", fix="write a number") from error
            if not math.isfinite(numbers[-1]):
                raise ParameterError(f"ProgressBar: {name}={number!r} is not finite", fix="write a number")
        texts = {name: _cut(getattr(self, name) or "") for name in ("label", "unit", "metadata")}
        return {"kind": "progress", "max": numbers[0], "value": numbers[1], **texts}


@attrs.frozen
class Frame:
    """HTML of your own on a card, such as an interactive chart, in a frame that reaches nothing outside itself.

    Scripts in it run; it loads nothing from a network, so that it must hold all that it needs. `height` in pixels.
    """

    html: str = attrs.field(repr=False)
    label: str | None = None
    height: int = 480

    @classmethod
    def from_plotly(cls, figure: Any, label: str | None = None, height: int = 480) -> Frame:
        """A figure of plotly with its library, about 5 MB."""
        return cls(figure.to_html(include_plotlyjs=True, full_html=True), label, height)

    def document(self) -> Document:
        """It as JSON."""
        text = str(self.html).encode("utf-8", "replace").decode("utf-8")
        if len(text) > LARGEST:
            raise ParameterError(
                f"Frame: {len(text):,} characters are more than a card takes ({LARGEST:,})", fix="show less of it"
            )
        height = min(max(int(self.height), 40), 4_000)
        return {"kind": "frame", "html": text, "label": self.label or "", "height": height}


Component = Markdown | Artifact | Image | Table | ProgressBar | Frame
"""What a card takes."""


def document_of(component: Any) -> Document:
    """A component as JSON; what is none is refused."""
    if not isinstance(component, Component):
        raise ParameterError(
            f"a card takes no {type(component).__name__}",
            fix='write Markdown("…"), Artifact(value), Table, Image, Frame or ProgressBar',
        )
    return component.document()


def _cell(value: Any) -> Document:
    if isinstance(value, Component):
        return value.document()
    return {"kind": "text", "text": _cut(str(value))}


def _cut(text: str) -> str:
    # A lone surrogate could be written to no file.
    text = text.encode("utf-8", "replace").decode("utf-8")
    return text if len(text) <= LONGEST else f"{text[: LONGEST - 1]}…"
