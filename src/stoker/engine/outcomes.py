"""What follows from how tasks ended: a fan-out's status from its elements', and the wait before another attempt."""

from __future__ import annotations

import zlib
from typing import Final, Mapping

from stoker.core.events import Task
from stoker.core.status import StepStatus

_WORST_FIRST: Final[tuple[StepStatus, ...]] = ("failed", "cancelled", "skipped")


def outcome(causes: Mapping[str, str]) -> tuple[StepStatus, str]:
    """A fan-out's status and cause from those of its elements (status → first cause): the worst one."""
    for status in _WORST_FIRST:
        if status in causes:
            return status, causes[status]
    return ("cached" if set(causes) == {"cached"} else "succeeded"), ""


def pause(task: Task, failures: int) -> float:
    """Seconds before the next attempt. The jitter is drawn from the key, so that a replay waits the same time."""
    wait = min(task.delay * task.backoff ** (failures - 1), task.max_delay)
    spread = zlib.crc32(f"{task.key}:{failures}".encode()) / 0xFFFFFFFF * 2 - 1
    return float(max(0.0, wait * (1 + task.jitter * spread)))
