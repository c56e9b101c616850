"""Names of accelerators, and the text by which a request names one: "H100:8", "A100-80GB/1g.10gb:2", "tpu-v5e:8".

Holds only what parsing and checking a request needs; what a driver, a wheel or a cloud knows of a chip is not here.
"""

from __future__ import annotations

import functools
import re
from typing import Any, ClassVar, Final, Iterable, Mapping, NamedTuple, Protocol

import attrs

from stoker.core.errors import SettingsError, nearest
from stoker.core.plugins import Registry
from stoker.core.units import count as whole_number
from stoker.core.units import size_text

ALIASES: Final[Mapping[str, str]] = {"mps": "apple", "aws": "neuron", "google": "tpu", "habana": "gaudi"}
"""Other names of vendors, also those in documents of earlier versions → the name."""
_MAKERS: Final[Mapping[str, str]] = {"gaudi": "intel"}
"""Vendors that are one line of products of another → that one."""
GROUP: Final = "stoker.vendors"
"""The group of entry points by which other distributions bring vendors with their chips."""
GB: Final = 10**9

# MIG profiles: https://docs.nvidia.com/datacenter/tesla/mig-user-guide/supported-mig-profiles.html. Drivers name the
# slices of one chip differently where its usable memory differs (B200, GB200): both spellings are kept.
_A100_40 = "1g.5gb 1g.10gb 2g.10gb 3g.20gb 4g.20gb 7g.40gb"
_80 = "1g.10gb 1g.20gb 2g.20gb 3g.40gb 4g.40gb 7g.80gb"
_94 = "1g.12gb 1g.24gb 2g.24gb 3g.47gb 4g.47gb 7g.94gb"
_96 = "1g.12gb 1g.24gb 2g.24gb 3g.48gb 4g.48gb 7g.96gb"
_141 = "1g.18gb 1g.35gb 2g.35gb 3g.71gb 4g.71gb 7g.141gb"
_144 = "1g.18gb 1g.36gb 2g.36gb 3g.72gb 4g.72gb 7g.144gb"
_180 = "1g.23gb 1g.45gb 2g.45gb 3g.90gb 4g.90gb 7g.180gb"
_186 = "1g.23gb 1g.47gb 2g.47gb 3g.93gb 4g.93gb 7g.186gb"
_269 = "1g.34gb 1g.67gb 2g.67gb 3g.135gb 4g.135gb 7g.269gb"


class _Line(NamedTuple):
    """What one vendor makes."""

    title: str
    """The vendor, for a person."""
    chips: Mapping[str, tuple[tuple[int, ...], str, str]]
    """name → sizes of memory in GB as sold (smallest first), other spellings, MIG profiles"""


