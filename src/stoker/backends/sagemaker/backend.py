"""SageMaker: a step is a training job, and a gang one of several instances.

What is refused is decided here; `requests` makes what is sent, `platform` sends and follows jobs through `client`, and
`start` is what their containers run first.
"""

from __future__ import annotations

import math
import re
import shlex
from typing import Any, Final, Iterable, Iterator, Literal, Mapping

from stoker.backends.aws.api import command_line, misfit
from stoker.backends.aws.jobs import JOB, LATER, PASSED, TOKEN_TAG, WORKER, lines_by_hand, passed
from stoker.backends.base.backend import settings_of
from stoker.backends.base.checks import own_visibility, ranks_elsewhere
from stoker.backends.base.watched import Watched
from stoker.backends.kubernetes.request.check import image_environment
from stoker.backends.sagemaker import requests
from stoker.backends.sagemaker.client import SagemakerClient
from stoker.backends.sagemaker.platform import SagemakerPlatform
from stoker.backends.sagemaker.requests import NoType, TypeChoice, choose, image_of, limits, too_much
from stoker.backends.sagemaker.settings import SagemakerSettings
from stoker.core.findings import Finding, Reporter
from stoker.core.imagenames import ECR_HOST
from stoker.core.plan import Job, Site, StepPlan, reporter_of
from stoker.core.resources import describe
from stoker.core.units import UNSET, duration_text, size_text, value_or

CANNOT: Final = "STK360"
TRANSLATED: Final = "STK361"
INSTANCE: Final = "STK362"
IMAGE: Final = "STK363"
ROLE: Final = "STK364"
STORE: Final = "STK365"
SPOT: Final = "STK366"
_ECR: Final = re.compile(f"{ECR_HOST}/.+")
"""https://docs.aws.amazon.com/sagemaker/latest/APIReference/API_AlgorithmSpecification.html"""


def check(step: StepPlan, options: Mapping[str, Any], site: Site) -> Iterator[Finding]:
    """Field by field."""
    settings = settings_of(step, SagemakerSettings, options)
    report = reporter_of(step)
    yield from _instance(step, settings, report)
    yield from _resources(step, settings, report)
    yield from _time(step, settings, report)
    yield from _environment(step, report)
    yield from _account(settings, report)
    yield from _image(step, settings, site, report)
    nodes = step.settings.resources.get("nodes", 1)
    yield from ranks_elsewhere(step, nodes, CANNOT, "containers of SageMaker have neither")
    if not site.artifacts.startswith("s3://"):
        what = f"runs on an instance of SageMaker's, which cannot have the artifact store {site.artifacts}"
        why = "SageMaker brings a job's document from S3 alone, and the step loads and saves there"
        yield report.error(STORE, what, why, "name a bucket in the stack: artifact_store = 's3://…'")


def _instance(step: StepPlan, settings: SagemakerSettings, report: Reporter) -> Iterator[Finding]:
    resources = step.settings.resources
    kinds = [kind for kind in resources.get("accelerators", ()) if kind.slice]
    if resources.get("share") or kinds:
        return  # `_resources` says so
    choice = choose(resources, settings.get("instance_type", ""))
    if isinstance(choice, NoType):
        yield report.error(INSTANCE, choice.what, choice.why, choice.fix)
        return
    if choice.type is None:
        what = f"runs on {choice.text}: whether it has {describe(resources)} is not known"
        yield report.translated(INSTANCE, what, "its settings name the type; the gate in the job proves accelerators")
        return
    why = "its settings name the type"
    if choice.among:
        why = (
            f"the smallest of the {choice.among} types that hold it; SagemakerSettings(instance_type='…') names another"
        )
    yield report.info(INSTANCE, f"runs on {_whole(choice)}", why)
    asked = [name for name in ("cpu_count", "memory") if resources.get(name)]
    more = [
        name
        for name, has in (("cpu_count", choice.type.vcpus), ("memory", choice.type.memory * 2**20))
        if name in asked and has != resources.get(name)
    ]
    if more:
        what = f"gets {_whole(choice)}, where it asks for {describe(resources)}"
        yield report.translated(TRANSLATED, what, "a training job has its instance whole, and no limit within it")


def _whole(choice: TypeChoice) -> str:
    return f"the whole of {choice.text}"


