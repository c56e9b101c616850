"""The gate's check of NVIDIA's devices, through CUDA and NVML, and what NVML has counted of their errors
(https://docs.nvidia.com/deploy/a100-gpu-mem-error-mgmt/index.html says what the counters of memory mean).

CUDA's driver library is asked which devices a process with a given environment sees, and whether CUDA starts, in a
process of its own. A process that has initialised CUDA cannot fork processes that use it (as a launcher for
notebooks does), and a driver that hangs or crashes must not affect the step. It creates no context, which would use
memory of the device.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import subprocess
import sys
import time
from typing import Any, Final, Iterator, Mapping, Sequence

import attrs

from stoker.core import status
from stoker.core.devices import Device
from stoker.core.words import count_text, memory_text
from stoker.vendors.base import GateRequest, GateResult, HealthReport, in_container, names_in
from stoker.vendors.builds import Problem, Version, dotted
from stoker.vendors.nvidia import meter, probe
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
    visible = _visible(request)
    nvml = _query_nvml(request.devices) if visible.problem is None else _NvmlFacts()
    driver = nvml.driver or request.driver
    newest = visible.version or nvml.cuda or request.cuda
    facts = {"driver": _driver_text(driver, newest)} if driver else {}
    problem = visible.problem
    if problem is not None and problem.cause in (status.NO_DRIVER, status.NO_GPU):
        problem = _cut_otherwise(problem, request) or _without_gpus(request) or _hidden(problem, request)
    elif problem is not None and problem.cause == status.DRIVER_BROKEN:
        problem = _explained_by_nvml(problem, request)
    elif problem is None and (problem := _mismatch(request, visible)) is not None:
        problem = _cut_otherwise(problem, request) or problem
    if problem is None:
        facts["devices"] = f"{len(visible.uuids)} visible, as leased"
        if _are_slices(request.devices):
            facts["devices"] += ", each to a process of its own"
        if not _comparable(request.devices, visible):
            facts["devices"] += "; unproved: this driver does not tell a slice's UUID"
        nvml, problem = _free(request, nvml)
        facts["memory"] = _memory_text(request.devices, nvml)
    return GateResult(facts=facts, problem=problem, driver=driver, cuda=newest)


def _are_slices(devices: Sequence[Device]) -> bool:
    return len(devices) > 1 and all(device.parent for device in devices)


def _visible(request: GateRequest) -> VisibleDevices:
    """What the step's processes see. Several slices are asked for one by one, because CUDA shows a process one slice at
    most: https://docs.nvidia.com/datacenter/tesla/mig-user-guide/mig-device-names.html#cuda-device-enumeration
    """
    names = request.environment.get("CUDA_VISIBLE_DEVICES", "").split(",")
    if not _are_slices(request.devices) or len(names) < 2:
        return visible_devices(request.environment)
    each = [visible_devices({**request.environment, "CUDA_VISIBLE_DEVICES": name}) for name in names]
    broken = next((one for one in each if one.problem is not None), None)
    return broken or attrs.evolve(each[0], uuids=tuple(uuid for one in each for uuid in one.uuids))


def _cut_otherwise(problem: Problem, request: GateRequest) -> Problem | None:
    """The problem with what an administrator has changed of MIG since the devices were found, if that is its reason.
    Slices come and go while the driver runs, and their UUIDs with them:
    https://docs.nvidia.com/datacenter/tesla/mig-user-guide/deployment-considerations.html
    """
    now = probe.inventory(request.root)
    present = {device.uuid for device in now.devices}
    for device in request.devices:
        if device.uuid in present:
            continue
        gpu = device.parent or device.uuid
        slices = [one for one in now.devices if one.parent == gpu]
        empty = any(one.code == probe.NO_SLICES and one.where == f"GPU {device.index}" for one in now.findings)
        if slices:
            change = f"it is cut into {', '.join(one.slice or one.uuid for one in slices)} now"
        elif empty:
            change = "it is in MIG mode now, and has no slices"
        elif gpu in present:
            change = "it is not in MIG mode any more"
        else:
            continue
        what = f"slice {device.slice} of GPU {device.index}" if device.parent else f"GPU {device.index} as a whole"
        return Problem(
            cause=problem.cause,
            sentence=f"{what} ({device.model}, {device.uuid}) was leased, and {change}; {problem.sentence}",
            fix="start the run again: it finds the devices as they are now; change MIG while no run is active",
        )
    return None


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


def _mismatch(request: GateRequest, visible: VisibleDevices) -> Problem | None:
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


def _digits(device: Device, visible: VisibleDevices) -> str:
    return plain(device.uuid if visible.exact or not device.parent else device.parent)


def _comparable(devices: Sequence[Device], visible: VisibleDevices) -> bool:
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


LIBRARY: Final = "libcuda.so.1"
TIMEOUT: Final = 120.0
"""Seconds. Without the persistence daemon, the first process initialises the GPUs, seconds for each of 8 or 16:
https://docs.nvidia.com/deploy/driver-persistence/index.html."""

