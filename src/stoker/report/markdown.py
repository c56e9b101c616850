"""Renders the Markdown of cards as HTML: CommonMark, tables and strikethrough, by markdown-it-py.

HTML in the text is shown as text, links lead to http, https or mail only, and the page loads nothing: an image becomes
a link. A line break in the text is one on the page.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Final

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
