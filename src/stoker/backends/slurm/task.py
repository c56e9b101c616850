"""Follows one job of Slurm, or one task of an array: its files and its rows in the queue become a `JobStatus`.

The worker's result counts before the queue. A result that reports an end from outside does not: only Slurm knows who
ended the step, and whether it is started again.
"""

from __future__ import annotations

from typing import Final, Mapping

import attrs

from stoker.backends.base.messages import nodes_of
from stoker.backends.base.statuses import failed, of_boot, read_result
from stoker.backends.slurm.script import by_srun
from stoker.backends.slurm.settings import SlurmSettings
from stoker.backends.slurm.states import SETUP_FAILED_MARK, JobRow, end_status
from stoker.core.plan import Job, JobStatus
from stoker.core.protocol import MARK, RESULT, StepResult, WorkerEvent
from stoker.core.status import CANCELLED, REFUSED, WORKER_LOST

LATE: Final = 60.0
"""Seconds after a job's end in which its result may still appear: file systems of clusters show a new file that late.
NFS caches for up to `acdirmax` that a folder lacks a file: https://man7.org/linux/man-pages/man5/nfs.5.html"""
LOST: Final = 300.0
"""Seconds after which a job counts as lost that is neither in the queue nor in the accounts, and has no result."""
_BY_SIGNAL: Final = (128 + 9, 128 + 15)
"""Exit codes of a shell whose process was ended by SIGKILL or SIGTERM."""
_TAIL: Final = 4096
"""Bytes of stderr that are kept to explain an end."""


SETTLE: Final = 2.0
"""Seconds after an order's end in which its worker may still note that the platform ends it."""


@attrs.define(kw_only=True)
class PlacedOrder:
    """A step's place in a pool, whose workers take orders one after another."""

    number: int
    over: float | None = None
    """Since when its program is over by the worker's journal, by the monotonic clock."""
    code: int = 0
    """That program's exit code, negative for a signal."""
    ended_by_platform: bool = False
    """Whether its worker was asked to end by a signal, which is Slurm's."""
    begun: bool = True
    """Whether its worker began it; a worker that ended before it could begin one answers for one all the same."""


