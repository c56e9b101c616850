"""HTML as a value of its own, so that no text of a user is taken for it; tables and lists of facts.

Pure. `Html` says of itself that it is safe (`__html__`), which template engines such as Jinja and notebooks ask for.
"""

from __future__ import annotations

from html import escape
from typing import Collection, Final, Iterable, Mapping, Sequence

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


def table(
    headers: Sequence[Content],
    rows: Iterable[Sequence[Content]],
    *,
    right: Collection[int] = (),
    caption: str = "",
    attributes: Attributes | None = None,
    whole: bool = False,
    folds: bool = False,
) -> Html:
    """A table that scrolls by itself where a page is narrow; empty without rows.

    The columns whose numbers are in `right` have numbers, aligned at the right. Columns that are empty in every row are
    left out, unless it is to be shown `whole`, also without rows. `caption` is read to those who do not see the table.
    One that `folds` has on a telephone each row as a few lines, with its columns' names in them, and none out of sight.
    """
    lines = [list(row) for row in rows]
    if not lines and not (whole and headers):
        return NOTHING
    columns = list(range(max(map(len, [headers, *lines]))))
    if not whole:
        columns = [place for place in columns if any(row[place] for row in lines if place < len(row))]

    def cells(row: Sequence[Content], name: str) -> Html:
        return joined(
            _cell(
                name,
                row[place] if place < len(row) else "",
                number=place in right,
                column=headers[place] if folds and name == "td" and place in right and place < len(headers) else "",
            )
            for place in columns
        )

    head = element("thead", None, element("tr", None, cells(headers, "th"))) if any(headers) else NOTHING
    body = element("tbody", None, *(element("tr", None, cells(row, "td")) for row in lines))
    title = element("caption", {"class": "hidden"}, caption) if caption else NOTHING
    # What scrolls must be reachable by the keyboard.
    wrapper = {"class": "scroll", "tabindex": "0", "role": "region", "aria-label": caption or "table"}
    look = {**(attributes or {}), "class": "folds"} if folds else attributes
    return element("div", wrapper, element("table", look, title, head, body))


def _cell(name: str, content: Content, *, number: bool, column: Content) -> Html:
    """A cell; a head without words is none to who hears the page."""
    name = name if content else "td"
    scope = {"scope": "col"} if name == "th" else {}
    about = {"data-column": str(column)} if column and content else {}
    return element(name, {**scope, "class": "number" if number else None, **about}, content)


def facts(pairs: Mapping[str, Content]) -> Html:
    """Names with what they are, as a list; what is empty is left out."""
    shown = [(name, content) for name, content in pairs.items() if content]
    if not shown:
        return NOTHING
    entries = (element("div", None, element("dt", None, name), element("dd", None, content)) for name, content in shown)
    return element("dl", {"class": "facts"}, *entries)
