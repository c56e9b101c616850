"""The end of what runs on clusters: Jobs that are over, that a driver recorded, or that no driver follows any more, and
the detached drivers themselves.
"""

from __future__ import annotations

import logging
import threading
from typing import Any, Callable, Collection, Final, Iterator, Mapping, Sequence

from stoker.backends.base.backend import LeftJob, Leftover, Sweep
from stoker.backends.base.platforms import Away
from stoker.backends.kubernetes.api.client import ApiError, Cluster, delete, reached
from stoker.backends.kubernetes.api.follow import OWNER, is_complete, main_state, owner_of
from stoker.backends.kubernetes.objects import condition
from stoker.backends.kubernetes.request import jobs as k8sjobs
from stoker.backends.kubernetes.request.claims import LABEL, ClaimFiles, claim_store
from stoker.backends.kubernetes.running.handles import JobObject, unpacked
from stoker.backends.kubernetes.running.sending import sweep_workers
from stoker.core.errors import BackendError, SettingsError
from stoker.store import notes

log = logging.getLogger(__name__)

KILL: Final = 1
"""The grace of pods that are to end at once. With 0 the server forgets them before they have ended.
https://kubernetes.io/docs/concepts/workloads/pods/pod-lifecycle/#pod-termination-forced"""
ASKED: Final = 5.0
"""Seconds for an answer while a person waits."""
AGAIN: Final = 0.5
"""Seconds before a deletion is tried again that got no answer."""
TRIES: Final = 5
"""How often that is tried once the driver leaves, for all Jobs together."""
DRIVER: Final = "stoker/driver"
"""The label of a driver's Job and of what belongs to it: the run's id. It is not that of the run's steps, whose driver
ends what has it."""
_OVER = ("Complete", "Failed", "FailureTarget")


def end_recorded(options: Mapping[str, Any], jobs: Sequence[Mapping[str, Any]]) -> list[str]:
    """End Jobs that a driver left, at once; returns the names of those that were there."""
    with reached(options, patience=ASKED) as cluster:
        places = dict.fromkeys((str(job["namespace"]), str(job["name"]), str(job.get("jobset", ""))) for job in jobs)
        return [
            f"the Job {namespace}/{name}"
            for namespace, name, jobset in places
            if name and end_job(cluster, namespace, name, jobset=jobset)
        ]


def end_job(cluster: Cluster, namespace: str, name: str, *, jobset: str = "", grace: float = KILL) -> bool:
    """Delete a Job with all that is its own, and have its pods end within so many seconds; whether it was there.

    `jobset` is the JobSet that it is of.
    """
    was_there = delete(cluster, JobObject(name=name, namespace=namespace, run="", jobset=jobset).root)
    delete(cluster, f"/api/v1/namespaces/{namespace}/secrets/{jobset or name}")
    pods = f"/api/v1/namespaces/{namespace}/pods"
    for pod in cluster.get(pods, labelSelector=f"{OWNER}={name}").get("items") or ():
        if not is_complete(pod):
            delete(cluster, f"{pods}/{pod['metadata']['name']}", grace=max(KILL, grace))
    return was_there


def end_pod(cluster: Cluster, namespace: str, name: str, grace: float) -> None:
    """Have a pod end within so many seconds; one that is gone is fine."""
    delete(cluster, f"/api/v1/namespaces/{namespace}/pods/{name}", grace=max(KILL, round(grace)))


def delete_job(cluster: Cluster, place: JobObject) -> None:
    """Delete a Job with all that is its own, once."""
    if not place.deleted:
        delete(cluster, place.root)
        if not place.owns:
            delete(cluster, f"/api/v1/namespaces/{place.namespace}/secrets/{place.jobset or place.name}")
        place.deleted = True


