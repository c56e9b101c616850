"""A user's own launcher: its words, then the worker's command. No shell, no placeholders: variables say the rest."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, Iterable, Mapping

from stoker.core.launch import Launch, Outputs
from stoker.core.units import UNSET
from stoker.launchers.base import Argv, Launcher, Node, Started, launch_of

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
) -> Launch:
    """Ranks by a command of your own: each node runs it with Stoker's worker behind it, as `command + worker`.

    It must start the worker once for each rank. The variables `STOKER_NUM_PROCESSES`, `STOKER_PROCESSES_PER_NODE`,
    `STOKER_NODE_RANK`, `STOKER_NODES`, `MASTER_ADDR` and `MASTER_PORT` say what is wanted of it.
    """
    own = {
        "command": command,
        "num_processes": num_processes,
        "processes_per_node": processes_per_node,
        "outputs": outputs,
        "hang_after": hang_after,
        "gang_timeout": gang_timeout,
    }
    return launch_of(LAUNCHER, own, {})


def users_command(argv: Argv, node: Node, arguments: Mapping[str, Any]) -> Started:
    """The user's command with the worker's behind it; `arguments` has it under "command"."""
    return Started(argv=(*arguments.get("command", ()), *argv), environment=place(node))


def place(node: Node) -> dict[str, str]:
    """A node's place as variables."""
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
