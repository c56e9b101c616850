"""How the pods of pools are reached, and what becomes of their orders.

Each pod is reached by one exec for as long as it lives, and by its log once it has left: what it says there are the
orders that no driver has taken (`poolpod.leave`). What becomes of orders is known from there, and from the cluster
where it took the pod away.
"""

from __future__ import annotations

import json
import logging
import os
import signal
import time
from typing import Any, Callable, Final, Mapping, Sequence

import attrs

from stoker.backends.base.platforms import Away
from stoker.backends.base.statuses import failed, killed_for_memory, of_boot, read_result
from stoker.backends.kubernetes.api.client import ApiError, Cluster, Inquiry
from stoker.backends.kubernetes.api.execution import Execution
from stoker.backends.kubernetes.objects import is_deleted, is_taken
from stoker.backends.kubernetes.request.pods import CONTAINER
from stoker.backends.kubernetes.running.handles import (
    MARKED,
    MARKED_EVENT,
    JobObject,
    KubernetesHandle,
    PodOrder,
    keep_samples,
    unpacked,
)
from stoker.backends.kubernetes.settings import KubernetesSettings
from stoker.core.codec import parse_json, parse_object
from stoker.core.errors import BackendError, SettingsError
from stoker.core.orders import SIGNAL
from stoker.core.plan import JobStatus
from stoker.core.protocol import MARK, StepResult
from stoker.core.status import CANCELLED, HOST_OOM, WORKER_LOST

log = logging.getLogger(__name__)

AGAIN: Final = (0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0)
"""Seconds before a pod that was not reached is tried again."""
ASKED: Final = 10.0
"""Seconds for an answer of a pod's node."""
UNREACHED: Final = 15.0
"""Seconds for which a pod may run and not be reached by exec; then no pod of its namespace takes several steps."""
LOG_SILENCE: Final = 120.0
"""Seconds after a pod's end in which its log must be answered: its node may be busy, or be back soon."""


@attrs.define(kw_only=True, eq=False)
class PoolPod:
    """A pod that takes several steps: an element of a Job."""

    place: JobObject
    index: int
    name: str = ""
    """The pod's; empty until it is seen."""
    session: Execution | None = None
    session_asked_at: float = 0.0
    """When the session was asked for, on the monotonic clock."""
    ready: bool = False
    """Whether the session has said what the pod has."""
    served: bool = False
    """Whether it ever was reached."""
    data: bytearray = attrs.field(factory=bytearray)
    """What came over the session and is not complete."""
    folder: str = ""
    """Its pool's folder, as the pod calls it."""
    orders: dict[int, KubernetesHandle] = attrs.field(factory=dict)
    """Those that are not over."""
    kept: list[tuple[int, int]] = attrs.field(factory=list)
    """Those that are over: the count of polls after which the pod may forget each, and its number."""
    earlier: dict[int, LoggedOrder] = attrs.field(factory=dict)
    """Orders of an earlier driver that nobody has adopted."""
    next_number: int = 0
    next_try: float = 0.0
    tries: int = 0
    running_since: float = 0.0
    idle_since: float = 0.0
    ended_at: float = 0.0
    """When its end was seen, on the monotonic clock."""
    leaving: bool = False
    """Whether it takes nothing more."""
    closed: str = ""
    """Why its worker has left, by `core.orders`; empty where that is not known."""
    over: bool = False
    log: Inquiry | None = None
    """The question for its log, once it has ended."""
    reason: str = ""
    """Why its container ended, as its node says."""
    is_earlier: bool = False
    """Whether an earlier driver started it."""

    @property
    def idle(self) -> bool:
        """Whether it could begin a step at once."""
        busy = self.orders or any(not one.over for one in self.earlier.values())
        return self.ready and not self.leaving and not self.over and not busy

    @property
    def coming(self) -> bool:
        """Whether it will be able to."""
        return not self.ready and not self.leaving and not self.over and not self.orders


