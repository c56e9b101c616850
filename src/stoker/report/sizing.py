"""What steps asked for and what they used in their last successful runs: what would do, and what that saves."""

from __future__ import annotations

import math
import statistics
import time
from functools import partial
from typing import Any, Callable, Final, Iterator, Mapping, Sequence

import attrs

from stoker.client import Run
from stoker.core.costs import HOUR, PriceList
from stoker.core.plan import Plan, StepPlan
from stoker.core.receipt import Receipt
from stoker.core.settings import StepSettings
from stoker.core.units import duration_text, size_text
from stoker.core.values import frozen
from stoker.store.rows import StepRow
from stoker.store.store import Store

LOOK_BACK: Final = 10
"""Successful runs of a step that are looked at."""
_ROOM: Final = 1.25
"""What is suggested of memory, for each byte that was used at most: a run with other data may need more."""
_TIME: Final = 2.0
"""What is suggested as a timeout, for each second that an attempt took at most."""
_NEAR: Final = 0.9
"""The part of a request above which it is near its end, so that more is suggested."""
_WORTH: Final = 0.8
"""The part of a request above which less is not worth a change."""
_STEPS: Final = ((4e9, 256e6), (math.inf, 1e9))
"""Sizes of memory up to a limit are rounded up to multiples of the second."""


@frozen(kw_only=True)
class Sizing:
    """One setting of a step that asks for more, or hardly more, than the step used."""

    step: str
    setting: str
    """Its dotted name, such as "resources.memory"."""
    origin: str
    """The place that gave it."""
    asked: float
    used: float
    """The peak of all runs."""
    runs: int
    """In how many successful runs that was measured."""
    suggested: float
    device_hours: float | None
    """Device hours that each run takes less; None where the setting is no accelerator."""
    saving: float | None
    """US dollars that each run takes less; None where there is no price."""
    how: str = "peak"

    def text(self, amount: float) -> str:
        """An amount of the setting in words."""
        return _WORDS[self.setting](amount)


_WORDS: Final[Mapping[str, Callable[[float], str]]] = {
    "resources.memory": lambda amount: size_text(round(amount)) if amount % 1e6 == 0 else f"{amount / 1e9:.2f}GB",
    "resources.cpu_count": "{:.3g}".format,
    "resources.gpu_count": "{:.0f}".format,
    "resources.accelerators": "{:.0f}".format,
    "timeout": lambda amount: duration_text(round(amount, 1)),
}


@attrs.frozen(kw_only=True)
class _Use:
    """What one successful run of a step used; None for what nothing measured."""

    seconds: float
    memory: float | None
    cores: float | None
    mean_cores: float | None
    devices: int | None


def sizings(store: Store, run: Run, plan: Plan, prices: PriceList | None, only: str | None = None) -> Iterator[Sizing]:
    """What the steps of a run might ask for instead, by their last successful runs."""
    for step in plan.steps:
        if only is None or step.key == only:
            rows = store.records.earlier_steps(plan.pipeline, step.key, before=time.time(), limit=5 * LOOK_BACK)
            uses = [_use_of(store, row) for row in rows if row.status == "succeeded" and row.ended and row.started]
            yield from _of_step(step, uses[:LOOK_BACK], prices)


def origin_of(step: StepPlan, setting: str) -> str:
    """The place that gave a step a setting, without those that it overrides."""
    return step.origins.get(setting, "").partition("  (over")[0]


def _use_of(store: Store, row: StepRow) -> _Use:
    receipts = [one.receipt for one in store.records.receipts(row.run_id, key=row.key)]
    receipt = receipts[-1] if receipts and not receipts[-1].simulated else None
    seconds = (row.ended or 0.0) - (row.started or 0.0)
    cpu, peak = row.usage.get("cpu"), row.usage.get("peak")
    peaks = [size for size in (peak, receipt and receipt.memory_peak) if isinstance(size, (int, float))]
    alone = row.count is None and seconds > 0 and isinstance(cpu, (int, float))
    return _Use(
        seconds=seconds,
        memory=max(peaks, default=None),
        cores=None if receipt is None else receipt.cpus_peak,
        mean_cores=cpu / seconds if cpu is not None and alone else None,
        devices=None if receipt is None else _devices_used(receipt),
    )


