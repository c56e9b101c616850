"""The receipt of a step's accelerators, made from its samples: the verdict with its evidence, and advice. Pure except
for `read`.

A verdict rests on what the driver reported. What was not measured is None or `unknown`.
"""

from __future__ import annotations

from typing import Final, Iterable, Iterator, Mapping, Sequence, TypeVar

import attrs

from stoker.core.accelerators import MODELS
from stoker.core.receipt import Receipt, Use, Verdict, model_text, number_of
from stoker.core.resources import ResourceSettings
from stoker.core.words import count_text
from stoker.devices.idleness import has_worked, sentence, span
from stoker.devices.samples import Samples, cores, longest_idle, processes_on, read, tracks, use_of

__all__ = ["Samples", "read", "receipt_of", "tracks"]

WINDOW: Final = 1.0
"""Seconds that a step must have run for "no utilisation" to mean anything: NVML's is a mean over up to 1 s, from 1/6 s:
https://docs.nvidia.com/deploy/nvml-api/structnvmlUtilization__t.html"""

TICKS: Final = 0.1
"""Seconds below which no mean of CPU time is reported: the kernel counts it in hundredths of a second."""

SHORTEST: Final = 10.0
"""Seconds that a step must have run to get advice: start-up dominates a shorter one."""

PEAK_WINDOW: Final = 1.0
"""Seconds over which the highest use of CPUs is a mean: the kernel counts it in hundredths of a second."""

# Stoker's own thresholds: advice where less than half is used, or less than a quarter of a GPU's memory.
HALF: Final = 0.5
QUARTER: Final = 0.25
BUSY: Final = 0.85
SLOWED: Final = 0.1
GIGABYTE: Final = 10**9
LARGE: Final = 16 * GIGABYTE
"""Bytes of memory below which no smaller device is advised: there hardly is one."""

WORST_FIRST: Final[tuple[Verdict, ...]] = ("wrong-device", "idle", "cpu-fallback", "unknown", "used")

SIMULATED: Final = "the devices are simulated: nothing was measured on them"

Number = TypeVar("Number", int, float)


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

    `asked` is the request in words, `resources` the request itself. Only a step that succeeded gets advice (`status` is
    "succeeded" or empty). `seconds` is the attempt's duration, where the caller knows it better than the sampler.
    `fallback` says why it ran without the devices that it asked for.
    """
    uses = tuple(use_of(samples, device) for device in samples.devices)
    verdict, evidence = _verdict_of(samples, uses, fallback)
    mean, highest = _cpus(samples)
    memory = _memory_peak(samples)
    idle_seconds = longest_idle(samples)
    energies = [use.energy for use in uses]
    known_energies = [energy for energy in energies if energy is not None]
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
        energy=sum(known_energies) if known_energies and len(known_energies) == len(energies) else None,
        advice=advice(samples, uses, resources, (mean, highest), memory) if status in {"", "succeeded"} else (),
        fallback=fallback,
        stopped=next((str(event["stop"]) for event in samples.events if "stop" in event), ""),
        left_idle=sentence(len(uses), idle_seconds, samples.idle_below)
        if uses and idle_seconds >= samples.idle_for
        else "",
        simulated=samples.simulated,
        whole=samples.end is not None,
        proved=dict(proved or {}),
    )


def _verdict_of(samples: Samples, uses: Sequence[Use], fallback: str) -> tuple[Verdict, list[str]]:
    if fallback:
        return "cpu-fallback", [f"it ran without an accelerator: {fallback}"]
    if samples.simulated:
        return "unknown", [SIMULATED]
    strays = _strays(samples)
    if strays:
        names = ", ".join(label(use) for use in uses)
        return "wrong-device", [
            f"its processes computed on {uuid}, which it does not hold (it holds {names})" for uuid in strays
        ] + [_device_verdict(samples, use)[1] for use in uses]
    if not uses:
        return "unknown", ["the step held no device" if samples.header else "there are no samples of the step"]
    verdicts_and_evidence = [_device_verdict(samples, use) for use in uses]
    verdicts = {verdict for verdict, _ in verdicts_and_evidence}
    evidence = [text for _, text in verdicts_and_evidence]
    worst: Sequence[Verdict] = ("idle", "unknown", "used")
    return next(verdict for verdict in worst if verdict in verdicts), evidence


def _device_verdict(samples: Samples, use: Use) -> tuple[Verdict, str]:
    """One device's verdict and the evidence for it."""
    name, below = label(use), f"{samples.idle_below:g} %"
    counts = processes_on(samples, use.uuid)
    process_count = max(counts, default=None)
    if not use.samples:
        return "unknown", f"{name}: there is no sample of it"
    if use.utilization_peak is None:
        return "unknown", f"{name}: the driver does not tell its utilisation{_context(use, process_count)}"
    peak = f"{name}: utilisation {use.utilization_peak:g} % at most"
    if use.utilization_peak < samples.idle_below:
        if samples.seconds < WINDOW:
            ran = f"the step ran {samples.seconds:.2g} s, and the driver's figure is a mean over up to {WINDOW:g} s"
            return "unknown", f"{peak}; {ran}"
        return "idle", f"{peak}, never {below} or more, in {use.samples} samples{_context(use, process_count)}"
    if process_count == 0:
        # Processes may run between two looks, of which the first and the last are before and after them.
        looks = count_text(len(counts), "look")
        if len(counts) < 3:
            return "unknown", f"{peak}, but none of the step's processes was seen there in {looks}"
        return "idle", f"{peak}, but by others: none of the step's processes was there in {looks}"
    mean = f", {use.utilization_mean:.0f} % on average" if use.utilization_mean is not None else ""
    return "used", f"{peak}{mean}{_context(use, process_count)}"


