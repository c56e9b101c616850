"""Runs a flow: when a task ends, what it says of its way on decides which tasks come next.

No thread and no process of its own: everything happens in the runner's loop, when it says that a task has settled. What
follows from a task's end is `flows.joins`'s to say; here it is done. Here are also the artifacts that the driver makes
of a task: what `@catch` keeps of a failure, and `@gpu_profile` of a receipt.
"""

from __future__ import annotations

from typing import Any, Final, Mapping, Sequence

import attrs

from stoker.backends.base.backend import RunningBackend
from stoker.core import findings as checks
from stoker.core.artifact import from_wire
from stoker.core.errors import PreflightError
from stoker.core.graph import GANG, TRANSITION, FlowGraph
from stoker.core.plan import Capacity, StepPlan
from stoker.core.settings import DEFAULT_CPUS, DEFAULTS
from stoker.core.status import STEP_GOOD, StepStatus
from stoker.engine import events as ev
from stoker.engine.growth import Growth
from stoker.engine.runner import RunLoop
from stoker.flows.exceptions import failure_of
from stoker.flows.joins import NextTasks, Split, TaskState, Traversal, Wire
from stoker.plan.planner import backend_findings
from stoker.store import artifacts
from stoker.store.blobs import Blobs
from stoker.store.receipts import ReceiptRow


@attrs.frozen(kw_only=True)
class TaskOptions:
    """What a step's decorators say about its tasks."""

    catch: str | None = None
    """The attribute that gets a caught failure; "" catches without an attribute, None does not catch."""
    profile: str | None = None
    """The prefix of the artifacts with what the devices did; None where no such artifacts are made."""
    notes: Mapping[str, Any] = attrs.field(factory=dict)
    """Words of the decorators that the worker reads, by the decorator's name."""


class FlowBody:
    """One run of a flow. `templates` are the plans of its steps, `parameters` what all tasks are given.

    `options` are those of each step, `messages` lines to say before anything runs.
    """

    computing = False

    def __init__(
        self,
        graph: FlowGraph,
        templates: Mapping[str, StepPlan],
        parameters: Mapping[str, Wire],
        blobs: Blobs,
        *,
        options: Mapping[str, TaskOptions],
        fail_fast: bool = True,
        messages: Sequence[str] = (),
    ) -> None:
        self._graph = graph
        self._templates = templates
        self._blobs = blobs
        self._options = options
        self._fail_fast = fail_fast
        self._messages = messages
        notes = {name: step_options.notes for name, step_options in options.items()}
        self._traversal = Traversal(graph, parameters, blobs, notes=notes)
        self._tasks: dict[str, TaskState] = {}
        self._groups: dict[Split, dict[str, StepPlan]] = {}
        self._runner: RunLoop | None = None
        self._backends: Mapping[str, RunningBackend] = {}
        self._bad: dict[str, StepStatus] = {}
        # The groups of which a task was not cached.
        self._computed: set[str] = set()
        self._closed = False

    def run(self, runner: RunLoop, backends: Mapping[str, RunningBackend]) -> str:
        """Run the flow to its end, in this thread."""
        self._runner = runner
        self._backends = backends
        runner.on_settled = self._on_settled
        for line in self._messages:
            runner.growth.say(line)
        self._begin(self._traversal.begin())
        runner.begin()
        return runner.loop()

    @property
    def _growth(self) -> Growth:
        assert self._runner is not None
        return self._runner.growth

    # A task is over

    def _on_settled(self, key: str, status: str) -> None:
        task = self._tasks.pop(key, None)
        if task is None:
            return
        if status != "cached":
            self._computed.add(task.group)
        prefix = self._options[task.step].profile
        more = {} if prefix is None else self._growth.record_profile(key, lambda row: profile(row, prefix, self._blobs))
        if status in STEP_GOOD:
            self._advance(task, {**self._growth.outputs(key), **more} if more else self._growth.outputs(key))
        elif status == "failed":
            self._on_failure(task, more)
        else:
            self._bad.setdefault(task.group, "cancelled" if status == "cancelled" else "skipped")
        if not self._tasks:
            for split in list(self._groups):
                self._end_groups(split)
            self._close(failed=False)

    def _on_failure(self, task: TaskState, more: Mapping[str, Wire]) -> None:
        var = self._options[task.step].catch
        if var is not None and self._runner is not None and not self._closed:
            self._catch(task, var, more)
            return
        self._bad[task.group] = "failed"
        if self._fail_fast:
            self._close(failed=True)

    def _catch(self, task: TaskState, var: str, more: Mapping[str, Wire]) -> None:
        """Go on as if the task had said where it goes: with what it had, and its failure."""
        assert self._runner is not None
        runner = self._runner
        execution = runner.execution(task.key)
        # A process that was killed left nothing.
        left = execution.facts.get("outputs") or ({} if task.nodes else task.inherited)
        if GANG in left:  # what the node had that failed first
            left = artifacts.load(from_wire(left[GANG]), self._blobs)
        outputs: dict[str, Wire] = {**left, **more}
        if var:
            outputs[var] = failure_wire(execution.facts, task.step, self._blobs)
        step = self._graph.steps[task.step]
        document = {"next": list(step.targets), "kind": step.kind, "name": ""}
        if step.targets:
            outputs[TRANSITION] = artifacts.save(document, self._blobs).wire()
        outcome = f"its failure is kept in '{var}'" if var else "its failure was caught"
        runner.tell(ev.Forgiven(key=task.key))
        self._growth.accept_failure(
            task.key, outputs, execution, f"{execution.facts.get('cause', 'failed')}: {outcome}"
        )
        self._advance(task, outputs)

    def _close(self, *, failed: bool) -> None:
        if self._closed:
            return
        self._closed = True
        assert self._runner is not None
        self._runner.close(failed=failed)

    # What follows

    def _advance(self, task: TaskState, outputs: Mapping[str, Wire]) -> None:
        self._growth.forget(task.key)
        following = self._traversal.after(task, outputs)
        if following.by_node:
            self._growth.record_by_node(task.key, following.by_node, self._blobs)
        if following.joined_split is not None:
            self._end_groups(following.joined_split)
        self._begin(following)

    def _begin(self, following: NextTasks) -> None:
        """Start tasks; the elements of a foreach all at once: ten thousand are one event."""
        assert self._runner is not None
        elements: dict[str, dict[int, Mapping[str, Any]]] = {}
        firsts: dict[str, tuple[TaskState, Split]] = {}
        for task, inputs in following.tasks:
            self._tasks[task.key] = task
            frame = task.element
            if frame is None:
                step = attrs.evolve(self._template(task), key=task.key, inputs=inputs, after=())
                self._runner.add([step])
            else:
                firsts.setdefault(task.group, (task, frame.split))
                elements.setdefault(task.group, {})[frame.index] = inputs
        for group, inputs_by_index in elements.items():
            self._growth.add(self._group(*firsts[group]), inputs_by_index)

    def _template(self, task: TaskState) -> StepPlan:
        """The plan of a task's step, on as many nodes as it has."""
        return template_of(self._templates[task.step], task, self._backends)

    def _group(self, task: TaskState, split: Split) -> StepPlan:
        groups = self._groups.setdefault(split, {})
        step = groups.get(task.group)
        if step is None:
            step = attrs.evolve(self._template(task), key=task.group, inputs={}, after=(), mapped=("place",))
            groups[task.group] = step
            self._growth.begin(step, split.count)
        return step

    def _end_groups(self, split: Split) -> None:
        for key, step in self._groups.pop(split, {}).items():
            status: StepStatus = "succeeded" if key in self._computed else "cached"
            self._growth.settle(step, self._bad.get(key, status), split.count)


