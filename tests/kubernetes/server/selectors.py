"""Label and field selectors of lists, watches, and node affinity."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

from tests.kubernetes.server.failures import Refused, bad_request
from tests.kubernetes.server.objects import JOBS, PODS, Object, Resource

Test = Callable[[Object], bool]


def selection(labels: str, fields: str) -> Test:
    """Whether an object is meant by `labelSelector` and `fieldSelector`, which may be empty."""
    tests = [_label_test(part) for part in re.split(r",(?![^(]*\))", labels) if part.strip()]
    tests += [_field_test(part) for part in fields.split(",") if part.strip()]
    return lambda candidate: all(test(candidate) for test in tests)


def _label_test(part: str) -> Test:
    part = part.strip()
    match = re.fullmatch(r"(!?)\s*([\w./-]+)(?:\s*(==|=|!=|\s+in|\s+notin)\s*(.*))?", part)
    if match is None:
        raise bad_request(f"unable to parse requirement: found '{part}', expected: identifier")
    absent, key, operator, rest = match[1], match[2], (match[3] or "").strip(), match[4] or ""
    values = [value.strip() for value in rest.strip().strip("()").split(",")]

    def test(object: Object) -> bool:
        labels: Mapping[str, str] = object["metadata"].get("labels") or {}
        if not operator:
            return (key not in labels) if absent else (key in labels)
        if operator in ("!=", "notin"):
            return labels.get(key) not in values
        return key in labels and labels[key] in values

    return test


def _field_test(part: str) -> Test:
    match = re.fullmatch(r"\s*([\w.]+)\s*(==|=|!=)\s*(.*?)\s*", part)
    if match is None:
        raise bad_request(f"invalid field selector: {part!r}")
    path, operator, wanted = match.groups()
    if not path.startswith(("metadata.", "spec.", "status.", "involvedObject.", "type", "reason", "source")):
        raise Refused(400, f'field label not supported: "{path}"', "BadRequest")

    def test(object: Object) -> bool:
        value: Any = object
        for step in path.split("."):
            value = value.get(step) if isinstance(value, dict) else None
        return (str(value if value is not None else "") == wanted) == (operator != "!=")

    return test


def expression_holds(expression: Object, labels: Mapping[str, str]) -> bool:
    """Whether labels fulfil one of a node selector's `matchExpressions`."""
    value, values = labels.get(expression["key"]), expression.get("values", [])
    match expression["operator"]:
        case "In":
            return value in values
        case "NotIn":
            return value not in values
        case "Exists":
            return value is not None
        case "DoesNotExist":
            return value is None
        case "Gt":
            return value is not None and int(value) > int(values[0])
        case "Lt":
            return value is not None and int(value) < int(values[0])
    raise bad_request(f"not a valid selector operator: {expression['operator']!r}")


_FIELDS = ("metadata.name", "metadata.namespace")
_MORE_FIELDS = {
    "pods": (
        "spec.nodeName", "spec.restartPolicy", "spec.schedulerName", "spec.serviceAccountName", "spec.hostNetwork",
        "status.phase", "status.podIP", "status.podIPs", "status.nominatedNodeName",
    ),
    "jobs": ("status.successful",),
    "events": (
        "involvedObject.kind", "involvedObject.namespace", "involvedObject.name", "involvedObject.uid",
        "involvedObject.apiVersion", "involvedObject.resourceVersion", "involvedObject.fieldPath", "reason",
        "reportingComponent", "source", "type",
    ),
    "nodes": ("spec.unschedulable",),
    "namespaces": ("status.phase",),
    "secrets": ("type",),
    "services": ("spec.clusterIP", "spec.type"),
}  # fmt: skip
"""Fields by which a kind can be selected beside its name, by its plural."""


def check_fields(resource: Resource, selector: str) -> None:
    """Refuse a field selector that the API does not know.

    Raises:
        Refused: 400.
    """
    for part in filter(str.strip, selector.split(",")):
        name = part.split("!=" if "!=" in part else "=")[0].strip()
        if name in _FIELDS or name in _MORE_FIELDS.get(resource.plural, ()):
            continue
        if resource in (PODS, JOBS) or resource.plural in _MORE_FIELDS:
            raise bad_request(f"field label not supported: {name}")
        known = " and ".join(f'"{each}"' for each in _FIELDS)
        raise bad_request(f'"{name}" is not a known field selector: only {known}')
