"""Kubeflow Pipelines as a backend of one run: the steps of a run are the tasks of one pipeline there.

What is sent is decided in `requests` and `compile`, and here what is refused, without asking anybody: what a step's pod
is to be is decided for Kubernetes, and KFP has no words for some of it. `KubeflowPlatform` starts and follows what was
sent.
"""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final, Iterable, Iterator, Literal, Mapping, Sequence

import attrs

from stoker.backends.base import mailboxes
from stoker.backends.base.adoption import EarlierJobs, about
from stoker.backends.base.backend import settings_of
from stoker.backends.base.leasing import samples_file
from stoker.backends.base.mailboxes import Letter, LetterNews, OrderInfo
from stoker.backends.base.messages import missing_source, source_fix
from stoker.backends.base.platforms import Away, JobReport
from stoker.backends.base.statuses import failed
from stoker.backends.base.watched import Watched
from stoker.backends.kubeflow import requests
from stoker.backends.kubeflow.api import ASKED, OVER, KubeflowApi, address_of, named_host
from stoker.backends.kubeflow.api import ENDPOINT as ENDPOINT_VARIABLE
from stoker.backends.kubeflow.requests import PipelineTask
from stoker.backends.kubeflow.settings import FANOUT, KubeflowSettings
from stoker.backends.kubernetes.request.check import STORE, check_pod
from stoker.core.codec import from_json, parse_json, to_json
from stoker.core.errors import BackendError, SettingsError, StokerError
from stoker.core.findings import Finding, Reporter
from stoker.core.ladder import Halve
from stoker.core.orders import JOB, MailOrder, MailState, order_folder, order_note
from stoker.core.plan import Job, JobStatus, Site, StepPlan, reporter_of
from stoker.core.status import CANCELLED, REFUSED, WORKER_LOST
from stoker.store import notes

CANNOT: Final = "STK296"
WITHOUT_WORDS: Final = "STK297"
SLOTS: Final = "STK298"
LOGIN: Final = "STK300"
ENDPOINT: Final = "STK370"
JOBS_ONLY: Final[Mapping[str, str]] = {
    "context": "the endpoint's own cluster runs the pods",
    "kubeconfig": "the endpoint's own cluster runs the pods",
    "pools": "nodes are not asked for",
    "pod_startup_timeout": "the endpoint's own pods wait as long as it lets them",
    "pull_timeout": "the endpoint's own pods wait as long as it lets them",
    "ttl": "the endpoint keeps its runs",
    "driver": "a detached driver is a process of the machine that the run is started on",
    "grace_period": "pods of KFP have 30 s",
    "queue": "KFP creates pods, and queues admit jobs",
    "queueing": "KFP creates pods, and queues admit jobs",
    "queue_priority": "KFP creates pods, and queues admit jobs",
    "topology": "each step is one pod",
    "placement": "each step is one pod",
    "jobset": "each step is one pod",
    "hostname_resolution_timeout": "each step is one pod",
    "device_class": "KFP has no resource claims",
}
"""A field of `KubernetesSettings` that has no meaning here → why."""


