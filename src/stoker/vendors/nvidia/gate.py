"""The gate's check of NVIDIA's devices, through CUDA and NVML."""

from __future__ import annotations

import os
import time
from typing import Any, Final, Iterator, Mapping, Sequence

import attrs

from stoker.core import status
from stoker.core.devices import Device
from stoker.core.words import count_text, memory_text
from stoker.vendors.base import GateRequest, GateResult, in_container, names_in
from stoker.vendors.builds import Problem, Version, dotted
from stoker.vendors.nvidia import cuda, probe
from stoker.vendors.nvidia.builds import forward_compatible
from stoker.vendors.nvidia.chips import cuda_of_driver

FOREIGN: Final = 2 * 2**30
"""Bytes of a whole device that may be in use when the step begins: the driver itself takes some hundred MB, and a
desktop one or two GB."""
FOREIGN_PART: Final = 0.05
"""The same as a part of the device's memory; the larger of the two counts."""
PAUSE: Final = 0.25
"""Seconds between two readings while memory becomes free."""


def prove(request: GateRequest) -> GateResult:
    """Whether CUDA starts in this process, shows the leased devices, and has the leased memory."""
    visible = cuda.visible_devices(request.environment)
    nvml = _query_nvml(request.devices) if visible.problem is None else _NvmlFacts()
    driver = nvml.driver or request.driver
    newest = visible.version or nvml.cuda or request.cuda
    facts = {"driver": _driver_text(driver, newest)} if driver else {}
    problem = visible.problem
    if problem is not None and problem.cause in (status.NO_DRIVER, status.NO_GPU):
        problem = _without_gpus(request) or _hidden(problem, request)
    elif problem is not None and problem.cause == status.DRIVER_BROKEN:
        problem = _explained_by_nvml(problem, request)
    problem = problem or _mismatch(request, visible)
    if problem is None:
        facts["devices"] = f"{len(visible.uuids)} visible, as leased"
        if not _comparable(request.devices, visible):
            facts["devices"] += "; unproved: this driver does not tell a slice's UUID"
        nvml, problem = _free(request, nvml)
        facts["memory"] = _memory_text(request.devices, nvml)
    return GateResult(facts=facts, problem=problem, driver=driver, cuda=newest)


def _driver_text(driver: str, newest: Version | None) -> str:
    text = f"{driver} (CUDA {dotted(newest)})" if newest else driver
    driver_cuda = cuda_of_driver(driver)
    if driver_cuda is not None and forward_compatible(driver, newest):
        text += f", with CUDA's forward-compatibility libraries; the driver's own is CUDA {dotted(driver_cuda)}"
    return text


def _without_gpus(request: GateRequest) -> Problem | None:
    """The problem of a container without device files, which was started without GPUs."""
    # Under WSL the GPU is /dev/dxg: https://docs.nvidia.com/cuda/wsl-user-guide
    files = [*names_in(request.root / "dev", r"nvidia\d+"), *names_in(request.root / "dev", r"dxg")]
    if files or not in_container(request.environment, request.root):
        return None
    leased = count_text(len(request.devices), "GPU")
    return Problem(
        cause=status.NO_GPU,
        sentence=f"the container was started without --gpus: the step holds {leased}, and there is no /dev/nvidia*",
        fix="start it with --gpus (or a pod with nvidia.com/gpu in its limits), where NVIDIA's container toolkit is "
        "installed, and without NVIDIA_VISIBLE_DEVICES=void",
    )


def _explained_by_nvml(problem: Problem, request: GateRequest) -> Problem:
    """The problem with NVML's explanation, which is more precise than CUDA's."""
    broken = next((one for one in probe.inventory(request.root).findings if one.level == "error"), None)
    if broken is None:
        return problem
    cause = status.GPU_HARDWARE if broken.code == probe.GPU_LOST else problem.cause
    where = f"{broken.where}: " if broken.where else ""
    return Problem(cause=cause, sentence=f"{problem.sentence}; {where}{broken.what}: {broken.why}", fix=broken.fix)


def _hidden(problem: Problem, request: GateRequest) -> Problem:
    """The same problem, with the variable that may be the reason."""
    value = request.environment.get("CUDA_VISIBLE_DEVICES")
    if problem.cause != status.NO_GPU or value is None:
        return problem
    leased = count_text(len(request.devices), "device")
    return attrs.evolve(
        problem, sentence=f"{problem.sentence}; {leased} leased, and CUDA_VISIBLE_DEVICES is {value or 'empty'!r}"
    )


def _mismatch(request: GateRequest, visible: cuda.VisibleDevices) -> Problem | None:
    """The problem where fewer, more or other devices are visible than were leased."""
    value = request.environment.get("CUDA_VISIBLE_DEVICES")
    suffix = "" if value is None else f" (CUDA_VISIBLE_DEVICES={value})"
    fix = "leave CUDA_VISIBLE_DEVICES as Stoker sets it; in a container, see that it was given these devices"
    if len(visible.uuids) != len(request.devices):
        sentence = f"{len(visible.uuids)} of {len(request.devices)} leased devices are visible{suffix}"
        if len(visible.uuids) > len(request.devices):
            sentence = f"{len(visible.uuids)} devices are visible, and {len(request.devices)} were leased{suffix}"
        return Problem(cause=status.NO_GPU, sentence=sentence, fix=fix)
    if not _comparable(request.devices, visible):
        return None
    missing = [one for one in request.devices if _digits(one, visible) not in visible.uuids]
    if not missing:
        return None
    uuids = ", ".join(one.uuid for one in missing)
    sentence = f"{uuids} was leased, and is not among the devices that are visible{suffix}"
    return Problem(cause=status.NO_GPU, sentence=sentence, fix=fix)


