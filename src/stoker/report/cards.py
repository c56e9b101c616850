"""A card: one step of a run as a self-contained page of HTML, without network and scripts.

Pure: it renders what the caller read from the store. The components that the step's author put on the card come first,
then the step's status, accelerators, parameters and last lines. Every text from outside is escaped.
"""

from __future__ import annotations

import math
from html import escape
from typing import Any, Callable, Final, Iterator, Mapping, Sequence

import attrs

from stoker.client import html
from stoker.core import receipt_words as words
from stoker.core.codec import to_json
from stoker.core.plan import LogLine
from stoker.core.receipt import Receipt, Track
from stoker.core.words import count_text, memory_text
from stoker.report import markdown, svg
from stoker.report.receipts import round_maximum, scale_end

Document = Mapping[str, Any]


@attrs.frozen(kw_only=True)
class Card:
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


_STYLE: Final = """
:root { color-scheme: light dark; }
body { font: 15px/1.45 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem; }
section { margin: 0 0 2rem; overflow-x: auto; }
h1, h2 { line-height: 1.2; }
h2 { font-size: 1.1rem; border-bottom: 1px solid #8886; padding-bottom: .2rem; }
pre { background: #8882; padding: .6rem .8rem; overflow-x: auto; white-space: pre-wrap; overflow-wrap: anywhere; }
svg { display: block; max-width: 100%; height: auto; margin: .6rem 0; }
img { max-width: 100%; }
table { border-collapse: collapse; }
td, th { text-align: left; vertical-align: top; padding: 2px 12px 2px 0; }
.stderr { color: #c0392b; }
footer { opacity: .6; font-size: .85rem; }
"""


def page(card: Card) -> str:
    """The card as HTML."""
    title = f"{card.run['pipeline']} / {card.step['key']}"
    # The page must not be able to load anything, whatever its texts contain.
    policy = "default-src 'none'; img-src data:; style-src 'unsafe-inline'"
    attempts = [{**one, "receipt": None} for one in card.step["attempts"]]
    parts = [
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">',
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        f"<title>{escape(title)}</title><style>{_STYLE}</style></head><body>",
        f"<h1>{escape(title)}</h1>",
        *(_section("", component(one)) for one in card.components),
        _section("Step", html.step({**card.step, "attempts": attempts}), escape(card.remark)),
        *_accelerators(card),
        *_parameters(card.run["parameters"]),
        *_log(card.lines),
        _section("Run", html.run({**card.run, "steps": ()})),
        "<footer>made by Stoker</footer></body></html>\n",
    ]
    return "".join(parts).encode("utf-8", "replace").decode("utf-8")


def _section(title: str, *parts: str) -> str:
    head = f"<h2>{escape(title)}</h2>" if title else ""
    return f"<section>{head}{''.join(parts)}</section>\n"


def _parameters(parameters: Mapping[str, Any]) -> Iterator[str]:
    if parameters:
        rows = ([escape(str(name)), f"<code>{escape(repr(value))}</code>"] for name, value in parameters.items())
        yield _section("Parameters", _table((), rows))


def _log(lines: Sequence[LogLine]) -> Iterator[str]:
    if lines:
        rows = [
            f'<span class="{"stderr" if line.stream == "stderr" else "stdout"}">'
            + escape(line.text if line.rank is None else f"[{line.rank}] {line.text}")
            + "</span>"
            for line in lines
        ]
        yield _section(f"The last {count_text(len(lines), 'line')}", f"<pre>{chr(10).join(rows)}</pre>")


def _table(head: Sequence[str], rows: Any) -> str:
    """Cells are HTML already."""
    top = "".join(f"<th>{cell}</th>" for cell in head)
    body = "".join("<tr>" + "".join(f"<td>{cell}</td>" for cell in row) + "</tr>" for row in rows)
    return f"<table>{f'<thead><tr>{top}</tr></thead>' if head else ''}<tbody>{body}</tbody></table>"


# Components


