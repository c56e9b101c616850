"""Makes the batch script of jobs, and the documents for their workers. Pure: nothing is asked or sent.

    FOLDER/RUN/TOKEN/script.sh
    FOLDER/RUN/TOKEN/INDEX/job.json     the document of `worker.boot`; beside it result.json, out-NODE and err-NODE

INDEX is the task of an array, 0 without one; TOKEN is also the job's comment, by which a later driver finds it. The
batch script of a job on one node becomes the worker, so that Slurm's signals reach it; the nodes of a gang, and
containers of pyxis, are one step of srun. Environment variables of the step are in the document, never in the script,
which all users can read.

Options are those of https://slurm.schedmd.com/sbatch.html and https://slurm.schedmd.com/srun.html.
"""

from __future__ import annotations

import json
import math
import os
import re
import shlex
from typing import Any, Final, Iterable, Iterator, Mapping, Sequence

import attrs

from stoker.backends.base.leasing import requested_lease
from stoker.backends.base.messages import boot_spec, gang_task, least_nodes, nodes_of
from stoker.backends.base.overlays import Mount
from stoker.backends.slurm.environment import image_file, node_python, python_lines, setup_lines, uses_own_python
from stoker.backends.slurm.settings import AUTO, FEATURE, OF_ITS_OWN, SlurmSettings
from stoker.core.accelerators import MODELS, Accelerator
from stoker.core.codec import to_json
from stoker.core.orders import BootSpec
from stoker.core.plan import Job, Site, StepPlan
from stoker.core.protocol import RESULT
from stoker.core.resources import ResourceSettings, describe
from stoker.core.units import size_text
from stoker.core.words import dashed_name
from stoker.images.dockerfile import is_definition
from stoker.vendors.registry import USUAL, VENDORS

SCRIPT: Final = "script.sh"
DOCUMENT: Final = "job.json"
WARNED: Final = "warned"
"""The file by which `worker.boot` learns that the time limit is near."""
GRACE: Final = 9.0
"""Seconds that a step gets after SIGTERM: the engine gives 10, a time limit at least KillWait's 30.
https://slurm.schedmd.com/slurm.conf.html#OPT_KillWait"""
MARGIN: Final = 300.0
"""Seconds by which a job's limit exceeds the step's timeout: to start, to fetch code and an image, and to end. The
engine enforces the timeout itself; the limit is for when the engine is gone."""
_MIB: Final = 1 << 20
_LONGEST_NAME: Final = 120
_UNSET: Final = (
    "SLURM_EXPORT_ENV",  # or a step of srun has only what --export=NONE leaves, where a site makes that its default
    "SLURM_LABELIO",  # or each line begins with a number
    "SLURM_TIMELIMIT",  # or a step ends before its job
)
"""Variables that srun would take from the environment of the submission:
https://slurm.schedmd.com/srun.html#SECTION_INPUT-ENVIRONMENT-VARIABLES"""
_WORKER_NAME: Final = "${SLURM_ARRAY_JOB_ID:+${SLURM_ARRAY_JOB_ID}_}${SLURM_ARRAY_TASK_ID:-$SLURM_JOB_ID}"
"""Slurm's id of the job, as squeue shows it."""
_STALE: Final = ("result*.json", "samples*.jsonl", "gang-*.json", WARNED)


def group(job: Job, settings: SlurmSettings) -> str:
    """A text that is equal for jobs that may be tasks of one array; a gang is never one."""
    step = job.step
    alike = {
        "run": job.run,
        "step": step.name,
        "kind": job.kind,
        "avoid": job.avoid,
        "alone": job.name if nodes_of(job) > 1 else "",
        "settings": to_json(settings),
        "resources": to_json(step.settings.resources),
        "timeout": step.settings.timeout,
        "image": image_of(step),
    }
    return json.dumps(alike, sort_keys=True, default=str)


def shape(job: Job, settings: SlurmSettings) -> str:
    """A text that is equal for steps that a job may take one after another: their requests to sbatch are the same."""
    alike = {
        "run": job.run,
        "avoid": job.avoid,
        "settings": to_json(settings),
        "resources": to_json(job.step.settings.resources),
        "limit": time_limit(job, settings),
        "pickled": job.step.source.kind == "pickled",  # the script then compares Python's versions
    }
    return json.dumps(alike, sort_keys=True, default=str)


