"""The account of a step's accelerators, made from its samples: the verdict with its evidence, and advice. Pure but for
`read`.

A verdict says only what the driver told. What was not measured is None, or `unknown`.
"""

from __future__ import annotations

from typing import Final, Iterable, Iterator, Mapping, Sequence, TypeVar

import attrs

from stoker.core.accelerators import MODELS
from stoker.core.receipt import Receipt, Use, Verdict
from stoker.core.resources import ResourceSettings
from stoker.devices.idleness import sentence, span, worked
from stoker.devices.samples import Samples, cores, longest_idle, processes_on, read, tracks, use_of

__all__ = ["Samples", "read", "receipt_of", "tracks"]

WINDOW: Final = 1.0
"""Seconds that a step must have run for "no utilisation" to mean anything: NVML's is a mean over up to 1 s, from 1/6 s:
https://docs.nvidia.com/deploy/nvml-api/structnvmlUtilization__t.html"""

TICKS: Final = 0.1
"""Seconds below which a mean of CPU time, which is counted in hundredths, is none."""

SIMULATED: Final = "the devices are simulated: nothing was measured on them"


def receipt_of(
    samples: Samples,
    *,
    asked: str = "",
    resources: ResourceSettings | None = None,
    status: str = "",
    seconds: float | None = None,
    proved: Mapping[str, str] | None = None,
    fallback: str = "",
) -> Receipt:
    """The receipt of one attempt.

    `asked` is the request in words and `resources` the request itself, for advice, which only a step that succeeded
    gets (`status` "succeeded" or not given). `seconds`: how long the attempt ran, where the caller knows it better than
    the sampler. `fallback` says why it ran without the devices that it asked for.
    """
    uses = tuple(use_of(samples, device) for device in samples.devices)
    verdict, evidence = _judged(samples, uses, fallback)
    mean, highest = _cpus(samples)
    memory = _memory_peak(samples)
    alone = longest_idle(samples)
    energies = [use.energy for use in uses]
    told = [energy for energy in energies if energy is not None]
    return Receipt(
        verdict=verdict,
        evidence=(*evidence, *_events(samples, uses)),
        asked=asked,
        started=float(samples.header.get("started") or 0.0),
        seconds=samples.seconds if seconds is None else seconds,
        interval=samples.interval,
        devices=uses,
        cpus_mean=mean,
        cpus_peak=highest,
        memory_mean=_memory_mean(samples),
        memory_peak=memory,
        energy=sum(told) if told and len(told) == len(energies) else None,
        advice=advice(samples, uses, resources, (mean, highest), memory) if status in {"", "succeeded"} else (),
        fallback=fallback,
        stopped=next((str(event["stop"]) for event in samples.events if "stop" in event), ""),
        left_idle=sentence(len(uses), alone, samples.idle_below) if uses and alone >= samples.idle_for else "",
        simulated=samples.simulated,
        whole=samples.end is not None,
        proved=dict(proved or {}),
    )


def _judged(samples: Samples, uses: Sequence[Use], fallback: str) -> tuple[Verdict, list[str]]:
    if fallback:
        return "cpu-fallback", [f"it ran without an accelerator: {fallback}"]
    if samples.simulated:
        return "unknown", [SIMULATED]
    strays = _strays(samples)
    if strays:
        held = ", ".join(label(use) for use in uses)
        return "wrong-device", [
            f"its processes computed on {uuid}, which it does not hold (it holds {held})" for uuid in strays
        ] + [_found(samples, use)[1] for use in uses]
    if not uses:
        return "unknown", ["the step held no device" if samples.header else "there are no samples of the step"]
    found = [_found(samples, use) for use in uses]
    verdicts = {verdict for verdict, _ in found}
    evidence = [text for _, text in found]
    worst: Sequence[Verdict] = ("idle", "unknown", "used")
    return next(verdict for verdict in worst if verdict in verdicts), evidence


def _found(samples: Samples, use: Use) -> tuple[Verdict, str]:
    """One device's verdict, and the sentence on which it rests."""
    name, below = label(use), f"{samples.idle_below:g} %"
    there = processes_on(samples, use.uuid)
    if not use.samples:
        return "unknown", f"{name}: there is no sample of it"
    if use.utilization_peak is None:
        return "unknown", f"{name}: the driver does not tell its utilisation{_context(use, there)}"
    peak = f"{name}: utilisation {use.utilization_peak:g} % at most"
    if use.utilization_peak < samples.idle_below:
        if samples.seconds < WINDOW:
            ran = f"the step ran {samples.seconds:.2g} s, and the driver's figure is a mean over up to {WINDOW:g} s"
            return "unknown", f"{peak}; {ran}"
        return "idle", f"{peak}, never {below} or more, in {use.samples} samples{_context(use, there)}"
    if there == 0:
        # Short-lived processes may slip between two samples, so that a few samples prove nothing.
        if use.samples < 3:
            return "unknown", f"{peak}, but none of the step's processes was seen there in {use.samples} samples"
        return "idle", f"{peak}, but by others: none of the step's processes was there in {use.samples} samples"
    mean = f", {use.utilization_mean:.0f} % on average" if use.utilization_mean is not None else ""
    return "used", f"{peak}{mean}{_context(use, there)}"


