"""What a step may put on its card: text, tables, pictures, charts and values, as plain data.

A component becomes a document (JSON), is kept with the task's outputs, and is made into HTML where a page is made:
nothing here knows how it looks, and no text of it is ever taken for HTML.
"""

from __future__ import annotations

import base64
import inspect
import io
import json
import math
import textwrap
import time
import traceback
from html import escape
from typing import Any, Callable, Final, Iterable, Mapping, Sequence

import attrs

from stoker.core.artifact import MEDIA
from stoker.core.errors import ParameterError

LONGEST: Final = 100_000
"""Characters of a text that a card keeps, and of a value that is shown on it: a page is for reading."""
MOST_ROWS: Final = 1_000
"""Rows of a table that a card keeps."""
LARGEST: Final = 10 * 2**20
"""Bytes of a picture: it stands in the page itself, a third larger than it is."""
Document = dict[str, Any]


class CardComponent:
    """The base of what stands on a card; write your own with `render`, which returns text or a JSON value.

    A component that stands on a card may be changed by `update`; the card shows it as it is at the next refresh, and at
    the end. `component_id` is the name by which it is found there.
    """

    REALTIME_UPDATABLE = False
    component_id: str | None = None

    def render(self) -> Any:
        """What a card of one's own is given of it: its document here, text or a JSON value of other classes."""
        raise NotImplementedError(f"{type(self).__name__} has no render()")

    def update(self, *args: Any, **kwargs: Any) -> None:
        """Change it while it stands on a card."""
        raise NotImplementedError(f"{type(self).__name__} has no update()")

    def document(self) -> Document:
        """It as JSON: what its `render` returns, as `document_from` has it."""
        return document_from(self.render())


MetaflowCardComponent = UserComponent = CardComponent
"""Its names in Metaflow."""


class DefaultComponent(CardComponent):
    """Metaflow's base of what stands on its default card; `render` has the keys that all of them have."""

    type: str | None = None

    def __init__(self, title: str | None = None, subtitle: str | None = None) -> None:
        self._title, self._subtitle = title, subtitle

    def render(self) -> Any:
        """Its type, and its title and subtitle where it has them."""
        words = {"title": self._title, "subtitle": self._subtitle}
        return {"type": self.type, **{name: word for name, word in words.items() if word is not None}}


class _Rendered(dict[str, Any]):
    """A component's document as its `render` returns it, by which another component may show itself."""


class _Known(CardComponent):
    """A component whose look is known here: subclasses say what they are as a document."""

    REALTIME_UPDATABLE = True

    def render(self) -> Document:
        """Its document."""
        return _Rendered(self.document())

    def update(self, *args: Any, **kwargs: Any) -> None:
        """Make it anew, of what its class takes."""
        id = self.component_id
        self.__init__(*args, **kwargs)  # type: ignore[misc]
        self.component_id = id


@attrs.define(slots=False)
class Markdown(_Known):
    """Text on a card: headings, lists, code, emphasis and links of Markdown. HTML in it is shown as it is written."""

    text: str | None = ""

    def document(self) -> Document:
        """It as JSON."""
        return {"kind": "markdown", "text": _cut(textwrap.dedent(str(self.text or "")))}


@attrs.define(slots=False)
class Artifact(_Known):
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


@attrs.define(slots=False)
class Image(_Known):
    """A picture on a card, of PNG, JPEG or GIF bytes."""

    src: bytes = attrs.field(repr=False)
    label: str | None = None
    disable_updates: bool = True

    def update(self, image: Any, label: str | None = None) -> None:
        """Show another picture: bytes, a figure of matplotlib or a picture of Pillow's."""
        if not isinstance(image, (bytes, bytearray)):
            figure = hasattr(image, "savefig") or hasattr(image, "get_figure")
            image = (self.from_matplotlib if figure else self.from_pil_image)(image).src
        self.src, self.label = image, self.label if label is None else label

    @classmethod
    def from_matplotlib(cls, plot: Any, label: str | None = None, disable_updates: bool = False) -> Image:
        """A figure, or the figure of axes, as PNG."""
        figure = plot if hasattr(plot, "savefig") else plot.get_figure()
        buffer = io.BytesIO()
        figure.savefig(buffer, format="png", bbox_inches="tight")
        return cls(buffer.getvalue(), label)

    @classmethod
    def from_pil_image(cls, pilimage: Any, label: str | None = None, disable_updates: bool = False) -> Image:
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


