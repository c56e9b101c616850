"""A cluster's partitions with their limits, and its nodes in groups of equal ones, as Slurm's commands print them.

Fields are those of `sinfo` and `scontrol` from Slurm 20.11 to 25.05 (https://slurm.schedmd.com/sinfo.html,
https://slurm.schedmd.com/scontrol.html). What is missing, or is not understood, is not known: it refuses nothing.
"""

from __future__ import annotations

import contextlib
import os
import re
import time
from typing import Any, Callable, Final, Iterable, Iterator, Mapping, Sequence
from weakref import WeakKeyDictionary

import attrs

from stoker.backends.base.backend import NodeDevices, PlatformNode
from stoker.backends.base.logins import NOT_FOUND, Login, login
from stoker.backends.base.platforms import Away
from stoker.backends.slurm.settings import SlurmSettings
from stoker.backends.slurm.values import NOTHING, UNLIMITED, Gres, amount, gres_of, mebibytes, seconds
from stoker.core.errors import BackendError

FRESH: Final = 60.0
"""Seconds for which facts are kept: a cluster changes by the day, a plan is made in seconds."""
_GROUPS: Final = ("sinfo", "--all", "--noheader", "--exact", "--format=%R|%D|%c|%m|%d|%f|%G|%T|%N")
_PARTITIONS: Final = ("scontrol", "--all", "--oneliner", "show", "partition")
_CONFIG: Final = ("scontrol", "show", "config")
_ENVIRONMENT: Final = ("env",)


@attrs.frozen(kw_only=True)
class Group:
    """Nodes of a partition that are alike; the values are those of each node, and None where they are not known."""

    partition: str
    nodes: int
    """How many they are."""
    cpus: float | None
    memory: float | None
    """MiB."""
    disk: float | None
    """MiB."""
    features: frozenset[str]
    gres: tuple[Gres, ...]
    state: str
    """Slurm's word with its mark: "idle*" is one that does not answer, "idle~" one that is off."""
    names: str = ""
    """The nodes' names as Slurm lists them."""
    unread: Mapping[str, str] = attrs.field(factory=dict)
    """What of it is not understood: by what it would be, the text."""

    def has(self, name: str, type: str = "") -> float:
        """How many of a resource each node has at most, of a type or of any: no limit where that is not known."""
        counts = [gres.count for gres in self.gres if gres.name == name and type in ("", gres.type)]
        return sum(UNLIMITED if count is None else count for count in counts)


@attrs.frozen(kw_only=True)
class Partition:
    """A partition, with its limits for one job; a limit that is not understood is none."""

    name: str
    default: bool = False
    """Whether jobs that name no partition go to it."""
    state: str = ""
    """Empty where it is not told."""
    nodes: float | None = None
    """None where it is not known."""
    least_nodes: float = 0
    most_nodes: float = UNLIMITED
    longest: float | None = None
    """The longest time limit of a job, in seconds; None where it is not known."""
    usual: float | None = None
    """The time limit of a job that names none, in seconds; None where it is not known."""
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
    unread: Mapping[str, str] = attrs.field(factory=dict)
    """What of it is not understood: Slurm's name for it, and the text."""

    @property
    def hidden(self) -> float:
        """How many of its nodes Slurm does not show now, such as cloud nodes that are off; any where none is told."""
        return UNLIMITED if self.nodes is None else max(0, self.nodes - sum(group.nodes for group in self.groups))


@attrs.frozen(kw_only=True)
class ClusterFacts:
    """A cluster, as far as plans need it."""

    partitions: Mapping[str, Partition]
    version: str = ""
    """Slurm's."""
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
        routed=any(text not in NOTHING for text in plugins),
        limited=bool({"limits", "safe"} & set(config_values.get("AccountingStorageEnforce", "").split(","))),
        environment={name: text for name, text in map(_pair, environment.splitlines()) if name.startswith("SBATCH_")},
    )


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
        count = amount(nodes)
        if count is None:
            continue  # then the partition has nodes that are not seen
        numbers = {"CPUs": amount(cpus), "MB of memory": mebibytes(memory), "MB of disk": mebibytes(disk)}
        resources = gres_of(gres)
        unread = {name: text for (name, number), text in zip(numbers.items(), (cpus, memory, disk)) if number is None}
        if any(one.count is None for one in resources):
            unread["GRES"] = gres
        yield Group(
            partition=partition,
            nodes=int(count),
            cpus=numbers["CPUs"],
            memory=numbers["MB of memory"],
            disk=numbers["MB of disk"],
            features=_names(features) or frozenset(),
            gres=resources,
            state=state.lower(),
            names=names,
            unread=unread,
        )


