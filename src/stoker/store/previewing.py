"""Previews of values whose bytes only their own code can read: made by the worker, when it has saved the value.

The bytes of arrays, tensors and tables are data, and `store.previews` reads them when somebody looks. A pickle is a
program, which nobody runs for a look: a figure, a model, a frame without Arrow is looked at here, while it is still
there. That takes at most `BUDGET` and never fails a step: what takes longer, or raises, has no preview.
"""

from __future__ import annotations

import contextlib
import io
import json
import math
import signal
import sys
import threading
from collections.abc import Mapping as AnyMapping
from numbers import Real
from types import FrameType
from typing import Any, Callable, Final, Iterator, Mapping, Protocol, Sequence, runtime_checkable

import attrs

from stoker.core.artifact import COLUMNS, LONGEST, ChartCurve, KeptPreview, Picture, Preview, StoredArtifact, cell
from stoker.core.codec import to_json
from stoker.core.words import count_text
from stoker.store.blobs import Blobs
from stoker.store.serializers import registry

BUDGET: Final = 0.05
"""Seconds for one preview."""
_RENDERED: Final = 0.2
"""Seconds for a matplotlib figure, which takes as long as it takes to draw: 30 ms for a line, 0.1 s for nine axes."""
KEY: Final = "preview"
"""The key in an artifact's `meta`: the document of a short preview, the digest of another one's."""
_INLINE: Final = 1_000
"""Characters of a document that is kept with the artifact itself."""
_ROWS: Final = 100
_LINES: Final = 200
"""Lines of a tree."""
_LEVELS: Final = 6
_CURVES: Final = 12
"""Lines of a chart."""
_POINTS: Final = 300
"""Points of a line."""
_PIXELS: Final = 640
"""Pixels of the longer side of a picture."""
_PICKLED: Final = frozenset({"pickle", "cloudpickle"})
_DATA: Final = frozenset({"json", "str", "bytes", "list", *registry.BUILT_IN})
"""What `store.previews` reads."""


@runtime_checkable
class MakesPreview(Protocol):
    """A serializer that makes previews of its values: what is called when a worker has saved one."""

    def preview(self, value: Any) -> Preview | None:
        """The preview of a value, in at most `BUDGET` seconds; None for none."""


def with_preview(artifact: StoredArtifact, value: Any, blobs: Blobs) -> StoredArtifact:
    """The artifact of a value with a preview, if it needs one and one can be made."""
    make: Callable[[Any], Preview | None] = preview_of
    if artifact.serializer not in _PICKLED:
        if artifact.serializer in _DATA:
            return artifact
        serializer = registry.serializer_named(artifact.serializer)
        if not isinstance(serializer, MakesPreview):
            return artifact
        make = serializer.preview
    is_figure = make is preview_of and _kind(value) is _figure
    try:
        try:
            with _within(_RENDERED if is_figure else BUDGET):
                made = make(value)
        except _TooLong as late:
            if not is_figure or not late.args:
                return artifact
            made = Preview(words=f"a figure of matplotlib's, which is not drawn: it takes more than {_RENDERED} s")
        document = "" if made is None else json.dumps(to_json(KeptPreview.of(made)), separators=(",", ":"))
        if not document or len(document) > LONGEST:
            return artifact
        kept = document if len(document) <= _INLINE else blobs.put(document.encode())
    except Exception:  # code of the value's own, which may fail: a step does not
        return artifact
    return attrs.evolve(artifact, meta={**artifact.meta, KEY: kept})


class _TooLong(BaseException):
    """A preview takes too long, or without arguments cannot be timed; no Exception, which the value's own code might
    catch."""


@contextlib.contextmanager
def _within(seconds: float) -> Iterator[None]:
    """Raise `_TooLong` when so much time has passed; at once where the step uses the timer, or this is a thread."""
    if (
        threading.current_thread() is not threading.main_thread()
        or signal.getsignal(signal.SIGALRM) is not signal.SIG_DFL
        or signal.getitimer(signal.ITIMER_REAL) != (0.0, 0.0)
    ):
        raise _TooLong

    def expire(number: int, frame: FrameType | None) -> None:
        raise _TooLong(seconds)

    signal.signal(signal.SIGALRM, expire)
    try:
        signal.setitimer(signal.ITIMER_REAL, seconds)
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0.0)
        signal.signal(signal.SIGALRM, signal.SIG_DFL)


def preview_of(value: Any) -> Preview | None:
    """The preview of a value that is pickled."""
    return _kind(value)(value)


