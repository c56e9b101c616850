"""Processes of JAX that find each other through variables; there is no command.

Stoker starts the processes, and each calls `jax.distributed.initialize` with the keywords of `initialization`. JAX
reads the coordinator's address and the devices from variables of its own, but not the number of processes and its own
number. https://docs.jax.dev/en/latest/_autosummary/jax.distributed.initialize.html
"""

from __future__ import annotations

import json
from typing import Any, Final, Mapping

from stoker.core.settings import Launch
from stoker.launchers.arguments import Argument
from stoker.launchers.base import Argv, Launcher, Node, NodeCommand, RankVariables, constructor

PLACE: Final = "each process learns its place and the coordinator's address when it starts"

ARGUMENTS: Final[Mapping[str, Argument]] = {
    "coordinator_address": Argument("text", owned=PLACE),
    "process_id": Argument("int", owned=PLACE),
    "coordinator_bind_address": Argument("text"),
    "local_device_ids": Argument("text", owned="the devices of a node are dealt out to its processes in order"),
    "cluster_detection_method": Argument("text", owned="nothing has to be detected: Stoker knows the place"),
    "initialization_timeout": Argument("int", least=1),
    "heartbeat_timeout_seconds": Argument("int", least=1),
    "shutdown_timeout_seconds": Argument("int", least=1),
    "slice_index": Argument("int", least=0),
}
OPTIONS: Final = "STOKER_JAX_OPTIONS"
"""The variable with the other arguments of `jax.distributed.initialize`, as JSON."""

VARIABLES: Final = RankVariables(
    rank="JAX_PROCESS_ID",
    world_size="JAX_NUM_PROCESSES",
    local_rank="STOKER_LOCAL_RANK",
    local_world_size="STOKER_PROCESSES_PER_NODE",
)
"""Set by Stoker."""


@constructor
def Jax(**options: Any) -> Launch:  # noqa: N802  a value by its name, as in Retry(3)
    """Processes of JAX that find each other; takes the arguments of `jax.distributed.initialize`."""
    return LAUNCHER.launch(**options)


def command(argv: Argv, node: Node, arguments: Mapping[str, Any]) -> NodeCommand:
    """The worker's own command, once for each process of the node, each with its place in variables."""
    values = {name: value for name, value in arguments.items() if value is not None}
    bind = values.pop("coordinator_bind_address", "")
    environment = {"JAX_COORDINATOR_ADDRESS": node.endpoint}
    if bind:
        environment["JAX_COORDINATOR_BIND_ADDRESS"] = bind
    if values:
        environment[OPTIONS] = json.dumps(values, sort_keys=True)
    if node.cpu:
        environment["JAX_PLATFORMS"] = "cpu"
    ranks = []
    for local in range(node.processes):
        variables = {
            "JAX_NUM_PROCESSES": str(node.world_size),
            "JAX_PROCESS_ID": str(node.rank * node.processes + local),
            "STOKER_LOCAL_RANK": str(local),
            "STOKER_PROCESSES_PER_NODE": str(node.processes),
        }
        devices = devices_of_process(node, local)
        if devices:
            variables["JAX_LOCAL_DEVICE_IDS"] = ",".join(map(str, devices))
        ranks.append(variables)
    return NodeCommand(argv=argv, environment=environment, ranks=tuple(ranks))


def devices_of_process(node: Node, local: int) -> list[int]:
    """The devices of one process, as indexes into its node's devices.

    Empty for a single process, which has all of them.
    """
    if node.cpu or node.processes == 1:
        return []
    each, remainder = divmod(len(node.devices), node.processes)
    start = local * each + min(local, remainder)
    return list(range(start, start + each + (local < remainder)))


def initialization(environment: Mapping[str, str]) -> dict[str, Any]:
    """The keywords of `jax.distributed.initialize` for the process that has these variables."""
    keywords: dict[str, Any] = {
        "coordinator_address": environment["JAX_COORDINATOR_ADDRESS"],
        "num_processes": int(environment["JAX_NUM_PROCESSES"]),
        "process_id": int(environment["JAX_PROCESS_ID"]),
        **json.loads(environment.get(OPTIONS, "{}")),
    }
    if environment.get("JAX_LOCAL_DEVICE_IDS"):
        keywords["local_device_ids"] = [int(number) for number in environment["JAX_LOCAL_DEVICE_IDS"].split(",")]
    if environment.get("JAX_COORDINATOR_BIND_ADDRESS"):
        keywords["coordinator_bind_address"] = environment["JAX_COORDINATOR_BIND_ADDRESS"]
    return keywords


def join(environment: Mapping[str, str]) -> None:
    """Initialise `jax.distributed`, which must precede the first computation."""
    if {"JAX_COORDINATOR_ADDRESS", "JAX_NUM_PROCESSES", "JAX_PROCESS_ID"} <= environment.keys():
        import jax

        jax.distributed.initialize(**initialization(environment))


LAUNCHER: Final = Launcher(
    name="jax",
    command=command,
    arguments=ARGUMENTS,
    package="jax",
    brought_by=frozenset({"jax", "flax", "optax"}),
    variables=(VARIABLES,),
    join=join,
    shares_out=True,
)
