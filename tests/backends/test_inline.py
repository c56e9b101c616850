"""With --debug a step finds what it would find in a worker, and leaves nothing behind in the driver."""

from __future__ import annotations

from typing import Any

PROGRAM = """
import os
from stoker import pipeline, step

@step(environment={"COLOUR": "red"})
def first() -> str:
    os.environ["SHAPE"] = "round"
    os.chdir("/")
    return os.environ["COLOUR"]

@step
def second(colour: str) -> list:
    return [colour, os.environ.get("COLOUR"), os.environ.get("SHAPE"), os.getcwd(), os.getpid()]

@pipeline
def painting():
    second(first())

if __name__ == "__main__":
    folder = os.getcwd()
    found = painting().steps["second"].load()
    assert found == ["red", None, None, folder, os.getpid()], found
"""


def test_surroundings_are_put_back(project: Any) -> None:
    project.write({"paint.py": PROGRAM})
    project.run("paint.py", "--debug")
