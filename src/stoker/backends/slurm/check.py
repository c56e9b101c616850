"""Checks each field of a step's request: Slurm honours it, or it is translated, or refused with advice.

The cluster is not asked here; `facts` compares requests with what it has.
"""

from __future__ import annotations

import math
import re
from typing import Final, Iterator

import attrs

from stoker.backends.base.backend import BY_ITSELF
from stoker.backends.base.leasing import OWN_VISIBILITY
from stoker.backends.base.overlays import Mount
from stoker.backends.slurm.environment import node_python, uses_own_python
from stoker.backends.slurm.facts import part_of
from stoker.backends.slurm.script import GPU, device_request, setting_of_one_job, why_alone
from stoker.backends.slurm.settings import SlurmSettings
from stoker.core.docker import DockerSettings
from stoker.core.findings import Finding, Reporter
from stoker.core.hosts import is_folder_elsewhere
from stoker.core.plan import Site, StepPlan, reporter_of
from stoker.core.resources import ResourceSettings
from stoker.core.units import duration_text, size_text, value_or
from stoker.images.dockerfile import undefinable
from stoker.vendors.table import NO_DEVICES

WHOLE_CPUS: Final = "STK150"
TYPE_TAKEN: Final = "STK152"
SPOT: Final = "STK154"
NO_GRES: Final = "STK155"
SHARED_MEMORY: Final = "STK156"
NOT_BUILT: Final = "STK157"
NO_CONTAINER: Final = "STK159"
BUILT_THERE: Final = "STK262"
NO_MOUNT: Final = "STK160"
NO_STORE: Final = "STK161"
NOT_INSTALLED: Final = "STK162"
LIMIT_FIRST: Final = "STK163"
WARNED_TOO_EARLY: Final = "STK164"
NOT_COUNTED: Final = "STK165"
WAITS_FOR_GPU: Final = "STK166"
NOT_REUSED: Final = "STK251"
TWO_ENVIRONMENTS: Final = "STK275"
_OF_AN_IMAGE: Final = frozenset({"parent_image", "skip_build", "environment", "runtime_environment"})
"""Fields that are honoured for an image that is used as it is."""
_OF_A_BUILD: Final = frozenset({"target_repository", "image_tag", "prevent_build_reuse", "python_package_installer"})
"""Fields of an image's build and its target: they change nothing for an image that exists."""
_GRES: Final = re.compile(r"[A-Za-z][A-Za-z0-9_.-]*(:[A-Za-z0-9_.+-]+)?")
_SEPARATORS: Final = frozenset(":,")


def check(step: StepPlan, settings: SlurmSettings, site: Site) -> Iterator[Finding]:
    """The findings of a step's request, field by field."""
    report = reporter_of(step)
    yield from _size(step.settings.resources, report)
    yield from _devices(step, settings, report)
    yield from _spot(step, settings, report)
    yield from _image(step, settings, site, report)
    yield from _places(step, settings, site, report)
    yield from _environment(step, settings, report)
    yield from _times(step, settings, report)
    yield from _reuse(step, settings, report)


def _size(resources: ResourceSettings, report: Reporter) -> Iterator[Finding]:
    cpus, memory, shared = (
        resources.get("cpu_count", 0.0),
        resources.get("memory", 0),
        resources.get("shared_memory", 0),
    )
    if math.ceil(cpus) != cpus:
        what = f"asks for {cpus:g} CPUs; it gets {math.ceil(cpus)}"
        yield report.translated(WHOLE_CPUS, what, "Slurm gives whole CPUs")
    if memory and shared > memory:
        what = f"asks for {size_text(shared)} of shared memory and {size_text(memory)} of memory"
        why = "what lies in /dev/shm counts as the job's memory: it would be killed before that is full"
        yield report.refused(SHARED_MEMORY, what, why, f"resources.memory={size_text(2 * shared)}")
    elif shared:
        what = f"asks for {size_text(shared)} of shared memory; it has the node's /dev/shm, in containers too"
        why = "Slurm gives none: how large that is says the node, half of its memory where nobody changed it"
        yield report.translated(SHARED_MEMORY, what, why)
    for name, amount in resources.get("extended", {}).items():
        if not _GRES.fullmatch(name):
            what = f"asks for the extended resource '{name}', which is no name of a GRES"
            yield report.refused(NO_GRES, what, 'a GRES is called "name" or "name:type"', "resources.extended=null")
        elif name.partition(":")[0] == GPU:
            what = f"asks for {amount:g} '{name}' as an extended resource"
            why = "what is not asked for as accelerators is not given to the step, nor watched"
            yield report.refused(NO_GRES, what, why, "resources.extended=null and resources.gpu_count=1")
        elif amount != round(amount):
            what = f"asks for {amount:g} of '{name}'"
            yield report.refused(NO_GRES, what, "Slurm counts a GRES in whole numbers", f"resources.extended.{name}=1")


