"""The health check of devices: seconds of work on each, before the first step of a run that gets them on a machine.

A process of its own does the work, so that a driver which crashes or hangs takes no step along, and the step's process
has neither CUDA's context nor torch afterwards:

    python -m stoker.worker.health DESCRIPTOR    the lease as JSON on standard input, lines of JSON to DESCRIPTOR

It asks the vendor's tools for what the device has counted (`Vendor.health`), fills a part of its memory and reads it
back, multiplies matrices of whole numbers, whose product is exact, and copies from each device to the next. Lines are
{"at": what begins, "slow": whether that may take long}, {"problem": cause, "sentence", "fix"} and {"facts": {name:
text}}, the last one. What was found good is marked in a folder of the machine and not checked again in the same run.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.util
import json
import os
import select
import subprocess
import sys
import tempfile
import time
from typing import Any, Callable, Final, Iterator, Mapping, Sequence

from stoker.core import status
from stoker.core.codec import from_json, to_json
from stoker.core.devices import Device, Lease
from stoker.core.words import time_text
from stoker.vendors.base import HealthReport, Meter
from stoker.vendors.builds import Problem
from stoker.vendors.registry import by_vendor

LOADING: Final = 300.0
"""Seconds for the import of torch: from a network disk, by many nodes at once, it takes minutes."""
WORKING: Final = 60.0
"""Seconds for one part of the work on one device, which takes one or two: what takes longer does not answer."""
MEMORY: Final = 2 * 2**30
"""Bytes of each device that are written and read back at most; of what is free, a quarter."""
SIDE: Final = 2048
"""Rows of the matrices: a product is 17 billion operations, some milliseconds on a GPU."""
SECONDS: Final = 1.0
"""For which matrices are multiplied on each device."""
KEPT: Final = 7 * 86400.0
"""Seconds after which a mark is removed: no run goes on for longer on one machine."""

_PIECE: Final = 1 << 24
_LARGEST: Final = 8
"""Of the whole numbers in a matrix. A product of 2,048 such is below 2^24, and exact in 32-bit and TF32 arithmetic."""
_SUSPECT: Final = "have it tested (`dcgmi diag -r 3`), and let its machine be drained until then"


def check(lease: Lease, run: str) -> tuple[str, Problem | None]:
    """A fact about the health of a lease's devices, and the problem if one is not well.

    Devices that were checked in the same run on this machine are not checked again.
    """
    names = [device.uuid for device in lease.held]
    marks = Marks(run)
    if marks.has(names):
        return "checked earlier in this run", None
    began = time.monotonic()
    facts, problem = _simulated(lease) if lease.simulated else _checked_apart(lease)
    if problem is not None:
        return "", problem
    marks.add(names)
    _mark_samples(lease.samples)
    text = "; ".join(f"{name}: {fact}" if name else fact for name, fact in facts.items())
    return f"{text}; checked in {time_text(time.monotonic() - began)}", None


def _mark_samples(path: str) -> None:
    """Note in the monitor's file that what it measured until now was not the step's work (`devices.samples`)."""
    with contextlib.suppress(OSError):  # nobody watches
        descriptor = os.open(path, os.O_WRONLY | os.O_APPEND)
        try:
            os.write(descriptor, b'{"checked": true}\n')
        finally:
            os.close(descriptor)


class Marks:
    """What was found good on this machine in one run: an empty file for each set of devices."""

    def __init__(self, run: str) -> None:
        self._run = run
        self._folder = os.path.join(tempfile.gettempdir(), f"stoker-health-{os.getuid()}")

    def _path(self, names: Sequence[str]) -> str:
        text = "\n".join([self._run, *sorted(names)])
        return os.path.join(self._folder, hashlib.sha256(text.encode()).hexdigest())

    def has(self, names: Sequence[str]) -> bool:
        """Whether these devices were found good together."""
        return bool(self._run) and os.path.exists(self._path(names))

    def add(self, names: Sequence[str]) -> None:
        """Mark devices as good together and each alone; without a folder for it, they are checked again."""
        if not self._run:
            return
        with contextlib.suppress(OSError):
            os.makedirs(self._folder, mode=0o700, exist_ok=True)
            for each in ([name] for name in names):
                open(self._path(each), "w").close()
            open(self._path(names), "w").close()
            old = time.time() - KEPT
            with os.scandir(self._folder) as entries:
                for entry in entries:
                    if entry.stat().st_mtime < old:
                        os.unlink(entry.path)


def device_text(device: Device) -> str:
    """A device as problems name it: with its UUID, by which a run leaves it out."""
    return f"{device.model or device.name} {device.index} ({device.uuid})"


def _simulated(lease: Lease) -> tuple[Mapping[str, str], Problem | None]:
    ill = [device for device in lease.held if device.weakness]
    if not ill:
        return {"": "simulated"}, None
    sentence = "; ".join(f"{device_text(device)}: {device.weakness}" for device in ill)
    fix = "the device is pretended: remove weak=… from the simulation, or run where it is not"
    return {}, Problem(cause=status.GPU_HARDWARE, sentence=f"the health check failed: {sentence}", fix=fix)


# The process


def _checked_apart(lease: Lease) -> tuple[Mapping[str, str], Problem | None]:
    """The facts and the problem that a process of its own reports, or the problem that its end is."""
    reading, writing = os.pipe()
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    with tempfile.TemporaryFile() as errors:
        process = subprocess.Popen(
            [sys.executable, "-m", "stoker.worker.health", str(writing)],
            stdin=subprocess.PIPE,
            stdout=errors,
            stderr=errors,
            pass_fds=[writing],
            env=environment,
        )
        os.close(writing)
        try:
            assert process.stdin is not None
            with contextlib.suppress(OSError), process.stdin:  # it ended at once: its end says why
                process.stdin.write(json.dumps(to_json(lease)).encode())
            return _follow(reading, process, errors)
        finally:
            os.close(reading)
            process.kill()
            with contextlib.suppress(subprocess.TimeoutExpired):  # a call into the driver may not end by SIGKILL
                process.wait(5.0)


def _follow(descriptor: int, process: subprocess.Popen[bytes], errors: Any) -> tuple[Mapping[str, str], Problem | None]:
    at, slow, rest = "it began", True, b""
    while True:
        allowed = LOADING if slow else WORKING
        until = time.monotonic() + allowed
        while b"\n" not in rest:
            if not select.select([descriptor], [], [], max(0.0, until - time.monotonic()))[0]:
                sentence = f"the health check has not ended after {allowed:g} s while {at}"
                cause = status.DRIVER_BROKEN if slow else status.GPU_HARDWARE
                return {}, Problem(cause=cause, sentence=sentence, fix=_SUSPECT)
            data = os.read(descriptor, 1 << 16)
            if not data:
                process.wait()
                errors.seek(0)
                return {}, _broken_off(at, process.returncode, errors.read().decode("utf-8", "replace"))
            rest += data
        line, _, rest = rest.partition(b"\n")
        message = json.loads(line)
        if "facts" in message:
            return message["facts"], None
        if "problem" in message:
            fix = message["fix"] or _SUSPECT
            return {}, Problem(cause=message["problem"], sentence=message["sentence"], fix=fix)
        at, slow = message["at"], message["slow"]


def _broken_off(at: str, code: int, errors: str) -> Problem:
    """The problem of a process that ended before its work did."""
    end = f"exit code {code}" if code >= 0 else f"signal {-code}"
    lines = [line for line in errors.splitlines() if line.strip()]
    words = f": {lines[-1].strip()}" if lines else ""
    sentence = f"the health check ended by {end} while {at}{words}"
    return _explained(sentence, errors.splitlines())


def _explained(sentence: str, lines: Sequence[str]) -> Problem:
    """The problem behind what a framework or a driver wrote, by the table of failures."""
    from stoker.worker import signatures  # read when something failed: the table costs a start 2 ms

    match = signatures.find_signature(lines, "")
    if match is None or match[0].cause not in status.FAULTY_PLACE | status.REFUSED_PLACE:
        return Problem(cause=status.DRIVER_BROKEN, sentence=sentence, fix=_SUSPECT)
    return Problem(cause=match[0].cause, sentence=f"{sentence} ({match[0].why})", fix=match[0].advice)


# In the process


class Unwell(Exception):
    """A device is not well; its text names the device."""


def main(arguments: list[str] | None = None) -> int:
    """Check the devices of the lease on standard input."""
    (descriptor,) = sys.argv[1:] if arguments is None else arguments
    lease = from_json(Lease, json.load(sys.stdin), strict=False)

    def tell(message: Mapping[str, Any]) -> None:
        os.write(int(descriptor), json.dumps(message).encode() + b"\n")

    def at(what: str, *, slow: bool = False) -> None:
        tell({"at": what, "slow": slow})

    facts: dict[str, str] = {}
    try:
        for vendor, devices in by_vendor(lease.held).items():
            mark = vendor.title if len(by_vendor(lease.held)) > 1 else ""
            at(f"{vendor.title}'s tools are asked for what they have counted")
            counted = vendor.health(devices)
            _raise_first(devices, counted)
            texts = list(counted.facts)
            if "torch" in vendor.frameworks:
                with _watched(vendor.meter, devices):
                    texts.append(_work(devices, lease.memory, at))
                _raise_first(devices, vendor.health(devices))
            facts[mark] = "; ".join(texts) or "unproved: nothing here can exercise it"
    except Unwell as error:
        tell({"problem": status.GPU_HARDWARE, "sentence": f"the health check failed: {error}", "fix": ""})
        return 0
    tell({"facts": facts})
    return 0


def _raise_first(devices: Sequence[Device], report: HealthReport) -> None:
    faults = [
        f"{device_text(device)}: {report.faults[device.uuid]}" for device in devices if device.uuid in report.faults
    ]
    if faults:
        raise Unwell("; ".join(faults))


@contextlib.contextmanager
def _watched(meter: Callable[[Sequence[Device]], Meter] | None, devices: Sequence[Device]) -> Iterator[None]:
    """Within the block the driver's events of the devices are collected; one of the hardware raises `Unwell`."""
    opened = None
    if meter is not None:
        with contextlib.suppress(OSError):  # without it, what was counted before and after must do
            opened = meter(devices)
            opened.sample(time.monotonic(), frozenset())
    yield
    if opened is None:
        return
    _, events = opened.sample(time.monotonic(), frozenset(), last=True)
    named = {device.uuid: device_text(device) for device in devices}
    for event in events:
        if (text := _event_text(event)) and (uuid := event.get("uuid") or event.get("ecc") or event.get("failed")):
            raise Unwell(f"{named.get(uuid, uuid)}: {text}")


