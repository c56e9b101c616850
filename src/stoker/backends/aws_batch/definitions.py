"""From a step's request to what AWS Batch is sent: the arguments of RegisterJobDefinition and of SubmitJob. Pure.

All that many jobs have in common is in the job definition, whose name follows from its content, so that an equal one is
used again. What differs between jobs is in the submission.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from pathlib import Path
from typing import Any, Final, Mapping, Sequence

import attrs

from stoker.backends.aws.instances import CORES, InstanceType
from stoker.backends.aws.jobs import TAG
from stoker.backends.aws_batch import neuron
from stoker.backends.aws_batch.settings import BatchSettings
from stoker.backends.base.overlays import merged
from stoker.core.errors import BackendError
from stoker.core.resources import ResourceSettings

CPUS: Final = 1
MEMORY: Final = 4096
"""vCPUs, and MiB of memory, of a step that asks for none and whose instance types are not known: AWS Batch needs
both. Fargate has them as a pair."""
FARGATE: Final[Mapping[float, Sequence[int]]] = {
    0.25: (512, 1024, 2048),
    0.5: range(1024, 4097, 1024),
    1: range(2048, 8193, 1024),
    2: range(4096, 16385, 1024),
    4: range(8192, 30721, 1024),
    8: range(16384, 61441, 4096),
    16: range(32768, 122881, 8192),
    32: (61440, 122880, 249856),
}
"""vCPUs of Fargate → the MiB of memory that each goes with:
https://docs.aws.amazon.com/batch/latest/APIReference/API_ResourceRequirement.html"""
FARGATE_DISK: Final = (20, 200)
"""GiB of ephemeral storage that a task of Fargate has, and the most that it may ask for:
https://docs.aws.amazon.com/batch/latest/APIReference/API_EphemeralStorage.html"""
USABLE: Final = 0.9
"""The part of an instance's memory that a step gets which asks for none: the kernel and the ECS agent keep some.
https://docs.aws.amazon.com/batch/latest/userguide/memory-management.html"""
TMPFS: Final = "/stoker_temp"
LOG_GROUP: Final = "/aws/batch/job"
"""The log group where the job definition names none:
https://docs.aws.amazon.com/batch/latest/userguide/using_cloudwatch_logs.html"""
NEURON_LEASES: Final = "/run/stoker-neuron"
"""The instance's folder with a file for each Neuron device; it is empty again when the instance starts."""
OVERRIDES: Final = 8192
"""Bytes of overrides: https://docs.aws.amazon.com/AmazonECS/latest/APIReference/API_TaskOverride.html"""
LONGEST_NAME: Final = 128
SHORTEST_LIMIT: Final = 60
"""Seconds of the shortest time-out: https://docs.aws.amazon.com/batch/latest/APIReference/API_JobTimeout.html"""
_RUN_IN_NAME: Final = 60
EFA_ENVIRONMENT: Final[Mapping[str, str]] = {
    # https://awsdocs-neuron.readthedocs-hosted.com/en/latest/frameworks/torch/torch-neuronx/setup-trn1-multi-node-execution.html
    "FI_PROVIDER": "efa",
    "FI_EFA_USE_DEVICE_RDMA": "1",
    "FI_EFA_FORK_SAFE": "1",
}
"""What libfabric reads, also under NCCL."""


@attrs.frozen(kw_only=True)
class BatchRequest:
    """All that a job on AWS Batch follows from."""

    resources: ResourceSettings
    settings: BatchSettings
    image: str
    command: tuple[str, ...]
    name: str = ""
    """The step in words; of the characters that Batch takes the rest is made of."""
    environment: Mapping[str, str] = attrs.field(factory=dict)
    """Variables that the jobs of a definition have in common: the step's own."""
    job_environment: Mapping[str, str] = attrs.field(factory=dict)
    """Variables of this job alone."""
    secrets: Mapping[str, str] = attrs.field(factory=dict)
    """Variable → the ARN of its secret, beside those of the settings."""
    labels: Mapping[str, str] = attrs.field(factory=dict)
    """Tags of the job: the run, the step, the attempt."""
    nodes: int = 1
    """Nodes that start together: more than one is a multi-node parallel job."""
    elements: int = 1
    """Jobs of one submission: more than one is an array."""
    seconds: float = 0.0
    """The longest time of one attempt; 0 for no limit."""
    retries: int = 1
    """Attempts that AWS Batch makes, where the settings say nothing of it."""
    fargate: bool = False
    """Whether the queue is one of Fargate."""
    types: tuple[InstanceType, ...] = ()
    """The instance types of the queue that may run it; empty where they are not known."""
    cache: str = ""
    """The URI of the folder in which compiled programs for Neuron are kept; empty for none."""


