"""A vendor of accelerators: Acme's Anvil, of which a machine lists its own in a file.

A request names it as `accelerators="Anvil:2"`; `--simulate 2xAnvil` pretends two of them.
"""

from __future__ import annotations

from pathlib import Path
from typing import Mapping, Sequence

from stoker.core.accelerators import ChipModel
from stoker.core.devices import Device, Inventory
from stoker.vendors.base import GateRequest, GateResult, Simulation, Vendor

LIST = "etc/acme/anvils"
"""A UUID a line: what a driver's library tells of real chips."""
MEMORY = 32 * 2**30
VISIBLE = "ACME_VISIBLE_ANVILS"


def probe(environment: Mapping[str, str], root: Path) -> Inventory:
    """The anvils that the machine's list names."""
    try:
        uuids = (root / LIST).read_text(encoding="utf-8").split()
    except OSError:
        return Inventory()
    return Inventory(
        devices=tuple(
            Device(kind="acme", index=index, uuid=uuid, name="Acme Anvil", model="Anvil", memory=MEMORY)
            for index, uuid in enumerate(uuids)
        )
    )


def visibility(devices: Sequence[Device]) -> Mapping[str, str]:
    """The variable by which a process sees exactly these anvils; empty, it sees none."""
    return {VISIBLE: ",".join(device.uuid for device in devices)}


def prove(request: GateRequest) -> GateResult:
    """Whether the variable names the anvils that were leased."""
    named = request.environment.get(VISIBLE, "").split(",")
    lacking = [device.uuid for device in request.devices if device.uuid not in named]
    if lacking:
        return GateResult.absent("no-gpu", f"{VISIBLE} does not name {', '.join(lacking)}", f"do not set {VISIBLE}")
    return GateResult(facts={"devices": f"{len(request.devices)} in {VISIBLE}"})


VENDOR = Vendor(
    name="acme",
    title="Acme",
    noun="anvil",
    chips=(ChipModel(name="Anvil", vendor="acme", memory=(MEMORY,)),),
    probe=probe,
    visibility=visibility,
    prove=prove,
    simulation=Simulation(prefix="ANVIL"),
)