# cuDeviceGetUuid_v2 (since CUDA 11.4) returns a MIG slice's UUID, the first version its GPU's:
# https://docs.nvidia.com/cuda/cuda-driver-api/group__CUDA__DEVICE.html
_PROGRAM: Final = """
import ctypes, json, sys
answer = {"error": "", "init": -1, "version": 0, "devices": [], "sliced": False}
try:
    cuda = ctypes.CDLL(sys.argv[1])
except OSError as error:
    answer["error"] = str(error)
else:
    number = ctypes.c_int(0)
    if cuda.cuDriverGetVersion(ctypes.byref(number)) == 0:
        answer["version"] = number.value
    answer["init"] = cuda.cuInit(0)
    if answer["init"] == 0:
        count = ctypes.c_int(0)
        answer["init"] = cuda.cuDeviceGetCount(ctypes.byref(count))
        answer["sliced"] = hasattr(cuda, "cuDeviceGetUuid_v2")
        ask = cuda.cuDeviceGetUuid_v2 if answer["sliced"] else cuda.cuDeviceGetUuid
        for index in range(count.value):
            device, uuid = ctypes.c_int(0), (ctypes.c_ubyte * 16)()
            failed = cuda.cuDeviceGet(ctypes.byref(device), index) or ask(ctypes.byref(uuid), device)
            answer["init"] = answer["init"] or failed
            answer["devices"].append(bytes(uuid).hex())
print("\\nstoker:" + json.dumps(answer))
"""

_LOOK: Final = "see whether `nvidia-smi` works and what `sudo dmesg` says of NVRM; restart, or install the driver again"
_RESTART: Final = "restart the machine, and in a container start that again, so that it gets the host's new library"
_MPS: Final = "see whether nvidia-cuda-mps-control runs, or take CUDA_MPS_PIPE_DIRECTORY out of the environment"
_CLIENTS: Final = "wait until another client has ended"
_SEEN: Final = (
    "leave CUDA_VISIBLE_DEVICES and NVIDIA_VISIBLE_DEVICES as Stoker set them, and see what `nvidia-smi -L` lists here"
)
# Numbers of CUresult: https://docs.nvidia.com/cuda/cuda-driver-api/group__CUDA__TYPES.html
RESULTS: Final[Mapping[int, tuple[str, str, str]]] = {
    34: (
        status.NO_DRIVER,
        "the CUDA toolkit's stub was loaded for libcuda.so.1, and there is nothing behind it",
        "take the folder that ends in /stubs out of LD_LIBRARY_PATH",
    ),
    46: (
        status.GPU_BUSY,
        "the GPU is busy or unavailable: another process holds it in exclusive mode",
        "wait for the other process, or end it (`nvidia-smi` shows it)",
    ),
    100: (status.NO_GPU, "CUDA finds no GPU", _SEEN),
    101: (status.NO_GPU, "CUDA finds no GPU of this number", _SEEN),
    214: (
        status.GPU_HARDWARE,
        "the GPU met a memory error that its hardware could not correct",
        "run the step on another GPU; have this one reset, and replaced if it fails again",
    ),
    802: (
        status.DRIVER_BROKEN,
        "the driver is not up yet: on machines with NVSwitch it waits for the fabric manager",
        "start nvidia-fabricmanager, of the driver's version (`systemctl status nvidia-fabricmanager`)",
    ),
    803: (
        status.DRIVER_BROKEN,
        "the driver's library and its kernel module are of different versions",
        f"{_RESTART}; take /usr/local/cuda/compat out of LD_LIBRARY_PATH if it is there",
    ),
    804: (
        status.FORWARD_COMPAT,
        "CUDA's forward-compatibility libraries were loaded, and this GPU has no forward compatibility",
        "take /usr/local/cuda/compat out of LD_LIBRARY_PATH, or use an image whose CUDA the driver supports",
    ),
    805: (status.DRIVER_BROKEN, "CUDA's multi-process service (MPS) cannot be reached", _MPS),
    806: (status.DRIVER_BROKEN, "CUDA's multi-process service (MPS) does not answer", _MPS),
    807: (status.DRIVER_BROKEN, "CUDA's multi-process service (MPS) is not ready", _MPS),
    808: (status.GPU_BUSY, "CUDA's multi-process service (MPS) has as many clients as it takes", _CLIENTS),
    809: (status.GPU_BUSY, "CUDA's multi-process service (MPS) has as many connections as it takes", _CLIENTS),
    999: (
        status.DRIVER_BROKEN,
        "CUDA fails with an unknown error: the driver does not work",
        "`sudo modprobe nvidia-uvm`, then see what `sudo dmesg` says of NVRM; restart the machine",
    ),
}
"""CUDA's result → (cause, what, fix)"""


