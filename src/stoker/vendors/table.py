"""The built-in vendors by name, and the environment of a process that holds no device. Every worker imports it.

A vendor is loaded when a process holds devices of it, or looks for devices of all; see `vendors.registry`.
"""

from __future__ import annotations

from typing import Final, Mapping, NamedTuple

SIMULATE: Final = "STOKER_SIMULATE"
"""The variable that describes simulated accelerators (`devices.probe`)."""


class BuiltinVendor(NamedTuple):
    """One built-in vendor."""

    target: str
    """Where its `Vendor` is: "module:attribute"."""
    hiding: tuple[str, ...] = ()
    """Variables that hide all of its devices from a process when they are empty; empty where none is documented."""


BUILTIN_VENDORS: Final[Mapping[str, BuiltinVendor]] = {
    "nvidia": BuiltinVendor("stoker.vendors.nvidia.vendor:VENDOR", ("CUDA_VISIBLE_DEVICES",)),
    "amd": BuiltinVendor("stoker.vendors.amd:VENDOR", ("ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES")),
    "neuron": BuiltinVendor("stoker.vendors.neuron:VENDOR"),
    "tpu": BuiltinVendor("stoker.vendors.tpu:VENDOR"),
    "apple": BuiltinVendor("stoker.vendors.apple:VENDOR"),
    "gaudi": BuiltinVendor("stoker.vendors.gaudi:VENDOR"),
    "intel": BuiltinVendor("stoker.vendors.intel:VENDOR"),
}

NO_DEVICES: Final[Mapping[str, str]] = {variable: "" for row in BUILTIN_VENDORS.values() for variable in row.hiding}
"""The variables by which a process sees no device, as far as vendors document such values."""