def _devices(step: StepPlan, settings: SlurmSettings, report: Reporter) -> Iterator[Finding]:
    resources = step.settings.resources
    variables = sorted((set(NO_DEVICES) | {"GPU_DEVICE_ORDINAL"}) & step.settings.environment.keys())
    if variables:
        what = f"its environment sets {', '.join(variables)}"
        why = "which devices a step sees follows from what Slurm gives it, and another job may hold these"
        fix = f"remove {variables[0]}, and ask for devices: resources=ResourceSettings(gpu_count=1)"
        yield report.error(OWN_VISIBILITY, what, why, fix)
    request = device_request(resources, settings)
    if request.problem is not None:
        yield report.error(request.problem.code, request.problem.what, request.problem.why, request.problem.fix)
    for remark in request.remarks:
        yield report.translated(TYPE_TAKEN, remark, "what a site calls a kind, gres_types of SlurmSettings says")
    if resources.gpus_per_node and step.settings.accelerator_policy == "prefer":
        what = 'has accelerator_policy="prefer"; its job waits for accelerators all the same'
        why = "Slurm cannot be asked to give what there is; without a device where it runs, it runs on the CPU"
        yield report.translated(WAITS_FOR_GPU, what, why)


def _spot(step: StepPlan, settings: SlurmSettings, report: Reporter) -> Iterator[Finding]:
    if not step.settings.resources.get("spot"):
        return
    places = [f"{name} '{settings.get(name)}'" for name in ("partition", "qos") if settings.get(name)]
    why = "on Slurm, jobs that may be taken away are those of a partition or a QOS"
    if places:
        what = f"asks for a spot machine; that is taken to be what its {' and '.join(places)} means"
        yield report.translated(SPOT, what, why)
    else:
        yield report.refused(SPOT, "asks for a spot machine", why, f"{_part(step)}.qos=NAME, or resources.spot=null")


def _image(step: StepPlan, settings: SlurmSettings, site: Site, report: Reporter) -> Iterator[Finding]:
    """Whether the image can be run; without one, `container` and `mounts` are not used."""
    docker = step.settings.docker
    is_built = docker is not None and docker.skip_build is not True
    defines = is_built and not site.registry and settings.get("container") in ("apptainer", "singularity")
    if docker is not None and defines:
        yield from _definition(docker, settings, report)
    elif docker is not None and not (site.registry if is_built else value_or(docker.parent_image, "")):
        what = "asks for an image that is to be built" if is_built else "names no image"
        why = "a cluster's nodes run images that are there already: in a registry, or as a file that they see"
        fix = "docker.skip_build=true with docker.parent_image=REGISTRY/NAME:TAG, or docker=null"
        fix += "; or a container_registry in the stack, to which it is pushed" if is_built else ""
        yield report.refused(NOT_BUILT, what, why, fix)
    elif docker is not None and is_built and value_or(docker.user, ""):
        what = f"asks for an image whose processes run as {docker.user}"
        yield report.refused(NOT_BUILT, what, "on a cluster a step runs as you, in containers, too", "docker.user=null")
    elif docker is not None and not is_built and (lost := _unsupported_fields(docker)):
        what = f"asks for the image {docker.parent_image} as it is, and {', '.join(lost)} would be ignored"
        why = "nothing is put into an image here, and in it the step runs as you"
        yield report.refused(NOT_BUILT, what, why, f"docker.{lost[0]}=null")
    elif docker is not None and not settings.get("container"):
        image = "an image" if is_built else f"the image {docker.parent_image}"
        what = f"asks for {image}, and nothing says how nodes run images"
        why = "clusters differ: Apptainer, Singularity, or pyxis, which is a part of srun"
        yield report.refused(NO_CONTAINER, what, why, f"{_part(step)}.container=apptainer")
    if docker is not None:
        yield from _mounts(step, settings, site, report)


def _definition(docker: DockerSettings, settings: SlurmSettings, report: Reporter) -> Iterator[Finding]:
    """Whether a node can build the image of a definition, where the stack has no registry."""
    program, lost = settings.get("container"), undefinable(docker)
    if lost:
        what = f"asks for an image with {', '.join(lost)}, which a definition of {program} cannot have"
        why = "the stack names no container_registry, to which an engine's image is pushed: the node builds it"
        yield report.refused(NOT_BUILT, what, why, f"docker.{lost[0]}=null; or a container_registry in the stack")
    else:
        what = f"its image is built by {program} on its node, once for all jobs, and kept in the shared folder"
        why = "the stack names no container_registry; such a build takes minutes of a job, and needs the network"
        yield report.info(BUILT_THERE, what, why)


def _unsupported_fields(docker: DockerSettings) -> list[str]:
    """Fields that an image which is used as it is cannot honour."""
    names = (field.name for field in attrs.fields(DockerSettings))
    return [name for name in names if name not in _OF_AN_IMAGE | _OF_A_BUILD and value_or(getattr(docker, name), None)]


