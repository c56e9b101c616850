"""What becomes of the orders that pods of pools have: from what a pod says in its session or left in its log, and from
the cluster where it took the pod away.
"""

from __future__ import annotations

import signal
import time
from typing import Any, Callable, Final, Mapping

import attrs

from stoker.backends.base.statuses import failed, killed_for_memory, of_boot, read_result
from stoker.backends.kubernetes.objects import condition, is_deleted
from stoker.backends.kubernetes.running.handles import MARKED_EVENT, JobObject, KubernetesHandle, PodOrder, keep_samples
from stoker.backends.kubernetes.warm.sessions import LoggedOrder, PodSessions, PoolPod
from stoker.core.orders import SIGNAL
from stoker.core.plan import JobStatus
from stoker.core.protocol import StepResult
from stoker.core.status import CANCELLED, HOST_OOM, WORKER_LOST

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
        return pod.closed == SIGNAL or (
            thing is not None and (is_deleted(thing) or condition(thing, "DisruptionTarget") is not None)
        )

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
