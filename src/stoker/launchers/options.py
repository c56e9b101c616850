"""The option `launch`: parses every form in which it is written, and merges the layers."""

from __future__ import annotations

from typing import Any, Mapping

import attrs

from stoker.core.errors import SettingsError
from stoker.core.launch import DEFAULTS, LIMITS, Launch, plain
from stoker.launchers.base import COUNTS, launch_fields
from stoker.launchers.registry import OWN_COMMAND, launcher_named


def parse_launch(value: Any) -> dict[str, Any] | None:
    """The option `launch` in its plain form, from a `Launch`, a launcher's name, a list for `Command`, or a mapping."""
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
    """The launch of all layers together, with Stoker's defaults; a launcher's own defaults are not filled in."""
    if values is None:
        return None
    stated = {name: value for name, value in values.items() if value is not None}
    if "launcher" not in stated:
        if set(stated) <= {"outputs", "one_world", *LIMITS}:
            # A stack's defaults for steps that have a launcher.
            return None
        word = next(iter(sorted({*stated} - {"arguments"})), "") or next(iter(stated["arguments"]), "it")
        raise SettingsError(
            f"launch: {word} is given, but no launcher", fix='give the launcher, such as launch.launcher="torchrun"'
        )
    # None means no limit for these; for other options it removes a weaker layer's value.
    none_values: dict[str, Any] = {name: None for name in LIMITS if name in values and values[name] is None}
    fields = _fields(stated)
    fields["arguments"] = {name: value for name, value in fields.get("arguments", {}).items() if value is not None}
    for name in COUNTS:
        fields.setdefault(name, None)
    return attrs.evolve(DEFAULTS, **{**fields, **none_values})


def weaker_launch(weak: Mapping[str, Any], strong: Mapping[str, Any]) -> dict[str, Any]:
    """The part of a weaker layer's `launch` that still applies: another launcher takes none of its arguments."""
    launcher, weak_launcher = strong.get("launcher"), weak.get("launcher")
    if weak_launcher is None or launcher in {None, weak_launcher}:
        return _without_counts(weak, strong, weak_launcher)
    return {name: value for name, value in weak.items() if name not in {"arguments", "command", *COUNTS}}


def _without_counts(weak: Mapping[str, Any], strong: Mapping[str, Any], launcher: str | None) -> dict[str, Any]:
    """`weak` without its counts where the stronger layer counts ranks by an argument of the launcher."""
    table = launcher_named(launcher).arguments if launcher else {}
    words = {*strong, *strong.get("arguments", {})}
    counts = any(word in table and table[word].means in COUNTS for word in words)
    return {name: value for name, value in weak.items() if not (counts and name in COUNTS)}


def _fields(values: Mapping[str, Any]) -> dict[str, Any]:
    return launch_fields(values, launcher_named)