def component(document: Document) -> str:
    """One component as HTML; for a kind that this version does not know, the name of the kind."""
    render = _COMPONENTS.get(document.get("kind", ""), _unknown)
    return render(document)


def _unknown(document: Document) -> str:
    return f"<p><i>a component of the kind {escape(repr(document.get('kind')))}</i></p>"


def _image(document: Document) -> str:
    label = escape(document["label"])
    source = f"data:{escape(document['type'])};base64,{escape(document['data'])}"
    return f'<figure><img src="{source}" alt="{label}"><figcaption>{label}</figcaption></figure>'


def _artifact(document: Document) -> str:
    name = f"<b>{escape(document['name'])}</b>" if document["name"] else ""
    return f"{name}<pre>{escape(document['text'])}</pre>"


def _rows(document: Document) -> str:
    more = f"<p><i>… and {count_text(document['left'], 'more row')}</i></p>" if document["left"] else ""
    rows = [[component(cell) for cell in row] for row in document["rows"]]
    return _table([escape(header) for header in document["headers"]], rows) + more


_COMPONENTS: Final[Mapping[str, Callable[[Document], str]]] = {
    "markdown": lambda document: markdown.html(document["text"]),
    "text": lambda document: escape(document["text"]),
    "heading": lambda document: f"<h2>{escape(document['text'])}</h2>",
    "artifact": _artifact,
    "image": _image,
    "table": _rows,
}


# Accelerators


@attrs.frozen
class _Quantity:
    """A track that is drawn."""

    name: str
    """The name of the track."""
    title: str
    words: Callable[[float], str]
    """A value in words, with its unit."""


_OF_DEVICES: Final = (
    _Quantity("utilization", "utilisation", "{:.0f} %".format),
    _Quantity("memory", "memory", memory_text),
    _Quantity("power", "power", "{:.0f} W".format),
    _Quantity("temperature", "temperature", "{:.0f} °C".format),
)
_OF_PROCESSES: Final = (
    _Quantity("cpus", "cores in use", words.cores_text),
    _Quantity("memory", "host memory", memory_text),
)


def _accelerators(card: Card) -> Iterator[str]:
    if card.receipt is not None:
        so_far = "<p>so far: it still runs</p>" if card.running else ""
        yield _section("Accelerators", so_far, html.receipt(to_json(card.receipt)), *charts(card.receipt, card.tracks))


def charts(receipt: Receipt, tracks: Sequence[Track]) -> Iterator[str]:
    """An SVG for each quantity of each device, then for those of the processes; none without measurements."""
    by_name = {(track.uuid, track.name): track for track in tracks if any(_is_known(one) for one in track.values)}
    times = [time for track in by_name.values() for time in track.times if math.isfinite(time)]
    end = max([receipt.seconds, *times])
    for use in receipt.devices:
        for quantity in _OF_DEVICES:
            track = by_name.get((use.uuid, quantity.name))
            if track is not None:
                # Devices of one receipt share their scales, so that they can be compared.
                same_quantity = [one for (uuid, name), one in by_name.items() if uuid and name == quantity.name]
                high = scale_end(quantity.name, use, same_quantity)
                yield _chart(track, quantity, words.device_name(use), high, end)
    for quantity in _OF_PROCESSES:
        track = by_name.get(("", quantity.name))
        if track is not None:
            yield _chart(track, quantity, "", round_maximum([track]), end)


def _chart(track: Track, quantity: _Quantity, device: str, high: float, end: float) -> str:
    values = [value for value in (track.peak, *track.values) if value is not None and math.isfinite(value)]
    label = f"{quantity.title} of {device}" if device else quantity.title
    drawing = svg.Drawing(words=quantity.words, end=end)
    label = f"{label}, peak {quantity.words(max(values))}"
    return svg.chart(track.times, track.values, label=label, high=high, drawing=drawing)


def _is_known(value: float | None) -> bool:
    return value is not None and math.isfinite(value)
