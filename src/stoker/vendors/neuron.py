"""AWS Neuron: Trainium and Inferentia, found by neuron-ls and measured by neuron-monitor. Each device is a chip."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Any, Final, Mapping, Sequence

from stoker.core import status
from stoker.core.devices import Device, Inventory
from stoker.vendors.base import (
    ContainerNeeds,
    DeviceRow,
    GateRequest,
    GateResult,
    Limit,
    PlatformImage,
    Platforms,
    Simulation,
    Vendor,
    jax_platforms,
    names_in,
    numbers_in,
    text_of,
)
from stoker.vendors.tools import ToolError, output, tool_failure, unreadable, words_of

CORES: Final = "neuron-cores:"
"""The prefix of a device's UUID; its cores follow, as NEURON_RT_VISIBLE_CORES takes them."""

SIMULATED: Final = 2
"""Cores of a simulated chip: as many as a Trainium has."""

# What EC2 calls the machines, the first part of an instance's type: https://aws.amazon.com/ec2/instance-types.
MACHINES: Final[Mapping[str, str]] = {
    "inf1": "inferentia",
    "inf2": "inferentia2",
    "trn1": "trainium",
    "trn1n": "trainium",
    "trn2": "trainium2",
    "trn2u": "trainium2",
    "trn3": "trainium3",
    "trn3u": "trainium3",
}

_LONGEST = 1 << 22
"""The most bytes of one report of neuron-monitor."""

_NEURON_CONFIGURATION: Final[Mapping[str, Any]] = {
    "period": "1s",
    "neuron_runtimes": [
        {"tag_filter": ".*", "metrics": [{"type": "neuroncore_counters"}, {"type": "memory_used"}]},
    ],
    "system_metrics": [],
}


def probe(environment: Mapping[str, str], root: Path = Path("/")) -> Inventory:
    """AWS's Neuron devices, a chip each, as neuron-ls lists them."""
    command = shutil.which("neuron-ls", path=environment.get("PATH"))
    if command is None:
        if not (root / "dev/neuron0").exists():
            return Inventory()
        what, fix = (
            "there are Neuron devices, but no neuron-ls",
            "install aws-neuronx-tools, and see that it is on PATH",
        )
        return Inventory(findings=(unreadable(what, "Stoker asks neuron-ls what they are", fix),))
    try:
        entries = json.loads(output([command, "-j"], environment))
        return Inventory(devices=tuple(_device(entry, root) for entry in entries))
    except ToolError as error:
        why = str(error)
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        why = f"what it prints is not what it should be: {words_of(error)}"
    return Inventory(
        findings=(tool_failure("neuron-ls", why, "see what `neuron-ls` says, and update aws-neuronx-tools"),)
    )


def visibility(devices: Sequence[Device]) -> Mapping[str, str]:
    """The cores of real devices; Neuron documents no value for "none".

    https://awsdocs-neuron.readthedocs-hosted.com/en/latest/neuron-runtime/nrt-configurable-parameters.html
    """
    cores = ",".join(device.uuid.removeprefix(CORES) for device in devices if not device.simulated)
    return {"NEURON_RT_VISIBLE_CORES": cores} if cores else {}


def meter(devices: Sequence[Device]) -> NeuronMeter:
    """A meter of AWS's Neuron devices; `OSError` where neuron-monitor cannot be started."""
    command = shutil.which("neuron-monitor")
    if command is None:
        raise OSError("neuron-monitor is not on PATH (it comes with aws-neuronx-tools)")
    with tempfile.NamedTemporaryFile("w", suffix=".json", delete=False) as file:
        json.dump(_NEURON_CONFIGURATION, file)
    process = subprocess.Popen(
        [command, "-c", file.name], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    )
    return NeuronMeter(process, file.name, devices)


class NeuronMeter:
    """Reads neuron-monitor, which prints a line of JSON per second and ends when nothing reads its output.

    https://awsdocs-neuron.readthedocs-hosted.com/en/latest/tools/neuron-sys-tools/neuron-monitor-user-guide.html. Power
    and temperature are not among its metrics.
    """

    def __init__(self, process: subprocess.Popen[bytes], file: str, devices: Sequence[Device]) -> None:
        self._process = process
        self._file = file
        self._held = {device.uuid: _cores(device.uuid) for device in devices}
        self._rest = b""
        assert process.stdout is not None
        self._stream = process.stdout.fileno()
        os.set_blocking(self._stream, False)

    def sample(
        self, now: float, tree: frozenset[int], last: bool = False
    ) -> tuple[dict[str, DeviceRow], list[DeviceRow]]:
        """A row for each device if there is a report since the last sample."""
        lines = self._lines()
        rows: dict[str, DeviceRow] = {}
        for line in lines[-1:]:
            with contextlib.suppress(ValueError, TypeError, KeyError, AttributeError):
                rows = {uuid: _row(json.loads(line), cores, tree) for uuid, cores in self._held.items()}
        if last:
            self.close()
        elif self._held and self._process.poll() is not None:
            why = f"neuron-monitor ended with {self._process.returncode}"
            events = [{"failed": uuid, "why": why} for uuid in self._held]
            self.close()
            return rows, events
        return rows, []

    def close(self) -> None:
        """End the monitor; waits for 0.2 s at most."""
        self._held = {}
        with contextlib.suppress(OSError):
            os.unlink(self._file)
        if self._process.poll() is None:
            self._process.kill()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(0.2)

    def _lines(self) -> list[bytes]:
        while True:
            try:
                chunk = os.read(self._stream, 1 << 16)
            except BlockingIOError:
                break
            if not chunk:
                break
            self._rest = (self._rest + chunk)[-_LONGEST:]
        *lines, self._rest = self._rest.split(b"\n")
        return [line for line in lines if line.strip()]


