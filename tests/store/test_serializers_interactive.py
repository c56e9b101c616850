"""Values whose class is typed in a session: a worker could not import it from anywhere, so it goes with the value."""

from __future__ import annotations

import sys
from typing import Any

PROGRAM = """
from stoker import pipeline, step

class Point:
    def __init__(self, x):
        self.x = x

@step
def make() -> Point:
    return Point(5)

@step
def read(point: Point, other: Point) -> int:
    return point.x + other.x

@pipeline
def points(point: Point):
    read(point, make())

@pipeline(dynamic=True)
def looked_at():
    point = make()
    read(point, Point(point.x))

assert points(Point(3)).steps["read"].load() == 8
assert looked_at().steps["read"].load() == 10
assert points(Point(3)).steps["make"].status == "cached"
"""


def test_classes_of_a_session(project: Any) -> None:
    for _ in range(2):  # the second session meets what the first one kept
        project.command([sys.executable, "-"], input=PROGRAM)
