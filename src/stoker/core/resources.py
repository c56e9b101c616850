"""What a step asks of the hardware, in one vocabulary for all platforms; and how its devices are watched.

Says what is wanted and refuses what contradicts itself; whether a machine has it is the backend's and preflight's.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any, ClassVar, Final, Iterable, Literal, Mapping

import attrs

from stoker.core import units
from stoker.core.accelerators import VENDORS, Accelerator, parse_all, vendor_name, vendor_names
from stoker.core.errors import SettingsError, nearest
from stoker.core.units import UNSET, parse_flag, parse_number, parse_positive_count, parse_size, size_text, strict
from stoker.core.values import frozen

if TYPE_CHECKING:
    Accelerators = str | Accelerator | Mapping[str, int] | Iterable[str | Accelerator]
    from datetime import timedelta


_SHARING = (
    'ask for a part of one: gpu_memory="10GB" with share=True, or a MIG slice such as accelerators="A100-80GB/1g.10gb"'
)


def parse_cpus(value: float | str | None) -> float | None:
    """`cpu_count`; thousandths as Kubernetes writes them, "500m", are taken too."""
    if isinstance(value, str) and value.strip().endswith("m") and value.strip()[:-1].isdecimal():
        value = int(value.strip()[:-1]) / 1000
    return parse_number(value)


def parse_gpu_count(value: int | str | None) -> int | None:
    """`gpu_count`; a part of a GPU is refused with the ways to share one."""
    if value is None or value is UNSET:
        return value
    part = "." in str(value)
    try:
        return units.count(value)
    except SettingsError as error:
        raise SettingsError(error.message, fix=_SHARING if part else error.fix) from None


def parse_accelerators(value: Accelerators | None) -> tuple[Accelerator, ...] | None:
    """`accelerators`: ordered alternatives."""
    return value if value is None or value is UNSET else parse_all(value)


def parse_vendor(value: str | None) -> str | None:
    """`gpu_vendor`: a name of `vendors.registry`."""
    if value is None or value is UNSET:
        return value
    name = vendor_name(str(value).lower())
    if name not in VENDORS and name not in vendor_names():
        raise SettingsError(f"{value!r} is not a vendor of GPUs{nearest(str(value), vendor_names())}")
    return name


def parse_extended(value: Mapping[str, float | str] | None) -> Mapping[str, float] | None:
    """`extended`: a platform's own countable resources by their full names."""
    if value is None or value is UNSET:
        return value
    if not isinstance(value, Mapping):
        raise SettingsError(f"{value!r} does not map names to counts", fix='write {"example.com/fpga": 1}')
    amounts = {}
    for name, amount in value.items():
        try:
            amounts[str(name)] = units.number(amount)
        except SettingsError as error:
            raise SettingsError(f"{name}: {error.message}", fix=error.fix) from None
    return amounts


