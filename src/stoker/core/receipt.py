"""What a step did with its accelerators: the receipt that `devices.receipt` writes and everybody reads; and the proof
of them before the run: proved, refused, or not proved, with the facts and their sources.

A number that nothing measured is None, never 0: a driver that does not tell is no idle device. It has no words
either: the empty text, never "0".

`plan.proving` makes it, the plan keeps it with the step, and the gate in the job finds what is really there. Each class
is written as JSON by its fields: `{"verdict", "facts", "unknown", "refused"}`.
"""

from __future__ import annotations

from collections import Counter
from typing import Callable, ClassVar, Final, Iterable, Literal, Mapping, Sequence

import attrs

from stoker.core.accelerators import vendor_name
from stoker.core.words import memory_text

Verdict = Literal["used", "idle", "wrong-device", "cpu-fallback", "unknown"]
"""`used`: every device that the step held computed. `idle`: at least one did not. `wrong-device`: the step's processes
computed on a device that it does not hold. `cpu-fallback`: it asked for devices and ran without. `unknown`: the driver
does not tell."""

GateVerdict = Literal["fits", "unfit", "fallback", "simulated"]
"""What became of the devices in the job. `fits`: the gate proved them, and nothing said otherwise later. `unfit`: the
attempt ended because its driver, its devices or a framework's build did not fit. `fallback`: it ran without devices.
`simulated`: there was nothing to look at."""
ProofVerdict = Literal["proved", "refused", "not-proved"]
"""`proved`: every component of the step is known, and each fits. `refused`: one is known not to fit, and the plan is
refused. `not-proved`: none is known not to fit, and something about at least one is not known."""


@attrs.frozen(kw_only=True)
class Use:
    """One device, from the step's start to its end.

    Utilisation in percent of time in which a kernel ran (NVML's definition), memory in bytes, power in watts, energy in
    joules, temperature in °C, clock in MHz (of the multiprocessors), PCIe in bytes per second, shares of time from 0 to
    1, the rest in seconds. `slice` is the MIG profile; empty for a whole device. `memory_peak` counts everybody on the
    device, `own_memory_peak` the step's processes only. `throttled` maps a reason ("thermal", "power cap", …) to the
    share of samples in which it held.
    """

    uuid: str
    kind: str = attrs.field(converter=vendor_name)
    index: int
    model: str
    memory: int
    slice: str = ""
    simulated: bool = False
    samples: int = 0
    utilization_mean: float | None = None
    utilization_peak: float | None = None
    idle: float | None = None
    first_use: float | None = None
    longest_idle: float | None = None
    memory_mean: float | None = None
    memory_peak: int | None = None
    own_memory_peak: int | None = None
    power_mean: float | None = None
    power_peak: float | None = None
    energy: float | None = None
    temperature_peak: float | None = None
    clock_mean: float | None = None
    pcie_received: float | None = None
    pcie_sent: float | None = None
    throttled: Mapping[str, float] = attrs.field(factory=dict)


