"""The Jobs of one cluster that run the steps of runs: sent, found again, followed and ended.

One thread does everything: it makes the requests, and reads the watches and the logs as they come (`follow`). A Job is
sent as its Secret, the Job, and the patch that makes the Job the Secret's owner; it is deleted once all of it is known.
So that a driver that is killed in between leaves nothing that another does not know, each object has the run's label,
and a Job's annotations say which jobs it is.
"""

from __future__ import annotations

import os
import select
import time
from typing import Any, Collection, Final, Mapping, Sequence

from stoker.backends.base.adoption import EarlierJobs
from stoker.backends.base.backend import settings_of
from stoker.backends.base.platforms import Away, JobReport
from stoker.backends.base.statuses import failed
from stoker.backends.kubernetes.api.client import Cluster, delete, existing
from stoker.backends.kubernetes.api.follow import Follower, Log, is_complete, main_state
from stoker.backends.kubernetes.explain.causes import JobEnd
from stoker.backends.kubernetes.explain.pending import Explanations, Pending, patience_of
from stoker.backends.kubernetes.objects import condition, index_of, is_taken, main_name
from stoker.backends.kubernetes.request import jobs as k8sjobs
from stoker.backends.kubernetes.running.ending import Deletions, delete_job, end_pod
from stoker.backends.kubernetes.running.handles import (
    CERTAIN,
    JobObject,
    KubernetesHandle,
    PodLog,
    PodOrder,
    cluster_end,
    job_object,
    remarks,
    status_of,
    status_without_result,
    take_lines,
)
from stoker.backends.kubernetes.running.sending import NAMES, Sender, refusal
from stoker.backends.kubernetes.settings import KubernetesSettings
from stoker.backends.kubernetes.warm.pools import WarmPods
from stoker.backends.kubernetes.warm.sessions import PoolPod
from stoker.core import wire
from stoker.core.errors import BackendError
from stoker.core.plan import Job, JobStatus, Site
from stoker.core.protocol import WorkerEvent
from stoker.core.status import CANCELLED, REFUSED

