"""The table of failures: what is known of each, from the most telling row to the least, and what is said of the rest.

The first row that is seen decides. Rows of other distributions stand first, since they are the most specific; then
hardware, because it makes everything else fail as well. Ranks that lost each other stand last, because that is mostly a
consequence. The module is imported when something failed: the table would cost a start 2 ms.
"""

from __future__ import annotations

import functools
import logging
import re
from typing import Final, Mapping, Sequence

import attrs

from stoker.core import status
from stoker.core.errors import UsageError
from stoker.core.plugins import Registry
from stoker.core.status import RETRYABLE, Retryable

log = logging.getLogger(__name__)

_LONGEST: Final = 240
"""Characters of a line that are shown as evidence; torch's out-of-memory message has some 600, the facts come first."""


@attrs.frozen(kw_only=True)
class Signature:
    """How a known failure looks, what it means, and what to do about it: one row of the table."""

    name: str
    cause: str
    """A word of `core.status`, or of another distribution's own: then it is the name of the row's entry point."""
    why: str
    advice: str
    pattern: str
    """Searched in "type: message" of what was raised, lines and all."""
    printed: bool = False
    """Whether the pattern is searched in any line, too, that a process wrote before it died. Only for what nobody
    prints and survives: on a machine without a GPU, frameworks log that they found no driver, and go on."""
    retryable: Retryable = "here"
    """Where another attempt may succeed after a cause of another distribution; of Stoker's own causes
    `core.status.RETRYABLE` says it."""

    def seen_in(self, text: str) -> str:
        """The line that shows this failure, empty if none does."""
        # Compiled when the first failure is explained, not when a worker starts: sixty patterns take 20 ms.
        match = re.search(self.pattern, text, re.MULTILINE)
        if match is None:
            return ""
        start, end = text.rfind("\n", 0, match.start()) + 1, text.find("\n", match.start())
        line = text[start : end if end >= 0 else len(text)].strip()
        return line if len(line) <= _LONGEST else line[: _LONGEST - 1] + "…"


# Failures of a GPU: its memory, its driver, the framework's build for it, its kernels, its hardware. CUDA's own words
# are `cudaGetErrorString`'s, and the same in every framework. HIP's differ in the first word only.

_OTHER_GPU: Final = (
    "run the step on another GPU or machine; have this one drained and reset, and replaced if it fails again"
)

HARDWARE: Final = (
    Signature(
        name="ecc",
        cause=status.GPU_HARDWARE,
        why="the GPU met a memory or link error that its hardware could not correct",
        advice=_OTHER_GPU,
        pattern=r"uncorrectable (?:ECC|NVLink) error",
        printed=True,
    ),
    Signature(
        name="gpu-lost",
        cause=status.GPU_HARDWARE,
        why="the driver lost contact with the GPU",
        advice=_OTHER_GPU,
        pattern=(
            r"GPU is lost|GPU has fallen off the bus|GPU requires reset"
            r"|Unable to determine the device handle for GPU"
        ),
        printed=True,
    ),
    Signature(
        name="neuron-hardware",
        cause=status.GPU_HARDWARE,
        why="the Neuron device met an error of its hardware",
        advice=_OTHER_GPU,
        # https://awsdocs-neuron.readthedocs-hosted.com/en/latest/neuron-runtime/api/nrt_status.html
        pattern=r"NRT_EXEC_HW_ERR_[A-Z_]+|NRT_HW_ERROR|NRT_EXEC_UNIT_UNRECOVERABLE",
        printed=True,
    ),
)

