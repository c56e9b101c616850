"""The program of a Ray job: a batch of steps, each of which it has Ray run as a task, or several for a gang.

    python -m stoker.backends.ray.job PLACE

PLACE is a file, or a URI that fsspec knows, with the document that `backends.ray.tasks` makes. The program runs in the
cluster, with the cluster's Python and its `ray`, and outlives the driver that sent it. What it has to tell goes to a
journal, a line of JSON each: a file where the driver sees this machine's folders, and otherwise its standard output,
which Ray keeps, behind `MARK`:

    {"up": versions}, {"step", "waiting": words}, {"step", "node", "on": host}, {"step", "node", "stream", "data"},
    {"samples": [name, text]}, {"step", "over": {"result", "cause", "message", "code"}}, {"done": true}

Beside the document, the driver leaves a note of the steps that are to end: `{"3": 9.0}`, seconds by a step's number.
Ray retries nothing: what failed is the driver's to decide.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import secrets
import selectors
import signal
import socket
import sys
import time
from typing import Any, Final, Mapping

import attrs

from stoker.backends.ray import node as raynode
from stoker.backends.ray.words import cause_of, chosen, pick, waits
from stoker.core import wire
from stoker.core.protocol import MARK
from stoker.store import notes

TICK: Final = 0.2
"""Seconds between two looks at what nobody tells: tasks that crashed, the note of ends where it is a file."""
FAR_NOTES: Final = 2.0
"""Seconds between two looks for the note of ends in an object store."""
WAITING: Final = 1.0
"""Seconds after which a task that has not begun is said to wait, and between two looks for why."""
GANG_GRACE: Final = 5.0
"""Seconds that the other nodes of a gang get when its first one is over; by then its agent has told them to end."""
STOP_GRACE: Final = 2.0
"""Seconds for all steps when the Ray job itself is stopped: Ray kills after 3 (RAY_JOB_STOP_WAIT_TIME_S)."""
NODE_DIES: Final = 20.0
"""Seconds in which Ray learns that a worker died because its node did: 5 health checks of 3 s, and a margin.
https://docs.ray.io/en/latest/ray-core/fault_tolerance/nodes.html"""


@attrs.define(kw_only=True)
class NodeTask:
    """One node of a step, which Ray runs as a task."""

    step: int
    """Of a connection that has not introduced itself: -1."""
    node: int
    ref: Any
    """Ray's reference to the task."""
    connection: socket.socket | None = None
    frames: wire.Frames = attrs.field(factory=wire.Frames)
    began: bool = False
    ray_node: str = ""
    """Ray's id of the node on which the task runs."""
    over: Mapping[str, Any] | None = None
    """The end of the step, as the node reported it."""
    crash: Exception | None = None
    """Ray's error, where the task ended with one."""
    crashed: float = 0.0
    """When Ray reported the task's end, on the monotonic clock; 0: not yet."""


@attrs.define(kw_only=True)
class BatchStep:
    """A step of the batch."""

    number: int
    entry: Mapping[str, Any]
    """The step in the batch's document."""
    ask: Mapping[str, Any]
    """What each node asks of Ray."""
    tasks: list[NodeTask] = attrs.field(factory=list)
    """By node."""
    group: Any = None
    """Ray's placement group of a gang."""
    since: float = attrs.field(factory=time.monotonic)
    """When the step was submitted to Ray, on the monotonic clock."""
    reported_wait: str = ""
    """Why it waits, as last reported."""
    grace: float | None = None
    """Seconds in which it was asked to end; None: it was not."""
    done: bool = False


class Journal:
    """Writes the records that the driver reads."""

    def __init__(self, path: str) -> None:
        # A line in one call, at the file's end: nothing is lost with this process, and no reader sees half of one.
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600) if path else 1
        self._mark = b"" if path else MARK.encode()

    def write(self, **record: Any) -> None:
        """Write a record."""
        data = memoryview(self._mark + json.dumps(record, separators=(",", ":")).encode() + b"\n")
        while data.nbytes:
            data = data[os.write(self._file, data) :]