@attrs.define(kw_only=True)
class SlurmJob:
    """The handle of a job, with what is known of it so far. Times are of the monotonic clock."""

    id: str
    """Slurm's: "12", or "12_3" for a task of an array; that of its worker for an order of a pool. Empty for a job that
    is not in the queue yet, and for an order that no worker has taken."""
    folder: str
    """The folder of its submission, or of its pool."""
    job_folder: str
    """The folder of its own files."""
    nodes: int
    memory: int
    """The step's limit in bytes; 0 for none."""
    batch: bool
    """Whether the worker is the batch script's own process, and not a step of srun."""
    devices: bool = False
    """Whether the step holds devices."""
    attempt: int = 0
    """The number of the attempt as which an earlier driver sent it; 0 for one of this driver."""
    order: PlacedOrder | None = None
    """Its place in a pool; None for a job of its own."""
    verdict: JobStatus | None = None
    """How it ended where neither the worker nor the queue tells: refused, or taken back."""
    ending: bool = False
    """Whether Stoker is ending it."""
    forced: bool = False
    """Whether Stoker is ending it at once."""
    row: JobRow | None = None
    """Its last row in the queue."""
    ran: JobRow | None = None
    """Its last row while it ran."""
    row_at: float = float("-inf")
    missing: float | None = None
    """Since when the queue does not mention it; None where it does."""
    over: float | None = None
    """Since when the queue shows it as over."""
    details: JobRow | None = None
    """Its row from scontrol or sacct, once it is over."""
    result: StepResult | None = None
    result_at: float = 0.0
    read_at: float = float("-inf")
    """When its files were read last."""
    stale: bytes = b""
    """The result that was read last: one that is discarded is not read again."""
    up_at: float | None = None
    """When it was read that the worker is up; None before that."""
    refusal: str = ""
    """Why it can never begin; empty where it may."""
    wants: str = ""
    """What Slurm has to be asked before the end can be judged: "row", "details", or nothing."""
    offsets: dict[str, int] = attrs.field(factory=dict)
    """Bytes of each file that were read."""
    errors: bytes = b""
    """The end of its stderr."""
    events: list[WorkerEvent] = attrs.field(factory=list)
    """Events that the backend has not taken yet."""

    # Files

    def files(self) -> dict[str, int]:
        """The files to read, with the offset of each."""
        offsets = {}
        for node in range(self.nodes):
            for name in (f"out-{node}", f"err-{node}"):
                path = f"{self.job_folder}/{name}"
                offsets[path] = self.offsets.get(path, 0)
        if self.result is None:
            offsets[f"{self.job_folder}/{RESULT}"] = 0
        return offsets

    def read(self, files: Mapping[str, bytes], now: float) -> list[tuple[int, str, bytes]]:
        """Note what was read from files; returns the new output as (node, stream, bytes)."""
        self.read_at = now
        pieces = []
        for node in range(self.nodes):
            for name, stream in ((f"out-{node}", "stdout"), (f"err-{node}", "stderr")):
                path = f"{self.job_folder}/{name}"
                data = files.get(path)
                if data:
                    self.offsets[path] = self.offsets.get(path, 0) + len(data)
                    pieces.append((node, stream, data))
                    if not self.up and stream == "stdout" and MARK.encode() in data:
                        self.up_at = now
                    if stream == "stderr":
                        self.errors = (self.errors + data)[-_TAIL:]
        data = files.get(f"{self.job_folder}/{RESULT}")
        if data and data != self.stale:
            self.result = read_result(data)
            self.result_at, self.stale = now, data
        return pieces

    def samples(self) -> list[str]:
        """The monitors' files of samples, one for each node."""
        names = [f"samples-{node}.jsonl" if node else "samples.jsonl" for node in range(self.nodes)]
        return [f"{self.job_folder}/{name}" for name in names] if self.devices else []

    # The queue

    def note_row(self, row: JobRow | None, now: float) -> None:
        """Note the queue's row of the job; None where the queue does not mention it."""
        if row is None:
            self.missing = self.missing if self.missing is not None else now
            return
        self.row, self.row_at, self.missing = row, now, None
        self.over = None if row.stage != "over" else self.over if self.over is not None else now
        if self.order is None and self.ran is not None and _again(self.ran, row):
            self._runs_again(self.ran, row)
        if row.state == "RUNNING":
            self.ran = row

    def _runs_again(self, before: JobRow, row: JobRow) -> None:
        self.up_at = self.details = self.ran = None
        if self.result is not None and not self.result.ok:
            self.result = None
        why = row.reason if row.stage == "waiting" else row.state
        message = f"Slurm starts it again ({why})"
        facts = {"job": row.id, "nodes": before.nodes, "message": message}
        self.events.append(WorkerEvent(kind="noted", note="requeued", data=facts))

    @property
    def comes_again(self) -> bool:
        """Whether it waits in the queue although it has left a result."""
        waits = self.row is not None and self.row.stage == "waiting" and self.row_at > self.result_at
        return waits and self.order is None

    @property
    def up(self) -> bool:
        """Whether the worker has reported that it is up."""
        return self.up_at is not None

    @property
    def runs(self) -> bool:
        """Whether it runs, as far as is known: a row from before its worker was up says nothing any more."""
        if self.order is not None:
            return bool(self.id) and self.order.begun
        waits = self.row is not None and self.row.stage == "waiting"
        waits = waits and (self.up_at is None or self.row_at >= self.up_at)
        return not waits and (self.up or (self.row is not None and self.row.stage == "running"))

    # Its end

    def status(self, now: float) -> JobStatus | None:
        """How it ended; None while that is not known. Sets `wants` to what would tell it."""
        self.wants = ""
        if self.verdict is not None or not self.id:
            return self.verdict
        return self._by_result(now) if self.result is not None else self._by_queue(now)

    def _by_result(self, now: float) -> JobStatus | None:
        result = self.result
        assert result is not None
        status = of_boot(result, None, memory=self.memory)
        code = status.exit_code or 0
        ended_so = status.cause in (CANCELLED, WORKER_LOST) or code < 0 or code in _BY_SIGNAL
        from_outside = status.state == "failed" and ended_so
        if not from_outside or self.ending or self.result_at + LATE < now:
            return status
        order = self.order
        if order is not None and order.over is not None and not order.ended_by_platform:
            return status if order.over + SETTLE < now else None
        row = self.row
        if row is None or self.row_at <= self.result_at or row.stage == "running":
            self.wants = "row"
            return None
        if row.stage == "waiting":
            self.result = None  # it will run again, and leave another one
            return None
        if row.state == "FAILED" and order is not None:
            # What Slurm wrote is in the stderr of its worker, which is read with the details.
            if self.details is None:
                self.wants = "details"
                return None
            row = self.details
        if row.state in ("COMPLETED", "FAILED"):
            return attrs.evolve(self._end_status(row), result=result) if self._for_memory(row) else status
        return self._status_by_details(now)

    def _for_memory(self, row: JobRow) -> bool:
        return end_status(row, self._errors(), memory=self.memory).cause == "host-oom"

    def _by_queue(self, now: float) -> JobStatus | None:
        order = self.order
        if order is not None and order.over is not None and not order.ended_by_platform:
            return self._by_code(order, order.over, now)
        if self.missing is not None:
            return self._by_absence(now)
        if self.row is None:
            return None
        if self.ending and (self.over is not None or (self.forced and self.row.state == "COMPLETING")):
            return failed(CANCELLED)
        if self.refusal and self.row.stage == "waiting":
            return failed(REFUSED, self.refusal)
        if self.over is None:
            return None
        return self._status_by_details(now)

    def _by_code(self, order: PlacedOrder, over: float, now: float) -> JobStatus | None:
        """The status of an order whose program left no result, while its worker goes on."""
        if self.ending:
            return failed(CANCELLED)
        if self.read_at <= over or over + (SETTLE if order.code < 0 else LATE) > now:
            return None  # its result may still appear
        ending = f"signal {-order.code}" if order.code < 0 else f"exit code {order.code}"
        wrote = " | ".join(line.strip() for line in self._errors().splitlines()[-5:] if line.strip())[-1000:]
        why = f"the step's program in job {self.id} ended with {ending} and left no result in {self.job_folder}"
        return attrs.evolve(failed(WORKER_LOST, f"{why}; it wrote: {wrote}" if wrote else why), exit_code=order.code)

    def _by_absence(self, now: float) -> JobStatus | None:
        """The status of a job that the queue does not mention."""
        assert self.missing is not None
        if self.details is not None and self.details.stage == "over":
            self.over = self.over if self.over is not None else now
            return self._status_by_details(now)
        if self.ending:
            return failed(CANCELLED)
        if self.missing + LOST < now:
            why = f"Slurm no longer knows job {self.id}, and it left no result in {self.job_folder}"
            return failed(WORKER_LOST, why)
        self.wants = "details"
        return None

    def _status_by_details(self, now: float) -> JobStatus | None:
        """The status of a job that is over by Slurm, with no result that explains it."""
        if self.details is None:
            self.wants = "details"
            return None
        row = self.details
        if self.result is None and self.over is not None and self.read_at <= self.over:
            return None  # it may have ended since its files were read: they are read once more
        plain = row.state in ("COMPLETED", "FAILED") and not row.signal
        ran = self.up or (row.state == "COMPLETED" and SETUP_FAILED_MARK not in self._errors())
        if plain and ran and self.result is None and self.over is not None and self.over + LATE > now:
            return None  # the program ran to its end: its result is on its way
        return self._end_status(row)

    def _end_status(self, row: JobRow) -> JobStatus:
        """How it ended by Slurm, and when; Slurm also tells the start of what no worker has begun."""
        status = end_status(row, self._errors(), memory=self.memory)
        begun = self.up if self.order is None else self.order.begun
        return attrs.evolve(status, started=None if begun else row.began, ended=row.ended or status.ended)

    def _errors(self) -> str:
        return self.errors.decode("utf-8", "replace")


