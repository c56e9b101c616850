"""What Kubeflow Pipelines makes of each field of a step's request: honoured, translated, or refused with what to do.

Nobody is asked. What a step's pod is to be is decided for Kubernetes; here is refused what KFP has no words for.
"""

from __future__ import annotations

from typing import Any, Final, Iterator, Mapping

from stoker.backends.base.backend import settings_of
from stoker.backends.kubeflow import compile as kfp
from stoker.backends.kubeflow import requests
from stoker.backends.kubeflow.settings import FANOUT, KubeflowSettings
from stoker.backends.kubernetes.request.check import STORE, check_pod
from stoker.core.errors import SettingsError
from stoker.core.findings import Finding, Reporter
from stoker.core.ladder import Halve
from stoker.core.plan import Site, StepPlan, reporter_of

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
    for what, why in kfp.badly_named(template):
        yield report.error(WITHOUT_WORDS, what, why, "rename it, or run the step on the kubernetes backend")
    missing = kfp.inexpressible(template)
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
