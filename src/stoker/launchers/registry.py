"""Every launcher by its name, and `single`, which is none."""

from __future__ import annotations

from typing import Any, Final, Mapping

from stoker.core.errors import SettingsError, UsageError
from stoker.core.plugins import Registry
from stoker.launchers.base import Argv, Launcher, Node, NodeCommand, Place, place_by


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
        "command": ("stoker.launchers.command:LAUNCHER", ""),
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
