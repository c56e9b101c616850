"""How it looks when processes that compute together lose each other: NCCL, gloo, torch's rendezvous.

Mostly one rank fails and all others complain of it: what the first one said explains more. So these stand last.
"""

from __future__ import annotations

from typing import Final

from stoker.core.status import (
    NCCL_ERROR,
    NCCL_REMOTE_PEER,
    NCCL_TIMEOUT,
    NO_GPU,
    PORT_IN_USE,
    RENDEZVOUS,
)
from stoker.worker.signature import Signature

RANKS: Final = (
    Signature(
        name="collective-timeout",
        cause=NCCL_TIMEOUT,
        why="a collective operation gave up waiting: at least one rank did not come to it",
        advice=(
            "look at the rank that did not report this: it failed, still loaded data, or took another branch; "
            "every rank must call the same collectives in the same order. Only if a rank is slow for good "
            "reason, raise the timeout of init_process_group"
        ),
        pattern=(
            r"Watchdog caught collective operation timeout|Timed out waiting \d+ms for (?:recv"
            r"|send) operation to complete"
        ),
        printed=True,
    ),
    Signature(
        name="remote-peer",
        cause=NCCL_REMOTE_PEER,
        why="another rank's process or machine went away in the middle of a collective operation",
        advice="look at the log of the rank that ended first: its failure is the cause, this one a consequence",
        pattern=(
            r"remote process exited or there was a network error|ncclRemoteError"
            r"|gloo/transport/tcp/[^\n]*Connection (?:closed|reset) by peer"
        ),
        printed=True,
    ),
    Signature(
        name="duplicate-gpu",
        cause=NO_GPU,
        why="two ranks took the same GPU",
        advice=(
            "call torch.cuda.set_device(local_rank) before the process group is made, and start no more ranks "
            "on a machine than it has GPUs"
        ),
        pattern=r"Duplicate GPU detected : rank \d+ and rank \d+",
        printed=True,
    ),
    Signature(
        name="nccl-error",
        cause=NCCL_ERROR,
        why="NCCL could not do what the ranks asked of it",
        advice=(
            "run once with NCCL_DEBUG=WARN in the step's environment: it then prints the reason (network "
            "interface, /dev/shm, limits on open files or locked memory)"
        ),
        # The reason stands in the same message, after "Last error:": where a row above knows it, that row decides.
        pattern=(
            r"\bnccl(?:SystemError|UnhandledCudaError|InternalError|InvalidUsage)\b(?![\s\S]*(?:Duplicate GPU"
            r"|/dev/shm/nccl))"
        ),
    ),
    Signature(
        name="rendezvous",
        cause=RENDEZVOUS,
        why="the ranks did not find each other in time",
        advice=(
            "check that every node started, that MASTER_ADDR and MASTER_PORT name rank 0's machine, and that "
            "no firewall stands between them"
        ),
        pattern=(
            r"Timed out after \d+ seconds waiting for clients\. \d+/\d+ clients joined|RendezvousTimeoutError"
            r"|RendezvousConnectionError|The client socket has timed out after \w+ while trying to connect to"
        ),
    ),
    Signature(
        name="port-in-use",
        cause=PORT_IN_USE,
        why="the port that the step wanted to listen on is taken",
        advice="let the launcher choose a free port (port 0), or end the process that listens there",
        pattern=r"EADDRINUSE|\[Errno 98\] Address already in use",
    ),
)
