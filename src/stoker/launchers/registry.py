"""Every launcher by its name; `single`, which is none, and `command`, a user's own."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, Iterable, Mapping

from stoker.core.errors import SettingsError, UsageError
from stoker.core.plugins import Registry
from stoker.core.settings import Launch, Outputs
from stoker.core.units import UNSET
from stoker.launchers.base import Argv, Launcher, Node, NodeCommand, Place, launch_of, place_by

if TYPE_CHECKING:
    from stoker.launchers.base import Duration


def single_command(argv: Argv, node: Node, arguments: Mapping[str, Any]) -> NodeCommand:
    """The command as it is. On one node without variables: `RANK` alone would make torch wait for others."""
    if node.nodes == 1:
        return NodeCommand(argv=argv)
    variables = {
        "RANK": node.rank,
        "WORLD_SIZE": node.nodes,
        "LOCAL_RANK": 0,
        "LOCAL_WORLD_SIZE": 1,
        "GROUP_RANK": node.rank,
        "MASTER_ADDR": node.head,
        "MASTER_PORT": node.port,
    }
    return NodeCommand(argv=argv, environment={name: str(value) for name, value in variables.items()})


SINGLE: Final = Launcher(name="single", command=single_command, one_per_node=True)


LAUNCHERS: Final[Registry[Launcher]] = Registry(
    group="stoker.launchers",
    noun="launcher",
    kind=Launcher,
    builtin={
        "accelerate": ("stoker.launchers.accelerate:LAUNCHER", ""),
        "command": ("stoker.launchers.registry:COMMAND", ""),
        "deepspeed": ("stoker.launchers.deepspeed:LAUNCHER", ""),
        "jax": ("stoker.launchers.jax:LAUNCHER", ""),
        "mpi": ("stoker.launchers.mpi:LAUNCHER", ""),
        "single": ("stoker.launchers.registry:SINGLE", ""),
        "torchrun": ("stoker.launchers.torchrun:LAUNCHER", ""),
    },
)
OWN_COMMAND: Final = "command"
"""The launcher for a plain list of words."""


def launcher_named(name: str) -> Launcher:
    """The launcher of a name; an unknown one is a `SettingsError`."""
    try:
        return LAUNCHERS.load(name)
    except UsageError as error:
        raise SettingsError(error.message, fix=error.fix) from None


def place_of(environment: Mapping[str, str], launcher: Launcher | None = None) -> Place:
    """The place of a rank that `launcher` has started; by the variables of all launchers where that is None.

    Variables with a mark come first, because other launchers use the same names. torch's come before those of a
    surrounding Slurm allocation or mpirun, because the table's first launcher uses torch's.
    """
    if launcher is not None and launcher.variables:
        return place_by(launcher.variables, environment)
    variables = [names for _, one in LAUNCHERS.parts() for names in one.variables]
    return place_by(sorted(variables, key=lambda names: not names.mark), environment)


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
    return launch_of(COMMAND, options, {})


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


COMMAND: Final = Launcher(
    name="command", command=users_command, program=program, variables=(), crowded=True, takes_command=True
)
