"""Binds each step's parameters once the steps before it are done, counts a fan-out's elements, and keys cached results.

Works on artifacts' descriptions only: values are loaded by the workers that need them.
"""

from __future__ import annotations

from typing import Any, Iterable, Iterator, Mapping, Sequence

from stoker.core.artifact import content_of, from_wire, names_in
from stoker.core.errors import DamagedArtifact, StokerError
from stoker.core.plan import StepPlan
from stoker.plan.cachekey import DATA, Environment, FixedEnvironment, InputCode, KeyParts
from stoker.store import artifacts
from stoker.store.blobs import Blobs

Wire = Mapping[str, Any]


class UnequalLengths(StokerError):
    """The lists that a fan-out iterates over together do not have the same length."""


class StepBindings:
    """The outputs of finished steps, and the inputs of the next ones."""

    def __init__(self, blobs: Blobs) -> None:
        self._blobs = blobs
        self._outputs: dict[str, Mapping[str, Wire]] = {}
        self._counts: dict[str, int] = {}
        self._lists: dict[tuple[str, str], Wire] = {}
        # Of a fan-out, what its elements get by parameter, and by index what they made: as JSON, which takes a third of
        # the memory that the values would.
        self._columns: dict[str, dict[str, Sequence[Wire]]] = {}
        self._made: dict[str, list[str]] = {}
        # Of a fan-out whose elements come one by one.
        self._elements: dict[str, dict[int, Mapping[str, Any]]] = {}

    def keep(self, key: str, outputs: Mapping[str, Wire], *, fanout: str = "", index: int = 0) -> None:
        """Remember a finished step's outputs, or those of the element of a fan-out."""
        if fanout in self._made:
            self._made[fanout][index] = artifacts.encode(outputs)
        else:
            self._outputs[key] = outputs

    def outputs(self, key: str) -> Mapping[str, Wire]:
        """The outputs of a step that is done; of a fan-out those that were asked for as lists."""
        return self._outputs[key]

    def made(self, key: str, index: int) -> Mapping[str, Wire]:
        """The outputs of an element."""
        outputs: Mapping[str, Wire] = _unpacked(self._made[key][index])
        return outputs

    def count(self, key: str) -> int | None:
        """How many elements a fan-out has; None for other steps, and before it is known."""
        return self._counts.get(key)

    def bind(self, step: StepPlan, index: int | None = None) -> dict[str, Any]:
        """The step's input trees with values for leaves; `index` for an element of a fan-out."""
        if index is None:
            return {name: self._tree(tree) for name, tree in step.inputs.items()}
        fixed = {name: self._tree(tree) for name, tree in step.inputs.items() if name not in step.mapped}
        return {**fixed, **self._element(step, index)}

    def _tree(self, tree: Mapping[str, Any]) -> dict[str, Any]:
        if "value" in tree:
            return {"value": tree["value"]}
        if "element" in tree:
            return {"value": _unpacked(self._made[tree["step"]][tree["element"]])[tree["output"]]}
        if "step" in tree:
            return {"value": self.output(tree["step"], tree["output"])}
        if "list" in tree:
            return {"list": [self._tree(item) for item in tree["list"]]}
        return {"dict": {name: self._tree(item) for name, item in tree["dict"].items()}}

    def output(self, key: str, name: str) -> Wire:
        """One output; a fan-out's is the list of its elements' outputs, written down once."""
        count = self._counts.get(key)
        if count is None:
            return self._outputs[key][name]
        gathered = self._lists.get((key, name))
        if gathered is None:
            items = (from_wire(_unpacked(made)[name]) for made in self._made[key])
            gathered = self._lists[key, name] = artifacts.gather(items, self._blobs).wire()
        return gathered

    def makers(self, digest: str) -> list[str] | None:
        """The steps to run again for a lost artifact: none for a list that is gathered again from steps' outputs.

        None where no step of this run made it.
        """
        gathered = [name for name, wire in self._lists.items() if wire["d"] == digest]
        for name in gathered:
            del self._lists[name]
        for key, outputs in self._every_output():
            if any(self._contains(wire, digest) for wire in outputs.values()):
                return [key]
        return [] if gathered else None

    def _every_output(self) -> Iterator[tuple[str, Mapping[str, Wire]]]:
        for key, made in self._made.items():  # first: a sweep's outputs are those of its best element
            yield from ((f"{key}[{index}]", _unpacked(outputs)) for index, outputs in enumerate(made) if outputs)
        yield from ((key, outputs) for key, outputs in self._outputs.items() if key not in self._made)

    def _contains(self, wire: Wire, digest: str) -> bool:
        """Whether an artifact is the one with this digest, or a list with it inside."""
        if wire["d"] == digest:
            return True
        if wire["s"] != "list":
            return False
        try:
            parts = artifacts.items(from_wire(wire), self._blobs)
        except DamagedArtifact:
            return False
        return any(self._contains(part.wire(), digest) for part in parts)

    def first_lost(self, trees: Iterable[Mapping[str, Any]]) -> str:
        """The digest of the first artifact in input trees that is lost or cut short; empty without one."""
        for tree in trees:
            if "value" in tree:
                lost = artifacts.unusable(from_wire(tree["value"]), self._blobs)
            else:
                lost = self.first_lost(tree["list"] if "list" in tree else tree["dict"].values())
            if lost:
                return lost
        return ""

    # Fan-outs

    def expand(self, step: StepPlan) -> int:
        """How many elements the fan-out has; `UnequalLengths` where its lists differ."""
        columns = {name: self._column(step.inputs[name]) for name in step.mapped}
        lengths = {name: len(column) for name, column in columns.items()}
        if len(set(lengths.values())) > 1:
            counts = ", ".join(f"{name} has {length}" for name, length in lengths.items())
            raise UnequalLengths(
                f"the lists to map over differ in length: {counts}",
                where=f"{step.where} step '{step.key}'",
                fix="make them equally long, or hand the one that is the same for all elements over by keyword",
            )
        count = next(iter(lengths.values()))
        self._counts[step.key] = count
        self._columns[step.key] = columns
        self._made[step.key] = [""] * count
        return count

    def begin_sweep(self, step: StepPlan, count: int) -> None:
        """Begin a sweep of at most so many elements; `add_element` says of each what it gets."""
        self._made[step.key] = [""] * count

    def _column(self, tree: Mapping[str, Any]) -> Sequence[Wire]:
        if "list" in tree:
            return list(tree["list"])
        if "step" in tree and tree["step"] in self._counts:
            return _ElementsOutputs(tree["step"], tree["output"], self._counts[tree["step"]])
        whole = tree["value"] if "value" in tree else self.output(tree["step"], tree["output"])
        return _Packed(
            [artifacts.encode({"value": item.wire()}) for item in artifacts.each_item(from_wire(whole), self._blobs)]
        )

    def add_element(self, key: str, index: int, trees: Mapping[str, Any]) -> None:
        """Add one element of a fan-out whose elements come one by one, with its input trees."""
        self._elements.setdefault(key, {})[index] = trees

    def _element(self, step: StepPlan, index: int) -> dict[str, Any]:
        columns = self._columns.get(step.key)
        trees = self._elements[step.key][index] if columns is None else {name: columns[name][index] for name in columns}
        return {name: self._tree(tree) for name, tree in trees.items()}

    def elements_of(self, step: StepPlan, index: int) -> list[str]:
        """What an element draws from beside values: elements of other fan-outs, and steps."""
        sources = []
        for column in self._columns.get(step.key, {}).values():
            if not isinstance(column, _Packed) and "step" in (tree := column[index]):
                sources.append(f"{tree['step']}[{tree['element']}]" if "element" in tree else tree["step"])
        return sources