GPU_MEMORY: Final = (
    Signature(
        name="torch-gpu-oom-shared",
        cause=status.GPU_OOM,
        why="the GPU's memory was full, and another process held a part of it",
        advice="end or move the other process (`nvidia-smi` shows it), or give the step a GPU of its own",
        pattern=(
            r"(?:(?:CUDA|HIP|XPU) out of memory\.[^\n]*|of which [\d.]+ \w+ is free\.)"
            r" Process \d+ has [\d.]+ \w+ memory in use"
        ),
    ),
    Signature(
        name="torch-gpu-oom-fraction",
        cause=status.GPU_OOM,
        why="the step reached the share of the GPU's memory that it allowed itself",
        advice="raise torch.cuda.set_per_process_memory_fraction, or use a smaller batch",
        pattern=r"would exceed (?:the )?per_process_memory_fraction",
    ),
    Signature(
        name="torch-gpu-oom",
        cause=status.GPU_OOM,
        why="the GPU had less memory left than the step asked for",
        advice=(
            "use a smaller batch or shorter sequences with gradient accumulation, shard the model, or ask for "
            "a GPU with more memory (resources.gpu_memory); if the message names much memory as reserved but "
            "unallocated, set PYTORCH_ALLOC_CONF=expandable_segments:True (before torch 2.9: "
            "PYTORCH_CUDA_ALLOC_CONF)"
        ),
        pattern=(
            r"(?:CUDA|HIP|XPU"
            r"|MPS backend) out of memory\b(?![^\n]* Process \d+ has )(?![^\n]*per_process_memory_fraction)"
        ),
    ),
    Signature(
        name="cuda-api-oom",
        cause=status.GPU_OOM,
        why="the GPU had less memory left than a library asked for",
        advice="use less of the GPU's memory in the step, or ask for a GPU with more (resources.gpu_memory)",
        # cuBLAS and cuDNN need memory of their own, and say so in their own words.
        pattern=(
            r"CUDA_ERROR_OUT_OF_MEMORY|cudaErrorMemoryAllocation|hipErrorOutOfMemory|(?:CUDA|HIP) error: out of memory"
            r"|CU(?:BLAS|DNN|SOLVER)_STATUS_ALLOC_FAILED"
        ),
    ),
    Signature(
        name="jax-gpu-oom",
        cause=status.GPU_OOM,
        why="the accelerator had less memory left than jax asked for",
        advice=(
            "use a smaller batch, shard the arrays or rematerialise (jax.checkpoint); if another process "
            "shares the GPU, set XLA_PYTHON_CLIENT_MEM_FRACTION or XLA_PYTHON_CLIENT_PREALLOCATE=false"
        ),
        pattern=(
            r"RESOURCE_EXHAUSTED: [^\n]*(?:[Oo]ut of memory while trying to allocate|on device ordinal \d+"
            r"|memory space hbm|[Hh]bm usage)"
        ),
    ),
    Signature(
        name="tensorflow-gpu-oom",
        cause=status.GPU_OOM,
        why="the GPU had less memory left than TensorFlow asked for",
        advice=(
            "use a smaller batch; if another process shares the GPU, call tf.config.experimental.set_memory_growth; "
            "against fragmentation set TF_GPU_ALLOCATOR=cuda_malloc_async"
        ),
        pattern=r"OOM when allocating tensor with shape\s*\[[\d,]*\][^\n]*device:GPU:\d",
    ),
    Signature(
        name="cupy-gpu-oom",
        cause=status.GPU_OOM,
        why="the GPU had less memory left than CuPy asked for",
        advice=(
            "work on smaller pieces, and free CuPy's pool between them: "
            "cupy.get_default_memory_pool().free_all_blocks()"
        ),
        pattern=r"Out of memory allocating [\d,]+ bytes \(allocated so far: [\d,]+ bytes",
    ),
    Signature(
        name="neuron-oom",
        cause=status.GPU_OOM,
        why="the Neuron device had less memory left than the step asked for",
        advice=(
            "use a smaller batch, or shard the model over more cores (each has its part of the chip's memory); ask for "
            "more chips (resources.accelerators)"
        ),
        pattern=r"NRT_RESOURCE\b|nrt_tensor_allocate status=4\b",
    ),
)

