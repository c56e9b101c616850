"""Which devices a claim gets, or why it gets none yet. Pure, so that any state of the ledger can be tested.

The rules:

* A claim is for whole devices, each held by one attempt alone, or with `share` for a part of one's memory. A MIG slice
  is a device of its own. A device that cannot be held alone (`exclusive=False`) goes to every claim.
* A claim without choices gets whole devices, and one slice only on a machine on which nothing else is: CUDA shows a
  process one slice at a time (https://docs.nvidia.com/datacenter/tesla/mig-user-guide/mig-device-names.html#cuda-device-enumeration).
* The devices of a claim are of one vendor, of one model if possible, joined by fast links as far as possible, and among
  equals next to the same CPUs (one NUMA node).
* First come, first served, for choices too: the first that is free now, else the one that is free first. A waiting
  claim reserves every device that it could use against later claims, so that small claims do not starve a big one.
  It reserves no device that the end of all leases would not free, because other processes fill it.
"""

from __future__ import annotations

import itertools
from collections import Counter
from typing import Final, Iterable, Mapping, Sequence

import attrs

from stoker.core.accelerators import MODELS, Accelerator
from stoker.core.devices import Claim, Device, Holder
from stoker.core.words import count_text, memory_text
from stoker.vendors.registry import VENDORS

SLACK: Final = 2**30
SLACK_PART: Final = 0.1
"""Bytes, and the part of a device's memory: other processes with more than the smaller of the two fill a device. An
empty context of CUDA takes 300 to 600 MB, as in an idle notebook or MPS server; a process with more computes."""
SAME_NODE: Final = 2**-12
"""What two devices on one NUMA node count for beside two that are linked, which count 1: all pairs of a set together
count less."""
SEEDS: Final = 32
"""Devices from which sets of linked devices are grown; real machines have 16 at most."""


@attrs.frozen(kw_only=True)
class Ticket:
    """One claim in the ledger."""

    id: str
    holder: Holder
    """The attempt that claims, and its process."""
    claim: Claim | None
    """None where another version of Stoker wrote it in a format that this one does not know."""
    view: tuple[Device, ...]
    """The devices that the holder sees."""
    devices: tuple[str, ...] = ()
    """UUIDs of the devices that it holds; empty while it waits."""
    memory: int = 0
    """Bytes of each device that it holds; 0 for whole devices."""
    survivors: tuple[int, ...] = ()
    """Pids of its processes that live although it is over: its devices are in quarantine."""


@attrs.frozen(kw_only=True)
class Occupant:
    """A process that uses a device."""

    uuid: str
    """The device's."""
    pid: int
    memory: int
    """Bytes of the device's memory; 0 where the driver does not report it."""
    family: frozenset[int]
    """Pids of the process and its ancestors; empty for one that cannot be seen from here, as in a container where the
    driver lists the host's pids."""


def impossible(claim: Claim, devices: Sequence[Device]) -> str:
    """Why no devices of these can ever satisfy a claim, in words; empty where some can."""
    if claim.count < 1 or any((choice.count or 1) < 1 for choice in claim.choices):
        return "the claim asks for no accelerator"
    if claim.share and not claim.memory:
        return "the claim is for a part of a GPU, and does not say how much memory"
    if not devices:
        return "this machine has no GPU"
    if any(_most(_candidates(claim, choice, devices)) >= _count(claim, choice) for choice in _choices(claim)):
        return ""
    text = f"{claim_text(claim)} {'was' if claim.count == 1 else 'were'} asked for, and this machine has "
    text += machine_text(devices)
    left_out = [device.uuid for device in devices if {device.uuid, device.parent} & set(claim.avoid)]
    if left_out:
        text += f", of which this run leaves out {', '.join(left_out)}, where an attempt failed"
    if not claim.choices and claim.count > 1 and not any(_is_whole(device) for device in devices):
        example = f"{devices[0].model}/{devices[0].slice}:{claim.count}"
        text += f"; several slices have to be asked for by name, as in '{example}': CUDA shows a process one at a time"
    return text


