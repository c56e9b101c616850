"""The table of advice: each text of the source, how it was followed, and by what, or why not.

`table.txt` has a heading for each module and a line for each of its texts: how, the text, and the case or the test that
produces it, with " | " between them. `python -m tests.advice.table` writes the page of it for people.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import NamedTuple

from tests.advice.inventory import Advice, sites

ROOT = Path(__file__).resolve().parents[2]
TABLE = ROOT / "tests" / "advice" / "table.txt"
PAGE = ROOT / "docs" / "dev" / "advice.md"

FOLLOWED = "followed"
HOW = {
    FOLLOWED: "a case makes the mistake, reads the fix, does what it says, and the same call succeeds",
    "open": "can be followed on any machine, but no case does so yet",
    "cluster": "needs a cluster: Kubernetes, Kubeflow, Slurm or Ray",
    "cloud": "needs an account of AWS, of a cloud that SkyPilot starts machines in, or a remote object store",
    "device": "needs an accelerator, its driver or its tools, or a broken one",
    "engine": "needs a container engine or builds an image",
    "network": "needs a registry or an index of packages that refuses, or does not answer",
    "damage": "needs a full disk, lost or changed bytes, or an older or newer store",
    "race": "needs a run or a process that ends or changes in the middle of something",
    "machine": "needs another machine, reached by SSH",
    "system": "needs another operating system, another file system or another Python",
    "browser": "needs a browser, or a proxy in front of `stoker ui`",
}
"""How a row was followed, or why it was not."""


class Row(NamedTuple):
    """One text of one module."""

    advice: Advice
    how: str
    by: str
    """The name of a case, or a test's file and function; empty where none produces it."""


def rows() -> list[Row]:
    """The rows of the table."""
    found, module = [], ""
    for line in TABLE.read_text(encoding="utf-8").splitlines():
        if line.startswith("## "):
            module = line.removeprefix("## ")
        elif line:
            how, rest = line.split(" | ", 1)
            text, by = rest.rsplit(" | ", 1)
            found.append(Row(Advice(module, text.replace("\\n", "\n")), how, by))
    return found


def line(row: Row) -> str:
    """A row as it stands below the heading of its module."""
    return " | ".join((row.how, row.advice.text.replace("\n", "\\n"), row.by))


def page() -> str:
    """The page for people: how many texts each part of Stoker has, and how they were followed."""
    table, found = rows(), sites()
    parts = sorted({part(row.advice.module) for row in table})
    counts = Counter((part(row.advice.module), row.how) for row in table)
    texts = Counter(part(row.advice.module) for row in table)
    produced = Counter(part(row.advice.module) for row in table if row.by)
    head = ["part", "texts", "produced", *HOW]
    lines = [[one, texts[one], produced[one], *(counts[one, how] or "" for how in HOW)] for one in parts]
    every = Counter(row.how for row in table)
    lines.append(["all", len(table), produced.total(), *(every[how] for how in HOW)])
    return "\n".join(
        [
            "# Advice",
            "",
            f"Stoker says how to mend what it refuses at {len(found)} places of its source, in {len(table)} texts;",
            f"{sum(not site.texts for site in found)} of the places hand on what another one said. Each text is a row",
            "of `tests/advice/table.txt`, with the case or the test that produces it, and with how it was followed.",
            "`tests/advice/test_table.py` fails where the source and the table disagree; `tests/advice/cases.py` has",
            "the mistakes, what is said of them, and what was written instead. This page is written by",
            "`python -m tests.advice.table`.",
            "",
            *(f"* **{how}**: {words}." for how, words in HOW.items()),
            "",
            "| " + " | ".join(head) + " |",
            "|" + "---|" * len(head),
            *("| " + " | ".join(map(str, cells)) + " |" for cells in lines),
            "",
        ]
    )


def part(module: str) -> str:
    """The part of Stoker that a module belongs to: its folder, and of `backends` the platform's."""
    folders = module.split("/")[:-1]
    return "/".join(folders[:2] if folders[:1] == ["backends"] else folders[:1]) or module


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
