"""Accelerators that are not NVIDIA's: AMD through amdsmi, AWS Neuron, Google's TPUs, Apple's GPU.

Each function answers with what it found; a vendor's tool that is missing means none of its devices, and one that fails
is a finding.
"""

from __future__ import annotations

import contextlib
import importlib.util
import io
import json
import platform
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any, Callable, Final, Mapping, Sequence

import attrs

from stoker.core.accelerators import MODELS, model
from stoker.core.devices import Device, Inventory
from stoker.core.errors import SettingsError
from stoker.core.findings import Finding
from stoker.core.visibility import CORES
from stoker.devices.catalog import NEURON, TPU, TPU_VENDOR, model_of

TOOL_FAILED: Final = "STK127"
UNREADABLE: Final = "STK128"

TIMEOUT: Final = 20.0
"""Seconds for a vendor's command. neuron-ls takes 1 s on a machine with 16 chips; one that hangs does so for ever."""

# amdsmi has called its enumeration AmdSmiIoLinkType and AmdSmiLinkType; the number is the same.
_XGMI = 2


def amd(root: Path = Path("/")) -> Inventory:
    """AMD's GPUs, as amdsmi tells them, which comes with ROCm."""
    try:
        amdsmi = _amdsmi()
        if amdsmi is None:
            return _amd_unread(root)
        amdsmi.amdsmi_init()
    except Exception as error:  # amdsmi's own code: without its library it raises KeyError, with others what they like
        return _amd_unread(root, error)
    try:
        return Inventory(devices=_amd_devices(amdsmi))
    except Exception as error:  # as above
        return Inventory(findings=(_failed("amdsmi", _said(error), "see whether `amd-smi list` works"),))
    finally:
        with contextlib.suppress(Exception):
            amdsmi.amdsmi_shut_down()


def neuron(environment: Mapping[str, str], root: Path = Path("/")) -> Inventory:
    """AWS's Neuron devices, a chip each, as neuron-ls tells them."""
    command = shutil.which("neuron-ls", path=environment.get("PATH"))
    if command is None:
        if not (root / "dev/neuron0").exists():
            return Inventory()
        what, fix = (
            "there are Neuron devices, but no neuron-ls",
            "install aws-neuronx-tools, and see that it is on PATH",
        )
        return Inventory(findings=(_unread(what, "Stoker asks neuron-ls what they are", fix),))
    try:
        listed = json.loads(_output([command, "-j"], environment))
        return Inventory(devices=tuple(_neuron_device(entry, root) for entry in listed))
    except _ToolError as error:
        why = str(error)
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        why = f"what it prints is not what it should be: {_said(error)}"
    return Inventory(findings=(_failed("neuron-ls", why, "see what `neuron-ls` says, and update aws-neuronx-tools"),))


def tpu(environment: Mapping[str, str], root: Path = Path("/")) -> Inventory:
    """Google's TPU chips on this machine: a device file each, named by PCI, else by libtpu's environment."""
    kinds = _tpu_kinds(root)
    count = _device_files(root / "dev", r"accel\d+") or (_device_files(root / "dev/vfio", r"\d+") if kinds else 0)
    if not count:
        return Inventory()
    told = environment.get("TPU_ACCELERATOR_TYPE", "")
    name = kinds[0] if kinds else _tpu_model(told)
    findings: tuple[Finding, ...] = ()
    if name not in MODELS:
        what = f"there are {count} TPU chips, of a kind that Stoker does not know" + (f": '{told}'" if told else "")
        fix = (
            "set TPU_ACCELERATOR_TYPE, such as v5litepod-8; steps that ask for any accelerator can use them as they are"
        )
        findings = (_unread(what, "neither PCI nor TPU_ACCELERATOR_TYPE names it", fix),)
    memory = MODELS[name].memory[0] if name in MODELS else 0
    devices = tuple(
        Device(kind="tpu", index=index, uuid=f"tpu-{index}", name=told or name, model=name, memory=memory)
        for index in range(count)
    )
    joined = {device.uuid for device in devices}  # the chips of one machine are joined by their interconnect
    return Inventory(
        devices=tuple(attrs.evolve(one, links=tuple(sorted(joined - {one.uuid}))) for one in devices),
        findings=findings,
    )


def mps(environment: Mapping[str, str], system: str = "", machine: str = "") -> Inventory:
    """Apple's GPU, which all processes share; its memory is the machine's."""
    if ((system or platform.system()), (machine or platform.machine())) != ("Darwin", "arm64"):
        return Inventory()
    name, memory = "Apple GPU", 0
    try:
        # Not by PATH alone: Python may run with one that lacks /usr/sbin.
        command = shutil.which("sysctl", path=environment.get("PATH")) or "/usr/sbin/sysctl"
        lines = _output([command, "-n", "machdep.cpu.brand_string", "hw.memsize"], environment).splitlines()
        name, memory = lines[0].strip(), int(lines[1])
    except (_ToolError, IndexError, ValueError):
        pass  # the GPU is there all the same
    return Inventory(
        devices=(Device(kind="apple", index=0, uuid="mps-0", name=name, model=name, memory=memory, exclusive=False),)
    )


class _ToolError(Exception):
    """A vendor's command could not be asked."""


