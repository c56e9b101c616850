"""What is kept of the pods and Jobs that watches tell of, in little memory: a run has thousands of them. Pure.

A pod's spec has the step's program and all its variables, and is the same for each pod of a Job but for the node. What
nobody reads is left out, and equal specs are kept once.
"""

from __future__ import annotations

import json
from typing import Any, Callable, Final, Mapping, Sequence

Keep = Callable[[dict[str, Any], "Mapping[str, Any] | None"], dict[str, Any]]
"""From an object of the API, and how it was last kept, to what is kept of it."""

# What `causes`, `nodes`, `pending` and the platform read of a pod.
_METADATA: Final = (
    "name",
    "namespace",
    "uid",
    "resourceVersion",
    "creationTimestamp",
    "deletionTimestamp",
    "labels",
    "annotations",
    "ownerReferences",
)
_CONTAINER: Final = ("name", "image", "resources", "restartPolicy", "volumeMounts")
_STATUS: Final = ("phase", "reason", "message", "conditions", "containerStatuses", "initContainerStatuses")
_CONDITION: Final = ("type", "status", "reason", "message", "lastTransitionTime")
_CONTAINER_STATUS: Final = ("name", "state", "lastState", "restartCount", "image")
_UNREAD: Final = ("volumes", "ephemeralContainers")
_MOST: Final = 4096
"""Specs of which equal ones are found: those of a Job come together."""


class Specs:
    """The specs of pods, each kept once however many pods have it."""

    def __init__(self) -> None:
        self._by_text: dict[str, dict[str, Any]] = {}

    def pod(self, pod: dict[str, Any], before: Mapping[str, Any] | None) -> dict[str, Any]:
        """What is kept of a pod."""
        spec = {name: value for name, value in (pod.get("spec") or {}).items() if name not in _UNREAD}
        for name in ("containers", "initContainers"):
            if name in spec:
                spec[name] = _parts(spec[name], _CONTAINER)
        if before is None or before["spec"] != spec:
            if len(self._by_text) >= _MOST:
                self._by_text.clear()
            spec = self._by_text.setdefault(json.dumps(spec), spec)
        else:
            spec = before["spec"]
        status = _part(pod.get("status") or {}, _STATUS)
        for name, fields in (
            ("conditions", _CONDITION),
            ("containerStatuses", _CONTAINER_STATUS),
            ("initContainerStatuses", _CONTAINER_STATUS),
        ):
            if name in status:
                status[name] = _parts(status[name], fields)
        metadata = _part(pod["metadata"], _METADATA)
        if before is not None:
            for name in ("labels", "annotations", "ownerReferences"):
                if name in metadata and before["metadata"].get(name) == metadata[name]:
                    metadata[name] = before["metadata"][name]
        return {"metadata": metadata, "spec": spec, "status": status}


def kept_job(job: dict[str, Any], before: Mapping[str, Any] | None) -> dict[str, Any]:
    """What is kept of a Job: all but the template of its pods, which tell themselves what they are."""
    metadata = {name: value for name, value in job["metadata"].items() if name != "managedFields"}
    notes = metadata.get("annotations")
    if before is not None and notes and before["metadata"].get("annotations") == notes:
        metadata["annotations"] = before["metadata"]["annotations"]  # they name each element of a fan-out
    spec = {name: value for name, value in (job.get("spec") or {}).items() if name != "template"}
    return {**job, "metadata": metadata, "spec": spec}


def _part(whole: Mapping[str, Any], fields: Sequence[str]) -> dict[str, Any]:
    return {name: whole[name] for name in fields if name in whole}


def _parts(items: Sequence[Mapping[str, Any]] | None, fields: Sequence[str]) -> list[dict[str, Any]]:
    return [_part(one, fields) for one in items or ()]
