"""A card: one step of a run as a self-contained page of HTML, without network and scripts.

Pure: it renders what the caller read from the store. The components that the step's author put on the card come first,
then the step's status, accelerators, parameters and last lines. Every text from outside is escaped.

Their Markdown is CommonMark with tables and strikethrough. HTML in it is shown as text, links lead to http, https or
mail only, and the page loads nothing: an image becomes a link. A line break in the text is one on the page.
"""

from __future__ import annotations

import functools
import json
import logging
from typing import TYPE_CHECKING, Any, Callable, Final, Iterator, Mapping, Sequence

import attrs

from stoker.client.metrics import metrics_of, usage_of_document
from stoker.core.artifact import Preview, cell, from_wire
from stoker.core.errors import StokerError
from stoker.core.graph import CARD, GANG
from stoker.core.plan import LogLine
from stoker.core.receipt import Receipt, Track
from stoker.core.secret import MASK, looks_secret
from stoker.core.words import count_text
from stoker.report import stepparts
from stoker.report.figures import receipt_part
from stoker.report.markup import (
    NOTHING,
    POLICY,
    Content,
    Html,
    badge,
    document,
    element,
    facts,
    joined,
    preformatted,
    section,
    table,
)
from stoker.store import artifacts
from stoker.store.previewing import lines_of
from stoker.store.store import Store

if TYPE_CHECKING:
    from markdown_it import MarkdownIt


_SCHEMES: Final = ("http://", "https://", "mailto:")


def html(text: str) -> str:
    """Markdown as HTML that is safe anywhere in a page."""
    return str(_parser().render(text))


@functools.cache
def _parser() -> MarkdownIt:
    from markdown_it import MarkdownIt  # few pages have Markdown, and the import takes some 20 ms

    parser = MarkdownIt("commonmark", {"html": False, "breaks": True, "xhtmlOut": False})
    parser.enable(["table", "strikethrough"]).disable("image")
    parser.validateLink = _leads_elsewhere  # type: ignore[method-assign]
    return parser


def _leads_elsewhere(url: str) -> bool:
    return url.lower().startswith(_SCHEMES)


Document = Mapping[str, Any]

FRAMES: Final = f"{POLICY}; script-src 'unsafe-inline'; font-src data:"
"""The policy of a page with frames."""


@attrs.frozen(kw_only=True)
class StepCard:
    """The content of a page."""

    run: Document
    """`Run.as_dict` of the client."""
    step: Document
    """`Step.as_dict` of the client."""
    components: Sequence[Document] = ()
    """Documents of `core.cards`."""
    lines: Sequence[LogLine] = ()
    """The last lines that the step wrote."""
    receipt: Receipt | None = None
    """The receipt of the newest attempt; None if it asked for no accelerator."""
    tracks: Sequence[Track] = ()
    """The measurements that belong to the receipt."""
    running: bool = False
    """Whether the newest attempt still runs."""
    remark: str = ""
    """A sentence under the step."""
    span: tuple[float | None, float | None] = (None, None)
    """When the step's own code began and ended in the receipt's attempt, in seconds since the epoch."""
    metrics: Html = NOTHING
    """What the step logged of itself."""
    elements: Html = NOTHING
    """Of a fan-out: the charts and the table of its elements."""
    results: Html = NOTHING
    """Its results with previews."""
    settings: Sequence[tuple[str, str, str]] = ()
    """Its settings, each with its value and where it was given."""


def page(card: StepCard) -> str:
    """The card as HTML."""
    title = f"{card.run['pipeline']} / {card.step['key']}"
    failure = next((one["failure"] for one in reversed(card.step["attempts"]) if one.get("failure")), None)
    outputs = [(one["name"], stepparts.output_words(one)) for one in card.step["outputs"].values()]
    body = element(
        "main",
        None,
        element("h1", None, f"{title} ", badge(card.step["status"])),
        *(element("section", None, component(one)) for one in card.components),
        section(
            "Step",
            stepparts.step_facts(card.step),
            element("p", None, card.remark) if card.remark else NOTHING,
            stepparts.failure_part(failure, unfolded=True) if failure and card.step["status"] == "failed" else NOTHING,
            stepparts.attempt_table(card.step),
        ),
        section("Elements", card.elements),
        section("Metrics", card.metrics),
        section("Accelerators", _accelerators(card)),
        section("Results", card.results or table(("result", ""), outputs, caption="results")),
        section("Parameters", _parameters(card.run["parameters"])),
        section("Settings", stepparts.setting_table(card.settings)),
        section(f"The last {count_text(len(card.lines), 'line')}", stepparts.log_part(card.lines)),
        section("Run", _run(card.run)),
        element("footer", None, "made by Stoker"),
    )
    # A frame has the page's policy: scripts may run where one is, and this page itself has none.
    scripts = any(one.get("kind") == "frame" for one in card.components)
    return document(title, body, state=card.step["status"], policy=FRAMES if scripts else POLICY)


