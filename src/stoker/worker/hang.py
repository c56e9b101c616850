"""Detects that the ranks of a step make no progress, and collects the stacks of each.

A rank that waits in a collective operation uses next to no CPU, and so does one that sleeps or waits for a lock. A rank
is still when it, and what it started, used none for `hang_after`, wanted none, and read and wrote next to nothing. The
step hangs if all ranks are still, or if one that is still waits for others in a collective operation; a rank that is
merely idle while others work is no hang. On a machine with too few CPUs for what runs there, those that are waited for
get on more slowly, and `hang_after` takes longer in the same measure.
"""

from __future__ import annotations

import contextlib
import glob
import os
import re
import shutil
import subprocess
import time
from typing import TYPE_CHECKING, Any, Callable, Final, Mapping

from stoker.core.codec import parse_object
from stoker.core.errors import SettingsError
from stoker.devices.idleness import has_worked
from stoker.worker import processes
from stoker.worker.evidence import FORWARD, read_trail, trail_file
from stoker.worker.rankstate import STACKS, stacks_file

if TYPE_CHECKING:
    from stoker.core.devices import Lease

STILL: Final = 0.01
"""Seconds of CPU in a second below which a process does nothing: keep-alives of threads cost less."""
ROUNDING: Final = 2 / os.sysconf("SC_CLK_TCK")
"""Seconds by which the difference between two readings of a rank's CPU may be wrong: the kernel counts whole ticks of
each process (proc(5)). A rank that waits in gloo uses about one tick in three seconds, which is no work."""
WANTS: Final = 0.2
"""Seconds in a second that threads of a rank wait for a CPU, from which on the rank is no longer still: one that is
hardly ever awake waits less, however busy the machine."""
MOVES: Final = 8192
"""Bytes in a second from which on a rank that reads and writes is not still: a line now and then is less."""
SLOWEST: Final = 0.8
"""The largest part of its time that a rank that works may have been kept from it: more could be its own threads'."""
LOOKS: Final = 12
"""Checks within the time after which a rank counts as hanging."""
STRETCH: Final = 15.0
"""Seconds over which the time of ranks in collective operations is compared: longer than most steps of a training."""
STRAGGLES: Final = 0.25
"""The share of the time that others wait for a rank from which on it is named."""
PATIENCE: Final = 3.0
"""Seconds that a rank gets to write its stacks."""
_TAIL: Final = 64 * 1024
"""Bytes of the samples that hold the last one."""
LONGEST: Final = 24_000
"""Characters of one rank's stacks that are kept."""

# Functions of torch.distributed in which a rank waits for others: https://docs.pytorch.org/docs/stable/distributed.html
_TORCH: Final = (
    "all_reduce|all_gather|all_gather_into_tensor|all_gather_object|all_to_all|all_to_all_single|barrier|"
    "monitored_barrier|broadcast|broadcast_object_list|gather|gather_object|recv|irecv|reduce|reduce_scatter|"
    "reduce_scatter_tensor|scatter|scatter_object_list|send|isend|init_process_group|new_group|wait|wait_tensor"
)
_COLLECTIVE: Final = re.compile(
    rf"(?:in|File .*, line \d+ in|^)\s*({_TORCH})\b.*|\b(?:torch/distributed/\w+\.py).*?\bin ({_TORCH})\b|"
    r"\b(wait_for_everyone|process_allgather|sync_global_devices)\b"
)
_BACKWARD: Final = re.compile(r"torch/autograd/\w+\.py.*\bbackward\b|\bbackward \(torch/autograd/")
_WHERE: Final = re.compile(r"distributed|accelerate|multihost|mpi4py|horovod|deepspeed")


