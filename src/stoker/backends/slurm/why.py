"""Explains why a job of Slurm waits: what its reason means, and what to do where waiting does not help.

The codes are those of https://slurm.schedmd.com/job_reason_codes.html and of `man squeue`, up to Slurm 25.05. Pure.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final, Mapping

from stoker.core.words import EXPECTED_START

REASONS: Final[Mapping[str, str]] = dict(
    line.split(": ", 1)
    for line in Path(__file__).with_name("reasons.txt").read_text(encoding="utf-8").splitlines()
    if line and not line.startswith("#")
)
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
