"""The type of a vendor of accelerators, and functions that vendors share.

A vendor is one `Vendor` value in a module of its own. The module is loaded where devices are probed or held. It imports
its driver's package inside the functions that need it.

Vendors share checks of imported frameworks: can the framework use the held devices? No check uses memory of a device or
keeps the process from forking. So torch is asked through NVML instead of CUDA, and jax is not asked at all, because its
first call takes three quarters of the memory (https://docs.jax.dev/en/latest/gpu_memory_allocation.html).
"""

from __future__ import annotations

import contextlib
import os
import re
from pathlib import Path
from typing import Any, Callable, Final, Iterator, Mapping, Protocol, Sequence

import attrs

from stoker.core import status
from stoker.core.accelerators import Accelerator, ChipModel
from stoker.core.devices import Device, Inventory, Process
from stoker.core.errors import SettingsError
from stoker.vendors.builds import Build, Hardware, Problem, Version

PATIENCE: Final = 10.0
"""Seconds in which memory may still become free: drivers release it some time after a process has ended."""

_CONTAINER_FILES: Final = (".dockerenv", "run/.containerenv")
_CONTAINER_GROUPS: Final = re.compile(r"docker|kubepods|containerd|libpod|crio")

_NUMBERS: Final = re.compile(r"([0-9]{1,4})(?:-([0-9]{1,4}))?")

DeviceRow = dict[str, Any]
"""One device in one sample, or one event; `Meter.sample` lists the keys."""


class Meter(Protocol):
    """Measures held devices repeatedly, from a process beside the step."""

    def sample(
        self, now: float, tree: frozenset[int], last: bool = False
    ) -> tuple[dict[str, DeviceRow], list[DeviceRow]]:
        """Measure once: a row for each device that answers, by UUID, and the events since the last sample.

        `now` is the monotonic time, `tree` the pids of the step. The `last` sample must not take long. A row may have:
        `u` utilisation (percent; the mean since the last sample where the driver keeps one) and `up` its highest, `m`
        bytes in use, `o` bytes and `n` number of the tree's processes there, `w` watts, `c` °C, `f` MHz, `r` reasons
        for throttling, `j` the counter of joules, `rx` and `tx` bytes per second. Unknown values are left out. An event
        is `{"failed": UUID, "why": text}`, `{"strays": [UUID]}`, `{"xid": number, "uuid": UUID}` or `{"ecc": UUID}`.
        """


@attrs.frozen(kw_only=True)
class GateRequest:
    """The gate's question to a vendor: can this process use these devices?"""

    devices: Sequence[Device]
    """The leased devices, all of the vendor."""
    memory: int = 0
    """Bytes of each device that were leased; 0 for whole devices."""
    driver: str = ""
    """The driver's version as the lease has it; empty where that is not known."""
    cuda: Version | None = None
    """The newest CUDA of the driver as the lease has it."""
    environment: Mapping[str, str] = attrs.field(factory=lambda: dict(os.environ))
    root: Path = Path("/")
    """Where /dev and /proc are."""
    patience: float = PATIENCE
    """Seconds in which memory may still become free."""


@attrs.frozen(kw_only=True)
class GateResult:
    """A vendor's answer to a `GateRequest`."""

    facts: Mapping[str, str]
    """Name → text; a fact that the vendor's software cannot prove begins with "unproved"."""
    problem: Problem | None = None
    """Why the process cannot use the devices; None where it can."""
    driver: str = ""
    """The driver's version as this process sees it; empty where that is not known."""
    cuda: Version | None = None
    """The newest CUDA that the driver runs, as this process sees it."""

    @classmethod
    def absent(cls, cause: str, sentence: str, fix: str) -> GateResult:
        """The result for devices that the process cannot use."""
        return cls(facts={}, problem=Problem(cause=cause, sentence=sentence, fix=fix))


@attrs.frozen(kw_only=True)
class HealthReport:
    """What a vendor's tools have counted of the faults of some devices."""

    faults: Mapping[str, str] = attrs.field(factory=dict)
    """UUID → why the device must not be used."""
    facts: tuple[str, ...] = ()
    """What else was found, in words."""


@attrs.frozen(kw_only=True)
class Limit:
    """A variable by which a scheduler or a person hides devices from a process."""

    variable: str
    """Its name."""
    select: Callable[[Sequence[Device], str], Sequence[Device]]
    """The devices among some that a value of the variable leaves visible; a `SettingsError` for one that is none."""
    empty_hides: bool = False
    """Whether the empty value hides all of them."""


@attrs.frozen(kw_only=True)
class ContainerNeeds:
    """What a container must be given so that its processes can use some devices."""

    files: tuple[str, ...] = ()
    """Device files."""
    groups: tuple[str, ...] = ()
    """Numbers of the groups that own them."""