def decide(tickets: Sequence[Ticket], uses: Iterable[Occupant]) -> dict[str, tuple[Device, ...] | str]:
    """The devices that each waiting ticket may take now, or why it gets none yet; in the order of the queue."""
    board = _Board.of(tickets, uses)
    outcomes: dict[str, tuple[Device, ...] | str] = {}
    alike: dict[object, list[str]] = {}
    for ticket in tickets:
        if ticket.devices:
            continue
        if ticket.claim is None:
            outcomes[ticket.id] = "waiting for what another version of Stoker knows"
            continue
        # A ticket behind a waiting one with the same claim waits too; from the second on, free devices are reserved.
        reasons = alike.setdefault((ticket.claim, id(ticket.view), ticket.holder.run, ticket.holder.pid), [])
        devices = () if reasons else _choose_devices(board, ticket, ticket.claim)
        if devices:
            outcomes[ticket.id] = devices
            board.give(
                attrs.evolve(ticket, devices=tuple(device.uuid for device in devices), memory=part(ticket.claim))
            )
            continue
        if len(reasons) < 2:
            reasons.append(_waiting_text(board, ticket, ticket.claim))
            _reserve(board, ticket, ticket.claim)
        outcomes[ticket.id] = reasons[-1]
    return outcomes


def conflict(ticket: Ticket, others: Sequence[Ticket], uses: Iterable[Occupant]) -> str:
    """Why a ticket cannot keep the devices that it has, where `others` hold theirs; empty if it can."""
    if ticket.claim is None:
        return ""
    board = _Board.of([attrs.evolve(ticket, devices=()), *others], uses)
    devices = [device for device in ticket.view if device.uuid in ticket.devices]
    obstacles = Counter(filter(None, (_obstacle(board, device, ticket, ticket.claim) for device in devices)))
    listed = ", ".join(f"{count} {text}" for text, count in obstacles.items())
    return listed and f"waiting for {len(devices)} of {len(devices)} devices that were free: {listed}"


def part(claim: Claim) -> int:
    """Bytes that a claim takes of each device; 0 for whole devices."""
    return claim.memory if claim.share else 0


def claim_text(claim: Claim) -> str:
    """`"2 GPUs with 40 GB each"`, `"H100:8 or A100-80GB:8"`, `"12 GB of one GPU"`."""
    text = " or ".join(map(str, claim.choices))
    if claim.share:
        return f"{memory_text(claim.memory)} of one {text or 'GPU'}"
    vendor = f" of {claim.vendor}" if claim.vendor else ""
    memory = f" with {memory_text(claim.memory)}{'' if claim.count == 1 else ' each'}" if claim.memory else ""
    return (text or count_text(claim.count, "GPU") + vendor) + memory


def machine_text(devices: Iterable[Device]) -> str:
    """`"4 × H100, 1 × A100/1g.5gb"`."""
    kinds = Counter(f"{device.model}/{device.slice}" if device.slice else device.model for device in devices)
    return ", ".join(f"{count} × {kind}" for kind, count in kinds.items())


# Devices that fit a claim, held or not.


def _choices(claim: Claim) -> Sequence[Accelerator | None]:
    return claim.choices or (None,)


def _count(claim: Claim, choice: Accelerator | None) -> int:
    return claim.count if choice is None else choice.count or claim.count


