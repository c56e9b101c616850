"""A pool of jobs that take steps of one request one after another (`core.orders`, `worker.pool`): the driver's side.

    FOLDER/RUN/TOKEN/                    the pool: jobs.json (which says so), pool.json, orders, claims, journals
    FOLDER/RUN/TOKEN/NUMBER/             the files of an order: those of a job of its own
    FOLDER/RUN/OTHER/                    a submission of workers: script.sh, jobs.json (their pool), out-TASK, err-TASK

A worker's name in the pool is Slurm's id of its job. This module asks nobody: `pools` calls the cluster.
"""

from __future__ import annotations

import json
from typing import Any, Final, Iterable, Mapping, Sequence

import attrs

from stoker.backends.base.adoption import job_kind
from stoker.backends.base.messages import request_digest
from stoker.backends.slurm.script import DOCUMENT, time_limit
from stoker.backends.slurm.settings import IDLE_AFTER, SlurmSettings
from stoker.backends.slurm.states import JobRow
from stoker.backends.slurm.task import SlurmJob
from stoker.core.codec import to_json
from stoker.core.orders import ORDERS, SIGNAL, SPEC, PoolNote, PoolOrder, PoolSpec, documents, journal_of, whole
from stoker.core.plan import Job, Site

SHARE: Final = 0.1
"""Part of a job's time limit after which it begins no step that has no timeout: the step would be cut short."""
END_MARGIN: Final = 60.0
"""Seconds of a job's time limit that must be left beyond a step's timeout: to start, and to end."""
GONE: Final = 60.0
"""Seconds after which a worker that the queue does not mention takes no further step."""

FIRST_WAVE: Final = 8
"""Workers of a pool that are submitted first, at most; each further submission has twice as many. A worker takes a
second to start, in which one that runs takes ten short steps; a thousand are in the queue after some seconds."""
DOUBT: Final = 10.0
"""Seconds in which the queue may still show a submission whose answer was lost: a busy controller takes it late."""
LOOK_AGAIN: Final = 2.0
"""Seconds between two looks for such a submission."""
BETWEEN_WAVES: Final = 2.0
"""Seconds between two such submissions."""


@attrs.define(kw_only=True)
class PoolJob:
    """A job of Slurm that is a worker of a pool."""

    id: str
    folder: str
    """The folder of its submission."""
    index: int
    row: JobRow | None = None
    missing: float | None = None
    """Since when the queue does not mention it, by the monotonic clock."""
    up: bool = False
    """Whether its worker has begun."""
    order: int | None = None
    """The order that it runs."""
    last_order: int | None = None
    """The order that it took last."""
    closed: str = ""
    """Why its worker left; empty while it has not."""
    lost: bool = False
    """Whether it counts as gone although nobody says so."""
    cancelled: bool = False
    """Whether Stoker has taken it out of the queue."""
    settled: bool = False
    """Whether its end in the queue has been dealt with."""
    offset: int = 0
    """Bytes of its journal that were read."""

    @property
    def over(self) -> bool:
        """Whether it takes no further order."""
        ended = self.row is not None and self.row.stage == "over"
        return bool(self.closed) or ended or self.lost or (self.cancelled and not self.up)

    @property
    def in_queue(self) -> bool:
        """Whether Slurm still has it, as far as is known."""
        return not self.lost and not (self.row is not None and self.row.stage == "over")

    @property
    def waits(self) -> bool:
        """Whether it waits in the queue, as far as is known."""
        return not self.up and not self.over and (self.row is None or self.row.stage == "waiting")

    @property
    def errors(self) -> str:
        """The file of its own stderr, which also has what Slurm writes about its end."""
        return f"{self.folder}/err-{self.index}"

    @property
    def failed(self) -> bool:
        """Whether it ended otherwise than by leaving."""
        row = self.row
        normal = row is None or row.stage != "over" or row.state == "COMPLETED"
        return not (normal or self.closed or self.cancelled)


@attrs.define(kw_only=True)
class EarlierOrder:
    """An order of an earlier driver that is not adopted."""

    key: str
    kind: str
    attempt: int
    digest: str
    worker: str = ""
    """Who claimed it; empty where nobody has."""