DRIVER: Final = (
    Signature(
        name="forward-compat",
        cause=status.FORWARD_COMPAT,
        why="the image brings CUDA's forward-compatibility libraries, which only data centre GPUs support",
        advice=(
            "take /usr/local/cuda/compat out of LD_LIBRARY_PATH, or use an image whose CUDA the machine's "
            "driver supports"
        ),
        pattern=r"forward compatibility was attempted on non supported HW",
    ),
    Signature(
        name="driver-too-old",
        cause=status.DRIVER_TOO_OLD,
        why="the machine's GPU driver is older than the CUDA that the framework was built with",
        advice=(
            "use a framework build or an image for an older CUDA, or a machine with a newer driver; "
            "a version such as 12080 in the message means that the driver knows CUDA up to 12.8"
        ),
        pattern=(
            r"NVIDIA driver on your system is too old|CUDA driver version is insufficient for CUDA runtime version"
            r"|API call is not supported in the installed CUDA driver|PTX was compiled with an unsupported toolchain"
        ),
    ),
    Signature(
        name="container-needs-newer-driver",
        cause=status.DRIVER_TOO_OLD,
        why="the container was not started: its image asks for a newer driver than the machine has",
        advice="use an image for an older CUDA, or a machine with a newer driver",
        pattern=r"nvidia-container-cli: requirement error: unsatisfied condition: (?:cuda|driver)",
        printed=True,
    ),
    Signature(
        name="driver-broken",
        cause=status.DRIVER_BROKEN,
        why="the machine's GPU driver is installed but does not work",
        advice=(
            "run the step on another machine; this one needs a reboot after a driver upgrade, "
            "or its fabric manager started (NVSwitch), or its nvidia-uvm module loaded"
        ),
        pattern=(
            r"Driver/library version mismatch|unsupported display driver / cuda driver combination"
            r"|system not yet initialized|Failed to initialize NVML: Unknown Error"
            r"|CUDA unknown error - this may be due to an incorrectly set up environment"
        ),
    ),
    Signature(
        name="no-driver",
        cause=status.NO_DRIVER,
        why="there is no GPU driver where the step ran",
        advice=(
            "ask for a GPU (resources.gpu_count=1), so that the step is placed where one is and its container "
            "is given it; or run the step's code on the CPU"
        ),
        pattern=(
            r"Found no NVIDIA driver on your system|NVML Shared Library Not Found|lib(?:cuda"
            r"|nvidia-ml)\.so(?:\.1)?: cannot open shared object file"
        ),
    ),
    Signature(
        name="no-gpu",
        cause=status.NO_GPU,
        why="the GPU that the step reached for is not among those that it sees",
        advice=(
            "ask for as many GPUs as the step uses (resources.gpu_count), start no more processes than that, and leave "
            "CUDA_VISIBLE_DEVICES alone"
        ),
        pattern=(
            r"No CUDA GPUs are available|no CUDA-capable device is detected|invalid device ordinal"
            r"|No HIP GPUs are available"
        ),
    ),
    Signature(
        name="neuron-busy",
        cause=status.GPU_BUSY,
        why="another process holds the NeuronCores that the step reached for",
        advice=(
            "start one process for each core (NEURON_RT_NUM_CORES=1 in each, or a launcher), and end what else uses "
            "the devices (`neuron-ls` shows it)"
        ),
        pattern=r"Logical Neuron Core\(s\) not available|NRT_LOAD_NOT_ENOUGH_NC",
    ),
    Signature(
        name="neuron-init",
        cause=status.DRIVER_BROKEN,
        why="the Neuron runtime could not start: it reached no driver, or one that does not fit it",
        advice=(
            "see on the machine that `lsmod | grep neuron` and `neuron-ls` show driver and devices, and that "
            "aws-neuronx-dkms is as new as the runtime (aws-neuronx-runtime-lib) asks; a container needs --device "
            "/dev/neuron0 and so on"
        ),
        # https://awsdocs-neuron.readthedocs-hosted.com/en/latest/neuron-runtime/nrt-troubleshoot.html
        pattern=(
            r"nrt_init failed: NRT_FAILURE|Unable to determine Neuron Driver version"
            r"|This runtime requires Neuron Driver version"
        ),
    ),
    Signature(
        name="gpu-busy",
        cause=status.GPU_BUSY,
        why="another process holds the device",
        advice=(
            "wait for it or end it; if the GPU is in exclusive mode (`nvidia-smi -q -d COMPUTE`), only one "
            "process may use it"
        ),
        pattern=(
            r"CUDA-capable device\(s\) is/are busy or unavailable|exclusive-thread device already in use"
            r"|The TPU is already in use by"
        ),
    ),
)

