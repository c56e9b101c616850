"""What runs without a driver left on clusters: their Jobs, the results that wait to be adopted, and Secrets of drivers
that were killed before they had created the Job."""

from __future__ import annotations

import os
from typing import Any, Collection, Iterator, Mapping, Sequence

from stoker.backends.base.backend import LeftJob, Leftover, Sweep
from stoker.backends.base.platforms import Away
from stoker.backends.kubernetes import jobs as k8sjobs
from stoker.backends.kubernetes.claims import LABEL, ClaimFiles, claim_store
from stoker.backends.kubernetes.client import ApiError, Cluster
from stoker.backends.kubernetes.drivers import drivers, end_driver
from stoker.backends.kubernetes.follow import is_complete, main_state, owner_of
from stoker.backends.kubernetes.objects import condition
from stoker.backends.kubernetes.platform import ASKED, KILL, end_job, unpacked
from stoker.backends.kubernetes.settings import KubernetesSettings
from stoker.backends.kubernetes.workers import sweep_workers
from stoker.core.errors import BackendError, SettingsError
from stoker.store import notes

_OVER = ("Complete", "Failed", "FailureTarget")


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
        cluster = Cluster(KubernetesSettings(**part), os.environ, patience=ASKED)
        try:
            place = (cluster.access.place.server, cluster.namespace)
            if place not in seen:
                seen.add(place)
                yield cluster, cluster.namespace
        finally:
            cluster.close()


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