def why_alone(step: StepPlan, settings: SlurmSettings, kind: str = "step") -> str:
    """Why a step gets a job of its own, after "because"; empty for one whose job may take further steps."""
    if settings.get("reuse", AUTO) is False:
        return "reuse=false says so"
    if kind != "step":
        return "it is a hook"
    if step.settings.resources.get("nodes", 1) > 1:
        return "it runs on several nodes"
    if image_of(step) or step.settings.docker is not None:
        return "it runs in an image"
    return setting_of_one_job(settings)


def setting_of_one_job(settings: SlurmSettings) -> str:
    """The setting that gives a step a job of its own, as a sentence; empty for none."""
    options = settings.get("options", {})
    of_one = next((name for name in _OF_ONE_JOB if options.get(name) not in (None, False)), "")
    if settings.get("requeue"):
        return "with requeue=true Slurm starts a job, and so a step, again"
    if settings.get("mail_type", "NONE") != "NONE":
        return "mail_type makes Slurm write about each job"
    return f"the option {of_one} is about one job" if of_one else ""


_OF_ONE_JOB: Final = ("bb", "bbf", "begin", "deadline", "dependency", "hold", "kill-on-invalid-dep", "time-min")
"""Options of sbatch that would mean something else for the second step of a job."""


def submission_folder(folder: str, run: str, token: str, index: int | None = None) -> str:
    """The folder of a submission, or of one of its jobs."""
    whole = f"{folder.rstrip('/')}/{dashed_name(run)}/{token}"
    return whole if index is None else f"{whole}/{index}"


def bundle_path(site: Site, settings: SlurmSettings, folder: str) -> str:
    """The path of Stoker's worker on the nodes: this machine's if they see it, else a copy in the shared folder."""
    return site.bundle if settings.shares or not site.bundle else f"{folder}/{os.path.basename(site.bundle)}"


def checkpoint_folder(site: Site, settings: SlurmSettings, folder: str) -> str:
    """The folder of checkpoints on the nodes, the same for every attempt."""
    return site.checkpoints if settings.shares else f"{folder.rstrip('/')}/checkpoints"


def definition_of(step: StepPlan) -> str:
    """The definition of which the image of a step is built on its node; empty for an image that exists."""
    image = image_of(step)
    return image if is_definition(image) else ""


def image_of(step: StepPlan) -> str:
    """The image in which a step runs, by its name or its definition; empty without one."""
    docker = step.settings.docker
    if docker is None or docker.skip_build is not True:
        return step.image
    return step.image or str(docker.parent_image or "")


def specification(
    job: Job,
    site: Site,
    settings: SlurmSettings,
    *,
    folder: str,
    token: str,
    index: int = 0,
    secret: str = "",
    environment: Mapping[str, str] | None = None,
) -> BootSpec:
    """The document of `worker.boot` for task `index`.

    `secret` is shared by the nodes of a gang, `environment` has the credentials of the artifact store.
    """
    here = submission_folder(folder, job.run, token, index)
    lease = requested_lease(job, samples=f"{here}/samples.jsonl")
    gang = gang_task(job, here, "slurm", token=secret) if nodes_of(job) > 1 else None
    return boot_spec(
        job,
        site,
        checkpoints=checkpoint_folder(site, settings, folder),
        grace=GRACE,
        lease=lease,
        gang=gang,
        environment={**_environment(job.step), **(environment or {})},
        warning=settings.get("warn_before", 0.0),
    )


def script(jobs: Sequence[Job], site: Site, settings: SlurmSettings, *, folder: str, token: str) -> str:
    """The batch script of one job, or of an array of alike ones."""
    job = jobs[0]
    here = submission_folder(folder, job.run, token)
    stale = " ".join(f'"$here"/{name}' for name in _STALE)
    lines = [
        *_head(arguments(jobs, settings, folder=folder, token=token)),
        f'here={shlex.quote(here)}/"${{SLURM_ARRAY_TASK_ID:-0}}"',
        # Files of an earlier start of the same job, which Slurm starts again in the same folder.
        f"rm -f {stale}",
        *setup_lines(settings, definition_of(job.step), folder),
        *_python_path(job, site, settings, folder),
        *_start(job, site, settings, folder, here),
    ]
    return "\n".join(lines) + "\n"