@strict
@frozen(kw_only=True)
class ResourceSettings:
    """What one node of a step gets. A field that is not given is `UNSET`; `None` takes back what weaker layers say.

    Sizes are "16GB", "16GiB", "16Gi", "1.5 GB" or a number of bytes.
    """

    INSTEAD: ClassVar[Mapping[str, str]] = {
        **dict.fromkeys(("cpu", "cpus", "cpu_limit", "cpu_request", "vcpus"), "cpu_count=4"),
        **dict.fromkeys(("gpu", "gpus"), "gpu_count=2, or accelerators='H100:2' for a model"),
        **dict.fromkeys(
            ("gpu_type", "gpu_model", "gpu_name", "accelerator_type", "accelerator_count", "accelerator_limit"),
            "accelerators='H100:2': the model, and how many",
        ),
        **dict.fromkeys(("mem", "ram", "memory_limit", "memory_request", "memory_gb"), "memory='16GB'"),
        **dict.fromkeys(("shm_size", "shm"), "shared_memory='8GB'"),
        **dict.fromkeys(("disk_size", "ephemeral_storage", "storage"), "disk='50GB'"),
        **dict.fromkeys(("num_nodes", "node_count", "replicas", "num_parallel"), "nodes=2"),
        **dict.fromkeys(("use_spot", "preemptible", "interruptible"), "spot=True"),
    }
    """A name that people know from elsewhere → what to write."""

    cpu_count: float | None = attrs.field(default=UNSET, converter=parse_cpus)
    """Cores; a part of one is a number such as 0.5, or "500m"."""
    gpu_count: int | None = attrs.field(default=UNSET, converter=parse_gpu_count)
    """Accelerators of any model."""
    memory: int | None = attrs.field(default=UNSET, converter=parse_size)
    """Bytes."""
    accelerators: tuple[Accelerator, ...] | None = attrs.field(default=UNSET, converter=parse_accelerators)
    """"H100:8", a MIG slice "A100-80GB/1g.10gb:2", or a list of alternatives in order."""
    gpu_memory: int | None = attrs.field(default=UNSET, converter=parse_size)
    """Bytes that each GPU must have at least; with `share` the step's part of one."""
    share: bool | None = attrs.field(default=UNSET, converter=parse_flag)
    """Whether other steps may use the same GPU."""
    gpu_vendor: str | None = attrs.field(default=UNSET, converter=parse_vendor)
    """A name of `vendors.registry`."""
    shared_memory: int | None = attrs.field(default=UNSET, converter=parse_size)
    """The size of `/dev/shm` in bytes."""
    disk: int | None = attrs.field(default=UNSET, converter=parse_size)
    """Bytes of free disk."""
    nodes: int | None = attrs.field(default=UNSET, converter=parse_positive_count)
    """Nodes that start together, each with all of this."""
    spot: bool | None = attrs.field(default=UNSET, converter=parse_flag)
    """Whether the machine may be one that the platform can take away."""
    extended: Mapping[str, float] | None = attrs.field(default=UNSET, converter=parse_extended)
    """A platform's own countable resources: `{"example.com/fpga": 1}`."""

    def __attrs_post_init__(self) -> None:
        _check(self)

    def get(self, name: str, default: Any = None) -> Any:
        """The field's value, or `default` where nothing was asked."""
        value = getattr(self, name)
        return default if value is UNSET or value is None else value

    @functools.cached_property
    def gpus_per_node(self) -> int:
        """How many accelerators each node must have, whatever their kind; 0 if none is asked for in any words."""
        counted = self.get("gpu_count")
        if counted is not None:
            return int(counted)
        kinds = self.get("accelerators", ())
        if kinds:
            return kinds[0].count or 1
        return 1 if self.get("gpu_memory") or self.get("gpu_vendor") or self.get("share") else 0

    @functools.cached_property
    def node_count(self) -> int:
        """How many nodes start together."""
        return int(self.get("nodes", 1))

    def __str__(self) -> str:
        return describe(self)


_NOUNS: Final[Mapping[str, str]] = {
    "tpu": "Google TPU chip",
    "neuron": "AWS Neuron device",
    "gaudi": "Intel Gaudi card",
}
"""What one accelerator of a vendor is called where it is no GPU."""


def describe(resources: ResourceSettings) -> str:
    """A request in words: "8 CPUs, 2 GPUs, 16GB"; "nothing in particular" for an empty one."""
    ask = resources.get
    words: list[str] = []
    if ask("cpu_count") is not None:
        words.append(_many(ask("cpu_count"), "CPU"))
    gpus = resources.gpus_per_node
    if ask("accelerators"):
        kinds = (attrs.evolve(kind, count=kind.count or gpus) for kind in ask("accelerators"))
        words.append(" or ".join(map(str, kinds)))
    elif gpus:
        vendor = VENDORS.get(ask("gpu_vendor", ""), ask("gpu_vendor", ""))
        noun = _NOUNS.get(ask("gpu_vendor", ""), f"{vendor} GPU".strip())
        words.append(f"{gpus} {noun}{'' if gpus == 1 else 's'}")
    elif ask("gpu_count") == 0:
        words.append("no GPU")
    if ask("gpu_memory"):
        words[-1] += f" ({size_text(ask('gpu_memory'))} {'of one, shared' if ask('share') else 'or more each'})"
    if ask("memory"):
        words.append(size_text(ask("memory")))
    for name, label in (("shared_memory", "shared memory"), ("disk", "disk")):
        if ask(name):
            words.append(f"{size_text(ask(name))} {label}")
    words += [f"{amount:g} {name}" for name, amount in ask("extended", {}).items()]
    if ask("spot"):
        words.append("spot")
    text = ", ".join(words) or "nothing in particular"
    nodes = ask("nodes", 1)
    return f"{nodes} nodes with {text} each" if nodes > 1 else text


