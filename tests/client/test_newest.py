"""The newest run has two names that no id begins with: "latest" and "last"."""

from __future__ import annotations

import subprocess
from typing import Any

import pytest

from stoker.client.client import LATEST
from stoker.run.driver import new_id

PROGRAM = """
    from stoker import pipeline, step

    @step
    def hello(name: str) -> str:
        print("hello", name)
        return name

    @pipeline
    def greeting(name: str):
        hello(name)

    if __name__ == "__main__":
        greeting("first")
        greeting("second")
"""


@pytest.fixture
def greeted(project: Any) -> Any:
    project.write({"greet.py": PROGRAM}).run("greet.py")
    return project


@pytest.mark.parametrize("name", LATEST)
def test_the_newest_run(greeted: Any, name: str) -> None:
    client = greeted.client()
    assert client.run(name).id == client.runs()[0].id
    assert client.run(name).steps["hello"].load() == "second"


def test_there_may_be_none(project: Any) -> None:
    from stoker.core.errors import NotFound

    for name in LATEST:
        with pytest.raises(NotFound, match="there are no runs yet"):
            project.client().run(name)


def test_no_id_begins_so() -> None:
    assert not any("l" in new_id(2e9 + number) for number in range(1000))


def test_every_command_that_takes_a_run_takes_it(greeted: Any) -> None:
    id = greeted.client().runs()[0].id

    def stoker(*arguments: str, code: int = 0) -> subprocess.CompletedProcess[str]:
        found: subprocess.CompletedProcess[str] = greeted.stoker(*arguments, code=code)
        return found

    assert id in stoker("show", "last").stdout
    assert stoker("logs", "last", "hello").stdout == "hello second\n"
    assert "hello" in stoker("artifacts", "last").stdout
    assert f"no step held accelerators in run {id}" in stoker("gpu", "last").stdout
    stoker("cancel", "last")
    stoker("resume", "last")