@attrs.frozen(kw_only=True)
class VisibleDevices:
    """The devices that a process sees through CUDA."""

    version: Version | None = None
    """The newest CUDA that the loaded library runs."""
    uuids: tuple[str, ...] = ()
    """The devices, as hexadecimal digits only (`plain`)."""
    exact: bool = True
    """Whether the UUIDs of slices are their own; False where they are their GPUs'."""
    problem: Problem | None = None
    """Why CUDA does not start; None where it does."""


def visible_devices(
    environment: Mapping[str, str], library: str = LIBRARY, patience: float = TIMEOUT
) -> VisibleDevices:
    """The devices that a process with this environment sees, or why it sees none. `patience` in seconds."""
    try:
        finished = subprocess.run(
            # Isolated and without site: 15 ms instead of 50, and no sitecustomize runs.
            [sys.executable or "python3", "-I", "-S", "-c", _PROGRAM, library],
            env=dict(environment),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=patience,
            check=False,
        )
    except subprocess.TimeoutExpired:
        sentence = f"CUDA did not start within {patience:.0f} s: the driver hangs"
        return VisibleDevices(problem=_broken(sentence))
    if finished.returncode:
        lines = finished.stderr.strip().splitlines()
        suffix = f": {lines[-1]}" if lines else ""
        how = f"signal {-finished.returncode}" if finished.returncode < 0 else f"exit code {finished.returncode}"
        return VisibleDevices(problem=_broken(f"a process that started CUDA ended with {how}{suffix}"))
    # Libraries may print other lines.
    answer = next(line for line in finished.stdout.splitlines() if line.startswith("stoker:"))
    return _read(json.loads(answer.removeprefix("stoker:")))


def plain(uuid: str) -> str:
    """A UUID as in `VisibleDevices.uuids`: without its kind ("GPU-", "MIG-") and dashes; empty for one of another
    shape.
    """
    digits = re.sub(r"^(GPU|MIG)-", "", uuid).replace("-", "").lower()
    return digits if re.fullmatch(r"[0-9a-f]{32}", digits) else ""


def _read(answer: Mapping[str, object]) -> VisibleDevices:
    version, init, uuids = answer["version"], answer["init"], answer["devices"]
    assert isinstance(version, int) and isinstance(init, int) and isinstance(uuids, list)  # the program above wrote it
    problem = None
    if answer["error"]:
        problem = _not_loaded(str(answer["error"]))
    elif init != 0:
        cause, sentence, fix = RESULTS.get(init, (status.DRIVER_BROKEN, "", _LOOK))
        sentence = sentence or "CUDA does not start"
        problem = Problem(cause=cause, sentence=f"{sentence} (CUDA error {init})", fix=fix)
    return VisibleDevices(
        version=(version // 1000, version % 1000 // 10) if version else None,
        uuids=tuple(map(str, uuids)) if problem is None else (),
        exact=bool(answer["sliced"]),
        problem=problem,
    )


def _not_loaded(error: str) -> Problem:
    if "No such file" in error or "cannot open shared object file" in error:
        return Problem(
            cause=status.NO_DRIVER,
            sentence=f"there is no NVIDIA driver: its library {LIBRARY} is not here",
            fix="install the driver, and see that the library is found (`ldconfig -p | grep libcuda`)",
        )
    return _broken(f"the NVIDIA driver's library {LIBRARY} cannot be loaded: {error}")


def _broken(sentence: str) -> Problem:
    return Problem(cause=status.DRIVER_BROKEN, sentence=sentence, fix=_LOOK)


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
        handles = dict(_device_handles(nvml))
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


def _device_handles(nvml: Any) -> Iterator[tuple[str, Any]]:
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
