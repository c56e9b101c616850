"""NVIDIA's GPUs as the driver's library (NVML) lists them, through nvidia-ml-py.

Nothing here raises: a broken driver is a finding with its fix, and values that an old driver does not have are left
out. The result may have more devices than a process may use: NVML ignores `CUDA_VISIBLE_DEVICES`.
"""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import Any, Callable, Final, Iterable, Iterator, Mapping, TypeVar

import attrs

from stoker.core.devices import Device, Inventory, Process
from stoker.core.findings import Finding
from stoker.vendors.nvidia.chips import model_of

T = TypeVar("T")

DRIVER_NOT_LOADED: Final = "STK120"
VERSION_MISMATCH: Final = "STK121"
NO_PERMISSION: Final = "STK122"
GPU_LOST: Final = "STK123"
BROKEN: Final = "STK124"
LIBRARY_MISSING: Final = "STK125"
NO_SLICES: Final = "STK126"

# Numbers of nvmlReturn_t: https://docs.nvidia.com/deploy/nvml-api/group__nvmlDeviceEnumvs.html
_LIBRARY_NOT_FOUND = 12
_LOST: Final = frozenset({15, 16})
"""The GPU is lost, or requires a reset: all other queries fail too."""
_WITHOUT_MIG: Final = frozenset({3, 13})
"""Not supported, and no such function in the driver: the GPU cannot be cut into slices."""
_NO_SLICE: Final = frozenset({2, 4, 6})
"""Invalid argument, no permission, not found: there is no slice of that number, or it is another container's."""

_REASONS: Final[Mapping[int, tuple[str, str, str, str]]] = {
    9: (
        DRIVER_NOT_LOADED,
        "the NVIDIA driver is installed, but not loaded",
        "the kernel has no nvidia module, as after a kernel update for which the module was not built",
        "run `sudo modprobe nvidia` and read `sudo dmesg`; if the module is missing, install the driver again",
    ),
    18: (
        VERSION_MISMATCH,
        "the NVIDIA driver's library and its kernel module are of different versions",
        "the driver was updated, and the kernel still runs the module from before",
        "restart the machine; in a container, start it again, so that it gets the host's new library",
    ),
    4: (
        NO_PERMISSION,
        "this user may not use the NVIDIA driver",
        "the devices /dev/nvidia* may not be opened, or a container has not been given them",
        "add the user to the group of /dev/nvidia* (`ls -l /dev/nvidia*`); start a container with --gpus",
    ),
    15: (
        GPU_LOST,
        "the GPU is lost",
        "it fell off the bus, or answers no more; Xid 79 in the kernel's log says the same",
        "restart the machine; if it happens again, have the GPU, its power and its slot checked",
    ),
    16: (
        GPU_LOST,
        "the GPU must be reset before it can be used",
        "it met an error that only a reset clears",
        "end the processes that use it and run `sudo nvidia-smi --gpu-reset -i INDEX`, or restart the machine",
    ),
}
"""NVML's error → (code, what, why, fix)"""

_KERNEL_VERSIONS: Final = ("sys/module/nvidia/version", "proc/driver/nvidia/version")
_VERSION = re.compile(r"\b\d{3}\.\d+(?:\.\d+)?\b")
_PROFILE = re.compile(r"\bMIG (\d\S*)")


def inventory(root: Path = Path("/")) -> Inventory:
    """NVIDIA's devices; none, and no finding, without a driver. `root` is where /proc and /sys are."""
    nvml = library()
    if nvml is None:
        return _without_library(root)
    try:
        nvml.nvmlInit()
    except nvml.NVMLError as error:
        if error.value == _LIBRARY_NOT_FOUND:
            return _without_library(root)
        return Inventory(driver=_kernel_version(root), findings=(_reason(error),))
    try:
        return _read_devices(nvml)
    except nvml.NVMLError as error:  # a query that every driver supports failed: no GPU can be read
        return Inventory(driver=_kernel_version(root), findings=(_reason(error),))
    finally:
        _shut_down(nvml)


def processes(devices: Iterable[Device]) -> tuple[Process, ...]:
    """The processes that compute on some of NVIDIA's devices; none where the driver does not list them.

    In a container, pids are those of the host, or the list is empty.
    """
    uuids = {device.uuid for device in devices if device.kind == "nvidia" and not device.simulated}
    nvml = library() if uuids else None
    if nvml is None:
        return ()
    try:
        nvml.nvmlInit()
    except nvml.NVMLError:
        return ()
    try:
        return tuple(process for handle in _all_handles(nvml) for process in _users(nvml, handle, uuids))
    except nvml.NVMLError:
        return ()
    finally:
        _shut_down(nvml)


def library() -> Any:
    """nvidia-ml-py; None where it is not installed."""
    try:
        import pynvml
    except ImportError:
        return None
    return pynvml


