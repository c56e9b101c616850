"""The option `launch`: parsed from any form in which a person may write it, and merged over the layers."""

from __future__ import annotations

from typing import Any, Mapping

import attrs

from stoker.core.errors import SettingsError
from stoker.core.launch import DEFAULTS, Launch, plain
from stoker.launchers.base import COUNTS, launch_fields
from stoker.launchers.registry import OWN_COMMAND, launcher_named


def parse_launch(value: Any) -> dict[str, Any] | None:
    """The option `launch` in its plain form: of a value, a launcher's name, a list for `Command`, or a mapping."""
    if value is None:
        return None
    if isinstance(value, Launch):
        return plain(value)
    if isinstance(value, str):
        return plain(Launch(**_fields({"launcher": value})))
    if isinstance(value, (list, tuple)):
        return plain(Launch(**_fields({"launcher": OWN_COMMAND, "command": value})))
    if not isinstance(value, Mapping) or not all(isinstance(name, str) for name in value):
        fix = 'write launch = "torchrun", Accelerate(…), or a mapping with launcher ='
        raise SettingsError(f"{value!r} says not how ranks are started", fix=fix)
    return plain(Launch(**_fields(value)))


def resolve_launch(values: Mapping[str, Any] | None) -> Launch | None:
    """What all layers together ask for, with Stoker's defaults; a launcher's own defaults are left to it."""
    if values is None:
        return None
    stated = {name: value for name, value in values.items() if value is not None}
    if "launcher" not in stated:
        if set(stated) <= {"outputs", "hang_after", "gang_timeout"}:
            # A stack's defaults for whatever steps have a launcher.
            return None
        word = next(iter(sorted({*stated} - {"arguments"})), "") or next(iter(stated["arguments"]), "it")
        raise SettingsError(
            f"launch: {word} is given, but no launcher", fix='give the launcher, such as launch.launcher="torchrun"'
        )
    # `hang_after` may be None, which is no limit; of all other words None takes back what was asked before.
    unlimited: dict[str, Any] = {
        name: None for name in ("hang_after", "gang_timeout") if name in values and values[name] is None
    }
    fields = _fields(stated)
    fields["arguments"] = {name: value for name, value in fields.get("arguments", {}).items() if value is not None}
    for name in COUNTS:
        fields.setdefault(name, None)
    return attrs.evolve(DEFAULTS, **{**fields, **unlimited})


def weaker_launch(weak: Mapping[str, Any], strong: Mapping[str, Any]) -> dict[str, Any]:
    """A weaker layer's `launch` as far as a stronger one leaves it: another launcher takes none of its arguments."""
    named, before = strong.get("launcher"), weak.get("launcher")
    if before is None or named in {None, before}:
        return _without_counts(weak, strong, before)
    return {name: value for name, value in weak.items() if name not in {"arguments", "command", *COUNTS}}


def _without_counts(weak: Mapping[str, Any], strong: Mapping[str, Any], launcher: str | None) -> dict[str, Any]:
    """What is left where the stronger layer counts the ranks in the launcher's own word."""
    table = launcher_named(launcher).arguments if launcher else {}
    words = {*strong, *strong.get("arguments", {})}
    counts = any(word in table and table[word].means in COUNTS for word in words)
    return {name: value for name, value in weak.items() if not (counts and name in COUNTS)}


def _fields(values: Mapping[str, Any]) -> dict[str, Any]:
    return launch_fields(values, launcher_named)
