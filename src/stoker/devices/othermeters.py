"""What tools of other vendors tell of the devices that a step holds: AMD through amdsmi, AWS through neuron-monitor.

Rows are those of `devices.nvidiameter`. Of Google's TPUs and Apple's GPU nothing is told from beside the process that
uses them: libtpu answers inside it, and powermetrics wants root.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import shutil
import subprocess
import tempfile
from typing import Any, Callable, Final, Mapping, Sequence

Row = dict[str, Any]

SLOW: Final = 1.0
"""Seconds between two askings of what changes slowly."""

_CORES = "neuron-cores:"
_LONGEST = 1 << 22
"""Bytes of one report of neuron-monitor; more without a line's end is not one."""

_NEURON_CONFIGURATION: Final[Mapping[str, Any]] = {
    "period": "1s",
    "neuron_runtimes": [
        {"tag_filter": ".*", "metrics": [{"type": "neuroncore_counters"}, {"type": "memory_used"}]},
    ],
    "system_metrics": [],
}


def amd(devices: Sequence[Mapping[str, Any]]) -> AmdMeter:
    """A meter of AMD's GPUs; `OSError` where amdsmi cannot be asked."""
    try:
        # Where its library is missing, it prints so on stdout.
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
            import amdsmi

            amdsmi.amdsmi_init()
        return AmdMeter(amdsmi, devices)
    except Exception as error:  # amdsmi's own code: without its library it raises KeyError, with others what they like
        raise OSError(f"amdsmi does not answer: {type(error).__name__}: {error}") from error


class AmdMeter:
    """AMD's GPUs, found by their number, in the order in which the probe found them.

    https://rocm.docs.amd.com/projects/amdsmi/en/latest/reference/amdsmi-py-api.html. Activity is that of the graphics
    and compute engine over about a second.
    """

    def __init__(self, amdsmi: Any, devices: Sequence[Mapping[str, Any]]) -> None:
        self._amdsmi = amdsmi
        handles = list(amdsmi.amdsmi_get_processor_handles())
        self._news: list[Row] = []
        self._held: dict[str, Any] = {}
        for one in devices:
            if 0 <= int(one["index"]) < len(handles):
                self._held[str(one["uuid"])] = handles[int(one["index"])]
            else:
                self._news.append({"failed": str(one["uuid"]), "why": "the driver does not know it"})
        self._never: set[tuple[str, str]] = set()
        self._answered: set[tuple[str, str]] = set()
        self._slow_at = 0.0

    def sample(self, now: float, tree: frozenset[int], last: bool = False) -> tuple[dict[str, Row], list[Row]]:
        """A row for each GPU; see `devices.nvidiameter`."""
        slow = last or now >= self._slow_at
        if slow:
            self._slow_at = now + SLOW * 0.99
        rows = {uuid: self._row(uuid, handle, tree, slow) for uuid, handle in self._held.items()}
        news, self._news = self._news, []
        return rows, news

    def _row(self, uuid: str, handle: Any, tree: frozenset[int], slow: bool) -> Row:
        smi = self._amdsmi
        row: Row = {}
        _put(row, "u", self._ask(uuid, smi.amdsmi_get_gpu_activity, handle), "gfx_activity")
        _put(row, "m", self._ask(uuid, smi.amdsmi_get_gpu_vram_usage, handle), "vram_used", factor=2**20)
        power = self._ask(uuid, smi.amdsmi_get_power_info, handle)
        # Older chips tell the mean, newer ones the present power; what a chip does not tell is "N/A".
        _put(row, "w", power, "current_socket_power", "average_socket_power")
        if not slow:
            return row
        kinds, metrics = smi.AmdSmiTemperatureType, smi.AmdSmiTemperatureMetric
        degrees = self._ask(uuid, smi.amdsmi_get_temp_metric, handle, kinds.HOTSPOT, metrics.CURRENT)
        _put(row, "c", {"now": degrees}, "now")
        clock = self._ask(uuid, smi.amdsmi_get_clock_info, handle, smi.AmdSmiClkType.GFX)
        _put(row, "f", clock, "clk", "cur_clk")
        energy = self._ask(uuid, smi.amdsmi_get_energy_count, handle)
        if isinstance(energy, Mapping):
            # Units of `counter_resolution` microjoules; the accumulator was called "power" before ROCm 6.2.
            counted = _number(energy.get("energy_accumulator", energy.get("power")))
            resolution = _number(energy.get("counter_resolution"))
            if counted is not None and resolution is not None:
                row["j"] = round(counted * resolution * 1e-6, 3)
        self._own(row, self._ask(uuid, smi.amdsmi_get_gpu_process_list, handle), tree)
        return row

    @staticmethod
    def _own(row: Row, listed: Any, tree: frozenset[int]) -> None:
        """The tree's processes; those of versions that answer with handles instead of dictionaries stay untold."""
        if not isinstance(listed, list) or not all(isinstance(one, Mapping) and "pid" in one for one in listed):
            return
        if not all(os.path.exists(f"/proc/{one['pid']}") for one in listed):  # numbers of another namespace
            return
        mine = [_number(one.get("mem")) for one in listed if one["pid"] in tree]
        row["n"] = len(mine)
        if None not in mine:
            row["o"] = int(sum(memory for memory in mine if memory is not None))

    def _ask(self, uuid: str, call: Callable[..., Any], *arguments: Any) -> Any:
        """None for what fails; a question that has failed before it was ever answered is not asked again."""
        key = (uuid, call.__name__)
        if key in self._never:
            return None
        try:
            found = call(*arguments)
        except Exception as error:  # amdsmi's own code: what a chip does not tell is an error of its own
            if key not in self._answered:
                self._never.add(key)
            elif call.__name__ == "amdsmi_get_gpu_activity":
                self._news.append({"failed": uuid, "why": f"{type(error).__name__}: {error}"})
                self._answered.discard(key)
            return None
        self._answered.add(key)
        return found


