"""Probes a cluster as a stack reaches it: the login node, the controller, the shared folder, and a node by a small job.

The job is a shell script that needs nothing of Stoker's: it also tells of a node on which no worker could start.
"""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import sys
import time
from typing import Any, Final, Iterator, Mapping

from stoker.backends.base.backend import ProbeRequest
from stoker.backends.base.logins import Login, login
from stoker.backends.slurm import script as slurmscript
from stoker.backends.slurm.cluster import ClusterFacts, Partition, cluster_facts
from stoker.backends.slurm.environment import node_python, setup_lines
from stoker.backends.slurm.facts import package_question
from stoker.backends.slurm.queue import Controller
from stoker.backends.slurm.settings import SlurmSettings
from stoker.backends.slurm.states import SETUP_FAILED_MARK, explain
from stoker.core.errors import Away, BackendError
from stoker.core.findings import Check
from stoker.core.words import count_text, dashed_name, memory_text
from stoker.store.filesystems import store_package

OLDEST_PYTHON: Final = (3, 10)
"""The oldest Python that a worker runs on."""
PYTHONS: Final = ("python3.13", "python3.12", "python3.11", "python3.10", "python3.14")
"""What is tried where `python3` is too old, the best supported by other packages first."""
MIN_FREE: Final = 10**9
"""Bytes. With less free space, the next large artifact may not fit."""
SKEW: Final = 60.0
"""Seconds by which clocks may differ before it is worth a remark."""
PAUSE: Final = 1.0
"""Seconds between two looks for the job's output."""
LATE: Final = 30.0
"""Seconds for which the output of a job that is over may be missing: file systems show new files that late."""
_END: Final = "probed"
_DISK: Final = "df -Pk {folder} | awk 'NR == 2 {{ print $4 }}'"
"""Free KiB: https://pubs.opengroup.org/onlinepubs/9699919799/utilities/df.html"""


def probe(options: Mapping[str, Any], request: ProbeRequest) -> Iterator[Check]:
    """What a stack with these settings finds; ends at the first thing without which nothing else can be asked."""
    settings = SlurmSettings(**options)
    machine = login(settings.get("host"))
    try:
        yield from _probe(settings, request, machine)
    except BackendError as error:
        yield Check(name="cluster", found="", problem=error.message, fix=error.fix)
    finally:
        machine.close()


def suggest(answers: Mapping[str, str]) -> Mapping[str, str]:
    """The cluster's default partition behind a login node, and the folder and the Python that are usual."""
    with contextlib.closing(login(SlurmSettings(host=answers["host"]).get("host"))) as machine:
        default = cluster_facts(machine).default
    partition = default.name if default is not None else ""
    return {"partition": partition, "account": "", "folder": "~/.stoker/slurm", "python": "python3"}


def _probe(settings: SlurmSettings, request: ProbeRequest, machine: Login) -> Iterator[Check]:
    host = settings.get("host")
    if host is not None:
        try:
            home = machine.expand("~/x").removesuffix("/x")
        except BackendError as error:
            yield Check(name="ssh", found="", problem=error.message, fix=error.fix)
            return
        yield Check(name="ssh", found=f"{host}, home {home}")
    try:
        facts = cluster_facts(machine)
    except BackendError as error:
        fix = error.fix or "see what `sinfo` says there; the commands must be on the PATH of a login shell"
        yield Check(name="controller", found="", problem=error.message, fix=fix)
        return
    yield Check(name="controller", found=f"Slurm {facts.version or 'of unknown version'}")
    partition = _partition_check(settings, facts)
    yield partition
    folder = machine.expand(settings.folder_in(request.scratch)).rstrip("/")
    token = os.urandom(8).hex()
    mine = f"{folder}/probe-{token}"
    try:
        machine.write({f"{mine}/marker": token.encode(), f"{mine}/{slurmscript.SCRIPT}": b""})
    except Away:
        raise
    except BackendError as error:
        fix = f"{error.fix}, which the nodes see, too"
        yield Check(name="folder", found=folder, problem=error.message, fix=fix)
        return
    try:
        yield from _login_checks(machine, folder)
        if not partition.problem:
            yield from _node_checks(settings, request, machine, mine, token)
    finally:
        machine.remove([mine])


def _partition_check(settings: SlurmSettings, facts: ClusterFacts) -> Check:
    name = settings.get("partition", "")
    wanted = name.split(",") if name else [facts.default.name] if facts.default is not None else []
    missing = [one for one in wanted if one not in facts.partitions]
    known = ", ".join(facts.partitions) or "none"
    if missing:
        problem, fix = f"there is no partition '{missing[0]}'", f"partition = one of {known}"
        return Check(name="partition", found=known, problem=problem, fix=fix)
    if not wanted:
        problem = "the cluster has no default partition, and the stack names none"
        return Check(name="partition", found=known, problem=problem, fix=f"partition = one of {known}")
    return Check(name="partition", found="; ".join(_partition_text(facts.partitions[one]) for one in wanted))


