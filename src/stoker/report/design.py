"""The frame of Stoker's pages: stylesheet, a whole document, sections, notices and folded parts. Pure.

The stylesheet is `design.css` beside this module: tokens for type, space and colour in light and dark, then every class
that the parts of this folder write.
"""

from __future__ import annotations

import functools
from importlib import resources
from typing import Final

from stoker.report.badges import favicon
from stoker.report.markup import NOTHING, Content, Html, element, joined, markup_of

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
