"""Runs a flow: when a task ends, what it says of its way on decides which tasks come next.

No thread and no process of its own: everything happens in the runner's loop, when it says that a task has settled. A
task's key is its step's name, with "#2" where the step is reached again, and an index for each foreach that it is in.
"""

from __future__ import annotations

from typing import Any, Final, Mapping, Sequence

import attrs

from stoker.compile.planner import findings_of
from stoker.core import events as ev
from stoker.core import findings as checks
from stoker.core.artifact import from_wire
from stoker.core.errors import PreflightError
from stoker.core.flow import ELEMENTS, GANG, OWN, TRANSITION, FlowGraph
from stoker.core.launch import resolved
from stoker.core.plan import Backend, Capacity, StepPlan
from stoker.core.status import STEP_GOOD, StepStatus
from stoker.engine.growth import Growth
from stoker.engine.runner import Runner
from stoker.engine.tasks import DEFAULT_CPUS
from stoker.store import artifacts
from stoker.store.blobs import Blobs

Wire = Mapping[str, Any]
ATTACHED: Final = "attached"
"""The kind of event that has what the command line said of decorators."""
_NOTHING: Final[Mapping[str, Wire]] = {}


class Split:
    """A step that went several ways at once, and those of them that came to the join."""

    __slots__ = ("arrived", "count", "elements", "frames", "groups", "kind")

    def __init__(self, kind: str, count: int, frames: tuple[Frame, ...], elements: Sequence[Wire] | None) -> None:
        self.kind = kind
        self.count = count
        self.frames = frames
        self.elements = elements
        self.arrived: dict[int, dict[str, Any]] = {}
        self.groups: dict[str, StepPlan] = {}


class Frame:
    """One way of a split."""

    __slots__ = ("place", "split")

    def __init__(self, split: Split, place: int) -> None:
        self.split = split
        self.place = place


@attrs.frozen(slots=True)
class Task:
    """A task on its way: its step, the ways of splits that it is on, and what it was given."""

    key: str
    step: str
    frames: tuple[Frame, ...]
    given: Mapping[str, Wire]
    group: str = ""
    nodes: int = 0


@attrs.frozen(kw_only=True)
class TaskOptions:
    """What decorators say of a step's tasks. `catch` is the attribute for a failure: "" is none, None is not caught.

    `profile` begins the names of the artifacts that say what the devices did, None where nobody wants them. `notes` are
    the words of decorators that the worker honours, by the decorator's name.
    """

    catch: str | None = None
    profile: str | None = None
    notes: Mapping[str, Any] = attrs.field(factory=dict)


