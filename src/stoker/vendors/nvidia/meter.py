"""Measures the devices that a step holds through nvidia-ml-py.

Any query may fail. A query that a GPU does not support is not repeated; a GPU that fails is queried again after
`RETRY` seconds. Only `open_meter` raises, and nothing starts a thread.
"""

from __future__ import annotations

import ctypes
import os
from typing import Any, Callable, Final, Iterator, Mapping, Sequence

from stoker.core.devices import Device
from stoker.system import system
from stoker.vendors.base import DeviceRow

SLOW: Final = 1.0
"""Seconds between two readings of slowly changing values, however often others are read."""

COUNTED: Final = 10.0
"""Seconds between two readings of the counter of energy, of which a receipt needs the first and the last: one takes
3.5 ms of CPU time on an H200 with driver 580, temperature and clock 0.04 each (docs/gpu-verification.md)."""

RETRY: Final = 30.0
"""Seconds for which a GPU that failed is not queried."""

PCIE: Final = 2.0
"""Seconds between two readings of PCIe's throughput of one GPU in one direction, which block for 20 ms each:
https://docs.nvidia.com/deploy/nvml-api/group__nvmlDeviceQueries.html. That is 1 % of the time at most."""

REASONS: Final[Mapping[int, str]] = {
    0x04: "power cap",
    0x08: "hardware slowdown",
    0x20: "thermal",
    0x40: "thermal",
    0x80: "power brake",
}
"""Bits of nvmlClocksEventReasons that cost speed. A GPU that is idle (0x1), has clocks set by a person (0x2, 0x100) or
follows its neighbours (0x10) is not throttled:
https://docs.nvidia.com/deploy/nvml-api/group__nvmlClocksEventReasons.html"""

# nvmlReturn_t: https://docs.nvidia.com/deploy/nvml-api/group__nvmlDeviceEnumvs.html. Invalid argument, not supported,
# no permission, function not found: the answer will be the same next time.
_NEVER: Final = frozenset({2, 3, 4, 13})
_NOTHING_NEW: Final = 6
_WIDE: Final = frozenset({2, 3})
"""Value types of 64 bits: https://docs.nvidia.com/deploy/nvml-api/group__nvmlDeviceEnumvs.html#nvmlValueType_t"""

_FIRST_NAMESPACE: Final = "pid:[4026531836]"
"""PROC_PID_INIT_INO of https://github.com/torvalds/linux/blob/master/include/linux/proc_ns.h: not in a container."""


def open_meter(devices: Sequence[Device]) -> NvidiaMeter:
    """A meter of held devices; `OSError` with the driver's words where NVML does not work."""
    try:
        import pynvml
    except ImportError as error:
        raise OSError(f"nvidia-ml-py is not installed: {error}") from error
    try:
        pynvml.nvmlInit()
        return NvidiaMeter(pynvml, devices)
    except pynvml.NVMLError as error:
        raise OSError(f"the NVIDIA driver's library does not answer: {error}") from error


