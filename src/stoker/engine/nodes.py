"""What the machine keeps of each task."""

from __future__ import annotations

from stoker.core.events import Task


class Node:
    """A task and where it stands: pending → preparing → ready → running (→ waiting → ready …) → a final status."""

    __slots__ = (
        "attempt",
        "cancelled",
        "causes",
        "children",
        "expanded",
        "failures",
        "losses",
        "status",
        "task",
        "unmet",
    )

    def __init__(self, task: Task) -> None:
        self.task = task
        self.status = "pending"
        self.unmet = 0
        self.attempt = task.tried
        self.failures = 0
        self.losses = 0
        self.cancelled = ""
        self.expanded = False
        self.children = 0
        self.causes: dict[str, str] = {}