@attrs.define(slots=False)
class Table(_Known):
    """A table on a card: rows of values, or of other components."""

    data: Sequence[Sequence[Any]] = ()
    headers: Sequence[Any] = ()
    disable_updates: bool = False

    def update(self, data: Any = (), headers: Any = None) -> None:
        """Show other rows, below the same headers where none are given."""
        self.data, self.headers = data, self.headers if headers is None else headers

    @classmethod
    def from_dataframe(cls, dataframe: Any, truncate: bool = True, disable_updates: bool = False) -> Table:
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


@attrs.define(slots=False)
class ProgressBar(_Known):
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


@attrs.define(slots=False)
class Frame(_Known):
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


@attrs.define(slots=False)
class Error(_Known):
    """That something went wrong: an exception with its traceback, or a text."""

    exception: BaseException | str
    title: str | None = None

    def document(self) -> Document:
        """It as JSON."""
        error, text = self.exception, str(self.exception)
        if isinstance(error, BaseException):
            text = "".join(traceback.format_exception(type(error), error, error.__traceback__))
        title = self.title or ("" if isinstance(error, str) else type(error).__name__)
        return {"kind": "error", "title": _cut(title), "text": _cut(text)}


@attrs.define(slots=False, eq=False)
class JSONViewer(_Known):
    """A value as indented JSON."""

    data: Any
    collapsible: bool = True
    max_height: str | None = None
    show_copy_button: bool = True
    title: str | None = None

    def document(self) -> Document:
        """It as JSON."""
        return {"kind": "artifact", "name": self.title or "", "text": _cut(self._text())}

    def _text(self) -> str:
        return json.dumps(self.data, indent=2, ensure_ascii=False, default=str)


@attrs.define(slots=False, eq=False)
class YAMLViewer(JSONViewer):
    """YAML, where it is a text; another value as indented JSON, which is YAML, too."""

    def _text(self) -> str:
        return self.data if isinstance(self.data, str) else super()._text()


@attrs.define(slots=False)
class PythonCode(_Known):
    """Python code: of a function or class, or as text."""

    code_func: Any = None
    code_string: str | None = None

    def document(self) -> Document:
        """It as JSON."""
        text = self.code_string
        if text is None:
            try:
                text = textwrap.dedent(inspect.getsource(self.code_func))
            except (OSError, TypeError) as error:
                raise ParameterError(f"PythonCode: no source: {error}", fix="code_string='…'") from None
        return {"kind": "code", "text": _cut(text)}


@attrs.define(slots=False)
class ValueBox(_Known):
    """One value, large, with its title, a line below it, and how it has changed."""

    title: str | None = None
    value: Any = ""
    subtitle: str | None = None
    theme: str | None = None
    change_indicator: str | None = None

    def update(self, title: str | None = None, value: Any = None, *args: Any, **words: Any) -> None:
        """Change what is given, in the order of the class."""
        names = ("title", "value", "subtitle", "theme", "change_indicator")
        given = {**dict(zip(names, (title, value, *args))), **words}
        for name, new in given.items():
            if name not in names:
                raise TypeError(f"ValueBox.update() has no {name}")
            if new is not None:
                setattr(self, name, new)

    def document(self) -> Document:
        """It as JSON."""
        texts = {
            "title": self.title,
            "value": self.value,
            "subtitle": self.subtitle,
            "change": self.change_indicator,
        }
        return {"kind": "value", **{name: "" if text is None else _cut(str(text)) for name, text in texts.items()}}


@attrs.define(slots=False)
class EventsTimeline(_Known):
    """Events as they come, the newest first: `timeline.update({"epoch": 3, "loss": 0.2})`."""

    title: str | None = None
    max_events: int = 100
    _events: list[Document] = attrs.field(factory=list, init=False)
    _count: int = attrs.field(default=0, init=False)
    _times: list[float] = attrs.field(factory=list, init=False)
    """Of the first event and of the last."""
    _finished: bool = attrs.field(default=False, init=False)

    def update(
        self,
        event_data: Mapping[str, Any],
        style_theme: str | None = None,
        priority: str | None = None,
        payloads: Mapping[str, CardComponent] | None = None,
        finished: bool | None = None,
    ) -> None:
        """Put one more event on it: names and values, and components that stand below them."""
        for name, payload in (payloads or {}).items():
            if not isinstance(payload, _Known) or isinstance(payload, VegaChart):
                raise TypeError(f"payload '{name}' is {type(payload).__name__}, which no event shows")
        now = time.time()
        at = event_data.get("timestamp", now)
        facts = {name: value for name, value in event_data.items() if name != "timestamp"}
        marks = {"priority": priority} if priority else {}
        event = {str(name): _cell(value) for name, value in {**facts, **marks, **(payloads or {})}.items()}
        clock = time.strftime("%H:%M:%S", time.localtime(at)) if isinstance(at, (int, float)) else str(at)
        self._events = [{"time": clock, "facts": event}, *self._events][: self.max_events]
        self._count += 1
        self._times = [*self._times[:1], now]
        self._finished = self._finished if finished is None else finished

    def get_stats(self) -> dict[str, Any]:
        """How many events there were, how many are shown, and when the first and the last came."""
        first, last = (self._times[0], self._times[-1]) if self._times else (None, None)
        stats: dict[str, Any] = {"total_events": self._count, "displayed_events": len(self._events)}
        stats.update(first_event=first, last_update=last, finished=self._finished)
        if first is not None and last is not None and last > first:
            stats["total_runtime_seconds"] = round(last - first, 1)
            stats["events_per_minute"] = round(self._count * 60 / (last - first), 1)
        return stats

    def document(self) -> Document:
        """It as JSON."""
        left = self._count - len(self._events)
        title = _cut(self.title or "")
        return {
            "kind": "timeline",
            "title": title,
            "events": list(self._events),
            "left": left,
            "over": self._finished,
        }


