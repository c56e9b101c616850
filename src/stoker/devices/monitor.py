"""The sampler: what a step's devices and processes do, written down from beside it, a line of JSON a sample.

It runs in a process of its own, so that a step that holds Python's lock, hangs or is killed is seen all the same, and
starts no thread. `watch` is called in a fork of the fork server; `python -m stoker.devices.monitor FILE` does it with
a document in a file. Uses the standard library, and the vendors' packages when their devices are held.

The file's lines: first the document with `"header": 1`; then samples, `t` (seconds after the step's start), `cpu`
(seconds of CPU time since it began), `rss` (bytes) and `procs` of the step's processes, `devices` with a row for
each that answered (see `vendors.base.Meter`); between them what happened (`failed`, `strays`, `xid`, `ecc`, `stop`,
each with its `t`); last `end` with why. Each is one write, so that whatever is killed takes a line with it at most.
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
from stoker.devices.processtree import Tree, alive, stat_of

if TYPE_CHECKING:
    from stoker.core.devices import Lease
    from stoker.vendors.base import Meter

GRACE: Final = 10.0
"""Seconds that a step which is ended for idleness has between SIGTERM and SIGKILL."""

STRETCH: Final = 20_000
"""Samples after which the interval doubles: a step of many days makes tens of megabytes, not gigabytes. The drivers
keep the last seconds themselves, so that short bursts still count."""

LONGEST: Final = 10.0
"""Seconds to which the interval may grow by that. NVML keeps the utilisation of about 16 s."""

_LOOK: Final = 0.05
"""Seconds between two looks at a process that cannot be waited for (kernels before 5.3, and not Linux)."""


def watch(document: Mapping[str, Any], pid: int) -> None:
    """Sample until the step's process is gone, or SIGTERM comes.

    The document is that of the step's `core.devices.Lease`.
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
        self.write({**document, "header": 1, "pid": pid, "sampler": os.getpid(), "cpus": _cpus(pid)})
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
        root = stat_of(self.pid)
        started = root.started if root is not None else None
        self.tree.read()  # what came before the step's start, for a worker that is used again
        self._open()
        why, due = "", time.monotonic()
        while not why:
            now = time.monotonic()
            if now >= due:
                self._sample(now)
                # No burst of samples after a pause, as of a machine that slept.
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
                    self._happened({"failed": device.uuid, "why": str(error)})

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
        news: list[dict[str, Any]] = []
        for meter in self.meters:
            found, happened = meter.sample(now, self.tree.members, last)
            rows.update(found)
            news += happened
        for event in news:
            self._happened(event)
        self.samples += 1
        self.write({**line, "devices": rows})
        if last or self.stopping:
            return
        self.idle = self.idle.after(t, rows, [device.uuid for device in self.devices], self.below)
        if self.stops and self.idle.seconds(t) >= self.patience:
            self._stop(sentence(len(self.devices), self.idle.seconds(t), self.below))

    def _stop(self, why: str) -> None:
        """Say so, then ask the step to end; `_kill` insists."""
        self.stopping = True
        self._happened({"stop": why})
        self._signal(signal.SIGTERM)
        self.kill_at = time.monotonic() + GRACE

    def _kill(self, now: float) -> None:
        if self.kill_at is None or now < self.kill_at:
            return
        self.kill_at = None
        self._signal(signal.SIGKILL)
        self.tree.read()
        for pid in self.tree.members:  # those that have left the group
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)

    def _signal(self, number: int) -> None:
        """To the step's group, or to its process alone where it leads none: this one may be of the same group."""
        with contextlib.suppress(OSError):
            leads = os.getpgid(self.pid) == self.pid != os.getpgrp()
            (os.killpg if leads else os.kill)(self.pid, number)

    def _happened(self, event: Mapping[str, Any]) -> None:
        self.write({"t": self._since(time.monotonic()), **event})

    def _since(self, now: float) -> float:
        return round(now - self.zero, 3)

    def write(self, line: Mapping[str, Any]) -> None:
        """Append one line. A disk that is full costs samples, not the step."""
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
        return os.pidfd_open(pid)
    except (AttributeError, OSError):
        return None


def _cpus(pid: int) -> int | None:
    """How many CPUs the step may run on."""
    try:
        return len(os.sched_getaffinity(pid))
    except (AttributeError, OSError):
        return os.cpu_count()


def main() -> None:
    """`python -m stoker.devices.monitor FILE`: a document with its `pid`."""
    if len(sys.argv) != 2:
        raise SystemExit("usage: python -m stoker.devices.monitor FILE (a document of `watch`, as JSON, with its pid)")
    with open(sys.argv[1], encoding="utf-8") as file:
        document = json.load(file)
    watch(document, int(document.pop("pid")))


if __name__ == "__main__":
    main()