class PodSessions:
    """The sessions of one driver with the pods of its pools. Whatever is new of a pod, `stir` is called."""

    def __init__(self, cluster: Cluster, options: Mapping[str, Any], *, stir: Callable[[], None]) -> None:
        self._cluster = cluster
        # Whether a pod is reached says nothing of whether the API server answers.
        self._reach = Cluster(KubernetesSettings(**options), os.environ, patience=ASKED, named=False)
        self._stir = stir
        self.unreached: list[tuple[PoolPod, BackendError]] = []
        """Pods that are reached by no session, and why."""

    def open(self, pod: PoolPod, command: Sequence[str], now: float) -> None:
        """Ask for a session with a pod that runs."""
        pod.next_try = now + AGAIN[min(pod.tries, len(AGAIN) - 1)]
        pod.tries += 1
        pod.session_asked_at = now
        try:
            pod.session = Execution(
                self._reach, pod.place.namespace, pod.name, command, container=CONTAINER, wait=False
            )
            pod.ready = False
        except Away as error:
            self.note_unreached(pod, error)

    def note_unreached(self, pod: PoolPod, error: BackendError) -> None:
        """A session was not begun: `Away` where the node does not answer, or not yet."""
        now = time.monotonic()
        pod.next_try = max(pod.next_try, now + AGAIN[min(pod.tries, len(AGAIN)) - 1])
        self._stir()
        if isinstance(error, ApiError) and error.status == 401 and self._reach.access.renewable:
            self._reach.access.renew()
        lasting = not isinstance(error, Away) and (not isinstance(error, ApiError) or error.status == 403)
        log.debug("the pod %s is not reached: %s", pod.name, error)
        if lasting or (not pod.served and now - pod.running_since > UNREACHED):
            self.unreached.append((pod, error))

    def read(self, pod: PoolPod, take: Callable[[PoolPod, Mapping[str, Any], bytes], None]) -> None:
        """Hand on the messages that have come over a pod's session."""
        assert pod.session is not None
        try:
            pod.data += pod.session.take()
            while (end := pod.data.find(b"\n")) >= 0:
                message = parse_object(pod.data[:end].decode("utf-8", "replace"))
                size = int(message.get("bytes", 0))
                if len(pod.data) < end + 1 + size:
                    return
                content = bytes(pod.data[end + 1 : end + 1 + size])
                del pod.data[: end + 1 + size]
                take(pod, message, content)
        except BackendError as error:  # `Away` too
            opened = pod.session.is_open
            log.debug("the session with the pod %s ended: %s", pod.name, error)
            self.hang_up(pod)
            if not opened:
                self.note_unreached(pod, error)
        except SettingsError as error:
            log.debug("the session with the pod %s says what nobody understands: %s", pod.name, error)
            self.hang_up(pod)

    def hang_up(self, pod: PoolPod) -> None:
        """Forget a session that broke."""
        if pod.session is not None:
            pod.session.close()
        pod.session, pod.ready = None, False
        pod.data.clear()
        self._stir()

    def tell(self, pod: PoolPod, question: Mapping[str, Any], content: bytes = b"") -> bool:
        """Ask something of a pod; False where it is not reached."""
        if pod.session is None or not pod.ready:
            return False
        try:
            head = {**question, "bytes": len(content)} if content else question
            pod.session.write(json.dumps(head, separators=(",", ":")).encode() + b"\n" + content)
        except Away:
            self.hang_up(pod)
            return False
        return True

    def logged(self, pod: PoolPod, now: float) -> tuple[Mapping[int, LoggedOrder], bool] | None:
        """What a pod that has ended wrote of its orders, and whether that is all; None while its log has not come."""
        if pod.log is None:
            if now < pod.next_try:
                return None
            pod.log = self._cluster.inquire_log(pod.place.namespace, pod.name, container=CONTAINER)
        try:
            text = pod.log.take()
        except BackendError as error:  # `Away` too
            log.debug("the log of the pod %s is not answered: %s", pod.name, error)
            pod.log, pod.next_try = None, now + AGAIN[min(pod.tries, len(AGAIN) - 1)]
            pod.tries += 1
            refused = isinstance(error, ApiError) and error.status in (400, 403, 404)
            return ({}, False) if refused or now - pod.ended_at > LOG_SILENCE else None
        if text is None:
            return None
        pod.log = None
        return logged_orders(text)

    def abandon(self) -> None:
        """Break off the request that waits for an answer, from another thread."""
        self._reach.abandon()

    def close(self) -> None:
        """Close the connection by which sessions are asked for."""
        self._reach.close()


@attrs.frozen(kw_only=True)
class LoggedOrder:
    """An order, as its pod knows it."""

    number: int
    mark: Sequence[Any]
    """Key, kind, attempt and request of its job."""
    begun: bool = False
    over: bool = False
    ok: bool = False
    """Whether it went well."""
    code: int | None = None
    """The exit code of its program, negative for a signal."""
    output: bytes = b""
    result: str = ""
    """The result's text; empty where there is none."""
    samples: Mapping[str, str] = attrs.field(factory=dict)
    """What is recorded of its devices, by the name of the file on the driver's machine."""


