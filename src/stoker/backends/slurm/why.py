"""Explains why a job of Slurm waits: what its reason means, and what to do where waiting does not help.

The codes are those of https://slurm.schedmd.com/job_reason_codes.html and of `man squeue`, up to Slurm 25.05. Pure.
"""

from __future__ import annotations

import re
from typing import Final, Mapping

from stoker.core.words import EXPECTED_START

REASONS: Final[Mapping[str, str]] = {
    # Waiting helps
    "None": "it is new: the scheduler has not looked at it yet",
    "WaitingForScheduling": "it is new: the scheduler has not looked at it yet",
    "Resources": "what it asks for is in use by other jobs; it is next in line for it",
    "Priority": "other jobs in {partition} stand before it in the line",
    "Licenses": "the licenses that it asks for are in use",
    "JobArrayTaskLimit": "as many of its array's tasks run as may run at once",
    "BeginTime": (
        "it may not begin before a certain time: that of options.begin, or a pause after Slurm started it again"
    ),
    "Cleaning": "it is started again, and the nodes are still clearing up after the time before",
    "Prolog": "its nodes are being prepared for it",
    "FedJobLock": "the clusters of the federation are agreeing on which of them runs it",
    "BurstBufferResources": "the burst buffer has no room for it yet",
    "BurstBufferStageIn": "its files are being brought into the burst buffer",
    "PowerNotAvail": "the cluster may not draw more power now",
    "PowerReserved": "power is set aside for a reservation",
    "SchedDefer": "the site starts no job at once; it is looked at with the others",
    "Reservation": "its reservation has not begun yet, or is full",
    "Dependency": "it waits for another job: options.dependency",
    # Action is needed
    "JobHeldUser": "it is held. Let it go with `scontrol release {job}`",
    "JobHeldAdmin": "the cluster's administrators hold it; ask them why",
    "JobHoldMaxRequeue": (
        "it failed to start so often that Slurm holds it. Ask the administrators to look at its nodes, then "
        "`scontrol release {job}`"
    ),
    "DependencyNeverSatisfied": (
        "it waits for another job in a way that will never come about. Cancel it, and change options.dependency"
    ),
    "ReqNodeNotAvail": (
        "nodes that it names or needs are down, drained or reserved. Wait, or name others: nodelist, exclude; near "
        "a maintenance, a shorter time_limit lets it end before"
    ),
    "NodeDown": "a node that it needs is down. Wait for the administrators, or name others: nodelist, exclude",
    "FrontEndDown": "no front-end node is up. Ask the administrators",
    "Constraints": "no node that is free has the features of `constraint`, for now",
    "BadConstraints": (
        "no node will ever fit what it asks for. Ask for less, or change constraint, nodelist or partition"
    ),
    "PartitionDown": (
        "{partition} is down: it takes jobs and starts none. Wait, or use another: `sinfo -s` lists them"
    ),
    "PartitionInactive": "{partition} is closed: it takes and starts no jobs. Use another: `sinfo -s` lists them",
    "PartitionNodeLimit": (
        "it asks for more or fewer nodes than {partition} gives one job, or too many of its nodes are down. Change "
        "resources.nodes or partition"
    ),
    "PartitionTimeLimit": "its time_limit is above that of {partition}. Shorten it, or use another partition",
    "PartitionConfig": "{partition} does not take what it asks for; `scontrol show partition` tells its limits",
    "AccountNotAllowed": "its account may not use {partition}. Change account or partition",
    "QOSNotAllowed": "its QOS may not be used with its account or in {partition}. Change qos, account or partition",
    "InvalidAccount": (
        "its account does not exist, or you may not use it. `sacctmgr show associations user=$USER` lists yours"
    ),
    "InvalidQOS": "its QOS does not exist, or you may not use it. `sacctmgr show associations user=$USER` lists yours",
    "ReservationDeleted": "its reservation exists no more. Change or remove `reservation`",
    "DeadLine": "it cannot end by its deadline any more. Change options.deadline",
    "MaxMemPerLimit": (
        "it asks for more memory than the site allows for one CPU or node. Ask for less, or for more CPUs"
    ),
    "BurstBufferOperation": "the burst buffer failed to do its part. Ask the administrators",
    "InactiveLimit": "it did nothing for longer than the site allows",
    "SystemFailure": "Slurm, a file system or the network failed. Ask the administrators",
    "QOSUsageThreshold": (
        "your account has used more than its QOS asks for. Use another qos, or wait until usage has decayed"
    ),
    # Limits, where Slurm does not say which
    "AccountingPolicy": (
        "a limit of your account or QOS is reached; it begins when other jobs end, or never if it asks for more than "
        "the limit"
    ),
    "AssociationJobLimit": "your account runs as many jobs as it may; it begins when others end",
    "AssociationResourceLimit": "your account uses as much as it may; it begins when other jobs end",
    "AssociationTimeLimit": "your account has used its time. Ask for more, or use another account",
    "QOSJobLimit": "as many jobs of its QOS run as may; it begins when others end",
    "QOSResourceLimit": "jobs of its QOS use as much as they may; it begins when others end",
    "QOSTimeLimit": "jobs of its QOS have used their time. Use another qos",
    # Ends of jobs that Slurm starts again
    "JobLaunchFailure": (
        "it could not be started, often because its node lacks a file system. Slurm tries again, or holds it"
    ),
    "NonZeroExitCode": "it ended with an error, and Slurm starts it again",
    "TimeLimit": "it reached its time limit, and Slurm starts it again",
    "OutOfMemory": "it ran out of memory, and Slurm starts it again",
    # Blue Gene's, gone since 17.11 and still among the names
    "BlockMaxError": "its block of nodes has too many errors. Ask the administrators",
    "BlockFreeAction": "its block of nodes is being freed",
}
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
