"""From jobs to what SageMaker is sent and what the containers read: pure.

A step is a training job, and a gang one with several instances. SageMaker takes 256 letters of a command: the program
that a container runs, and what starts it (`start`), are in a folder of the artifact store that SageMaker brings to each
instance as the channel "stoker". What the container is told is a document in the job's own folder.
"""

from __future__ import annotations

import functools
import hashlib
import math
import re
from pathlib import Path
from typing import Any, Final, Mapping, Sequence

import attrs

from stoker.backends.aws import instances as ec2
from stoker.backends.aws.instances import InstanceType
from stoker.backends.aws.jobs import JOB, LATER, WORKER, JobPlaces, tags_of, token_of
from stoker.backends.base import storeprogram
from stoker.backends.base.backend import settings_of
from stoker.backends.base.messages import nodes_of
from stoker.backends.base.overlays import merged
from stoker.backends.kubernetes.request.check import image_environment
from stoker.backends.sagemaker import start
from stoker.backends.sagemaker.settings import LONGEST_RUN, SagemakerSettings
from stoker.core.accelerators import MODELS, Accelerator
from stoker.core.plan import Job, Site, StepPlan
from stoker.core.resources import ResourceSettings, describe
from stoker.core.units import size_text, value_or

SOURCE: Final = "https://docs.aws.amazon.com/sagemaker/latest/APIReference/API_ResourceConfig.html"
"""The page with all types of training jobs (`InstanceType`), read with botocore 1.43."""
PREFIX: Final = "ml."
_SIZES: Final = """
m5   large xlarge 2xlarge 4xlarge 12xlarge 24xlarge
c5   xlarge 2xlarge 4xlarge 9xlarge 18xlarge
r5   large xlarge 2xlarge 4xlarge 8xlarge 12xlarge 16xlarge 24xlarge
g4dn xlarge 2xlarge 4xlarge 8xlarge 12xlarge 16xlarge
g5   xlarge 2xlarge 4xlarge 8xlarge 12xlarge 16xlarge 24xlarge 48xlarge
g6   xlarge 2xlarge 4xlarge 8xlarge 12xlarge 16xlarge 24xlarge 48xlarge
g6e  xlarge 2xlarge 4xlarge 8xlarge 12xlarge 16xlarge 24xlarge 48xlarge
g7   2xlarge 4xlarge 8xlarge 12xlarge 24xlarge 48xlarge
g7e  2xlarge 4xlarge 8xlarge 12xlarge 24xlarge 48xlarge
p3   2xlarge 8xlarge 16xlarge
p3dn 24xlarge
p4d  24xlarge
p4de 24xlarge
p5   4xlarge 48xlarge
p5e  48xlarge
p5en 48xlarge
p6-b200 48xlarge
p6-b300 48xlarge
trn1  2xlarge 32xlarge
trn1n 32xlarge
trn2  48xlarge
"""
"""Families among which a step gets its type, and their sizes (`SOURCE`). Of types without accelerators m5, c5 and r5
stand for all: a stack may name another by `instance_type`."""
USABLE: Final = 0.9
"""The part of an instance's memory that a step can count on: the kernel and SageMaker's agents keep some."""
DEFAULT: Final = "ml.m5.large"
"""The type of a step that asks for nothing in particular."""


@attrs.frozen(kw_only=True)
class TypeChoice:
    """The instance type of a step."""

    name: str
    """Such as "ml.g5.2xlarge"."""
    type: InstanceType | None
    """What it has; None of one that no table has."""
    among: int = 0
    """How many types would hold the step; 0 where its settings name the type."""

    @property
    def text(self) -> str:
        """In words: "ml.g5.2xlarge: 8 vCPUs, 32GiB, 1 × A10G"."""
        if self.type is None:
            return f"{self.name}, of which Stoker knows nothing"
        chips = f", {self.type.count} × {self.type.accelerator}" if self.type.count else ""
        return f"{self.name}: {self.type.vcpus} vCPUs, {self.type.memory // 1024} GiB{chips}"


@attrs.frozen(kw_only=True)
class NoType:
    """Why no instance type holds a step."""

    what: str
    why: str
    fix: str


@functools.cache
def table() -> Mapping[str, InstanceType]:
    """The types among which a step gets its own, by SageMaker's name."""
    types = {}
    for line in _SIZES.strip().splitlines():
        family, *sizes = line.split()
        for size in sizes:
            known = ec2.instance_type(f"{family}.{size}")
            assert known is not None, f"{family}.{size}"
            types[f"{PREFIX}{family}.{size}"] = known
    return types


