"""The settings of a step that somebody gave, as people read them: each with its value and the place that gave it."""

from __future__ import annotations

import json
from typing import Any, Callable, Final, Mapping

import attrs

from stoker.core.codec import to_json
from stoker.core.plan import StepPlan
from stoker.core.secret import MASK, looks_secret
from stoker.core.settings import StepSettings
from stoker.core.units import duration_text, size_text

_UNITS: Final[Mapping[str, Callable[[Any], str]]] = {
    **dict.fromkeys(("memory", "gpu_memory", "shared_memory", "disk"), size_text),
    **dict.fromkeys(("timeout", "cache_expires", "delay", "max_delay"), duration_text),
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
