"""One job on Slurm, or one task of an array, as it is followed: what its files and the queue said, and what follows.

The worker's result is believed before the queue. A result that says that the step was ended from outside is not: who
ended it, and whether Slurm starts it again, is only known to Slurm.
"""

from __future__ import annotations

import json
from typing import Final, Mapping

import attrs

from stoker.backends.base.messages import nodes_of
from stoker.backends.base.statuses import failed, of_boot
from stoker.backends.slurm.script import by_srun
from stoker.backends.slurm.settings import SlurmSettings
from stoker.backends.slurm.states import Row, ended
from stoker.core.codec import from_json
from stoker.core.plan import Job, JobStatus
from stoker.core.protocol import MARK, RESULT, StepResult, WorkerEvent
from stoker.core.status import CANCELLED, WORKER_LOST

LATE: Final = 60.0
"""Seconds after a job's end in which its result may still appear: file systems of clusters show a new file that late.
NFS keeps for up to `acdirmax` what a folder did not have: https://man7.org/linux/man-pages/man5/nfs.5.html"""
LOST: Final = 300.0
"""Seconds after which a job counts as lost that neither the queue nor the accounts know, and that left no result."""
_BY_SIGNAL: Final = (128 + 9, 128 + 15)
"""Exit codes of a process that took SIGKILL or SIGTERM for its end."""
_TAIL: Final = 4096
"""Bytes of stderr that are kept to explain an end."""


