"""A cluster's partitions with their limits, and its nodes in groups of equal ones, as Slurm's commands print them.

Fields are those of `sinfo` and `scontrol` from Slurm 20.11 to 25.05 (https://slurm.schedmd.com/sinfo.html,
https://slurm.schedmd.com/scontrol.html); a missing one is no limit.
"""

from __future__ import annotations

import os
import re
import time
from typing import Final, Iterator, Mapping, Sequence
from weakref import WeakKeyDictionary

import attrs

from stoker.backends.base.logins import NOT_FOUND, Login
from stoker.backends.base.platforms import Away
from stoker.core.errors import BackendError

FRESH: Final = 60.0
"""Seconds for which facts are kept: a cluster changes by the day, a plan is made in seconds."""
UNLIMITED: Final = float("inf")
_GROUPS: Final = ("sinfo", "--all", "--noheader", "--exact", "--format=%R|%D|%c|%m|%d|%f|%G|%T|%N")
_PARTITIONS: Final = ("scontrol", "--all", "--oneliner", "show", "partition")
_CONFIG: Final = ("scontrol", "show", "config")
_ENVIRONMENT: Final = ("env",)
_NOTHING: Final = frozenset({"", "(null)", "N/A", "NONE", "n/a", "(null type)"})
_WHOLE: Final = re.compile(r"[0-9]{1,20}")
"""Slurm's numbers have 64 bits: at most 20 digits."""
_FACTORS: Final = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}
"""Suffixes of a count of GRES: https://slurm.schedmd.com/gres.conf.html#OPT_Count"""


@attrs.frozen(kw_only=True)
class Gres:
    """A generic resource of each node of a group."""

    name: str
    """Such as "gpu"."""
    type: str
    """Such as "h100"; empty where it has none."""
    count: int


@attrs.frozen(kw_only=True)
class Group:
    """Nodes of a partition that are alike; the values are those of each node."""

    partition: str
    nodes: int
    """How many they are."""
    cpus: int
    memory: int
    """MiB."""
    disk: int
    """MiB."""
    features: frozenset[str]
    gres: tuple[Gres, ...]
    state: str
    names: str = ""
    """The nodes' names as Slurm lists them."""

    def has(self, name: str, type: str = "") -> int:
        """How many of a resource each node has, of a type or of any."""
        return sum(gres.count for gres in self.gres if gres.name == name and type in ("", gres.type))


@attrs.frozen(kw_only=True)
class Partition:
    """A partition, with its limits for one job."""

    name: str
    default: bool = False
    """Whether jobs that name no partition go to it."""
    state: str = "UP"
    nodes: int = 0
    least_nodes: int = 0
    most_nodes: float = UNLIMITED
    longest: float = UNLIMITED
    """The longest time limit of a job, in seconds."""
    usual: float = UNLIMITED
    """The time limit of a job that names none, in seconds."""
    node_cpus: float = UNLIMITED
    """CPUs of one node that a job may have."""
    node_memory: float = UNLIMITED
    """MiB of one node that a job may have."""
    qos: str = ""
    """Its own QOS, which may change the limits; empty without one."""
    accounts: frozenset[str] | None = None
    """Accounts that may use it; None for all."""
    denied_accounts: frozenset[str] = frozenset()
    qoses: frozenset[str] | None = None
    """QOS that may be used in it; None for all."""
    denied_qoses: frozenset[str] = frozenset()
    groups: tuple[Group, ...] = ()
    """Its nodes, as far as Slurm shows them."""

    @property
    def hidden(self) -> int:
        """How many of its nodes Slurm does not show now, such as cloud nodes that are off."""
        return max(0, self.nodes - sum(group.nodes for group in self.groups))


