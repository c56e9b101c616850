"""Lines as terminals show them: colours and weights become classes, every other escape sequence is left out. Pure."""

from __future__ import annotations

import re
from typing import Final, Iterator

from stoker.report.markup import Html, element, joined

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
