"""How failures of the machine around a step look: memory, shared memory, disk, quotas, and the place being taken away.

What platforms say of a job (Kubernetes, Slurm, AWS Batch) stands here too: their backends pass it on as it is.
"""

from __future__ import annotations

from typing import Final

from stoker.core.status import (
    DISK_FULL,
    HOST_OOM,
    KILLED,
    NODE_LOST,
    PREEMPTED,
    QUOTA,
    SHM_TOO_SMALL,
    TIMED_OUT,
)
from stoker.worker.signature import Signature

MORE_MEMORY: Final = (
    "work on smaller pieces or with fewer loader workers, ask for what the step needs "
    "(resources.memory), so that fewer steps share the machine, or use a machine with more memory"
)

MEMORY: Final = (
    Signature(
        name="shm-too-small",
        cause=SHM_TOO_SMALL,
        why="/dev/shm was full: processes that share data, such as a DataLoader's workers, keep it there",
        advice=(
            "give the container more (resources.shared_memory; docker run --shm-size; a container has 64 MB by "
            "default), or use fewer workers"
        ),
        pattern=(
            r"DataLoader worker \(pid[^)]*\) is killed by signal: Bus error|insufficient shared memory \(shm\)"
            r"|creating shared memory segment /dev/shm/nccl-|</torch_\w+>: No space left on device"
            r"|No space left on device[^\n]*/dev/shm/"
        ),
        printed=True,
    ),
    Signature(
        name="python-memory-error",
        cause=HOST_OOM,
        why="the machine, or a limit on the process, had no memory left for what the step asked for",
        advice=MORE_MEMORY,
        # RMM raises MemoryError for the GPU's memory.
        pattern=(
            r"\A(?:\w+\.)*(?:MemoryError|_ArrayMemoryError)\b(?![^\n]*CUDA)|\[Errno 12\] Cannot allocate memory"
            r"|DefaultCPUAllocator: (?:can't allocate|not enough) memory"
        ),
    ),
    Signature(
        name="framework-host-oom",
        cause=HOST_OOM,
        why="the machine had less memory left than the framework asked for on the CPU",
        advice=MORE_MEMORY,
        # jax on a CPU; on a GPU it says "Out of memory while trying to allocate".
        pattern=(
            r"OOM when allocating tensor with shape[^\n]*device:CPU:"
            r"|RESOURCE_EXHAUSTED: Out of memory allocating \d+ bytes"
        ),
    ),
    Signature(
        name="platform-oom",
        cause=HOST_OOM,
        why="the platform ended the job because it used more memory than its limit",
        advice="raise the job's limit (resources.memory), or let the step use less",
        pattern=(
            r"\bOOMKilled\b|Detected \d+ oom[-_]kill event|exceeded (?:job |step )?memory limit"
            r"|The node was low on resource: memory|OutOfMemoryError: Container killed due to memory usage"
        ),
        printed=True,
    ),
    Signature(
        name="child-killed",
        cause=KILLED,
        why="a process that the step had started was killed by SIGKILL; out of memory is the most frequent reason",
        advice="look at the memory that the step and its children use; the kernel's log (`dmesg`) names what it killed",
        pattern=(
            r"DataLoader worker \(pid[^)]*\) is killed by signal: Killed|died with <Signals\.SIGKILL: 9>"
            r"|Signal 9 \(SIGKILL\) received by PID"
        ),
    ),
)

DISK: Final = (
    Signature(
        name="disk-full",
        cause=DISK_FULL,
        why="a disk was full",
        advice="free space, write to another disk, or ask for more (resources.disk); `df -h` shows which one is full",
        pattern=(
            r"^(?![^\n]*(?:shared memory|/dev/shm|</torch_))[^\n]*No space left on device"
            r"|database or disk is full|the disk is full"
        ),
        printed=True,
    ),
    Signature(
        name="platform-disk-full",
        cause=DISK_FULL,
        why="the platform ended the job because it, or its node, used too much local disk",
        advice="ask for more local disk (resources.disk), or write large files to a mounted volume",
        pattern=r"ephemeral local storage usage exceeds|The node was low on resource: ephemeral-storage",
    ),
    Signature(
        name="disk-quota",
        cause=QUOTA,
        why="the user's quota on a disk is used up",
        advice="remove what is not needed (`quota -s` shows the limits), or write elsewhere",
        pattern=r"Disk quota exceeded",
        printed=True,
    ),
    Signature(
        name="platform-quota",
        cause=QUOTA,
        why="the account's or the namespace's quota does not allow what the job asks for",
        advice="wait until other jobs end, ask for less, use another region, or have the quota raised",
        pattern=(
            r"forbidden: exceeded quota: |VcpuLimitExceeded|more vCPU capacity than your current vCPU limit"
            r"|MaxSpotInstanceCountExceeded|Quota '\w+' exceeded|QUOTA_EXCEEDED"
        ),
    ),
)

PLACE: Final = (
    Signature(
        name="preempted",
        cause=PREEMPTED,
        why="the platform took the machine away for somebody else",
        advice=(
            "try again (`Retry(…, on=['preempted'])`) and go on from checkpoints; or ask for a place that is "
            "not taken away (resources.spot=false, a higher priority)"
        ),
        pattern=(
            r"CANCELLED AT \S+ DUE TO PREEMPTION|preempting to accommodate a higher priority pod"
            r"|Host EC2 \(instance [^)]*\) terminated|Instance was preempted"
        ),
        printed=True,
    ),
    Signature(
        name="node-lost",
        cause=NODE_LOST,
        why="the machine that ran the step failed, was shut down or stopped answering",
        advice="try again, on another machine; keep checkpoints outside the machine",
        pattern=(
            r"CANCELLED AT \S+ DUE TO NODE FAILURE|terminated in response to imminent node shutdown"
            r"|Node \S+ which was running pod \S+ is unresponsive"
        ),
        printed=True,
    ),
    Signature(
        name="platform-time-limit",
        cause=TIMED_OUT,
        why="the job ran longer than the platform allows it to",
        advice="ask for more time, use a partition or queue with a longer limit, or go on from checkpoints",
        pattern=r"CANCELLED AT \S+ DUE TO TIME LIMIT|active on the node longer than the specified deadline",
        printed=True,
    ),
)
