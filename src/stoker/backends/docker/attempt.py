"""One attempt of a step in its container, or its containers: created, followed and removed, in a thread of its own.

The thread calls the engine and waits for it; statuses, lines and events go to the backend's channel.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import tarfile
import threading
import time
from typing import TYPE_CHECKING, Callable, Final, Mapping, Sequence

import attrs

from stoker.backends.base.channel import Channel
from stoker.backends.base.output import Reader
from stoker.backends.base.statuses import failed, killed_for_memory, of_boot
from stoker.backends.docker.engines import End, Engine, EngineGone, Refused
from stoker.backends.docker.requests import BUNDLE, HOME_LABEL, INSIDE, LABEL, ContainerRequest
from stoker.backends.docker.settings import SECRETS
from stoker.core.codec import from_json, to_json
from stoker.core.errors import BackendError
from stoker.core.plan import JobStatus, LogLine
from stoker.core.protocol import RESULT, StepResult, WorkerEvent
from stoker.core.status import CANCELLED, REFUSED, WORKER_LOST

if TYPE_CHECKING:
    from stoker.core.devices import Lease

GANG_GRACE: Final = 5.0
"""Seconds that the other nodes of a gang get when its first one is over; by then its agent has told them to end."""
PATIENCE: Final = 60.0
"""Seconds for which an engine may be away, as for an update, before its containers are given up."""
_LOOK: Final = 1.0
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
    adopted_documents: Sequence[str] = ()
    """Paths of the documents of the adopted containers."""
    network: str = ""
    """The network to create for a gang; empty: none."""
    secrets: Mapping[str, bytes] = attrs.field(factory=dict, repr=False)
    """Contents of files by their paths inside the container."""
    owner: tuple[int, int] | None = None
    """uid and gid that own the files put into a container; None, where they are not known: everybody may read them."""
    bundle: str = ""
    """The folder of Stoker's worker, for images without it; empty: the image has it."""
    shares_files: bool = True
    """Whether the engine sees this machine's folders."""
    pull: str = "missing"
    """When the image is pulled: "missing", "always" or "never"."""
    keep: bool = False
    """Whether containers of a failed attempt stay."""
    memory: int = 0
    """The step's memory limit in bytes; 0: none."""


