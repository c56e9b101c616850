"""Follows a run of a flow: which tasks come next, what each is given, and when a join has all its inputs.

Starts nothing and records nothing: from what a task made it computes what follows. The run itself uses it, and so does
`spin`, which follows a run that is over. A task's key is its step's name, with "#2" where the step is reached again,
and an index for each foreach that it is in.
"""

from __future__ import annotations

import json
from hashlib import sha256
from typing import Any, Final, Mapping, Sequence

import attrs

from stoker.core.artifact import content_of, from_wire, names_in
from stoker.core.errors import GraphError
from stoker.core.graph import ELEMENTS, GANG, OWN, TRANSITION, FlowGraph
from stoker.store import artifacts
from stoker.store.blobs import Blobs

Wire = Mapping[str, Any]
Trees = Mapping[str, Any]
"""What a task is given, as `flows.task` reads it."""
_NOTHING: Final[Mapping[str, Wire]] = {}
_NEWER: Final = "start a new run of the flow as it is now"


class Split:
    """A step that split into branches, and the branches that have reached the join."""

    __slots__ = ("arrived", "count", "elements", "frames", "kind")

    def __init__(self, kind: str, count: int, frames: tuple[Branch, ...], elements: Sequence[Wire] | None) -> None:
        self.kind = kind
        self.count = count
        self.frames = frames
        self.elements = elements
        self.arrived: dict[int, dict[str, Any]] = {}


class Branch:
    """One branch of a split."""

    __slots__ = ("index", "split")

    def __init__(self, split: Split, index: int) -> None:
        self.split = split
        self.index = index


@attrs.frozen(slots=True)
class TaskState:
    """A task that was started: its step, the branches that it is on, and what it inherits."""

    key: str
    """The task's key in the run."""
    step: str
    """The name of its step."""
    frames: tuple[Branch, ...]
    """The branches of splits that it is on, outermost first."""
    inherited: Mapping[str, Wire]
    """The artifacts of the task before it, by name."""
    group: str = ""
    """The key of all elements of the foreach that it is one of."""
    nodes: int = 0
    """The nodes of a `num_parallel`; 0 for any other task."""

    @property
    def element(self) -> Branch | None:
        """Its way of the innermost foreach; None outside one."""
        return next((frame for frame in reversed(self.frames) if frame.split.kind != "split"), None)


@attrs.frozen(kw_only=True)
class NextTasks:
    """The tasks that may start after a task has ended."""

    tasks: Sequence[tuple[TaskState, Trees]] = ()
    """Each task with its inputs."""
    joined_split: Split | None = None
    """The split whose branches have all come to their join now, if there is one."""
    by_node: Sequence[Mapping[str, Wire]] = ()
    """The artifacts of each node of a gang."""


def joined_inputs(entries: Sequence[Mapping[str, Any]], blobs: Blobs) -> Wire:
    """Save what a join is given; its `meta` says what the artifacts inside refer to, and what their content is."""
    wires = [wire for entry in entries for wire in entry["artifacts"].values()]
    names: dict[str, Any] = {**names_in(wires)}
    saved = artifacts.save(entries, blobs)
    if any("content" in (wire.get("m") or {}) for wire in wires):
        plain = [
            {**entry, "artifacts": {name: content_of(wire) for name, wire in entry["artifacts"].items()}}
            for entry in entries
        ]
        names["content"] = sha256(json.dumps(plain, sort_keys=True, default=str).encode()).hexdigest()
    return (attrs.evolve(saved, meta={**saved.meta, **names}) if names else saved).wire()


