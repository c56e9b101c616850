"""Containers that stay for a run and take its steps one after another, each in a fresh process.

One step of small work costs a container's whole life otherwise: creating, starting, importing, removing. The first
process of such a container is `worker.pool`, the folder of its pool is mounted (`warmfiles`), and it has one worker, so
that a container's limits are those of one step. Steps with equal requests share containers; a fan-out takes several.
"""

from __future__ import annotations

import contextlib
import threading
from typing import TYPE_CHECKING, Any, Final, Mapping, Sequence

from stoker.backends.base.output import Reader
from stoker.backends.docker.engines import End, Engine
from stoker.backends.docker.jobfiles import Owner
from stoker.backends.docker.lifecycle import Output, read_to_end
from stoker.backends.docker.warmfiles import (
    WarmFiles,
    WorkerNotes,
    clear_warm,
    make_folders_of,
    number_of,
    ordered,
    put_order,
    settle,
)
from stoker.core.errors import BackendError

if TYPE_CHECKING:
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
