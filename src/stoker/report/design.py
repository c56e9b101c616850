"""The frame of Stoker's pages: stylesheet, a whole document, sections, notices, folded parts, badges of states. Pure.

The stylesheet is `design.css` beside this module: tokens for type, space and colour in light and dark, then every class
that the parts of this folder write. A badge is a word with a shape of its own, readable without colour.
"""

from __future__ import annotations

import base64
import functools
from importlib import resources
from typing import Final, Mapping

from stoker.core.values import frozen
from stoker.report.markup import NOTHING, Content, Html, element, joined, markup_of


@frozen
class StateLook:
    """How a state is shown."""

    tone: str
    """The name of its colour in the stylesheet: good, bad, warn, active or quiet."""
    shape: str
    """The outlines of its icon in a square of 16."""


_CIRCLE: Final = "M8 1.5a6.5 6.5 0 1 1 0 13a6.5 6.5 0 1 1 0-13z"
_TRIANGLE: Final = "M8 2L14.5 13.5H1.5z"
_SQUARE: Final = "M2.5 2.5h11v11h-11z"
_DIAMOND: Final = "M8 1.2L14.8 8L8 14.8L1.2 8z"

_GOOD: Final = StateLook("good", f"{_CIRCLE}M4.8 8.3L7 10.6L11.3 5.8")
_BAD: Final = StateLook("bad", f"{_SQUARE}M5.3 5.3L10.7 10.7M10.7 5.3L5.3 10.7")
_LOST: Final = StateLook("bad", f"{_TRIANGLE}M8 6.2V9.6M8 11.4V11.6")
_WARN: Final = StateLook("warn", f"{_TRIANGLE}M8 6.2V9.6M8 11.4V11.6")
_UNKNOWN: Final = StateLook("quiet", f"{_CIRCLE}M6 6.2C6 4 10 4 10 6.4C10 8 8 7.9 8 9.4M8 11.4V11.6")

STATES: Final[Mapping[str, StateLook]] = {
    # Of runs, steps and attempts (core.status):
    "pending": StateLook("quiet", _CIRCLE),
    "queued": StateLook("warn", f"{_CIRCLE}M8 4.4V8.2L10.6 9.8"),
    "running": StateLook("active", f"{_CIRCLE}M6.3 5L11 8L6.3 11z"),
    "succeeded": _GOOD,
    "cached": StateLook("good", f"{_DIAMOND}M5.2 8.2L7.3 10.2L10.8 6.2"),
    "failed": _BAD,
    "interrupted": _LOST,
    "cancelled": StateLook("warn", f"{_CIRCLE}M3.6 3.6L12.4 12.4"),
    "skipped": StateLook("quiet", f"{_CIRCLE}M5 8H11M8.6 5.6L11 8L8.6 10.4"),
    # Of receipts (core.receipt.Verdict):
    "used": _GOOD,
    "idle": _WARN,
    "wrong-device": _BAD,
    "cpu-fallback": _WARN,
    "unknown": _UNKNOWN,
    # Of findings (core.findings):
    "error": _BAD,
    "warning": _WARN,
    "note": StateLook("active", f"{_CIRCLE}M8 7.2V11.6M8 4.6V4.8"),
    # Of devices and leases:
    "free": StateLook("good", _CIRCLE),
    "leased": StateLook("active", f"{_CIRCLE}M8 4.4A3.6 3.6 0 1 1 8 11.6A3.6 3.6 0 1 1 8 4.4z"),
    "faulty": _BAD,
}
"""StateLook → how it is shown; any other is shown as unknown, by its own word."""
_FAVICON_COLOURS: Final[Mapping[str, str]] = {
    "good": "#1a7042",
    "bad": "#b3261e",
    "warn": "#8a5a00",
    "active": "#1f5fbf",
    "quiet": "#5a6270",
}
"""A favicon stands outside the page and its stylesheet."""


def tone_of(state: str) -> str:
    """The name of a state's colour in the stylesheet."""
    return STATES.get(state, _UNKNOWN).tone


def icon(state: str) -> Html:
    """The icon of a state, 16 pixels wide, hidden from readers of the screen: the word stands beside it."""
    shown = STATES.get(state, _UNKNOWN)
    attributes = {"class": f"icon {shown.tone}", "viewBox": "0 0 16 16", "width": 16, "height": 16}
    return element("svg", {**attributes, "aria-hidden": "true"}, element("path", {"d": shown.shape}))


def badge(state: str, words: str = "") -> Html:
    """A state's icon and word, or other words for it."""
    return element("span", {"class": f"badge {tone_of(state)}"}, icon(state), words or state)


def favicon(state: str) -> str:
    """The icon of a state as an address of the scheme `data:`, for a page's `<link rel="icon">`."""
    shown = STATES.get(state, _UNKNOWN)
    picture = (
        '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 16 16">'
        '<rect width="16" height="16" rx="3" fill="#ffffff"/>'
        f'<path d="{shown.shape}" fill="none" stroke="{_FAVICON_COLOURS[shown.tone]}" stroke-width="2"'
        ' stroke-linecap="round" stroke-linejoin="round"/></svg>'
    )
    return "data:image/svg+xml;base64," + base64.b64encode(picture.encode()).decode("ascii")


POLICY: Final = "default-src 'none'; img-src data:; style-src 'unsafe-inline'"
"""A page by itself loads nothing, whatever its texts contain."""


@functools.cache
def stylesheet() -> str:
    """The text of `design.css`."""
    return (resources.files("stoker.report") / "design.css").read_text(encoding="utf-8")


@functools.cache
def _compact_stylesheet() -> str:
    """The stylesheet without comments and indents."""
    import re

    text = re.sub(r"/\*.*?\*/", "", stylesheet(), flags=re.DOTALL)
    return re.sub(r"\s*\n\s*", " ", text).strip()


def document(title: str, body: Html, *, state: str, policy: str = POLICY) -> str:
    """A self-contained page of HTML: without network and scripts; title and icon tell the state."""
    head = (
        Html('<meta charset="utf-8">'),
        element("meta", {"http-equiv": "Content-Security-Policy", "content": policy}),
        element("meta", {"name": "viewport", "content": "width=device-width, initial-scale=1"}),
        element("title", None, title),
        element("link", {"rel": "icon", "href": favicon(state)}),
        Html(f"<style>{_compact_stylesheet()}</style>"),
    )
    whole = (
        '<!DOCTYPE html>\n<html lang="en"><head>' + markup_of(joined(head)) + "</head><body>" + body.markup,
        "</body></html>\n",
    )
    return "".join(whole)


def section(title: str, *parts: Content, anchor: str = "", level: int = 2) -> Html:
    """A part of a page under a heading; empty if all its parts are."""
    content = joined(parts)
    if not content:
        return NOTHING
    return element("section", {"id": anchor or None}, element(f"h{level}", None, title), content)


def notice(tone: str, *parts: Content) -> Html:
    """Something to notice; `tone` is good, bad, warn, active or quiet."""
    return element("div", {"class": f"notice {tone}"}, *parts)


def empty(words: Content) -> Html:
    """A sentence where there is nothing to show: what would stand here, and what to do for it."""
    return element("p", {"class": "empty"}, words)


def folded(title: Content, *parts: Content, unfolded: bool = False) -> Html:
    """Parts under a line that folds them; empty if all of them are."""
    content = joined(parts)
    return element("details", {"open": unfolded}, element("summary", None, title), content) if content else NOTHING


def preformatted(text: str) -> Html:
    """A text as it is written, such as a traceback."""
    return element("pre", {"tabindex": "0"}, text) if text else NOTHING
