"""A run's steps and what each takes from others, as SVG in layers; and what happened when, as rows of phases over one
axis of time. Pure.

The layout follows K. Sugiyama, S. Tagawa and M. Toda, "Methods for Visual Understanding of Hierarchical System
Structures", IEEE Transactions on Systems, Man, and Cybernetics 11 (1981): each step in the layer after its last source,
long edges through layers by points of their own, then the order within layers by the mean place of neighbours.
"""

from __future__ import annotations

import itertools
import math
from typing import Callable, Final, Literal, Mapping, Sequence

from stoker.core.values import frozen
from stoker.core.words import count_text, time_text
from stoker.report.markup import NOTHING, STATES, Html, element, icon, joined, link, tone_of
from stoker.report.svg import time_axis

MOST_NODES: Final = 300
"""Steps beyond which nobody follows an edge, and a table says more."""
MOST_EDGES: Final = 1500
_NARROW: Final = 112
_WIDE: Final = 208
"""Pixels of a box: as its longest name needs, within these."""
_TALL: Final = 50
_GAP_ALONG: Final = 40
_GAP_ACROSS: Final = 18
_POINT: Final = 14
"""Pixels across that an edge takes where it passes a layer."""
_MARGIN: Final = 8
_FITS: Final = 1050
"""Pixels of a page across: a graph that is longer goes down and not to the right, if that is narrower."""
_HIGH: Final = 680
"""Pixels of a page down, beyond which a graph scrolls by itself."""
_A_ROW: Final = 5
"""Boxes in a row of a graph without edges."""
_LETTERS: Final = 19
"""Letters of a name in a box, in the widest of the fonts."""
_LETTER: Final = 8.4
"""Pixels of a letter in the widest of the fonts."""
_BESIDE: Final = 48
"""Pixels of a box beside its name."""
_SWEEPS: Final = 8


@frozen(kw_only=True)
class GraphStep:
    """One step."""

    key: str
    state: str
    sources: Sequence[str] = ()
    """Keys of the steps that it waits for; those that are none of the graph are passed over."""
    words: str = ""
    """A second line, such as how long it took."""
    address: str = ""
    """Where it leads; empty for nowhere."""