def job_definition(request: BatchRequest) -> dict[str, Any]:
    """The arguments of RegisterJobDefinition."""
    container = _container(request)
    settings = request.settings
    body: dict[str, Any]
    if request.nodes > 1:
        group: dict[str, Any] = {"targetNodes": "0:", "container": container}
        chosen = settings.get("instance_type") or _gang_type(request)
        if chosen:
            group["instanceTypes"] = [chosen]
        if request.resources.get("extended"):
            group["consumableResourceProperties"] = _consumables(request.resources)
        nodes = {"numNodes": request.nodes, "mainNode": 0, "nodeRangeProperties": [group]}
        body = {"type": "multinode", "nodeProperties": nodes, "platformCapabilities": ["EC2"]}
    else:
        body = {
            "type": "container",
            "containerProperties": container,
            "platformCapabilities": ["FARGATE" if request.fargate else "EC2"],
        }
        if request.resources.get("extended"):
            body["consumableResourceProperties"] = _consumables(request.resources)
    body["propagateTags"] = True
    body["tags"] = {**settings.get("aws_batch_tags", {}), TAG: "definition"}
    return {"jobDefinitionName": definition_name(request.name, body), **body}


def submission(request: BatchRequest, queue: str, definition: str, *, name: str = "") -> dict[str, Any]:
    """The arguments of SubmitJob; `definition` is the ARN that RegisterJobDefinition gave, or name:revision.

    Raises `BackendError` for overrides that ECS would not take.
    """
    settings = request.settings
    overrides = {"environment": _pairs(request.job_environment)} if request.job_environment else {}
    size = len(json.dumps(overrides).encode())
    if size > OVERRIDES:
        largest = max(request.job_environment, key=lambda each: len(request.job_environment[each]))
        raise BackendError(
            f"the job has {size} bytes of variables of its own, and ECS takes {OVERRIDES}",
            fix=f"make {largest} shorter, the longest of them",
        )
    body: dict[str, Any] = {
        "jobName": plain_name(name or request.name),
        "jobQueue": queue,
        "jobDefinition": definition,
        "propagateTags": True,
        "tags": {**settings.get("aws_batch_tags", {}), **request.labels},
        "retryStrategy": _retries(request),
    }
    if request.elements > 1:
        body["arrayProperties"] = {"size": request.elements}
    if overrides and request.nodes > 1:
        override = {"targetNodes": "0:", "containerOverrides": overrides}
        body["nodeOverrides"] = {"nodePropertyOverrides": [override]}
    elif overrides:
        body["containerOverrides"] = overrides
    if request.seconds:
        body["timeout"] = {"attemptDurationSeconds": max(SHORTEST_LIMIT, math.ceil(request.seconds))}
    if settings.get("share_identifier"):
        body["shareIdentifier"] = settings.get("share_identifier")
    if settings.get("scheduling_priority") is not None:
        body["schedulingPriorityOverride"] = settings.get("scheduling_priority")
    return body


def definition_name(name: str, body: Mapping[str, Any]) -> str:
    """A job definition's name: readable, and the same for equal content."""
    digest = hashlib.sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()[:20]
    return f"{plain_name(f'stoker-{name}' if name else 'stoker')[: LONGEST_NAME - 21]}-{digest}"


def plain_name(name: str) -> str:
    """A name of the characters that AWS Batch takes."""
    plain = re.sub(r"[^A-Za-z0-9_-]+", "-", name).strip("-_")[:LONGEST_NAME]
    return plain if re.match(r"[A-Za-z0-9]", plain) else f"job-{plain}"[:LONGEST_NAME].rstrip("-")


def run_prefix(run: str) -> str:
    """How the names of all jobs of a run begin."""
    return f"stoker-{plain_name(run)[:_RUN_IN_NAME]}-"


