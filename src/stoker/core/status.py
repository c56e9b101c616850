"""The statuses of runs, steps and jobs, and the causes for which attempts end: strings on the wire and in the store.

How they change is decided by `engine.machine`.
"""

from __future__ import annotations

from typing import Final, Literal, Mapping

RunStatus = Literal["running", "succeeded", "failed", "cancelled"]
"""A run whose driver died still says "running" in its row; `client` shows it as "interrupted"."""

StepStatus = Literal["pending", "running", "succeeded", "cached", "failed", "skipped", "cancelled", "stopped"]
"""`skipped`: something upstream failed, or the run stopped before the step began. `stopped`: a trial of a sweep that
was ended early, because others do better."""

Retryable = Literal["here", "elsewhere", "never"]
"""Where another attempt may succeed: in the same place, only in another one, or nowhere without a change."""

JobState = Literal["queued", "running", "succeeded", "failed", "unknown"]
"""What a platform says of a job. What it does not mention is `unknown`, never `succeeded`."""

STEP_DONE: Final = frozenset({"succeeded", "cached", "failed", "skipped", "cancelled", "stopped"})
STEP_GOOD: Final = frozenset({"succeeded", "cached"})
RUN_DONE: Final = frozenset({"succeeded", "failed", "cancelled"})

# Why an attempt ended. A cause is a fact about one attempt; whether it is tried again is the retry policy's.
# The step and its process:
USER_ERROR: Final = "user-error"  # the step's code raised
CRASHED: Final = "crashed"  # the process died by a signal of its own making: SIGSEGV, SIGABRT, SIGBUS, …
KILLED: Final = "killed"  # SIGKILL or SIGTERM from outside, and nothing says from whom
EXITED: Final = "exited"  # the process left by os._exit or sys.exit before the step returned
TIMED_OUT: Final = "timed-out"  # the step's own timeout, or the platform's limit on the job's time
CANCELLED: Final = "cancelled"  # a person or a failing run ended it
STOPPED: Final = "stopped"  # its sweep ended it: other trials do better
UNSERIALIZABLE: Final = "unserializable"  # the step returned what cannot be kept
IMPORT_ERROR: Final = "import-error"  # a module or a shared library that the step needs could not be imported
INPUT_ERROR: Final = "input-error"  # the worker could not load an input
DAMAGED_INPUT: Final = "damaged-input"  # the bytes of an input are lost, cut short or changed in the store
# Memory, disk and quotas:
GPU_OOM: Final = "gpu-oom"  # an accelerator's memory was full
HOST_OOM: Final = "host-oom"  # the machine's or the container's memory was full
SHM_TOO_SMALL: Final = "shm-too-small"  # /dev/shm was full: containers have 64 MB unless they ask for more
DISK_FULL: Final = "disk-full"  # a file system was full
QUOTA: Final = "quota"  # an account's, a user's or a namespace's quota is used up
# The GPU and its software:
NO_DRIVER: Final = "no-driver"  # no GPU driver where the step ran
DRIVER_TOO_OLD: Final = "driver-too-old"  # the driver is older than what the image's CUDA asks for
DRIVER_BROKEN: Final = "driver-broken"  # the driver is there and does not work: half upgraded, or not yet up
FORWARD_COMPAT: Final = "forward-compat"  # CUDA's forward compatibility was tried on a GPU that has none
NO_GPU_BUILD: Final = "no-gpu-build"  # the framework was built for the CPU only
NO_KERNEL_IMAGE: Final = "no-kernel-image"  # the framework was built for other kinds of GPU than this one
NO_GPU: Final = "no-gpu"  # the GPU that the step reached for is not among those that it sees
IDLE_GPU: Final = "idle-gpu"  # the step left its devices idle, and was to fail or to be ended for it
GPU_BUSY: Final = "gpu-busy"  # another process holds the device for itself
GPU_HARDWARE: Final = "gpu-hardware"  # the device failed: ECC, NVLink, off the bus, an XID of that kind
ILLEGAL_MEMORY_ACCESS: Final = "illegal-memory-access"  # a kernel left its memory, or failed an assertion
# Several processes together:
NCCL_TIMEOUT: Final = "nccl-timeout"  # a collective operation waited for a rank that did not come
NCCL_REMOTE_PEER: Final = "nccl-remote-peer"  # another rank went away
NCCL_ERROR: Final = "nccl-error"  # the collective library failed in another way
RENDEZVOUS: Final = "rendezvous"  # not all ranks found each other at the start
HANG: Final = "hang"  # ranks wait for each other and no longer get on
NOT_STARTED: Final = "not-started"  # the launcher did not start all ranks in time
RANK_LEFT: Final = "rank-left"  # a rank returned, or left its group, while others waited for it
MISMATCH: Final = "mismatch"  # ranks called different collective operations, or with different tensors
WRONG_WORLD: Final = "wrong-world"  # a rank's framework counts other ranks than were started
GANG_INCOMPLETE: Final = "gang-incomplete"  # not all nodes of a gang came up in time
PORT_IN_USE: Final = "port-in-use"  # the address to listen on was taken
# The place:
PREEMPTED: Final = "preempted"  # the platform needed the place for another job
NODE_LOST: Final = "node-lost"  # the machine failed, was shut down or stopped answering
WORKER_LOST: Final = "worker-lost"  # the fork server or agent of the worker went away
SETUP_FAILED: Final = "setup-failed"  # a line before the worker failed: a module, an environment, a line of `setup`
REFUSED: Final = "refused"  # the backend would not take the job

