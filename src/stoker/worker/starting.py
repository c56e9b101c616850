"""Starts a launcher's processes: their variables, and the pipes that what they write comes through."""

from __future__ import annotations

import os
import subprocess
from typing import IO, Mapping

from stoker.launchers.base import Argv, Node, Started


def environment_for(started: Started, node: Node, folder: str) -> dict[str, str]:
    """The variables of a launcher's processes: ours, those that it asks for, and what ranks are to write if they hang.

    torchrun would give each rank one thread, and say so at length; here they share the CPUs. The flight recorder of
    torch writes what each rank did last with NCCL when something is written into its pipe:
    https://docs.pytorch.org/tutorials/unstable/flight_recorder_tutorial.html
    """
    cpus = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return {
        "OMP_NUM_THREADS": str(max(1, cpus // node.processes)),
        "TORCH_FR_BUFFER_SIZE": "2000",
        **os.environ,
        "TORCH_NCCL_DEBUG_INFO_TEMP_FILE": os.path.join(folder, "nccl-"),
        "TORCH_NCCL_DEBUG_INFO_PIPE_FILE": os.path.join(folder, "nccl-pipe-"),
        **started.environment,
    }


def spawned(argv: Argv, environment: Mapping[str, str]) -> tuple[subprocess.Popen[bytes], list[tuple[str, IO[bytes]]]]:
    """A process, and its output by the name of the stream."""
    ends = [os.pipe() for _ in range(2)]
    process = subprocess.Popen(
        argv, stdin=subprocess.DEVNULL, stdout=ends[0][1], stderr=ends[1][1], env=dict(environment)
    )
    for _, write in ends:
        os.close(write)
    return process, [(name, os.fdopen(read, "rb", buffering=0)) for name, (read, _) in zip(("stdout", "stderr"), ends)]
