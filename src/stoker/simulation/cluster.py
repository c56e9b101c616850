"""The file that describes a cluster to simulate: its nodes, its queue, and what is known of the steps.

What the file does not say is not known: a price that is not given is no price of 0, and a step without a duration is
refused.
"""

from __future__ import annotations

import math
import random
import statistics
from pathlib import Path
from typing import Any, Final, Mapping, Sequence

import attrs

from stoker.core.accelerators import Accelerator
from stoker.core.errors import SettingsError
from stoker.core.resources import ResourceSettings
from stoker.core.status import CAUSES, CRASHED
from stoker.core.units import count as whole_number
from stoker.core.units import duration, number, one_of, positive_duration, strict, useful_size
from stoker.core.values import frozen
from stoker.stacks import parse_toml

POLICIES: Final = ("fifo", "backfill", "none")
P90: Final = 1.2815515655446004
"""The quantile of 0.9 of the normal distribution."""


@frozen(kw_only=True)
class Spread:
    """How long something takes: lognormal, with this median in seconds and this deviation of its logarithm (0: it
    always takes the median). Times of computations have long tails to the right, which it has, too."""

    median: float
    sigma: float = 0.0
    source: str = ""
    """Where it is from, such as "cluster.toml", or "12 attempts of earlier runs"."""

    @property
    def p90(self) -> float:
        """The seconds that nine of ten take at most."""
        return self.median * math.exp(P90 * self.sigma)

    def draw(self, random: random.Random) -> float:
        """Seconds."""
        return self.median * math.exp(self.sigma * random.gauss(0, 1)) if self.sigma else self.median

    @classmethod
    def of(cls, seconds: Sequence[float]) -> Spread:
        """The fit to measured times: median and deviation of their logarithms; of one, no deviation is known."""
        logs = [math.log(max(one, 1e-6)) for one in seconds]
        sigma = statistics.stdev(logs) if len(logs) > 1 else 0.0
        attempts = "1 attempt" if len(logs) == 1 else f"{len(logs)} attempts"
        return cls(median=math.exp(statistics.median(logs)), sigma=sigma, source=f"{attempts} of earlier runs")


def parse_spread(value: Any) -> Spread | None:
    """A duration such as "20min", or `{median = "20min", p90 = "1h"}`."""
    if value is None or isinstance(value, Spread):
        return value
    if not isinstance(value, Mapping):
        return Spread(median=duration(value))
    if set(value) != {"median", "p90"}:
        raise SettingsError(f"{dict(value)} is no duration", fix='write "20min", or {median = "20min", p90 = "1h"}')
    median, p90 = positive_duration(value["median"]), positive_duration(value["p90"])
    if p90 < median:
        raise SettingsError("p90 is shorter than the median", fix="nine of ten take p90 at most, five the median")
    return Spread(median=median, sigma=math.log(p90 / median) / P90)


def _parse_accelerators(value: Any) -> Accelerator | None:
    if value is None or isinstance(value, Accelerator):
        return value
    accelerator = Accelerator.parse(value)
    if accelerator.count is None:
        raise SettingsError(f"'{value}' does not say how many a node has", fix=f'write "{accelerator}:8"')
    return accelerator


def _not_negative(value: Any) -> float:
    """A number that may be 0."""
    return 0.0 if value == 0 else number(value)


def _parse_probability(value: Any) -> float:
    share = _not_negative(value)
    if share > 1:
        raise SettingsError(f"{value} is no probability", fix="write a number from 0 to 1")
    return share


def _parse_cause(value: Any) -> str:
    one_of(value, *CAUSES)
    return str(value)


def _parse_policy(value: Any) -> str:
    one_of(value, *POLICIES)
    return str(value)


def _seconds(value: Any) -> float | None:
    return None if value is None else positive_duration(value)


def _price(value: Any) -> float | None:
    return None if value is None else _not_negative(value)


def _elements(value: Any) -> int | None:
    return None if value is None else whole_number(value)


def _parse_count(value: Any) -> int:
    return whole_number(value, least=1)


