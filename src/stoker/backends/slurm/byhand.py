"""What a person does on a cluster by hand: submit a rendered job, and run commands beside a step that runs.

The script of a job has its folder, its document, and sbatch. Commands run by `srun --overlap` in the step's job, on
each of its nodes; of a cluster that is reached by SSH, srun is called on the login node.

https://slurm.schedmd.com/srun.html#OPT_overlap: such a step shares the CPUs, the memory and the devices of the job.
"""

from __future__ import annotations

import contextlib
import shlex
from typing import Any, Iterator, Mapping

from stoker.backends.base.backend import NOT_HERE, Beside, RunningAttempt
from stoker.backends.base.byhand import (
    document_lines,
    file_lines,
    input_lines,
    needs,
    needs_command,
    split_variables,
    subshell,
)
from stoker.backends.base.logins import Login, Ssh, login
from stoker.backends.slurm.script import DOCUMENT, SCRIPT, bundle_path, image_of
from stoker.backends.slurm.settings import SlurmSettings
from stoker.core.errors import UsageError
from stoker.core.plan import Job, Site
from stoker.core.protocol import RESULT


def script(job: Job, request: Mapping[str, Any], site: Site, settings: SlurmSettings, *, folder: str) -> str:
    """The script; `folder` is that of the submission."""
    return subshell(_lines(job, request, site, settings, folder))


def _lines(job: Job, request: Mapping[str, Any], site: Site, settings: SlurmSettings, folder: str) -> Iterator[str]:
    place = f"paste this into a shell of {settings.host}" if settings.get("host") else "paste this on a login node"
    yield needs_command("sbatch", place)
    yield from input_lines(job.key, request["document"]["job"]["inputs"])
    if settings.shares:
        bundle = bundle_path(site, settings, folder)
        if bundle:
            yield needs(bundle, "Stoker's worker, which a run makes")
    home = "" if folder.startswith("/") else "$HOME"
    here = f'"$HOME"/{shlex.quote(folder[2:])}' if home else shlex.quote(folder)
    yield f"here={here}"
    yield 'mkdir -p "$here"/0'
    document, variables = split_variables(_document(job, request["document"], settings))
    yield from variables
    yield from document_lines(f'"$here"/0/{DOCUMENT}', document)
    yield from file_lines(f'"$here"/{SCRIPT}', request["script"])
    if home:
        # A run asks the login node for the home; in the script and the document it stands as it was set.
        yield f'sed -i "s|~/|$HOME/|g" "$here"/{SCRIPT} "$here"/0/{DOCUMENT}'
    yield f'sbatch "$here"/{SCRIPT}'
    yield f'echo "its output: $here/0/out-0 and err-0, its result: $here/0/{RESULT}"'


def _document(job: Job, document: Mapping[str, Any], settings: SlurmSettings) -> Mapping[str, Any]:
    """Nodes that see this machine's folders take the code from there, not from a package that a run would store."""
    if settings.shares and not image_of(job.step):
        return {**document, "package": ""}
    return document


# Beside a step


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
