"""What this machine does now: who holds its accelerators, who waits, who uses them, what steps and their ranks do; and
how `stoker top` draws it.

What a step's monitor measured is read from its file. Only devices that no monitor watches are asked themselves, and
only of steps without a monitor the processes are read here. A stack's nodes are asked of its platforms. Ranks are not
asked: a rank's process is known by its name, and its trail (`worker.evidence`) by its mapping in /proc. A share of time
is that since the look before, and since the rank's start at the first look.
"""

from __future__ import annotations

import os
import threading
import time
from typing import Any, Callable, Final, Iterable, Iterator, Mapping, Sequence

import attrs

from stoker import stacks
from stoker.backends.base.backend import NodeDevices, PlatformNode
from stoker.backends.base.leasing import samples_path
from stoker.backends.registry import BACKENDS
from stoker.client import Client, Run
from stoker.client.metrics import Usage
from stoker.client.placements import LeftOut, Placement, recently_left_out
from stoker.core.codec import to_json
from stoker.core.devices import Device, Entry, Inventory, Process
from stoker.core.errors import BackendError, StokerError
from stoker.core.values import frozen
from stoker.core.words import count_text, memory_text, time_text
from stoker.devices.leases import Ledger
from stoker.devices.probe import processes
from stoker.devices.processtree import Tree
from stoker.devices.samples import LatestSample, latest
from stoker.report.live import columns_of, cut, pad
from stoker.report.streams import say
from stoker.stacks import Stack
from stoker.store.store import open_store
from stoker.system import LINUX, system
from stoker.vendors.base import Meter
from stoker.vendors.registry import by_vendor
from stoker.worker.beside import name_of
from stoker.worker.evidence import FORWARD, read_trail
from stoker.worker.processes import process_of
from stoker.worker.survivors import Survivors

_TRAIL: Final = ".trail"
_WAITED: Final = 0.5
"""Seconds in an operation from which on it is named."""


@frozen(kw_only=True)
class RankUse:
    """A rank that runs, and what it does; None for what is not known."""

    rank: int
    pid: int
    cpus: float | None = None
    """Cores in use, by it and what it started."""
    memory: int | None = None
    """Bytes."""
    waits: float | None = None
    """The share of its time, from 0 to 1, that it spends in collective operations and in waiting for others in backward
    passes."""
    batches: int = 0
    """Forward passes of DistributedDataParallel so far."""
    operation: str = ""
    """The collective operation in which it is, and the user's line."""
    devices: tuple[str, ...] = ()
    """UUIDs of the devices that its processes use."""


def slowest_text(ranks: Sequence[RankUse]) -> str:
    """The slowest rank and the imbalance, in the words of a step that is over; empty where there is none."""
    return Usage(rank_waits={one.rank: one.waits for one in ranks if one.waits is not None}).imbalance_text


class RankWatch:
    """Looks at ranks again and again."""

    def __init__(self) -> None:
        self._trees: dict[int, Tree] = {}
        self._cpu: dict[int, tuple[float, float]] = {}
        self._waited: dict[int, tuple[float, float]] = {}

    def look(self, ranks: Mapping[int, int], users: Mapping[str, Iterable[int]]) -> tuple[RankUse, ...]:
        """The ranks (number → pid) now; `users` are the pids on each device."""
        return tuple(self._look(rank, pid, users) for rank, pid in sorted(ranks.items()))

    def forget(self, living: Iterable[int]) -> None:
        """Forget what is known of processes that are not among these."""
        kept = set(living)
        for known in (self._trees, self._cpu, self._waited):
            for pid in known.keys() - kept:
                del known[pid]

    def _look(self, rank: int, pid: int, users: Mapping[str, Iterable[int]]) -> RankUse:
        tree = self._trees.setdefault(pid, Tree(pid))
        reading, now = tree.read(), time.time()
        operations, waited = read_trail(trail_of(pid))
        running = next((one for one in operations[-1:] if not one.ended), None)
        if running is not None and running.name != FORWARD:
            waited += max(0.0, now - running.began)
        since, before = self._waited.get(pid, (process_of(pid)["started"], 0.0))
        self._waited[pid] = now, waited
        last, spent = self._cpu.get(pid, (0.0, 0.0))
        if reading.cpu is not None:
            self._cpu[pid] = now, reading.cpu
        named = running is not None and running.name != FORWARD and now - running.began >= _WAITED
        return RankUse(
            rank=rank,
            pid=pid,
            cpus=max(0.0, reading.cpu - spent) / (now - last) if reading.cpu is not None and 0 < last < now else None,
            memory=reading.memory,
            waits=min(1.0, max(0.0, waited - before) / max(0.001, now - since)) if operations else None,
            batches=max((one.number for one in operations if one.name == FORWARD), default=0),
            operation=f"{running.name} ({running.place})" if named and running is not None else "",
            devices=tuple(uuid for uuid, pids in users.items() if not tree.members.isdisjoint(pids)),
        )


