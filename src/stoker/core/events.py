"""What the engine's machine is told and what it asks for: plain values, so that any order of them can be tested.

Times are seconds on a clock of the runner's choice; the machine only compares and adds them.
"""

from __future__ import annotations

from typing import Literal

import attrs

from stoker.core.status import RunStatus, StepStatus


@attrs.frozen(kw_only=True, slots=True)
class Task:
    """What the machine must know of a step to place it in time.

    `requires` are keys that must end well first; `"k[]"` stands for "the fan-out k knows its elements". A `fanout` is
    expanded instead of submitted. `gang` nodes start together or not at all: each takes `cpus` and `memory`.
    `tried` attempts were made by earlier sessions of the run; they count for the attempt's number, not for the limit.
    After one of the causes in `climbs` only a changed request is tried again, or one whose `retry_on` names the cause.
    `devices` are the accelerators that it takes whole. `ahead`: the task may be handed to a busy worker to be next in
    its line.
    """

    key: str
    requires: tuple[str, ...] = ()
    parent: str = ""
    fanout: bool = False
    pool: str = ""
    cpus: float = 0.0
    memory: int = 0
    gang: int = 1
    devices: int = 0
    retries: int = 0
    retry_on: frozenset[str] = frozenset()
    climbs: frozenset[str] = frozenset()
    delay: float = 0.0
    backoff: float = 1.0
    max_delay: float = 3600.0
    jitter: float = 0.0
    timeout: float | None = None
    on_success: bool = False
    on_failure: bool = False
    tried: int = 0
    ahead: bool = False


# Events: what happened.


@attrs.frozen(kw_only=True, slots=True)
class Added:
    """The graph grew (the first event of a run adds the static graph)."""

    tasks: tuple[Task, ...]


@attrs.frozen(kw_only=True, slots=True)
class Closed:
    """Nobody will add anything any more of their own accord; a finishing step still may.

    `failed`: the body of a dynamic pipeline raised, so that what still runs is of no use.
    """

    failed: bool = False


@attrs.frozen(kw_only=True, slots=True)
class Forgiven:
    """The body of a dynamic pipeline was told of a step's failure and went on: it is no failure of the run."""

    key: str


@attrs.frozen(kw_only=True, slots=True)
class Paced:
    """How many `ahead` tasks of a pool may stand in line behind running ones, from how long they take."""

    pool: str
    ahead: int


@attrs.frozen(kw_only=True, slots=True)
class Prepared:
    """A task's inputs are there and its result is not in the cache. `escalated`: it asks for something else by now."""

    key: str
    escalated: Task | None = None


@attrs.frozen(kw_only=True, slots=True)
class Hit:
    """A task's result is in the cache, or was made by an earlier session of the same run (`kept`)."""

    key: str
    kept: bool = False


@attrs.frozen(kw_only=True, slots=True)
class Expanded:
    """A fan-out knows its elements."""

    key: str
    tasks: tuple[Task, ...]


@attrs.frozen(kw_only=True, slots=True)
class Began:
    """A submitted attempt runs now; its timeout counts from here."""

    key: str
    attempt: int


@attrs.frozen(kw_only=True, slots=True)
class Ended:
    """An attempt is over. `grown`: tasks that its result decided on, added before anyone can think the run is done.

    `escalated`: it failed for want of memory and can be tried with another request, whatever its `retry_on` says.
    """

    key: str
    attempt: int
    cause: str = ""
    grown: tuple[Task, ...] = ()
    escalated: Task | None = None


@attrs.frozen(kw_only=True, slots=True)
class Lost:
    """An attempt never began (its worker died before reading it): it is submitted again and not counted."""

    key: str
    attempt: int


@attrs.frozen(kw_only=True, slots=True)
class Unready:
    """A task could not be prepared: its inputs cannot be read, or its fan-out cannot be counted."""

    key: str
    cause: str


@attrs.frozen(kw_only=True, slots=True)
class Stopped:
    """A person or a signal asks for the end. `hard`: without grace."""

    hard: bool = False


@attrs.frozen(kw_only=True, slots=True)
class Ticked:
    """Time went on: timeouts and waits may be over."""


@attrs.frozen(kw_only=True, slots=True)
class HookDone:
    """A hook ended, well or not."""

    key: str


Event = (
    Added
    | Closed
    | Forgiven
    | Paced
    | Prepared
    | Hit
    | Expanded
    | Began
    | Ended
    | Lost
    | Unready
    | Stopped
    | Ticked
    | HookDone
)


# Actions: what the runner must do.


@attrs.frozen(kw_only=True, slots=True)
class Prepare:
    """Bind the task's inputs and look into the cache; answer Prepared, Hit or Unready."""

    key: str


@attrs.frozen(kw_only=True, slots=True)
class Expand:
    """Find out how many elements the fan-out has; answer Expanded or Unready."""

    key: str


@attrs.frozen(kw_only=True, slots=True)
class Submit:
    """Send an attempt to its backend; answer Began and Ended. `behind`: into the line of a busy worker."""

    key: str
    attempt: int
    behind: bool = False


@attrs.frozen(kw_only=True, slots=True)
class Cancel:
    """End a running attempt; its Ended still follows."""

    key: str
    attempt: int
    hard: bool = False
    cause: str = ""


@attrs.frozen(kw_only=True, slots=True)
class Retrying:
    """An attempt failed and another follows at `at`: for the record and the live view."""

    key: str
    attempt: int
    cause: str
    at: float


@attrs.frozen(kw_only=True, slots=True)
class Settled:
    """A task reached its final status: record it."""

    key: str
    status: StepStatus
    cause: str = ""


@attrs.frozen(kw_only=True, slots=True)
class Hook:
    """Call a step's hook; answer HookDone."""

    key: str
    which: Literal["on_success", "on_failure"]


@attrs.frozen(kw_only=True, slots=True)
class Finished:
    """Nothing is left to do."""

    status: RunStatus


Action = Prepare | Expand | Submit | Cancel | Retrying | Settled | Hook | Finished