def _without_library(root: Path) -> Inventory:
    version = _kernel_version(root)
    if not version:
        return Inventory()
    finding = Finding(
        code=LIBRARY_MISSING,
        level="info",
        what=f"the NVIDIA driver {version} is loaded, but its library libnvidia-ml.so.1 is not here",
        why="a container sees the host's kernel, but only with --gpus the driver's libraries; on the machine itself, "
        "a part of the driver is not installed",
        fix="start the container with --gpus all (and NVIDIA_DRIVER_CAPABILITIES=compute,utility), or install the "
        "driver's package of libraries",
    )
    return Inventory(driver=version, findings=(finding,))


def _kernel_version(root: Path) -> str:
    for name in _KERNEL_VERSIONS:
        try:
            version = _VERSION.search((root / name).read_text(encoding="utf-8", errors="replace"))
        except OSError:
            continue
        if version is not None:
            return version[0]
    return ""


def _reason(error: Any, where: str = "") -> Finding:
    code, what, why, fix = _REASONS.get(
        error.value,
        (
            BROKEN,
            f"the NVIDIA driver fails: {error}",
            "its library answers with an error that has no simpler name",
            "see whether `nvidia-smi` works and what `sudo dmesg` says of NVRM; restart, or install the driver again",
        ),
    )
    return Finding(code=code, level="error", what=what, where=where, why=why, fix=fix)


def _read_devices(nvml: Any) -> Inventory:
    devices: list[Device] = []
    findings: list[Finding] = []
    handles: dict[str, Any] = {}
    for index in range(nvml.nvmlDeviceGetCount()):
        try:
            handle = nvml.nvmlDeviceGetHandleByIndex(index)
            gpu = _device(nvml, handle, index)
        except nvml.NVMLError as error:
            findings.append(_reason(error, f"GPU {index}"))
            continue
        try:
            slices = _slices(nvml, handle, gpu)
        except nvml.NVMLError as error:
            findings.append(_unknown_slices(gpu, error))
            continue
        if slices is None:
            devices.append(gpu)
            handles[gpu.uuid] = handle
            continue
        devices += slices
        if not slices:
            findings.append(_no_slices(gpu))
    return Inventory(
        devices=_with_fast_links(nvml, devices, handles),
        driver=_query(nvml, nvml.nvmlSystemGetDriverVersion, otherwise=""),
        cuda=_cuda(nvml),
        findings=tuple(findings),
    )


def _device(nvml: Any, handle: Any, index: int) -> Device:
    # A device without a UUID cannot be leased, so that this query may fail.
    uuid = nvml.nvmlDeviceGetUUID(handle)
    name = _query(nvml, nvml.nvmlDeviceGetName, handle, otherwise="NVIDIA GPU")
    return Device(
        kind="nvidia",
        index=index,
        uuid=uuid,
        name=name,
        model=model_of(name),
        memory=_memory(nvml, handle),
        capability=_query(nvml, nvml.nvmlDeviceGetCudaComputeCapability, handle, otherwise=None),
        numa=_numa(nvml, handle),
    )


def _numa(nvml: Any, handle: Any) -> int | None:
    """The NUMA node next to a GPU; None where there are several, or the driver (before 450) does not tell:
    https://docs.nvidia.com/deploy/nvml-api/group__nvmlAffinity.html
    """
    call = getattr(nvml, "nvmlDeviceGetMemoryAffinity", None)
    words = None if call is None else _query(nvml, call, handle, 1, nvml.NVML_AFFINITY_SCOPE_NODE, otherwise=None)
    nodes = 0 if words is None else int(words[0])
    return nodes.bit_length() - 1 if nodes.bit_count() == 1 else None


def _memory(nvml: Any, handle: Any) -> int:
    """Bytes; 0 for chips that share the CPU's memory (GB10), whose driver does not report it."""
    memory = _query(nvml, nvml.nvmlDeviceGetMemoryInfo, handle, otherwise=None)
    return 0 if memory is None else int(memory.total)


def _slices(nvml: Any, handle: Any, gpu: Device) -> list[Device] | None:
    """The MIG slices of a GPU; None for one that is not cut into slices. Raises where the driver does not tell."""
    current, _ = _query(nvml, nvml.nvmlDeviceGetMigMode, handle, otherwise=(0, 0), only=_WITHOUT_MIG)
    if not current:
        return None
    slices = []
    for one in _slice_handles(nvml, handle):
        name = _query(nvml, nvml.nvmlDeviceGetName, one, otherwise=gpu.name)
        memory = _memory(nvml, one)
        profile = _PROFILE.search(name)
        slices.append(
            attrs.evolve(
                gpu,
                uuid=nvml.nvmlDeviceGetUUID(one),
                name=name,
                memory=memory,
                slice=profile[1].lower() if profile else _profile(nvml, one, gpu.memory),
                parent=gpu.uuid,
            )
        )
    return slices


def _slice_handles(nvml: Any, handle: Any) -> Iterator[Any]:
    for index in range(_query(nvml, nvml.nvmlDeviceGetMaxMigDeviceCount, handle, otherwise=0, only=_WITHOUT_MIG)):
        one = _query(nvml, nvml.nvmlDeviceGetMigDeviceHandleByIndex, handle, index, otherwise=None, only=_NO_SLICE)
        if one is not None:
            yield one


