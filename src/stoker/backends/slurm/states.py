"""What Slurm says of a job, from the rows that its commands print to how the job ended. Pure: nobody is asked here.

Rows are asked for field by field, not as JSON (docs/dev/decisions/0015).
"""

from __future__ import annotations

import re
from typing import Final, Iterator, Literal, Mapping

import attrs

from stoker.backends.base.statuses import failed, killed_for_memory
from stoker.core.plan import JobStatus
from stoker.core.status import HOST_OOM, KILLED, NODE_LOST, PREEMPTED, TIMED_OUT, WORKER_LOST

Stage = Literal["waiting", "running", "over"]

STATES: Final[Mapping[str, tuple[Stage, str]]] = {
    # Slurm's word → where the job stands, and why it ended where the word alone says so.
    # https://slurm.schedmd.com/job_state_codes.html
    "PENDING": ("waiting", ""),
    "CONFIGURING": ("waiting", ""),
    "REQUEUED": ("waiting", ""),
    "REQUEUE_FED": ("waiting", ""),
    "REQUEUE_HOLD": ("waiting", ""),
    "RESV_DEL_HOLD": ("waiting", ""),
    "SPECIAL_EXIT": ("waiting", ""),
    "EXPEDITING": ("waiting", ""),
    "RUNNING": ("running", ""),
    "POWER_UP_NODE": ("running", ""),
    "RESIZING": ("running", ""),
    "SIGNALING": ("running", ""),
    "STAGE_OUT": ("running", ""),
    "STOPPED": ("running", ""),
    "SUSPENDED": ("running", ""),
    "UPDATE_DB": ("running", ""),
    "COMPLETING": ("running", ""),  # how it ended stands there when the last process is gone
    "COMPLETED": ("over", ""),
    "FAILED": ("over", ""),
    "CANCELLED": ("over", KILLED),
    "TIMEOUT": ("over", TIMED_OUT),
    "DEADLINE": ("over", TIMED_OUT),
    "PREEMPTED": ("over", PREEMPTED),
    "OUT_OF_MEMORY": ("over", HOST_OOM),
    "NODE_FAIL": ("over", NODE_LOST),
    "BOOT_FAIL": ("over", NODE_LOST),
    "LAUNCH_FAILED": ("over", WORKER_LOST),
    "RECONFIG_FAIL": ("over", NODE_LOST),
    "REVOKED": ("over", WORKER_LOST),
}

QUEUE: Final = "%i|%T|%S|%k|%N|%r"
"""squeue's --format for `rows`: what may have any letters in it comes last."""
ACCOUNT: Final = "JobID,State,ExitCode,Timelimit,NodeList"
"""sacct's --format for `accounted`."""

_FIELD: Final = re.compile(r"(?:^|\s)([A-Z][A-Za-z/:]*)=")
_MEMORY: Final = re.compile(
    r"exceeded (?:job|step|memory) memory limit|exceeded memory limit|oom[-_]kill", re.IGNORECASE
)
"""What slurmstepd writes into the step's stderr: the polling plugin's words, and the cgroup plugin's.
https://github.com/SchedMD/slurm/blob/slurm-22-05-8-1/src/slurmd/slurmstepd/mgr.c"""


@attrs.frozen(kw_only=True)
class Row:
    """One job, or one task of an array, as Slurm tells it. `id` is "12" or "12_3", `start` when it began or may begin,
    `reason` why it waits. `code` and `signal` of its end, `limit` and `by` are only known to those who keep accounts
    of it: the limit of its time in Slurm's words, and the uid of who cancelled it."""

    id: str
    state: str
    start: str = ""
    comment: str = ""
    nodes: str = ""
    reason: str = ""
    code: int | None = None
    signal: int = 0
    limit: str = ""
    by: str = ""

    @property
    def stage(self) -> Stage:
        """Where it stands; a word that nobody knows yet is a job that is still there."""
        return STATES.get(self.state, ("running", ""))[0]


def rows(text: str) -> Iterator[Row]:
    """What `squeue --format=QUEUE --array` printed."""
    for line in text.splitlines():
        parts = line.strip().split("|", 5)
        if len(parts) == 6:
            id, state, start, comment, nodes, reason = parts
            yield Row(id=id, state=_word(state), start=_said(start), comment=_said(comment), nodes=nodes, reason=reason)


