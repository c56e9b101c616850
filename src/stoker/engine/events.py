"""The machine's events and actions: plain values, so that any order of them can be tested.

Times are seconds on a clock of the runner's choice; the machine only compares and adds them.
"""

from __future__ import annotations

from typing import Final, Literal, Sequence

from stoker.core.status import RunStatus, StepStatus
from stoker.core.values import frozen


@frozen(kw_only=True)
class TaskSpec:
    """What the machine must know of a step or an element to schedule it."""

    key: str
    requires: tuple[str, ...] = ()
    """Keys that must succeed first; `"k[]"` is met as soon as the fan-out `k` knows its elements."""
    parent: str = ""
    """The fan-out that this is an element of."""
    fanout: bool = False
    """Expanded instead of submitted."""
    pool: str = ""
    """The backend that runs it."""
    cpus: float = 0.0
    """Cores of each node."""
    memory: int = 0
    """Bytes of each node."""
    gang: int = 1
    """Nodes, which start together or not at all."""
    devices: int = 0
    """Accelerators of each node that it takes whole."""
    retries: int = 0
    """How many attempts may follow the first one of this session."""
    retry_on: frozenset[str] = frozenset()
    """Causes after which it is tried again; none is any that another attempt may cure."""
    climbs: frozenset[str] = frozenset()
    """Causes after which only a changed request is tried again, unless `retry_on` names them."""
    delay: float = 0.0
    """Seconds before the first retry; each later one waits `backoff` times as long, at most `max_delay`."""
    backoff: float = 1.0
    max_delay: float = 3600.0
    jitter: float = 0.0
    """The part of a wait by which it may be longer or shorter."""
    timeout: float | None = None
    """Seconds from an attempt's begin to its cancellation; None is no limit."""
    on_success: bool = False
    """Whether a hook is called when it succeeded."""
    on_failure: bool = False
    """Whether a hook is called when it failed."""
    tried: int = 0
    """Attempts of earlier sessions of the run: they count for an attempt's number, not against `retries`."""
    ahead: bool = False
    """Whether a busy worker may take it as the next in its line."""
    trial: bool = False
    """Of an element: whether it is one trial of a sweep, so that its failure is not that of the whole."""


GRACE: Final = 10.0
"""Seconds between SIGTERM and SIGKILL for a step that is ended: time to write a checkpoint."""

# Events: what happened.


@frozen(kw_only=True)
class Added:
    """The graph grew (the first event of a run adds the static graph)."""

    tasks: tuple[TaskSpec, ...]


@frozen(kw_only=True)
class Closed:
    """Nothing is added to the run from outside any more; a finishing step still may add tasks.

    `failed`: the body of a dynamic pipeline raised, so that what still runs is of no use.
    """

    failed: bool = False


@frozen(kw_only=True)
class Forgiven:
    """The body of a dynamic pipeline caught a step's failure and went on: it is no failure of the run."""

    key: str


@frozen(kw_only=True)
class PaceChanged:
    """How many `ahead` tasks of a pool may wait at busy workers, from how long they take."""

    pool: str
    ahead: int


@frozen(kw_only=True)
class Prepared:
    """A task's inputs are there and its result is not in the cache. `escalated`: its request was changed."""

    key: str
    escalated: TaskSpec | None = None


@frozen(kw_only=True)
class ResultFound:
    """A task's result is in the cache, or an earlier session of the same run had it, with the status `earlier`."""

    key: str
    earlier: StepStatus | None = None


@frozen(kw_only=True)
class Expanded:
    """A fan-out knows its elements."""

    key: str
    tasks: Sequence[TaskSpec]
    """Made when they are asked for, where there are many; `key[0]`, `key[1]` and so on are their keys."""
    limit: int | None = None
    """How many of them may be on their way at one time; None is as many as fit."""


@frozen(kw_only=True)
class Curtailed:
    """A sweep tries nothing more: its fan-out has only the first `count` elements. With a `cause`, it has failed, and
    what runs of it ends."""

    key: str
    count: int
    cause: str = ""


