"""NVIDIA's devices at the gate: what CUDA and NVML tell a process of the devices that were leased to it."""

from __future__ import annotations

import os
import time
from typing import Any, Final, Iterator, Mapping, Sequence

import attrs

from stoker.core import status
from stoker.core.devices import Device
from stoker.core.words import count_text, memory_text
from stoker.vendors.base import Ask, Presence, contained, names_in
from stoker.vendors.builds import Problem, Version, dotted
from stoker.vendors.nvidia import cuda, probe
from stoker.vendors.nvidia.builds import forward_compatible
from stoker.vendors.nvidia.chips import cuda_of_driver

FOREIGN: Final = 2 * 2**30
"""Bytes of a whole device that may be in use when the step begins: the driver itself takes some hundred MB, and a
desktop's windows one or two GB."""
FOREIGN_PART: Final = 0.05
"""The same as a part of the device's memory, whichever is more."""
PAUSE: Final = 0.25


def prove(ask: Ask) -> Presence:
    """Whether CUDA starts in this process, shows the leased devices, and has the leased memory."""
    seen = cuda.seen(ask.environment)
    told = _told(ask.devices) if seen.problem is None else _Told()
    driver = told.driver or ask.driver
    newest = seen.version or told.cuda or ask.cuda
    facts = {"driver": _driver_text(driver, newest)} if driver else {}
    problem = seen.problem
    if problem is not None and problem.cause in (status.NO_DRIVER, status.NO_GPU):
        problem = _without_gpus(ask) or _hidden(problem, ask)
    elif problem is not None and problem.cause == status.DRIVER_BROKEN:
        problem = _better_known(problem, ask)
    problem = problem or _others_seen(ask, seen)
    if problem is None:
        facts["devices"] = f"{len(seen.uuids)} visible, as leased"
        if not _comparable(ask.devices, seen):
            facts["devices"] += "; unproved: this driver does not tell a slice's UUID"
        told, problem = _free(ask, told)
        facts["memory"] = _memory_text(ask.devices, told)
    return Presence(facts=facts, problem=problem, driver=driver, cuda=newest)


def _driver_text(driver: str, newest: Version | None) -> str:
    text = f"{driver} (CUDA {dotted(newest)})" if newest else driver
    own = cuda_of_driver(driver)
    if own is not None and forward_compatible(driver, newest):
        text += f", with CUDA's forward-compatibility libraries; the driver's own is CUDA {dotted(own)}"
    return text


def _without_gpus(ask: Ask) -> Problem | None:
    """In a container without device files nothing is broken: it was not given the GPUs."""
    # Under WSL the GPU is /dev/dxg: https://docs.nvidia.com/cuda/wsl-user-guide
    files = [*names_in(ask.root / "dev", r"nvidia\d+"), *names_in(ask.root / "dev", r"dxg")]
    if files or not contained(ask.environment, ask.root):
        return None
    held = count_text(len(ask.devices), "GPU")
    return Problem(
        cause=status.NO_GPU,
        sentence=f"the container was started without --gpus: the step holds {held}, and there is no /dev/nvidia*",
        fix="start it with --gpus (or a pod with nvidia.com/gpu in its limits), where NVIDIA's container toolkit is "
        "installed, and without NVIDIA_VISIBLE_DEVICES=void",
    )


def _better_known(problem: Problem, ask: Ask) -> Problem:
    """What NVML says of a driver that does not work, which is more than CUDA says."""
    broken = next((one for one in probe.inventory(ask.root).findings if one.level == "error"), None)
    if broken is None:
        return problem
    cause = status.GPU_HARDWARE if broken.code == probe.GPU_LOST else problem.cause
    where = f"{broken.where}: " if broken.where else ""
    return Problem(cause=cause, sentence=f"{problem.sentence}; {where}{broken.what}: {broken.why}", fix=broken.fix)


def _hidden(problem: Problem, ask: Ask) -> Problem:
    """The same problem, with the variable that may be the reason."""
    value = ask.environment.get("CUDA_VISIBLE_DEVICES")
    if problem.cause != status.NO_GPU or value is None:
        return problem
    leased = count_text(len(ask.devices), "device")
    return attrs.evolve(
        problem, sentence=f"{problem.sentence}; {leased} leased, and CUDA_VISIBLE_DEVICES is {value or 'empty'!r}"
    )