def shown(text: str) -> Iterator[Row]:
    """What `scontrol --oneliner show job` printed."""
    for line in text.splitlines():
        fields = _fields(line)
        if "JobState" not in fields:
            continue
        task = fields.get("ArrayTaskId", "")
        code, signal = _exit(fields.get("ExitCode", ""))
        yield Row(
            id=f"{fields['ArrayJobId']}_{task}" if task else fields["JobId"],
            state=_word(fields["JobState"]),
            start=_said(fields.get("StartTime", "")),
            comment=_said(fields.get("Comment", "")),
            nodes=_said(fields.get("NodeList", "")),
            reason=_said(fields.get("Reason", "")),
            code=code,
            signal=signal,
            limit=_said(fields.get("TimeLimit", "")),
        )


def accounted(text: str) -> Iterator[Row]:
    """What `sacct --format=ACCOUNT --allocations --parsable2 --noheader` printed."""
    for line in text.splitlines():
        parts = line.strip().split("|", 4)
        if len(parts) == 5:
            id, said, ended, limit, nodes = parts
            code, signal = _exit(ended)
            by = said.partition(" by ")[2]
            yield Row(id=id, state=_word(said), code=code, signal=signal, limit=_said(limit), nodes=_said(nodes), by=by)


def ended(row: Row, errors: str, *, memory: int) -> JobStatus:
    """How a job ended that left no result, or one that only says that it was ended from outside.

    `errors` is the end of what it wrote on stderr, `memory` the step's limit in bytes.
    """
    told = [line.strip() for line in errors.splitlines() if _MEMORY.search(line)]
    cause = STATES.get(row.state, ("over", ""))[1]
    if cause == HOST_OOM or (told and row.state == "FAILED"):
        return killed_for_memory(told[-1] if told else f"Slurm says {row.state}", None, memory=memory)
    code = -row.signal if row.signal else row.code
    return attrs.evolve(failed(cause or WORKER_LOST, _sentence(row, cause, errors)), exit_code=code)


def _sentence(row: Row, cause: str, errors: str) -> str:
    """What happened, in Slurm's word and ours."""
    on = f" on {row.nodes}" if row.nodes else ""
    if cause == TIMED_OUT:
        limit = f" of {row.limit}" if row.limit else ""
        what = "its deadline" if row.state == "DEADLINE" else f"the limit{limit} that Slurm was given for its time"
        return (
            f"job {row.id}{on} ran into {what} ({row.state}): the setting time_limit, or the step's timeout, is longer"
        )
    if cause == PREEMPTED:
        return f"Slurm took the place of job {row.id}{on} for another job (PREEMPTED)"
    if cause == NODE_LOST:
        return f"a node of job {row.id} failed{on} (Slurm says {row.state})"
    if cause == KILLED:
        who = f" by user {row.by}" if row.by else ""
        return f"job {row.id}{on} was cancelled{who}, not by Stoker (scancel, or an administrator)"
    ending = f"signal {row.signal}" if row.signal else f"exit code {row.code}" if row.code is not None else ""
    said = " | ".join(line.strip() for line in errors.splitlines()[-5:] if line.strip())[-1000:]
    parts = [f"Slurm says {row.state}", row.reason if row.reason not in ("None", "") else "", ending]
    words = f"job {row.id}{on} left no result: {', '.join(part for part in parts if part)}"
    return f"{words}; it wrote: {said}" if said else words


def compact(ids: Mapping[str, set[int]]) -> list[str]:
    """Tasks of arrays as Slurm's commands take them: {"12": {0, 1, 2, 7}} is ["12_[0-2,7]"]; no task means all."""
    found = []
    for id, tasks in ids.items():
        parts: list[list[int]] = []
        for task in sorted(tasks):
            if parts and task == parts[-1][-1] + 1:
                parts[-1] = [parts[-1][0], task]
            else:
                parts.append([task])
        text = ",".join("-".join(map(str, part)) for part in parts)
        found.append(f"{id}_[{text}]" if text else id)
    return found


def _word(state: str) -> str:
    """The state alone: "CANCELLED by 1000", and "CANCELLED+" where a column was too narrow."""
    return state.partition(" ")[0].rstrip("+").upper()


def _said(text: str) -> str:
    return "" if text in ("(null)", "None", "N/A", "Unknown", "None assigned", "UNLIMITED", "Partition_Limit") else text


def _exit(text: str) -> tuple[int | None, int]:
    code, colon, signal = text.partition(":")
    return (int(code), int(signal)) if colon and code.isdigit() and signal.isdigit() else (None, 0)


def _fields(line: str) -> dict[str, str]:
    """KEY=VALUE of a line; of a key that stands there twice, the first: what a person named comes later."""
    found: dict[str, str] = {}
    marks = list(_FIELD.finditer(line))
    for mark, following in zip(marks, [*marks[1:], None]):
        found.setdefault(mark.group(1), line[mark.end() : following.start() if following else None].strip())
    return found
