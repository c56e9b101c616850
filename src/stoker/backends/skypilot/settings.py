"""The settings of the skypilot backend: what SkyPilot is asked for, and how long what it makes lives.

The words of a SkyPilot task (https://docs.skypilot.co/en/latest/reference/yaml-spec.html) and of ZenML's SkyPilot
settings keep their names. A field that is not given is `UNSET`. How they become a task is
`backends.skypilot.requests`; what they ask for in the words of `ResourceSettings` is `resources_of`.
"""

from __future__ import annotations

import math
import re
from collections.abc import Set as AbstractSet
from typing import Any, ClassVar, Final, Iterable, Mapping

import attrs

from stoker.core import units
from stoker.core.accelerators import Accelerator
from stoker.core.errors import SettingsError
from stoker.core.units import (
    UNSET,
    WHOLE_RUN,
    parse_flag,
    parse_mapping,
    parse_number,
    parse_positive_count,
    parse_python,
    parse_text,
    parse_texts,
    strict,
)

GB: Final = 1_000_000_000
IDLE_MINUTES: Final = 10
"""Minutes without a step after which a cluster goes away by itself."""
CLUSTERS: Final = 4
"""Clusters of one kind that a run has at once."""
PATIENCE: Final = 300.0
"""Seconds for which the program on a cluster waits for the driver's next order."""
DISK_TIERS: Final = ("low", "medium", "high", "ultra", "best")
CLOUDS: Final = (
    *("aws", "azure", "cudo", "do", "fluidstack", "gcp", "hyperbolic", "ibm", "k8s", "kubernetes", "lambda", "mithril"),
    *("nebius", "oci", "paperspace", "primeintellect", "runpod", "scp", "seeweb", "shadeform", "slurm", "ssh", "vast"),
    *("verda", "vsphere", "yotta"),
)
"""The clouds of SkyPilot 0.14.1, by its schema. A later release may have more: a name that is near none of these is
left to it."""
CLOUD_NAMES: Final = {
    **dict.fromkeys(("amazon", "amazon web services", "ec2"), "aws"),
    **dict.fromkeys(("google", "google cloud", "googlecloud", "gce"), "gcp"),
    **dict.fromkeys(("microsoft", "microsoft azure"), "azure"),
    **dict.fromkeys(("eks", "gke", "aks"), "k8s"),
    "digitalocean": "do",
    "oracle": "oci",
    "lambdalabs": "lambda",
    "lambdacloud": "lambda",
    "samsung": "scp",
    "vmware": "vsphere",
    "datacrunch": "verda",
    "vastai": "vast",
}
"""What people call a cloud → SkyPilot's name."""
NETWORK_TIERS: Final = ("standard", "best")
_CPUS: Final = re.compile(r"([0-9]+(?:\.[0-9]+)?)(\+?)")
_UNITS: Final = {"": 1, "GB": 1, "TB": 1024}
"""GB of each, as SkyPilot counts them."""
_MEMORY: Final = re.compile(r"([0-9]+(?:\.[0-9]+)?) ?([GT]B|)(\+?|x)", re.IGNORECASE)
_ACCELERATOR: Final = re.compile(r"[^:\s]+(?::[0-9.]+GB\+?)?(?::[0-9]+(?:\.[0-9]+)?)?", re.IGNORECASE)
""" "H100:8", "40GB+:1", "nvidia:40GB+:1"."""
_SWAPPED: Final = re.compile(r"([0-9]+)\s?[x×]\s?([A-Za-z][^:\s]*)")
_PORT: Final = re.compile(r"([0-9]{1,5})(?:-([0-9]{1,5}))?")
_CLUSTER: Final = re.compile(r"[A-Za-z](?:[A-Za-z0-9_.-]*[A-Za-z0-9])?")
"""https://github.com/skypilot-org/skypilot/pull/3130"""
_DISK: Final = re.compile(r"([0-9]+)(?:GB)?", re.IGNORECASE)


def parse_cpus(value: Any) -> Any:
    """ "4", "4+", 4."""
    if value is UNSET or value is None:
        return value
    match = _CPUS.fullmatch(_amount_text(value))
    if match is None:
        raise SettingsError(f"{value!r} is not a number of CPUs", fix='write "4" for exactly 4, "4+" for at least 4')
    return match[0]