def _kind(value: Any) -> Callable[[Any], Preview | None]:
    """What makes the preview of a value, by the nearest of its classes that is known."""
    names = ((kind.__module__.partition(".")[0], kind.__qualname__) for kind in type(value).__mro__)
    return next((_KINDS[name] for name in names if name in _KINDS), _tree)


def _frame(value: Any) -> Preview:
    """The head of a pandas frame, and what its columns are."""
    head = value.iloc[:_ROWS, :COLUMNS]
    names = [" ".join(map(str, name)) if isinstance(name, tuple) else str(name) for name in head.columns]
    kinds = [f"{cell(name)} ({kind})" for name, kind in zip(names, head.dtypes)]
    columns = [list(head.iloc[:, place]) for place in range(head.shape[1])]
    rows = tuple(tuple(map(cell, (label, *row))) for label, *row in zip(head.index, *columns))
    left = [
        count_text(len(value) - _ROWS, "more row") if len(value) > _ROWS else "",
        count_text(value.shape[1] - COLUMNS, "more column") if value.shape[1] > COLUMNS else "",
    ]
    return Preview(
        words=f"{count_text(len(value), 'row')}, {count_text(value.shape[1], 'column')}",
        headers=("", *kinds),
        rows=rows,
        more=" and ".join(filter(None, left)),
    )


def _series(value: Any) -> Preview:
    return _frame(value.to_frame(name="value" if value.name is None else value.name))


def _figure(value: Any) -> Preview:
    """A matplotlib figure as a PNG of a page's size; the figure stays as it is."""
    width, height = value.get_size_inches()
    buffer = io.BytesIO()
    # A line of 100,000 points is drawn in 0.1 s with the points left out that nobody could see, and else in a second.
    with sys.modules["matplotlib"].rc_context(
        {"path.simplify": True, "path.simplify_threshold": 1.0, "agg.path.chunksize": 5000}
    ):
        value.savefig(buffer, format="png", dpi=min(100.0, _PIXELS / max(width, height)))
    return Preview(picture=Picture(media="image/png", data=buffer.getvalue()))


def _image(value: Any) -> Preview:
    """A picture of Pillow's, smaller."""
    small = value.copy() if max(value.size) <= 4 * _PIXELS else value.resize((_PIXELS, _PIXELS))
    small.thumbnail((_PIXELS, _PIXELS))
    buffer = io.BytesIO()
    (small if small.mode in ("1", "L", "LA", "P", "RGB", "RGBA") else small.convert("RGB")).save(buffer, format="PNG")
    words = f"{value.width} × {value.height} pixels, {value.mode}"
    return Preview(words=words, picture=Picture(media="image/png", data=buffer.getvalue()))


def _plotly(value: Any) -> Preview:
    """What a chart of plotly's draws, and its lines: a picture of it needs a browser."""
    rows, curves = [], []
    for trace in value.data:
        axes = {name: trace[name] for name in ("x", "y", "values", "z") if name in trace and trace[name] is not None}
        name = cell(trace.name or "")
        rows.append((str(trace.type), name, f"{len(next(iter(axes.values()), ())):,}"))
        if trace.type in ("scatter", "scattergl") and "lines" in (trace.mode or "lines") and "y" in axes:
            curves.append(_curve(name, axes.get("x", range(len(axes["y"]))), axes["y"]))
    title = value.layout.title.text or ""
    words = f"a chart of plotly's{f': {cell(title)}' if title else ''}"
    lines = tuple(filter(None, curves[:_CURVES]))
    return Preview(words=words, headers=("draws", "name", "points"), rows=tuple(rows), curves=lines)


def _chart(value: Any) -> Preview:
    """The lines of a chart of Altair's and its specification, which a browser draws."""
    specification = value.to_dict()
    shown = _cut(json.dumps(specification, indent=2, default=str), words="a chart of Altair's")
    return attrs.evolve(shown, curves=tuple(filter(None, lines_of(specification))))


def lines_of(specification: Mapping[str, Any]) -> Iterator[ChartCurve | None]:
    """The lines of a specification of Vega-Lite's that draws fields of its data as they are."""
    mark, encoding, data = (specification.get(name, {}) for name in ("mark", "encoding", "data"))
    channels = [encoding.get(name, {}) for name in ("x", "y", "color")]
    kind = mark.get("type") if isinstance(mark, dict) else mark
    if (
        kind not in ("line", "area")
        or "transform" in specification
        or any({"aggregate", "bin"} & {*c} for c in channels)
    ):
        return
    rows = data.get("values") or specification.get("datasets", {}).get(data.get("name"), ())
    across, up, colour = (channel.get("field", "") for channel in channels)
    for name in list(dict.fromkeys(row.get(colour, "") for row in rows))[:_CURVES]:
        own = [row for row in rows if row.get(colour, "") == name]
        yield _curve(cell(name), [row.get(across) for row in own], [row.get(up) for row in own])