def graph(nodes: Sequence[GraphStep], *, label: str = "steps of the run") -> Html:
    """The graph; a sentence in its place where it is too large to be read, empty without nodes."""
    if not nodes:
        return NOTHING
    keys = {node.key for node in nodes}
    edges = [
        (source, node.key) for node in nodes for source in dict.fromkeys(node.sources) if source in keys - {node.key}
    ]
    if len(nodes) > MOST_NODES or len(edges) > MOST_EDGES:
        words = f"{count_text(len(nodes), 'step')} and {count_text(len(edges), 'edge')} are too many for a picture."
        return element("p", {"class": "empty"}, words)
    depth = _depths(nodes, edges)
    if not edges and len(nodes) > 1:
        # Nothing follows anything: rows of boxes instead of one column or row.
        depth = {node.key: place // _A_ROW for place, node in enumerate(nodes)}
    layers, links = _layers(nodes, edges, depth)
    wide = _width(nodes)
    rightward = bool(edges or len(nodes) == 1) and _goes_right(layers, wide)
    _order(layers, links)
    size = _TALL if rightward else wide
    across = _places(layers, links, size)
    along = {item: number for number, layer in enumerate(layers) for item in layer}
    step = (wide if rightward else _TALL) + _GAP_ALONG

    def corner(item: str) -> tuple[float, float]:
        """The middle of an item across, and its beginning along."""
        return across[item] + _MARGIN, along[item] * step + _MARGIN

    length = len(layers) * step - _GAP_ALONG + 2 * _MARGIN
    breadth = max(across[item] + _size(item, size) / 2 for item in across) + 2 * _MARGIN
    width, height = (length, breadth) if rightward else (breadth, length)
    parts = [
        _edge(path, corner, size=wide if rightward else _TALL, rightward=rightward)
        for path in _paths(edges, layers, depth)
    ]
    for node in nodes:
        middle, begin = corner(node.key)
        x, y = (begin, middle - _TALL / 2) if rightward else (middle - wide / 2, begin)
        parts.append(_box(node, x, y, wide))
    picture = {"viewBox": f"0 0 {width:.0f} {height:.0f}", "width": f"{width:.0f}", "height": f"{height:.0f}"}
    told = f"{label}: " + "; ".join(
        f"{node.key} {node.state}" + (f" after {', '.join(node.sources)}" if node.sources else "") for node in nodes
    )
    svg = element("svg", {**picture, "role": "group", "aria-label": told}, *parts)
    return element("div", {"class": "graph", "tabindex": "0", "role": "region", "aria-label": label}, svg)


def _width(nodes: Sequence[GraphStep]) -> int:
    letters = max(max(len(node.key), 0.85 * len(node.words)) for node in nodes)
    return round(min(max(_BESIDE + _LETTER * letters, _NARROW), _WIDE))


def _goes_right(layers: Sequence[Sequence[str]], wide: int) -> bool:
    """Whether the layers stand side by side: where they fit so, or take less of a page than below each other."""
    length = len(layers) * (wide + _GAP_ALONG)
    if length <= _FITS:
        return True
    most = max(sum(not item.startswith("\0") for item in layer) for layer in layers)
    below = most * (wide + _GAP_ACROSS)
    return below > _FITS and max(length / _FITS, most * (_TALL + _GAP_ACROSS) / _HIGH) < below / _FITS


# Layers

Edge = tuple[str, str]


def _depths(nodes: Sequence[GraphStep], edges: Sequence[Edge]) -> dict[str, int]:
    """The layer of each step: one more than that of its last source. Edges of a circle are passed over."""
    targets: dict[str, list[str]] = {node.key: [] for node in nodes}
    missing = dict.fromkeys(targets, 0)
    for source, target in edges:
        targets[source].append(target)
        missing[target] += 1
    depth = dict.fromkeys(targets, 0)
    ready = [key for key, number in missing.items() if not number]
    for key in ready:
        for target in targets[key]:
            depth[target] = max(depth[target], depth[key] + 1)
            missing[target] -= 1
            if not missing[target]:
                ready.append(target)
    return depth


def _layers(
    nodes: Sequence[GraphStep], edges: Sequence[Edge], depth: Mapping[str, int]
) -> tuple[list[list[str]], dict[str, list[str]]]:
    """The items of each layer, steps and points of long edges, and each item's neighbours."""
    layers: list[list[str]] = [[] for _ in range(max(depth.values()) + 1)]
    for node in nodes:
        layers[depth[node.key]].append(node.key)
    links: dict[str, list[str]] = {node.key: [] for node in nodes}
    for edge in edges:
        path = _path_of(edge, depth)
        for point in path[1:-1]:
            layers[int(point.split("\0")[1])].append(point)
            links[point] = []
        for earlier, later in itertools.pairwise(path):
            links[earlier].append(later)
            links[later].append(earlier)
    return layers, links


def _path_of(edge: Edge, depth: Mapping[str, int]) -> list[str]:
    source, target = edge
    points = [f"\0{layer}\0{source}\0{target}" for layer in range(depth[source] + 1, depth[target])]
    return [source, *points, target]


def _paths(edges: Sequence[Edge], layers: Sequence[Sequence[str]], depth: Mapping[str, int]) -> list[list[str]]:
    return [_path_of(edge, depth) for edge in edges if depth[edge[0]] < depth[edge[1]] < len(layers)]


def _order(layers: list[list[str]], links: Mapping[str, Sequence[str]]) -> None:
    """Sort each layer by the mean place of the neighbours in the one before, forth and back."""
    for sweep in range(_SWEEPS):
        numbers = range(1, len(layers)) if sweep % 2 == 0 else range(len(layers) - 2, -1, -1)
        for number in numbers:
            beside = {item: place for place, item in enumerate(layers[number + (-1 if sweep % 2 == 0 else 1)])}
            means = {}
            for place, item in enumerate(layers[number]):
                known = [beside[other] for other in links[item] if other in beside]
                means[item] = sum(known) / len(known) if known else place
            layers[number].sort(key=means.__getitem__)


def _size(item: str, size: int) -> int:
    return _POINT if item.startswith("\0") else size


def _places(layers: Sequence[Sequence[str]], links: Mapping[str, Sequence[str]], size: int) -> dict[str, float]:
    """The middle of each item across its layer: near its neighbours, and none over another."""
    places: dict[str, float] = {}
    for layer in layers:
        offset = 0.0
        for item in layer:
            places[item] = offset + _size(item, size) / 2
            offset += _size(item, size) + _GAP_ACROSS
    for sweep in range(_SWEEPS):
        for layer in layers if sweep % 2 == 0 else reversed(layers):
            wanted = []
            for item in layer:
                near = sorted(places[other] for other in links[item])
                wanted.append((near[(len(near) - 1) // 2] + near[len(near) // 2]) / 2 if near else places[item])
            _spread(layer, wanted, places, size)
    first = min(places[item] - _size(item, size) / 2 for item in places)
    return {item: place - first for item, place in places.items()}


def _spread(layer: Sequence[str], wanted: Sequence[float], places: dict[str, float], size: int) -> None:
    """Put items where they want to be, as far as their order and their sizes allow.

    Items that would touch form a group, which stands at the mean of what they want.
    """
    groups: list[tuple[float, list[tuple[str, float]]]] = []
    """The beginning of each group, and its items with their distance from there."""
    for item, place in zip(layer, wanted):
        half = _size(item, size) / 2
        begin, members = place - half, [(item, half)]
        while groups:
            earlier, others = groups[-1]
            last, distance = others[-1]
            length = distance + _size(last, size) / 2 + _GAP_ACROSS
            if earlier + length <= begin:
                break
            groups.pop()
            share = len(others) / (len(others) + len(members))
            begin = earlier * share + (begin - length) * (1 - share)
            members = others + [(name, length + away) for name, away in members]
        groups.append((begin, members))
    for begin, members in groups:
        for name, away in members:
            places[name] = begin + away


# Drawing


def _edge(path: Sequence[str], corner: Callable[[str], tuple[float, float]], *, size: int, rightward: bool) -> Html:
    words: list[str] = []
    x = y = 0.0
    for number, (earlier, later) in enumerate(itertools.pairwise(path)):
        middle, begin = corner(earlier)
        start = begin + size
        target, finish = corner(later)
        if number == 0:
            words.append(f"M{_pair(start, middle, rightward)}")
        elif earlier.startswith("\0"):
            words.append(f"L{_pair(start, middle, rightward)}")
        bend = (start + finish) / 2
        words.append(
            f"C{_pair(bend, middle, rightward)} {_pair(bend, target, rightward)} {_pair(finish, target, rightward)}"
        )
        x, y = (finish, target) if rightward else (target, finish)
    tip = f"M{x:.1f} {y:.1f}l-7 -4v8z" if rightward else f"M{x:.1f} {y:.1f}l-4 -7h8z"
    return joined(
        [element("path", {"class": "edge", "d": "".join(words)}), element("path", {"class": "tip", "d": tip})]
    )


def _pair(along: float, across: float, rightward: bool) -> str:
    return f"{along:.1f} {across:.1f}" if rightward else f"{across:.1f} {along:.1f}"


def _box(node: GraphStep, x: float, y: float, wide: int) -> Html:
    shape = STATES.get(node.state, STATES["unknown"]).shape
    name = node.key if len(node.key) <= _LETTERS else f"{node.key[: _LETTERS - 1]}…"
    words = node.words if len(node.words) <= _LETTERS + 4 else f"{node.words[: _LETTERS + 3]}…"
    box = {"class": "box", "x": f"{x:.1f}", "y": f"{y:.1f}", "width": wide, "height": _TALL, "rx": 6}
    told = f"{node.key}: {node.state}" + (f", {node.words}" if node.words else "")
    parts = (
        element("title", None, told),
        element("rect", box),
        element(
            "path", {"class": "state", "d": shape, "transform": f"translate({x + 12:.1f} {y + _TALL / 2 - 8:.1f})"}
        ),
        element("text", {"class": "name", "x": f"{x + 38:.1f}", "y": f"{y + (21 if words else 30):.1f}"}, name),
        element("text", {"class": "words", "x": f"{x + 38:.1f}", "y": f"{y + 38:.1f}"}, words) if words else NOTHING,
    )
    state = node.state if node.state in STATES else "unknown"
    group = element("g", {"class": f"{tone_of(node.state)} {state}"}, *parts)
    return element("a", {"href": node.address}, group) if node.address else group


Phase = Literal["queue", "image", "start", "run", "save"]
MOST_ROWS: Final = 200
"""Rows that are drawn; a page with more gets slow."""
_WIDTH: Final = 1000
_HEIGHT: Final = 20
_HEIGHTS: Final[Mapping[str, int]] = {"queue": 4, "image": 8, "start": 12, "run": 20, "save": 14}
"""Phase → how high its bar is, so that it is told without colour; in the order of an attempt."""
_WORDS: Final[Mapping[str, str]] = {
    "queue": "in a queue",
    "image": "image",
    "start": "start",
    "run": "run",
    "save": "save",
}


@frozen(kw_only=True)
class PhaseSpan:
    """A stretch of time in one phase; seconds since the epoch, or any common beginning."""

    phase: Phase
    start: float
    end: float


@frozen(kw_only=True)
class TimelineRow:
    """One attempt at a step, or a step that had none."""

    name: str
    state: str
    spans: Sequence[PhaseSpan] = ()
    took: str = ""
    """Beside the bars, in words."""
    address: str = ""
    """Where its name leads; empty for nowhere."""


def timeline(rows: Sequence[TimelineRow], *, begin: float | None = None, end: float | None = None) -> Html:
    """The rows over the time from `begin` to `end`, by default from the first span to the last; empty without spans."""
    spans = [span for row in rows for span in row.spans if math.isfinite(span.start) and math.isfinite(span.end)]
    if not spans:
        return NOTHING
    first = min(span.start for span in spans) if begin is None else begin
    last = max(span.end for span in spans) if end is None else end
    width = max(last - first, 1e-9)
    parts: list[Html] = []
    for row in rows[:MOST_ROWS]:
        words = link(row.address, row.name) if row.address else element("span", None, row.name)
        name = joined([icon(row.state), words])
        parts.append(element("div", {"class": "name", "title": row.name}, name))
        parts.append(_bars(row, first, width))
        parts.append(element("div", {"class": "took"}, row.took))
    parts.append(element("div", {"class": "clock"}, time_axis(width)))
    hidden = len(rows) - MOST_ROWS
    more = element("p", {"class": "muted"}, f"… and {count_text(hidden, 'more row')}") if hidden > 0 else NOTHING
    return joined([element("div", {"class": "timeline"}, *parts), more, _legend(spans)])


def _bars(row: TimelineRow, first: float, width: float) -> Html:
    bars = []
    for span in row.spans:
        left = _WIDTH * min(max((span.start - first) / width, 0.0), 1.0)
        right = _WIDTH * min(max((span.end - first) / width, 0.0), 1.0)
        if not right >= left:
            continue
        height = _HEIGHTS[span.phase]
        words = f"{row.name}: {_WORDS[span.phase]} {time_text(max(0.0, span.end - span.start))}"
        # What was short is seen too.
        bar = {"x": f"{min(left, _WIDTH - 2):.1f}", "y": (_HEIGHT - height) / 2, "width": f"{max(right - left, 2):.1f}"}
        bars.append(
            element(
                "g",
                None,
                element("title", None, words),
                element("rect", {"class": span.phase, **bar, "height": height}),
            )
        )
    words = ", ".join(f"{_WORDS[span.phase]} {time_text(max(0.0, span.end - span.start))}" for span in row.spans)
    picture = {"viewBox": f"0 0 {_WIDTH} {_HEIGHT}", "preserveAspectRatio": "none", "class": tone_of(row.state)}
    return element("svg", {**picture, "role": "img", "aria-label": f"{row.name}: {words or 'did not run'}"}, *bars)


def _legend(spans: Sequence[PhaseSpan]) -> Html:
    phases = {span.phase for span in spans}
    if phases == {"run"}:
        return NOTHING  # there is nothing to tell it from
    items = []
    for phase, height in _HEIGHTS.items():
        if phase in phases:
            bar = {"class": phase, "x": 0, "y": (_HEIGHT - height) / 2, "width": 28, "height": height}
            picture = {"viewBox": f"0 0 28 {_HEIGHT}", "aria-hidden": "true"}
            items.append(element("li", None, element("svg", picture, element("rect", bar)), _WORDS[phase]))
    return element("ul", {"class": "legend"}, *items)
