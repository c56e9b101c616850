"""Every launcher by its name."""

from __future__ import annotations

from typing import Final, Mapping

from stoker.core.errors import SettingsError, UsageError
from stoker.core.plugins import Registry
from stoker.launchers.base import Launcher, Place, place_by

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
        "single": ("stoker.launchers.single:LAUNCHER", ""),
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