@attrs.define(kw_only=True)
class JobPool:
    """The steps of one shape and the jobs that take them."""

    folder: str
    shape: str
    token: str = ""
    job: Job | None = None
    """A job of the shape, from which scripts are made; None in a pool of an earlier driver until one is adopted."""
    settings: SlurmSettings | None = None
    limit: float = 0.0
    """Seconds that a worker may live; 0: no limit."""
    next_number: int = 0
    numbers: dict[str, int] = attrs.field(factory=dict)
    """Orders by job that may have been appended without an answer."""
    waiting: dict[int, SlurmJob] = attrs.field(factory=dict)
    """Orders that no worker has taken, as far as is known."""
    taken: dict[int, SlurmJob] = attrs.field(factory=dict)
    """Orders that a worker has taken and that are not over."""
    earlier: dict[int, EarlierOrder] = attrs.field(factory=dict)
    """Orders of an earlier driver that are not adopted."""
    jobs: dict[str, PoolJob] = attrs.field(factory=dict)
    unanswered: dict[str, int] = attrs.field(factory=dict)
    """Submissions of workers without an answer: by token, how many."""
    doubted: dict[str, float] = attrs.field(factory=dict)
    """When the queue was first seen without such a submission, by token, on the monotonic clock."""
    look_at: float = float("-inf")
    """When the queue is asked again for such submissions, on the monotonic clock."""
    closed: bool = False
    """Whether no further order is appended."""
    wave: int = FIRST_WAVE
    """How many workers the next submission has at most."""
    wave_at: float = float("-inf")
    """When a further submission may follow one that was as large as its wave, on the monotonic clock."""
    held: str = ""
    """Why workers that are lacking are not submitted now."""
    held_reason: str = ""
    """The same in one word that does not change with numbers."""

    # Files

    def journals(self) -> dict[str, int]:
        """The journals to read, with the offset of each."""
        return {
            f"{self.folder}/{journal_of(job.id)}": job.offset
            for job in self.jobs.values()
            if not job.closed and not job.settled
        }

    def read(self, files: Mapping[str, bytes], now: float) -> bool:
        """Note what was read from journals; whether anything was new."""
        news = False
        for job in self.jobs.values():
            data = whole(files.get(f"{self.folder}/{journal_of(job.id)}", b""))
            job.offset += len(data)
            for note in documents(PoolNote, data):
                self._take_in(job, note, now)
                news = True
        return news

    def _take_in(self, job: PoolJob, note: PoolNote, now: float) -> None:
        job.up = True
        if note.claimed >= 0:
            job.order = note.claimed
            self.bind(note.claimed, job)
        elif note.over >= 0:
            job.order = None
            task = self.taken.get(note.over)
            if task is not None and task.order is not None:
                task.order.over, task.order.code = now, note.code
        elif note.closed:
            job.closed = note.closed
            task = self.taken.get(-1 if job.last_order is None else job.last_order)
            if note.closed == SIGNAL and task is not None and task.order is not None:
                task.order.ended_by_platform = True

    def bind(self, number: int, job: PoolJob) -> None:
        """Note that a worker has taken an order."""
        job.last_order = number
        task = self.waiting.pop(number, None)
        if task is not None:
            task.id, task.row = job.id, job.row
            self.taken[number] = task
        elif number in self.earlier:
            self.earlier[number].worker = job.id

    def release(self, number: int) -> None:
        """Note that an order is over and all of it was read: its worker is free."""
        self.waiting.pop(number, None)
        task = self.taken.pop(number, None)
        job = self.jobs.get(task.id) if task is not None else None
        if job is not None and job.order == number:
            job.order = None

    def open_orders(self) -> bool:
        """Whether there are orders whose end was not reported."""
        return bool(self.waiting or self.taken)

    # Workers

    def live(self) -> int:
        """How many of its jobs are in the queue, or may be."""
        known = sum(job.in_queue and not job.cancelled and not job.closed for job in self.jobs.values())
        return known + sum(self.unanswered.values())

    def idle(self) -> int:
        """How many workers could take an order at once."""
        return sum(job.up and not job.over and job.order is None for job in self.jobs.values())

    def lacking(self) -> int:
        """How many further workers would let every order begin."""
        coming = sum(not job.up and not job.over for job in self.jobs.values()) + sum(self.unanswered.values())
        return max(0, len(self.waiting) - self.idle() - coming)

    def in_wave(self, count: int, now: float) -> int:
        """How many of so many workers are submitted now: few first, because they may take all orders while others
        would start."""
        return 0 if now < self.wave_at else min(count, self.wave)

    def submitted(self, count: int, now: float) -> None:
        """Note a submission of workers: the next one may be larger, and soon follow."""
        if count >= self.wave:
            self.wave, self.wave_at = 2 * self.wave, now + BETWEEN_WAVES

    def superfluous(self) -> list[PoolJob]:
        """Jobs that wait in the queue although no order does."""
        if self.waiting or any(not order.worker for order in self.earlier.values()):
            return []
        return [job for job in self.jobs.values() if job.waits and job.row is not None]

    def note_rows(self, rows: Mapping[str, JobRow], now: float) -> None:
        """Note the queue's rows of the workers."""
        for job in self.jobs.values():
            row = rows.get(job.id)
            if row is None:
                job.missing = job.missing if job.missing is not None else now
                job.lost = job.lost or job.missing + GONE < now
            else:
                job.row, job.missing = row, None

    def waiting_row(self) -> JobRow | None:
        """The row of a job that waits in the queue, the one with a reason first."""
        rows = [job.row for job in self.jobs.values() if job.waits and job.row is not None]
        return next((row for row in rows if row.reason not in ("None", "")), None)

    def array_ids(self) -> list[str]:
        """Slurm's ids of the submissions whose jobs may still be in the queue."""
        return sorted({job.id.partition("_")[0] for job in self.jobs.values() if job.in_queue})


