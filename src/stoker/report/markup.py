"""HTML as a value of its own, so that no text of a user is taken for it; tables, lists of facts, terminals' lines.

Pure. `Html` says of itself that it is safe (`__html__`), which template engines such as Jinja and notebooks ask for.
"""

from __future__ import annotations

import re
from html import escape
from typing import Collection, Final, Iterable, Iterator, Mapping, Sequence

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


_ESCAPE: Final = re.compile(
    r"\x1b\[([0-9;]*)m"  # colours and weights
    r"|\x1b\[[0-?]*[ -/]*[@-~]|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)?|\x1b[@-Z\\-_]?"
)
"""https://www.ecma-international.org/publications-and-standards/standards/ecma-48/ (8.3.117 is SGR)"""
_UNSEEN: Final = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")
"""Control characters, and those that change the direction in which a line is read."""
_COLOURS: Final = ("black", "red", "green", "yellow", "blue", "magenta", "cyan", "white")
_CUT: Final = 4000
"""Characters of a line that are shown; the file has all of them."""


def line(text: str, *, most: int = _CUT) -> Html:
    """A line's text with what its escape sequences ask for; of a longer one so many characters and how many follow."""
    if len(text) > most:
        text = text[:most] + f" … {len(text) - most:,} more characters"
    if "\x1b" not in text:
        return joined([_UNSEEN.sub("\ufffd", text)])
    return joined(_spans(text))


def plain(text: str) -> str:
    """A line's text without escape sequences, as a search sees it."""
    return _ESCAPE.sub("", text) if "\x1b" in text else text


def _spans(text: str) -> Iterator[Html]:
    look: dict[str, str] = {}
    position = 0
    for found in _ESCAPE.finditer(text):
        yield _span(text[position : found.start()], look)
        position = found.end()
        if found[1] is not None:
            look = _changed(look, found[1])
    yield _span(text[position:], look)


def _span(text: str, look: dict[str, str]) -> Html:
    text = _UNSEEN.sub("\ufffd", text)
    if not text or not look:
        return joined([text])
    return element("span", {"class": " ".join(sorted(look.values()))}, text)


def _changed(look: dict[str, str], codes: str) -> dict[str, str]:
    look = dict(look)
    numbers = iter(int(code or 0) for code in codes.split(";"))
    for number in numbers:
        if number == 0:
            look = {}
        elif number in (1, 2, 3, 4):
            look["weight" if number < 3 else str(number)] = ("bold", "dim", "italic", "underlined")[number - 1]
        elif number == 22:
            look.pop("weight", None)
        elif 30 <= number <= 37 or 90 <= number <= 97:
            look["colour"] = f"ansi-{_COLOURS[number % 10]}"
        elif number in (38, 48):
            # Colours of 256 or of all: their numbers are taken off, and the text keeps the page's colour.
            for _ in range({5: 1, 2: 3}.get(next(numbers, 0), 0)):
                next(numbers, None)
        elif number == 39:
            look.pop("colour", None)
    return look
