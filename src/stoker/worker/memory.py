"""`cleanup_memory()`: garbage collected, and what loaded frameworks keep of a device's memory for later given back.

A process gives everything back when it ends; this is for use inside a step, such as between a failed attempt at a
batch and a smaller one. What is still referred to stays, and so does the process's own context on a device. Nothing is
imported and no device is touched for it: a framework that is not loaded, or has not used a device, has nothing to free.
"""

from __future__ import annotations

import gc
import os
import sys
from typing import Any, Callable, Final, Iterator, Mapping

import attrs

from stoker.core.words import count_text, memory_text
from stoker.system import system

_ROUNDS: Final = 10
"""How often garbage is collected: finalizers make new garbage, and some would do so for ever."""
_TORCH_DEVICES: Final = ("cuda", "xpu", "npu")
"""PyTorch's modules for devices that share one form: is_initialized, device_count, memory_reserved, empty_cache. AMD's
GPUs are "cuda" too. https://docs.pytorch.org/docs/stable/cuda.html#memory-management"""


@attrs.frozen(kw_only=True, repr=False)
class Freed:
    """What `cleanup_memory` freed."""

    host: int | None = None
    """Bytes of this process's memory; None where that is not known."""
    devices: Mapping[str, int] = attrs.field(factory=dict)
    """Bytes of device memory by cache, such as "torch cuda:0"; an entry for each cache that was emptied."""
    collected: int = 0
    """Objects that the garbage collector freed."""
    host_before: int | None = None
    """Bytes of this process in memory before; None where that is not known."""
    host_after: int | None = None
    """Bytes of this process in memory afterwards; None where that is not known."""

    def __repr__(self) -> str:
        parts = [f"{memory_text(size)} of {name}" for name, size in self.devices.items()]
        if self.host is not None and self.host_after is not None:
            parts.append(f"{memory_text(self.host)} of the host's memory ({memory_text(self.host_after)} in use)")
        parts.append(count_text(self.collected, "object"))
        return f"<Freed {', '.join(parts)}>"


def cleanup_memory() -> Freed:
    """Collect garbage, then empty the caches of the frameworks that are loaded; says what that freed.

    PyTorch, JAX and CuPy give back the device memory that they hold but do not use. JAX forgets its compiled functions
    with it, and compiles them again when they are next called. TensorFlow keeps what it took until its process ends;
    `tf.keras.backend.clear_session()` is not called, because it resets what models that are still in use share.
    """
    before = _resident()
    collected = _collect_garbage()
    devices: dict[str, int] = {}
    for framework, free in _FRAMEWORKS.items():
        module = sys.modules.get(framework)
        if module is not None:
            devices.update(free(module))
    after = _resident()
    host = None if before is None or after is None else max(0, before - after)
    return Freed(host=host, devices=devices, collected=collected, host_before=before, host_after=after)


def _collect_garbage() -> int:
    total = 0
    for _ in range(_ROUNDS):
        freed = gc.collect()
        total += freed
        if not freed:
            break
    return total


def _resident() -> int | None:
    """Bytes of this process that are in memory; None where no file of the kernel's says so."""
    sizes = system.memory_of(os.getpid())
    return None if sizes is None else sizes[0]


def _torch(torch: Any) -> Iterator[tuple[str, int]]:
    for kind in _TORCH_DEVICES:
        devices = getattr(torch, kind, None)
        # Checked first: everything else would take some hundred megabytes of the device for a context of its own, and
        # a process that forks later would hand its children a CUDA that does not work there.
        if devices is None or not getattr(devices, "is_initialized", bool)():
            continue
        reserved = [devices.memory_reserved(index) for index in range(devices.device_count())]
        devices.empty_cache()
        if hasattr(devices, "ipc_collect"):
            devices.ipc_collect()  # memory shared with processes that are gone
        for index, size in enumerate(reserved):
            yield f"torch {kind}:{index}", max(0, size - devices.memory_reserved(index))
    mps = getattr(torch, "mps", None)
    if mps is not None and torch.backends.mps.is_available():
        size = mps.driver_allocated_memory()
        mps.empty_cache()
        yield "torch mps", max(0, size - mps.driver_allocated_memory())


def _jax(jax: Any) -> Iterator[tuple[str, int]]:
    # https://docs.jax.dev/en/latest/_autosummary/jax.clear_caches.html. Asking for the devices would make JAX take most
    # of their memory, where it has not done so yet.
    bridge = sys.modules.get("jax._src.xla_bridge")
    if not getattr(bridge, "backends_are_initialized", bool)():
        return
    devices = jax.local_devices()
    used = [_jax_bytes(device) for device in devices]
    jax.clear_caches()
    for device, size in zip(devices, used):
        if size is not None:
            yield f"jax {device.platform}:{device.id}", max(0, size - (_jax_bytes(device) or 0))


def _jax_bytes(device: Any) -> int | None:
    """Bytes in use on a device; the CPU does not count them."""
    stats = device.memory_stats()
    return None if not stats else stats.get("bytes_in_use")


def _cupy(cupy: Any) -> Iterator[tuple[str, int]]:
    # https://docs.cupy.dev/en/stable/user_guide/memory.html. A pool is the current device's alone: to look at another
    # device's would make a context there.
    pool = cupy.get_default_memory_pool()
    size = pool.total_bytes()
    if size:
        pool.free_all_blocks()
        yield "cupy", max(0, size - pool.total_bytes())
    cupy.get_default_pinned_memory_pool().free_all_blocks()


_FRAMEWORKS: Final[Mapping[str, Callable[[Any], Iterator[tuple[str, int]]]]] = {
    "torch": _torch,
    "jax": _jax,
    "cupy": _cupy,
}
"""module → what frees its caches"""