def _candidates(claim: Claim, choice: Accelerator | None, view: Sequence[Device]) -> list[Device]:
    """The devices of a view that a choice could take if all were free."""
    candidates = [device for device in view if not claim.vendor or device.kind == claim.vendor]
    if claim.avoid:
        candidates = [device for device in candidates if not {device.uuid, device.parent} & set(claim.avoid)]
    if choice is not None:
        # "1g.10gb+me" is a "1g.10gb" that also has the GPU's media engines.
        same_model = [device for device in candidates if device.model == choice.name]
        candidates = [device for device in same_model if device.slice.partition("+")[0] == choice.slice]
    elif any(_is_whole(device) for device in candidates):
        candidates = [device for device in candidates if _is_whole(device)]
    elif claim.count > 1:
        return []
    if claim.share:
        return [device for device in candidates if _memory(device) >= claim.memory]
    # A driver keeps some of a chip's memory: a K80 sold with 12 GB reports 11.997. What nobody tells refuses nothing.
    known = {device.uuid: max(device.memory, _nominal_memory(device)) for device in candidates}
    return [device for device in candidates if not known[device.uuid] or known[device.uuid] >= claim.memory]


def _most(devices: Iterable[Device]) -> int:
    return max(Counter(device.kind for device in devices).values(), default=0)


def _is_whole(device: Device) -> bool:
    return not device.slice and not device.parent


def _memory(device: Device) -> int:
    return device.memory or _nominal_memory(device)


def _nominal_memory(device: Device) -> int:
    """The least memory in bytes that the model is sold with; 0 for an unknown model."""
    model = MODELS.get(device.model)
    if model is None:
        return 0
    profile = device.slice.partition("+")[0]
    if profile:
        return Accelerator(name=device.model, slice=profile).memory if profile in model.slices else 0
    return model.memory[0]


# Holders of devices.


@attrs.define
class _Board:
    """Holders of devices while a decision is made; changes as waiting tickets get or reserve devices."""

    parents: Mapping[str, str]
    """A slice's UUID → its GPU's."""
    uses: Mapping[str, Sequence[Occupant]]
    """A device's UUID → the processes on it."""
    holders: dict[str, list[Ticket]] = attrs.field(factory=dict)
    """A device's UUID → the tickets that hold it or a slice of it."""
    reserved: dict[str, Ticket] = attrs.field(factory=dict)
    """A device's UUID → the first waiting ticket that could use it."""

    @classmethod
    def of(cls, tickets: Sequence[Ticket], uses: Iterable[Occupant]) -> _Board:
        parents: dict[str, str] = {}
        # Most tickets share one view, which is one object.
        for view in {id(ticket.view): ticket.view for ticket in tickets}.values():
            parents.update((device.uuid, device.parent) for device in view if device.parent)
        on: dict[str, list[Occupant]] = {}
        for use in uses:
            on.setdefault(use.uuid, []).append(use)
        board = cls(parents=parents, uses=on)
        for ticket in tickets:
            board.give(ticket)
        return board

    def give(self, ticket: Ticket) -> None:
        """Enter a ticket as holder of its devices; the holder of a slice also blocks the whole GPU."""
        for uuid in ticket.devices:
            for name in {uuid, self.parents.get(uuid, uuid)}:
                self.holders.setdefault(name, []).append(ticket)

    def on(self, device: Device) -> list[Ticket]:
        """Tickets whose leases touch a device: the device itself, its slices, or the GPU that it is cut from."""
        tickets = self.holders.get(device.uuid, [])
        if device.parent:
            whole = [one for one in self.holders.get(device.parent, ()) if device.parent in one.devices]
            return tickets + whole
        return tickets

    def strangers(self, device: Device, ticket: Ticket) -> list[Occupant]:
        """The processes on a device that belong neither to its holders nor to `ticket`."""
        uses = self.uses.get(device.uuid)
        if not uses:
            return []
        holders = self.on(device)
        pids = {holder.holder.pid for holder in holders} | {ticket.holder.pid}
        return [use for use in uses if not (pids & use.family if use.family else holders)]


