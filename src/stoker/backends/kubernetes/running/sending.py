"""Sends Jobs to the API server, each once, with what they need: a Secret, a Service, helpers, and Stoker's worker in
config maps.

A Job is sent as its Secret, the Job, and the patch that makes the Job the Secret's owner. A run that uses a config map
has an annotation at it. Whoever removes the last one deletes the config map as it was then: a run that comes in between
changes it, and the deletion is refused.
"""

from __future__ import annotations

import contextlib
import logging
import os
from typing import Any, Callable, Final, Iterable, Mapping, Sequence

from stoker.backends.base.backend import settings_of
from stoker.backends.base.messages import credentials
from stoker.backends.base.statuses import failed
from stoker.backends.kubernetes.api.client import ApiError, Cluster, delete, existing
from stoker.backends.kubernetes.explain.refusals import refusal_of
from stoker.backends.kubernetes.objects import version_numbers
from stoker.backends.kubernetes.request import jobs as k8sjobs
from stoker.backends.kubernetes.running.handles import JobObject, job_object
from stoker.backends.kubernetes.settings import KubernetesSettings
from stoker.core.errors import BackendError
from stoker.core.plan import Job, JobStatus, Site
from stoker.core.status import REFUSED

log = logging.getLogger(__name__)

NAMES: Final = 8
"""Names that are tried for a Job, should others have the first ones."""
USER: Final = "run.stoker/"
"""What the annotation of a run that uses a config map begins with; the run's id stands behind it."""