def trail_of(pid: int) -> str:
    """The file of a rank's trail, as this process can open it; empty where it has none, or may not be looked at."""
    lines = system.kernel_file(f"{pid}/maps").decode("utf-8", "replace").splitlines()
    path = next((line.split(maxsplit=5)[-1] for line in lines if line.endswith(_TRAIL)), "")
    return f"/proc/{pid}/root{path}" if os.path.isabs(path) else ""


def entries(inventory: Inventory) -> Sequence[Entry]:
    """The leases of these devices; if the ledger cannot be read, a message says so and there are none."""
    return entries_of(ledger_of(inventory))


def entries_of(ledger: Ledger) -> Sequence[Entry]:
    """What stands in a ledger; if it cannot be read, a message says so and it is nothing."""
    try:
        return ledger.entries()
    except BackendError as error:
        say(str(error))
        return ()


def waits_of(run: str) -> dict[str, str]:
    """Step or element of a run → why it waits for devices of this machine."""
    known = entries(Inventory(devices=()))
    return {one.holder.key: one.waits for one in known if one.holder.run == run and not one.devices and one.waits}


def left_out() -> Sequence[LeftOut]:
    """The nodes and devices that runs of the current stack left out within a week; none where it has no store yet."""
    try:
        stack = stacks.load()
        if not os.path.isdir(stack.home):
            return ()
        store = open_store(stack.database, stack.artifact_store, str(stack.home), shared=stack.shared)
        try:
            return recently_left_out(store)
        finally:
            store.close()
    except StokerError as error:
        say(f"what runs left out is not known: {error}")
        return ()


def ledger_of(inventory: Inventory) -> Ledger:
    """The ledger of this machine's leases."""
    return Ledger(lambda: inventory, processes, survivors=Survivors())


def by_device(found: Iterable[Process]) -> dict[str, list[Process]]:
    """Device's uuid → the processes that use it."""
    users: dict[str, list[Process]] = {}
    for process in found:
        users.setdefault(process.uuid, []).append(process)
    return users


def document(inventory: Inventory, users: Mapping[str, Sequence[Process]], ledger: Sequence[Entry]) -> dict[str, Any]:
    """The inventory and the ledger as JSON. `leases` also has those of devices that are hidden from this process."""
    return {
        "simulated": inventory.simulated,
        "driver": inventory.driver or None,
        "cuda": version_text(inventory.cuda) or None,
        "devices": [
            {
                **attrs.asdict(device),
                "capability": version_text(device.capability) or None,
                "leased_to": [
                    {**_holder(entry), "memory": entry.memory} for entry in ledger if device.uuid in entry.devices
                ],
                "used_by": [{"pid": user.pid, "memory": user.memory or None} for user in users.get(device.uuid, ())],
            }
            for device in inventory.devices
        ],
        "leases": [
            {
                **_holder(entry),
                "devices": list(entry.devices),
                "memory": entry.memory,
                **({"quarantined_by": list(entry.survivors)} if entry.survivors else {}),
            }
            for entry in ledger
            if entry.devices
        ],
        "waiting": [
            {**_holder(entry), "claim": to_json(entry.claim), "why": entry.waits}
            for entry in ledger
            if not entry.devices
        ],
        "findings": [attrs.asdict(finding) for finding in inventory.findings],
    }


def version_text(version: tuple[int, int] | None) -> str:
    """`"12.2"`; empty for None."""
    return "" if version is None else ".".join(map(str, version))


def _holder(entry: Entry) -> dict[str, Any]:
    holder = entry.holder
    return {"run": holder.run, "step": holder.key, "attempt": holder.attempt, "pid": holder.pid}


