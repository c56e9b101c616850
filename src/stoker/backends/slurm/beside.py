"""How commands run beside a step on Slurm: by `srun --overlap` in the step's job, on each of its nodes.

Of a cluster that is reached by SSH, srun is called on the login node.

https://slurm.schedmd.com/srun.html#OPT_overlap: such a step shares the CPUs, the memory and the devices of the job.
"""

from __future__ import annotations

import contextlib
from typing import Any, Iterator, Mapping

from stoker.backends.base.beside import NOT_HERE, Beside, RunningAttempt
from stoker.backends.base.logins import Login, Ssh, login
from stoker.backends.slurm.settings import SlurmSettings
from stoker.core.errors import UsageError


def places(options: Mapping[str, Any], attempt: RunningAttempt) -> Iterator[Beside]:
    """The nodes of the attempt's job; a `UsageError` where it has none.

    Raises `Away` where the controller, or the login node, does not answer. A connection to a login node stays open as
    long as this process.
    """
    machine = login(SlurmSettings(**options).get("host"))
    job = str(attempt.placement.get("id", ""))
    with contextlib.ExitStack() as leaving:
        leaving.callback(machine.close)
        asked = machine.run(["squeue", "--noheader", f"--jobs={job}", "--states=RUNNING", "--format=%A %N"])
        number, _, listed = asked.out.strip().partition(" ")
        if not job or asked.code or not listed:
            raise UsageError(
                f"step '{attempt.key}' has no node: Slurm does not run job {job or 'of its own'} ({NOT_HERE})",
                fix="see why it waits with `stoker show`",
            )
        nodes = machine.run(["scontrol", "show", "hostnames", listed]).out.split()
        found = [_place(machine, number, node, attempt) for node in nodes]
        leaving.pop_all()
    yield from found


def _place(machine: Login, job: str, node: str, attempt: RunningAttempt) -> Beside:
    words: tuple[str, ...] = ("srun", f"--jobid={job}", "--overlap", "--nodes=1", "--ntasks=1", f"--nodelist={node}")
    words = (*words, "--quiet")
    if not isinstance(machine, Ssh):
        return Beside(where=f"node {node}", argv=words, terminal=(*words, "--pty"), environment=attempt.environment)
    words = (*machine.login_words(), *words)
    return Beside(
        where=f"node {node} of {machine.address}",
        argv=machine.client(),
        terminal=machine.client(terminal=True),
        inner=words,
        inner_terminal=(*words, "--pty"),
        environment=attempt.environment,
    )
