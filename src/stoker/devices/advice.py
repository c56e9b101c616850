"""What a step asked for beside what it used, in sentences. Pure; says nothing of what was not measured."""

from __future__ import annotations

from typing import Final, Iterator, Sequence

from stoker.core.accelerators import MODELS
from stoker.core.receipt import Use
from stoker.core.resources import ResourceSettings
from stoker.devices.idleness import worked
from stoker.devices.samples import Samples, cores

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
        *_cpus(resources, *cpus),
        *_memory(resources, memory),
        *(sentence for use in measured for sentence in _device(use, resources)),
        *_starved(samples, measured, resources),
    )


def label(use: Use) -> str:
    """A device for a person: "A100-80GB 0"."""
    return f"{use.model or use.kind} {use.index}"


def gigabytes(size: float) -> str:
    """Bytes for a person: "9.1 GB"; decimal, as vendors count."""
    text = f"{size / GIGABYTE:.1f}" if size >= GIGABYTE / 20 else f"{size / GIGABYTE:.3f}"
    return f"{text} GB"


def _cpus(resources: ResourceSettings | None, mean: float | None, highest: float | None) -> Iterator[str]:
    asked = resources.get("cpu_count") if resources is not None else None
    if asked is None or mean is None or highest is None:
        return
    if highest <= HALF * asked and asked - highest >= 1:
        yield f"asked for {asked:g} CPUs, used {mean:.1f} on average, {highest:.1f} at most"


def _memory(resources: ResourceSettings | None, highest: int | None) -> Iterator[str]:
    asked = resources.get("memory") if resources is not None else None
    if asked and highest is not None and highest <= HALF * asked and asked - highest >= GIGABYTE:
        yield f"asked for {asked / GIGABYTE:.3g} GB of memory, peak {gigabytes(highest)}"


def _device(use: Use, resources: ResourceSettings | None) -> Iterator[str]:
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
