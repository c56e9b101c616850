"""Names of accelerators, and the text by which a request names one: "H100:8", "A100-80GB/1g.10gb:2", "tpu-v5e:8".

The table (`accelerators.txt`) has memory, MIG profiles, spellings, and the source of each row: only what parsing and
checking a request needs. What a driver, a wheel or a cloud knows of a chip is in `vendors`.
"""

from __future__ import annotations

import functools
import re
from typing import Any, ClassVar, Final, Iterable, Iterator, Mapping, NamedTuple, Protocol

from stoker.core.errors import SettingsError, nearest
from stoker.core.plugins import Registry
from stoker.core.units import count as whole_number
from stoker.core.units import size_text
from stoker.core.values import frozen, lazy_pattern
from stoker.core.words import bounded, shown

TABLE: Final = f"{__file__.rpartition('.')[0]}.txt"
"""The models, a line for each."""


class CatalogRow(NamedTuple):
    """A line of the table."""

    vendor: str
    memory: tuple[int, ...]
    """Sizes in GB as sold, smallest first."""
    source: str
    """The page that gives it."""
    slices: tuple[str, ...]
    spellings: tuple[str, ...]


ALIASES: Final[Mapping[str, str]] = {"mps": "apple", "aws": "neuron", "google": "tpu", "habana": "gaudi"}
"""Other names of vendors, also those in documents of earlier versions → the name."""
_MAKERS: Final[Mapping[str, str]] = {"gaudi": "intel"}
"""Vendors that are one line of products of another → that one."""
GROUP: Final = "stoker.vendors"
"""The group of entry points by which other distributions bring vendors with their chips."""
GB: Final = 10**9
VENDORS: Final[Mapping[str, str]] = {
    "nvidia": "NVIDIA",
    "amd": "AMD",
    "intel": "Intel",
    "gaudi": "Intel Gaudi",
    "neuron": "AWS Neuron",
    "tpu": "Google TPU",
    "apple": "Apple",
}
"""Names of vendors, the keys of `vendors.registry`, with the words for a person. Other distributions add their own."""
_PREFIXES = ("nvidia", "tesla", "geforce", "quadro", "amd", "instinct")
_SUFFIXES = ("vws", "shared")
"""What Google's platforms add for a licence of virtual workstations, and GPU feature discovery where containers share a
GPU by time: https://github.com/NVIDIA/k8s-device-plugin/blob/main/docs/gpu-feature-discovery/README.md."""
# GPU feature discovery's label nvidia.com/gpu.product where all slices of a machine are the same.
_LABEL_OF_SLICE = lazy_pattern(r"(?P<name>.+?)-MIG-(?P<slice>\d+g\.\d+gb[\w.+-]*?)(?P<shared>-SHARED)?", re.IGNORECASE)
_TEXT = lazy_pattern(r"(?P<name>[^:/]+)(?:/(?P<slice>[^:/]*))?(?::(?P<count>.*))?")
_TURNED = lazy_pattern(r"(\d+)\s*[xX*:]\s*(.+)")
# A TPU type's number counts cores for v2-v5p and chips for v5litepod and v6e; asked as a count, it is always chips.
_TPU_TYPE = lazy_pattern(r"(?:tpu-?)?(v\d+(?:litepod|e|p|x)?)-(\d+)", re.IGNORECASE)
_TPU_CORES = ("v2", "v3", "v4", "v5p")


@frozen(kw_only=True)
class ChipModel:
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
    source: str = ""
    """The page that gives its memory; empty for a model of another distribution that names none."""

    def is_by(self, vendor: str) -> bool:
        """Whether a vendor makes it; Intel makes Gaudi."""
        return vendor in (self.vendor, _MAKERS.get(self.vendor))


@frozen(kw_only=True)
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
        written: object = text
        match = _TEXT.fullmatch(written.strip()) if isinstance(written, str) else None
        if match is None:
            raise SettingsError(
                f"{shown(text)} is not an accelerator", fix='write a name and a count, such as "H100:8"'
            )
        name, profile = match["name"], match["slice"]
        label = _LABEL_OF_SLICE.fullmatch(name.strip()) if profile is None else None
        if label is not None:
            name, profile = label["name"], label["slice"]
        kind = model(name, text)
        if label["shared"] if label is not None else name.strip().lower().endswith("-shared"):
            raise SettingsError(
                f"{shown(text)} is the label of a GPU that containers share",
                fix=f'write accelerators="{kind.name}", and gpu_memory="…", share=True for a part of it',
            )
        count = match["count"]
        try:
            amount = None if count is None else whole_number(count.strip(), least=1)
        except SettingsError as error:
            message = f"{shown(text)} asks for {shown(count)} accelerators: {error.message}"
            raise SettingsError(message, fix=f'write a count, such as "{kind.name}:2"') from None
        return cls(name=kind.name, count=amount, slice=_slice(profile, kind, text))

    def __str__(self) -> str:
        name = f"{self.name}/{self.slice}" if self.slice else self.name
        return name if self.count is None else f"{name}:{self.count}"

    @property
    def model(self) -> ChipModel:
        """The model that the name stands for."""
        return MODELS[self.name] if self.name in MODELS else model(self.name)

    @property
    def memory(self) -> int:
        """The most memory in bytes that one of them can have, as sold."""
        if self.slice:
            return int(self.slice.partition(".")[2].partition("gb")[0]) * GB
        return self.model.memory[-1]