def check(step: StepPlan, options: Mapping[str, Any], site: Site) -> Iterator[Finding]:
    """Field by field."""
    settings = settings_of(step, KubeflowSettings, options)
    report = reporter_of(step)
    nodes = step.settings.resources.get("nodes", 1)
    if nodes > 1:
        why = "a task of KFP is one pod, and pods of one step that wait for each other may never all be there"
        fix = (
            "run this step on the same cluster by the kubernetes backend: step_operators.gangs = {flavor = "
            "'kubernetes', context = '…', jobset = true} in the stack, and step_operator='gangs' at the step; or "
            "resources.nodes=1"
        )
        yield report.error(CANNOT, f"asks for {nodes} nodes", why, fix)
    if step.hooks:
        why = "a task ends with its step, and nothing is left to call them"
        yield report.error(CANNOT, f"has hooks ({', '.join(step.hooks)})", why, "call the function in a step after it")
    ladder = [rung for rung in step.settings.retry.on_oom if not isinstance(rung, Halve)]
    if ladder:
        why = "a task's pod is requested when the run begins, and stays as it is"
        yield report.error(
            CANNOT, f"changes its request after an attempt ({ladder[0]})", why, "use Halve, or ask for more"
        )
    for name, why in JOBS_ONLY.items():
        if settings.get(name) is not None:
            yield report.error(WITHOUT_WORDS, f"sets {name}", why, f"remove {name}")
    if step.runner:
        what, why = "is a step of a flow", "its steps must be known when the run begins, and a flow goes its own way"
        yield report.error(CANNOT, what, why, "write it as a pipeline, or run the flow on the kubernetes backend")
    yield from check_pod(step, settings, site, report)
    if step.mapped:
        slots = settings.get("fanout", FANOUT)
        what = f"is a fan-out: {slots} pods take one element after another"
        why = "KFP must know how many there are before the elements are known"
        yield report.translated(SLOTS, what, f"{why}; fanout={slots} is their number")
    try:
        template = requests.template_of(step, site, options, run="run", mailbox=f"{site.artifacts}/kubeflow")
    except SettingsError as error:
        yield report.error(CANNOT, "cannot be a pod", error.message, error.fix)
        return
    yield from _place(template, settings, site, report)
    for what, why in requests.badly_named(template):
        yield report.error(WITHOUT_WORDS, what, why, "rename it, or run the step on the kubernetes backend")
    missing = requests.inexpressible(template)
    if missing:
        why = "KFP's platform specification has no words for it, and would drop it"
        fix = "remove it, or run the step on the kubernetes backend"
        yield report.error(WITHOUT_WORDS, f"asks for {', '.join(missing)} of a pod", why, fix)


def _place(template: Mapping[str, Any], settings: KubeflowSettings, site: Site, report: Reporter) -> Iterator[Finding]:
    """An artifact store that pods do not see. A claim brings a folder into them: KFP mounts no folders of nodes."""
    folder = site.artifacts.removeprefix("file://")
    if folder.startswith("pvc://") or ("://" not in folder and not settings.get("shares_files")):
        what = f"runs in a pod, which does not see the artifact store {folder.partition('?')[0]}"
        why = "a step loads its inputs from there and saves its outputs there"
        fix = "name a store that pods and this machine reach: artifact_store = 's3://…', 'gs://…' or 'az://…'"
        yield report.error(STORE, what, why, fix)
    if "://" in folder or not settings.get("shares_files"):
        return
    claims = {volume["name"] for volume in template["spec"].get("volumes", ()) if "persistentVolumeClaim" in volume}
    mounts = template["spec"]["containers"][0].get("volumeMounts", ())
    places = [mount["mountPath"].rstrip("/") for mount in mounts if mount["name"] in claims]
    if not any(f"{folder}/".startswith(f"{place}/") for place in places):
        what = f"mounts no claim at the artifact store {folder}"
        why = "a step loads its inputs from there and saves its outputs there, and KFP mounts no folders of nodes"
        fix = (
            f"persistent_volume_claims = {{ CLAIM = '{folder}' }} for a claim that has it; or a store that pods reach: "
            "artifact_store = 's3://…'"
        )
        yield report.error(STORE, what, why, fix)


class KubeflowBackend(Watched):
    """Runs the steps of one run as tasks of one pipeline."""

    name = "kubeflow"
    packages_in: Literal["image", "environment"] = "image"

    def __init__(self, site: Site, options: Mapping[str, Any]) -> None:
        self._site = site
        self._options = dict(options)
        self._pipeline = KubeflowPlatform(site, self._options, KubeflowApi(KubeflowSettings(**options), os.environ))
        super().__init__(self._pipeline)

    def check(self, step: StepPlan) -> Iterable[Finding]:
        """What Kubeflow Pipelines cannot give a step; the endpoint is not asked."""
        yield from check(step, self._options, self._site)
        yield from self._endpoint(step)

    def _endpoint(self, step: StepPlan) -> Iterable[Finding]:
        """The endpoint, and what it is to be shown, where they are not here."""
        settings = KubeflowSettings(**self._options)
        try:
            host = address_of(settings, os.environ)
        except SettingsError as error:
            why = "runs are sent to the endpoint"
            yield reporter_of(step).error(ENDPOINT, "has nowhere to run: " + error.message, why, error.fix)
            return
        for field in ("token", "password"):
            source = str(settings.get(field, ""))
            missing = missing_source(source) if source else ""
            if missing:
                what = f"is sent to {host}, whose {field} is not there: {missing}"
                why = "a run that is started so fails with its first step"
                yield reporter_of(step).warning(LOGIN, what, why, source_fix(source))

    def render(self, job: Job) -> Mapping[str, Any]:
        """The order that the step's pod takes, and for the run's first step the request that starts the run there."""
        root = f"{requests.root_of(self._site, job.run)}/0"
        steps = self._pipeline.expected() or [job.step]
        tasks = requests.tasks(steps, self._site, self._options, run=job.run, root=root)
        task = tasks[job.step.key]
        document: dict[str, Any] = {
            "worker": requests.worker_place(self._site),
            "mailbox": f"{root}/{task.name}" + ("/0" if task.slots else ""),
            "order": to_json(requests.job_document(job, self._site)),
        }
        if steps[0].key == job.step.key:
            settings = KubeflowSettings(**self._options)
            document["request"] = requests.body(job.run, job.pipeline or job.run, tasks.values(), settings)
        return document

    def by_hand(self, job: Job, request: Mapping[str, Any]) -> str:
        """A script with the pipeline as YAML, which KFP's own command starts."""
        from stoker.backends.base.byhand import subshell

        settings = KubeflowSettings(**self._options)
        experiment = str(settings.get("experiment") or job.pipeline or "stoker")
        return subshell(_lines_by_hand(job, request, named_host(settings, os.environ), experiment))

    def expect(self, steps: Sequence[StepPlan]) -> None:
        """Steps that may still run: each gets a task when the first of them is submitted."""
        self._pipeline.expect(steps)

    def settle(self, key: str, *, success: bool) -> None:
        """A step is settled: its task ends in the same way."""
        self._pipeline.settle(key, success=success)