def _event_text(event: Mapping[str, Any]) -> str:
    """What an event of a meter says of the hardware; empty for other events."""
    from stoker.worker import signatures

    if "xid" in event:
        row = signatures.of_xid(event["xid"])
        hardware = row is not None and row.cause == status.GPU_HARDWARE
        return f"the driver reported Xid {event['xid']}: {row.why}" if row is not None and hardware else ""
    if "ecc" in event:
        return "an uncorrectable ECC error during the check"
    return f"the driver does not answer for it: {event.get('why', '')}" if "failed" in event else ""


# The work


def _work(devices: Sequence[Device], leased: int, at: Callable[..., None]) -> str:
    """Exercise devices with torch; returns what was done, or why nothing was."""
    if importlib.util.find_spec("torch") is None:
        return "not exercised: torch is not installed"
    at("torch was imported", slow=True)
    import torch

    at("CUDA started")
    cuda = getattr(torch, "cuda", None)
    if cuda is None or not cuda.is_available():
        return f"not exercised: torch {torch.__version__} cannot use it"
    places = _places(torch, devices)
    for device, place in zip(devices, places):
        free = cuda.mem_get_info(place)[0]
        at(f"{device_text(device)} was exercised")
        try:
            with _named(device_text(device)):
                exercise(torch, place, memory=min(MEMORY, free // 4, leased // 4 or free))
        except cuda.OutOfMemoryError:
            return f"not exercised: no memory is free on {device_text(device)}"
    for number, place in enumerate(places if len(places) > 1 else []):
        other = places[(number + 1) % len(places)]
        pair = f"{device_text(devices[number])} and {device_text(devices[(number + 1) % len(places)])}"
        at(f"data was copied between {pair}")
        with _named(pair):
            copy(torch, place, other)
    done = "memory, matrices" + (", copies between them" if len(places) > 1 else "")
    return f"{done} of {len(places)}"


def _places(torch: Any, devices: Sequence[Device]) -> list[Any]:
    """torch's device for each of the leased ones: by UUID where it tells, else in their order."""
    places = [torch.device("cuda", number) for number in range(torch.cuda.device_count())]
    by_uuid = {str(getattr(torch.cuda.get_device_properties(place), "uuid", "")): place for place in places}
    names = [device.uuid.partition("-")[2] for device in devices]
    return [by_uuid[name] for name in names] if all(name in by_uuid for name in names) else places[: len(devices)]


@contextlib.contextmanager
def _named(device: str) -> Iterator[None]:
    """Within the block an error of the device's arithmetic names it."""
    try:
        yield
    except ValueError as error:
        raise Unwell(f"{device}: {error}") from None


def exercise(
    torch: Any,
    place: Any,
    *,
    memory: int,
    seconds: float = SECONDS,
    side: int = SIDE,
    multiply: Callable[[Any, Any], Any] | None = None,
) -> None:
    """Work on one device: memory holds what was written, and products of matrices are right; else `ValueError`."""
    _fill(torch, place, memory)
    generator = torch.Generator().manual_seed(side)
    one, other = (
        torch.randint(-_LARGEST, _LARGEST + 1, (side, side), generator=generator, dtype=torch.int64) for _ in range(2)
    )
    # Freivalds: a wrong product differs from the right one in its product with a random vector, with few exceptions.
    vector = torch.randint(-_LARGEST, _LARGEST + 1, (side, 1), generator=generator, dtype=torch.int64)
    expected = (one @ (other @ vector)).flatten()
    left, right = one.to(place, torch.float32), other.to(place, torch.float32)
    until = time.monotonic() + seconds
    while True:
        product = (multiply or torch.matmul)(left, right)
        actual = (product.to("cpu", torch.int64) @ vector).flatten()
        if not torch.equal(actual, expected):
            wrong = int((actual != expected).sum())
            raise ValueError(f"a product of matrices is wrong in {wrong} of {side} rows")
        if time.monotonic() >= until:
            return


def _fill(torch: Any, place: Any, memory: int) -> None:
    """Write a part of a device's memory, and read it back, with each bit both ways."""
    count = max(memory // 8, 1)
    block = torch.empty(count, dtype=torch.int64, device=place)
    for mask in (0, -1):
        for begins in (True, False):
            for start in range(0, count, _PIECE):
                pattern = torch.arange(start, min(start + _PIECE, count), dtype=torch.int64, device=place) ^ mask
                piece = block[start : start + _PIECE]
                if begins:
                    piece.copy_(pattern)
                elif not torch.equal(piece, pattern):
                    raise ValueError(f"memory does not hold what was written, in {int((piece != pattern).sum())} words")


def copy(torch: Any, place: Any, other: Any) -> None:
    """Copy between two devices and compare; `ValueError` where the copy differs."""
    data = torch.arange(_PIECE, dtype=torch.int64, device=place)
    if not torch.equal(data.to(other).to("cpu"), torch.arange(_PIECE, dtype=torch.int64)):
        raise ValueError("what is copied from the first one to the second one arrives damaged")


if __name__ == "__main__":
    sys.exit(main())
