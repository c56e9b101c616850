"""`stoker stacks setup`: a stack of the same name is told of before anything is asked."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from stoker.backends.registry import BACKENDS
from stoker.cli import stacks
from stoker.core.errors import UsageError


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
    monkeypatch.setattr(stacks, "_asked", answer)
    with pytest.raises(UsageError, match="there is a stack called 'login' already"):
        stacks.set_up(
            BACKENDS.load("slurm"), {}, name=name, yes=False, force=False, hello=False, patience=1.0, store=""
        )
    assert len(asked) == questions
    assert Path("stoker.toml").read_text() == written