def job_id(id: str, index: int, count: int) -> str:
    """Slurm's id of job number `index` in a submission of `count` jobs."""
    return f"{id}_{index}" if count > 1 else id


def slurm_job(folder: str, id: str, index: int, count: int, job: Job, settings: SlurmSettings) -> SlurmJob:
    """The handle of job number `index` in a submission."""
    return SlurmJob(
        id=job_id(id, index, count),
        folder=folder,
        job_folder=f"{folder}/{index}",
        nodes=nodes_of(job),
        memory=job.step.settings.resources.get("memory", 0) if job.kind == "step" else 0,
        batch=not by_srun(job, settings),
        devices=job.kind == "step" and job.step.settings.resources.gpus_per_node > 0,
    )


def pooled_job(folder: str, number: int, job: Job) -> SlurmJob:
    """The handle of an order of a pool, before a worker has taken it."""
    return SlurmJob(
        id="",
        folder=folder,
        job_folder=f"{folder}/{number}",
        nodes=1,
        memory=job.step.settings.resources.get("memory", 0),
        batch=True,
        devices=job.step.settings.resources.gpus_per_node > 0,
        order=PlacedOrder(number=number),
    )


def _again(before: JobRow, row: JobRow) -> bool:
    """Whether a job that ran waits again, or has started again."""
    return row.stage == "waiting" or (row.state == "RUNNING" and bool(before.start and row.start != before.start))