# NVIDIA and AMD names and sizes: vendors' data sheets, checked against gpuhunt's KNOWN_ACCELERATORS and SkyPilot's
# catalog; other spellings are what NVML, GKE (cloud.google.com/gke-accelerator) and Karpenter call the same chip. TPU
# and Neuron: memory per chip, https://cloud.google.com/tpu/docs/system-architecture-tpu-vm and
# https://awsdocs-neuron.readthedocs-hosted.com.
_LINES: Final[Mapping[str, _Line]] = {
    "nvidia": _Line(
        "NVIDIA",
        {
            "K80": ((12,), "", ""),
            "M60": ((8,), "", ""),
            "P4": ((8,), "", ""),
            "P40": ((24,), "", ""),
            "P100": ((16,), "P100-16GB P100-PCIE-16GB P100-SXM2-16GB", ""),
            "P100-12GB": ((12,), "P100-PCIE-12GB", ""),
            "V100": ((16,), "V100-16GB V100-SXM2-16GB V100-PCIE-16GB", ""),
            "V100-32GB": ((32,), "V100-SXM2-32GB V100-PCIE-32GB", ""),
            "T4": ((16,), "", ""),
            "T4G": ((16,), "", ""),
            "RTX2080Ti": ((11,), "", ""),
            "RTX6000": ((24,), "", ""),
            "RTX8000": ((48,), "", ""),
            "A100": ((40,), "A100-40GB A100-SXM4-40GB A100-PCIE-40GB", _A100_40),
            "A100-80GB": ((80,), "A100-80G A100-SXM4-80GB A100-80GB-PCIe A100-PCIE-80GB", _80),
            "A30": ((24,), "", "1g.6gb 2g.12gb 4g.24gb"),
            "A2": ((16,), "", ""),
            "A10": ((24,), "", ""),
            "A10G": ((24,), "", ""),
            "A16": ((16,), "", ""),
            "A40": ((48,), "", ""),
            "A4000": ((16,), "RTXA4000", ""),
            "A4500": ((20,), "RTXA4500", ""),
            "A5000": ((24,), "RTXA5000", ""),
            "A6000": ((48,), "RTXA6000", ""),
            "RTX3090": ((24,), "", ""),
            "L4": ((24,), "", ""),
            "L40": ((48,), "", ""),
            "L40S": ((48,), "", ""),
            "RTX4090": ((24,), "", ""),
            "RTX6000-Ada": ((48,), "RTX6000-Ada-Generation", ""),
            "H100": ((80,), "H100-80GB H100-SXM H100-SXM5-80GB H100-NVLINK-80GB H100-80GB-HBM3", _80),
            "H100-MEGA": ((80,), "H100-MEGA-80GB", _80),
            "H100-PCIe": ((80,), "H100-PCIE-80GB", _80),
            "H100-NVL": ((94,), "", _94),
            "H200": ((141,), "H200-SXM H200-141GB", _141),
            "H200-NVL": ((141,), "", _141),
            "GH200": ((96, 144), "GH200-480GB GH200-144G-HBM3e", f"{_96} {_144}"),
            "B200": ((180, 192), "", f"{_180} {_186}"),
            "GB200": ((186, 192), "", f"{_186} {_180}"),
            "B300": ((270, 288), "B300-SXM6-AC", _269),
            "GB300": ((270, 288), "", _269),
            "RTX5090": ((32,), "", ""),
            "RTXPRO4500": ((32,), "RTX-PRO-4500-Blackwell", ""),
            "RTXPRO6000": (
                (96,),
                "RTX-PRO-6000-Blackwell-Server-Edition RTX-PRO-6000-Blackwell-Workstation-Edition RTX-PRO-Server-6000",
                "1g.24gb 2g.48gb 4g.96gb",
            ),
            "GB10": ((128,), "DGX-Spark", ""),
        },
    ),
    "amd": _Line(
        "AMD",
        {
            "MI100": ((32,), "", ""),
            "MI210": ((64,), "", ""),
            "MI250": ((128,), "", ""),
            "MI250X": ((128,), "", ""),
            "MI300A": ((128,), "", ""),
            "MI300X": ((192,), "", ""),
            "MI308X": ((192,), "", ""),
            "MI325X": ((256,), "", ""),
            "MI350X": ((288,), "", ""),
            "MI355X": ((288,), "", ""),
            "RadeonProV520": ((8,), "", ""),
            "RX7900XTX": ((24,), "", ""),
            "RX9070XT": ((16,), "", ""),
        },
    ),
    "intel": _Line("Intel", {}),
    "gaudi": _Line(
        "Intel Gaudi",
        {
            "Gaudi": ((32,), "", ""),
            "Gaudi2": ((96,), "", ""),
            "Gaudi3": ((128,), "", ""),
        },
    ),
    "neuron": _Line(
        "AWS Neuron",
        {
            "inferentia": ((8,), "inf1", ""),
            "inferentia2": ((32,), "inf2", ""),
            "trainium": ((32,), "trn1", ""),
            "trainium2": ((96,), "trn2", ""),
        },
    ),
    "tpu": _Line(
        "Google TPU",
        {
            "tpu-v2": ((16,), "", ""),
            "tpu-v3": ((32,), "", ""),
            "tpu-v4": ((32,), "tpu-v4-podslice", ""),
            "tpu-v5e": ((16,), "v5litepod tpu-v5litepod tpu-v5-lite-podslice", ""),
            "tpu-v5p": ((95,), "tpu-v5p-slice", ""),
            "tpu-v6e": ((32,), "tpu-v6e-slice trillium", ""),
            "tpu-v7x": ((192,), "tpu7x ironwood", ""),
        },
    ),
    "apple": _Line("Apple", {}),
}
VENDORS: Final[Mapping[str, str]] = {name: line.title for name, line in _LINES.items()}
"""Names of vendors, the keys of `vendors.registry`, with the words for a person. Other distributions add their own."""
_PREFIXES = ("nvidia", "tesla", "geforce", "quadro", "amd", "instinct")
_TEXT = re.compile(r"(?P<name>[^:/]+)(?:/(?P<slice>[^:/]*))?(?::(?P<count>.*))?")
_TURNED = re.compile(r"(\d+)\s*[xX*]\s*(.+)")
# A TPU type's number counts cores for v2-v5p and chips for v5litepod and v6e; asked as a count, it is always chips.
_TPU_TYPE = re.compile(r"(?:tpu-?)?(v\d+(?:litepod|e|p|x)?)-(\d+)", re.IGNORECASE)
_TPU_CORES = ("v2", "v3", "v4", "v5p")


