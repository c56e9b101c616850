"""`@huggingface_hub` of a flow's step: repositories of the hub as its data, by what Metaflow's decorator takes."""

from __future__ import annotations

import re
from typing import Any, Callable, Final, Iterator, Mapping

from stoker.core.data import HUB, parse_data
from stoker.core.errors import SettingsError, nearest
from stoker.core.words import shown

_WORDS: Final = ("repo_id", "repo_type", "revision", "allow_patterns", "ignore_patterns")
_PREFIXES: Final[Mapping[str, str]] = {"model": "", "dataset": "datasets/", "space": "spaces/"}
_FIX: Final = 'write load=["org/model"], or load={"name": {"repo_id": "org/model", "revision": "v1"}}'


def data_of(load: Any) -> dict[str, Any]:
    """The `data` of a step by `load`; `SettingsError` for what names no repository."""
    return parse_data({name: request for _, name, request in _requests(load)})


def check_load(values: Mapping[str, Any]) -> None:
    """Raise `SettingsError` where `load` is wrong."""
    if not values["load"]:
        raise SettingsError("it says nothing to load", fix=_FIX)
    data_of(values["load"])


class LoadedRepositories:
    """`current.huggingface_hub`: `loaded` has the path of each repository, by its name or key in `load`."""

    def __init__(self, load: Any, find: Callable[[str], Any]) -> None:
        self.loaded = {key: str(find(name)) for key, name, _ in _requests(load)}

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(
            f"current.huggingface_hub has no '{name}': what a step reads stands in @huggingface_hub(load=[…]), so that "
            "a plan knows it"
        )


def _requests(load: Any) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """Of each repository its key in `loaded`, the name of its data, and the request."""
    entries = list(load.items()) if isinstance(load, Mapping) else [("", one) for one in load]
    for key, one in entries:
        words = one if isinstance(one, Mapping) else {"repo_id": one}
        for word in words:
            if word not in _WORDS:
                raise SettingsError(f"load takes no '{word}'{nearest(str(word), _WORDS)}")
        repository, kind = words.get("repo_id"), words.get("repo_type") or "model"
        if not isinstance(repository, str) or kind not in _PREFIXES:
            raise SettingsError(f"{shown(one)} names no repository of the hub", fix=_FIX)
        revision = f"@{words['revision']}" if words.get("revision") else ""
        uri = f"{HUB}://{_PREFIXES[kind]}{repository}{revision}"
        named = str(key or repository)
        patterns = {"include": words.get("allow_patterns"), "exclude": words.get("ignore_patterns")}
        yield named, re.sub(r"\W", "_", f"hub_{named}"), {"uri": uri, **patterns}