class HangDetector:
    """Watches the ranks of one node. `report` is filled when they hang: a sentence, and {rank: stacks}.

    `lease` holds the node's devices: while one of them works, ranks do not hang unless they wait for each other (NCCL's
    own kernels keep a device busy while they wait).
    """

    def __init__(self, hang_after: float | None, lease: Lease | None = None) -> None:
        self._after = hang_after
        self._lease = lease
        self._looked = 0.0
        self._used: dict[int, tuple[int, processes.Activity]] = {}
        self._still_since: dict[int, float] = {}
        self._ask_again = 0.0
        self._busy_until = 0.0
        self.report: Mapping[str, Any] = {}

    def hangs(self, ranks: Mapping[int, int], now: float, folder: str) -> bool:
        """Whether ranks (rank → pid) hang; `report` then has where they stand."""
        if self._after is None or not ranks or now < self._looked + min(self._after / LOOKS, 10.0):
            return False
        passed, self._looked = now - self._looked, now
        self._note_use(ranks, passed, now)
        still = [rank for rank in ranks if now - self._still_since.get(rank, now) >= self._after]
        if not still or now < (self._busy_until if len(still) == len(ranks) else self._ask_again):
            return False
        stacks = _stacks(ranks, folder)
        self._used = {rank: (pid, processes.use_of(pid)) for rank, pid in ranks.items()}  # to answer is no progress
        waiting = {rank: name for rank, text in stacks.items() if (name := collective(text))}
        waiting |= dict.fromkeys(_in_backward(stacks, folder), FORWARD)
        # A rank that waits for data or a person is no hang as long as others work and none waits for it.
        works = len(still) < len(ranks) or self._device_works()
        if works and not any(rank in waiting for rank in still):
            # Ranks that are asked too often do little else. Nor may they count as busy: ranks that became still one
            # after the other would never all be still at once.
            self._ask_again = now + self._after
            if len(still) == len(ranks):
                self._busy_until = now + self._after  # a device worked: one kernel may take long
            return False
        self.report = {
            "sentence": _sentence(still, waiting, sorted(ranks), self._after),
            "at": time.time() - (now - min(self._still_since[rank] for rank in still)),
            "stacks": {str(rank): text[-LONGEST:] for rank, text in stacks.items()},
            **_flight_recorder(ranks, folder),
        }
        return True

    def _note_use(self, ranks: Mapping[int, int], passed: float, now: float) -> None:
        """Note which ranks did anything since the last look."""
        kept_from_work = 0.0
        for rank, pid in ranks.items():
            last_pid, before = self._used.get(rank, (0, processes.Activity()))
            use = processes.use_of(pid)
            self._used[rank] = (pid, use)
            cpu, starved = use.cpu - before.cpu, max(0.0, use.starved - before.starved)
            works = cpu > STILL * passed + ROUNDING or starved > WANTS * passed
            if last_pid != pid or works or use.moved - before.moved > MOVES * passed:
                self._still_since[rank] = now
            if works and last_pid == pid:
                kept_from_work = max(kept_from_work, min(SLOWEST, starved / (cpu + starved)))
        for rank, since in self._still_since.items():
            self._still_since[rank] = min(now, since + passed * kept_from_work)

    def _device_works(self) -> bool:
        """Whether one of the step's devices computes, by the monitor's last sample."""
        if self._lease is None or not self._lease.samples:
            return False
        path = self._lease.samples
        try:
            with open(path, "rb") as file:
                file.seek(max(0, os.path.getsize(path) - _TAIL))
                lines = file.read().split(b"\n")[1:]
        except OSError:
            return False
        for line in reversed(lines):
            with contextlib.suppress(SettingsError):
                rows = (parse_object(line) if line else {}).get("devices")
                if isinstance(rows, dict) and rows:
                    return any(has_worked(row, self._lease.idle_below) for row in rows.values())
        return False


class StragglerDetector:
    """Compares the time that a node's ranks spend in collective operations, by their trails: for the one that waits
    least, the others wait. It names a rank once, and only after two stretches of time in which it was the same one."""

    def __init__(self) -> None:
        self._looked = 0.0
        self._before: Mapping[int, float] = {}
        self._suspect: int | None = None
        self._told = False

    def look(self, waited: Callable[[], Mapping[int, float]], now: float) -> tuple[int, float] | None:
        """The rank for which others wait, and the share of the time that they do; mostly None. `waited` returns the
        seconds that each rank has spent in collective operations so far."""
        if self._told or now < self._looked + STRETCH:
            return None
        passed, before = now - self._looked, self._before
        self._looked, self._before = now, waited()
        shares = {rank: (seconds - before[rank]) / passed for rank, seconds in self._before.items() if rank in before}
        if len(shares) < 2:
            return None
        slowest = min(shares, key=lambda rank: (shares[rank], rank))
        share = max(shares.values()) - shares[slowest]
        suspect, self._suspect = self._suspect, slowest if share >= STRAGGLES else None
        self._told = self._suspect is not None and suspect == self._suspect
        return (slowest, share) if self._told else None


def collective(stacks: str) -> str:
    """The collective operation in which a rank's main thread waits; empty where it waits in none."""
    for line in _main_thread(stacks):
        if not _WHERE.search(line):
            continue
        match = _COLLECTIVE.search(line)
        if match is not None:
            return next(str(name) for name in match.groups() if name)
    return ""


