"""HTML as a value of its own, so that no text of a user is taken for it.

Pure. `Html` says of itself that it is safe (`__html__`), which template engines such as Jinja and notebooks ask for.
"""

from __future__ import annotations

from html import escape
from typing import Final, Iterable, Mapping

from stoker.core.values import frozen

_VOID: Final = frozenset({"br", "img", "input", "link", "meta", "rect", "line", "path", "polyline", "polygon"})
"""Elements that have no content and no end tag; of SVG, those that are written with a slash here."""
_SCHEMES: Final = ("http://", "https://", "mailto:")

Attributes = Mapping[str, object]


@frozen
class Html:
    """Markup that is safe anywhere in a page's body."""

    markup: str

    def __html__(self) -> str:
        return self.markup

    def __str__(self) -> str:
        return self.markup

    def __bool__(self) -> bool:
        return bool(self.markup)


Content = str | Html
"""A text, which is escaped, or markup."""
NOTHING: Final = Html("")


def markup_of(content: Content) -> str:
    """The markup of a text or of what is markup already."""
    if isinstance(content, Html):
        return content.markup
    # A lone surrogate could be written to no file, and a NUL ends a text for some readers.
    return escape(content.encode("utf-8", "replace").decode("utf-8").replace("\0", "\ufffd"))


def joined(parts: Iterable[Content], between: str = "") -> Html:
    """Texts and markup one after another."""
    return Html(markup_of(between).join(markup_of(part) for part in parts))


def element(name: str, attributes: Attributes | None = None, *content: Content) -> Html:
    """An element; an attribute that is None or False is left out, one that is True stands without a value."""
    words = [name]
    for key, value in (attributes or {}).items():
        if value is True:
            words.append(key)
        elif value is not None and value is not False:
            words.append(f'{key}="{markup_of(str(value))}"')
    if name in _VOID:
        return Html(f"<{' '.join(words)}/>")
    return Html(f"<{' '.join(words)}>{joined(content)}</{name}>")


def link(address: str, *content: Content) -> Html:
    """A link to a page of the same place or to http, https and mail; the content alone for any other address."""
    own = address.startswith(("/", "#", "?", "./")) and not address.startswith(("//", "/\\"))
    if not own and not address.lower().startswith(_SCHEMES):
        return joined(content)
    outside = {} if own else {"rel": "noreferrer"}
    return element("a", {"href": address, **outside}, *content)