@frozen(kw_only=True)
class HostUse:
    """The machine itself."""

    cpus: int
    busy: float
    """Percent of all cores."""
    load: float
    """The load average of the last minute."""
    memory: int
    """Bytes."""
    memory_used: int


def host_use() -> HostUse:
    """The machine's cores and memory; `busy` is since the call before."""
    import psutil

    memory = psutil.virtual_memory()
    return HostUse(
        cpus=psutil.cpu_count() or 1,
        busy=psutil.cpu_percent(),
        load=os.getloadavg()[0],
        memory=memory.total,
        memory_used=memory.total - memory.available,
    )


FRESH: Final = 15.0
"""Seconds after which a monitor's sample is no longer shown: it measures every 10 s at the least."""
PLACES: Final = 10.0
"""Seconds between two looks at a run's jobs on its platform: there may be ten thousand."""
NODES: Final = 30.0
"""Seconds between two questions to a stack's platforms."""
_RUNS: Final = 100
"""Runs whose steps are listed."""


@frozen(kw_only=True)
class DeviceUse:
    """A device, who has it, and what it does; None for what is not known."""

    device: Device
    leases: tuple[str, ...] = ()
    """The attempts that hold it, in words."""
    users: tuple[int, ...] = ()
    """Pids of the processes on it."""
    utilization: float | None = None
    """Percent."""
    memory: int | None = None
    """Bytes in use."""
    power: float | None = None
    """Watts."""
    temperature: float | None = None
    """Degrees Celsius."""


@frozen(kw_only=True)
class StepUse:
    """A step or an element that runs, and what it uses; None for what is not known here."""

    run: str
    pipeline: str
    key: str
    attempt: int
    seconds: float | None = None
    """Since it began."""
    cpus: float | None = None
    """Cores in use."""
    memory: int | None = None
    """Bytes."""
    processes: int | None = None
    devices: tuple[str, ...] = ()
    """UUIDs of the devices that it holds on this machine."""
    node: str = ""
    """The platform's node or job; empty on this machine."""
    ranks: tuple[RankUse, ...] = ()
    """Those of its ranks that are on this machine."""


@frozen(kw_only=True)
class StackNodes:
    """The nodes of one part of a stack."""

    part: str
    """The platform, and of a step operator its name."""
    nodes: tuple[PlatformNode, ...] = ()
    problem: str = ""
    """Why they are not known."""


@frozen(kw_only=True)
class MachineUse:
    """What there is to see at one moment."""

    host: HostUse
    inventory: Inventory
    devices: tuple[DeviceUse, ...] = ()
    steps: tuple[StepUse, ...] = ()
    waiting: tuple[tuple[str, str], ...] = ()
    """Attempts that wait for devices, and why."""
    nodes: tuple[StackNodes, ...] = ()
    problem: str = ""
    """Why the steps are not known."""