def log_group(settings: BatchSettings) -> str:
    """The CloudWatch log group of a step's log; empty where it goes elsewhere."""
    if settings.get("log_driver", "awslogs") != "awslogs":
        return ""
    return log_options(settings).get("awslogs-group", LOG_GROUP)


def log_options(settings: BatchSettings) -> dict[str, str]:
    """`log_options` as a mapping."""
    parts = (option.partition(":") for option in settings.get("log_options", ()))
    return {key.strip(): text.strip() for key, _, text in parts}


# Resources


@attrs.frozen(kw_only=True)
class Sizes:
    """vCPUs and MiB of memory of one node's container."""

    vcpus: float
    memory: int

    @property
    def text(self) -> str:
        """In words: "8 vCPUs and 29491 MiB"."""
        return f"{self.vcpus:g} vCPU{'' if self.vcpus == 1 else 's'} and {self.memory} MiB"


def sizes_of(request: BatchRequest) -> Sizes:
    """What a node's container gets.

    A step with accelerators that asks for no CPUs or memory gets its part of the instance by its part of the
    accelerators. One with Neuron devices gets that part of the vCPUs at least: then as many of them as fit on an
    instance never ask for more devices than it has.
    """
    resources = request.resources
    cpus, memory = resources.get("cpu_count"), resources.get("memory")
    mebibytes = None if memory is None else max(4, math.ceil(memory / 2**20))
    if request.fargate:
        return fargate_sizes(cpus or CPUS, mebibytes or MEMORY) or Sizes(vcpus=cpus or CPUS, memory=mebibytes or MEMORY)
    count = resources.gpus_per_node
    parts = [(each, count / each.count) for each in request.types if count and each.count >= count]
    if not parts:
        return Sizes(vcpus=max(1, math.ceil(cpus or CPUS)), memory=mebibytes or MEMORY)
    whole = request.nodes > 1  # a node of a multi-node parallel job has its instance for itself
    vcpus = max(1, math.ceil(cpus)) if cpus else min(int(each.vcpus * (1 if whole else part)) for each, part in parts)
    if any(each.is_neuron for each, _ in parts):
        vcpus = max(vcpus, *(math.ceil(each.vcpus * part) for each, part in parts), 1)
    usual = min(int(each.memory * USABLE * (1 if whole else part)) for each, part in parts)
    return Sizes(vcpus=max(1, vcpus), memory=mebibytes or max(4, usual))


def fargate_sizes(cpus: float, memory: int) -> Sizes | None:
    """The smallest pair of Fargate that has as much of both; None if none has."""
    for vcpus, amounts in FARGATE.items():
        fitting = [amount for amount in amounts if amount >= memory]
        if vcpus >= cpus and fitting:
            return Sizes(vcpus=vcpus, memory=min(fitting))
    return None


def neuron_total(request: BatchRequest) -> int:
    """How many Neuron devices the container sees: all of its instance; 0 for a step without them."""
    count = request.resources.gpus_per_node
    if not count or not wants_neuron(request):
        return 0
    return min((each.count for each in request.types if each.count >= count), default=count)


def wants_neuron(request: BatchRequest) -> bool:
    """Whether the accelerators that a step asks for are AWS's own."""
    resources = request.resources
    if any(each.is_neuron for each in request.types) and resources.gpus_per_node:
        return True
    kinds = resources.get("accelerators", ())
    return bool((kinds[0].model.vendor if kinds else resources.get("gpu_vendor")) == "neuron")


def shared_memory(request: BatchRequest) -> int | None:
    """MiB of /dev/shm: what the step asks for, half of the container's memory for steps with accelerators; None for
    the container engine's own 64 MiB."""
    asked = request.resources.get("shared_memory")
    if asked is not None:
        return max(1, math.ceil(int(asked) / 2**20))
    return sizes_of(request).memory // 2 if request.resources.gpus_per_node and not request.fargate else None


def _gang_type(request: BatchRequest) -> str:
    """The instance type that a gang with accelerators names: a multi-node parallel job may say which."""
    count = request.resources.gpus_per_node
    fitting = [each for each in request.types if count and each.count >= count]
    return min(
        fitting, key=lambda each: (each.count, each.vcpus), default=InstanceType(name="", vcpus=0, memory=0)
    ).name