def _partition_text(partition: Partition) -> str:
    kinds: dict[str, float | None] = {}
    for group in partition.groups:
        for gres in group.gres:
            kind = f"{gres.name}:{gres.type}" if gres.type else gres.name
            before = kinds.get(kind, 0)
            kinds[kind] = None if before is None or gres.count is None else before + gres.count * group.nodes
    counted = (f"{'?' if count is None else f'{count:g}'} × {kind}" for kind, count in sorted(kinds.items()))
    devices = ", ".join(counted) or "no GRES"
    nodes = count_text(sum(group.nodes for group in partition.groups), "node")
    return f"{partition.name}{' (default)' if partition.default else ''}: {nodes}, {devices}"


def _login_checks(machine: Login, folder: str) -> Iterator[Check]:
    """The folder's disk, and the clock."""
    before = time.time()
    ran = machine.run(["sh", "-c", f"date +%s; {_DISK.format(folder=shlex.quote(folder))}"])
    after = time.time()
    lines = ran.out.split()
    if ran.code or len(lines) != 2 or not all(line.isdecimal() for line in lines):
        yield Check(name="folder", found=folder, problem=f"its disk cannot be looked at: {ran.err.strip()}")
        return
    yield _disk_check("folder", folder, lines[1])
    now = int(lines[0])
    skew = now - after if now > after else now + 1 - before if now + 1 < before else 0.0
    yield _clock_check("clock", skew)


def _disk_check(name: str, folder: str, kibibytes: str) -> Check:
    """The room on a disk, by what `_DISK` printed."""
    if not kibibytes.isdecimal():
        return Check(name=name, found=f"{folder}; how much is free is not known: df said {kibibytes!r}")
    free = int(kibibytes) * 1024
    low = free < MIN_FREE
    return Check(
        name=name,
        found=f"{folder}, {memory_text(free)} free",
        problem="there is little space left" if low else "",
        fix="remove what is old there (`stoker gc`), or name another folder with `folder`" if low else "",
    )


def _clock_check(name: str, skew: float) -> Check:
    if abs(skew) < 1:
        return Check(name=name, found="as here")
    text = f"{abs(skew):.0f} s {'ahead of' if skew > 0 else 'behind'} this machine's"
    remark = "; times of steps are by their nodes' clocks" if abs(skew) > SKEW else ""
    return Check(name=name, found=text + remark)


def _node_checks(
    settings: SlurmSettings, request: ProbeRequest, machine: Login, mine: str, token: str
) -> Iterator[Check]:
    """What a job of one minute says of its node."""
    script = probe_script(settings, mine, token, store=settings.store_on_nodes(request.store))
    machine.write({f"{mine}/{slurmscript.SCRIPT}": script.encode()})
    controller = Controller(machine)
    begun = time.time()
    try:
        id = controller.submit(mine, script)
    except Away:
        raise
    except BackendError as error:
        fix = error.fix or "name the partition, the account or the QOS that you may use"
        yield Check(name="job", found="", problem=f"sbatch refuses a job of one minute: {error.message}", fix=fix)
        return
    try:
        yield from _job_checks(settings, request, machine, controller, mine, id, begun)
    finally:
        controller.cancel({id: set()})


def _job_checks(
    settings: SlurmSettings,
    request: ProbeRequest,
    machine: Login,
    controller: Controller,
    mine: str,
    id: str,
    begun: float,
) -> Iterator[Check]:
    deadline, over_at, waits = time.monotonic() + request.patience, 0.0, ""
    while True:
        text = (machine.read(f"{mine}/out") or b"").decode(errors="replace")
        if re.search(rf"^{_END}$", text, re.MULTILINE) or SETUP_FAILED_MARK in text:
            break
        row = controller.rows({id}).get(id)
        if row is not None and row.stage == "waiting":
            waits = explain(row.reason, start=row.start, job=id) if row.reason not in ("None", "") else "no reason yet"
        elif row is None or row.stage == "over":
            over_at = over_at or time.monotonic()
        else:
            waits, over_at = "", 0.0
        if over_at and time.monotonic() - over_at > LATE:
            yield _silent_job(machine, controller, mine, id, text)
            return
        if waits and time.monotonic() > deadline:
            problem = f"job {id} did not start within {request.patience:.0f} s: {waits}"
            yield Check(name="job", found="", problem=problem, fix="run this again later, or name another partition")
            return
        if not over_at and time.monotonic() > deadline + 60:  # the job's own time limit is a minute
            problem = f"job {id} began and did not end within a minute"
            yield Check(name="job", found="", problem=problem, fix=f"see what the node does with {mine}/out")
            return
        time.sleep(PAUSE)
    failed = re.search(rf"^{SETUP_FAILED_MARK}(.*)$", text, re.MULTILINE)
    if failed is not None:
        problem = f"before the step begins, this fails on the node: {failed[1]}"
        fix = "mend `modules`, `setup`, `conda` or `venv` of the stack"
        yield Check(name="job", found=f"job {id}", problem=problem, fix=fix)
        return
    told = dict(line.partition("=")[::2] for line in text.splitlines() if "=" in line)
    yield Check(
        name="job", found=f"job {id} on {told.get('node', '?')}, {time.time() - begun:.0f} s from sbatch to its end"
    )
    yield _shared_check(mine, told)
    yield _disk_check("node's /tmp", "/tmp", told.get("tmp", ""))
    yield _python_check(settings, told)
    package, _, there = told.get("package", "").partition(" ")
    if there == "False":
        problem = f"the node's Python lacks {package}, which the artifact store needs"
        fix = f"install {package} there, or leave artifact_store out of the stack"
        yield Check(name="store's package", found="", problem=problem, fix=fix)
    elif package:
        found = package if there == "True" else f"whether the node's Python has {package} is not known: {there}"
        yield Check(name="store's package", found=found)


