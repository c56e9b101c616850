"""One attempt of a step in its container, or its containers: created, followed and removed, in a thread of its own.

The thread calls the engine and waits for it; statuses, lines and events go to the backend's channel.
"""

from __future__ import annotations

import contextlib
import json
import os
import threading
import time
from typing import TYPE_CHECKING, Any, Callable, Final, Mapping, Sequence

import attrs

from stoker.backends.base.channel import Channel, Reader
from stoker.backends.base.overlays import Mount
from stoker.backends.base.statuses import failed, killed_for_memory, of_boot, read_result
from stoker.backends.docker.engines import End, Engine
from stoker.backends.docker.jobfiles import (
    JobFiles,
    Owner,
    clear,
    collect,
    give,
    names_in_job,
    open_to_all,
    prepare,
)
from stoker.backends.docker.lifecycle import (
    PATIENCE,
    AttemptThread,
    archive,
    create_container,
    fetch_image,
    is_root,
    owner_in,
    read_to_end,
    start_container,
    take_files_back,
)
from stoker.backends.docker.requests import HOME_LABEL, LABEL, ContainerRequest, mount_body
from stoker.core.codec import to_json
from stoker.core.errors import BackendError, StoreError
from stoker.core.plan import JobStatus
from stoker.core.protocol import RESULT
from stoker.core.status import CANCELLED, REFUSED, WORKER_LOST
from stoker.store.access import make_folders

if TYPE_CHECKING:
    from stoker.core.devices import Lease
    from stoker.store.blobs import Blobs

GANG_GRACE: Final = 5.0
"""Seconds that the other nodes of a gang get when its first one is over; by then its agent has told them to end."""
_LOOK: Final = 1.0
_PIECE: Final = 1 << 16
_NETWORK: Final = (HOME_LABEL, f"{LABEL}.run")
"""Labels that a gang's network shares with its containers."""
_KILLED: Final = 137
"""128 and SIGKILL, as every engine tells it."""


@attrs.frozen(kw_only=True)
class ContainerJob:
    """The containers of one attempt: those to create, or those of an earlier driver to adopt."""

    requests: Sequence[ContainerRequest]
    """One a node."""
    lease: Lease | None = None
    adopted: Sequence[str] = ()
    """Ids of the containers that an earlier driver created; empty: create them."""
    adopted_files: Sequence[JobFiles] = ()
    """The folders of the adopted containers on this machine."""
    result: bytes = b""
    """The result of an earlier driver's container that is gone; its folders are in `adopted_files`."""
    blobs: Blobs | None = None
    """The artifact store; None where the engine sees nothing of this machine."""
    network: str = ""
    """The network to create for a gang; empty: none."""
    secrets: Mapping[str, bytes] = attrs.field(factory=dict, repr=False)
    """Contents of files by their paths inside the container."""
    bundle: str = ""
    """The folder of Stoker's worker, for images without it; empty: the image has it."""
    rootless: bool = False
    """Whether the engine's root is the user who runs it."""
    shares_files: bool = True
    """Whether the engine sees this machine's folders."""
    pull: str = "missing"
    """When the image is pulled: "missing", "always" or "never"."""
    keep: bool = False
    """Whether containers of a failed attempt stay."""
    memory: int = 0
    """The step's memory limit in bytes; 0: none."""


