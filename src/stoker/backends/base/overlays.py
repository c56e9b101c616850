"""What people write in the settings of containers: a folder that one gets (`"/here:/there:ro"`), and a part of a
platform's own request, merged over what Stoker asks: what no setting names is reached so."""

from __future__ import annotations

from typing import Any, Final, Iterable, Iterator, Mapping

import attrs

from stoker.core.errors import SettingsError
from stoker.core.units import UNSET, parse_mapping, parse_texts

KEYS: Final = ("mountPath", "containerPath", "name", "ChannelName", "Key", "type")
"""What the entries of a list are told apart by, the first that all of them have."""


def merged(base: Any, over: Any) -> Any:
    """One object with another over it: objects field by field, where None removes a field; lists of named things by
    their names, and other lists whole."""
    if isinstance(over, Mapping):
        result = dict(base) if isinstance(base, Mapping) else {}
        for name, value in over.items():
            if value is None:
                result.pop(name, None)
            else:
                result[name] = merged(result.get(name), value)
        return result
    if isinstance(base, list) and isinstance(over, (list, tuple)):
        key = next((key for key in KEYS if all(_has(part, key) for part in (*base, *over))), None)
        if key is not None:
            parts = {part[key]: part for part in base}
            for part in over:
                parts[part[key]] = merged(parts.get(part[key]), part)
            return list(parts.values())
    return list(over) if isinstance(over, tuple) else over


def _has(part: Any, key: str) -> bool:
    return isinstance(part, Mapping) and key in part


def parse_overlay(value: Any, instead: Mapping[str, str]) -> Any:
    """Part of a request. `instead`: the path of a field that is not a person's to write ("container.command") → what
    to write. `SettingsError` for one of these."""
    if value is None or value is UNSET:
        return value
    overlay = parse_mapping(value)
    for path in _paths(overlay, ""):
        if path in instead:
            raise SettingsError(f"{path} in an overlay is the step's own", fix=f"write {instead[path]}")
    return overlay


def _paths(value: Any, place: str) -> Iterator[str]:
    if isinstance(value, Mapping):
        for name, part in value.items():
            path = f"{place}.{name}" if place else str(name)
            yield path
            yield from _paths(part, path)


@attrs.frozen
class Mount:
    """A folder of the machine that runs the container, or a named volume, and where it is inside."""

    source: str
    target: str
    read_only: bool = False

    @classmethod
    def parse(cls, text: str) -> Mount:
        """From "/data:/mnt/data" or "/data:/mnt/data:ro"; "/data" alone is the same folder inside."""
        parts = text.split(":")
        mode = parts.pop() if len(parts) > 1 and parts[-1] in ("ro", "rw") else "rw"
        if len(parts) == 1:
            parts *= 2
        if len(parts) != 2 or not parts[0] or not parts[1].startswith("/"):
            fix = 'write "/folder:/place/inside", "name:/place/inside:ro", or "/folder" for the same place'
            raise SettingsError(f"{text!r} is not a mount", fix=fix)
        return cls(parts[0], parts[1], mode == "ro")


def parse_mounts(value: Iterable[str] | None) -> tuple[str, ...] | None:
    """`mounts`, each checked."""
    texts = parse_texts(value)
    for text in texts or ():
        Mount.parse(text)
    return texts
