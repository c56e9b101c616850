"""Containers that stay for a run and take its steps one after another, each in a fresh process; and each such attempt.

One step of small work costs a container's whole life otherwise: creating, starting, importing, removing. The first
process of such a container is `worker.pool`, the folder of its pool is mounted (`jobfiles`), and it has one worker, so
that a container's limits are those of one step. Steps with equal requests share containers; a fan-out takes several.

An attempt has a thread of its own, as `attempt` has it, which takes an idle container of the step's shape, or creates
one; puts the job's files into its folders; orders the job; follows the job's output and the worker's journal; takes its
files out again; and gives the container back. After a step that ended by a signal, for want of memory or because it was
told to, the container goes.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from typing import TYPE_CHECKING, Any, Callable, Final, Mapping, Sequence

import attrs

from stoker.backends.base.channel import Channel, Reader
from stoker.backends.base.statuses import failed, killed_for_memory, of_boot, read_result
from stoker.backends.docker.engines import End, Engine
from stoker.backends.docker.jobfiles import (
    ORDER_LABEL,
    JobFiles,
    Owner,
    WarmFiles,
    WorkerNotes,
    clear,
    clear_warm,
    collect,
    give,
    make_folders_of,
    move_out,
    names_in_job,
    number_of,
    open_to_all,
    ordered,
    present_result,
    put_job,
    put_order,
    settle,
    take_order_back,
)
from stoker.backends.docker.lifecycle import (
    AttemptThread,
    Output,
    archive,
    create_container,
    fetch_image,
    is_root,
    owner_in,
    read_to_end,
    start_container,
    take_files_back,
)
from stoker.core.codec import to_json
from stoker.core.errors import BackendError, StoreError
from stoker.core.plan import JobStatus
from stoker.core.status import REFUSED, WORKER_LOST

if TYPE_CHECKING:
    from stoker.backends.docker.attempt import ContainerAttempt, ContainerJob
    from stoker.backends.docker.requests import WarmRequest
    from stoker.core.orders import PoolNote
    from stoker.core.plan import Capacity


_LOOK: Final = 1.0
_NANO: Final = 1e-9


class WarmContainer:
    """One container. Whoever has taken it uses it; a thread of its own reads what its worker says until it ends."""

    def __init__(
        self, engine: Engine, files: WarmFiles, name: str, shape: str, body: Mapping[str, Any], id: str = ""
    ) -> None:
        self.engine = engine
        self.files = files
        self.name = name
        self.shape = shape
        self.body = body
        self.id = id
        self.owner: Owner | None = None
        self.over = threading.Event()
        """Set when the container is over, or nothing can be known of it any more."""
        self.end: End | None = None
        """How it stood then; None where it was removed."""
        self.error: BackendError | None = None
        """Why nothing is known of it."""
        self.reader = Reader()
        self.number = max(ordered(files), default=-1)
        self.up = False
        """Whether its worker has begun."""
        self._journal = WorkerNotes(files)

    @property
    def cpus(self) -> float:
        """What it may use at most; 0: without a limit."""
        return float(self.body["HostConfig"].get("NanoCpus", 0)) * _NANO

    @property
    def memory(self) -> int:
        """The same in bytes of memory."""
        return int(self.body["HostConfig"].get("Memory", 0))

    def follow(self) -> None:
        """Read what its worker says, in a thread, until it ends."""
        threading.Thread(target=self._follow, name="stoker-warm", daemon=True).start()

    def _follow(self) -> None:
        try:
            self.end = read_to_end(self.engine, self.id, self.reader, _ignore, look=_LOOK)
        except BackendError as error:
            self.error = error
        finally:
            self.over.set()

    def order(self) -> int:
        """Order the job whose files are in its folders; the order's number."""
        self.number += 1
        put_order(self.files, self.number)
        return self.number

    def notes(self) -> list[PoolNote]:
        """What its worker noted since the last call."""
        notes = self._journal.read()
        self.up = self.up or any(note.up for note in notes)
        return notes

    def remove(self) -> None:
        """Remove it, running or not, with its folders; what cannot be removed is left for `stoker gc`."""
        with contextlib.suppress(BackendError):
            if self.id:
                self.engine.remove(self.id)
            clear_warm(self.files)


