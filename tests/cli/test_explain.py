"""`stoker explain`: the page of findings, which an installed Stoker has with it."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from click.testing import CliRunner

from stoker.cli import doctor
from stoker.core.errors import NotFound


def run(*arguments: str) -> str:
    result = CliRunner().invoke(doctor.explain, arguments, catch_exceptions=False)
    assert result.exit_code == 0
    return result.output


def test_the_page_is_that_of_the_documentation(repository: Path) -> None:
    assert doctor.page() == (repository / "docs" / "findings.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("text", ["STK203", "stk203", "203", " 203 "])
def test_a_code_is_explained(text: str) -> None:
    shown = run(text)
    assert shown.startswith("STK203\n")
    assert "the driver is too old" in shown
    assert "STK204" not in shown


def test_an_unknown_code_is_answered_with_the_nearest() -> None:
    with pytest.raises(NotFound, match="there is no finding 'STK2O3', did you mean"):
        CliRunner().invoke(doctor.explain, ["STK2O3"], catch_exceptions=False)


def test_all_are_listed_with_their_level_and_one_line() -> None:
    lines = run().splitlines()
    assert len(lines) == len(doctor.sections(doctor.page()))
    for line in lines:
        assert re.fullmatch(r"STK\d{3}  (error|warning|translated|info)\s+\S.*[^.]", line)


def test_json() -> None:
    assert json.loads(run("203", "--json"))["level"] == "error"
    listed = json.loads(run("--json"))
    assert {"code", "level", "what"} == set(listed[0])
    assert all(entry["what"] for entry in listed)