def _shared_check(mine: str, told: Mapping[str, str]) -> Check:
    folder = os.path.dirname(mine)
    sees = told.get("sees") == "yes"
    return Check(
        name="shared folder",
        found=f"{folder}, as seen from {told.get('node', 'a node')}" if sees else "",
        problem="" if sees else f"{told.get('node', 'a node')} does not see {folder} of the login node",
        fix="" if sees else "name a folder that both see: the setting `folder`",
    )


def _silent_job(machine: Login, controller: Controller, mine: str, id: str, text: str) -> Check:
    """The check of a job that is over and wrote nothing to be read."""
    row = controller.details([id]).get(id)
    how = f"{row.state}, code {row.code}" if row is not None else "its end is not known to Slurm"
    words = " ".join(text.split())[-300:]
    problem = f"job {id} ended ({how}) and left no output in {mine}{f': {words}' if words else ''}"
    fix = "name a folder that login node and nodes see, and that you may write to: the setting `folder`"
    return Check(name="shared folder", found="", problem=problem, fix=fix)


def _python_check(settings: SlurmSettings, told: Mapping[str, str]) -> Check:
    """The interpreter of steps; another one of the node's where it cannot run them."""
    wanted = node_python(settings)
    version = told.get(f"python {wanted}", "")
    if _numbers(version) >= OLDEST_PYTHON:
        ours = sys.version_info[:2]
        other = "" if _numbers(version)[:2] == ours else f"; here {ours[0]}.{ours[1]}: what travels pickled may not fit"
        return Check(name="python", found=f"{wanted}, {version}{other}")
    what = f"{wanted} is Python {version}" if _numbers(version) else f"{wanted} does not run: {version or 'no answer'}"
    others = {
        name: told[f"python {name}"] for name in PYTHONS if _numbers(told.get(f"python {name}", "")) >= OLDEST_PYTHON
    }
    better = next(iter(others), "")
    least = ".".join(map(str, OLDEST_PYTHON))
    fix = f'python = "{better}" in the stack' if better else "load one with `modules`, or name one with `python`"
    return Check(
        name="python",
        found="",
        problem=f"{what}; a step needs {least} or later",
        fix=fix,
        sets={"python": better} if better else {},
    )


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(map(int, version.split("."))) if re.fullmatch(r"\d+(\.\d+)+", version) else ()


def probe_script(settings: SlurmSettings, folder: str, token: str, *, store: str = "") -> str:
    """The batch script of the probe. Pure."""
    python = node_python(settings)
    package = store_package(store)
    here = shlex.quote(folder)
    options = [
        "--job-name=stoker/probe",
        f"--comment={dashed_name(token)}",
        f"--chdir={folder}",
        f"--output={slurmscript.pattern(folder)}/out",
        "--ntasks=1",
        "--time=0-00:01:00",
        *slurmscript.place_options(settings),
    ]
    version = 'import sys; print(".".join(map(str, sys.version_info[:3])))'
    lines = [
        "#!/bin/bash",
        *(f"#SBATCH {shlex.quote(option)}" for option in options),
        "",
        "exec 2>&1",
        *setup_lines(settings),
        "set +e",
        'echo "node=$(hostname)"',
        f"[ -e {here}/marker ] && echo sees=yes",
        f'echo "tmp=$({_DISK.format(folder="/tmp")})"',
        f"for python in {shlex.join([python, *PYTHONS])}; do",
        f'  echo "python $python=$("$python" -c {shlex.quote(version)} 2>&1 | tail -n 1)"',
        "done",
    ]
    if package:
        question = package_question(package)
        lines.append(f'echo "package={package} $({shlex.quote(python)} -c {shlex.quote(question)} 2>&1 | tail -n 1)"')
    return "\n".join([*lines, f"echo {_END}"]) + "\n"