WAIT: Final = 0.05
"""Seconds in which a look waits for news: what the server tells is known at once, and what the driver asks soon."""
TOGETHER: Final = 0.01
"""Seconds between two looks at least: hundreds of pods that start at once have news all the time."""
TOGETHER_MOST: Final = 0.05
"""The same for hundreds of jobs: each look costs more, and an end may still be recorded within 0.1 s."""
FEW: Final = 100
"""Jobs up to which two looks are `TOGETHER` apart; with more of them, they are further apart in proportion."""
AT_ONCE: Final = 20
"""Jobs that are sent between two looks, so that those that are there are not forgotten meanwhile."""
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
        self._sender = Sender(cluster, site, options, shares=shares)
        self._earlier: EarlierJobs[tuple[JobObject | PoolPod, int]] = EarlierJobs()
        self.polls = 0
        """How often the engine has asked for news; counted in its thread."""
        self._undeleted: dict[str, tuple[float, int, JobObject]] = {}
        """Jobs that are over, by their place in the API, and when they may be deleted: a time on the monotonic clock,
        and a count of polls."""
        self._deletions = Deletions(Cluster(KubernetesSettings(**options), os.environ, named=False), delete_job)
        self._explanations = Explanations(cluster, KubernetesSettings(**options))
        self._last_look = 0.0
        self._next_due = 0.0
        """When the first of the jobs of which nothing is new is to be looked at, on the monotonic clock, or before."""
        self._polled: tuple[list[int], select.poll] = ([], select.poll())
        """Descriptors, and what waits for them."""
        self._dirty: set[KubernetesHandle] = set()
        """Those of whose job something is new."""
        self._pools = WarmPods(cluster, site, options, self, self._sender, shares=shares)
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
            space = (self._sender.namespace(job), job.run)
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

    def _load(self, namespace: str, run: str) -> None:
        """Find the Jobs of earlier drivers of a run, and Secrets of theirs whose Job was never created."""
        follower = self.follower(namespace, run)
        self.read(follower)
        for thing in follower.jobs.things.values():
            place = job_object(thing, namespace, run)
            if place is None or thing["metadata"].get("deletionTimestamp"):
                continue
            if place.path in self._handles:
                continue
            for index, one in enumerate(place.jobs):
                self._earlier.note(run, one, (place, index))
        self._earlier.add(self._pools.load(follower, namespace, run))
        answer = self._cluster.get(f"/api/v1/namespaces/{namespace}/secrets", labelSelector=self._selector(run))
        for secret in answer.get("items") or ():
            name = secret["metadata"]["name"]
            if not secret["metadata"].get("ownerReferences"):
                owner: Mapping[str, Any] | None = follower.jobs.things.get(name)
                if k8sjobs.SET in secret["metadata"]["labels"]:
                    owner = existing(self._cluster, f"{k8sjobs.collection(namespace, 'JobSet')}/{name}")
                if owner is not None:
                    self._sender.own(owner)
                else:
                    delete(self._cluster, f"/api/v1/namespaces/{namespace}/secrets/{name}")

    def _selector(self, run: str) -> str:
        return f"{k8sjobs.RUN}={k8sjobs.label_text(run)}"

    def follower(self, namespace: str, run: str) -> Follower:
        """What the watches tell of a run."""
        key = (namespace, run)
        if key not in self._followers:
            self._followers[key] = Follower(self._cluster, namespace, self._selector(run))
        return self._followers[key]

    def _follower_of(self, handle: KubernetesHandle) -> Follower:
        return self.follower(handle.place.namespace, handle.place.run)

    def _is_worth_adopting(self, place: JobObject | PoolPod, index: int) -> bool:
        """Whether a job of an earlier driver went well, or may still."""
        if isinstance(place, PoolPod):
            return self._pools.is_worth_adopting(place, index)
        follower = self.follower(place.namespace, place.run)
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
            if self._pools.takes(job, self._sender.namespace(job)):
                pooled[job.name] = self._pools.order(job, self._sender.namespace(job))
                continue
            groups.setdefault(k8sjobs.alike(job, self._site, self._options, shares=self._shares), []).append(job)
        answers: dict[str, Any] = pooled
        sent = 0
        for alike in groups.values():
            if sent >= AT_ONCE:
                break
            for group, entries in self._sender.indexed(alike):
                try:
                    place = self._sender.create_object(group, entries)
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

    def send_alone(self, handles: Sequence[KubernetesHandle]) -> None:
        """Send jobs that have waited for a pod of a pool with pods of their own."""
        left = {handle.job.name: handle for handle in handles}
        groups: dict[str, list[Job]] = {}
        for handle in handles:
            alike = k8sjobs.alike(handle.job, self._site, self._options, shares=self._shares)
            groups.setdefault(alike, []).append(handle.job)
        for group, entries in (one for alike in groups.values() for one in self._sender.indexed(alike)):
            try:
                place = self._sender.create_object(group, entries)
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
                self.read(follower, ready)
            except Away as error:
                away = error
        if self._wakeup.descriptor in ready:
            self._wakeup.clear()
        self._pools.read(ready)
        return away

    def read(self, follower: Follower, ready: Collection[int] | None = None) -> None:
        """Take what the watches tell."""
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
            path = f"{k8sjobs.collection(follower.namespace, 'Job')}/{job}"
            if self._pools.knows(path):
                self._pools.note()
                self._dirty.update(self._pools.handles_in(path))
            for handle in _concerned(self._handles.get(path, {}), index):
                self._dirty.add(handle)
                self._want_logs(handle, follower)

    def _want_logs(self, handle: KubernetesHandle, follower: Follower) -> None:
        """Follow the logs of a job's pods whose container has started."""
        for pod in self._pods_of(handle).values():
            name, state = pod["metadata"]["name"], main_state(pod)
            if name not in handle.logs and ("running" in state or "terminated" in state):
                container, index = main_name(pod), index_of(pod)
                followed = Log(
                    job=handle.place.name, index=index, pod=name, container=container, ended=is_complete(pod)
                )
                handle.logs[name] = PodLog(log=followed, node=(index or 0) if handle.place.nodes > 1 else 0)
                follower.want_log(followed)

    def _pods_of(self, handle: KubernetesHandle) -> dict[int, dict[str, Any]]:
        """The pods of a job by their index: the latest of each."""
        place = handle.place
        pods = self._follower_of(handle).pods_of(place.name, handle.index, place.count)
        latest: dict[int, dict[str, Any]] = {}
        for pod in sorted(pods, key=lambda pod: str(pod["metadata"].get("creationTimestamp", ""))):
            latest[index_of(pod) or 0] = pod
        return latest

    def _report(self, handle: KubernetesHandle, now: float) -> JobReport | None:
        handle.next_look = float("inf")
        if handle.order is not None:
            return self._report_order(handle, handle.order, now)
        follower = self._follower_of(handle)
        self._want_logs(handle, follower)
        pods = self._pods_of(handle)
        for pod_log in handle.logs.values():
            take_lines(handle, pod_log, self._site.scratch)
        for pod in pods.values():
            node = pod["spec"].get("nodeName")
            if node and (index_of(pod) or 0) == handle.index:
                handle.facts.update(node=node, pod=pod["metadata"]["name"])
        status = status_of(handle, pods, follower, now)
        output, handle.output = handle.output, []
        if isinstance(status, JobEnd):
            nodes = handle.facts.get("node", "")
            message = self._start_again(handle, status)
            if message:
                return self._requeued(handle, message, output, nodes)
            status = status_without_result(status, handle.place)
        running = any("running" in main_state(pod) or "terminated" in main_state(pod) for pod in pods.values())
        handle.running = handle.running or running
        if status is not None or handle.running:
            events = remarks(handle, pods, status, follower)
            return JobReport(running=handle.running, output=output, facts=handle.facts, status=status, events=events)
        message, reason, status = self._explain(handle, pods, now)
        wait = message, reason, dict(handle.facts)
        if status is None and not output and handle.reported == wait:
            return None
        handle.reported = wait
        return JobReport(message=message, reason=reason, output=output, facts=handle.facts, status=status)

    def _report_order(self, handle: KubernetesHandle, order: PodOrder, now: float) -> JobReport | None:
        """What is new of a job in a pod that takes several."""
        output, handle.output = handle.output, []
        if order.number >= 0:
            handle.facts.update(self.identity(handle))  # when it was sent, no pod had it
        if order.lost and order.status is None:
            end = cluster_end(handle, self._pods_of(handle), self._follower_of(handle), now)
            handle.over_since = handle.over_since or now
            if end is None and now - handle.over_since < CERTAIN and not handle.ending:
                handle.next_look = now + 0.2
            elif end is not None and end.free and not handle.ending and handle.again < AGAIN:
                handle.again += 1
                handle.running = False
                self._pools.requeue(handle)
                message = f"{end.message.partition(';')[0]}; it waits for another pod"
                return self._requeued(handle, message, output, handle.facts.get("node", ""))
            else:
                told = None if any(map(is_taken, self._pods_of(handle).values())) else order.end
                status = failed(CANCELLED) if handle.ending else told or status_without_result(end, handle.place)
                self._pools.finish(handle, status)
        handle.running = handle.running or order.claimed
        if order.status is not None:
            return JobReport(running=handle.running, output=output, facts=handle.facts, status=order.status)
        if handle.running:
            events = remarks(handle, self._pods_of(handle), None, self._follower_of(handle))
            return JobReport(running=True, output=output, facts=handle.facts, events=events)
        return JobReport(message=order.message, reason=order.reason, output=output, facts=handle.facts)

    def _requeued(
        self, handle: KubernetesHandle, message: str, output: list[tuple[int, str, bytes]], nodes: str
    ) -> JobReport:
        """The report of a job whose pod the cluster took away, and that waits or runs again."""
        data = {"job": self.identity(handle)["job"], "nodes": nodes, "message": message}
        event = WorkerEvent(kind="noted", note="requeued", data=data)
        return JobReport(message=message, output=output, facts=handle.facts, events=[event])

    def _explain(
        self, handle: KubernetesHandle, pods: Mapping[int, Mapping[str, Any]], now: float
    ) -> tuple[str, str, JobStatus | None]:
        """Why a job waits, the part of that which is reported when it changes, and its end if it never starts."""
        place = handle.place
        waiting = len(self._handles.get(place.path, ()))
        handle.next_look = now + EXPLAIN * max(1.0, waiting / EXPLAINED)
        pending = self.why_pending(place, list(pods.values()), handle.job, now=now, gang=place.nodes > 1)
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
        place = self._sender.create_object([handle.job], [self._sender.entry(handle.job)], NAMES * (handle.again + 1))
        handle.again += 1
        self._leave(handle)
        self._handles.setdefault(place.path, {})[0] = handle
        handle.place, handle.index, handle.running = place, 0, False
        handle.over_since = handle.job_over_since = 0.0
        handle.logs.clear()
        self._drop_if_empty(old, handle)
        what = end.message.partition(";")[0]
        return f"{what}; it is started again as the Job {place.namespace}/{place.name}"

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
        follower = self.follower(place.namespace, place.run)
        followed = self._handles.get(place.path, {})
        whole = all(index in indexes or followed[index].ending for index in followed)
        pods = follower.pods.get(place.name, {})
        if whole and not any(one is place for one, _ in self._earlier.remaining()):
            delete_job(self._cluster, place)
        for pod in pods.values():
            if is_complete(pod) or pod["metadata"]["uid"] in follower.gone:
                continue
            if any(place.has(pod, index) for index in indexes):
                end_pod(self._cluster, place.namespace, pod["metadata"]["name"], grace)

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
                self.follower(place.namespace, place.run).give_up_log(pod_log.log)

    def _drop_if_empty(self, place: JobObject, handle: KubernetesHandle) -> None:
        """Delete a Job of which nothing is followed and nothing may be adopted; `handle` was its last one."""
        if self._handles.get(place.path) or any(one is place for one, _ in self._earlier.remaining()):
            return
        self._handles.pop(place.path, None)
        self.drop(place, stays=settings_of(handle.job.step, KubernetesSettings, self._options).get("ttl") is not None)

    # What pools ask for

    def change(self, handle: KubernetesHandle) -> None:
        """Something is new of a job."""
        self._dirty.add(handle)

    def others_wait(self) -> bool:
        """Whether jobs with pods of their own wait for room."""
        return any(not one.running for by_index in self._handles.values() for one in by_index.values())

    def why_pending(
        self, place: JobObject, pods: Sequence[Mapping[str, Any]], job: Job, *, now: float, gang: bool = False
    ) -> Pending | None:
        """Why pods of a Job do not start."""
        thing = self.follower(place.namespace, place.run).seen.get(place.name)
        if thing is None:
            return None
        patience = patience_of(settings_of(job.step, KubernetesSettings, self._options))
        return self._explanations.why(place.namespace, thing, pods, gang=gang, now=now, patience=patience)

    def drop(self, place: JobObject, *, stays: bool = False) -> None:
        """Have a Job deleted of which nothing is wanted any more, unless the cluster itself removes it."""
        follower = self.follower(place.namespace, place.run)
        self._explanations.forget(follower.seen.get(place.name, {}), *follower.pods.get(place.name, {}).values())
        follower.forget(place.name)
        if not stays:
            self._undeleted[place.path] = (time.monotonic() + KEEP, self.polls + POLLS, place)

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
            for place in self._sender.doubtful.values()
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
        unwanted.update((place.path, place) for place in self._sender.doubtful.values())
        for path, place in unwanted.items():
            if path not in self._handles:
                place.owns = place.owns and place.root not in self._sender.doubtful
                self._undeleted[path] = (0.0, 0, place)
        for _, _, place in self._undeleted.values():
            self._deletions.add(place)
        if self._deletions.finish() and not any(self._handles.values()):  # what stays is found by `stoker gc`
            self._sender.leave_workers()
        self._pools.close()
        for follower in self._followers.values():
            follower.close()
        self._wakeup.close()
        self._cluster.close()


def _concerned(by_index: Mapping[int, KubernetesHandle], index: int | None) -> list[KubernetesHandle]:
    """The jobs of a Job of which a pod with an index tells something; None stands for the whole Job, or a pod without
    one. The last words of a pod whose job is over concern nobody."""
    place = next((handle.place for handle in by_index.values()), None)
    if place is None or index is None or place.count == 1:  # also a gang, whose only job is the first
        return list(by_index.values())
    return [by_index[index]] if index in by_index else []
