"""Builds of frameworks, and the devices that they have to fit. Vendors compare the two. Pure."""

from __future__ import annotations

import re
from typing import Mapping, Sequence

import attrs

from stoker.core.devices import Device

Version = tuple[int, ...]


@attrs.frozen(kw_only=True)
class Build:
    """An installed framework, and for what it was built."""

    framework: str
    """The package: "torch"."""
    version: str
    cuda: Version | None = None
    """The CUDA that it was built for; one number where only the major version is known."""
    rocm: str = ""
    """The ROCm that it was built for."""
    tpu: bool = False
    """Whether it has libtpu."""
    cpu: bool = False
    """Whether it is known to be for the CPU only."""
    archs: tuple[str, ...] = ()
    """The chips that it has code for ("sm_90") or that the driver can compile code for ("compute_90"); empty where that
    is not known, or where the framework compiles for the chip that it finds."""
    how: str = ""
    """The evidence: the packages and files that say so."""
    lacks: str = ""
    """What it may lack, in words."""

    @property
    def target(self) -> str:
        """`"CUDA 12.1"`, `"ROCm 6.2"`, `"CUDA 12, TPU"`, `"the CPU"`; empty where that is not known."""
        parts = [
            f"CUDA {dotted(self.cuda)}" if self.cuda else "",
            f"ROCm {self.rocm}" if self.rocm else "",
            "TPU" if self.tpu else "",
            "the CPU" if self.cpu else "",
        ]
        return ", ".join(part for part in parts if part)

    @property
    def words(self) -> str:
        """`"torch 2.4.0 is built for CUDA 12.1"`."""
        name = f"{self.framework} {self.version}"
        return f"{name} is a CPU build" if self.cpu else f"{name} is built for {self.target}"

    @property
    def release(self) -> str:
        """The version without its local part."""
        return self.version.partition("+")[0]


@attrs.frozen(kw_only=True)
class Hardware:
    """What a build has to fit: the driver and chips of one vendor's devices."""

    kind: str = "nvidia"
    """The vendor's name in `vendors.registry`."""
    driver: str = ""
    """Its version; empty where that is not known."""
    cuda: Version | None = None
    """The newest CUDA that the driver runs, with forward-compatibility libraries if they are in use."""
    chips: Mapping[tuple[int, int], str] = attrs.field(factory=dict)
    """compute capability → the model that has it"""
    models: tuple[str, ...] = ()
    """The models, as a request names them, of every vendor."""
    machine: str = "x86_64"
    """The processor, as `platform.machine()` names it."""


def hardware_of(devices: Sequence[Device], *, driver: str, cuda: Version | None, machine: str) -> Hardware:
    """What a build has to fit on devices of one vendor."""
    return Hardware(
        kind=devices[0].kind,
        driver=driver,
        cuda=cuda,
        chips={device.capability: device.model for device in devices if device.capability is not None},
        machine=machine,
        models=tuple(dict.fromkeys(device.model for device in devices)),
    )


@attrs.frozen(kw_only=True)
class Problem:
    """Why a process or a build cannot use devices."""

    cause: str
    """One of `core.status`."""
    sentence: str
    """What is wrong."""
    fix: str = ""
    """What to do about it."""


def numbers(version: str) -> Version:
    """`"535.104.05"` as numbers; what follows a "+" or a letter is ignored. `(0,)` for what has none."""
    match = re.match(r"\d+(?:\.\d+)*", version)
    return tuple(int(part) for part in match[0].split(".")) if match else (0,)


def dotted(version: Version) -> str:
    """`(12, 1)` as `"12.1"`."""
    return ".".join(map(str, version))