BUILD: Final = (
    Signature(
        name="no-gpu-build",
        cause=status.NO_GPU_BUILD,
        why="the framework in the step's environment was built for the CPU only",
        advice="install its CUDA or ROCm build: for torch a wheel whose version ends in +cu… or +rocm…",
        pattern=r"Torch not compiled with CUDA enabled",
    ),
    Signature(
        name="no-kernel-image",
        cause=status.NO_KERNEL_IMAGE,
        why="the framework was built without code for this kind of GPU",
        advice=(
            "install a build that names the GPU's architecture (torch.cuda.get_arch_list() shows a build's), "
            "or ask for a GPU that it was built for (resources.accelerators)"
        ),
        pattern=(
            r"no kernel image is available for execution on the device|(?:CUDA|HIP) error: invalid device function"
            r"|device kernel image is invalid"
            # What torch warns of before, for a warning that is an error.
            r"|with CUDA capability sm_\d+ is not compatible with the current PyTorch installation"
            r"|Found GPU\d+ [^\n]* which is of compute capability \(CC\) [\d.]+"
        ),
    ),
)

KERNELS: Final = (
    Signature(
        name="device-assert",
        cause=status.ILLEGAL_MEMORY_ACCESS,
        why="an assertion in a GPU kernel failed; mostly an index or a label is out of range",
        advice=(
            "run the step once on the CPU, or with CUDA_LAUNCH_BLOCKING=1 in its environment: then the "
            "traceback ends where it happened"
        ),
        pattern=r"device-side assert triggered",
        printed=True,
    ),
    Signature(
        name="illegal-memory-access",
        cause=status.ILLEGAL_MEMORY_ACCESS,
        why="a GPU kernel touched memory that is not its own, or could not be executed",
        advice=(
            "set CUDA_LAUNCH_BLOCKING=1 in the step's environment, so that the traceback ends where it "
            "happened, or use compute-sanitizer; if it only ever happens on one GPU, suspect that one"
        ),
        pattern=(
            r"an illegal memory access was encountered|(?:CUDA|HIP) error: (?:misaligned address"
            r"|an illegal instruction was encountered|unspecified launch failure|invalid program counter)"
            r"|CUDA_ERROR_ILLEGAL_ADDRESS|CUDA_ERROR_LAUNCH_FAILED|Memory access fault by GPU"
        ),
        printed=True,
    ),
)

# Failures of processes that a step itself starts.

CHILDREN: Final = (
    Signature(
        name="cuda-after-fork",
        cause=status.USER_ERROR,
        why="a process that was forked after the step had used CUDA reached for CUDA itself",
        advice=(
            'start such processes by "spawn" or "forkserver" (multiprocessing.get_context("spawn"), DataLoader(…, '
            'multiprocessing_context="spawn")), or touch no GPU before they are forked'
        ),
        pattern=r"Cannot re-initialize CUDA in forked subprocess",
    ),
    Signature(
        name="open-files",
        cause=status.USER_ERROR,
        why="the process has as many files and sockets open as its limit allows",
        advice=(
            "close what is no longer used, or raise the limit (`ulimit -n`, a container's --ulimit nofile=…); for "
            'tensors that loaders send: torch.multiprocessing.set_sharing_strategy("file_system")'
        ),
        pattern=r"\[Errno 24\] Too many open files|\bEMFILE\b|received 0 items of ancdata",
    ),
    Signature(
        name="no-more-threads",
        cause=status.USER_ERROR,
        why="the system gave the process no further thread or process",
        advice=(
            "start fewer (loader workers, OMP_NUM_THREADS), or raise the limit: `ulimit -u`, a container's "
            "--pids-limit, memory for their stacks"
        ),
        pattern=(
            r"can't start new thread|\[Errno 11\] Resource temporarily unavailable"
            r"|pthread_create[^\n]*(?:failed|Resource temporarily unavailable)"
        ),
    ),
    Signature(
        name="torchrun-child-killed",
        cause=status.KILLED,
        why="the rank of torchrun that failed first was killed by SIGKILL; out of memory is the most frequent reason",
        advice="look at the memory that the ranks use together; the kernel's log (`dmesg`) names what it killed",
        # torchrun's summary has the root cause last.
        pattern=r"^\s+exitcode\s+: -9 \(pid: \d+\)(?![\s\S]*\bexitcode\s+: )",
        printed=True,
    ),
    Signature(
        name="torchrun-child-crashed",
        cause=status.CRASHED,
        why="the rank of torchrun that failed first crashed in native code",
        advice="read what that rank wrote above the summary; PYTHONFAULTHANDLER=1 in its environment shows its place",
        # Signals 4, 6, 7, 8 and 11: illegal instruction, abort, bus error, arithmetic, segmentation fault.
        pattern=r"^\s+exitcode\s+: -(?:[4678]|11) \(pid: \d+\)(?![\s\S]*\bexitcode\s+: )",
        printed=True,
    ),
)

