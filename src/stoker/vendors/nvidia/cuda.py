"""Asks CUDA's driver library which devices a process with a given environment sees, and whether CUDA starts.

Runs in a process of its own. A process that has initialised CUDA cannot fork processes that use it (as a launcher for
notebooks does), and a driver that hangs or crashes must not affect the step. It creates no context, which would use
memory of the device.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from typing import Final, Mapping

import attrs

from stoker.core import status
from stoker.vendors.builds import Problem, Version

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
