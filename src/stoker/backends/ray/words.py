"""What a step asks of Ray, as a task's options; why it waits, in words; and how a task's end is called: pure."""

from __future__ import annotations

from typing import Any, Final, Iterable, Mapping, Sequence

from stoker.core.status import CANCELLED, HOST_OOM, NODE_LOST, REFUSED, WORKER_LOST
from stoker.core.words import memory_text

CAUSES: Final[Mapping[str, str]] = {
    # https://docs.ray.io/en/latest/ray-core/api/exceptions.html, by name: which there are depends on Ray's version.
    "ActorDiedError": WORKER_LOST,
    "ActorUnschedulableError": REFUSED,
    "LocalRayletDiedError": NODE_LOST,
    "NodeDiedError": NODE_LOST,
    "OutOfDiskError": WORKER_LOST,
    "OutOfMemoryError": HOST_OOM,
    "RuntimeEnvSetupError": REFUSED,
    "TaskCancelledError": CANCELLED,
    "TaskPlacementGroupRemoved": CANCELLED,
    "TaskUnschedulableError": REFUSED,
    "WorkerCrashedError": WORKER_LOST,
}
"""Ray's error → why the attempt ended; every other one means that Ray lost the worker."""
_WORDS: Final[Mapping[str, str]] = {"CPU": "CPUs", "GPU": "GPUs", "TPU": "TPU chips", "neuron_cores": "Neuron cores"}
SLOW: Final = ("pip", "uv", "conda")
"""Keys of a runtime environment that take a node long, the first time."""
_LONGEST: Final = 1000
NODE_LABEL: Final = "ray.io/node-id"
"""The label by which Ray itself names a node: https://docs.ray.io/en/latest/ray-core/scheduling/labels.html"""


def chosen(ask: Mapping[str, Any], nodes: Iterable[Mapping[str, Any]]) -> Mapping[str, Any] | None:
    """The first kind of accelerator that some node has; where none has any, the first, or none if that is welcome."""
    there = [one["Resources"] for one in nodes if one["Alive"]]
    for choice in ask["choices"]:
        if any(_has(one, choice) for one in there):
            return choice  # type: ignore[no-any-return]
    return ask["choices"][0] if ask["choices"] and not ask["prefer"] else None


def _has(resources: Mapping[str, float], choice: Mapping[str, Any]) -> bool:
    named = not choice["type"] or f"accelerator_type:{choice['type']}" in resources
    return named and resources.get(choice["resource"], 0) >= choice["count"]


def pick(ask: Mapping[str, Any], runtime_env: Mapping[str, Any]) -> dict[str, Any]:
    """The options of a task: https://docs.ray.io/en/latest/ray-core/api/doc/ray.remote_function.RemoteFunction.options.html"""
    options: dict[str, Any] = {"num_cpus": ask["num_cpus"], "num_gpus": 0}
    resources = dict(ask["resources"])
    if ask["memory"]:
        options["memory"] = ask["memory"]
    choice = ask["choice"]
    if choice is not None:
        if choice["resource"] == "GPU":
            options["num_gpus"] = choice["count"]
        else:
            resources[choice["resource"]] = choice["count"]
        if choice["type"]:
            options["accelerator_type"] = choice["type"]
    if resources:
        options["resources"] = resources
    if ask["labels"]:
        options["label_selector"] = dict(ask["labels"])
    if runtime_env:
        options["runtime_env"] = dict(runtime_env)
    return options


def label_values(text: str) -> list[str]:
    """The values that a selector names: "a", "!a", "in(a,b)", "!in(a,b)"."""
    plain = text.removeprefix("!")
    return [one.strip() for one in plain[3:-1].split(",")] if plain.startswith("in(") else [plain]


def labels_without(labels: Mapping[str, str], avoid: Sequence[str]) -> dict[str, str]:
    """A label selector that leaves out nodes, too."""
    if not avoid:
        return dict(labels)
    text = labels.get(NODE_LABEL, "!")
    named = [one for one in label_values(text) if one]
    if text.startswith("!"):
        return {**labels, NODE_LABEL: f"!in({','.join(dict.fromkeys([*named, *avoid]))})"}
    left = [one for one in named if one not in avoid]
    return {**labels, NODE_LABEL: f"in({','.join(left)})"} if left else dict(labels)


