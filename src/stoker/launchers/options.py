"""The option `launch`: every form in which it is written, its layers merged, and whether it fits the hardware.

Checks of every launcher are here, those of one launcher are its own `checks`. They are pure: a function that is passed
in returns the chips' capabilities.
"""

from __future__ import annotations

from typing import Any, Callable, Iterator, Mapping

import attrs

from stoker.core.errors import SettingsError
from stoker.core.findings import Finding
from stoker.core.resources import ResourceSettings
from stoker.core.settings import DEFAULTS, LIMITS, Launch, plain
from stoker.launchers.base import COUNTS, Launcher, Layout, launch_fields
from stoker.launchers.registry import OWN_COMMAND, launcher_named


def parse_launch(value: Any) -> dict[str, Any] | None:
    """The option `launch` in its plain form, from a `Launch`, a launcher's name, a list for `Command`, or a mapping."""
    if value is None:
        return None
    if isinstance(value, Launch):
        return plain(value)
    if isinstance(value, str):
        return plain(Launch(**_fields({"launcher": value})))
    if isinstance(value, (list, tuple)):
        return plain(Launch(**_fields({"launcher": OWN_COMMAND, "command": value})))
    if not isinstance(value, Mapping) or not all(isinstance(name, str) for name in value):
        fix = 'write launch = "torchrun", Accelerate(…), or a mapping with launcher ='
        raise SettingsError(f"{value!r} says not how ranks are started", fix=fix)
    return plain(Launch(**_fields(value)))


def resolve_launch(values: Mapping[str, Any] | None) -> Launch | None:
    """The launch of all layers together, with Stoker's defaults; a launcher's own defaults are not filled in."""
    if values is None:
        return None
    stated = {name: value for name, value in values.items() if value is not None}
    if "launcher" not in stated:
        if set(stated) <= {"outputs", "one_world", *LIMITS}:
            # A stack's defaults for steps that have a launcher.
            return None
        word = next(iter(sorted({*stated} - {"arguments"})), "") or next(iter(stated["arguments"]), "it")
        raise SettingsError(
            f"launch: {word} is given, but no launcher", fix='give the launcher, such as launch.launcher="torchrun"'
        )
    # None means no limit for these; for other options it removes a weaker layer's value.
    none_values: dict[str, Any] = {name: None for name in LIMITS if name in values and values[name] is None}
    fields = _fields(stated)
    fields["arguments"] = {name: value for name, value in fields.get("arguments", {}).items() if value is not None}
    for name in COUNTS:
        fields.setdefault(name, None)
    return attrs.evolve(DEFAULTS, **{**fields, **none_values})


def weaker_launch(weak: Mapping[str, Any], strong: Mapping[str, Any]) -> dict[str, Any]:
    """The part of a weaker layer's `launch` that still applies: another launcher takes none of its arguments."""
    launcher, weak_launcher = strong.get("launcher"), weak.get("launcher")
    if weak_launcher is None or launcher in {None, weak_launcher}:
        return _without_counts(weak, strong, weak_launcher)
    return {name: value for name, value in weak.items() if name not in {"arguments", "command", *COUNTS}}


def _without_counts(weak: Mapping[str, Any], strong: Mapping[str, Any], launcher: str | None) -> dict[str, Any]:
    """`weak` without its counts where the stronger layer counts ranks by an argument of the launcher."""
    table = launcher_named(launcher).arguments if launcher else {}
    words = {*strong, *strong.get("arguments", {})}
    counts = any(word in table and table[word].means in COUNTS for word in words)
    return {name: value for name, value in weak.items() if not (counts and name in COUNTS)}


def _fields(values: Mapping[str, Any]) -> dict[str, Any]:
    return launch_fields(values, launcher_named)


Capability = Callable[[str], tuple[int, int] | None]
"""The compute capability of an NVIDIA model by its name; None where it is not known."""


def check(
    launch: Launch, resources: ResourceSettings, *, where: str = "", capability: Capability | None = None
) -> Iterator[Finding]:
    """A finding for each thing that does not fit. `launch` is resolved (`launchers.options`); `where` is the step's
    name and line.
    """
    launcher = launcher_named(launch.launcher)
    layout = layout_of(launcher, launch, resources, capability)
    findings = [
        *_counts(layout),
        *_devices(launcher, layout),
        *_nodes(launcher, layout),
        *(finding for check_launcher in launcher.checks for finding in check_launcher(layout)),
        *_port(launcher, layout),
    ]
    yield from (attrs.evolve(finding, where=where) for finding in findings)