class Traversal:
    """Follows one run of a flow. All tasks get `parameters`; `notes` are each step's words for its worker."""

    def __init__(
        self,
        graph: FlowGraph,
        parameters: Mapping[str, Wire],
        blobs: Blobs,
        *,
        notes: Mapping[str, Mapping[str, Any]],
    ) -> None:
        self._graph = graph
        self._parameters = {"dict": {name: {"value": wire} for name, wire in parameters.items()}}
        self._blobs = blobs
        self._notes = notes
        self._visits: dict[tuple[str, str], int] = {}
        self._interned: dict[tuple[str, str], Wire] = {}

    def begin(self) -> NextTasks:
        """The first task."""
        return NextTasks(tasks=[self._start(self._graph.start, (), _NOTHING)])

    def after(self, task: TaskState, outputs: Mapping[str, Wire]) -> NextTasks:
        """What follows a task that made this; `GraphError` where the flow does not have what the task asked for."""
        if task.nodes:
            return self._after_gang(task, outputs)
        produced = {name: self._intern(name, wire) for name, wire in outputs.items() if name not in OWN}
        word = outputs.get(TRANSITION)
        way = {} if word is None else artifacts.load(from_wire(word), self._blobs)
        elements = outputs.get(ELEMENTS)
        targets = way.get("next", ())
        kind = way.get("kind", "end")
        self._check(task, targets)
        if kind in ("linear", "switch"):
            return self._reach(targets[0], task, produced)
        if kind == "split":
            split = Split("split", len(targets), task.frames, None)
            frames = [(*task.frames, Branch(split, index)) for index in range(len(targets))]
            return NextTasks(
                tasks=[self._start(target, branch_frames, produced) for target, branch_frames in zip(targets, frames)]
            )
        if kind == "parallel":
            return NextTasks(tasks=[self._start(targets[0], task.frames, produced, nodes=way["count"])])
        if kind == "foreach" and elements is not None:
            wires = [element.wire() for element in artifacts.items(from_wire(elements), self._blobs)]
            split = Split(kind, way["count"], task.frames, wires)
            frames = [(*task.frames, Branch(split, index)) for index in range(split.count)]
            return NextTasks(tasks=[self._start(targets[0], branch_frames, produced) for branch_frames in frames])
        return NextTasks()

    def _check(self, task: TaskState, targets: Sequence[str]) -> None:
        """A run that goes on, or is followed, may have gone where the flow of today does not."""
        for target in targets:
            if target not in self._graph.steps:
                raise GraphError(
                    f"task '{task.key}' went on to step '{target}', which the flow no longer has",
                    where=self._graph.where,
                    fix=_NEWER,
                )

    def _intern(self, name: str, wire: Wire) -> Wire:
        """The same artifact as the same object, however many tasks have it."""
        return self._interned.setdefault((name, f"{wire['s']}:{wire['d']}"), wire)

    def _reach(self, target: str, task: TaskState, produced: Mapping[str, Wire]) -> NextTasks:
        step = self._graph.steps[target]
        if not step.join:
            return NextTasks(tasks=[self._start(target, task.frames, produced)])
        if not task.frames:
            raise GraphError(
                f"step '{target}' joins, and task '{task.key}', which went on to it, is on no split",
                where=step.where,
                fix=_NEWER,
            )
        frame = task.frames[-1]
        split = frame.split
        split.arrived[frame.index] = {
            "step": task.step,
            "key": task.key,
            "index": frame.index if split.elements is not None else None,
            "element": split.elements[frame.index] if split.elements is not None else None,
            "artifacts": dict(produced),
        }
        if len(split.arrived) < split.count:
            return NextTasks()
        entries = [split.arrived[index] for index in sorted(split.arrived)]
        inputs_wire = joined_inputs(entries, self._blobs)
        split.arrived.clear()
        return NextTasks(
            tasks=[self._start(target, split.frames, _NOTHING, inputs_wire=inputs_wire)], joined_split=split
        )

    def _after_gang(self, task: TaskState, outputs: Mapping[str, Wire]) -> NextTasks:
        """All nodes of a `num_parallel` are done: their join gets the artifacts of each."""
        word = outputs.get(GANG)
        if word is None:  # caught: no node made anything
            nodes = [dict(task.inherited)] * task.nodes
        else:
            parts = artifacts.items(from_wire(word), self._blobs) if task.nodes > 1 else [from_wire(word)]
            nodes = [artifacts.load(part, self._blobs) for part in parts]
        node_artifacts = [{name: wire for name, wire in produced.items() if name not in OWN} for produced in nodes]
        # What no node made: its failure, where that was caught, and what its devices did.
        made_here = {name for produced in node_artifacts for name in produced}
        more = {name: wire for name, wire in outputs.items() if name not in OWN and name not in made_here}
        entries: list[dict[str, Any]] = []
        for node, produced in enumerate(node_artifacts):
            key = f"{task.key}[{node}]"
            entries.append(
                {"step": task.step, "key": key, "index": node, "element": None, "artifacts": {**produced, **more}}
            )
        target = self._graph.steps[task.step].targets[0]
        inputs_wire = joined_inputs(entries, self._blobs)
        next_task = self._start(target, task.frames, _NOTHING, inputs_wire=inputs_wire)
        return NextTasks(tasks=[next_task], by_node=node_artifacts if word is not None else ())

    # Tasks begin

    def _start(
        self,
        name: str,
        frames: tuple[Branch, ...],
        inherited: Mapping[str, Wire],
        *,
        inputs_wire: Wire | None = None,
        nodes: int = 0,
    ) -> tuple[TaskState, Trees]:
        """A task with a key of its own: a switch may go back, and reach a step again with the same indices."""
        indices = "".join(f"[{frame.index}]" for frame in frames if frame.split.kind != "split")
        visit = self._visits[name, indices] = self._visits.get((name, indices), 0) + 1
        key = (name if visit == 1 else f"{name}#{visit}") + indices
        task = TaskState(key, name, frames, inherited, key.rpartition("[")[0], nodes)
        return task, self._inputs(task, inputs_wire)

    def _inputs(self, task: TaskState, inputs_wire: Wire | None) -> dict[str, Any]:
        """The trees of what a task is given."""
        spread = [frame for frame in task.frames if frame.split.kind != "split"]
        stack = [[frame.index, frame.split.count] for frame in spread if frame.split.elements is not None]
        elements = [frame.split.elements[frame.index] for frame in spread if frame.split.elements is not None]
        trees: dict[str, Any] = {
            "place": {"value": self._save_place(task.step, stack, [task.nodes, task.key] if task.nodes else None)},
            "parameters": self._parameters,
            "artifacts": {"dict": {name: {"value": wire} for name, wire in task.inherited.items()}},
        }
        if elements:
            trees["elements"] = {"list": [{"value": wire} for wire in elements]}
        if inputs_wire is not None:
            trees["inputs"] = {"value": inputs_wire}
        return trees

    def _save_place(self, name: str, stack: list[Any], parallel: Any) -> Wire:
        step = self._graph.steps[name]
        document = {
            "flow": self._graph.name,
            "step": name,
            "kind": step.kind,
            "targets": list(step.targets),
            "stack": stack,
            "parallel": parallel,
            "notes": self._notes[name],
        }
        return artifacts.save(document, self._blobs).wire()