def _obstacle(board: _Board, device: Device, ticket: Ticket, claim: Claim) -> str:
    """Why a ticket cannot have a device now, as a text to put after a number of such devices; empty if it can."""
    if not device.exclusive:
        return ""
    holders = board.on(device)
    whole = [one for one in holders if not claim.share or not one.memory or device.uuid not in one.devices]
    if whole:
        return _leased_text(whole, ticket)
    strangers = board.strangers(device, ticket)
    if strangers and _is_filled(device, claim, strangers):
        return _in_use_text(strangers)
    if claim.share and _free_memory(device, holders, strangers) < claim.memory:
        return f"shared with {memory_text(max(0, _free_memory(device, holders, strangers)))} left"
    first = board.reserved.get(device.uuid)
    if first is None:
        return ""
    whose = "another step of this run" if first.holder.run == ticket.holder.run else f"run {first.holder.run}"
    return f"kept for {whose}, which came first"


def _is_filled(device: Device, claim: Claim, strangers: Sequence[Occupant]) -> bool:
    """Whether other processes leave less of a device than a claim asks for, apart from all leases."""
    if not all(use.memory for use in strangers):
        return True
    used = sum(use.memory for use in strangers)
    if claim.share:
        return _memory(device) - used < claim.memory
    return used > min(SLACK, SLACK_PART * (_memory(device) or SLACK / SLACK_PART))


def _free_memory(device: Device, holders: Iterable[Ticket], strangers: Iterable[Occupant]) -> int:
    """Bytes that are free on a device that is shared or not held."""
    return _memory(device) - sum(one.memory for one in holders) - sum(use.memory for use in strangers)


def _reserve(board: _Board, ticket: Ticket, claim: Claim) -> None:
    """Reserve for a ticket every device that it could use once leases end."""
    for choice in _choices(claim):
        usable = [device for device in _candidates(claim, choice, ticket.view) if _usable(board, device, ticket, claim)]
        kinds = Counter(device.kind for device in usable)
        for device in usable:
            if kinds[device.kind] >= _count(claim, choice):
                board.reserved.setdefault(device.uuid, ticket)


def _usable(board: _Board, device: Device, ticket: Ticket, claim: Claim) -> bool:
    strangers = board.strangers(device, ticket)
    return not device.exclusive or not strangers or not _is_filled(device, claim, strangers)


# The choice among free devices.


def _choose_devices(board: _Board, ticket: Ticket, claim: Claim) -> tuple[Device, ...]:
    """The devices that a ticket can take now, by its first choice that is free; none if it must wait."""
    for choice in _choices(claim):
        candidates = _candidates(claim, choice, ticket.view)
        free = [device for device in candidates if not _obstacle(board, device, ticket, claim)]
        count = _count(claim, choice)
        if _most(free) < count:
            continue
        if not claim.share:
            return best(free, count, tight=bool(claim.memory))
        return _pack(board, ticket, free, count)
    return ()


def _pack(board: _Board, ticket: Ticket, free: Sequence[Device], count: int) -> tuple[Device, ...]:
    """Devices to take a part of: shared ones before free ones, those with the least free memory first."""

    def key(device: Device) -> tuple[bool, int]:
        holders = board.on(device) if device.exclusive else []
        return not holders, _free_memory(device, holders, board.strangers(device, ticket))

    order = sorted(free, key=key)
    kind = next(one.kind for one in order if sum(other.kind == one.kind for other in order) >= count)
    return tuple([device for device in order if device.kind == kind][:count])


# Texts.


def _waiting_text(board: _Board, ticket: Ticket, claim: Claim) -> str:
    texts = []
    for choice in _choices(claim):
        candidates = _candidates(claim, choice, ticket.view)
        if _most(candidates) < _count(claim, choice):
            continue
        obstacles = Counter(_obstacle(board, device, ticket, claim) or "free" for device in candidates)
        what = "GPUs" if all(VENDORS.load(device.kind).noun == "GPU" for device in candidates) else "accelerators"
        if choice is not None:
            what = str(attrs.evolve(choice, count=None))
        share = f"{memory_text(claim.memory)} of " if claim.share else ""
        listed = ", ".join(f"{count} {text}" for text, count in obstacles.items())
        texts.append(f"{share}{_count(claim, choice)} of {len(candidates)} {what}: {listed}")
    return "waiting for " + ("; or for ".join(texts) or f"{claim_text(claim)}: not here any more")


