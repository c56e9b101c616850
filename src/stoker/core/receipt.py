"""What a step did with its accelerators: the receipt that `devices.receipt` writes and everybody reads.

A number that nothing measured is None, never 0: a driver that does not tell is no idle device.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Literal, Mapping

import attrs

from stoker.core.accelerators import vendor_name

if TYPE_CHECKING:
    from stoker.core.proof import ProofVerdict

Verdict = Literal["used", "idle", "wrong-device", "cpu-fallback", "unknown"]
"""`used`: every device that the step held computed. `idle`: at least one did not. `wrong-device`: the step's processes
computed on a device that it does not hold. `cpu-fallback`: it asked for devices and ran without. `unknown`: the driver
does not tell."""

GateVerdict = Literal["fits", "unfit", "fallback", "simulated"]
"""What became of the devices in the job. `fits`: the gate proved them, and nothing said otherwise later. `unfit`: the
attempt ended because its driver, its devices or a framework's build did not fit. `fallback`: it ran without devices.
`simulated`: there was nothing to look at."""


@attrs.frozen(kw_only=True)
class Use:
    """One device, from the step's start to its end.

    Utilisation in percent of time in which a kernel ran (NVML's definition), memory in bytes, power in watts, energy in
    joules, temperature in °C, clock in MHz (of the multiprocessors), PCIe in bytes per second, shares of time from 0 to
    1, the rest in seconds. `memory_peak` counts everybody on the device, `own_memory_peak` the step's processes only.
    `throttled` maps a reason ("thermal", "power cap", …) to the share of samples in which it held.
    """

    uuid: str
    kind: str = attrs.field(converter=vendor_name)
    index: int
    model: str
    memory: int
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
    """

    LATE: ClassVar = {"ProofVerdict": "stoker.core.proof"}
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
