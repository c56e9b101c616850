"""How failures of a GPU look: its memory, its driver, the framework's build for it, its kernels, its hardware.

CUDA's own words are `cudaGetErrorString`'s, and the same in every framework. HIP's differ in the first word only.
"""

from __future__ import annotations

from typing import Final

from stoker.core.status import (
    DRIVER_BROKEN,
    DRIVER_TOO_OLD,
    FORWARD_COMPAT,
    GPU_BUSY,
    GPU_HARDWARE,
    GPU_OOM,
    ILLEGAL_MEMORY_ACCESS,
    NO_DRIVER,
    NO_GPU,
    NO_GPU_BUILD,
    NO_KERNEL_IMAGE,
)
from stoker.worker.signature import Signature

_OTHER_GPU: Final = (
    "run the step on another GPU or machine; have this one drained and reset, and replaced if it fails again"
)

HARDWARE: Final = (
    Signature(
        name="ecc",
        cause=GPU_HARDWARE,
        why="the GPU met a memory or link error that its hardware could not correct",
        advice=_OTHER_GPU,
        pattern=r"uncorrectable (?:ECC|NVLink) error",
        printed=True,
    ),
    Signature(
        name="gpu-lost",
        cause=GPU_HARDWARE,
        why="the driver lost contact with the GPU",
        advice=_OTHER_GPU,
        pattern=(
            r"GPU is lost|GPU has fallen off the bus|GPU requires reset"
            r"|Unable to determine the device handle for GPU"
        ),
        printed=True,
    ),
)

MEMORY: Final = (
    Signature(
        name="torch-gpu-oom-shared",
        cause=GPU_OOM,
        why="the GPU's memory was full, and another process held a part of it",
        advice="end or move the other process (`nvidia-smi` shows it), or give the step a GPU of its own",
        pattern=r"(?:CUDA|HIP|XPU) out of memory\.[^\n]* Process \d+ has [\d.]+ \w+ memory in use",
    ),
    Signature(
        name="torch-gpu-oom-fraction",
        cause=GPU_OOM,
        why="the step reached the share of the GPU's memory that it allowed itself",
        advice="raise torch.cuda.set_per_process_memory_fraction, or use a smaller batch",
        pattern=r"would exceed (?:the )?per_process_memory_fraction",
    ),
    Signature(
        name="torch-gpu-oom",
        cause=GPU_OOM,
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
        cause=GPU_OOM,
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
        cause=GPU_OOM,
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
        cause=GPU_OOM,
        why="the GPU had less memory left than TensorFlow asked for",
        advice=(
            "use a smaller batch; if another process shares the GPU, call tf.config.experimental.set_memory_growth; "
            "against fragmentation set TF_GPU_ALLOCATOR=cuda_malloc_async"
        ),
        pattern=r"OOM when allocating tensor with shape\s*\[[\d,]*\][^\n]*device:GPU:\d",
    ),
    Signature(
        name="cupy-gpu-oom",
        cause=GPU_OOM,
        why="the GPU had less memory left than CuPy asked for",
        advice=(
            "work on smaller pieces, and free CuPy's pool between them: "
            "cupy.get_default_memory_pool().free_all_blocks()"
        ),
        pattern=r"Out of memory allocating [\d,]+ bytes \(allocated so far: [\d,]+ bytes",
    ),
)

DRIVER: Final = (
    Signature(
        name="forward-compat",
        cause=FORWARD_COMPAT,
        why="the image brings CUDA's forward-compatibility libraries, which only data centre GPUs support",
        advice=(
            "take /usr/local/cuda/compat out of LD_LIBRARY_PATH, or use an image whose CUDA the machine's "
            "driver supports"
        ),
        pattern=r"forward compatibility was attempted on non supported HW",
    ),
    Signature(
        name="driver-too-old",
        cause=DRIVER_TOO_OLD,
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
        cause=DRIVER_TOO_OLD,
        why="the container was not started: its image asks for a newer driver than the machine has",
        advice="use an image for an older CUDA, or a machine with a newer driver",
        pattern=r"nvidia-container-cli: requirement error: unsatisfied condition: (?:cuda|driver)",
        printed=True,
    ),
    Signature(
        name="driver-broken",
        cause=DRIVER_BROKEN,
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
        cause=NO_DRIVER,
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
        cause=NO_GPU,
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
        name="gpu-busy",
        cause=GPU_BUSY,
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
        cause=NO_GPU_BUILD,
        why="the framework in the step's environment was built for the CPU only",
        advice="install its CUDA or ROCm build: for torch a wheel whose version ends in +cu… or +rocm…",
        pattern=r"Torch not compiled with CUDA enabled",
    ),
    Signature(
        name="no-kernel-image",
        cause=NO_KERNEL_IMAGE,
        why="the framework was built without code for this kind of GPU",
        advice=(
            "install a build that names the GPU's architecture (torch.cuda.get_arch_list() shows a build's), "
            "or ask for a GPU that it was built for (resources.accelerators)"
        ),
        pattern=(
            r"no kernel image is available for execution on the device|(?:CUDA|HIP) error: invalid device function"
            r"|device kernel image is invalid"
        ),
    ),
)

KERNELS: Final = (
    Signature(
        name="device-assert",
        cause=ILLEGAL_MEMORY_ACCESS,
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
        cause=ILLEGAL_MEMORY_ACCESS,
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