def _leased_text(holders: Iterable[Ticket], ticket: Ticket) -> str:
    stuck = [one for one in holders if one.survivors]
    if stuck:
        pids = ", ".join(str(pid) for one in stuck for pid in one.survivors)
        return f"in quarantine: pid {pids} of run {stuck[0].holder.run} has not ended (see stoker devices)"
    runs = sorted({one.holder.run for one in holders})
    return "leased to " + " and ".join("this run" if run == ticket.holder.run else f"run {run}" for run in runs)


def _in_use_text(strangers: Sequence[Occupant]) -> str:
    pids = sorted({use.pid for use in strangers})
    memory = sum(use.memory for use in strangers)
    suffix = f" ({memory_text(memory)})" if memory else ""
    return f"in use by pid{'' if len(pids) == 1 else 's'} {', '.join(map(str, pids))}{suffix}"


def best(devices: Sequence[Device], count: int, *, tight: bool = False) -> tuple[Device, ...]:
    """`count` of some free devices: of one model, with the most links among them, then the most pairs on one NUMA node,
    and the fewest links to others.

    `tight` prefers devices with less memory, for a claim that says how much it needs. Ties go to the first in order. At
    least one vendor must have `count` devices.
    """
    groups: dict[str, list[Device]] = {}
    for device in devices:
        groups.setdefault(f"{device.kind} {device.model} {device.slice}", []).append(device)
    if max(map(len, groups.values())) < count:
        groups = {}
        for device in devices:
            groups.setdefault(device.kind, []).append(device)
    position = {device.uuid: number for number, device in enumerate(devices)}
    choice: tuple[tuple[float, ...], list[Device]] | None = None
    for group in groups.values():
        if len(group) < count:
            continue
        inside, members = _most_linked(sorted(group, key=lambda one: one.memory) if tight else group, count)
        key = (-inside, sum(one.memory for one in members) if tight else 0, min(position[one.uuid] for one in members))
        if choice is None or key < choice[0]:
            choice = (key, members)
    assert choice is not None  # one kind has enough
    return tuple(sorted(choice[1], key=lambda one: position[one.uuid]))


def _most_linked(devices: Sequence[Device], count: int) -> tuple[float, list[Device]]:
    """(what the pairs inside count for, the devices) of the best set among those grown from each device.

    Begins with devices that have the fewest free neighbours, so that the remaining ones stay linked.
    """
    free = {device.uuid for device in devices}
    near: dict[str, dict[str, float]] = {
        device.uuid: dict.fromkeys(free.intersection(device.links) - {device.uuid}, 1.0) for device in devices
    }
    order = sorted(devices, key=lambda device: len(near[device.uuid]))
    for node in {device.numa for device in devices if device.numa is not None}:
        there = [device.uuid for device in devices if device.numa == node]
        for one, other in itertools.permutations(there, 2):
            near[one][other] = near[one].get(other, 0.0) + SAME_NODE
    nearest = [sum(sorted(others.values(), reverse=True)[: count - 1]) for others in near.values()]
    most = sum(sorted(nearest, reverse=True)[:count]) / 2
    choice: tuple[float, list[Device]] = (-1.0, [])
    for seed in order[:SEEDS]:
        members, inside = [seed], 0.0
        ties = {device.uuid: near[seed.uuid].get(device.uuid, 0.0) for device in order if device is not seed}
        rest = {device.uuid: device for device in order if device is not seed}
        while len(members) < count:
            # max takes the first of equals: the one with the fewest free neighbours.
            best_of_rest = max(rest, key=lambda uuid: ties[uuid])
            inside += ties[best_of_rest]
            members.append(rest.pop(best_of_rest))
            for uuid, more in near[best_of_rest].items():
                if uuid in rest:
                    ties[uuid] += more
        if inside > choice[0]:
            choice = (inside, members)
        if inside >= most:
            break
    return choice
