"""SageMaker: a step is a training job, and a gang one of several instances.

`requests` makes what is sent, and `start` is what containers run first. A job's name says of which run it is, and ends
with a token by which the folder of its document in the artifact store is found. SageMaker takes each name once in an
account and region: a request that is repeated starts nothing twice, and a later driver finds what a killed one sent,
also where the request got no answer.
"""

from __future__ import annotations

import contextlib
import math
import re
import shlex
import time
from typing import Any, Final, Iterable, Iterator, Literal, Mapping, Sequence

import attrs

from stoker.backends.aws.api import AwsError, command_line, misfit
from stoker.backends.aws.jobs import JOB, LATER, PASSED, TOKEN_TAG, WORKER, lines_by_hand, passed
from stoker.backends.aws.platform import (
    AGAIN,
    READ,
    UNSEEN,
    AwsEnd,
    AwsHandle,
    AwsJob,
    AwsPlatform,
    StreamReader,
    lost,
    refusal,
    remove,
    without_result,
)
from stoker.backends.base.backend import settings_of
from stoker.backends.base.mailboxes import asked
from stoker.backends.base.messages import nodes_of
from stoker.backends.base.platforms import Away, JobReport, own_visibility, ranks_elsewhere
from stoker.backends.base.statuses import failed
from stoker.backends.base.watched import Watched
from stoker.backends.kubernetes.request.check import image_environment
from stoker.backends.sagemaker import requests
from stoker.backends.sagemaker.causes import (
    OVER,
    end_of,
    failure_of,
    has_begun,
    is_running,
    quota_of,
    why_waiting,
)
from stoker.backends.sagemaker.client import LOG_GROUP, SagemakerClient
from stoker.backends.sagemaker.requests import PLACES, NoType, TypeChoice, choose, image_of, limits, too_much
from stoker.backends.sagemaker.settings import SagemakerSettings
from stoker.core.errors import BackendError
from stoker.core.findings import Finding, Reporter
from stoker.core.imagenames import ECR_HOST
from stoker.core.plan import Job, JobStatus, Site, StepPlan, reporter_of
from stoker.core.resources import describe
from stoker.core.status import CANCELLED, REFUSED
from stoker.core.units import UNSET, duration_text, size_text, value_or
from stoker.store import notes

SHORTAGES: Final = (60.0, 120.0, 240.0, 480.0, *(900.0,) * 12)
"""Seconds before a job is sent again for which AWS had no instances: SageMaker itself has tried for some minutes before
it says so, and has them within hours if at all. `max_pending` limits them together."""
FULL: Final = 10.0
"""Seconds before a job is sent once more for which the account's quota had no room."""
LIMIT: Final = "ResourceLimitExceeded"
"""CreateTrainingJob's code for a quota of the account that has no room."""
_INSTANCE: Final = re.compile(r"/algo-(?P<number>[0-9]+)-(?P<began>[0-9]+)$")


@attrs.define(kw_only=True, eq=False)
class TrainingHandle(AwsHandle[AwsJob]):
    """A job as a training job."""

    modified: Any = None
    """The time of its last change that is known, by the list of jobs."""
    shortages: int = 0
    """How often AWS had no instances for it."""
    short_since: float = 0.0
    """When AWS first had none, on the monotonic clock; 0: never."""
    paused: AwsEnd | None = None
    """Why it is to be sent again; None for one that is sent."""
    again_at: float = 0.0
    """When it is sent again, on the monotonic clock."""
    transitions: int = 0
    """How often its state had changed when its log streams were last listed."""

    @property
    def name(self) -> str:
        """At SageMaker."""
        return self.place.name

    @property
    def text(self) -> str:
        return f"the training job {self.name}"