class BatchProgram:
    """Runs all steps of the document."""

    def __init__(self, document: Mapping[str, Any], ray: Any) -> None:
        self._document = document
        self._ray = ray
        self._journal = Journal(document["journal"])
        self._token = secrets.token_hex(16)
        self._selector = selectors.DefaultSelector()
        self._listener = socket.create_server((ray.util.get_node_ip_address(), 0), backlog=1024)
        self._selector.register(self._listener, selectors.EVENT_READ, None)
        self._steps: list[BatchStep] = []
        self._tasks: dict[tuple[int, int], NodeTask] = {}
        self._ends_every = FAR_NOTES if "://" in document["ends"] else TICK
        self._next_ends = self._next_words = 0.0
        self.stopped = False

    def run(self) -> bool:
        """Run all steps to their end; whether each succeeded."""
        version = f"{sys.version_info.major}.{sys.version_info.minor}"
        self._journal.write(up={"ray": self._ray.__version__, "python": version})
        self._start()
        good = True
        while any(not step.done for step in self._steps):
            for key, _ in self._selector.select(TICK):
                if key.data is None:
                    self._accept()
                else:
                    self._receive(key.data)
            self._look_for_crashes()
            self._look_for_ends()
            for step in self._steps:
                good = self._settle(step) and good
            self._report_waiting()
        self._journal.write(done=True)
        return good

    # Starting

    def _start(self) -> None:
        task = self._ray.remote(max_retries=0, max_calls=0)(raynode.run)
        nodes = self._ray.nodes()
        link = (*self._listener.getsockname()[:2], self._token)
        for number, one in enumerate(self._document["steps"]):
            ask = {**one["ask"], "choice": chosen(one["ask"], nodes)}
            step = BatchStep(number=number, entry=one, ask=ask)
            self._steps.append(step)
            options = pick(ask, one["runtime_env"])
            if one["nodes"] > 1:
                step.group, options = self._group(one, ask, options)
            for node in range(one["nodes"]):
                if step.group is not None:
                    options["scheduling_strategy"] = (
                        self._ray.util.scheduling_strategies.PlacementGroupSchedulingStrategy(
                            placement_group=step.group, placement_group_bundle_index=node
                        )
                    )
                order = {
                    "step": number,
                    "node": node,
                    "nodes": one["nodes"],
                    "spec": one["spec"],
                    "python": one["python"],
                    "bundle": self._document["bundle"],
                    "shares": self._document["shares"],
                }
                ref = task.options(**options, name=one["name"]).remote(order, link)
                node_task = self._tasks[number, node] = NodeTask(step=number, node=node, ref=ref)
                step.tasks.append(node_task)

    def _group(
        self, one: Mapping[str, Any], ask: Mapping[str, Any], options: dict[str, Any]
    ) -> tuple[Any, dict[str, Any]]:
        """A gang's places, and the options of its tasks in them."""
        bundle = {"CPU": options["num_cpus"], "memory": options.get("memory", 0), "GPU": options.get("num_gpus", 0)}
        bundle = {name: amount for name, amount in {**bundle, **options.get("resources", {})}.items() if amount}
        if options.get("accelerator_type"):
            bundle[f"accelerator_type:{options['accelerator_type']}"] = 0.001
        labels = {"bundle_label_selector": [options["label_selector"]] * one["nodes"]} if ask["labels"] else {}
        group = self._ray.util.placement_group([bundle] * one["nodes"], strategy=one["placement"], **labels)
        return group, {name: value for name, value in options.items() if name != "label_selector"}

    # Connections

    def _accept(self) -> None:
        connection, _ = self._listener.accept()
        unknown = NodeTask(step=-1, node=-1, ref=None, connection=connection)
        self._selector.register(connection, selectors.EVENT_READ, unknown)

    def _receive(self, task: NodeTask) -> None:
        """Read the messages of a node; a connection without the token is closed."""
        connection = task.connection
        assert connection is not None
        try:
            data = connection.recv(1 << 18)
        except OSError:
            data = b""
        if not data:
            self._disconnect(task)
            return
        try:
            for message in task.frames.feed(data):
                if task.step < 0:
                    task = self._introduce(task, message)
                else:
                    self._record(task, message)
        except (ValueError, KeyError):
            self._disconnect(task)

    def _introduce(self, stranger: NodeTask, message: Mapping[str, Any]) -> NodeTask:
        if not secrets.compare_digest(str(message["token"]), self._token):
            raise ValueError("the token is wrong")
        task = self._tasks[message["step"], message["node"]]
        task.connection, task.frames = stranger.connection, stranger.frames
        task.began, task.ray_node = True, message["ray_node"]
        assert task.connection is not None
        self._selector.modify(task.connection, selectors.EVENT_READ, task)
        self._journal.write(step=task.step, node=task.node, on=message["host"])
        grace = self._steps[task.step].grace
        if grace is not None:
            self._end(task, grace)
        return task

    def _record(self, task: NodeTask, message: Mapping[str, Any]) -> None:
        if "stream" in message:
            self._journal.write(step=task.step, node=task.node, **message)
        elif "samples" in message:
            self._journal.write(**message)
        elif "over" in message:
            task.over = message["over"]

    def _disconnect(self, task: NodeTask) -> None:
        if task.connection is not None:
            self._selector.unregister(task.connection)
            task.connection.close()
            task.connection = None

    def _end(self, task: NodeTask, grace: float) -> None:
        if task.connection is not None:
            with contextlib.suppress(OSError):  # it is gone: the next read notices it
                task.connection.sendall(wire.framed({"end": grace}))

    # Polling

    def _look_for_crashes(self) -> None:
        """Note the tasks whose end Ray reports."""
        refs = {task.ref: task for task in self._tasks.values() if task.crash is None and not task.crashed}
        if not refs:
            return
        ready, _ = self._ray.wait(list(refs), num_returns=len(refs), timeout=0, fetch_local=False)
        for ref in ready:
            task = refs[ref]
            task.crashed = time.monotonic()
            try:
                self._ray.get(ref)
            except Exception as error:  # whatever Ray says became of a task: it is told to the driver by its kind
                task.crash = error

    def _look_for_ends(self) -> None:
        now = time.monotonic()
        if self.stopped:
            self.stopped = False
            for step in self._steps:
                self._end_step(step, STOP_GRACE)
        if now < self._next_ends:
            return
        self._next_ends = now + self._ends_every
        text = notes.get(self._document["ends"])
        if text:
            for number, grace in json.loads(text).items():
                self._end_step(self._steps[int(number)], float(grace))

    def _end_step(self, step: BatchStep, grace: float) -> None:
        """Ask all nodes of a step to end; tasks that have not begun are cancelled."""
        if step.done or (step.grace is not None and grace >= step.grace):
            return
        step.grace = grace
        for task in step.tasks:
            if task.began:
                self._end(task, grace)
            else:
                self._ray.cancel(task.ref, force=True)

    def _settle(self, step: BatchStep) -> bool:
        """Write a step's end, once it is known; False for a step that failed."""
        if step.done:
            return True
        head, others = step.tasks[0], step.tasks[1:]
        if others and (_over(head) or any(task.crash for task in others)) and step.grace is None:
            self._end_step(step, GANG_GRACE)
        if not all(_over(task) and self._is_explained(task) for task in step.tasks):
            return True
        step.done = True
        for task in step.tasks:
            self._disconnect(task)
        if step.group is not None:
            self._ray.util.remove_placement_group(step.group)
        end = dict(head.over or {"result": None, "code": None})
        crash = next((task for task in step.tasks if task.crash is not None and task.over is None), None)
        well = bool((end["result"] or {}).get("ok"))
        if crash is not None and crash.crash is not None and not well:
            ended_on_request = step.grace is not None and not others
            end["cause"], end["message"] = cause_of(crash.crash, node_alive=self._alive(crash), asked=ended_on_request)
        self._journal.write(step=step.number, over=end)
        return well

    def _is_explained(self, task: NodeTask) -> bool:
        """Whether it is known why a task crashed: Ray reports a worker's death before that of its node."""
        if task.over is not None or task.crash is None or type(task.crash).__name__ != "WorkerCrashedError":
            return True
        return not self._alive(task) or time.monotonic() > task.crashed + NODE_DIES

    def _alive(self, task: NodeTask) -> bool:
        return not task.ray_node or any(one["NodeID"] == task.ray_node and one["Alive"] for one in self._ray.nodes())

    def _report_waiting(self) -> None:
        now = time.monotonic()
        if now < self._next_words:
            return
        self._next_words = now + WAITING
        idle = [
            step
            for step in self._steps
            if not step.done and now > step.since + WAITING and not any(task.began for task in step.tasks)
        ]
        if not idle:
            return
        nodes, free = self._ray.nodes(), self._ray.available_resources()
        reasons: dict[str, str] = {}
        for step in idle:
            alike = json.dumps([step.ask, step.entry["nodes"], step.entry["placement"]], sort_keys=True)
            if alike not in reasons:
                reasons[alike] = waits(
                    step.ask, nodes=nodes, free=free, gang=step.entry["nodes"], placement=step.entry["placement"]
                )
            if reasons[alike] != step.reported_wait:
                step.reported_wait = reasons[alike]
                self._journal.write(step=step.number, waiting=step.reported_wait)


def _over(task: NodeTask) -> bool:
    """Whether nothing more is to come of a task."""
    return (task.over is not None and task.connection is None) or (task.crashed > 0 and task.connection is None)


def main(arguments: list[str] | None = None) -> int:
    """Run the batch of the document at PLACE; 0 where all steps succeeded."""
    words = sys.argv[1:] if arguments is None else arguments
    if len(words) != 1:
        sys.stderr.write("usage: python -m stoker.backends.ray.job PLACE\n")
        return 2
    text = notes.get(words[0])
    if text is None:
        sys.stderr.write(f"there is no {words[0]} here: the folder that holds it is not seen by this cluster\n")
        return 2
    import ray.util.scheduling_strategies

    import ray

    ray.init(log_to_driver=False, logging_level=logging.WARNING)
    by_value: Any = ray.cloudpickle
    by_value.register_pickle_by_value(raynode)
    program = BatchProgram(json.loads(text), ray)

    def stop(number: int, frame: Any) -> None:
        program.stopped = True

    signal.signal(signal.SIGTERM, stop)
    return 0 if program.run() else 1


if __name__ == "__main__":
    sys.exit(main())
