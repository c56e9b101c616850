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


UNBOUNDED = """
from stoker import pipeline, step

@step(timeout="1s", isolation="fresh", cache=False)
def first() -> int:
    return 1

@pipeline
def painting():
    first()

if __name__ == "__main__":
    painting()
"""


def test_what_debug_cannot_honour_is_said_in_plan_and_run(project: Any) -> None:
    project.write({"paint.py": UNBOUNDED})
    planned = project.run("-m", "stoker", "plan", "paint.py", "--debug").stdout
    ran = project.run("paint.py", "--debug")
    for text in (planned, ran.stdout + ran.stderr):
        assert text.count("STK193 warning") == 2
        assert "its timeout of 1s does not end it under --debug" in text
        assert 'its isolation="fresh" counts as "warm" under --debug' in text
    assert "STK193" not in project.run("-m", "stoker", "plan", "paint.py").stdout
