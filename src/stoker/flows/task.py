"""Runs one task of a flow: an instance with its artifacts behind it, the step's method, and what the method left.

Artifacts are loaded when they are first read, and only what was set or read is looked at again afterwards: the rest
goes on to the next task as it is. The job's inputs are, as trees (`core.plan.StepPlan`):

    "place"       JSON: {"flow", "step", "end", "join", "kind", "targets", "index", "stack": [[index, splits], …],
                         "parallel": [nodes, task], "notes": {decorator: words}}
    "parameters"  {"dict": {name: value}}         "artifacts"   {"dict": {name: value}}
    "elements"    {"list": [value, …]}            "inputs"      a join's: the list of the tasks that meet
"""

from __future__ import annotations

import contextlib
import copy
import json
import os
from typing import TYPE_CHECKING, Any, Callable, Final, Iterator, Mapping

import attrs

from stoker.core.artifact import from_wire
from stoker.core.cards import Document
from stoker.core.errors import GraphError, SerializationError, StokerError, nearest
from stoker.core.graph import CARD, ELEMENTS, GANG, OWN, TRANSITION
from stoker.core.protocol import StepTask, WorkerJob
from stoker.core.units import UNSET
from stoker.core.words import shown
from stoker.flows import current as flowcurrent
from stoker.flows import mutators as flowmutators
from stoker.flows import transitions
from stoker.flows import user_decorators as flowusers
from stoker.flows.instance import TASK, Transition, constants_of, parameters_of
from stoker.flows.parameters import Config, Configs
from stoker.flows.secretsources import read_secrets
from stoker.store import artifacts
from stoker.store.blobs import Blobs
from stoker.store.previewing import with_preview
from stoker.store.serializers.pickles import ANEW
from stoker.worker import metrics, modules
from stoker.worker.context import context
from stoker.worker.secrets import revealed

if TYPE_CHECKING:
    from stoker.flows.cardclient import TaskOfCard
    from stoker.flows.cards import TaskCards

Wire = Mapping[str, Any]
_FIXED: Final = frozenset({int, float, complex, bool, str, bytes, type(None), frozenset, range})
"""Types whose values nobody can change: what was read is as it was."""


_MUTATED: Final[dict[type, tuple[str, Any]]] = {}
"""Flows' classes → the parameters that their mutators made something of last, and what that was."""


_CONSTANTS: Final[dict[type, dict[str, Any]]] = {}
"""Flows' classes → their lists, dicts and sets as the module defines them, kept before the first task of a process."""


def _restore_constants(kind: type) -> None:
    """Give a class its constants again as they stand in its module: a task before this one may have changed a list.

    A worker runs task after task, and what one leaves in the class must not reach another. What cannot be copied stays.
    """
    if kind not in _CONSTANTS:
        values = {name: getattr(kind, name) for name in constants_of(kind)}
        changeable = {name: value for name, value in values.items() if type(value) in (list, dict, set, bytearray)}
        _CONSTANTS[kind] = {}
        for name, value in changeable.items():
            with contextlib.suppress(Exception):  # of the user's own classes inside
                _CONSTANTS[kind][name] = copy.deepcopy(value)
    for name, value in _CONSTANTS[kind].items():
        setattr(kind, name, copy.deepcopy(value))


