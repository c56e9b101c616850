"""A user's own launcher: its command, then the worker's. No shell and no placeholders; variables have the rest."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, Iterable, Mapping

from stoker.core.launch import Launch, Outputs
from stoker.core.units import UNSET
from stoker.launchers.base import Argv, Launcher, Node, NodeCommand, launch_of

if TYPE_CHECKING:
    from stoker.launchers.base import Duration


def Command(  # noqa: N802  a value by its name, as in Retry(3)
    command: Iterable[str],
    *,
    num_processes: int | None = UNSET,
    processes_per_node: int | None = UNSET,
    outputs: Outputs = UNSET,
    hang_after: Duration = UNSET,
    gang_timeout: Duration = UNSET,
    start_timeout: Duration = UNSET,
    one_world: bool = UNSET,
) -> Launch:
    """Ranks by a command of your own: each node runs it with Stoker's worker behind it, as `command + worker`.

    It must start the worker once for each rank. The variables `STOKER_NUM_PROCESSES`, `STOKER_PROCESSES_PER_NODE`,
    `STOKER_NODE_RANK`, `STOKER_NODES`, `MASTER_ADDR` and `MASTER_PORT` say which ranks to start.
    """
    options = {
        "command": command,
        "num_processes": num_processes,
        "processes_per_node": processes_per_node,
        "outputs": outputs,
        "hang_after": hang_after,
        "gang_timeout": gang_timeout,
        "start_timeout": start_timeout,
        "one_world": one_world,
    }
    return launch_of(LAUNCHER, options, {})


def users_command(argv: Argv, node: Node, arguments: Mapping[str, Any]) -> NodeCommand:
    """The user's command with the worker's behind it; `arguments` has it under "command"."""
    return NodeCommand(argv=(*arguments.get("command", ()), *argv), environment=node_variables(node))


def node_variables(node: Node) -> dict[str, str]:
    """The variables that describe a node to the command."""
    return {
        "STOKER_NUM_PROCESSES": str(node.world_size),
        "STOKER_PROCESSES_PER_NODE": str(node.processes),
        "STOKER_NODES": str(node.nodes),
        "STOKER_NODE_RANK": str(node.rank),
        "STOKER_RENDEZVOUS": node.rendezvous,
        "MASTER_ADDR": node.head,
        "MASTER_PORT": str(node.port),
    }


def program(launch: Launch) -> str:
    """The first of the user's words."""
    return launch.command[0] if launch.command else ""


LAUNCHER: Final = Launcher(
    name="command", command=users_command, program=program, variables=(), crowded=True, takes_command=True
)
