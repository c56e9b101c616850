"""The memory of an attempt: of its worker's process and of everything that it started.

The kernel knows the peak of a single process (`ru_maxrss`) and that of a cgroup. Where a worker has a cgroup of its own
(`worker.containment`), the attempt's peak is the group's, less the page cache, which the kernel gives back to whoever
needs memory. Elsewhere the proportional sizes (PSS) of all processes are added up every `INTERVAL` seconds: a page that
several processes share counts once among them. https://docs.kernel.org/filesystems/proc.html,
https://docs.kernel.org/admin-guide/cgroup-v2.html and .../cgroup-v1/memory.html.

A process beside the worker takes the samples, so that code that holds Python's lock is measured too. The fork server
starts one for a worker that has children, and none for the others: their own peak is exact, and costs nothing.
"""

from __future__ import annotations

import mmap
import os
import resource
import signal
import time
from typing import Callable, Collection, Final, Iterator, Mapping

from stoker.system import system
from stoker.worker import containment, processes

INTERVAL: Final = 0.25
"""Seconds between two samples: a peak that lasts for two of them is seen."""
SHARE: Final = 0.05
"""The part of one core that reading PSS may take. The kernel walks all pages of a process for it, 15 ms for 1 GB, so
that readings of large trees that grow are farther apart; of one that does not grow there are none."""
LONGEST: Final = 5.0
"""The most seconds between two readings of a tree that grows."""
GROWTH: Final = 1.01
"""How much larger than its known peak a tree must be, by what is read without a walk, for a reading of its PSS."""
ALONE: Final = 2.0
"""Seconds without children after which a sampler ends."""
_WORKER: Final = containment.PREFIX + "worker-"
"""Begins the name of a cgroup that holds one worker and what it started."""
_CACHE: Final = ("active_file", "inactive_file", "slab_reclaimable")
"""Rows of memory.stat that the kernel gives back when memory is short."""
_HELD: Final = (("anon", "shmem"), ("total_rss", "total_shmem"))
"""Rows of memory.stat, of v2 and of v1, that are nobody's but the processes'."""


def own_peak() -> int:
    """The peak of this process's memory in bytes since the last reset (outside Linux: since its start)."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * system.PEAK_UNIT


def own_size() -> int:
    """The memory of this process now in bytes; 0 where it cannot be read."""
    return _resident_sizes(os.getpid())[0]


def childrens_peak() -> int:
    """The largest peak in bytes of one process that this one, or a child of it, has waited for."""
    return resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * system.PEAK_UNIT


def reset_own_peak() -> None:
    """Reset this process's peak in the kernel, so that the next reading is the next step's own."""
    system.reset_peak()


def size_of(pid: int) -> int:
    """The PSS of a process in bytes; its private pages where its PSS may not be read, 0 for one that is gone."""
    size = system.proportional_of(pid)
    return _private_size(pid) if size is None else size


def _private_size(pid: int) -> int:
    resident, shared = _resident_sizes(pid)
    return resident - shared


def _resident_sizes(pid: int) -> tuple[int, int]:
    """A process's resident bytes, and how many of them belong to files or shared memory."""
    return system.memory_of(pid) or (0, 0)


class TreeReader:
    """Reads the PSS of processes where their sum may be larger than what was read before.

    Resident sizes are cheap. Their sum, less what the processes shared at the last reading, grows when the PSS does.
    """

    def __init__(self) -> None:
        self.peak = 0
        """The largest sum so far, in bytes."""
        self._shared = 0
        self._members: frozenset[int] = frozenset()
        self._due = 0.0

    def read(self, now: float, members: Collection[int]) -> dict[int, int]:
        """The PSS of each process in bytes; empty where their sum has not grown, or it is too early to look again."""
        if now < self._due:
            return {}
        resident = sum(_resident_sizes(pid)[0] for pid in members)
        if self._members == frozenset(members) and resident - self._shared <= self.peak * GROWTH:
            return {}
        began = time.thread_time()
        sizes = {pid: size_of(pid) for pid in members}
        whole = sum(sizes.values())
        self.peak = max(self.peak, whole)
        self._shared, self._members = max(0, resident - whole), frozenset(members)
        self._due = now + min(LONGEST, (time.thread_time() - began) / SHARE)
        return sizes