@attrs.frozen(kw_only=True)
class Model:
    """A model of accelerator."""

    name: str
    """As a request names it: "A100-80GB"."""
    vendor: str
    """The vendor's name in `vendors.registry`."""
    memory: tuple[int, ...]
    """Each size that it is sold with, in bytes, smallest first."""
    slices: tuple[str, ...] = ()
    """Profiles of the slices that it can be cut into ("1g.10gb")."""
    spellings: tuple[str, ...] = ()
    """Other names for it."""

    def is_by(self, vendor: str) -> bool:
        """Whether a vendor makes it; Intel makes Gaudi."""
        return vendor in (self.vendor, _MAKERS.get(self.vendor))


@attrs.frozen(kw_only=True)
class Accelerator:
    """So many accelerators of one model."""

    AS_TEXT: ClassVar = True
    name: str
    count: int | None = None
    """None where the request gives none."""
    slice: str = ""
    """A profile such as "1g.10gb"; empty for whole chips."""

    @classmethod
    def parse(cls, text: str) -> Accelerator:
        """The value of "H100:8" and its like; unknown names, slices and counts are a `SettingsError`."""
        match = _TEXT.fullmatch(str(text).strip())
        if match is None:
            raise SettingsError(f"{text!r} is not an accelerator", fix='write a name and a count, such as "H100:8"')
        kind = model(match["name"], text)
        count = match["count"]
        try:
            amount = None if count is None else whole_number(count.strip(), least=1)
        except SettingsError as error:
            message = f"{text!r} asks for {count!r} accelerators: {error.message}"
            raise SettingsError(message, fix=f'write a count, such as "{kind.name}:2"') from None
        return cls(name=kind.name, count=amount, slice=_slice(match["slice"], kind, text))

    def __str__(self) -> str:
        name = f"{self.name}/{self.slice}" if self.slice else self.name
        return name if self.count is None else f"{name}:{self.count}"

    @property
    def model(self) -> Model:
        """The model that the name stands for."""
        return MODELS[self.name] if self.name in MODELS else model(self.name)

    @property
    def memory(self) -> int:
        """The most memory in bytes that one of them can have, as sold."""
        if self.slice:
            return int(self.slice.partition(".")[2].partition("gb")[0]) * GB
        return self.model.memory[-1]


MODELS: Final[Mapping[str, Model]] = {
    name: Model(
        name=name,
        vendor=vendor,
        memory=tuple(amount * GB for amount in memory),
        slices=tuple(slices.split()),
        spellings=tuple(spellings.split()),
    )
    for vendor, line in _LINES.items()
    for name, (memory, spellings, slices) in line.chips.items()
}


