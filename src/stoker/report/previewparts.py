"""A preview of a stored value as HTML. Pure."""

from __future__ import annotations

import base64

from stoker.core.preview import Preview
from stoker.core.words import number_text
from stoker.report.markup import NOTHING, Html, element, joined
from stoker.report.svg import Drawing, Line, chart, histogram
from stoker.report.tables import table


def preview_part(preview: Preview, *, label: str, pictures: bool = True) -> Html:
    """What is known of a value: words, text, rows, histogram, curves, picture. `label` names it for who cannot see.

    Without `pictures` those are left out, for a page that must stay small.
    """
    parts = []
    if preview.words:
        parts.append(element("p", {"class": "muted"}, preview.words))
    if preview.picture is not None and pictures:
        address = f"data:{preview.picture.media};base64,{base64.b64encode(preview.picture.data).decode('ascii')}"
        parts.append(element("p", None, element("img", {"src": address, "alt": label})))
    if preview.histogram is not None:
        shown = preview.histogram
        words = f"histogram of {label}"
        parts.append(histogram(shown.counts, shown.low, shown.high, label=words))
    if preview.curves:
        lines = [Line(places=one.places, values=one.values, name=one.name) for one in preview.curves]
        drawing = Drawing(words=number_text, axis=number_text, low=None, begin=None, filled=False, breaks=False)
        parts.append(chart(lines, label=label, drawing=drawing))
    if preview.text:
        parts.append(element("pre", {"tabindex": "0"}, preview.text))
    parts.append(table(preview.headers, preview.rows, caption=f"beginning of {label}"))
    if preview.more:
        parts.append(element("p", {"class": "muted"}, f"… {preview.more}"))
    return joined(parts) if any(parts) else NOTHING