def _curve(name: str, places: Sequence[Any], values: Sequence[Any]) -> ChartCurve | None:
    """A line through so many of its points as a small chart shows; None where they are no numbers."""
    step = -(-len(values) // _POINTS) or 1
    pairs = [*zip(places[::step], values[::step])]
    if not all(isinstance(number, Real) and math.isfinite(number) for pair in pairs for number in pair):
        return None
    return ChartCurve(name=name, places=tuple(float(x) for x, _ in pairs), values=tuple(float(y) for _, y in pairs))


def _module(value: Any) -> Preview:
    """The layers of a torch module, and its parameters."""
    parameters = [(name, tuple(one.shape), one.numel()) for name, one in value.named_parameters()]
    rows = tuple((name, "×".join(map(str, shape)) or "1", f"{size:,}") for name, shape, size in parameters[:_ROWS])
    left = len(parameters) - len(rows)
    return Preview(
        words=f"{type(value).__name__}: {sum(size for _, _, size in parameters):,} parameters",
        text=_cut(repr(value)).text,
        headers=("parameter", "shape", "elements"),
        rows=rows,
        more=count_text(left, "more parameter") if left else "",
    )


def _by_repr(value: Any) -> Preview:
    return _cut(repr(value))


_KINDS: Final[Mapping[tuple[str, str], Callable[[Any], Preview | None]]] = {
    ("pandas", "DataFrame"): _frame,
    ("pandas", "Series"): _series,
    ("matplotlib", "Figure"): _figure,
    ("PIL", "Image"): _image,
    ("plotly", "BaseFigure"): _plotly,
    ("altair", "TopLevelMixin"): _chart,
    ("torch", "Module"): _module,
    ("sklearn", "BaseEstimator"): _by_repr,
    ("polars", "LazyFrame"): lambda value: _cut(str(value.explain())),
}
"""(package, qualified name) of a value's class or one of its bases → what makes its preview."""


def _tree(value: Any) -> Preview | None:
    """The parts of dicts, lists, dataclasses and other objects, a line each."""
    lines: list[str] = []
    whole = _add("", value, lines, 0)
    return Preview(text="\n".join(lines), more="" if whole else "more parts") if lines else None


def _add(name: str, value: Any, lines: list[str], level: int) -> bool:
    """Add the lines of a part; False once there are too many."""
    if len(lines) >= _LINES:
        return False
    margin, label = "  " * level, f"{cell(name)}: " if name else ""
    parts = _parts(value) if level < _LEVELS else None
    if parts is None:
        lines.append(f"{margin}{label}{_value_text(value)}")
        return True
    lines.append(f"{margin}{label}{type(value).__name__}{'' if parts else ' (empty)'}")
    # A part that is the value itself ends at the levels.
    return all(_add(key, part, lines, level + 1) for key, part in parts[:_LINES]) and len(parts) <= _LINES


def _parts(value: Any) -> list[tuple[str, Any]] | None:
    """The named parts of a value; None for one that is shown as a whole."""
    if isinstance(value, AnyMapping):
        return [(str(key), part) for key, part in value.items()]
    if isinstance(value, (list, tuple, set, frozenset)) and not hasattr(value, "_fields"):
        if all(isinstance(part, (int, float, str, bool, type(None))) for part in value) and len(value) <= COLUMNS:
            return None
        return [(str(number), part) for number, part in enumerate(value)]
    fields: Any = getattr(value, "_fields", None)
    if fields is not None and isinstance(value, tuple):
        return list(zip(fields, value))
    own = getattr(value, "__dict__", None)
    says_nothing: Any = object.__repr__
    if type(value).__repr__ == says_nothing and isinstance(own, dict) and own and not isinstance(value, type):
        return [(name, part) for name, part in own.items() if not name.startswith("_")]
    return None


def _value_text(value: Any) -> str:
    if not isinstance(value, type) and hasattr(value, "shape") and hasattr(value, "dtype"):
        return f"{type(value).__name__} of {value.dtype}, {'×'.join(map(str, value.shape)) or 'one element'}"
    longest = 2 * COLUMNS * 10
    # The repr of bytes is up to four times as long as they are.
    long = isinstance(value, (str, bytes, bytearray)) and len(value) > longest
    text = repr(value[:longest] if long else value)
    return text if len(text) <= longest and not long else f"{text[: longest - 1]}…"


def _cut(text: str, words: str = "", most: int = 20_000) -> Preview:
    more = f"{len(text) - most:,} more characters" if len(text) > most else ""
    return Preview(words=words, text=text[:most], more=more)
