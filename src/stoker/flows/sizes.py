"""Metaflow's words for resources in ours: `memory=32000` is megabytes there, "32GB" says it itself."""

from __future__ import annotations

from typing import Any, Final, Mapping

from stoker.core.errors import SettingsError
from stoker.core.units import UNSET

MB: Final = 10**6
"""https://docs.metaflow.org/api/step-decorators/resources: "memory (int, default 4096): Memory size (in MB)"; what it
sends to Kubernetes is decimal, "4096M"."""
MIB: Final = 2**20
"""There, too: "shared_memory: The value for the size (in MiB) of the /dev/shm volume"."""
_RENAMED: Final = {"cpu": "cpu_count", "gpu": "gpu_count"}
_SIZES: Final = {"memory": MB, "disk": MB, "shared_memory": MIB}
_CORES: Final = ("trainium", "inferentia")


def resource_words(values: Mapping[str, Any]) -> dict[str, Any]:
    """Fields of `ResourceSettings` from what a decorator was given; None asks for nothing."""
    found: dict[str, Any] = {}
    for word, given in values.items():
        value: Any = given
        if value is None or value is UNSET:
            continue
        name = _RENAMED.get(word, word)
        if word in _CORES:
            name, value = "accelerators", f"{word}:{_cores(word, value)}"
        elif word in _SIZES:
            value = _size(word, value)
        elif word in _RENAMED and isinstance(value, bool):
            raise SettingsError(f"{word}={value!r} is not a number", fix=f"write {word}=1")
        if name in found:
            raise SettingsError(f"{word}={value!r} says again what {name} says", fix="remove one of the two")
        found[name] = value
    if found.get("gpu_vendor") and not found.get("gpu_count") and not found.get("accelerators"):
        found.pop("gpu_vendor")  # of which kind the GPUs are, if there were any
    return found


def _size(word: str, value: Any) -> Any:
    """Bytes; a bare number is of Metaflow's unit for the word, also as a text, as the command line gives it."""
    number = value
    if isinstance(value, str):
        try:
            number = float(value)
        except ValueError:
            return value  # with a unit, or a mistake that the settings explain
    if isinstance(number, bool) or not isinstance(number, (int, float)) or number <= 0:
        raise SettingsError(f"{word}={value!r} is not a size", fix=f'write {word}=4096 (MB) or {word}="4GB"')
    return int(number * _SIZES[word])


def _cores(word: str, value: Any) -> int:
    try:
        count = int(str(value))
    except ValueError:
        count = 0
    if count < 1 or isinstance(value, bool):
        raise SettingsError(f"{word}={value!r} is not a number of devices", fix=f"write {word}=16")
    return count
