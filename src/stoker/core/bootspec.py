"""SPEC: everything that the program of a job elsewhere (`worker.boot`) gets."""

from __future__ import annotations

from typing import Mapping

import attrs

from stoker.core.protocol import VERSION, StepTask, WorkerJob


@attrs.frozen(kw_only=True)
class BootSpec:
    """A job with its step, and where the place has what they need.

    `package` is the digest of the user's code in the artifact store at `blobs`, made from the folder `root` of the
    driver's machine: what `job` and `step` say of files below it is meant in the folder where the package is unpacked.
    Without a package, `root`, `folder` and `path` are the place's own. `environment` are variables with secrets in
    them. `simulate` describes accelerators to be pretended. `grace`: seconds between SIGTERM and SIGKILL; `warning`:
    seconds before the platform's limit of the job's time in which it sends SIGUSR1, 0 where it does not. `keep`: how
    many copies of the step's checkpoints the artifact store gets, 0 where every node sees the folder `checkpoints`.

    A lease among the job's that names no devices is filled in with those that the platform gave.
    """

    version: int = VERSION
    job: WorkerJob
    step: StepTask
    blobs: str
    package: str = ""
    root: str = ""
    folder: str = "."
    path: tuple[str, ...] = ()
    checkpoints: str = ""
    keep: int = 0
    environment: Mapping[str, str] = attrs.field(factory=dict)
    simulate: str = ""
    grace: float = 0.0
    warning: float = 0.0