def wanted(ask: Mapping[str, Any]) -> dict[str, float]:
    """What a node of the step takes, by Ray's names."""
    found = {"CPU": ask["num_cpus"], "memory": ask["memory"], **ask["resources"]}
    choice = ask.get("choice")
    if choice is not None:
        found[choice["resource"]] = choice["count"]
        if choice["type"]:
            found[f"accelerator_type:{choice['type']}"] = 0.001
    return {name: amount for name, amount in found.items() if amount}


def waits(
    ask: Mapping[str, Any],
    *,
    nodes: Iterable[Mapping[str, Any]],
    free: Mapping[str, float],
    gang: int = 1,
    placement: str = "",
    environment: Iterable[str] = (),
) -> str:
    """Why a step has not begun: what it asks for, and what the cluster has of that, in all and free.

    `environment` are the keys of its runtime environment.
    """
    environment = set(environment)
    asked = wanted(ask)
    there = [one["Resources"] for one in nodes if one["Alive"]]
    fits = [one for one in there if all(one.get(name, 0) >= amount for name, amount in asked.items())]
    each = f" on each of {gang} nodes" if gang > 1 else ""
    text = ", ".join(amount_text(name, amount) for name, amount in asked.items() if not name.startswith("accelerator_"))
    kinds = [name.partition(":")[2] for name in asked if name.startswith("accelerator_type:")]
    text += f" of {kinds[0]}" if kinds else ""
    if len(fits) < (gang if placement == "STRICT_SPREAD" else 1):
        largest = "; ".join(
            f"the most that a node has is {amount_text(name, max((one.get(name, 0) for one in there), default=0))}"
            for name, amount in asked.items()
            if all(one.get(name, 0) < amount for one in there)
        )
        why = largest or f"{len(fits)} of {len(there)} nodes have as much"
        return f"waits for {text}{each}: {why}; Ray waits until a node joins that fits"
    short = [
        f"{_plain(name, free.get(name, 0))} of {amount_text(name, sum(one.get(name, 0) for one in there))} free"
        for name, amount in asked.items()
        if not name.startswith("accelerator_type:") and free.get(name, 0) < amount * gang
    ]
    why = ", ".join(short)
    if not why:
        slow = [name for name in SLOW if name in environment]
        made = f"its runtime environment ({', '.join(slow)}) is being made" if slow else "a worker is being started"
        why = f"enough is free in all, though not where it would fit, or {made}"
    if ask["labels"]:
        why += f"; it wants nodes with {', '.join(f'{name}={value}' for name, value in ask['labels'].items())}"
    return f"waits for {text}{each}: {why}"


def amount_text(name: str, amount: float) -> str:
    """So much of a resource, as a person says it: "2 GPUs", "4 GB of memory"."""
    if name == "memory":
        return f"{memory_text(amount)} of memory"
    word = _WORDS.get(name, name)
    return f"{amount:g} {word[:-1] if amount == 1 and name in ('CPU', 'GPU') else word}"


def _plain(name: str, amount: float) -> str:
    return memory_text(amount) if name == "memory" else f"{amount:g}"


def without_traces(text: str) -> str:
    """A text without the frames of the tracebacks in it, whose exceptions stay."""
    lines, traced = [], False
    for line in text.splitlines():
        before, begins, _ = line.partition("Traceback (most recent call last):")
        if begins:
            traced = True
            lines.append(before)
        elif not traced or (line.strip() and not line.startswith(" ")):
            traced = False
            if not line.startswith(("During handling of the above", "The above exception was")):
                lines.append(line)
    return "\n".join(lines)


def cause_of(error: Exception, *, node_alive: bool, asked: bool) -> tuple[str, str]:
    """Why an attempt ended, from the error that Ray has for its task. `asked`: the driver wanted its end."""
    name = next((kind.__name__ for kind in type(error).__mro__ if kind.__name__ in CAUSES), "")
    cause = CAUSES.get(name, WORKER_LOST)
    text = " ".join(without_traces(str(error)).split())
    if len(text) > _LONGEST:  # its end says what a program wrote last
        text = f"{text[: _LONGEST // 3]} … {text[-2 * _LONGEST // 3 :]}"
    if asked and cause in (WORKER_LOST, CANCELLED):
        return CANCELLED, ""
    if cause == WORKER_LOST and not node_alive:
        return NODE_LOST, f"the Ray node that ran the step is gone: {text}"
    return cause, f"Ray says {name or type(error).__name__}: {text}"