def template_of(template: StepPlan, task: TaskState, backends: Mapping[str, RunningBackend]) -> StepPlan:
    """The plan of a task's step; of a `num_parallel` a gang's, which is refused here if it cannot be."""
    if task.nodes < 2:
        return template
    gang = gang_of(template, task.nodes, backends[template.backend].capacity())
    errors = checks.errors(backend_findings([gang], backends))
    if errors:
        raise PreflightError("\n".join(finding.text() for finding in errors), findings=errors)
    return gang


def gang_of(step: StepPlan, nodes: int, room: Capacity | None) -> StepPlan:
    """A step's plan for so many nodes, each with its own artifacts; on this machine they share what there is."""
    resources = step.settings.resources
    share = None if room is None else room.cpus / nodes
    cpus = resources.get("cpu_count", DEFAULT_CPUS)
    less: dict[str, Any] = {} if share is None or cpus <= share else {"cpu_count": share}
    memory = resources.get("memory", 0)
    if room is not None and memory * nodes > room.memory:
        less["memory"] = room.memory // nodes
    settings = attrs.evolve(
        step.settings,
        resources=attrs.evolve(resources, nodes=nodes, **less),
        launch=attrs.evolve(DEFAULTS, outputs="all"),
    )
    return attrs.evolve(step, settings=settings)


_MIB: Final = 2**20
_TRACKS: Final = {"utilization": ("gpu_utilization", 1), "memory": ("memory_used", _MIB)}
"""The receipt's quantity → what it is called here, and in which unit."""


def profile(row: ReceiptRow | None, prefix: str, blobs: Blobs) -> dict[str, Mapping[str, Any]]:
    """The artifacts `<prefix>num_gpus` and `<prefix>data`."""
    data: dict[str, Any] = {"error": None, "driver_version": None, "cuda_version": None, "devices": [], "profile": {}}
    if row is None:
        data["error"] = "the step asked for no accelerator"
    else:
        receipt = row.receipt
        data["error"] = receipt.fallback or None
        data["verdict"] = receipt.verdict
        data["driver_version"] = receipt.proved.get("driver")
        data["cuda_version"] = receipt.proved.get("cuda")
        for use in receipt.devices:
            memory = use.memory // _MIB
            data["devices"].append({"name": use.model, "device_id": use.uuid, "memory": memory})
            device_tracks = {
                track.name: track for track in row.tracks if track.uuid == use.uuid and track.name in _TRACKS
            }
            times = next((list(track.times) for track in device_tracks.values()), [])
            samples: dict[str, Any] = {"timestamp": times, "memory_total": [memory] * len(times)}
            for name, (word, unit) in _TRACKS.items():
                track = device_tracks.get(name)
                by_time = {} if track is None else dict(zip(track.times, track.values))
                values = [by_time.get(time) for time in times]
                samples[word] = [None if value is None else value / unit for value in values]
            data["profile"][use.uuid] = samples
    values_by_name = {f"{prefix}num_gpus": len(data["devices"]), f"{prefix}data": data}
    return {name: artifacts.save(value, blobs).wire() for name, value in values_by_name.items()}


def failure_wire(facts: Mapping[str, Any], step: str, blobs: Blobs) -> Mapping[str, Any]:
    """The artifact of a task's failure."""
    return artifacts.save(failure_of(facts, step, caught=True), blobs).wire()
