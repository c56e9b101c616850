"""Steps on this machine: ZenML's local stack leaves out images, clusters and resources, and so does this.

A step gets no more of this machine than there is, its accelerators where there are some, and no image. What is left out
is said once; on a stack with a platform nothing of it is.
"""

from __future__ import annotations

from typing import Any, Final, Mapping

import attrs

from stoker import stacks
from stoker.backends.registry import BACKENDS
from stoker.core.graph import GraphNode
from stoker.core.settings import COMPONENTS, Layer
from stoker.integrations.zenml.parts.notes import note

_HERE: Final = ("local", "inline")
_WANTED: Final = {"cpu_count": "CPUs", "memory": "memory"}


@attrs.frozen
class Room:
    """What this machine has for steps."""

    cpus: float
    memory: int

    def fitted(self, node: GraphNode) -> GraphNode:
        """The step as it can be had here."""
        step = attrs.evolve(node.step, layers=self.layers(node.step.layers, node.key))
        return attrs.evolve(node, step=step, layers=self.layers(node.layers, node.key))

    def layers(self, layers: tuple[Layer, ...], owner: str) -> tuple[Layer, ...]:
        """Layers of settings without what is not here."""
        return tuple(attrs.evolve(layer, values=self._values(layer.values, owner)) for layer in layers)

    def _values(self, values: Mapping[str, Any], owner: str) -> dict[str, Any]:
        kept: dict[str, Any] = {}
        operator = values.get("step_operator")
        for key, value in values.items():
            component, _, flavor = key.partition(".")
            if key == "docker" and not operator:
                note("the images of steps (settings of 'docker') are left out: they run in this Python")
            elif component in COMPONENTS and flavor and not _is_there(component, flavor):
                note(f"settings of '{key}' are left out: the steps run on this machine")
            elif key == "step_operator" and isinstance(value, str) and not _is_operator(value):
                note(f"step '{owner}' runs on this machine: no stack has a step operator '{value}'")
            elif key == "resources" and isinstance(value, Mapping):
                kept[key] = self._resources(value, owner)
                if any(value.get(name) for name in ("gpu_count", "accelerators")):
                    kept.setdefault("accelerator_policy", "prefer")
            else:
                kept[key] = value
                if key == "launch":
                    kept.setdefault("accelerator_policy", "prefer")
        return kept

    def _resources(self, wanted: Mapping[str, Any], owner: str) -> dict[str, Any]:
        fitting = dict(wanted)
        for name, most in (("cpu_count", self.cpus), ("memory", self.memory)):
            if isinstance(wanted.get(name), (int, float)) and wanted[name] > most:
                fitting[name] = most
                note(f"'{owner}' asks for more {_WANTED[name]} than this machine has: it gets what there is")
        return fitting


def _is_there(component: str, flavor: str) -> bool:
    if flavor == "*":
        return False
    if component == "orchestrator":
        return flavor in _HERE
    return any(part.flavor == flavor for stack in stacks.stacks() for part in stack.step_operators.values())


def _is_operator(name: str) -> bool:
    return BACKENDS.canonical(name) in BACKENDS or any(name in stack.step_operators for stack in stacks.stacks())
