"""The kubelets of all nodes: they run the containers of pods as processes of this machine."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shlex
import sys
from collections.abc import Coroutine
from fractions import Fraction
from pathlib import Path

from attrs import define, field
from tests.kubernetes.server.access import Access
from tests.kubernetes.server.containers import Container
from tests.kubernetes.server.deletion import Deletion
from tests.kubernetes.server.failures import bad_request
from tests.kubernetes.server.images import Images
from tests.kubernetes.server.logs import LogBook, LogRequest, unreachable_node
from tests.kubernetes.server.nodes import Nodes
from tests.kubernetes.server.objects import FINISHED, NODES, PODS, Object, amount, condition_of, requests_of, seconds_of
from tests.kubernetes.server.store import Change
from tests.kubernetes.server.volumes import NotMounted, Volumes, size_of
from tests.kubernetes.server.world import World

SERVER = "TEST_KUBELET_SERVER"
"""Environment variable of all containers of one server; its value is the server's folder."""
SETTLING = 1.2
"""Seconds from the end of the last container to the pod's last phase."""
LEAST_GRACE = 2.0
"""Seconds that a container has to end when its pod was deleted without any."""
STORAGE_CHECKS = 5.0
"""Seconds between two looks at how much a pod has written."""
INHERITED = ("OMP_NUM_THREADS", "COVERAGE_PROCESS_START", "PYTHONDONTWRITEBYTECODE")
"""Variables of the tests that an image has, so to speak."""
BY_KUBELET = ("PodReadyToStartContainers", "Initialized", "Ready", "ContainersReady", "PodScheduled")
"""Conditions of a pod in the order in which a kubelet writes them; all others stay behind them."""
UNLIMITED = "9007199254740988Ki"
"""What a cgroup of version 1 says of memory without a limit."""


class Rejected(Exception):
    """A node cannot take a pod that was bound to it."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason


@define(eq=False)
class Devices:
    """The devices of all nodes, and who has them."""

    world: World
    _held: dict[tuple[str, str], dict[int, str]] = field(factory=dict)
    """Uid of the pod by number of the device, for each node and resource."""

    def take(self, pod: Object) -> dict[str, list[int]]:
        """Give a pod its devices; their numbers by resource.

        Raises:
            Rejected: There are not as many free.
        """
        node, uid = pod["spec"]["nodeName"], pod["metadata"]["uid"]
        capacity = (self.world.store.get(NODES, "", node) or {"status": {}})["status"].get("allocatable", {})
        taken: dict[str, list[int]] = {}
        for resource, wanted in requests_of(pod).items():
            if "/" not in resource:
                continue
            held = self._held.setdefault((node, resource), {})
            free = [number for number in range(int(amount(capacity.get(resource, "0")))) if number not in held]
            if wanted > len(free):
                raise Rejected(
                    "UnexpectedAdmissionError",
                    f"Allocate failed due to requested number of devices unavailable for {resource}. Requested: "
                    f"{wanted}, Available: {len(free)}, which is unexpected",
                )
            taken[resource] = free[: int(wanted)]
            held |= dict.fromkeys(taken[resource], uid)
        return taken

    def give_back(self, uid: str) -> None:
        """Take a pod's devices from it."""
        for held in self._held.values():
            for number in [number for number, holder in held.items() if holder == uid]:
                del held[number]


