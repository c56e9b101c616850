"""The parameters of requests, and what the API server says of those that mean nothing.

https://github.com/kubernetes/apimachinery/tree/master/pkg/apis/meta (v1/validation, internalversion/validation)
"""

from __future__ import annotations

from multidict import MultiMapping
from tests.kubernetes.server.failures import Cause, Refused, bad_request, invalid
from tests.kubernetes.server.objects import JOBS, PODS, Object, Resource

READABLE = ("application/json", "application/yaml", "application/octet-stream")
"""Types of a body that are read; one without a type counts as JSON."""
PATCHES = (
    "application/json-patch+json",
    "application/merge-patch+json",
    "application/strategic-merge-patch+json",
    "application/apply-patch+yaml",
)
_APPLY = "application/apply-patch+yaml"
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


def check_write(verb: str, query: MultiMapping[str], content_type: str = "") -> None:
    """Refuse the parameters of a request that creates, updates or patches something.

    Raises:
        Refused: 422, in the name of the kind of options.
    """
    causes = _dry_run_causes(query)
    validation = query.get("fieldValidation", "")
    if validation not in ("", "Ignore", "Warn", "Strict"):
        causes.append(Cause.unsupported("fieldValidation", validation, ["Ignore", "Strict", "Warn"]))
    if len(query.get("fieldManager", "")) > 128:
        causes.append(Cause.too_long("fieldManager", 128))
    if verb == "Patch":
        if content_type == _APPLY and not query.get("fieldManager"):
            causes.append(Cause.required("fieldManager", "is required for apply patch"))
        if content_type != _APPLY and "force" in query:
            causes.append(Cause.forbidden("force", "may not be specified for non-apply patch"))
    if causes:
        raise invalid(f"{verb}Options.meta.k8s.io", "", causes, group="meta.k8s.io")


def check_delete(options: Object, query: MultiMapping[str]) -> None:
    """Refuse the options of a deletion.

    Raises:
        Refused: 422.
    """
    causes = _dry_run_causes(query)
    policy = options.get("propagationPolicy")
    if policy is not None and policy not in ("Foreground", "Background", "Orphan"):
        supported = ["Foreground", "Background", "Orphan", "nil"]
        causes.append(Cause.unsupported("propagationPolicy", str(policy), supported))
    if policy is not None and "orphanDependents" in options:
        why = "orphanDependents and deletionPropagation cannot be both set"
        causes.append(Cause.invalid("propagationPolicy", f'"{policy}"', why))
    if causes:
        raise invalid("DeleteOptions.meta.k8s.io", "", causes, group="meta.k8s.io")


def check_list(resource: Resource, query: MultiMapping[str], *, watch: bool) -> None:
    """Refuse the parameters of a list or a watch.

    Raises:
        Refused: 400 for what is no number or no known field, 422 for what does not go together.
    """
    for name in ("limit", "timeoutSeconds"):
        text = query.get(name, "0")
        if not text.lstrip("+-").isdecimal():
            raise bad_request(f'strconv.ParseInt: parsing "{text}": invalid syntax')
    _check_fields(resource, query.get("fieldSelector", ""))
    version, match = query.get("resourceVersion", ""), query.get("resourceVersionMatch", "")
    initial = query.get("sendInitialEvents") in ("true", "1")
    causes = []
    if "sendInitialEvents" in query and not watch:
        causes.append(Cause.forbidden("sendInitialEvents", "sendInitialEvents is forbidden for list"))
    elif initial and match != "NotOlderThan":
        why = "sendInitialEvents requires setting resourceVersionMatch to NotOlderThan"
        causes.append(Cause.forbidden("resourceVersionMatch", why))
    elif match and watch and "sendInitialEvents" not in query:
        causes.append(Cause.forbidden("resourceVersionMatch", "resourceVersionMatch is forbidden for watch"))
    elif match and not watch:
        if not version:
            why = "resourceVersionMatch is forbidden unless resourceVersion is provided"
            causes.append(Cause.forbidden("resourceVersionMatch", why))
        if query.get("continue"):
            why = "resourceVersionMatch is forbidden when continue is provided"
            causes.append(Cause.forbidden("resourceVersionMatch", why))
        if match not in ("Exact", "NotOlderThan"):
            causes.append(Cause.unsupported("resourceVersionMatch", match, ["Exact", "NotOlderThan", ""]))
        if match == "Exact" and version == "0":
            why = 'resourceVersionMatch "Exact" is forbidden for resourceVersion "0"'
            causes.append(Cause.forbidden("resourceVersionMatch", why))
    if causes:
        raise invalid("ListOptions.meta.k8s.io", "", causes, group="meta.k8s.io")
    if query.get("continue") and version not in ("", "0"):
        raise bad_request("specifying resource version is not allowed when using continue")


def _check_fields(resource: Resource, selector: str) -> None:
    for part in filter(str.strip, selector.split(",")):
        name = part.split("!=" if "!=" in part else "=")[0].strip()
        if name in _FIELDS or name in _MORE_FIELDS.get(resource.plural, ()):
            continue
        if resource in (PODS, JOBS) or resource.plural in _MORE_FIELDS:
            raise bad_request(f"field label not supported: {name}")
        known = " and ".join(f'"{each}"' for each in _FIELDS)
        raise bad_request(f'"{name}" is not a known field selector: only {known}')


def _dry_run_causes(query: MultiMapping[str]) -> list[Cause]:
    words = query.getall("dryRun", [])
    listed = "[" + ", ".join(f'"{word}"' for word in words) + "]"
    if all(word == "All" for word in words):
        return []
    return [Cause("dryRun", "FieldValueNotSupported", f'Unsupported value: {listed}: supported values: "All"')]


def unreadable_type(accepted: tuple[str, ...]) -> Refused:
    """415 for a body of a type that is not read."""
    media = ", ".join(accepted)
    text = f"the body of the request was in an unknown format - accepted media types include: {media}"
    return Refused(415, text, "UnsupportedMediaType")
