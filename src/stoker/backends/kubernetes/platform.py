"""The Jobs of one cluster that run the steps of runs: sent, found again, followed and ended.

One thread does everything: it makes the requests, and reads the watches and the logs as they come (`follow`). A Job is
sent as its Secret, the Job, and the patch that makes the Job the Secret's owner; it is deleted once all of it is known.
So that a driver that is killed in between leaves nothing that another does not know, each object has the run's label,
and a Job's annotations say which jobs it is.
"""

from __future__ import annotations

import contextlib
import gzip
import json
import logging
import os
import select
import time
import zlib
from typing import Any, Collection, Final, Iterable, Mapping, Sequence

import attrs

from stoker.backends.base.adoption import EarlierJob, EarlierJobs
from stoker.backends.base.backend import settings_of
from stoker.backends.base.platforms import Away, JobReport
from stoker.backends.base.statuses import failed, killed_for_memory, of_boot, read_result
from stoker.backends.kubernetes.api.client import ApiError, Cluster
from stoker.backends.kubernetes.api.follow import LATE, Follower, Log, is_complete, main_state
from stoker.backends.kubernetes.explain.causes import JobEnd, element_end, end_of
from stoker.backends.kubernetes.explain.explaining import Explanations
from stoker.backends.kubernetes.explain.pending import Pending, no_news, patience_of
from stoker.backends.kubernetes.explain.refusals import refusal_of
from stoker.backends.kubernetes.objects import condition, index_of, is_deleted, uid, version_numbers
from stoker.backends.kubernetes.request import jobs as k8sjobs
from stoker.backends.kubernetes.running.ending import KILL, Deletions, delete, delete_job
from stoker.backends.kubernetes.running.handles import JobObject, KubernetesHandle, PodLog, PodOrder, unpacked
from stoker.backends.kubernetes.running.workers import bring_worker, leave_worker
from stoker.backends.kubernetes.settings import KubernetesSettings
from stoker.backends.kubernetes.warm import pooljobs
from stoker.backends.kubernetes.warm.pools import PoolPod, WarmPods
from stoker.core import wire
from stoker.core.codec import parse_json
from stoker.core.errors import BackendError, SettingsError
from stoker.core.plan import Job, JobStatus, Site
from stoker.core.protocol import MARK, StepResult, WorkerEvent
from stoker.core.status import CANCELLED, REFUSED, WORKER_LOST

log = logging.getLogger(__name__)

WAIT: Final = 0.05
"""Seconds in which a look waits for news: what the server tells is known at once, and what the driver asks soon."""
NAMES: Final = 8
"""Names that are tried for a Job, should others have the first ones."""
TOGETHER: Final = 0.01
"""Seconds between two looks at least: hundreds of pods that start at once have news all the time."""
TOGETHER_MOST: Final = 0.05
"""The same for hundreds of jobs: each look costs more, and an end may still be recorded within 0.1 s."""
FEW: Final = 100
"""Jobs up to which two looks are `TOGETHER` apart; with more of them, they are further apart in proportion."""
AT_ONCE: Final = 20
"""Jobs that are sent between two looks, so that those that are there are not forgotten meanwhile."""
LAST_WORDS: Final = 30.0
"""Seconds after a pod's end in which the rest of its log may still come."""
GANG_GRACE: Final = 15.0
"""Seconds for the other pods of a gang after its head's end: the head has told them to end."""
UNSEEN: Final = 5.0
"""Seconds after a Job's failure in which its pod, which says why, may still be seen."""
CERTAIN: Final = 60.0
"""Seconds after a pod's end in which the Job controller must have said what became of the Job."""
SETTLED: Final = 10.0
"""Seconds after a Job's end, or its deletion, in which the last word of its pods may still come."""
EXPLAIN: Final = 1.0
"""Seconds between two looks at why a job waits."""
EXPLAINED: Final = 50
"""Elements of one Job up to which each is looked at as often; of more, each is looked at less often."""
AGAIN: Final = 16
"""How often a job is sent again whose pod the cluster took away, before it counts as failed."""
KEEP: Final = 5.0
"""Seconds for which a finished Job stays at least, while its outputs are committed: a driver that is killed before it
has recorded the end leaves it to the next one, which takes its result."""
POLLS: Final = 2
"""Polls by the engine for which it stays at least: the first takes the end, and the next comes once it is recorded."""
MARKED: Final = (MARK + '{"kubernetes"').encode()
MARKED_EVENT: Final = MARK.encode()