def worker_script(
    job: Job, count: int, site: Site, settings: SlurmSettings, *, folder: str, token: str, pool: str
) -> str:
    """The batch script of `count` workers of a pool, in whose folder they find their orders; `job` is one of these.

    A worker's name in the pool is Slurm's id of its job.
    """
    here = submission_folder(folder, job.run, token)
    task = "%a" if count > 1 else "0"
    files = (f"{pattern(here)}/out-{task}", f"{pattern(here)}/err-{task}")
    name = job_name([attrs.evolve(job, key=job.step.name)], settings)
    options = _arguments(job, settings, name=name, count=count, here=here, files=files, token=token)
    lines = [
        *_head(options),
        *setup_lines(settings),
        *_python_path(job, site, settings, folder),
        f"name={_WORKER_NAME}",
        "unset ${!SLURM_ARRAY_@}",  # a step would take the number of its worker for its own
        f'exec {shlex.quote(_python(job, settings))} -m stoker.worker.pool {shlex.quote(pool)} "$name"',
    ]
    return "\n".join(lines) + "\n"


def _head(options: Iterable[str]) -> Iterator[str]:
    """The first lines of a script."""
    yield "#!/bin/bash"
    for option in options:
        yield f"#SBATCH {shlex.quote(option)}"
    yield ""
    yield f"unset {' '.join(_UNSET)}"


def arguments(jobs: Sequence[Job], settings: SlurmSettings, *, folder: str, token: str) -> list[str]:
    """The options of sbatch for a script. On its command line they also win over SBATCH_* of the environment."""
    job = jobs[0]
    here = submission_folder(folder, job.run, token)
    task = "%a" if len(jobs) > 1 else "0"
    files = (f"{pattern(here)}/{task}/out-0", f"{pattern(here)}/{task}/err-0")
    name = job_name(jobs, settings)
    return _arguments(job, settings, name=name, count=len(jobs), here=here, files=files, token=token)


def _arguments(
    job: Job, settings: SlurmSettings, *, name: str, count: int, here: str, files: tuple[str, str], token: str
) -> list[str]:
    """The options of `count` alike jobs, whose output and errors go to `files`."""
    options = [
        f"--job-name={name}",
        f"--comment={_comment(settings, token)}",
        f"--chdir={here}",
        f"--output={files[0]}",
        f"--error={files[1]}",
        "--open-mode=append",
        "--export=ALL",
        *place_options(settings, avoid=job.avoid),
        *_size(job, settings),
        *_limits(job, settings),
        *_other_options(settings),
    ]
    most = settings.get("array_parallelism")
    return [*options, f"--array=0-{count - 1}{f'%{most}' if most else ''}"] if count > 1 else options


def job_name(jobs: Sequence[Job], settings: SlurmSettings) -> str:
    """The name in the queue of a job, or of an array of alike ones."""
    job = jobs[0]
    fields = {"pipeline": job.pipeline or "stoker", "step": job.step.name, "run": job.run}
    pattern: str | None = settings.get("job_name")
    element = re.search(r"\[(\d+)\]$", job.key) if len(jobs) == 1 and pattern is None else None
    text = pattern or "{pipeline}/{step}"
    for name, value in fields.items():
        text = text.replace(f"{{{name}}}", value)
    text += f"/{element[1]}" if element is not None else ""
    text += "/hook" if job.kind == "hook" else ""
    return "".join(letter if letter.isalnum() and letter.isascii() else _plain(letter) for letter in text)[
        :_LONGEST_NAME
    ]


def _plain(letter: str) -> str:
    """A sign of a job's name: those that neither Slurm nor a shell gives a meaning stay."""
    return letter if letter in "/._-:" else "-"


def _comment(settings: SlurmSettings, token: str) -> str:
    """The comment, whose last word is the token."""
    return " ".join(filter(None, (settings.get("comment"), token)))


