"""Keys of steps and of elements of fan-outs: what belongs to what, and what comes first."""

from __future__ import annotations

import re
from typing import Final, Iterable

_ELEMENT: Final = re.compile(r"(.+)\[(\d+)\]")


def element_of(key: str) -> tuple[str, int | None]:
    """The fan-out and the index of an element's key; of another key itself and None."""
    element = _ELEMENT.fullmatch(key)
    return (key, None) if element is None else (element[1], int(element[2]))


def in_order(keys: Iterable[str], steps: Iterable[str]) -> list[str]:
    """Keys in the order of a run's steps, elements by their index behind their fan-out."""
    places = {key: place for place, key in enumerate(steps)}

    def place(key: str) -> tuple[int, int, str]:
        parent, index = element_of(key)
        return places.get(parent, len(places)), -1 if index is None else index, key

    return sorted(keys, key=place)
