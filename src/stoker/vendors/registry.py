"""All vendors by name: built-in ones from `vendors.table`, those of other distributions by entry point."""

from __future__ import annotations

from typing import Final, Iterable, Iterator, Mapping, Sequence

from stoker.core.accelerators import GROUP
from stoker.core.devices import Device
from stoker.core.plugins import Registry
from stoker.vendors.base import Vendor
from stoker.vendors.builds import Build, Hardware, Problem
from stoker.vendors.table import BUILTIN_VENDORS, NO_DEVICES

VENDORS: Final[Registry[Vendor]] = Registry(
    group=GROUP, noun="vendor", kind=Vendor, builtin={name: (row.target, "") for name, row in BUILTIN_VENDORS.items()}
)
USUAL: Final = "nvidia"
"""The vendor that is assumed for a request for GPUs that names none."""


def by_vendor(devices: Iterable[Device]) -> Mapping[Vendor, Sequence[Device]]:
    """The devices of each vendor, in the order in which the vendors first occur."""
    groups: dict[str, list[Device]] = {}
    for device in devices:
        groups.setdefault(device.kind, []).append(device)
    return {VENDORS.load(name): group for name, group in groups.items()}


def environment_of(devices: Iterable[Device]) -> Mapping[str, str]:
    """The variables by which a process sees exactly these devices, and none of any vendor's for none."""
    groups: dict[str, list[Device]] = {}
    for device in devices:
        groups.setdefault(device.kind, []).append(device)
    if not groups:
        return NO_DEVICES
    variables: dict[str, str] = {}
    for name, vendor in VENDORS.parts():
        variables.update(vendor.visibility(groups.get(name, ())))
    return variables


def unfit(build: Build, hardware: Hardware) -> Problem | None:
    """Why a build cannot use the devices; None where it can, or where that is not known."""
    return VENDORS.load(hardware.kind).unfit(build, hardware)


def notes(build: Build, hardware: Hardware) -> Iterator[str]:
    """What a person should know of a build that fits."""
    yield from VENDORS.load(hardware.kind).notes(build, hardware)
    if build.lacks:
        yield build.lacks


def visibility_variables() -> frozenset[str]:
    """The variables of all vendors that say which devices a process may use."""
    return frozenset(limit.variable for _, vendor in VENDORS.parts() for limit in vendor.limits)