class Sender:
    """Creates Jobs of one cluster, for one driver."""

    def __init__(self, cluster: Cluster, site: Site, options: Mapping[str, Any], *, shares: bool) -> None:
        self._cluster = cluster
        self._site = site
        self._options = options
        self._shares = shares
        self.doubtful: dict[str, JobObject] = {}
        """Jobs whose creation got no answer, by their place in the API."""
        self._workers: set[tuple[str, str]] = set()
        """Namespaces that have the worker, and the runs that use it there."""
        self._nameless: set[str] = set()
        """Namespaces in which this account may create no Service."""
        self._by_index: bool | None = None

    def namespace(self, job: Job) -> str:
        """The namespace of a job: that of its settings, or the context's."""
        return str(settings_of(job.step, KubernetesSettings, self._options).get("namespace") or self._cluster.namespace)

    def indexed(self, jobs: Sequence[Job]) -> Iterable[tuple[Sequence[Job], Sequence[Mapping[str, Any]]]]:
        """Alike jobs in groups that are a Job each, with what its document says of them; of one job where the cluster's
        Indexed Jobs fail as a whole."""
        if len(jobs) == 1 or not self.fails_by_index():
            yield from (([job], [self.entry(job)]) for job in jobs)
            return
        entries = [self.entry(job) for job in jobs]
        yield from ((jobs[piece], entries[piece]) for piece in k8sjobs.waves(entries))

    def fails_by_index(self) -> bool:
        """Whether an element of an Indexed Job may fail without the others: since Kubernetes 1.29."""
        if self._by_index is None:
            version = self._cluster.get("/version")
            told = version_numbers(version)
            self._by_index = told is not None and told >= (1, 29)
        return self._by_index

    def entry(self, job: Job) -> dict[str, Any]:
        """What the document of a Job says of one of its jobs."""
        settings = settings_of(job.step, KubernetesSettings, self._options)
        opened = credentials(self._site.artifacts, os.environ)
        return k8sjobs.entry(job, self._site, settings, shares=self._shares, environment=opened)

    def create_object(self, jobs: Sequence[Job], entries: Sequence[Mapping[str, Any]], first: int = 0) -> JobObject:
        """A Job with these jobs, under a name that is its own: `first` tells those of one job apart."""
        namespace = self.namespace(jobs[0])
        self.bring_worker(namespace, jobs[0].run)
        document = k8sjobs.packed(entries)
        for salt in range(first, first + NAMES):
            name = k8sjobs.job_name(jobs, salt)
            body = k8sjobs.manifest(jobs, self._site, self._options, name=name, salt=salt, shares=self._shares)
            thing = self._created(namespace, name, jobs, document, body)
            place = None if thing is None else job_object(thing, namespace, jobs[0].run)
            if place is not None:
                return place
        raise BackendError(f"names such as {name} are taken in the namespace {namespace}")

    def _created(
        self, namespace: str, name: str, jobs: Sequence[Job], document: bytes, body: Mapping[str, Any]
    ) -> Mapping[str, Any] | None:
        """The Job with its Secret; None where the name is another's."""
        collection = k8sjobs.collection(namespace, body["kind"])
        path, jobset = f"{collection}/{name}", name if body["kind"] == "JobSet" else ""
        there = existing(self._cluster, path) if path in self.doubtful else None
        if there is not None:
            return self._taken_over(there, body)
        secrets = f"/api/v1/namespaces/{namespace}/secrets"
        try:
            secret = self._cluster.create(secrets, k8sjobs.secret(name, jobs, document, jobset=bool(jobset)))
        except ApiError as error:
            if error.status != 409:
                raise
            there = existing(self._cluster, path)
            if there is not None:
                return self._taken_over(there, body)
            delete(self._cluster, f"{secrets}/{name}")  # of a driver that was killed before it created the Job
            secret = self._cluster.create(secrets, k8sjobs.secret(name, jobs, document, jobset=bool(jobset)))
        self.doubtful[path] = JobObject(
            name=k8sjobs.name_of_job(body), namespace=namespace, run=jobs[0].run, jobset=jobset
        )
        helpers = k8sjobs.helpers(jobs[0], self._site, self._options, name=name, shares=self._shares)
        try:
            for where, helper in helpers:
                self._create_helper(namespace, where, helper, secret)
            thing = self._cluster.create(collection, body)
        except ApiError as error:
            del self.doubtful[path]
            delete(self._cluster, f"{secrets}/{name}")
            if error.status == 409:
                there = existing(self._cluster, path)
                return None if there is None else self._taken_over(there, body)
            raise
        self.own(thing)
        self._name_pods(thing, jobs[0], namespace)
        return thing

    def _taken_over(self, thing: Mapping[str, Any], body: Mapping[str, Any]) -> Mapping[str, Any] | None:
        """A Job that is there; None where it is not the one that was to be created."""
        return self.own(thing) if _is_ours(thing, body) else None

    def _name_pods(self, thing: Mapping[str, Any], job: Job, namespace: str) -> None:
        """Create the Service by which the pods of a gang have names. Ranks are given addresses: it may be missing."""
        subdomain = k8sjobs.job_spec(thing)["template"]["spec"].get("subdomain")
        if thing["kind"] == "Job" and subdomain == thing["metadata"]["name"] and namespace not in self._nameless:
            try:
                self._cluster.create(f"/api/v1/namespaces/{namespace}/services", k8sjobs.service(thing, job))
            except ApiError as error:
                if error.status == 403:
                    self._nameless.add(namespace)
                log.info("the pods of %s have no names: %s", subdomain, error.message)

    def _create_helper(self, namespace: str, where: str, helper: Mapping[str, Any], secret: Mapping[str, Any]) -> None:
        """Create an object that the Job needs, and that goes with its Secret; one of a driver that was killed before
        the Job is as good, unless it is gone with that one's Secret."""
        owned = k8sjobs.owner_patch(secret)
        path = _helper_path(namespace, where, helper)
        body = {**helper, "metadata": {**helper["metadata"], **owned["metadata"]}}
        for change in (False, True, False):
            try:
                if change:
                    self._cluster.patch(path, owned)
                else:
                    self._cluster.create(path.rpartition("/")[0], body)
                return
            except ApiError as error:
                if error.status != (404 if change else 409):
                    raise
        raise BackendError(f"{path} comes and goes: another program makes objects of this name")

    def own(self, thing: Mapping[str, Any]) -> Mapping[str, Any]:
        """Make a Job the owner of its Secret. Where no answer comes, `close` and `stoker gc` remove the Secret."""
        metadata = thing["metadata"]
        path = f"/api/v1/namespaces/{metadata['namespace']}/secrets/{metadata['name']}"
        collection = k8sjobs.collection(metadata["namespace"], thing.get("kind", "Job"))
        self.doubtful.pop(f"{collection}/{metadata['name']}", None)
        with contextlib.suppress(ApiError):
            self._cluster.patch(path, k8sjobs.owner_patch(thing))
        return thing

    def bring_worker(self, namespace: str, run: str) -> None:
        """See that a namespace has the config maps with Stoker's worker."""
        if (namespace, run) not in self._workers:
            if self._site.bundle:
                bring_worker(self._cluster, namespace, run, self._site.bundle)
            self._workers.add((namespace, run))

    def leave_workers(self) -> None:
        """Remove the config maps that no run uses any more."""
        if not self._site.bundle:
            return
        with contextlib.suppress(BackendError):  # what stays is found by `stoker gc`
            for namespace, run in self._workers:
                leave_worker(self._cluster, namespace, run, self._site.bundle)

    def create_pool(self, path: str, body: Mapping[str, Any], run: str) -> Mapping[str, Any] | None:
        """Create a Job of a pool, or find the one that was created without an answer; None where the name is
        another's."""
        name, namespace = body["metadata"]["name"], path.split("/")[5]
        there = existing(self._cluster, path) if path in self.doubtful else None
        self.doubtful[path] = JobObject(name=name, namespace=namespace, run=run, owns=True)
        try:
            thing = there or self._cluster.create(path.rpartition("/")[0], body)
        except ApiError as error:
            del self.doubtful[path]
            if error.status != 409:
                raise
            thing = existing(self._cluster, path) or {"metadata": {}}
        self.doubtful.pop(path, None)
        return thing if _is_ours(thing, body) else None


