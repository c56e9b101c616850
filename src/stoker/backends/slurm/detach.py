"""Drivers as small jobs of the cluster, submitted from where a run's steps are, at once or by scrontab's entries:
https://slurm.schedmd.com/scrontab.html

That job needs what the driver needs here: the database, the home, the code. So the cluster's nodes have to see this
machine's folders. Options are those of https://slurm.schedmd.com/sbatch.html.

The job outlives its node and its time limit. Slurm starts it again when its node fails, when it is preempted, or when
somebody requeues it. Before its limit Slurm signals the script (`--signal=B:USR1@…`), which has the driver leave the
run and requeues its own job. A driver that was killed alone is started again at once. The next start resumes the run
(`run.detaching`).

Slurm starts each as a small job of the user's, with the options in the `#SCRON` lines before it. The job is the
driver, so nodes have to see this machine's folders, as drivers of detached runs do.
"""

from __future__ import annotations

import contextlib
import math
import os
import shlex
from typing import Any, Final, Iterator, Mapping, Sequence

from stoker.backends.base.backend import LEFT, RESTARTED_BY, TimerJob
from stoker.backends.base.logins import Login, login
from stoker.backends.base.timers import Crontab
from stoker.backends.slurm.cluster import ClusterFacts, cluster_facts
from stoker.backends.slurm.queue import Controller
from stoker.backends.slurm.script import SCRIPT, time_text
from stoker.backends.slurm.settings import DRIVER_MEMORY, SlurmSettings
from stoker.backends.slurm.values import UNLIMITED
from stoker.core.errors import EXIT_INFRASTRUCTURE, UsageError

_MIB: Final = 1 << 20
_WHERE: Final = ("partition", "account", "qos", "reservation")
"""Fields that the driver's job takes from the stack unless `driver` has them."""
_FORGET: Final = """\
for name in ${!SLURM_@} ${!SLURMD_@}; do
  case $name in SLURM_CONF|SLURM_CLUSTERS) ;; *) unset "$name" ;; esac
done"""
"""Drops Slurm's variables of the driver's job: frameworks below it would take its one task for theirs, and jobs its
CPUs and memory. https://slurm.schedmd.com/sbatch.html#SECTION_OUTPUT-ENVIRONMENT-VARIABLES"""
WARNING: Final = 120
"""Seconds before the time limit at which the job puts itself back into the queue. Slurm may signal up to 60 s earlier:
https://slurm.schedmd.com/sbatch.html#OPT_signal"""
_SCRIPT: Final = """\
job=$SLURM_JOB_ID restarts=${{SLURM_RESTART_COUNT:-0}} asked= tries=0
export {restarted_by}="Slurm job $SLURM_JOB_ID"
{forget}
trap 'asked=USR1' USR1
trap 'asked=TERM' TERM
while :; do
  began=$SECONDS
  {command} &
  driver=$!
  wait $driver
  code=$?
  if [ "$asked" = TERM ]; then
    # Slurm sends it before it ends the job for good, but also before it starts the job again, and people may.
    case $(scontrol --oneliner show job "$job") in
      *" JobState=RUNNING "*) ;;
      *" Restarts=$restarts "*) kill -INT $driver; wait $driver; exit $? ;;
    esac
  fi
  if [ -n "$asked" ]; then
    kill -USR1 $driver
    for half in {{1..{patience}}}; do kill -0 $driver || break; sleep 0.5; done
    kill -KILL $driver
    scontrol requeue "$job" && exit 0
    [ "$asked" = USR1 ] || exit 0
    echo "Slurm job $job cannot be put back into the queue: it drives the run until its time limit"
    asked=
  fi 2>/dev/null
  case $code in {again} | 12[89] | 13[1-9] | 1[4-9]? | 2??) ;; *) exit $code ;; esac
  [ $((SECONDS - began)) -lt 60 ] || tries=0
  [ $((tries += 1)) -le {tries} ] || exit $code
  sleep $tries
done"""
"""130 is a run that was cancelled, other codes above 128 are signals. The first line of `wait` ends when a trap is
called; the driver then lives."""
_PATIENCE: Final = 20
"""Seconds that a driver gets to leave. Slurm kills a job `KillWait` seconds after SIGTERM, by default 30:
https://slurm.schedmd.com/slurm.conf.html#OPT_KillWait"""
_TRIES: Final = 10
"""Starts in a row within a minute after which the script gives up: more than a driver that begins grants itself."""


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
    with contextlib.closing(login(settings.get("host"))) as machine:
        limit = _limit(settings, machine)
        text = script(settings, argv, folder, name, output=output, limit=limit)
        run_folder = os.path.dirname(output)
        machine.write({f"{run_folder}/{SCRIPT}": text.encode()})
        return f"Slurm job {Controller(machine).submit(run_folder, text)}"


def script(
    settings: SlurmSettings, argv: Sequence[str], folder: str, name: str, *, output: str, limit: float | None
) -> str:
    """The batch script of the driver's job; `limit` is in seconds."""
    options = _options(settings, folder, name, output=output, limit=limit)
    lines = [
        "#!/bin/bash",
        *(f"#SBATCH {shlex.quote(option)}" for option in options),
        "",
        _SCRIPT.format(
            restarted_by=RESTARTED_BY,
            forget=_FORGET,
            command=shlex.join(argv),
            again=f"{LEFT} | {EXIT_INFRASTRUCTURE}",
            patience=2 * _PATIENCE,
            tries=_TRIES,
        ),
    ]
    return "\n".join(lines) + "\n"


def _options(settings: SlurmSettings, folder: str, name: str, *, output: str, limit: float | None) -> Iterator[str]:
    yield f"--job-name={name}"
    yield f"--chdir={folder}"
    yield f"--output={output.replace('%', '%%')}"
    yield "--open-mode=append"
    yield "--export=ALL"
    yield from ("--nodes=1", "--ntasks=1", *_request(settings, limit), "--requeue", f"--signal=B:USR1@{WARNING}")


def _request(settings: SlurmSettings, limit: float | None) -> Iterator[str]:
    driver: Mapping[str, Any] = settings.get("driver", {})
    for field in _WHERE:
        value = driver[field] if field in driver else settings.get(field)
        if value is not None:
            yield f"--{field}={value}"
    yield "--cpus-per-task=1"
    yield f"--mem={math.ceil((driver.get('memory') or DRIVER_MEMORY) / _MIB)}M"
    if limit is not None:
        yield f"--time={time_text(limit) if limit < UNLIMITED else 'UNLIMITED'}"


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
    known = [limit for limit in limits if limit is not None]
    return min(known) if known and len(known) == len(names) else None


class Scrontab(Crontab):
    """The user's scrontab on a cluster."""

    def __init__(self, settings: SlurmSettings) -> None:
        request = _request(settings, settings.get("driver", {}).get("time_limit"))
        super().__init__("scrontab", login=login(settings.get("host")), options=tuple(request))
        self._shares = settings.shares

    def check(self, job: TimerJob) -> None:
        """Its jobs also need the files of this machine."""
        if not self._shares:
            raise UsageError(
                "scrontab runs the schedule on the cluster, whose nodes do not see this machine's files",
                fix="add it on the login node, or --on crontab; or set shares_files, if the nodes do see them",
            )
        super().check(job)


def timer(options: Mapping[str, Any]) -> Scrontab:
    """What starts schedules on a cluster, by settings of the stack."""
    return Scrontab(SlurmSettings(**options))