def logged_orders(log: bytes) -> tuple[dict[int, LoggedOrder], bool]:
    """The orders in a log whose lines stand behind their times, and whether the log has all that the pod wrote."""
    orders: dict[int, LoggedOrder] = {}
    current: LoggedOrder | None = None
    output: list[bytes] = []
    texts: dict[tuple[str, str], list[str]] = {}
    for stamped in log.splitlines(keepends=True):
        line = stamped.partition(b" ")[2]
        if not line.startswith(MARKED):
            output.append(line)
            continue
        try:
            record = parse_json(line[len(MARK.encode()) :])
            kind = record["kubernetes"]
        except (SettingsError, KeyError, TypeError):
            continue
        if kind in ("order", "end"):
            if current is not None:
                orders[current.number] = _whole(current, output, texts)
            output, texts = [], {}
            if kind == "end":
                return orders, True
            current = LoggedOrder(
                number=int(record["number"]), mark=record["mark"], begun=bool(record["begun"]), code=record["code"]
            )
        else:
            texts.setdefault((kind, str(record.get("name", ""))), []).append(str(record.get("text", "")))
    return orders, False


def _whole(order: LoggedOrder, output: Sequence[bytes], pieces: Mapping[tuple[str, str], Sequence[str]]) -> LoggedOrder:
    """An order with what stands behind its record."""
    texts = {key: text for key, parts in pieces.items() if (text := unpacked("".join(parts)))}
    result = texts.get(("result", ""), "")
    samples = {name: text for (kind, name), text in texts.items() if kind == "samples"}
    read = read_result(result) if result else None
    return attrs.evolve(
        order,
        over=order.code is not None,
        ok=read is not None and read.ok,
        output=b"".join(output),
        result=result,
        samples=samples,
    )


DOUBT: Final = 0.3
"""Seconds after a step's failure in which its pod may still say that the cluster has ended it."""
KILLED_DOUBT: Final = 5.0
"""The same for a step that was killed: its pod leaves, and its node says whether the memory was full."""
POLLS: Final = 2
"""Polls by the engine after which the end of a step is recorded, so that its pod may forget it."""