def choose(resources: ResourceSettings, named: str = "") -> TypeChoice | NoType:
    """The type that the settings name, or the smallest that has what a step asks for.

    A training job has its instances whole: a type with more accelerators than are asked for is not chosen, since all of
    them would be paid for.
    """
    if named:
        known = ec2.instance_type(named.removeprefix(PREFIX))
        choice = TypeChoice(name=named, type=known)
        return choice if known is None else _misfit(resources, choice) or choice
    kinds: Sequence[Accelerator | None] = resources.get("accelerators", ()) or (None,)
    for kind in kinds:
        fitting = {name: each for name, each in table().items() if _holds(each, resources, kind)}
        if fitting:
            name = min(fitting, key=lambda name: _size(fitting[name]))
            return TypeChoice(name=name, type=fitting[name], among=len(fitting))
    return _nothing(resources)


def _size(each: InstanceType) -> tuple[int, int, int]:
    memory = MODELS[each.accelerator].memory if each.count else (0,)
    return (max(memory), each.vcpus, each.memory)


def _holds(each: InstanceType, resources: ResourceSettings, kind: Accelerator | None) -> bool:
    return _has_devices(each, resources, kind) and _has_room(each, resources)


def _has_room(each: InstanceType, resources: ResourceSettings) -> bool:
    memory = resources.get("memory", 0)
    return bool(each.vcpus >= resources.get("cpu_count", 0) and each.memory * 2**20 * USABLE >= memory)


def _has_devices(each: InstanceType, resources: ResourceSettings, kind: Accelerator | None) -> bool:
    count = resources.gpus_per_node
    if each.count != count:
        return False
    if not count:
        return True
    model = MODELS[each.accelerator]
    if kind is not None:
        return each.accelerator == kind.name
    vendor = resources.get("gpu_vendor", "nvidia")
    return bool(model.vendor == vendor and max(model.memory, default=0) >= resources.get("gpu_memory", 0))


def _misfit(resources: ResourceSettings, choice: TypeChoice) -> NoType | None:
    """Why the named type does not hold a step; None where it does."""
    each = choice.type
    assert each is not None
    what = f"asks for {describe(resources)} on {choice.text}"
    kinds: Sequence[Accelerator | None] = resources.get("accelerators", ()) or (None,)
    if not any(_has_devices(each, resources, kind) for kind in kinds):
        why = "a training job gets its instance whole, with exactly these accelerators"
        asked = f"accelerators='{each.accelerator}:{each.count}'" if each.count else "gpu_count=0"
        return NoType(what=what, why=why, fix=f"ask for what it has: {asked}; or remove instance_type")
    if not _has_room(each, resources):
        usable = size_text(int(each.memory * 2**20 * USABLE))
        why = f"it has {each.vcpus} vCPUs, and about {usable} of its memory are left to a step"
        return NoType(what=what, why=why, fix="remove instance_type, or name a larger one")
    return None


def _nothing(resources: ResourceSettings) -> NoType:
    what = f"asks for {describe(resources)} on each node"
    count = resources.gpus_per_node
    kinds: Sequence[Accelerator | None] = resources.get("accelerators", ()) or (None,)
    same = [
        each
        for each in table().values()
        if each.count and any(_has_devices(attrs.evolve(each, count=count), resources, kind) for kind in kinds)
    ]
    if not count:
        large = max(table().values(), key=lambda each: (each.vcpus, each.memory) if not each.count else (0, 0))
        why = f"the largest instance without accelerators has {large.vcpus} vCPUs and {large.memory // 1024} GiB"
        return NoType(what=what, why=why, fix="ask for less, or SagemakerSettings(instance_type='ml.…')")
    if not same:
        names = sorted({each.accelerator for each in table().values() if each.count})
        why = f"training jobs have {', '.join(names)}"
        return NoType(what=what, why=why, fix="ask for one of these; or a step operator on AWS Batch or SkyPilot")
    counts = sorted({each.count for each in same})
    chip = same[0].accelerator
    if count in counts:
        largest = max((each for each in same if each.count == count), key=lambda each: each.memory)
        why = f"the largest with {count} × {chip} has {largest.vcpus} vCPUs and {largest.memory // 1024} GiB"
        return NoType(what=what, why=why, fix="ask for less")
    why = f"an instance has {' or '.join(map(str, counts))} × {chip}, and a training job gets it whole"
    larger = next((each for each in counts if each > count), counts[-1])
    fix = f"accelerators='{chip}:{larger}'; or a platform that divides instances: AWS Batch, Kubernetes on EKS"
    return NoType(what=what, why=why, fix=fix)