class MachineWatch:
    """Looks at this machine again and again. `client` reads the store in which runs are, None where there is none."""

    def __init__(self, inventory: Inventory, client: Client | None, scratch: str) -> None:
        self._inventory = inventory
        self._client = client
        self._scratch = scratch
        self._ledger = ledger_of(inventory)
        self._ranks = RankWatch()
        self._trees: dict[int, Tree] = {}
        self._cpu: dict[str, tuple[float, float]] = {}
        self._meters: dict[str, list[Meter]] = {}
        self._measured: dict[str, dict[str, Any]] = {}
        self._places: dict[str, tuple[float, Mapping[str, Sequence[Placement]]]] = {}

    def look(self, processes: Iterable[Process], nodes: Sequence[StackNodes] = ()) -> MachineUse:
        """What is there now. `processes` are those on the devices, as the drivers tell."""
        ledger = entries_of(self._ledger)
        problem, running = "", list[_Running]()
        try:
            running = list(self._running())
        except StokerError as error:
            problem = str(error)
        samples = {one.job: self._sample(one.job) for one in running if not one.node}
        measured = {
            uuid: row for sample in samples.values() if sample is not None for uuid, row in sample.devices.items()
        }
        users = by_device(processes)
        held = {f"{one.holder.run}/{one.holder.key}/{one.holder.attempt}": one.devices for one in ledger}
        return MachineUse(
            host=host_use(),
            inventory=self._inventory,
            devices=tuple(self._devices(ledger, users, measured)),
            steps=tuple(self._steps(running, samples, held, users)),
            waiting=tuple((_words(one), one.waits) for one in ledger if not one.devices),
            nodes=tuple(nodes),
            problem=problem,
        )

    def _sample(self, job: str) -> LatestSample | None:
        sample = latest(samples_path(self._scratch, job))
        return sample if sample is not None and sample.age <= max(FRESH, 3 * sample.interval) else None

    # Devices

    def _devices(
        self, ledger: Sequence[Entry], users: Mapping[str, Sequence[Process]], measured: Mapping[str, Mapping[str, Any]]
    ) -> Iterable[DeviceUse]:
        rows = {**self._measure([one for one in self._inventory.devices if one.uuid not in measured]), **measured}
        for device in self._inventory.devices:
            row = rows.get(device.uuid, {})
            on_it = users.get(device.uuid, ())
            memory = row.get("m")
            if memory is None and on_it and not row:
                memory = sum(one.memory for one in on_it) or None
            yield DeviceUse(
                device=device,
                leases=tuple(_words(one) for one in ledger if device.uuid in one.devices),
                users=tuple(one.pid for one in on_it),
                utilization=row.get("u", row.get("up")),
                memory=None if memory is None else int(memory),
                power=row.get("w"),
                temperature=row.get("c"),
            )

    def _measure(self, devices: Sequence[Device]) -> dict[str, Mapping[str, Any]]:
        """A row for each real device that answers and that no monitor watches.

        A meter reads what changes slowly, such as the temperature, less often: the row has the last of each.
        """
        rows: dict[str, Mapping[str, Any]] = {}
        for vendor, alike in by_vendor([one for one in devices if not one.simulated]).items():
            if vendor.meter is None:
                continue
            for device in alike:  # one meter each: which devices a monitor watches changes
                if device.uuid not in self._meters:
                    try:
                        self._meters[device.uuid] = [vendor.meter([device])]
                    except OSError:
                        self._meters[device.uuid] = []  # the driver does not tell: it stays unknown
                for meter in self._meters[device.uuid]:
                    for uuid, row in meter.sample(time.monotonic(), frozenset())[0].items():
                        rows[uuid] = self._measured[uuid] = {**self._measured.get(uuid, {}), **row}
        return rows

    # Steps

    def _running(self) -> Iterable[_Running]:
        if self._client is None:
            return
        for run in self._client.runs(status="running", limit=_RUNS):
            places = self._placements(run)
            there = {key: jobs[-1] for key, jobs in places.items() if jobs[-1].started and not jobs[-1].ended}
            for step in run.steps.values():
                if step.status == "running" and step.count is None and step.key not in there:
                    yield _Running(run=run, key=step.key, attempt=step.attempt_count, since=_epoch(step.started))
            for key, (attempt, since) in run.active.items():
                yield _Running(run=run, key=key, attempt=attempt, since=since.timestamp())
            for key, job in there.items():
                node = job.node or job.job or "its platform"
                yield _Running(run=run, key=key, attempt=job.attempt, since=_epoch(job.started), node=node)

    def _placements(self, run: Run) -> Mapping[str, Sequence[Placement]]:
        asked, found = self._places.get(run.id, (0.0, {}))
        if not asked or time.monotonic() - asked >= PLACES:
            found = run.placements
            self._places[run.id] = (time.monotonic(), found)
        return found

    def _steps(
        self,
        running: Sequence[_Running],
        samples: Mapping[str, LatestSample | None],
        held: Mapping[str, tuple[str, ...]],
        users: Mapping[str, Sequence[Process]],
    ) -> Iterable[StepUse]:
        ranks = ranks_of(one.job for one in running)
        self._ranks.forget(pid for pids in ranks.values() for pid in pids.values())
        on_devices = {uuid: [one.pid for one in on_it] for uuid, on_it in users.items()}
        unwatched = {one.job for one in running if not one.node and samples.get(one.job) is None}
        roots = processes_of(unwatched)
        living = {pid for pids in roots.values() for pid in pids}
        self._trees = {pid: self._trees.get(pid) or Tree(pid) for pid in living}
        for one in running:
            sample = samples.get(one.job)
            use: dict[str, Any] = {}
            if sample is not None:
                use = {"cpus": sample.cpus, "memory": sample.memory, "processes": sample.processes}
            elif one.job in roots:
                use = self._use_of(one.job, roots[one.job])
            yield StepUse(
                run=one.run.id,
                pipeline=one.run.pipeline,
                key=one.key,
                attempt=one.attempt,
                seconds=None if one.since is None else max(0.0, time.time() - one.since),
                devices=held.get(one.job, ()),
                node=one.node,
                ranks=self._ranks.look(ranks.get(one.job, {}), on_devices),
                **use,
            )

    def _use_of(self, job: str, pids: Sequence[int]) -> dict[str, Any]:
        """What the processes of a job use, and all that they started."""
        readings = [self._trees[pid].read() for pid in pids]
        spent, now = sum(one.cpu or 0.0 for one in readings), time.monotonic()
        before = self._cpu.get(job)
        self._cpu[job] = (now, spent)
        sizes = [one.memory for one in readings if one.memory is not None]
        return {
            "cpus": None if before is None or now <= before[0] else max(0.0, spent - before[1]) / (now - before[0]),
            "memory": sum(sizes) if sizes else None,
            "processes": sum(one.processes for one in readings),
        }