class MemoryGroup:
    """The figures of one worker's cgroup in the memory hierarchy; `folder` is v1's or v2's."""

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self._v1 = os.path.exists(os.path.join(folder, "memory.max_usage_in_bytes"))
        self.path = os.path.join(folder, "memory.max_usage_in_bytes" if self._v1 else "memory.peak")
        self._descriptor: int | None = None

    @classmethod
    def of(cls, pid: int) -> MemoryGroup | None:
        """The group of a worker; None for a process that shares its group with others, or where nobody counts."""
        folders = containment.cgroups_of(pid)
        for kind in ("memory", containment.V2):
            folder = folders.get(kind, "")
            if os.path.basename(folder).startswith(_WORKER) and os.path.exists((group := cls(folder)).path):
                return group
        return None

    def begin(self) -> bool:
        """Reset the peak; whether it is that of one attempt from now on."""
        first = self._descriptor is None
        try:
            if self._descriptor is None:
                # v2 resets what is read by this very descriptor, from Linux 6.12 on; before, the file is read-only.
                self._descriptor = os.open(self.path, os.O_RDWR | os.O_CLOEXEC)
            os.write(self._descriptor, b"0")
        except OSError:
            return first
        return True

    def peak(self) -> int | None:
        """The most bytes that the group held at one time, page cache included; None where that cannot be read."""
        try:
            if self._descriptor is not None:
                return int(os.pread(self._descriptor, 64, 0))
            with open(self.path) as file:
                return int(file.read())
        except (OSError, ValueError):
            return None

    def sizes(self) -> tuple[int, int] | None:
        """Bytes that the group's processes hold now, and bytes of page cache; None where that cannot be read."""
        rows: dict[str, int] = {}
        try:
            with open(os.path.join(self._folder, "memory.stat")) as file:
                for line in file:
                    name, _, number = line.partition(" ")
                    rows[name] = int(number)
        except (OSError, ValueError):
            return None
        held, *more = _HELD[self._v1]
        if held not in rows:
            return None
        cache = sum(rows.get(f"total_{name}", rows.get(name, 0)) for name in _CACHE)
        return rows[held] + sum(rows.get(name, 0) for name in more), cache


class SharedPeak:
    """A page that a worker shares with its sampler: the peak of the worker's tree during its present job.

    A sample that was begun in one job and ends in the next one is dropped: each job has a number.
    """

    def __init__(self) -> None:
        self._page = mmap.mmap(-1, mmap.PAGESIZE)
        # The number of the present job; the job that the sizes are of; the peak, and the most page cache, in bytes; and
        # `childrens_peak` as the present job began.
        self._fields = memoryview(self._page).cast("Q")

    @property
    def job(self) -> int:
        """The number of the worker's present job."""
        return self._fields[0]

    def begin(self, children: int) -> None:
        """Begin a job, of which nothing is known but the `childrens_peak` before it."""
        self._fields[4] = children
        self._fields[0] += 1

    def see(self, job: int, size: int, cache: int = 0) -> None:
        """Take a sample that was begun in a job."""
        if job != self._fields[0]:
            return
        if self._fields[1] != job:
            self._fields[2] = self._fields[3] = 0
            self._fields[1] = job
        self._fields[2] = max(self._fields[2], size)
        self._fields[3] = max(self._fields[3], cache)

    def sizes(self) -> tuple[int, int]:
        """The peak of the present job and its most page cache; zeros where it was not sampled."""
        return (self._fields[2], self._fields[3]) if self._fields[1] == self._fields[0] else (0, 0)

    @property
    def children(self) -> int:
        """The worker's `childrens_peak` as its present job began."""
        return self._fields[4]

    def close(self) -> None:
        """Unmap the page."""
        self._fields.release()
        self._page.close()


class AttemptMemory:
    """Measures attempts in the worker that runs them, one after the other."""

    def __init__(self, shared: SharedPeak) -> None:
        self._shared = shared
        self._group = MemoryGroup.of(os.getpid())
        self._grouped = False
        # Pages that this process had before it came into its group, of which the group does not count any.
        sizes = None if self._group is None else self._group.sizes()
        self._brought = 0 if sizes is None else max(0, _resident_sizes(os.getpid())[0] - sizes[0])

    def begin(self) -> None:
        """Begin an attempt."""
        reset_own_peak()
        self._shared.begin(childrens_peak())
        self._grouped = self._group is not None and self._group.begin()

    def peak(self) -> int:
        """The attempt's peak in bytes."""
        sampled, cache = self._shared.sizes()
        if self._group is not None:
            peak, sizes = self._group.peak(), self._group.sizes()
            # How much of the peak was page cache is not known where the group does not tell its sizes.
            if self._grouped and peak is not None and sizes is not None:
                sampled = max(sampled, peak - max(cache, sizes[1]))
            sampled += self._brought
        children = childrens_peak()
        return max(
            own_peak(),
            # Of processes that ended before a sample was taken, the largest one's is known: it was this attempt's
            # where the number has grown.
            children if children > self._shared.children else 0,
            sampled,
        )


