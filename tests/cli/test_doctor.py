"""`stoker doctor`, `stoker stacks` and `stoker explain`: what is here, what is wrong, what findings mean."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from stoker.cli import doctor
from stoker.cli.doctor import file_system
from stoker.cli.store import stale_scratch
from stoker.core.errors import NotFound
from stoker.store.database import MIGRATIONS

STACKS = """
    stack = "team"

    [stacks.team]
    orchestrator = {flavor = "local", max_workers = 4}
    step_operators.big = "local"
    database = "postgresql://me:secret@db.example.com/stoker"
    artifact_store = "artifacts"
"""


def test_doctor(stoker: Any) -> None:
    found = stoker.json("doctor")
    assert found["ok"]
    checks = {check["name"]: check["found"] for check in found["checks"]}
    assert checks["stacks"] == "local (current)"
    assert "made by the first run" in checks["database"]
    assert checks["python"]
    text = stoker("doctor").stdout
    assert text.endswith("0 problems\n")
    stoker("run", "train.py")
    checks = {check["name"]: check["found"] for check in stoker.json("doctor")["checks"]}
    assert f"version {len(MIGRATIONS)}" in checks["database"]


def test_doctor_finds_problems(stoker: Any) -> None:
    stoker.project.write({"stoker.toml": "[stacks.a]\norchestartor = 'local'\n", "file": ""})
    home = {"STOKER_HOME": str(stoker.project.folder / "file" / "home")}
    found = stoker.json("doctor", code=4, env=home)
    problems = {check["name"]: check for check in found["checks"] if check["problem"]}
    assert "did you mean 'orchestrator'" in problems["stacks"]["problem"]
    assert "stoker.toml:2" in problems["stacks"]["problem"]
    assert problems["home"]["fix"].startswith("set STOKER_HOME")
    text = stoker("doctor", code=4, env=home).stdout
    assert "fix: set STOKER_HOME" in text
    assert re.search(r"^✗ stacks +.*did you mean 'orchestrator'", text, re.MULTILINE), "no mark without words"
    assert text.endswith("2 problems\n")


def test_stacks(stoker: Any) -> None:
    stoker.project.write({"stoker.toml": STACKS})
    found = {stack["name"]: stack for stack in stoker.json("stacks")}
    assert found["team"]["current"]
    assert not found["local"]["current"]
    assert found["team"]["orchestrator"] == {"flavor": "local", "options": {"max_workers": 4}}
    assert found["team"]["database"] == "postgresql://me:***@db.example.com/stoker"
    assert found["team"]["artifact_store"] == f"file://{stoker.project.folder}/artifacts"
    assert found["team"]["defined"].endswith("stoker.toml")
    assert found["local"]["defined"] == "built in"
    text = stoker("stacks").stdout
    assert "secret" not in text
    assert "local (max_workers=4)" in text
    assert "big: local" in text


@pytest.mark.parametrize(
    ("path", "kind"),
    [("/", "ext4"), ("/data", "nfs4"), ("/data/deep/er", "nfs4"), ("/database", "ext4"), ("/with blank/x", "xfs")],
)
def test_file_system(path: str, kind: str) -> None:
    mounts = "/dev/sda / ext4 rw 0 0\nserver:/x /data nfs4 rw 0 0\n/dev/sdb /with\\040blank xfs rw 0 0\n"
    assert file_system(Path(path), mounts) == kind
    assert file_system(Path(path), "") == ""


def test_stale_scratch(tmp_path: Path) -> None:
    import os

    (tmp_path / "folder").mkdir()
    for name, age in (("old", 1000), ("new", 3000)):
        (tmp_path / name).write_text("")
        os.utime(tmp_path / name, (age, age))
    assert stale_scratch(tmp_path, 2000) == [tmp_path / "old"]
    assert stale_scratch(tmp_path / "none", 2000) == []


def explained(*arguments: str) -> str:
    result = CliRunner().invoke(doctor.explain, arguments, catch_exceptions=False)
    assert result.exit_code == 0
    return result.output


def test_the_page_is_that_of_the_documentation(repository: Path) -> None:
    assert doctor.page() == (repository / "docs" / "findings.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("text", ["STK203", "stk203", "203", " 203 "])
def test_a_code_is_explained(text: str) -> None:
    shown = explained(text)
    assert shown.startswith("STK203\n")
    assert "the driver is too old" in shown
    assert "STK204" not in shown


def test_an_unknown_code_is_answered_with_the_nearest() -> None:
    with pytest.raises(NotFound, match="there is no finding 'STK2O3', did you mean"):
        CliRunner().invoke(doctor.explain, ["STK2O3"], catch_exceptions=False)


def test_all_are_listed_with_their_level_and_one_line() -> None:
    lines = explained().splitlines()
    assert len(lines) == len(doctor.sections(doctor.page()))
    for line in lines:
        assert re.fullmatch(r"STK\d{3}  (error|warning|translated|info)\s+\S.*[^.]", line)


def test_json() -> None:
    assert json.loads(explained("203", "--json"))["level"] == "error"
    listed = json.loads(explained("--json"))
    assert {"code", "level", "what"} == set(listed[0])
    assert all(entry["what"] for entry in listed)
