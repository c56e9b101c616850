"""How a command is run beside an attempt of a step: what a backend gives, and what is known of the attempt.

A backend says only which command of this machine runs a shell line in the place of the attempt. Finding the step's
process there, its environment, its stacks and its ports is the same everywhere (`worker.besidescript`).
"""

from __future__ import annotations

from typing import Any, Final, Mapping

import attrs

from stoker.core.values import frozen

NOT_HERE: Final = "STK345"
"""The platform gives no way to its jobs, or none from this machine."""


@frozen(kw_only=True)
class RunningAttempt:
    """An attempt of a step that runs."""

    run: str
    key: str
    attempt: int
    host: str
    """The machine of the run's driver."""
    placement: Mapping[str, Any] = attrs.field(factory=dict)
    """Where it is on a platform with a queue, by the names of `client.placements.Placement`."""
    devices: Mapping[str, str] = attrs.field(factory=dict)
    """The variables by which a process of this machine sees its devices."""
    environment: Mapping[str, str] = attrs.field(factory=dict)
    """The variables that the step's settings name, without secrets."""


@frozen(kw_only=True)
class Beside:
    """A place where commands run beside an attempt."""

    where: str
    """The place in words, such as "this machine"."""
    argv: tuple[str, ...] = ()
    """The command of this machine that runs there what is appended to it."""
    terminal: tuple[str, ...] = ()
    """The same for a command that gets a terminal."""
    environment: Mapping[str, str] = attrs.field(factory=dict)
    """Variables that the process was given when it was there already."""
