"""The fields that the API knows of each kind, and their types, to find what it would refuse.

`fields.json` has, for each type of the published OpenAPI schema that the kinds below are made of, its fields and what
each holds: "string", "integer", "boolean", "number", "quantity", "any", the name of a type, or one of these after "[]"
(a list) or "{}" (a mapping). A field that must be there ends in "!". The file is made from a folder with
`_definitions.json` of the package kubernetes-validate:

    python -m tests.kubernetes.server.schemas /path/to/v1.36.0-local
"""

from __future__ import annotations

import functools
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from attrs import frozen
from tests.kubernetes.server.extensions import FIELDS
from tests.kubernetes.server.failures import Cause
from tests.kubernetes.server.objects import Object

KINDS = {
    "core.v1": (
        "Pod", "Node", "Event", "ConfigMap", "Secret", "Service", "ServiceAccount", "PersistentVolumeClaim",
        "ResourceQuota", "Namespace",
    ),
    "batch.v1": ("Job", "CronJob"),
    "rbac.v1": ("Role", "RoleBinding", "ClusterRole", "ClusterRoleBinding"),
    "scheduling.v1": ("PriorityClass",),
    "storage.v1": ("StorageClass",),
    "networking.v1": ("NetworkPolicy",),
    "resource.v1": ("ResourceClaimTemplate",),
}  # fmt: skip
FILE = Path(__file__).parent / "fields.json"
_PYTHON = {
    "string": (str,),
    "integer": (int,),
    "boolean": (bool,),
    "number": (int, float),
    "quantity": (str, int, float),
    "any": (object,),
}


@frozen
class Flaw:
    """Something in a body that does not fit its kind."""

    path: str
    """As in "spec.template.spec.containers[0].comand"."""
    fault: str
    """"unknown", "missing" or "type"."""
    owner: str = ""
    """The type that the field belongs to."""
    wanted: str = ""
    """What the field holds."""
    value: Any = None


def flaws(kind: str, body: Object) -> list[Flaw]:
    """All that does not fit a kind; nothing for kinds that `fields.json` does not have."""
    return list(_flaws(body, kind, "", "")) if kind in _fields() else []


def missing(kind: str, body: Object) -> list[Cause]:
    """The fields that have to be there and are not."""
    return [Cause.required(flaw.path) for flaw in flaws(kind, body) if flaw.fault == "missing"]


@functools.cache
def _fields() -> dict[str, dict[str, str]]:
    fields: dict[str, dict[str, str]] = json.loads(FILE.read_text())
    return fields | FIELDS


def _flaws(value: Any, holds: str, path: str, owner: str) -> Iterator[Flaw]:
    if value is None or holds == "any":
        return
    if holds.startswith("[]"):
        if not isinstance(value, list):
            yield Flaw(path, "type", owner, holds, value)
            return
        for index, item in enumerate(value):
            yield from _flaws(item, holds[2:], f"{path}[{index}]", owner)
    elif holds.startswith("{}"):
        if not isinstance(value, dict):
            yield Flaw(path, "type", owner, holds, value)
            return
        for name, item in value.items():
            yield from _flaws(item, holds[2:], f"{path}[{name}]", owner)
    elif holds in _PYTHON:
        if not isinstance(value, _PYTHON[holds]) or (isinstance(value, bool) and holds != "boolean"):
            yield Flaw(path, "type", owner, holds, value)
    elif not isinstance(value, dict):
        yield Flaw(path, "type", owner, holds, value)
    else:
        yield from _flaws_of_fields(value, holds, path)


def _flaws_of_fields(value: Object, type: str, path: str) -> Iterator[Flaw]:
    fields = {name.rstrip("!"): (holds, name.endswith("!")) for name, holds in _fields()[type].items()}
    for name, item in value.items():
        place = f"{path}.{name}" if path else name
        if name not in fields:
            yield Flaw(place, "unknown", type)
        else:
            yield from _flaws(item, fields[name][0], place, type)
    for name, (holds, needed) in fields.items():
        # What is missing of greater things, the API's own checks say.
        if needed and holds in _PYTHON and value.get(name) is None:
            yield Flaw(f"{path}.{name}" if path else name, "missing", type)


def collected(definitions: Object) -> dict[str, dict[str, str]]:
    """The content of `fields.json` from the definitions of an OpenAPI schema."""
    fields: dict[str, dict[str, str]] = {}

    def visit(name: str) -> str:
        short, definition = name.rpartition(".")[2], definitions[name]
        if short in ("Quantity", "IntOrString"):
            return "quantity"
        if short in ("Time", "MicroTime"):
            return "string"
        if "properties" not in definition:
            return "any"
        if short not in fields:
            fields[short] = {}
            for field, schema in definition["properties"].items():
                needed = "!" if field in definition.get("required", []) else ""
                if field != "managedFields":
                    fields[short][field + needed] = held(schema)
        return short

    def held(schema: Object) -> str:
        if "$ref" in schema:
            return visit(schema["$ref"].rpartition("/")[2])
        types = schema.get("type", [])
        kinds = [each for each in ([types] if isinstance(types, str) else types) if each != "null"]
        if kinds == ["array"]:
            return "[]" + held(schema["items"])
        if kinds == ["object"]:
            return "{}" + held(schema["additionalProperties"]) if "additionalProperties" in schema else "any"
        return str(kinds[0]) if len(kinds) == 1 else "any"

    for group, kinds in KINDS.items():
        for kind in kinds:
            visit(f"io.k8s.api.{group}.{kind}")
    return fields


def main(folder: Path) -> None:
    """Write `fields.json`, a line for each type."""
    document = json.loads((folder / "_definitions.json").read_text())
    fields = collected(document.get("$defs") or document["definitions"])
    lines = [f" {json.dumps(name)}: {json.dumps(fields[name], separators=(',', ':'))}" for name in sorted(fields)]
    FILE.write_text("{\n" + ",\n".join(lines) + "\n}\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
