"""Checks of imported frameworks, which vendors share: can the framework use the held devices?

No check uses memory of a device or keeps the process from forking. So torch is asked through NVML instead of CUDA, and
jax is not asked at all, because its first call takes three quarters of the memory
(https://docs.jax.dev/en/latest/gpu_memory_allocation.html).
"""

from __future__ import annotations

import contextlib
import os
from typing import Any, Final, Iterator, Mapping, Sequence

from stoker.core import status
from stoker.core.devices import Device
from stoker.vendors.base import FrameworkCheck
from stoker.vendors.builds import Problem

_NVML: Final = "PYTORCH_NVML_BASED_CUDA_CHECK"
"""https://docs.pytorch.org/docs/stable/notes/cuda.html: with "1", is_available() asks NVML, which survives a fork."""


def torch_gpus(torch: Any, devices: Sequence[Device]) -> tuple[str, Problem | None]:
    """Whether torch sees as many GPUs as are held; ROCm's build calls them CUDA's, too."""
    if any(device.slice for device in devices):
        # For a slice torch initialises CUDA, and the process could not fork any more. The gate has counted slices.
        return "", None
    with _environment({_NVML: "1"}):
        available, count = bool(torch.cuda.is_available()), int(torch.cuda.device_count())
    if not available or count != len(devices):
        visible = os.environ.get("CUDA_VISIBLE_DEVICES", "")
        sentence = f"torch {torch.__version__} sees {count} of the step's {len(devices)} GPUs"
        fix = f"leave CUDA_VISIBLE_DEVICES as Stoker set it (it is {visible!r} now)"
        if getattr(torch.version, "cuda", None) is None and getattr(torch.version, "hip", None) is None:
            sentence, fix = f"torch {torch.__version__} was built for the CPU only", "install torch in a build for CUDA"
            return "", Problem(cause=status.NO_GPU_BUILD, sentence=sentence, fix=fix)
        return "", Problem(cause=status.NO_GPU, sentence=sentence, fix=fix)
    return f"it sees {count}, as leased", None


def tensorflow_gpus(tensorflow: Any, devices: Sequence[Device]) -> tuple[str, Problem | None]:
    """Whether TensorFlow sees as many GPUs as are held."""
    count = len(tensorflow.config.list_physical_devices("GPU"))
    if count == len(devices):
        return f"it sees {count}, as leased", None
    version = tensorflow.__version__
    if count:
        fix = "leave CUDA_VISIBLE_DEVICES as Stoker set it"
        sentence = f"tensorflow {version} sees {count} of the step's {len(devices)} GPUs"
        return "", Problem(cause=status.NO_GPU, sentence=sentence, fix=fix)
    # TensorFlow logs "Cannot dlopen some GPU libraries" and computes on the CPU.
    sentence = f"tensorflow {version} sees none of the step's {len(devices)} GPUs; without CUDA's libraries it cannot"
    fix = f'pip install "tensorflow[and-cuda]=={version}", and see what it says of libraries in the step\'s log'
    return "", Problem(cause=status.NO_GPU_BUILD, sentence=sentence, fix=fix)


def jax_platforms(*names: str) -> FrameworkCheck:
    """A check whether JAX may use one of these platforms."""

    def ask(jax: Any, devices: Sequence[Device]) -> tuple[str, Problem | None]:
        configured = os.environ.get("JAX_PLATFORMS", "")
        if configured and not set(names) & {part.strip() for part in configured.split(",")}:
            sentence = f"JAX_PLATFORMS={configured} keeps jax from the step's devices"
            return "", Problem(cause=status.NO_GPU, sentence=sentence, fix="take JAX_PLATFORMS out of the environment")
        return "unproved: jax takes the device's memory when it is first asked; its packages are right", None

    return ask


@contextlib.contextmanager
def _environment(added: Mapping[str, str]) -> Iterator[None]:
    before = {name: os.environ.get(name) for name in added}
    os.environ.update(added)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