PIPELINE = "pipeline.yaml"


def _lines_by_hand(job: Job, request: Mapping[str, Any], host: str, experiment: str) -> Iterator[str]:
    """That of the run's first step starts the run, whose pods wait for the orders of all steps.

    Where nothing names the endpoint, `host` is empty, and the script takes it from KFP's own variable.
    """
    from stoker.backends.base.byhand import document_lines, file_lines, input_lines, needs, needs_command, stop

    yield from input_lines(job.key, request["order"]["job"]["inputs"])
    mailbox = request["mailbox"]
    if "://" in mailbox:
        yield stop(
            f"missing: {mailbox}/{order_note(0)}, and {JOB} beside it, in the artifact store: a run puts them there"
        )
    else:
        yield needs(request["worker"], "Stoker's worker, which the first run puts there")
        folder = f"{mailbox}/{order_folder(0)}"
        yield f"mkdir -p {shlex.quote(folder)}"
        yield from document_lines(shlex.quote(f"{folder}/{JOB}"), {**request["order"], "package": ""})
        yield from document_lines(shlex.quote(f"{mailbox}/{order_note(0)}"), to_json(MailOrder()))
    if "request" not in request:
        return
    specs = request["request"]["pipeline_spec"]
    spec, platform = (specs["pipeline_spec"], specs["platform_spec"]) if "pipeline_spec" in specs else (specs, {})
    yield from file_lines(PIPELINE, requests.document(spec, platform))
    yield needs_command("kfp", "pip install kfp")
    name = request["request"]["display_name"]
    words = ["run", "create", "--experiment-name", experiment, "--run-name", name, "--package-file", PIPELINE]
    endpoint = shlex.quote(host) if host else f'"${{{ENDPOINT_VARIABLE}:?names the endpoint}}"'
    yield f"kfp --endpoint {endpoint} {shlex.join(words)}"


# The runs there whose tasks execute the steps: started, found again, ended.
#
# A run here is one run there. Its pipeline has a task for each step that may still run when the first job is sent; KFP
# starts a task's pod when the tasks before it have succeeded, and the pod takes its jobs from a mailbox in the artifact
# store (`backends.base.mailboxes`). A fan-out is a loop over a fixed number of pods, each of which takes one element
# after another. When a step is settled, its task is told how to end, so that Kubeflow shows it as Stoker does.

ASK: Final = (2.0, 3.0, 5.0, 10.0)
"""Seconds between two questions for the state of the run, longer while nothing changes."""
LAST_WORDS: Final = 15.0
"""Seconds after the end of a run there in which the notes of its tasks may still come."""
RECORD: Final = "run.json"
"""What a later driver must know of a run, in the run's folder."""


@attrs.frozen(kw_only=True)
class TaskRecord:
    """A task of a run there."""

    name: str
    slots: int = 0
    """Pods of a fan-out; 0 for a step that is none."""