class ContainerAttempt(AttemptThread):
    """Runs one attempt in a thread.

    `hand_over` is called, in the thread that polls, with the name and the first process of a job that holds devices.
    """

    def __init__(
        self, engine: Engine, job: ContainerJob, name: str, channel: Channel, *, hand_over: Callable[[str, int], None]
    ) -> None:
        super().__init__(engine, name, channel)
        self._job = job
        self._hand_over = hand_over
        self._ids: list[str] = []
        self._readers: list[Reader] = []
        self._owner: Owner | None = None

    def cancel(self, grace: float) -> None:
        """End the containers: SIGTERM now, SIGKILL after the grace; SIGKILL at once where the step has not begun."""
        self._cancelled = True
        up = bool(self._readers) and all(reader.up for reader in self._readers)
        self._signals.end(grace if up else 0.0)

    def _signal(self, signal: str, ids: Sequence[str] | None = None) -> None:
        for id in self._ids if ids is None else ids:
            with contextlib.suppress(BackendError):  # whoever follows the container hears of the engine's end too
                self._engine.kill(id, signal)

    # The thread

    def run(self) -> None:
        """Run the attempt to its end, in this thread."""
        prepared = False
        try:
            if self._job.result:
                self._read_left_output()
                status = self._of_result(self._job.result)
            else:
                self._prepare()
                prepared = True
                status = self._follow()
        except BackendError as error:
            status = self._broken(error, self._job.lease, begun=prepared)
        except Exception as error:  # the top of a thread: the engine of the run would wait for ever
            status = failed(WORKER_LOST, f"{type(error).__name__}: {error}", self._job.lease)
        self._signals.close()
        keep = self._job.keep and status.state == "failed" and status.cause != CANCELLED
        if status.lost:
            self._clear(keep=False)  # first: it may be sent again, under the same names
        self._channel.put(self._name, status)
        if not status.lost:
            # A driver that is killed before it has recorded the end leaves all to the one that adopts the job.
            self._recorded.wait()
            self._clear(keep=keep)

    def _prepare(self) -> None:
        """Adopt the containers that are there, or create and start new ones."""
        job = self._job
        if job.adopted:
            self._ids.extend(job.adopted)
            self._readers.extend(Reader() for _ in job.adopted)
            return
        if job.network:
            marks = {name: text for name, text in job.requests[0].body["Labels"].items() if name in _NETWORK}
            self._engine.make_network(job.network, {**marks, LABEL: "network"})
        for request in job.requests:
            self._ids.append(self._create(request))
            self._readers.append(Reader())
        for id in self._ids:
            self._refuse_cancelled()
            start_container(self._engine, id, job.requests[0].body)
        if job.lease:
            pid = self._engine.pid(self._ids[0])
            self._channel.call(lambda: self._hand_over(self._name, pid))
        if self._cancelled:  # while they started: who cancelled found nothing to signal
            self._signal("SIGKILL")

    def _create(self, request: ContainerRequest) -> str:
        image = request.body["Image"]
        fetch_image(self._engine, image, self._job.pull, self._report_pull)
        body = dict(request.body)
        if request.follows_image and not is_root(self._engine.user_of(image)):
            body.pop("User", None)
        if request.files is not None:
            body = self._with_files(request, request.files, body)
        id = create_container(self._engine, request.name, body)
        self._owner = owner_in(self._engine, id, body["User"] if "User" in body else self._engine.user_of(image), image)
        if request.files is not None:
            give(request.files, self._owner, [*request.checkpoints, *filter(None, [request.samples])])
            if self._job.bundle and self._owner != (os.geteuid(), os.getegid()):
                open_to_all(self._job.bundle)
        read_only = bool(body["HostConfig"].get("ReadonlyRootfs"))
        files = dict(self._job.secrets)
        if not self._job.shares_files:
            files[request.document_path] = json.dumps(to_json(request.spec)).encode()
        if files and not (read_only and request.files is not None):
            bundle = "" if self._job.shares_files else self._job.bundle
            self._engine.put(id, archive(files, self._owner, bundle=bundle))
        return id

    def _with_files(self, request: ContainerRequest, files: JobFiles, body: dict[str, Any]) -> dict[str, Any]:
        """Make the container's folders; its request with what had to be mounted besides."""
        blobs = self._job.blobs
        assert blobs is not None  # it comes with the folders
        names = names_in_job(to_json(request.spec), blobs)
        mounts = prepare(files, request.spec, request.body["Labels"], names, blobs)
        for folder in request.checkpoints:
            make_folders(folder)
        if request.samples:
            os.close(os.open(request.samples, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600))
        host = body["HostConfig"]
        if host.get("ReadonlyRootfs"):  # nothing can be put into it: secrets are mounted from the container's folder
            mounts += self._secret_mounts(files)
        return {**body, "HostConfig": {**host, "Mounts": [*host["Mounts"], *map(mount_body, mounts)]}}

    def _secret_mounts(self, files: JobFiles) -> list[Mount]:
        folder = f"{files.notes}/secrets"
        os.makedirs(folder, mode=0o700)
        mounts = []
        for number, (path, content) in enumerate(self._job.secrets.items()):
            file_path = f"{folder}/{number}"
            with open(os.open(file_path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o400), "wb") as file:
                file.write(content)
            mounts.append(Mount(file_path, path, True))
        return mounts

    # Following

    def _follow(self) -> JobStatus:
        """Read all containers until they end; the status of the first node, which is that of the job."""
        others = [
            threading.Thread(target=self._read_output, args=(node,), daemon=True) for node in range(1, len(self._ids))
        ]
        for thread in others:
            thread.start()
        end = self._read_output(0)
        status = self._status(end)
        if others:
            self._signal("SIGTERM", self._ids[1:])
            deadline = time.monotonic() + GANG_GRACE
            for thread in others:
                thread.join(max(0.0, deadline - time.monotonic()))
            self._signal("SIGKILL", self._ids[1:])
            for thread in others:
                thread.join(PATIENCE)
        return status

    def _read_output(self, node: int) -> End | None:
        """Read a container's output to its end; the container's end, None where it was removed."""
        look = _LOOK if node == 0 else 2 * _LOOK
        return read_to_end(self._engine, self._ids[node], self._readers[node], self._pass_on, look=look)

    def _read_left_output(self) -> None:
        """Read what a job wrote whose container is gone, where it lies beside its result."""
        reader = Reader()
        for files in self._files[:1]:
            with contextlib.suppress(OSError), open(files.output, "rb", opener=_without_links) as file:
                while data := file.read(_PIECE):
                    self._pass_on(reader.read("stdout", data))
                self._pass_on(reader.end())

    # The end

    def _status(self, end: End | None) -> JobStatus:
        lease = self._job.lease
        if end is None:
            return failed(WORKER_LOST, "the step's container was removed by somebody else", lease)
        try:
            self._take_back()
        except (StoreError, OSError) as error:
            return failed(WORKER_LOST, f"what the step's container wrote cannot be taken: {error}", lease)
        data = self._result()
        if data:
            return self._of_result(data)
        if end.oom and end.code == _KILLED:
            return killed_for_memory("the engine says OOMKilled", lease, memory=self._job.memory)
        if not self._readers[0].up and not self._cancelled:
            words = self._readers[0].last_words() or end.error or "it said nothing"
            message = f"the container ended with {end.text} before Stoker's worker began: {words}"
            return failed(REFUSED, message, lease)
        return JobStatus(state="failed", exit_code=end.code, message=end.error, ended=time.time(), lease=lease)

    def _of_result(self, data: bytes) -> JobStatus:
        """The status of a job that left a result, whose outputs are in the store then."""
        status = of_boot(read_result(data), self._job.lease, memory=self._job.memory)
        try:
            if self._job.result:
                self._take_back()
            if self._job.blobs is not None:
                for files in self._files:
                    collect(files, self._job.blobs)
        except (StoreError, OSError) as error:
            return failed(WORKER_LOST, f"what the step's container wrote cannot be taken: {error}", self._job.lease)
        return status

    def _take_back(self) -> None:
        """Make what the containers wrote the user's own."""
        job = self._job
        if job.blobs is None:
            return
        folders = [folder for files in self._files for folder in (files.notes, files.outputs) if folder]
        request = job.requests[0]
        shared = [*request.checkpoints, *filter(None, [request.samples])]
        take_files_back(
            self._engine,
            [*folders, *shared],
            self._owner,
            name=request.name,
            body=request.body,
            rootless=job.rootless,
        )

    @property
    def _files(self) -> Sequence[JobFiles]:
        """The folders of the job's containers on this machine."""
        return self._job.adopted_files or [one.files for one in self._job.requests if one.files is not None]

    def _result(self) -> bytes | None:
        if self._job.shares_files:
            with contextlib.suppress(FileNotFoundError), open(f"{self._files[0].notes}/{RESULT}", "rb") as file:
                return file.read()
            return None
        return self._engine.get(self._ids[0], _result_of(self._job.requests[0].document_path))

    def _clear(self, *, keep: bool) -> None:
        """Remove the containers, their network and their files; what cannot be removed is left for `stoker gc`."""
        with contextlib.suppress(BackendError):
            for id in self._ids:
                if keep:
                    self._engine.kill(id, "SIGKILL")
                else:
                    self._engine.remove(id)
            if self._job.network and not keep:
                self._engine.remove_network(self._job.network)
        if keep:
            return
        for files in self._files:
            clear(files)


def _without_links(path: str, flags: int) -> int:
    """Open a file in a folder that a step wrote into: a link there may lead anywhere."""
    return os.open(path, flags | os.O_NOFOLLOW)


def _result_of(document: str) -> str:
    """The path of a job's result, beside its document."""
    return document.rpartition("/")[0] + "/" + RESULT
