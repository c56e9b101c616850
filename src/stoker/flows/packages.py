"""The words of `@pypi`, `@conda` and `@uv` as fields of `PackageSettings`, and those of several decorators together.

What a step's decorator says is laid over what the class's says, package by package. Indexes are what Metaflow's
extensions call `sources` and `extra_indices`, https://github.com/Netflix/metaflow-nflx-extensions.
"""

from __future__ import annotations

import os
from typing import Any, Final, Iterable, Mapping, NamedTuple

from stoker.core.errors import SettingsError
from stoker.core.packages import CHANNELS, PackageSettings
from stoker.core.settings import Layer, fields_given
from stoker.core.units import UNSET
from stoker.settings.options import layer_from

FIELDS: Final[Mapping[str, str]] = {"pypi": "pypi", "uv": "pypi", "conda": "conda"}
"""decorator → the field that has its packages"""
BASES: Final[Mapping[str, str]] = {"pypi_base": "pypi", "conda_base": "conda"}
"""decorator of a class → the one of a step that it stands for"""
WORDS: Final[Mapping[str, tuple[str, ...]]] = {
    "pypi": ("packages", "python", "disabled", "index_url", "extra_indices", "sources"),
    "conda": ("packages", "libraries", "python", "disabled", "channels", "sources"),
}
"""field → the words that its decorators take"""


class Said(NamedTuple):
    """What one decorator says: its name, its words, and its place."""

    name: str
    words: Mapping[str, Any]
    where: str


def fields(name: str, words: Mapping[str, Any]) -> dict[str, Any]:
    """A decorator's words as fields of `PackageSettings`, checked; what was not given is not there."""
    field = FIELDS[BASES.get(name, name)]
    given: dict[str, Any] = {word: words[word] for word in ("python", "disabled") if words.get(word) is not None}
    packages = {**_mapping(words, "libraries"), **_mapping(words, "packages")}
    if packages:
        given[field] = packages
    if field == "conda":
        channels = [*_texts(words, "channels"), *_texts(words, "sources")]
        if channels:
            given["channels"] = [*channels, *(name for name in CHANNELS if name not in channels)]
    else:
        more = [*_texts(words, "extra_indices"), *_texts(words, "sources")]
        if more:
            given["extra_index_urls"] = more
        if words.get("index_url") is not None:
            given["index_url"] = words["index_url"]
    return fields_given(PackageSettings(**given))


def layer_of(step: str, said: Iterable[Said]) -> Layer | None:
    """What a step's decorators come to, weakest first; None where it has none of them.

    A step is without packages of its own where any kind of them is disabled. A Python is that of all kinds.
    """
    merged: dict[str, Any] = {}
    places: dict[str, str] = {}
    pythons: dict[str, tuple[str, str]] = {}
    disabled: dict[str, bool] = {}
    known = list(said)
    for one in known:
        field, place = FIELDS[BASES.get(one.name, one.name)], f"{one.where} @{one.name}"
        found = fields(one.name, one.words)
        if "python" in found:
            pythons[field] = (found.pop("python"), place)
        disabled[field] = found.pop("disabled", disabled.get(field, False))
        for name, value in found.items():
            if isinstance(value, Mapping):
                merged[name] = {**merged.get(name, {}), **value}
                places.update({f"packages.{name}.{package}": place for package in value})
            else:
                merged[name], places[f"packages.{name}"] = value, place
    if not known:
        return None
    _take_python(step, pythons, merged, places)
    if any(disabled.values()):
        merged["disabled"] = True
    if merged.get("conda") and "channels" not in merged and os.environ.get("CONDA_CHANNELS"):
        merged["channels"] = [text.strip() for text in os.environ["CONDA_CHANNELS"].split(",") if text.strip()]
        places["packages.channels"] = "CONDA_CHANNELS"
    last = known[-1]
    return layer_from(f"{last.where} @{last.name}", ({"packages": merged},), level="step", origins=places)


def _take_python(
    step: str, pythons: Mapping[str, tuple[str, str]], merged: dict[str, Any], places: dict[str, str]
) -> None:
    if len({version for version, _ in pythons.values()}) > 1:
        told = " and ".join(f"{version} at {place}" for version, place in pythons.values())
        raise SettingsError(f"step '{step}': python is {told}", fix="say it once")
    for version, place in pythons.values():
        merged["python"], places["packages.python"] = version, place


def _mapping(words: Mapping[str, Any], word: str) -> dict[str, Any]:
    given = words.get(word, UNSET)
    if given is UNSET or given is None:
        return {}
    if not isinstance(given, Mapping) or not all(isinstance(name, str) for name in given):
        raise SettingsError(f"{word}={given!r} does not map packages to versions", fix='write {"numpy": "1.26.4"}')
    return dict(given)


def _texts(words: Mapping[str, Any], word: str) -> list[str]:
    given = words.get(word, UNSET)
    if given is UNSET or given is None:
        return []
    if isinstance(given, str) or not isinstance(given, (list, tuple)):
        raise SettingsError(f"{word}={given!r} is not a list of texts", fix=f"write {word}=[{given!r}]")
    return list(given)