FrameworkCheck = Callable[[Any, Sequence[Device]], tuple[str, Problem | None]]
"""Checks whether an imported framework can use the held devices: returns a fact as text, or the problem."""


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
    """A vendor's official images by platform (`accelerator="cuda12.4"`)."""

    names: tuple[str, ...] = ()
    """The platforms, for messages."""
    find: Callable[[str], PlatformImage | None] = lambda platform: None
    """The image of a platform as a person writes it; None for an unknown one."""


@attrs.frozen(kw_only=True)
class Simulation:
    """How a device of this vendor is simulated (`STOKER_SIMULATE`)."""

    prefix: str = "GPU"
    """What its UUID begins with."""
    name: Callable[[str], str] = lambda model: model
    """The driver's name for a model."""
    capability: Callable[[str], tuple[int, int] | None] = lambda model: None
    """A model's compute capability."""
    per_chip: Callable[[Accelerator], int] = lambda accelerator: 1
    """How many slices of this kind one chip has room for."""
    facts: tuple[str, ...] = ()
    """Facts of the driver that a text may give ("driver", "cuda")."""
    cuda_of_driver: Callable[[str], tuple[int, int] | None] = lambda driver: None
    """The newest CUDA that a driver's version runs."""


def _no_processes(devices: Sequence[Device]) -> tuple[Process, ...]:
    return ()


def _fits(build: Build, hardware: Hardware) -> Problem | None:
    return None


def _nothing_to_note(build: Build, hardware: Hardware) -> Iterator[str]:
    return iter(())


def _count_nothing(devices: Sequence[Device]) -> HealthReport:
    return HealthReport()


def _prove_nothing(request: GateRequest) -> GateResult:
    return GateResult(facts={"devices": f"unproved: {len(request.devices)} leased, and nothing here can ask for them"})


@attrs.frozen(kw_only=True, eq=False)
class Vendor:
    """One vendor of accelerators. `name`, `title`, `probe` and `visibility` are required."""

    name: str
    """Its name in requests, leases and receipts: "nvidia"."""
    title: str
    """Its name in messages: "NVIDIA"."""
    noun: str = "GPU"
    """The word for one device in messages."""
    chips: tuple[ChipModel, ...] = ()
    """Models of another distribution's vendor, so that a request can name them. Those of Stoker's own vendors stand in
    `core.accelerators`, where a request is checked without loading any vendor."""
    example: str = ""
    """A model to name where any would do; the first of its models if empty."""
    exclusive: bool = True
    """Whether a device can be handed out to one process alone. Every `Device` of the probe says the same."""

    # Probing and leasing

    probe: Callable[[Mapping[str, str], Path], Inventory]
    """Finds the machine's devices. Takes the environment, and the folder where /dev, /proc and /sys are. A missing
    driver means no devices, a broken one is a finding; it raises nothing."""
    processes: Callable[[Sequence[Device]], tuple[Process, ...]] = _no_processes
    """The processes that compute on some of its devices, as the driver reports them."""
    visibility: Callable[[Sequence[Device]], Mapping[str, str]]
    """The variables by which a process sees exactly these devices; for none, the variables that hide all devices."""
    limits: tuple[Limit, ...] = ()
    """The variables that hide devices from a process, in the order in which the vendor's software applies them."""
    simulation: Simulation | None = Simulation()
    """None where its devices cannot be simulated."""

    # In the step

    prove: Callable[[GateRequest], GateResult] = _prove_nothing
    """Proves that this process can use held devices; called before the step's code runs."""
    health: Callable[[Sequence[Device]], HealthReport] = _count_nothing
    """Reads the counters of errors of some devices, in the health check before a run's first step on them."""
    frameworks: Mapping[str, FrameworkCheck] = attrs.field(factory=dict)
    """Package → the check that runs when the step has imported it."""
    unfit: Callable[[Build, Hardware], Problem | None] = _fits
    """Why a build of a framework cannot use the devices; None where it can, or where that is not known."""
    notes: Callable[[Build, Hardware], Iterator[str]] = _nothing_to_note
    """What a person should know of a build that fits."""
    meter: Callable[[Sequence[Device]], Meter] | None = None
    """Opens the meter of held devices, or raises `OSError` with the reason; None where devices cannot be measured from
    outside of the step."""

    # Images

    runtime: str = ""
    """The software that an image must have, by its field of `ImageFacts`: "cuda", "rocm", "neuron"."""
    runtime_title: str = ""
    """Its name in messages: "CUDA"."""
    toolkit: str = ""
    """The kind by which the Container Device Interface names its devices ("nvidia.com/gpu"), where a container toolkit
    of the vendor's hands them in, called by the engine with their UUIDs."""
    container: Callable[[Sequence[Device], Path], ContainerNeeds] | None = None
    """What a container needs for some devices, given the folder where /dev and /sys are. Without it and without
    `toolkit`, a container cannot get devices."""
    hidden_in_containers: Mapping[str, str] = attrs.field(factory=dict)
    """The variables of a container that gets none of its devices."""
    apptainer: tuple[str, ...] = ()
    """Options of Apptainer that bring the driver into a container."""
    platforms: Platforms = Platforms()