class TreePeaks:
    """The peaks of a process with all below it, and of parts of it, by samples that this process takes itself."""

    def __init__(self) -> None:
        self._due = 0.0
        self._reader = TreeReader()
        self.parts: dict[int, int] = {}
        """The peaks of parts in bytes, by what they are called."""

    @property
    def whole(self) -> int:
        """The peak of all in bytes."""
        return self._reader.peak

    def pause(self, now: float) -> float:
        """Seconds until the next sample."""
        return max(0.0, self._due - now)

    def look(self, now: float, root: int, parts: Mapping[int, int]) -> None:
        """Take a sample if it is time; `parts` are processes by what they are called, each with all below it."""
        if now < self._due:
            return
        self._due = now + INTERVAL
        sizes = self._reader.read(now, (root, *processes.descendants(root)))
        for name, pid in parts.items() if sizes else ():
            size = sum(sizes.get(member, 0) for member in (pid, *processes.descendants(pid)))
            self.parts[name] = max(self.parts.get(name, 0), size)


class Samplers:
    """In a fork server: the pages of its workers, and a sampler beside each worker that has children.

    `leave` makes a forked process independent of the server with a pid, whose end is its own.
    """

    def __init__(self, leave: Callable[[int], None]) -> None:
        self._leave = leave
        self._pages: dict[int, SharedPeak] = {}
        self._samplers: dict[int, int] = {}
        self._due = 0.0
        self._works = system.proportional_of(os.getpid()) is not None

    def open(self, worker: int) -> None:
        """Make the page of a worker that is about to be forked."""
        self._pages[worker] = SharedPeak()

    def page(self, worker: int) -> SharedPeak:
        """The page of a worker."""
        return self._pages[worker]

    def due(self) -> float | None:
        """When to look next, on the monotonic clock; None where there is nothing to look at."""
        return self._due if self._pages and self._works else None

    def look(self, workers: Mapping[int, int]) -> None:
        """Start samplers beside workers (number → pid) that have children and no sampler."""
        now = time.monotonic()
        if not self._works or now < self._due:
            return
        began = time.thread_time()
        for worker, pid in workers.items():
            if worker not in self._samplers and system.children_of(pid):
                self._samplers[worker] = self._fork(pid, self._pages[worker])
        self._due = now + max(INTERVAL, (time.thread_time() - began) / SHARE)

    def reaped(self, pid: int) -> None:
        """Forget a sampler that ended."""
        for worker in [worker for worker, sampler in self._samplers.items() if sampler == pid]:
            del self._samplers[worker]

    def pids(self) -> Iterator[int]:
        """The samplers' processes."""
        yield from self._samplers.values()

    def close(self, worker: int, largest: int) -> int:
        """End a worker's sampler and page; returns the peak of its last job in bytes, 0 where it is not known.

        `largest` is the peak of one process in the worker's whole life, its own or that of a child: it is the last
        job's where it is more than the children of earlier jobs had.
        """
        sampler = self._samplers.pop(worker, None)
        if sampler is not None:
            try:
                os.kill(sampler, signal.SIGKILL)
            except ProcessLookupError:
                pass
        page = self._pages.pop(worker)
        peak = max(page.sizes()[0], largest if largest > page.children else 0)
        page.close()
        return peak

    def _fork(self, worker: int, page: SharedPeak) -> int:
        server = os.getpid()
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                self._leave(server)
                sample(worker, page)
                code = 0
            finally:
                os._exit(code)
        return pid


def sample(worker: int, page: SharedPeak) -> None:
    """Sample a worker's tree into its page until it has no children any more."""
    group = MemoryGroup.of(worker)
    reader, known = TreeReader(), page.job
    alone_since: float | None = None
    while True:
        job, now = page.job, time.monotonic()
        if job != known:
            reader, known = TreeReader(), job
        below = processes.descendants(worker)
        if below:
            alone_since = None
            if group is not None:
                if (sizes := group.sizes()) is not None:
                    page.see(job, *sizes)
            else:
                page.see(job, sum(reader.read(now, (worker, *below)).values()))
        else:
            alone_since = alone_since or now
            if now - alone_since > ALONE:
                return
        time.sleep(INTERVAL)
