"""Keys of steps and of elements of fan-outs: their parts, their order, and the errors about a missing one."""

from __future__ import annotations

from typing import Final, Iterable

from stoker.core.errors import NotFound
from stoker.core.values import lazy_pattern

_ELEMENT: Final = lazy_pattern(r"(.+)\[(\d+)\]")


class NoSuchKey(NotFound, KeyError):
    """A mapping has no such key; the message names the nearest. `in`, `.get` and `except KeyError` work as usual."""


class NoSuchIndex(NotFound, IndexError):
    """A fan-out has fewer elements."""


def element_of(key: str) -> tuple[str, int | None]:
    """The fan-out and the index of an element's key; any other key and None."""
    element = _ELEMENT.fullmatch(key)
    return (key, None) if element is None else (element[1], int(element[2]))


def sort_keys(keys: Iterable[str], steps: Iterable[str]) -> list[str]:
    """Keys in the order of a run's steps, elements by index behind their fan-out."""
    positions = {key: position for position, key in enumerate(steps)}

    def sort_key(key: str) -> tuple[int, int, str]:
        parent, index = element_of(key)
        return positions.get(parent, len(positions)), -1 if index is None else index, key

    return sorted(keys, key=sort_key)
