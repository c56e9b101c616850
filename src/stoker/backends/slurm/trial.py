"""Whether Slurm itself takes a request: asked with `sbatch --test-only`, which submits nothing.

It knows what no table tells: accounts, QOS, reservations, plugins of the site's. Its answer is also about now, so that
only what no waiting helps is an error.
"""

from __future__ import annotations

import re
from typing import Final, Iterator

from stoker.backends.base.logins import NOT_FOUND, Login
from stoker.backends.slurm.script import arguments
from stoker.backends.slurm.settings import SlurmSettings
from stoker.core.findings import Finding
from stoker.core.plan import Job, StepPlan, reporter_of

NO_ANSWER: Final = "STK170"
NO_SLURM: Final = "STK171"
NO_PARTITION: Final = "STK172"
NO_NODE: Final = "STK173"
TOO_MANY_NODES: Final = "STK174"
NO_DEVICES: Final = "STK175"
NO_FEATURE: Final = "STK176"
TOO_LONG: Final = "STK177"
NOT_YOURS: Final = "STK178"
REFUSED: Final = "STK179"
_TESTED: Final = 50
"""Different requests of which Slurm is asked whether it takes them; each costs a controller some milliseconds."""
# What sbatch says of requests that no waiting helps → the code, and the setting to change. Of others it cannot be told
# whether it is for now: "Requested node configuration is not available" is also said while nodes are down.
# https://github.com/SchedMD/slurm/blob/master/src/common/slurm_errno.c
_WORDS: Final = (
    (r"Invalid account|account/partition combination", NOT_YOURS, "account"),
    (r"Invalid qos|QOS not permitted", NOT_YOURS, "qos"),
    (r"reservation is invalid|Access denied to requested reservation", NOT_YOURS, "reservation"),
    (r"User's group not permitted|Access/permission denied", NOT_YOURS, "partition"),
    (r"[Ii]nvalid partition|No partition specified|partition not available", NO_PARTITION, "partition"),
    (r"Invalid feature specification", NO_FEATURE, "constraint"),
    (r"Invalid node name", NO_FEATURE, "nodelist"),
    (r"generic resource|\(gres\) specification", NO_DEVICES, "gres_types"),
    (r"Node count specification invalid", TOO_MANY_NODES, "partition"),
    (r"time limit is invalid", TOO_LONG, "time_limit"),
    (r"license specification", REFUSED, "options"),
    (r"wckey", REFUSED, "options"),
    (r"unrecognized option|invalid option|Invalid --|is not a valid|Invalid argument", REFUSED, "options"),
)


def job_of(step: StepPlan) -> Job:
    """A job of the step, as its first attempt would be."""
    return Job(name=f"plan/{step.key}/1", run="plan", key=step.key, attempt=1, step=step, inputs={})


def part_of(step: StepPlan) -> str:
    """The part of the stack that the step runs on, by which its settings are given: "orchestrator"."""
    return next(iter(step.settings.backend), "orchestrator")


def tested(step: StepPlan, settings: SlurmSettings, login: Login, tried: set[tuple[str, ...]]) -> Iterator[Finding]:
    """What Slurm itself says of the request, without submitting it."""
    options = arguments([job_of(step)], settings, folder="/", token="plan")
    alike = tuple(option for option in options if not option.startswith("--job-name="))
    if alike in tried or len(tried) >= _TESTED:
        return
    tried.add(alike)
    ran = login.run(["sbatch", "--test-only", *options], input=b"#!/bin/sh\n")
    report = reporter_of(step)
    if ran.code == NOT_FOUND:
        what = f"sbatch is not there: {ran.err.strip()}"
        fix = f"put it on PATH (`module load slurm`), or name the login node: {part_of(step)}.host"
        yield report.error(NO_SLURM, what, fix=fix)
    elif ran.code:
        said = " ".join(line.removeprefix("sbatch: error: ").strip() for line in ran.err.splitlines()[-2:])
        for pattern, code, setting in _WORDS:
            if re.search(pattern, said):
                fix = f"change {part_of(step)}.{setting} of the step or the stack"
                yield report.error(code, f"Slurm refuses it: {said}", fix=fix)
                return
        why = "it may be for now only, as while nodes are down; else the step fails when it is submitted"
        yield report.info(REFUSED, f"Slurm would not start it now: {said}", why)
