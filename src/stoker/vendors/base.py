"""What a vendor of accelerators is: one value, in a module of its own, that says all that Stoker has to know of it.

A vendor's module is loaded where its devices are looked for or held. What only some of its functions need, such as its
driver's package, is imported inside them.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any, Callable, Final, Iterator, Mapping, Protocol, Sequence

import attrs

from stoker.core.accelerators import Accelerator, Model
from stoker.core.devices import Device, Inventory, Process
from stoker.vendors.builds import Build, Held, Problem, Version

PATIENCE: Final = 10.0
"""Seconds in which memory may still become free: what a process held is given back some time after its end."""

_CONTAINER_FILES: Final = (".dockerenv", "run/.containerenv")
_CONTAINER_GROUPS: Final = re.compile(r"docker|kubepods|containerd|libpod|crio")

Row = dict[str, Any]
"""A device in one sample; see `Meter`."""


class Meter(Protocol):
    """Measures held devices again and again, from a process beside the step."""

    def sample(self, now: float, tree: frozenset[int], last: bool = False) -> tuple[dict[str, Row], list[Row]]:
        """A row for each device that answers, by its UUID, and what happened since the last sample.

        `now` is of the monotonic clock, `tree` the step's processes; nothing may take long for the `last` one. A row
        may have: `u` utilisation (percent; the mean since the last sample where the driver keeps one) and `up` its
        highest, `m` bytes in use, `o` bytes and `n` number of the tree's processes there, `w` watts, `c` °C, `f` MHz,
        `r` reasons for throttling, `j` the counter of joules, `rx` and `tx` bytes per second. What is not told is
        absent. An event is `{"failed": UUID, "why": text}`, `{"strays": [UUID]}`, `{"xid": number, "uuid": UUID}` or
        `{"ecc": UUID}`.
        """


@attrs.frozen(kw_only=True)
class Ask:
    """What the gate asks for: whether these devices of one vendor are there for this process."""

    devices: Sequence[Device]
    memory: int = 0
    """The share of each that was leased, in bytes; 0 for all of it."""
    driver: str = ""
    cuda: Version | None = None
    environment: Mapping[str, str] = attrs.field(factory=lambda: dict(os.environ))
    root: Path = Path("/")
    """Where /dev and /proc are."""
    patience: float = PATIENCE


@attrs.frozen(kw_only=True)
class Presence:
    """What the gate found of devices of one vendor."""

    facts: Mapping[str, str]
    """By name, as text; what the vendor's software does not tell begins with "unproved"."""
    problem: Problem | None = None
    driver: str = ""
    """The driver's version and the newest CUDA, as far as the process that asked knows them."""
    cuda: Version | None = None

    @classmethod
    def absent(cls, cause: str, sentence: str, fix: str) -> Presence:
        """The devices are not there."""
        return cls(facts={}, problem=Problem(cause=cause, sentence=sentence, fix=fix))


@attrs.frozen(kw_only=True)
class Limit:
    """A variable by which a scheduler or a person keeps devices from a process."""

    variable: str
    left: Callable[[Sequence[Device], str], Sequence[Device]]
    """The devices that a value of the variable leaves."""
    empty_hides: bool = False
    """Whether the empty value hides all of them."""


@attrs.frozen(kw_only=True)
class ContainerNeeds:
    """What a container must be given so that its processes can use some devices."""

    files: tuple[str, ...] = ()
    """Device files."""
    groups: tuple[str, ...] = ()
    """Numbers of the groups that own them."""


Question = Callable[[Any, Sequence[Device]], tuple[str, Problem | None]]
"""Asks an imported framework whether it can use the held devices: a fact as text, or the problem."""


@attrs.frozen(kw_only=True)
class PlatformImage:
    """An official image for a vendor's platform."""

    image: str
    """Its name; with `releases`, "{ubuntu}" stands for one of these."""
    releases: tuple[str, ...] = ()
    """Of images without a Python: releases of Ubuntu, the preferred one first."""
    wheels: str = ""
    """The platform of torch's wheels for it; empty where the image brings its framework."""


@attrs.frozen(kw_only=True)
class Platforms:
    """The official images by the platform that a person writes (`accelerator="cuda12.4"`)."""

    names: tuple[str, ...] = ()
    find: Callable[[str], PlatformImage | None] = lambda written: None


@attrs.frozen(kw_only=True)
class Simulation:
    """How a device of this vendor is pretended (`STOKER_SIMULATE`)."""

    prefix: str = "GPU"
    """What its UUID begins with."""
    name: Callable[[str], str] = lambda model: model
    """The driver's name for a model."""
    capability: Callable[[str], tuple[int, int] | None] = lambda model: None
    per_chip: Callable[[Accelerator], int] = lambda asked: 1
    """How many of the slices that are asked for one chip has room for."""
    facts: tuple[str, ...] = ()
    """Facts of the driver that a text may give ("driver", "cuda")."""
    cuda_of_driver: Callable[[str], tuple[int, int] | None] = lambda driver: None


def _no_processes(devices: Sequence[Device]) -> tuple[Process, ...]:
    return ()


def _fits(build: Build, held: Held) -> Problem | None:
    return None