def _digits(device: Device, visible: cuda.VisibleDevices) -> str:
    return cuda.plain(device.uuid if visible.exact or not device.parent else device.parent)


def _comparable(devices: Sequence[Device], visible: cuda.VisibleDevices) -> bool:
    # Slices of drivers before 470 are called MIG-GPU-UUID/1/0.
    return all(_digits(device, visible) for device in devices)


@attrs.frozen(kw_only=True)
class _NvmlFacts:
    """What NVML reports."""

    driver: str = ""
    """The driver's version."""
    cuda: Version | None = None
    """The newest CUDA of that driver."""
    free: Mapping[str, int] = attrs.field(factory=dict)
    """UUID → free bytes."""
    used: Mapping[str, int] = attrs.field(factory=dict)
    """UUID → used bytes."""
    unavailable: str = ""
    """Why NVML reports nothing; empty where it does."""


def _query_nvml(devices: Sequence[Device]) -> _NvmlFacts:
    try:
        import pynvml as nvml
    except ImportError:
        return _NvmlFacts(unavailable="nvidia-ml-py is not installed")
    try:
        nvml.nvmlInit()
    except nvml.NVMLError as error:
        return _NvmlFacts(unavailable=f"NVML: {error}")
    try:
        driver = str(nvml.nvmlSystemGetDriverVersion())
        uuids = {device.uuid for device in devices}
        memory = {
            uuid: nvml.nvmlDeviceGetMemoryInfo(handle)
            for handle in _handles(nvml)
            if (uuid := nvml.nvmlDeviceGetUUID(handle)) in uuids
        }
    except nvml.NVMLError as error:
        return _NvmlFacts(unavailable=f"NVML: {error}")
    finally:
        nvml.nvmlShutdown()
    return _NvmlFacts(
        driver=driver,
        cuda=cuda_of_driver(driver),
        free={uuid: int(one.free) for uuid, one in memory.items()},
        used={uuid: int(one.used) for uuid, one in memory.items()},
    )


def _handles(nvml: Any) -> Iterator[Any]:
    """Every GPU and every slice. Drivers without a call for slices have none."""
    for index in range(nvml.nvmlDeviceGetCount()):
        handle = nvml.nvmlDeviceGetHandleByIndex(index)
        yield handle
        try:
            count = nvml.nvmlDeviceGetMaxMigDeviceCount(handle) if nvml.nvmlDeviceGetMigMode(handle)[0] else 0
        except nvml.NVMLError:
            continue
        for number in range(count):
            try:
                yield nvml.nvmlDeviceGetMigDeviceHandleByIndex(handle, number)
            except nvml.NVMLError:
                continue  # numbers without a slice


def _free(request: GateRequest, nvml: _NvmlFacts) -> tuple[_NvmlFacts, Problem | None]:
    """Wait until every device has the leased memory free; a problem where one still does not."""
    until = time.monotonic() + request.patience
    while (short := _full_device(request, nvml)) is not None and time.monotonic() < until:
        time.sleep(PAUSE)
        nvml = _query_nvml(request.devices)
    if short is None:
        return nvml, None
    users = [process.pid for process in probe.processes([short]) if process.pid != os.getpid()]
    suffix = f" by process {', '.join(map(str, sorted(set(users))))}" if users else ""
    used, free = memory_text(nvml.used[short.uuid]), memory_text(nvml.free[short.uuid])
    demand = f"; the step leased {memory_text(request.memory)}, and {free} is free" if request.memory else ""
    return nvml, Problem(
        cause=status.GPU_BUSY,
        sentence=f"GPU {short.index} ({short.model}): {used} of its memory is in use{suffix}{demand}",
        fix="end what uses it (`nvidia-smi` shows it), or try again later; processes that Stoker did not start are not "
        "in its ledger",
    )


def _full_device(request: GateRequest, nvml: _NvmlFacts) -> Device | None:
    for device in request.devices:
        free, used = nvml.free.get(device.uuid), nvml.used.get(device.uuid)
        if free is None or used is None:
            continue
        if free < request.memory or (not request.memory and used > max(FOREIGN, FOREIGN_PART * (free + used))):
            return device
    return None


def _memory_text(devices: Sequence[Device], nvml: _NvmlFacts) -> str:
    free_bytes = [nvml.free[device.uuid] for device in devices if device.uuid in nvml.free]
    if len(free_bytes) < len(devices):
        return f"unproved: {nvml.unavailable or 'the driver does not tell'}"
    return f"{memory_text(min(free_bytes))} free" + (" on the fullest" if len(free_bytes) > 1 else "")