def prove(request: GateRequest) -> GateResult:
    """Whether each device has a device file and the runtime sees its cores."""
    missing = [
        f"/dev/neuron{one.index}" for one in request.devices if not (request.root / f"dev/neuron{one.index}").exists()
    ]
    if missing:
        none = not names_in(request.root / "dev", r"neuron\d+")
        cause = status.NO_DRIVER if none else status.NO_GPU
        fix = "install aws-neuronx-dkms; start a container with --device for each, a pod with aws.amazon.com/neuron"
        return GateResult.absent(cause, f"there is no {', '.join(missing)}", fix)
    leased_cores = ",".join(one.uuid.removeprefix(CORES) for one in request.devices)
    value = request.environment.get("NEURON_RT_VISIBLE_CORES", "")
    if value != leased_cores:
        sentence = f"cores {leased_cores} were leased, and NEURON_RT_VISIBLE_CORES is {value!r}"
        return GateResult.absent(status.NO_GPU, sentence, "leave NEURON_RT_VISIBLE_CORES as Stoker sets it")
    return GateResult(facts={"devices": f"{len(request.devices)} device files, as leased; unproved: that they answer"})


def container(devices: Sequence[Device], root: Path = Path("/")) -> ContainerNeeds:
    """A device file for each.

    https://awsdocs-neuron.readthedocs-hosted.com/en/latest/containers/tutorials/tutorial-docker-env-setup.html
    """
    return ContainerNeeds(files=tuple(f"/dev/neuron{device.index}" for device in devices))


def _select_devices(devices: Sequence[Device], value: str) -> list[Device]:
    """The Neuron devices all of whose cores are in a list such as "0-3,8"."""
    allowed = numbers_in(value)
    return [one for one in devices if _cores_of(one) <= allowed]


def _cores_of(device: Device) -> set[int]:
    if device.simulated:
        return set(range(SIMULATED * device.index, SIMULATED * (device.index + 1)))
    return numbers_in(device.uuid.removeprefix(CORES))


def _device(entry: Mapping[str, Any], root: Path) -> Device:
    index, count = int(entry["neuron_device"]), int(entry["nc_count"])
    # Older tools do not number the cores; the numbers continue from chip to chip.
    cores = [int(core) for core in entry.get("neuroncore_ids") or range(index * count, (index + 1) * count)]
    machine = str(entry.get("instance_type") or text_of(root / "sys/devices/virtual/dmi/id/product_name"))
    name = machine or "AWS Neuron"
    kind = MACHINES.get(machine.partition(".")[0], name)
    return Device(
        kind="neuron",
        index=index,
        uuid=f"{CORES}{cores[0]}-{cores[-1]}" if len(cores) > 1 else f"{CORES}{cores[0]}",
        name=name,
        model=kind,
        memory=int(entry.get("memory_size") or 0),
    )


def _row(report: Mapping[str, Any], cores: range, tree: frozenset[int]) -> DeviceRow:
    """One device's row from a report. Its utilisation is the mean of its cores', summed over all processes.

    Memory is left out where it is not told of each process that has some.
    """
    busy = dict.fromkeys(cores, 0.0)
    memory: DeviceRow = {"n": 0, "o": 0, "m": 0}
    for runtime in report["neuron_runtime_data"]:
        measures = runtime["report"]
        counters, used = measures["neuroncore_counters"], measures["memory_used"]
        for part in (runtime, counters, used):
            if part.get("error"):
                raise ValueError(part["error"])
        for name, core in counters["neuroncores_in_use"].items():
            if int(name) in busy:
                busy[int(name)] += float(core["neuroncore_utilization"])
        by_core = used["neuron_runtime_used_bytes"]["usage_breakdown"].get("neuroncore_memory_usage")
        if by_core is None:
            memory = {}
        breakdowns = [parts for name, parts in (by_core or {}).items() if int(name) in busy]
        size = sum(int(part) for parts in breakdowns for part in parts.values())
        if memory:
            memory["m"] += size
        if memory and int(runtime["pid"]) in tree and breakdowns:
            memory["n"] += 1
            memory["o"] += size
    return {**memory, "u": round(min(100.0, sum(busy.values()) / len(busy)), 1)}


def _cores(uuid: str) -> range:
    first, _, last = uuid.removeprefix(CORES).partition("-")
    return range(int(first), int(last or first) + 1)


_IMAGES: Final[Mapping[str, str]] = {
    # https://github.com/aws/deep-learning-containers/blob/master/available_images.md
    "neuron2.30": (
        "public.ecr.aws/deep-learning-containers/pytorch-training-neuronx:2.9.0-neuronx-py312-sdk2.30.0-ubuntu24.04"
    ),
}

VENDOR: Final = Vendor(
    name="neuron",
    title="AWS Neuron",
    noun="Neuron",
    example="trainium",
    probe=probe,
    visibility=visibility,
    limits=(Limit(variable="NEURON_RT_VISIBLE_CORES", select=_select_devices),),
    simulation=Simulation(prefix="neuron"),
    prove=prove,
    frameworks={"jax": jax_platforms("neuron")},
    meter=meter,
    runtime="neuron",
    container=container,
    platforms=Platforms(
        names=tuple(_IMAGES),
        find=lambda written: PlatformImage(image=_IMAGES[written]) if written in _IMAGES else None,
    ),
)