def _devices_used(receipt: Receipt) -> int | None:
    """How many of the devices computed at any time; None where one does not tell, or the step had none."""
    peaks = [use.utilization_peak for use in receipt.devices]
    return None if not peaks or None in peaks else sum(bool(peak) for peak in peaks)


def _of_step(step: StepPlan, uses: Sequence[_Use], prices: PriceList | None) -> Iterator[Sizing]:
    resources = step.settings.resources
    hours = statistics.median(use.seconds for use in uses) / HOUR if uses else 0.0
    sized = partial(_sizing, step, hours, prices)
    single = resources.node_count == 1 and not step.mapped
    if single and resources.get("memory"):
        yield from sized("resources.memory", resources.get("memory"), [use.memory for use in uses])
    if single and resources.get("cpu_count"):
        peaks, how = [use.cores for use in uses], "peak"
        if not any(peaks):  # without devices nothing samples the cores
            peaks, how = [use.mean_cores for use in uses], "mean"
        yield from sized("resources.cpu_count", resources.get("cpu_count"), peaks, how=how)
    if single and resources.gpus_per_node > 1 and not resources.get("share"):
        setting = "resources.accelerators" if resources.get("accelerators") else "resources.gpu_count"
        yield from sized(setting, resources.gpus_per_node, [use.devices for use in uses])
    if step.settings.timeout and not step.mapped:
        yield from sized("timeout", step.settings.timeout, [use.seconds for use in uses])


def _sizing(
    step: StepPlan,
    hours: float,
    prices: PriceList | None,
    setting: str,
    asked: float,
    figures: Sequence[float | None],
    *,
    how: str = "peak",
) -> Iterator[Sizing]:
    measured = [figure for figure in figures if figure is not None]
    if not measured or setting not in step.origins:
        return
    used = max(measured)
    suggested = _suggested(setting, used, how)
    few = setting in ("resources.cpu_count", *_DEVICES)
    more = used > _NEAR * asked and not few
    if not (more or (suggested < asked if few else suggested < _WORTH * asked)) or suggested == asked:
        return
    smaller = _with(step.settings, setting, suggested)
    saving = None
    if prices is not None and smaller is not None:
        before, after = prices.hourly(step.settings), prices.hourly(smaller)
        saving = None if isinstance(before, str) or isinstance(after, str) else (before - after) * hours
    yield Sizing(
        step=step.key,
        setting=setting,
        origin=origin_of(step, setting),
        asked=asked,
        used=used,
        runs=len(measured),
        suggested=suggested,
        device_hours=(asked - suggested) * hours if setting in _DEVICES else None,
        saving=saving,
        how=how,
    )


_DEVICES: Final = ("resources.gpu_count", "resources.accelerators")


def _suggested(setting: str, used: float, how: str) -> float:
    if setting == "resources.memory":
        unit = next(unit for limit, unit in _STEPS if used * _ROOM <= limit)
        return math.ceil(used * _ROOM / unit) * unit
    if setting == "timeout":
        return math.ceil(max(used * _TIME, 60.0) / 60.0) * 60.0
    if setting == "resources.cpu_count":
        return max(1, math.ceil(used if how == "peak" else used * 1.5))
    return max(1, used)


def _with(settings: StepSettings, setting: str, value: float) -> StepSettings | None:
    """The settings with another value of a resource; None for a setting that costs nothing."""
    if not setting.startswith("resources."):
        return None
    name, resources = setting.partition(".")[2], settings.resources
    changed: dict[str, Any] = {name: value}
    if name == "accelerators":
        changed[name] = tuple(attrs.evolve(kind, count=int(value)) for kind in resources.get("accelerators"))
        changed["gpu_count"] = None
    return attrs.evolve(settings, resources=attrs.evolve(resources, **changed))