def _in_backward(stacks: Mapping[int, str], folder: str) -> list[int]:
    """Ranks in the backward pass of a batch to which another rank has not come: there DistributedDataParallel waits, in
    C++, where no stack shows it."""
    batches = {}
    for rank in stacks:
        operations, _ = read_trail(trail_file(folder, rank))
        batches[rank] = max((one.number for one in operations if one.name == FORWARD), default=0)
    least = min(batches.values(), default=0)
    backward = [rank for rank, text in stacks.items() if any(map(_BACKWARD.search, _main_thread(text)))]
    return [rank for rank in backward if batches[rank] > least]


def _main_thread(stacks: str) -> list[str]:
    """The lines of the main thread, innermost first: faulthandler writes it last, py-spy calls it MainThread."""
    lines = stacks.splitlines()
    starts = [number for number, line in enumerate(lines) if line.startswith(("Thread ", "Current thread "))]
    if not starts:
        return lines
    main_starts = [number for number in starts if "MainThread" in lines[number]]
    start = main_starts[0] if main_starts else starts[-1]
    end = next((number for number in starts if number > start), len(lines))
    return lines[start:end]


def _stacks(ranks: Mapping[int, int], folder: str) -> dict[int, str]:
    """Every rank's stacks, by py-spy where it is installed and permitted, else by the rank's own faulthandler."""
    stacks: dict[int, str] = {}
    spy = shutil.which("py-spy")
    for rank, pid in ranks.items():
        if spy:
            with contextlib.suppress(OSError, subprocess.TimeoutExpired):
                dump = subprocess.run(
                    [spy, "dump", "--pid", str(pid)], capture_output=True, text=True, timeout=10.0, check=False
                )
                if dump.returncode == 0:
                    stacks[rank] = dump.stdout
    waiting = {rank: pid for rank, pid in ranks.items() if rank not in stacks}
    sizes = {rank: _size(stacks_file(folder, rank)) for rank in waiting}
    for pid in waiting.values():
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, STACKS)
    until = time.monotonic() + PATIENCE
    while waiting and time.monotonic() < until:
        time.sleep(0.1)
        for rank in list(waiting):
            text = _read_from(stacks_file(folder, rank), sizes[rank])
            if text.endswith("\n") and "File " in text:
                stacks[rank] = text
                del waiting[rank]
    for rank in waiting:
        stacks[rank] = "it did not answer: it is stopped, or stands in the kernel (state D in `ps`)"
    return stacks


def _size(path: str) -> int:
    try:
        return os.path.getsize(path)
    except OSError:
        return 0


def _read_from(path: str, after: int) -> str:
    try:
        with open(path, "rb") as file:
            file.seek(after)
            return file.read().decode("utf-8", "replace")
    except OSError:
        return ""


def _sentence(still: list[int], waiting: Mapping[int, str], ranks: list[int], after: float) -> str:
    if not waiting:
        return f"no rank computed, read or wrote for {after:g} s, and none waits in a known collective operation"
    groups: dict[str, list[int]] = {}
    for rank, name in waiting.items():
        groups.setdefault(name, []).append(rank)
    groups_text = "; ".join(f"{_ranks(members)} in {name}" for name, members in groups.items())
    missing = [rank for rank in ranks if rank not in waiting]
    if missing:
        return f"{groups_text}: waiting for {_ranks(missing)}, which is not there"
    if len(groups) > 1:
        return f"{groups_text}: they wait for each other in different operations"
    return f"{groups_text}: all are there, and the operation does not end (the network, or ranks on other nodes)"


def _ranks(members: list[int]) -> str:
    numbers = ", ".join(map(str, sorted(members)[:16])) + (", …" if len(members) > 16 else "")
    return f"rank {numbers}" if len(members) == 1 else f"ranks {numbers}"


def _flight_recorder(ranks: Mapping[int, int], folder: str) -> dict[str, Any]:
    """The records of NCCL's flight recorder, which a byte in its pipe triggers; none with gloo."""
    pipes = glob.glob(os.path.join(folder, "nccl-pipe-*"))
    for pipe in pipes:
        with contextlib.suppress(OSError):
            descriptor = os.open(pipe, os.O_WRONLY | os.O_NONBLOCK)
            os.write(descriptor, b"1\n")
            os.close(descriptor)
    if not pipes:
        return {}
    time.sleep(PATIENCE)
    records = {}
    for path in glob.glob(os.path.join(folder, "nccl-*")):
        if path not in pipes and os.path.isfile(path):
            with open(path, "rb") as file:
                records[os.path.basename(path)] = file.read(LONGEST * 4).hex()
    return {"flight_recorder": records} if records else {}