def check_complete(resources: ResourceSettings) -> None:
    """Refuse a resolved request that lacks a part; before all layers are merged, the part may still come."""
    if resources.get("share") and not resources.get("gpu_memory"):
        raise SettingsError(
            "share=True does not say how much of a GPU is wanted", fix='give gpu_memory too, such as gpu_memory="10GB"'
        )


def _check(resources: ResourceSettings) -> None:
    gpus = resources.get("gpu_count")
    kinds: tuple[Accelerator, ...] = resources.get("accelerators", ())
    for kind in kinds:
        if gpus is not None and kind.count is not None and kind.count != gpus:
            raise SettingsError(
                f"gpu_count={gpus} and accelerators='{kind}' disagree",
                fix=f"give the count once: gpu_count={gpus or kind.count} and "
                f"accelerators='{attrs.evolve(kind, count=None)}'",
            )
        _check_kind(resources, kind)
    if gpus == 0:
        for name in ("accelerators", "gpu_memory", "share"):
            if resources.get(name):
                raise SettingsError(
                    f"gpu_count=0 and {name} disagree", fix=f"remove one of the two, or set {name}=None"
                )
    if resources.get("share") and resources.gpus_per_node > 1:
        raise SettingsError(
            f"share=True is a part of one GPU, not of {resources.gpus_per_node}", fix="ask for 1, or remove share"
        )


def _check_kind(resources: ResourceSettings, kind: Accelerator) -> None:
    gpu_memory = resources.get("gpu_memory")
    if gpu_memory is not None and gpu_memory > kind.memory:
        raise SettingsError(
            f"gpu_memory={size_text(gpu_memory)} and accelerators='{kind}' disagree: it has {size_text(kind.memory)}",
            fix="remove one of the two",
        )
    vendor = resources.get("gpu_vendor")
    if vendor is not None and not kind.model.is_by(vendor):
        raise SettingsError(
            f"gpu_vendor='{vendor}' and accelerators='{kind}' disagree: it is made by {kind.model.vendor}",
            fix="remove gpu_vendor",
        )


def _many(amount: float, word: str) -> str:
    return f"{amount:g} {word}{'' if amount == 1 else 's'}"


AcceleratorPolicy = Literal["require", "prefer"]
"""`require`: without its accelerators a step is refused. `prefer`: it runs on the CPU, and its receipt says so."""

OnIdle = Literal["warn", "fail", "stop", "ignore"]
"""What happens to a step whose devices stay idle: a warning, a failure at its end, an end at once, or nothing."""

HealthCheck = Literal["off", "quick"]
"""Whether devices do seconds of work before a run's first step on them, whose results are compared."""

SHORTEST: Final = 0.05
"""Seconds between two samples. NVML's own utilisation is a mean over 1/6 s to 1 s, so that less tells nothing more."""


def parse_interval(value: float | str | timedelta) -> float:
    """Seconds between two samples."""
    raw: Any = value
    if raw is UNSET:
        return raw  # type: ignore[no-any-return]
    seconds = units.duration(raw)
    if seconds < SHORTEST:
        raise SettingsError(f"{value!r} is too often to measure anything", fix=f"write {SHORTEST:g} seconds or more")
    return seconds


def parse_percent(value: float | str) -> float:
    """A part of 100."""
    raw: Any = value
    if raw is UNSET:
        return raw  # type: ignore[no-any-return]
    number = units.number(raw)
    if not 0 < number <= 100:
        raise SettingsError(f"{value!r} is not a percentage", fix="write a number above 0, up to 100")
    return number


def parse_window(value: float | str | timedelta) -> float:
    """Seconds without work after which a device counts as left idle."""
    raw: Any = value
    return raw if raw is UNSET else units.positive_duration(raw)


@strict
@frozen
class Monitor:
    """`Monitor(0.5)`: a sample of the step's devices every half a second.

    What is not given is `UNSET` until the layers are merged; then it is what `WATCHED` has.
    """

    interval: float = attrs.field(default=UNSET, converter=parse_interval)
    """Seconds between two samples."""
    idle_below: float = attrs.field(default=UNSET, converter=parse_percent, kw_only=True)
    """Percent of utilisation; a device with less is idle in that sample."""
    idle_for: float = attrs.field(default=UNSET, converter=parse_window, kw_only=True)
    """Seconds during which all of a step's devices are idle until `on_idle_gpu="stop"` ends it."""


# Ten minutes: loading data and compiling kernels take minutes; who pays by the second says less.
WATCHED: Final = Monitor(1.0, idle_below=5.0, idle_for=600.0)
