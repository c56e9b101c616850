"""Pods that take the steps of a run one after another, each in a fresh process: started, reached, and ended.

Each pod has a pool with one worker (`poolpod`), which this driver reaches by one exec for as long as the pod lives:
orders go in, output and results come out, and no step costs a request. Pods are the elements of Jobs, created a few at
first and then more (`WarmPods.tend`). A pod that nobody orders from leaves by itself; what it did stands in its log.
"""

from __future__ import annotations

import collections
import functools
import gzip
import hashlib
import json
import logging
import os
import time
from typing import Any, Final, Iterator, Mapping, Protocol, Sequence

import attrs

from stoker.backends.base.adoption import EarlierJob, job_kind
from stoker.backends.base.backend import settings_of
from stoker.backends.base.leasing import samples_file
from stoker.backends.base.messages import credentials, request_digest
from stoker.backends.base.platforms import Away
from stoker.backends.base.statuses import failed
from stoker.backends.kubernetes.api.client import ApiError, Cluster
from stoker.backends.kubernetes.api.follow import Follower, is_complete, main_state
from stoker.backends.kubernetes.api.rbac import POOL_RIGHT, allowed
from stoker.backends.kubernetes.explain.pending import Pending
from stoker.backends.kubernetes.objects import node_of, uid
from stoker.backends.kubernetes.request import jobs as k8sjobs
from stoker.backends.kubernetes.request.check import may_share
from stoker.backends.kubernetes.request.claims import MOUNT, claim_store
from stoker.backends.kubernetes.request.pods import GANG_LABEL, PodMount, PodRequest, program, run_variable
from stoker.backends.kubernetes.running.ending import end_pod
from stoker.backends.kubernetes.running.handles import JobObject, KubernetesHandle, PodOrder
from stoker.backends.kubernetes.running.sending import NAMES, Sender, refusal
from stoker.backends.kubernetes.settings import KubernetesSettings
from stoker.backends.kubernetes.warm import poolpod
from stoker.backends.kubernetes.warm.sessions import ASKED, LoggedOrder, PodSessions, PoolOrders, PoolPod, order_of
from stoker.core.codec import to_json
from stoker.core.errors import BackendError
from stoker.core.orders import PoolSpec
from stoker.core.plan import Job, Site, StepPlan
from stoker.core.status import CANCELLED
from stoker.core.values import IdentityKey

log = logging.getLogger(__name__)

FIRST_WAVE: Final = 8
"""Pods that are created at once at first: those that are there may take all steps while others would start."""
BETWEEN_WAVES: Final = 2.0
"""Seconds between two such waves, of which each may be twice as large as the one before."""
MOST: Final = 256
"""Pods of one run that take several steps, each a connection. Steps beyond them get pods of their own, once each of
these has a node."""
TEND: Final = 0.25
"""Seconds between two looks at all pods, where nothing is new."""
EXPLAIN: Final = 1.0
"""Seconds between two looks at why the steps of a pool wait."""
GREETING: Final = 120.0
"""Seconds for which a pod may run whose program is reached and says nothing: it may unpack Stoker's worker on a slow
disk."""
LAST_WORDS: Final = 2.0
"""Seconds after a pod's end in which its connection may still bring something."""
LOG_PATIENCE: Final = 10.0
"""Seconds after a pod's orderly end in which its log must be complete."""
LOAD: Final = 60.0
"""Seconds in which the pods of an earlier driver must say what they have; one that does not is ended."""
SURPLUS: Final = 1.0
"""Seconds after which an idle pod goes while others wait for room."""


@attrs.define(kw_only=True, eq=False)
class PodPool:
    """The pods for steps of one shape, and the steps that wait for one."""

    shape: str
    namespace: str
    run: str
    job: Job | None = None
    """A step of this shape; None for a pool of an earlier driver of which no step came yet."""
    template: Mapping[str, Any] = attrs.field(factory=dict)
    waiting: collections.deque[KubernetesHandle] = attrs.field(factory=collections.deque)
    pods: list[PoolPod] = attrs.field(factory=list)
    wave: int = FIRST_WAVE
    wave_at: float = 0.0
    """When a further wave may follow, on the monotonic clock."""
    explain_at: float = 0.0
    created: int = 0
    """How many Jobs were created."""


