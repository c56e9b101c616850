"""All vendors by name: Stoker's own from `vendors.table`, those of other distributions by entry point."""

from __future__ import annotations

from typing import Final, Iterable, Iterator, Mapping, Sequence

from stoker.core.accelerators import GROUP
from stoker.core.devices import Device
from stoker.core.plugins import Registry
from stoker.vendors.base import Vendor
from stoker.vendors.builds import Build, Held, Problem
from stoker.vendors.table import NO_DEVICES, ROWS

VENDORS: Final[Registry[Vendor]] = Registry(
    group=GROUP, noun="vendor", kind=Vendor, builtin={name: (row.target, "") for name, row in ROWS.items()}
)
USUAL: Final = "nvidia"
"""Whose device a step most likely gets that asks for a GPU and names no vendor."""


def by_vendor(devices: Iterable[Device]) -> Mapping[Vendor, Sequence[Device]]:
    """The devices of each vendor, in the order in which the vendors first occur."""
    groups: dict[str, list[Device]] = {}
    for device in devices:
        groups.setdefault(device.kind, []).append(device)
    return {VENDORS.load(name): group for name, group in groups.items()}


def environment_of(devices: Iterable[Device]) -> Mapping[str, str]:
    """The variables by which a process sees exactly these devices, and none of any vendor's for none."""
    held: dict[str, list[Device]] = {}
    for device in devices:
        held.setdefault(device.kind, []).append(device)
    if not held:
        return NO_DEVICES
    variables: dict[str, str] = {}
    for name, vendor in VENDORS.parts():
        variables.update(vendor.visibility(held.get(name, ())))
    return variables


def unfit(build: Build, held: Held) -> Problem | None:
    """Why a build cannot use the devices; None where it can, or where what is known does not tell."""
    return VENDORS.load(held.kind).unfit(build, held)


def notes(build: Build, held: Held) -> Iterator[str]:
    """What a person should know of a build that fits."""
    yield from VENDORS.load(held.kind).notes(build, held)
    if build.lacks:
        yield build.lacks


def visibility_variables() -> frozenset[str]:
    """The variables of all vendors that say which devices a process may use."""
    return frozenset(limit.variable for _, vendor in VENDORS.parts() for limit in vendor.limits)