def _others_seen(ask: Ask, seen: cuda.Seen) -> Problem | None:
    """Fewer, more, or other devices than those that were leased."""
    value = ask.environment.get("CUDA_VISIBLE_DEVICES")
    by = "" if value is None else f" (CUDA_VISIBLE_DEVICES={value})"
    fix = "leave CUDA_VISIBLE_DEVICES as Stoker sets it; in a container, see that it was given these devices"
    if len(seen.uuids) != len(ask.devices):
        sentence = f"{len(seen.uuids)} of {len(ask.devices)} leased devices are visible{by}"
        if len(seen.uuids) > len(ask.devices):
            sentence = f"{len(seen.uuids)} devices are visible, and {len(ask.devices)} were leased{by}"
        return Problem(cause=status.NO_GPU, sentence=sentence, fix=fix)
    if not _comparable(ask.devices, seen):
        return None
    missing = [one for one in ask.devices if _digits(one, seen) not in seen.uuids]
    if not missing:
        return None
    named = ", ".join(one.uuid for one in missing)
    sentence = f"{named} was leased, and is not among the devices that are visible{by}"
    return Problem(cause=status.NO_GPU, sentence=sentence, fix=fix)


def _digits(device: Device, seen: cuda.Seen) -> str:
    return cuda.plain(device.uuid if seen.exact or not device.parent else device.parent)


def _comparable(devices: Sequence[Device], seen: cuda.Seen) -> bool:
    # Slices of drivers before 470 are called MIG-GPU-UUID/1/0.
    return all(_digits(device, seen) for device in devices)


@attrs.frozen(kw_only=True)
class _Told:
    """What NVML says: free and used bytes by UUID; `silent` is why it says nothing."""

    driver: str = ""
    cuda: Version | None = None
    free: Mapping[str, int] = attrs.field(factory=dict)
    used: Mapping[str, int] = attrs.field(factory=dict)
    silent: str = ""


def _told(devices: Sequence[Device]) -> _Told:
    try:
        import pynvml as nvml
    except ImportError:
        return _Told(silent="nvidia-ml-py is not installed")
    try:
        nvml.nvmlInit()
    except nvml.NVMLError as error:
        return _Told(silent=f"NVML: {error}")
    try:
        driver = str(nvml.nvmlSystemGetDriverVersion())
        wanted = {device.uuid for device in devices}
        memory = {
            uuid: nvml.nvmlDeviceGetMemoryInfo(handle)
            for handle in _handles(nvml)
            if (uuid := nvml.nvmlDeviceGetUUID(handle)) in wanted
        }
    except nvml.NVMLError as error:
        return _Told(silent=f"NVML: {error}")
    finally:
        nvml.nvmlShutdown()
    return _Told(
        driver=driver,
        cuda=cuda_of_driver(driver),
        free={uuid: int(one.free) for uuid, one in memory.items()},
        used={uuid: int(one.used) for uuid, one in memory.items()},
    )


def _handles(nvml: Any) -> Iterator[Any]:
    """Every GPU and every slice; what an old driver does not know of slices, it does not have."""
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


def _free(ask: Ask, told: _Told) -> tuple[_Told, Problem | None]:
    """Wait until every device has the memory that was leased; a problem where one still has not."""
    until = time.monotonic() + ask.patience
    while (short := _short(ask, told)) is not None and time.monotonic() < until:
        time.sleep(PAUSE)
        told = _told(ask.devices)
    if short is None:
        return told, None
    users = [process.pid for process in probe.processes([short]) if process.pid != os.getpid()]
    named = f" by process {', '.join(map(str, sorted(set(users))))}" if users else ""
    used, free = memory_text(told.used[short.uuid]), memory_text(told.free[short.uuid])
    wanted = f"; the step leased {memory_text(ask.memory)}, and {free} is free" if ask.memory else ""
    return told, Problem(
        cause=status.GPU_BUSY,
        sentence=f"GPU {short.index} ({short.model}): {used} of its memory is in use{named}{wanted}",
        fix="end what uses it (`nvidia-smi` shows it), or try again later; processes that Stoker did not start are not "
        "in its ledger",
    )


def _short(ask: Ask, told: _Told) -> Device | None:
    for device in ask.devices:
        free, used = told.free.get(device.uuid), told.used.get(device.uuid)
        if free is None or used is None:
            continue
        if free < ask.memory or (not ask.memory and used > max(FOREIGN, FOREIGN_PART * (free + used))):
            return device
    return None


def _memory_text(devices: Sequence[Device], told: _Told) -> str:
    known = [told.free[device.uuid] for device in devices if device.uuid in told.free]
    if len(known) < len(devices):
        return f"unproved: {told.silent or 'the driver does not tell'}"
    return f"{memory_text(min(known))} free" + (" on the fullest" if len(known) > 1 else "")