def time_limit(job: Job, settings: SlurmSettings) -> float | None:
    """Seconds after which Slurm ends a job; None where the partition's limit holds."""
    limit: float | None = settings.get("time_limit")
    timeout = job.step.settings.timeout if job.kind == "step" else None
    return limit if limit is not None or timeout is None else timeout + MARGIN


def time_text(seconds: float) -> str:
    """The value for `--time`: days-hours:minutes:seconds."""
    whole = math.ceil(seconds)
    days, remainder = divmod(whole, 86400)
    return f"{days}-{remainder // 3600:02d}:{remainder // 60 % 60:02d}:{remainder % 60:02d}"


_PLAIN: Final = ("partition", "account", "qos", "reservation", "nodelist", "exclude", "mail_type", "mail_user")
"""Fields whose value is passed to sbatch's option by its name."""


def _size(job: Job, settings: SlurmSettings) -> Iterator[str]:
    """Options for the resources of each node. CPUs are whole, memory is in MiB: both are rounded up."""
    resources = job.step.settings.resources if job.kind == "step" else ResourceSettings()
    nodes = nodes_of(job)
    yield f"--nodes={nodes}"
    yield "--ntasks-per-node=1"
    if resources.get("cpu_count"):
        yield f"--cpus-per-task={math.ceil(resources.get('cpu_count'))}"
    if resources.get("memory"):
        yield f"--mem={math.ceil(resources.get('memory') / _MIB)}M"
    if resources.get("disk"):
        yield f"--tmp={math.ceil(resources.get('disk') / _MIB)}M"
    devices = device_request(resources, settings)
    gres = devices.gres(settings, resources.get("extended", {}))
    if gres:
        yield f"--gres={','.join(gres)}"
    if devices.per_node(settings):
        yield f"--gpus-per-node={devices.per_node(settings)}"
    if devices.constraint:
        yield f"--constraint={devices.constraint}"


def _limits(job: Job, settings: SlurmSettings) -> Iterator[str]:
    limit, warning = time_limit(job, settings), settings.get("warn_before")
    if limit is not None:
        yield f"--time={time_text(limit)}"
    if warning is not None:
        yield f"--signal=B:USR1@{math.ceil(warning)}"  # to the batch process alone
    yield "--requeue" if settings.get("requeue") else "--no-requeue"
    if least_nodes(job):
        yield "--no-kill"


def _other_options(settings: SlurmSettings) -> Iterator[str]:
    exclusive = settings.get("exclusive")
    if exclusive:
        yield "--exclusive" if exclusive is True else f"--exclusive={exclusive}"
    for name, value in sorted(settings.get("options", {}).items()):
        if value is True:
            yield f"--{name}"
        elif value is not None and value is not False:
            yield f"--{name}={value}"


def place_options(settings: SlurmSettings, *, avoid: Sequence[str] = ()) -> list[str]:
    """The options that choose where jobs go and for whom they run, by fields whose value sbatch takes unchanged.

    `avoid` are nodes that are excluded beside those of the settings: attempts of the run found faulty devices there.
    """
    values = {name: settings.get(name) for name in _PLAIN}
    values["exclude"] = ",".join(dict.fromkeys(filter(None, [settings.get("exclude"), *avoid])))
    return [f"--{name.replace('_', '-')}={value}" for name, value in values.items() if value]


def _python_path(job: Job, site: Site, settings: SlurmSettings, folder: str) -> Iterator[str]:
    """Lines that put Stoker's worker on the path of an interpreter that may lack it."""
    image = image_of(job.step)
    if not image and uses_own_python(settings):
        return
    yield "unset PYTHONHOME"
    yield from () if image else python_lines(job, settings)
    bundle = bundle_path(site, settings, folder)
    if bundle and not image:
        yield f'export PYTHONPATH={shlex.quote(bundle)}"${{PYTHONPATH:+:$PYTHONPATH}}"'


def by_srun(job: Job, settings: SlurmSettings) -> bool:
    """Whether the worker is a step of srun, and not the batch process."""
    return nodes_of(job) > 1 or bool(image_of(job.step) and settings.get("container") == "pyxis")