class KubernetesPlatform:
    """Sends, finds, follows and ends Jobs of one cluster."""

    def __init__(self, site: Site, options: Mapping[str, Any], cluster: Cluster, *, shares: bool) -> None:
        self._site = site
        self._options = options
        self._cluster = cluster
        self.answers = cluster.answers
        self._shares = shares
        self._followers: dict[tuple[str, str], Follower] = {}
        """By namespace and run."""
        self._loaded: set[tuple[str, str]] = set()
        self._handles: dict[str, dict[int, KubernetesHandle]] = {}
        """By the Job's place in the API, and index."""
        self._earlier: EarlierJobs[tuple[JobObject | PoolPod, int]] = EarlierJobs()
        self._waiting: dict[tuple[str, ...], list[Job]] = {}
        self._doubtful: dict[str, JobObject] = {}
        """Jobs whose creation got no answer, by their place in the API."""
        self.polls = 0
        """How often the engine has asked for news; counted in its thread."""
        self._undeleted: dict[str, tuple[float, int, JobObject]] = {}
        """Jobs that are over, by their place in the API, and when they may be deleted: a time on the monotonic clock,
        and a count of polls."""
        self._deletions = Deletions(Cluster(KubernetesSettings(**options), os.environ, named=False), delete_job)
        self._workers: set[tuple[str, str]] = set()
        """Namespaces that have the worker, and the runs that use it there."""
        self._nameless: set[str] = set()
        """Namespaces in which this account may create no Service."""
        self._by_index: bool | None = None
        self._explanations = Explanations(cluster, KubernetesSettings(**options))
        self._last_look = 0.0
        self._next_due = 0.0
        """When the first of the jobs of which nothing is new is to be looked at, on the monotonic clock, or before."""
        self._polled: tuple[list[int], select.poll] = ([], select.poll())
        """Descriptors, and what waits for them."""
        self._dirty: set[KubernetesHandle] = set()
        """Those of whose job something is new."""
        self._pools = WarmPods(cluster, site, options, self, shares=shares)
        self._wakeup = wire.Wakeup()

    # The pace of the watch

    def gather(self) -> float:
        """Seconds to wait for further jobs before those that were submitted are sent."""
        return 0.02

    def pause(self, quiet: float) -> float:
        """No pause: a look waits for news itself."""
        return 0.0

    # Finding

    def find(self, jobs: Sequence[Job]) -> Mapping[str, KubernetesHandle]:
        """Handles of jobs that an earlier driver sent, and that still run, wait, or went well."""
        self._next_due = 0.0
        handles: dict[str, KubernetesHandle] = {}
        for job in jobs:
            space = (self._namespace(job), job.run)
            if space not in self._loaded:
                self._load(*space)
                self._loaded.add(space)
            adopted, others = self._earlier.adopt(job, lambda one: self._is_worth_adopting(*one))
            if adopted is not None:
                place, index = adopted.handle
                if isinstance(place, PoolPod):
                    handle = handles[job.name] = self._pools.adopt(place, index, job, adopted.attempt)
                    self._dirty.add(handle)
                else:
                    handles[job.name] = self._follow(place, index, job, attempt=adopted.attempt)
            for place, index in others:
                if isinstance(place, PoolPod):
                    self._pools.discard(place, index)
                else:
                    self._end_in(place, [index], grace=0.0)
        return handles

    def _namespace(self, job: Job) -> str:
        return str(settings_of(job.step, KubernetesSettings, self._options).get("namespace") or self._cluster.namespace)

    def _load(self, namespace: str, run: str) -> None:
        """Find the Jobs of earlier drivers of a run, and Secrets of theirs whose Job was never created."""
        follower = self._follower(namespace, run)
        self._read(follower)
        for name, thing in follower.jobs.things.items():
            place = self._place_of(thing, namespace, run)
            if place is None or thing["metadata"].get("deletionTimestamp"):
                continue
            if self._path_of(namespace, name) in self._handles:
                continue
            self._earlier.add(
                EarlierJob(
                    run=run,
                    key=one["key"],
                    kind=one["kind"],
                    attempt=one["attempt"],
                    digest=one["digest"],
                    handle=(place, index),
                )
                for index, one in enumerate(place.jobs)
            )
        self._earlier.add(self._pools.load(follower, namespace, run))
        answer = self._cluster.get(f"/api/v1/namespaces/{namespace}/secrets", labelSelector=self._selector(run))
        for secret in answer.get("items") or ():
            name = secret["metadata"]["name"]
            if not secret["metadata"].get("ownerReferences"):
                owner: Mapping[str, Any] | None = follower.jobs.things.get(name)
                if k8sjobs.SET in secret["metadata"]["labels"]:
                    owner = self._existing(f"{k8sjobs.collection(namespace, 'JobSet')}/{name}")
                if owner is not None:
                    self._own(owner)
                else:
                    self._delete(f"/api/v1/namespaces/{namespace}/secrets/{name}")

    def _path_of(self, namespace: str, name: str) -> str:
        return f"/apis/batch/v1/namespaces/{namespace}/jobs/{name}"

    def _selector(self, run: str) -> str:
        return f"{k8sjobs.RUN}={k8sjobs.label_text(run)}"

    def _follower(self, namespace: str, run: str) -> Follower:
        key = (namespace, run)
        if key not in self._followers:
            self._followers[key] = Follower(self._cluster, namespace, self._selector(run))
        return self._followers[key]

    def _place_of(self, thing: Mapping[str, Any], namespace: str, run: str) -> JobObject | None:
        """A Job or JobSet of the cluster as what a driver sent; None for one that Stoker has not made."""
        metadata = thing["metadata"]
        try:
            jobs = parse_json((metadata.get("annotations") or {}).get(k8sjobs.ELEMENTS_OF, ""))
        except SettingsError:
            return None
        nodes = int(k8sjobs.job_spec(thing).get("completions") or 1) if len(jobs) == 1 else 1
        return JobObject(
            name=k8sjobs.name_of_job(thing),
            jobset=(metadata.get("labels") or {}).get(k8sjobs.SET, ""),
            namespace=namespace,
            run=run,
            uid=metadata["uid"],
            count=len(jobs),
            nodes=nodes,
            jobs=jobs,
            owns=True,
        )

    def _is_worth_adopting(self, place: JobObject | PoolPod, index: int) -> bool:
        """Whether a job of an earlier driver went well, or may still."""
        if isinstance(place, PoolPod):
            return self._pools.is_worth_adopting(place, index)
        follower = self._follower(place.namespace, place.run)
        pods = [one for one in follower.pods.get(place.name, {}).values() if place.has(one, index)]
        if not pods:
            thing = follower.jobs.things.get(place.name, {})
            return not any(condition(thing, kind) for kind in ("Failed", "FailureTarget", "Complete"))
        for pod in pods:
            state = main_state(pod).get("terminated")
            if pod["metadata"].get("deletionTimestamp") or pod["status"].get("phase") == "Failed":
                return False
            if state is not None and state.get("exitCode") != 0:
                return False
        return True

    def _follow(self, place: JobObject, index: int, job: Job, *, attempt: int = 0) -> KubernetesHandle:
        handle = KubernetesHandle(job=job, place=place, index=index, attempt=attempt)
        self._handles.setdefault(place.path, {})[index] = handle
        self._dirty.add(handle)
        return handle

    # Sending

    def send(self, jobs: Sequence[Job]) -> Mapping[str, Any]:
        """Create Jobs: one for each group of alike elements. Jobs for a pod that takes several wait for one. Those that
        are not mentioned are sent later."""
        self._next_due = 0.0
        groups: dict[str, list[Job]] = {}
        pooled: dict[str, Any] = {}
        for job in jobs:
            if self._pools.takes(job, self._namespace(job)):
                pooled[job.name] = self._pools.order(job, self._namespace(job))
                continue
            groups.setdefault(k8sjobs.alike(job, self._site, self._options, shares=self._shares), []).append(job)
        answers: dict[str, Any] = pooled
        sent = 0
        for alike in groups.values():
            if sent >= AT_ONCE:
                break
            for group, entries in self._indexed(alike):
                try:
                    place = self._create_object(group, entries)
                    answers.update({job.name: self._follow(place, index, job) for index, job in enumerate(group)})
                except Away:
                    if not answers:
                        raise
                    return answers
                except BackendError as error:
                    answers.update({job.name: refusal(error) for job in group})
                sent += 1
                if sent >= AT_ONCE:
                    break
        return answers

    def _indexed(self, jobs: Sequence[Job]) -> Iterable[tuple[Sequence[Job], Sequence[Mapping[str, Any]]]]:
        """Alike jobs in groups that are a Job each, with what its document says of them; of one job where the cluster's
        Indexed Jobs fail as a whole."""
        if len(jobs) == 1 or not self._fails_by_index():
            yield from (([job], [self._entry(job)]) for job in jobs)
            return
        entries = [self._entry(job) for job in jobs]
        yield from ((jobs[piece], entries[piece]) for piece in k8sjobs.waves(entries))

    def _fails_by_index(self) -> bool:
        """Whether an element of an Indexed Job may fail without the others: since Kubernetes 1.29."""
        if self._by_index is None:
            version = self._cluster.get("/version")
            told = version_numbers(version)
            self._by_index = told is not None and told >= (1, 29)
        return self._by_index

    def send_alone(self, handles: Sequence[KubernetesHandle]) -> None:
        """Send jobs that have waited for a pod of a pool with pods of their own."""
        left = {handle.job.name: handle for handle in handles}
        groups: dict[str, list[Job]] = {}
        for handle in handles:
            alike = k8sjobs.alike(handle.job, self._site, self._options, shares=self._shares)
            groups.setdefault(alike, []).append(handle.job)
        for group, entries in (one for alike in groups.values() for one in self._indexed(alike)):
            try:
                place = self._create_object(group, entries)
            except Away:
                # The rest waits for a pod again, of which there is none: they come here once the server answers.
                for handle in reversed(left.values()):
                    handle.order = PodOrder()
                    self._pools.requeue(handle)
                raise
            except BackendError as error:
                for job in group:
                    handle = left.pop(job.name)
                    handle.order = PodOrder(status=refusal(error))
                    self._dirty.add(handle)
                continue
            for index, handle in enumerate(left.pop(job.name) for job in group):
                handle.place, handle.index = place, index
                self._handles.setdefault(place.path, {})[index] = handle
                self._dirty.add(handle)

    def _entry(self, job: Job) -> dict[str, Any]:
        settings = settings_of(job.step, KubernetesSettings, self._options)
        opened = k8sjobs.opened_store(self._site, os.environ)
        return k8sjobs.entry(job, self._site, settings, shares=self._shares, environment=opened)

    def _create_object(self, jobs: Sequence[Job], entries: Sequence[Mapping[str, Any]], first: int = 0) -> JobObject:
        """A Job with these jobs, under a name that is its own: `first` tells those of one job apart."""
        namespace = self._namespace(jobs[0])
        self._bring_worker(namespace, jobs[0].run)
        document = k8sjobs.packed(entries)
        for salt in range(first, first + NAMES):
            name = k8sjobs.job_name(jobs, salt)
            body = k8sjobs.manifest(jobs, self._site, self._options, name=name, salt=salt, shares=self._shares)
            thing = self._created(namespace, name, jobs, document, body)
            place = None if thing is None else self._place_of(thing, namespace, jobs[0].run)
            if place is not None:
                return place
        raise BackendError(f"names such as {name} are taken in the namespace {namespace}")

    def _created(
        self, namespace: str, name: str, jobs: Sequence[Job], document: bytes, body: Mapping[str, Any]
    ) -> Mapping[str, Any] | None:
        """The Job with its Secret; None where the name is another's."""
        collection = k8sjobs.collection(namespace, body["kind"])
        path, jobset = f"{collection}/{name}", name if body["kind"] == "JobSet" else ""
        if path in self._doubtful:
            doubted = self._existing(path)
            if doubted is not None:
                return self._own(doubted) if _is_ours(doubted, body) else None
        secrets = f"/api/v1/namespaces/{namespace}/secrets"
        try:
            secret = self._cluster.create(secrets, k8sjobs.secret(name, jobs, document, jobset=bool(jobset)))
        except ApiError as error:
            if error.status != 409:
                raise
            existing = self._existing(path)
            if existing is not None:
                return self._own(existing) if _is_ours(existing, body) else None
            self._delete(f"{secrets}/{name}")  # of a driver that was killed before it created the Job
            secret = self._cluster.create(secrets, k8sjobs.secret(name, jobs, document, jobset=bool(jobset)))
        self._doubtful[path] = JobObject(
            name=k8sjobs.name_of_job(body), namespace=namespace, run=jobs[0].run, jobset=jobset
        )
        helpers = k8sjobs.helpers(jobs[0], self._site, self._options, name=name, shares=self._shares)
        try:
            for where, helper in helpers:
                self._create_helper(namespace, where, helper, secret)
            thing = self._cluster.create(collection, body)
        except ApiError as error:
            del self._doubtful[path]
            self._delete(f"{secrets}/{name}")
            if error.status == 409:
                existing = self._existing(path)
                return self._own(existing) if existing is not None and _is_ours(existing, body) else None
            raise
        self._own(thing)
        self._name_pods(thing, jobs[0], namespace)
        return thing

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

    def _existing(self, path: str) -> Mapping[str, Any] | None:
        try:
            return self._cluster.get(path)
        except ApiError as error:
            if error.status == 404:
                return None
            raise

    def _own(self, thing: Mapping[str, Any]) -> Mapping[str, Any]:
        """Make a Job the owner of its Secret. Where no answer comes, `close` and `stoker gc` remove the Secret."""
        metadata = thing["metadata"]
        path = f"/api/v1/namespaces/{metadata['namespace']}/secrets/{metadata['name']}"
        collection = k8sjobs.collection(metadata["namespace"], thing.get("kind", "Job"))
        self._doubtful.pop(f"{collection}/{metadata['name']}", None)
        with contextlib.suppress(ApiError):
            self._cluster.patch(path, k8sjobs.owner_patch(thing))
        return thing

    def _bring_worker(self, namespace: str, run: str) -> None:
        """See that a namespace has the config maps with Stoker's worker."""
        if (namespace, run) not in self._workers:
            if self._site.bundle:
                bring_worker(self._cluster, namespace, run, self._site.bundle)
            self._workers.add((namespace, run))

    # Following

    def look(self, handles: Mapping[str, KubernetesHandle]) -> Mapping[str, JobReport]:
        """What is new of jobs: waits for news a moment."""
        away = self._wait_and_read(len(handles))
        now = time.monotonic()
        try:
            self._pools.tend(now)
        except Away as error:
            away = error
        self._delete_finished(now)
        reports: dict[str, JobReport] = {}
        for name, handle in self._due(handles, now):
            try:
                report = self._report(handle, now)
            except Away as error:
                away = error
                handle.next_look = now + 1.0
                continue
            finally:
                self._next_due = min(self._next_due, handle.next_look)
            self._dirty.discard(handle)
            if report is not None:
                reports[name] = report
        for follower in self._followers.values():
            try:
                follower.ask_late(now)
            except Away as error:
                away = error
        if away is not None and not reports:
            raise away
        return reports

    def _due(self, handles: Mapping[str, KubernetesHandle], now: float) -> list[tuple[str, KubernetesHandle]]:
        """The jobs that are to be looked at: of which something is new, or whose time has come."""
        if now < self._next_due:
            return [(one.job.name, one) for one in self._dirty if handles.get(one.job.name) is one]
        due, self._next_due = [], float("inf")
        for name, handle in handles.items():
            if handle in self._dirty or now >= handle.next_look:
                due.append((name, handle))
            else:
                self._next_due = min(self._next_due, handle.next_look)
        return due

    def _wait_and_read(self, count: int) -> Away | None:
        """Wait until something comes of so many jobs, and take it; the error of a server that is silent."""
        descriptors = [one for follower in self._followers.values() for one in follower.descriptors()]
        descriptors += [self._wakeup.descriptor, *self._pools.streams()]
        if descriptors != self._polled[0]:
            self._polled = descriptors, select.poll()
            for descriptor in descriptors:
                self._polled[1].register(descriptor, select.POLLIN)
        since = time.monotonic() - self._last_look
        together = min(TOGETHER_MOST, TOGETHER * max(1.0, count / FEW))
        if since < together:
            time.sleep(together - since)  # news that come one after the other are looked at together
        ready = {descriptor for descriptor, _ in self._polled[1].poll(0 if self._dirty else WAIT * 1000)}
        self._last_look = time.monotonic()
        away = None
        for follower in self._followers.values():
            try:
                self._read(follower, ready)
            except Away as error:
                away = error
        if self._wakeup.descriptor in ready:
            self._wakeup.clear()
        self._pools.read(ready)
        return away

    def _read(self, follower: Follower, ready: Collection[int] | None = None) -> None:
        try:
            follower.read(ready)
            self._take_news(follower)
            follower.read_logs(ready)
        finally:
            self._take_news(follower)

    def _take_news(self, follower: Follower) -> None:
        """Note the jobs of which something is new."""
        news, follower.news = follower.news, set()
        for job, index in news:
            if self._pools.knows(self._path_of(follower.namespace, job)):
                self._pools.note()
                self._dirty.update(self._pools.handles_in(self._path_of(follower.namespace, job)))
            by_index = self._handles.get(self._path_of(follower.namespace, job), {})
            for handle in _concerned(by_index, index):
                self._dirty.add(handle)
                self._want_logs(handle, follower)

    def _want_logs(self, handle: KubernetesHandle, follower: Follower) -> None:
        """Follow the logs of a job's pods whose container has started."""
        for pod in self._pods_of(handle).values():
            name, state = pod["metadata"]["name"], main_state(pod)
            if name not in handle.logs and ("running" in state or "terminated" in state):
                container, index = pod["spec"]["containers"][0]["name"], index_of(pod)
                followed = Log(
                    job=handle.place.name, index=index, pod=name, container=container, ended=is_complete(pod)
                )
                handle.logs[name] = PodLog(log=followed, node=(index or 0) if handle.place.nodes > 1 else 0)
                follower.want_log(followed)

    def _pods_of(self, handle: KubernetesHandle) -> dict[int, dict[str, Any]]:
        """The pods of a job by their index: the latest of each."""
        place = handle.place
        pods = self._follower(place.namespace, place.run).pods_of(place.name, handle.index, place.count)
        latest: dict[int, dict[str, Any]] = {}
        for pod in sorted(pods, key=lambda pod: str(pod["metadata"].get("creationTimestamp", ""))):
            latest[index_of(pod) or 0] = pod
        return latest

    def _report(self, handle: KubernetesHandle, now: float) -> JobReport | None:
        handle.next_look = float("inf")
        if handle.order is not None:
            return self._report_order(handle, handle.order, now)
        self._want_logs(handle, self._follower(handle.place.namespace, handle.place.run))
        pods = self._pods_of(handle)
        for pod_log in handle.logs.values():
            self._take_lines(handle, pod_log)
        for pod in pods.values():
            node = pod["spec"].get("nodeName")
            if node and (index_of(pod) or 0) == handle.index:
                handle.facts.update(node=node, pod=pod["metadata"]["name"])
        status = self._status(handle, pods, now)
        output, handle.output = handle.output, []
        if isinstance(status, JobEnd):
            nodes = handle.facts.get("node", "")
            message = self._start_again(handle, status)
            if message:
                note = {"job": self.identity(handle)["job"], "nodes": nodes, "message": message}
                event = WorkerEvent(kind="noted", note="requeued", data=note)
                return JobReport(message=message, output=output, facts=handle.facts, events=[event])
            status = _status_without_result(status, handle.place)
        running = any("running" in main_state(pod) or "terminated" in main_state(pod) for pod in pods.values())
        handle.running = handle.running or running
        if status is not None or handle.running:
            remarks = self._remarks(handle, pods, status)
            return JobReport(running=handle.running, output=output, facts=handle.facts, status=status, events=remarks)
        message, reason, status = self._explain(handle, pods, now)
        wait = message, reason, dict(handle.facts)
        if status is None and not output and handle.reported == wait:
            return None
        handle.reported = wait
        return JobReport(message=message, reason=reason, output=output, facts=handle.facts, status=status)

    def _report_order(self, handle: KubernetesHandle, order: PodOrder, now: float) -> JobReport | None:
        """What is new of a job in a pod that takes several."""
        output, handle.output = handle.output, []
        events: list[WorkerEvent] = []
        if order.number >= 0:
            handle.facts.update(self.identity(handle))  # when it was sent, no pod had it
        if order.lost and order.status is None:
            end = self._end_of(handle, self._pods_of(handle), now)
            handle.over_since = handle.over_since or now
            if end is None and now - handle.over_since < CERTAIN and not handle.ending:
                handle.next_look = now + 0.2
            elif end is not None and end.free and not handle.ending and handle.again < AGAIN:
                handle.again += 1
                handle.running = False
                self._pools.requeue(handle)
                message = f"{end.message.partition(';')[0]}; it waits for another pod"
                data = {"job": self.identity(handle)["job"], "nodes": handle.facts.get("node", ""), "message": message}
                events.append(WorkerEvent(kind="noted", note="requeued", data=data))
                return JobReport(message=message, output=output, facts=handle.facts, events=events)
            else:
                status = failed(CANCELLED) if handle.ending else order.end or _status_without_result(end, handle.place)
                self._pools.settle(handle, status)
        handle.running = handle.running or order.claimed
        if order.status is not None:
            return JobReport(running=handle.running, output=output, facts=handle.facts, status=order.status)
        if handle.running:
            remarks = self._remarks(handle, self._pods_of(handle), None)
            return JobReport(running=True, output=output, facts=handle.facts, events=remarks)
        return JobReport(message=order.message, reason=order.reason, output=output, facts=handle.facts)

    def _remarks(
        self, handle: KubernetesHandle, pods: Mapping[int, Mapping[str, Any]], status: JobStatus | None
    ) -> list[WorkerEvent]:
        """What the run's record keeps beside the end: a node that is silent, a child process that was killed."""
        if status is None:
            note, text = "node-silent", no_news(pods.values())
            if text == handle.silence:
                return []
            handle.silence = text
        else:
            end = self._end_of(handle, pods, time.monotonic()) if status.state == "succeeded" else None
            note, text = "child-killed", "" if end is None else end.hint
        return [WorkerEvent(kind="noted", note=note, data={"message": text})] if text else []

    def _explain(
        self, handle: KubernetesHandle, pods: Mapping[int, Mapping[str, Any]], now: float
    ) -> tuple[str, str, JobStatus | None]:
        """Why a job waits, the part of that which is reported when it changes, and its end if it never starts."""
        place = handle.place
        waiting = len(self._handles.get(place.path, ()))
        handle.next_look = now + EXPLAIN * max(1.0, waiting / EXPLAINED)
        thing = self._follower(place.namespace, place.run).seen.get(place.name)
        if thing is None:
            return "", "", None
        patience = patience_of(settings_of(handle.job.step, KubernetesSettings, self._options))
        pending = self._explanations.why(
            place.namespace, thing, list(pods.values()), gang=place.nodes > 1, now=now, patience=patience
        )
        if pending is None:
            return "", "", None
        if not pending.hopeless:
            return pending.text, pending.key, None
        self._end_in(place, [handle.index], grace=0.0)
        return "", "", failed(pending.cause or REFUSED, pending.text)

    def _start_again(self, handle: KubernetesHandle, end: JobEnd) -> str:
        """Send a job once more whose pod the cluster took away: why, in words; empty where it is not sent again.

        It is the same attempt: what happened is no fault of the step's. The element of an Indexed Job gets a Job of its
        own.
        """
        if not end.free or handle.ending or handle.again >= AGAIN:
            return ""
        old = handle.place
        place = self._create_object([handle.job], [self._entry(handle.job)], NAMES * (handle.again + 1))
        handle.again += 1
        self._leave(handle)
        self._handles.setdefault(place.path, {})[0] = handle
        handle.place, handle.index, handle.running = place, 0, False
        handle.over_since = handle.job_over_since = 0.0
        handle.logs.clear()
        self._drop_if_empty(old, handle)
        what = end.message.partition(";")[0]
        return f"{what}; it is started again as the Job {place.namespace}/{place.name}"

    # Lines

    def _take_lines(self, handle: KubernetesHandle, pod_log: PodLog) -> None:
        """Take what has come of a log: what is Stoker's own out, and the rest as output."""
        lines, pod_log.log.lines = pod_log.log.lines, []
        plain = []
        for line in lines:
            if line.startswith(MARKED):
                self._take_record(pod_log, line)
            elif pod_log.names is not None and line.startswith(MARKED_EVENT):
                plain.append(line.replace(*pod_log.names))
            else:
                plain.append(line)
        if plain:
            handle.output.append((pod_log.node, "stdout", b"\n".join(plain) + b"\n"))

    def _take_record(self, pod_log: PodLog, line: bytes) -> None:
        try:
            record = parse_json(line[len(MARKED_EVENT) :])
            kind = record["kubernetes"]
            if kind == "end":
                return  # the log knows it
            if kind == "names":
                here, there = (json.dumps(record[name])[1:-1] for name in ("here", "there"))
                stem = here.removesuffix(".jsonl"), there.removesuffix(".jsonl")
                pod_log.names = stem[0].encode(), stem[1].encode()
            else:
                parts = pod_log.parts.setdefault(kind, {})
                parts[record["part"]] = record["text"]
                if len(parts) == record["parts"]:
                    text = unpacked("".join(parts[number] for number in range(record["parts"])))
                    if kind == "result":
                        pod_log.result = text
                    elif kind == "samples":
                        self._keep_samples(str(record["name"]), text)
        except (SettingsError, KeyError, TypeError, ValueError, zlib.error):
            log.debug("a line of %s only looks like Stoker's own", pod_log.log.pod)

    def _keep_samples(self, path: str, text: str) -> None:
        """Write a pod's samples to this machine's scratch."""
        if os.path.dirname(path) == self._site.scratch:
            os.makedirs(self._site.scratch, exist_ok=True)
            with open(path, "w", encoding="utf-8") as file:
                file.write(text)

    # The end

    def _status(
        self, handle: KubernetesHandle, pods: Mapping[int, Mapping[str, Any]], now: float
    ) -> JobStatus | JobEnd | None:
        """How a job ended, once all that is to come of it is there, from its result or as the cluster tells; None
        before."""
        place = handle.place
        follower = self._follower(place.namespace, place.run)
        head = pods.get(0 if place.nodes > 1 else handle.index if place.count > 1 else min(pods, default=0))
        over = {index for index, pod in pods.items() if is_complete(pod) or pod["metadata"]["uid"] in follower.gone}
        head_over = head is not None and (index_of(head) or 0) in over
        if not head_over and place.count > 1 and not _may_end(follower.seen.get(place.name), follower.gone):
            return None
        end = self._end_of(handle, pods, now)
        if not head_over and end is None:
            return None
        handle.over_since = handle.over_since or now
        waited = now - handle.over_since
        all_over = len(over) >= place.nodes
        if end is None and not all_over and waited < GANG_GRACE:
            handle.next_look = now + 0.5
            return None
        if any(not one.log.complete for one in handle.logs.values()) and waited < LAST_WORDS:
            handle.next_look = now + 0.2
            return None
        if not head_over and not handle.ending and waited < (CERTAIN if end and end.state == "succeeded" else UNSEEN):
            handle.next_look = now + 0.2  # the watch of the pods is behind that of the Jobs
            if waited > LATE:
                follower.late.setdefault(place.name, set()).add(handle.index if place.count > 1 else None)
            return None
        result = self._result(handle, head)
        taken = any(condition(pod, "DisruptionTarget") for pod in pods.values())
        taken = taken or (place.nodes == 1 and head is not None and is_deleted(head))
        if result is not None and (result.ok or not taken or handle.ending):
            if head is not None and result.exited is not None and _terminated(head).get("reason") == "OOMKilled":
                evidence = f"the node says that the memory of pod {head['metadata']['name']} was full (OOMKilled)"
                return killed_for_memory(evidence, None, memory=handle.memory)
            status = of_boot(result, None, memory=handle.memory)
            ends = handle.ending and result.exited is not None
            return attrs.evolve(status, cause=CANCELLED) if ends else status
        if handle.ending:
            return failed(CANCELLED)
        if end is None and waited < CERTAIN:
            handle.next_look = now + 0.5
            return None
        return end or _status_without_result(None, place)

    def _end_of(self, handle: KubernetesHandle, pods: Mapping[int, Mapping[str, Any]], now: float) -> JobEnd | None:
        """What the cluster says of the end of a job."""
        place = handle.place
        follower = self._follower(place.namespace, place.run)
        thing = follower.seen.get(place.name)
        if thing is None:
            return None
        settled = False
        if condition(thing, "Failed") or uid(thing) in follower.gone:
            handle.job_over_since = handle.job_over_since or now
            settled = now - handle.job_over_since >= SETTLED
            if not settled:
                handle.next_look = min(handle.next_look, now + 0.5)
        if place.count > 1:
            mine = list(pods.values())
            return element_end(thing, handle.index, mine, gone=follower.gone, settled=settled)
        mine = list(follower.pods.get(place.name, {}).values())
        return end_of(thing, mine, gone=follower.gone, settled=settled)

    def _result(self, handle: KubernetesHandle, head: Mapping[str, Any] | None) -> StepResult | None:
        """The result that the worker handed over: as the termination message, or by the log."""
        if head is None:
            return None
        text = unpacked(str(_terminated(head).get("message") or ""))
        if not text:
            pod_log = handle.logs.get(head["metadata"]["name"])
            text = pod_log.result if pod_log is not None else ""
        return read_result(text) if text else None

    # Ending

    def end(self, handles: Mapping[str, KubernetesHandle], *, grace: float) -> None:
        """Ask jobs to end: their pods get SIGTERM, and SIGKILL after `grace` seconds."""
        by_place: dict[str, list[KubernetesHandle]] = {}
        for handle in handles.values():
            handle.ending = True
            if handle.order is not None:
                self._pools.end(handle, grace=grace)
                self._dirty.add(handle)
                continue
            by_place.setdefault(handle.place.path, []).append(handle)
        for group in by_place.values():
            self._end_in(group[0].place, [handle.index for handle in group], grace=grace)
            self._dirty.update(group)

    def _end_in(self, place: JobObject, indexes: Sequence[int], *, grace: float) -> None:
        """End jobs of a Job: the whole Job where none of it is left."""
        follower = self._follower(place.namespace, place.run)
        followed = self._handles.get(place.path, {})
        whole = all(index in indexes or followed[index].ending for index in followed)
        seconds = max(KILL, round(grace))
        pods = follower.pods.get(place.name, {})
        if whole and not any(one is place for one, _ in self._earlier.remaining()):
            delete_job(self._cluster, place)
        for pod in pods.values():
            if is_complete(pod) or pod["metadata"]["uid"] in follower.gone:
                continue
            if any(place.has(pod, index) for index in indexes):
                self._delete(f"/api/v1/namespaces/{place.namespace}/pods/{pod['metadata']['name']}", grace=seconds)

    def _delete(self, path: str, *, grace: float | None = None) -> None:
        """Delete an object; one that is gone is fine."""
        delete(self._cluster, path, grace=grace)

    def forget(self, handle: KubernetesHandle) -> None:
        """A job is over; with the last one of a Job, it is deleted."""
        self._dirty.discard(handle)
        if handle.order is not None:
            return
        self._leave(handle)
        self._drop_if_empty(handle.place, handle)

    def _leave(self, handle: KubernetesHandle) -> None:
        """A handle is no longer one of its Job's."""
        place = handle.place
        followed = self._handles.get(place.path, {})
        followed.pop(handle.index, None)
        for pod_log in handle.logs.values():
            if not pod_log.log.complete:
                self._follower(place.namespace, place.run).give_up_log(pod_log.log)

    def _drop_if_empty(self, place: JobObject, handle: KubernetesHandle) -> None:
        """Delete a Job of which nothing is followed and nothing may be adopted; `handle` was its last one."""
        if self._handles.get(place.path) or any(one is place for one, _ in self._earlier.remaining()):
            return
        self._handles.pop(place.path, None)
        follower = self._follower(place.namespace, place.run)
        things = [follower.seen.get(place.name, {}), *follower.pods.get(place.name, {}).values()]
        self._explanations.forget(*things)
        follower.forget(place.name)
        if settings_of(handle.job.step, KubernetesSettings, self._options).get("ttl") is None:
            self._undeleted[place.path] = (time.monotonic() + KEEP, self.polls + POLLS, place)

    # What pools ask for

    def follower(self, namespace: str, run: str) -> Follower:
        """What the watches tell of a run."""
        return self._follower(namespace, run)

    def read(self, follower: Follower) -> None:
        """Take what the watches tell."""
        self._read(follower)

    def document(self, job: Job) -> bytes:
        """What a pod of a pool is told of a job."""
        opened = k8sjobs.opened_store(self._site, os.environ)
        spec = pooljobs.document(job, self._site, self._options, shares=self._shares, environment=opened)
        return gzip.compress(json.dumps(spec, separators=(",", ":")).encode(), 1, mtime=0)

    def change(self, handle: KubernetesHandle) -> None:
        """Something is new of a job."""
        self._dirty.add(handle)

    def keep_samples(self, path: str, text: str) -> None:
        """Keep what a pod recorded of its devices."""
        self._keep_samples(path, text)

    def bring_worker(self, namespace: str, run: str) -> None:
        """See that a namespace has Stoker's worker."""
        self._bring_worker(namespace, run)

    def fails_by_index(self) -> bool:
        """Whether an element of an Indexed Job may fail without the others."""
        return self._fails_by_index()

    def refused(self, error: BackendError) -> JobStatus:
        """The status of a job for which the API server takes no Job."""
        return refusal(error)

    def others_wait(self) -> bool:
        """Whether jobs with pods of their own wait for room."""
        return any(not one.running for by_index in self._handles.values() for one in by_index.values())

    def why_pending(
        self, place: JobObject, pods: Sequence[Mapping[str, Any]], job: Job, *, now: float
    ) -> Pending | None:
        """Why pods of a pool's Job do not start."""
        thing = self._follower(place.namespace, place.run).seen.get(place.name)
        if thing is None:
            return None
        patience = patience_of(settings_of(job.step, KubernetesSettings, self._options))
        return self._explanations.why(place.namespace, thing, pods, gang=False, now=now, patience=patience)

    def create_pool(self, path: str, body: Mapping[str, Any], run: str) -> Mapping[str, Any] | None:
        """Create a Job of a pool, or find the one that was created without an answer; None where the name is
        another's."""
        name, namespace = body["metadata"]["name"], path.split("/")[5]
        existing = self._existing(path) if path in self._doubtful else None
        self._doubtful[path] = JobObject(name=name, namespace=namespace, run=run, owns=True)
        try:
            thing = existing or self._cluster.create(path.rpartition("/")[0], body)
        except Away:
            raise
        except ApiError as error:
            del self._doubtful[path]
            if error.status != 409:
                raise
            thing = self._existing(path) or {"metadata": {}}
        self._doubtful.pop(path, None)
        return thing if _is_ours(thing, body) else None

    def drop(self, place: JobObject) -> None:
        """Have a Job of a pool deleted, of which nothing is wanted any more."""
        follower = self._follower(place.namespace, place.run)
        self._explanations.forget(follower.seen.get(place.name, {}), *follower.pods.get(place.name, {}).values())
        follower.forget(place.name)
        self._undeleted[place.path] = (time.monotonic() + KEEP, self.polls + POLLS, place)

    def delete_pod(self, namespace: str, name: str, grace: float) -> None:
        """End a pod."""
        self._delete(f"/api/v1/namespaces/{namespace}/pods/{name}", grace=max(KILL, round(grace)))

    def _delete_finished(self, now: float) -> None:
        """Have Jobs deleted that have been over for a while."""
        while self._undeleted:
            path, (due, polls, place) = next(iter(self._undeleted.items()))
            if now < due or self.polls < polls:
                return  # the others were over later
            self._deletions.add(place)
            del self._undeleted[path]

    def identity(self, handle: KubernetesHandle) -> Mapping[str, Any]:
        """The Job, and which element of it."""
        place = handle.place
        if not place.name:
            return {"job": f"a pod of the namespace {place.namespace}, to come", "name": "", **self._space(place)}
        element = f" (element {handle.index})" if place.count > 1 else ""
        return {"job": f"the Job {place.namespace}/{place.name}{element}", "name": place.name, **self._space(place)}

    def _space(self, place: JobObject) -> dict[str, str]:
        return {"namespace": place.namespace, **({"jobset": place.jobset} if place.jobset else {})}

    def adopted_attempt(self, handle: KubernetesHandle) -> int:
        """The attempt as which an earlier driver sent the job."""
        return handle.attempt

    def doubtful(self) -> Sequence[Mapping[str, Any]]:
        """Jobs whose creation got no answer."""
        return [
            {"job": f"the Job {place.namespace}/{place.name}", "name": place.name, **self._space(place)}
            for place in self._doubtful.values()
        ]

    def abandon(self) -> None:
        """Break off the request that waits for an answer."""
        self._cluster.abandon()
        self._pools.abandon()
        self._deletions.abandon()

    def wake(self) -> None:
        """Have a look that waits for news end at once; called in another thread."""
        self._wakeup.set()

    def close(self) -> None:
        """Delete the Jobs that nobody wants, and close connections."""
        earlier = [place for place, _ in self._earlier.take_remaining()]
        unwanted = {place.path: place for place in earlier if isinstance(place, JobObject)}
        unwanted.update((place.path, place) for place in self._pools.places())
        unwanted.update((place.path, place) for place in self._doubtful.values())
        for path, place in unwanted.items():
            if path not in self._handles:
                place.owns = place.owns and place.root not in self._doubtful
                self._undeleted[path] = (0.0, 0, place)
        for _, _, place in self._undeleted.values():
            self._deletions.add(place)
        if self._deletions.finish():  # what stays is found by `stoker gc`
            self._leave_workers()
        self._pools.close()
        for follower in self._followers.values():
            follower.close()
        self._wakeup.close()
        self._cluster.close()

    def _leave_workers(self) -> None:
        """Remove the config maps that no run uses any more; those of jobs that go on without this driver stay."""
        if any(self._handles.values()) or not self._site.bundle:
            return
        with contextlib.suppress(BackendError):  # what stays is found by `stoker gc`
            for namespace, run in self._workers:
                leave_worker(self._cluster, namespace, run, self._site.bundle)