def _output(argv: Sequence[str], environment: Mapping[str, str]) -> str:
    try:
        finished = subprocess.run(
            list(argv),
            env=dict(environment),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=TIMEOUT,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise _ToolError(f"it did not answer within {TIMEOUT:.0f} s") from None
    except OSError as error:
        raise _ToolError(f"it cannot be run: {_said(error)}") from None
    if finished.returncode:
        said = (finished.stderr or finished.stdout).strip().splitlines()
        raise _ToolError(f"it ended with {finished.returncode}" + (f": {said[-1]}" if said else ""))
    return finished.stdout


def _amdsmi() -> Any:
    if importlib.util.find_spec("amdsmi") is None:
        return None
    # Where its library is missing, the import prints so on stdout.
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        import amdsmi

    return amdsmi


def _amd_unread(root: Path, error: Exception | None = None) -> Inventory:
    """No devices; a finding where the kernel has GPUs for computing (/dev/kfd) all the same."""
    if not (root / "dev/kfd").exists():
        return Inventory()
    if error is not None:
        fix = "see whether `amd-smi list` works, and that the user is in the groups render and video"
        return Inventory(findings=(_failed("amdsmi", _said(error), fix),))
    what, why = "there are AMD GPUs, but no amdsmi in this Python", "Stoker asks amdsmi what they are"
    fix = "install the package of your ROCm: pip install /opt/rocm/share/amd_smi"
    return Inventory(findings=(_unread(what, why, fix),))


def _amd_devices(amdsmi: Any) -> tuple[Device, ...]:
    handles = list(amdsmi.amdsmi_get_processor_handles())
    told = [_amd_asked(amdsmi.amdsmi_get_gpu_asic_info, handle) or {} for handle in handles]
    uuids = [_amd_uuid(amdsmi, handle, asic) for handle, asic in zip(handles, told)]
    if "" in uuids or len(set(uuids)) < len(uuids):
        # Partitions of one GPU share its serial number; ROCR_VISIBLE_DEVICES takes numbers as well.
        uuids = [str(index) for index in range(len(handles))]
    devices = []
    for index, (handle, asic, uuid) in enumerate(zip(handles, told, uuids)):
        name = str(asic.get("market_name") or "AMD GPU")
        memory = _amd_asked(amdsmi.amdsmi_get_gpu_memory_total, handle, amdsmi.AmdSmiMemoryType.VRAM)
        links = []
        for other, there in zip(uuids, handles):
            link = None if other == uuid else _amd_asked(amdsmi.amdsmi_topo_get_link_type, handle, there)
            if link is not None and int(link["type"]) == _XGMI:
                links.append(other)
        devices.append(
            Device(
                kind="amd",
                index=index,
                uuid=uuid,
                name=name,
                model=model_of(name),
                memory=int(memory or 0),
                links=tuple(links),
            )
        )
    return tuple(devices)


def _amd_uuid(amdsmi: Any, handle: Any, asic: Mapping[str, Any]) -> str:
    """As ROCR_VISIBLE_DEVICES takes it: "GPU-" and the 16 digits of the chip's serial number."""
    enumerated = getattr(amdsmi, "amdsmi_get_gpu_enumeration_info", None)  # since ROCm 6.4
    told = str((_amd_asked(enumerated, handle) or {}).get("hip_uuid", "")) if enumerated is not None else ""
    if told.startswith("GPU-"):
        return told
    try:
        return f"GPU-{int(str(asic.get('asic_serial')), 16):016x}"
    except ValueError:
        return ""


def _amd_asked(call: Callable[..., Any], *arguments: Any) -> Any:
    try:
        return call(*arguments)
    except Exception:  # amdsmi's own code: what a chip does not tell is an error of its own for each version
        return None


def _neuron_device(entry: Mapping[str, Any], root: Path) -> Device:
    index, count = int(entry["neuron_device"]), int(entry["nc_count"])
    # Older tools do not number the cores, which are counted through from chip to chip.
    cores = [int(core) for core in entry.get("neuroncore_ids") or range(index * count, (index + 1) * count)]
    machine = str(entry.get("instance_type") or _text(root / "sys/devices/virtual/dmi/id/product_name"))
    name = machine or "AWS Neuron"
    kind = NEURON.get(machine.partition(".")[0], name)
    return Device(
        kind="neuron",
        index=index,
        uuid=f"{CORES}{cores[0]}-{cores[-1]}" if len(cores) > 1 else f"{CORES}{cores[0]}",
        name=name,
        model=kind,
        memory=int(entry.get("memory_size") or 0),
    )


def _tpu_kinds(root: Path) -> list[str]:
    """The kinds of Google's chips on the PCI bus, one for each chip."""
    found = []
    for device in sorted((root / "sys/bus/pci/devices").glob("*")):
        if _text(device / "vendor") == TPU_VENDOR and (kind := TPU.get(_text(device / "device"))) is not None:
            found.append(kind)
    return found


def _tpu_model(told: str) -> str:
    """The model of an accelerator type such as "v5litepod-8" or "tpu7x-16"; its own name where that is none."""
    name = told.rpartition("-")[0] or told
    try:
        return model(name).name
    except SettingsError:
        return name or "TPU"


def _device_files(folder: Path, pattern: str) -> int:
    try:
        return sum(1 for path in folder.iterdir() if re.fullmatch(pattern, path.name))
    except OSError:
        return 0


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return ""


def _said(error: Exception) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())}"


def _failed(tool: str, why: str, fix: str) -> Finding:
    what = f"{tool} fails, and what it would tell of is not found"
    return Finding(code=TOOL_FAILED, level="error", what=what, why=why, fix=fix)


def _unread(what: str, why: str, fix: str) -> Finding:
    return Finding(code=UNREADABLE, level="info", what=what, why=why, fix=fix)
