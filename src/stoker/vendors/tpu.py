"""Google's TPUs: a device file each, named by PCI or by libtpu's environment.

There is no meter: libtpu answers only inside of the process that uses a TPU.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final, Mapping, Sequence

import attrs

from stoker.core import status
from stoker.core.accelerators import MODELS, model
from stoker.core.devices import Device, Inventory
from stoker.core.errors import SettingsError
from stoker.core.findings import Finding
from stoker.core.words import count_text
from stoker.vendors.base import (
    GateRequest,
    GateResult,
    Limit,
    Simulation,
    Vendor,
    jax_platforms,
    named_devices,
    names_in,
    text_of,
)
from stoker.vendors.builds import Build, Hardware, Problem
from stoker.vendors.tools import unreadable

# PCI devices of Google's vendor id 0x1ae0, as tpu-info knows them: https://github.com/google/cloud-accelerator-diagnostics.
PCI_VENDOR: Final = "0x1ae0"
PCI_DEVICES: Final[Mapping[str, str]] = {
    "0x005e": "tpu-v4",
    "0x0062": "tpu-v5p",
    "0x0063": "tpu-v5e",
    "0x006f": "tpu-v6e",
    "0x0076": "tpu-v7x",
}


def probe(environment: Mapping[str, str], root: Path = Path("/")) -> Inventory:
    """Google's TPU chips on this machine: a device file each, named by PCI, else by libtpu's environment."""
    kinds = _kinds(root)
    count = len(names_in(root / "dev", r"accel\d+")) or (len(names_in(root / "dev/vfio", r"\d+")) if kinds else 0)
    if not count:
        return Inventory()
    declared = environment.get("TPU_ACCELERATOR_TYPE", "")
    name = kinds[0] if kinds else _model_of(declared)
    findings: tuple[Finding, ...] = ()
    if name not in MODELS:
        what = f"there are {count} TPU chips, of a kind that Stoker does not know" + (
            f": '{declared}'" if declared else ""
        )
        fix = (
            "set TPU_ACCELERATOR_TYPE, such as v5litepod-8; steps that ask for any accelerator can use them as they are"
        )
        findings = (unreadable(what, "neither PCI nor TPU_ACCELERATOR_TYPE names it", fix),)
    memory = MODELS[name].memory[0] if name in MODELS else 0
    devices = tuple(
        Device(kind="tpu", index=index, uuid=f"tpu-{index}", name=declared or name, model=name, memory=memory)
        for index in range(count)
    )
    uuids = {device.uuid for device in devices}  # the chips of one machine are joined by their interconnect
    return Inventory(
        devices=tuple(attrs.evolve(one, links=tuple(sorted(uuids - {one.uuid}))) for one in devices),
        findings=findings,
    )


# Chips of a process → their shape as libtpu has it; https://github.com/pytorch/xla, `torch_xla/_internal/tpu.py`.
BOUNDS: Final[Mapping[int, str]] = {1: "1,1,1", 2: "1,2,1", 4: "2,2,1"}


def visibility(devices: Sequence[Device]) -> Mapping[str, str]:
    """The numbers of real chips; libtpu documents no value for "none".

    To libtpu a process with a part of its machine's chips is a slice of its own; without bounds it waits for the rest.
    With all of them it may be one host of a larger slice, and nothing more is said.
    """
    real = [device for device in devices if not device.simulated]
    if not real:
        return {}
    variables = {"TPU_VISIBLE_CHIPS": ",".join(str(device.index) for device in real)}
    bounds = BOUNDS.get(len(real))
    if bounds and len(real) <= len(real[0].links):
        variables.update(TPU_CHIPS_PER_PROCESS_BOUNDS=bounds, TPU_PROCESS_BOUNDS="1,1,1")
    return variables


def prove(request: GateRequest) -> GateResult:
    """Whether there are as many device files as chips."""
    files = [*names_in(request.root / "dev", r"accel\d+")] or [*names_in(request.root / "dev/vfio", r"\d+")]
    if len(files) < len(request.devices):
        cause = status.NO_GPU if files else status.NO_DRIVER
        sentence = f"{len(files)} of {len(request.devices)} leased TPU chips have a device file"
        fix = "run on a TPU VM; start a container with --privileged, a pod with google.com/tpu in its limits"
        return GateResult.absent(cause, sentence, fix)
    return GateResult(
        facts={"devices": f"{count_text(len(request.devices), 'chip')} leased; unproved: that they answer"}
    )


def unfit(build: Build, hardware: Hardware) -> Problem | None:
    """Why a build cannot use the devices: JAX without libtpu."""
    if build.framework != "jax" or build.tpu or not (build.cpu or build.cuda):
        return None
    fix = f'pip install "jax[tpu]=={build.release}"'
    return Problem(cause=status.NO_GPU_BUILD, sentence=f"{build.words}, and the step holds TPUs", fix=fix)


VENDOR: Final = Vendor(
    name="tpu",
    title="Google TPU",
    noun="TPU",
    example="tpu-v5e",
    probe=probe,
    visibility=visibility,
    limits=(Limit(variable="TPU_VISIBLE_CHIPS", select=named_devices),),
    simulation=Simulation(prefix="tpu"),
    prove=prove,
    frameworks={"jax": jax_platforms("tpu")},
    unfit=unfit,
)


def _kinds(root: Path) -> list[str]:
    """The model of each of Google's chips on the PCI bus."""
    chips = sorted((root / "sys/bus/pci/devices").glob("*"))
    names = (PCI_DEVICES.get(text_of(chip / "device")) for chip in chips if text_of(chip / "vendor") == PCI_VENDOR)
    return [name for name in names if name is not None]


def _model_of(accelerator_type: str) -> str:
    """The model of an accelerator type such as "v5litepod-8" or "tpu7x-16"; the type itself where no model has that
    name.
    """
    name = accelerator_type.rpartition("-")[0] or accelerator_type
    try:
        return model(name).name
    except SettingsError:
        return name or "TPU"
