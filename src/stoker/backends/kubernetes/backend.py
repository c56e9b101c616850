"""Kubernetes: a step is a Job, a fan-out an Indexed Job, and a gang an Indexed Job whose pods start together.

`request` makes the objects, `platform` sends and follows them through `api`, and `request.pod` is the program that runs
in each pod.
"""

from __future__ import annotations

import os
import shlex
import sys
from typing import Any, Final, Iterable, Iterator, Literal, Mapping, Sequence

import attrs

from stoker.backends.base.backend import DetachedRun, DriverJob, DriverStart, settings_of
from stoker.backends.base.byhand import document_lines, input_lines, needs_command, stop, subshell, yaml_text
from stoker.backends.base.watched import Watched
from stoker.backends.kubernetes.api.access import UNKNOWN, KubernetesContext
from stoker.backends.kubernetes.api.client import Cluster, reached
from stoker.backends.kubernetes.platform import KubernetesPlatform
from stoker.backends.kubernetes.request import jobs as k8sjobs
from stoker.backends.kubernetes.request import pod as podprogram
from stoker.backends.kubernetes.request.check import check
from stoker.backends.kubernetes.request.claims import claim_store
from stoker.backends.kubernetes.request.jobs import JOBS, PROGRAM, job_spec, name_of_job, without_token
from stoker.backends.kubernetes.settings import KubernetesSettings
from stoker.core.errors import SettingsError
from stoker.core.findings import Finding
from stoker.core.plan import Job, JobStatus, Site, StepPlan, reporter_of


class KubernetesBackend(Watched):
    """Runs jobs on one cluster."""

    name = "kubernetes"
    keeps_secrets: Literal[True] = True
    leaves_out: Literal["node"] = "node"
    packages_in: Literal["image", "environment"] = "image"
    brings_driver: Literal[True] = True

    def __init__(self, site: Site, options: Mapping[str, Any]) -> None:
        settings = KubernetesSettings(**options)
        self._site = site
        self._options = dict(options)
        self._shares = bool(settings.get("shares_files"))
        self._cluster = Cluster(settings, os.environ, named=False)
        self._platform = KubernetesPlatform(site, self._options, self._cluster, shares=self._shares)
        super().__init__(self._platform)

    def submit(self, job: Job) -> str:
        """Send a job; later polls report what becomes of it."""
        id = super().submit(job)
        self._platform.wake()
        return id

    def poll(self, ids: Iterable[str]) -> Mapping[str, JobStatus]:
        """What is new of each job since the last call; the engine has recorded what that one returned."""
        self._platform.polls += 1
        return super().poll(ids)

    def check(self, step: StepPlan) -> Iterable[Finding]:
        """What Kubernetes cannot give a step, and how it takes the rest; the cluster is not asked."""
        return check(step, self._options, self._site)

    def prove(self, steps: Sequence[StepPlan]) -> Iterable[Finding]:
        """What nodes, quotas and rights can never give these steps; asks the cluster."""
        from stoker.backends.kubernetes.proof.prove import NOT_PROVED, needs_of, prove, prove_claim

        settings = KubernetesSettings(**self._options)
        try:
            namespace = self._cluster.namespace
        except SettingsError as error:
            if steps:
                why = "steps are sent to the cluster that it names"
                yield reporter_of(steps[0]).error(NOT_PROVED, error.message, why, error.fix)
            return
        store = claim_store(self._site.artifacts)
        more = () if store is None else prove_claim(steps, self._options, store, self._cluster, namespace)
        needs = needs_of(steps, self._options, namespace)
        yield from prove(needs, self._cluster, pools=settings.get("pools", ()), more=more)

    def has_other_place(self, step: StepPlan, avoid: Sequence[str]) -> bool:
        """Whether the cluster has another node for a step; asks it, over a connection of its own."""
        from stoker.backends.kubernetes.proof.prove import has_other_place

        with reached(self._options) as cluster:
            return has_other_place(step, self._options, cluster, cluster.namespace, avoid)

    def may_detach(self, run: DetachedRun) -> None:
        """`UsageError` if a pod lacks what a driver needs; the cluster is not asked."""
        from stoker.backends.kubernetes.running import detach as k8sdetach

        k8sdetach.check(self._options, run)

    def detach(self, start: DriverStart) -> DriverJob:
        """Create a Job that drives a run."""
        from stoker.backends.kubernetes.running import detach as k8sdetach

        return k8sdetach.detach(self._options, start)

    def render(self, job: Job) -> Mapping[str, Any]:
        """The objects that the API server is sent, and the document that the pod reads."""
        name = k8sjobs.job_name([job])
        shared: dict[str, Any] = {"name": name, "shares": self._shares}
        settings = settings_of(job.step, KubernetesSettings, self._options)
        helpers = k8sjobs.helpers(job, self._site, self._options, **shared)
        place = self._place()
        return {
            "server": place.server,
            "namespace": settings.get("namespace") or place.namespace,
            **({"objects": [body for _, body in helpers]} if helpers else {}),
            "job": k8sjobs.manifest([job], self._site, self._options, **shared),
            # A job is shown without its secrets.
            "document": [
                k8sjobs.entry(attrs.evolve(job, secrets={}), self._site, settings, shares=self._shares, environment={})
            ],
        }

    def by_hand(self, job: Job, request: Mapping[str, Any]) -> str:
        """A script that creates the job's Secret and its Job by kubectl."""
        settings = settings_of(job.step, KubernetesSettings, self._options)
        place = self._place()
        namespace, context = settings.get("namespace") or place.namespace, place.context
        bundle = self._site.bundle
        return script(job, request, settings=settings, context=context, namespace=namespace, bundle=bundle)

    def _place(self) -> KubernetesContext:
        """The cluster; where no kubeconfig names one, what only that knows is unknown."""
        try:
            return self._cluster.access.place
        except SettingsError:
            return KubernetesContext(context=UNKNOWN, server=UNKNOWN, namespace=UNKNOWN, cluster={}, user={})


