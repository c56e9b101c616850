"""`@secrets(sources=[…])`: environment variables of a step that stand in no plan, no log and no store.

Sources are read where the step runs, when it starts: `"env:NAME"` must be set there, `"file:PATH"` has lines NAME=value
or a JSON object, and a mapping of type "inline" is for tests. Clouds' secret stores need their backend.
"""

from __future__ import annotations

import json
import os
from typing import Any, Final, Iterable, Mapping

from stoker.core.errors import SettingsError

_FIX: Final = "write 'env:NAME' or 'file:PATH'"


def check(sources: Any) -> None:
    """Refuse what is no source."""
    if isinstance(sources, (str, Mapping)) or not isinstance(sources, Iterable):
        raise SettingsError(f"sources={sources!r} is not a list", fix=_FIX)
    for source in sources:
        if isinstance(source, Mapping) and source.get("type") == "inline":
            if not isinstance(source.get("options", {}).get("env_vars"), Mapping):
                raise SettingsError("an inline source has options={'env_vars': {…}}", fix=_FIX)
            continue
        kind = str(source).partition(":")[0] if isinstance(source, str) else ""
        if kind not in ("env", "file") or not str(source).partition(":")[2]:
            raise SettingsError(f"{source!r} is no source of secrets here", fix=_FIX)


def read(sources: Iterable[Any]) -> dict[str, str]:
    """The variables of all sources; one that two of them give is an error."""
    found: dict[str, str] = {}
    for source in sources:
        for name, value in _one(source).items():
            if found.get(name, value) != value:
                raise SettingsError(f"two sources of secrets give {name}", fix="remove one of them")
            found[name] = value
    return found


def _one(source: Any) -> dict[str, str]:
    if isinstance(source, Mapping):
        return {str(name): str(value) for name, value in source["options"]["env_vars"].items()}
    kind, _, rest = str(source).partition(":")
    if kind == "file":
        return _file(rest)
    missing = [name for name in rest.split(",") if name not in os.environ]
    if missing:
        raise SettingsError(f"the secret {missing[0]} is not set where the step runs", fix=f"export {missing[0]}=…")
    return {name: os.environ[name] for name in rest.split(",")}


def _file(path: str) -> dict[str, str]:
    try:
        with open(os.path.expanduser(path), encoding="utf-8") as file:
            text = file.read()
    except (OSError, UnicodeDecodeError) as error:
        raise SettingsError(f"the secrets of {path} cannot be read: {error}", fix="name another file") from None
    if text.lstrip().startswith("{"):
        try:
            return {str(name): str(value) for name, value in json.loads(text).items()}
        except ValueError:
            raise SettingsError(f"{path} is not JSON", fix='write {"NAME": "value"}') from None
    lines = [line.strip() for line in text.splitlines()]
    pairs = [line.removeprefix("export ").partition("=") for line in lines if line and not line.startswith("#")]
    return {name.strip(): value.strip().strip("\"'") for name, equals, value in pairs if equals}