class Deletions:
    """Jobs that are to be deleted, one after the other, by `delete` with a client of the thread's own."""

    def __init__(self, cluster: Cluster, delete: Callable[[Cluster, JobObject], None]) -> None:
        self._cluster = cluster
        self._delete = delete
        self._waiting: dict[str, JobObject] = {}
        """By their place in the API."""
        self._changed = threading.Condition()
        self._tries: int | None = None
        """How often a deletion without an answer is tried again; None: as long as the driver lives."""
        self._thread: threading.Thread | None = None

    def add(self, place: JobObject) -> None:
        """Have a Job deleted soon."""
        with self._changed:
            self._waiting[place.path] = place
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="stoker-delete", daemon=True)
                self._thread.start()
            self._changed.notify()

    def finish(self) -> bool:
        """Wait until all is deleted, or the server does not answer; whether it is. Nothing may be added afterwards."""
        self._end(TRIES)
        if self._thread is not None:
            self._thread.join()
        self._cluster.close()
        return not self._waiting

    def abandon(self) -> None:
        """Break off the request that waits for an answer, and delete no more."""
        self._end(0)
        self._cluster.abandon()

    def _end(self, tries: int) -> None:
        with self._changed:
            self._tries = tries
            self._changed.notify()

    def _run(self) -> None:
        while (place := self._next()) is not None:
            try:
                self._delete(self._cluster, place)
            except Away:
                with self._changed:
                    if self._tries is None:
                        self._changed.wait(AGAIN)
                    else:
                        self._tries -= 1
                continue
            except BackendError as error:
                log.warning("the Job %s/%s is over and stays: %s", place.namespace, place.name, error)
            with self._changed:
                del self._waiting[place.path]

    def _next(self) -> JobObject | None:
        """The Job that has waited longest; None once nothing more comes."""
        with self._changed:
            while self._tries is None and not self._waiting:
                self._changed.wait()
            return next(iter(self._waiting.values()), None) if self._tries is None or self._tries > 0 else None


# What runs without a driver: Jobs, results that wait to be adopted, and Secrets of drivers that were killed before they
# had created the Job


def left_jobs(parts: Sequence[Mapping[str, Any]], scratch: str, runs: Collection[str]) -> Iterator[LeftJob]:
    """The Jobs of runs, with the results of those that are over."""
    for cluster, namespace in _places(parts):
        for run in runs:
            for job, pods in _jobs_of(cluster, namespace, f"{k8sjobs.RUN}={k8sjobs.label_text(run)}"):
                results = "\n".join(map(_result, pods))
                name = f"{namespace}/{job['metadata']['name']}"
                yield LeftJob(run=run, name=name, running=not _is_over(job), result=results)


def end_left(parts: Sequence[Mapping[str, Any]], scratch: str, run: str, grace: float) -> Iterator[LeftJob]:
    """End the Jobs of a run that go on."""
    for cluster, namespace in _places(parts):
        for job, _ in _jobs_of(cluster, namespace, f"{k8sjobs.RUN}={k8sjobs.label_text(run)}"):
            name, jobset = job["metadata"]["name"], job["metadata"]["labels"].get(k8sjobs.SET, "")
            if not _is_over(job) and end_job(cluster, namespace, name, jobset=jobset, grace=grace):
                yield LeftJob(run=run, name=f"{namespace}/{name}", running=True)
        # Last: this may be its own process.
        end_driver(cluster, namespace, k8sjobs.label_text(run))


def sweep_clusters(parts: Sequence[Mapping[str, Any]], sweep: Sweep) -> Iterator[Leftover]:
    """Delete the Jobs and lone Secrets of runs of this database that nobody continues, on the clusters of stacks."""
    count = drivers_left = 0
    driven = {k8sjobs.label_text(run) for run in (*sweep.running, *(() if sweep.force else sweep.interrupted))}
    ours = {k8sjobs.label_text(run) for run in sweep.ours}
    kept_labels = {k8sjobs.label_text(run) for run in sweep.kept}
    for part in parts:
        try:
            for cluster, namespace in _places([part]):
                count += _sweep(cluster, namespace, ours, kept_labels, sweep)
                for run in drivers(cluster, namespace):
                    if run in ours and run not in driven:
                        drivers_left += 1
                        if not sweep.dry_run:
                            end_driver(cluster, namespace, run)
        except (Away, ApiError, SettingsError) as error:
            sweep.say(error.message)
    _sweep_notes(sweep, {label for label in ours if label not in kept_labels})
    yield Leftover(kind="kubernetes_drivers", noun="driver", rest="of runs on Kubernetes", count=drivers_left)
    yield Leftover(kind="kubernetes_jobs", noun="job", rest="of runs on Kubernetes", count=count)


def _sweep_notes(sweep: Sweep, over: Collection[str]) -> None:
    """Remove the folders in which gangs of runs that are over met."""
    if claim_store(sweep.artifacts) is not None:
        _sweep_claim(sweep, over)
        return
    folder = k8sjobs.meetings(sweep.artifacts)
    for name in notes.names(folder) if not sweep.dry_run else ():
        if k8sjobs.label_text(name) in over:
            notes.remove_tree(f"{folder}/{name}")


