"""Text from elsewhere, made harmless for a terminal and short enough for a record.

A terminal obeys what it is sent: it writes the clipboard (OSC 52), renames its window (OSC 0), hides links (OSC 8),
moves the cursor over lines that were there, and turns text around (the bidi overrides of CVE-2021-42574). Everything
that others wrote therefore passes `printable` on its way to a terminal. Opens nothing and writes nothing.
"""

from __future__ import annotations

import json
import re
from typing import Final, Iterable

from stoker.core.errors import UsageError
from stoker.core.values import lazy_pattern
from stoker.core.words import bounded

_RANGES: Final = (
    r"\x00-\x08\x0b-\x1f\x7f-\x9f"  # C0 without tab and newline, DEL, C1
    r"\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069"  # direction of text
    r"\u2028\u2029"  # line and paragraph separator
    r"\ud800-\udfff"  # halves of surrogate pairs, which no stream can encode
    r"\ufdd0-\ufdef\ufeff\ufff9-\ufffb"  # noncharacters, byte order mark, interlinear annotations
    r"\U000e0000-\U000e007f"  # invisible tags
)
_HIDDEN: Final = lazy_pattern(f"[{_RANGES}]")
_HIDDEN_OR_COLOUR: Final = lazy_pattern(rf"(\x1b\[[0-9;]*m)|[{_RANGES}]")
_UNFIT_FOR_NAMES: Final = lazy_pattern(rf"[{_RANGES}\t\n]")
_INVISIBLE_STYLES: Final = frozenset({5, 6, 8})
"""Parameters of SGR that blink or conceal text."""


def printable(text: str, *, colours: bool = False) -> str:
    r"""The text with control characters, bidi overrides and other invisible characters as escapes: `\x1b`, `\u202e`.

    Tabs and newlines stay. With `colours`, so do SGR sequences, but those that hide text or let it blink; the colours
    end with the text.
    """
    if not colours:
        return _HIDDEN.sub(_escape, text) if _HIDDEN.search(text) else text
    painted = _HIDDEN_OR_COLOUR.sub(_escape_or_colour, text)
    return f"{painted}\x1b[0m" if "\x1b" in painted else painted


def printable_json(text: str) -> str:
    """A JSON text whose strings hold invisible characters as JSON's own escapes; it means the same document."""
    return _HIDDEN.sub(lambda match: json.dumps(match[0])[1:-1], text) if _HIDDEN.search(text) else text


def check_name(name: str, what: str, *, where: str = "", fix: str = "") -> str:
    """The name itself; a `UsageError` where it holds characters that no terminal shows as they are.

    `what` says whose name it is, such as "a tag".
    """
    if _UNFIT_FOR_NAMES.search(name):
        shown = bounded(printable(name).replace("\n", "\\n").replace("\t", "\\t"), 200)
        raise UsageError(
            f"{what} holds a control character: '{shown}'", where=where, fix=fix or "write letters, digits and signs"
        )
    return name


def check_names(names: Iterable[str], what: str, *, where: str = "") -> tuple[str, ...]:
    """The names, each checked by `check_name`."""
    return tuple([check_name(name, what, where=where) for name in names])


def _escape(match: re.Match[str]) -> str:
    code = ord(match[0])
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def _escape_or_colour(match: re.Match[str]) -> str:
    sequence = match[1]
    if sequence is None:
        return _escape(match)
    return sequence if _is_visible(sequence[2:-1]) else f"\\x1b{sequence[1:]}"


def _is_visible(parameters: str) -> bool:
    numbers = iter(parameters.split(";"))
    for number in numbers:
        if number in ("38", "48", "58"):  # a colour by its index, or by its red, green and blue
            for _ in range({"5": 1, "2": 3}.get(next(numbers, ""), 0)):
                next(numbers, "")
        elif len(number) > 3 or (number and int(number) in _INVISIBLE_STYLES):
            return False
    return True