# How failures of the machine around a step look: memory, shared memory, disk, quotas, and the place being taken away.

MORE_MEMORY: Final = (
    "work on smaller pieces or with fewer loader workers, ask for what the step needs "
    "(resources.memory), so that fewer steps share the machine, or use a machine with more memory"
)

HOST_MEMORY: Final = (
    Signature(
        name="shm-too-small",
        cause=status.SHM_TOO_SMALL,
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
        cause=status.HOST_OOM,
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
        cause=status.HOST_OOM,
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
        cause=status.HOST_OOM,
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
        cause=status.KILLED,
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
        cause=status.DISK_FULL,
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
        cause=status.DISK_FULL,
        why="the platform ended the job because it, or its node, used too much local disk",
        advice="ask for more local disk (resources.disk), or write large files to a mounted volume",
        pattern=r"ephemeral local storage usage exceeds|The node was low on resource: ephemeral-storage",
    ),
    Signature(
        name="disk-quota",
        cause=status.QUOTA,
        why="the user's quota on a disk is used up",
        advice="remove what is not needed (`quota -s` shows the limits), or write elsewhere",
        pattern=r"Disk quota exceeded",
        printed=True,
    ),
    Signature(
        name="platform-quota",
        cause=status.QUOTA,
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
        cause=status.PREEMPTED,
        why="the platform took the machine away for another user",
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
        cause=status.NODE_LOST,
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
        cause=status.TIMED_OUT,
        why="the job ran longer than the platform allows it to",
        advice="ask for more time, use a partition or queue with a longer limit, or go on from checkpoints",
        pattern=r"CANCELLED AT \S+ DUE TO TIME LIMIT|active on the node longer than the specified deadline",
        printed=True,
    ),
)

# How it looks when a module cannot be imported: it, or something below it, is missing in the step's environment.

IMPORTS: Final = (
    Signature(
        name="module-missing",
        cause=status.IMPORT_ERROR,
        why="a module is not installed in the step's environment",
        advice=(
            "install it where the step runs (a container: DockerSettings(requirements=[…])); if it is a file of yours, "
            "it must lie beside the pipeline's file or in a package on sys.path"
        ),
        pattern=r"\A(?:ModuleNotFoundError|ImportError): No module named ",
    ),
    Signature(
        name="library-missing",
        cause=status.IMPORT_ERROR,
        why="a shared library that a Python package needs is not in the step's environment",
        advice=(
            "install the system package that has it (DockerSettings(apt_packages=[…])); a library of CUDA "
            "(libcudart, libcublas, libcudnn, …) comes with the framework's own CUDA build or an image with "
            "CUDA"
        ),
        # The driver's own libraries are no package's business: see `no-driver`.
        pattern=(
            r"^(?!.*\blib(?:cuda|nvidia-ml)\.so)(?:ImportError|OSError): \S+\.so\S*: cannot open shared object file"
        ),
    ),
    Signature(
        name="library-mismatch",
        cause=status.IMPORT_ERROR,
        why="a compiled package does not fit the libraries that it found",
        advice="reinstall it for this image and framework version: it was built against other ones",
        pattern=(
            r"\A(?:ImportError|OSError): [^\n]*(?:undefined symbol: |version `\w+_[\d.]+' not found)"
            r"|A module that was compiled using NumPy 1\.x cannot be run in|numpy\.dtype size changed"
        ),
    ),
    Signature(
        name="name-missing",
        cause=status.IMPORT_ERROR,
        why="a module has no such name: it is another version than the code expects, or another module of that name",
        advice=(
            "compare the installed version with the one that the code was written for; look for a file that hides it"
        ),
        pattern=r"\AImportError: cannot import name ",
    ),
)