GRACE: Final = 110.0
"""Seconds for a step to end after SIGTERM: SageMaker gives a container 120 before SIGKILL.
https://docs.aws.amazon.com/sagemaker/latest/APIReference/API_StopTrainingJob.html"""
USUAL_RUN: Final = 5 * 86400
"""Seconds that a job may run whose step says nothing: the usual quota of an account.
https://docs.aws.amazon.com/general/latest/gr/sagemaker.html"""
SPOT_WAIT: Final = 86400
"""Seconds by which a spot job may wait longer than it runs, where the settings say nothing."""
VOLUME: Final = 30
"""GB of the volume of a job whose step asks for no disk: what SageMaker's own SDK asks for."""
CHANNEL: Final = "stoker"
INPUT: Final = f"/opt/ml/input/data/{CHANNEL}"
"""Where the channel's files are in the container:
https://docs.aws.amazon.com/sagemaker/latest/dg/your-algorithms-training-algo-running-container.html"""
START: Final = "stoker_start.py"
PLACES: Final = JobPlaces(name="sagemaker", grace=GRACE)
VARIABLES: Final = 100
VARIABLE: Final = 512
"""Variables of a job, and letters of the text of one.
https://docs.aws.amazon.com/sagemaker/latest/APIReference/API_CreateTrainingJob.html"""
_READABLE: Final = 20


def plain_name(text: str) -> str:
    """A part of a name, of the letters that SageMaker takes."""
    return re.sub(r"[^A-Za-z0-9]+", "-", text).strip("-")


def run_prefix(run: str) -> str:
    """How the names of all jobs of a run begin, and of no other run's."""
    readable = plain_name(run)[:_READABLE].strip("-")
    return "-".join(filter(None, ("stoker", readable, hashlib.sha256(run.encode()).hexdigest()[:16]))) + "-"


def job_name(job: Job, salt: int = 0) -> str:
    """The name of a job, of 63 letters at most: SageMaker takes one name once, so that nothing is started twice."""
    return run_prefix(job.run) + token_of([job], salt)


def program_place(artifacts: str) -> str:
    """The folder of the channel, by the digest of what it has."""
    digest = hashlib.sha256(b"".join(programs().values())).hexdigest()[:32]
    return f"{PLACES.root(artifacts)}/program-{digest}"


@functools.cache
def programs() -> Mapping[str, bytes]:
    """The programs in the channel, by name."""
    return {START: Path(start.__file__).read_bytes(), start.PROGRAM: Path(storeprogram.__file__).read_bytes()}


# The request


def image_of(step: StepPlan, settings: SagemakerSettings) -> str:
    """The image that a step runs in: that of its `docker` settings, or of the settings here; empty for none."""
    docker = step.settings.docker
    ready = value_or(docker.parent_image, "") if docker is not None and docker.skip_build is True else ""
    return step.image or ready or str(settings.get("image", ""))


def instance_of(resources: ResourceSettings, settings: SagemakerSettings) -> str:
    """The instance type of a step; that of the smallest where none holds it, which `check` says."""
    choice = choose(resources, settings.get("instance_type", ""))
    return settings.get("instance_type", DEFAULT) if isinstance(choice, NoType) else choice.name


def limits(settings: SagemakerSettings, *, seconds: float, spot: bool) -> dict[str, int]:
    """`StoppingCondition`; `seconds` is the step's own limit, 0 for none."""
    longest = int(settings.get("max_runtime", USUAL_RUN))
    if seconds:
        longest = min(LONGEST_RUN, math.ceil(seconds + LATER))
    condition = {"MaxRuntimeInSeconds": longest}
    if spot:
        condition["MaxWaitTimeInSeconds"] = max(longest, int(settings.get("max_wait", longest + SPOT_WAIT)))
    if settings.get("max_pending"):
        condition["MaxPendingTimeInSeconds"] = settings.get("max_pending")
    return condition


def volume_of(resources: ResourceSettings, settings: SagemakerSettings) -> int:
    """GB of the job's volume."""
    return int(settings.get("volume_size", max(VOLUME, math.ceil(resources.get("disk", 0) / 2**30))))