@frozen(kw_only=True)
class Halted:
    """A trial that runs does worse than others: it is to end."""

    key: str
    attempt: int


@frozen(kw_only=True)
class Began:
    """A submitted attempt runs now; its timeout counts from here."""

    key: str
    attempt: int


@frozen(kw_only=True)
class Extended:
    """An attempt that runs may take so many seconds more than its timeout."""

    key: str
    attempt: int
    seconds: float


@frozen(kw_only=True)
class Adopted:
    """A submitted attempt is the one that an earlier driver made as attempt `earlier`: it has that number."""

    key: str
    attempt: int
    earlier: int


@frozen(kw_only=True)
class Ended:
    """An attempt is over.

    `grown` are tasks that its result adds, before the run can count as done. `escalated`: it ran out of memory and can
    be tried with another request, whatever its `retry_on` says.
    """

    key: str
    attempt: int
    cause: str = ""
    grown: tuple[TaskSpec, ...] = ()
    escalated: TaskSpec | None = None
    elsewhere: bool = False
    """Whether its place was found faulty, and the next attempt gets another one."""


@frozen(kw_only=True)
class Lost:
    """An attempt never began (its worker died before reading it): it is submitted again and not counted."""

    key: str
    attempt: int


@frozen(kw_only=True)
class NotPrepared:
    """A task could not be prepared: its inputs cannot be read, or its fan-out cannot be counted."""

    key: str
    cause: str


@frozen(kw_only=True)
class InputLost:
    """An input of a task is lost or damaged: the `producers` run again, and then the task, which is not counted.

    The task was being prepared (`attempt` 0), or its attempt is over.
    """

    key: str
    attempt: int
    producers: tuple[str, ...] = ()


@frozen(kw_only=True)
class Stopped:
    """A person or a signal stops the run. `hard`: without grace."""

    hard: bool = False


@frozen(kw_only=True)
class Ticked:
    """Time went by: timeouts and waits may be over."""


@frozen(kw_only=True)
class HookEnded:
    """A hook ended, well or not."""

    key: str


Event = (
    Added
    | Closed
    | Forgiven
    | PaceChanged
    | Prepared
    | ResultFound
    | Expanded
    | Curtailed
    | Halted
    | Began
    | Extended
    | Adopted
    | Ended
    | Lost
    | NotPrepared
    | InputLost
    | Stopped
    | Ticked
    | HookEnded
)


# Actions: what the runner must do.


@frozen(kw_only=True)
class Prepare:
    """Bind the task's inputs and look into the cache; answer Prepared, ResultFound or NotPrepared."""

    key: str


@frozen(kw_only=True)
class Expand:
    """Find out how many elements the fan-out has; answer Expanded or NotPrepared."""

    key: str


@frozen(kw_only=True)
class Submit:
    """Send an attempt to its backend; answer Began and Ended. `behind`: into the line of a busy worker."""

    key: str
    attempt: int
    behind: bool = False


@frozen(kw_only=True)
class Cancel:
    """End a running attempt; its Ended still follows."""

    key: str
    attempt: int
    hard: bool = False
    cause: str = ""


@frozen(kw_only=True)
class RecordRetry:
    """An attempt failed and another follows at `at`: for the record and the live view."""

    key: str
    attempt: int
    cause: str
    at: float


@frozen(kw_only=True)
class RecordEnd:
    """A task reached its final status: record it."""

    key: str
    status: StepStatus
    cause: str = ""


@frozen(kw_only=True)
class CallHook:
    """Call a step's hook; answer HookEnded."""

    key: str
    which: Literal["on_success", "on_failure"]


@frozen(kw_only=True)
class FinishRun:
    """Nothing is left to do."""

    status: RunStatus


Action = Prepare | Expand | Submit | Cancel | RecordRetry | RecordEnd | CallHook | FinishRun
