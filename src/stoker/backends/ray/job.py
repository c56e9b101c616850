"""The program of a Ray job: it runs steps, each of which it has Ray run as a task, or several for a gang, and takes
further ones as they become ready.

    python -m stoker.backends.ray.job PLACE

PLACE is a file, or the URI of a package in the cluster, with the document that `backends.ray.tasks` makes: the first
steps, and where further orders are (`backends.ray.orders`). The program runs in the cluster, with the cluster's Python
and its `ray`, and outlives the driver that sent it. It leaves when it is told that nothing more will come, or has had
nothing to do for "idle_after" seconds. What it has to tell goes to a journal, a line of JSON each: a file where the
driver sees this machine's folders, and otherwise its standard output, which Ray keeps, behind `MARK`:

    {"up": versions}, {"taken": count, "token", "first", "steps": [names …]}, {"step", "waiting": words},
    {"step", "node", "on": host, "task": Ray's id}, {"step", "node", "stream", "data"},
    {"samples": [name, text]}, {"step", "over": {"result", "cause", "message", "code"}}, {"done": true}

"taken" is written before a step of the order begins, and after "done" no order is taken: what a driver does not find
there by then was never begun. Ray retries nothing: what failed is the driver's to decide.
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
from typing import Any, Final, Iterable, Mapping

import attrs

from stoker.backends.ray import node as raynode
from stoker.backends.ray.orders import OrderLines, OrderPackages, OrderSource, take_package, uri_of
from stoker.backends.ray.words import cause_of, chosen, pick, waits
from stoker.core import wire
from stoker.core.codec import parse_object
from stoker.core.errors import StokerError
from stoker.core.protocol import MARK
from stoker.store import notes

TICK: Final = 0.2
"""Seconds between two looks at what nobody tells: tasks that crashed."""
SHARE: Final = 0.05
"""Orders are looked for once in this part of the time since something last happened: soon while steps are short, and
for a long one seldom."""
SELDOM: Final = 0.5
"""Seconds between two looks for orders at most."""
WAITING: Final = 1.0
"""Seconds after which a task that has not begun is said to wait, and between two looks for why."""
GANG_GRACE: Final = 5.0
"""Seconds that the other nodes of a gang get when its first one is over; by then its agent has told them to end."""
STOP_GRACE: Final = 2.0
"""Seconds for all steps when the Ray job itself is stopped: Ray kills after 3 (RAY_JOB_STOP_WAIT_TIME_S)."""
NAMES: Final = ("name", "key", "kind", "attempt", "digest")
"""What the journal says of a step that was taken: by this a later driver knows it."""
UNREAD: Final = 10.0
"""Seconds after a task's good end in which its last message must have been read."""
NODES: Final = 10.0
"""Seconds between two looks for nodes that Ray has given up while steps run there. A machine that is cut off or hangs
closes no connection, and Ray itself notices that of a task after minutes alone (grpc_client_keepalive_time_ms)."""
CUT_OFF: Final = 5.0
"""Seconds after a task's crash in which its connection ends by itself; after that its node is cut off."""
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
    """A step that is not over."""

    number: int
    entry: Mapping[str, Any]
    """The step in its order."""
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


