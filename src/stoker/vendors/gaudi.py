"""Intel's Gaudi: a vendor that requests and other platforms' resources may name.

Stoker has no probe for it and cannot simulate it.
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