class SagemakerPlatform(AwsPlatform[TrainingHandle, AwsJob, SagemakerClient]):
    """Sends, finds, follows and ends jobs."""

    places = PLACES

    def __init__(self, site: Site, options: Mapping[str, Any], client: SagemakerClient) -> None:
        super().__init__(site, options, client)
        self._loaded: set[str] = set()
        """Runs of which earlier jobs are known."""
        self._doubtful: set[str] = set()
        """Names of jobs whose request got no answer."""
        self._full: dict[str, tuple[float, JobStatus]] = {}
        """By job: when it is sent once more for which there was no room, on the monotonic clock, and what it waits
        for."""

    # Finding

    def _load(self, job: Job) -> bool:
        """Find the jobs of earlier drivers of a run."""
        if job.run in self._loaded:
            return True
        prefix = requests.run_prefix(job.run)
        for row in self._client.named(prefix):
            name = str(row["TrainingJobName"])
            folder = PLACES.folder(self._site.artifacts, job.run, name.removeprefix(prefix))
            document = self._document_in(folder)
            if document is not None:
                place = AwsJob(name=name, folder=folder, nodes=int(document["nodes"]), about=document["jobs"])
                self._add_earlier(job.run, place, [str(row["TrainingJobStatus"])] * len(place.about))
        self._loaded.add(job.run)
        return True

    def _is_worth(self, state: str) -> bool:
        return state in ("InProgress", "Completed")

    def _end_earlier(self, place: AwsJob, index: int, state: str) -> None:
        if state == "InProgress":
            self._client.end(place.name)

    def _follow(self, place: AwsJob, index: int, job: Job, *, attempt: int = 0) -> TrainingHandle:
        return TrainingHandle(job=job, place=attrs.evolve(place, seen=time.monotonic()), attempt=attempt)

    # Sending

    def send(self, jobs: Sequence[Job]) -> Mapping[str, Any]:
        """Send jobs. One for which the account's quota has no room now is queued, and sent later."""
        answers: dict[str, Any] = {}
        for job in jobs:
            again_at, status = self._full.get(job.name, (0.0, None))
            if status is not None and time.monotonic() < again_at:
                answers[job.name] = status
                continue
            self._full.pop(job.name, None)
            try:
                answers[job.name] = TrainingHandle(job=job, place=self._send(job))
            except Away:
                if not answers:
                    raise
                return answers
            except BackendError as error:
                waits = waits_for(error)
                if waits:
                    self._full[job.name] = (time.monotonic() + FULL, JobStatus(state="queued", message=waits))
                answers[job.name] = self._full[job.name][1] if waits else _refused(error)
        return answers

    def _send(self, job: Job, salt: int = 0) -> AwsJob:
        request = requests.training_job(job, self._site, self._options, passed=passed(self._site), salt=salt)
        folder, name = str(request["Environment"][JOB]), str(request["TrainingJobName"])
        self._leave(folder, PLACES.document([job], self._site, folder))
        self._doubtful.add(name)
        try:
            self._client.create(request)
        except AwsError:
            self._doubtful.discard(name)  # AWS said no: there is no job
            remove(folder)
            raise
        self._doubtful.discard(name)
        return AwsJob(name=name, folder=folder, nodes=nodes_of(job))

    def _upload_programs(self) -> None:
        """Leave the container's programs and Stoker's worker in the artifact store, unless they are there."""
        channel = requests.program_place(self._site.artifacts)
        for file, text in requests.programs().items():
            place = f"{channel}/{file}"
            if asked("program", lambda place=place: notes.get(place)) is None:  # type: ignore[misc]
                asked("program", lambda place=place, text=text: notes.put(place, text))  # type: ignore[misc]
        super()._upload_programs()

    # Following

    def look(self, handles: Mapping[str, TrainingHandle]) -> Mapping[str, JobReport]:
        """What is new of jobs: one list for each run, a description of each job that has changed, and their logs."""
        now = time.monotonic()
        listed: dict[str, Mapping[str, Any]] = {}
        for run in {handle.job.run for handle in handles.values()}:
            listed.update((str(row["TrainingJobName"]), row) for row in self._client.named(requests.run_prefix(run)))
        reports = {}
        room = READ
        for name, handle in handles.items():
            if handle.paused is not None:
                report = self._after_pause(handle, handle.paused, now)
                if report is None:
                    continue
            elif self._describe(handle, listed.get(handle.name)):
                handle.place.seen = now
                if room > 0 or handle.row.get("TrainingJobStatus") in OVER:
                    room -= self._read_logs(handle)
                report = self._report(handle, now)
            elif now - handle.place.seen >= UNSEEN:
                report = lost(handle, f"SageMaker does not know {handle.text}")
            else:
                continue
            reports[name] = report
        return self._with_lines(handles, reports)

    def _describe(self, handle: TrainingHandle, summary: Mapping[str, Any] | None) -> bool:
        """Bring what is known of a job up to date; false for one that SageMaker does not know."""
        modified = None if summary is None else summary.get("LastModifiedTime")
        state = None if summary is None else summary.get("TrainingJobStatus")
        if (
            not handle.row
            or modified is None
            or modified != handle.modified
            or state != handle.row["TrainingJobStatus"]
        ):
            row = self._client.describe(handle.name)
            if row is None:
                return False
            handle.row, handle.modified = row, modified
        return True

    def _report(self, handle: TrainingHandle, now: float) -> JobReport:
        row = handle.row
        handle.running = handle.running or is_running(row)
        handle.facts["node"] = str((row.get("ResourceConfig") or {}).get("InstanceType", ""))
        status: JobStatus | None = None
        message = reason = ""
        if row.get("TrainingJobStatus") in OVER:
            handle.over_since = handle.over_since or now
            end = self._end(handle, now, began=has_begun(row))
            if isinstance(end, AwsEnd):
                return self._after_end(handle, end, now)
            status = end
        elif not is_running(row):
            message, reason = why_waiting(row)
        return JobReport(running=handle.running, message=message, reason=reason, facts=handle.facts, status=status)

    # Lines and ends

    def _read_logs(self, handle: TrainingHandle) -> int:
        """Read what has come of a job's logs; how many calls that took."""
        if not is_running(handle.row):
            return 0
        before = sum(self._client.calls[name] for name in ("get_log_events", "describe_log_streams"))
        transitions = len(handle.row.get("SecondaryStatusTransitions") or ())
        if len(handle.streams) < handle.place.nodes or handle.transitions != transitions:
            # An instance that was replaced begins a stream of its own.
            handle.transitions = transitions
            for stream in self._client.streams(handle.name):
                found = _INSTANCE.search(stream)
                if found is None:
                    continue  # no instance's own
                node = int(found["number"]) - 1
                old = handle.streams.get(node)
                if node < handle.place.nodes and (old is None or _began(old.stream) < _began(stream)):
                    reader = handle.streams[node] = StreamReader(stream)
                    reader.give([] if old is None else old.take())
        for reader in handle.streams.values():
            if reader.stream:
                reader.read(self._client, LOG_GROUP, reader.stream)
        return sum(self._client.calls[name] for name in ("get_log_events", "describe_log_streams")) - before

    def _end_of(self, handle: TrainingHandle) -> AwsEnd | None:
        return end_of(handle.row)

    def _after_end(self, handle: TrainingHandle, end: AwsEnd, now: float) -> JobReport:
        """A job that ended without a result of the step: it is over, or is sent again, now or after a pause."""
        last = handle.shortages >= len(SHORTAGES) if end.later else handle.again - handle.shortages >= AGAIN
        if end.later and handle.short_since:
            patience = self._settings(handle).get("max_pending")
            last = last or bool(patience and now - handle.short_since >= patience)
        if not end.free or handle.ending or last:
            return JobReport(status=without_result(end, handle))
        if not end.later:
            return self._start_again(handle, end, now)
        pause = SHORTAGES[handle.shortages]
        handle.short_since = handle.short_since or now
        handle.shortages += 1
        handle.running, handle.paused, handle.again_at = False, end, now + pause
        text = f"{end.message.partition(';')[0]}; it is sent again in {duration_text(pause)}"
        return JobReport(message=text, reason=f"shortage {handle.shortages}")

    def _after_pause(self, handle: TrainingHandle, end: AwsEnd, now: float) -> JobReport | None:
        """A job that is to be sent again: sent if it is time, and over where it is to end; None: nothing is new."""
        if handle.ending:
            return JobReport(status=failed(CANCELLED))
        return None if now < handle.again_at else self._start_again(handle, end, now)

    def _start_again(self, handle: TrainingHandle, end: AwsEnd, now: float) -> JobReport:
        """Send a job once more."""
        try:
            new = self._send(handle.job, salt=handle.again + 1)
        except Away:
            raise
        except BackendError as error:
            waits = waits_for(error)
            if not waits:
                return JobReport(status=_refused(error))
            handle.running, handle.paused, handle.again_at = False, end, now + FULL
            return JobReport(message=waits)
        old = handle.place
        message = self._sent_again(handle, new, end)
        handle.row, handle.modified, handle.paused, handle.transitions = {}, None, None, 0
        handle.facts.clear()
        with contextlib.suppress(Away):  # what stays is found by `stoker gc`
            remove(old.folder)
        return JobReport(message=message)

    def _settings(self, handle: TrainingHandle) -> SagemakerSettings:
        return settings_of(handle.job.step, SagemakerSettings, self._options)

    # Ending

    def _stop(self, handle: TrainingHandle) -> None:
        self._client.end(handle.name)

    def forget(self, handle: TrainingHandle) -> None:
        """A job is over: its folder is removed. SageMaker keeps its record, which costs nothing."""
        remove(handle.place.folder)

    def identity(self, handle: TrainingHandle) -> Mapping[str, Any]:
        """The job's name."""
        return {"job": handle.text, "name": handle.name}

    def doubtful(self) -> Sequence[Mapping[str, Any]]:
        """Requests that got no answer."""
        return [{"job": f"the training job {name}", "name": name} for name in sorted(self._doubtful)]

    def _end_doubtful(self) -> None:
        for name in sorted(self._doubtful):
            self._client.end(name)


def waits_for(error: BackendError) -> str:
    """What a refused job waits for, in words: room in the account's quota, or instances; empty where waiting is in
    vain."""
    if not isinstance(error, AwsError):
        return ""
    quota = quota_of(error.words) if error.code == LIMIT else None
    if quota is not None and quota.frees:
        return f"{quota.text}; it is sent when another has ended"
    if failure_of(f"{error.code}: {error.words}").later:
        return f"AWS has no such instances now ({error.code}: {error.words}); it is asked again until it has"
    return ""


def _began(stream: str) -> int:
    """When a stream of an instance began, in seconds since the epoch; before all others for none."""
    found = _INSTANCE.search(stream)
    return int(found["began"]) if found is not None else -1


def _refused(error: BackendError) -> JobStatus:
    if isinstance(error, AwsError) and error.code == LIMIT:
        quota = quota_of(error.words)
        name = f"'{quota.name}'" if quota is not None else "'… for training job usage'"
        message = error.message if quota is None else f"no job of this account can end to make room: {quota.text}"
        fix = f"ask for {name} in Service Quotas (Amazon SageMaker), or name another type: instance_type='…'"
        return failed(REFUSED, f"{message}; {fix}")
    return refusal(error)


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