@attrs.frozen(kw_only=True)
class ClusterFacts:
    """A cluster, as far as plans need it."""

    partitions: Mapping[str, Partition]
    version: str = ""
    """Slurm's."""
    max_array: int = 1001
    """MaxArraySize."""
    routed: bool = False
    """Whether a plugin of the site's may send a job to another partition than the default one."""
    limited: bool = False
    """Whether the limits of accounts and QOS are enforced."""
    environment: Mapping[str, str] = attrs.field(factory=dict)
    """Options of sbatch by environment variables of the login, such as "SBATCH_PARTITION"."""

    @property
    def default(self) -> Partition | None:
        """The partition of jobs that name none."""
        return next((partition for partition in self.partitions.values() if partition.default), None)


_cache: WeakKeyDictionary[Login, tuple[float, ClusterFacts]] = WeakKeyDictionary()
_by_place: dict[tuple[str, ...], tuple[float, ClusterFacts]] = {}
"""What was read last of the cluster of a host, as this process's variables name it."""


def cluster_facts(login: Login) -> ClusterFacts:
    """The facts of a login's cluster, read at most once a minute.

    Raises `Away` where the host or the controller does not answer, `BackendError` where there is no Slurm.
    """
    read_at, facts = _cache.get(login, (-FRESH, None))
    if facts is None or time.monotonic() - read_at >= FRESH:
        facts = parse_facts(*(_output_of(login, command) for command in (_GROUPS, _PARTITIONS, _CONFIG, _ENVIRONMENT)))
        _cache[login] = (time.monotonic(), facts)
    return facts


def share_facts(login: Login, host: str | None) -> None:
    """Let later logins of a host have what one has read of its cluster."""
    if login in _cache:
        _by_place[_place(host)] = _cache[login]


def take_facts(login: Login, host: str | None) -> None:
    """Let a login of a host have what an earlier one has shared."""
    if login not in _cache and _place(host) in _by_place:
        _cache[login] = _by_place[_place(host)]


def _place(host: str | None) -> tuple[str, ...]:
    """What decides which cluster answers: the host, or here the commands and their variables."""
    if host is not None:
        return (host,)
    names = sorted(name for name in os.environ if name == "PATH" or name.startswith(("SLURM_", "SBATCH_")))
    return ("", *(f"{name}={os.environ[name]}" for name in names))


def parse_facts(groups: str, partitions: str, config: str, environment: str = "") -> ClusterFacts:
    """The facts in the commands' output."""
    config_values = {name: text for line in config.splitlines() for name, text in [_pair(line)] if name}
    by_partition: dict[str, list[Group]] = {}
    for group in _groups(groups):
        by_partition.setdefault(group.partition, []).append(group)
    by_name = {}
    for line in partitions.splitlines():
        partition = _partition(dict(re.findall(r"(\w+)=(\S*)", line)), by_partition)
        if partition is not None:
            by_name[partition.name] = partition
    plugins = (config_values.get("JobSubmitPlugins", ""), config_values.get("CliFilterPlugins", ""))
    return ClusterFacts(
        partitions=by_name,
        version=config_values.get("SLURM_VERSION", ""),
        max_array=int(_number(config_values.get("MaxArraySize", ""), 1001)),
        routed=any(text not in _NOTHING for text in plugins),
        limited=bool({"limits", "safe"} & set(config_values.get("AccountingStorageEnforce", "").split(","))),
        environment={name: text for name, text in map(_pair, environment.splitlines()) if name.startswith("SBATCH_")},
    )


def seconds(text: str) -> float:
    """The seconds of a time limit as Slurm writes it: "7-00:00:00", "00:30:00", "30:00", "UNLIMITED"."""
    days, dash, clock = text.rpartition("-")
    parts = clock.split(":")
    if not all(map(_WHOLE.fullmatch, parts)) or (dash and not _WHOLE.fullmatch(days)):
        return UNLIMITED
    hours, minutes, last = (["0"] * (3 - len(parts)) + parts)[:3]
    return int(days or 0) * 86400 + int(hours) * 3600 + int(minutes) * 60 + int(last)