class Journal:
    """Writes the records that the driver reads."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._mark = b"" if path else MARK.encode()

    def write(self, **record: Any) -> None:
        """Write a record, in one call and at the file's end, so that no reader sees half of one.

        The file is closed again: only then is it at the server of a network disk, where the driver reads it.
        """
        data = memoryview(self._mark + json.dumps(record, separators=(",", ":")).encode() + b"\n")
        try:
            file = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600) if self._path else 1
        except FileNotFoundError:
            return  # the driver has removed the folder: it wants to know nothing more
        try:
            while data.nbytes:
                data = data[os.write(file, data) :]
        finally:
            if file != 1:
                os.close(file)


class RunProgram:
    """Runs the steps of the document, and those of its orders."""

    def __init__(self, document: Mapping[str, Any], orders: OrderSource, ray: Any) -> None:
        self._document = document
        self._orders = orders
        self._ray = ray
        self._journal = Journal(document["journal"])
        self._token = secrets.token_hex(16)
        self._selector = selectors.DefaultSelector()
        self._listener = socket.create_server((ray.util.get_node_ip_address(), 0), backlog=1024)
        self._selector.register(self._listener, selectors.EVENT_READ, None)
        self._link = (*self._listener.getsockname()[:2], self._token)
        self._task = ray.remote(max_retries=0, max_calls=0)(raynode.run)
        self._steps: dict[int, BatchStep] = {}
        """Those that are not over, by number."""
        self._tasks: dict[tuple[int, int], NodeTask] = {}
        """Theirs, by step and node."""
        self._taken = 0
        self._good = True
        self._closed = False
        self._last_event = time.monotonic()
        self._next_look = self._next_tick = self._next_words = 0.0
        self._next_nodes = time.monotonic() + NODES
        self.stopped = False

    def run(self) -> bool:
        """Run steps until nothing more will come; whether each succeeded."""
        version = f"{sys.version_info.major}.{sys.version_info.minor}"
        self._journal.write(up={"ray": self._ray.__version__, "python": version})
        self._take({"token": self._document["token"], "first": 0, "steps": self._document["steps"]})
        while not self._leaves():
            pause = min(self._next_look, self._next_tick) - time.monotonic()
            for key, _ in self._selector.select(max(0.0, pause)):
                if key.data is None:
                    self._accept()
                else:
                    self._receive(key.data)
            self._look_for_orders()
            now = time.monotonic()
            if now >= self._next_tick:
                self._next_tick = now + TICK
                self._look_for_crashes()
                self._look_for_lost_nodes(now)
                self._report_waiting()
            for step in list(self._steps.values()):
                self._settle(step)
        self._journal.write(done=True)
        self._orders.close()
        return self._good

    def _leaves(self) -> bool:
        """Whether it is time to leave: nothing runs, nothing came for long or will come, and nothing came just now."""
        if self._steps:
            return False
        if not self._closed and time.monotonic() < self._last_event + self._document["idle_after"]:
            return False
        self._read_orders()
        return not self._steps

    # Orders

    def _look_for_orders(self) -> None:
        now = time.monotonic()
        if self.stopped:
            self.stopped, self._closed = False, True
            for step in list(self._steps.values()):
                self._end_step(step, STOP_GRACE)
        if now >= self._next_look:
            self._read_orders()
            now = time.monotonic()
            since = now - self._last_event
            self._next_look = now + max(self._orders.eager, min(SHARE * since, SELDOM))

    def _read_orders(self) -> None:
        for order in self._orders.read():
            if not self._closed:
                self._take(order)
            for number, grace in order.get("ends", {}).items():
                if int(number) in self._steps:
                    self._end_step(self._steps[int(number)], float(grace))
            if "all" in order:
                for step in list(self._steps.values()):
                    self._end_step(step, order["all"])
            self._closed = self._closed or bool(order.get("close"))

    def _take(self, order: Mapping[str, Any]) -> None:
        """Write that an order is taken, and begin its steps."""
        entries = order.get("steps", [])
        first = order.get("first", 0)
        names = [{name: entry[name] for name in NAMES} for entry in entries]
        self._journal.write(taken=self._taken, token=order.get("token", ""), first=first, steps=names)
        self._taken += 1
        self._last_event = time.monotonic()
        nodes = self._ray.nodes() if entries else []
        for number, entry in enumerate(entries, first):
            self._start(number, entry, nodes)

    # Starting

    def _start(self, number: int, entry: Mapping[str, Any], nodes: list[Mapping[str, Any]]) -> None:
        ask = {**entry["ask"], "choice": chosen(entry["ask"], nodes)}
        step = self._steps[number] = BatchStep(number=number, entry=entry, ask=ask)
        options = pick(ask, entry["runtime_env"])
        if entry["nodes"] > 1:
            step.group, options = self._group(entry, ask, options)
        for node in range(entry["nodes"]):
            if step.group is not None:
                options["scheduling_strategy"] = self._ray.util.scheduling_strategies.PlacementGroupSchedulingStrategy(
                    placement_group=step.group, placement_group_bundle_index=node
                )
            order = {
                "step": number,
                "node": node,
                "nodes": entry["nodes"],
                "spec": entry["spec"],
                "python": entry["python"],
                "bundle": self._document["bundle"],
                "shares": self._document["shares"],
            }
            ref = self._task.options(**options, name=entry["name"]).remote(order, self._link)
            task = self._tasks[number, node] = NodeTask(step=number, node=node, ref=ref)
            step.tasks.append(task)

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
        except (ValueError, KeyError, TypeError, StokerError):  # nothing of ours speaks here
            self._disconnect(task)

    def _introduce(self, stranger: NodeTask, message: Mapping[str, Any]) -> NodeTask:
        if not secrets.compare_digest(str(message["token"]), self._token):
            raise ValueError("the token is wrong")
        task = self._tasks[message["step"], message["node"]]
        task.connection, task.frames = stranger.connection, stranger.frames
        task.began, task.ray_node = True, message["ray_node"]
        assert task.connection is not None
        self._selector.modify(task.connection, selectors.EVENT_READ, task)
        self._journal.write(step=task.step, node=task.node, on=message["host"], task=message["task"])
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

    def _look_for_lost_nodes(self, now: float) -> None:
        """Note the tasks on nodes that Ray has given up."""
        if now < self._next_nodes:
            return
        self._next_nodes = now + NODES
        running = [task for task in self._tasks.values() if task.connection is not None and task.ray_node]
        for task in lost_tasks(running, self._ray.nodes() if running else ()):
            task.crash, task.crashed = ConnectionError("Ray no longer hears from it"), now
            self._disconnect(task)

    def _end_step(self, step: BatchStep, grace: float) -> None:
        """Ask all nodes of a step to end; tasks that have not begun are cancelled."""
        if step.grace is not None and grace >= step.grace:
            return
        step.grace = grace
        for task in step.tasks:
            if task.began:
                self._end(task, grace)
            else:
                self._ray.cancel(task.ref, force=True)

    def _settle(self, step: BatchStep) -> None:
        """Write a step's end, once it is known."""
        for task in step.tasks:
            if is_cut_off(task):
                self._disconnect(task)
        head, others = step.tasks[0], step.tasks[1:]
        if others and (is_over(head) or any(task.crash for task in others)) and step.grace is None:
            self._end_step(step, GANG_GRACE)
        if not all(is_over(task) and self._is_explained(task) for task in step.tasks):
            return
        del self._steps[step.number]
        for task in step.tasks:
            self._disconnect(task)
            del self._tasks[task.step, task.node]
        if step.group is not None:
            self._ray.util.remove_placement_group(step.group)
        end = dict(head.over or {"result": None, "code": None})
        crash = next((task for task in step.tasks if task.crash is not None and task.over is None), None)
        well = bool((end["result"] or {}).get("ok"))
        if crash is not None and crash.crash is not None and not well:
            ended_on_request = step.grace is not None and not others
            end["cause"], end["message"] = cause_of(crash.crash, node_alive=self._alive(crash), asked=ended_on_request)
        self._journal.write(step=step.number, over=end)
        self._good = self._good and well
        self._last_event = time.monotonic()
        self._next_look = 0.0

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
            for step in self._steps.values()
            if now > step.since + WAITING and not any(task.began for task in step.tasks)
        ]
        if not idle:
            return
        nodes, free = self._ray.nodes(), self._ray.available_resources()
        reasons: dict[str, str] = {}
        for step in idle:
            asked = [step.ask, step.entry["nodes"], step.entry["placement"], sorted(step.entry["runtime_env"])]
            alike = json.dumps(asked, sort_keys=True)
            if alike not in reasons:
                reasons[alike] = waits(
                    step.ask,
                    nodes=nodes,
                    free=free,
                    gang=step.entry["nodes"],
                    placement=step.entry["placement"],
                    environment=step.entry["runtime_env"],
                )
            if reasons[alike] != step.reported_wait:
                step.reported_wait = reasons[alike]
                self._journal.write(step=step.number, waiting=step.reported_wait)


