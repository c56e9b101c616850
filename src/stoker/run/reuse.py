"""What a run takes over from the run that it repeats: which steps run again, and the results of all others."""

from __future__ import annotations

from typing import Callable, Final, Protocol

from stoker.core.errors import UsageError, nearest
from stoker.core.plan import Plan, RunOrigin, StepPlan
from stoker.core.status import STEP_GOOD
from stoker.engine.recorder import Recorder
from stoker.store.records import Records
from stoker.store.rows import StepRow
from stoker.store.store import Store

_UNFINISHED: Final = frozenset({"failed", "cancelled"})


class _Placed(Protocol):
    """A step of a plan, or a step's row."""

    @property
    def name(self) -> str: ...
    @property
    def key(self) -> str: ...
    @property
    def position(self) -> int: ...


Selection = Callable[[_Placed], bool]


def check(origin: RunOrigin, plan: Plan, records: Records) -> None:
    """`UsageError` where the step from which a run is repeated is not among its steps."""
    if origin.start:
        selection(origin.start, plan, records.steps(origin.run))


def load(plan: Plan, records: Records, recorder: Recorder) -> Callable[[StepPlan], bool] | None:
    """Give the recorder the results that a run takes from the one that it repeats.

    Returns whether a step runs although the cache has its result; None where every step may come from the cache.
    """
    origin = plan.origin
    if origin is None or not origin.reuse:
        return None
    rows = records.all_steps(origin.run)
    runs_again = selection(origin.start, plan, rows) if origin.start else _nothing
    reused = [row for row in rows if row.status in STEP_GOOD and row.count is None and not runs_again(row)]
    # Every task of a flow is given the place of its step in the flow, which an edit moves.
    recorder.load_origin(reused, same_inputs=not _is_flow(plan))
    return runs_again if origin.start else None


def copy_checkpoints(store: Store, origin: str, run: str) -> None:
    """Copy the checkpoints of the steps that a run began and did not finish, so that another run goes on from them."""
    for row in store.records.all_steps(origin):
        if row.status in _UNFINISHED and row.count is None:
            store.checkpoints.copy(origin, run, row.key)


def selection(start: str, plan: Plan, rows: list[StepRow]) -> Selection:
    """Which steps run again: `start`, a step's name or key, and all that come after it."""
    if not plan.steps:
        # Which steps depend on which, only the body of a dynamic pipeline knows: it calls them in their order.
        positions = [row.position for row in rows if start in (row.name, row.key)]
        if not positions:
            raise _no_such_step(start, plan, [row.key for row in rows if not row.parent])
        first = min(positions)
        return lambda step: step.position >= first
    first_keys = {step.key for step in plan.steps if step.key == start} or {
        step.key for step in plan.steps if step.name == start
    }
    if not first_keys:
        raise _no_such_step(start, plan, [step.key for step in plan.steps])
    keys = _following(plan, first_keys)
    if _is_flow(plan):
        return lambda step: step.name in keys
    return lambda step: step.key.partition("[")[0] in keys


def _following(plan: Plan, keys: set[str]) -> set[str]:
    """Keys of steps, and of all steps that come after them."""
    before = {step.key: set(step.needs) for step in plan.steps}
    following = set(keys)
    while True:
        more = {key for key, earlier in before.items() if key not in following and earlier & following}
        if not more:
            return following
        following |= more


def _is_flow(plan: Plan) -> bool:
    """Whether the plan's steps are templates of a flow's tasks."""
    return plan.dynamic and bool(plan.steps)


def _nothing(step: _Placed) -> bool:
    return False


def _no_such_step(start: str, plan: Plan, keys: list[str]) -> UsageError:
    whole = start.partition("[")[0]
    if whole != start and whole in keys:
        return UsageError(f"'{start}' is one element of '{whole}', which runs again as a whole", fix=f"name {whole}")
    return UsageError(f"'{plan.pipeline}' has no step '{start}'{nearest(start, keys)}")
