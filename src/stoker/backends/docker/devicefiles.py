"""Which device files a container is given for the devices of a lease, as their vendors say."""

from __future__ import annotations

from pathlib import Path
from typing import Iterable

from stoker.core.devices import Device
from stoker.core.errors import BackendError
from stoker.vendors.base import ContainerNeeds
from stoker.vendors.registry import by_vendor


def files(devices: Iterable[Device], root: Path = Path("/")) -> ContainerNeeds:
    """The files of some devices, and the groups that own them; simulated devices have none.

    Those that a vendor's container toolkit hands in are the engine's affair.
    """
    vendors = by_vendor(device for device in devices if not device.simulated)
    strange = sorted(vendor.name for vendor in vendors if vendor.container is None and not vendor.toolkit)
    if strange:
        raise BackendError(
            f"devices of kind {', '.join(strange)} cannot be handed into a container",
            fix="run the step on a stack whose orchestrator is local",
        )
    needs = [vendor.container(held, root) for vendor, held in vendors.items() if vendor.container is not None]
    return ContainerNeeds(
        files=tuple(path for one in needs for path in one.files),
        groups=tuple(dict.fromkeys(group for one in needs for group in one.groups)),
    )
