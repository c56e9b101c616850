"""Whether a step has what its ladder would halve: found out before anything runs, not at the first full GPU."""

from __future__ import annotations

import json
from typing import Any, Final, Mapping

from stoker.core.artifact import from_wire
from stoker.core.errors import SettingsError, nearest
from stoker.core.ladder import Halve
from stoker.core.plan import StepPlan

_FIX: Final = "hand a whole number over in the pipeline, or give the parameter one as its default"


def check_ladder(step: StepPlan) -> None:
    """Refuse a rung that halves what is no parameter of the step, or one that is bound to no plain whole number."""
    for rung in step.settings.retry.on_oom:
        if not isinstance(rung, Halve):
            continue
        name = rung.parameter
        where = f"{step.where} step '{step.key}', retry.on_oom"
        if name not in step.inputs:
            message = f"'{rung}': the step has no parameter '{name}'{nearest(name, step.inputs)}"
            raise SettingsError(message, where=where)
        wrong = _wrong(step.inputs[name], mapped=name in step.mapped)
        if wrong:
            raise SettingsError(f"'{rung}': {name} is {wrong}", where=where, fix=_FIX)


def _wrong(tree: Mapping[str, Any], *, mapped: bool) -> str:
    """What an input is that cannot be halved, in words; empty for a whole number."""
    if "step" in tree:
        return f"what step '{tree['step']}' returns"
    if "value" not in tree:
        return "put together from what steps return"
    wire = tree["value"]
    if not mapped:
        return _wrong_type(wire)
    if wire["s"] != "list" or "i" not in wire:
        return ""  # too long to travel in the plan: an element that is no number is told of when its turn comes
    return next((f"{found} for an element" for item in _items(wire) if (found := _wrong_type(item))), "")


def _items(wire: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    items: list[Mapping[str, Any]] = json.loads(from_wire(wire).inline or b"{}").get("items", [])
    return items


def _wrong_type(wire: Mapping[str, Any]) -> str:
    kind = wire["t"].removeprefix("builtins.")
    return "" if kind == "int" else f"a value of type {kind}"
