"""A stack as text: what a detached driver on another machine reads."""

from __future__ import annotations

from pathlib import Path

import pytest

from stoker import stacks
from stoker.core.errors import NotFound

FILE = """
[stacks.team]
artifact_store = "artifacts"
database = "postgresql://me:${PASSWORD}@db/stoker"
reconnect = "5m"

[stacks.team.orchestrator]
flavor = "kubernetes"
executable = '/opt/"odd"\\name/python3'
node_selector = { "example.com/pool" = "a" }
tolerations = [{ key = "gpu", operator = "Exists" }]
shares_files = true

[stacks.team.settings]
resources.cpu_count = 1.5
"""


def test_a_stack_is_written_and_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PASSWORD", "p")
    (tmp_path / "stoker.toml").write_text(FILE)
    (tmp_path / "sub").mkdir()
    stack = stacks.load("team", tmp_path)
    table, variables = stacks.table_of(stack)
    assert variables == {"PASSWORD": "p"}
    elsewhere = tmp_path / "sub" / "there.toml"
    text = stacks.toml_text("team", table)
    assert "me:p@" not in text
    elsewhere.write_text(text)
    monkeypatch.setenv(stacks.ONLY, str(elsewhere))
    again = stacks.load("team", tmp_path)
    assert again.artifact_store == stack.artifact_store == f"file://{tmp_path}/artifacts"
    assert (again.database, again.orchestrator.options) == (stack.database, stack.orchestrator.options)
    assert (again.reconnect, again.layer.values) == (stack.reconnect, stack.layer.values)
    assert [one.name for one in stacks.stacks(tmp_path)] == ["local", "team"]
    monkeypatch.setenv(stacks.ONLY, str(tmp_path / "none.toml"))
    with pytest.raises(NotFound, match="there is no file"):
        stacks.load("team", tmp_path)


def test_the_builtin_stack_stands_in_no_file(tmp_path: Path) -> None:
    assert stacks.table_of(stacks.load("local", tmp_path)) == ({}, {})