@frozen(kw_only=True)
class _Running:
    """A step or an element that runs."""

    run: Run
    key: str
    attempt: int
    since: float | None
    node: str = ""

    @property
    def job(self) -> str:
        return f"{self.run.id}/{self.key}/{self.attempt}"


def processes_of(jobs: Iterable[str]) -> dict[str, list[int]]:
    """Job → its process on this machine, or those of its ranks where it has no other; by the names of `worker.beside`.

    Empty where processes cannot be given names: on macOS.
    """
    alone: dict[str, list[int]] = {}
    ranks: dict[str, list[int]] = {}
    for job, rank, pid in _named(jobs):
        (ranks if rank else alone).setdefault(job, []).append(pid)
    return {**ranks, **alone}


def ranks_of(jobs: Iterable[str]) -> dict[str, dict[int, int]]:
    """Job → its ranks on this machine, each with its process."""
    found: dict[str, dict[int, int]] = {}
    for job, rank, pid in sorted(_named(jobs)):
        if rank.isdecimal():
            found.setdefault(job, {}).setdefault(int(rank), pid)  # what it forks has its name, and a later pid
    return found


def _named(jobs: Iterable[str]) -> Iterable[tuple[str, str, int]]:
    """The processes of jobs: job, rank as text (empty for none), pid."""
    wanted = {name_of(job): job for job in jobs}
    for pid in sorted(system.pids()) if wanted and LINUX else ():
        name, _, rank = system.name_of(pid).partition("-")
        if name in wanted:
            yield wanted[name], rank, pid


def stack_nodes(stack: Stack) -> list[StackNodes]:
    """The nodes of a stack's parts, asked of their platforms; of parts that have none, or do not tell, nothing."""
    found: dict[str, StackNodes] = {}
    for name, part in {"": stack.orchestrator, **stack.step_operators}.items():
        backend = BACKENDS.load(part.flavor)
        if backend.nodes is None:
            continue
        words = f"{backend.title} {name}".strip()
        try:
            found[words] = StackNodes(part=words, nodes=tuple(backend.nodes(part.options)))
        except StokerError as error:
            found[words] = StackNodes(part=words, problem=str(error))
    return list(found.values())


class NodeWatch:
    """The nodes of a stack, asked in a thread: a platform may take seconds to answer."""

    def __init__(self, stack: Stack) -> None:
        self._stack = stack
        self._found: list[StackNodes] = []
        self._answered = False
        self._asked = 0.0
        self._thread: threading.Thread | None = None

    def known(self, *, patience: float = 0.0) -> list[StackNodes]:
        """The last answers; asks again where they are old, and waits up to `patience` seconds for the first ones."""
        due = not self._asked or time.monotonic() - self._asked >= NODES
        if due and (self._thread is None or not self._thread.is_alive()):
            self._asked = time.monotonic()
            self._thread = threading.Thread(target=self._ask, daemon=True)
            self._thread.start()
        if self._thread is not None and not self._answered:
            self._thread.join(patience)
        return self._found

    def _ask(self) -> None:
        self._found = stack_nodes(self._stack)
        self._answered = True


