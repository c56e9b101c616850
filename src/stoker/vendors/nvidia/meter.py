"""What NVIDIA's driver tells of the devices that a step holds, again and again, through nvidia-ml-py.

Every question may go unanswered. One that a GPU does not know is not asked again; a GPU that fails is left alone for a
while and then asked anew. Nothing here raises but `opened`, and nothing starts a thread.
"""

from __future__ import annotations

import os
from typing import Any, Callable, Final, Iterator, Mapping, Sequence

from stoker.core.devices import Device
from stoker.vendors.base import Row

SLOW: Final = 1.0
"""Seconds between two askings of what changes slowly, however often the rest is asked."""

RETRY: Final = 30.0
"""Seconds for which a GPU that failed is left alone."""

PCIE: Final = 2.0
"""Seconds between two askings for PCIe's throughput of one GPU in one direction, which block for 20 ms each:
https://docs.nvidia.com/deploy/nvml-api/group__nvmlDeviceQueries.html. So 1 % of the time at most is spent there."""

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


def opened(devices: Sequence[Device]) -> NvidiaMeter:
    """A meter of NVIDIA's devices among these; `OSError` with the driver's words where it cannot be asked."""
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
    """Held devices with their handles, and what has been learnt of them."""

    def __init__(self, nvml: Any, devices: Sequence[Device]) -> None:
        self._nvml = nvml
        self._never: set[tuple[str, str]] = set()
        self._failed: dict[str, float] = {}
        self._news: list[Row] = []
        self._held: dict[str, Any] = {}
        self._others: dict[str, Any] = {}
        self._slices = {one.uuid for one in devices if one.slice}
        self._seen: dict[str, int] = {}
        self._bytes: dict[str, tuple[float, int, int]] = {}
        self._slow_at = 0.0
        self._pcie_at = 0.0
        self._pcie_turn = 0
        self._same_pids = _namespace() == _FIRST_NAMESPACE
        wanted = {one.uuid for one in devices}
        parents = {one.parent for one in devices}
        for uuid, handle in self._handles():
            if uuid in wanted:
                self._held[uuid] = handle
            elif uuid not in parents:
                self._others[uuid] = handle
        for uuid in sorted(wanted - self._held.keys()):
            self._news.append({"failed": uuid, "why": "the driver does not know it"})
        for uuid in self._held:
            self._bursts(uuid)  # what was before the step is not the step's
        self._events = self._watched()

    def sample(self, now: float, tree: frozenset[int], last: bool = False) -> tuple[dict[str, Row], list[Row]]:
        """A row for each device that answers, and what happened since: failures, strays, errors of the hardware."""
        slow = last or now >= self._slow_at
        if slow:
            self._slow_at = now + SLOW * 0.99  # a sampler of 1 Hz is never on the dot
        rows: dict[str, Row] = {}
        for uuid in self._held:
            if now < self._failed.get(uuid, 0.0):
                continue
            try:
                rows[uuid] = self._row(uuid, now, tree, slow)
            except self._nvml.NVMLError as error:
                if uuid not in self._failed:
                    self._news.append({"failed": uuid, "why": str(error)})
                self._failed[uuid] = now + RETRY
            else:
                self._failed.pop(uuid, None)
        if slow:
            self._stray(tree)
            self._happened()
        if not last and now >= self._pcie_at:
            self._throughput(rows, now)
        news, self._news = self._news, []
        return rows, news

    def _row(self, uuid: str, now: float, tree: frozenset[int], slow: bool) -> Row:
        nvml, handle = self._nvml, self._held[uuid]
        row: Row = {}
        if uuid not in self._slices:  # a slice's use, power and clock would be those of the whole GPU
            self._utilisation(uuid, row, slow)
            _put(row, "w", self._ask(uuid, nvml.nvmlDeviceGetPowerUsage, handle), 1e-3)
        memory = self._ask(uuid, nvml.nvmlDeviceGetMemoryInfo, handle)
        if memory is not None:
            row["m"] = int(memory.used)
        if not slow:
            return row
        self._own(uuid, row, tree)
        if uuid in self._slices:
            return row
        _put(row, "c", self._ask(uuid, nvml.nvmlDeviceGetTemperature, handle, nvml.NVML_TEMPERATURE_GPU))
        _put(row, "f", self._ask(uuid, nvml.nvmlDeviceGetClockInfo, handle, nvml.NVML_CLOCK_SM))
        _put(row, "j", self._ask(uuid, nvml.nvmlDeviceGetTotalEnergyConsumption, handle), 1e-3)
        bits = self._reasons(uuid)
        if bits is not None:
            row["r"] = sorted({name for bit, name in REASONS.items() if bits & bit})
        self._counted(uuid, row, now)
        return row

    def _ask(self, uuid: str, call: Callable[..., Any], *arguments: Any) -> Any:
        """None for a question that this GPU, or this driver, does not know; it is not asked again."""
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

    def _utilisation(self, uuid: str, row: Row, slow: bool) -> None:
        kept = self._bursts(uuid) if slow else []
        if kept:
            row["u"], row["up"] = round(sum(kept) / len(kept), 1), max(kept)
            return
        rates = self._ask(uuid, self._nvml.nvmlDeviceGetUtilizationRates, self._held[uuid])
        if rates is not None:
            row["u"] = int(rates.gpu)

    def _bursts(self, uuid: str) -> list[int]:
        """The driver's own samples (some a second, of the last seconds) that are new, so that no burst is missed."""
        nvml, seen = self._nvml, self._seen.get(uuid, 0)
        if uuid in self._slices:
            return []
        try:
            told = self._ask(uuid, nvml.nvmlDeviceGetSamples, self._held[uuid], nvml.NVML_GPU_UTILIZATION_SAMPLES, seen)
        except nvml.NVMLError:  # some drivers fail when they have none yet; the rates will tell whether the GPU lives
            return []
        new = [one for one in (told[1] if told else []) if one.timeStamp > seen]
        if new:
            self._seen[uuid] = max(int(one.timeStamp) for one in new)
        return [int(one.sampleValue.uiVal) for one in new if one.sampleValue.uiVal <= 100]

    def _reasons(self, uuid: str) -> int | None:
        # The second is the name before driver 535 and nvidia-ml-py 12.535.
        for name in ("nvmlDeviceGetCurrentClocksEventReasons", "nvmlDeviceGetCurrentClocksThrottleReasons"):
            call = getattr(self._nvml, name, None)
            found = None if call is None else self._ask(uuid, call, self._held[uuid])
            if found is not None:
                return int(found)
        return None

    def _own(self, uuid: str, row: Row, tree: frozenset[int]) -> None:
        there = self._processes(uuid, self._held[uuid])
        if there is None:
            return
        mine = [memory for pid, memory in there if pid in tree]
        row["n"] = len(mine)
        if None not in mine:
            row["o"] = sum(memory for memory in mine if memory is not None)

    def _processes(self, uuid: str, handle: Any) -> list[tuple[int, int | None]] | None:
        """Processes that compute there, with their bytes; None where their numbers are not known to be ours.

        In a container the driver lists the host's numbers, or none. They are believed outside of containers, and where
        all of them are here.
        """
        # The second is for drivers before 510; nvidia-ml-py has not always had the first.
        for name in ("nvmlDeviceGetComputeRunningProcesses_v3", "nvmlDeviceGetComputeRunningProcesses_v2"):
            call = getattr(self._nvml, name, None)
            found = None if call is None else self._ask(uuid, call, handle)
            if found is not None:
                there = [(int(one.pid), one.usedGpuMemory) for one in found]
                believed = self._same_pids or (there and all(os.path.exists(f"/proc/{pid}") for pid, _ in there))
                return there if believed else None
        return None

    def _counted(self, uuid: str, row: Row, now: float) -> None:
        """PCIe from the counters of bytes, where they are wide enough not to run over between two samples."""
        nvml = self._nvml
        fields = [getattr(nvml, f"NVML_FI_DEV_PCIE_COUNT_{way}_BYTES", None) for way in ("RX", "TX")]
        if None in fields:
            return
        told = self._ask(uuid, nvml.nvmlDeviceGetFieldValues, self._held[uuid], fields)
        if told is None:
            return
        if any(one.nvmlReturn or one.valueType not in _WIDE for one in told):
            self._never.add((uuid, nvml.nvmlDeviceGetFieldValues.__name__))
            return
        received, sent = (int(one.value.ullVal) for one in told)
        before = self._bytes.get(uuid)
        self._bytes[uuid] = (now, received, sent)
        if before is not None and now > before[0] and received >= before[1] and sent >= before[2]:
            row["rx"] = round((received - before[1]) / (now - before[0]))
            row["tx"] = round((sent - before[2]) / (now - before[0]))

    def _throughput(self, rows: dict[str, Row], now: float) -> None:
        """PCIe of one GPU in one direction, in turn, for those without counters."""
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
            found = self._ask(uuid, nvml.nvmlDeviceGetPcieThroughput, self._held[uuid], way)
        except nvml.NVMLError:  # the next sample says what the GPU has
            return
        _put(rows[uuid], name, found, 1000)

    def _stray(self, tree: frozenset[int]) -> None:
        there = []
        for uuid, handle in self._others.items():
            try:
                processes = self._processes(uuid, handle) or []
            except self._nvml.NVMLError:  # a GPU that the step does not hold may fail
                continue
            if any(pid in tree for pid, _ in processes):
                there.append(uuid)
        if there:
            self._news.append({"strays": there})

    def _watched(self) -> Any:
        """A set of events, or None: critical errors (XID) and memory errors of the held GPUs."""
        nvml = self._nvml
        wanted = nvml.nvmlEventTypeXidCriticalError | nvml.nvmlEventTypeDoubleBitEccError
        try:
            events = nvml.nvmlEventSetCreate()
        except nvml.NVMLError:
            return None
        watched = False
        for uuid, handle in self._held.items():
            try:
                kinds = 0 if uuid in self._slices else self._ask(uuid, nvml.nvmlDeviceGetSupportedEventTypes, handle)
                if kinds and kinds & wanted:
                    nvml.nvmlDeviceRegisterEvents(handle, kinds & wanted, events)
                    watched = True
            except nvml.NVMLError:  # this one's errors stay untold; the first sample says if it has failed
                continue
        return events if watched else None

    def _happened(self) -> None:
        nvml = self._nvml
        while self._events is not None and len(self._news) < 100:
            try:
                event = nvml.nvmlEventSetWait_v2(self._events, 0)
                uuid = nvml.nvmlDeviceGetUUID(event.device)
            except nvml.NVMLError as error:
                if error.value != nvml.NVML_ERROR_TIMEOUT:
                    self._events = None
                return
            if event.eventType == nvml.nvmlEventTypeXidCriticalError:
                self._news.append({"xid": int(event.eventData), "uuid": uuid})
            else:
                self._news.append({"ecc": uuid})

    def _handles(self) -> Iterator[tuple[str, Any]]:
        """Every GPU and every slice that answers, by UUID."""
        nvml = self._nvml
        for index in range(nvml.nvmlDeviceGetCount()):
            try:
                handle = nvml.nvmlDeviceGetHandleByIndex(index)
                uuid = nvml.nvmlDeviceGetUUID(handle)
                yield uuid, handle
                slices = self._ask(uuid, nvml.nvmlDeviceGetMaxMigDeviceCount, handle) or 0
            except nvml.NVMLError:
                continue
            for number in range(slices):
                try:
                    one = nvml.nvmlDeviceGetMigDeviceHandleByIndex(handle, number)
                    yield nvml.nvmlDeviceGetUUID(one), one
                except nvml.NVMLError:  # numbers without a slice
                    continue


def _namespace() -> str:
    try:
        return os.readlink("/proc/self/ns/pid")
    except OSError:
        return ""


def _put(row: Row, name: str, value: float | None, factor: float = 1) -> None:
    if value is not None:
        row[name] = round(value * factor, 3)
