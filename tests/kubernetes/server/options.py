"""The fields by which kinds can be selected: https://github.com/kubernetes/kubernetes, `pkg/apis/*/*/conversion.go`."""

from __future__ import annotations

from tests.kubernetes.server.failures import bad_request
from tests.kubernetes.server.objects import JOBS, PODS, Resource

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