@attrs.define(slots=False)
class VegaChart(_Known):
    """A chart of Vega-Lite by its specification: lines and areas of `data.values` are drawn, without a network, and the
    specification is shown below. `data` are values that it does not have itself."""

    spec: Mapping[str, Any] = attrs.field(repr=False)
    data: Any = attrs.field(default=None, repr=False)
    show_controls: bool = False

    @classmethod
    def from_altair_chart(cls, altair_chart: Any) -> VegaChart:
        """A chart of Altair's."""
        return cls(json.loads(altair_chart.to_json()))

    def document(self) -> Document:
        """It as JSON."""
        if not isinstance(self.spec, Mapping):
            raise ParameterError(f"VegaChart({type(self.spec).__name__}): not a specification", fix="give a dict")
        spec = dict(self.spec)
        if self.data is not None:
            spec["data"] = self.data if isinstance(self.data, Mapping) else {"values": list(self.data)}
        try:
            text = json.dumps(spec)
        except (TypeError, ValueError) as error:
            raise ParameterError(f"VegaChart: the specification is no JSON: {error}") from None
        if len(text) > LARGEST:
            raise ParameterError(f"VegaChart: {len(text):,} characters are more than a card takes ({LARGEST:,})")
        return {"kind": "vega", "spec": json.loads(text)}


_METAFLOW: Final[Mapping[str, Callable[[Mapping[str, Any]], _Known]]] = {
    "html": lambda shown: Frame(str(shown["data"])),
    "image": lambda shown: Frame(f'<img src="{escape(str(shown["src"]))}">', shown.get("label")),
    "log": lambda shown: PythonCode(code_string=str(shown["data"])),
    "markdown": lambda shown: Markdown(shown["source"]),
    "subtitle": lambda shown: Markdown(f"### {shown['text']}"),
    "table": lambda shown: Table(shown["data"], shown.get("columns", ())),
    "text": lambda shown: Markdown(shown["text"]),
    "title": lambda shown: Markdown(f"## {shown['text']}"),
    "vegaChart": lambda shown: VegaChart(shown["spec"], shown.get("data")),
}
"""The types of Metaflow's default card that a component of a user's own may return, with what shows them here."""


def document_from(shown: Any) -> Document:
    """What a component's `render` returned, as JSON: HTML stands in a frame, what another component's `render` returned
    as that component, a document of Metaflow's default card as what it means, and of other values their text."""
    if isinstance(shown, _Rendered):
        return shown
    if isinstance(shown, dict) and shown.get("type") in _METAFLOW:
        return _METAFLOW[shown["type"]](shown).document()
    if isinstance(shown, str) and "<" in shown:
        return Frame(shown).document()
    return {"kind": "text", "text": _cut(str(shown))}


def document_of(component: Any) -> Document:
    """A component as JSON; what is none is refused."""
    if not isinstance(component, CardComponent):
        raise ParameterError(
            f"a card takes no {type(component).__name__}",
            fix='write Markdown("…"), Artifact(value), Table, Image, Frame or ProgressBar',
        )
    return component.document()


def _cell(value: Any) -> Document:
    if isinstance(value, CardComponent):
        return value.document()
    return {"kind": "text", "text": _cut(str(value))}


def _cut(text: str) -> str:
    # A lone surrogate could be written to no file.
    text = text.encode("utf-8", "replace").decode("utf-8")
    return text if len(text) <= LONGEST else f"{text[: LONGEST - 1]}…"