class ContainerAttempt:
    """Runs one attempt in a thread.

    `hand_over` is called, in the thread that polls, with the name and the first process of a job that holds devices.
    """

    def __init__(
        self, engine: Engine, job: ContainerJob, name: str, channel: Channel, *, hand_over: Callable[[str, int], None]
    ) -> None:
        self._engine = engine
        self._job = job
        self._name = name
        self._channel = channel
        self._hand_over = hand_over
        self._ids: list[str] = []
        self._readers: list[Reader] = []
        self._cancelled = False
        self._timers: list[threading.Timer] = []
        self.thread = threading.Thread(target=self._run, name="stoker-container", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self.thread.start()

    def cancel(self, grace: float) -> None:
        """End the containers: SIGTERM now, SIGKILL after the grace; SIGKILL at once where the step has not begun."""
        self._cancelled = True
        up = bool(self._readers) and all(reader.up for reader in self._readers)
        if up and grace > 0:
            self._later(0.0, "SIGTERM")
            self._later(grace, "SIGKILL")
        else:
            self._later(0.0, "SIGKILL")

    def _later(self, seconds: float, signal: str) -> None:
        timer = threading.Timer(seconds, self._signal, (signal,))
        timer.daemon = True
        self._timers.append(timer)
        timer.start()

    def _signal(self, signal: str, ids: Sequence[str] | None = None) -> None:
        for id in self._ids if ids is None else ids:
            with contextlib.suppress(BackendError):  # whoever follows the container hears of the engine's end too
                self._engine.kill(id, signal)

    # The thread

    def _run(self) -> None:
        prepared = False
        try:
            self._prepare()
            prepared = True
            status = self._follow()
        except BackendError as error:
            if isinstance(error, EngineGone) and not prepared:
                status = _lost(error)
            else:
                cause = CANCELLED if self._cancelled else WORKER_LOST if prepared else REFUSED
                status = failed(cause, str(error), self._job.lease)
        except Exception as error:  # the top of a thread: the engine of the run would wait for ever
            status = failed(WORKER_LOST, f"{type(error).__name__}: {error}", self._job.lease)
        for timer in self._timers:
            timer.cancel()
        keep = self._job.keep and status.state == "failed" and status.cause != CANCELLED
        if status.lost:
            self._clear(keep=False)  # first: it may be sent again, under the same names
        self._channel.put(self._name, status)
        if not status.lost:
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
            self._engine.start(id)
        if job.lease:
            pid = self._engine.pid(self._ids[0])
            self._channel.call(lambda: self._hand_over(self._name, pid))
        if self._cancelled:  # while they started: who cancelled found nothing to signal
            self._signal("SIGKILL")

    def _refuse_cancelled(self) -> None:
        if self._cancelled:
            raise Refused("the step was cancelled before it began")

    def _report_pull(self, text: str) -> None:
        self._refuse_cancelled()
        self._channel.put(self._name, JobStatus(state="queued", message=text))

    def _create(self, request: ContainerRequest) -> str:
        image = request.body["Image"]
        if self._job.pull == "always" or (self._job.pull == "missing" and not self._engine.has(image)):
            self._report_pull(f"pulling {image}")
            self._engine.pull(image, self._report_pull)
        if self._job.shares_files:
            self._make_folder(os.path.dirname(request.document_path))
            with contextlib.suppress(FileNotFoundError):
                os.unlink(_result_of(request.document_path))
            with open(request.document_path, "w", encoding="utf-8") as file:
                json.dump(to_json(request.spec), file)
        try:
            id = self._engine.create(request.name, request.body)
        except Refused as error:
            if error.status == 409:  # left by the same attempt: a driver that died, and nothing to take over from it
                self._engine.remove(request.name)
                id = self._engine.create(request.name, request.body)
            elif error.status == 404:
                raise Refused(
                    f"there is no image {image} in the engine at {self._engine.address}",
                    fix=f"docker pull {image}, or build it there; pull='missing' fetches what is not there",
                ) from error
            else:
                raise
        archive = self._archive(request)
        if archive:
            self._engine.put(id, archive)
        return id

    def _make_folder(self, folder: str) -> None:
        """Make a folder in which the container's user can write the result."""
        os.makedirs(folder, exist_ok=True)
        owner = self._job.owner
        if owner == (os.geteuid(), os.getegid()):
            return
        try:
            os.chown(folder, *(owner or (-1, -1)))
        except PermissionError:  # only root may give a folder away: let everybody write there
            owner = None
        if owner is None:
            os.chmod(folder, 0o777)

    def _archive(self, request: ContainerRequest) -> bytes:
        """The archive put into the container before it starts; empty where all files are mounted."""
        job = self._job
        files = dict(job.secrets)
        if not job.shares_files:
            files[request.document_path] = json.dumps(to_json(request.spec)).encode()
        folders = [SECRETS, INSIDE]
        data = io.BytesIO()
        with tarfile.open(fileobj=data, mode="w") as archive:
            for folder in folders:
                archive.addfile(self._member(folder, directory=True))
            for path, content in files.items():
                member = self._member(path, directory=False)
                member.size = len(content)
                archive.addfile(member, io.BytesIO(content))
            if job.bundle and not job.shares_files:
                archive.add(job.bundle, BUNDLE.lstrip("/"))
        return data.getvalue() if files or not job.shares_files else b""

    def _member(self, path: str, *, directory: bool) -> tarfile.TarInfo:
        """An entry that only the container's user can read; everybody, where the user is not known."""
        member = tarfile.TarInfo(path.lstrip("/"))
        member.mtime = int(time.time())
        private = self._job.owner is not None
        if self._job.owner is not None:
            member.uid, member.gid = self._job.owner
        if directory:
            member.type, member.mode = tarfile.DIRTYPE, 0o700 if private else 0o777
        else:
            member.mode = 0o400 if private else 0o444
        return member

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
        id, reader = self._ids[node], self._readers[node]
        deadline = time.monotonic() + PATIENCE
        while True:
            try:
                reader.restart()
                for stream, data in self._engine.output(id):
                    self._pass_on(reader.read(stream, data))
                    deadline = time.monotonic() + PATIENCE
                end = self._engine.end(id)
                if end is None or not end.running:
                    self._pass_on(reader.end())
                    return end
            except (EngineGone, Refused) as error:
                if isinstance(error, Refused) and error.status == 404:
                    self._pass_on(reader.end())
                    return None
                # An engine that is updated comes back, with its containers or without them.
                if time.monotonic() > deadline:
                    raise
            time.sleep(_LOOK if node == 0 else 2 * _LOOK)

    def _pass_on(self, output: tuple[list[LogLine], list[WorkerEvent]]) -> None:
        lines, events = output
        if lines:
            self._channel.write(self._name, lines)
        for event in events:
            self._channel.event(self._name, event)

    # The end

    def _status(self, end: End | None) -> JobStatus:
        lease = self._job.lease
        if end is None:
            return failed(WORKER_LOST, "the step's container was removed by somebody else", lease)
        result = self._result()
        if result is not None:
            return of_boot(result, lease, memory=self._job.memory)
        if end.oom and end.code == _KILLED:
            return killed_for_memory("the engine says OOMKilled", lease, memory=self._job.memory)
        if not self._readers[0].up and not self._cancelled:
            words = self._readers[0].last_words() or end.error or "it said nothing"
            message = f"the container ended with exit code {end.code} before Stoker's worker began: {words}"
            return failed(REFUSED, message, lease)
        return JobStatus(state="failed", exit_code=end.code, message=end.error, ended=time.time(), lease=lease)

    def _result(self) -> StepResult | None:
        document = (*self._job.adopted_documents, self._job.requests[0].document_path)[0]
        data: bytes | None = None
        if self._job.shares_files:
            with contextlib.suppress(FileNotFoundError), open(_result_of(document), "rb") as file:
                data = file.read()
        else:
            data = self._engine.get(self._ids[0], _result_of(document))
        if not data:
            return None
        return from_json(StepResult, json.loads(data), strict=False)

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
        if self._job.shares_files and not keep:
            documents = [request.document_path for request in self._job.requests]
            for document in (*documents, *self._job.adopted_documents):
                folder = os.path.dirname(document)
                for name in ("job.json", RESULT):
                    with contextlib.suppress(OSError):
                        os.unlink(os.path.join(folder, name))
                with contextlib.suppress(OSError):
                    os.rmdir(folder)


def _result_of(document: str) -> str:
    """The path of a job's result, beside its document."""
    return document.rpartition("/")[0] + "/" + RESULT


def _lost(error: EngineGone) -> JobStatus:
    """The status of an attempt of which nothing began: it may be submitted again."""
    return JobStatus(state="unknown", lost=True, message=str(error))
