"""Serialize plans for the record of a run; settings that many steps share are written once, and people read those that
somebody gave with the place that gave them."""

from __future__ import annotations

import json
from operator import attrgetter
from typing import Any, Callable, Final, Mapping, Sequence

import attrs

from stoker.core.artifact import from_wire
from stoker.core.codec import from_json, parse_object, to_json
from stoker.core.data import StepData
from stoker.core.errors import SettingsError, StoreError
from stoker.core.graph import StepOutput
from stoker.core.plan import PLAN_VERSION, Plan, StepPlan
from stoker.core.plugins import resolve
from stoker.core.protocol import FunctionSource
from stoker.core.secret import MASK, looks_secret
from stoker.core.settings import StepSettings
from stoker.core.units import duration_text, size_text

_SHARED: Final[Mapping[str, Any]] = {
    "settings": StepSettings,
    "source": FunctionSource,
    "origins": Mapping[str, str],
    "outputs": tuple[StepOutput, ...],
}
"""Fields that all calls of a step share, kept in tables."""
_RARELY_SHARED: Final[Mapping[str, str]] = {
    "proof": "stoker.core.receipt:Proof",
    "sweep": "stoker.core.sweep:SweepPlan",
    "losses": "stoker.core.cadence:LossRate",
}
"""Shared fields that are usually None, and left out then: name → class, which is imported only if one is there."""
_PLAIN: Final = ("key", "name", "unpack", "backend", "code", "position", "where")
_RARE: Final = (
    "packages",
    "lookups",
    "of_main_block",
    "mapped",
    "after",
    "split",
    "hooks",
    "image",
    "lock",
    "environment",
    "runner",
    "price",
    "shares_checkpoints",
    "data",
)
"""Fields that are usually empty, and left out then."""
_read_plain, _read_rare = attrgetter(*_PLAIN), attrgetter(*_RARE)
_read_shared = attrgetter(*_SHARED, *_RARELY_SHARED)
_OWN: Final[Mapping[str, Any]] = {
    **dict.fromkeys(("key", "name", "backend", "code", "where", "image", "lock", "environment", "runner"), str),
    **dict.fromkeys(("mapped", "after", "split", "packages", "lookups", "of_main_block"), tuple[str, ...]),
    "unpack": bool,
    "shares_checkpoints": bool,
    "price": float,
    "position": int,
    "inputs": Mapping[str, Mapping[str, Any]],
    "hooks": Mapping[str, FunctionSource],
    "data": Mapping[str, StepData],
}
"""Types of the fields that each step has for itself."""
_FIX: Final = "start the pipeline again: what finished is in the cache"


def dump(plan: Plan) -> str:
    """Serialize a plan as JSON."""
    document = to_json(attrs.evolve(plan, steps=()))
    tables: dict[str, list[Any]] = {name: [] for name in _SHARED}
    indexes: dict[tuple[str, int], int] = {}
    references: dict[tuple[int, ...], dict[str, int]] = {}
    steps = []

    def index_of(name: str, value: Any) -> int:
        index = indexes.get((name, id(value)))
        if index is None:
            table = tables.setdefault(name, [])
            index = indexes[name, id(value)] = len(table)
            table.append(to_json(value))
        return index

    for step in plan.steps:
        row: dict[str, Any] = dict(zip(_PLAIN, _read_plain(step)))
        row["inputs"] = step.inputs
        shared = _read_shared(step)
        ids = tuple(map(id, shared))
        if ids not in references:
            named = zip((*_SHARED, *_RARELY_SHARED), shared)
            references[ids] = {name: index_of(name, value) for name, value in named if value is not None}
        row |= references[ids]
        row |= {name: value for name, value in zip(_RARE, _read_rare(step)) if value}
        steps.append(row)
    document["steps"] = steps
    document["shared"] = tables
    return json.dumps(document, separators=(",", ":"), ensure_ascii=False, default=to_json)


def load(text: str) -> Plan:
    """Parse a plan; unknown fields of a newer Stoker are ignored.

    A newer version of the format is a `StoreError`, as is a text that is no plan.
    """
    try:
        return _load(parse_object(text))
    except SettingsError as error:
        raise StoreError(f"the plan cannot be read: {error.message}", fix=_FIX) from None
    except StoreError:
        raise
    except Exception as error:  # parts of other types than a plan has
        raise StoreError(f"the plan cannot be read: {type(error).__name__}: {error}", fix=_FIX) from error