# How it looks when processes that compute together lose each other: NCCL, gloo, torch's rendezvous. Mostly one rank
# fails and all others complain of it.

RANKS: Final = (
    Signature(
        name="collective-timeout",
        cause=status.NCCL_TIMEOUT,
        why="a collective operation gave up waiting: at least one rank did not come to it",
        advice=(
            "look at the rank that did not report this: it failed, still loaded data, or took another branch; "
            "every rank must call the same collectives in the same order. Only if a rank is slow for good "
            "reason, raise the timeout of init_process_group"
        ),
        pattern=(
            r"Watchdog caught collective operation timeout|Timed out waiting \d+ms for (?:recv"
            r"|send) operation to complete|gloo/transport/[^\n]*Application timeout caused pair closure"
            r"|failed to pass monitoredBarrier in \d+ ms|timed out in monitoredBarrier after"
            # xla/tsl/distributed_runtime/coordination/coordination_service.cc, which JAX uses
            r"|DEADLINE_EXCEEDED: Barrier timed out\. Id: "
        ),
        printed=True,
    ),
    Signature(
        name="remote-peer",
        cause=status.NCCL_REMOTE_PEER,
        why="another rank's process or machine went away in the middle of a collective operation",
        advice="look at the log of the rank that ended first: its failure is the cause, this one a consequence",
        pattern=(
            r"remote process exited or there was a network error|ncclRemoteError"
            r"|gloo/transport/tcp/[^\n]*Connection (?:closed|reset) by peer"
            # torch/csrc/distributed/c10d/Utils.hpp: rank 0, which has the store, is gone
            r"|Failed to (?:recv, got|send, sent) 0 bytes\. Connection was likely closed"
            r"|Terminating process because the JAX distributed service detected fatal errors"
        ),
        printed=True,
    ),
    # torch/csrc/distributed/c10d/reducer.cpp
    Signature(
        name="ddp-other-model",
        cause=status.MISMATCH,
        why="the ranks gave models of different shapes to DistributedDataParallel",
        advice="build the same model on all ranks: from one configuration, with no condition on the rank or its data",
        pattern=r"DDP expects same model across all ranks|appears not to match (?:sizes|strides) of the same param",
    ),
    # torch/csrc/distributed/c10d/ProcessGroupWrapper.cpp, with TORCH_DISTRIBUTED_DEBUG=DETAIL
    Signature(
        name="collectives-differ",
        cause=status.MISMATCH,
        why="the ranks called different collective operations, or the same one with different tensors",
        advice="call the same operations in the same order on all ranks, with tensors of one shape and type",
        pattern=r"Detected mismatch between collectives on ranks\.",
    ),
    Signature(
        name="ddp-unused",
        cause=status.USER_ERROR,
        why="parameters of the model took no part in the loss, and DistributedDataParallel waits for their gradients",
        advice=(
            "use all outputs of forward in the loss, or say DistributedDataParallel(…, find_unused_parameters=True); "
            "TORCH_DISTRIBUTED_DEBUG=DETAIL in the step's environment names the parameters"
        ),
        pattern=r"Expected to have finished reduction in the prior iteration before starting a new one",
    ),
    Signature(
        name="deepspeed-batch",
        cause=status.USER_ERROR,
        why="DeepSpeed's batch sizes do not multiply to the batch of all ranks",
        advice=(
            "leave one of train_batch_size, train_micro_batch_size_per_gpu and gradient_accumulation_steps out of the "
            'configuration (or say "auto"), so that it follows from the number of ranks'
        ),
        pattern=r"Check batch related parameters\. train_batch_size is not equal",
    ),
    Signature(
        name="trainer-no-loss",
        cause=status.USER_ERROR,
        why="the model computed no loss: the batches that the Trainer gave it have no labels",
        advice=(
            "name the column of the labels `labels`, and keep it: TrainingArguments(label_names=[…], "
            "remove_unused_columns=False) with a collator that makes them"
        ),
        pattern=r"The model did not return a loss from the inputs, only the following keys",
    ),
    Signature(
        name="trainer-no-columns",
        cause=status.USER_ERROR,
        why="the Trainer removed all columns of the data, since the model's forward takes none of them",
        advice=(
            "give it data with the columns that forward takes (tokenized: input_ids, …), or "
            "TrainingArguments(remove_unused_columns=False)"
        ),
        pattern=r"No columns in the dataset match the model's forward method signature",
    ),
    Signature(
        name="duplicate-gpu",
        cause=status.NO_GPU,
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
        cause=status.NCCL_ERROR,
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
        cause=status.RENDEZVOUS,
        why="the ranks did not find each other in time",
        advice=(
            "check that every node started, that MASTER_ADDR and MASTER_PORT name rank 0's machine, and that "
            "no firewall stands between them"
        ),
        pattern=(
            r"Timed out after \d+ seconds waiting for clients\. \d+/\d+ clients joined|RendezvousTimeoutError"
            # torch/csrc/distributed/c10d/TCPStore.cpp
            r"|DistStoreError: wait timeout after \d+ms, keys: |DistStoreError: Socket Timeout"
            r"|Gloo connectFullMesh failed with|client socket has failed to connect to any network address of"
            r"|RendezvousConnectionError|The client socket has timed out after \w+ while trying to connect to"
        ),
    ),
    Signature(
        name="port-in-use",
        cause=status.PORT_IN_USE,
        why="the port that the step wanted to listen on is taken",
        advice="let the launcher choose a free port (port 0), or end the process that listens there",
        pattern=r"EADDRINUSE|\[Errno 98\] Address already in use",
    ),
)

