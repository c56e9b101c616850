"""Stoker's own vendors by name, and the environment of a process that holds no device. Light: every worker starts here.

A vendor is loaded when a process holds devices of it, or looks for devices of all; see `vendors.registry`.
"""

from __future__ import annotations

from typing import Final, Mapping, NamedTuple

SIMULATE: Final = "STOKER_SIMULATE"
"""The variable that describes accelerators to be pretended (`devices.simulate`)."""


class Row(NamedTuple):
    """One vendor of Stoker's own."""

    target: str
    """Where its `Vendor` is: "module:attribute"."""
    hiding: tuple[str, ...] = ()
    """Variables that hide all of its devices from a process when they are empty; none where none is documented."""


ROWS: Final[Mapping[str, Row]] = {
    "nvidia": Row("stoker.vendors.nvidia.vendor:VENDOR", ("CUDA_VISIBLE_DEVICES",)),
    "amd": Row("stoker.vendors.amd:VENDOR", ("ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES")),
    "neuron": Row("stoker.vendors.neuron:VENDOR"),
    "tpu": Row("stoker.vendors.tpu:VENDOR"),
    "apple": Row("stoker.vendors.apple:VENDOR"),
    "gaudi": Row("stoker.vendors.gaudi:VENDOR"),
    "intel": Row("stoker.vendors.intel:VENDOR"),
}

NO_DEVICES: Final[Mapping[str, str]] = {variable: "" for row in ROWS.values() for variable in row.hiding}
"""The variables by which a process sees no device, as far as vendors document such values."""
