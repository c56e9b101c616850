"""What AWS Batch makes of each field of a step's request: honoured, translated, or refused with what to do.

Pure: the account is not asked. Its queues are those of the settings, or what `account` has read.
"""

from __future__ import annotations

import math
from typing import Any, Collection, Final, Iterator, Mapping, Sequence

from stoker.backends.aws.api import misfit
from stoker.backends.aws.instances import CORES
from stoker.backends.aws_batch import definitions
from stoker.backends.aws_batch.definitions import BatchRequest, fargate_disk, neuron_total, sizes_of, wants_neuron
from stoker.backends.aws_batch.neuron import VISIBLE
from stoker.backends.aws_batch.queues import JobQueue, NoQueue, QueueChoice, choose, queues_of_settings
from stoker.backends.aws_batch.settings import BatchSettings
from stoker.backends.base.backend import settings_of
from stoker.backends.base.platforms import own_visibility, ranks_elsewhere
from stoker.backends.kubernetes.request.check import OWN_IMAGE
from stoker.core.errors import nearest
from stoker.core.findings import Finding, Reporter
from stoker.core.hosts import is_folder_elsewhere
from stoker.core.plan import Site, StepPlan, reporter_of
from stoker.core.resources import describe
from stoker.core.units import UNSET, size_text, value_or
from stoker.store.filesystems import store_package
from stoker.vendors.table import NO_DEVICES

CANNOT: Final = "STK310"
TRANSLATED: Final = "STK311"
IMAGE: Final = "STK312"
STORE: Final = "STK313"
QUEUE: Final = "STK314"
FARGATE: Final = "STK315"
NEURON: Final = "STK316"
ROLES: Final = "STK317"
_NOT_ON_FARGATE: Final[Mapping[str, str]] = {
    # https://docs.aws.amazon.com/batch/latest/userguide/fargate.html and the parameters' own pages
    "privileged": "no container has the rights of its host there",
    "host_volumes": "there is no instance whose folders could be mounted",
    "max_swap": "a task has no swap there",
    "swappiness": "a task has no swap there",
    "use_tmpfs": "AWS Batch mounts no tmpfs there",
    "tmpfs_size": "AWS Batch mounts no tmpfs there",
    "efa": "a task has no Elastic Fabric Adapter there",
    "ulimits": "AWS Batch sets no limits there",
}
_FARGATE_ALONE: Final = ("ephemeral_storage", "assign_public_ip", "platform_version", "cpu_architecture")
_FARGATE_DRIVERS: Final = ("awslogs", "splunk", "awsfirelens")
_FARGATE_LONGEST: Final = 14 * 86400.0
"""Seconds after which a task of Fargate is ended: https://docs.aws.amazon.com/batch/latest/userguide/job_timeouts.html"""


def check(step: StepPlan, options: Mapping[str, Any], site: Site, queues: Sequence[JobQueue] = ()) -> Iterator[Finding]:
    """Field by field. `queues` are the account's, where it was asked; else those that the settings describe count."""
    settings = settings_of(step, BatchSettings, options)
    report = reporter_of(step)
    choice = choice_of(step, settings, queues)
    yield from _queue(settings, choice, report)
    if choice is None or isinstance(choice, NoQueue):
        choice = QueueChoice(queue="", fargate=settings.get("platform") == "FARGATE")
    request = request_of(step, settings, choice)
    yield from _resources(step, request, choice, report)
    yield from (_fargate(step, request, report) if choice.fargate else _ec2(request, report))
    if wants_neuron(request):
        yield from _neuron(request, report)
    yield from _environment(step, report)
    yield from _words(settings, report)
    yield from _roles(settings, choice, report)
    yield from _image(step, settings, site, report)
    yield from ranks_elsewhere(step, request.nodes, CANNOT, "containers of AWS Batch have neither")
    yield from _store(site, report)


def choice_of(step: StepPlan, settings: BatchSettings, queues: Sequence[JobQueue] = ()) -> QueueChoice | NoQueue | None:
    """The queue of a step, or why none holds it; None where that is known when the account is asked."""
    known = list(queues) or list(queues_of_settings(settings))
    named = set(settings.get("queues", {}))
    if queues and named:
        known = [each for each in known if each.name in named]
    if not known and not settings.get("queue"):
        return None
    return choose(step.settings.resources, settings, known)