def _nothing_to_note(build: Build, held: Held) -> Iterator[str]:
    return iter(())


def _unproved(ask: Ask) -> Presence:
    return Presence(facts={"devices": f"unproved: {len(ask.devices)} leased, and nothing here can ask for them"})


@attrs.frozen(kw_only=True, eq=False)
class Vendor:
    """One vendor of accelerators. `name`, `title`, `probe` and `visibility` are needed; the rest has a default."""

    name: str
    """As a request, a lease and a receipt call it: "nvidia"."""
    title: str
    """For a person: "NVIDIA"."""
    noun: str = "GPU"
    """What a person calls one device."""
    chips: tuple[Model, ...] = ()
    """Models of another distribution's vendor, so that a request can name them. Those of Stoker's own vendors stand in
    `core.accelerators`, where a request is checked without loading any vendor."""
    example: str = ""
    """A model to name where any would do; the first of its models if empty."""
    exclusive: bool = True
    """Whether a device can be handed out to one process alone. Every `Device` of the probe says the same."""

    # Finding and handing out

    probe: Callable[[Mapping[str, str], Path], Inventory]
    """What is here. Takes the environment, and the folder where /dev, /proc and /sys are. A driver that is missing
    means no devices, one that is broken a finding; it raises nothing."""
    processes: Callable[[Sequence[Device]], tuple[Process, ...]] = _no_processes
    """Who computes on some of its devices, as the driver tells."""
    visibility: Callable[[Sequence[Device]], Mapping[str, str]]
    """The variables by which a process sees exactly these of its devices; for none, those that hide all of them."""
    limits: tuple[Limit, ...] = ()
    """The variables that keep devices from this process, in the order in which the vendor's software applies them."""
    simulation: Simulation | None = Simulation()
    """None where its devices cannot be pretended."""

    # In the step

    prove: Callable[[Ask], Presence] = _unproved
    """Whether held devices are there for this process, before the step's code runs."""
    frameworks: Mapping[str, Question] = attrs.field(factory=dict)
    """name of a package → what it is asked when the step imports it"""
    unfit: Callable[[Build, Held], Problem | None] = _fits
    """Why a build of a framework cannot use the devices; None where it can, or where what is known does not tell."""
    notes: Callable[[Build, Held], Iterator[str]] = _nothing_to_note
    """What a person should know of a build that fits."""
    meter: Callable[[Sequence[Device]], Meter] | None = None
    """Opens the meter of held devices, or raises `OSError` with the reason; None where nothing outside the step can
    tell what its devices do."""

    # Images

    runtime: str = ""
    """The software that an image must have, by its field of `ImageFacts`: "cuda", "rocm", "neuron"."""
    runtime_title: str = ""
    """The same for a person: "CUDA"."""
    toolkit: str = ""
    """The kind by which the Container Device Interface names its devices ("nvidia.com/gpu"), where a container toolkit
    of the vendor's hands them in, called by the engine with their UUIDs."""
    container: Callable[[Sequence[Device], Path], ContainerNeeds] | None = None
    """What a container needs for some devices, given the folder where /dev and /sys are. Without it and without a
    toolkit, none can be handed into a container."""
    hidden_in_containers: Mapping[str, str] = attrs.field(factory=dict)
    """The variables of a container that gets none of its devices."""
    apptainer: tuple[str, ...] = ()
    """Options of Apptainer that bring the driver into a container."""
    platforms: Platforms = Platforms()


def contained(environment: Mapping[str, str], root: Path = Path("/")) -> bool:
    """Whether this process runs in a container."""
    if environment.get("KUBERNETES_SERVICE_HOST") or environment.get("container"):
        return True
    if any((root / name).exists() for name in _CONTAINER_FILES):
        return True
    return bool(_CONTAINER_GROUPS.search(text_of(root / "proc/self/cgroup")))


def names_in(folder: Path, pattern: str) -> list[str]:
    """The entries of a folder that a pattern matches."""
    try:
        return sorted(name for name in os.listdir(folder) if re.fullmatch(pattern, name))
    except OSError:
        return []


def text_of(path: Path) -> str:
    """A file's text without blanks around it; empty for one that cannot be read."""
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return ""


def listed(devices: Sequence[Device], value: str) -> list[Device]:
    """Those that a list of numbers and UUIDs names. As CUDA reads it: the first that names none ends the list.

    https://docs.nvidia.com/cuda/cuda-c-programming-guide/#env-vars. Numbers are taken in the order of the bus, as with
    CUDA_DEVICE_ORDER=PCI_BUS_ID; without it, CUDA puts the fastest chip first on machines with several kinds.
    """
    indexes = sorted({device.index for device in devices})
    left: list[Device] = []
    for item in value.split(","):
        name = item.strip().lower()
        if name.isdecimal():
            number = int(name)
            # CUDA gives a process one slice of a GPU that is cut into slices.
            named = [one for one in devices if number < len(indexes) and one.index == indexes[number]][:1]
        else:
            named = [one for one in devices if name and one.uuid.lower().startswith(name)]
        if len(named) != 1:
            break
        if named[0] not in left:
            left += named
    return left