class PoolOrders:
    """The orders of one driver. Everything is called in the watch's thread."""

    def __init__(
        self,
        sessions: PodSessions,
        scratch: str,
        *,
        seen: Callable[[PoolPod], Mapping[str, Any] | None],
        polls: Callable[[], int],
        changed: Callable[[KubernetesHandle], None],
        wait_again: Callable[[KubernetesHandle], None],
    ) -> None:
        """`seen` gives a pod as the API has it, `polls` the count of the engine's; `changed` hears of each job of which
        something is new, and `wait_again` has a job wait for another pod."""
        self._sessions = sessions
        self._scratch = scratch
        self._seen = seen
        self._polls = polls
        self._changed = changed
        self._wait_again = wait_again
        self.lost: dict[KubernetesHandle, JobObject] = {}
        """Jobs of which nothing but the cluster can tell what became, and the Jobs that had them."""
        self.doubted: dict[KubernetesHandle, tuple[PoolPod, float]] = {}
        """Jobs that failed, with their pods, and until when the cluster may be the reason, on the monotonic clock."""

    def take(self, pod: PoolPod, message: Mapping[str, Any], content: bytes) -> None:
        """Take what a pod says of its orders."""
        if "claimed" in message and message["claimed"] in pod.orders:
            handle = pod.orders[message["claimed"]]
            order_of(handle).claimed = True
            self._changed(handle)
        elif "output" in message and message["output"] in pod.orders:
            handle = pod.orders[message["output"]]
            order_of(handle).taken += len(content)
            self.add_output(handle, content)
        elif "over" in message and message["over"] in pod.orders:
            handle = pod.orders.pop(message["over"])
            pod.kept.append((self._polls() + POLLS, message["over"]))
            pod.idle_since = time.monotonic()
            for name, text in (message.get("samples") or {}).items():
                keep_samples(name, text, self._scratch)
            if not self._end_order(pod, handle, str(message.get("result") or ""), message.get("code")):
                pod.leaving = True
                self._sessions.tell(pod, {"do": "close"})
        elif "refused" in message and message["refused"] in pod.orders:
            self._wait_again(pod.orders.pop(message["refused"]))

    def finish(self, handle: KubernetesHandle, status: JobStatus) -> None:
        """Note the end of a job."""
        order_of(handle).status = status
        self.lost.pop(handle, None)
        self.doubted.pop(handle, None)
        self._changed(handle)

    def add_output(self, handle: KubernetesHandle, data: bytes) -> None:
        """Pass on output; messages that name the samples get this machine's name for them."""
        order = order_of(handle)
        if order.names is not None:
            whole, newline, order.rest = (order.rest + data).rpartition(b"\n")
            lines = (whole + newline).splitlines(keepends=True)
            data = b"".join(line.replace(*order.names) if line.startswith(MARKED_EVENT) else line for line in lines)
        if data:
            handle.output.append((0, "stdout", data))
            self._changed(handle)

    def _end_order(self, pod: PoolPod, handle: KubernetesHandle, text: str, code: int | None) -> bool:
        """Note the end of a job; whether its pod may take another."""
        order = order_of(handle)
        if order.rest:
            handle.output.append((0, "stdout", order.rest))
            order.rest = b""
        result = read_result(text) if text else None
        order.end = _status_of(handle, result, code)
        if (result is not None and result.ok) or handle.ending:
            self.finish(handle, order.end)
        else:  # it may have been asked to leave by the cluster, which is no fault of its
            killed = order.end.exit_code == -signal.SIGKILL and order.end.cause != HOST_OOM
            self.doubted[handle] = (pod, time.monotonic() + (KILLED_DOUBT if killed else DOUBT))
        return result is not None and result.exited is None

    def judge(self, now: float) -> None:
        """Tell failures of steps from pods that the cluster takes away."""
        for handle, (pod, until) in list(self.doubted.items()):
            end = order_of(handle).end
            assert end is not None
            if self._is_taken(pod) and not handle.ending:
                del self.doubted[handle]
                self.lose(pod, handle)
                continue
            killed = end.exit_code == -signal.SIGKILL and end.cause != HOST_OOM
            if (pod.closed and not killed) or pod.over or now >= until or handle.ending:
                del self.doubted[handle]
                if pod.reason == "OOMKilled" and killed:
                    evidence = f"the node says that the memory of pod {pod.name} was full (OOMKilled)"
                    end = killed_for_memory(evidence, None, memory=handle.memory)
                self.finish(handle, attrs.evolve(end, cause=CANCELLED) if handle.ending else end)

    def _is_taken(self, pod: PoolPod) -> bool:
        """Whether the cluster takes a pod away."""
        thing = self._seen(pod)
        return pod.closed == SIGNAL or (thing is not None and (is_deleted(thing) or is_taken(thing)))

    def settle(self, pod: PoolPod, handle: KubernetesHandle, one: LoggedOrder | None, *, complete: bool) -> None:
        """What became of an order whose pod has ended; `complete`: the pod's log says all."""
        if one is not None and one.result:
            self._take_logged(pod, handle, one)
        elif complete and (one is None or not one.begun):
            self._wait_again(handle)
        else:
            self.lose(pod, handle)

    def _take_logged(self, pod: PoolPod, handle: KubernetesHandle, one: LoggedOrder) -> None:
        """Take an order's output and result from its pod's log."""
        order = order_of(handle)
        self.add_output(handle, one.output[order.taken :])
        for name, text in one.samples.items():
            keep_samples(name, text, self._scratch)
        self._end_order(pod, handle, one.result, one.code)

    def lose(self, pod: PoolPod, handle: KubernetesHandle) -> None:
        """Nothing but the cluster can tell what became of a job."""
        handle.place, handle.index = pod.place, pod.index
        order_of(handle).lost = True
        self.lost[handle] = pod.place
        self._changed(handle)


def _status_of(handle: KubernetesHandle, result: StepResult | None, code: int | None) -> JobStatus:
    """How an order ended, from what its program left."""
    if result is None:
        words = f"the step's program ended with exit code {code} and left no result"
        return failed(CANCELLED) if handle.ending else failed(WORKER_LOST, words)
    status = of_boot(result, None, memory=handle.memory)
    return attrs.evolve(status, cause=CANCELLED) if handle.ending and result.exited is not None else status


def order_of(handle: KubernetesHandle) -> PodOrder:
    """A handle's order, which every handle has that a pool knows."""
    assert handle.order is not None
    return handle.order
