"""What an update may not change: an object's identity, and the fields that are fixed once it is there."""

from __future__ import annotations

import json
from collections.abc import Iterator

from tests.kubernetes.server.failures import Cause, Refused, invalid
from tests.kubernetes.server.objects import (
    CLAIMS,
    CONFIG_MAPS,
    JOBS,
    PODS,
    PRIORITY_CLASSES,
    ROLE_BINDINGS,
    SECRETS,
    SERVICES,
    Object,
    Resource,
)

IMMUTABLE = "field is immutable"
_POD = (
    "pod updates may not change fields other than `spec.containers[*].image`,`spec.initContainers[*].image`,"
    "`spec.activeDeadlineSeconds`,`spec.tolerations` (only additions to existing tolerations),"
    "`spec.terminationGracePeriodSeconds` (allow it to be set to 1 if it was previously negative)"
)
_CLAIM = "spec is immutable after creation except resources.requests and volumeAttributesClassName for bound claims"


def check_update(resource: Resource, before: Object, after: Object) -> None:
    """Refuse a change of what cannot be changed.

    Args:
        resource: The kind.
        before: The object as it is stored.
        after: The object as it is to be, with all that the server fills in.

    Raises:
        Refused: 422.
    """
    causes = list(_finalizer_causes(before, after))
    if resource is PODS:
        causes += _pod_causes(before["spec"], after["spec"])
    elif resource is JOBS:
        causes += _job_causes(before, after)
    elif resource in (CONFIG_MAPS, SECRETS):
        causes += _data_causes(before, after)
        if resource is SECRETS and before.get("type") != after.get("type"):
            causes.append(Cause.invalid("type", f'"{after.get("type", "")}"', IMMUTABLE))
    elif resource is PRIORITY_CLASSES and before.get("value") != after.get("value"):
        causes.append(Cause.forbidden("value", "may not be changed in an update."))
    elif resource is ROLE_BINDINGS and before.get("roleRef") != after.get("roleRef"):
        causes.append(Cause.invalid("roleRef", _printed(after.get("roleRef")), "cannot change roleRef"))
    elif resource is SERVICES:
        old, new = before["spec"].get("clusterIP", ""), after["spec"].get("clusterIP", "")
        if old != new:
            causes.append(Cause.invalid("spec.clusterIPs[0]", f'["{new}"]', "may not change once set"))
    elif resource is CLAIMS and _without(before["spec"], "resources") != _without(after["spec"], "resources"):
        causes.append(Cause.forbidden("spec", _CLAIM))
    if causes:
        raise invalid(resource.kind_name, before["metadata"]["name"], causes, group=resource.group)


def check_identity(resource: Resource, before: Object, metadata: Object, *, patch: bool) -> None:
    """Refuse an update of another object than the one that is there.

    Raises:
        Refused: 409 or 422 for another uid.
    """
    name, uid = before["metadata"]["name"], before["metadata"]["uid"]
    wanted = metadata.get("uid") or uid
    if wanted == uid:
        return
    if patch:
        causes = [Cause.invalid("metadata.uid", f'"{wanted}"', IMMUTABLE)]
        raise invalid(resource.kind_name, name, causes, group=resource.group)
    why = f"Precondition failed: UID in precondition: {wanted}, UID in object meta: {uid}"
    details: Object = {"name": name, **({"group": resource.group} if resource.group else {}), "kind": resource.plural}
    text = f'Operation cannot be fulfilled on {resource.name} "{name}": {why}'
    raise Refused(409, text, "Conflict", details)


def _finalizer_causes(before: Object, after: Object) -> Iterator[Cause]:
    if not before["metadata"].get("deletionTimestamp"):
        return
    old = before["metadata"].get("finalizers") or []
    added = [each for each in after["metadata"].get("finalizers") or [] if each not in old]
    if added:
        listed = ", ".join(f'"{each}"' for each in added)
        why = (
            f"no new finalizers can be added if the object is being deleted, found new finalizers []string{{{listed}}}"
        )
        yield Cause.forbidden("metadata.finalizers", why)


def _pod_causes(before: Object, after: Object) -> Iterator[Cause]:
    old, new = before.get("activeDeadlineSeconds"), after.get("activeDeadlineSeconds")
    path = "spec.activeDeadlineSeconds"
    if old is not None and new is None:
        yield Cause.invalid(path, "null", "must not update from a positive integer to nil value")
    elif old is not None and new > old:
        yield Cause.invalid(path, str(new), "must be less than or equal to previous value")
    gates = [each["name"] for each in before.get("schedulingGates") or []]
    for each in after.get("schedulingGates") or []:
        if each["name"] not in gates:
            why = f"only deletion is allowed, but found new scheduling gate '{each['name']}'"
            yield Cause.forbidden("spec.schedulingGates", why)
    kept = all(each in (after.get("tolerations") or []) for each in before.get("tolerations") or [])
    fixed = ["activeDeadlineSeconds", "tolerations", "schedulingGates"]
    if gates:
        # Who lifts the gates may say where the pod is to run.
        fixed += ["nodeSelector", "affinity"]
    if not kept or _without_images(_without(before, *fixed)) != _without_images(_without(after, *fixed)):
        yield Cause.forbidden("spec", _POD)


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


def _without(value: Object, *names: str) -> Object:
    return {name: each for name, each in value.items() if name not in names}


def _without_images(spec: Object) -> Object:
    lists = {
        name: [_without(each, "image") for each in spec[name]]
        for name in ("containers", "initContainers")
        if name in spec
    }
    return spec | lists


def _printed(value: object) -> str:
    return json.dumps(value, separators=(",", ":"))
