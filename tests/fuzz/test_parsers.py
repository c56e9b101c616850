"""Every parser takes or refuses whatever it is given: the same inputs each time, and those that once broke it.

`make fuzz` gives each of them 10,000 other ones.
"""

from __future__ import annotations

from typing import Any

import pytest
from tests.fuzz.inputs import DIGITS
from tests.fuzz.outcome import Outcome, feed, give
from tests.fuzz.parsers import PARSERS

INPUTS, INPUTS_OF_THE_LONG_FORM = 40, 500
"""Inputs of a parser, of which it gets its `share`; all five hundred take half a minute."""
BROKE: dict[str, list[Any]] = {
    "size": ["0" * 5000 + "1GB", 10**400, "1.5GiB" + "a" * 30_000],
    "count": ["0" * 5000, 10**400],
    "accelerators": [[1], [None], {"A100": 10**400}, "A100:" + DIGITS],
    "--set": [["cache_key={a: [\ud800}"], ["a=!!timestamp x"], ["a=2001-02-30"], ["a=" + "[" * 5000], ["a=!!int x"]],
    "--with": ["docker:gpu=" + "0" * 5000, "ray:memory=" + "9" * 400, "ray:memory=nan"],
    "run file": [b"\x0b", b"!!int x", b"!!timestamp x", b"[" * 100_000, b"a: &a [*a]", b"\xff", b"? {a: b}\n: c"],
    "stoker.toml": [b"a = " + b"[" * 100_000, b"a = " + DIGITS.encode(), b"stacks = 1", b"[stacks.gpu]\nsettings = 1"],
    "settings": [("retry", 10**400), ("resources", {"accelerators": [None]}), ("cache_key", float("nan"))],
    "parameters": [("int", DIGITS), ("list", "[" + DIGITS + "]"), ("any", "[" * 100_000)],
    "parameters of flows": [("json", "[" * 100_000), ("config", DIGITS)],
    "simulation": ["9" * 5000 + "xA10"],
    "Dockerfile": ["FROM --", "FROM", "ARG\nFROM --platform=x"],
    "plan": ["", "[]", "null", "{}", '{"version": "x"}', "[" * 100_000, '{"version": ' + DIGITS + "}", '{"shared": 1}'],
    "rows": [("runs", 7, "["), ("runs", 7, "[1]"), ("runs", 3, 1e308), ("steps", 15, 2**62), ("events", 5, "9" * 5000)],
    "receipts": [("{}", b"x", False, None), ("[", None, False, "used"), ("{}", b"[" * 100_000, True, [])],
    "damaged store": [
        *(("runs", column, cell, reader) for column in range(5) for cell in ("[", None) for reader in (0, 3, 9)),
        ("runs", 7, "[", 0),
        ("runs", 7, "[", 9),
        ("attempts", 2, "null", 3),
        ("events", 5, "{}", 3),
        ("steps", 15, 2**31 - 1, 3),
    ],
    "artifacts": [{"d": 1}, {"d": "", "s": [], "t": "", "n": 1}, {"d": "", "s": "a", "t": "", "n": 1, "i": "é"}],
    "words of commands": [["show", "\ud800"], ["artifacts", "\ud800"], ["runs", "--tag", "\ud800"]],
    "requirements": ["-r \x00", "-r othe\ud800r.txt"],
    "pyproject.toml": [b"[project]\nname = " + b"[" * 100_000, b"[project]\nname = " + DIGITS.encode()],
    "frames": [([{}], [0], b"\xff"), ([{"ok": True}], [1], b"")],
    "datagrams": [b"1.5", b'{"file": null}', b'{"file": 0}', b'{"file": "\\ud800"}', b"\xff", b"[" * 100_000],
    "output of containers": [b"a\n\x1estoker " + b"[" * 100_000 + b"\n"],
    "Slurm's answers": ["12|CANCELLED by 1000|²0:15|node1", "JobState=FAILED", "ArrayTaskId=3 JobState=FAILED"],
}  # fmt: skip
"""Parser → inputs that ended in a traceback, took for ever, or hid what they did not concern."""


@pytest.mark.parametrize("name", PARSERS)
def test_a_parser_takes_or_refuses_every_input(name: str, long_form: bool) -> None:
    for value in BROKE.get(name, []):
        give(PARSERS[name], value, Outcome())
    inputs = INPUTS_OF_THE_LONG_FORM if long_form else INPUTS
    outcome = feed(PARSERS[name], count=max(1, int(inputs * PARSERS[name].share)))
    assert outcome.inputs > 0


def test_every_input_that_broke_something_has_its_parser() -> None:
    assert set(BROKE) <= set(PARSERS)
