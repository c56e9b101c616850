"""How commands run beside a step on Slurm: by `srun --overlap` in the step's job, on each of its nodes.

https://slurm.schedmd.com/srun.html#OPT_overlap: such a step shares the CPUs, the memory and the devices of the job.
"""

from __future__ import annotations

from typing import Any, Iterator, Mapping

from stoker.backends.base.beside import NOT_HERE, Beside, RunningAttempt
from stoker.backends.base.logins import login
from stoker.backends.slurm.settings import SlurmSettings
from stoker.core.errors import UsageError


def places(options: Mapping[str, Any], attempt: RunningAttempt) -> Iterator[Beside]:
    """The nodes of the attempt's job; a `UsageError` where it has none, or where the cluster is reached by SSH.

    Raises `Away` where the controller does not answer.
    """
    settings = SlurmSettings(**options)
    job = str(attempt.placement.get("id", ""))
    host = settings.get("host")
    if host is not None:
        raise UsageError(
            f"step '{attempt.key}' is job {job or '?'} of a cluster that is reached by SSH ({NOT_HERE})",
            fix=f"do it on its login node: srun --overlap --jobid={job or 'ID'} --pty bash",
        )
    machine = login(None)
    try:
        asked = machine.run(["squeue", "--noheader", f"--jobs={job}", "--states=RUNNING", "--format=%A %N"])
        number, _, listed = asked.out.strip().partition(" ")
        if not job or asked.code or not listed:
            raise UsageError(
                f"step '{attempt.key}' has no node: Slurm does not run job {job or 'of its own'} ({NOT_HERE})",
                fix="see why it waits with `stoker show`",
            )
        nodes = machine.run(["scontrol", "show", "hostnames", listed]).out.split()
    finally:
        machine.close()
    for node in nodes:
        words = ("srun", f"--jobid={number}", "--overlap", "--nodes=1", "--ntasks=1", f"--nodelist={node}", "--quiet")
        yield Beside(where=f"node {node}", argv=words, terminal=(*words, "--pty"), environment=attempt.environment)