def _partition(fields: Mapping[str, str], groups: Mapping[str, Sequence[Group]]) -> Partition | None:
    name = fields.get("PartitionName", "")
    if not name:
        return None
    unread: dict[str, str] = {}

    def read(field: str, parse: Callable[[str], float | None]) -> float | None:
        """The value of a field; None, too, for one that is not there."""
        value = parse(fields[field]) if field in fields else None
        if value is None and fields.get(field, "") not in NOTHING:
            unread[field] = fields[field]
        return value

    def most(field: str, parse: Callable[[str], float | None] = amount) -> float:
        value = read(field, parse)
        return UNLIMITED if value is None else value

    longest = read("MaxTime", seconds)
    return Partition(
        name=name,
        default=fields.get("Default") == "YES",
        state=fields.get("State", "").upper(),
        nodes=read("TotalNodes", amount),
        least_nodes=read("MinNodes", amount) or 0,
        most_nodes=most("MaxNodes"),
        longest=longest,
        usual=longest if fields.get("DefaultTime") == "NONE" else read("DefaultTime", seconds),
        node_cpus=most("MaxCPUsPerNode"),
        node_memory=most("MaxMemPerNode", mebibytes) or UNLIMITED,
        qos="" if fields.get("QoS", "") in NOTHING else fields["QoS"],
        accounts=_names(fields.get("AllowAccounts", "ALL")),
        denied_accounts=_names(fields.get("DenyAccounts", "")) or frozenset(),
        qoses=_names(fields.get("AllowQos", "ALL")),
        denied_qoses=_names(fields.get("DenyQos", "")) or frozenset(),
        groups=tuple(groups.get(name, ())),
        unread=unread,
    )


def _names(text: str) -> frozenset[str] | None:
    """Names between commas; None for all of them."""
    if text.upper() == "ALL":
        return None
    return frozenset(name for name in text.split(",") if name and name not in NOTHING)


def _pair(line: str) -> tuple[str, str]:
    name, mark, text = line.partition("=")
    return (name.strip(), text.strip()) if mark else ("", "")


# For `stoker top`


def nodes(options: Mapping[str, Any]) -> list[PlatformNode]:
    """The nodes of the cluster that these settings name; a `BackendError` where it does not answer."""
    with contextlib.closing(login(SlurmSettings(**options).get("host"))) as machine:
        facts = cluster_facts(machine)
    return nodes_of(group for partition in facts.partitions.values() for group in partition.groups)


def nodes_of(groups: Iterable[Group]) -> list[PlatformNode]:
    """The nodes of groups, in their order; nodes in several partitions are listed once."""
    alike: dict[tuple[str, str], list[Group]] = {}
    for group in groups:
        alike.setdefault((group.names, group.state), []).append(group)
    return [_node(same) for same in alike.values()]


def _node(same: Sequence[Group]) -> PlatformNode:
    group = same[0]
    unread = (f"{name}={text} is not understood" for name, text in group.unread.items())
    return PlatformNode(
        name=group.names,
        count=group.nodes,
        state=", ".join([group.state, *unread]),
        group=", ".join(one.partition for one in same),
        cpus=group.cpus,
        memory=None if group.memory is None else int(group.memory * 2**20),
        devices=tuple(
            # On a node that is idle without any mark no job runs. How many are taken on others, these commands do not
            # tell.
            NodeDevices(
                model=gres.type or gres.name, count=gres.count, free=gres.count if group.state == "idle" else None
            )
            for gres in group.gres
            if gres.count is not None
        ),
    )
