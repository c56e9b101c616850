"""Submits the driver of a detached run as a small job of the cluster, from where it submits the run's steps.

That job needs what the driver needs here: the database, the home, the code. So the cluster's nodes have to see this
machine's folders. Options are those of https://slurm.schedmd.com/sbatch.html.
"""

from __future__ import annotations

import math
import os
import shlex
from typing import Any, Final, Iterator, Mapping, Sequence

from stoker.backends.base.logins import Login, login
from stoker.backends.slurm.cluster import UNLIMITED, ClusterFacts, cluster_facts
from stoker.backends.slurm.queue import Controller
from stoker.backends.slurm.script import SCRIPT, time_text
from stoker.backends.slurm.settings import DRIVER_MEMORY, SlurmSettings
from stoker.core.errors import UsageError

_MIB: Final = 1 << 20
_WHERE: Final = ("partition", "account", "qos", "reservation")
"""Fields that the driver's job takes from the stack unless `driver` has them."""
_FORGET: Final = """\
for name in ${!SLURM_@} ${!SLURMD_@}; do
  case $name in SLURM_CONF|SLURM_CLUSTERS) ;; *) unset "$name" ;; esac
done"""
"""Drops Slurm's variables of the driver's job: frameworks below it would take its one task for theirs, and jobs its
CPUs and memory. https://slurm.schedmd.com/sbatch.html#SECTION_OUTPUT-ENVIRONMENT-VARIABLES"""


def check(settings: SlurmSettings) -> None:
    """`UsageError` if a driver cannot run on the nodes."""
    if settings.shares:
        return
    raise UsageError(
        "--detach puts the driver on the cluster, whose nodes do not see this machine's files",
        fix="start the run on the login node, or without --detach from a terminal that stays; or set shares_files, if "
        "the nodes do see them",
    )


def detach(settings: SlurmSettings, argv: Sequence[str], folder: str, name: str, *, output: str) -> str:
    """Submit a job that runs a command in a folder and writes to a file; returns its name for people.

    Raises `Away` where the controller does not answer, `BackendError` with sbatch's words where it refuses.
    """
    check(settings)
    machine = login(settings.get("host"))
    try:
        limit = _limit(settings, machine)
        text = script(settings, argv, folder, name, output=output, limit=limit)
        run_folder = os.path.dirname(output)
        machine.write({f"{run_folder}/{SCRIPT}": text.encode()})
        return f"Slurm job {Controller(machine).submit(run_folder, text)}"
    finally:
        machine.close()


def script(
    settings: SlurmSettings, argv: Sequence[str], folder: str, name: str, *, output: str, limit: float | None
) -> str:
    """The batch script of the driver's job; `limit` is in seconds."""
    options = _options(settings, folder, name, output=output, limit=limit)
    lines = [
        "#!/bin/bash",
        *(f"#SBATCH {shlex.quote(option)}" for option in options),
        "",
        _FORGET,
        f"exec {shlex.join(argv)}",
    ]
    return "\n".join(lines) + "\n"


def _options(settings: SlurmSettings, folder: str, name: str, *, output: str, limit: float | None) -> Iterator[str]:
    driver: Mapping[str, Any] = settings.get("driver", {})
    yield f"--job-name={name}"
    yield f"--chdir={folder}"
    yield f"--output={output.replace('%', '%%')}"
    yield "--open-mode=append"
    yield "--export=ALL"
    for field in _WHERE:
        value = driver[field] if field in driver else settings.get(field)
        if value is not None:
            yield f"--{field}={value}"
    yield from ("--nodes=1", "--ntasks=1", "--cpus-per-task=1")
    yield f"--mem={math.ceil((driver.get('memory') or DRIVER_MEMORY) / _MIB)}M"
    if limit is not None:
        yield f"--time={time_text(limit) if limit < UNLIMITED else 'UNLIMITED'}"
    yield "--no-requeue"  # started again, it would no longer own the run


def _limit(settings: SlurmSettings, machine: Login) -> float | None:
    """Seconds for which a driver may run: its time_limit, else the longest that its partition allows."""
    driver: Mapping[str, Any] = settings.get("driver", {})
    limit: float | None = driver.get("time_limit")
    if limit is not None:
        return limit
    cluster = cluster_facts(machine)
    partition = driver["partition"] if "partition" in driver else settings.get("partition")
    return longest(cluster, partition or cluster.environment.get("SBATCH_PARTITION"))


def longest(cluster: ClusterFacts, partitions: str | None) -> float | None:
    """The longest time limit that each of some partitions allows, in seconds; None where that is not known."""
    names = (
        partitions.split(",")
        if partitions
        else [partition.name for partition in cluster.partitions.values() if partition.default]
    )
    limits = [cluster.partitions[name].longest for name in names if name in cluster.partitions]
    return min(limits) if limits and len(limits) == len(names) else None