class WarmContainers:
    """The containers of one run that take several steps. For any thread."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._lock = threading.Lock()
        self._idle: list[WarmContainer] = []
        self._busy: list[WarmContainer] = []
        self._unfit: set[str] = set()
        self._last = 0

    def name_after(self, name: str) -> None:
        """Let later containers have higher numbers than one of an earlier driver."""
        with self._lock:
            self._last = max(self._last, number_of(name))

    def next_number(self) -> int:
        """The number of a container that is about to be created."""
        with self._lock:
            self._last += 1
            return self._last

    def suits(self, shape: str) -> bool:
        """Whether containers of a shape can take several jobs."""
        return shape not in self._unfit

    def refuse(self, shape: str) -> None:
        """Let jobs of a shape have containers of their own from now on."""
        self._unfit.add(shape)

    def take_idle(self, shape: str) -> WarmContainer | None:
        """An idle container of a shape, for the caller alone."""
        with self._lock:
            for container in self._idle:
                if container.shape == shape and not container.over.is_set():
                    self._idle.remove(container)
                    self._busy.append(container)
                    return container
        return None

    def make(self, request: WarmRequest) -> WarmContainer:
        """A container that is not there yet, for the caller alone; its folders are."""
        make_folders_of(request.files, request.body["Labels"], request.pool)
        container = WarmContainer(self._engine, request.files, request.name, request.shape, request.body)
        with self._lock:
            self._busy.append(container)
        return container

    def adopt(self, container: WarmContainer, *, busy: bool) -> None:
        """Take over a running container of an earlier driver."""
        container.follow()
        with self._lock:
            (self._busy if busy else self._idle).append(container)

    def surplus(self, request: WarmRequest, room: Capacity) -> list[WarmContainer]:
        """Idle containers that are to go so that another one finds its CPUs and memory; they are the caller's now."""
        host = request.body["HostConfig"]
        with self._lock:
            self._idle, over = _split(self._idle)
            count = len(self._busy) + len(self._idle) + 1
            cpus = sum(one.cpus for one in (*self._busy, *self._idle)) + host.get("NanoCpus", 0) * _NANO
            memory = sum(one.memory for one in (*self._busy, *self._idle)) + host.get("Memory", 0)
            while self._idle and (count > room.slots or cpus > room.cpus or memory > room.memory):
                oldest = self._idle.pop(0)
                over.append(oldest)
                count, cpus, memory = count - 1, cpus - oldest.cpus, memory - oldest.memory
            return over

    def give_back(self, container: WarmContainer) -> None:
        """It is idle from now on: nothing of a job is in its folders."""
        with self._lock:
            self._busy.remove(container)
            self._idle.append(container)

    def drop(self, container: WarmContainer) -> None:
        """It takes no further job, and is removed by the caller."""
        with self._lock:
            self._busy.remove(container)

    def close(self, patience: float) -> None:
        """Remove all idle containers, at once."""
        with self._lock:
            idle, self._idle = self._idle, []
        remove_all(idle, patience)