def _context(use: Use, process_count: int | None) -> str:
    """What the list of the device's processes shows: a context, which is not yet work."""
    if process_count is None:
        return ""
    if not process_count:
        return "; none of the step's processes was there"
    memory = f" with {gigabytes(use.own_memory_peak)} of its memory" if use.own_memory_peak else ""
    return f"; the step's processes had a context there{memory}"


def _strays(samples: Samples) -> list[str]:
    return list(dict.fromkeys(str(uuid) for event in samples.events for uuid in event.get("strays", ())))


def _events(samples: Samples, uses: Sequence[Use]) -> Iterator[str]:
    """The events that the driver reported, each once."""
    names = {use.uuid: label(use) for use in uses}
    first_times: dict[str, float] = {}
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
        first_times.setdefault(text, t)
    for text, t in first_times.items():
        yield f"{text} (after {span(t)})"


def _cpus(samples: Samples) -> tuple[float | None, float | None]:
    """Cores in use, mean and highest; None for a step that was too short to measure."""
    moments = [moment for moment in samples.moments if moment.get("cpu") is not None]
    if len(moments) < 2:
        return None, None
    seconds = float(moments[-1]["t"]) - float(moments[0]["t"])
    if seconds < TICKS:
        return None, None
    mean = (float(moments[-1]["cpu"]) - float(moments[0]["cpu"])) / seconds
    return mean, max((used for _, used in cores(moments, PEAK_WINDOW)), default=mean)


def _memory_peak(samples: Samples) -> int | None:
    return max((int(moment["rss"]) for moment in samples.moments if moment.get("rss") is not None), default=None)


def _memory_mean(samples: Samples) -> float | None:
    sizes = [float(moment["rss"]) for moment in samples.moments if moment.get("rss") is not None]
    return sum(sizes) / len(sizes) if sizes else None


def advice(
    samples: Samples,
    uses: Sequence[Use],
    resources: ResourceSettings | None,
    cpus: tuple[float | None, float | None],
    memory: int | None,
) -> tuple[str, ...]:
    """Advice on CPUs, memory, the devices' memory, waiting for data, and heat. `cpus` are cores, mean and highest."""
    if samples.seconds < SHORTEST:
        return ()
    measured = [use for use in uses if not use.simulated]
    return (
        *_cpu_advice(resources, *cpus),
        *_memory_advice(resources, memory),
        *(sentence for use in measured for sentence in _device_advice(use, resources)),
        *_starvation_advice(samples, measured, resources),
    )