def _resources(step: StepPlan, settings: SagemakerSettings, report: Reporter) -> Iterator[Finding]:
    resources = step.settings.resources
    asks = f"asks for {describe(resources)}"
    if resources.get("share"):
        why = "a training job has its instance whole, and shares it with nobody"
        yield report.refused(CANNOT, asks, why, "resources.share=false")
    slices = [kind for kind in resources.get("accelerators", ()) if kind.slice]
    if slices:
        why = "instances of training jobs have whole GPUs, and no MIG slices"
        yield report.refused(CANNOT, f"asks for {slices[0]}", why, f"resources.accelerators={slices[0].name}")
    if resources.get("shared_memory") is not None:
        what = f"asks for {size_text(resources.get('shared_memory'))} of shared memory"
        why = "CreateTrainingJob takes no size of /dev/shm: it has the one that SageMaker gives it"
        yield report.refused(CANNOT, what, why, "resources.shared_memory=null")
    if resources.get("extended"):
        names = ", ".join(sorted(resources.get("extended")))
        why = "SageMaker counts no resources of one's own"
        yield report.error(CANNOT, f"asks for {names}", why, "remove it, or use AWS Batch or Kubernetes")
    asked = math.ceil(resources.get("disk", 0) / 2**30)
    if settings.get("volume_size") and asked > settings.get("volume_size"):
        what = f"asks for {size_text(resources.get('disk'))} of disk, and has volume_size={settings.get('volume_size')}"
        yield report.error(CANNOT, what, "the volume would be too small", "remove volume_size, or make it larger")
    if step.settings.accelerator_policy == "prefer" and resources.gpus_per_node:
        what = 'has accelerator_policy="prefer", and gets an instance with accelerators'
        yield report.translated(TRANSLATED, what, "a training job names its type; it cannot ask for what there is")


def _time(step: StepPlan, settings: SagemakerSettings, report: Reporter) -> Iterator[Finding]:
    seconds, spot = step.settings.timeout or 0.0, bool(step.settings.resources.get("spot"))
    condition = limits(settings, seconds=seconds, spot=spot)
    longest = condition["MaxRuntimeInSeconds"]
    if seconds and seconds > longest - LATER:
        what = f"has a timeout of {duration_text(seconds)}"
        yield report.error(CANNOT, what, "a training job runs for 28 days at most", "give it a shorter timeout")
    elif not seconds:
        why = "every training job has a limit; a step's timeout or SagemakerSettings(max_runtime=…) says another"
        yield report.info(TRANSLATED, f"is ended after {duration_text(longest)}", why)
    if not spot:
        if settings.get("max_wait"):
            why = "only a spot job waits for its instances within a limit of its own"
            yield report.error(SPOT, "has max_wait, and does not ask for spot", why, "spot=True, or max_pending")
        return
    if settings.get("max_wait") and settings.get("max_wait") < longest:
        what = f"may wait {settings.get('max_wait')} s and run {longest} s"
        why = "max_wait counts waiting and running together: SageMaker refuses one that is shorter than the run"
        yield report.error(SPOT, what, why, f"max_wait={longest} or more, or a shorter timeout")
    if settings.get("keep_alive"):
        why = "SageMaker keeps no spot instances for the next job"
        yield report.error(SPOT, "asks for spot, and has keep_alive", why, "remove one of the two")
    if settings.get("training_plan"):
        why = "capacity that is reserved is not spot"
        yield report.error(SPOT, "asks for spot, and has a training_plan", why, "remove one of the two")
    what = f"runs on spot instances, and waits and runs for {duration_text(condition['MaxWaitTimeInSeconds'])} at most"
    why = "SageMaker starts it again when they are taken back; its checkpoints are in the artifact store"
    yield report.info(SPOT, what, why)


def _environment(step: StepPlan, report: Reporter) -> Iterator[Finding]:
    yield from own_visibility(step, "the step has all devices of its instance; another choice leaves some of them idle")
    # What the container needs besides: the job's folder, the worker's place, and the region and address of S3.
    words = too_much({**image_environment(step), **dict.fromkeys(map(str, range(2 + len(PASSED))), "")})
    if words:
        why = "those of the image go into the request; the step's own environment does not"
        yield report.error(CANNOT, words, why, "build them into the image, or give them as the step's environment")


def _account(settings: SagemakerSettings, report: Reporter) -> Iterator[Finding]:
    if not settings.get("role"):
        why = "SageMaker pulls the image, writes the log and lets the step read the artifact store by that role"
        fix = "SagemakerSettings(role='arn:aws:iam::123456789012:role/…')"
        yield report.error(ROLE, "has no role", why, fix)
    overlay = settings.get("overlay")
    wrong = misfit("sagemaker", "CreateTrainingJob", overlay) if overlay else ""
    if wrong:
        why = "by botocore's model of the API; a newer botocore may know it"
        yield report.error(CANNOT, f"has an overlay that SageMaker would refuse: {wrong}", why, "mend the overlay")
    if bool(settings.get("subnets")) != bool(settings.get("security_groups")):
        missing = "security_groups" if settings.get("subnets") else "subnets"
        yield report.error(CANNOT, f"is in a VPC without {missing}", "SageMaker needs both", f"name its {missing}")


