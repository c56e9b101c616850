"""Intel's Gaudi: named by requests and by other platforms' words for resources.

Stoker has no probe for it, so that none is found here, and none can be pretended.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final, Mapping

from stoker.core.devices import Inventory
from stoker.vendors.base import Vendor


def probe(environment: Mapping[str, str], root: Path) -> Inventory:
    """Nothing: no library or command is asked (docs/guide/accelerators.md)."""
    return Inventory()


VENDOR: Final = Vendor(
    name="gaudi",
    title="Intel Gaudi",
    example="Gaudi2",
    probe=probe,
    visibility=lambda devices: {},
    simulation=None,
)