def _run(run: Document) -> Html:
    return facts(
        {
            "run": run["id"],
            "status": badge(run["status"]),
            "started": stepparts.time_words(run["started"] or run["created"]),
            "took": stepparts.took(run["seconds"]),
            "stack": run["stack"],
            "defined": run["source"],
            "tags": ", ".join(run["tags"]),
            "error": run["error"],
        }
    )


def _parameters(parameters: Mapping[str, Any]) -> Html:
    rows = [
        (element("code", None, name), element("code", None, MASK if looks_secret(name, value) else repr(value)))
        for name, value in parameters.items()
    ]
    return table(("parameter", "value"), rows, caption="parameters")


def _accelerators(card: StepCard) -> Html:
    if card.receipt is None:
        return NOTHING
    usage = usage_of_document(card.step.get("usage") or {})
    return receipt_part(card.receipt, card.tracks, running=card.running, usage=usage, span=card.span)


# Components


def component(shown: Document) -> Html:
    """One component as HTML; for a kind that this version does not know, the name of the kind."""
    render = _COMPONENTS.get(shown.get("kind", ""), _unknown)
    return render(shown)


def _unknown(shown: Document) -> Html:
    return element("p", None, element("i", None, f"a component of the kind {shown.get('kind')!r}"))


def _image(shown: Document) -> Html:
    label = shown["label"]
    picture = element("img", {"src": f"data:{shown['type']};base64,{shown['data']}", "alt": label})
    return element("figure", None, picture, element("figcaption", None, label))


def _artifact(shown: Document) -> Html:
    name = element("b", None, shown["name"]) if shown["name"] else NOTHING
    return joined([name, preformatted(shown["text"])])


def _rows(shown: Document) -> Html:
    left = shown["left"]
    more = element("p", {"class": "muted"}, f"… and {count_text(left, 'more row')}") if left else NOTHING
    rows = [[component(cell) for cell in row] for row in shown["rows"]]
    return joined([table(shown["headers"], rows, caption="table", whole=True), more])


def _progress(shown: Document) -> Html:
    whole, value, unit = shown["max"], shown["value"], shown["unit"]
    label = shown["label"] or "progress"
    words = " ".join(filter(None, (f"{value:g} of {whole:g}" if whole > 0 else f"{value:g}", unit)))
    bar = {"max": f"{whole:g}", "value": f"{min(max(value, 0.0), whole):g}", "aria-label": label} if whole > 0 else {}
    parts: list[Content] = [element("strong", None, shown["label"]), " ", element("progress", bar, words), " ", words]
    if shown["metadata"]:
        parts += [" ", element("span", {"class": "muted"}, shown["metadata"])]
    return element("p", {"class": "progress"}, *parts)


def _frame(shown: Document) -> Html:
    """The user's own HTML: without this page's origin, forms, windows and anything that could leave it."""
    label = shown["label"] or "chart"
    frame = {"sandbox": "allow-scripts", "srcdoc": shown["html"], "height": shown["height"], "title": label}
    title = element("figcaption", None, shown["label"]) if shown["label"] else NOTHING
    return element("figure", None, element("iframe", {**frame, "loading": "lazy"}), title)


def _value(shown: Document) -> Html:
    lines = [("span", {"class": "muted"}, shown["title"]), ("strong", {"class": "figure"}, shown["value"])]
    lines += [("span", {"class": "muted"}, shown[name]) for name in ("change", "subtitle")]
    return element("p", {"class": "value"}, *(element("span", None, element(*line), " ") for line in lines if line[2]))


def _timeline(shown: Document) -> Html:
    names = list(dict.fromkeys(name for event in shown["events"] for name in event["facts"]))
    rows = [
        [event["time"], *(component(event["facts"][name]) if name in event["facts"] else "" for name in names)]
        for event in shown["events"]
    ]
    title = element("h3", None, shown["title"]) if shown["title"] else NOTHING
    more = [f"… and {count_text(shown['left'], 'earlier event')}"] if shown.get("left") else []
    more += ["finished"] if shown.get("over") else []
    body = table(["time", *names], rows, caption=shown["title"] or "events", whole=True)
    return joined([title, body, *(element("p", {"class": "muted"}, words) for words in more)])


