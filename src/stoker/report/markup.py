"""HTML as a value of its own, so that no text of a user is taken for it, and the frame of Stoker's pages. Pure.

`Html` says of itself that it is safe (`__html__`), which template engines such as Jinja and notebooks ask for. Made of
it are tables, lists of facts, lines as terminals show them, sections, notices, folded parts and whole documents. The
stylesheet is `design.css` beside this module: tokens for type, space and colour in light and dark, then every class
that the parts of this folder write. A badge is a word with a shape of its own, readable without colour.
"""

from __future__ import annotations

import base64
import functools
import re
from html import escape
from importlib import resources
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
    "stopped": StateLook("quiet", f"{_CIRCLE}M5.5 5.5H10.5V10.5H5.5z"),
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
