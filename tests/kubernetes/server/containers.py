"""One container of a pod: its image, its environment, its process, its restarts, and its status."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import signal
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from attrs import define, field
from tests.kubernetes.server.images import Images, PullFailure
from tests.kubernetes.server.logs import LogBook
from tests.kubernetes.server.objects import Object, amount
from tests.kubernetes.server.processes import ContainerProcess, new_id
from tests.kubernetes.server.volumes import NotConfigured, Volumes, expanded
from tests.kubernetes.server.world import World

RESTARTS = 10.0
"""Seconds until the second restart in place; doubled with each further one."""
PULLS = 10.0
"""Seconds until an image that could not be pulled is asked for again; doubled with each further time."""
MEMORY_CHECKS = 0.05
"""Seconds between two looks at how much memory a container takes."""
LONGEST_MESSAGE = 4096


@define(eq=False, kw_only=True)
class Container:
    """A container and what it has been through."""

    world: World
    images: Images
    volumes: Volumes
    spec: Object
    init: bool
    """Whether it is among the pod's `initContainers`."""
    base: Mapping[str, str]
    """Environment that the kubelet and the image give."""
    folder: Path
    """What is its own: working folder, temporary files, termination message."""
    changed: Callable[[], None]
    """Called when its state has changed."""
    stopping: asyncio.Event
    """Set when the pod is to end."""
    pod_status: Callable[[], Object]
    state: Object = field(factory=lambda: {"waiting": {"reason": "ContainerCreating"}})
    last_state: Object = field(factory=dict)
    restarts: int = 0
    books: list[LogBook] = field(factory=list)
    process: ContainerProcess | None = None
    ended: asyncio.Event = field(factory=asyncio.Event)
    """Set when it will not run again."""
    _id: str = ""
    _pulled: bool = False
    _out_of_memory: bool = False

    @property
    def name(self) -> str:
        """Its name in the pod."""
        return str(self.spec["name"])

    @property
    def sidecar(self) -> bool:
        """Whether it is an init container that goes on beside the others."""
        return self.init and self.spec.get("restartPolicy") == "Always"

    @property
    def running(self) -> bool:
        """Whether its process runs."""
        return "running" in self.state

    @property
    def exit_code(self) -> int | None:
        """Its last exit code, once it has ended."""
        return self.state["terminated"]["exitCode"] if "terminated" in self.state else None

    def status(self) -> Object:
        """Its entry in the pod's status."""
        image = self.spec["image"]
        waiting = "waiting" in self.state and not self.restarts
        resources = self.spec.get("resources") or {}
        status: Object = {
            "name": self.name,
            "state": self.state,
            "lastState": self.last_state,
            "ready": self.running and (self.sidecar or not self.init),
            "restartCount": self.restarts,
            "image": image,
            "imageID": "" if waiting else f"{image.partition(':')[0]}@sha256:{'65b492ed' * 8}",
            "started": self.running,
            "volumeMounts": [
                {"name": each["name"], "mountPath": each["mountPath"]}
                | ({"readOnly": True, "recursiveReadOnly": "Disabled"} if each.get("readOnly") else {})
                for each in self.spec.get("volumeMounts", [])
            ],
        }
        if self._id:
            status["containerID"] = self._id
        if not waiting:
            status["resources"] = resources
            if requests := resources.get("requests"):
                status["allocatedResources"] = requests
        return status

    async def run(self, restart_policy: str) -> None:
        """Run it, again if its pod's policy or its own says so, until it has ended for good.

        Args:
            restart_policy: The pod's: "Never", "OnFailure" or "Always".
        """
        policy = "Always" if self.sidecar else restart_policy
        if self.init and not self.sidecar and policy == "Always":
            policy = "OnFailure"
        try:
            while not self.stopping.is_set():
                await self._run_once()
                code = self.exit_code
                again = policy == "Always" or (policy == "OnFailure" and code != 0)
                if self.stopping.is_set() or not again:
                    return
                await self._back_off()
        finally:
            self.ended.set()

    async def stop(self, grace: float) -> None:
        """End it: SIGTERM, and SIGKILL when `grace` seconds are over."""
        if self.process is None or not self.running:
            return
        self.event("Normal", "Killing", f"Stopping container {self.name}")
        self.process.terminate()
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(self.process.ended(), timeout=grace)
            return
        self.process.kill()
        await self.process.ended()

    def event(self, type: str, reason: str, message: str) -> None:
        """Write an event about it."""
        kind = "initContainers" if self.init else "containers"
        pod = self.volumes.pod
        host, path = pod["spec"]["nodeName"], f"spec.{kind}{{{self.name}}}"
        self.world.recorder.write(pod, type, reason, message, "kubelet", host=host, path=path)

    def _wait_for(self, reason: str, message: str = "") -> None:
        waiting = {"reason": reason} | ({"message": message} if message else {})
        if self.state != {"waiting": waiting}:
            self.state = {"waiting": waiting}
            self.changed()

    async def pause(self, seconds: float) -> None:
        """Wait, but not when the pod is to end."""
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(self.stopping.wait(), timeout=seconds)

    async def _run_once(self) -> None:
        await self._pull()
        environment = await self._configure()
        if environment is None or self.stopping.is_set():
            return
        self.event("Normal", "Created", "Container created")
        self._id = new_id()
        log = LogBook(self.world.clock)
        self.books.append(log)
        try:
            process = self._start(environment, log)
        except OSError as error:
            self._not_started(error, self._command(environment)[0])
            log.close()
            return
        self.process = process
        started = self.world.clock.stamp()
        self.state = {"running": {"startedAt": started}}
        self.event("Normal", "Started", "Container started")
        self.changed()
        self._out_of_memory = False
        watching = asyncio.create_task(self._watch_memory(process)) if "memory" in self._limits() else None
        code = await process.ended()
        if watching is not None:
            watching.cancel()
        self.state = {"terminated": self._terminated(code, started, log)}
        self.changed()

    def _limits(self) -> Object:
        return dict((self.spec.get("resources") or {}).get("limits") or {})

    async def _pull(self) -> None:
        image, policy = self.spec["image"], self.spec["imagePullPolicy"]
        if self._pulled and policy != "Always":
            return
        attempts = 0
        while not self.stopping.is_set():
            failure = self.images.failure(image, policy)
            if failure is None:
                if policy == "Always":
                    self.event("Normal", "Pulling", f'Pulling image "{image}"')
                    size = "86ms (86ms including waiting). Image size: 48190758 bytes."
                    self.event("Normal", "Pulled", f'Successfully pulled image "{image}" in {size}')
                else:
                    text = f'Container image "{image}" already present on machine and can be accessed by the pod'
                    self.event("Normal", "Pulled", text)
                self._pulled = True
                return
            attempts += 1
            await self._not_pulled(failure, image, attempts)

    async def _not_pulled(self, failure: PullFailure, image: str, attempts: int) -> None:
        if failure.reason != "ErrImagePull":
            reason = "InspectFailed" if failure.reason == "InvalidImageName" else failure.reason
            self.event("Warning", reason, failure.message)
            self.event("Warning", "Failed", f"Error: {failure.reason}")
            self._wait_for(failure.reason, failure.message)
            await self.pause(self.world.pace(PULLS))
            return
        self.event("Normal", "Pulling", f'Pulling image "{image}"')
        self.event("Warning", "Failed", f'Failed to pull image "{image}": {failure.message}')
        self.event("Warning", "Failed", "Error: ErrImagePull")
        self._wait_for("ErrImagePull", failure.message)
        wait = self.world.pace(min(PULLS * 2 ** (attempts - 1), 300.0))
        await self.pause(wait / 2)
        if not self.stopping.is_set():
            self.event("Normal", "BackOff", f'Back-off pulling image "{image}"')
            self.event("Warning", "Failed", "Error: ImagePullBackOff")
            self._wait_for("ImagePullBackOff", f'Back-off pulling image "{image}": ErrImagePull: {failure.message}')
            await self.pause(wait / 2)

    async def _configure(self) -> dict[str, str] | None:
        """The environment, as soon as all that it refers to is there."""
        while not self.stopping.is_set():
            try:
                return {**self.base, **self.volumes.environment(self.spec, self.pod_status())}
            except NotConfigured as missing:
                self.event("Warning", "Failed", f"Error: {missing}")
                self._wait_for("CreateContainerConfigError", str(missing))
                await self.pause(self.world.pace(12.0))
        return None

    def _command(self, environment: Mapping[str, str]) -> list[str]:
        paths = self.volumes.paths(self.spec, self.pod_status(), self.folder)
        words = [*(self.spec.get("command") or []), *(self.spec.get("args") or [])] or ["python3"]
        return [paths.rewritten(expanded(word, environment)) for word in words]

    def world_of(self, command: Sequence[str]) -> tuple[list[str], dict[str, str], Path]:
        """Words, environment and working folder of a further command in the container."""
        paths = self.volumes.paths(self.spec, self.pod_status(), self.folder)
        environment = {**self.base, **self.volumes.environment(self.spec, self.pod_status())}
        return [paths.rewritten(word) for word in command], self._rewritten(environment), self.folder

    def _rewritten(self, environment: Mapping[str, str]) -> dict[str, str]:
        paths = self.volumes.paths(self.spec, self.pod_status(), self.folder)
        rewritten = {name: paths.rewritten(value) for name, value in environment.items()}
        rewritten.setdefault("HOME", str(self.folder))
        rewritten.setdefault("TMPDIR", str(self.folder / "tmp"))
        return rewritten

    def _start(self, environment: Mapping[str, str], log: LogBook) -> ContainerProcess:
        paths = self.volumes.paths(self.spec, self.pod_status(), self.folder)
        (self.folder / "tmp").mkdir(parents=True, exist_ok=True)
        Path(paths.places[self.spec["terminationMessagePath"]]).unlink(missing_ok=True)
        rewritten = self._rewritten(environment)
        wanted = self.spec.get("workingDir")
        folder = Path(paths.rewritten(wanted)) if wanted else self.folder
        if wanted and not folder.is_dir():
            # As a container runtime does with a working folder that the image does not have.
            folder = self.folder / wanted.lstrip("/")
            folder.mkdir(parents=True, exist_ok=True)
        return ContainerProcess.start(self._id, self._command(environment), rewritten, folder, log)

    def _not_started(self, error: OSError, command: str) -> None:
        if isinstance(error, PermissionError):
            why = "permission denied"
        elif "/" in command:
            why = (
                f"stat {command}: no such file or directory"
                if isinstance(error, FileNotFoundError)
                else "exec format error"
            )
        else:
            why = "executable file not found in $PATH"
        message = (
            "failed to create containerd task: failed to create shim task: OCI runtime create failed: runc create "
            f'failed: unable to start container process: exec: "{command}": {why}: unknown'
        )
        self.event("Warning", "Failed", f"Error: {message}")
        self.state = {
            "terminated": {
                "exitCode": 128,
                "reason": "StartError",
                "message": message,
                "startedAt": "1970-01-01T00:00:00Z",
                "finishedAt": self.world.clock.stamp(),
                "containerID": self._id,
            }
        }
        self.changed()

    def _terminated(self, code: int, started: str, log: LogBook) -> Object:
        reason = "OOMKilled" if self._out_of_memory else "Completed" if code == 0 else "Error"
        ended: Object = {"exitCode": code, "reason": reason}
        if message := self._message(code, log):
            ended["message"] = message
        return ended | {"startedAt": started, "finishedAt": self.world.clock.stamp(), "containerID": self._id}

    def _message(self, code: int, log: LogBook) -> str:
        """What the container left to be read in its status."""
        paths = self.volumes.paths(self.spec, self.pod_status(), self.folder)
        file = Path(paths.places[self.spec["terminationMessagePath"]])
        text = file.read_bytes()[:LONGEST_MESSAGE].decode(errors="replace") if file.is_file() else ""
        if not text and code != 0 and self.spec["terminationMessagePolicy"] == "FallbackToLogsOnError":
            tail = b"".join(line for _, line in log.lines[-80:])
            text = tail[-2048:].decode(errors="replace")
        return text

    async def _watch_memory(self, process: ContainerProcess) -> None:
        """Kill the largest process when all together take more than the limit, as the kernel does."""
        limit = int(amount(self._limits()["memory"]))
        while True:
            pid = process.largest(limit)
            if pid is not None:
                self._out_of_memory = True
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            await asyncio.sleep(MEMORY_CHECKS)

    async def _back_off(self) -> None:
        """Wait before the container is started again in place; the first time at once."""
        pod = self.volumes.pod["metadata"]
        if self.restarts:
            name = f"{pod['name']}_{pod['namespace']}({pod['uid']})"
            wait = min(RESTARTS * 2 ** (self.restarts - 1), 300.0)
            self.event("Warning", "BackOff", f"Back-off restarting failed container {self.name} in pod {name}")
            ended = self.state["terminated"]
            text = f"back-off {int(wait)}s restarting failed container={self.name} pod={name}"
            await self.pause(self.world.pace(0.5))
            if self.stopping.is_set():
                return
            self.last_state = {"terminated": ended}
            self._wait_for("CrashLoopBackOff", text)
            await self.pause(self.world.pace(wait))
            if self.stopping.is_set():
                self.state = {"terminated": ended}
                return
        else:
            self.last_state = self.state
        self.restarts += 1

    def remove(self) -> None:
        """Remove what it has written."""
        shutil.rmtree(self.folder, ignore_errors=True)
