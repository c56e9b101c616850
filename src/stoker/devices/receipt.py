"""The account of a step's accelerators, made from its samples: the verdict with its evidence, and advice. Pure but for
`read`.

A verdict says only what the driver told. What was not measured is None, or `unknown`.
"""

from __future__ import annotations

from typing import Final, Iterator, Mapping, Sequence

from stoker.core.receipt import Receipt, Use, Verdict
from stoker.core.resources import ResourceSettings
from stoker.devices.advice import PEAK_WINDOW, advice, gigabytes, label
from stoker.devices.idleness import sentence, span
from stoker.devices.samples import Samples, cores, read, tracks
from stoker.devices.usage import longest_idle, processes_on, use_of

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
