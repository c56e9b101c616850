"""Objects as keys of what was made of them: the jobs of a fan-out share a step, of which the same follows each time."""

from __future__ import annotations

from typing import Generic, TypeVar

T = TypeVar("T")


class Same(Generic[T]):
    """An object as an argument of a function with `functools.lru_cache`, equal to itself alone.

    The cache holds the object, so that no other one gets its place in memory. It must not change.
    """

    __slots__ = ("value",)

    def __init__(self, value: T) -> None:
        self.value = value

    def __hash__(self) -> int:
        return id(self.value)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Same) and other.value is self.value
