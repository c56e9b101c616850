"""Regular expressions that are compiled at their first use.

A small run loads some fifty of them and uses ten: to compile all took a twentieth of its driver's time.
"""

from __future__ import annotations

import re
from typing import Any, Final, cast

_METHODS: Final = ("findall", "finditer", "fullmatch", "match", "search", "split", "sub", "subn")


def lazy_pattern(text: str, flags: int = 0) -> re.Pattern[str]:
    """`re.compile`, done when a method of the pattern is first used."""
    return cast("re.Pattern[str]", _LazyPattern(text, flags))


class _LazyPattern:
    def __init__(self, text: str, flags: int) -> None:
        self.pattern = text
        self._flags = flags

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        compiled = re.compile(self.pattern, self._flags)
        vars(self).update({method: getattr(compiled, method) for method in _METHODS})
        return getattr(compiled, name)
