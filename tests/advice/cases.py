"""Mistakes, what is said of each, and what becomes of the same program when that is done.

A group has a program with one gap, and the call that is made; a case of it is the mistake, what the fix says of it, and
what it says to write. Where the fix spells that out, the second is left empty, and the third must stand in the fix.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

import attrs

Entry = tuple[str, str, str]


@attrs.frozen(kw_only=True)
class Group:
    """Cases that share a program."""

    name: str
    files: Mapping[str, str]
    """`@@` stands where cases differ; in `call`, too."""
    call: str
    code: int = 2
    """How the call ends with the mistake; it ends with 0 without."""
    env: Mapping[str, str] = attrs.field(factory=dict)
    entries: tuple[Entry, ...]


class Case(NamedTuple):
    """One mistake."""

    group: Group
    wrong: str
    fix: str
    """A part of what is said to do."""
    right: str

    @property
    def name(self) -> str:
        """What the table calls it."""
        return f"{self.group.name}: {self.wrong or 'nothing'}".replace("\n", "; ")


def cases() -> Iterator[Case]:
    """Every case."""
    for group in GROUPS:
        for wrong, fix, right in group.entries:
            yield Case(group, wrong, fix or right, right)


STEP = """
from stoker import pipeline, step, Secret
from stoker.config import *

@step(@@)
def a() -> int:
    return 1

@pipeline
def p():
    a()
"""

GROUPS: tuple[Group, ...] = (
    Group(
        name="step",
        files={"s.py": STEP},
        call="stoker plan s.py",
        entries=(
            ("timeout='5 parsecs'", "write something like", "timeout='5m'"),
        ),
    ),
)
