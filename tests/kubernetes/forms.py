"""The fields of objects and the forms of their values, to lay those of a recorded server and of the tests' own side by
side."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Any

FREE = ("labels", "annotations", "matchLabels", "nodeSelector", "data")
"""Mappings whose keys are anybody's."""
AMOUNTS = ("capacity", "allocatable", "limits", "requests", "hard", "used", "resources")
TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z")


def forms(kind: str, objects: Iterable[Any]) -> set[str]:
    """Each field of some objects of one kind with the form of its value: "Node.status.allocatable.memory: Ki"."""
    return {f"{kind}{path}: {form}" for one in objects for path, form in _of(one, "", "")}


def _of(value: Any, path: str, name: str) -> Iterator[tuple[str, str]]:
    if isinstance(value, dict):
        if not value:
            yield path, "{}"
        for key, part in value.items():
            yield from _of(part, f"{path}.*" if name in FREE else f"{path}.{key}", name if name in AMOUNTS else key)
    elif isinstance(value, list):
        if not value:
            yield path, "[]"
        for part in value:
            yield from _of(part, f"{path}[]", name)
    else:
        yield path, _form(value, name)


def _form(value: Any, name: str) -> str:
    if not isinstance(value, str):
        return "null" if value is None else type(value).__name__
    time = TIME.fullmatch(value)
    if time is not None:
        return f"time with {len(time[1]) - 1} digits" if time[1] else "time"
    if name in AMOUNTS and value[:1].isdecimal():
        return f"quantity {value.lstrip('0123456789.')}".strip()
    return "text" if value else "empty text"
