"""The steps whose work `benchmarks.counted` counts."""

from __future__ import annotations

import os

from benchmarks import counted
from stoker import pipeline, step


@step(cache=False)
def first() -> int:
    """The worker counts from here on."""
    counted.begin()
    return os.getpid()


@step(cache=False)
def same(pid: int) -> int:
    """One more step of a chain."""
    return pid


@step(cache=False)
def told(pid: int) -> dict[str, int]:
    """What the worker counted; the whole chain ran in it."""
    found = counted.end()
    assert pid == os.getpid(), "another worker took a part of the chain"
    return found


@step
def plus(number: int) -> int:
    """One more cached step of a chain."""
    return number + 1


@step(cache=False)
def numbers(count: int) -> list[int]:
    """What a fan-out goes over."""
    return list(range(count))


@step(cache=False)
def square(number: int) -> int:
    """One more element of a fan-out."""
    return number * number


@pipeline
def chain(count: int) -> None:
    """Steps that take each other's result."""
    value = first()
    for _ in range(count):
        value = same(value)
    told(value)


@pipeline
def plain_chain(count: int) -> None:
    """The same, of steps that may be cached."""
    value = plus(0)
    for _ in range(count - 1):
        value = plus(value)


@pipeline
def fan_out(count: int) -> None:
    """A step for each element of a list."""
    square.map(numbers(count))