def _sweep_claim(sweep: Sweep, over: Collection[str]) -> None:
    """The same for an artifact store on a claim."""
    if sweep.dry_run:
        return
    files = ClaimFiles(sweep.artifacts)
    try:
        folder = k8sjobs.meetings("").strip("/")
        paths = files.files(folder)
        files.remove([path for path in paths if k8sjobs.label_text(path.split("/")[1]) in over])
    except BackendError as error:
        sweep.say(error.message)
    finally:
        files.close()


def _sweep_stores(cluster: Cluster, namespace: str) -> None:
    """Delete the pods of artifact stores that have ended."""
    path = f"/api/v1/namespaces/{namespace}/pods"
    for pod in cluster.get(path, labelSelector=LABEL).get("items") or ():
        if is_complete(pod):
            cluster.delete(f"{path}/{pod['metadata']['name']}", grace=KILL)


def _sweep(cluster: Cluster, namespace: str, ours: Collection[str], kept: Collection[str], sweep: Sweep) -> int:
    def is_over(run: str) -> bool:
        return run in ours and run not in kept

    things = [job for job, _ in _jobs_of(cluster, namespace, k8sjobs.RUN, pods=False)]
    names = {labels.get(k8sjobs.SET) or name for name, labels in map(_marks, things)}
    secrets = cluster.get(f"/api/v1/namespaces/{namespace}/secrets", labelSelector=k8sjobs.RUN)
    things += [one for one in secrets.get("items") or () if one["metadata"]["name"] not in names]
    if not sweep.dry_run:
        _sweep_stores(cluster, namespace)
    count = sweep_workers(cluster, namespace, is_over, lonely=not things, dry_run=sweep.dry_run)
    for thing in things:
        name, labels = _marks(thing)
        if not is_over(labels[k8sjobs.RUN]):
            continue
        count += 1
        if not sweep.dry_run:
            end_job(cluster, namespace, name, jobset=labels.get(k8sjobs.SET, ""), grace=KILL)
    return count


def _marks(thing: Mapping[str, Any]) -> tuple[str, Mapping[str, str]]:
    """The name and the labels of an object."""
    return thing["metadata"]["name"], thing["metadata"]["labels"]


def _places(parts: Sequence[Mapping[str, Any]]) -> Iterator[tuple[Cluster, str]]:
    """A client of each cluster, and the namespace of its stack."""
    seen = set()
    for part in parts:
        with reached(part, patience=ASKED) as cluster:
            place = (cluster.access.place.server, cluster.namespace)
            if place not in seen:
                seen.add(place)
                yield cluster, cluster.namespace


def _jobs_of(
    cluster: Cluster, namespace: str, selector: str, *, pods: bool = True
) -> Iterator[tuple[dict[str, Any], list[dict[str, Any]]]]:
    """Jobs with their pods."""
    jobs = cluster.get(f"/apis/batch/v1/namespaces/{namespace}/jobs", labelSelector=selector).get("items") or ()
    if not jobs:
        return
    by_job: dict[str, list[dict[str, Any]]] = {}
    if pods:
        for pod in cluster.get(f"/api/v1/namespaces/{namespace}/pods", labelSelector=selector).get("items") or ():
            by_job.setdefault(owner_of(pod), []).append(pod)
    for job in jobs:
        yield job, by_job.get(job["metadata"]["name"], [])


def _is_over(job: Mapping[str, Any]) -> bool:
    return any(condition(job, kind) for kind in _OVER)


def _result(pod: Mapping[str, Any]) -> str:
    if not is_complete(pod):
        return ""
    return unpacked(str((main_state(pod).get("terminated") or {}).get("message") or ""))


# Detached drivers, which `detach` starts


def drivers(cluster: Cluster, namespace: str) -> list[str]:
    """The runs, as labels name them, of the drivers' Jobs in a namespace, and of what was left without one."""
    paths = (f"/apis/batch/v1/namespaces/{namespace}/jobs", f"/api/v1/namespaces/{namespace}/secrets")
    found = [thing for path in paths for thing in cluster.get(path, labelSelector=DRIVER).get("items") or ()]
    return sorted({str(thing["metadata"]["labels"][DRIVER]) for thing in found})


def end_driver(cluster: Cluster, namespace: str, run: str) -> None:
    """Delete the Job of a run's driver with all that is its own; `run` as a label names it."""
    kinds = ("/apis/batch/v1", "jobs"), ("/api/v1", "secrets"), ("/api/v1", "configmaps")
    for version, kind in kinds:
        path = f"{version}/namespaces/{namespace}/{kind}"
        for thing in cluster.get(path, labelSelector=f"{DRIVER}={run}").get("items") or ():
            delete(cluster, f"{path}/{thing['metadata']['name']}")