def request_of(step: StepPlan, settings: BatchSettings, choice: QueueChoice, **fields: Any) -> BatchRequest:
    """The request of a step on the queue that it gets; `fields` are what a plan does not know, such as the command."""
    return BatchRequest(
        **{
            "resources": step.settings.resources,
            "settings": settings,
            "image": image_of(step, settings),
            "command": (),
            "name": step.name,
            "nodes": step.settings.resources.get("nodes", 1),
            "seconds": step.settings.timeout or 0.0,
            "fargate": choice.fargate,
            "types": choice.types,
            **fields,
        }
    )


def image_of(step: StepPlan, settings: BatchSettings) -> str:
    """The image that a step runs in: that of its `docker` settings, of the settings here, or plain Python."""
    docker = step.settings.docker
    ready = value_or(docker.parent_image, "") if docker is not None and docker.skip_build is True else ""
    return step.image or ready or str(settings.get("image", "")) or OWN_IMAGE


# The queue


def _queue(settings: BatchSettings, choice: QueueChoice | NoQueue | None, report: Reporter) -> Iterator[Finding]:
    if isinstance(choice, NoQueue):
        yield report.error(QUEUE, choice.what, choice.why, choice.fix)
    elif choice is None:
        why = "BatchSettings(queues={'gpu': ['p4d.24xlarge']}) of the stack says here what each holds"
        yield report.info(QUEUE, "gets the queue of the account that holds it, chosen when the account is asked", why)
    else:
        why = f"chosen among {choice.among} queues by what they hold"
        if settings.get("queue"):
            why = "its settings name the queue" + _other_queue(str(settings.get("queue")), settings.get("queues", ()))
        yield report.info(QUEUE, f"is sent to the {choice.text}", why)


def _other_queue(name: str, queues: Collection[str]) -> str:
    """What to say of a queue that is none of those that the stack lists; empty for one of them, or without a list."""
    name = name.rpartition("/")[2]  # the end of an ARN
    return f", which is none of the stack's{nearest(name, queues)}" if queues and name not in queues else ""


# Resources


def _resources(step: StepPlan, request: BatchRequest, choice: QueueChoice, report: Reporter) -> Iterator[Finding]:
    resources, settings = request.resources, request.settings
    asks = f"asks for {describe(resources)}"
    if resources.get("share"):
        why = "AWS Batch gives whole GPUs to a container, and counts no parts"
        yield report.error(CANNOT, asks, why, "remove share and gpu_memory, and ask for gpu_count=1")
    slices = [kind for kind in resources.get("accelerators", ()) if kind.slice]
    if slices:
        why = "AWS Batch counts whole GPUs, and no MIG slices"
        yield report.error(CANNOT, f"asks for {slices[0]}", why, f'resources.accelerators="{slices[0].name}"')
    if resources.get("accelerators") and not choice.types and not choice.fargate and not slices:
        count = resources.gpus_per_node
        kind = resources.get("accelerators")[0].name
        if not wants_neuron(request):
            what = f"asks AWS Batch for {count} GPU{'' if count == 1 else 's'} of any model, not for {kind} alone"
            why = "AWS Batch counts GPUs, and nothing is known of the queue: the gate in the job proves the model"
            yield report.translated(TRANSLATED, what, why)
    memory, shared = resources.get("memory", 0), resources.get("shared_memory", 0)
    if memory and shared > memory:
        what = f"asks for {size_text(shared)} of shared memory and {size_text(memory)} of memory"
        why = "what lies in /dev/shm counts as the container's memory: it would be killed before that is full"
        yield report.refused(CANNOT, what, why, f"resources.memory={size_text(2 * shared)}")
    yield from _sizes(request, report)
    if step.settings.accelerator_policy == "prefer" and resources.gpus_per_node:
        what = 'has accelerator_policy="prefer"; its job waits for accelerators all the same'
        why = "a job cannot ask for what there is; without a device where it runs, the step runs on the CPU"
        yield report.translated(TRANSLATED, what, why)
    if settings.get("instance_type") and request.nodes == 1:
        what = f"asks for the instance type {settings.get('instance_type')} on one node"
        why = "AWS Batch takes an instance type for multi-node parallel jobs only"
        yield report.error(CANNOT, what, why, "name a queue that starts no other: BatchSettings(queue='…')")
    for name, amount in resources.get("extended", {}).items():
        what = f"asks for {math.ceil(amount)} of the consumable resource '{name}'"
        why = "AWS Batch counts it in whole numbers over all its queues; it must be there (CreateConsumableResource)"
        yield report.translated(TRANSLATED, what, why)