def _context(use: Use, there: int | None) -> str:
    """What the list of the device's processes proves: a context, which is not yet work."""
    if there is None:
        return ""
    if not there:
        return "; none of the step's processes was there"
    held = f" with {gigabytes(use.own_memory_peak)} of its memory" if use.own_memory_peak else ""
    return f"; the step's processes had a context there{held}"


def _strays(samples: Samples) -> list[str]:
    return list(dict.fromkeys(str(uuid) for event in samples.events for uuid in event.get("strays", ())))


def _events(samples: Samples, uses: Sequence[Use]) -> Iterator[str]:
    """What the driver reported meanwhile, each once."""
    names = {use.uuid: label(use) for use in uses}
    found: dict[str, float] = {}
    for event in samples.events:
        t = float(event.get("t", 0.0))
        if "failed" in event:
            text = f"{names.get(event['failed'], event['failed'])}: the driver failed: {event.get('why', '')}"
        elif "xid" in event:
            text = f"{names.get(event.get('uuid', ''), event.get('uuid', ''))}: the driver reported Xid {event['xid']}"
        elif "ecc" in event:
            text = f"{names.get(event['ecc'], event['ecc'])}: the driver reported an uncorrectable memory error"
        else:
            continue
        found.setdefault(text, t)
    for text, t in found.items():
        yield f"{text} (after {span(t)})"


def _cpus(samples: Samples) -> tuple[float | None, float | None]:
    """Cores in use, mean and highest; None for what was too short to count."""
    told = [moment for moment in samples.moments if moment.get("cpu") is not None]
    if len(told) < 2:
        return None, None
    seconds = float(told[-1]["t"]) - float(told[0]["t"])
    if seconds < TICKS:
        return None, None
    mean = (float(told[-1]["cpu"]) - float(told[0]["cpu"])) / seconds
    return mean, max((used for _, used in cores(told, PEAK_WINDOW)), default=mean)


def _memory_peak(samples: Samples) -> int | None:
    return max((int(moment["rss"]) for moment in samples.moments if moment.get("rss") is not None), default=None)


def _memory_mean(samples: Samples) -> float | None:
    told = [float(moment["rss"]) for moment in samples.moments if moment.get("rss") is not None]
    return sum(told) / len(told) if told else None


SHORTEST: Final = 10.0
"""Seconds that a step must have run: of one that was over sooner, start-up is most of what was seen."""

PEAK_WINDOW: Final = 1.0
"""Seconds over which the highest use of CPUs is a mean: the kernel counts it in hundredths of a second."""

# Thresholds of our own: less than half used is worth a word, and a GPU's memory only where a much smaller one would do.
HALF: Final = 0.5
QUARTER: Final = 0.25
BUSY: Final = 0.85
SLOWED: Final = 0.1
GIGABYTE: Final = 10**9
LARGE: Final = 16 * GIGABYTE
"""Of a device that has less, there is hardly a smaller one to ask for."""


def advice(
    samples: Samples,
    uses: Sequence[Use],
    resources: ResourceSettings | None,
    cpus: tuple[float | None, float | None],
    memory: int | None,
) -> tuple[str, ...]:
    """Sentences on CPUs, memory, the devices' memory, waiting for data, and heat. `cpus`: cores, mean and highest."""
    if samples.seconds < SHORTEST:
        return ()
    measured = [use for use in uses if not use.simulated]
    return (
        *_cpu_advice(resources, *cpus),
        *_memory_advice(resources, memory),
        *(sentence for use in measured for sentence in _device_advice(use, resources)),
        *_starved(samples, measured, resources),
    )


def label(use: Use) -> str:
    """A device for a person: "A100-80GB 0"."""
    return f"{use.model or use.kind} {use.index}"


def gigabytes(size: float) -> str:
    """Bytes for a person: "9.1 GB"; decimal, as vendors count."""
    text = f"{size / GIGABYTE:.1f}" if size >= GIGABYTE / 20 else f"{size / GIGABYTE:.3f}"
    return f"{text} GB"


def _cpu_advice(resources: ResourceSettings | None, mean: float | None, highest: float | None) -> Iterator[str]:
    asked = resources.get("cpu_count") if resources is not None else None
    if asked is None or mean is None or highest is None:
        return
    if highest <= HALF * asked and asked - highest >= 1:
        yield f"asked for {asked:g} CPUs, used {mean:.1f} on average, {highest:.1f} at most"