def gres_of(text: str) -> tuple[Gres, ...]:
    """The resources of a text such as "gpu:h100:4(S:0-1),gpu:a100:2,neuron:16"; `no_consume` is part of no type."""
    entries = []
    for entry in re.split(r",(?![^(]*\))", text):
        words = re.sub(r"\(.*", "", entry.strip()).split(":")
        if words[0] in _NOTHING or words[0].startswith("("):
            continue
        amount = re.fullmatch(r"([0-9]{1,20})([KMGT]?)", words[-1]) if len(words) > 1 else None
        count = int(amount[1]) * _FACTORS[amount[2]] if amount is not None else 1
        types = [word for word in (words[1:-1] if amount is not None else words[1:]) if word != "no_consume"]
        entries.append(Gres(name=words[0], type=":".join(types), count=count))
    return tuple(entries)


def _output_of(login: Login, command: Sequence[str]) -> str:
    ran = login.run(command)
    if ran.code == NOT_FOUND:
        raise BackendError(
            f"there is no {command[0]} where Slurm's commands are to be called: {ran.err.strip()}",
            fix='name the login node: orchestrator = { flavor = "slurm", host = "ssh://login" }; or install Slurm\'s '
            "client, or put it on PATH (`module load slurm`)",
        )
    if ran.code:
        lines = ran.err.strip().splitlines() or ran.out.strip().splitlines() or [f"code {ran.code}"]
        raise Away(f"Slurm's controller does not answer: {lines[-1]}", fix="`scontrol ping` tells whether it is up")
    return ran.out


def _groups(text: str) -> Iterator[Group]:
    for line in text.splitlines():
        words = [word.strip() for word in line.split("|")]
        if len(words) != 9:
            continue
        partition, nodes, cpus, memory, disk, features, gres, state, names = words
        yield Group(
            partition=partition,
            nodes=int(_number(nodes)),
            cpus=int(_number(cpus)),
            memory=int(_number(memory)),
            disk=int(_number(disk)),
            features=_names(features) or frozenset(),
            gres=gres_of(gres),
            state=state.rstrip("*~#!%$@^-+").lower(),  # marks of its state, such as `*` for one that does not answer
            names=names,
        )


def _partition(fields: Mapping[str, str], groups: Mapping[str, Sequence[Group]]) -> Partition | None:
    name = fields.get("PartitionName", "")
    if not name:
        return None
    return Partition(
        name=name,
        default=fields.get("Default") == "YES",
        state=fields.get("State", "UP").upper(),
        nodes=int(_number(fields.get("TotalNodes", ""))),
        least_nodes=int(_number(fields.get("MinNodes", ""))),
        most_nodes=_number(fields.get("MaxNodes", ""), UNLIMITED),
        longest=seconds(fields.get("MaxTime", "")),
        usual=seconds(fields.get("DefaultTime", "")),
        node_cpus=_number(fields.get("MaxCPUsPerNode", ""), UNLIMITED),
        node_memory=_number(fields.get("MaxMemPerNode", ""), UNLIMITED) or UNLIMITED,
        qos="" if fields.get("QoS", "") in _NOTHING else fields["QoS"],
        accounts=_names(fields.get("AllowAccounts", "ALL")),
        denied_accounts=_names(fields.get("DenyAccounts", "")) or frozenset(),
        qoses=_names(fields.get("AllowQos", "ALL")),
        denied_qoses=_names(fields.get("DenyQos", "")) or frozenset(),
        groups=tuple(groups.get(name, ())),
    )


def _names(text: str) -> frozenset[str] | None:
    """Names between commas; None for all of them."""
    if text.upper() == "ALL":
        return None
    return frozenset(name for name in text.split(",") if name and name not in _NOTHING)


def _number(text: str, default: float = 0) -> float:
    """The number that a text begins with: "4", "4+", "4000M"."""
    match = _WHOLE.match(text)
    return int(match[0]) if match else default


def _pair(line: str) -> tuple[str, str]:
    name, mark, text = line.partition("=")
    return (name.strip(), text.strip()) if mark else ("", "")