PYTHON_TOO_OLD: Final = "a step needs Python 3.10 or later"
"""What a worker writes in such a case, behind the path and the version of its interpreter."""

RETRYABLE: Final[Mapping[str, Retryable]] = {
    USER_ERROR: "here",
    CRASHED: "here",
    KILLED: "here",
    EXITED: "here",
    TIMED_OUT: "here",
    CANCELLED: "never",
    STOPPED: "never",
    UNSERIALIZABLE: "never",
    IMPORT_ERROR: "never",
    INPUT_ERROR: "here",
    DAMAGED_INPUT: "never",
    GPU_OOM: "elsewhere",
    HOST_OOM: "elsewhere",
    SHM_TOO_SMALL: "elsewhere",
    DISK_FULL: "elsewhere",
    QUOTA: "elsewhere",
    NO_DRIVER: "never",
    DRIVER_TOO_OLD: "elsewhere",
    DRIVER_BROKEN: "elsewhere",
    FORWARD_COMPAT: "never",
    NO_GPU_BUILD: "never",
    NO_KERNEL_IMAGE: "never",
    NO_GPU: "elsewhere",
    IDLE_GPU: "never",
    GPU_BUSY: "here",
    GPU_HARDWARE: "elsewhere",
    ILLEGAL_MEMORY_ACCESS: "here",
    NCCL_TIMEOUT: "here",
    NCCL_REMOTE_PEER: "here",
    NCCL_ERROR: "here",
    RENDEZVOUS: "here",
    HANG: "here",
    NOT_STARTED: "here",
    RANK_LEFT: "here",
    MISMATCH: "here",
    WRONG_WORLD: "never",
    GANG_INCOMPLETE: "here",
    PORT_IN_USE: "here",
    PREEMPTED: "here",
    NODE_LOST: "elsewhere",
    WORKER_LOST: "here",
    SETUP_FAILED: "elsewhere",
    REFUSED: "never",
}
"""Where the same job may succeed after a cause, with nothing changed but the place."""
UNFIT: Final = frozenset(
    {NO_DRIVER, DRIVER_TOO_OLD, DRIVER_BROKEN, FORWARD_COMPAT, NO_GPU_BUILD, NO_KERNEL_IMAGE, NO_GPU}
)
"""Causes that say that the step's software, the driver and the devices do not fit each other."""
FAULTY_PLACE: Final = frozenset({GPU_HARDWARE, DRIVER_BROKEN})
"""Causes that say that a device or its node is faulty, whoever reports them."""
REFUSED_PLACE: Final = frozenset({NO_DRIVER, DRIVER_TOO_OLD, NO_GPU, GPU_BUSY})
"""Causes that say so where the gate reports them: raised by the step's code, they may be its own mistake."""
FAULTY_MACHINE: Final = frozenset({NO_DRIVER, DRIVER_TOO_OLD, DRIVER_BROKEN})
"""Those of both that hold for every device of a machine."""
CAUSES: Final = frozenset(RETRYABLE)
NEVER_RETRIED: Final = frozenset({CANCELLED, STOPPED, REFUSED})
"""Another attempt cannot help: a person stopped it, or the same request meets the same refusal."""
RETRIED_IF_NAMED: Final = frozenset(cause for cause in CAUSES if RETRYABLE[cause] == "never") - NEVER_RETRIED
"""Another attempt meets the same code and the same environment: only made where a retry's `on` names the cause."""
