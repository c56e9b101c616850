"""The pools of one run on a cluster: appends orders, submits workers, and takes back what no worker has begun.

`pool` has what is known of each pool. All calls are made in the watch's thread, and may raise `Away`; an order whose
appending got no answer is appended again under its number, and run once.
"""

from __future__ import annotations

import json
import logging
import os
import time
from typing import Any, Callable, Collection, Final, Iterable, Mapping, Sequence

from stoker.backends.base.logins import Login
from stoker.backends.base.messages import credentials
from stoker.backends.base.platforms import Away
from stoker.backends.base.statuses import failed
from stoker.backends.slurm import script as slurmscript
from stoker.backends.slurm.cluster import cluster_facts
from stoker.backends.slurm.limits import QueueLimits
from stoker.backends.slurm.pool import (
    DOUBT,
    FIRST_WAVE,
    LOOK_AGAIN,
    EarlierOrder,
    JobPool,
    PoolJob,
    earlier_pool,
    files_of,
    limit_of,
    order_line,
    pool_ids,
    worker_jobs,
    workers_document,
)
from stoker.backends.slurm.queue import Controller, QueueFull, refusal_text
from stoker.backends.slurm.settings import SlurmSettings
from stoker.backends.slurm.states import JobRow, explain, ids_of
from stoker.backends.slurm.task import LATE, SlurmJob, pooled_job
from stoker.core.codec import to_json
from stoker.core.errors import BackendError
from stoker.core.orders import CLAIMS, DRIVER, ORDERS, SIGNAL, PoolOrder, line
from stoker.core.plan import Job, Site
from stoker.core.status import CANCELLED, REFUSED, WORKER_LOST

log = logging.getLogger(__name__)

LEAVE: Final = 1.0
"""Seconds in which idle workers leave at the run's end before they are taken out of the queue."""
_LOOK: Final = 0.02
_ERRORS: Final = 4096
"""Bytes of a worker's stderr that explain its end."""
_CLAIM: Final = """
mkdir -p "$1" && cd "$1" || exit 1
shift
set -C
for number; do printf %s "$0" >"$number"; done 2>/dev/null
exit 0
"""
"""$0: the name, $1: the folder of claims, then numbers. `set -C` makes a file only where there is none."""