def lost_tasks(tasks: Iterable[NodeTask], nodes: Iterable[Mapping[str, Any]]) -> list[NodeTask]:
    """The tasks whose node has died. Ray goes on listing it: one that is not listed is not known to be dead."""
    dead = {one["NodeID"] for one in nodes if not one["Alive"]}
    return [task for task in tasks if task.ray_node in dead and task.crash is None]


def is_cut_off(task: NodeTask) -> bool:
    """Whether Ray has given up a task whose connection is still open. A step that goes on there ends with it."""
    return task.connection is not None and task.crash is not None and time.monotonic() > task.crashed + CUT_OFF


def is_over(task: NodeTask) -> bool:
    """Whether nothing more is to come of a task. Ray may report its end before what it sent has been read."""
    if task.connection is not None:
        return False
    patience = UNREAD if task.crash is None else TICK
    return task.over is not None or (task.crashed > 0 and time.monotonic() > task.crashed + patience)


def main(arguments: list[str] | None = None) -> int:
    """Run the steps of the document at PLACE and of its orders; 0 where all succeeded."""
    words = sys.argv[1:] if arguments is None else arguments
    if len(words) != 1:
        sys.stderr.write("usage: python -m stoker.backends.ray.job PLACE\n")
        return 2
    place = words[0]
    in_cluster = place.startswith(uri_of(""))
    text = None if in_cluster else notes.get(place)
    if text is None and not in_cluster:
        sys.stderr.write(f"there is no {place} here: the folder that holds it is not seen by this cluster\n")
        return 2
    import ray.util.scheduling_strategies
    from ray.experimental import internal_kv

    import ray

    ray.init(log_to_driver=False, logging_level=logging.WARNING)
    if in_cluster:
        text = take_package(place, internal_kv)
    if text is None:
        sys.stderr.write(f"the cluster has no {place} any more: the job waited too long, or was started already\n")
        return 2
    by_value: Any = ray.cloudpickle
    by_value.register_pickle_by_value(raynode)
    document = parse_object(text, where=place)
    orders = OrderPackages(document["orders"], internal_kv) if in_cluster else OrderLines(document["orders"])
    program = RunProgram(document, orders, ray)

    def stop(number: int, frame: Any) -> None:
        program.stopped = True

    signal.signal(signal.SIGTERM, stop)
    return 0 if program.run() else 1


if __name__ == "__main__":
    sys.exit(main())