@attrs.frozen(kw_only=True)
class Receipt:
    """One attempt's account of its accelerators. `evidence` are the sentences on which the verdict rests.

    `asked` is the request in words. `cpus_mean` and `cpus_peak` are cores in use, `memory_mean` and `memory_peak` bytes
    of the step's processes together. `interval` is the seconds between samples. `whole`: the sampler saw the step's end
    (False for one that was killed with it). `stopped` says why the monitor ended the step, if it did. `left_idle` says
    for how long none of the devices worked, where that was `Monitor.idle_for` or longer. `fallback` says why the step
    had no device. `proved` are the facts that the gate found, by name, as text. `predicted` is the verdict of the
    plan's proof, None for a step without one; `prediction` is that proof in a line. `found` is what became of it in the
    job; None where the job ended before the gate could look. `placement` has "job", "id", "task", "node", "partition"
    and "url" on a platform with a queue, in which it waited for `queue_seconds`; None where that is not known.
    `data_seconds` it waited with its devices for its data (of several nodes, the longest); None where it asks for none.
    `lost_seconds` of work after the last checkpoint failures ended, and for `restart_seconds` its launcher started
    ranks again; None where nothing failed, or that is not known.
    """

    LATE: ClassVar = {"ProofVerdict": "stoker.core.receipt"}
    verdict: Verdict
    evidence: tuple[str, ...] = ()
    asked: str = ""
    started: float = 0.0
    seconds: float = 0.0
    interval: float = 1.0
    devices: tuple[Use, ...] = ()
    cpus_mean: float | None = None
    cpus_peak: float | None = None
    memory_mean: float | None = None
    memory_peak: int | None = None
    energy: float | None = None
    advice: tuple[str, ...] = ()
    fallback: str = ""
    stopped: str = ""
    left_idle: str = ""
    simulated: bool = False
    whole: bool = True
    proved: Mapping[str, str] = attrs.field(factory=dict)
    predicted: ProofVerdict | None = None
    prediction: str = ""
    found: GateVerdict | None = None
    placement: Mapping[str, str] = attrs.field(factory=dict)
    queue_seconds: float | None = None
    data_seconds: float | None = None
    lost_seconds: float | None = None
    restart_seconds: float | None = None


@attrs.frozen(kw_only=True)
class Track:
    """One quantity over time, thinned for a chart: `values[i]` is the mean of what was measured around `times[i]`.

    `name` is "utilization", "memory", "power", "temperature", "clock", "own_memory", "pcie_received", "pcie_sent" of a
    device (`uuid`), or "cpus" and "memory" of the step's processes (`uuid` empty). `times` are seconds after the
    step's start; a value that the driver did not tell is None. `peak` is the highest measured, before thinning.
    """

    name: str
    uuid: str = ""
    times: tuple[float, ...] = ()
    values: tuple[float | None, ...] = ()
    peak: float | None = None


# Receipts as a person reads them


WATT_HOUR: Final = 3600.0
"""Joules."""


@attrs.frozen(kw_only=True)
class Totals:
    """What several devices, or several receipts, come to; None where nothing was measured.

    `utilization_mean` weighs every device by the time for which it was watched; `energy` is None if one device kept
    its own for itself. `first_use` is that of the first device that computed; `longest_idle` the longest of any.
    `memory_peak` is of the device that was the fullest, `memory` that device's size. `seconds` is of all receipts.
    """

    utilization_mean: float | None = None
    utilization_peak: float | None = None
    memory_peak: int | None = None
    memory: int = 0
    energy: float | None = None
    first_use: float | None = None
    longest_idle: float | None = None
    seconds: float = 0.0


def totals(receipts: Iterable[Receipt]) -> Totals:
    """The figures of one receipt's devices, or of those of many."""
    all_receipts = list(receipts)
    uses = [use for receipt in all_receipts for use in receipt.devices]
    weights = [receipt.seconds or 1.0 for receipt in all_receipts for _ in receipt.devices]
    means = [(weight, use.utilization_mean) for weight, use in zip(weights, uses) if use.utilization_mean is not None]
    watched = sum(weight for weight, _ in means)
    fullest = max(
        (use for use in uses if use.memory_peak is not None),
        key=lambda use: ((use.memory_peak or 0) / (use.memory or 1), use.memory_peak or 0),
        default=None,
    )
    return Totals(
        utilization_mean=sum(weight * mean for weight, mean in means) / watched if means else None,
        utilization_peak=max((use.utilization_peak for use in uses if use.utilization_peak is not None), default=None),
        memory_peak=None if fullest is None else fullest.memory_peak,
        memory=0 if fullest is None else fullest.memory,
        energy=_sum([_energy(receipt) for receipt in all_receipts if receipt.devices]),
        first_use=min((use.first_use for use in uses if use.first_use is not None), default=None),
        longest_idle=max((use.longest_idle for use in uses if use.longest_idle is not None), default=None),
        seconds=sum(receipt.seconds for receipt in all_receipts),
    )


