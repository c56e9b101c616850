"""A decorator as a text: "resources:gpu=2,memory=8GB", of the command line's `--with` and of mutators."""

from __future__ import annotations

import re
from typing import Any, Final

from stoker.core.errors import UsageError
from stoker.pipelines.params import parse

_SHORT: Final = frozenset({"cpu", "gpu", "trainium", "inferentia"})
"""Words whose checks say more of a text than JSON would."""
_NEXT_WORD: Final = re.compile(r",(?=[\s\w]+=)")
"""The comma before a word, not those inside of a value: `vars={"a": 1, "b": 2},times=3`."""


def given_of(name: str, text: str, where: str) -> dict[str, Any]:
    """What stands behind the name's colon, by word; values are JSON, or texts."""
    given: dict[str, Any] = {}
    for part in _NEXT_WORD.split(text):
        word, equals, value = part.partition("=")
        word = word.strip()
        if not equals or not word:
            raise UsageError(f"{part!r} is not word=value", where=where, fix=f"write {name}:word=value")
        given[word] = value.strip() if word in _SHORT else parse(value.strip(), Any)
    return given
