"""How a command is run beside an attempt of a step: what a backend gives, and what is known of the attempt.

A backend says only which command of this machine runs a shell line in the place of the attempt. Finding the step's
process there, its environment, its stacks and its ports is the same everywhere (`worker.besidescript`).
"""

from __future__ import annotations

import shlex
from typing import Any, Final, Mapping, Sequence

import attrs

from stoker.core.errors import UsageError
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
    identity: Mapping[str, Any] = attrs.field(factory=dict)
    """What its backend recorded of its job, as `Backend.end_recorded` takes it, and where the job runs."""
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
    inner: tuple[str, ...] | None = None
    """Where `argv` is a login to another machine: the command there, before what is appended, which both are one word
    of the login, for its shell to read."""
    inner_terminal: tuple[str, ...] = ()
    """The same for a command that gets a terminal."""
    environment: Mapping[str, str] = attrs.field(factory=dict)
    """Variables that the process was given when it was there already."""
    only_prints: str = ""
    """Why commands get no standard input and no terminal there, and what to do about it; empty where they get both."""

    def words(self, command: Sequence[str], *, terminal: bool) -> list[str]:
        """The command of this machine that runs a command there."""
        terminal = terminal and not self.only_prints
        outer, inner = (self.terminal, self.inner_terminal) if terminal else (self.argv, self.inner or ())
        return [*outer, *command] if self.inner is None else [*outer, shlex.join([*inner, *command])]


def no_way(attempt: RunningAttempt, why: str, *, fix: str) -> UsageError:
    """The refusal of a platform that gives no way to its jobs."""
    job = str(attempt.identity.get("job") or attempt.placement.get("job") or "")
    where = f" is {job}" if job else " runs there"
    return UsageError(f"step '{attempt.key}'{where}, which cannot be entered: {why} ({NOT_HERE})", fix=fix)