def _image(step: StepPlan, settings: SagemakerSettings, site: Site, report: Reporter) -> Iterator[Finding]:
    docker = step.settings.docker
    is_built = docker is not None and docker.skip_build is not True
    if is_built and not site.registry:
        why = "SageMaker pulls images from ECR, and the stack names no registry to push to"
        fix = "docker.skip_build=true with docker.parent_image=…dkr.ecr…; or a container_registry in the stack"
        yield report.refused(IMAGE, "asks for an image that is to be built", why, fix)
        return
    image = image_of(step, settings)
    if not image and not is_built:
        why = "a training job runs in an image of ECR, and there is none that all accounts have"
        fix = "SagemakerSettings(image='123456789012.dkr.ecr.eu-west-1.amazonaws.com/train:1'), or docker settings"
        yield report.error(IMAGE, "names no image", why, fix)
        return
    private = settings.get("repository_access", "Vpc" if settings.get("repository_credentials") else "Platform")
    if private == "Vpc" and not settings.get("subnets"):
        why = "SageMaker reaches a private registry from the job's VPC"
        yield report.error(
            IMAGE, "has its image in a private registry, and no VPC", why, "name subnets and security_groups"
        )
    if image and private != "Vpc" and not _ECR.fullmatch(image):
        why = "SageMaker pulls from ECR, or from a private registry in the job's VPC"
        fix = "push it to ECR; or repository_access='Vpc' with subnets and security_groups"
        yield report.error(IMAGE, f"runs in the image {image}", why, fix)
    if docker is not None and settings.image not in (UNSET, None, image):
        what = f"runs in the image of its docker settings, not in {settings.get('image')}"
        yield report.translated(IMAGE, what, "SagemakerSettings(image=…) is for steps without docker settings")
    if docker is not None and not is_built and not value_or(docker.parent_image, "") and not step.image:
        fix = "docker.parent_image=…dkr.ecr…, or docker=null"
        yield report.refused(IMAGE, "has docker settings that name no image", "nothing is to be built", fix)


class SagemakerBackend(Watched):
    """Runs jobs in one account and region."""

    name = "sagemaker"
    packages_in: Literal["image", "environment"] = "image"

    def __init__(self, site: Site, options: Mapping[str, Any]) -> None:
        self._site = site
        self._options = dict(options)
        super().__init__(SagemakerPlatform(site, self._options, SagemakerClient(SagemakerSettings(**options))))

    def check(self, step: StepPlan) -> Iterable[Finding]:
        """What SageMaker cannot give a step, and how it takes the rest; the account is not asked."""
        return check(step, self._options, self._site)

    def render(self, job: Job) -> Mapping[str, Any]:
        """The arguments of CreateTrainingJob, and the document that the container reads."""
        request = requests.training_job(job, self._site, self._options, passed=passed(self._site))
        folder = str(request["Environment"][JOB])
        return {"job": request, "document": requests.PLACES.document([job], self._site, folder)}

    def by_hand(self, job: Job, request: Mapping[str, Any]) -> str:
        """A script that sends the job with the AWS command line."""
        from stoker.backends.base.byhand import subshell

        return subshell(_lines_by_hand(job, request, SagemakerSettings(**self._options)))


def _lines_by_hand(job: Job, request: Mapping[str, Any], settings: SagemakerSettings) -> Iterator[str]:
    from stoker.backends.base.byhand import document_lines, file_lines

    aws, sent = command_line(settings), request["job"]
    folder, worker = sent["Environment"][JOB], sent["Environment"][WORKER]
    yield from lines_by_hand(job, request["document"], settings, folder=folder, worker=worker)
    channel = sent["InputDataConfig"][0]["DataSource"]["S3DataSource"]["S3Uri"]
    for name, text in requests.programs().items():
        yield from file_lines(f'"$here"/{name}', text.decode())
        yield f'{aws} s3 cp "$here"/{name} {shlex.quote(f"{channel}{name}")}'
    # A name and tags that no driver takes for its own.
    tags = [tag for tag in sent["Tags"] if tag["Key"] != TOKEN_TAG]
    yield from document_lines('"$here"/job.json', {**sent, "TrainingJobName": "BY-HAND", "Tags": tags})
    yield 'sed -i.old "s/BY-HAND/by-hand-$(date +%s)/" "$here"/job.json'
    yield f'{aws} sagemaker create-training-job --cli-input-json file://"$here"/job.json'
    yield 'rm -r "$here"'
