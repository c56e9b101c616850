"""A folder that a container gets, as people write it in settings: "/here:/there" or "/here:/there:ro"."""

from __future__ import annotations

from typing import Iterable

import attrs

from stoker.core.errors import SettingsError
from stoker.core.units import parse_texts


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