def _start(job: Job, site: Site, settings: SlurmSettings, folder: str, here: str) -> Iterator[str]:
    """The lines that start the worker: as the batch process itself, or as a step of srun that the shell waits for.

    That shell gets the warning before the limit instead of the step, in which Slurm would signal every process, also
    the user's. On SIGTERM, which the step gets too, it goes on waiting, because its end is the job's.
    """
    words = _worker(job, site, settings, folder)
    spec = f'"$here/{DOCUMENT}"'
    if not by_srun(job, settings):
        yield f"exec {shlex.join(words)} {spec}"
        return
    yield "told="
    yield f"trap 'told=yes; touch \"$here\"/{WARNED}' USR1"
    yield "trap 'told=yes' TERM"
    yield f"{shlex.join([*_srun(job, here), *words])} {spec} &"
    yield "while told= code=0; do"
    yield "  wait $! || code=$?"
    yield '  [ -n "$told" ] || break'
    yield "done"
    # A worker that was killed leaves no result. This node would have it, however late the shared folder shows it to
    # others: ended by the same signal, the job says that none is to be waited for.
    yield f'if [ "$code" -gt 128 ] && [ ! -e "$here/{RESULT}" ]; then trap - TERM; kill -$((code - 128)) $$; fi'
    yield 'exit "$code"'


def _worker(job: Job, site: Site, settings: SlurmSettings, folder: str) -> list[str]:
    """The command of the worker, in its image if it has one."""
    image = image_of(job.step)
    words = [_python(job, settings), "-m", "stoker.worker.boot"]
    if not image:
        return words
    bundle, checkpoints = bundle_path(site, settings, folder), checkpoint_folder(site, settings, folder)
    mounts = mounts_of(site, settings, folders=(folder, checkpoints), bundle=bundle)
    # The node's own packages are no use in the image. Set by `env` inside, the variable is not lost on the way.
    paths = ":".join(filter(None, (bundle, _environment(job.step).get("PYTHONPATH", ""))))
    if definition_of(job.step):
        image = image_file(image, folder)
    return [*container_command(job, settings, image, mounts), "env", f"PYTHONPATH={paths}", *words]


def _python(job: Job, settings: SlurmSettings) -> str:
    """The interpreter of the worker."""
    return str(settings.get("python", "python3")) if image_of(job.step) else node_python(settings)


def _srun(job: Job, here: str) -> Iterator[str]:
    """The srun command of a step on all nodes; the first process that fails ends them all, unless they need not be all.

    It has the job's CPUs only if it says so again (https://slurm.schedmd.com/srun.html#OPT_cpus-per-task), and leaves
    them to a further srun that a launcher may start in it only with `--overlap`. A site's default for `--mpi` would put
    variables of its own into the environment of such ranks.
    """
    nodes = nodes_of(job)
    cpus = job.step.settings.resources.get("cpu_count") if job.kind == "step" else None
    yield from ("srun", f"--nodes={nodes}", f"--ntasks={nodes}", "--ntasks-per-node=1")
    if cpus:
        yield f"--cpus-per-task={math.ceil(cpus)}"
    yield "--overlap"
    yield from ("--kill-on-bad-exit=0", "--no-kill") if least_nodes(job) else ("--kill-on-bad-exit=1",)
    yield from ("--wait=0", "--mpi=none", "--export=ALL", "--input=none")
    yield from ("--open-mode=append", f"--output={pattern(here)}/0/out-%n", f"--error={pattern(here)}/0/err-%n")


def pattern(folder: str) -> str:
    """A folder's path in a pattern of file names, in which Slurm replaces words behind "%"."""
    return folder.replace("%", "%%")


def _environment(step: StepPlan) -> dict[str, str]:
    """The step's variables, over those of its image."""
    docker = step.settings.docker
    variables: dict[str, str] = {}
    for layer in () if docker is None else (docker.environment, docker.runtime_environment):
        variables.update({name: text for name, text in (layer or {}).items() if text is not None})
    return {**variables, **step.settings.environment}


def container_command(job: Job, settings: SlurmSettings, image: str, mounts: Iterable[Mount]) -> list[str]:
    """The command that runs the worker's in a container; for pyxis these are options of srun."""
    container = settings.get("container", "")
    if not container:
        return []
    if container == "pyxis":
        return list(_pyxis(image, mounts))
    return [container, *_apptainer(job, mounts), docker_address(image)]