def _sizes(request: BatchRequest, report: Reporter) -> Iterator[Finding]:
    resources, sizes = request.resources, sizes_of(request)
    cpus, memory = resources.get("cpu_count"), resources.get("memory")
    missing = [name for name, amount in (("cpu_count", cpus), ("memory", memory)) if amount is None]
    shared = definitions.shared_memory(request)
    also = f", {shared} MiB of it in /dev/shm," if shared and resources.get("shared_memory") is None else ""
    if missing:
        part = (
            "its part of the instance by its accelerators" if request.types and resources.gpus_per_node else "the usual"
        )
        why = f"AWS Batch needs both, and the step says nothing of {' and '.join(missing)}: {part}"
        yield report.info(TRANSLATED, f"gets {sizes.text}{also}", why)
    elif also:
        why = (
            "loaders of data and collectives of GPU steps need more than the usual 64 MiB; resources.shared_memory says"
        )
        yield report.info(TRANSLATED, f"gets {sizes.text}{also.rstrip(',')}", why)
    if cpus is not None and sizes.vcpus != cpus:
        why = "an instance's vCPUs are counted in whole numbers"
        if request.fargate:
            why = "Fargate has vCPUs and memory in fixed pairs"
        elif wants_neuron(request):
            why = "with fewer vCPUs than its part by its Neuron devices, more jobs than devices would be placed there"
        yield report.translated(TRANSLATED, f"gets {sizes.text}, where it asks for {cpus:g} CPUs", why)
    elif memory is not None and request.fargate and sizes.memory != math.ceil(memory / 2**20):
        what = f"gets {sizes.text}, where it asks for {size_text(memory)}"
        yield report.translated(TRANSLATED, what, "Fargate has vCPUs and memory in fixed pairs")


def _fargate(step: StepPlan, request: BatchRequest, report: Reporter) -> Iterator[Finding]:
    """What Fargate cannot do."""
    resources, settings = request.resources, request.settings
    fix = "BatchSettings(platform='EC2'), with a queue of EC2 instances"
    for name, why in _NOT_ON_FARGATE.items():
        if settings.get(name):
            yield report.error(FARGATE, f"has {name} on Fargate", why, f"remove it; or {fix}")
    for name, asked, why in (
        ("accelerators", resources.gpus_per_node, "Fargate has no accelerators"),
        ("shared_memory", resources.get("shared_memory"), "/dev/shm has its usual size on Fargate"),
    ):
        if asked:
            yield report.error(FARGATE, f"asks for {name} on Fargate", why, fix)
    if request.nodes > 1:
        why = "multi-node parallel jobs run on EC2 instances only"
        yield report.error(FARGATE, f"asks for {request.nodes} nodes on Fargate", why, fix)
    cpus = resources.get("cpu_count", definitions.CPUS)
    memory = math.ceil(resources.get("memory", definitions.MEMORY * 2**20) / 2**20)
    if definitions.fargate_sizes(cpus, memory) is None:
        why = "the largest pairs are 16 vCPUs with 122880 MiB and 32 with 249856"
        yield report.error(FARGATE, f"asks for {cpus:g} CPUs and {memory} MiB on Fargate", why, fix)
    disk = fargate_disk(request)
    if disk > definitions.FARGATE_DISK[1]:
        why = f"a task has {definitions.FARGATE_DISK[1]} GiB at most"
        yield report.error(FARGATE, f"asks for {disk} GiB of disk on Fargate", why, f"{fix}, or efs_volumes")
    driver = settings.get("log_driver", "awslogs")
    if driver not in _FARGATE_DRIVERS:
        why = f"Fargate has {', '.join(_FARGATE_DRIVERS)}"
        yield report.error(
            FARGATE, f"has the log driver {driver} on Fargate", why, "BatchSettings(log_driver='awslogs')"
        )
    if (step.settings.timeout or 0.0) > _FARGATE_LONGEST:
        yield report.error(FARGATE, "runs for more than 14 days on Fargate", "a task is ended after 14 days", fix)


