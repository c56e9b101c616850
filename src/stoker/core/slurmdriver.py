"""What is asked for the small job of a cluster that drives a run after `--detach`."""

from __future__ import annotations

import re
from typing import Any, Callable, Final, Mapping

from stoker.core import units
from stoker.core.docker import given_mapping
from stoker.core.errors import SettingsError, nearest
from stoker.core.units import UNSET

MEMORY: Final = 1 << 30
"""Bytes where nobody says: a driver of ten thousand steps has 200 MB."""
_NAME: Final = re.compile(r"[^\s'\"\\#]+")


def given_driver(value: Mapping[str, Any] | None) -> Mapping[str, Any] | None:
    """`driver`: time in seconds, memory in bytes, the rest names as sbatch takes them; `SettingsError` for others."""
    found: Any = given_mapping(value)
    if found is None or found is UNSET:
        return value
    taken = {}
    for name, given in found.items():
        if name not in _FIELDS:
            fix = f"it takes {', '.join(_FIELDS)}"
            raise SettingsError(f"driver has no '{name}'{nearest(name, _FIELDS)}", fix=fix)
        taken[name] = None if given is None else _FIELDS[name](name, given)
    return taken


def _given_name(name: str, value: Any) -> str:
    if not isinstance(value, str) or not _NAME.fullmatch(value):
        raise SettingsError(f"driver: {name}={value!r} is not a name", fix="write it without blanks and quotes")
    return value


def _given_time(name: str, value: Any) -> float:
    try:
        return units.positive_duration(value)
    except SettingsError as error:
        raise SettingsError(f"driver: {name}: {error.message}", fix=error.fix) from None


def _given_memory(name: str, value: Any) -> int:
    try:
        return units.size(value)
    except SettingsError as error:
        raise SettingsError(f"driver: {name}: {error.message}", fix=error.fix) from None


_FIELDS: Final[Mapping[str, Callable[[str, Any], Any]]] = {
    "partition": _given_name,
    "account": _given_name,
    "qos": _given_name,
    "reservation": _given_name,
    "time_limit": _given_time,
    "memory": _given_memory,
}