ROWS: Final[tuple[Signature, ...]] = (
    *HARDWARE,
    *PLACE,
    *GPU_MEMORY,
    *HOST_MEMORY,
    *DISK,
    *DRIVER,
    *BUILD,
    *IMPORTS,
    *KERNELS,
    *CHILDREN,
    *RANKS,
)
CAUSES: Final[Registry[Signature]] = Registry(group="stoker.causes", noun="cause", kind=Signature, builtin={})
"""Rows of other distributions, each under the cause that it gives."""

_LOOK: Final = "the last lines of `stoker logs` may say more"
GENERAL: Final[Mapping[str, tuple[str, str]]] = {
    status.USER_ERROR: ("the step's code raised an exception", ""),
    status.CRASHED: (
        "the step's process crashed in native code",
        (
            "suspect the extension that the line calls, its version first; after SIGBUS also a full /dev/shm, or a "
            "file that shrank while it was mapped"
        ),
    ),
    status.KILLED: (
        "the step's process was killed from outside",
        f"look who did it: the kernel out of memory (`dmesg`), a platform that takes its place back, a person; {_LOOK}",
    ),
    status.EXITED: ("the step's process left before the step returned", f"return from the step instead; {_LOOK}"),
    status.TIMED_OUT: (
        "the step ran longer than it may",
        "raise the limit that it ran into, its timeout or its platform's, or find out where it waits",
    ),
    status.CANCELLED: ("the step was ended before it was done", ""),
    status.UNSERIALIZABLE: (
        "what the step returned cannot be kept",
        "return data instead of a handle, such as an open file, a lock or a connection; open that where it is used",
    ),
    status.IMPORT_ERROR: (
        "the step's file, or a module that it imports, could not be imported where the step ran",
        "import it there by hand: `python -c 'import …'` shows the same error",
    ),
    status.INPUT_ERROR: (
        "an input of the step could not be loaded",
        "the environment that reads a value must have the packages of the one that wrote it",
    ),
    status.DAMAGED_INPUT: (
        "the bytes of an input are lost or damaged in the artifact store",
        "`stoker resume RUN` computes it again; `stoker store check` finds what else is damaged",
    ),
    status.HOST_OOM: (
        "the kernel ended the step's process by SIGKILL, because memory was used up",
        MORE_MEMORY,
    ),
    status.HANG: (
        "the ranks of the step wait for each other, and no longer get on",
        (
            "look in the stacks for the rank that took another way: a condition on its rank around a collective "
            "operation, or data that ends earlier than others'; a step that is meant to pause sets hang_after"
        ),
    ),
    status.NOT_STARTED: (
        "the launcher waited for something before it had started all ranks",
        (
            "look into what it wrote: `stoker logs RUN STEP --rank launcher`; mostly it waits for an address or a port "
            "that another program has; start_timeout allows a slow start more time"
        ),
    ),
    status.RANK_LEFT: (
        "a rank returned, or left its group, while others waited for it in a collective operation",
        "give all ranks the same number of batches, or let them end apart: torch.distributed.algorithms.join.Join",
    ),
    status.WRONG_WORLD: (
        "a framework in a rank did not find the other ranks, so that each of them does the work of all",
        "let the launcher's framework set up the ranks; where they are meant to be apart, say one_world=False",
    ),
    status.GANG_INCOMPLETE: (
        "not all nodes of the step came up in time",
        "see why the missing one did not start; gang_timeout says how long the others wait for it",
    ),
    status.IDLE_GPU: (
        "on_idle_gpu of the step says that it must use the devices that it holds",
        (
            "see `stoker gpu` for when they worked; move model and data to the device, or ask for fewer; if long "
            'pauses are meant, raise Monitor(idle_for=…), or say on_idle_gpu="warn"'
        ),
    ),
    status.WORKER_LOST: (
        "the process that held the workers went away",
        "try again; if it recurs, look for what ends it",
    ),
    status.SETUP_FAILED: (
        "a line that prepares the step's place failed, so that the step never began",
        "call the line in a shell on such a node, and mend it: modules, setup, conda or venv",
    ),
    status.REFUSED: ("the backend would not take the step", ""),
}
"""cause → (why, advice), where no row says more; causes that only rows or platforms give are found among the rows."""