def _ec2(request: BatchRequest, report: Reporter) -> Iterator[Finding]:
    settings = request.settings
    for name in _FARGATE_ALONE:
        value = settings.get(name)
        if value is not None:
            why = "AWS Batch takes it for Fargate only"
            yield report.error(CANNOT, f"has {name} on EC2", why, "remove it, or BatchSettings(platform='FARGATE')")
    if request.resources.get("disk"):
        what = f"asks for {size_text(request.resources.get('disk'))} of disk"
        why = "the disk of an instance is that of the compute environment's launch template, and AWS Batch counts none"
        fix = "resources.disk=null, with a volume as large in the launch template, efs_volumes or host_volumes"
        yield report.refused(CANNOT, what, why, fix)


# Neuron


def _neuron(request: BatchRequest, report: Reporter) -> Iterator[Finding]:
    count, total = request.resources.gpus_per_node, neuron_total(request)
    kinds = request.resources.get("accelerators", ())
    model = next((each.accelerator for each in request.types), "") or (kinds[0].name if kinds else "")
    cores = CORES.get(model)
    what = f"gets {count} Neuron device{'' if count == 1 else 's'}"
    if cores:
        what += f", which are chips of {cores} cores each: {count * cores} cores"
    why = f"its container sees the {total} of its instance, and takes {count} of them for itself when it starts"
    yield report.info(NEURON, what, why)
    user = str(request.settings.get("user", "root")).partition(":")[0]
    if user not in ("root", "0"):
        why = "the container marks the devices that it takes in a folder of the instance, which is root's"
        yield report.error(NEURON, f"runs as the user {user} with Neuron devices", why, "remove `user`")
    if not request.types:
        what = f"takes /dev/neuron0 to /dev/neuron{count - 1} alone"
        why = "how many devices the instances of its queue have is not known: a second such step waits for these"
        yield report.translated(NEURON, what, why)


def _environment(step: StepPlan, report: Reporter) -> Iterator[Finding]:
    why = "the container gets its devices from AWS Batch or takes them when it starts; another choice means others"
    yield from own_visibility(step, why, {*NO_DEVICES, VISIBLE})
    for name in sorted(each for each in step.settings.environment if each.startswith("AWS_BATCH")):
        why = "AWS Batch keeps these names for itself, and refuses the job"
        yield report.error(CANNOT, f"sets {name} in its environment", why, "give the variable another name")


# Settings


def _words(settings: BatchSettings, report: Reporter) -> Iterator[Finding]:
    if settings.get("scheduling_priority") is not None and not settings.get("share_identifier"):
        what = f"has the scheduling priority {settings.get('scheduling_priority')}, and no share identifier"
        why = "AWS Batch compares priorities within one share identifier of a queue with a scheduling policy"
        yield report.error(CANNOT, what, why, "BatchSettings(share_identifier='…')")
    if settings.get("retry_rules") and settings.get("attempts", 1) == 1:
        what = "has retry_rules, and one attempt"
        yield report.error(CANNOT, what, "the rules say which of several attempts follow", "BatchSettings(attempts=3)")
    if settings.get("log_driver", "awslogs") != "awslogs":
        what = f"writes its log to {settings.get('log_driver')}"
        why = "Stoker shows what is in CloudWatch (awslogs); the step's result comes by the artifact store all the same"
        yield report.translated(TRANSLATED, what, why)
    overlay = settings.get("overlay")
    wrong = misfit("batch", "RegisterJobDefinition", {"containerProperties": overlay}) if overlay else ""
    if wrong:
        why = "by botocore's model of the API; a newer botocore may know it"
        yield report.error(CANNOT, f"has an overlay that AWS Batch would refuse: {wrong}", why, "mend the overlay")
    places = [*settings.get("host_volumes", {}).values()]
    places += [str(fields["path"]) for fields in settings.get("efs_volumes", {}).values()]
    if settings.get("use_tmpfs") or settings.get("tmpfs_size"):
        places.append(settings.get("tmpfs_path", definitions.TMPFS))
    for place in sorted({place for place in places if places.count(place) > 1}):
        why = "one place of a container has one volume"
        yield report.error(CANNOT, f"mounts two volumes at {place}", why, "mount one of them elsewhere")