def _memory_advice(resources: ResourceSettings | None, highest: int | None) -> Iterator[str]:
    asked = resources.get("memory") if resources is not None else None
    if asked and highest is not None and highest <= HALF * asked and asked - highest >= GIGABYTE:
        yield f"asked for {asked / GIGABYTE:.3g} GB of memory, peak {gigabytes(highest)}"


def _device_advice(use: Use, resources: ResourceSettings | None) -> Iterator[str]:
    part = resources.get("gpu_memory") if resources is not None and resources.get("share") else None
    highest = use.own_memory_peak if use.own_memory_peak is not None or part else use.memory_peak
    if part and highest is not None and highest <= HALF * part:
        yield f"asked for {part / GIGABYTE:.3g} GB of {label(use)}, peak {gigabytes(highest)}"
    elif not part and use.memory >= LARGE and highest is not None and highest <= QUARTER * use.memory:
        size = _as_sold(use)
        article = "an" if str(size)[0] == "8" else "a"
        yield f"asked for {article} {size} GB GPU ({label(use)}), peak {gigabytes(highest)}"
    for reason in ("thermal", "hardware slowdown", "power brake"):
        if (share := use.throttled.get(reason, 0.0)) >= SLOWED:
            why = "heat" if reason == "thermal" else f"its hardware ({reason})"
            hot = f", at up to {use.temperature_peak:.0f} °C" if use.temperature_peak is not None else ""
            yield f"{label(use)} was slowed down by {why} in {share:.0%} of the samples{hot}"


def _starved(samples: Samples, uses: Sequence[Use], resources: ResourceSettings | None) -> Iterator[str]:
    """Devices that wait while all CPUs work: the data comes too slowly."""
    asked = resources.get("cpu_count") if resources is not None else None
    limit = asked or samples.header.get("cpus")
    taken = dict(cores(samples.moments, PEAK_WINDOW))
    for use in uses:
        if not limit or use.idle is None or use.idle < HALF:
            continue
        rows = [(t, row) for t, span, row in samples.of(use.uuid) if span and row is not None and t in taken]
        waiting = [taken[t] for t, row in rows if worked(row, samples.idle_below) is False]
        if waiting and (mean := sum(waiting) / len(waiting)) >= BUSY * limit:
            yield (
                f"{label(use)} was idle {use.idle:.0%} of the time while {mean:.1f} of {limit:g} CPUs worked: it seems "
                "to wait for data; ask for more CPUs, or prepare the data in a step before"
            )


def _as_sold(use: Use) -> int:
    """The GB by which a GPU is known: an H100 of 80 GB has 85.5 GB less what its driver keeps."""
    known = MODELS[use.model].memory if use.model in MODELS else ()
    near = [size for size in known if abs(size - use.memory) <= 0.15 * use.memory]
    return round((near[0] if near else use.memory) / GIGABYTE)


Number = TypeVar("Number", int, float)

WORST_FIRST: Final[tuple[Verdict, ...]] = ("wrong-device", "idle", "cpu-fallback", "unknown", "used")


def together(receipts: Sequence[Receipt]) -> Receipt:
    """One receipt for all nodes, the head's first. A sum of which one node lacks its part is None."""
    head = receipts[0]
    if len(receipts) == 1:
        return head
    return attrs.evolve(
        head,
        verdict=min((receipt.verdict for receipt in receipts), key=WORST_FIRST.index),
        evidence=tuple(f"node {node}: {text}" for node, one in enumerate(receipts) for text in one.evidence),
        devices=tuple(use for receipt in receipts for use in receipt.devices),
        cpus_mean=_sum(receipt.cpus_mean for receipt in receipts),
        cpus_peak=_sum(receipt.cpus_peak for receipt in receipts),
        memory_mean=_sum(receipt.memory_mean for receipt in receipts),
        memory_peak=_sum(receipt.memory_peak for receipt in receipts),
        energy=_sum(receipt.energy for receipt in receipts),
        advice=tuple(dict.fromkeys(text for receipt in receipts for text in receipt.advice)),
        fallback=next((receipt.fallback for receipt in receipts if receipt.fallback), ""),
        stopped=next((receipt.stopped for receipt in receipts if receipt.stopped), ""),
        left_idle=next((receipt.left_idle for receipt in receipts if receipt.left_idle), ""),
        whole=all(receipt.whole for receipt in receipts),
    )


def _sum(parts: Iterable[Number | None]) -> Number | None:
    known = list(parts)
    told = [part for part in known if part is not None]
    return sum(told[1:], told[0]) if told and len(told) == len(known) else None