def remove_all(containers: Sequence[WarmContainer], patience: float) -> None:
    """Remove containers beside each other: an engine takes a tenth of a second for each."""
    threads = [threading.Thread(target=one.remove, daemon=True) for one in containers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(patience)


def remove_dead(engine: Engine, id: str, files: WarmFiles, scratch: str) -> None:
    """Remove a container that an earlier driver left; the result of a job in it stays."""
    if id:
        engine.remove(id)
    settle(files, scratch)


def _split(containers: Sequence[WarmContainer]) -> tuple[list[WarmContainer], list[WarmContainer]]:
    """Those that run, and those that have left by themselves."""
    over = [one for one in containers if one.over.is_set()]
    return [one for one in containers if one not in over], over


def _ignore(output: Output) -> None:
    """What a worker says between jobs is kept by its reader, for the words of an error."""


_SHORTEST: Final = 0.001
_LONGEST: Final = 0.025
"""Seconds between two looks at a job's output: a twentieth of what it has run, within these bounds."""
_KILLED: Final = -9
_REMOVAL: Final = 30.0


@attrs.frozen(kw_only=True)
class WarmJob:
    """A job for a container that takes several."""

    request: Callable[[int, str], WarmRequest]
    """The request of the container with a number, whose shape is known or empty."""
    job: ContainerJob
    """The same job for a container of its own; what it says of image, secrets and store holds here, too."""
    name: str
    """The name of a container of its own, which its files get when it is over."""
    scratch: str
    room: Capacity
    """What the engine's machine has."""
    adopted: WarmContainer | None = None
    """The container in which an earlier driver ordered the job."""


class WarmAttempt(AttemptThread):
    """Runs one attempt in a thread. `own` makes the attempt in a container of its own, for a job that turns out to need
    one."""

    def __init__(
        self,
        engine: Engine,
        job: WarmJob,
        name: str,
        channel: Channel,
        *,
        containers: WarmContainers,
        own: Callable[[], ContainerAttempt],
    ) -> None:
        super().__init__(engine, name, channel)
        self._job = job
        self._containers = containers
        self._make_own = own
        self._own: ContainerAttempt | None = None
        self._container: WarmContainer | None = None
        self._number = -1
        self._reader = Reader()
        self._over = False
        self._taken_back = False
        self._code = 0
        self._reusable = True
        self._lock = threading.Lock()

    def cancel(self, grace: float) -> None:
        """End the step: SIGTERM now, SIGKILL after the grace; SIGKILL at once where it has not begun."""
        with self._lock:
            self._cancelled = True
            if self._own is not None:
                self._own.cancel(grace)
                return
            container, number = self._container, self._number
        if container is None or not container.id or self._over:
            return  # the thread sees it before it goes on
        if number >= 0 and take_order_back(container.files, number):
            self._taken_back = True
            return
        self._signals.end(grace if self._reader.up else 0.0)

    def recorded(self) -> None:
        """Take the end of the job as recorded: only then do its files go."""
        super().recorded()
        if self._own is not None:
            self._own.recorded()

    def _signal(self, signal: str) -> None:
        container = self._container
        if container is not None and not self._over:
            with contextlib.suppress(BackendError):  # whoever follows the container hears of the engine's end too
                self._engine.kill(container.id, signal)

    # The thread

    def run(self) -> None:
        """Run the attempt to its end, in this thread."""
        files: JobFiles | None = None
        begun = self._job.adopted is not None
        try:
            end = None
            while end is None:
                if not begun and not self._begin():
                    self._run_own()
                    return
                begun = True
                end = self._follow()
                begun = end is not None
            status = end
            files = self._leave()
        except BackendError as error:
            status = self._broken(error, begun=begun)
        except Exception as error:  # the top of a thread: the engine of the run would wait for ever
            status = failed(WORKER_LOST, f"{type(error).__name__}: {error}")
        self._signals.close()
        container, self._container = self._container, None
        if container is not None and files is None and status.lost:
            self._remove(container)  # first: it may be sent again
            container = None
        self._channel.put(self._name, status)
        if container is not None and (files is None or not self._reusable):
            self._remove(container)
        if files is not None:
            # A driver that is killed before it has recorded the end leaves all to the one that adopts the job.
            self._recorded.wait()
            clear(files)

    def _run_own(self) -> None:
        """Run the attempt in a container of its own, in this thread."""
        with self._lock:
            own = self._own = self._make_own()
            if self._cancelled:
                own.cancel(0.0)
        if self._recorded.is_set():
            own.recorded()
        own.run()

    def _remove(self, container: WarmContainer) -> None:
        self._containers.drop(container)
        container.remove()

    # The beginning

    def _begin(self) -> bool:
        """Order the job in a container; False where it needs one of its own."""
        job = self._job.job
        request = self._job.request(0, "")
        if not self._containers.suits(request.shape) or _has_files(request.checkpoints):
            return False
        blobs = job.blobs
        assert blobs is not None  # without a store on this machine the job has a container of its own
        digests = names_in_job(to_json(request.spec), blobs)
        if any(os.path.isdir(blobs.unpacked(digest)) for digest in digests):
            return False  # it is mounted, so that it need not be unpacked again
        self._refuse_cancelled()
        container = self._containers.take_idle(request.shape)
        if container is None:
            request = self._job.request(self._containers.next_number(), request.shape)
            remove_all(self._containers.surplus(request, self._job.room), _REMOVAL)
            container = self._containers.make(request)
        with self._lock:
            self._container = container
        marks = {**request.marks, ORDER_LABEL: str(container.number + 1)}
        if not put_job(container.files, request.spec, marks, digests, blobs):
            self._give_up(container)
            return False
        if container.id:
            self._hand_over(container)
            self._number = container.order()
        elif not self._create(container, request):
            return False
        if self._cancelled and take_order_back(container.files, self._number):
            self._refuse_cancelled()
        return True

    def _give_up(self, container: WarmContainer) -> None:
        """Leave a container in which nothing was ordered."""
        with self._lock:
            self._container = None
        if container.id:
            self._containers.give_back(container)
        else:
            self._remove(container)

    def _create(self, container: WarmContainer, request: WarmRequest) -> bool:
        """Create and start a container whose first order is there when it starts; False where its user's files could
        not be read here."""
        job, engine = self._job.job, self._engine
        image = request.body["Image"]
        fetch_image(engine, image, job.pull, self._report_pull)
        body = dict(request.body)
        image_user = engine.user_of(image)
        if request.follows_image and not is_root(image_user):
            body.pop("User", None)
        container.id = create_container(engine, container.name, body)
        container.owner = owner_in(engine, container.id, body.get("User", image_user), image)
        if os.geteuid() not in (0, container.owner[0]) and not (job.rootless and container.owner[0] == 0):
            self._containers.refuse(request.shape)
            self._give_up_created(container)
            return False
        self._hand_over(container)
        if job.bundle and container.owner != (os.geteuid(), os.getegid()):
            open_to_all(job.bundle)
        if job.secrets:
            engine.put(container.id, archive(job.secrets, container.owner))
        self._refuse_cancelled()
        self._number = container.order()
        start_container(engine, container.id, body)
        container.follow()
        if self._cancelled:  # while it started: who cancelled found nothing to signal
            self._signal("SIGKILL")
        return True

    def _give_up_created(self, container: WarmContainer) -> None:
        with self._lock:
            self._container = None
        self._remove(container)

    def _hand_over(self, container: WarmContainer) -> None:
        """Let the container's user write where the job's files are."""
        files = container.files
        folders = [files.pool, *([files.checkpoints] if files.place else [])]
        give(files.job, container.owner, folders)

    # Following

    def _follow(self) -> JobStatus | None:
        """Read the job's output until it is over; its status, None where its container left before it took the job."""
        if self._job.adopted is not None:
            self._container, self._number = self._job.adopted, self._job.adopted.number
        container = self._container
        assert container is not None  # it was taken or adopted
        began = time.monotonic()
        with open(container.files.output, "rb", buffering=0) as output:
            while True:
                gone = container.over.is_set()
                for note in container.notes():
                    if note.over == self._number:
                        self._over, self._code = True, note.code
                    self._reusable = self._reusable and not note.closed
                while data := output.read(1 << 16):
                    self._pass_on(self._reader.read("stdout", data))
                if self._over or gone:
                    break
                if self._taken_back:
                    self._refuse_cancelled()
                pause = min(_LONGEST, max(_SHORTEST, (time.monotonic() - began) / 20))
                container.over.wait(pause)
        self._pass_on(self._reader.end())
        if not self._over and container.up and not self._cancelled and take_order_back(container.files, self._number):
            with self._lock:
                self._container, self._number = None, -1
            self._remove(container)
            return None
        self._reusable = self._reusable and self._over and not self._cancelled
        return self._status(container)

    # The end

    def _status(self, container: WarmContainer) -> JobStatus:
        job = self._job.job
        if not self._over and container.error is not None:
            raise container.error
        if not self._over and container.end is None:
            return failed(WORKER_LOST, "the step's container was removed by somebody else")
        try:
            self._take_back(container)
        except (StoreError, OSError) as error:
            return self._not_taken(error)
        data = present_result(container.files)
        if data:
            result = read_result(data)
            self._reusable = self._reusable and result.exited is None
            status = of_boot(result, None, memory=job.memory)
            try:
                assert job.blobs is not None  # it comes with the folders
                collect(container.files.job, job.blobs)
            except (StoreError, OSError) as error:
                return self._not_taken(error)
            return status
        self._reusable = False
        end = container.end
        code = self._code if self._over else None if end is None else end.code
        if code == _KILLED or (end is not None and end.oom):
            now = self._engine.end(container.id)
            if now is not None and now.oom:
                return killed_for_memory("the engine says OOMKilled", None, memory=job.memory)
        words = container.reader.last_words() or ("" if end is None else end.error) or "it said nothing"
        if not self._over and take_order_back(container.files, self._number) and not self._cancelled:
            ended = "ended" if end is None else f"ended with {end.text}"
            message = f"the container {ended} before Stoker's worker began: {words}"
            return failed(REFUSED, message)
        return JobStatus(state="failed", exit_code=code, message="" if end is None else end.error, ended=time.time())

    def _not_taken(self, error: Exception) -> JobStatus:
        self._reusable = False
        return failed(WORKER_LOST, f"what the step's container wrote cannot be taken: {error}")

    def _take_back(self, container: WarmContainer) -> None:
        files = container.files
        take_files_back(
            self._engine,
            [files.job.notes, files.job.outputs, *([files.checkpoints] if files.place else [])],
            container.owner,
            name=container.name,
            body=container.body,
            rootless=self._job.job.rootless,
        )

    def _leave(self) -> JobFiles:
        """Take the job's files out of the container, which is idle then or goes; where they are now."""
        container = self._container
        assert container is not None  # its job is over
        files = move_out(container.files, self._job.name, self._job.scratch)
        if self._reusable:
            self._containers.give_back(container)
            self._container = None
        return files


def _has_files(folder: str) -> bool:
    """Whether there is something in a folder."""
    with contextlib.suppress(OSError), os.scandir(folder) as entries:
        return any(True for _ in entries)
    return False