class NvidiaMeter:
    """Measures held devices through their NVML handles; see `vendors.base.Meter`."""

    def __init__(self, nvml: Any, devices: Sequence[Device]) -> None:
        self._nvml = nvml
        self._never: set[tuple[str, str]] = set()
        self._failed: dict[str, float] = {}
        self._pending: list[DeviceRow] = []
        self._handles_of: dict[str, Any] = {}
        self._others: dict[str, Any] = {}
        self._slices = {one.uuid for one in devices if one.slice}
        self._last_samples: dict[str, int] = {}
        self._bytes: dict[str, tuple[float, int, int]] = {}
        self._slow_at = 0.0
        self._pcie_at = 0.0
        self._counted_at: dict[str, float] = {}
        self._pcie_turn = 0
        self._followed: dict[int, str] = {}
        self._same_pids = system.namespace_of(os.getpid()) == _FIRST_NAMESPACE
        uuids = {one.uuid for one in devices}
        parents = {one.parent for one in devices}
        for uuid, handle in self._handles():
            if uuid in uuids:
                self._handles_of[uuid] = handle
            elif uuid not in parents:
                self._others[uuid] = handle
        for uuid in sorted(uuids - self._handles_of.keys()):
            self._pending.append({"failed": uuid, "why": "the driver does not know it"})
        for uuid in self._handles_of:
            self._bursts(uuid)  # leaves out what was before the step
        self._events = self._register_events()

    def sample(
        self, now: float, tree: frozenset[int], last: bool = False
    ) -> tuple[dict[str, DeviceRow], list[DeviceRow]]:
        """A row for each device that answers, and the events since: failures, strays, errors of the hardware."""
        slow = last or now >= self._slow_at
        if slow:
            self._slow_at = now + SLOW * 0.99  # a sampler of 1 Hz is never on the dot
        rows: dict[str, DeviceRow] = {}
        for uuid in self._handles_of:
            if now < self._failed.get(uuid, 0.0):
                continue
            try:
                rows[uuid] = self._row(uuid, now, tree, slow)
                if last or now >= self._counted_at.get(uuid, 0.0):
                    self._add_energy(uuid, rows[uuid], now)
            except self._nvml.NVMLError as error:
                if uuid not in self._failed:
                    self._pending.append({"failed": uuid, "why": str(error)})
                self._failed[uuid] = now + RETRY
            else:
                self._failed.pop(uuid, None)
        if slow:
            self._find_strays(tree)
            self._collect_events()
        if not last and now >= self._pcie_at:
            self._throughput(rows, now)
        events, self._pending = self._pending, []
        return rows, events

    def _row(self, uuid: str, now: float, tree: frozenset[int], slow: bool) -> DeviceRow:
        nvml, handle = self._nvml, self._handles_of[uuid]
        row: DeviceRow = {}
        if uuid not in self._slices:  # a slice's use, power and clock would be those of the whole GPU
            self._utilisation(uuid, row, slow)
            _put_number(row, "w", self._query(uuid, nvml.nvmlDeviceGetPowerUsage, handle), 1e-3)
        memory = self._query(uuid, nvml.nvmlDeviceGetMemoryInfo, handle)
        if memory is not None:
            row["m"] = int(memory.used)
        if not slow:
            return row
        self._add_own_processes(uuid, row, tree)
        if uuid in self._slices:
            return row
        _put_number(row, "c", self._query(uuid, nvml.nvmlDeviceGetTemperature, handle, nvml.NVML_TEMPERATURE_GPU))
        _put_number(row, "f", self._query(uuid, nvml.nvmlDeviceGetClockInfo, handle, nvml.NVML_CLOCK_SM))
        bits = self._reasons(uuid)
        if bits is not None:
            row["r"] = sorted({name for bit, name in REASONS.items() if bits & bit})
        self._add_pcie(uuid, row, now)
        return row

    def _add_energy(self, uuid: str, row: DeviceRow, now: float) -> None:
        if uuid not in self._slices:
            call = self._nvml.nvmlDeviceGetTotalEnergyConsumption
            _put_number(row, "j", self._query(uuid, call, self._handles_of[uuid]), 1e-3)
            self._counted_at[uuid] = now + COUNTED

    def _query(self, uuid: str, call: Callable[..., Any], *arguments: Any) -> Any:
        """The result of a call; None where this GPU or driver does not support it, which is remembered."""
        key = (uuid, call.__name__)
        if key in self._never:
            return None
        try:
            return call(*arguments)
        except self._nvml.NVMLError as error:
            if error.value == _NOTHING_NEW:
                return None
            if error.value not in _NEVER:
                raise
            self._never.add(key)
            return None

    def _utilisation(self, uuid: str, row: DeviceRow, slow: bool) -> None:
        bursts = self._bursts(uuid) if slow else []
        if bursts:
            row["u"], row["up"] = round(sum(bursts) / len(bursts), 1), max(bursts)
            return
        rates = self._query(uuid, self._nvml.nvmlDeviceGetUtilizationRates, self._handles_of[uuid])
        if rates is not None:
            row["u"] = int(rates.gpu)

    def _bursts(self, uuid: str) -> list[int]:
        """The driver's own samples (some a second, of the last seconds) that are new, so that no burst is missed."""
        nvml, last_time = self._nvml, self._last_samples.get(uuid, 0)
        if uuid in self._slices:
            return []
        try:
            samples = self._query(
                uuid, nvml.nvmlDeviceGetSamples, self._handles_of[uuid], nvml.NVML_GPU_UTILIZATION_SAMPLES, last_time
            )
        except nvml.NVMLError:  # some drivers fail without samples; the rates show whether the GPU works
            return []
        new = [one for one in (samples[1] if samples else []) if one.timeStamp > last_time]
        if new:
            self._last_samples[uuid] = max(int(one.timeStamp) for one in new)
        return [int(one.sampleValue.uiVal) for one in new if one.sampleValue.uiVal <= 100]

    def _reasons(self, uuid: str) -> int | None:
        # The second is the name before driver 535 and nvidia-ml-py 12.535.
        for name in ("nvmlDeviceGetCurrentClocksEventReasons", "nvmlDeviceGetCurrentClocksThrottleReasons"):
            call = getattr(self._nvml, name, None)
            bits = None if call is None else self._query(uuid, call, self._handles_of[uuid])
            if bits is not None:
                return int(bits)
        return None

    def _add_own_processes(self, uuid: str, row: DeviceRow, tree: frozenset[int]) -> None:
        processes = self._processes(uuid, self._handles_of[uuid])
        if processes is None:
            return
        sizes = [memory for pid, memory in processes if pid in tree]
        row["n"] = len(sizes)
        if None not in sizes:
            row["o"] = sum(memory for memory in sizes if memory is not None)

    def _processes(self, uuid: str, handle: Any) -> list[tuple[int, int | None]] | None:
        """Processes that compute there, with their bytes; None where the pids may be of another namespace.

        In a container the driver lists the host's pids, or none. They are used outside of containers, and where all of
        them exist here.
        """
        # The second is for drivers before 510; nvidia-ml-py has not always had the first.
        for name in ("nvmlDeviceGetComputeRunningProcesses_v3", "nvmlDeviceGetComputeRunningProcesses_v2"):
            call = getattr(self._nvml, name, None)
            listed = None if call is None else self._query(uuid, call, handle)
            if listed is not None:
                processes = [(int(one.pid), one.usedGpuMemory) for one in listed]
                believed = self._same_pids or (processes and all(system.stat_of(pid) for pid, _ in processes))
                return processes if believed else None
        return None

    def _add_pcie(self, uuid: str, row: DeviceRow, now: float) -> None:
        """Add PCIe's throughput from counters of bytes, where 64 bits keep them from overflowing between two
        samples.
        """
        nvml = self._nvml
        fields = [getattr(nvml, f"NVML_FI_DEV_PCIE_COUNT_{way}_BYTES", None) for way in ("RX", "TX")]
        if None in fields:
            return
        values = self._query(uuid, nvml.nvmlDeviceGetFieldValues, self._handles_of[uuid], fields)
        if values is None:
            return
        if any(one.nvmlReturn or one.valueType not in _WIDE for one in values):
            self._never.add((uuid, nvml.nvmlDeviceGetFieldValues.__name__))
            return
        received, sent = (int(one.value.ullVal) for one in values)
        before = self._bytes.get(uuid)
        self._bytes[uuid] = (now, received, sent)
        if before is not None and now > before[0] and received >= before[1] and sent >= before[2]:
            row["rx"] = round((received - before[1]) / (now - before[0]))
            row["tx"] = round((sent - before[2]) / (now - before[0]))

    def _throughput(self, rows: dict[str, DeviceRow], now: float) -> None:
        """Measure PCIe's throughput of one GPU in one direction, in turn, for GPUs without counters."""
        nvml = self._nvml
        turns = [
            (uuid, name, way)
            for uuid in rows
            if uuid not in self._slices and uuid not in self._bytes
            for name, way in (("rx", nvml.NVML_PCIE_UTIL_RX_BYTES), ("tx", nvml.NVML_PCIE_UTIL_TX_BYTES))
            if (uuid, nvml.nvmlDeviceGetPcieThroughput.__name__) not in self._never
        ]
        self._pcie_at = now + PCIE
        if not turns:
            return
        uuid, name, way = turns[self._pcie_turn % len(turns)]
        self._pcie_turn += 1
        try:
            throughput = self._query(uuid, nvml.nvmlDeviceGetPcieThroughput, self._handles_of[uuid], way)
        except nvml.NVMLError:  # the next sample reports the failure
            return
        _put_number(rows[uuid], name, throughput, 1000)

    def _find_strays(self, tree: frozenset[int]) -> None:
        strays = []
        for uuid, handle in self._others.items():
            try:
                processes = self._processes(uuid, handle) or []
            except self._nvml.NVMLError:  # a GPU that the step does not hold may fail
                continue
            if any(pid in tree for pid, _ in processes):
                strays.append(uuid)
        if strays:
            self._pending.append({"strays": strays})

    def _register_events(self) -> Any:
        """A set of events, or None: critical errors (XID) and memory errors of the held GPUs."""
        nvml = self._nvml
        event_types = nvml.nvmlEventTypeXidCriticalError | nvml.nvmlEventTypeDoubleBitEccError
        try:
            events = nvml.nvmlEventSetCreate()
        except nvml.NVMLError:
            return None
        for uuid, handle in self._handles_of.items():
            try:
                kinds = 0 if uuid in self._slices else self._query(uuid, nvml.nvmlDeviceGetSupportedEventTypes, handle)
                if kinds and kinds & event_types:
                    nvml.nvmlDeviceRegisterEvents(handle, kinds & event_types, events)
                    self._followed[_address(handle)] = uuid
            except nvml.NVMLError:  # its errors are not reported; the first sample shows if it has failed
                continue
        return events if self._followed else None

    def _collect_events(self) -> None:
        nvml = self._nvml
        while self._events is not None and len(self._pending) < 100:
            try:
                event = nvml.nvmlEventSetWait_v2(self._events, 0)
                # A GPU that is lost does not tell its UUID any more.
                uuid = self._followed.get(_address(event.device)) or nvml.nvmlDeviceGetUUID(event.device)
            except nvml.NVMLError as error:
                if error.value != nvml.NVML_ERROR_TIMEOUT:
                    self._events = None
                return
            if event.eventType == nvml.nvmlEventTypeXidCriticalError:
                self._pending.append({"xid": int(event.eventData), "uuid": uuid})
            else:
                self._pending.append({"ecc": uuid})

    def _handles(self) -> Iterator[tuple[str, Any]]:
        """Every GPU and every slice that answers, by UUID."""
        nvml = self._nvml
        for index in range(nvml.nvmlDeviceGetCount()):
            try:
                handle = nvml.nvmlDeviceGetHandleByIndex(index)
                uuid = nvml.nvmlDeviceGetUUID(handle)
                yield uuid, handle
                slices = self._query(uuid, nvml.nvmlDeviceGetMaxMigDeviceCount, handle) or 0
            except nvml.NVMLError:
                continue
            for number in range(slices):
                try:
                    one = nvml.nvmlDeviceGetMigDeviceHandleByIndex(handle, number)
                    yield nvml.nvmlDeviceGetUUID(one), one
                except nvml.NVMLError:  # numbers without a slice
                    continue


def _address(handle: Any) -> int:
    return ctypes.cast(handle, ctypes.c_void_p).value or 0


def _put_number(row: DeviceRow, name: str, value: float | None, factor: float = 1) -> None:
    if value is not None:
        row[name] = round(value * factor, 3)