def summary(receipt: Receipt) -> str:
    """A few words for a table: "used 2 × H100-80GB, 87 %"."""
    mean = percent_text(totals([receipt]).utilization_mean)
    devices = devices_text(receipt.devices)
    if receipt.verdict == "cpu-fallback":
        return "cpu-fallback" + (f": asked for {receipt.asked}" if receipt.asked else "")
    verdict = f"{receipt.verdict} {devices}" if receipt.verdict == "used" else f"{receipt.verdict}: {devices}"
    return ", ".join(filter(None, (verdict.rstrip(": "), mean, prediction_text(receipt))))


_FOUND: Final[Mapping[str | None, str]] = {
    "fits": "found to fit",
    "unfit": "found unfit",
    "fallback": "ran without",
    "simulated": "simulated",
    None: "not looked at",
}


def prediction_text(receipt: Receipt) -> str:
    """What was known before the run, and what the job found: "proved, found to fit"; empty where nothing was."""
    if receipt.predicted is None or receipt.found == "simulated":
        return ""
    return f"{receipt.predicted.replace('-', ' ')}, {_FOUND[receipt.found]}"


def summary_of(receipts: Sequence[Receipt]) -> str:
    """The same of several together: "98 used, 2 idle, 85 %"."""
    if len(receipts) == 1:
        return summary(receipts[0])
    mean = percent_text(totals(receipts).utilization_mean)
    return ", ".join(filter(None, (verdicts_text(receipts), mean)))


def devices_text(uses: Iterable[Use]) -> str:
    """The devices by model: "2 × H100-80GB, 1 × L4 (simulated)"; one that occurs twice is counted once."""
    by_uuid = {use.uuid: use for use in uses}
    counts = Counter(map(model_text, by_uuid.values()))
    simulated = " (simulated)" if by_uuid and all(use.simulated for use in by_uuid.values()) else ""
    return ", ".join(f"{count} × {model}" for model, count in counts.items()) + simulated


def verdicts_text(receipts: Sequence[Receipt]) -> str:
    """The verdict of one; of many how often each was given: "98 used, 2 idle"."""
    counts = Counter(receipt.verdict for receipt in receipts)
    if len(receipts) == 1:
        return receipts[0].verdict
    return ", ".join(f"{count:,} {verdict}" for verdict, count in counts.items())


def device_name(use: Use) -> str:
    """`"GPU 0"` for a person; an accelerator that is none is called by its kind, one of a GPU's slices by its UUID."""
    return number_of(use) if use.slice else f"{KINDS.get(use.kind, use.kind)} {use.index}"


def number_of(use: Use) -> str:
    """What tells a device from others of its model: `"0"`, or the beginning of a slice's UUID (`"MIG-5c2f3a10"`)."""
    return use.uuid[:12] if use.slice and not use.simulated else str(use.index)


def model_text(use: Use) -> str:
    """`"H100"`, or `"A100-80GB/1g.10gb"`."""
    return f"{use.model}/{use.slice}" if use.slice else use.model


KINDS: Final = {
    "nvidia": "GPU",
    "amd": "GPU",
    "apple": "GPU",
    "intel": "GPU",
    "gaudi": "Gaudi",
    "tpu": "TPU",
    "neuron": "Neuron",
}
"""kind → what a person calls one"""


def percent_text(value: float | None) -> str:
    """`"87 %"`; less than one percent that is not nothing shows: "0.4 %"."""
    if value is None:
        return ""
    return f"{value:.1f} %" if 0.05 <= value < 0.95 else f"{value:.0f} %"


def cores_text(value: float) -> str:
    """Cores in use: `"0.03"`, `"3.5"`, `"12"`."""
    return f"{value:.2g}" if value < 10 else f"{value:.0f}"