def _consumables(resources: ResourceSettings) -> dict[str, Any]:
    # https://docs.aws.amazon.com/batch/latest/userguide/resource-aware-scheduling.html
    amounts = resources.get("extended", {}).items()
    return {
        "consumableResourceList": [
            {"consumableResource": name, "quantity": math.ceil(amount)} for name, amount in amounts
        ]
    }


# The container


def _container(request: BatchRequest) -> dict[str, Any]:
    settings, sizes = request.settings, sizes_of(request)
    requirements = [("VCPU", f"{sizes.vcpus:g}"), ("MEMORY", str(sizes.memory))]
    count = request.resources.gpus_per_node
    if count and not wants_neuron(request):
        requirements.append(("GPU", str(count)))
    volumes, mounts = _volumes(request)
    container: dict[str, Any] = {
        "image": request.image,
        "command": _command(request),
        "environment": _pairs(_environment(request)),
        "secrets": _records({**settings.get("secrets", {}), **request.secrets}, "valueFrom"),
        "resourceRequirements": [{"type": kind, "value": value} for kind, value in requirements],
        "jobRoleArn": settings.get("iam_role"),
        "executionRoleArn": settings.get("execution_role"),
        "user": settings.get("user"),
        "privileged": settings.get("privileged"),
        "readonlyRootFilesystem": settings.get("readonly_root"),
        "enableExecuteCommand": settings.get("enable_execute_command"),
        "linuxParameters": _linux(request),
        "ulimits": _ulimits(request),
        "volumes": volumes,
        "mountPoints": mounts,
        "logConfiguration": _log(settings),
    }
    if settings.get("repository_credentials"):
        container["repositoryCredentials"] = {"credentialsParameter": settings.get("repository_credentials")}
    if request.fargate:
        container["networkConfiguration"] = {
            "assignPublicIp": "ENABLED" if settings.get("assign_public_ip") else "DISABLED"
        }
        container["fargatePlatformConfiguration"] = {"platformVersion": settings.get("platform_version", "LATEST")}
        container["runtimePlatform"] = {
            "operatingSystemFamily": "LINUX",
            "cpuArchitecture": settings.get("cpu_architecture", "X86_64"),
        }
        disk = fargate_disk(request)
        container["ephemeralStorage"] = {"sizeInGiB": disk} if disk else None
    written = {name: value for name, value in container.items() if value is not None and value not in ([], {})}
    return merged(written, settings.get("overlay", {}))  # type: ignore[no-any-return]


def fargate_disk(request: BatchRequest) -> int:
    """GiB of ephemeral storage to ask Fargate for; 0 where what every task has is enough."""
    asked = max(request.settings.get("ephemeral_storage", 0), math.ceil(request.resources.get("disk", 0) / 2**30))
    return asked if asked > FARGATE_DISK[0] else 0


def _command(request: BatchRequest) -> list[str]:
    total = neuron_total(request)
    if not total:
        return list(request.command)
    python = request.settings.get("executable", "python3")
    program = Path(neuron.__file__).read_text(encoding="utf-8")
    model = next((each.accelerator for each in request.types if each.is_neuron), "")
    kinds = request.resources.get("accelerators", ())
    cores = CORES.get(model or (kinds[0].name if kinds else ""), CORES["trainium"])
    words = [str(request.resources.gpus_per_node), str(total), str(cores), NEURON_LEASES]
    return [python, "-c", program, *words, "--", *request.command]


def _environment(request: BatchRequest) -> dict[str, str]:
    settings, environment = request.settings, {}
    if _tmpfs(request) and settings.get("tmpfs_tempdir", True):
        environment["TMPDIR"] = settings.get("tmpfs_path", TMPFS)
    if settings.get("efa"):
        environment.update(EFA_ENVIRONMENT)
    if neuron_total(request) and request.cache:
        # https://awsdocs-neuron.readthedocs-hosted.com/en/latest/frameworks/torch/torch-neuronx/programming-guide/training/pytorch-neuron-programming-guide.html
        environment["NEURON_COMPILE_CACHE_URL"] = request.cache
    return {**environment, **request.environment}


