"""Keys by an object's identity: for caches of what follows from large objects, as from the step that all jobs of a
fan-out share."""

from __future__ import annotations

from typing import Generic, TypeVar

T = TypeVar("T")


class IdentityKey(Generic[T]):
    """An argument for a function with `functools.lru_cache` that compares by the object's identity.

    The cache keeps the object alive, so that its `id` is not used again. The object must not change.
    """

    __slots__ = ("value",)

    def __init__(self, value: T) -> None:
        self.value = value

    def __hash__(self) -> int:
        return id(self.value)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, IdentityKey) and other.value is self.value
