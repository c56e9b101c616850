"""A store that disappears under a run ends it with exit code 4 and a message; nothing says that it succeeded."""

from __future__ import annotations

from typing import Any

import pytest

VANISHING = """
import os
import shutil

from stoker import pipeline, step

HOME = os.environ["STOKER_HOME"]

@step
def first() -> bytes:
    return b"x" * 10_000

@step
def vanish(data: bytes) -> int:
    what = os.environ["WHAT"]
    if what == "home":
        shutil.rmtree(HOME)
    elif what == "database":
        os.unlink(HOME + "/stoker.db")
    elif what == "artifacts":
        shutil.rmtree(HOME + "/artifacts")
    elif what == "renewed":
        os.rename(HOME + "/artifacts", HOME + "/elsewhere")
        os.makedirs(HOME + "/artifacts/objects")
    return 1

@step
def last(one: int) -> bytes:
    return b"y" * 10_000

@pipeline
def vanishing():
    last(vanish(first()))

if __name__ == "__main__":
    vanishing()
"""


@pytest.mark.parametrize("what", ["home", "database", "artifacts", "renewed"])
def test_a_store_that_disappears_ends_the_run(lab: Any, what: str) -> None:
    lab.write("vanishing.py", VANISHING)
    output = lab.run("-m", "stoker", "run", "vanishing.py", code=4, env={"WHAT": what})
    assert "was removed, replaced or unmounted" in output
    assert "✓ vanishing" not in output and "inside Stoker" not in output


def test_also_at_the_very_end(lab: Any) -> None:
    """Where nothing is written after it: the last step of all takes the store away."""
    lab.write("vanishing.py", VANISHING.replace("last(vanish(first()))", "vanish(first())"))
    output = lab.run("-m", "stoker", "run", "vanishing.py", code=4, env={"WHAT": "home"})
    assert "was removed, replaced or unmounted" in output