class PoolHost(Protocol):
    """What pools need of the platform that they are of."""

    polls: int

    def follower(self, namespace: str, run: str) -> Follower:
        """What the watches tell of a run."""

    def read(self, follower: Follower) -> None:
        """Take what the watches tell."""

    def change(self, handle: KubernetesHandle) -> None:
        """Something is new of a job."""

    def send_alone(self, handles: Sequence[KubernetesHandle]) -> None:
        """Send jobs that wait for a pod of a pool with pods of their own."""

    def drop(self, place: JobObject) -> None:
        """Have a Job deleted that nothing is wanted of any more."""

    def why_pending(
        self, place: JobObject, pods: Sequence[Mapping[str, Any]], job: Job, *, now: float
    ) -> Pending | None:
        """Why pods of a Job do not start."""

    def others_wait(self) -> bool:
        """Whether jobs with pods of their own wait for room."""


class WarmPods:
    """The pools of one driver. Everything is called in the watch's thread, and may raise `Away`."""

    def __init__(
        self, cluster: Cluster, site: Site, options: Mapping[str, Any], host: PoolHost, sender: Sender, *, shares: bool
    ) -> None:
        self._cluster = cluster
        self._sessions = PodSessions(cluster, options, stir=self.note)
        self._site = site
        self._options = options
        self._host = host
        self._sender = sender
        self._shares = shares
        store = claim_store(site.artifacts)
        self._claim = "" if store is None else MOUNT
        self._pools: dict[str, PodPool] = {}
        self._usable: dict[str, bool] = {}
        self._token = os.urandom(12).hex()
        self._stirred = False
        self._tend_at = 0.0
        self._asked: dict[tuple[str, str], list[PoolPod]] = {}
        """Pods of earlier drivers that are being asked what they have, by namespace and run."""
        self._places: dict[str, JobObject] = {}
        """Jobs of pools, by their place in the API."""
        self._orders = PoolOrders(
            *(self._sessions, site.scratch),
            seen=self._thing,
            polls=lambda: host.polls,
            changed=host.change,
            wait_again=self.requeue,
        )
        self.finish = self._orders.finish

    # Orders

    def takes(self, job: Job, namespace: str) -> bool:
        """Whether a job may run in a pod that takes several."""
        return may_share(job, self._options) and self._is_usable(namespace)

    def _is_usable(self, namespace: str) -> bool:
        if namespace not in self._usable:
            try:
                verbs = POOL_RIGHT.verbs
                self._usable[namespace] = all(allowed(self._cluster, POOL_RIGHT, verb, namespace) for verb in verbs)
            except ApiError:
                self._usable[namespace] = False
        return self._usable[namespace]

    def order(self, job: Job, namespace: str) -> KubernetesHandle:
        """Have a job wait for a pod of its shape; `tend` gives it one."""
        template = pool_template(job, self._site, self._options, shares=self._shares)
        shape = shape_of(template, namespace)
        pool = self._pool(shape, namespace, job.run)
        pool.job, pool.template = job, template
        place = pool.pods[-1].place if pool.pods else JobObject(name="", namespace=namespace, run=job.run)
        handle = KubernetesHandle(job=job, place=place, index=0, order=PodOrder())
        pool.waiting.append(handle)
        self._stirred = True
        return handle

    def _pool(self, shape: str, namespace: str, run: str) -> PodPool:
        if shape not in self._pools:
            self._pools[shape] = PodPool(shape=shape, namespace=namespace, run=run)
        return self._pools[shape]

    def end(self, handle: KubernetesHandle, *, grace: float) -> None:
        """End a job within so many seconds: at once where no pod has it."""
        order = order_of(handle)
        handle.ending = True
        if order.status is not None or order.lost:
            return
        for pool in self._pools.values():
            if handle in pool.waiting:
                pool.waiting.remove(handle)
                self.finish(handle, failed(CANCELLED))
                return
        for pod in self._pods():
            if pod.orders.get(order.number) is handle:
                if not self._sessions.tell(pod, {"do": "end", "number": order.number, "grace": grace}):
                    pod.leaving = True
                    end_pod(self._cluster, pod.place.namespace, pod.name, grace)
                return

    def note(self) -> None:
        """Something is new of Jobs or pods."""
        self._stirred = True

    def handles_in(self, path: str) -> Iterator[KubernetesHandle]:
        """The jobs that the pods of a Job have."""
        place = self._places[path]
        for pod in self._pods():
            if pod.place is place:
                yield from pod.orders.values()

    def knows(self, path: str) -> bool:
        """Whether a Job is one of a pool."""
        return path in self._places

    def _pods(self) -> Iterator[PoolPod]:
        for pool in self._pools.values():
            yield from pool.pods

    def requeue(self, handle: KubernetesHandle) -> None:
        """Have a job wait for another pod: none has begun it, or the cluster took its pod away."""
        order = order_of(handle)
        self._orders.lost.pop(handle, None)
        order.number, order.taken, order.claimed, order.lost, order.rest = -1, 0, False, False, b""
        order.names, order.end, handle.over_since, handle.job_over_since = None, None, 0.0, 0.0
        template = pool_template(handle.job, self._site, self._options, shares=self._shares)
        pool = self._pool(shape_of(template, handle.place.namespace), handle.place.namespace, handle.place.run)
        pool.job, pool.template = handle.job, template
        pool.waiting.appendleft(handle)
        self._stirred = True

    # What the pods say

    def streams(self) -> Iterator[int]:
        """The descriptors to wait for."""
        for pod in self._pods():
            for one in (pod.session, pod.log):
                if one is not None and one.fileno() >= 0:
                    yield one.fileno()

    def read(self, ready: set[int] | None = None) -> None:
        """Take what has come over sessions: of all, or of those with these descriptors."""
        for pod in list(self._pods()):
            if pod.session is not None and (ready is None or pod.session.fileno() in ready):
                self._sessions.read(pod, self._take)
            if pod.log is not None and (ready is None or pod.log.fileno() in ready):
                self._stirred = True  # its pod is buried with it

    def _take(self, pod: PoolPod, message: Mapping[str, Any], content: bytes) -> None:
        self._stirred = True
        if "hello" in message:
            self._greet(pod, message)
        elif "closed" in message:
            pod.leaving, pod.closed = True, str(message["closed"])
        else:
            self._orders.take(pod, message, content)

    def _greet(self, pod: PoolPod, message: Mapping[str, Any]) -> None:
        """A session has begun: go on with what the pod was told, and note what others told it."""
        pod.ready = pod.served = True
        pod.tries, pod.folder = 0, str(message.get("place", ""))
        pod.idle_since = time.monotonic()
        there = {int(one["number"]): one for one in message["hello"]}
        pod.next_number = max(pod.next_number, int(message["next"]))
        ours = {*pod.orders, *(number for _, number in pod.kept)}
        for number, facts in there.items():
            if number not in ours and facts.get("mark"):
                pod.earlier[number] = LoggedOrder(
                    number=number,
                    mark=facts["mark"],
                    begun=bool(facts["claimed"]),
                    over=bool(facts["over"]),
                    ok=bool(facts["ok"]),
                )
        for number, handle in list(pod.orders.items()):
            if number in there:
                order_of(handle).claimed = bool(there[number]["claimed"])
                self._sessions.tell(pod, {"do": "follow", "number": number, "offset": order_of(handle).taken})
                self._host.change(handle)
            else:  # it was never told
                self._put(pod, number, handle)

    # Pods

    def tend(self, now: float, *, at_once: bool = False) -> None:
        """See to all pods: reach those that run, give them steps, create those that are lacking."""
        if not self._pools or (not self._stirred and not at_once and now < self._tend_at):
            return
        self._stirred, self._tend_at = False, now + TEND
        while self._sessions.unreached:
            pod, error = self._sessions.unreached[0]
            self._cluster.get("/version")  # where the API server is away, the pod is not to blame
            self._sessions.unreached.pop(0)
            namespace = pod.place.namespace
            if isinstance(error, Away) and any(one.ready and one.place.namespace == namespace for one in self._pods()):
                self._give_up(pod, error)
            else:
                self._forbid(namespace, error)
        for pool in list(self._pools.values()):
            for pod in list(pool.pods):
                self._see_to(pool, pod, now)
            self._assign(pool)
        self._orders.judge(now)
        self._stirred = self._stirred or bool(self._orders.doubted)
        for pool in list(self._pools.values()):
            self._hire(pool, now)
            self._explain(pool, now)
        self._dismiss(now)
        for path, place in list(self._places.items()):
            wanted = any(pod.place is place for pod in self._pods()) or place in self._orders.lost.values()
            wanted = wanted or any(pod.place is place for pod, _ in self._orders.doubted.values())
            if not wanted:
                del self._places[path]
                self._host.drop(place)

    def _see_to(self, pool: PodPool, pod: PoolPod, now: float) -> None:
        """Reach a pod that runs, and take what is left of one that has ended."""
        thing = self._thing(pod)
        follower = self._host.follower(pod.place.namespace, pod.place.run)
        if thing is None:
            if pod.place.uid in follower.gone:
                self._bury(pool, pod, {}, now)
            return
        pod.name = thing["metadata"]["name"]
        if is_complete(thing) or uid(thing) in follower.gone:
            self._bury(pool, pod, thing, now)
            return
        if pod.session is None and "running" in main_state(thing):
            pod.running_since = pod.running_since or now
            if now >= pod.next_try and not pod.over:
                self._sessions.open(pod, session_command(self._settings(pod), claim=self._claim), now)
        elif pod.session is not None and not pod.session.is_open and now - pod.session_asked_at > ASKED:
            self._sessions.hang_up(pod)
            self._sessions.note_unreached(pod, Away(f"the node of the pod {pod.name} has not answered for {ASKED:g} s"))
        elif pod.session is not None and not pod.served and now - pod.running_since > GREETING:
            self._sessions.hang_up(pod)
            self._sessions.unreached.append((pod, Away(f"the program in the pod {pod.name} says nothing")))
            self._stirred = True
            return
        due = [number for polls, number in pod.kept if self._host.polls >= polls]
        if due and pod.ready:
            pod.kept = [one for one in pod.kept if one[1] not in due]
            for number in due:
                self._sessions.tell(pod, {"do": "forget", "number": number})

    def _thing(self, pod: PoolPod) -> Mapping[str, Any] | None:
        """A pod as the API has it; None where it is not seen yet."""
        place = pod.place
        mine = self._host.follower(place.namespace, place.run).pods_of(place.name, pod.index, place.count)
        if pod.name:  # the Job controller may have made another since
            mine = [thing for thing in mine if thing["metadata"]["name"] == pod.name] or mine
        return min(mine, key=lambda thing: str(thing["metadata"].get("creationTimestamp", "")), default=None)

    def _settings(self, pod: PoolPod) -> KubernetesSettings:
        for pool in self._pools.values():
            if pod in pool.pods and pool.job is not None:
                return settings_of(pool.job.step, KubernetesSettings, self._options)
        return KubernetesSettings(**self._options)

    def _forbid(self, namespace: str, error: BackendError) -> None:
        """No pod of a namespace is reached: each step gets a pod of its own from now on."""
        log.warning("each step gets a pod of its own: the pods of %s are not reached by exec: %s", namespace, error)
        self._usable[namespace] = False
        for pool in self._pools.values():
            if pool.namespace == namespace:
                for pod in [one for one in pool.pods if not one.served]:
                    self._end_unserved(pool, pod)
                self._send_alone(pool)

    def _give_up(self, pod: PoolPod, error: BackendError) -> None:
        """A pod is not reached and others are: its node is broken, or too busy."""
        log.warning("the pod %s is given up, which is not reached by exec: %s", pod.name, error)
        for pool in self._pools.values():
            if pod in pool.pods and not pod.served:
                self._end_unserved(pool, pod)

    def _end_unserved(self, pool: PodPool, pod: PoolPod) -> None:
        """End a pod that never had an order: as long as it waits for one it holds a place that others need."""
        pod.leaving = True
        pool.pods.remove(pod)
        thing = self._thing(pod)
        if thing is not None and not is_complete(thing):
            end_pod(self._cluster, pod.place.namespace, thing["metadata"]["name"], 0.0)

    def _send_alone(self, pool: PodPool) -> None:
        """Give the steps that wait pods of their own."""
        handles = list(pool.waiting)
        pool.waiting.clear()
        if handles:
            for handle in handles:
                handle.order = None
            self._host.send_alone(handles)

    def _bury(self, pool: PodPool, pod: PoolPod, thing: Mapping[str, Any], now: float) -> None:
        """Take what a pod that has ended left: by its session, by its log, or not at all."""
        pod.ended_at = pod.ended_at or now
        pod.leaving = True
        if pod.session is not None and now - pod.ended_at < LAST_WORDS:
            self._sessions.read(pod, self._take)
            if pod.session is not None:
                self._stirred = True
                return
        self._sessions.hang_up(pod)
        ended = main_state(thing).get("terminated") or {} if thing else {}
        pod.reason = str(ended.get("reason") or "")
        if pod.orders or pod.is_earlier:
            answer = self._sessions.logged(pod, now) if thing else ({}, False)
            if answer is None:
                return
            logged, complete = answer
            if not complete and ended.get("exitCode") == 0 and now - pod.ended_at < LOG_PATIENCE:
                pod.next_try = now + TEND
                return
            for number, handle in pod.orders.items():
                self._orders.settle(pod, handle, logged.get(number), complete=complete)
            pod.orders.clear()
            pod.earlier = {number: one for number, one in logged.items() if one.begun}
        elif not pod.served and pool.waiting and ended.get("exitCode") != 0:
            # It failed before it took a step: one that waits fails with it, as with a pod of its own.
            self._orders.lose(pod, pool.waiting.popleft())
        pod.over = True
        pool.pods.remove(pod)

    # Steps to pods

    def _assign(self, pool: PodPool) -> None:
        """Give the steps that wait to idle pods."""
        for pod in pool.pods:
            if not pool.waiting:
                return
            if pod.idle:
                handle = pool.waiting.popleft()
                number, pod.next_number = pod.next_number, pod.next_number + 1
                order = order_of(handle)
                order.number, order.message, order.reason = number, "", ""
                handle.place, handle.index = pod.place, pod.index
                thing = self._thing(pod)
                node = "" if thing is None else str(thing["spec"].get("nodeName") or "")
                handle.facts.update({"pod": pod.name, **({"node": node} if node else {})})
                pod.orders[number] = handle
                self._put(pod, number, handle)

    def _put(self, pod: PoolPod, number: int, handle: KubernetesHandle) -> None:
        """Order a job of a pod; where it is not reached, it is told by the next session."""
        self._name_samples(pod, number, handle)
        question = {"do": "order", "number": number, "mark": order_mark(handle.job)}
        self._sessions.tell(pod, question, self._document(handle.job))

    def _document(self, job: Job) -> bytes:
        """What a pod is told of a job, compressed."""
        opened = credentials(self._site.artifacts, os.environ)
        spec = order_document(job, self._site, self._options, shares=self._shares, environment=opened)
        return gzip.compress(json.dumps(spec, separators=(",", ":")).encode(), 1, mtime=0)

    def _name_samples(self, pod: PoolPod, number: int, handle: KubernetesHandle) -> None:
        if handle.job.step.settings.resources.gpus_per_node:
            names = f"{pod.folder}/{number}/samples.jsonl", samples_file(handle.job, self._site, "kubernetes")
            here, there = (json.dumps(name.removesuffix(".jsonl"))[1:-1].encode() for name in names)
            order_of(handle).names = here, there

    def _hire(self, pool: PodPool, now: float) -> None:
        """Create the pods that are lacking, few at first."""
        ready = sum(pod.idle or pod.coming for pod in pool.pods)
        lacking = len(pool.waiting) - ready
        if lacking <= 0 or pool.job is None:
            return
        if not self._is_usable(pool.namespace):
            self._send_alone(pool)
            return
        if now < pool.wave_at:
            return
        room = MOST - sum(not pod.over for pod in self._pods())
        if room <= 0:
            if not any(self._waits_for_room(pod) for pod in pool.pods):
                self._send_alone(pool)
            return
        count = min(lacking, room, pool.wave if self._sender.fails_by_index() else 1)
        try:
            self._create(pool, pool.job, count)
        except Away:
            raise
        except BackendError as error:
            for handle in list(pool.waiting):
                self.finish(handle, refusal(error))
            pool.waiting.clear()
            return
        if count >= pool.wave:
            pool.wave, pool.wave_at = 2 * pool.wave, now + BETWEEN_WAVES

    def _waits_for_room(self, pod: PoolPod) -> bool:
        """Whether the cluster has no node for a pod: one of its own would wait behind it."""
        thing = self._thing(pod) if pod.coming else {}
        return thing is None or (pod.coming and not node_of(thing))

    def _create(self, pool: PodPool, job: Job, count: int) -> None:
        self._sender.bring_worker(pool.namespace, pool.run)
        token = f"{self._token}-{pool.shape}-{pool.created}"
        for salt in range(NAMES):
            name = pool_name(job, token, salt)
            body = pool_manifest(job, pool.template, pool.shape, name=name, token=token, count=count)
            path = f"{k8sjobs.collection(pool.namespace, 'Job')}/{name}"
            thing = self._sender.create_pool(path, body, pool.run)
            if thing is not None:
                break
        else:
            raise BackendError(f"names such as {name} are taken in the namespace {pool.namespace}")
        pool.created += 1
        self._add_pods(pool, thing, is_earlier=False)

    def _add_pods(self, pool: PodPool, thing: Mapping[str, Any], *, is_earlier: bool) -> list[PoolPod]:
        """Note the pods of a Job of a pool."""
        count = int(thing["spec"].get("completions") or 1)
        name, key = thing["metadata"]["name"], thing["metadata"]["uid"]
        place = JobObject(name=name, namespace=pool.namespace, run=pool.run, uid=key, count=count, owns=True)
        self._places[place.path] = place
        pods = [PoolPod(place=place, index=index, is_earlier=is_earlier) for index in range(count)]
        pool.pods += pods
        for handle in pool.waiting:
            handle.place = place
        return pods

    def _explain(self, pool: PodPool, now: float) -> None:
        """Say why steps wait; one whose pod never starts fails with it."""
        if not pool.waiting or now < pool.explain_at:
            return
        begins = any(not order_of(handle).claimed for pod in pool.pods for handle in pod.orders.values())
        if begins or any(pod.coming and pod.running_since for pod in pool.pods):
            pool.explain_at = now + TEND  # what waits is known once they have begun
            return
        pool.explain_at = now + EXPLAIN
        coming = [pod for pod in pool.pods if pod.coming]
        # What a pod that is about to start waits for is not worth a word.
        text, key = ("", "") if coming else ("it waits for a pod that takes steps like it", "pool")
        for handle, pod in zip(list(pool.waiting), coming):
            thing = self._thing(pod)
            things = [] if thing is None else [thing]
            pending = self._host.why_pending(pod.place, things, handle.job, now=now)
            if pending is None:
                continue
            if pending.hopeless:
                pool.waiting.remove(handle)
                pod.leaving = True
                pool.pods.remove(pod)
                if thing is not None:
                    end_pod(self._cluster, pod.place.namespace, thing["metadata"]["name"], 0.0)
                self.finish(handle, failed(pending.cause or "refused", pending.text))
            else:
                text, key = pending.text, pending.key
        for handle in pool.waiting:
            order = order_of(handle)
            if key and order.reason != key:
                order.message, order.reason = text, key
                self._host.change(handle)

    def _dismiss(self, now: float) -> None:
        """Let idle pods leave while others wait for room."""
        wait = [pool for pool in self._pools.values() if pool.waiting and any(pod.coming for pod in pool.pods)]
        if not wait and not self._host.others_wait():
            return
        for pool in self._pools.values():
            for pod in pool.pods if not pool.waiting else ():
                if pod.idle and now - pod.idle_since > SURPLUS:
                    pod.leaving = True
                    self._sessions.tell(pod, {"do": "close"})

    # Another driver's pods

    def load(self, follower: Follower, namespace: str, run: str) -> list[EarlierJob[tuple[JobObject | PoolPod, int]]]:
        """The orders in pods of an earlier driver, which are asked what they have.

        Where the API server falls silent meanwhile (`Away`), the next call goes on with the same pods.
        """
        pods = self._asked.setdefault((namespace, run), [])
        for name, thing in follower.jobs.things.items():
            shape = (thing["metadata"].get("labels") or {}).get(POOL)
            path = f"{k8sjobs.collection(namespace, 'Job')}/{name}"
            if shape and path not in self._places and not thing["metadata"].get("deletionTimestamp"):
                pods += self._add_pods(self._pool(shape, namespace, run), thing, is_earlier=True)
        until = time.monotonic() + LOAD
        while unknown := [pod for pod in pods if self._is_unknown(pod)]:
            if time.monotonic() > until:
                for pod in unknown:
                    end_pod(self._cluster, namespace, pod.name, 0.0)
                break
            self.read()
            self.tend(time.monotonic(), at_once=True)
            if any(self._is_unknown(pod) for pod in unknown):
                time.sleep(0.02)
                self._host.read(follower)
        del self._asked[namespace, run]
        return [
            EarlierJob(
                run=run, key=str(key), kind=str(kind), attempt=int(attempt), digest=str(digest), handle=(pod, number)
            )
            for pod in pods
            for number, one in pod.earlier.items()
            for key, kind, attempt, digest in [one.mark]
        ]

    def _is_unknown(self, pod: PoolPod) -> bool:
        """Whether a pod may have orders of which nothing is known."""
        if pod.over or pod.ready:
            return False
        thing = self._thing(pod)
        return thing is not None and (is_complete(thing) or "running" in main_state(thing))

    def adopt(self, pod: PoolPod, number: int, job: Job, attempt: int) -> KubernetesHandle:
        """Take over an order of an earlier driver."""
        one = pod.earlier.pop(number)
        order = PodOrder(number=number, claimed=one.begun)
        handle = KubernetesHandle(job=job, place=pod.place, index=pod.index, attempt=attempt, order=order)
        handle.facts["pod"] = pod.name
        if pod.over:
            self._orders.settle(pod, handle, one, complete=True)
            return handle
        self._name_samples(pod, number, handle)
        pod.orders[number] = handle
        self._sessions.tell(pod, {"do": "follow", "number": number, "offset": 0})
        return handle

    def is_worth_adopting(self, pod: PoolPod, number: int) -> bool:
        """Whether an order of an earlier driver went well, or may still."""
        one = pod.earlier[number]
        return one.ok if one.over or pod.over else True

    def discard(self, pod: PoolPod, number: int) -> None:
        """End an order of an earlier driver that nobody wants."""
        one = pod.earlier.pop(number, None)
        if one is not None and not one.over:
            pod.leaving = True
            self._sessions.tell(pod, {"do": "end", "number": number, "grace": 0.0})
            self._sessions.tell(pod, {"do": "close"})

    def abandon(self) -> None:
        """Break off the request that waits for an answer, from another thread."""
        self._sessions.abandon()

    def places(self) -> list[JobObject]:
        """The Jobs of all pools."""
        return list(self._places.values())

    def close(self) -> None:
        """End all sessions."""
        for pod in self._pods():
            for one in (pod.session, pod.log):
                if one is not None:
                    one.close()
        self._sessions.close()


