"""The driver of a detached run as a small job of the cluster, whose steps it then submits from there.

It needs what the driver needs here: the database, the home, the code. So it is for clusters whose nodes see this
machine's folders. Options are those of https://slurm.schedmd.com/sbatch.html.
"""

from __future__ import annotations

import math
import os
import shlex
from typing import Any, Final, Iterator, Mapping, Sequence

from stoker.backends.base.logins import Login, login
from stoker.backends.slurm.cluster import UNLIMITED, Facts, facts
from stoker.backends.slurm.queue import Controller
from stoker.backends.slurm.script import SCRIPT, time_text
from stoker.backends.slurm.settings import DRIVER_MEMORY, SlurmSettings
from stoker.core.errors import UsageError

_MIB: Final = 1 << 20
_WHERE: Final = ("partition", "account", "qos", "reservation")
"""What the driver's job has from the stack where `driver` says nothing else."""
_FORGET: Final = """\
for name in ${!SLURM_@} ${!SLURMD_@}; do
  case $name in SLURM_CONF|SLURM_CLUSTERS) ;; *) unset "$name" ;; esac
done"""
"""What Slurm says of this job is of no use to what runs below the driver: frameworks would take its one task for
theirs, and jobs its CPUs and memory. https://slurm.schedmd.com/sbatch.html#SECTION_OUTPUT-ENVIRONMENT-VARIABLES"""


def check(settings: SlurmSettings) -> None:
    """`UsageError` where no driver could work on the nodes."""
    if settings.shares:
        return
    raise UsageError(
        "--detach puts the driver on the cluster, whose nodes do not see this machine's files",
        fix="start the run on the login node, or without --detach from a terminal that stays; or set shares_files, if "
        "the nodes do see them",
    )


def detach(settings: SlurmSettings, argv: Sequence[str], folder: str, name: str, *, output: str) -> str:
    """Submit a job that runs a command in a folder and writes to a file; which job it is, in words.

    Raises `Away` where the controller does not answer, `BackendError` with sbatch's words where it refuses.
    """
    check(settings)
    asked = login(settings.get("host"))
    try:
        limit = _limit(settings, asked)
        text = script(settings, argv, folder, name, output=output, limit=limit)
        place = os.path.dirname(output)
        asked.write({f"{place}/{SCRIPT}": text.encode()})
        return f"Slurm job {Controller(asked).submit(place, text)}"
    finally:
        asked.close()


def script(
    settings: SlurmSettings, argv: Sequence[str], folder: str, name: str, *, output: str, limit: float | None
) -> str:
    """The batch script; `limit` in seconds."""
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
    wanted: Mapping[str, Any] = settings.get("driver", {})
    yield f"--job-name={name}"
    yield f"--chdir={folder}"
    yield f"--output={output.replace('%', '%%')}"
    yield "--open-mode=append"
    yield "--export=ALL"
    for one in _WHERE:
        value = wanted[one] if one in wanted else settings.get(one)
        if value is not None:
            yield f"--{one}={value}"
    yield from ("--nodes=1", "--ntasks=1", "--cpus-per-task=1")
    yield f"--mem={math.ceil((wanted.get('memory') or DRIVER_MEMORY) / _MIB)}M"
    if limit is not None:
        yield f"--time={time_text(limit) if limit < UNLIMITED else 'UNLIMITED'}"
    yield "--no-requeue"  # started again it would find that the run is not its own any more


def _limit(settings: SlurmSettings, asked: Login) -> float | None:
    """Seconds for which a driver may run: as long as its partition lets it, where nobody says."""
    wanted: Mapping[str, Any] = settings.get("driver", {})
    given: float | None = wanted.get("time_limit")
    if given is not None:
        return given
    cluster = facts(asked)
    named = wanted["partition"] if "partition" in wanted else settings.get("partition")
    return longest(cluster, named or cluster.given.get("SBATCH_PARTITION"))


def longest(cluster: Facts, named: str | None) -> float | None:
    """The longest that every one of some partitions lets a job run; None where that is not known."""
    names = named.split(",") if named else [one.name for one in cluster.partitions.values() if one.default]
    limits = [cluster.partitions[name].longest for name in names if name in cluster.partitions]
    return min(limits) if limits and len(limits) == len(names) else None
