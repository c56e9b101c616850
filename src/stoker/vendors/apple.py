"""Apple's GPU, which all processes share; its memory is the machine's.

One process cannot hold it alone. There is no meter: powermetrics needs root.
"""

from __future__ import annotations

import platform
import shutil
from pathlib import Path
from typing import Any, Final, Mapping, Sequence

from stoker.core import status
from stoker.core.devices import Device, Inventory
from stoker.vendors.base import GateRequest, GateResult, Vendor
from stoker.vendors.builds import Problem
from stoker.vendors.tools import ToolError, output


def probe(environment: Mapping[str, str], root: Path = Path("/"), *, system: str = "", machine: str = "") -> Inventory:
    """Apple's GPU, which all processes share; its memory is the machine's."""
    if ((system or platform.system()), (machine or platform.machine())) != ("Darwin", "arm64"):
        return Inventory()
    name, memory = "Apple GPU", 0
    try:
        # Not by PATH alone: Python may run with one that lacks /usr/sbin.
        command = shutil.which("sysctl", path=environment.get("PATH")) or "/usr/sbin/sysctl"
        lines = output([command, "-n", "machdep.cpu.brand_string", "hw.memsize"], environment).splitlines()
        name, memory = lines[0].strip(), int(lines[1])
    except (ToolError, IndexError, ValueError):
        pass  # the GPU exists nevertheless
    return Inventory(
        devices=(Device(kind="apple", index=0, uuid="mps-0", name=name, model=name, memory=memory, exclusive=False),)
    )


def prove(request: GateRequest) -> GateResult:
    """Whether this is a Mac with Apple's GPU."""
    system = (platform.system(), platform.machine())
    if system != ("Darwin", "arm64"):
        return GateResult.absent(
            status.NO_GPU, f"this is no Mac with Apple's GPU, but {' '.join(system)}", "run it on one"
        )
    return GateResult(facts={"devices": "Apple's GPU, which all processes share; unproved: that it answers"})


def torch_mps(torch: Any, devices: Sequence[Device]) -> tuple[str, Problem | None]:
    """Whether torch has its back end for Apple's GPU, and may use it."""
    if torch.backends.mps.is_available():
        return "torch.backends.mps is available", None
    fix = "install torch in its build for macOS on Apple silicon, on macOS 12.3 or later"
    return "", Problem(cause=status.NO_GPU_BUILD, sentence="torch finds no MPS device", fix=fix)


VENDOR: Final = Vendor(
    name="apple",
    title="Apple",
    exclusive=False,
    probe=probe,
    visibility=lambda devices: {},
    simulation=None,
    prove=prove,
    frameworks={"torch": torch_mps},
)