# From steps to the Jobs whose pods take several of them: pure. Steps whose pods would be equal but for names and labels
# have the same shape.

POOL: Final = "stoker/pool"
"""The label of a pool's Jobs and pods: the shape of its steps, as `digest_of` has it."""
STATE: Final = "/stoker/pool"
IDLE_AFTER: Final = 30.0
"""Seconds without a step after which a pod leaves: what a driver does between two steps takes less as a rule."""
IDLE_WITH_DEVICES: Final = 5.0
"""The same for a pod with accelerators, which others may wait for."""
CHECKPOINTS: Final = f"{poolpod.PLACES[1]}{poolpod.TMP}/stoker-checkpoints"
"""The folder of checkpoints of a pod that sees no other, emptied behind each step: they are copied from there."""


def pool_spec(job: Job, site: Site, settings: KubernetesSettings) -> PoolSpec:
    """How the worker of a pod lives."""
    usual = IDLE_WITH_DEVICES if job.step.settings.resources.gpus_per_node else IDLE_AFTER
    return PoolSpec(idle_after=settings.get("idle_after", usual), imports=site.worker_imports)


def pool_request(job: Job, site: Site, options: Mapping[str, Any], *, shares: bool) -> PodRequest:
    """What the pods of a pool follow from that takes steps like a job's."""
    settings = settings_of(job.step, KubernetesSettings, options)
    own = k8sjobs.pod_request(job, site, options, name="", shares=shares)
    variables = {poolpod.PROGRAM: program(poolpod), **own.environment}
    named = {*variables, *(entry["name"] for entry in settings.get("env", ()))}
    if "TMPDIR" not in named and not settings.get("use_tmpfs") and not settings.get("tmpfs_size"):
        variables["TMPDIR"] = f"{STATE}/{poolpod.TMP}"
    spec = json.dumps(to_json(pool_spec(job, site, settings)), separators=(",", ":"))
    return attrs.evolve(
        own,
        environment=variables,
        command=(*run_variable(settings, poolpod.PROGRAM), "keep", STATE, k8sjobs.WORKER, spec),
        labels=k8sjobs.labels_of_run(job),
        mounts=[
            PodMount(name="stoker-pool", source={"emptyDir": {}}, path=STATE, read_only=False),
            *(mount for mount in own.mounts if mount.path != k8sjobs.DOCUMENT),
        ],
    )