def parse_memory(value: Any) -> Any:
    """ "16", "16+", "16GB+", 16, and "4x", which is so many times the CPUs; in GB."""
    if value is UNSET or value is None:
        return value
    match = _MEMORY.fullmatch(_amount_text(value))
    if match is None or (match[2] and match[3] == "x"):
        raise SettingsError(f"{value!r} is not an amount", fix='write "16" for exactly 16 GB, "16+" for at least 16')
    return f"{float(match[1]) * _UNITS[match[2].upper()]:g}{match[3]}"


def _amount_text(value: Any) -> str:
    if isinstance(value, bool):
        return ""
    return f"{value:g}" if isinstance(value, (int, float)) else str(value).strip()


def parse_accelerator_words(value: Any) -> Any:
    """`accelerators`: "V100:2" or {"V100": 2}; a list, of which the first that is to be had is taken; or a mapping or a
    set of several, of which the cheapest is: {"L4": 1, "T4": 4}, {"L4:1", "T4:4"}, as SkyPilot's files have it."""
    if value is UNSET or value is None:
        return value
    fix = 'write "V100:2", {"V100": 2}, or ["H100:8", "A100-80GB:8"]'
    if isinstance(value, str):
        return _accelerator(value, fix)
    if isinstance(value, (Mapping, AbstractSet)):
        counts = value if isinstance(value, Mapping) else dict.fromkeys(value)
        named = [_counted(_accelerator(name, fix), counts[name]) for name in counts]
        return named[0] if len(named) == 1 else dict.fromkeys(sorted(named))
    if isinstance(value, Iterable):
        return tuple(_accelerator(one, fix) for one in value)
    raise SettingsError(f"{value!r} names no accelerators", fix=fix)


def _counted(name: str, count: Any) -> str:
    if ":" not in name:
        return f"{name}:{1 if count is None else f'{units.number(count):g}'}"
    if count is not None:
        raise SettingsError(
            f"{name!r} has a number of its own, and is mapped to {count!r}", fix=f'write "{name}" alone'
        )
    return name


def _accelerator(value: Any, fix: str) -> str:
    text = value.strip() if isinstance(value, str) else ""
    swapped = _SWAPPED.fullmatch(text)
    if swapped is not None:
        fix = f'write "{swapped[2]}:{swapped[1]}"'
    if not _ACCELERATOR.fullmatch(text) or swapped is not None:
        raise SettingsError(f"{value!r} names no accelerator", fix=fix)
    return text


def parse_infra(value: Any) -> Any:
    """`infra`: CLOUD, CLOUD/REGION or CLOUD/REGION/ZONE, with * for any; a context of Kubernetes behind "k8s/"."""
    text = parse_text(value)
    if isinstance(text, str):
        _check_cloud(text.partition("/")[0])
    return text


def parse_cloud(value: Any) -> Any:
    """`cloud`."""
    text = parse_text(value)
    if isinstance(text, str):
        _check_cloud(text)
    return text


def _check_cloud(name: str) -> None:
    import difflib

    if ":" in name:
        raise SettingsError(f"{name!r} is no cloud", fix=f'write infra="{name.replace(":", "/")}"')
    known = {**dict.fromkeys(CLOUDS), **CLOUD_NAMES}
    close = difflib.get_close_matches(name.lower(), known, n=1, cutoff=0.6)
    if name.lower() not in CLOUDS and close:
        raise SettingsError(f"{name!r} is no cloud of SkyPilot, did you mean '{known[close[0]] or close[0]}'?")


