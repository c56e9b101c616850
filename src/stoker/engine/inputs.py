"""What each step's parameters are bound to, once what comes before is done; and what makes a fan-out's elements.

Works on artifacts' descriptions only: values are loaded by the workers that need them.
"""

from __future__ import annotations

from typing import Any, Iterator, Mapping

from stoker.core.artifact import from_wire
from stoker.core.errors import StokerError
from stoker.core.plan import StepPlan
from stoker.store import artifacts
from stoker.store.blobs import Blobs

Wire = Mapping[str, Any]


class UnequalLengths(StokerError):
    """The lists that a fan-out iterates over together do not have the same length."""


class Inputs:
    """The outputs of the steps that are done, and the inputs of those that are next."""

    def __init__(self, blobs: Blobs) -> None:
        self._blobs = blobs
        self._outputs: dict[str, Mapping[str, Wire]] = {}
        self._counts: dict[str, int] = {}
        self._lists: dict[tuple[str, str], Wire] = {}
        self._elements: dict[str, Any] = {}

    def keep(self, key: str, outputs: Mapping[str, Wire]) -> None:
        """Remember a finished step's outputs."""
        self._outputs[key] = outputs

    def outputs(self, key: str) -> Mapping[str, Wire]:
        """The outputs of a step that is done; of a fan-out those that were asked for as lists."""
        return self._outputs[key]

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
        found = self._lists.get((key, name))
        if found is None:
            items = [from_wire(self._outputs[f"{key}[{index}]"][name]) for index in range(count)]
            found = self._lists[key, name] = artifacts.gather(items, self._blobs).wire()
        return found

    # Fan-outs

    def expand(self, step: StepPlan) -> int:
        """How many elements the fan-out has; `UnequalLengths` where its lists differ."""
        columns: dict[str, list[Any]] = {name: list(self._items(step.inputs[name])) for name in step.mapped}
        lengths = {name: len(column) for name, column in columns.items()}
        if len(set(lengths.values())) > 1:
            told = ", ".join(f"{name} has {length}" for name, length in lengths.items())
            raise UnequalLengths(
                f"the lists to map over differ in length: {told}",
                where=f"{step.where} step '{step.key}'",
                fix="make them equally long, or hand the one that is the same for all elements over by keyword",
            )
        count = next(iter(lengths.values()))
        self._counts[step.key] = count
        names = list(columns)
        self._elements[step.key] = [dict(zip(names, row)) for row in zip(*columns.values())]
        return count

    def _items(self, tree: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
        if "list" in tree:
            yield from tree["list"]
        elif "step" in tree and tree["step"] in self._counts:
            # Bound when the element is prepared: its own upstream element is done by then, the others need not be.
            for index in range(self._counts[tree["step"]]):
                yield {"step": f"{tree['step']}[{index}]", "output": tree["output"]}
        else:
            whole = tree["value"] if "value" in tree else self.output(tree["step"], tree["output"])
            for item in artifacts.items(from_wire(whole), self._blobs):
                yield {"value": item.wire()}

    def element(self, key: str, index: int, trees: Mapping[str, Any]) -> None:
        """What one element is given, of a fan-out that is told of them one by one."""
        self._elements.setdefault(key, {})[index] = trees

    def _element(self, step: StepPlan, index: int) -> dict[str, Any]:
        return {name: self._tree(tree) for name, tree in self._elements[step.key][index].items()}

    def elements_of(self, step: StepPlan, index: int) -> list[str]:
        """The elements of other fan-outs that an element draws from."""
        return [tree["step"] for tree in self._elements[step.key][index].values() if "step" in tree]


def digest_of(tree: Mapping[str, Any]) -> str:
    """What a cache key says of an input: the digests of its values in their structure."""
    if "value" in tree:
        wire = tree["value"]
        return f"{wire['s']}:{wire['d']}"
    if "list" in tree:
        return "[" + ",".join(digest_of(item) for item in tree["list"]) + "]"
    return "{" + ",".join(f"{name!r}:{digest_of(item)}" for name, item in tree["dict"].items()) + "}"