def model(name: str, text: str = "") -> Model:
    """The model called `name` in any of its spellings; `text` is what the person wrote around it."""
    plain = _plain(name)
    if plain in _SPELLINGS:
        return MODELS[_SPELLINGS[plain]]
    others = _of_other_distributions()
    if plain in others:
        return others[plain]
    written = text or name
    turned = _TURNED.fullmatch(written.strip())
    if turned is not None and _plain(turned[2]) in _SPELLINGS:
        raise SettingsError(f"{written!r} is not an accelerator", fix=f'write "{turned[2]}:{turned[1]}"')
    tpu = _TPU_TYPE.fullmatch(name.strip())
    if tpu is not None and _plain(tpu[1]) in _SPELLINGS:
        chips = max(1, int(tpu[2]) // 2) if tpu[1].lower() in _TPU_CORES else int(tpu[2])
        counts = "cores" if tpu[1].lower() in _TPU_CORES else "chips"
        kind = _SPELLINGS[_plain(tpu[1])]
        raise SettingsError(f"{written!r} is a TPU type, whose number counts {counts}", fix=f'write "{kind}:{chips}"')
    raise SettingsError(f"there is no accelerator called '{name.strip()}'{nearest(name, model_names())}")


def model_names() -> tuple[str, ...]:
    """The names of all models."""
    return (*MODELS, *dict.fromkeys(model.name for model in _of_other_distributions().values()))


def vendor_names() -> tuple[str, ...]:
    """The names of all vendors."""
    return (*VENDORS, *(name for name in _REGISTRY.names() if name not in VENDORS))


def vendor_name(name: str) -> str:
    """The name of a vendor that is called so today, or was in an earlier version."""
    return ALIASES.get(name, name)


def parse_all(value: str | Accelerator | Mapping[str, Any] | Iterable[str | Accelerator]) -> tuple[Accelerator, ...]:
    """Ordered alternatives from one text, a list of texts, or `{"H100": 8}`."""
    if isinstance(value, (str, Accelerator)):
        value = [value]
    elif isinstance(value, Mapping):
        value = [f"{name}:{amount}" for name, amount in value.items()]
    elif not isinstance(value, Iterable):
        raise SettingsError(f"{value!r} is not an accelerator", fix='write a name and a count, such as "H100:8"')
    parsed = tuple(item if isinstance(item, Accelerator) else Accelerator.parse(item) for item in value)
    if not parsed:
        raise SettingsError("the list of accelerators is empty", fix="leave it out to ask for none")
    return parsed


def _plain(name: str) -> str:
    plain = re.sub(r"[\s_-]", "", name.lower())
    for prefix in _PREFIXES:
        plain = plain.removeprefix(prefix)
    return plain


def _spellings() -> dict[str, str]:
    names: dict[str, str] = {}
    for one in MODELS.values():
        for spelling in (one.name, *one.spellings):
            names[_plain(spelling)] = one.name
        if one.name.startswith("tpu-"):
            names[one.name.removeprefix("tpu-")] = one.name
    return names


_SPELLINGS: Final = _spellings()


class _WithChips(Protocol):
    """What this module needs of a vendor: the models that it adds to the catalog."""

    chips: tuple[Model, ...]


_REGISTRY: Final[Registry[_WithChips]] = Registry(group=GROUP, noun="vendor", kind=object, builtin={})


@functools.cache
def _of_other_distributions() -> Mapping[str, Model]:
    """Spelling → model, of the vendors that other distributions bring; read once a process."""
    return {
        _plain(spelling): model
        for _, vendor in _REGISTRY.third_party_parts()
        for model in vendor.chips
        for spelling in (model.name, *model.spellings)
    }


def _slice(profile: str | None, kind: Model, text: str) -> str:
    if profile is None:
        return ""
    if not kind.slices:
        raise SettingsError(f"{text!r} asks for a slice, and {kind.name} cannot be sliced", fix=f'write "{kind.name}"')
    plain = profile.strip().lower().removeprefix("mig-")
    # "+me" is the one slice of a chip that has its media engines.
    if plain.removesuffix("+me") not in kind.slices:
        raise SettingsError(
            f"{kind.name} with {size_text(kind.memory[-1])} has no slice '{profile}'{nearest(plain, kind.slices)}"
        )
    return plain