@attrs.frozen(kw_only=True)
class RunRecord:
    """A run there, for a later driver."""

    version: int = 1
    generation: int
    """How many runs there were before it."""
    name: str
    id: str = ""
    """Empty until the endpoint has confirmed it."""
    tasks: Mapping[str, TaskRecord] = attrs.field(factory=dict)
    """By the steps' keys."""


@attrs.define(kw_only=True, eq=False)
class KubeflowRun:
    """A run there, and what its mailboxes hold."""

    record: RunRecord
    root: str
    """Its place in the artifact store."""
    unsent: Sequence[PipelineTask] = ()
    """The tasks of one that is still to be started."""
    next: dict[str, int] = attrs.field(factory=dict)
    """Mailbox → the number of its next order."""
    up: set[str] = attrs.field(factory=set)
    """Mailboxes of fan-outs whose programs wait."""
    state: str = ""
    tasks: Mapping[str, Mapping[str, Any]] = attrs.field(factory=dict)
    """What the endpoint reports, by the steps' keys."""
    error: str = ""
    over_at: float = 0.0
    """When it was first seen to be over, on the monotonic clock; 0: not yet."""

    @property
    def over(self) -> bool:
        """Whether none of its tasks takes anything more."""
        return self.state in OVER

    def boxes(self, key: str) -> list[str]:
        """The mailboxes of a step."""
        task = self.record.tasks[key]
        box = f"{self.root}/{task.name}"
        return [f"{box}/{slot}" for slot in range(task.slots)] if task.slots else [box]


@attrs.define(kw_only=True, eq=False)
class KubeflowHandle:
    """A job as an order; without a letter it waits for a pod of its fan-out."""

    job: Job
    run: KubeflowRun
    letter: Letter | None = None
    attempt: int = 0
    """The number of the attempt as which an earlier driver sent it; 0 for one of this driver."""
    ended: bool = False
    """Whether it was told to end."""


