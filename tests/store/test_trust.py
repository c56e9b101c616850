"""What may run code is not loaded from another user's store."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from stoker import Client
from stoker.core.errors import UntrustedArtifact
from stoker.store.store import Store

FLOW = """
from stoker.flow import FlowSpec, step

class Thing:
    def __repr__(self):
        return "a thing"

class Kept(FlowSpec):
    @step
    def start(self):
        self.number, self.pair, self.thing = 1, {"a": [1.5]}, {1, 2}
        self.next(self.end)

    @step
    def end(self):
        pass

if __name__ == "__main__":
    Kept()
"""


@pytest.fixture
def others(project: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A project whose store belongs to another user after its run."""
    project.write({"kept.py": FLOW}).run("kept.py", "run")
    if os.geteuid() == 0:
        for path in (project.home, *project.home.rglob("*")):
            os.chown(path, 12345, -1, follow_symlinks=False)
    else:
        monkeypatch.setattr(os, "geteuid", lambda: 12345)
    return project


def test_only_trust_loads_pickles_of_another_user(others: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    outputs = Client().run("last").steps["start"].outputs
    assert outputs["number"].load() == 1 and outputs["pair"].load() == {"a": [1.5]}
    assert outputs["thing"].serializer == "pickle" and outputs["thing"].type == "set"
    with pytest.raises(UntrustedArtifact, match="another user's") as refused:
        outputs["thing"].load()
    assert "trust=True" in refused.value.fix
    assert Client(trust=True).run("last").steps["start"].outputs["thing"].load() == {1, 2}
    opened: Store = Client(trust=True).store
    with pytest.raises(UntrustedArtifact):
        Client(store=opened).run("last").steps["start"].outputs["thing"].load()
    monkeypatch.setenv("STOKER_TRUST", "1")
    assert Client().run("last").steps["start"].outputs["thing"].load() == {1, 2}


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files to another user")
def test_commands_that_only_show_load_nothing(others: Any) -> None:
    for command in (
        ("show", "last"),
        ("show", "last", "--json"),
        ("runs",),
        ("card", "last", "start", "--output", "-"),
    ):
        assert others.stoker(*command).returncode == 0
    refused = others.run("kept.py", "dump", "start", code=2).stderr
    assert "could run" in refused or "can run any code" in refused
    assert "thing = {1, 2}" in others.run("kept.py", "dump", "start", "--trust").stdout


def test_your_own_store_needs_nothing(project: Any) -> None:
    project.write({"kept.py": FLOW}).run("kept.py", "run")
    assert Client().run("last").steps["start"].outputs["thing"].load() == {1, 2}
    assert not Client().store.is_foreign and Path(Client().store.home).exists()