def _vega(shown: Document) -> Html:
    """The lines of a chart; of one that is not of lines the first rows of its data; and its specification."""
    spec = shown["spec"]
    curves = tuple(one for one in lines_of(spec) if one is not None)
    title = spec.get("title") or "chart"
    label = title if isinstance(title, str) else "chart"
    data = {} if curves else spec.get("data") or {}
    values = data.get("values") or (spec.get("datasets") or {}).get(data.get("name"), ())
    rows = [row for row in values if isinstance(row, dict)][:_ROWS] if isinstance(values, list) else []
    names = list(dict.fromkeys(name for row in rows for name in row))
    drawn = Preview(
        curves=curves,
        headers=tuple(map(str, names)),
        rows=tuple(tuple(cell(row.get(name, "")) for name in names) for row in rows),
        more=f"{len(values) - len(rows):,} more" if len(values) > len(rows) > 0 else "",
    )
    text = element("details", None, element("summary", None, "its specification"), preformatted(_indented(spec)))
    return joined([element("p", None, element("b", None, label)), stepparts.preview_part(drawn, label=label), text])


_ROWS: Final = 50
"""Rows of a chart's data that are shown where it is not drawn."""


def _indented(value: Any) -> str:
    text = json.dumps(value, indent=2)
    return text if len(text) <= _SPECIFICATION else f"{text[:_SPECIFICATION]}…"


_SPECIFICATION: Final = 20_000
"""Characters of a chart's specification that are shown."""

_COMPONENTS: Final[Mapping[str, Callable[[Document], Html]]] = {
    "markdown": lambda shown: Html(html(shown["text"])),
    "text": lambda shown: joined([shown["text"]]),
    "heading": lambda shown: element("h2", None, shown["text"]),
    "artifact": _artifact,
    "image": _image,
    "table": _rows,
    "progress": _progress,
    "frame": _frame,
    "error": lambda shown: joined([element("h3", None, shown["title"]), preformatted(shown["text"])]),
    "code": lambda shown: preformatted(shown["text"]),
    "value": _value,
    "timeline": _timeline,
    "vega": _vega,
}


log = logging.getLogger(__name__)


def components(store: Store, run: str, key: str, *, node: int | None = None) -> list[Mapping[str, Any]]:
    """What a task put on its cards, card after card; for a whole `num_parallel`, that of every node."""
    parts: list[Mapping[str, Any]] = []
    for number, cards in _cards_by_node(store, run, key, node):
        if number is not None and node is None:
            parts.append({"kind": "heading", "text": f"node {number}"})
        for one in cards:
            parts += _parts_of(one)
    return parts


def _parts_of(card: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    if card.get("kind") != "card":  # a component, as runs of earlier versions have them
        return [card]
    parts = list(card.get("parts", ()))
    title = card["id"] or ("" if card["type"] in ("default", "blank") else card["type"])
    if "html" in card:
        parts = [{"kind": "frame", "html": card["html"], "label": "", "height": 480}]
    return [{"kind": "heading", "text": title}, *parts] if title and parts else parts


def kept_cards(store: Store, run: str, key: str, *, node: int | None = None) -> list[Mapping[str, Any]]:
    """The cards of a task as documents, as it ended, or as it showed them last."""
    found = [one for _, cards in _cards_by_node(store, run, key, node) for one in cards]
    return [one for one in found if one.get("kind") == "card"]


def _cards_by_node(
    store: Store, run: str, key: str, node: int | None
) -> Iterator[tuple[int | None, list[Mapping[str, Any]]]]:
    """(node, cards) of a task; the node is None for one that is not of a `num_parallel`."""
    outputs = {row.name: row.artifact for row in store.records.outputs(run, key)}
    if not outputs:
        yield from _refreshed(store, run, key, node)
    elif GANG not in outputs:
        if CARD in outputs:
            yield None, list(artifacts.load(outputs[CARD], store.blobs))
    else:
        gang = outputs[GANG]
        for index, part in enumerate(artifacts.items(gang, store.blobs) if gang.serializer == "list" else [gang]):
            wire = artifacts.load(part, store.blobs).get(CARD) if node in (None, index) else None
            if wire is not None:
                yield index, list(artifacts.load(from_wire(wire), store.blobs))


def _refreshed(
    store: Store, run: str, key: str, node: int | None
) -> Iterator[tuple[int | None, list[Mapping[str, Any]]]]:
    """The cards as of the last `refresh` of a task that runs, or that did not succeed."""
    numbers = [number for one, number in store.records.metric_attempts(run) if one == key]
    for number, wire in sorted(metrics_of(store.records, run, key, max(numbers, default=0)).cards.items()):
        if node not in (None, number):
            continue
        try:
            yield number or None, list(artifacts.load(from_wire(wire), store.blobs))
        except (StokerError, LookupError, TypeError, ValueError) as error:
            # Nothing holds what a failed task showed once: the store may have been cleaned up.
            log.debug("the card of %s is gone: %s", key, error)


def card_page(components: Sequence[Mapping[str, Any]], *, title: str, state: str) -> str:
    """The components alone as a page, whose scripts may run: for a frame without the origin of the page around it."""
    body = element("main", None, *(element("section", None, component(one)) for one in components))
    return document(title, body, state=state, policy=FRAMES)