def _mounts(step: StepPlan, settings: SlurmSettings, site: Site, report: Reporter) -> Iterator[Finding]:
    for text in settings.get("mounts", ()):
        if not Mount.parse(text).source.startswith("/"):
            why = f"Slurm knows no volumes, and {settings.get('container', 'a container')} mounts folders of the node"
            yield report.refused(
                NO_MOUNT, f"wants '{text}' in its container", why, f"{_part(step)}.mounts=[/folder:/inside]"
            )
    ours = (settings.get("folder", ""), site.bundle, site.checkpoints if settings.shares else "")
    for path in ours if settings.get("container") else ():
        if _SEPARATORS & set(path):
            why = "in a mount, these letters stand between the parts"
            fix = f"use a folder whose path has none of them: {_part(step)}.folder, or STOKER_HOME"
            yield report.error(NO_MOUNT, f"needs {path} in its container, which has ':' or ',' in it", why, fix)


def _places(step: StepPlan, settings: SlurmSettings, site: Site, report: Reporter) -> Iterator[Finding]:
    """Whether the nodes have the artifact store and the packages that the job needs."""
    store, far = site.artifacts, not settings.shares
    elsewhere = is_folder_elsewhere(settings.store_on_nodes(store))
    if store.startswith("memory:") or (far and "://" not in store) or elsewhere:
        what = f"runs on a cluster whose nodes do not see the artifact store {store}"
        why = "a step loads its inputs from there and saves its outputs there"
        if elsewhere:
            why += "; of folders behind ssh the nodes see those of their own login node, named as host names it"
        fix = "name a remote store in the stack: artifact_store = 's3://…'"
        if settings.get("host"):
            fix = f"write artifact_store = '{settings.own_store}' into the stack"
        if far and not elsewhere:
            fix += "; or shares_files = true of the orchestrator where the nodes do see it"
        yield report.error(NO_STORE, what, why, fix)
    packages, docker = step.settings.packages, step.settings.docker
    if packages is not None and not packages.empty and (docker is not None or far or not uses_own_python(settings)):
        what = f"asks for {packages.text}; what the Python on the nodes has is not known"
        why = "packages are compared with those of the driver's own Python, and no environment is made on nodes"
        fix = "packages=null, with a Python or an image that has them"
        yield report.refused(NOT_INSTALLED, what, why, fix)


def _environment(step: StepPlan, settings: SlurmSettings, report: Reporter) -> Iterator[Finding]:
    """Environments of which only one can be the step's."""
    names = [name for name in ("conda", "venv") if settings.get(name)]
    if not names:
        return
    part, docker = _part(step), step.settings.docker
    if len(names) > 1:
        what = f"has conda={settings.conda} and venv={settings.venv}"
        yield report.error(
            TWO_ENVIRONMENTS, what, "a step runs on one Python", f"{part}.venv=null, or {part}.conda=null"
        )
    elif docker is not None:
        what = f"runs in an image, and has {names[0]}={settings.get(names[0])}"
        why = "an environment of the node is not there in a container"
        yield report.error(TWO_ENVIRONMENTS, what, why, f"{part}.{names[0]}=null, or docker=null")
    elif node_python(settings).startswith(("/", "~")):
        what = f"has {names[0]}={settings.get(names[0])} and python={settings.python}"
        why = "that Python is none of the environment, whose packages it would not find"
        yield report.error(TWO_ENVIRONMENTS, what, why, f"{part}.python=null, or {part}.{names[0]}=null")


def _times(step: StepPlan, settings: SlurmSettings, report: Reporter) -> Iterator[Finding]:
    limit, timeout, warning = settings.get("time_limit"), step.settings.timeout, settings.get("warn_before")
    if limit is not None and timeout is not None and limit < timeout:
        what = (
            f"has {duration_text(timeout)} of time; its job has time_limit={duration_text(limit)}, which ends it first"
        )
        yield report.translated(LIMIT_FIRST, what, "the shorter of the two counts")
    shortest = min((seconds for seconds in (limit, timeout) if seconds is not None), default=None)
    if warning is not None and shortest is not None and warning >= shortest:
        what = f"is to be warned {duration_text(warning)} before the end, and has {duration_text(shortest)} in all"
        yield report.refused(
            WARNED_TOO_EARLY, what, "it would be warned before it begins", f"{_part(step)}.warn_before=null"
        )
    if settings.get("requeue"):
        what = "may be started again by Slurm, when a node fails or somebody else needs the place"
        why = "requeue=true says so; Slurm counts these starts, and Stoker takes them for one attempt"
        yield report.translated(NOT_COUNTED, what, why)


def _reuse(step: StepPlan, settings: SlurmSettings, report: Reporter) -> Iterator[Finding]:
    why = why_alone(step, settings)
    if why and settings.get("reuse") is True:
        what = "is to be taken by a job that takes further steps (reuse=true), and gets a job of its own"
        yield report.refused(NOT_REUSED, what, why, f"{_part(step)}.reuse=auto")
    elif why and why == setting_of_one_job(settings):
        cost = "which Slurm takes seconds to start; a job that stays takes a step in a hundredth of one"
        yield report.info(BY_ITSELF, f"gets a job of its own, {cost}", why)


def _part(step: StepPlan) -> str:
    """The name in `--set` of the settings of the part of the stack that the step runs on."""
    return f"{part_of(step)}.slurm"
