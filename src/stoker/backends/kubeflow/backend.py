"""Kubeflow Pipelines as a backend of one run: the steps of a run are the tasks of one pipeline there.

What is sent is decided in `requests` and `compile`, and here what is refused, without asking anybody: what a step's pod
is to be is decided for Kubernetes, and KFP has no words for some of it. `platform` starts and follows what was sent.
"""

from __future__ import annotations

import os
import shlex
from typing import Any, Final, Iterable, Iterator, Literal, Mapping, Sequence

from stoker.backends.base.backend import settings_of
from stoker.backends.base.messages import missing_source, source_fix
from stoker.backends.base.watched import Watched
from stoker.backends.kubeflow import requests
from stoker.backends.kubeflow.api import ENDPOINT as ENDPOINT_VARIABLE
from stoker.backends.kubeflow.api import KubeflowApi, address_of, named_host
from stoker.backends.kubeflow.platform import KubeflowPlatform
from stoker.backends.kubeflow.settings import FANOUT, KubeflowSettings
from stoker.backends.kubernetes.request.check import STORE, check_pod
from stoker.core.codec import to_json
from stoker.core.errors import SettingsError
from stoker.core.findings import Finding, Reporter
from stoker.core.ladder import Halve
from stoker.core.orders import JOB, MailOrder, order_folder, order_note
from stoker.core.plan import Job, Site, StepPlan, reporter_of

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
