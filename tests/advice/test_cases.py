"""Advice that was followed through the front door: the mistake, what is said of it, and the same when it is mended."""

from __future__ import annotations

import re
import shlex
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
from tests.advice.cases import Case, cases
from tests.advice.inventory import pattern
from tests.advice.table import Row, rows

ROWS: dict[str, list[Row]] = {}
"""The rows of the table by the case that they name."""
for row in rows():
    ROWS.setdefault(row.by, []).append(row)
RUNS = re.compile(r"python (?!f\.py (show|check))")
"""Calls that run steps, or ask for what ran, begin so: they take seconds, where a plan takes a tenth of one."""
SAMPLE = 1
"""As many cases of a group that runs steps are in `make test`; the others have the same program."""


def sampled() -> Iterator[Any]:
    """The cases, with the mark of those that only `make test-all` follows."""
    seen: Counter[str] = Counter()
    for case in cases():
        seen[case.group.name] += 1
        dear = RUNS.match(case.group.call) and seen[case.group.name] > SAMPLE
        yield pytest.param(case, id=case.name, marks=pytest.mark.long if dear else ())


def call(project: Any, case: Case, text: str) -> tuple[int, str]:
    """Write the program with a text in its gap, and make the calls: the last one's exit code, and all that it wrote."""
    for name, program in case.group.files.items():
        path = project.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(program.lstrip("\n").replace("@@", text), encoding="utf-8")
        if program == "@@" and not text:
            path.unlink()
    env = {name.replace("@@", text): value.replace("@@", text) for name, value in case.group.env.items()}
    calls = case.group.call.replace("@@", text).split("; ")
    for words in map(shlex.split, calls):
        ended = (project.stoker if words[0] == "stoker" else project.run)(*words[1:], code=None, env=env)
    return ended.returncode, ended.stdout + ended.stderr


@pytest.mark.parametrize("case", list(sampled()))
def test_advice_works(case: Case, project: Any) -> None:
    code, text = call(project, case, case.wrong)
    assert code == case.group.code, text
    assert "Traceback" not in text or case.group.code == 1, text
    advice = " ".join(part.partition("\n\n")[0] for part in text.split("fix: ")[1:])
    assert case.fix in advice, text
    for row in ROWS.get(case.name, ()):
        assert pattern(row.advice.text).search(advice), f"the table says that it produces {row.advice}"
    code, text = call(project, case, case.right)
    assert code == 0, text
    assert case.group.code or case.fix not in text, text