class Pools:
    """The pools of one run. `place` makes what the nodes need there, `most` is the largest array, `alone` counts the
    run's other jobs in the queue, and `refusal` says why a job with an id and a reason can never begin."""

    def __init__(
        self,
        login: Login,
        controller: Controller,
        limits: QueueLimits,
        *,
        home: Callable[[], str],
        place: Callable[[SlurmSettings], Site],
        most: Callable[[], int],
        alone: Callable[[], int],
        refusal: Callable[[str, str], str],
    ) -> None:
        self._login = login
        self._controller = controller
        self._limits = limits
        self._home = home
        self._place = place
        self._most = most
        self._alone = alone
        self._refusal = refusal
        self._pools: dict[str, JobPool] = {}
        self._by_shape: dict[str, JobPool] = {}
        self._folders: list[str] = []
        """Folders of submissions of workers."""
        self._empty_claims: dict[tuple[str, int], float] = {}
        self.changed_at = float("-inf")
        """When something was last appended or read, by the monotonic clock."""

    def __bool__(self) -> bool:
        return bool(self._pools)

    # Orders

    def order(self, jobs: Sequence[Job], settings: SlurmSettings) -> dict[str, SlurmJob]:
        """Append orders for jobs of one shape; returns their handles by name. Workers are submitted by `staff`."""
        pool = self._pool_for(jobs[0], settings)
        site, home = self._place(settings), self._home()
        environment = credentials(site.artifacts, os.environ)
        files, lines, tasks = {}, [], {}
        for job in jobs:
            number = pool.numbers.setdefault(job.name, pool.next_number)
            pool.next_number = max(pool.next_number, number + 1)
            spec = slurmscript.specification(
                job, site, settings, folder=home, token=pool.token, index=number, environment=environment
            )
            files[f"{pool.folder}/{number}/{slurmscript.DOCUMENT}"] = json.dumps(to_json(spec)).encode()
            lines.append(order_line(pool, number, job))
            tasks[job.name] = pooled_job(pool.folder, number, job)
        self._login.write(files)
        try:
            self._append(pool, b"".join(lines))
        except Away:
            raise
        except BackendError:
            self._retire(pool)
            raise
        for job in jobs:
            number = pool.numbers.pop(job.name)
            pool.waiting[number] = tasks[job.name]
        return tasks

    def _pool_for(self, job: Job, settings: SlurmSettings) -> JobPool:
        shape = slurmscript.shape(job, settings)
        pool = self._by_shape.get(shape)
        if pool is None:
            limit = limit_of(job, settings, self._usual_limit(job, settings))
            token = os.urandom(8).hex()
            folder = slurmscript.submission_folder(self._home(), job.run, token)
            pool = JobPool(folder=folder, shape=shape, token=token, limit=limit)
            self._login.write(files_of(pool, settings, self._place(settings)))
            self._pools[folder] = self._by_shape[shape] = pool
        pool.job, pool.settings = job, settings
        return pool

    def _usual_limit(self, job: Job, settings: SlurmSettings) -> float | None:
        """Seconds that a job gets which asks for no limit; None where that is not known."""
        if slurmscript.time_limit(job, settings) is not None:
            return None
        try:
            cluster = cluster_facts(self._login)
        except Away:
            raise
        except BackendError as error:
            log.info("the partitions' limits are not known: %s", error)
            return None
        names = settings.get("partition", cluster.environment.get("SBATCH_PARTITION", ""))
        partitions = [cluster.partitions.get(name) for name in names.split(",") if name]
        if not partitions and not cluster.routed:
            partitions = [cluster.default]
        limits = [limit for one in partitions if one is not None for limit in (one.usual, one.longest)]
        known = [limit for limit in limits if limit is not None]
        return min(known) if known and len(known) == 2 * len(partitions) else None

    def _append(self, pool: JobPool, data: bytes) -> None:
        self._login.append(f"{pool.folder}/{ORDERS}", data)
        self.changed_at = time.monotonic()

    def _retire(self, pool: JobPool) -> None:
        """Append nothing more to a pool; what it has is done."""
        pool.closed = True
        self._by_shape = {shape: one for shape, one in self._by_shape.items() if one is not pool}

    def withdraw(self, tasks: Iterable[SlurmJob], *, grace: float) -> None:
        """End orders: those that no worker has taken are over, the others end within `grace` seconds."""
        by_pool: dict[str, list[SlurmJob]] = {}
        for task in tasks:
            by_pool.setdefault(task.folder, []).append(task)
        for folder, ordered in by_pool.items():
            pool = self._pools[folder]
            numbers = {task.order.number: task for task in ordered if task.order is not None}
            for number, owner in self._claim(pool, [number for number in numbers if number in pool.waiting]).items():
                if owner == DRIVER:
                    pool.waiting.pop(number).verdict = failed(CANCELLED)
                elif owner in pool.jobs:
                    pool.bind(number, pool.jobs[owner])
            self._end(pool, [number for number, task in numbers.items() if task.verdict is None], grace)

    def _end(self, pool: JobPool, numbers: Sequence[int], grace: float) -> None:
        if numbers:
            self._append(pool, b"".join(line(PoolOrder(number=one, end=True, grace=grace)) for one in numbers))

    def _claim(self, pool: JobPool, numbers: Sequence[int]) -> dict[int, str]:
        """Take back orders; returns who has each: `DRIVER`, the worker that was first, or "" where it is not told."""
        return claim_orders(self._login, pool, numbers)

    def release(self, task: SlurmJob) -> None:
        """Note that an order is over and all of it was read."""
        if task.order is not None:
            self._pools[task.folder].release(task.order.number)
            self.changed_at = time.monotonic()

    def identity(self, task: SlurmJob) -> dict[str, Any]:
        """An order that no worker has taken, as JSON by which another process can end it."""
        pool, order = self._pools[task.folder], task.order
        assert order is not None
        ids = pool.array_ids()
        for token in pool.unanswered:
            return {"job": f"a submission with the comment {token}", "comment": token, "ids": ids}
        name = f"a step that waits for job {' or '.join(ids)}" if ids else "a step that waits for a job"
        return {"job": name, "pool": pool.folder, "order": order.number, "ids": ids}

    def doubtful(self) -> list[str]:
        """The comments of submissions of workers without an answer."""
        return [token for pool in self._pools.values() for token in pool.unanswered]

    # Watching

    def follow(self, now: float) -> None:
        """Read the workers' journals."""
        offsets: dict[str, int] = {}
        for pool in self._pools.values():
            offsets.update(pool.journals())
        contents = self._login.tails(offsets) if offsets else {}
        if contents:
            for pool in self._pools.values():
                if pool.read(contents, now):
                    self.changed_at = now

    def ids(self) -> set[str]:
        """Slurm's ids of submissions whose workers may still be in the queue."""
        return pool_ids(self._pools.values())

    def live(self) -> int:
        """How many workers are in the queue."""
        return sum(pool.live() for pool in self._pools.values())

    def works(self) -> bool:
        """Whether a worker has orders, or will have them as soon as it is up."""
        pools = [pool for pool in self._pools.values() if pool.open_orders()]
        return any(not job.over for pool in pools for job in pool.jobs.values())

    def idle(self) -> int:
        """How many workers could take an order at once."""
        return sum(pool.idle() for pool in self._pools.values())

    def note_rows(self, rows: Mapping[str, JobRow], now: float) -> None:
        """Note the queue's rows of the workers, and what the ends of some mean for orders."""
        for pool in self._pools.values():
            pool.note_rows(rows, now)
            ended = [
                job for job in pool.jobs.values() if job.row is not None and job.row.stage == "over" and not job.settled
            ]
            if ended:
                pool.read(self._login.tails(pool.journals()), now)
            for job in ended:
                job.settled = True
            if pool.waiting and any(job.settled or job.lost for job in pool.jobs.values()):
                self._find_claims(pool, now)
            for job in ended:
                if job.failed and job.order is None and pool.waiting:
                    self._charge(pool, job)
            row = pool.waiting_row() if pool.waiting else None
            refusal = "" if row is None else self._refusal(row.id, row.reason)
            if refusal:
                self._refuse(pool, refusal)

    def _find_claims(self, pool: JobPool, now: float) -> None:
        """Bind orders whose workers ended between their claim and the line in their journal."""
        ran = self._login.run(["ls", "-1", f"{pool.folder}/{CLAIMS}"])
        claimed = [int(name) for name in ran.out.split() if name.isdecimal() and int(name) in pool.waiting]
        owners = owners_of(self._login, pool, claimed)
        for number in claimed:
            job = pool.jobs.get(owners.get(number, ""))
            if job is not None:
                pool.bind(number, job)
            elif self._empty_claims.setdefault((pool.folder, number), now) + LATE < now:
                text = "the worker that took the step ended before it could say so"
                pool.waiting.pop(number).verdict = failed(WORKER_LOST, text)

    def _charge(self, pool: JobPool, job: PoolJob) -> None:
        """A worker failed before it took an order: one that waits fails with it, as in a job of its own."""
        number = min(pool.waiting)
        owner = self._claim(pool, [number])[number]
        if owner == DRIVER:
            task = pool.waiting[number]
            pool.bind(number, job)
            if task.order is not None:
                task.order.begun = False
        elif owner in pool.jobs:
            pool.bind(number, pool.jobs[owner])

    def explain_end(self, task: SlurmJob) -> None:
        """Add what its worker's stderr says, where Slurm writes about a job's end."""
        job = self._pools[task.folder].jobs.get(task.id)
        if job is not None:
            task.errors = (task.errors + self._login.tails({job.errors: 0}).get(job.errors, b""))[-_ERRORS:]

    def message(self, task: SlurmJob) -> tuple[str, str]:
        """Why an order waits, and the part of that which is reported when it changes."""
        pool = self._pools[task.folder]
        row = pool.waiting_row()
        if row is not None:
            return explain(row.reason, start=row.start, job=row.id), row.reason
        return pool.held, pool.held_reason

    def partition(self, task: SlurmJob) -> str:
        """The partition where an order waits; empty where that is not known."""
        row = self._pools[task.folder].waiting_row()
        return "" if row is None else row.partition

    # Workers

    def staff(self, now: float) -> None:
        """Submit the workers that are lacking, and take those that nobody needs out of the queue."""
        for pool in self._pools.values():
            if pool.unanswered and now >= pool.look_at:
                self._find_unanswered(pool, now)
            self._hire(pool, now)
            superfluous = pool.superfluous()
            if superfluous:
                self._controller.withdraw(ids_of(job.id for job in superfluous))
                for job in superfluous:
                    job.cancelled = True

    def _hire(self, pool: JobPool, now: float) -> None:
        pool.held = pool.held_reason = ""
        while (lacking := pool.lacking()) and pool.job is not None and pool.settings is not None:
            caps = {name: pool.settings.get(name) for name in ("max_jobs", "array_parallelism")}
            own = min((cap for cap in caps.values() if cap is not None), default=lacking + pool.live())
            live = self._alone() + self.live()
            room = self._limits.room(live, now)
            count = min(lacking, room, own - pool.live())
            if count < 1:
                pool.held, pool.held_reason = self._limits.message(lacking, live, now), self._limits.reason(live, now)
                if own <= pool.live():
                    name = next(name for name, cap in caps.items() if cap == own)
                    pool.held = f"{name}={own} lets no further job take steps like it; it waits for one that runs"
                    pool.held_reason = name
                return
            count = pool.in_wave(min(count, self._most()) if count > 1 else count, now)
            if not count:
                return
            try:
                self._submit(pool, count)
            except QueueFull as error:
                self._limits.refused(count, live, now, error.limit)
            except Away:
                raise
            except BackendError as error:
                self._refuse(pool, refusal_text(error, pool.job.avoid))
                return
            else:
                self._limits.accepted(now)
                pool.submitted(count, now)
        pool.wave, pool.wave_at = FIRST_WAVE, float("-inf")

    def _submit(self, pool: JobPool, count: int) -> None:
        """Submit workers."""
        job, settings = pool.job, pool.settings
        assert job is not None and settings is not None
        token = os.urandom(8).hex()
        folder = slurmscript.submission_folder(self._home(), job.run, token)
        text = slurmscript.worker_script(
            job, count, self._place(settings), settings, folder=self._home(), token=token, pool=pool.folder
        )
        pool.unanswered[token] = count
        self._folders.append(folder)
        self._login.write(
            {
                f"{folder}/jobs.json": json.dumps(workers_document(pool, count)).encode(),
                f"{folder}/{slurmscript.SCRIPT}": text.encode(),
            }
        )
        try:
            id = self._controller.submit(folder, text)
        except Away:
            raise
        except BackendError as error:
            if not isinstance(error, QueueFull) or error.limit:
                del pool.unanswered[token]
                self._login.remove([folder])
            raise
        self._join(pool, token, folder, id)

    def _join(self, pool: JobPool, token: str, folder: str, id: str) -> None:
        count = pool.unanswered.pop(token)
        pool.doubted.pop(token, None)
        pool.jobs.update({job.id: job for job in worker_jobs(id, folder, count)})

    def _find_unanswered(self, pool: JobPool, now: float) -> None:
        """Find out which submissions without an answer Slurm has taken. One that it does not know for `DOUBT` seconds
        is given up: without its folder, in which its output would be, Slurm starts none of it."""
        pool.look_at = now + LOOK_AGAIN
        ids = self._controller.ids_by_comment(pool.unanswered)
        for token in list(pool.unanswered):
            folder = f"{pool.folder.rpartition('/')[0]}/{token}"
            if token in ids:
                self._join(pool, token, folder, ids[token])
            elif pool.doubted.setdefault(token, now) + DOUBT <= now:
                self._login.remove([folder])
                del pool.unanswered[token], pool.doubted[token]
        self.changed_at = time.monotonic()

    def _refuse(self, pool: JobPool, text: str) -> None:
        """Slurm takes or starts no workers: orders that none has taken fail."""
        for number, owner in self._claim(pool, list(pool.waiting)).items():
            if owner == DRIVER:
                pool.waiting.pop(number).verdict = failed(REFUSED, text)
            elif owner in pool.jobs:
                pool.bind(number, pool.jobs[owner])

    # Pools of an earlier driver

    def restore(
        self, folder: str, document: Mapping[str, object], workers: Sequence[tuple[str, str, int]], now: float
    ) -> JobPool:
        """Take over an earlier driver's pool, with the folder, the id and the size of each submission of workers."""
        jobs = [job for worker_folder, id, count in workers for job in worker_jobs(id, worker_folder, count)]
        self._folders += [worker_folder for worker_folder, _, _ in workers]
        pool = read_pool(self._login, folder, document, jobs, now)
        self._pools[folder] = pool
        if not pool.closed:
            self._by_shape.setdefault(pool.shape, pool)
        return pool

    def may_come(self, pool: JobPool, number: int) -> bool:
        """Whether an order of an earlier driver without a result may still get one."""
        order = pool.earlier[number]
        if not order.worker:
            return not pool.closed
        job = pool.jobs.get(order.worker)
        return job is not None and job.order == number and job.in_queue

    def adopt(self, pool: JobPool, number: int, job: Job, settings: SlurmSettings) -> SlurmJob:
        """The handle of an order of an earlier driver."""
        order, task = pool.earlier.pop(number), pooled_job(pool.folder, number, job)
        task.attempt = order.attempt
        pool.job, pool.settings = pool.job or job, pool.settings or settings
        if not order.worker:
            pool.waiting[number] = task
            return task
        worker = pool.jobs[order.worker]
        task.id, task.row = worker.id, worker.row
        pool.taken[number] = task
        if task.order is not None and worker.order != number:
            task.order.over = time.monotonic()
            task.order.ended_by_platform = worker.closed == SIGNAL and worker.last_order == number
        return task

    def drop(self, orders: Iterable[tuple[JobPool, int]]) -> None:
        """End orders of an earlier driver that are not adopted."""
        numbers: dict[str, list[int]] = {}
        for pool, number in orders:
            numbers.setdefault(pool.folder, []).append(number)
        for folder, dropped in numbers.items():
            pool = self._pools[folder]
            ended = {number: pool.earlier.pop(number) for number in dropped if number in pool.earlier}
            open_numbers = [number for number, order in ended.items() if self._is_open(pool, number, order)]
            owners = self._claim(pool, [number for number in open_numbers if not ended[number].worker])
            self._end(pool, [number for number in open_numbers if owners.get(number) != DRIVER], 0.0)

    @staticmethod
    def _is_open(pool: JobPool, number: int, order: EarlierOrder) -> bool:
        """Whether an order may still run."""
        job = pool.jobs.get(order.worker)
        return not order.worker or (job is not None and job.order == number)

    # The end

    def close(self) -> None:
        """Let the workers leave, take those that do not out of the queue, and remove the files of what is done."""
        pools = [pool for pool in self._pools.values() if any(job.in_queue for job in pool.jobs.values())]
        for pool in pools:
            self._append(pool, line(PoolOrder(close=True)))
        unanswered = [pool for pool in self._pools.values() if pool.unanswered]
        for pool in unanswered:
            self._find_unanswered(pool, time.monotonic())
        staying = [job for pool in self._pools.values() for job in pool.jobs.values() if job.in_queue]
        waiting = [job for job in staying if not job.up and not job.closed]
        if waiting:
            self._controller.cancel(ids_of(job.id for job in waiting))
        until = time.monotonic() + LEAVE
        workers = [job for job in staying if job.up]
        while any(not job.closed for job in workers) and time.monotonic() < until:
            time.sleep(_LOOK)
            self.follow(time.monotonic())
        late = [job for job in workers if not job.closed]
        if late:
            self._controller.cancel(ids_of(job.id for job in late))
        open_pools = {pool.token for pool in self._pools.values() if pool.open_orders()}
        if not open_pools:
            self._login.remove([*self._pools, *self._folders])


