"""Markdown as HTML, for what people write on a card: CommonMark, tables and strikethrough, by markdown-it-py.

HTML of the text's author is shown as text, a link leads to http, https or mail, and a page loads nothing from
elsewhere: an image is a link to it. A new line in the text is one on the page.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from markdown_it import MarkdownIt

_SCHEMES: Final = ("http://", "https://", "mailto:")


def html(text: str) -> str:
    """A text of Markdown as HTML that can stand anywhere in a page."""
    return str(_parser().render(text))


@functools.cache
def _parser() -> MarkdownIt:
    from markdown_it import MarkdownIt  # few pages have a text, and it takes some 20 ms

    parser = MarkdownIt("commonmark", {"html": False, "breaks": True, "xhtmlOut": False})
    parser.enable(["table", "strikethrough"]).disable("image")
    parser.validateLink = _leads_elsewhere  # type: ignore[method-assign]
    return parser


def _leads_elsewhere(url: str) -> bool:
    return url.lower().startswith(_SCHEMES)