def mounts_of(site: Site, settings: SlurmSettings, *, folders: Sequence[str], bundle: str) -> Iterator[Mount]:
    """Mounts of the nodes' folders at their own paths, and those of the settings."""
    ours = [*folders]
    if "://" not in site.artifacts:
        ours.append(site.artifacts)
    if not site.package:
        ours += [site.folder, *(source.root for source in site.sources if source.root)]
    for path in dict.fromkeys(filter(None, ours)):
        yield Mount(path, path)
    if bundle:
        yield Mount(bundle, bundle, True)
    for text in settings.get("mounts", ()):
        yield Mount.parse(text)


def docker_address(image: str) -> str:
    """The address of an image for Apptainer; a file's path and other schemes are unchanged."""
    return image if "://" in image or image.startswith(("/", "./")) else f"docker://{image}"


def enroot_address(image: str) -> str:
    """The address of an image for enroot, with a "#" behind the registry; files and other schemes are unchanged.

    https://github.com/NVIDIA/enroot/blob/master/doc/cmd/import.md
    """
    name = image.removeprefix("docker://")
    if name.startswith(("/", "./")) or "://" in name:
        return name
    registry, slash, path = name.partition("/")
    is_registry = bool(slash) and ("." in registry or ":" in registry or registry == "localhost")
    return f"{registry}#{path}" if is_registry and "#" not in name else name


def _apptainer(job: Job, mounts: Iterable[Mount]) -> Iterator[str]:
    """Options of https://apptainer.org/docs/user/latest/cli/apptainer_exec.html, whose words are Singularity's too.

    It passes the environment on, and mounts the user's home as the site configures it.
    """
    resources = job.step.settings.resources
    yield "exec"
    if job.kind == "step" and resources.gpus_per_node:
        yield from VENDORS.load(vendor_of(resources) or USUAL).apptainer
    for mount in mounts:
        yield f"--bind={_bound(mount)}"


def _pyxis(image: str, mounts: Iterable[Mount]) -> Iterator[str]:
    """Options of https://github.com/NVIDIA/pyxis/wiki/Usage; variables that the image sets override the job's."""
    yield f"--container-image={enroot_address(image)}"
    yield f"--container-mounts={','.join(map(_bound, mounts))}"
    yield from ("--no-container-mount-home", "--no-container-entrypoint")


def _bound(mount: Mount) -> str:
    return f"{mount.source}:{mount.target}{':ro' if mount.read_only else ''}"


# Accelerators


GPU: Final = "gpu"
"""The GRES of GPUs."""
NO_TYPE: Final = "STK151"
A_PART: Final = "STK153"
TWO_CONSTRAINTS: Final = "STK158"
_COMPOUND: Final = frozenset("|[](*&")
_WAY: Final = 'gres_types={"H100": "h100"} of SlurmSettings says what the site calls its GPUs'


@attrs.frozen(kw_only=True)
class SiteName:
    """A site's name for a kind of device: a GRES and its type, or a feature of nodes."""

    gres: str = GPU
    type: str = ""
    """Empty for any type."""
    feature: str = ""
    """The feature of nodes that have the kind; empty where the type tells it."""
    guess: bool = False
    """Whether the name is guessed, because `gres_types` lacks the kind."""

    @property
    def text(self) -> str:
        """The value for `--gres`, without a count."""
        return f"{self.gres}:{self.type}" if self.type else self.gres


@attrs.frozen(kw_only=True)
class DeviceProblem:
    """Why accelerators cannot be requested: the parts of a finding."""

    code: str
    what: str
    why: str
    fix: str