def claim_orders(login: Login, pool: JobPool, numbers: Sequence[int]) -> dict[int, str]:
    """Take back orders; returns who has each: `DRIVER`, the worker that was first, or "" where it is not told."""
    if not numbers:
        return {}
    ran = login.run(["sh", "-c", _CLAIM, DRIVER, f"{pool.folder}/{CLAIMS}", *map(str, numbers)])
    if ran.code:
        raise BackendError(f"orders in {pool.folder} cannot be taken back: {ran.err.strip()}")
    owners = owners_of(login, pool, numbers)
    return {number: owners.get(number, "") for number in numbers}


def owners_of(login: Login, pool: JobPool, numbers: Collection[int]) -> dict[int, str]:
    """Who has claimed orders; orders without a claim, and claims without a name yet, are missing."""
    if not numbers:
        return {}
    paths = {f"{pool.folder}/{CLAIMS}/{number}": number for number in numbers}
    contents = login.tails(dict.fromkeys(paths, 0))
    return {paths[path]: data.decode("ascii", "replace") for path, data in contents.items()}


def read_pool(
    login: Login, folder: str, document: Mapping[str, object], workers: Iterable[PoolJob], now: float
) -> JobPool:
    """The pool of an earlier driver, with its workers, from its files."""
    orders = login.tails({f"{folder}/{ORDERS}": 0}, limit=1 << 28).get(f"{folder}/{ORDERS}", b"")
    pool = earlier_pool(folder, document, orders)
    pool.jobs.update({job.id: job for job in workers})
    ran = login.run(["ls", "-1", f"{folder}/{CLAIMS}"])
    claimed = [int(name) for name in ran.out.split() if name.isdecimal()]
    for number, owner in owners_of(login, pool, claimed).items():
        if number in pool.earlier:
            pool.earlier[number].worker = owner
    pool.read(login.tails(pool.journals(), limit=1 << 26) if pool.jobs else {}, now)
    return pool


def close_pool(login: Login, pool: JobPool, grace: float) -> None:
    """End the orders of an earlier driver's pool within `grace` seconds, those that none has taken at once; its workers
    leave."""
    owners = claim_orders(login, pool, [number for number, order in pool.earlier.items() if not order.worker])
    running = {job.order for job in pool.jobs.values()} | {one for one, owner in owners.items() if owner != DRIVER}
    ends = [PoolOrder(number=one, end=True, grace=grace) for one in pool.earlier if one in running]
    login.append(f"{pool.folder}/{ORDERS}", b"".join(map(line, [*ends, PoolOrder(close=True)])))
