"""One row of the table of failures: how a known failure looks, what it means, and what to do about it."""

from __future__ import annotations

import re

import attrs

_LONGEST = 240
"""Characters of a line that are shown as evidence; torch's out-of-memory message has some 600, the facts come first."""


@attrs.frozen(kw_only=True)
class Signature:
    """`pattern` is searched in "type: message" of what was raised, lines and all.

    `printed`: also in any line that a process wrote before it died. Only for what nobody prints and survives: on a
    machine without a GPU, frameworks log that they found no driver, and go on.
    """

    name: str
    cause: str
    why: str
    advice: str
    pattern: str
    printed: bool = False

    def seen_in(self, text: str) -> str:
        """The line that shows this failure, empty if none does."""
        # Compiled when the first failure is explained, not when a worker starts: sixty patterns take 20 ms.
        found = re.search(self.pattern, text, re.MULTILINE)
        if found is None:
            return ""
        start, end = text.rfind("\n", 0, found.start()) + 1, text.find("\n", found.start())
        line = text[start : end if end >= 0 else len(text)].strip()
        return line if len(line) <= _LONGEST else line[: _LONGEST - 1] + "…"