def use_document(use: MachineUse) -> dict[str, Any]:
    """What is seen as JSON."""
    return {
        "host": attrs.asdict(use.host),
        "simulated": use.inventory.simulated,
        "devices": [
            {
                **{name: getattr(one.device, name) for name in ("kind", "index", "uuid", "model", "slice")},
                "memory": one.device.memory,
                "memory_used": one.memory,
                **{name: getattr(one, name) for name in ("utilization", "power", "temperature")},
                "leases": list(one.leases),
                "pids": list(one.users),
            }
            for one in use.devices
        ],
        "steps": [{**attrs.asdict(one), "slowest": slowest_text(one.ranks)} for one in use.steps],
        "waiting": [{"attempt": attempt, "why": why} for attempt, why in use.waiting],
        "nodes": to_json(use.nodes),
        "problem": use.problem,
    }


def _words(entry: Entry) -> str:
    holder = entry.holder
    gone = ", in quarantine" if entry.survivors else ""
    return f"{holder.run} {holder.key} #{holder.attempt}{gone}"


def _epoch(moment: Any) -> float | None:
    return None if moment is None else float(moment.timestamp())


Paint = Callable[[str, str], str]
"""A text in an ANSI colour."""
_BAR: Final = 10
_ELASTIC: Final = "step"
"""The column that is cut for the sake of the figures behind it."""
_LEAST_NAME: Final = 20
"""Columns of a name that is cut."""
_NO_LIMIT: Final = 1_000_000
_RIGHT: Final = frozenset(
    {"util", "cpus", "memory", "power", "temp", "index", "time", "processes", "nodes", "rank", "waits", "batches"}
)
"""Columns of figures."""
_LEAST: Final = 3
"""Lines of a section that are shown however low the terminal is."""


def draw(use: MachineUse, *, paint: Paint, width: int = _NO_LIMIT, height: int = _NO_LIMIT) -> list[str]:
    """The lines, each of at most `width` columns; where `height` is too low, sections end with how many are missing."""
    sections = [section for section in _sections(use) if section[1]]
    used = 1 + sum(2 + len(rows) for _, rows, _ in sections)
    lines = [cut(_host(use), width)]
    for number, (headers, rows, noun) in enumerate(sections):
        over = max(0, used - height)
        room = max(_LEAST, len(rows) - over - 1) if over else len(rows)
        # The largest section gives way first: the others are short.
        shown = rows if len(rows) <= room or len(rows) < max(len(one[1]) for one in sections[number:]) else rows[:room]
        used -= len(rows) - len(shown)
        lines.append("")
        lines += _table(headers, shown, width=width, paint=paint)
        if len(shown) < len(rows):
            lines.append(paint(cut(f"… and {count_text(len(rows) - len(shown), f'more {noun}')}", width), "2"))
    for one in use.steps:
        if text := slowest_text(one.ranks):
            lines.append(paint(cut(f"{one.run} {one.key}: {text}", width), "33"))
    for attempt, why in use.waiting:
        lines.append(paint(cut(f"{attempt} waits: {why}", width), "33"))
    lines += [paint(cut(f"{one.part}: {one.problem}", width), "31") for one in use.nodes if one.problem]
    if use.problem:
        lines.append(paint(cut(f"steps are not known: {use.problem}", width), "31"))
    return lines[:height]


Section = tuple[Sequence[str], list[tuple[str, ...]], str]
"""Headers, rows, and what a row is."""


def _sections(use: MachineUse) -> Iterator[Section]:
    headers: Sequence[str] = ("index", "device", "util", "", "memory", "power", "temp", "leased to")
    yield headers, [_device_row(one) for one in use.devices], "device"
    index = {one.device.uuid: f"{one.device.model} {one.device.index}" for one in use.devices}
    headers = ("run", "step", "time", "cpus", "memory", "processes", "devices", "on")
    yield headers, [_step_row(one, index) for one in use.steps], "step"
    headers = ("rank", "cpus", "memory", "waits", "batches", "devices", "in", "of")
    busy = {
        one.device.uuid: index[one.device.uuid] + ("" if one.utilization is None else f" {one.utilization:.0f} %")
        for one in use.devices
    }
    yield headers, [_rank_row(rank, one, busy) for one in use.steps for rank in one.ranks], "rank"
    headers = ("node", "state", "cpus", "memory", "accelerators", "in", "of")
    yield headers, [_node_row(node, part) for part in use.nodes for node in part.nodes], "node"


