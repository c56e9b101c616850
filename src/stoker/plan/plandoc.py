"""Serialize plans for the record of a run; settings that many steps share are written once."""

from __future__ import annotations

import json
from typing import Any, Final

import attrs

from stoker.core.codec import from_json, to_json
from stoker.core.errors import StoreError
from stoker.core.graph import StepOutput
from stoker.core.plan import PLAN_VERSION, Plan, StepPlan
from stoker.core.settings import StepSettings
from stoker.core.source import FunctionSource

_SHARED: Final = {"settings": StepSettings, "source": FunctionSource, "origins": None, "outputs": None}
"""Fields that all calls of a step share, kept in tables."""
_PLAIN: Final = ("key", "name", "unpack", "backend", "code", "position", "where")
_RARE: Final = ("mapped", "after", "split", "hooks", "image", "environment", "runner")
"""Fields that are usually empty, and left out then."""


def dump(plan: Plan) -> str:
    """Serialize a plan as JSON."""
    document = to_json(attrs.evolve(plan, steps=()))
    tables: dict[str, list[Any]] = {name: [] for name in _SHARED}
    indexes: dict[str, dict[int, int]] = {name: {} for name in _SHARED}
    steps = []
    for step in plan.steps:
        row: dict[str, Any] = {name: getattr(step, name) for name in _PLAIN}
        row["inputs"] = to_json(step.inputs)
        for name in _SHARED:
            value = getattr(step, name)
            index = indexes[name].get(id(value))
            if index is None:
                index = indexes[name][id(value)] = len(tables[name])
                tables[name].append(to_json(value))
            row[name] = index
        for name in _RARE:
            value = getattr(step, name)
            if value:
                row[name] = to_json(value)
        steps.append(row)
    document["steps"] = steps
    document["shared"] = tables
    return json.dumps(document, separators=(",", ":"), ensure_ascii=False)


def load(text: str) -> Plan:
    """Parse a plan; unknown fields of a newer Stoker are ignored, a newer version of the format is an error."""
    document = json.loads(text)
    if document.get("version", 0) > PLAN_VERSION:
        raise StoreError(
            f"a newer Stoker wrote the plan (plan version {document['version']}; this one knows {PLAN_VERSION})",
            fix="upgrade Stoker here, or start the pipeline again",
        )
    shared = document.pop("shared")
    tables = {name: [_parse_shared(name, item) for item in shared[name]] for name in _SHARED}
    steps = document.pop("steps")
    plan = from_json(Plan, {**document, "steps": []}, strict=False)
    fields = {field.name for field in attrs.fields(StepPlan)}
    return attrs.evolve(plan, steps=tuple(_parse_step(own, tables, fields) for own in steps))


def _parse_shared(name: str, item: Any) -> Any:
    if name == "outputs":
        return tuple(from_json(StepOutput, output, strict=False) for output in item)
    kind = _SHARED[name]
    return item if kind is None else from_json(kind, item, strict=False)


def _parse_step(row: dict[str, Any], tables: dict[str, list[Any]], known: set[str]) -> StepPlan:
    fields = {name: value for name, value in row.items() if name in known}
    for name in _SHARED:
        fields[name] = tables[name][fields[name]]
    for name in ("mapped", "after", "split"):
        fields[name] = tuple(fields.get(name, ()))
    hooks = fields.get("hooks", {})
    fields["hooks"] = {name: from_json(FunctionSource, hook, strict=False) for name, hook in hooks.items()}
    return StepPlan(**fields)