def pool_document(pool: JobPool) -> dict[str, Any]:
    """What `jobs.json` of a pool says to a later driver."""
    return {"pool": pool.shape, "limit": pool.limit}


def workers_document(pool: JobPool, count: int) -> dict[str, Any]:
    """What `jobs.json` of a submission of workers says to a later driver."""
    return {"workers": count, "of": pool.token}


def pool_spec(pool: JobPool, settings: SlurmSettings, site: Site) -> PoolSpec:
    """How the pool's workers live."""
    idle: float = settings.get("idle_after", IDLE_AFTER)
    # Whoever takes its first order after it was idle still has the most of its time.
    idle = min(idle, SHARE * pool.limit) if pool.limit else idle
    return PoolSpec(idle_after=idle, lifetime=pool.limit, imports=site.worker_imports)


def order_seconds(job: Job, limit: float) -> float:
    """Seconds of a worker's time that must be left when it begins a step, unless the step is its first."""
    if not limit:
        return 0.0
    most, timeout = (1 - SHARE) * limit, job.step.settings.timeout
    return most if timeout is None else min(most, timeout + END_MARGIN)


def order_line(pool: JobPool, number: int, job: Job) -> bytes:
    """A line of `orders`, with what a later driver needs to adopt the order."""
    here = f"{pool.folder}/{number}"
    order = PoolOrder(
        number=number,
        spec=f"{here}/{DOCUMENT}",
        out=f"{here}/out-0",
        err=f"{here}/err-0",
        seconds=order_seconds(job, pool.limit),
    )
    mark = [job.key, job_kind(job), job.attempt, request_digest(job)]
    return json.dumps({**to_json(order), "job": mark}, separators=(",", ":")).encode() + b"\n"


def earlier_pool(folder: str, document: Mapping[str, Any], orders: bytes) -> JobPool:
    """The pool of an earlier driver, from its files; its workers and claims are to be added."""
    pool = JobPool(
        folder=folder,
        shape=str(document["pool"]),
        token=folder.rpartition("/")[2],
        limit=float(document.get("limit", 0.0)),
    )
    for text in whole(orders).splitlines():
        entry = json.loads(text)
        if entry.get("close"):
            pool.closed = True
        elif entry.get("end"):
            pool.earlier.pop(entry["number"], None)
        elif "job" in entry:
            key, kind, attempt, digest = entry["job"]
            pool.earlier[entry["number"]] = EarlierOrder(key=key, kind=kind, attempt=attempt, digest=digest)
            pool.next_number = max(pool.next_number, entry["number"] + 1)
    return pool


def files_of(pool: JobPool, settings: SlurmSettings, site: Site) -> dict[str, bytes]:
    """The files of a new pool."""
    return {
        f"{pool.folder}/jobs.json": json.dumps(pool_document(pool)).encode(),
        f"{pool.folder}/{SPEC}": json.dumps(to_json(pool_spec(pool, settings, site))).encode(),
        f"{pool.folder}/{ORDERS}": b"",
    }


def limit_of(job: Job, settings: SlurmSettings, usual: float | None) -> float:
    """Seconds that a worker may live; `usual` is the limit of a job that asks for none, None where it is not known."""
    limit = time_limit(job, settings)
    seconds = usual if limit is None else limit
    if seconds is None:
        return 1.0  # each worker then takes the one step with which it would have been a job of its own
    return 0.0 if seconds == float("inf") else seconds


def pool_ids(pools: Iterable[JobPool]) -> set[str]:
    """Slurm's ids of the submissions of pools that may still be in the queue."""
    return {id for pool in pools for id in pool.array_ids()}


def worker_jobs(id: str, folder: str, count: int) -> Sequence[PoolJob]:
    """The jobs of a submission of workers."""
    return [PoolJob(id=f"{id}_{index}" if count > 1 else id, folder=folder, index=index) for index in range(count)]