class KubeflowPlatform:
    """Starts the run there, gives its tasks orders, finds, follows and ends them."""

    def __init__(self, site: Site, options: Mapping[str, Any], api: KubeflowApi) -> None:
        self._site = site
        self._options = options
        self._settings = KubeflowSettings(**options)
        self._api = api
        self.answers = api.answers
        self._lock = threading.Lock()
        self._expected: dict[str, StepPlan] = {}
        """Steps that may still run, in the run's order."""
        self._settled: dict[str, bool] = {}
        """Steps that are settled → whether they went well."""
        self._run: KubeflowRun | None = None
        self._unsent: KubeflowRun | None = None
        self._handles: list[KubeflowHandle] = []
        self._earlier: EarlierJobs[tuple[Letter, MailState | None]] = EarlierJobs()
        self._loaded = False
        self._cancelled = False
        self._abandoned = False
        self._next_ask = 0.0
        self._calm = 0
        self._writer = ThreadPoolExecutor(max_workers=1, thread_name_prefix="stoker-mail")

    # Called by the run's loop

    def expect(self, steps: Sequence[StepPlan]) -> None:
        """Steps that may still run."""
        with self._lock:
            self._expected.update((step.key, step) for step in steps)

    def expected(self) -> list[StepPlan]:
        """The steps that may still run, in the run's order."""
        with self._lock:
            return [step for key, step in self._expected.items() if key not in self._settled]

    def settle(self, key: str, *, success: bool) -> None:
        """A step is settled: its task ends, without a job of its own where its result was there already."""
        with self._lock:
            self._settled[key] = success
            run = self._run
        if run is not None and key in run.record.tasks and not self._abandoned:
            self._writer.submit(self._dismiss, run, key, 0 if success else 1)

    def _dismiss(self, run: KubeflowRun, key: str, code: int) -> None:
        for box in run.boxes(key):
            with self._lock:
                number = run.next[box]
                run.next[box] += 1
            with contextlib.suppress(StokerError):  # its program leaves by itself when it has waited long enough
                mailboxes.dismiss(box, number, code)

    # Finding

    def find(self, jobs: Sequence[Job]) -> Mapping[str, KubeflowHandle]:
        """Handles of jobs that an earlier driver sent, and that still run, wait, or went well."""
        if not self._loaded:
            self._load(jobs[0].run)
            self._loaded = True
        handles = {}
        for job in jobs:
            adopted, others = self._earlier.adopt(job, self._is_worth_adopting)
            if adopted is not None and self._run is not None:
                handles[job.name] = self._follow(self._run, job, adopted.handle[0], attempt=adopted.attempt)
            for letter, state in others:
                if state is None or not state.over:
                    mailboxes.ask_end(letter, 0.0)
        return handles

    def _is_worth_adopting(self, order: tuple[Letter, MailState | None]) -> bool:
        """Whether a job of an earlier driver may still go well, or has."""
        letter, state = order
        if state is None or not state.over:
            return self._run is not None and not self._run.over
        return mailboxes.went_well(letter)

    def _load(self, run: str) -> None:
        """Read what an earlier driver of the run left in the artifact store."""
        root = requests.root_of(self._site, run)
        text = mailboxes.asked("run", lambda: notes.get(f"{root}/{RECORD}"))
        if text is None:
            return
        record = from_json(RunRecord, parse_json(text), strict=False)
        if not record.id:
            record = attrs.evolve(record, id=self._api.find_run(self._experiment(), record.name))
        earlier = KubeflowRun(record=record, root=f"{root}/{record.generation}")
        for key in record.tasks:
            for box in earlier.boxes(key):
                self._load_box(earlier, box, run)
        self._run = earlier
        self._ask_state(earlier)

    def _load_box(self, earlier: KubeflowRun, box: str, run: str) -> None:
        earlier.next[box] = 0
        for letter, info, state in mailboxes.orders(box):
            earlier.next[box] = letter.number + 1
            if info is not None:
                self._earlier.note(run, attrs.asdict(info), (letter, state))

    def _follow(self, run: KubeflowRun, job: Job, letter: Letter | None, *, attempt: int = 0) -> KubeflowHandle:
        handle = KubeflowHandle(job=job, run=run, letter=letter, attempt=attempt)
        self._handles.append(handle)
        return handle

    # Sending

    def send(self, jobs: Sequence[Job]) -> Mapping[str, KubeflowHandle | JobStatus]:
        """Leave orders for jobs; the first of them start the run there."""
        sent: dict[str, KubeflowHandle | JobStatus] = {}
        run = self._ready_run(jobs[0])
        for job in jobs:
            if job.kind == "hook":
                sent[job.name] = failed(REFUSED, "Kubeflow Pipelines runs no hooks: call the function in a step")
            elif job.step.key not in run.record.tasks:
                why = "the pipeline that runs on Kubeflow has no task for it: its steps must be known when it starts"
                sent[job.name] = failed(REFUSED, why)
            elif run.record.tasks[job.step.key].slots:
                sent[job.name] = self._follow(run, job, None)
            else:
                [box] = run.boxes(job.step.key)
                handle = self._follow(run, job, None)
                self._order(handle, box)
                sent[job.name] = handle
        return sent

    def _order(self, handle: KubeflowHandle, box: str) -> None:
        """Give a job to the program of a mailbox."""
        job = handle.job
        with self._lock:
            number = handle.run.next[box]
        letter = Letter(box=box, number=number)
        info = OrderInfo(**about(job))
        mailboxes.send(letter, requests.job_document(job, self._site), info)
        with self._lock:
            handle.run.next[box] = number + 1
        handle.letter = letter

    def _ready_run(self, job: Job) -> KubeflowRun:
        """The run there; started where there is none, or where that of an earlier driver is over."""
        run = self._run
        if run is not None and not run.over:
            return run
        unsent = self._unsent
        if unsent is None:
            unsent = self._unsent = self._prepare(job, 0 if run is None else run.record.generation + 1)
        self._start(unsent, job)
        with self._lock:
            self._run, self._unsent = unsent, None
            settled = [(key, success) for key, success in self._settled.items() if key in unsent.record.tasks]
        for key, success in settled:  # while it was being started
            self._writer.submit(self._dismiss, unsent, key, 0 if success else 1)
        return unsent

    def _prepare(self, job: Job, generation: int) -> KubeflowRun:
        root = f"{requests.root_of(self._site, job.run)}/{generation}"
        name = job.run if not generation else f"{job.run}-{generation}"
        tasks = requests.tasks(self.expected(), self._site, self._options, run=job.run, root=root)
        record = RunRecord(
            generation=generation,
            name=name,
            tasks={key: TaskRecord(name=task.name, slots=task.slots) for key, task in tasks.items()},
        )
        run = KubeflowRun(record=record, root=root, unsent=tuple(tasks.values()))
        run.next = {box: 0 for key in record.tasks for box in run.boxes(key)}
        return run

    def _start(self, unsent: KubeflowRun, job: Job) -> None:
        """Start a run there, once: what the endpoint took without an answer is found by its name."""
        self._upload_worker()
        experiment = self._experiment(job.pipeline)
        id = self._api.find_run(experiment, unsent.record.name)
        self._record(unsent, job.run)
        if not id:
            body = requests.body(
                unsent.record.name, job.pipeline or job.run, unsent.unsent, self._settings, experiment=experiment
            )
            id = self._api.create_run(body)
        unsent.unsent = ()
        unsent.record = attrs.evolve(unsent.record, id=id)
        self._record(unsent, job.run)

    def _experiment(self, pipeline: str = "") -> str:
        return self._api.experiment(str(self._settings.get("experiment") or pipeline or "stoker"))

    def _record(self, run: KubeflowRun, name: str) -> None:
        path = f"{requests.root_of(self._site, name)}/{RECORD}"
        text = json.dumps(to_json(run.record)).encode()
        mailboxes.asked("run", lambda: notes.put(path, text))

    def _upload_worker(self) -> None:
        """Leave Stoker's worker in the artifact store, unless it is there."""
        mailboxes.bring_worker(self._site.bundle, requests.worker_place(self._site))

    # Following

    def look(self, handles: Mapping[str, KubeflowHandle]) -> Mapping[str, JobReport]:
        """What is new of jobs, from their mailboxes, and now and then from the endpoint."""
        self._assign(handles.values())
        letters = [handle.letter for handle in handles.values() if handle.letter is not None]
        news = mailboxes.look(letters) if letters else {}
        now = time.monotonic()
        away: Away | None = None
        if now >= self._next_ask:
            for run in {handle.run for handle in handles.values()}:
                try:
                    self._ask_state(run)
                except Away as error:
                    away = error
            self._calm = 0 if any(one.output or one.state.over for one in news.values()) else self._calm + 1
            self._next_ask = now + ASK[min(self._calm, len(ASK) - 1)]
        reports = {}
        for name, handle in handles.items():
            report = self._report(handle, None if handle.letter is None else news.get(handle.letter))
            if report is not None:
                reports[name] = report
        if away is not None and not reports:
            raise away
        return reports

    def _assign(self, handles: Iterable[KubeflowHandle]) -> None:
        """Give waiting elements to the pods of their fan-outs that are up and have nothing to do."""
        waiting = [handle for handle in handles if handle.letter is None and not handle.ended]
        if not waiting:
            return
        for key, run in {(handle.job.step.key, handle.run) for handle in waiting}:
            boxes = run.boxes(key)
            unseen = [box for box in boxes if box not in run.up]
            run.up |= mailboxes.are_up(unseen) if unseen else set()
            busy = {handle.letter.box for handle in self._handles if handle.letter is not None}
            free = [box for box in boxes if box in run.up and box not in busy]
            mine = [handle for handle in waiting if handle.job.step.key == key and handle.run is run]
            for handle, box in zip(mine, free):
                self._order(handle, box)

    def _ask_state(self, run: KubeflowRun) -> None:
        """Ask the endpoint how the run there is."""
        document = self._api.run(run.record.id) if run.record.id else None
        if document is None:
            run.state, run.error = "CANCELED", "it is not there any more"
        else:
            run.state = str(document.get("state", ""))
            run.error = str((document.get("error") or {}).get("message", ""))
            reported = (document.get("run_details") or {}).get("task_details") or ()
            by_title = {str(one.get("display_name", "")): one for one in reported}
            run.tasks = {
                key: by_title.get(key) or by_title.get(task.name) or {} for key, task in run.record.tasks.items()
            }
        if run.over:
            run.over_at = run.over_at or time.monotonic()

    def _report(self, handle: KubeflowHandle, news: LetterNews | None) -> JobReport | None:
        if news is None:
            return self._unclaimed(handle)
        output = [(0, stream, data) for stream, data in news.output]
        status = None
        if news.state.over:
            status = self._ended(handle, news)
        elif self._is_gone(handle.run):
            why = f": {handle.run.error}" if handle.run.error else ""
            status = failed(WORKER_LOST, f"its pod is gone: the Kubeflow run is {handle.run.state}{why}")
        return JobReport(running=True, facts={"node": news.state.host}, output=output, status=status)

    def _ended(self, handle: KubeflowHandle, news: LetterNews) -> JobStatus:
        """The status of a job whose program has said that it is over."""
        assert handle.letter is not None
        if news.result is not None:
            path = samples_file(handle.job, self._site, "kubeflow")
            mailboxes.keep_samples(handle.job, path, [mailboxes.samples(handle.letter)])
        elif news.state.lost:
            return failed(WORKER_LOST, "its pod was lost; Kubeflow has started another one")
        return mailboxes.status_of(handle.job, news, ended=handle.ended)

    def _unclaimed(self, handle: KubeflowHandle) -> JobReport | None:
        """What is known of a job that no pod has taken."""
        if handle.ended:
            return JobReport(status=failed(CANCELLED))
        run = handle.run
        task = run.tasks.get(handle.job.step.key, {})
        state = str(task.get("state", ""))
        why = str((task.get("error") or {}).get("message", "")) or run.error
        if self._is_gone(run) or (state == "FAILED" and handle.letter is not None and run.over):
            reason = f": {why}" if why else ""
            return JobReport(
                status=failed(WORKER_LOST, f"no pod took it: the Kubeflow run is {run.state or 'over'}{reason}")
            )
        if handle.letter is None:
            return JobReport(message="waits for one of the fan-out's pods", reason="pods")
        words = {
            "": "Kubeflow has not started its pod",
            "PENDING": "its pod is being started",
            "RUNNING": "its pod has not asked for it yet",
        }
        text = words.get(state, f"Kubeflow says that its task is {state}")
        return JobReport(message=text + (f": {why}" if why else ""), reason=f"{state} {why}")

    def _is_gone(self, run: KubeflowRun) -> bool:
        """Whether nothing more comes of a run there."""
        return bool(run.over_at) and time.monotonic() - run.over_at > LAST_WORDS

    # Ending

    def end(self, handles: Mapping[str, KubeflowHandle], *, grace: float) -> None:
        """Ask jobs to end; one that no pod has taken is never begun."""
        self._cancelled = True
        for handle in handles.values():
            handle.ended = True
            if handle.letter is not None:
                mailboxes.ask_end(handle.letter, grace)

    def forget(self, handle: KubeflowHandle) -> None:
        """Remove the files of a job that is over and read."""
        if handle in self._handles:
            self._handles.remove(handle)
        if handle.letter is not None:
            mailboxes.clear(handle.letter)

    def identity(self, handle: KubeflowHandle) -> Mapping[str, Any]:
        """The task, and the run by which another process ends it."""
        run = handle.run
        task = run.record.tasks[handle.job.step.key]
        return {
            "job": f"task {task.name} of the Kubeflow run {run.record.id}",
            "id": run.record.id,
            "task": task.name,
            "url": f"{self._api.host}/#/runs/details/{run.record.id}",
        }

    def adopted_attempt(self, handle: KubeflowHandle) -> int:
        """The attempt as which an earlier driver sent the job."""
        return handle.attempt

    def doubtful(self) -> Sequence[Mapping[str, Any]]:
        """The run there whose request got no answer."""
        unsent = self._unsent
        return [] if unsent is None else [{"job": f"the Kubeflow run named {unsent.record.name}", "id": ""}]

    def abandon(self) -> None:
        """Ask nothing more."""
        self._abandoned = True
        self._api.abandon()
        self._writer.shutdown(wait=False, cancel_futures=True)

    def close(self) -> None:
        """Have each task end as its step did; a run there whose steps were cancelled is ended."""
        run = self._run
        if run is not None and not run.over:
            for key in run.record.tasks:
                if key not in self._settled:
                    self._writer.submit(self._dismiss, run, key, 1)
            if self._cancelled:
                with contextlib.suppress(BackendError):  # its tasks leave by themselves
                    self._api.terminate(run.record.id)
        self._writer.shutdown(wait=True)


def end_recorded(options: Mapping[str, Any], jobs: Sequence[Mapping[str, Any]]) -> list[str]:
    """End the runs there that a driver left; returns those that were not over."""
    api = KubeflowApi(KubeflowSettings(**options), os.environ, patience=ASKED)
    ended = []
    for id in dict.fromkeys(str(job["id"]) for job in jobs if job.get("id")):
        document = api.run(id)
        if document is not None and document.get("state") not in OVER:
            api.terminate(id)
            ended.append(f"the Kubeflow run {id}")
    return ended