def power_text(watts: float | None) -> str:
    """`"312 W"`."""
    return "" if watts is None else f"{watts:.0f} W"


def energy_text(joules: float | None) -> str:
    """`"412 J"`; from a watt-hour on what a bill counts in: "11.5 Wh", "1.24 kWh"."""
    if joules is None:
        return ""
    if joules < WATT_HOUR:
        return f"{joules:.0f} J"
    hours = joules / WATT_HOUR
    return f"{hours:.3g} Wh" if hours < 999.5 else f"{hours / 1000:.3g} kWh"


def memory_of_text(peak: int | None, memory: int) -> str:
    """`"70 GB of 85.9 GB"`."""
    if peak is None:
        return ""
    return memory_text(peak) + (f" of {memory_text(memory)}" if memory else "")


def rate_text(rate: float | None) -> str:
    """`"1.2 GB/s"`."""
    return "" if rate is None else f"{memory_text(rate)}/s"


def throttled_text(use: Use) -> str:
    """`"power cap 25 %, thermal 2 %"`: for which part of the time the device was held back, and why."""
    worst = sorted(use.throttled.items(), key=lambda item: (-item[1], item[0]))
    return ", ".join(f"{reason} {percent_text(share * 100)}" for reason, share in worst if share > 0)


def text_or_empty(value: float | None, words: Callable[[float], str]) -> str:
    """The value in words; the empty text for one that nothing measured."""
    return "" if value is None else words(value)


def _energy(receipt: Receipt) -> float | None:
    return receipt.energy if receipt.energy is not None else _sum([use.energy for use in receipt.devices])


def _sum(values: Sequence[float | None]) -> float | None:
    """The sum, if all are known."""
    measured = [value for value in values if value is not None]
    return sum(measured) if measured and len(measured) == len(values) else None


@attrs.frozen(kw_only=True)
class Fact:
    """What is known of one component, and from where."""

    component: str
    """What it is about: "driver", "chip", "image", or the name of a distribution such as "torch"."""
    fact: str
    """A sentence, such as "torch 2.4.0+cu121 has code for sm_90"."""
    source: str
    """Where it is written: an address, a file of the package, "the driver", or "the image's configuration"."""


@attrs.frozen(kw_only=True)
class UnknownFact:
    """What is not known of one component, so that the step is not proved."""

    component: str
    reason: str
    """A sentence that names the component's version, and what is missing."""


@attrs.frozen(kw_only=True)
class Refusal:
    """Why the plan is refused: an error among the findings."""

    code: str
    """That of the finding: "STK203"."""
    what: str
    fix: str = ""
    """The nearest that works."""


@attrs.frozen(kw_only=True)
class Proof:
    """What is known, before a run, of whether a step can use its accelerators."""

    verdict: ProofVerdict
    facts: tuple[Fact, ...] = ()
    unknown: tuple[UnknownFact, ...] = ()
    """Empty if the verdict is "proved"."""
    refused: tuple[Refusal, ...] = ()
    """Empty unless the verdict is "refused"."""


SHOWN = 3
"""Facts in a line of text; the others are counted."""


def proof_text(proof: Proof) -> str:
    """The proof in one line: "proved: torch 2.4.0+cu121 has code for sm_90; driver 550.54.15 runs CUDA 12.1"."""
    if proof.verdict == "refused":
        return "refused: " + "; ".join(f"{one.code} {one.what}" for one in proof.refused[:1]) + _more(proof.refused, 1)
    if proof.verdict == "not-proved":
        return "not proved: " + _joined([one.reason for one in proof.unknown])
    return "proved: " + _joined([one.fact for one in proof.facts])


def _joined(texts: list[str]) -> str:
    return "; ".join(texts[:SHOWN]) + _more(texts, SHOWN)


def _more(items: list[str] | tuple[Refusal, ...], shown: int) -> str:
    return f"; and {len(items) - shown} more" if len(items) > shown else ""