class _Packed(Sequence[Wire]):
    """Trees that are kept as JSON."""

    def __init__(self, trees: list[str]) -> None:
        self._trees = trees

    def __len__(self) -> int:
        return len(self._trees)

    def __getitem__(self, index: Any) -> Any:
        return _unpacked(self._trees[index])


class _ElementsOutputs(Sequence[Wire]):
    """The outputs of a fan-out's elements. One is bound when the element that takes it is prepared: its own upstream
    element is done by then, the others need not be."""

    def __init__(self, step: str, output: str, count: int) -> None:
        self._step, self._output, self._count = step, output, count

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, index: Any) -> Any:
        return {"step": self._step, "element": index, "output": self._output}


def _unpacked(text: str) -> Any:
    return artifacts.decode(text, 0)[0]


def tree_digest(tree: Mapping[str, Any]) -> str:
    """An input in a cache key: the digests of its values in their structure."""
    if "value" in tree:
        return content_of(tree["value"])
    if "list" in tree:
        return "[" + ",".join(tree_digest(item) for item in tree["list"]) + "]"
    return "{" + ",".join(f"{name!r}:{tree_digest(item)}" for name, item in tree["dict"].items()) + "}"


def key_parts(step: StepPlan, inputs: Mapping[str, Any], here: Environment, input_code: InputCode) -> KeyParts:
    """The parts of the key under which the cache finds the result of a step that is bound to its inputs.

    `here` is the environment of steps without one of their own, and without an image.
    """
    packages, code = step.packages, {}
    names = names_in(_wires(inputs.values(), []))
    if names:
        readings = {name: input_code.read(name) for name in names.get("code", ())}
        code = {name: reading.digest for name, reading in readings.items()}
        more = [name for reading in readings.values() for name in reading.packages]
        packages = tuple(sorted({*packages, *names.get("packages", ()), *more}))
    environment = here
    if step.image or step.environment:
        environment = FixedEnvironment("image" if step.image else "packages", step.image or step.environment)
    identities = environment.identities(packages)
    if step.data:
        # Of what is brought to the step: the digest of all of it, by name.
        identities = {**identities, **{f"{DATA}{name}": one.identity for name, one in step.data.items()}}
    return KeyParts(
        code=step.code,
        inputs={name: tree_digest(tree) for name, tree in inputs.items()},
        input_code=code,
        outputs=output_words(step),
        environment=identities,
        extra=step.settings.cache_key,
    )


def output_words(step: StepPlan) -> list[str]:
    """What a cache key says of a step's outputs."""
    names = [output.name for output in step.outputs]
    if step.split:
        names += [f"split:{name}" for name in step.split]
    return names if step.settings.launch is None else names + _rank_count(step)


def _wires(trees: Iterable[Mapping[str, Any]], wires: list[Wire]) -> list[Wire]:
    """The values of trees, appended to `wires`."""
    for tree in trees:
        if "value" in tree:
            wires.append(tree["value"])
        else:
            _wires(tree["list"] if "list" in tree else tree["dict"].values(), wires)
    return wires


def _rank_count(step: StepPlan) -> list[str]:
    """What the key says of a step whose value is the list of its ranks' values: how many ranks there are."""
    launch = step.settings.launch
    if launch is None or launch.outputs != "all":
        return []
    resources = step.settings.resources
    counts = (launch.num_processes, launch.processes_per_node, resources.node_count, resources.gpus_per_node)
    return [f"ranks:{'/'.join(map(str, counts))}"]
