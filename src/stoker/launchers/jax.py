"""Processes of JAX that find each other: variables instead of a command.

Stoker starts the processes itself, and each calls `jax.distributed.initialize` with what `initialization` reads
from the variables: it takes the coordinator's address and the devices from variables of its own, but not how many
processes there are and which one it is. https://docs.jax.dev/en/latest/_autosummary/jax.distributed.initialize.html
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final, Mapping

from stoker.core.launch import Launch, Outputs
from stoker.core.units import UNSET
from stoker.launchers.arguments import Argument
from stoker.launchers.base import Argv, Launcher, Node, RankVariables, Started, launch_of

if TYPE_CHECKING:
    from stoker.launchers.base import Duration

PLACE: Final = "each process learns its place and the coordinator's address when it starts"

ARGUMENTS: Final[Mapping[str, Argument]] = {
    "coordinator_address": Argument("text", owned=PLACE),
    "process_id": Argument("int", owned=PLACE),
    "coordinator_bind_address": Argument("text"),
    "local_device_ids": Argument("text", owned="the devices of a node are dealt out to its processes in order"),
    "cluster_detection_method": Argument("text", owned="nothing has to be detected: Stoker knows the place"),
    "initialization_timeout": Argument("int"),
    "heartbeat_timeout_seconds": Argument("int"),
    "shutdown_timeout_seconds": Argument("int"),
    "slice_index": Argument("int"),
}
OPTIONS: Final = "STOKER_JAX_OPTIONS"

VARIABLES: Final = RankVariables(
    rank="JAX_PROCESS_ID",
    world_size="JAX_NUM_PROCESSES",
    local_rank="STOKER_LOCAL_RANK",
    local_world_size="STOKER_PROCESSES_PER_NODE",
)
"""Stoker's own names."""


def Jax(  # noqa: N802  a value by its name, as in Retry(3)
    *,
    outputs: Outputs = UNSET,
    hang_after: Duration = UNSET,
    gang_timeout: Duration = UNSET,
    **launch_arguments: Any,
) -> Launch:
    """Processes of JAX that find each other; takes the arguments of `jax.distributed.initialize`."""
    own = {"outputs": outputs, "hang_after": hang_after, "gang_timeout": gang_timeout}
    return launch_of(LAUNCHER, own, launch_arguments)


def command(argv: Argv, node: Node, arguments: Mapping[str, Any]) -> Started:
    """The worker's own command, once for each process of the node, each with its place in variables."""
    given = {name: value for name, value in arguments.items() if value is not None}
    bind = given.pop("coordinator_bind_address", "")
    environment = {"JAX_COORDINATOR_ADDRESS": node.endpoint}
    if bind:
        environment["JAX_COORDINATOR_BIND_ADDRESS"] = bind
    if given:
        environment[OPTIONS] = json.dumps(given, sort_keys=True)
    if node.cpu:
        environment["JAX_PLATFORMS"] = "cpu"
    ranks = []
    for local in range(node.processes):
        place = {
            "JAX_NUM_PROCESSES": str(node.world_size),
            "JAX_PROCESS_ID": str(node.rank * node.processes + local),
            "STOKER_LOCAL_RANK": str(local),
            "STOKER_PROCESSES_PER_NODE": str(node.processes),
        }
        devices = dealt(node, local)
        if devices:
            place["JAX_LOCAL_DEVICE_IDS"] = ",".join(map(str, devices))
        ranks.append(place)
    return Started(argv=argv, environment=environment, ranks=tuple(ranks))


def dealt(node: Node, local: int) -> list[int]:
    """The devices of a node, by number among those that it holds, that one of its processes gets.

    None are named for a single process, which has them all.
    """
    if node.cpu or node.processes == 1:
        return []
    each, more = divmod(len(node.devices), node.processes)
    start = local * each + min(local, more)
    return list(range(start, start + each + (local < more)))


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
    """Let the processes find each other: JAX wants it before the first computation."""
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