def _helper_path(namespace: str, where: str, helper: Mapping[str, Any]) -> str:
    version, _, kind = where.rpartition("/")
    return f"/apis/{version}/namespaces/{namespace}/{kind}/{helper['metadata']['name']}"


def _is_ours(thing: Mapping[str, Any], body: Mapping[str, Any]) -> bool:
    """Whether a Job of the cluster is the one that was to be created."""
    annotations = thing["metadata"].get("annotations") or {}
    return bool(annotations.get(k8sjobs.TOKEN) == body["metadata"]["annotations"][k8sjobs.TOKEN])


def refusal(error: BackendError) -> JobStatus:
    """The status of a job that the API server does not take."""
    if not isinstance(error, ApiError):
        return failed(REFUSED, str(error))
    words = refusal_of(error.status, error.words)
    return failed(words.cause, f"{words.message}; {words.fix}" if words.fix else words.message)


# The config maps with Stoker's worker in a namespace: brought by the first run that needs them, removed by the last


def bring_worker(cluster: Cluster, namespace: str, run: str, bundle: str) -> None:
    """See that a namespace has the worker of `bundle` for a run."""
    for body in k8sjobs.worker_maps(bundle):
        mark: dict[str, Any] = {"annotations": {USER + k8sjobs.label_text(run): ""}}
        path = f"{_maps(namespace)}/{body['metadata']['name']}"
        if _patched(cluster, path, mark) is not None:
            continue
        try:
            cluster.create(_maps(namespace), {**body, "metadata": {**body["metadata"], **mark}})
        except ApiError as error:
            if error.status != 409:
                raise
            _patched(cluster, path, mark)  # another run was first


def leave_worker(cluster: Cluster, namespace: str, run: str, bundle: str) -> None:
    """A run needs the worker no more: what no other run uses is deleted."""
    for name in k8sjobs.worker_names(bundle):
        _release(cluster, f"{_maps(namespace)}/{name}", [run])


def sweep_workers(
    cluster: Cluster, namespace: str, is_over: Callable[[str], bool], *, lonely: bool, dry_run: bool
) -> int:
    """Delete the config maps that only runs use for which `is_over` holds; how many there are.

    `is_over` gets a run's id as it stands in labels. `lonely`: no Job of Stoker's is there, so that those without any
    run's annotation go, too.
    """
    count = 0
    answer = cluster.get(_maps(namespace), labelSelector=f"{k8sjobs.WORKER_LABEL}=true")
    for one in answer.get("items") or ():
        users = _users(one)
        over = [run for run in users if is_over(run)]
        if len(over) < len(users) or not (over or lonely):
            continue
        count += 1
        if not dry_run:
            _release(cluster, f"{_maps(namespace)}/{one['metadata']['name']}", over)
    return count


def _maps(namespace: str) -> str:
    return f"/api/v1/namespaces/{namespace}/configmaps"


def _users(thing: Mapping[str, Any]) -> list[str]:
    annotations = thing["metadata"].get("annotations") or {}
    return [key.removeprefix(USER) for key in annotations if key.startswith(USER)]


def _release(cluster: Cluster, path: str, runs: list[str]) -> None:
    """Remove runs from the users of a config map, and it with the last one."""
    left = _patched(cluster, path, {"annotations": {USER + k8sjobs.label_text(run): None for run in runs}})
    if left is None or _users(left):
        return
    try:
        cluster.delete(path, version=left["metadata"]["resourceVersion"])
    except ApiError as error:
        if error.status not in (404, 409):  # a run has come, or another one was the last, too
            raise


def _patched(cluster: Cluster, path: str, metadata: Mapping[str, Any]) -> dict[str, Any] | None:
    """An object after a change of its metadata; None where it is not there."""
    try:
        return cluster.patch(path, {"metadata": metadata})
    except ApiError as error:
        if error.status != 404:
            raise
        return None
