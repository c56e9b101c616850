"""The three kinds of patches, and server-side apply as far as one owner of all fields goes."""

from __future__ import annotations

import json
from typing import Any

import yaml
from tests.kubernetes.server.failures import Refused, bad_request
from tests.kubernetes.server.objects import Object, copied
from tests.kubernetes.server.options import PATCHES

_KEYS = {
    "containers": "name",
    "initContainers": "name",
    "volumes": "name",
    "env": "name",
    "volumeMounts": "mountPath",
    "conditions": "type",
    "ownerReferences": "uid",
    "ports": "containerPort",
    "imagePullSecrets": "name",
}
"""The field that identifies an item of a list in a strategic merge patch."""


def patched(object: Object, content_type: str, text: str, *, strategic: bool = True) -> Object:
    """The object after a patch.

    Args:
        object: The object as it is.
        content_type: Says which kind of patch it is.
        text: The patch.
        strategic: Whether the kind knows strategic merge patches, which those that operators add do not.

    Raises:
        Refused: The kind of patch is not known, or it does not fit.
    """
    if content_type not in PATCHES or (content_type.startswith("application/strategic") and not strategic):
        raise Refused(415, "415: Unsupported Media Type", "UnsupportedMediaType", {})
    try:
        patch = yaml.safe_load(text) if content_type.endswith("yaml") else json.loads(text)
    except (ValueError, yaml.YAMLError) as error:
        raise bad_request(f"error decoding patch: {error}") from None
    if content_type == "application/json-patch+json":
        if not isinstance(patch, list) or not all(isinstance(each, dict) and "op" in each for each in patch):
            raise bad_request(
                "error decoding patch: json: cannot unmarshal object into Go value of type jsonpatch.Patch"
            )
        return _json_patched(object, patch)
    if not isinstance(patch, dict):
        raise bad_request(
            "error decoding patch: json: cannot unmarshal array into Go value of type map[string]interface {}"
        )
    return _applied(object, patch, {} if content_type == "application/merge-patch+json" else _KEYS)


def _applied(object: Object, patch: Object, keys: dict[str, str]) -> Object:
    merged: Object = _merged(object, patch, keys)
    return merged


def _merged(old: Any, patch: Any, keys: dict[str, str]) -> Any:
    if not isinstance(patch, dict):
        return copied(patch)
    merged = dict(old) if isinstance(old, dict) else {}
    for name, value in patch.items():
        if name.startswith("$setElementOrder/"):
            continue
        if name.startswith("$deleteFromPrimitiveList/"):
            field = name.partition("/")[2]
            merged[field] = [each for each in merged.get(field, []) if each not in value]
        elif value is None:
            merged.pop(name, None)
        elif isinstance(value, list) and name in keys and isinstance(merged.get(name), list):
            merged[name] = _merged_list(merged[name], value, keys[name], keys)
        elif isinstance(value, list) and name == "finalizers" and keys:
            merged[name] = list(dict.fromkeys([*merged.get(name, []), *value]))
        else:
            merged[name] = _merged(merged.get(name), value, keys)
    return merged


def _merged_list(old: list[Any], patch: list[Any], key: str, keys: dict[str, str]) -> list[Any]:
    merged = {item.get(key): item for item in old}
    for item in patch:
        if item.get("$patch") == "delete":
            merged.pop(item.get(key), None)
        else:
            merged[item.get(key)] = _merged(merged.get(item.get(key)), item, keys)
    return list(merged.values())


def _json_patched(object: Object, operations: list[Object]) -> Object:
    document: Any = copied(object)
    for operation in operations:
        steps = [step.replace("~1", "/").replace("~0", "~") for step in operation["path"].split("/")[1:]]
        try:
            holder = document
            for step in steps[:-1]:
                holder = holder[int(step)] if isinstance(holder, list) else holder[step]
            _operate(holder, steps[-1], operation)
        except (KeyError, IndexError, ValueError) as error:
            message = f"the server rejected our request due to an error in our request: {error}"
            raise Refused(422, message, "Invalid", {}) from None
    return dict(document)


def _operate(holder: Any, step: str, operation: Object) -> None:
    match operation["op"], holder:
        case "add", list():
            holder.insert(len(holder) if step == "-" else int(step), operation["value"])
        case (("add" | "replace"), dict()):
            if operation["op"] == "replace" and step not in holder:
                raise KeyError(step)
            holder[step] = operation["value"]
        case "replace", list():
            holder[int(step)] = operation["value"]
        case "remove", list():
            del holder[int(step)]
        case "remove", dict():
            del holder[step]
        case "test", _:
            if (holder[int(step)] if isinstance(holder, list) else holder[step]) != operation["value"]:
                raise ValueError(f"testing value {step} failed")
        case _:
            raise bad_request(f"unexpected operation {operation['op']!r}")