def in_container(environment: Mapping[str, str], root: Path = Path("/")) -> bool:
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


def numbers_in(value: str) -> set[int]:
    """The numbers in a list such as "0-3,8"; a `SettingsError` for any other text."""
    numbers: set[int] = set()
    for item in filter(None, (part.strip() for part in value.split(","))):
        match = _NUMBERS.fullmatch(item)
        if match is None:
            raise SettingsError(f"{item!r} is no number of a device", fix='write a list such as "0,1" or "0-3"')
        numbers.update(range(int(match[1]), int(match[2] or match[1]) + 1))
    return numbers


def named_devices(devices: Sequence[Device], value: str) -> list[Device]:
    """The devices that a list of numbers and UUIDs names. As in CUDA, the first item that names none ends the list.

    https://docs.nvidia.com/cuda/cuda-c-programming-guide/#env-vars. Numbers are taken in the order of the bus, as with
    CUDA_DEVICE_ORDER=PCI_BUS_ID; without it, CUDA puts the fastest chip first on machines with several kinds.
    """
    indexes = sorted({device.index for device in devices})
    selected: list[Device] = []
    for item in value.split(","):
        name = item.strip().lower()
        if name.isdecimal():
            number = int(name)
            # CUDA gives a process one slice of a GPU that is cut into slices.
            matches = [one for one in devices if number < len(indexes) and one.index == indexes[number]][:1]
        else:
            matches = [one for one in devices if name and one.uuid.lower().startswith(name)]
        if len(matches) != 1:
            break
        if matches[0] not in selected:
            selected += matches
    return selected


_NVML: Final = "PYTORCH_NVML_BASED_CUDA_CHECK"
"""https://docs.pytorch.org/docs/stable/notes/cuda.html: with "1", is_available() asks NVML, which survives a fork."""


def torch_gpus(torch: Any, devices: Sequence[Device]) -> tuple[str, Problem | None]:
    """Whether torch sees as many GPUs as are held; ROCm's build calls them CUDA's, too."""
    if any(device.slice for device in devices):
        # For a slice torch initialises CUDA, and the process could not fork any more. The gate has counted slices.
        return "", None
    with _environment({_NVML: "1"}):
        available, count = bool(torch.cuda.is_available()), int(torch.cuda.device_count())
    if not available or count != len(devices):
        visible = os.environ.get("CUDA_VISIBLE_DEVICES", "")
        sentence = f"torch {torch.__version__} sees {count} of the step's {len(devices)} GPUs"
        fix = f"leave CUDA_VISIBLE_DEVICES as Stoker set it (it is {visible!r} now)"
        if getattr(torch.version, "cuda", None) is None and getattr(torch.version, "hip", None) is None:
            sentence, fix = f"torch {torch.__version__} was built for the CPU only", "install torch in a build for CUDA"
            return "", Problem(cause=status.NO_GPU_BUILD, sentence=sentence, fix=fix)
        return "", Problem(cause=status.NO_GPU, sentence=sentence, fix=fix)
    return f"it sees {count}, as leased", None


def tensorflow_gpus(tensorflow: Any, devices: Sequence[Device]) -> tuple[str, Problem | None]:
    """Whether TensorFlow sees as many GPUs as are held."""
    count = len(tensorflow.config.list_physical_devices("GPU"))
    if count == (1 if any(device.parent for device in devices) else len(devices)):  # CUDA shows one slice at a time
        return f"it sees {count}, as leased", None
    version = tensorflow.__version__
    if count:
        fix = "leave CUDA_VISIBLE_DEVICES as Stoker set it"
        sentence = f"tensorflow {version} sees {count} of the step's {len(devices)} GPUs"
        return "", Problem(cause=status.NO_GPU, sentence=sentence, fix=fix)
    # TensorFlow logs "Cannot dlopen some GPU libraries" and computes on the CPU.
    sentence = f"tensorflow {version} sees none of the step's {len(devices)} GPUs; without CUDA's libraries it cannot"
    fix = f'pip install "tensorflow[and-cuda]=={version}", and see what it says of libraries in the step\'s log'
    return "", Problem(cause=status.NO_GPU_BUILD, sentence=sentence, fix=fix)


def jax_platforms(*names: str) -> FrameworkCheck:
    """A check whether JAX may use one of these platforms."""

    def ask(jax: Any, devices: Sequence[Device]) -> tuple[str, Problem | None]:
        configured = os.environ.get("JAX_PLATFORMS", "")
        if configured and not set(names) & {part.strip() for part in configured.split(",")}:
            sentence = f"JAX_PLATFORMS={configured} keeps jax from the step's devices"
            return "", Problem(cause=status.NO_GPU, sentence=sentence, fix="take JAX_PLATFORMS out of the environment")
        return "unproved: jax takes the device's memory when it is first asked; its packages are right", None

    return ask


@contextlib.contextmanager
def _environment(added: Mapping[str, str]) -> Iterator[None]:
    before = {name: os.environ.get(name) for name in added}
    os.environ.update(added)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