@strict
@frozen(kw_only=True)
class Nodes:
    """Nodes that are alike."""

    name: str
    count: int = attrs.field(default=1, converter=_parse_count)
    cpus: float = attrs.field(converter=number)
    """Cores of each."""
    memory: int = attrs.field(converter=useful_size)
    """Bytes of each."""
    accelerators: Accelerator | None = attrs.field(default=None, converter=_parse_accelerators)
    """Those of each."""
    price: float | None = attrs.field(default=None, converter=_price)
    """USD an hour of each; None: not known."""
    mean_time_between_losses: float | None = attrs.field(default=None, converter=_seconds)
    """Of each, in seconds, if the platform takes them back (spot)."""
    notice: float = attrs.field(default=0.0, converter=duration)
    """Seconds before a loss in which nothing is started on the node any more."""
    mean_time_between_failures: float | None = attrs.field(default=None, converter=_seconds)
    """Of each, in seconds, if the hardware fails."""
    returns: float = attrs.field(default=600.0, converter=duration)
    """Seconds until another node takes the place of one that was lost."""

    @property
    def devices(self) -> int:
        """Accelerators of each."""
        return 0 if self.accelerators is None else self.accelerators.count or 0

    def devices_for(self, resources: ResourceSettings) -> int | None:
        """How many accelerators of a node a step gets that asks for these; None where it cannot run on these nodes."""
        if resources.get("spot") is False and self.mean_time_between_losses is not None:
            return None
        wanted = resources.gpus_per_node
        if not wanted:
            return 0
        mine = self.accelerators
        if mine is None or mine.memory < resources.get("gpu_memory", 0):
            return None
        vendor = resources.get("gpu_vendor")
        if vendor is not None and not mine.model.is_by(vendor):
            return None
        kinds = resources.get("accelerators", ())
        if kinds:
            alike = [one for one in kinds if (one.name, one.slice) == (mine.name, mine.slice)]
            if not alike:
                return None
            wanted = alike[0].count or wanted
        return wanted if wanted <= self.devices else None


@strict
@frozen(kw_only=True)
class Queue:
    """How jobs get to nodes."""

    policy: str = attrs.field(default="fifo", converter=_parse_policy)
    """ "fifo": in their order; "backfill": a later job goes first where it delays the first one in no way, by the
    medians of durations; "none": Stoker itself admits them, as on this machine."""
    start: Spread = attrs.field(default=Spread(median=0.0), converter=parse_spread)
    """From a place to the beginning of the step: image, environment, interpreter."""


@strict
@frozen(kw_only=True)
class StepFacts:
    """What is known of a step, by its name."""

    duration: Spread | None = attrs.field(default=None, converter=parse_spread)
    """Of an attempt that ends by itself; None: that of earlier runs."""
    elements: int | None = attrs.field(default=None, converter=_elements)
    """How many elements its outputs have for steps that map over them; None: as in the last run."""
    failure_rate: float = attrs.field(default=0.0, converter=_parse_probability)
    """The part of its attempts that fail, each at any moment of its time."""
    failure_cause: str = attrs.field(default=CRASHED, converter=_parse_cause)
    checkpoint: float | None = attrs.field(default=None, converter=_seconds)
    """Seconds between two checkpoints, from the last of which the next attempt goes on; None: it begins anew."""


@frozen(kw_only=True)
class ClusterFile:
    """A cluster, and what is known of steps."""

    nodes: tuple[Nodes, ...]
    queue: Queue = Queue()
    steps: Mapping[str, StepFacts] = attrs.field(factory=dict)


def read_cluster(path: str) -> ClusterFile:
    """The cluster of a TOML file; `SettingsError` with the table and the field where it is none."""
    try:
        text = Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise SettingsError(f"the cluster's file cannot be read: {error}", where=path) from None
    document = parse_toml(text, path)
    unknown = sorted(document.keys() - {"nodes", "queue", "steps"})
    if unknown:
        raise SettingsError(f"a cluster has no table '{unknown[0]}'", where=path, fix="write nodes, queue and steps")
    groups = document.get("nodes")
    if not isinstance(groups, list) or not groups:
        raise SettingsError("it has no nodes", where=path, fix="write [[nodes]] with name, cpus and memory")
    nodes = tuple(_made(Nodes, group, f"{path} [[nodes]] number {number}") for number, group in enumerate(groups, 1))
    queue = _made(Queue, document.get("queue", {}), f"{path} [queue]")
    steps = document.get("steps", {})
    if not isinstance(steps, dict):
        raise SettingsError("[steps] is not a table", where=path, fix='write [steps.train] with duration = "10min"')
    facts = {name: _made(StepFacts, fields, f"{path} [steps.{name}]") for name, fields in steps.items()}
    return ClusterFile(nodes=nodes, queue=queue, steps=facts)


def _made(kind: Any, fields: Any, where: str) -> Any:
    if not isinstance(fields, dict):
        raise SettingsError("it is not a table", where=where)
    missing = [
        field.name for field in attrs.fields(kind) if field.default is attrs.NOTHING and field.name not in fields
    ]
    if missing:
        raise SettingsError(f"{', '.join(missing)} is not given", where=where, fix=f"add {missing[0]} = …")
    try:
        return kind(**fields)
    except SettingsError as error:
        raise SettingsError(error.message, where=where, fix=error.fix) from None
