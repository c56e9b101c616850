"""Adds a fan-out's elements to a run one by one, as the tasks before them end: a flow's foreach needs that.

A fan-out of a pipeline knows all its elements before the first of them starts. In a flow the next step of an element
starts when that element is done, and which step that is may be a result: its elements come one at a time.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Callable, Mapping, Sequence

import attrs

from stoker.core.artifact import from_wire
from stoker.core.observer import Observer
from stoker.core.plan import StepPlan
from stoker.core.status import StepStatus
from stoker.engine import clock
from stoker.engine import events as ev
from stoker.engine.execution import StepExecution, element_task
from stoker.engine.inputs import StepBindings, Wire
from stoker.engine.recorder import Recorder
from stoker.store import artifacts
from stoker.store.blobs import Blobs

if TYPE_CHECKING:
    from stoker.store.receipts import ReceiptRow


class Growth:
    """The fan-outs of one run that grow while it runs; used in the runner's thread."""

    def __init__(
        self,
        recorder: Recorder,
        inputs: StepBindings,
        observer: Observer,
        members: dict[str, tuple[StepPlan, int]],
        executions: dict[str, StepExecution],
        tell: Callable[[ev.Event], None],
    ) -> None:
        self._recorder = recorder
        self._inputs = inputs
        self._observer = observer
        self._members = members
        self._executions = executions
        self._tell = tell
        self._began: dict[str, float] = {}

    def outputs(self, key: str) -> Mapping[str, Wire]:
        """The outputs of a finished task."""
        return self._inputs.outputs(key)

    def forget(self, key: str) -> None:
        """Drop the inputs and outputs of a task that nothing needs any more: those of ten thousand fill the memory."""
        self._inputs.keep(key, {})
        if key in self._members:
            step, index = self._members[key]
            self._inputs.add_element(step.key, index, {})
        if key in self._executions:
            self._executions[key].facts.pop("outputs", None)

    def begin(self, step: StepPlan, count: int) -> None:
        """Begin a fan-out, with the number of elements that are known."""
        earlier = self._recorder.first_start(step.key)
        self._began[step.key] = clock.time() if earlier is None else earlier
        if not self._recorder.is_finished(step.key):
            self._recorder.record_pending([step])
        self._recorder.record_expansion(step.key, count)
        self._observer.changed(step.key, "expanded", {"count": count})

    def add(self, step: StepPlan, elements: Mapping[int, Mapping[str, Any]]) -> None:
        """Add elements of a fan-out that has begun: index → their input trees."""
        tasks = []
        make = element_task(step, "")  # the machine would end the fan-out with the last element that it knows
        for index, trees in elements.items():
            member = f"{step.key}[{index}]"
            self._members[member] = (step, index)
            self._inputs.add_element(step.key, index, trees)
            tasks.append(make(member, (), self._recorder.earlier_attempts(member)))
        self._tell(ev.Added(tasks=tuple(tasks)))

    def settle(self, step: StepPlan, status: StepStatus, count: int) -> None:
        """Settle a fan-out to which nothing is added any more."""
        if self._recorder.is_finished(step.key):
            self._observer.changed(step.key, status, {"parent": "", "index": None})
            return
        now = clock.time()
        started = self._began.get(step.key, now)
        facts = {"started": started, "ended": now}
        self._recorder.record_settled(step.key, step, status, facts, None, parent="", index=None, count=count)
        self._observer.changed(step.key, status, {"parent": "", "index": None, "seconds": now - started})

    def record_profile(self, key: str, profile: Callable[[ReceiptRow | None], dict[str, Wire]]) -> dict[str, Wire]:
        """Record what `profile` makes of a task's receipt as its outputs; none if an earlier session finished it."""
        attempt = self._executions[key].facts.get("attempt") if key in self._executions else None
        if attempt is None:
            return {}
        outputs = profile(self._recorder.receipt_of(key, attempt))
        self._recorder.record_outputs(key, outputs)
        return outputs

    def record_by_node(self, key: str, nodes: Sequence[Mapping[str, Wire]], blobs: Blobs) -> None:
        """Record the artifacts of a gang's nodes as lists by node, with None for a node that lacks one."""
        nothing = artifacts.save(None, blobs)
        lists: dict[str, Wire] = {}
        for name in dict.fromkeys(name for node in nodes for name in node):
            parts = [from_wire(node[name]) if name in node else nothing for node in nodes]
            lists[name] = artifacts.gather(parts, blobs).wire()
        self._recorder.record_outputs(key, lists)

    def say(self, line: str) -> None:
        """Show a line to the run's observer."""
        self._observer.message(line)

    def accept_failure(self, key: str, outputs: Mapping[str, Wire], execution: StepExecution, message: str) -> None:
        """Count a failed task whose failure was caught as succeeded, with these outputs."""
        step, index = self._members.get(key, (execution.step, None))
        parent = step.key if index is not None else ""
        facts = {**execution.facts, "outputs": outputs, "message": message, "cause": ""}
        self._inputs.keep(key, outputs)
        # The cache must not give these outputs to a later run.
        step = attrs.evolve(step, settings=attrs.evolve(step.settings, cache=False))
        self._recorder.record_settled(key, step, "succeeded", facts, execution, parent=parent, index=index)
        self._observer.changed(key, "caught", {"parent": parent, "message": message})
