"""Mistakes, what is said of each, and what becomes of the same program when that is done.

A group has a program with one gap, and the call that is made; a case of it is the mistake, what the fix says of it, and
what it says to write. Where the fix spells that out, the second is left empty, and the third must stand in the fix.

Cases are lines of `cases.txt`, these three with " | " between them, below the name of their group; those of which a
part is made here stand with their group.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

import attrs

Entry = tuple[str, str, str]


def listed() -> Mapping[str, tuple[Entry, ...]]:
    """The cases of `cases.txt` by their groups."""
    found: dict[str, list[Entry]] = {}
    for line in Path(__file__).with_name("cases.txt").read_text(encoding="utf-8").splitlines():
        if line.startswith("## "):
            group = found[line.removeprefix("## ")] = []
        else:
            whole = line + " " if line.endswith(" |") else line  # what is right may be nothing
            wrong, fix, right = whole.replace("\\n", "\n").split(" | ")
            group.append((wrong, fix, right))
    return {name: tuple(entries) for name, entries in found.items()}


LISTED = listed()


@attrs.frozen(kw_only=True)
class Group:
    """Cases that share a program."""

    name: str
    files: Mapping[str, str]
    """`@@` stands where cases differ; in `call` and in `env`, too. A file of nothing else is not there without."""
    call: str
    """Several have "; " between them: the last one is it, and may stand on what those before it left."""
    code: int = 2
    """How the call ends with the mistake; it ends with 0 without. Where that is 0, too, it says the fix no more."""
    env: Mapping[str, str] = attrs.field(factory=dict)
    entries: tuple[Entry, ...] = attrs.field(default=attrs.Factory(lambda group: LISTED[group.name], takes_self=True))


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
    """Every case, those of the modules beside this one, too."""
    from tests.advice import cases_backends, cases_core, cases_flows

    for group in (*GROUPS, *cases_backends.GROUPS, *cases_core.GROUPS, *cases_flows.GROUPS):
        for wrong, fix, right in group.entries:
            yield Case(group, wrong, fix or right, right)


STEP = """
from stoker import pipeline, step
from stoker.config import *

@step(@@)
def a() -> int:
    return 1

@pipeline
def p():
    a()
"""
VALUE = """
from stoker import pipeline, step
from stoker.config import *

VALUE = @@

@step
def a() -> int:
    return 1

@pipeline
def p():
    a()
"""
PIPELINE = """
import concurrent.futures
from typing import Annotated
from stoker import each, pipeline, step

@step
def one() -> int:
    return 1

@step
def numbers() -> list[int]:
    return [1, 2]

@step
def two(x: int, y: int = 0) -> int:
    return x + y

@step
def text(x: str) -> str:
    return x

@step
def nothing() -> None:
    pass

@step
def pair() -> tuple[Annotated[int, "left"], Annotated[int, "right"]]:
    return 1, 2

"""
CALLS = (
    PIPELINE
    + """
@pipeline@@
"""
)
BODY = (
    PIPELINE
    + """
@pipeline
def p():
    @@
"""
)
DEFINED = (
    PIPELINE
    + """
@@

@pipeline
def p():
    g()
"""
)
TWO = """
from stoker import pipeline, step

@step
def a(n: int = 1) -> int:
    return n

@pipeline
def p(n: int = 1):
    a(n)

@pipeline
def q(n: int):
    a(n)
"""
FLOW = """
import threading
from pathlib import Path
from stoker.flow import *
from stoker.flow import FlowSpec, step

class F(FlowSpec):
    {member}
    {above}
    @step
    def start(self):
        {next}

    {more}

    @step
    def end(self):
        pass

if __name__ == "__main__":
    F()
"""
BRANCHES = """
    @step
    def a(self):
        self.x = 1
        self.next(self.j)

    @step
    def b(self):
        self.x = 2
        self.next(self.j)

    @step
    def j(self, inputs):
        {join}
        self.next(self.end)
"""
EACH = """
    @step
    def a(self):
        self.next(self.j)

    @step
    def j(self, inputs):
        self.next(self.end)
"""
WAYS = """
    @step
    def a(self):
        self.next(self.end)

    @step
    def b(self):
        self.next(self.end)
"""


def flow(member: str = "pass", above: str = "", next: str = "self.next(self.end)", more: str = "") -> dict[str, str]:
    """The file of a flow with a gap in one of its parts."""
    return {"f.py": FLOW.format(member=member, above=above, next=next, more=more.strip())}


ON = " --simulate 8xH100"

GROUPS: tuple[Group, ...] = (
    Group(name="step", files={"s.py": STEP}, call="stoker plan s.py --simulate 8xH100"),
    Group(
        name="pipeline's option on a step",
        files={"s.py": VALUE.replace("@@", "1") + "\n\n@pipeline(@@)\ndef q():\n    a()\n"},
        call="stoker plan s.py:q",
    ),
    Group(name="value", files={"s.py": VALUE}, call="stoker plan s.py"),
    Group(name="call", files={"s.py": BODY}, call="stoker plan s.py"),
    Group(name="definition", files={"s.py": DEFINED}, call="stoker plan s.py:p"),
    Group(
        name="stoker.toml",
        files={"s.py": TWO.partition("@pipeline\ndef q")[0], "stoker.toml": "@@"},
        call="stoker plan s.py --stack x",
    ),
    Group(
        name="stoker.toml's database",
        files={"s.py": TWO.partition("@pipeline\ndef q")[0], "stoker.toml": "@@"},
        call="stoker plan s.py --stack x",
        code=4,
    ),
    Group(name="command", files={"s.py": TWO, "m.py": "print(1)\n"}, call="@@"),
    Group(name="flow's step", files=flow(next="@@"), call="stoker plan f.py"),
    Group(name="flow's foreach", files=flow(next="@@", more=EACH), call="stoker plan f.py"),
    Group(
        name="flow's join",
        files=flow(
            next="self.next(self.a, self.b)", more="@@".join(BRANCHES.format(join="pass").split("(self, inputs)"))
        ),
        call="stoker plan f.py",
    ),
    Group(name="flow's switch", files=flow(next="@@", more=WAYS), call="stoker plan f.py"),
    Group(
        name="flow that ends",
        files={name: text.replace("pass\n\nif", "@@\n\nif") for name, text in flow(next="self.next(self.end)").items()},
        call="stoker plan f.py",
    ),
    Group(name="flow's decorator", files=flow(above="@@"), call="stoker plan f.py"),
    Group(name="flow's member", files=flow(member="@@"), call="stoker plan f.py"),
    Group(name="flow's parameter", files=flow(member="alpha = Parameter('alpha', required=True, type=int)"), call="@@"),
    Group(
        name="flow's class",
        files={name: text.replace("class F", "@@\nclass F") for name, text in flow().items()},
        call="stoker plan f.py",
    ),
    Group(
        name="flow that runs a foreach",
        files=flow(next="@@; self.next(self.a, foreach='items')", more=EACH),
        call="python f.py run",
        code=1,
    ),
    Group(
        name="flow that runs a switch",
        files=flow(next="@@; self.next({1: self.a, 2: self.b}, condition='c')", more=WAYS),
        call="python f.py run",
        code=1,
    ),
    Group(
        name="flow that merges",
        files=flow(next="self.next(self.a, self.b)", more=BRANCHES.format(join="@@")),
        call="python f.py run",
        code=1,
    ),
    Group(
        name="replaced function",
        files={
            "s.py": "import json, time\n" + VALUE.replace("@@", "1") + '\n\n@@\n\nif __name__ == "__main__":\n    p()\n'
        },
        call="python s.py",
    ),
)
