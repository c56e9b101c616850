"""One line of `stoker doctor`: what was looked at, and what is wrong with it."""

from __future__ import annotations

import attrs


@attrs.frozen(kw_only=True)
class Check:
    """One thing that was looked at; `problem` is empty if all is well, and `fix` then a hint at most."""

    name: str
    found: str
    problem: str = ""
    fix: str = ""
