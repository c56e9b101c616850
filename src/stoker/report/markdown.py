"""Markdown as HTML: headings, paragraphs, lists, quotes, code, emphasis and links; what people write on a card.

Everything is escaped before anything else is done with it: no HTML of the text's author gets into the page, and a link
leads to http, https or mail, never to a script.
"""

from __future__ import annotations

import re
from html import escape
from typing import Final, Iterator

_FENCE: Final = re.compile(r"^\s{0,3}(```+|~~~+)")
_HEADING: Final = re.compile(r"^\s{0,3}(#{1,6})\s+(.*?)\s*#*\s*$")
_RULE: Final = re.compile(r"^\s{0,3}([-*_])\s*(?:\1\s*){2,}$")
_ITEM: Final = re.compile(r"^\s*(?:[-*+]|(\d{1,9})[.)])\s+(.*)$")
_QUOTE: Final = re.compile(r"^\s{0,3}>\s?(.*)$")
_CODE: Final = re.compile(r"(`+)(.+?)\1")
_LINK: Final = re.compile(r"\[([^\[\]]+)\]\(((?:https?://|mailto:)[^\s()]+)\)")
_STRONG: Final = re.compile(r"(\*\*|__)(?=\S)(.+?)(?<=\S)\1")
_EMPHASIS: Final = re.compile(r"(?<![\w*])([*_])(?=[^\s*_])(.+?)(?<=[^\s*_])\1(?![\w*])")
_HELD: Final = re.compile("\ue000([0-9]+)\ue001")
"""Code and links while the rest of a line is looked at: two characters for private use, which the text cannot have."""


def html(text: str) -> str:
    """A text of Markdown as HTML that can stand anywhere in a page."""
    return "".join(_blocks(text.replace("\ue000", "").replace("\ue001", "").splitlines()))


def _blocks(lines: list[str]) -> Iterator[str]:
    place = 0
    while place < len(lines):
        line = lines[place]
        fence, heading = _FENCE.match(line), _HEADING.match(line)
        if fence is not None:
            begun = place = place + 1
            while place < len(lines) and not lines[place].strip().startswith(fence[1]):
                place += 1
            yield f"<pre>{escape(chr(10).join(lines[begun:place]))}</pre>"
            place += 1
        elif heading is not None:
            level = len(heading[1])
            yield f"<h{level}>{_inline(heading[2])}</h{level}>"
            place += 1
        elif _RULE.match(line):
            yield "<hr>"
            place += 1
        elif not line.strip():
            place += 1
        else:
            begun = place
            kind = _kind(line)
            place += 1
            while place < len(lines) and lines[place].strip() and _kind(lines[place]) == kind:
                place += 1
            yield _block(kind, lines[begun:place])


def _kind(line: str) -> str:
    """What a line belongs to: two neighbours of one kind are one block."""
    if _FENCE.match(line) or _HEADING.match(line) or _RULE.match(line):
        return "own"
    item = _ITEM.match(line)
    if item is not None:
        return "ul" if item[1] is None else "ol"
    return "blockquote" if _QUOTE.match(line) else "p"


def _block(kind: str, lines: list[str]) -> str:
    if kind in ("ul", "ol"):
        items = [_ITEM.sub(r"\2", line) for line in lines]
        return f"<{kind}>" + "".join(f"<li>{_inline(item)}</li>" for item in items) + f"</{kind}>"
    if kind == "blockquote":
        lines = [_QUOTE.sub(r"\1", line) for line in lines]
    return f"<{kind}>" + "<br>".join(_inline(line.strip()) for line in lines) + f"</{kind}>"


def _inline(text: str) -> str:
    held: list[str] = []

    def hold(shown: str) -> str:
        held.append(shown)
        return f"\ue000{len(held) - 1}\ue001"

    text = _CODE.sub(lambda found: hold(f"<code>{escape(found[2])}</code>"), text)
    text = _LINK.sub(lambda found: hold(f'<a href="{escape(found[2])}">{escape(found[1])}</a>'), text)
    text = escape(text)
    text = _STRONG.sub(r"<strong>\2</strong>", text)
    text = _EMPHASIS.sub(r"<em>\2</em>", text)
    while _HELD.search(text):  # code within the words of a link
        text = _HELD.sub(lambda found: held[int(found[1])], text)
    return text