TERMINATED: Final = f"look who asked for its end: a person, or a platform that takes its place back; {_LOOK}"
"""The advice after SIGTERM, which the OOM killer never sends."""


@functools.cache
def third_party_rows() -> tuple[Signature, ...]:
    """The rows of other distributions, read once a process. One that cannot be loaded is passed over with a warning:
    the failure that is to be explained is the one that counts."""
    rows = []
    for name in CAUSES.names():
        try:
            row = CAUSES.load(name)
        except UsageError as error:
            log.warning("%s", error)
            continue
        if row.cause in status.CAUSES or row.cause == name:
            rows.append(row)
        else:
            log.warning("the row '%s' gives the cause '%s': its entry point must be called so", name, row.cause)
    return tuple(rows)


def retryable_of(cause: str) -> Retryable:
    """Where another attempt may succeed after a cause."""
    if cause in RETRYABLE:
        return RETRYABLE[cause]
    return next((row.retryable for row in third_party_rows() if row.cause == cause), "here")


def find_signature(raised: Sequence[str], printed: str) -> tuple[Signature, str] | None:
    """The first row that matches what was raised (each "type: message") or printed, and the line that shows it."""
    for row in (*third_party_rows(), *ROWS):
        for text in raised:
            if line := row.seen_in(text):
                return row, line
        if row.printed and (line := row.seen_in(printed)):
            return row, line
    return None


def general(cause: str) -> tuple[str, str]:
    """Why and advice for a cause of which no more than its name is known."""
    if cause in GENERAL:
        return GENERAL[cause]
    # Of several rows the last is the plainest.
    row = next((row for row in reversed((*ROWS, *third_party_rows())) if row.cause == cause), None)
    return (row.why, row.advice) if row is not None else ("", "")