def training_job(
    job: Job, site: Site, options: Mapping[str, Any], *, passed: Mapping[str, str], salt: int = 0
) -> dict[str, Any]:
    """The arguments of CreateTrainingJob; `passed` are the driver's variables of `PASSED`."""
    is_step = job.kind == "step"
    settings = settings_of(job.step, SagemakerSettings, options)
    resources = job.step.settings.resources if is_step else ResourceSettings()
    token = token_of([job], salt)
    folder = PLACES.folder(site.artifacts, job.run, token)
    own = {**image_environment(job.step), **passed, JOB: folder, WORKER: PLACES.worker(site)}
    spot = bool(resources.get("spot"))
    seconds = (job.step.settings.timeout or 0.0) if is_step else 0.0
    machine = {
        "InstanceType": instance_of(resources, settings),
        "InstanceCount": nodes_of(job),
        "VolumeSizeInGB": volume_of(resources, settings),
        "VolumeKmsKeyId": settings.get("volume_kms_key"),
        "KeepAlivePeriodInSeconds": settings.get("keep_alive"),
        "TrainingPlanArn": settings.get("training_plan"),
    }
    output = {"S3OutputPath": f"{folder}/output", "KmsKeyId": settings.get("output_kms_key"), "CompressionType": "NONE"}
    source = {
        "S3DataType": "S3Prefix",
        "S3Uri": f"{program_place(site.artifacts)}/",
        "S3DataDistributionType": "FullyReplicated",
    }
    tags = {**settings.get("tags", {}), **tags_of(job, token)}
    request: dict[str, Any] = {
        "TrainingJobName": job_name(job, salt),
        "RoleArn": settings.get("role"),
        "AlgorithmSpecification": {
            "TrainingImage": image_of(job.step, settings),
            "TrainingInputMode": "File",
            "ContainerEntrypoint": [settings.get("executable", "python3"), f"{INPUT}/{START}"],
            **_image_access(settings),
        },
        "InputDataConfig": [{"ChannelName": CHANNEL, "DataSource": {"S3DataSource": source}, "InputMode": "File"}],
        "OutputDataConfig": {name: value for name, value in output.items() if value is not None},
        "ResourceConfig": {name: value for name, value in machine.items() if value is not None},
        "StoppingCondition": limits(settings, seconds=seconds, spot=spot),
        "Environment": dict(sorted(own.items())),
        "Tags": [{"Key": name, "Value": text} for name, text in sorted(tags.items())],
    }
    if settings.get("subnets") and settings.get("security_groups"):
        request["VpcConfig"] = {
            "SecurityGroupIds": list(settings.get("security_groups", ())),
            "Subnets": list(settings.get("subnets", ())),
        }
    if spot:
        request["EnableManagedSpotTraining"] = True
    if settings.get("encrypt_traffic") is not None:
        request["EnableInterContainerTrafficEncryption"] = settings.get("encrypt_traffic")
    if settings.get("retry_attempts"):
        request["RetryStrategy"] = {"MaximumRetryAttempts": settings.get("retry_attempts")}
    if settings.get("experiment"):
        request["ExperimentConfig"] = {"ExperimentName": settings.get("experiment")}
    if settings.get("remote_debug") is not None:
        request["RemoteDebugConfig"] = {"EnableRemoteDebug": settings.get("remote_debug")}
    return merged(request, settings.get("overlay", {}))  # type: ignore[no-any-return]


def _image_access(settings: SagemakerSettings) -> dict[str, Any]:
    if not settings.get("repository_access") and not settings.get("repository_credentials"):
        return {}
    access: dict[str, Any] = {"TrainingRepositoryAccessMode": settings.get("repository_access", "Vpc")}
    if settings.get("repository_credentials"):
        provider = settings.get("repository_credentials")
        access["TrainingRepositoryAuthConfig"] = {"TrainingRepositoryCredentialsProviderArn": provider}
    return {"TrainingImageConfig": access}


def too_much(variables: Mapping[str, str]) -> str:
    """What SageMaker would refuse of a job's variables, in words; empty for nothing."""
    if len(variables) > VARIABLES:
        return f"has {len(variables)} variables for its container, of which SageMaker takes {VARIABLES}"
    longest: Sequence[str] = sorted(variables, key=lambda name: -len(variables[name]))[:1]
    if longest and len(variables[longest[0]]) > VARIABLE:
        size = len(variables[longest[0]])
        return f"has the variable {longest[0]} of {size} letters for its container, of which SageMaker takes {VARIABLE}"
    return ""
