"""Hostile inputs: valid texts, documents and bytes with a few things changed in them.

A mutation of something valid gets further into a parser than noise does. Everything is drawn by hypothesis, so that the
same seed gives the same inputs and a failing one shrinks.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Mapping, Sequence
from typing import Any, Final

from hypothesis import strategies as st

DIGITS: Final = "9" * 5000
"""More digits than Python turns into an int by default (4,300)."""
FRAGMENTS: Final[tuple[str, ...]] = (
    "", " ", "\0", "\n", "\r", "\t", "\x1b]52;c;QUFB\x07", "\x1b[2J", "\x9b31m", "\u202e", "\ud800", "\udcff", "\ufeff",
    DIGITS, "-", "-1", "0", "1e999", "1e-999", "nan", ".nan", "inf", "-inf", ".inf", "½", "²", "٣", "۹", "①", "一",
    "[" * 2000, "{" * 500, "(" * 2000, "{a: " * 300, "- " * 300, "${", "${HOME}", "%s", "%", "{0}", "'", '"', "\\", "=",
    ":", ",", ";", "..", "../..", "/", "//", "://", "@", "#", "&a [*a]", "*a", "<<: x", "<<: [1]", "!!python/object:x",
    "!!int x", "!!float x", "!!binary ÿ", "!!timestamp x", "!!set {a}", "!!omap [1]", "!!pairs [1]", "!x y", "? x",
    "2001-02-30", "2001-13-45T25:00:00Z", "1_000", "_", "0x", "0o9", "0b2", "1.2.3", "a" * 5000, "a." * 600, "None",
    "null", "~", "true", "[]", "{}", "[1", "{1: 2}", "{[1]: 2}", "{a: 1, a: 2}", "x: y: z", "|", ">", "---\n---", "...",
    "\u2028", "🙂", "é", "e\u0301", "--", "--a", "-x", "\\u0000", "\\ud800", "1e5000", "0" * 5000, "1:2:3", "latest",
)  # fmt: skip
VALUES: Final[tuple[Any, ...]] = (
    None, True, False, 0, -1, 1, 2**31, 2**63, -(2**63), 10**400, int(0.5e308), 0.5, -0.0, 1e308, float("nan"),
    float("inf"), "", " ", "x", "\0", "\ud800", "\x1b]0;x\x07", DIGITS, "9" * 400, "1e999", "nan", "²", "a" * 5000, [],
    {}, [[]], [None], [1, "a"], {"": None}, {"a": 1}, {"value": None}, {"list": [1]}, {"dict": 1}, ["\ud800"], 1.5,
    {"\0": "\0"}, "json", "list", "ok", {"d": 1, "s": [], "t": {}, "n": "x"}, [[[[[[[[[[1]]]]]]]]]], {"1": {"1": {}}},
)  # fmt: skip
"""What replaces a part of a document; JSON has a form for each but the infinite ones, which Python writes anyway."""
DEEP: Final = "[" * 100_000
"""Deeper than any reader recurses."""


def texts(*seeds: str) -> st.SearchStrategy[str]:
    """Seeds with up to three changes, and noise."""
    change = st.tuples(st.integers(0, 3), st.integers(0, 10_000), st.sampled_from(FRAGMENTS))
    mutated = st.builds(_change_text, st.sampled_from(seeds), st.lists(change, max_size=3))
    return st.one_of(mutated, mutated, mutated, st.sampled_from(FRAGMENTS), st.text(max_size=20))


def documents(*seeds: Any) -> st.SearchStrategy[Any]:
    """Seeds, as JSON has them, with up to three parts replaced, left out, renamed or added."""
    change = st.tuples(st.integers(0, 4), st.integers(0, 10_000), st.sampled_from(VALUES))
    return st.builds(_change_document, st.sampled_from(seeds), st.lists(change, min_size=1, max_size=3))


def json_texts(*seeds: Any) -> st.SearchStrategy[str]:
    """The texts of changed documents, and changed texts of documents."""
    written = documents(*seeds).map(json.dumps)
    huge = st.builds(lambda text, at: _with_digits(text, at), written, st.integers(0, 10_000))
    return st.one_of(written, written, huge, texts(*map(json.dumps, seeds)), st.just(DEEP))


def encoded(strategy: st.SearchStrategy[str]) -> st.SearchStrategy[bytes]:
    """Texts as bytes, some of which are no UTF-8, cut short or with others in them."""
    data = strategy.map(lambda text: text.encode("utf-8", "surrogatepass"))
    return st.one_of(data, st.builds(_change_bytes, data, st.integers(0, 10_000), st.binary(max_size=6)))


def _change_text(text: str, changes: Sequence[tuple[int, int, str]]) -> str:
    for kind, position, fragment in changes:
        at = position % (len(text) + 1)
        if kind == 0:
            text = text[:at] + fragment + text[at:]
        elif kind == 1:
            text = text[:at] + fragment + text[at + 1 + position % 7 :]
        elif kind == 2:
            text = text[:at]
        else:
            text = text[:at] + text[max(0, at - 5) :]
    return text


def _change_bytes(data: bytes, position: int, fragment: bytes) -> bytes:
    at = position % (len(data) + 1)
    return data[:at] + fragment + data[at + len(fragment) :] if fragment else data[:at]


def _with_digits(text: str, position: int) -> str:
    at = position % (len(text) + 1)
    end = next((end for end in range(at, len(text)) if text[end].isdigit()), None)
    return text if end is None else text[:end] + DIGITS + text[end:]


def _change_document(seed: Any, changes: Sequence[tuple[int, int, Any]]) -> Any:
    holder = [copy.deepcopy(seed)]
    for kind, position, original in changes:
        value = copy.deepcopy(original)
        places = list(_places(holder))
        parent, key = places[position % len(places)]
        if kind == 1 and parent is not holder:
            del parent[key]
        elif kind == 2 and isinstance(parent, dict):
            parent[_key(value)] = parent.pop(key)
        elif kind == 3 and isinstance(parent, dict):
            parent[f"{key}_x"] = value
        elif kind == 3:
            parent.append(value)
        else:
            parent[key] = value
    return holder[0]


def _key(value: Any) -> str:
    return value[:50] if isinstance(value, str) else type(value).__name__


def _places(document: Any) -> Any:
    """(container, key) of every part of a document."""
    entries = document.items() if isinstance(document, Mapping) else enumerate(document)
    for key, part in list(entries):
        yield document, key
        if isinstance(part, (dict, list)):
            yield from _places(part)
