"""Lets somebody find the process of a step from beside it: by its name for the kernel, and the file for its stacks.

A name of proc(5)'s `comm` ends with its process, costs microseconds, and is seen by all of the machine's tools. What
looks for it is `worker.besidescript`, which `core` and the standard library suffice for: a step's place may have no
Stoker that can be imported.
"""

from __future__ import annotations

import faulthandler
import hashlib
import os
from typing import Final

from stoker.system import system
from stoker.worker import nativestack
from stoker.worker.rankstate import STACKS

STACKS_FILE: Final = "stoker-stacks"
"""The name of the file in memory to which a process without a rank writes its stacks."""

_owner = 0
"""The process that has such a file: one forked from it shares it, and gets its own."""


def name_of(job: str, rank: int | None = None) -> str:
    """The name of a job's process, or of a rank's: 15 characters at most, as proc(5) says."""
    name = f"st{hashlib.sha256(job.encode('utf-8', 'surrogatepass')).hexdigest()[:8]}"
    return name if rank is None else f"{name}-{rank % 10_000}"


def take_name(job: str, rank: int | None = None) -> None:
    """Name this process, and let it write its stacks when it is asked to; elsewhere than on Linux nothing is done."""
    global _owner
    try:
        system.name_process(name_of(job, rank).encode())
        if rank is None and _owner != os.getpid():
            faulthandler.register(STACKS, file=system.nameless_file(STACKS_FILE), all_threads=True)
            # A fault in native code writes where Python stood into the step's output: `failure` reads it there.
            nativestack.enable()
            _owner = os.getpid()
    except OSError:
        return  # another system, or a sandbox without /proc: nobody finds the process, and the step goes on