class FlowTask:
    """One task; what `flows.instance.FlowInstance` asks of its `RunningTask`."""

    def __init__(self, job: WorkerJob, step: StepTask, blobs: Blobs) -> None:
        inputs = job.inputs
        source = step.source
        self.blobs = blobs
        self._previews = step.previews
        self.place: Mapping[str, Any] = artifacts.load(from_wire(inputs["place"]["value"]), blobs)
        self.transition: Transition | None = None
        self.cards: TaskCards | None = None
        self._pathspec = ""
        self._outputs: dict[str, Wire] = {}
        self.token = "" if job.gang is None else job.gang.token
        self._wires: dict[str, Wire] = {name: tree["value"] for name, tree in _entries(inputs, "artifacts")}
        self._parameters = {name: tree["value"] for name, tree in _entries(inputs, "parameters")}
        self._elements = [tree["value"] for tree in inputs.get("elements", {"list": []})["list"]]
        self._joined = inputs.get("inputs")
        self._secrets = job.secrets
        self._read: dict[str, Any] = {}
        self._values: dict[str, Any] = {}
        kind = self._class_of_run(modules.object_of(attrs.evolve(source, qualname=source.qualname.rpartition(".")[0])))
        _restore_constants(kind)
        self.flow = kind.__new__(kind)
        self._names = frozenset(parameter.name for parameter in parameters_of(kind).values())
        self.flow.__dict__[TASK] = self
        for name in self._wires:
            if hasattr(kind, name):
                self.value(name)  # else the class's own attribute of that name would be read

    def _class_of_run(self, kind: Any) -> Any:
        """The flow's class as its mutators and the command line make it, with the configs that the run has."""
        configs = {}
        for attribute, config in parameters_of(kind).items():
            if isinstance(config, Config):
                content = self.parameter(config.name)
                configs[attribute] = config.value_for_step(None if content is UNSET else content)
        self._configs = Configs(kind, configs)
        attached = json.loads(os.environ.get(flowcurrent.VARIABLE, "{}")).get("with", ())
        changed = flowmutators.has_mutators(kind)
        if not changed and not any(flowusers.find_user_decorator(text.partition(":")[0]) for text in attached):
            return kind
        key = json.dumps([{name: self._parameters[name]["d"] for name in sorted(self._parameters)}, attached])
        if _MUTATED.get(kind, ("", None))[0] != key:
            early = flowmutators.apply_pre_mutate(kind, self._configs)
            _MUTATED[kind] = key, flowmutators.apply_mutate(early, self._configs, attached)
        return _MUTATED[kind][1]

    def __call__(self) -> None:
        """Run the step's method."""
        method: Callable[..., Any] = getattr(self.flow, self.place["step"])
        secrets = self.note("secrets")
        if secrets is not None:
            os.environ.update(read_secrets(**secrets))
        inputs = None
        if self._joined is not None:
            inputs = Inputs(artifacts.load(from_wire(self._joined["value"]), self.blobs), self.blobs, self)
        with flowcurrent.enter_task(self):
            self._pathspec = str(flowcurrent.current.pathspec)
            self.cards = self._new_cards()
            if getattr(method, flowusers.USERS, ()):
                self._run_with_wrappers(method, inputs)
            elif inputs is not None:
                method(inputs)
            else:
                method()
        caught = self.note("catch")
        if caught is not None and caught["var"]:
            self.flow.__dict__[caught["var"]] = None  # it did not fail

    def _run_with_wrappers(self, method: Callable[..., Any], inputs: Inputs | None) -> None:
        """Run it inside of the decorators of its user, and go where they say."""
        name = self.place["step"]
        way = flowusers.call_wrapped(method, name, self.flow, inputs, self._configs)
        if way is not None and self.place["kind"] != "end":
            self.transition = None  # of a step that said it before it failed
            transitions.call_next(self.flow, transitions.step_of(type(self.flow), name), way)

    def note(self, name: str) -> Mapping[str, Any] | None:
        """What a decorator of the step was given; None where the step does not have it."""
        words: Mapping[str, Any] | None = self.place["notes"].get(name)
        return words

    # What the instance asks

    def value(self, name: str) -> Any:
        """An artifact, loaded and put into the instance."""
        wire = self._wires.get(name)
        if wire is None:
            raise AttributeError(
                f"step '{self.place['step']}' has no artifact '{name}'{_suggest(name, self._wires)}"
                + ("; a join reads them from its inputs" if self._joined is not None else "")
            )
        value = artifacts.load(from_wire(wire), self.blobs)
        self.flow.__dict__[name] = self._read[name] = value
        return value

    def parameter(self, name: str) -> Any:
        """A parameter's value, loaded once."""
        if name not in self._values:
            wire = self._parameters.get(name)
            value = UNSET if wire is None else artifacts.load(from_wire(wire), self.blobs)
            self._values[name] = revealed(value, self._secrets)
        return self._values[name]

    def has_parameter(self, name: str) -> bool:
        """Whether a name is that of a parameter."""
        return name in self._names

    def parameters(self) -> list[str]:
        """The parameters' names."""
        return list(self._parameters)

    def step_name(self) -> str:
        """The name of its step."""
        return str(self.place["step"])

    def joins(self) -> bool:
        """Whether its step takes inputs."""
        return self._joined is not None

    def parameter_names(self) -> list[str]:
        """The attributes of the flow that are parameters or configs."""
        return sorted(parameters_of(type(self.flow)))

    def element(self) -> Any:
        """The foreach's element that the task is for; on the nodes of a `num_parallel` the node's index."""
        if self.place.get("parallel") is not None:
            return context.node
        return self._element(len(self._elements) - 1) if self._elements else None

    def _element(self, level: int) -> Any:
        key = f"element {level}"
        if key not in self._values:
            self._values[key] = artifacts.load(from_wire(self._elements[level]), self.blobs)
        return self._values[key]

    def index(self) -> int | None:
        """Its place among the splits, or among the nodes of a `num_parallel`."""
        if self.place.get("parallel") is not None:
            return context.node
        stack = self.place["stack"]
        return int(stack[-1][0]) if stack else None

    def stack(self) -> list[tuple[int, int, Any]]:
        """(index, splits, element) of every foreach around it, and of the `num_parallel` that it is a node of."""
        frames = [(index, count, self._element(level)) for level, (index, count) in enumerate(self.place["stack"])]
        gang = self.place.get("parallel")
        return frames if gang is None else [*frames, (context.node, int(gang[0]), context.node)]

    def digests(self) -> list[str]:
        """What tells its elements from others', outermost first."""
        return [str(wire["d"]) for wire in self._elements]

    def pass_on(self, name: str, wire: Wire) -> None:
        """Take an artifact over as it is."""
        self._wires[name] = wire

    def names(self) -> set[str]:
        """Artifacts that it has now."""
        return {*self._wires, *(name for name in self.flow.__dict__ if name != TASK)}

    def forget(self, name: str) -> None:
        """Let an artifact end here."""
        self._wires.pop(name, None)
        self._read.pop(name, None)

    # What it leaves

    @property
    def extra_time(self) -> float:
        """Seconds that its cards may take to render: they are no part of its step's time."""
        return 0.0 if self.cards is None or context.node else self.cards.rendering_time

    def save_outputs(self) -> dict[str, Any]:
        """The outputs: what goes on as it came, what is new, and where the flow goes."""
        attributes = self._attributes()
        outputs: dict[str, Any] = {name: wire for name, wire in self._wires.items() if name not in attributes}
        for name, value in attributes.items():
            outputs[name] = self._wire(name, value)
        outputs.update(self._transition_outputs(outputs))
        documents = [] if self.cards is None else self._finished_cards(outputs)
        if documents:
            outputs[CARD] = artifacts.save(documents, self.blobs).wire()
        if self.place.get("parallel") is None:
            return outputs
        return {GANG: artifacts.save(outputs, self.blobs).wire()}

    def save_what_is_left(self) -> dict[str, Any]:
        """What it has when it failed, for the step behind a `@catch`; what cannot be saved is left out."""
        if self.note("catch") is None:
            return {}
        outputs: dict[str, Any] = dict(self._wires)
        for name, value in self._attributes().items():
            with contextlib.suppress(Exception):  # the user's own classes, half made
                outputs[name] = self._wire(name, value)
        return outputs if self.place.get("parallel") is None else {GANG: artifacts.save(outputs, self.blobs).wire()}

    def _new_cards(self) -> TaskCards | None:
        """The cards of its step's `@card`s; None where it has none."""
        values = self.note("card")
        if values is None:
            return None
        from stoker.flows.cards import CardSpec, TaskCards

        names = attrs.fields_dict(CardSpec)
        specs = [CardSpec(**{word: one[word] for word in names if word in one}) for one in values["cards"]]
        return TaskCards(specs, pathspec=self._pathspec, keep=self._keep_cards, task=self._task_of_card, flow=self.flow)

    def _task_of_card(self, finished: bool) -> TaskOfCard:
        from stoker.flows.cardclient import TaskOfCard

        def wires() -> dict[str, Wire]:
            if finished:
                return self._outputs
            return {**self._wires, **{name: self._wire(name, value) for name, value in self._attributes().items()}}

        return TaskOfCard(self._pathspec, wires, self.blobs, finished=finished)

    def _attributes(self) -> dict[str, Any]:
        return {name: value for name, value in self.flow.__dict__.items() if name != TASK}

    def _finished_cards(self, outputs: dict[str, Any]) -> list[Document]:
        self._outputs = {name: wire for name, wire in outputs.items() if name not in OWN}
        assert self.cards is not None
        return self.cards.finish()

    def _keep_cards(self, documents: list[Document]) -> None:
        """Keep its cards while it runs."""
        # Never inline: secrets are masked in what a step logs, which must not change the bytes.
        wire = artifacts.save(documents, self.blobs, inline_limit=0).wire()
        metrics.keep_card(wire, node=None if self.place.get("parallel") is None else context.node)

    def _wire(self, name: str, value: Any) -> Wire:
        if name in self._read and self._read[name] is value and type(value) in _FIXED:
            return self._wires[name]
        try:
            artifact = artifacts.save(value, self.blobs)
            return (with_preview(artifact, value, self.blobs) if self._previews else artifact).wire()
        except StokerError as error:
            error.where = error.where or f"step '{self.place['step']}', artifact '{name}'"
            if isinstance(error, SerializationError) and error.fix == ANEW:
                error.fix = f"keep it in a variable of the step instead of self.{name}, and make it anew where needed"
            raise
        except RecursionError as error:
            raise SerializationError(
                f"step '{self.place['step']}', artifact '{name}' is nested too deeply to be kept: {error}"
            ) from error

    def _transition_outputs(self, outputs: Mapping[str, Any]) -> dict[str, Any]:
        place, transition = self.place, self.transition
        if transition is None:
            # Node 0 of a gang says where all go; the others may return before.
            if place["kind"] != "end" and (place.get("parallel") is None or context.node == 0):
                raise GraphError(
                    f"step '{place['step']}' ended without self.next(…)", fix="call self.next(…) as its last statement"
                )
            return {}
        if place["kind"] != transition.kind or not set(transition.targets) <= set(place["targets"]):
            raise GraphError(
                f"step '{place['step']}' goes to {', '.join(transition.targets)} ({transition.kind}), where its source "
                f"says {', '.join(place['targets']) or 'nothing'} ({place['kind']})",
                where=transition.where,
                fix="write self.next(…) as it is meant",
            )
        document: dict[str, Any] = {"next": list(transition.targets), "kind": transition.kind, "name": transition.name}
        more: dict[str, Any] = {}
        if transition.kind == "foreach":
            more, document["count"] = self._save_elements(transition, outputs)
        elif transition.kind == "parallel":
            document["count"] = transition.count
        return {**more, TRANSITION: artifacts.save(document, self.blobs).wire()}

    def _save_elements(self, transition: Transition, outputs: Mapping[str, Any]) -> tuple[dict[str, Any], int]:
        """Save the elements of a foreach, one by one unless the list is saved in a form that has them one by one."""
        where = f"{transition.where} step '{self.place['step']}'"
        name = transition.name
        if not hasattr(self.flow, name):
            near = _suggest(name, self.names())
            raise GraphError(
                f"foreach='{name}', but self.{name} was not set{near}", where=where, fix=f"set self.{name}"
            )
        value = getattr(self.flow, name)
        if isinstance(value, Mapping):
            raise GraphError(
                f"foreach='{name}': self.{name} is a {type(value).__name__}, which has keys and values",
                where=where,
                fix=f"choose one of them: self.{name} = list(self.{name}), or list(self.{name}.values())",
            )
        if not hasattr(type(value), "__iter__") and not hasattr(type(value), "__getitem__"):
            raise GraphError(
                f"foreach='{name}': self.{name} is {shown(value)}, not a list",
                where=where,
                fix=f"set it to a list: self.{name} = [self.{name}]",
            )
        items = list(value)
        if not items:
            raise GraphError(f"foreach='{name}': self.{name} is empty", where=where, fix="go another way by a switch")
        most = json.loads(os.environ.get(flowcurrent.VARIABLE, "{}")).get("max_splits")
        if most is not None and len(items) > most:
            raise GraphError(
                f"foreach='{name}' has {len(items)} elements, and --max-num-splits is {most}",
                where=where,
                fix=f"write --max-num-splits {len(items)}",
            )
        whole = outputs.get(name)
        if type(value) is list and whole is not None and whole["s"] in ("json", "list"):
            return {ELEMENTS: whole}, len(items)
        return {ELEMENTS: artifacts.save_split(items, self.blobs).wire()}, len(items)