@define(eq=False)
class Kubelet:
    """Runs the pods of all nodes."""

    world: World
    access: Access
    deletion: Deletion
    nodes: Nodes
    folder: Path
    """Below which everything of containers lies."""
    address: str = ""
    """Host and port of the API server, for the containers' environment."""
    images: Images = field(factory=Images)
    devices: Devices = field(init=False)
    turn: asyncio.Lock = field(factory=asyncio.Lock)
    """Held while a pod is prepared: between two pods the server answers requests, however many start at once."""
    _runners: dict[str, PodRunner] = field(factory=dict)
    _addresses: int = 0

    def __attrs_post_init__(self) -> None:
        self.devices = Devices(self.world)
        tools = self.folder / "bin"
        tools.mkdir(parents=True, exist_ok=True)
        for name in ("python", "python3"):
            tool = tools / name
            tool.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} "$@"\n')
            tool.chmod(0o755)
        self.world.store.listen(self._heard)

    def _heard(self, change: Change) -> None:
        if change.resource is NODES and change.type == "DELETED":
            self.nodes.gone(change.object["metadata"]["name"])
            self._crash(change.object["metadata"]["name"])
        if change.resource is not PODS:
            return
        pod, uid = change.object, change.object["metadata"]["uid"]
        runner = self._runners.get(uid)
        if runner is None:
            if pod["spec"].get("nodeName") and change.type != "DELETED" and pod["status"]["phase"] not in FINISHED:
                self._runners[uid] = PodRunner(self, pod, self._next_address(pod))
                self._runners[uid].begin()
            return
        if change.type == "DELETED":
            runner.vanished(pod)
        else:
            runner.seen(pod)

    def _next_address(self, pod: Object) -> str:
        if pod["spec"].get("hostNetwork"):
            return self.node_address(pod)
        self._addresses += 1
        number = self._addresses
        return f"127.{10 + number // 62500 % 200}.{number // 250 % 250}.{number % 250 + 1}"

    def node_address(self, pod: Object) -> str:
        """The address of a pod's node."""
        node = self.world.store.get(NODES, "", pod["spec"].get("nodeName", ""))
        addresses = node["status"]["addresses"] if node is not None else []
        return next((str(each["address"]) for each in addresses if each["type"] == "InternalIP"), "127.0.0.1")

    def answers(self, node: str) -> bool:
        """Whether the kubelet of a node reaches the API."""
        return node not in self.nodes.silent

    def catch_up(self, node: str) -> None:
        """Tell the API what has happened on a node while it was silent, and do what was asked for meanwhile."""
        for runner in list(self._runners.values()):
            if runner.pod["spec"]["nodeName"] == node:
                runner.catch_up()

    def _crash(self, node: str) -> None:
        """End all processes of a node without a word to anybody, as a machine that loses power."""
        for runner in list(self._runners.values()):
            if runner.pod["spec"]["nodeName"] == node:
                runner.abandon()

    def pids(self) -> dict[str, list[int]]:
        """The main processes of the containers that run, by the pod's namespace and name."""
        names = {uid: runner.pod["metadata"] for uid, runner in self._runners.items()}
        return {
            f"{names[uid]['namespace']}/{names[uid]['name']}": pids
            for uid, runner in self._runners.items()
            if (pids := runner.pids())
        }

    async def forget(self) -> None:
        """End all containers at once."""
        for runner in list(self._runners.values()):
            await runner.end_now()
        self._runners.clear()
        self.devices = Devices(self.world)

    def done(self, runner: PodRunner) -> None:
        """A pod is gone from the API."""
        self._runners.pop(runner.pod["metadata"]["uid"], None)

    def container(self, pod: Object, wanted: str) -> Container | None:
        """The container of that name, or the one that decides; None before the pod has any.

        Raises:
            Refused: There is no such container.
        """
        name, runner = _container_name(pod, wanted), self._runners.get(pod["metadata"]["uid"])
        return runner.container(name) if runner is not None else None

    def log(self, pod: Object, wanted: LogRequest) -> LogBook | None:
        """What the log endpoint reads from; None for a pod without a node.

        Raises:
            Refused: There is no such container, it has not started, or its node does not answer.
        """
        metadata, spec = pod["metadata"], pod["spec"]
        name = _container_name(pod, wanted.container)
        node = spec.get("nodeName")
        if not node:
            return None
        if not self.answers(node):
            raise unreachable_node(self.node_address(pod), metadata["namespace"], metadata["name"], name)
        runner = self._runners.get(metadata["uid"])
        container = runner.container(name) if runner is not None else None
        if container is None:
            raise bad_request(f'container "{name}" in pod "{metadata["name"]}" is not available')
        if wanted.previous:
            if len(container.books) < 2:
                text = f'previous terminated container "{name}" in pod "{metadata["name"]}" not found'
                raise bad_request(text)
            return container.books[-2]
        if not container.books:
            reason = container.state.get("waiting", {}).get("reason", "ContainerCreating")
            if reason in ("ErrImagePull", "ImagePullBackOff"):
                reason = "trying and failing to pull image"
            raise bad_request(f'container "{name}" in pod "{metadata["name"]}" is waiting to start: {reason}')
        return container.books[-1]