def _linux(request: BatchRequest) -> dict[str, Any]:
    settings = request.settings
    devices = [{"hostPath": f"/dev/neuron{number}"} for number in range(neuron_total(request))]
    # https://docs.aws.amazon.com/batch/latest/userguide/efa.html
    devices += [{"hostPath": f"/dev/infiniband/uverbs{number}"} for number in range(settings.get("efa", 0))]
    permissions = ["READ", "WRITE", "MKNOD"]
    linux = {
        "devices": [{**device, "containerPath": device["hostPath"], "permissions": permissions} for device in devices],
        "sharedMemorySize": shared_memory(request),
        "tmpfs": _tmpfs(request),
        "maxSwap": settings.get("max_swap"),
        "swappiness": settings.get("swappiness"),
        "initProcessEnabled": settings.get("init_process"),
    }
    return {name: value for name, value in linux.items() if value is not None and value != []}


def _tmpfs(request: BatchRequest) -> list[dict[str, Any]]:
    settings = request.settings
    if request.fargate or not (settings.get("use_tmpfs") or settings.get("tmpfs_size")):
        return []
    size = settings.get("tmpfs_size") or sizes_of(request).memory // 2
    return [{"containerPath": settings.get("tmpfs_path", TMPFS), "size": size}]


def _ulimits(request: BatchRequest) -> list[dict[str, Any]]:
    limits = dict(request.settings.get("ulimits", {}))
    if request.settings.get("efa"):
        # Registering memory with an adapter locks it:
        # https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/efa-start-nccl.html
        limits.setdefault("memlock", (-1, -1))
    return [{"name": name, "softLimit": soft, "hardLimit": hard} for name, (soft, hard) in sorted(limits.items())]


def _volumes(request: BatchRequest) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    settings = request.settings
    volumes: list[dict[str, Any]] = []
    mounts: list[dict[str, Any]] = []

    def add(name: str, source: Mapping[str, Any], path: str, *, read_only: bool = False) -> None:
        volumes.append({"name": name, **source})
        mounts.append({"sourceVolume": name, "containerPath": path, "readOnly": read_only})

    for number, (folder, path) in enumerate(settings.get("host_volumes", {}).items()):
        add(f"host-{number}", {"host": {"sourcePath": folder}}, path)
    for name, fields in settings.get("efs_volumes", {}).items():
        efs: dict[str, Any] = {"fileSystemId": name, "transitEncryption": "ENABLED"}
        if fields.get("encrypted") is False:
            efs["transitEncryption"] = "DISABLED"
        if fields.get("root"):
            efs["rootDirectory"] = fields["root"]
        access = {
            "accessPointId": fields.get("access_point"),
            "iam": "ENABLED" if fields.get("iam") else None,
        }
        if any(access.values()):
            efs["authorizationConfig"] = {key: value for key, value in access.items() if value}
        source = {"efsVolumeConfiguration": efs}
        add(f"efs-{name}", source, fields["path"], read_only=bool(fields.get("read_only")))
    if neuron_total(request):
        add("stoker-neuron", {"host": {"sourcePath": NEURON_LEASES}}, NEURON_LEASES)
    return volumes, mounts


def _log(settings: BatchSettings) -> dict[str, Any] | None:
    options = log_options(settings)
    if not settings.get("log_driver") and not options:
        return None  # awslogs, into LOG_GROUP
    configuration: dict[str, Any] = {"logDriver": settings.get("log_driver", "awslogs")}
    return {**configuration, "options": options} if options else configuration


def _retries(request: BatchRequest) -> dict[str, Any]:
    """Batch retries what no rule names: with rules, a last one ends everything else."""
    settings = request.settings
    strategy: dict[str, Any] = {"attempts": settings.get("attempts", request.retries)}
    rules = [dict(rule) for rule in settings.get("retry_rules", ())]
    if rules:
        strategy["evaluateOnExit"] = [*rules, {"onReason": "*", "action": "EXIT"}]
    return strategy


def _pairs(values: Mapping[str, str]) -> list[dict[str, str]]:
    return _records(values, "value")


def _records(values: Mapping[str, str], key: str) -> list[dict[str, str]]:
    return [{"name": name, key: text} for name, text in sorted(values.items())]