def _host(use: MachineUse) -> str:
    host = use.host
    parts = [
        f"cpu {host.busy:.0f} % of {count_text(host.cpus, 'core')}",
        f"memory {memory_text(host.memory_used)} of {memory_text(host.memory)}",
        f"load {host.load:.1f}",
        count_text(len(use.devices), "device") + (" (simulated)" if use.inventory.simulated else ""),
        f"{count_text(len(use.steps), 'step')} running",
    ]
    return "  ".join(parts)


def _device_row(use: DeviceUse) -> tuple[str, ...]:
    device = use.device
    percent = use.utilization
    used, whole = use.memory, device.memory
    memory = memory_text(used) if used is not None else "-"
    users = ", ".join(f"pid {pid}" for pid in use.users)
    return (
        str(device.index),
        f"{device.model} {device.slice}".strip(),
        "-" if percent is None else f"{percent:.0f} %",
        "" if percent is None else _bar(percent),
        f"{memory} of {memory_text(whole)}" if whole else memory,
        "-" if use.power is None else f"{use.power:.0f} W",
        "-" if use.temperature is None else f"{use.temperature:.0f} °C",
        ", ".join(use.leases) or (f"no lease: {users}" if users else "free"),
    )


def _bar(percent: float) -> str:
    return ("━" * round(_BAR * min(100.0, max(0.0, percent)) / 100)).ljust(_BAR, "─")


def _step_row(use: StepUse, index: dict[str, str]) -> tuple[str, ...]:
    again = f" #{use.attempt}" if use.attempt > 1 else ""
    return (
        use.run,
        f"{use.pipeline} {use.key}{again}",
        "-" if use.seconds is None else time_text(use.seconds),
        "-" if use.cpus is None else f"{use.cpus:.2f}",
        "-" if use.memory is None else memory_text(use.memory),
        "-" if use.processes is None else str(use.processes),
        ", ".join(index.get(uuid, uuid) for uuid in use.devices),
        use.node or "this machine",
    )


def _rank_row(use: RankUse, step: StepUse, index: dict[str, str]) -> tuple[str, ...]:
    return (
        str(use.rank),
        "-" if use.cpus is None else f"{use.cpus:.2f}",
        "-" if use.memory is None else memory_text(use.memory),
        "-" if use.waits is None else f"{use.waits:.0%}",
        str(use.batches) if use.batches else "",
        ", ".join(index.get(uuid, uuid) for uuid in use.devices),
        use.operation,
        f"{step.run} {step.key}",
    )


def _node_row(node: PlatformNode, part: StackNodes) -> tuple[str, ...]:
    return (
        node.name if node.count == 1 else f"{node.name} ({node.count} nodes)",
        node.state,
        "-" if node.cpus is None else f"{node.cpus:g}",
        "-" if node.memory is None else memory_text(node.memory),
        ", ".join(map(devices_text, node.devices)),
        node.group,
        part.part,
    )


def devices_text(devices: NodeDevices) -> str:
    """ "8 H100, 3 free"."""
    free = "" if devices.free is None else f", {devices.free:g} free"
    return f"{devices.count:g} {devices.model}{free}"


def _table(headers: Sequence[str], rows: Sequence[tuple[str, ...]], *, width: int, paint: Paint) -> Iterator[str]:
    """Aligned columns; those without any text are left out."""
    columns = [number for number in range(len(headers)) if any(row[number] for row in rows)]
    widths = {number: max(columns_of(text[number]) for text in (headers, *rows)) for number in columns}
    over = sum(widths.values()) + 2 * (len(columns) - 1) - width
    for number in (number for number in columns if headers[number] == _ELASTIC and over > 0):
        widths[number] = max(_LEAST_NAME, widths[number] - over)
    for place, row in enumerate((headers, *rows)):
        cells = []
        for number in columns:
            room = widths[number]
            text = cut(row[number], room)
            filled = " " * (room - columns_of(text)) + text if headers[number] in _RIGHT else pad(text, room)
            cells.append(filled)
        line = cut("  ".join(cells).rstrip(), width)
        yield paint(line, "1") if place == 0 else line
