"""A stack is written into a file that people write by hand: everything else in it stays as it is."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from stoker import stacks
from stoker.backends.registry import BACKENDS
from stoker.cli.stacks import set_up, target_file, with_stack, write_whole
from stoker.core.errors import SettingsError, UsageError

OURS = {"flavor": "slurm", "host": "ssh://login", "folder": 'a "quoted" \\ path'}
WRITTEN = """[stacks.lab.orchestrator]
flavor = "slurm"
host = "ssh://login"
folder = "a \\"quoted\\" \\\\ path"
"""
BY_HAND = """# who wrote this?
stack = "old"   # the usual one

[stacks.old]
orchestrator = { flavor = "local" }   # [stacks.lab]
database = '''
[stacks.lab]
'''

[stacks.lab.orchestrator]   # to be replaced
flavor = "local"

[stacks.lab.settings]
timeout = "2h"

[stacks.'other']
# the end, without a newline"""


def test_a_new_file_names_its_stack_as_the_usual_one() -> None:
    assert with_stack("", "", "lab", OURS, replace=False) == f'stack = "lab"\n\n{WRITTEN}'


def test_everything_else_stays(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="there is a stack called 'lab' already"):
        with_stack(BY_HAND, "", "lab", OURS, replace=False)
    added = with_stack(BY_HAND, "", "new", OURS, replace=False)
    assert added.startswith(f"{BY_HAND}\n\n[stacks.new.orchestrator]\n")
    assert with_stack(added, "", "new", OURS, replace=True) == added, "again is the same"
    spaced = with_stack("", "", "two words", OURS, replace=False)
    assert list(stacks.parse_toml(spaced)["stacks"]) == ["two words"]


def test_a_table_in_a_text_is_none() -> None:
    """A header inside of a multi-line text would be taken for a table: the file is refused rather than changed."""
    with pytest.raises((SettingsError, UsageError)):
        with_stack(BY_HAND, "", "lab", OURS, replace=True)
    plain = BY_HAND.replace("database = '''\n[stacks.lab]\n'''\n", "")
    replaced = with_stack(plain, "", "lab", OURS, replace=True)
    assert "timeout" not in replaced and replaced.endswith(f"# the end, without a newline\n\n{WRITTEN}")
    assert stacks.parse_toml(replaced)["stacks"]["old"] == stacks.parse_toml(plain)["stacks"]["old"]


@pytest.mark.parametrize(
    "text",
    ['[stacks]\nlab = { orchestrator = "local" }\n', 'stacks.lab.orchestrator = "local"\n'],
    ids=["inline", "dotted"],
)
def test_a_stack_that_is_no_table_is_not_replaced(text: str) -> None:
    with pytest.raises((SettingsError, UsageError), match=r"not written as tables|is not TOML"):
        with_stack(text, "", "lab", OURS, replace=True)


def test_a_pyproject(tmp_path: Path) -> None:
    tables = '[tool.stoker]\n\n[tool.stoker.stacks.a]\norchestrator = "local"\n\n[tool.other]\nb = 1\n'
    text = f'[project]\nname = "x"\n\n{tables}'
    (tmp_path / "pyproject.toml").write_text(text)
    below = tmp_path / "deep"
    below.mkdir()
    path, prefix = target_file(below)
    assert (path, prefix) == (tmp_path / "pyproject.toml", "tool.stoker.")
    written = with_stack(text, prefix, "lab", {**OURS, "folder": "/a/path"}, replace=False)
    document = stacks.parse_toml(written)
    assert document["tool"]["stoker"]["stack"] == "lab" and document["tool"]["other"] == {"b": 1}
    (tmp_path / "pyproject.toml").write_text(written)
    assert stacks.load(None, below).orchestrator.options["host"] == "ssh://login"
    (below / "stoker.toml").write_text("")
    assert target_file(below) == (below / "stoker.toml", "")


def test_a_file_is_written_whole_and_keeps_its_mode(tmp_path: Path) -> None:
    real = tmp_path / "real.toml"
    real.write_text("old")
    real.chmod(0o640)
    (tmp_path / "stoker.toml").symlink_to(real)
    write_whole(tmp_path / "stoker.toml", "new")
    assert real.read_text() == "new" and real.stat().st_mode & 0o777 == 0o640
    assert sorted(os.listdir(tmp_path)) == ["real.toml", "stoker.toml"]


@pytest.mark.parametrize(("name", "questions"), [("login", 0), ("", 1)], ids=["given", "of the first answer"])
def test_a_name_that_is_taken_is_refused_before_further_questions(
    name: str, questions: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    written = '[stacks.login.orchestrator]\nflavor = "local"\n'
    Path("stoker.toml").write_text(written)
    asked: list[str] = []

    def answer(words: str, usual: str) -> str:
        asked.append(words)
        return "ssh://login"

    monkeypatch.setattr(sys.stdin, "isatty", lambda: True)
    monkeypatch.setattr("stoker.cli.stacks._asked", answer)
    with pytest.raises(UsageError, match="there is a stack called 'login' already"):
        set_up(BACKENDS.load("slurm"), {}, name=name, yes=False, force=False, hello=False, patience=1.0, store="")
    assert len(asked) == questions
    assert Path("stoker.toml").read_text() == written