def parse_gigabytes(value: Any) -> Any:
    """`disk_size`: a number of GB, or a size with a unit."""
    if value is UNSET or value is None:
        return value
    match = _DISK.fullmatch(str(value).strip())
    size = int(match[1]) if match is not None else -(-units.size(value) // GB)
    if isinstance(value, bool) or size < 1:
        raise SettingsError(f"{value!r} is no size of a disk", fix="write the number of GB, such as 256")
    return size


def parse_minutes(value: Any) -> Any:
    """Whole minutes, at least one: nothing here lives for ever."""
    if value is UNSET or value is None:
        return value
    minutes = units.count(value)
    if minutes < 1:
        raise SettingsError(f"{value!r} would leave clusters running for ever", fix="write at least 1 minute")
    return minutes


def parse_seconds(value: Any) -> Any:
    """A duration."""
    return value if value is UNSET or value is None else units.positive_duration(value)


def parse_disk_tier(value: Any) -> Any:
    """`disk_tier`."""
    return _one_of(value, DISK_TIERS)


def parse_network_tier(value: Any) -> Any:
    """`network_tier`."""
    return _one_of(value, NETWORK_TIERS)


def _one_of(value: Any, words: tuple[str, ...]) -> Any:
    if value is not UNSET and value is not None:
        units.one_of(value, *words)
    return value


def parse_alternatives(value: Any) -> Any:
    """`any_of` and `ordered`: mappings of resources."""
    if value is UNSET or value is None:
        return value
    if not isinstance(value, (list, tuple)) or not value or not all(isinstance(one, Mapping) for one in value):
        raise SettingsError(f"{value!r} is not a list of resources", fix='write [{"infra": "aws"}, {"infra": "gcp"}]')
    return tuple(parse_resources(one) for one in value)


def parse_resources(value: Any) -> Any:
    """`resources_settings`, and each of `any_of` and `ordered`: what is counted in them is a number; the rest is
    SkyPilot's to read."""
    words = parse_mapping(value)
    for name, parse in (("cpus", parse_cpus), ("memory", parse_memory), ("accelerators", parse_accelerator_words)):
        if words and name in words:
            try:
                parse(words[name])
            except SettingsError as error:
                raise SettingsError(f"{name}: {error.message}", fix=error.fix) from None
    return words


def parse_ports(value: Any) -> Any:
    """A port, a range, or a list of both."""
    if value is UNSET or value is None:
        return value
    ports = tuple(str(port).strip() for port in ([value] if isinstance(value, (str, int)) else value))
    for port in ports:
        match = _PORT.fullmatch(port)
        ends = [int(end) for end in match.groups() if end] if match is not None else [0]
        if not all(0 < end < 65536 for end in ends) or ends != sorted(ends):
            raise SettingsError(f"{port!r} is neither a port nor a range of ports", fix='write 8080, or "9000-9010"')
    return ports


def parse_cluster(value: Any) -> Any:
    """`cluster_name`."""
    text = parse_text(value)
    if isinstance(text, str) and not _CLUSTER.fullmatch(text):
        near = re.sub(r"[^A-Za-z0-9_.-]+", "-", text).lstrip("0123456789_.-").rstrip("_.-") or "training"
        raise SettingsError(
            f"{text!r} is no name of a cluster: SkyPilot takes letters, digits and _ . - behind a letter",
            fix=f'write "{near}"',
        )
    return text


def parse_recovery(value: Any) -> Any:
    """`job_recovery`: the name of a strategy, or a mapping with `strategy` and `max_restarts_on_errors`."""
    if isinstance(value, Mapping):
        return dict(value)
    return parse_text(value)


def parse_image_id(value: Any) -> Any:
    """`image_id`: one image, or one for each region."""
    return dict(value) if isinstance(value, Mapping) else parse_text(value)


def parse_variables(value: Any) -> Any:
    """Names → texts."""
    if value is UNSET or value is None:
        return value
    return {str(name): str(text) for name, text in (parse_mapping(value) or {}).items()}


@strict
@attrs.frozen(kw_only=True)
class SkypilotSettings:
    """Where SkyPilot looks for machines, what it asks them to have, and when they go away."""

    ALIASES: ClassVar[Mapping[str, str]] = {
        "idle_minutes": "idle_minutes_to_autostop",
        "spot": "use_spot",
        "gpus": "accelerators",
        "spot_recovery": "job_recovery",
    }
    """Another name that people know for a field → the field."""
    INSTEAD: ClassVar[Mapping[str, str]] = {
        "stream_logs": "nothing: what steps write is always shown and kept",
        "workdir": "nothing: the code is sent along as it was when the run began",
        "launch_settings": "retry_until_up, idle_minutes_to_autostop and down of these settings",
        "setup": "setup_commands",
        "autostop": "idle_minutes_to_autostop and down",
        "name": "task_name",
        "run": "nothing: the step is what runs",
    }
    """A name that people know from elsewhere → what to write."""

    infra: str | None = attrs.field(default=UNSET, converter=parse_infra)
    """Where: "aws", "gcp/us-central1", "k8s/my-context", "slurm/my-cluster"; every cloud that `sky check` has enabled
    where nothing is given."""
    cloud: str | None = attrs.field(default=UNSET, converter=parse_cloud)
    """One cloud, as the older form of `infra`."""
    region: str | None = attrs.field(default=UNSET, converter=parse_text)
    """A region of `cloud`."""
    zone: str | None = attrs.field(default=UNSET, converter=parse_text)
    """A zone of `region`."""
    instance_type: str | None = attrs.field(default=UNSET, converter=parse_text)
    """The machine's type, as its cloud calls it."""
    cpus: str | None = attrs.field(default=UNSET, converter=parse_cpus)
    """CPUs of each machine: "4" for exactly 4, "4+" for at least 4."""
    memory: str | None = attrs.field(default=UNSET, converter=parse_memory)
    """GB of each machine: "16", "16+"; "4x" is four times the CPUs."""
    accelerators: str | tuple[str, ...] | Mapping[str, None] | None = attrs.field(
        default=UNSET, converter=parse_accelerator_words
    )
    """ "V100:2", {"V100": 2}; of a list SkyPilot takes the first that is to be had, of a mapping or a set of several
    the cheapest."""
    accelerator_args: Mapping[str, Any] | None = attrs.field(default=UNSET, converter=parse_mapping)
    """Of a TPU: "runtime_version", "tpu_name", "tpu_vm"."""
    use_spot: bool | None = attrs.field(default=UNSET, converter=parse_flag)
    """Whether machines may be ones that the cloud can take away."""
    job_recovery: str | Mapping[str, Any] | None = attrs.field(default=UNSET, converter=parse_recovery)
    """How a managed job comes back after its machine was taken away."""
    disk_size: int | None = attrs.field(default=UNSET, converter=parse_gigabytes)
    """GB of the machine's disk."""
    disk_tier: str | None = attrs.field(default=UNSET, converter=parse_disk_tier)
    """How fast the disk is: "low", "medium", "high", "ultra", "best"."""
    network_tier: str | None = attrs.field(default=UNSET, converter=parse_network_tier)
    """How fast the network is: "standard", "best"."""
    local_disk: str | None = attrs.field(default=UNSET, converter=parse_text)
    """Disks inside the machine, such as "nvme:1000+"."""
    ports: tuple[str, ...] | None = attrs.field(default=UNSET, converter=parse_ports)
    """Ports that are opened."""
    labels: Mapping[str, str] | None = attrs.field(default=UNSET, converter=parse_variables)
    """Labels or tags of the machines, for bills."""
    any_of: tuple[Mapping[str, Any], ...] | None = attrs.field(default=UNSET, converter=parse_alternatives)
    """Alternatives, of which the cheapest is taken."""
    ordered: tuple[Mapping[str, Any], ...] | None = attrs.field(default=UNSET, converter=parse_alternatives)
    """Alternatives, of which the first that is to be had is taken."""
    image_id: str | Mapping[str, Any] | None = attrs.field(default=UNSET, converter=parse_image_id)
    """The machine's image, or "docker:IMAGE" for a container; the step's own image where it has one."""
    docker_run_args: tuple[str, ...] | None = attrs.field(default=UNSET, converter=parse_texts)
    """Further arguments of `docker run`. GPUs need none."""
    num_nodes: int | None = attrs.field(default=UNSET, converter=parse_positive_count)
    """Machines of one step, which run it together: `resources.nodes`."""
    max_hourly_cost: float | None = attrs.field(default=UNSET, converter=parse_number)
    """US dollars an hour that one step's machines may cost together; a dearer one is refused before anything starts."""
    max_run_cost: float | None = attrs.field(default=UNSET, converter=parse_number, metadata=WHOLE_RUN)
    """US dollars that the run may cost at most: the sum over its steps of price, attempts and timeout. A step without a
    timeout or without a known price is refused then."""
    cluster_name: str | None = attrs.field(default=UNSET, converter=parse_cluster)
    """A cluster of one's own: used where it is up, launched where it is not, and left to its autostop."""
    task_name: str | None = attrs.field(default=UNSET, converter=parse_text)
    """The task's name in SkyPilot's lists; the cluster's name where nothing is given."""
    managed: bool | None = attrs.field(default=UNSET, converter=parse_flag)
    """Whether SkyPilot's jobs controller launches the machines and brings them back when the cloud takes them away: for
    spot machines where nothing is given."""
    retry_until_up: bool | None = attrs.field(default=UNSET, converter=parse_flag)
    """Whether a cluster is tried again until some cloud has what it asks for."""
    idle_minutes_to_autostop: int | None = attrs.field(default=UNSET, converter=parse_minutes)
    """Minutes without a step after which a cluster goes away by itself, whatever became of its driver: 10."""
    down: bool | None = attrs.field(default=UNSET, converter=parse_flag)
    """Whether clusters are taken down when no further step asks for them, and by their autostop; otherwise they are
    left to their autostop, which stops them."""
    clusters: int | None = attrs.field(default=UNSET, converter=parse_positive_count)
    """Clusters of one kind that a run has at once, each for one step at a time: 4 where nothing is given."""
    patience: float | str | None = attrs.field(default=UNSET, converter=parse_seconds)
    """How long a cluster's program waits for the driver's next order: "5m" where nothing is given."""
    setup_commands: tuple[str, ...] | None = attrs.field(default=UNSET, converter=parse_texts)
    """Commands of a shell that prepare each machine, before the first step."""
    envs: Mapping[str, str] | None = attrs.field(default=UNSET, converter=parse_variables)
    """Variables of the task, `setup_commands` included."""
    secrets: tuple[str, ...] | None = attrs.field(default=UNSET, converter=parse_texts)
    """Names of the driver's variables that the task has, too: SkyPilot carries their values, and shows them nowhere."""
    file_mounts: Mapping[str, Any] | None = attrs.field(default=UNSET, converter=parse_mapping)
    """Paths there → files here, URIs of buckets, or SkyPilot's mappings."""
    resources_settings: Mapping[str, Any] | None = attrs.field(default=UNSET, converter=parse_resources)
    """Further fields of SkyPilot's resources, as they are."""
    task_settings: Mapping[str, Any] | None = attrs.field(default=UNSET, converter=parse_mapping)
    """Further fields of SkyPilot's task, as they are."""
    executable: str | None = attrs.field(default=UNSET, converter=parse_python)
    """The machines' Python, 3.10 or later: "python3" where nothing is given."""
    shares_files: bool | None = attrs.field(default=UNSET, converter=parse_flag, metadata=WHOLE_RUN)
    """Whether the machines see this machine's folders, so that the artifact store may be one."""
    sky: str | None = attrs.field(default=UNSET, converter=parse_text, metadata=WHOLE_RUN)
    """SkyPilot's command: a path, or a name on the PATH. "sky" where nothing is given."""
    api_server: str | None = attrs.field(default=UNSET, converter=parse_text, metadata=WHOLE_RUN)
    """The address of SkyPilot's API server; the one that `sky api login` has set, or one on this machine."""

    def get(self, name: str, default: Any = None) -> Any:
        """The field's value, or `default` where nothing is given."""
        value = getattr(self, name)
        return default if value is UNSET or value is None else value


def resources_of(options: Mapping[str, Any]) -> dict[str, Any]:
    """What settings ask for in the words of `ResourceSettings`: field there → (field here, value)."""
    settings = SkypilotSettings(**options)
    words: dict[str, Any] = {}
    if settings.get("cpus"):
        words["cpu_count"] = ("cpus", float(settings.get("cpus").rstrip("+")))
    if settings.get("memory") and not settings.get("memory").endswith("x"):
        words["memory"] = ("memory", round(float(settings.get("memory").rstrip("+")) * GB))
    kinds = alternatives(settings)
    if kinds:
        chips = [_known(kind) for kind in kinds]
        if all(chip is not None for chip in chips):
            words["accelerators"] = ("accelerators", tuple(chips))
        else:
            words["gpu_count"] = ("accelerators", count_of(kinds[0]))
    for name, field in (("nodes", "num_nodes"), ("spot", "use_spot")):
        if settings.get(field) is not None:
            words[name] = (field, settings.get(field))
    if settings.get("disk_size") is not None:
        words["disk"] = ("disk_size", settings.get("disk_size") * GB)
    return words


def alternatives(settings: SkypilotSettings) -> tuple[str, ...]:
    """The accelerators in SkyPilot's words, of which a machine has one kind."""
    kinds = settings.get("accelerators", ())
    return (kinds,) if isinstance(kinds, str) else tuple(kinds)


def count_of(accelerator: str) -> int:
    """The devices of SkyPilot's "NAME:COUNT", of which a part is one, too; 1 without a number."""
    match = re.search(r":([0-9]+(?:\.[0-9]+)?)$", accelerator)
    return math.ceil(float(match[1])) if match is not None else 1


def _known(text: str) -> Accelerator | None:
    """The accelerator of our catalog; None for a name that only SkyPilot knows."""
    try:
        chip = Accelerator.parse(text)
    except SettingsError:
        return None
    return attrs.evolve(chip, count=chip.count or 1)