def layout_of(
    launcher: Launcher, launch: Launch, resources: ResourceSettings, capability: Capability | None = None
) -> Layout:
    """A launch on the requested hardware."""
    nodes, devices, cpu = int(resources.get("nodes", 1)), resources.gpus_per_node, launcher.uses_cpus(launch)
    return Layout(
        launch=launch,
        arguments={name: value for name, value in (launch.arguments or {}).items() if value is not None},
        nodes=nodes,
        devices=devices,
        cpu=cpu,
        processes=launcher.processes_per_node(launch, nodes=nodes, devices=devices, cpu=cpu),
        models=tuple(kind.model.name for kind in resources.get("accelerators", ())),
        capability=capability,
    )


def _counts(layout: Layout) -> Iterator[Finding]:
    total, per_node = layout.launch.num_processes, layout.launch.processes_per_node
    if total and per_node and total != per_node * layout.nodes:
        yield Finding(
            code="STK133",
            level="error",
            what=f"{total} processes in all and {per_node} on each of {_nodes_text(layout.nodes)} disagree",
            fix=f"give one of the two: num_processes={per_node * layout.nodes}, or processes_per_node={per_node}",
        )
    elif total and total % layout.nodes:
        rounded_up = -(-total // layout.nodes) * layout.nodes
        yield Finding(
            code="STK133",
            level="error",
            what=f"{total} processes cannot be shared out evenly to {_nodes_text(layout.nodes)}",
            why="num_processes counts the processes of all nodes together",
            fix=f"ask for num_processes={rounded_up}, or processes_per_node={rounded_up // layout.nodes}",
        )


def _devices(launcher: Launcher, layout: Layout) -> Iterator[Finding]:
    processes, devices = layout.processes, layout.devices
    cpus = f"{launcher.on_cpus}=True"
    if layout.cpu and devices:
        yield Finding(
            code="STK131",
            level="info",
            what=f"{cpus} leaves the {_devices_text(devices)} of {_each(layout)} without work",
            fix=f"remove {cpus}, or ask for no accelerator",
        )
    elif layout.cpu or launcher.crowded:
        return
    elif devices and processes > devices:
        yield Finding(
            code="STK130",
            level="error",
            what=f"{processes} processes on {_each(layout)}, which has {_devices_text(devices)}",
            why="each process needs an accelerator of its own: two on one fail with NCCL, or share its memory unsaid",
            fix=f"ask for resources.gpu_count={processes}, or for {_lower(layout)}"
            + (f", or compute on the CPUs with {cpus}" if launcher.on_cpus else ""),
        )
    elif devices and processes < devices and not (launcher.shares_out and devices % processes == 0):
        yield Finding(
            code="STK131",
            level="info",
            what=f"{_processes_text(processes)} on {_each(layout)}, which has {_devices_text(devices)}: "
            f"{devices - processes} would stay idle",
            fix="leave the number of processes out: each accelerator gets one",
        )


def _nodes(launcher: Launcher, layout: Layout) -> Iterator[Finding]:
    for name, argument in launcher.arguments.items():
        value = layout.arguments.get(name)
        if argument.means != "nodes" or value is None:
            continue
        least, _, most = str(value).partition(":")
        if not (least.isdecimal() and (most or least).isdecimal()):
            yield _disagree(name, value, layout, "it is neither a number nor a range such as 1:4")
        elif not int(least) <= layout.nodes <= int(most or least):
            yield _disagree(name, value, layout, "resources.nodes says how many nodes the step gets, all at once")


def _disagree(name: str, value: Any, layout: Layout, why: str) -> Finding:
    return Finding(
        code="STK134",
        level="error",
        what=f"{name}={value} and resources.nodes={layout.nodes} disagree",
        why=why,
        fix=f"remove {name}, or ask for resources.nodes={str(value).partition(':')[0]}",
    )


def _port(launcher: Launcher, layout: Layout) -> Iterator[Finding]:
    port = layout.arguments.get(launcher.port)
    if port:
        yield Finding(
            code="STK137",
            level="info",
            what=f"{launcher.port}={port} is fixed",
            why="two steps on one host cannot both have it, and an attempt may meet what is left of the one before",
            fix=f"remove {launcher.port}: a free port is found for each attempt",
        )


def _lower(layout: Layout) -> str:
    if layout.launch.processes_per_node:
        return f"processes_per_node={layout.devices}"
    return f"num_processes={layout.devices * layout.nodes}"


def _each(layout: Layout) -> str:
    return "each node" if layout.nodes > 1 else "a node"


def _nodes_text(count: int) -> str:
    return "1 node" if count == 1 else f"{count} nodes"


def _devices_text(count: int) -> str:
    return "1 accelerator" if count == 1 else f"{count} accelerators"


def _processes_text(count: int) -> str:
    return "1 process" if count == 1 else f"{count} processes"