# The script by which a person runs a rendered job by hand. Stoker's worker, which runs bring and take away, is made by
# the Python that printed the script.

_WORKER: Final = (
    "import json, sys; from stoker.backends.kubernetes.request.jobs import worker_maps; "
    "json.dump(worker_maps(sys.argv[1])[int(sys.argv[2])], sys.stdout)"
)


def script(
    job: Job, request: Mapping[str, Any], *, settings: KubernetesSettings, context: str, namespace: str, bundle: str
) -> str:
    """The script; `context` and `namespace` are those that a run would use, `bundle` is the folder with the worker."""
    named = (("--context", context), ("--namespace", namespace))
    words = ["kubectl", *(word for flag, name in named if name != UNKNOWN for word in (flag, name))]
    if settings.get("kubeconfig"):
        words += ["--kubeconfig", settings.get("kubeconfig")]
    return subshell(_lines(job, request, shlex.join(words), bundle))


def _lines(job: Job, request: Mapping[str, Any], kubectl: str, bundle: str) -> Iterator[str]:
    (entry,) = request["document"]
    body = without_token(request["job"])
    name = body["metadata"]["name"]
    yield from input_lines(job.key, entry["spec"]["job"]["inputs"])
    yield needs_command("kubectl", "https://kubernetes.io/docs/tasks/tools/")
    for volume in job_spec(body)["template"]["spec"].get("volumes", ()):
        for number, source in enumerate((volume.get("projected") or {}).get("sources", ())):
            one = shlex.quote(source["configMap"]["name"])
            what = stop(f"missing: the config map {one}; this makes it where Stoker is installed as it is here")
            make = shlex.join([sys.executable, "-c", _WORKER, bundle, str(number)])
            yield f"{kubectl} get configmap {one} >/dev/null 2>&1 || {make} | {kubectl} create -f - || {what}"
    yield "here=$(mktemp -d)"
    yield from document_lines('"$here"/job.json', [entry])
    yield 'gzip -c "$here"/job.json > "$here"/jobs'
    files = f'--from-file={JOBS}="$here"/jobs --from-file={PROGRAM}={shlex.quote(podprogram.__file__)}'
    yield f"{kubectl} create secret generic {name} {files}"
    yield f"{kubectl} apply -f - <<'END'"
    yield yaml_text(body)
    yield "END"
    yield 'rm -r "$here"'
    yield f"echo its output: {kubectl} logs --follow job/{name_of_job(body)}"
    yield f"echo to remove it: {kubectl} delete {body['kind'].lower()}/{name} secret/{name}"
