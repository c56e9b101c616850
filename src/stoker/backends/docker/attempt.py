"""One attempt of a step in its container, or its containers: made, followed and taken away, in a thread of its own.

The thread asks the engine and waits for it; what it learns goes to the backend's channel.
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
from stoker.backends.docker.requests import BUNDLE, HOME_LABEL, INSIDE, LABEL, Part
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
class Order:
    """What an attempt needs.

    `adopted` are the ids of its containers, if a driver that died had made them, and `places` their documents.
    `network` is one to make for a gang. `secrets` are contents of files by their paths inside. `owner` owns what is put
    into a container, anybody in it where its user's numbers are not known.
    """

    parts: Sequence[Part]
    lease: Lease | None = None
    adopted: Sequence[str] = ()
    places: Sequence[str] = ()
    network: str = ""
    secrets: Mapping[str, bytes] = attrs.field(factory=dict, repr=False)
    owner: tuple[int, int] | None = None
    bundle: str = ""
    shares_files: bool = True
    pull: str = "missing"
    keep: bool = False
    memory: int = 0


class Attempt:
    """The thread and what it has. `hand_over` is called, in the thread that polls, with the name and the first process
    of a job that holds devices."""

    def __init__(
        self, engine: Engine, order: Order, name: str, channel: Channel, *, hand_over: Callable[[str, int], None]
    ) -> None:
        self._engine = engine
        self._order = order
        self._name = name
        self._channel = channel
        self._hand_over = hand_over
        self._ids: list[str] = []
        self._readers: list[Reader] = []
        self._cancelled = False
        self._timers: list[threading.Timer] = []
        self.thread = threading.Thread(target=self._run, name="stoker-container", daemon=True)

    def start(self) -> None:
        """Begin."""
        self.thread.start()

    def cancel(self, grace: float) -> None:
        """Have it end: SIGTERM now, SIGKILL after the grace; at once where nothing of the user's runs yet."""
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
        began = False
        try:
            self._make()
            began = True
            status = self._followed()
        except BackendError as error:
            if isinstance(error, EngineGone) and not began:
                status = _lost(error)
            else:
                cause = CANCELLED if self._cancelled else WORKER_LOST if began else REFUSED
                status = failed(cause, str(error), self._order.lease)
        except Exception as error:  # the top of a thread: the engine of the run would wait for ever
            status = failed(WORKER_LOST, f"{type(error).__name__}: {error}", self._order.lease)
        for timer in self._timers:
            timer.cancel()
        keep = self._order.keep and status.state == "failed" and status.cause != CANCELLED
        if status.lost:
            self._clear(keep=False)  # first: it may be sent again, under the same names
        self._channel.put(self._name, status)
        if not status.lost:
            self._clear(keep=keep)

    def _make(self) -> None:
        """The containers, those that are there already or new ones, started."""
        order = self._order
        if order.adopted:
            self._ids.extend(order.adopted)
            self._readers.extend(Reader() for _ in order.adopted)
            return
        if order.network:
            marks = {name: text for name, text in order.parts[0].body["Labels"].items() if name in _NETWORK}
            self._engine.make_network(order.network, {**marks, LABEL: "network"})
        for part in order.parts:
            self._ids.append(self._made(part))
            self._readers.append(Reader())
        for id in self._ids:
            self._go_on()
            self._engine.start(id)
        if order.lease:
            pid = self._engine.pid(self._ids[0])
            self._channel.call(lambda: self._hand_over(self._name, pid))
        if self._cancelled:  # while they started: who cancelled found nothing to signal
            self._signal("SIGKILL")

    def _go_on(self) -> None:
        if self._cancelled:
            raise Refused("the step was cancelled before it began")

    def _pulls(self, text: str) -> None:
        self._go_on()
        self._channel.put(self._name, JobStatus(state="queued", message=text))

    def _made(self, part: Part) -> str:
        image = part.body["Image"]
        if self._order.pull == "always" or (self._order.pull == "missing" and not self._engine.has(image)):
            self._pulls(f"pulling {image}")
            self._engine.pull(image, self._pulls)
        if self._order.shares_files:
            self._make_folder(os.path.dirname(part.place))
            with contextlib.suppress(FileNotFoundError):
                os.unlink(_result_of(part.place))
            with open(part.place, "w", encoding="utf-8") as file:
                json.dump(to_json(part.spec), file)
        try:
            id = self._engine.create(part.name, part.body)
        except Refused as error:
            if error.status == 409:  # left by the same attempt: a driver that died, and nothing to take over from it
                self._engine.remove(part.name)
                id = self._engine.create(part.name, part.body)
            elif error.status == 404:
                raise Refused(
                    f"there is no image {image} in the engine at {self._engine.address}",
                    fix=f"docker pull {image}, or build it there; pull='missing' fetches what is not there",
                ) from error
            else:
                raise
        archive = self._archive(part)
        if archive:
            self._engine.put(id, archive)
        return id

    def _make_folder(self, folder: str) -> None:
        """A folder in which the container's user can leave the result."""
        os.makedirs(folder, exist_ok=True)
        owner = self._order.owner
        if owner == (os.geteuid(), os.getegid()):
            return
        try:
            os.chown(folder, *(owner or (-1, -1)))
        except PermissionError:  # to give a folder away is root's right: let everybody write there
            owner = None
        if owner is None:
            os.chmod(folder, 0o777)

    def _archive(self, part: Part) -> bytes:
        """What is put into the container before it starts; nothing where all that it needs is mounted."""
        order = self._order
        files = dict(order.secrets)
        if not order.shares_files:
            files[part.place] = json.dumps(to_json(part.spec)).encode()
        folders = [SECRETS, INSIDE]
        data = io.BytesIO()
        with tarfile.open(fileobj=data, mode="w") as archive:
            for folder in folders:
                archive.addfile(self._member(folder, directory=True))
            for path, content in files.items():
                member = self._member(path, directory=False)
                member.size = len(content)
                archive.addfile(member, io.BytesIO(content))
            if order.bundle and not order.shares_files:
                archive.add(order.bundle, BUNDLE.lstrip("/"))
        return data.getvalue() if files or not order.shares_files else b""

    def _member(self, path: str, *, directory: bool) -> tarfile.TarInfo:
        """An entry that only the container's user can read; anybody in it, where its user is the image's own."""
        member = tarfile.TarInfo(path.lstrip("/"))
        member.mtime = int(time.time())
        private = self._order.owner is not None
        if self._order.owner is not None:
            member.uid, member.gid = self._order.owner
        if directory:
            member.type, member.mode = tarfile.DIRTYPE, 0o700 if private else 0o777
        else:
            member.mode = 0o400 if private else 0o444
        return member

    # Following

    def _followed(self) -> JobStatus:
        """Hear all containers until they are over, and say how the first one's job went, which speaks for all."""
        others = [threading.Thread(target=self._hear, args=(node,), daemon=True) for node in range(1, len(self._ids))]
        for thread in others:
            thread.start()
        end = self._hear(0)
        status = self._status(end)
        if others:
            self._signal("SIGTERM", self._ids[1:])
            late = time.monotonic() + GANG_GRACE
            for thread in others:
                thread.join(max(0.0, late - time.monotonic()))
            self._signal("SIGKILL", self._ids[1:])
            for thread in others:
                thread.join(PATIENCE)
        return status

    def _hear(self, node: int) -> End | None:
        """Read a container's output to its end; how it ended, None where it is gone."""
        id, reader = self._ids[node], self._readers[node]
        patience = time.monotonic() + PATIENCE
        while True:
            try:
                reader.again()
                for stream, data in self._engine.output(id):
                    self._news(reader.read(stream, data))
                    patience = time.monotonic() + PATIENCE
                end = self._engine.end(id)
                if end is None or not end.running:
                    self._news(reader.end())
                    return end
            except (EngineGone, Refused) as error:
                if isinstance(error, Refused) and error.status == 404:
                    self._news(reader.end())
                    return None
                # An engine that is updated comes back, with its containers or without them.
                if time.monotonic() > patience:
                    raise
            time.sleep(_LOOK if node == 0 else 2 * _LOOK)

    def _news(self, found: tuple[list[LogLine], list[WorkerEvent]]) -> None:
        lines, events = found
        if lines:
            self._channel.write(self._name, lines)
        for event in events:
            self._channel.event(self._name, event)

    # The end

    def _status(self, end: End | None) -> JobStatus:
        lease = self._order.lease
        if end is None:
            return failed(WORKER_LOST, "the step's container was removed by somebody else", lease)
        result = self._result()
        if result is not None:
            return of_boot(result, lease, memory=self._order.memory)
        if end.oom and end.code == _KILLED:
            return killed_for_memory("the engine says OOMKilled", lease, memory=self._order.memory)
        if not self._readers[0].up and not self._cancelled:
            said = self._readers[0].last_words() or end.error or "it said nothing"
            message = f"the container ended with exit code {end.code} before Stoker's worker began: {said}"
            return failed(REFUSED, message, lease)
        return JobStatus(state="failed", exit_code=end.code, message=end.error, ended=time.time(), lease=lease)

    def _result(self) -> StepResult | None:
        place = self._order.places[0] if self._order.places else self._order.parts[0].place
        data: bytes | None = None
        if self._order.shares_files:
            with contextlib.suppress(FileNotFoundError), open(_result_of(place), "rb") as file:
                data = file.read()
        else:
            data = self._engine.get(self._ids[0], _result_of(place))
        if not data:
            return None
        return from_json(StepResult, json.loads(data), strict=False)

    def _clear(self, *, keep: bool) -> None:
        """Take away what was made; what cannot be is left for `stoker gc`."""
        with contextlib.suppress(BackendError):
            for id in self._ids:
                if keep:
                    self._engine.kill(id, "SIGKILL")
                else:
                    self._engine.remove(id)
            if self._order.network and not keep:
                self._engine.remove_network(self._order.network)
        if self._order.shares_files and not keep:
            for place in [part.place for part in self._order.parts] + list(self._order.places):
                folder = os.path.dirname(place)
                for name in ("job.json", RESULT):
                    with contextlib.suppress(OSError):
                        os.unlink(os.path.join(folder, name))
                with contextlib.suppress(OSError):
                    os.rmdir(folder)


def _result_of(place: str) -> str:
    return place.rpartition("/")[0] + "/" + RESULT


def _lost(error: EngineGone) -> JobStatus:
    """Nothing of it began: it may be sent again."""
    return JobStatus(state="unknown", lost=True, message=str(error))