def _load(document: dict[str, Any]) -> Plan:
    if from_json(int, document.get("version", 0), strict=False) > PLAN_VERSION:
        raise StoreError(
            f"a newer Stoker wrote the plan (plan version {document['version']}; this one knows {PLAN_VERSION})",
            fix="upgrade Stoker here, or start the pipeline again",
        )
    shared = document.pop("shared")
    tables = {name: [_parse_shared(name, item) for item in shared[name]] for name in _SHARED}
    for name in _RARELY_SHARED:
        tables[name] = [_parse_shared(name, item) for item in shared.get(name, ())]
    steps = document.pop("steps")
    plan = from_json(Plan, {**document, "steps": []}, strict=False)
    return attrs.evolve(plan, steps=tuple(_parse_step(own, tables) for own in steps))


def _parse_shared(name: str, item: Any) -> Any:
    if name == "outputs":
        return tuple(from_json(StepOutput, output, strict=False) for output in item)
    kind = resolve(_RARELY_SHARED[name]) if name in _RARELY_SHARED else _SHARED[name]
    return from_json(kind, item, strict=False)


def _parse_step(row: Mapping[str, Any], tables: Mapping[str, Sequence[Any]]) -> StepPlan:
    fields: dict[str, Any] = {}
    for name, value in row.items():
        if name in tables:
            fields[name] = tables[name][from_json(int, value, strict=False)]
        elif name in _OWN:
            fields[name] = from_json(_OWN[name], value, strict=False, where=name)
    for tree in fields["inputs"].values():
        _check_tree(tree)
    return StepPlan(**fields)


def _check_tree(tree: Any) -> None:
    """Refuse an input of another form than `StepPlan.inputs` has."""
    if "value" in tree:
        from_wire(tree["value"])
    elif "list" in tree:
        for part in tree["list"]:
            _check_tree(part)
    elif "dict" in tree:
        for part in tree["dict"].values():
            _check_tree(part)
    else:
        from_json(str, tree["step"], strict=False)
        from_json(str, tree["output"], strict=False)


_UNITS: Final[Mapping[str, Callable[[Any], str]]] = {
    **dict.fromkeys(("memory", "gpu_memory", "shared_memory", "disk"), size_text),
    **dict.fromkeys(("timeout", "cache_expires", "delay", "max_delay", "checkpoint_every"), duration_text),
}
"""Settings in bytes or seconds → their formatter."""
_FIELDS: Final = frozenset(field.name for field in attrs.fields(StepSettings))


def given_settings(step: StepPlan) -> list[tuple[str, str, str]]:
    """(setting, value, origin) of each given setting, by name; what looks like a secret is masked.

    Settings that only a whole pipeline has are left out: the step does not know their values.
    """
    values: Mapping[str, Any] = to_json(step.settings)
    rows = [(path, _shown_setting(values, path), origin) for path, origin in sorted(step.origins.items())]
    return [row for row in rows if row[1] != "null" or row[0].partition(".")[0] in _FIELDS]


def _shown_setting(values: Mapping[str, Any], path: str) -> str:
    value = _setting(values, path)
    return MASK if looks_secret(path.rpartition(".")[2], value) else _value_text(path, value)


def _setting(values: Mapping[str, Any], path: str) -> Any:
    """The value of a dotted field; settings of a stack's component are under "backend"."""
    value: Any = values
    head, _, rest = path.partition(".")
    keys = ["backend", head] if rest and head in values.get("backend", {}) else [head]
    for key in keys:
        value = value.get(key) if isinstance(value, Mapping) else None
    while rest and isinstance(value, Mapping):
        if rest in value:
            return value[rest]
        head, _, rest = rest.partition(".")
        value = value.get(head)
    return value


def _value_text(path: str, value: Any) -> str:
    format_value = _UNITS.get(path.rpartition(".")[2])
    if format_value is not None and isinstance(value, (int, float)):
        return format_value(value)
    return json.dumps(value, ensure_ascii=False)
