"""States of jobs: from the rows that Slurm's commands print to a `JobStatus`. Pure.

Rows are requested field by field, not as JSON (docs/dev/decisions/0015).
"""

from __future__ import annotations

import re
from datetime import datetime, timezone
from typing import Final, Iterable, Iterator, Literal, Mapping

import attrs

from stoker.backends.base.statuses import failed, killed_for_memory
from stoker.core.plan import JobStatus
from stoker.core.status import (
    HOST_OOM,
    KILLED,
    NODE_LOST,
    PREEMPTED,
    PYTHON_TOO_OLD,
    SETUP_FAILED,
    TIMED_OUT,
    WORKER_LOST,
)
from stoker.core.words import EXPECTED_START, table_lines

Stage = Literal["waiting", "running", "over"]

STATES: Final[Mapping[str, tuple[Stage, str]]] = {
    # Slurm's state → the job's stage, and the cause of its end where the state tells it.
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
    "COMPLETING": ("running", ""),  # its end is known when the last process is gone
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

QUEUE: Final = "%i|%T|%S|%k|%N|%P|%r"
"""squeue's --format for `squeue_rows`; the field of free text comes last."""
ACCOUNT: Final = "JobID,State,ExitCode,Timelimit,Start,End,NodeList"
"""sacct's --format for `sacct_rows`."""
IN_UTC: Final = ("env", "TZ=UTC0", "SLURM_TIME_FORMAT=standard")
"""The beginning of a call whose times `scontrol_rows` and `sacct_rows` read: Slurm prints none of a time zone.
https://slurm.schedmd.com/sacct.html#SECTION_ENVIRONMENT-VARIABLES"""

_PYTHON_3_6: Final = "future feature annotations is not defined"
"""What a Python says that cannot even read the first line of the worker."""
_NOT_RUN: Final = re.compile(
    r"slurm_script: line \d+: (?:exec: )?(\S+): (No such file or directory|(?:command )?not found|Permission denied)$",
    re.MULTILINE,
)
"""What bash says where `exec` finds no interpreter. A line of `setup` may say so, too, and then ends the job itself."""
SETUP_FAILED_MARK: Final = "before the step began, this failed: "
"""Stands before the line of a script that failed, in the job's stderr."""

NO_OUTPUT: Final = 53
"""The signal that Slurm reports of a job whose working folder or output file its node cannot open: no real one.
https://slurm.schedmd.com/job_exit_code.html, and slurmd's log says "Could not open stdout file"."""
_FIELD: Final = re.compile(r"(?:^|\s)([A-Z][A-Za-z/:]*)=")
_EXIT: Final = re.compile(r"([0-9]{1,20}):([0-9]{1,20})")
"""Slurm's numbers have 64 bits: at most 20 digits."""
_MEMORY: Final = re.compile(
    r"exceeded (?:job|step|memory) memory limit|exceeded memory limit|oom[-_]kill", re.IGNORECASE
)
"""Messages of slurmstepd in the step's stderr: the polling plugin's, and the cgroup plugin's.
https://github.com/SchedMD/slurm/blob/slurm-22-05-8-1/src/slurmd/slurmstepd/mgr.c"""


@attrs.frozen(kw_only=True)
class JobRow:
    """One job, or one task of an array, as Slurm's commands print it."""

    id: str
    """"12", or "12_3" for a task of an array."""
    state: str
    """A word of `STATES`, or one of a later Slurm."""
    start: str = ""
    """When it began, or may begin by Slurm's estimate."""
    comment: str = ""
    nodes: str = ""
    """The nodes that it runs on, as Slurm lists them."""
    partition: str = ""
    """Its partition; of one that waits, those where it may run, with commas."""
    reason: str = ""
    """Why it waits: a code of `why`."""
    code: int | None = None
    """The exit code; None where it is not known. Only `scontrol` and `sacct` tell this and what follows."""
    signal: int = 0
    """The signal that ended it; 0 for none."""
    limit: str = ""
    """Its time limit as Slurm writes it."""
    by: str = ""
    """The user who cancelled it; `sacct` itself tells the uid."""
    began: float | None = None
    """When it began, in seconds since the epoch, to the second; None where it never did, or that is not known."""
    ended: float | None = None
    """When it ended."""

    @property
    def stage(self) -> Stage:
        """The stage of its state; one that is not in `STATES` counts as running."""
        return STATES.get(self.state, ("running", ""))[0]


def squeue_rows(text: str) -> Iterator[JobRow]:
    """The rows of `squeue --format=QUEUE --array`."""
    for line in text.splitlines():
        parts = line.strip().split("|", 6)
        if len(parts) == 7:
            id, state, start, comment, nodes, partition, reason = parts
            yield JobRow(
                id=id,
                state=_state_word(state),
                start=_value(start),
                comment=_value(comment),
                nodes=nodes,
                partition=_value(partition),
                reason=reason,
            )


def scontrol_rows(text: str) -> Iterator[JobRow]:
    """The rows of `scontrol --oneliner show job`."""
    for line in text.splitlines():
        fields = fields_of(line)
        task = fields.get("ArrayTaskId", "")
        id = fields.get("ArrayJobId" if task else "JobId", "")
        if "JobState" not in fields or not id:
            continue
        code, signal = _exit(fields.get("ExitCode", ""))
        nodes = _value(fields.get("NodeList", ""))
        yield JobRow(
            id=f"{id}_{task}" if task else id,
            state=_state_word(fields["JobState"]),
            start=_value(fields.get("StartTime", "")),
            comment=_value(fields.get("Comment", "")),
            nodes=nodes,
            reason=_value(fields.get("Reason", "")),
            code=code,
            signal=signal,
            limit=_value(fields.get("TimeLimit", "")),
            began=_moment(fields.get("StartTime", "")) if nodes else None,
            ended=_moment(fields.get("EndTime", "")),
        )


def sacct_rows(text: str) -> Iterator[JobRow]:
    """The rows of `sacct --format=ACCOUNT --allocations --parsable2 --noheader`."""
    for line in text.splitlines():
        parts = line.strip().split("|", 6)
        if len(parts) == 7:
            id, state, exit_text, limit, start, end, nodes = parts
            code, signal = _exit(exit_text)
            by = state.partition(" by ")[2]
            yield JobRow(
                id=id,
                state=_state_word(state),
                code=code,
                signal=signal,
                limit=_value(limit),
                nodes=_value(nodes),
                by=by,
                began=_moment(start) if _value(nodes) else None,
                ended=_moment(end),
            )


def end_status(row: JobRow, errors: str, *, memory: int) -> JobStatus:
    """The status of a job that ended without a result, or whose result only reports an end from outside.

    `errors` is the end of its stderr, `memory` the step's limit in bytes.
    """
    lines = [line.strip() for line in errors.splitlines() if _MEMORY.search(line)]
    cause = STATES.get(row.state, ("over", ""))[1]
    if cause == HOST_OOM or (lines and row.state == "FAILED"):
        return killed_for_memory(lines[-1] if lines else f"Slurm says {row.state}", None, memory=memory)
    code = -row.signal if row.signal else row.code
    if row.signal == NO_OUTPUT and not cause:
        return attrs.evolve(failed(SETUP_FAILED, _no_output_sentence(row)), exit_code=code)
    if SETUP_FAILED_MARK in errors and not cause:
        return attrs.evolve(failed(SETUP_FAILED, _setup_sentence(row, errors)), exit_code=code)
    no_worker = "" if cause else _no_worker(errors)
    if no_worker:
        sentence = f"no worker started in job {row.id}{f' on {row.nodes}' if row.nodes else ''}: {no_worker}"
        return attrs.evolve(failed(SETUP_FAILED, sentence), exit_code=code)
    return attrs.evolve(failed(cause or WORKER_LOST, _sentence(row, cause, errors)), exit_code=code)


def _no_worker(errors: str) -> str:
    """Why an interpreter could not run the worker, with what to do; empty where it is not that."""
    fix = "name another one of the nodes' with the setting `python`, or load one with `modules`"
    if PYTHON_TOO_OLD in errors:
        line = next(line for line in errors.splitlines() if PYTHON_TOO_OLD in line)
        return f"{line.strip()}; {fix}"
    if _PYTHON_3_6 in errors:
        return f"the nodes' Python is 3.6 or older: {PYTHON_TOO_OLD}; {fix}"
    missing = _NOT_RUN.search(errors)
    return f"the nodes have no {missing[1]} ({missing[2]}); {fix}" if missing is not None else ""


def _sentence(row: JobRow, cause: str, errors: str) -> str:
    """What happened, with Slurm's own word for it."""
    on = f" on {row.nodes}" if row.nodes else ""
    if cause == TIMED_OUT:
        limit = f" of {row.limit}" if row.limit else ""
        if row.state == "DEADLINE":
            return f"job {row.id}{on} ran into its deadline (DEADLINE): options.deadline is when it must have ended"
        return (
            f"job {row.id}{on} ran into the limit{limit} that Slurm was given for its time ({row.state}): the setting "
            "time_limit gives it another one"
        )
    if cause == PREEMPTED:
        return f"Slurm took the place of job {row.id}{on} for another job (PREEMPTED)"
    if cause == NODE_LOST:
        return f"a node of job {row.id} failed{on} (Slurm says {row.state})"
    if cause == KILLED:
        who = f" by user {row.by}" if row.by else ""
        return f"job {row.id}{on} was cancelled{who}, not by Stoker (scancel, or an administrator)"
    ending = f"signal {row.signal}" if row.signal else f"exit code {row.code}" if row.code is not None else ""
    last_lines = " | ".join(line.strip() for line in errors.splitlines()[-5:] if line.strip())[-1000:]
    parts = [f"Slurm says {row.state}", row.reason if row.reason not in ("None", "") else "", ending]
    words = f"job {row.id}{on} left no result: {', '.join(part for part in parts if part)}"
    return f"{words}; it wrote: {last_lines}" if last_lines else words


def _no_output_sentence(row: JobRow) -> str:
    on = f"the node {row.nodes}" if row.nodes else "its node"
    return (
        f"job {row.id} could not begin: {on} cannot open the folder of its output (Slurm says {row.state}, signal "
        f"{row.signal}): it is not mounted there, is full, or may not be written; name one that the login node and all "
        "nodes share: the setting folder"
    )


def _setup_sentence(row: JobRow, errors: str) -> str:
    """Which line before the worker failed, and what was written before that."""
    before, _, line = errors.rpartition(SETUP_FAILED_MARK)
    # A shell that reports a failure twice does not say more.
    written = [text.strip() for text in before.splitlines() if text.strip() and SETUP_FAILED_MARK not in text]
    words = " | ".join(dict.fromkeys(written[-5:]))[-1000:]
    on = f" on {row.nodes}" if row.nodes else ""
    sentence = f"before the step began, `{line.splitlines()[0].strip()}` failed in job {row.id}{on}"
    return f"{sentence}: {words}" if words else sentence


def ids_of(names: Iterable[str]) -> dict[str, set[int]]:
    """Slurm's ids of jobs, those of arrays with the tasks: "12_3" is task 3 of 12."""
    ids: dict[str, set[int]] = {}
    for name in names:
        id, array, index = name.partition("_")
        ids.setdefault(id, set()).update([int(index)] if array else [])
    return ids


def compact(ids: Mapping[str, set[int]]) -> list[str]:
    """Tasks of arrays as Slurm's commands take them: {"12": {0, 1, 2, 7}} is ["12_[0-2,7]"]; no task means all."""
    texts = []
    for id, tasks in ids.items():
        parts: list[list[int]] = []
        for task in sorted(tasks):
            if parts and task == parts[-1][-1] + 1:
                parts[-1] = [parts[-1][0], task]
            else:
                parts.append([task])
        text = ",".join("-".join(map(str, part)) for part in parts)
        texts.append(f"{id}_[{text}]" if text else id)
    return texts


def _state_word(state: str) -> str:
    """The state alone, of "CANCELLED by 1000", or of "CANCELLED+" where a column was too narrow."""
    return state.partition(" ")[0].rstrip("+").upper()


def _value(text: str) -> str:
    return "" if text in ("(null)", "None", "N/A", "Unknown", "None assigned", "UNLIMITED", "Partition_Limit") else text


def _moment(text: str) -> float | None:
    """Seconds since the epoch of a time as Slurm prints it `IN_UTC`; None for "Unknown" and the like."""
    try:
        return datetime.strptime(text, "%Y-%m-%dT%H:%M:%S").replace(tzinfo=timezone.utc).timestamp()
    except ValueError:
        return None


def _exit(text: str) -> tuple[int | None, int]:
    match = _EXIT.fullmatch(text)
    return (int(match[1]), int(match[2])) if match is not None else (None, 0)


def fields_of(line: str) -> dict[str, str]:
    """The KEY=VALUE pairs of a line. Of a key that is there twice the first counts: user-defined text comes later."""
    fields: dict[str, str] = {}
    marks = list(_FIELD.finditer(line))
    for mark, following in zip(marks, [*marks[1:], None]):
        fields.setdefault(mark.group(1), line[mark.end() : following.start() if following else None].strip())
    return fields


# Why a job waits


REASONS: Final[Mapping[str, str]] = dict(line.split(": ", 1) for line in table_lines(__file__, "reasons.txt"))
"""Single codes → what they mean. Codes that follow a pattern are in `_FAMILIES`."""

_THINGS: Final = {
    "bb": "burst buffer",
    "billing": "billing units",
    "cpu": "CPUs",
    "energy": "energy",
    "gres": "GPUs or other GRES",
    "jobs": "jobs",
    "license": "licenses",
    "mem": "memory",
    "memory": "memory",
    "node": "nodes",
    "submitjob": "jobs, waiting ones included,",
    "submitjobs": "jobs, waiting ones included,",
    "unknown": "units of a resource of the site's own",
    "wall": "hours",
    "wallduration": "time",
}
_THING: Final = (
    "(?P<thing>SubmitJobs?|Jobs|Cpu|CPU|Memory|Mem|Node|GRES|BB|Billing|Energy|License|Unknown|WallDuration|Wall)"
)
_WAITING: Final = "it begins when some of them end"
_PERHAPS: Final = f"{_WAITING}, or never if it alone asks for more than the limit"
_FAMILIES: Final = (
    # The first that fits. `who` is whose limit it is.
    (
        f"(?P<who>Assoc|QOS)Grp{_THING}RunMinutes(?:Limit)?",
        f"running jobs {{of}} hold as many minutes of {{thing}} as they may; {_WAITING}. A shorter time_limit helps",
    ),
    (
        f"(?P<who>Assoc|QOS)Grp{_THING}Minutes(?:Limit)?",
        "the minutes of {thing} {of} are used up. Ask for more, or use another {change}",
    ),
    (
        f"(?P<who>Assoc|QOS)Grp{_THING}(?:Limit)?",
        f"the jobs {{of}} together have as many {{thing}} as they may; {_WAITING}",
    ),
    (
        f"(?P<who>Assoc|QOS)Max{_THING}MinutesPerJob(?:Limit)?",
        "it asks for more minutes of {thing} than one job {of} may. Shorten time_limit, or use another {change}",
    ),
    (
        "(?P<who>Assoc|QOS)Max(?P<thing>WallDuration)PerJobLimit",
        "its time_limit is longer than a job {of} may have. Shorten it, or use another {change}",
    ),
    (
        f"(?P<who>Assoc|QOS)Max{_THING}PerJob(?:Limit)?",
        "it asks for more {thing} than one job {of} may. Ask for less, or use another {change}",
    ),
    (
        f"(?P<who>Assoc|QOS)Max{_THING}PerNode(?:Limit)?",
        "it asks for more {thing} on one node than a job {of} may. Ask for less, or use another {change}",
    ),
    (
        f"(?P<who>Assoc|QOS)Max{_THING}PerUser(?:Limit)?",
        f"your jobs {{of}} together have as many {{thing}} as they may; {_PERHAPS}",
    ),
    (
        "(?P<who>Assoc|QOS)Max(?P<thing>SubmitJob|Jobs)Limit",
        f"you have as many {{thing}} {{of}} as you may; {_WAITING}",
    ),
    (
        f"(?P<who>QOS)Min{_THING}(?:NotSatisfied)?",
        "it asks for fewer {thing} than a job {of} must. Ask for more, or use another {change}",
    ),
    (
        f"(?P<who>)Max{_THING}PerAccount",
        f"the jobs of your account in this QOS together have as many {{thing}} as they may; {_PERHAPS}",
    ),
)
_WHOSE: Final = {"Assoc": ("of your account", "account"), "QOS": ("of this QOS", "qos"), "": ("of your account", "qos")}
_NOT_A_TIME: Final = frozenset({"", "N/A", "NONE", "UNKNOWN", "INVALID", "(NULL)"})
_MOMENT: Final = re.compile(r"(\d{4}-\d\d-\d\d)T(\d\d:\d\d)(?::\d\d)?")
LATER: Final = frozenset({"Resources", "Priority", "Licenses", "Reservation", "BeginTime", "None", "ReqNodeNotAvail"})
"""Reasons with which the scheduler estimates a start; with others the estimate is an old one."""


def explain(reason: str, *, start: str = "", partition: str = "", job: str = "JOBID", today: str = "") -> str:
    """One sentence for a pending job: why it waits, what to do, and when it starts by Slurm's estimate.

    `reason` and `start` are `squeue`'s %r and %S; `today` is the date of the cluster, "2031-01-31", so that a time of
    that day is shown without it. A reason that is not in the tables is shown as Slurm gives it.
    """
    code, detail = _parts(reason)
    meaning = _meaning(code)
    if not meaning:
        text = f"Slurm says: {_readable(reason)}" if code else "it waits in Slurm's queue"
    else:
        where = f"partition {partition}" if partition else "its partition"
        text = f"{meaning.format(partition=where, job=job)} ({code}{f': {_readable(detail)}' if detail else ''})"
    moment = _MOMENT.fullmatch(start) if start.upper() not in _NOT_A_TIME and (code in LATER or not meaning) else None
    if moment is None:
        return text
    date, clock = moment.groups()
    return f"{text}{EXPECTED_START}{clock if date == today else f'{date} {clock}'} by Slurm's estimate"


def _parts(reason: str) -> tuple[str, str]:
    """The code, and what Slurm adds to it: "ReqNodeNotAvail, UnavailableNodes:n[1-2]"."""
    code, _, detail = reason.strip().removeprefix("(").removesuffix(")").partition(",")
    return ("" if code in ("null", "(null") else code.strip()), detail.strip(" _")


def _meaning(code: str) -> str:
    if code in REASONS:
        return REASONS[code]
    for pattern, meaning in _FAMILIES:
        match = re.fullmatch(pattern, code)
        if match is not None:
            of, change = _WHOSE[match["who"]]
            thing = _THINGS[match["thing"].lower()]
            # The other fields are filled in by `explain`.
            return meaning.replace("{of}", of).replace("{change}", change).replace("{thing}", thing)
    return ""


def _readable(text: str) -> str:
    """Slurm's own sentences without the underscores of squeue: "launch_failed_requeued_held"."""
    is_name = " " in text or text.count("_") == 1
    return text if is_name else text.replace("_", " ")
