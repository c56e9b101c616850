"""What an update may not change: the fields that are fixed once an object is there; and merge patches
(https://www.rfc-editor.org/rfc/rfc7396), which is what is sent here."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from tests.kubernetes.server.failures import Cause, Refused, bad_request, invalid
from tests.kubernetes.server.objects import CONFIG_MAPS, JOBS, SECRETS, Object, Resource, copied

IMMUTABLE = "field is immutable"


def check_update(resource: Resource, before: Object, after: Object) -> None:
    """Refuse a change of what cannot be changed.

    Args:
        resource: The kind.
        before: The object as it is stored.
        after: The object as it is to be, with all that the server fills in.

    Raises:
        Refused: 422.
    """
    causes = list(_job_causes(before, after)) if resource is JOBS else []
    if resource in (CONFIG_MAPS, SECRETS):
        causes = list(_data_causes(before, after))
    if causes:
        raise invalid(resource.kind_name, before["metadata"]["name"], causes, group=resource.group)


def _job_causes(before: Object, after: Object) -> Iterator[Cause]:
    old, new = before["spec"], after["spec"]
    fixed = [
        "selector", "manualSelector", "completionMode", "podFailurePolicy", "backoffLimitPerIndex", "managedBy",
        "successPolicy",
    ]  # fmt: skip
    if not old.get("suspend") or before.get("status", {}).get("startTime"):
        fixed.insert(0, "template")
    if old.get("completionMode") != "Indexed":
        fixed.append("completions")
    for name in fixed:
        if old.get(name) != new.get(name):
            yield Cause.invalid(f"spec.{name}", _printed(new.get(name)), IMMUTABLE)
    if "completions" not in fixed and old.get("completions") != new.get("completions"):
        if new.get("completions") is None:
            yield Cause.required("spec.completions", "when completion mode is Indexed")
        elif new["completions"] != new.get("parallelism"):
            why = "can only be modified in tandem with spec.parallelism"
            yield Cause.invalid("spec.completions", str(new["completions"]), why)


def _data_causes(before: Object, after: Object) -> Iterator[Cause]:
    if not before.get("immutable"):
        return
    why = "field is immutable when `immutable` is set"
    if not after.get("immutable"):
        yield Cause.forbidden("immutable", why)
    for field in ("data", "binaryData"):
        if (before.get(field) or {}) != (after.get(field) or {}):
            yield Cause.forbidden(field, why)


def _printed(value: object) -> str:
    return json.dumps(value, separators=(",", ":"))


MERGE = "application/merge-patch+json"


def patched(object: Object, content_type: str, text: str) -> Object:
    """The object after a patch.

    Raises:
        Refused: It is no merge patch.
    """
    if content_type != MERGE:
        raise Refused(415, "415: Unsupported Media Type", "UnsupportedMediaType", {})
    patch = json.loads(text)
    if not isinstance(patch, dict):
        raise bad_request("error decoding patch: json: cannot unmarshal array into Go value of type map")
    merged: Object = _merged(object, patch)
    return merged


def _merged(old: Any, patch: Any) -> Any:
    if not isinstance(patch, dict):
        return copied(patch)
    merged = dict(old) if isinstance(old, dict) else {}
    for name, value in patch.items():
        if value is None:
            merged.pop(name, None)
        else:
            merged[name] = _merged(merged.get(name), value)
    return merged