def _roles(settings: BatchSettings, choice: QueueChoice, report: Reporter) -> Iterator[Finding]:
    needs = [name for name in ("secrets", "repository_credentials") if settings.get(name)]
    if not settings.get("execution_role") and (choice.fargate or needs):
        what = f"has no execution_role, {'and runs on Fargate' if choice.fargate else f'and has {needs[0]}'}"
        why = "ECS pulls the image, reads secrets and writes the log by that role"
        yield report.error(ROLES, what, why, "BatchSettings(execution_role='arn:aws:iam::…:role/ecsTaskExecutionRole')")
    if not settings.get("iam_role"):
        if choice.fargate:
            what, why = "has no iam_role", "a task of Fargate has no other rights: it cannot read the artifact store"
            yield report.error(ROLES, what, why, "BatchSettings(iam_role='arn:aws:iam::…:role/…')")
        else:
            why = "its instance's role must then read and write the artifact store; iam_role gives the step a role"
            yield report.info(ROLES, "has the rights of its instance's role", why)


def _image(step: StepPlan, settings: BatchSettings, site: Site, report: Reporter) -> Iterator[Finding]:
    docker = step.settings.docker
    is_built = docker is not None and docker.skip_build is not True
    if docker is not None and is_built and not site.registry:
        why = "instances pull images from a registry, and the stack names none to push to"
        fix = "docker.skip_build=true with docker.parent_image=REGISTRY/NAME:TAG; or a container_registry in the stack"
        yield report.refused(IMAGE, "asks for an image that is to be built", why, fix)
        return
    if docker is not None and not is_built and not value_or(docker.parent_image, ""):
        fix = "docker.parent_image=REGISTRY/NAME:TAG, or docker=null"
        yield report.refused(IMAGE, "names no image", "a job runs in one, and nothing is to be built", fix)
        return
    image = image_of(step, settings)
    if docker is not None and settings.image not in (UNSET, None, image):
        what = f"runs in the image of its docker settings, not in {settings.get('image')}"
        yield report.translated(IMAGE, what, "BatchSettings(image=…) is for steps without docker settings")
    elif docker is None and not settings.get("image"):
        why = "it names none; name one by BatchSettings(image='REGISTRY/NAME:TAG') or docker settings"
        if step.settings.resources.gpus_per_node:
            why += ": this one has no CUDA, Neuron SDK or other libraries of accelerators"
        package = store_package(site.artifacts)
        if package:
            lacks = f"plain Python lacks {package}, by which a job reads the artifact store {site.artifacts}"
            fix = f'BatchSettings(image=…) with {package} in it; or docker=DockerSettings(requirements=["{package}"])'
            yield report.error(IMAGE, f"names no image, and would run in {image}", lacks, f"{fix} and a registry")
        else:
            yield report.info(IMAGE, f"runs in the image {image}", why)


def _store(site: Site, report: Reporter) -> Iterator[Finding]:
    local = "://" not in site.artifacts.removeprefix("file://")
    if local or is_folder_elsewhere(site.artifacts):
        what = f"runs on an instance, which does not see the artifact store {site.artifacts}"
        why = "a step loads its inputs from there and saves its outputs there"
        yield report.error(STORE, what, why, "name a bucket in the stack: artifact_store = 's3://…'")