class Input:
    """One of the tasks that meet in a join: its artifacts, loaded when they are read, and what all tasks have.

    `join` is the task that joins, `splits` the number of tasks that meet.
    """

    def __init__(self, entry: Mapping[str, Any], blobs: Blobs, join: FlowTask, splits: int) -> None:
        self._entry = entry
        self._blobs = blobs
        self._join = join
        self._splits = splits

    @property
    def name(self) -> str:
        """The flow's name."""
        return str(self._join.flow.name)

    @property
    def index(self) -> int | None:
        """Its place among the splits."""
        index = self._entry.get("index")
        return None if index is None else int(index)

    @property
    def input(self) -> Any:
        """The foreach's element that it was for; of a node of a `num_parallel` the node's index."""
        wire = self._entry.get("element")
        return self.index if wire is None else artifacts.load(from_wire(wire), self._blobs)

    def foreach_stack(self) -> list[tuple[int, int, Any]]:
        """(index, number of splits, element) of every foreach around it, outermost first."""
        around = self._join.stack()
        return around if self.index is None else [*around, (self.index, self._splits, self.input)]

    def artifact_wires(self) -> Mapping[str, Wire]:
        """What it has, not loaded."""
        wires: Mapping[str, Wire] = self._entry["artifacts"]
        return wires

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        wires = self._entry["artifacts"]
        kind = type(self._join.flow)
        if name not in wires and (name in parameters_of(kind) or name in constants_of(kind)):
            return getattr(self._join.flow, name)  # the same in every task
        if name not in wires:
            raise AttributeError(f"task '{self._entry['key']}' has no artifact '{name}'{_suggest(name, wires)}")
        value = self.__dict__[name] = artifacts.load(from_wire(wires[name]), self._blobs)
        return value

    def __contains__(self, name: str) -> bool:
        return name in self._entry["artifacts"]

    def __repr__(self) -> str:
        return f"<task '{self._entry['key']}'>"


class Inputs:
    """The tasks that meet in a join: in the order of the splits, and by the name of the step that they come from."""

    def __init__(self, entries: list[Mapping[str, Any]], blobs: Blobs, join: FlowTask) -> None:
        self._all = [Input(entry, blobs, join, len(entries)) for entry in entries]
        # Of the tasks of one step the last, as in Metaflow.
        self._by_step = {entry["step"]: task for entry, task in zip(entries, self._all)}

    def __iter__(self) -> Iterator[Input]:
        return iter(self._all)

    def __len__(self) -> int:
        return len(self._all)

    def __getitem__(self, index: int) -> Input:
        return self._all[index]

    def __getattr__(self, name: str) -> Input:
        if name.startswith("_") or name not in self._by_step:
            raise AttributeError(f"no task of a step '{name}' comes to this join{_suggest(name, self._by_step)}")
        return self._by_step[name]

    def __repr__(self) -> str:
        return f"<{len(self._all)} inputs>"


def _entries(inputs: Mapping[str, Any], name: str) -> Any:
    return inputs.get(name, {"dict": {}})["dict"].items()


def _suggest(name: str, names: Any) -> str:
    return nearest(name, [candidate for candidate in names if not candidate.startswith("_")])
