"""What becomes of one name of ZenML's or Metaflow's, and what is said of it. Pure: it sees texts, never code."""

from __future__ import annotations

from typing import Final, Literal

import attrs

from stoker.migrate import metaflow, zenml

Level = Literal["by hand", "differs", "hint"]
Kind = Literal["moved", "member", "call", "gone"]

ROOTS: Final = ("zenml", "metaflow", "metaflow_extensions", "metaflow_ray")


@attrs.frozen(kw_only=True)
class Note:
    """Something to say of a line. "by hand": it does not run before somebody changes it."""

    line: int
    level: Level
    name: str
    told: str


@attrs.frozen(kw_only=True)
class Fate:
    """What becomes of a name.

    "moved": `module` and `name` are where it is now, and `told` how it differs. "member": an enum whose members become
    texts. "call": a function whose calls become something else. "gone": `told` is what to do instead.
    """

    kind: Kind
    module: str = ""
    name: str = ""
    told: str = ""


def is_ours(module: str, *, flows: bool) -> bool:
    """Whether a module is one that is migrated from; with `flows`, also where flows have a decorator from."""
    root = module.partition(".")[0]
    return root in ROOTS or (flows and module in metaflow.DECORATOR_MODULES)


def fate_of(qualified: str) -> Fate:
    """What becomes of a name as it is imported: `zenml.config.DockerSettings`."""
    module, _, name = qualified.rpartition(".")
    if not qualified.startswith("zenml"):
        return _of_flow(module, name)
    if qualified == "zenml.config":
        return Fate(kind="moved", module="stoker", name="config")
    if name in zenml.TARGETS:
        return Fate(kind="moved", module=zenml.TARGETS[name][0], name=zenml.TARGETS[name][1])
    if name == zenml.CONTEXT:
        return Fate(kind="call", module="stoker", name="context", told="use `stoker.context` without calling it")
    if name == zenml.UNWRAPPED:
        return Fate(kind="call", told=zenml.MISSING[name])
    if name in zenml.ENUMS:
        return Fate(kind="member", told=zenml.ENUMS[name])
    return Fate(kind="gone", told=zenml.advice(name, module))


def is_known(qualified: str) -> bool:
    """Whether a table has something to say of exactly this name, rather than of its module."""
    name = qualified.rpartition(".")[2]
    if qualified.startswith("zenml"):
        fate = fate_of(qualified)
        return fate.kind != "gone" or name in zenml.MISSING or any(name.endswith(end) for end in zenml.ENDINGS)
    return name in metaflow.NAMES or fate_of(qualified).kind == "moved"


def _of_flow(module: str, name: str) -> Fate:
    if module == "metaflow.cards" and name in metaflow.CARDS:
        return Fate(kind="moved", module=metaflow.TARGET, name=name)
    for start, told in metaflow.MODULES.items():
        if f"{module}.{name}.".startswith(f"{start}."):
            return Fate(kind="gone", told=told)
    if name not in metaflow.NAMES:
        return Fate(kind="gone", told="nothing here has this name; docs/flows.md lists what there is")
    state = metaflow.NAMES[name][0]
    if state == "not here":
        return Fate(kind="gone", told=metaflow.advice(name))
    told = metaflow.advice(name) if state == "works differently" else ""
    return Fate(kind="moved", module=metaflow.TARGET, name=name, told=told)