@attrs.frozen(kw_only=True)
class DeviceRequest:
    """The request for the accelerators of each node."""

    name: SiteName | None = None
    """None for a step without accelerators."""
    count: int = 0
    constraint: str = ""
    """Features of nodes, with those of the settings."""
    remarks: tuple[str, ...] = ()
    """Sentences about differences from what the step asks for."""
    problem: DeviceProblem | None = None
    """Why there is no request; None where there is one."""

    def gres(self, settings: SlurmSettings, extended: Mapping[str, float]) -> tuple[str, ...]:
        """The entries of `--gres`, without GPUs where another option requests them."""
        entries = [] if self.name is None or self.per_node(settings) else [f"{self.name.text}:{self.count}"]
        return (*entries, *(f"{name}:{round(amount)}" for name, amount in sorted(extended.items())))

    def per_node(self, settings: SlurmSettings) -> str:
        """The value of `--gpus-per-node`, where that option requests GPUs; else empty."""
        if self.name is None or self.name.gres != GPU or settings.get("gpus_as", "gres") == "gres":
            return ""
        return f"{self.name.type}:{self.count}" if self.name.type else str(self.count)


def device_request(resources: ResourceSettings, settings: SlurmSettings) -> DeviceRequest:
    """The request for a step's accelerators, or why there can be none."""
    count, constraint = resources.gpus_per_node, settings.get("constraint", "")
    if not count:
        return DeviceRequest(constraint=constraint)
    if resources.get("share"):
        return DeviceRequest(problem=_no_sharing(resources))
    types = settings.get("gres_types", {})
    kinds: Sequence[Accelerator] = resources.get("accelerators", ())
    remarks: list[str] = []
    if not kinds and (resources.get("gpu_memory") or resources.get("gpu_vendor")):
        kinds, problem = _pick_kind(resources, types)
        if problem is not None:
            return DeviceRequest(problem=problem)
        remarks.append(f"{_request_text(resources)} is asked for as {kinds[0]}, by gres_types")
    if not kinds:
        return DeviceRequest(name=SiteName(), count=count, constraint=constraint)
    site_names = {kind: site_name(kind, types) for kind in kinds}
    unknown = next((kind for kind, name in site_names.items() if name is None), None)
    if unknown is not None:
        return DeviceRequest(problem=_unknown_kind(unknown))
    return _of_kinds(
        {kind: name for kind, name in site_names.items() if name is not None}, resources, constraint, remarks
    )


def site_name(kind: Accelerator, types: Mapping[str, str]) -> SiteName | None:
    """The site's name for a kind; None where it cannot be guessed.

    The guess for a GPU is the chip alone, in small letters: "A100-80GB" by "a100"; its MIG slice by both:
    "a100_1g.10gb", which is what sites make of the names that AutoDetect=nvml finds
    (https://slurm.schedmd.com/gres.html#MIG_Management).
    """
    whole = types.get(kind.name)
    text = types.get(f"{kind.name}/{kind.slice}") if kind.slice else whole
    if text:
        return _parse_site_name(text)
    if kind.slice and whole and not whole.startswith((FEATURE, OF_ITS_OWN)):
        return SiteName(type=f"{whole}_{kind.slice}", guess=True)
    if VENDORS.load(kind.model.vendor).noun != "GPU":
        return None  # each site has a name of its own for these
    chip = kind.name.partition("-")[0].lower()
    return SiteName(type=f"{chip}_{kind.slice}" if kind.slice else chip, guess=True)


def _parse_site_name(text: str) -> SiteName:
    if text.startswith(FEATURE):
        return SiteName(feature=text.removeprefix(FEATURE))
    if text.startswith(OF_ITS_OWN):
        gres, _, type = text.removeprefix(OF_ITS_OWN).partition(":")
        return SiteName(gres=gres, type=type)
    return SiteName(type=text)


def _of_kinds(
    site_names: Mapping[Accelerator, SiteName], resources: ResourceSettings, constraint_set: str, remarks: list[str]
) -> DeviceRequest:
    """One request of all alternatives, if Slurm can choose among them; else of the first."""
    first = next(iter(site_names))
    counts = {kind.count or resources.gpus_per_node for kind in site_names}
    features = [other.feature for other in site_names.values()]
    count = first.count or resources.gpus_per_node
    if all(features) and len(counts) == 1:
        choice = "|".join(dict.fromkeys(features))
        several = "|" in choice
        if several and resources.get("nodes", 1) > 1:
            choice = f"[{choice}]"  # all nodes of one kind
        if constraint_set and (several or _COMPOUND & set(constraint_set) - {"&"}):
            return DeviceRequest(problem=_two_constraints(constraint_set, choice))
        return DeviceRequest(
            name=SiteName(),
            count=count,
            constraint=f"{constraint_set}&{choice}" if constraint_set else choice,
            remarks=tuple(remarks),
        )
    name = site_names[first]
    others = [str(kind) for kind, other in site_names.items() if other != name or (kind.count or count) != count]
    if others:
        remarks.append(f"{first} is asked for, and not {' or '.join(others)}: Slurm takes one type for a request")
    if name.guess and name.type != first.name.lower():
        remarks.append(f"{attrs.evolve(first, count=None)} is asked for as the type '{name.type}'")
    if name.feature and constraint_set and _COMPOUND & set(constraint_set) - {"&"}:
        return DeviceRequest(problem=_two_constraints(constraint_set, name.feature))
    constraint = "&".join(filter(None, (constraint_set, name.feature)))
    return DeviceRequest(name=name, count=count, constraint=constraint, remarks=tuple(remarks))