def neuron(devices: Sequence[Mapping[str, Any]]) -> NeuronMeter:
    """A meter of AWS's Neuron devices; `OSError` where neuron-monitor cannot be started."""
    command = shutil.which("neuron-monitor")
    if command is None:
        raise OSError("neuron-monitor is not on PATH (it comes with aws-neuronx-tools)")
    with tempfile.NamedTemporaryFile("w", suffix=".json", delete=False) as file:
        json.dump(_NEURON_CONFIGURATION, file)
    process = subprocess.Popen(
        [command, "-c", file.name], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    )
    return NeuronMeter(process, file.name, devices)


class NeuronMeter:
    """neuron-monitor beside the sampler, which prints a line of JSON a second; it ends when nobody reads it any more.

    https://awsdocs-neuron.readthedocs-hosted.com/en/latest/tools/neuron-sys-tools/neuron-monitor-user-guide.html. Power
    and temperature are not among its metrics.
    """

    def __init__(self, process: subprocess.Popen[bytes], file: str, devices: Sequence[Mapping[str, Any]]) -> None:
        self._process = process
        self._file = file
        self._held = {str(one["uuid"]): _cores(str(one["uuid"])) for one in devices}
        self._rest = b""
        assert process.stdout is not None
        self._stream = process.stdout.fileno()
        os.set_blocking(self._stream, False)

    def sample(self, now: float, tree: frozenset[int], last: bool = False) -> tuple[dict[str, Row], list[Row]]:
        """A row for each device if a report has come since the last time."""
        lines = self._lines()
        rows: dict[str, Row] = {}
        for line in lines[-1:]:
            with contextlib.suppress(ValueError, TypeError, KeyError, AttributeError):
                rows = {uuid: _neuron_row(json.loads(line), cores, tree) for uuid, cores in self._held.items()}
        if last:
            self.close()
        elif self._held and self._process.poll() is not None:
            why = f"neuron-monitor ended with {self._process.returncode}"
            news = [{"failed": uuid, "why": why} for uuid in self._held]
            self.close()
            return rows, news
        return rows, []

    def close(self) -> None:
        """End the monitor, without waiting for it longer than a moment."""
        self._held = {}
        with contextlib.suppress(OSError):
            os.unlink(self._file)
        if self._process.poll() is None:
            self._process.kill()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(0.2)

    def _lines(self) -> list[bytes]:
        while True:
            try:
                chunk = os.read(self._stream, 1 << 16)
            except BlockingIOError:
                break
            if not chunk:
                break
            self._rest = (self._rest + chunk)[-_LONGEST:]
        *lines, self._rest = self._rest.split(b"\n")
        return [line for line in lines if line.strip()]


def _neuron_row(report: Mapping[str, Any], cores: range, tree: frozenset[int]) -> Row:
    """One device from a report: its busiest measure is the mean of its cores' utilisation, of all processes there."""
    busy = dict.fromkeys(cores, 0.0)
    row: Row = {"n": 0, "o": 0, "m": 0}
    for runtime in report["neuron_runtime_data"]:
        told = runtime["report"]
        for name, core in told["neuroncore_counters"]["neuroncores_in_use"].items():
            if int(name) in busy:
                busy[int(name)] += float(core["neuroncore_utilization"])
        used = told["memory_used"]["neuron_runtime_used_bytes"]["usage_breakdown"].get("neuroncore_memory_usage", {})
        there = [parts for name, parts in used.items() if int(name) in busy]
        held = sum(int(part) for parts in there for part in parts.values())
        row["m"] += held
        if int(runtime["pid"]) in tree and there:
            row["n"] += 1
            row["o"] += held
    row["u"] = round(min(100.0, sum(busy.values()) / len(busy)), 1)
    return row


def _cores(uuid: str) -> range:
    first, _, last = uuid.removeprefix(_CORES).partition("-")
    return range(int(first), int(last or first) + 1)


def _put(row: Row, name: str, told: Any, *keys: str, factor: float = 1) -> None:
    """The first of the keys that holds a number."""
    for key in keys:
        found = _number(told.get(key)) if isinstance(told, Mapping) else None
        if found is not None:
            row[name] = round(found * factor, 3)
            return


def _number(value: Any) -> float | None:
    """None for what is not told: "N/A", or all bits set."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or value in {0xFFFF, 0xFFFFFFFF, 2**64 - 1}:
        return None
    return value