@attrs.define(kw_only=True)
class Task:
    """`id` is Slurm's, "12" or "12_3"; `place` the folder of its files; `memory` the step's limit in bytes; `batch`:
    the worker is the batch script's own process, and not a step of srun. `devices`: it holds some. `asked`: we are
    ending it, `forced`: at once.

    Times are of the monotonic clock. `ran`: as the queue saw it run last. `wants`: what Slurm has to be asked before
    it can be judged.
    """

    id: str
    folder: str
    place: str
    nodes: int
    memory: int
    batch: bool
    devices: bool = False
    asked: bool = False
    forced: bool = False
    row: Row | None = None
    ran: Row | None = None
    row_at: float = float("-inf")
    missing: float | None = None
    over: float | None = None
    told: Row | None = None
    result: StepResult | None = None
    result_at: float = 0.0
    read_at: float = float("-inf")
    stale: bytes = b""
    up: bool = False
    wants: str = ""
    offsets: dict[str, int] = attrs.field(factory=dict)
    errors: bytes = b""
    events: list[WorkerEvent] = attrs.field(factory=list)

    # Files

    def files(self) -> dict[str, int]:
        """Which files to look into, and from where on."""
        found = {}
        for node in range(self.nodes):
            for name in (f"out-{node}", f"err-{node}"):
                path = f"{self.place}/{name}"
                found[path] = self.offsets.get(path, 0)
        if self.result is None:
            found[f"{self.place}/{RESULT}"] = 0
        return found

    def read(self, files: Mapping[str, bytes], now: float) -> list[tuple[int, str, bytes]]:
        """Take in what files have; pieces of output: node, stream, bytes."""
        self.read_at = now
        pieces = []
        for node in range(self.nodes):
            for name, stream in ((f"out-{node}", "stdout"), (f"err-{node}", "stderr")):
                path = f"{self.place}/{name}"
                data = files.get(path)
                if data:
                    self.offsets[path] = self.offsets.get(path, 0) + len(data)
                    pieces.append((node, stream, data))
                    self.up = self.up or (stream == "stdout" and MARK.encode() in data)
                    if stream == "stderr":
                        self.errors = (self.errors + data)[-_TAIL:]
        data = files.get(f"{self.place}/{RESULT}")
        if data and data != self.stale:
            self.result = from_json(StepResult, json.loads(data), strict=False)
            self.result_at, self.stale = now, data
        return pieces

    def samples(self) -> list[str]:
        """What the monitors beside the step wrote, a file for each node."""
        names = [f"samples-{node}.jsonl" if node else "samples.jsonl" for node in range(self.nodes)]
        return [f"{self.place}/{name}" for name in names] if self.devices else []

    # The queue

    def seen(self, row: Row | None, now: float) -> None:
        """Take in what the queue said of it, None where it did not mention it."""
        if row is None:
            self.missing = self.missing if self.missing is not None else now
            return
        self.row, self.row_at, self.missing = row, now, None
        self.over = None if row.stage != "over" else self.over if self.over is not None else now
        if self.ran is not None and _again(self.ran, row):
            self._runs_again(self.ran, row)
        if row.state == "RUNNING":
            self.ran = row

    def _runs_again(self, before: Row, row: Row) -> None:
        self.up, self.told, self.ran = False, None, None
        if self.result is not None and not self.result.ok:
            self.result = None
        why = row.reason if row.stage == "waiting" else row.state
        message = f"Slurm starts it again ({why})"
        facts = {"job": row.id, "nodes": before.nodes, "message": message}
        self.events.append(WorkerEvent(kind="noted", note="requeued", data=facts))

    @property
    def comes_again(self) -> bool:
        """Whether it waits in the queue though it has left a result."""
        return self.row is not None and self.row.stage == "waiting" and self.row_at > self.result_at

    # What follows

    def status(self, now: float) -> JobStatus | None:
        """How it ended; None while that is not known. Says in `wants` what would help."""
        self.wants = ""
        return self._by_result(now) if self.result is not None else self._by_queue(now)

    def _by_result(self, now: float) -> JobStatus | None:
        result = self.result
        assert result is not None
        status = of_boot(result, None, memory=self.memory)
        code = status.exit_code or 0
        ended_so = status.cause in (CANCELLED, WORKER_LOST) or code < 0 or code in _BY_SIGNAL
        from_outside = status.state == "failed" and ended_so
        if not from_outside or self.asked or self.result_at + LATE < now:
            return status
        row = self.row
        if row is None or self.row_at <= self.result_at or row.stage == "running":
            self.wants = "row"
            return None
        if row.stage == "waiting":
            self.result = None  # it will run again, and leave another one
            return None
        if row.state in ("COMPLETED", "FAILED"):
            return attrs.evolve(self._ended(row), result=result) if self._for_memory(row) else status
        return self._explained(now)

    def _for_memory(self, row: Row) -> bool:
        return ended(row, self._errors(), memory=self.memory).cause == "host-oom"

    def _by_queue(self, now: float) -> JobStatus | None:
        if self.missing is not None:
            return self._by_memory(now)
        if self.row is None:
            return None
        if self.asked and (self.over is not None or (self.forced and self.row.state == "COMPLETING")):
            return failed(CANCELLED)
        if self.over is None:
            return None
        return self._explained(now)

    def _by_memory(self, now: float) -> JobStatus | None:
        """The queue does not mention it: what others know of it."""
        assert self.missing is not None
        if self.told is not None and self.told.stage == "over":
            self.over = self.over if self.over is not None else now
            return self._explained(now)
        if self.asked:
            return failed(CANCELLED)
        if self.missing + LOST < now:
            why = f"Slurm no longer knows job {self.id}, and it left no result in {self.place}"
            return failed(WORKER_LOST, why)
        self.wants = "details"
        return None

    def _explained(self, now: float) -> JobStatus | None:
        """Slurm says that it is over, and there is no result that says why."""
        if self.told is None:
            self.wants = "details"
            return None
        row = self.told
        if self.result is None and self.over is not None and self.read_at <= self.over:
            return None  # it may have come and gone since its files were looked at: they are looked at once more
        plain = row.state in ("COMPLETED", "FAILED") and not row.signal
        ran = self.up or row.state == "COMPLETED"
        if plain and ran and self.result is None and self.over is not None and self.over + LATE > now:
            return None  # the program ran to its end: its result is on its way
        return self._ended(row)

    def _ended(self, row: Row) -> JobStatus:
        return ended(row, self._errors(), memory=self.memory)

    def _errors(self) -> str:
        return self.errors.decode("utf-8", "replace")


def task_id(id: str, index: int, count: int) -> str:
    """Slurm's name of a job by its place in a submission of `count` jobs."""
    return f"{id}_{index}" if count > 1 else id


def task_of(folder: str, id: str, index: int, count: int, job: Job, settings: SlurmSettings) -> Task:
    """The handle of a job by its place in a submission."""
    return Task(
        id=task_id(id, index, count),
        folder=folder,
        place=f"{folder}/{index}",
        nodes=nodes_of(job),
        memory=job.step.settings.resources.get("memory", 0) if job.kind == "step" else 0,
        batch=not by_srun(job, settings),
        devices=job.kind == "step" and job.step.settings.resources.gpus_per_node > 0,
    )


def _again(before: Row, row: Row) -> bool:
    """Whether a job that ran waits anew, or runs since another time."""
    return row.stage == "waiting" or (row.state == "RUNNING" and bool(before.start and row.start != before.start))