def _concerned(by_index: Mapping[int, KubernetesHandle], index: int | None) -> list[KubernetesHandle]:
    """The jobs of a Job of which a pod with an index tells something; None stands for the whole Job, or a pod without
    one. The last words of a pod whose job is over concern nobody."""
    place = next((handle.place for handle in by_index.values()), None)
    if place is None or index is None or place.count == 1:  # also a gang, whose only job is the first
        return list(by_index.values())
    return [by_index[index]] if index in by_index else []


def _may_end(thing: Mapping[str, Any] | None, gone: Collection[str]) -> bool:
    """Whether a Job of which a pod has not ended may tell more than that one runs."""
    if thing is None:
        return False
    status = thing.get("status") or {}
    return bool(
        thing["metadata"]["uid"] in gone or is_deleted(thing) or status.get("conditions") or status.get("failedIndexes")
    )


def _terminated(pod: Mapping[str, Any]) -> Mapping[str, Any]:
    """How the container of a step ended; empty where it has not."""
    return main_state(pod).get("terminated") or {}


def _helper_path(namespace: str, where: str, helper: Mapping[str, Any]) -> str:
    version, _, kind = where.rpartition("/")
    return f"/apis/{version}/namespaces/{namespace}/{kind}/{helper['metadata']['name']}"


def _status_without_result(end: JobEnd | None, place: JobObject) -> JobStatus:
    """The status of a job whose worker left no result."""
    if end is None:
        return failed(WORKER_LOST, f"a pod of the Job {place.namespace}/{place.name} is gone, and nothing says why")
    if end.state == "succeeded":
        words = f"its pod {end.pod} left with exit code 0 and without a result: {end.message}"
        return failed(end.cause or WORKER_LOST, words)
    return attrs.evolve(failed(end.cause or WORKER_LOST, end.message), exit_code=end.exit_code)


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