@functools.cache
def _rows() -> Mapping[str, CatalogRow]:
    """name → its line; read when a model is first asked for."""
    tables: dict[str, dict[str, list[str]]] = {}
    with open(TABLE, encoding="utf-8") as lines:
        for line in lines:
            name, *columns = (column.strip() for column in line.split("|"))
            if line.startswith("["):
                table = tables[name[1:-1]] = {}
            elif columns and not line.startswith("#"):
                table[name] = columns
    sources, profiles = tables.pop("sources"), tables.pop("profiles")
    rows = {}
    for vendor, table in tables.items():
        for name, (memory, source, *more) in table.items():
            slices, spellings = ([] if text == "-" else text.split() for text in (*more, "", "")[:2])
            rows[name] = CatalogRow(
                vendor=vendor,
                memory=tuple(map(int, memory.split())),
                source=sources[source][0],
                slices=tuple(part for word in slices for part in profiles.get(word, [word])[0].split()),
                spellings=tuple(spellings),
            )
    return rows


class Catalog(Mapping[str, ChipModel]):
    """The models of the table by name; each is made when it is first asked for."""

    def __init__(self) -> None:
        self._made: dict[str, ChipModel] = {}

    def __getitem__(self, name: str) -> ChipModel:
        if name not in self._made:
            row = _rows()[name]
            memory = tuple(amount * GB for amount in row.memory)
            self._made[name] = ChipModel(name=name, **{**row._asdict(), "memory": memory})
        return self._made[name]

    def __contains__(self, name: object) -> bool:
        return name in _rows()

    def __iter__(self) -> Iterator[str]:
        return iter(_rows())

    def __len__(self) -> int:
        return len(_rows())


MODELS: Final[Mapping[str, ChipModel]] = Catalog()


def model(name: str, text: str = "") -> ChipModel:
    """The model called `name` in any of its spellings; `text` is what the person wrote around it."""
    if name in MODELS:
        return MODELS[name]
    plain, spellings = _plain(name), _spellings()
    if plain in spellings:
        return MODELS[spellings[plain]]
    others = _of_other_distributions()
    if plain in others:
        return others[plain]
    written = text or name
    turned = _TURNED.fullmatch(written.strip())
    if turned is not None and _plain(turned[2]) in spellings:
        raise SettingsError(f"{shown(written)} is not an accelerator", fix=f'write "{turned[2]}:{turned[1]}"')
    tpu = _TPU_TYPE.fullmatch(name.strip())
    if tpu is not None and _plain(tpu[1]) in spellings:
        chips = max(1, int(tpu[2]) // 2) if tpu[1].lower() in _TPU_CORES else int(tpu[2])
        counts = "cores" if tpu[1].lower() in _TPU_CORES else "chips"
        kind = spellings[_plain(tpu[1])]
        raise SettingsError(
            f"{shown(written)} is a TPU type, whose number counts {counts}", fix=f'write "{kind}:{chips}"'
        )
    raise SettingsError(f"there is no accelerator called '{bounded(name.strip(), 100)}'{nearest(name, model_names())}")


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
        value = [f"{name}:{amount if isinstance(amount, str) else shown(amount)}" for name, amount in value.items()]
    elif not isinstance(value, Iterable):
        raise SettingsError(f"{shown(value)} is not an accelerator", fix='write a name and a count, such as "H100:8"')
    parsed = tuple(item if isinstance(item, Accelerator) else Accelerator.parse(item) for item in value)
    if not parsed:
        raise SettingsError("the list of accelerators is empty", fix="leave it out to ask for none")
    return parsed


def _plain(name: str) -> str:
    plain = re.sub(r"[\s()_-]", "", name.lower())
    for prefix in _PREFIXES:
        plain = plain.removeprefix(prefix)
    for suffix in _SUFFIXES:
        plain = plain.removesuffix(suffix)
    return plain


@functools.cache
def _spellings() -> Mapping[str, str]:
    """Spelling, in plain form → the name; read when a name is first written in another way than the table's."""
    names: dict[str, str] = {}
    for name, row in _rows().items():
        for spelling in (name, *row.spellings):
            names[_plain(spelling)] = name
        if name.startswith("tpu-"):
            names[name.removeprefix("tpu-")] = name
    return names


class _WithChips(Protocol):
    """What this module needs of a vendor: the models that it adds to the catalog."""

    chips: tuple[ChipModel, ...]


_REGISTRY: Final[Registry[_WithChips]] = Registry(group=GROUP, noun="vendor", kind=object, builtin={})


@functools.cache
def _of_other_distributions() -> Mapping[str, ChipModel]:
    """Spelling → model, of the vendors that other distributions bring; read once a process."""
    return {
        _plain(spelling): model
        for _, vendor in _REGISTRY.third_party_parts()
        for model in vendor.chips
        for spelling in (model.name, *model.spellings)
    }


def _slice(profile: str | None, kind: ChipModel, text: str) -> str:
    if profile is None:
        return ""
    if not kind.slices:
        raise SettingsError(f"{text!r} asks for a slice, and {kind.name} cannot be sliced", fix=f'write "{kind.name}"')
    plain = profile.strip().lower().removeprefix("mig-")
    # "+me", "+me.all", "-me" and "+gfx" say which of the chip's media and graphics engines the slice has.
    if re.sub(r"(?:[+-]me(?:\.all)?|\+gfx)$", "", plain) not in kind.slices:
        raise SettingsError(
            f"{kind.name} with {size_text(kind.memory[-1])} has no slice '{profile}'{nearest(plain, kind.slices)}"
        )
    return plain