class FlowBody:
    """One run of a flow. `templates` are the plans of its steps, `parameters` what all tasks are given.

    `options` are those of each step, `said` lines to say before anything runs. `attached` is what the command line said
    of decorators, for a session that goes on with the run.
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
        said: Sequence[str] = (),
        attached: Mapping[str, Any] | None = None,
    ) -> None:
        self._graph = graph
        self._templates = templates
        self._parameters = {"dict": {name: {"value": wire} for name, wire in parameters.items()}}
        self._blobs = blobs
        self._options = options
        self._fail_fast = fail_fast
        self._said = said
        self._attached = attached
        self._tasks: dict[str, Task] = {}
        self._open: dict[Split, None] = {}
        self._visits: dict[tuple[str, str], int] = {}
        self._interned: dict[tuple[str, str], Wire] = {}
        self._places: dict[str, Wire] = {}
        self._runner: Runner | None = None
        self._backends: Mapping[str, Backend] = {}
        self._bad: dict[str, StepStatus] = {}
        self._closed = False

    def run(self, runner: Runner, backends: Mapping[str, Backend]) -> str:
        """Run the flow to its end, in this thread."""
        self._runner = runner
        self._backends = backends
        runner.on_settled = self._on_settled
        if self._attached:
            runner.growth.noted(ATTACHED, self._attached)
        for line in self._said:
            runner.growth.said(line)
        self._start(self._graph.start, (), _NOTHING)
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
        prefix = self._options[task.step].profile
        more = self._growth.profiled(key, prefix, self._blobs) if prefix is not None else {}
        if status in STEP_GOOD:
            self._go_on(task, {**self._growth.outputs(key), **more} if more else self._growth.outputs(key))
        elif status == "failed":
            self._has_failed(task, more)
        else:
            self._bad.setdefault(task.group, "cancelled" if status == "cancelled" else "skipped")
        if not self._tasks:
            for split in self._open:
                self._end_groups(split)
            self._close(failed=False)

    def _has_failed(self, task: Task, more: Mapping[str, Wire]) -> None:
        var = self._options[task.step].catch
        if var is not None and self._runner is not None and not self._closed:
            self._catch(task, var, more)
            return
        self._bad[task.group] = "failed"
        if self._fail_fast:
            self._close(failed=True)

    def _catch(self, task: Task, var: str, more: Mapping[str, Wire]) -> None:
        """Go on as if the task had done nothing but keep its failure."""
        from stoker.engine.flowcatch import failure_wire

        assert self._runner is not None
        runner = self._runner
        doing = runner.doing(task.key)
        outputs: dict[str, Wire] = {**({} if task.nodes else task.given), **more}
        if var:
            outputs[var] = failure_wire(doing.facts, task.step, self._blobs)
        step = self._graph.steps[task.step]
        document = {"next": list(step.targets), "kind": step.kind, "name": ""}
        if step.targets:
            outputs[TRANSITION] = artifacts.save(document, self._blobs).wire()
        kept = f"its failure is kept in '{var}'" if var else "its failure was caught"
        runner.tell(ev.Forgiven(key=task.key))
        self._growth.mended(task.key, outputs, doing, f"{doing.facts.get('cause', 'failed')}: {kept}")
        self._go_on(task, outputs)

    def _close(self, *, failed: bool) -> None:
        if self._closed:
            return
        self._closed = True
        assert self._runner is not None
        self._runner.close(failed=failed)

    # Where it goes

    def _go_on(self, task: Task, outputs: Mapping[str, Wire]) -> None:
        if task.nodes:
            self._gang_is_over(task, outputs)
            return
        made = {name: self._intern(name, wire) for name, wire in outputs.items() if name not in OWN}
        word = outputs.get(TRANSITION)
        way = {} if word is None else artifacts.load(from_wire(word), self._blobs)
        elements = outputs.get(ELEMENTS)
        self._growth.forget(task.key)
        targets = way.get("next", ())
        kind = way.get("kind", "end")
        if kind in ("linear", "switch"):
            self._reach(targets[0], task, made)
        elif kind == "split":
            split = Split("split", len(targets), task.frames, None)
            self._open[split] = None
            for place, target in enumerate(targets):
                self._start(target, (*task.frames, Frame(split, place)), made)
        elif kind == "parallel":
            self._start(targets[0], task.frames, made, nodes=way["count"])
        elif kind == "foreach" and elements is not None:
            wires = [element.wire() for element in artifacts.items(from_wire(elements), self._blobs)]
            self._fan_out(targets[0], task, made, Split(kind, way["count"], task.frames, wires))

    def _intern(self, name: str, wire: Wire) -> Wire:
        """The same artifact as the same object, however many tasks have it."""
        return self._interned.setdefault((name, f"{wire['s']}:{wire['d']}"), wire)

    def _reach(self, target: str, task: Task, made: Mapping[str, Wire]) -> None:
        if not self._graph.steps[target].join:
            self._start(target, task.frames, made)
            return
        frame = task.frames[-1]
        split = frame.split
        split.arrived[frame.place] = {
            "step": task.step,
            "key": task.key,
            "index": frame.place if split.elements is not None else None,
            "element": split.elements[frame.place] if split.elements is not None else None,
            "artifacts": dict(made),
        }
        if len(split.arrived) == split.count:
            self._join(target, split)

    def _join(self, target: str, split: Split) -> None:
        self._end_groups(split)
        del self._open[split]
        entries = [split.arrived[place] for place in sorted(split.arrived)]
        wire = artifacts.save(entries, self._blobs).wire()
        split.arrived.clear()
        self._start(target, split.frames, _NOTHING, joined=wire)

    def _gang_is_over(self, task: Task, outputs: Mapping[str, Wire]) -> None:
        """All nodes of a `num_parallel` are done: their join gets the artifacts of each."""
        word = outputs.get(GANG)
        if word is None:  # caught: no node made anything
            nodes = [dict(task.given)] * task.nodes
        else:
            parts = artifacts.items(from_wire(word), self._blobs) if task.nodes > 1 else [from_wire(word)]
            nodes = [artifacts.load(part, self._blobs) for part in parts]
        entries: list[dict[str, Any]] = []
        for place, made in enumerate(nodes):
            own = {name: wire for name, wire in made.items() if name not in OWN}
            key = f"{task.key}[{place}]"
            entries.append({"step": task.step, "key": key, "index": place, "element": None, "artifacts": own})
        if word is not None:
            self._growth.keep_by_node(task.key, [entry["artifacts"] for entry in entries], self._blobs)
        # What no node made: its failure, where that was caught, and what its devices did.
        made_here = {name for entry in entries for name in entry["artifacts"]}
        more = {name: wire for name, wire in outputs.items() if name not in OWN and name not in made_here}
        for entry in entries:
            entry["artifacts"].update(more)
        self._growth.forget(task.key)
        target = self._graph.steps[task.step].targets[0]
        self._start(target, task.frames, _NOTHING, joined=artifacts.save(entries, self._blobs).wire())

    # Tasks begin

    def _start(
        self,
        name: str,
        frames: tuple[Frame, ...],
        given: Mapping[str, Wire],
        *,
        joined: Wire | None = None,
        nodes: int = 0,
    ) -> None:
        assert self._runner is not None
        spread = [frame for frame in frames if frame.split.kind != "split"]
        task = self._task(name, frames, given, nodes)
        inputs = self._inputs(task, joined)
        if not spread:
            step = attrs.evolve(self._template(task), key=task.key, inputs=inputs, after=())
            self._runner.add([step])
            return
        step = self._group(task, spread[-1].split)
        self._growth.add(step, {spread[-1].place: inputs})

    def _fan_out(self, name: str, task: Task, made: Mapping[str, Wire], split: Split) -> None:
        """All elements at once: ten thousand are one event."""
        self._open[split] = None
        groups: dict[str, dict[int, dict[str, Any]]] = {}
        firsts: dict[str, Task] = {}
        for place in range(split.count):
            one = self._task(name, (*task.frames, Frame(split, place)), made)
            firsts.setdefault(one.group, one)
            groups.setdefault(one.group, {})[place] = self._inputs(one, None)
        for group, elements in groups.items():
            self._growth.add(self._group(firsts[group], split), elements)

    def _task(self, name: str, frames: tuple[Frame, ...], given: Mapping[str, Wire], nodes: int = 0) -> Task:
        """A task with a key of its own: a switch may go back, and reach a step again with the same indices."""
        indices = "".join(f"[{frame.place}]" for frame in frames if frame.split.kind != "split")
        visit = self._visits[name, indices] = self._visits.get((name, indices), 0) + 1
        key = (name if visit == 1 else f"{name}#{visit}") + indices
        task = self._tasks[key] = Task(key, name, frames, given, key.rpartition("[")[0], nodes)
        return task

    def _template(self, task: Task) -> StepPlan:
        """The plan of a task's step; of a `num_parallel` a gang's, which is refused here if it cannot be."""
        template = self._templates[task.step]
        if task.nodes < 2:
            return template
        backend = self._backends[template.backend]
        gang = gang_of(template, task.nodes, backend.capacity())
        errors = checks.errors(findings_of([gang], self._backends))
        if errors:
            raise PreflightError("\n".join(finding.text() for finding in errors), findings=errors)
        return gang

    def _group(self, task: Task, split: Split) -> StepPlan:
        step = split.groups.get(task.group)
        if step is None:
            step = attrs.evolve(self._template(task), key=task.group, inputs={}, after=(), mapped=("place",))
            split.groups[task.group] = step
            self._growth.begin(step, split.count)
        return step

    def _end_groups(self, split: Split) -> None:
        for key, step in split.groups.items():
            self._growth.settle(step, self._bad.get(key, "succeeded"), split.count)
        split.groups.clear()

    def _inputs(self, task: Task, joined: Wire | None) -> dict[str, Any]:
        """The trees of what a task is given."""
        spread = [frame for frame in task.frames if frame.split.kind != "split"]
        stack = [[frame.place, frame.split.count] for frame in spread if frame.split.elements is not None]
        elements = [frame.split.elements[frame.place] for frame in spread if frame.split.elements is not None]
        trees: dict[str, Any] = {
            "place": {"value": self._place(task.step, stack, [task.nodes, task.key] if task.nodes else None)},
            "parameters": self._parameters,
            "artifacts": {"dict": {name: {"value": wire} for name, wire in task.given.items()}},
        }
        if elements:
            trees["elements"] = {"list": [{"value": wire} for wire in elements]}
        if joined is not None:
            trees["inputs"] = {"value": joined}
        return trees

    def _place(self, name: str, stack: list[Any], parallel: Any) -> Wire:
        step = self._graph.steps[name]
        document = {
            "flow": self._graph.name,
            "step": name,
            "kind": step.kind,
            "targets": list(step.targets),
            "stack": stack,
            "parallel": parallel,
            "notes": self._options[name].notes,
        }
        return artifacts.save(document, self._blobs).wire()


def gang_of(step: StepPlan, nodes: int, room: Capacity | None) -> StepPlan:
    """A step's plan for so many nodes, each with its own artifacts; on this machine they share what there is."""
    resources = step.settings.resources
    share = None if room is None else room.cpus / nodes
    asked = resources.get("cpu_count", DEFAULT_CPUS)
    less: dict[str, Any] = {} if share is None or asked <= share else {"cpu_count": share}
    memory = resources.get("memory", 0)
    if room is not None and memory * nodes > room.memory:
        less["memory"] = room.memory // nodes
    settings = attrs.evolve(
        step.settings,
        resources=attrs.evolve(resources, nodes=nodes, **less),
        launch=resolved({"launcher": "single", "outputs": "all"}),
    )
    return attrs.evolve(step, settings=settings)