def _pick_kind(
    resources: ResourceSettings, types: Mapping[str, str]
) -> tuple[Sequence[Accelerator], DeviceProblem | None]:
    """The site's smallest kind with the memory and of the vendor that the step asks for."""
    memory, vendor = resources.get("gpu_memory", 0), resources.get("gpu_vendor", "")
    suitable = [kind for kind in _kinds(types) if _least(kind) >= memory and (not vendor or kind.model.is_by(vendor))]
    if suitable:
        best = min(suitable, key=lambda kind: (bool(kind.slice), _least(kind)))
        return (attrs.evolve(best, count=resources.gpus_per_node),), None
    what = f"asks for {describe(resources)}: Slurm knows GPUs by their types only"
    why = "none of those in gres_types is of that kind" if types else "which types would do is not known"
    name = VENDORS.load(vendor or USUAL).example or next(
        (n for n, model in MODELS.items() if model.is_by(vendor)), "H100"
    )
    return (), DeviceProblem(code=NO_TYPE, what=what, why=why, fix=f'name the kind: accelerators="{name}:1"; or {_WAY}')


def _kinds(types: Mapping[str, str]) -> Iterable[Accelerator]:
    return (Accelerator.parse(name) for name, text in types.items() if text)


def _least(kind: Accelerator) -> int:
    """Bytes of one device, in the smallest size of its kind that is sold."""
    return kind.memory if kind.slice else kind.model.memory[0]


def _request_text(resources: ResourceSettings) -> str:
    memory, vendor = resources.get("gpu_memory", 0), resources.get("gpu_vendor", "")
    return " and ".join(
        filter(None, (f"gpu_memory={size_text(memory)}" if memory else "", f"gpu_vendor={vendor}" if vendor else ""))
    )


def _no_sharing(resources: ResourceSettings) -> DeviceProblem:
    return DeviceProblem(
        code=A_PART,
        what=f"asks for {describe(resources)}: Slurm gives no bytes of a GPU",
        why="what a shard, or a part by MPS, is worth differs from site to site "
        "(https://slurm.schedmd.com/gres.html#Sharding)",
        fix='ask for a MIG slice (accelerators="A100-80GB/1g.10gb") or a whole one; where the site has shards, one is '
        'accelerators="A100:1" without share, with gres_types={"A100": "gres/shard"}',
    )


def _unknown_kind(kind: Accelerator) -> DeviceProblem:
    return DeviceProblem(
        code=NO_TYPE,
        what=f"asks for {kind}, which Slurm does not know as a GPU",
        why="each site has a name of its own for these",
        fix=f'say which: gres_types={{"{kind.name}": "gres/neuron"}} of SlurmSettings, for example',
    )


def _two_constraints(constraint: str, choice: str) -> DeviceProblem:
    return DeviceProblem(
        code=TWO_CONSTRAINTS,
        what=f"asks for nodes with {choice}, and its constraint is '{constraint}'",
        why="Slurm reads operators from left to right, so that the two cannot be put together safely",
        fix="write both into constraint, and name no accelerators but gpu_count",
    )


def vendor_of(resources: ResourceSettings) -> str:
    """The vendor of a step's accelerators; empty where the step names none."""
    kinds: Any = resources.get("accelerators", ())
    return str(kinds[0].model.vendor) if kinds else str(resources.get("gpu_vendor", ""))