def session_command(settings: KubernetesSettings, *, claim: str) -> tuple[str, ...]:
    """What is executed in a pod of a pool to reach it; `claim` is where it has the artifact store's claim."""
    return (*run_variable(settings, poolpod.PROGRAM), "serve", STATE, *((claim,) if claim else ()))


def pool_template(job: Job, site: Site, options: Mapping[str, Any], *, shares: bool) -> Mapping[str, Any]:
    """The pods of a pool, without its label: equal for jobs of one shape, and one object for those of one step."""
    return _template(IdentityKey(job.step), job.run, job.avoid, IdentityKey(site), IdentityKey(options), shares=shares)


@functools.lru_cache(maxsize=64)
def _template(
    step: IdentityKey[StepPlan],
    run: str,
    avoid: tuple[str, ...],
    site: IdentityKey[Site],
    options: IdentityKey[Mapping[str, Any]],
    *,
    shares: bool,
) -> Mapping[str, Any]:
    job = Job(name="", run=run, key="", attempt=0, step=step.value, inputs={}, avoid=avoid)
    pod = k8sjobs.template(pool_request(job, site.value, options.value, shares=shares))
    pod["metadata"].get("labels", {}).pop(GANG_LABEL, None)
    return pod


def shape_of(template: Mapping[str, Any], namespace: str) -> str:
    """The shape of the steps that pods with this template take. What modules a pod imports ahead is none of it: another
    driver of the run may know of others."""
    return _shape_of(IdentityKey(template), namespace)


