"""What NVML has counted of the errors of NVIDIA's GPUs.

https://docs.nvidia.com/deploy/a100-gpu-mem-error-mgmt/index.html says what the counters of memory mean.
"""

from __future__ import annotations

import contextlib
from typing import Any, Final, Iterator, Sequence

from stoker.core.devices import Device
from stoker.vendors.base import HealthReport
from stoker.vendors.nvidia import meter, probe

_UNCORRECTED: Final = 1
_VOLATILE: Final = 0
# nvmlMemoryErrorType_t and nvmlEccCounterType_t: since the driver was loaded.
# https://docs.nvidia.com/deploy/nvml-api/group__nvmlDeviceEnumvs.html
_RESET: Final = "reset it (`nvidia-smi --gpu-reset`) or restart the machine"


def health(devices: Sequence[Device]) -> HealthReport:
    """The faults that the driver has counted, by UUID, and what it says of the GPUs' speed."""
    nvml = probe.library()
    if nvml is None:
        return HealthReport(facts=("nothing counted: nvidia-ml-py is not installed",))
    try:
        nvml.nvmlInit()
    except nvml.NVMLError as error:
        return HealthReport(facts=(f"nothing counted: {error}",))
    faults: dict[str, str] = {}
    facts: list[str] = []
    silent: list[str] = []
    try:
        handles = dict(_handles(nvml))
        for device in devices:
            handle = handles.get(device.parent or device.uuid)
            fault, fact = _counted(nvml, handle) if handle is not None else ("the driver no longer answers for it", "")
            if fault:
                faults[device.uuid] = fault
            elif fault is None:
                silent.append(f"{device.model} {device.index}")
            facts += [f"{device.model} {device.index} {fact}"] if fact else []
    finally:
        nvml.nvmlShutdown()
    counted = f"unknown: errors of memory of {', '.join(silent)}" if silent else "no errors counted"
    return HealthReport(faults=faults, facts=(counted, *facts))


def _handles(nvml: Any) -> Iterator[tuple[str, Any]]:
    """The GPUs that answer, by UUID."""
    for index in range(nvml.nvmlDeviceGetCount()):
        with contextlib.suppress(nvml.NVMLError):  # a GPU that is lost
            handle = nvml.nvmlDeviceGetHandleByIndex(index)
            yield nvml.nvmlDeviceGetUUID(handle), handle


def _counted(nvml: Any, handle: Any) -> tuple[str | None, str]:
    """The fault of one GPU, and a fact; empty for a healthy one, None for the fault where nothing is counted."""
    remapped = _answer(nvml, "nvmlDeviceGetRemappedRows", handle)
    pending = _answer(nvml, "nvmlDeviceGetRetiredPagesPendingStatus", handle)
    errors = _answer(nvml, "nvmlDeviceGetTotalEccErrors", handle, _UNCORRECTED, _VOLATILE)
    if remapped is not None and remapped[3]:
        return "a bad row of its memory could not be replaced: the GPU has to be exchanged", ""
    if remapped is not None and remapped[2]:
        return f"a bad row of its memory is to be replaced at the next reset: {_RESET}", ""
    if pending:
        return f"bad pages of its memory are to be retired at the next reset: {_RESET}", ""
    if errors:
        return f"{errors} uncorrectable ECC errors since the driver was loaded: {_RESET}", ""
    bits = _answer(nvml, "nvmlDeviceGetCurrentClocksThrottleReasons", handle) or 0
    reasons = sorted({name for bit, name in meter.REASONS.items() if bits & bit})
    is_told = any(one is not None for one in (remapped, pending, errors))
    return "" if is_told else None, f"is throttled: {', '.join(reasons)}" if reasons else ""


def _answer(nvml: Any, name: str, *arguments: Any) -> Any:
    """The answer to a query; None where this GPU, driver or nvidia-ml-py does not have it."""
    call = getattr(nvml, name, None)
    try:
        return None if call is None else call(*arguments)
    except nvml.NVMLError:
        return None
