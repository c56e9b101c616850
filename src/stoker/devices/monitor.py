"""The sampler: measures a step's devices and processes from a process beside it, and writes a line of JSON per sample.

A process of its own also samples a step that holds Python's lock, hangs or is killed. It starts no thread. The fork
server calls `watch` in a fork; `python -m stoker.devices.monitor FILE` reads the document from a file. Uses the
standard library only, and the vendors' packages where the step holds their devices.

The lines of the file: first the document with `"header": 1`; then samples with `t` (seconds after the step's start),
`cpu` (seconds of CPU time since then), `rss` (bytes) and `procs` of the step's processes, and `devices` with a row for
each device that answered (see `vendors.base.Meter`); between them events (`failed`, `strays`, `xid`, `ecc`, `stop`,
each with its `t`); last `end` with the reason. Each line is one write, so that a kill loses one line at most.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import sys
import time
from typing import TYPE_CHECKING, Any, Final, Mapping

from stoker.devices.idleness import Idle, sentence
from stoker.devices.processtree import Tree, alive
from stoker.system import system

if TYPE_CHECKING:
    from stoker.core.devices import Lease
    from stoker.vendors.base import Meter

GRACE: Final = 10.0
"""Seconds that a step which is ended for idleness has between SIGTERM and SIGKILL."""

STRETCH: Final = 20_000
"""Samples after which the interval doubles: a step of many days writes tens of megabytes, not gigabytes. Drivers keep
the last seconds themselves, so that short bursts still count."""

LONGEST: Final = 10.0
"""The longest interval in seconds that this leads to. NVML keeps the utilisation of about 16 s."""

_LOOK: Final = 0.05
"""Seconds between two checks of a process that cannot be waited for (Linux before 5.3, other systems)."""


def watch(document: Mapping[str, Any], pid: int) -> None:
    """Sample until the step's process has ended, or SIGTERM arrives.

    `document` is the JSON of the step's `core.devices.Lease`.
    """
    _Sampler(document, pid).run()


class _Sampler:
    def __init__(self, document: Mapping[str, Any], pid: int) -> None:
        self.pid = pid
        self.file = os.open(document["samples"], os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
        began = time.time()
        lease = _lease(document)
        self.zero = time.monotonic() - max(0.0, began - (lease.started or began))
        self.interval = lease.interval
        self.below = lease.idle_below
        self.patience = lease.idle_for
        self.stops = lease.on_idle == "stop"
        self.devices = [] if lease.simulated else [device for device in lease.held if not device.simulated]
        self.write({**document, "header": 1, "pid": pid, "sampler": os.getpid(), "cpus": system.cpus(pid)})
        self.tree = Tree(pid)
        self.idle = Idle()
        self.meters: list[Meter] = []
        self.samples = 0
        self.kill_at: float | None = None
        self.stopping = False

    def run(self) -> None:
        waker, wake = os.pipe()
        os.set_blocking(wake, False)
        os.set_blocking(waker, False)
        before = signal.signal(signal.SIGTERM, lambda number, frame: None)
        woken = signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
        step = _descriptor(self.pid)
        try:
            self._loop(waker, step)
        finally:
            signal.set_wakeup_fd(woken)
            signal.signal(signal.SIGTERM, before)
            for descriptor in (self.file, waker, wake, step):
                if descriptor is not None:
                    os.close(descriptor)

    def _loop(self, waker: int, step: int | None) -> None:
        poll = select.poll()
        poll.register(waker, select.POLLIN)
        if step is not None:
            poll.register(step, select.POLLIN)
        root = system.stat_of(self.pid)
        started = root.started if root is not None else None
        self.tree.read()  # leaves out earlier CPU time of a reused worker
        self._open()
        why, due = "", time.monotonic()
        while not why:
            now = time.monotonic()
            if now >= due:
                self._sample(now)
                # No burst of samples after a pause, such as a machine's sleep.
                due = max(due + self._pace(), time.monotonic())
            self._kill(now)
            moments = [due, self.kill_at, now + _LOOK if step is None else None]
            until = min(moment for moment in moments if moment is not None)
            ready = {descriptor for descriptor, _ in poll.poll(max(0.0, until - time.monotonic()) * 1000)}
            if waker in ready and signal.SIGTERM in os.read(waker, 4096):
                why = "told"
            elif step in ready or (step is None and not alive(self.pid, started)):
                why = "gone"
        self._sample(time.monotonic(), last=True)
        self.write({"end": self._since(time.monotonic()), "why": why, "cost": round(time.process_time(), 4)})

    def _open(self) -> None:
        if not self.devices:
            return
        from stoker.vendors.registry import by_vendor  # only for steps with real devices

        for vendor, devices in by_vendor(self.devices).items():
            if vendor.meter is None:
                continue
            try:
                self.meters.append(vendor.meter(devices))
            except OSError as error:
                for device in devices:
                    self._write_event({"failed": device.uuid, "why": str(error)})

    def _pace(self) -> float:
        """Seconds to the next sample."""
        stretched = self.interval * 2 ** (self.samples // STRETCH)
        return max(self.interval, float(min(stretched, LONGEST)))

    def _sample(self, now: float, last: bool = False) -> None:
        t = self._since(now)
        reading = self.tree.read()
        cpu = None if reading.cpu is None else round(reading.cpu, 3)
        line: dict[str, Any] = {"t": t, "cpu": cpu, "rss": reading.memory, "procs": reading.processes}
        rows: dict[str, dict[str, Any]] = {}
        events: list[dict[str, Any]] = []
        for meter in self.meters:
            measured, meter_events = meter.sample(now, self.tree.members, last)
            rows.update(measured)
            events += meter_events
        for event in events:
            self._write_event(event)
        self.samples += 1
        self.write({**line, "devices": rows})
        if last or self.stopping:
            return
        self.idle = self.idle.after(t, rows, [device.uuid for device in self.devices], self.below)
        if self.stops and self.idle.seconds(t) >= self.patience:
            self._stop(sentence(len(self.devices), self.idle.seconds(t), self.below))

    def _stop(self, why: str) -> None:
        """Write the event and send SIGTERM; `_kill` sends SIGKILL after `GRACE`."""
        self.stopping = True
        self._write_event({"stop": why})
        self._signal(signal.SIGTERM)
        self.kill_at = time.monotonic() + GRACE

    def _kill(self, now: float) -> None:
        if self.kill_at is None or now < self.kill_at:
            return
        self.kill_at = None
        self._signal(signal.SIGKILL)
        self.tree.read()
        for pid in self.tree.members:  # also processes that have left the group
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)

    def _signal(self, number: int) -> None:
        """Signal the step's process group, or its process alone where it leads none: the sampler may be of the same
        group.
        """
        with contextlib.suppress(OSError):
            leads = os.getpgid(self.pid) == self.pid != os.getpgrp()
            (os.killpg if leads else os.kill)(self.pid, number)

    def _write_event(self, event: Mapping[str, Any]) -> None:
        self.write({"t": self._since(time.monotonic()), **event})

    def _since(self, now: float) -> float:
        return round(now - self.zero, 3)

    def write(self, line: Mapping[str, Any]) -> None:
        """Append one line. A full disk loses samples and does not fail the step."""
        data = json.dumps(line, separators=(",", ":")).encode() + b"\n"
        with contextlib.suppress(OSError):
            os.write(self.file, data)


def _lease(document: Mapping[str, Any]) -> Lease:
    from stoker.core.codec import from_json
    from stoker.core.devices import Lease

    return from_json(Lease, document, strict=False)


def _descriptor(pid: int) -> int | None:
    """A descriptor that becomes readable when a process ends; None where the system has none."""
    try:
        return system.end_of(pid)
    except OSError:
        return None


def main() -> None:
    """Run `python -m stoker.devices.monitor FILE`; the file's document has the step's `pid`."""
    if len(sys.argv) != 2:
        raise SystemExit("usage: python -m stoker.devices.monitor FILE (a document of `watch`, as JSON, with its pid)")
    with open(sys.argv[1], encoding="utf-8") as file:
        document = json.load(file)
    watch(document, int(document.pop("pid")))


if __name__ == "__main__":
    main()