@functools.lru_cache(maxsize=64)
def _shape_of(key: IdentityKey[Mapping[str, Any]], namespace: str) -> str:
    template = key.value
    (container,) = template["spec"]["containers"]
    *words, spec = container["command"]
    alike = {**container, "command": [*words, json.loads(spec)["idle_after"]]}
    text = json.dumps([namespace, {**template, "spec": {**template["spec"], "containers": [alike]}}], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def pool_manifest(
    job: Job, template: Mapping[str, Any], shape: str, *, name: str, token: str, count: int
) -> dict[str, Any]:
    """The Job of so many pods."""
    labels = {**k8sjobs.labels_of_run(job), POOL: shape}
    metadata = {**template["metadata"], "labels": {**template["metadata"].get("labels", {}), POOL: shape}}
    spec: dict[str, Any] = {"backoffLimit": 0, "template": {**template, "metadata": metadata}}
    if count > 1:
        del spec["backoffLimit"]
        spec.update(completionMode="Indexed", completions=count, parallelism=count, backoffLimitPerIndex=0)
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": name, "labels": labels, "annotations": {k8sjobs.TOKEN: token}},
        "spec": spec,
    }


def pool_name(job: Job, token: str, salt: int = 0) -> str:
    """The name of a pool's Job: the pipeline's for people, and letters that are its own."""
    return k8sjobs.named([job.pipeline, "pool"], hashlib.sha256(f"{token} {salt}".encode()).hexdigest())


def order_mark(job: Job) -> list[Any]:
    """What a later driver needs to adopt an order: key, kind, attempt, request."""
    return [job.key, job_kind(job), job.attempt, request_digest(job)]


def order_document(
    job: Job, site: Site, options: Mapping[str, Any], *, shares: bool, environment: Mapping[str, str]
) -> dict[str, Any]:
    """What a pod is told of a job."""
    settings = settings_of(job.step, KubernetesSettings, options)
    entry = k8sjobs.entry(job, site, settings, shares=shares, environment=environment, checkpoints=CHECKPOINTS)
    spec: dict[str, Any] = entry["spec"]
    return spec