def _container_name(pod: Object, wanted: str) -> str:
    spec, name = pod["spec"], pod["metadata"]["name"]
    names = [each["name"] for each in spec["containers"]]
    inits = [each["name"] for each in spec.get("initContainers", [])]
    if wanted:
        if wanted not in names + inits:
            raise bad_request(f"container {wanted} is not valid for pod {name}")
        return wanted
    default = (pod["metadata"].get("annotations") or {}).get("kubectl.kubernetes.io/default-container")
    if len(names) == 1 or default in names:
        return str(default if default in names else names[0])
    others = f" or one of the init containers: [{' '.join(inits)}]" if inits else ""
    raise bad_request(f"a container name must be specified for pod {name}, choose one of: [{' '.join(names)}]{others}")


@define(eq=False)
class PodRunner:
    """Runs one pod, and tells the API of it."""

    kubelet: Kubelet
    pod: Object
    """Its newest state."""
    address: str
    phase: str = "Pending"
    containers: list[Container] = field(factory=list)
    """Init containers first."""
    _volumes: Volumes = field(init=False)
    _stopping: asyncio.Event = field(factory=asyncio.Event)
    _grace: float = 0.0
    _deleted: bool = False
    _reason: tuple[str, str] | None = None
    """Reason and message of a pod that the kubelet itself ends."""
    _mounted: bool = False
    _started: str = ""
    _tasks: list[asyncio.Task[None]] = field(factory=list)
    _since: dict[str, tuple[str, str]] = field(factory=dict)
    """Status and time of its last change, by condition."""

    def __attrs_post_init__(self) -> None:
        folder = self.kubelet.folder / "pods" / self.pod["metadata"]["uid"]
        self._volumes = Volumes(
            self.kubelet.world, self.kubelet.access, self.pod, folder, self.kubelet.folder / "claims"
        )

    def begin(self) -> None:
        """Start working."""
        self._tasks.append(asyncio.create_task(self._run()))

    def seen(self, pod: Object) -> None:
        """The API has a new state of the pod."""
        self.pod = pod
        if pod["metadata"].get("deletionTimestamp") and self.kubelet.answers(pod["spec"]["nodeName"]):
            self._deleted = True
            self._stop(float(pod["metadata"]["deletionGracePeriodSeconds"]))

    def vanished(self, pod: Object) -> None:
        """The pod is gone from the API; its containers get a moment all the same."""
        self.pod = pod
        if self.kubelet.world.store.get(NODES, "", pod["spec"]["nodeName"]) is None:
            self._forget()
            return
        self._deleted = True
        if self.kubelet.answers(pod["spec"]["nodeName"]):
            self._stop(LEAST_GRACE)
        if self.phase in FINISHED:
            self._forget()

    def catch_up(self) -> None:
        """The node answers again."""
        newest = self.kubelet.world.store.current(PODS, self.pod)
        if newest is None:
            self.vanished(self.pod)
            return
        self._publish()
        self.seen(self.kubelet.world.store.current(PODS, self.pod) or newest)

    def kill(self) -> None:
        """End its processes at once."""
        self._stopping.set()
        for container in self.containers:
            if container.process is not None and container.running:
                container.process.kill()

    def pids(self) -> list[int]:
        """Its main processes."""
        return [each.process.pid for each in self.containers if each.process is not None and each.running]

    def container(self, name: str) -> Container | None:
        """The container of that name."""
        return next((each for each in self.containers if each.name == name), None)

    def abandon(self) -> None:
        """End everything without a word to the API."""
        for task in self._tasks:
            task.cancel()
        self.kill()
        self.phase = "Failed"
        self.kubelet.devices.give_back(self.pod["metadata"]["uid"])

    async def end_now(self) -> None:
        """End everything without a word to the API, and wait for the end."""
        processes = [each.process for each in self.containers if each.process is not None and each.running]
        self.abandon()
        for process in processes:
            await process.ended()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._volumes.remove()

    def _task(self, work: Coroutine[None, None, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(work)
        self._tasks.append(task)
        return task

    def _stop(self, grace: float) -> None:
        self._grace = grace if not self._stopping.is_set() else min(grace, self._grace)
        self._stopping.set()

    async def _pause(self, seconds: float) -> None:
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(self._stopping.wait(), timeout=seconds)

    async def _run(self) -> None:
        world, spec = self.kubelet.world, self.pod["spec"]
        self._started = world.clock.stamp()
        try:
            async with self.kubelet.turn:
                devices = self._admit()
        except Rejected as rejected:
            self._reject(rejected)
            return
        self._make_containers(devices)
        if self.pod["metadata"].get("deletionTimestamp"):
            self.seen(self.pod)
        self._publish()
        ending = self._task(self._end_containers())
        await self._mount()
        self._mounted = not self._stopping.is_set()
        watching = self._watches()
        self._publish()
        inits = [each for each in self.containers if each.init]
        mains = [each for each in self.containers if not each.init]
        if await self._run_inits(inits) and not self._stopping.is_set():
            await asyncio.gather(*(each.run(spec["restartPolicy"]) for each in mains))
        stopped = self._stopping.is_set()
        for task in watching:
            task.cancel()
        await asyncio.gather(*watching, return_exceptions=True)
        if stopped:
            await ending
        else:
            self._publish()
            for sidecar in reversed([each for each in inits if each.sidecar]):
                sidecar.stopping.set()
                await sidecar.stop(float(spec["terminationGracePeriodSeconds"]))
            await self._pause(world.pace(SETTLING))
        ending.cancel()
        await asyncio.gather(ending, return_exceptions=True)
        await self._finish(mains)

    def _admit(self) -> dict[str, list[int]]:
        """The pod's devices, if the node has room for it.

        Raises:
            Rejected: It has not.
        """
        store, name = self.kubelet.world.store, self.pod["spec"]["nodeName"]
        node, wanted = store.get(NODES, "", name), requests_of(self.pod)
        capacity = node["status"]["allocatable"] if node is not None else {}
        there = [
            each
            for each in store.each(PODS)
            if each["spec"].get("nodeName") == name
            and each["status"]["phase"] not in FINISHED
            and each["metadata"]["uid"] != self.pod["metadata"]["uid"]
        ]
        for resource in ("cpu", "memory", "ephemeral-storage"):
            have, want = amount(capacity.get(resource, "0")), wanted.get(resource, Fraction(0))
            if not want:
                continue
            used = sum((requests_of(each).get(resource, Fraction(0)) for each in there), Fraction(0))
            if used + want > have:
                unit = 1000 if resource == "cpu" else 1
                figures = [int(value * unit) for value in (want, used, have)]
                raise Rejected(
                    f"OutOf{resource}",
                    f"Node didn't have enough resource: {resource}, requested: {figures[0]}, used: {figures[1]}, "
                    f"capacity: {figures[2]}",
                )
        return self.kubelet.devices.take(self.pod)

    def _reject(self, rejected: Rejected) -> None:
        self._event("Warning", rejected.reason, str(rejected))
        newest = self.kubelet.world.store.current(PODS, self.pod)
        self.phase = "Failed"
        if newest is not None:
            status = {
                **newest["status"],
                "observedGeneration": 1,
                "phase": "Failed",
                "message": f"Pod was rejected: {rejected}",
                "reason": rejected.reason,
                "startTime": self._started,
            }
            self.kubelet.world.store.put(PODS, {**newest, "status": status})

    def _make_containers(self, devices: dict[str, list[int]]) -> None:
        kubelet, spec, folder = self.kubelet, self.pod["spec"], self._volumes.folder
        host, _, port = kubelet.address.partition(":")
        base = {name: os.environ[name] for name in INHERITED if name in os.environ}
        base["PYTHONTZPATH"] = ""  # images need not have data of time zones
        base |= {
            "PATH": f"{kubelet.folder / 'bin'}:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
            SERVER: str(kubelet.folder),
            "HOSTNAME": spec.get("hostname", self.pod["metadata"]["name"]),
            "KUBERNETES_SERVICE_HOST": host,
            "KUBERNETES_SERVICE_PORT": port,
        }
        if numbers := devices.get("nvidia.com/gpu"):
            base["NVIDIA_VISIBLE_DEVICES"] = ",".join(f"GPU-{number}" for number in numbers)
        inits = spec.get("initContainers", [])
        for position, each in enumerate([*inits, *spec["containers"]]):
            state = {"waiting": {"reason": "PodInitializing" if inits else "ContainerCreating"}}
            self.containers.append(
                Container(
                    world=kubelet.world,
                    images=kubelet.images,
                    volumes=self._volumes,
                    spec=each,
                    init=position < len(inits),
                    base=base,
                    folder=folder / "containers" / each["name"],
                    changed=self._changed,
                    # A sidecar outlives the signal that ends the others only when the pod ends by itself.
                    stopping=asyncio.Event() if each.get("restartPolicy") == "Always" else self._stopping,
                    pod_status=self._addresses_of_pod,
                    state=state,
                )
            )

    def _addresses_of_pod(self) -> Object:
        return {"podIP": self.address, "hostIP": self.kubelet.node_address(self.pod)}

    async def _mount(self) -> None:
        wait = 0.5
        while not self._stopping.is_set():
            try:
                async with self.kubelet.turn:
                    self._volumes.make()
            except NotMounted as missing:
                self._event("Warning", "FailedMount", str(missing))
                await self._pause(self.kubelet.world.pace(wait))
                wait = min(2 * wait, 120.0)
            else:
                return

    async def _run_inits(self, inits: list[Container]) -> bool:
        """Run the init containers one after the other; whether the others may begin."""
        policy = self.pod["spec"]["restartPolicy"]
        for container in inits:
            if container.sidecar:
                self._tasks.append(asyncio.create_task(container.run(policy)))
                while not container.running and not container.ended.is_set() and not self._stopping.is_set():
                    await self._pause(0.005)
                continue
            await container.run(policy)
            if self._stopping.is_set() or container.exit_code != 0:
                return False
        return True

    def _watches(self) -> list[asyncio.Task[None]]:
        """What may end the pod beside its containers: a deadline, and too much written."""
        spec, watching = self.pod["spec"], []
        if "activeDeadlineSeconds" in spec:
            watching.append(self._task(self._watch_deadline(float(spec["activeDeadlineSeconds"]))))
        limits: dict[str, int] = {}
        for volume in spec.get("volumes", []):
            source = volume.get("emptyDir") or {}
            if "sizeLimit" in source and source.get("medium") != "Memory":
                limits[volume["name"]] = int(amount(source["sizeLimit"]))
        storage = [(each["resources"].get("limits") or {}).get("ephemeral-storage") for each in spec["containers"]]
        total = sum(int(amount(each)) for each in storage if each) if all(storage) else None
        if limits or total is not None:
            watching.append(self._task(self._watch_storage(limits, total)))
        return watching

    async def _watch_deadline(self, seconds: float) -> None:
        await asyncio.sleep(max(seconds_of(self._started) + seconds - self.kubelet.world.clock.now(), 0.0))
        message = "Pod was active on the node longer than the specified deadline"
        self._event("Normal", "DeadlineExceeded", message)
        self._reason = "DeadlineExceeded", message
        self._publish()
        self._stop(float(self.pod["spec"]["terminationGracePeriodSeconds"]))

    async def _watch_storage(self, limits: dict[str, int], total: int | None) -> None:
        while True:
            await asyncio.sleep(self.kubelet.world.pace(STORAGE_CHECKS))
            message = ""
            for name, limit in limits.items():
                if self._volumes.usage(name) > limit:
                    volume = next(each for each in self.pod["spec"]["volumes"] if each["name"] == name)
                    shown = volume["emptyDir"]["sizeLimit"]
                    message = f'Usage of EmptyDir volume "{name}" exceeds the limit "{shown}". '
            if not message and total is not None and size_of(self._volumes.folder) > total:
                shown = self.pod["spec"]["containers"][0]["resources"]["limits"]["ephemeral-storage"]
                message = f"Pod ephemeral local storage usage exceeds the total limit of containers {shown}. "
            if message:
                self._event("Warning", "Evicted", message)
                self._reason = "Evicted", message
                self._stop(float(self.pod["spec"]["terminationGracePeriodSeconds"]))
                return

    async def _end_containers(self) -> None:
        """Once the pod is to end: SIGTERM for all, and SIGKILL for those that are left after the grace."""
        await self._stopping.wait()
        mains = [each for each in self.containers if not each.sidecar]
        await asyncio.gather(*(each.stop(self._grace) for each in mains))
        for sidecar in reversed([each for each in self.containers if each.sidecar]):
            sidecar.stopping.set()
            await sidecar.stop(self._grace)

    async def _finish(self, mains: list[Container]) -> None:
        """Tell the API how the pod has ended."""
        inits = [each for each in self.containers if each.init and not each.sidecar]
        codes = [each.exit_code for each in inits + mains]
        self.phase = "Succeeded" if all(code == 0 for code in codes) and self._reason is None else "Failed"
        self.kubelet.devices.give_back(self.pod["metadata"]["uid"])
        self._publish()
        newest = self.kubelet.world.store.current(PODS, self.pod)
        if newest is None:
            self._forget()
        elif self._deleted or newest["metadata"].get("deletionTimestamp"):
            await asyncio.sleep(self.kubelet.world.pace(0.3))
            if self.kubelet.answers(newest["spec"]["nodeName"]):
                self.kubelet.deletion.end_pod(newest)

    def _forget(self) -> None:
        self._volumes.remove()
        self.kubelet.done(self)

    def _event(self, type: str, reason: str, message: str) -> None:
        node = self.pod["spec"]["nodeName"]
        self.kubelet.world.recorder.write(self.pod, type, reason, message, "kubelet", host=node)

    def _changed(self) -> None:
        """A container's state has changed; the last ones of a pod that is ended are told together with its phase."""
        if not self._stopping.is_set():
            self._publish()

    def _publish(self) -> None:
        """Write the pod's status, if the API can be reached and still has the pod."""
        store = self.kubelet.world.store
        pod = store.current(PODS, self.pod)
        if pod is None or not self.kubelet.answers(pod["spec"]["nodeName"]):
            return
        mains = [each for each in self.containers if not each.init]
        inits = [each for each in self.containers if each.init]
        if self.phase == "Pending" and any(each.running for each in mains):
            self.phase = "Running"
        host = self.kubelet.node_address(pod)
        status: Object = {
            "observedGeneration": pod["metadata"]["generation"],
            "phase": self.phase,
            "conditions": self._conditions(pod, inits, mains),
            "hostIP": host,
            "hostIPs": [{"ip": host}],
            "startTime": self._started,
            "qosClass": pod["status"]["qosClass"],
            **self._resources(mains),
        }
        if self._mounted:
            status |= {"podIP": self.address, "podIPs": [{"ip": self.address}]}
        if self._reason is not None and self.phase == "Failed":
            status["reason"], status["message"] = self._reason
        if inits:
            status["initContainerStatuses"] = [each.status() for each in inits]
        status["containerStatuses"] = sorted((each.status() for each in mains), key=lambda each: str(each["name"]))
        store.put(PODS, {**pod, "status": status})

    def _resources(self, mains: list[Container]) -> Object:
        """What the pod as a whole has been given; of one whose containers have ended, what is left of its cgroup."""
        asked = [each.spec.get("resources") or {} for each in mains]
        each = asked[0] if len(asked) == 1 else {}
        given: Object = {"allocatedResources": each["requests"]} if each.get("requests") else {}
        ended = any("terminated" in one.state for one in mains)
        whole = {"limits": {"memory": UNLIMITED}} if ended and "memory" not in (each.get("limits") or {}) else each
        return {**given, "resources": whole}

    def _conditions(self, pod: Object, inits: list[Container], mains: list[Container]) -> list[Object]:
        finished = self.phase in FINISHED
        over = all("terminated" in each.state for each in mains)
        reason = {"Succeeded": "PodCompleted", "Failed": "PodFailed"}.get(self.phase, "")
        if not reason and over:
            reason = "PodCompleted" if all(each.exit_code == 0 for each in mains) else "PodFailed"
        late = self._reason is not None and self._reason[0] == "DeadlineExceeded"
        unready = [each.name for each in mains if late or not each.running]
        words = {"reason": "ContainersNotReady", "message": f"containers with unready status: [{' '.join(unready)}]"}
        ready: Object = ({"reason": reason} if reason else words) if unready else {}
        incomplete = [each.name for each in inits if not (each.running if each.sidecar else each.exit_code == 0)]
        words = {
            "reason": "ContainersNotInitialized",
            "message": f"containers with incomplete status: [{' '.join(incomplete)}]",
        }
        initialized = words if incomplete and not (finished and self.phase == "Succeeded") else {}
        values: dict[str, tuple[bool, Object]] = {
            "PodReadyToStartContainers": (self._mounted and not finished, {}),
            "Initialized": (not initialized, initialized),
            "Ready": (not unready, ready),
            "ContainersReady": (not unready, ready),
        }
        conditions = [self._condition(type, *value) for type, value in values.items()]
        scheduled = condition_of(pod, "PodScheduled")
        others = [each for each in pod["status"].get("conditions", []) if each["type"] not in BY_KUBELET]
        return conditions + ([scheduled] if scheduled is not None else []) + others

    def _condition(self, type: str, holds: bool, words: Object) -> Object:
        status, now = "True" if holds else "False", self.kubelet.world.clock.stamp()
        if type not in self._since or self._since[type][0] != status:
            self._since[type] = status, now
        times = {"lastProbeTime": None, "lastTransitionTime": self._since[type][1]}
        return {"type": type, "observedGeneration": 1, "status": status, **times, **words}