def _profile(nvml: Any, handle: Any, whole: int) -> str:
    """A slice's profile from its size, for drivers whose names for slices lack it.

    As NVIDIA's own go-nvlib makes it: eighths of the GPU's memory, in whole GiB of it.
    """
    sizes = _query(nvml, nvml.nvmlDeviceGetAttributes_v2, handle, otherwise=None)
    if sizes is None or not whole:
        return ""
    parts, instances = sizes.gpuInstanceSliceCount, sizes.computeInstanceSliceCount
    eighths = math.ceil(sizes.memorySizeMB * 2**20 / whole * 8)
    profile = f"{parts}g.{round(eighths / 8 * math.ceil(whole / 2**30))}gb"
    return profile if instances == parts else f"{instances}c.{profile}"


def _unknown_slices(gpu: Device, error: Any) -> Finding:
    reason = _reason(error, f"GPU {gpu.index}")
    if error.value in _LOST:
        return reason
    return attrs.evolve(
        reason,
        what=f"{reason.what}, so that the GPU is not handed out",
        why="it does not tell which slices (MIG) the GPU is cut into, and a GPU that is cut cannot be used whole",
    )


def _no_slices(gpu: Device) -> Finding:
    return Finding(
        code=NO_SLICES,
        level="info",
        what="the GPU is in MIG mode and has no slices, so that nothing can run on it",
        where=f"GPU {gpu.index}",
        why="in MIG mode CUDA sees slices only, and none has been made",
        fix=f"make slices (`sudo nvidia-smi mig -i {gpu.index} -lgip` lists what there can be, `-cgi PROFILE -C` makes "
        f"one), or end MIG mode: `sudo nvidia-smi -i {gpu.index} -mig 0`",
    )


def _with_fast_links(nvml: Any, devices: list[Device], handles: Mapping[str, Any]) -> tuple[Device, ...]:
    """The devices, each with those that NVLink joins it to, directly or through a switch."""
    return tuple(
        attrs.evolve(
            device,
            links=tuple(
                other
                for other, handle in handles.items()
                if other != device.uuid and device.uuid in handles and _are_linked(nvml, handles[device.uuid], handle)
            ),
        )
        for device in devices
    )


def _are_linked(nvml: Any, one: Any, other: Any) -> bool:
    try:
        status = nvml.nvmlDeviceGetP2PStatus(one, other, nvml.NVML_P2P_CAPS_INDEX_NVLINK)
    except nvml.NVMLError:
        return False
    return bool(status == nvml.NVML_P2P_STATUS_OK)


def _cuda(nvml: Any) -> tuple[int, int] | None:
    # The first asks the driver itself, the second (also in drivers before 410) the library that was loaded.
    for call in (nvml.nvmlSystemGetCudaDriverVersion_v2, nvml.nvmlSystemGetCudaDriverVersion):
        number = _query(nvml, call, otherwise=0)
        if number:
            return number // 1000, number % 1000 // 10
    return None


def _all_handles(nvml: Any) -> Iterator[Any]:
    """Every GPU and every slice that answers."""
    for index in range(nvml.nvmlDeviceGetCount()):
        try:
            handle = nvml.nvmlDeviceGetHandleByIndex(index)
            yield handle
            yield from _slice_handles(nvml, handle)
        except nvml.NVMLError:
            continue


def _users(nvml: Any, handle: Any, uuids: set[str]) -> list[Process]:
    try:
        uuid = nvml.nvmlDeviceGetUUID(handle)
        return _processes_on(nvml, handle, uuid) if uuid in uuids else []
    except nvml.NVMLError:
        return []


def _processes_on(nvml: Any, handle: Any, uuid: str) -> list[Process]:
    # The second is for drivers before 510; nvidia-ml-py has not always had it.
    for name in ("nvmlDeviceGetComputeRunningProcesses_v3", "nvmlDeviceGetComputeRunningProcesses_v2"):
        call = getattr(nvml, name, None)
        listed = None if call is None else _query(nvml, call, handle, otherwise=None)
        if listed is not None:
            return [Process(uuid=uuid, pid=one.pid, memory=one.usedGpuMemory or 0) for one in listed]
    return []


def _shut_down(nvml: Any) -> None:
    try:
        nvml.nvmlShutdown()
    except nvml.NVMLError:
        pass  # NVML is not used any more


def _query(nvml: Any, call: Callable[..., T], *arguments: Any, otherwise: T, only: frozenset[int] | None = None) -> T:
    """The result of a call that not every driver and GPU supports, else `otherwise`; a lost GPU is still an error, as
    is any but `only`, where that is given.
    """
    try:
        return call(*arguments)
    except nvml.NVMLError as error:
        if error.value in _LOST or (only is not None and error.value not in only):
            raise
        return otherwise
