"""Advice that was followed through the front door: the mistake, what is said of it, and the same when it is mended."""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.advice.cases import Case, cases
from tests.advice.door import Door, Said
from tests.advice.inventory import pattern
from tests.advice.table import Row, rows

ROWS: dict[str, list[Row]] = {}
"""The rows of the table by the case that they name."""
for row in rows():
    ROWS.setdefault(row.by, []).append(row)


@pytest.fixture(scope="session")
def door(_strange_home: Path) -> Iterator[Door]:
    """One process that makes all calls of a worker of pytest."""
    door = Door()
    yield door
    door.close()


def call(door: Door, case: Case, text: str, folder: Path) -> Said:
    """Write the program with a text in its gap, and make the calls; how the last one ended."""
    for name, program in case.group.files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(program.lstrip("\n").replace("@@", text), encoding="utf-8")
        if program == "@@" and not text:
            path.unlink()
    env = {name.replace("@@", text): value.replace("@@", text) for name, value in case.group.env.items()}
    calls = case.group.call.replace("@@", text).split("; ")
    return [door.call(shlex.split(one), folder, {**os.environ, **env}) for one in calls][-1]


@pytest.mark.parametrize("case", list(cases()), ids=lambda case: case.name)
def test_advice_works(case: Case, door: Door, tmp_path: Path) -> None:
    folder = tmp_path / "project"
    said = call(door, case, case.wrong, folder)
    assert said.code == case.group.code, said.text
    assert "Traceback" not in said.text or case.group.code == 1, said.text
    advice = " ".join(part.partition("\n\n")[0] for part in said.text.split("fix: ")[1:])
    assert case.fix in advice, said.text
    for row in ROWS.get(case.name, ()):
        assert pattern(row.advice.text).search(advice), f"the table says that it produces {row.advice}"
    mended = call(door, case, case.right, folder)
    assert mended.code == 0, mended.text
    assert case.group.code or case.fix not in mended.text, mended.text
