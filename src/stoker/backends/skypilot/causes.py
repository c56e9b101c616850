"""Why SkyPilot did not launch something, or what became of it: its words, and ours."""

from __future__ import annotations

import re
from typing import Any, Final, Mapping

from stoker.core.status import NODE_LOST, PREEMPTED, QUOTA, REFUSED, SETUP_FAILED

GONE: Final = "gone"
UP: Final = "up"
WAITING: Final = "waiting"

_LAUNCH: Final[tuple[tuple[re.Pattern[str], str, str], ...]] = (
    # SkyPilot's source: sky/exceptions.py, sky/optimizer.py and sky/backends/cloud_vm_ray_backend.py of 0.14.
    (
        re.compile(r"quota|LimitExceeded|VcpuLimit", re.IGNORECASE),
        QUOTA,
        "ask the cloud for more quota, or name other places: infra, any_of",
    ),
    (
        re.compile(
            r"Failed to provision all possible launchable resources|Failed to acquire resources|"
            r"InsufficientInstanceCapacity|ZONE_RESOURCE_POOL_EXHAUSTED|insufficient capacity|out of capacity",
            re.IGNORECASE,
        ),
        QUOTA,
        "no cloud has such machines just now: retry_until_up=True waits for them, any_of names more places",
    ),
    (
        re.compile(
            r"cloud access is (?:not )?set up|NoCloudAccessError|No enabled cloud|no infra is enabled", re.IGNORECASE
        ),
        REFUSED,
        "`sky check` says what a cloud needs",
    ),
    (
        re.compile(
            r"Catalog (?:and|does)|No (?:resource|launchable resource) (?:satisfying|found)|ResourcesUnavailable|"
            r"ResourcesMismatch|does not contain any instances",
            re.IGNORECASE,
        ),
        REFUSED,
        "no enabled cloud has such a machine: `sky gpus list` shows what there is",
    ),
    (re.compile(r"setup (?:commands? )?failed|FAILED_SETUP|Failed to setup", re.IGNORECASE), SETUP_FAILED, ""),
)
"""What a failed launch prints → its cause, and what to do."""

_CLUSTERS: Final[Mapping[str, str]] = {
    "UP": UP,
    "INIT": WAITING,
    "PENDING": WAITING,
    "AUTOSTOPPING": GONE,
    "STOPPED": GONE,
}
"""SkyPilot's states of a cluster (sky/utils/status_lib.py) → ours; one that is not among them says nothing."""
_MANAGED: Final[Mapping[str, tuple[str, str]]] = {
    "PENDING": (WAITING, "waits for SkyPilot's jobs controller"),
    "SUBMITTED": (WAITING, "its machine is being started"),
    "STARTING": (WAITING, "its machine is being started"),
    "RUNNING": (UP, ""),
    "WINDING_DOWN": (UP, ""),
    "RECOVERING": (WAITING, "its machine was taken away: SkyPilot starts another one"),
    "CANCELLING": (GONE, PREEMPTED),
    "CANCELLED": (GONE, PREEMPTED),
    "SUCCEEDED": (GONE, NODE_LOST),
    "FAILED": (GONE, NODE_LOST),
    "FAILED_SETUP": (GONE, SETUP_FAILED),
    "FAILED_PRECHECKS": (GONE, REFUSED),
    "FAILED_NO_RESOURCE": (GONE, QUOTA),
    "FAILED_CONTROLLER": (GONE, NODE_LOST),
}
"""SkyPilot's states of a managed job (sky/jobs/state.py) → ours, with the words or the cause."""


def cause_of_launch(text: str) -> tuple[str, str]:
    """The cause of a failed launch and what to do, from what SkyPilot printed."""
    for pattern, cause, fix in _LAUNCH:
        if pattern.search(text):
            return cause, fix
    return REFUSED, ""


def state_of_cluster(record: Mapping[str, Any] | None) -> tuple[str, str, str]:
    """State, cause and words of a cluster, from `sky status`; None: SkyPilot does not know it."""
    if record is None:
        return GONE, NODE_LOST, "SkyPilot has no such cluster any more"
    status = str(record.get("status") or "nothing")
    state = GONE if record.get("init_kind") == "unhealthy" else _CLUSTERS.get(status)
    why = str(record.get("init_status_reason") or record.get("last_event") or "")
    if state is None:
        return WAITING, "", f"SkyPilot calls its cluster {status}" + (f": {why}" if why else "")
    if state != GONE:
        return state, "", "" if state == UP else why or "SkyPilot starts its machine"
    cause = PREEMPTED if "[Spot]" in str(record.get("resources_str_full") or record.get("resources_str")) else NODE_LOST
    return GONE, cause, f"its cluster is {status}" + (f": {why}" if why else "")


def state_of_managed(record: Mapping[str, Any] | None) -> tuple[str, str, str]:
    """The same for a managed job, from `sky jobs queue`."""
    if record is None:
        return GONE, NODE_LOST, "SkyPilot has no such managed job"
    status = str(record.get("status") or "nothing")
    state, word = _MANAGED.get(status, (WAITING, f"SkyPilot calls it {status}"))
    why = str(record.get("failure_reason") or record.get("details") or "")
    if state == GONE:
        return GONE, word, f"its managed job is {status}" + (f": {why}" if why else "")
    return state, "", (word + (f": {why}" if why and state == WAITING else "")) if word else ""
