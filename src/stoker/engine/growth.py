"""Elements that are added to a run one by one, as the tasks before them end; what a flow's foreach needs.

A fan-out of a pipeline knows all its elements before the first of them starts. In a flow the next step of an element
starts when that element is done, and which step that is may be a result: its elements come one at a time.
"""

from __future__ import annotations

import time
from typing import Any, Callable, Mapping, Sequence

import attrs

from stoker.core import events as ev
from stoker.core.artifact import from_wire
from stoker.core.observer import Observer
from stoker.core.plan import StepPlan
from stoker.core.status import StepStatus
from stoker.engine.doing import Doing
from stoker.engine.inputs import Inputs, Wire
from stoker.engine.recorder import Recorder
from stoker.engine.tasks import element_task
from stoker.store import artifacts
from stoker.store.blobs import Blobs
from stoker.store.receipts import ReceiptRow


class Growth:
    """What one run lets grow; in the runner's thread."""

    def __init__(
        self,
        recorder: Recorder,
        inputs: Inputs,
        observer: Observer,
        members: dict[str, tuple[StepPlan, int]],
        doing: dict[str, Doing],
        tell: Callable[[ev.Event], None],
    ) -> None:
        self._recorder = recorder
        self._inputs = inputs
        self._observer = observer
        self._members = members
        self._doing = doing
        self._tell = tell
        self._began: dict[str, float] = {}

    def outputs(self, key: str) -> Mapping[str, Wire]:
        """What a task that is done made."""
        return self._inputs.outputs(key)

    def forget(self, key: str) -> None:
        """Nobody asks any more what a task was given and what it made; of ten thousand it would fill the memory."""
        self._inputs.keep(key, {})
        if key in self._members:
            step, index = self._members[key]
            self._inputs.element(step.key, index, {})
        if key in self._doing:
            self._doing[key].facts.pop("outputs", None)

    def begin(self, step: StepPlan, count: int) -> None:
        """A fan-out begins, with as many elements as are known of."""
        self._began[step.key] = time.time()
        if not self._recorder.is_kept(step.key):
            self._recorder.pending([step])
        self._recorder.expanded(step.key, count)
        self._observer.changed(step.key, "expanded", {"count": count})

    def add(self, step: StepPlan, elements: Mapping[int, Mapping[str, Any]]) -> None:
        """Elements of a fan-out that begun: index → the trees of what they are given."""
        tasks = []
        for index, trees in elements.items():
            member = f"{step.key}[{index}]"
            self._members[member] = (step, index)
            self._inputs.element(step.key, index, trees)
            # The machine does not know the fan-out: it would end it with the last element that it was told of.
            task = element_task(step, member, (), self._recorder.tried(member))
            tasks.append(attrs.evolve(task, parent=""))
        self._tell(ev.Added(tasks=tuple(tasks)))

    def settle(self, step: StepPlan, status: StepStatus, count: int) -> None:
        """A fan-out is over: nothing is added to it any more."""
        now = time.time()
        started = self._began.get(step.key, now)
        facts = {"started": started, "ended": now}
        self._recorder.settled(step.key, step, status, facts, None, parent="", index=None, count=count)
        self._observer.changed(step.key, status, {"parent": "", "index": None, "seconds": now - started})

    def profiled(self, key: str, profile: Callable[[ReceiptRow | None], dict[str, Wire]]) -> dict[str, Wire]:
        """What `profile` makes of a task's receipt, as artifacts of it; nothing for one that an earlier session
        finished."""
        attempt = self._doing[key].facts.get("attempt") if key in self._doing else None
        if attempt is None:
            return {}
        found = profile(self._recorder.receipt_of(key, attempt))
        self._recorder.outputs(key, found)
        return found

    def keep_by_node(self, key: str, nodes: Sequence[Mapping[str, Wire]], blobs: Blobs) -> None:
        """The artifacts of a gang's nodes, as lists by node; a node that lacks one has None there."""
        nothing = artifacts.save(None, blobs)
        found: dict[str, Wire] = {}
        for name in dict.fromkeys(name for node in nodes for name in node):
            parts = [from_wire(node[name]) if name in node else nothing for node in nodes]
            found[name] = artifacts.gather(parts, blobs).wire()
        self._recorder.outputs(key, found)

    def said(self, line: str) -> None:
        """Say something to whoever watches the run."""
        self._observer.said(line)

    def mended(self, key: str, outputs: Mapping[str, Wire], doing: Doing, message: str) -> None:
        """A task that failed counts as done, with these outputs: somebody caught its failure."""
        step, index = self._members.get(key, (doing.step, None))
        parent = step.key if index is not None else ""
        facts = {**doing.facts, "outputs": outputs, "message": message, "cause": ""}
        self._inputs.keep(key, outputs)
        # A failure is not to be found again by who asks for the result.
        step = attrs.evolve(step, settings=attrs.evolve(step.settings, cache=False))
        self._recorder.settled(key, step, "succeeded", facts, doing, parent=parent, index=index)
        self._observer.said(f"{key}: {message}")