def label(use: Use) -> str:
    """A device for a person: "A100-80GB 0", "A100-80GB/1g.10gb MIG-5c2f3a10"."""
    return f"{model_text(use) or use.kind} {number_of(use)}"


def gigabytes(size: float) -> str:
    """Bytes for a person: "9.1 GB"; decimal, as vendors count."""
    text = f"{size / GIGABYTE:.1f}" if size >= GIGABYTE / 20 else f"{size / GIGABYTE:.3f}"
    return f"{text} GB"


def _cpu_advice(resources: ResourceSettings | None, mean: float | None, highest: float | None) -> Iterator[str]:
    requested = resources.get("cpu_count") if resources is not None else None
    if requested is None or mean is None or highest is None:
        return
    if highest <= HALF * requested and requested - highest >= 1:
        yield f"asked for {requested:g} CPUs, used {mean:.1f} on average, {highest:.1f} at most"


def _memory_advice(resources: ResourceSettings | None, highest: int | None) -> Iterator[str]:
    requested = resources.get("memory") if resources is not None else None
    if requested and highest is not None and highest <= HALF * requested and requested - highest >= GIGABYTE:
        yield f"asked for {requested / GIGABYTE:.3g} GB of memory, peak {gigabytes(highest)}"


def _device_advice(use: Use, resources: ResourceSettings | None) -> Iterator[str]:
    share_memory = resources.get("gpu_memory") if resources is not None and resources.get("share") else None
    highest = use.own_memory_peak if use.own_memory_peak is not None or share_memory else use.memory_peak
    if share_memory and highest is not None and highest <= HALF * share_memory:
        yield f"asked for {share_memory / GIGABYTE:.3g} GB of {label(use)}, peak {gigabytes(highest)}"
    elif not share_memory and use.memory >= LARGE and highest is not None and highest <= QUARTER * use.memory:
        size = _nominal_size(use)
        article = "an" if str(size)[0] == "8" else "a"
        yield f"asked for {article} {size} GB GPU ({label(use)}), peak {gigabytes(highest)}"
    for reason in ("thermal", "hardware slowdown", "power brake"):
        if (share := use.throttled.get(reason, 0.0)) >= SLOWED:
            why = "heat" if reason == "thermal" else f"its hardware ({reason})"
            hot = f", at up to {use.temperature_peak:.0f} °C" if use.temperature_peak is not None else ""
            yield f"{label(use)} was slowed down by {why} in {share:.0%} of the samples{hot}"


def _starvation_advice(samples: Samples, uses: Sequence[Use], resources: ResourceSettings | None) -> Iterator[str]:
    """Advice for devices that are idle while all CPUs work: they wait for data."""
    requested = resources.get("cpu_count") if resources is not None else None
    limit = requested or samples.header.get("cpus")
    cores_at = dict(cores(samples.moments, PEAK_WINDOW))
    for use in uses:
        if not limit or use.idle is None or use.idle < HALF:
            continue
        rows = [(t, row) for t, span, row in samples.of(use.uuid) if span and row is not None and t in cores_at]
        waiting = [cores_at[t] for t, row in rows if has_worked(row, samples.idle_below) is False]
        if waiting and (mean := sum(waiting) / len(waiting)) >= BUSY * limit:
            yield (
                f"{label(use)} was idle {use.idle:.0%} of the time while {mean:.1f} of {limit:g} CPUs worked: it seems "
                "to wait for data; ask for more CPUs, or prepare the data in a step before"
            )


def _nominal_size(use: Use) -> int:
    """The GB in a GPU's name: an H100 of 80 GB has 85.5 GB less what its driver keeps."""
    sizes = MODELS[use.model].memory if use.model in MODELS else ()
    near = [size for size in sizes if abs(size - use.memory) <= 0.15 * use.memory]
    return round((near[0] if near else use.memory) / GIGABYTE)


def together(receipts: Sequence[Receipt]) -> Receipt:
    """One receipt for all nodes, the head's first. A sum is None where one node does not know its part."""
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
    values = list(parts)
    numbers = [part for part in values if part is not None]
    return sum(numbers[1:], numbers[0]) if numbers and len(numbers) == len(values) else None
