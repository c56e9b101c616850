"""Maps one name of ZenML or Metaflow to its replacement. Pure: it sees texts, never code."""

from __future__ import annotations

from typing import Final, Literal

import attrs

from stoker.migrate import metaflow, zenml

Level = Literal["by hand", "differs", "hint"]
FateKind = Literal["moved", "member", "call", "gone"]

ROOTS: Final = ("zenml", "metaflow", "metaflow_extensions", "metaflow_ray")


@attrs.frozen(kw_only=True)
class MigrationNote:
    """A message about one line of the source."""

    line: int
    level: Level
    """ "by hand": the line does not run until a person changes it."""
    name: str
    """The name in the source that the message is about."""
    message: str


@attrs.frozen(kw_only=True)
class Fate:
    """What replaces a name."""

    kind: FateKind
    """ "moved": another module has it. "member": an enum whose members become texts. "call": a function whose calls
    become something else. "gone": nothing replaces it."""
    module: str = ""
    """The module that has the name now."""
    name: str = ""
    """The name in that module."""
    message: str = ""
    """How the replacement differs; for "gone", what to do instead."""


def is_source_module(module: str, *, flows: bool) -> bool:
    """Whether names of this module are migrated; with `flows`, also those of modules that offer decorators to flows."""
    root = module.partition(".")[0]
    return root in ROOTS or (flows and module in metaflow.DECORATOR_MODULES)


def fate_of(qualified: str) -> Fate:
    """What replaces a qualified name such as `zenml.config.DockerSettings`."""
    module, _, name = qualified.rpartition(".")
    if not qualified.startswith("zenml"):
        return _fate_of_metaflow_name(module, name)
    if qualified == "zenml.config":
        return Fate(kind="moved", module="stoker", name="config")
    if name in zenml.TARGETS:
        return Fate(kind="moved", module=zenml.TARGETS[name][0], name=zenml.TARGETS[name][1])
    if name == zenml.CONTEXT:
        return Fate(kind="call", module="stoker", name="context", message="use `stoker.context` without calling it")
    if name == zenml.UNWRAPPED:
        return Fate(kind="call", message=zenml.MISSING[name])
    if name in zenml.ENUMS:
        return Fate(kind="member", message=zenml.ENUMS[name])
    return Fate(kind="gone", message=zenml.advice(name, module))


def is_known(qualified: str) -> bool:
    """Whether a table has a row for exactly this name, rather than for its module."""
    name = qualified.rpartition(".")[2]
    if qualified.startswith("zenml"):
        fate = fate_of(qualified)
        return fate.kind != "gone" or name in zenml.MISSING or any(name.endswith(end) for end in zenml.ENDINGS)
    return name in metaflow.NAMES or fate_of(qualified).kind == "moved"


def _fate_of_metaflow_name(module: str, name: str) -> Fate:
    root, _, below = module.partition(".")
    served = root == "metaflow" and metaflow.has(below, name)
    if served and name not in metaflow.NAMES:
        return Fate(kind="moved", module=f"{metaflow.TARGET}.{below}".rstrip("."), name=name)
    for start, message in metaflow.MODULES.items():
        if not served and f"{module}.{name}.".startswith(f"{start}."):
            return Fate(kind="gone", message=message)
    if name not in metaflow.NAMES:
        return Fate(kind="gone", message="nothing here has this name; docs/flows.md lists what there is")
    state = metaflow.NAMES[name][0]
    if state == "not here":
        return Fate(kind="gone", message=metaflow.advice(name))
    message = metaflow.advice(name) if state == "works differently" else ""
    return Fate(kind="moved", module=metaflow.TARGET, name=name, message=message)
