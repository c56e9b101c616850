"""Which devices a claim gets, and why it gets none yet: pure, so that any state of the ledger can be tested.

The rules:

* A claim is for whole devices, each held by one attempt alone, or with `share` for a part of one's memory. A MIG slice
  is a device of its own. What cannot be held alone (`exclusive=False`) goes to whoever asks.
* A claim without choices gets whole devices, and one slice only on a machine on which nothing else is: CUDA shows a
  process one slice at a time (https://docs.nvidia.com/datacenter/tesla/mig-user-guide/#cuda-visible-devices).
* The devices of a claim are of one vendor, of one model if possible, and joined by fast links as far as possible.
* First come, first served, for choices too: the first that can be had now, else whichever comes first. Whoever waits
  keeps every device that it could use from those who came later, so that a big claim is not starved by small ones.
  One that the end of all leases could not help, because strangers fill its devices, keeps nothing from anybody.
"""

from __future__ import annotations

from collections import Counter
from typing import Final, Iterable, Mapping, Sequence

import attrs

from stoker.core.accelerators import MODELS, Accelerator
from stoker.core.devices import Claim, Device, Holder
from stoker.core.words import count_text, memory_text
from stoker.vendors.registry import VENDORS

SLACK: Final = 2**30
SLACK_PART: Final = 0.1
"""Bytes, and the part of a device's memory: strangers with more than the less of the two fill a device. A context of
CUDA without anything in it takes 300 to 600 MB, as an idle notebook or MPS server has; whoever has more computes."""


@attrs.frozen(kw_only=True)
class Ticket:
    """A line of the ledger: who claims what, in sight of which devices, and what it was given: none while it waits.

    `claim` is None where another version of Stoker wrote it in words that this one does not know.
    """

    id: str
    holder: Holder
    claim: Claim | None
    view: tuple[Device, ...]
    devices: tuple[str, ...] = ()
    memory: int = 0


@attrs.frozen(kw_only=True)
class Occupant:
    """A process's memory on a device, 0 where the driver does not tell.

    `family` are the pids of the process and its ancestors; empty for one that cannot be seen from here, as in a
    container that is told the host's pids.
    """

    uuid: str
    pid: int
    memory: int
    family: frozenset[int]


def impossible(claim: Claim, devices: Sequence[Device]) -> str:
    """Why no devices of these can ever satisfy a claim, in words; empty where some can."""
    if claim.count < 1 or any((choice.count or 1) < 1 for choice in claim.choices):
        return "the claim asks for no accelerator"
    if claim.share and not claim.memory:
        return "the claim is for a part of a GPU, and does not say how much memory"
    if not devices:
        return "this machine has no GPU"
    if any(_most(_fitting(claim, choice, devices)) >= _count(claim, choice) for choice in _choices(claim)):
        return ""
    text = f"{claim_text(claim)} {'was' if claim.count == 1 else 'were'} asked for, and this machine has "
    text += machine_text(devices)
    if not claim.choices and claim.count > 1 and not any(_is_whole(device) for device in devices):
        named = f"{devices[0].model}/{devices[0].slice}:{claim.count}"
        text += f"; several slices have to be asked for by name, as in '{named}': CUDA shows a process one at a time"
    return text


def decide(tickets: Sequence[Ticket], uses: Iterable[Occupant]) -> dict[str, tuple[Device, ...] | str]:
    """For each ticket that waits, in the order of the line: the devices that it may take now, or why none yet."""
    board = _Board.of(tickets, uses)
    found: dict[str, tuple[Device, ...] | str] = {}
    alike: dict[object, list[str]] = {}
    for ticket in tickets:
        if ticket.devices:
            continue
        if ticket.claim is None:
            found[ticket.id] = "waiting for what another version of Stoker knows"
            continue
        # Behind one that waits, one that asks for the same waits too; of the second on, what is free is kept for it.
        told = alike.setdefault((ticket.claim, id(ticket.view), ticket.holder.run, ticket.holder.pid), [])
        given = () if told else _given(board, ticket, ticket.claim)
        if given:
            found[ticket.id] = given
            board.give(attrs.evolve(ticket, devices=tuple(device.uuid for device in given), memory=part(ticket.claim)))
            continue
        if len(told) < 2:
            told.append(_waits(board, ticket, ticket.claim))
            _keep(board, ticket, ticket.claim)
        found[ticket.id] = told[-1]
    return found


def part(claim: Claim) -> int:
    """The memory of each device that a claim takes, 0 if it takes them whole."""
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


# What fits a claim, whoever holds it.


def _choices(claim: Claim) -> Sequence[Accelerator | None]:
    return claim.choices or (None,)


def _count(claim: Claim, choice: Accelerator | None) -> int:
    return claim.count if choice is None else choice.count or claim.count


def _fitting(claim: Claim, choice: Accelerator | None, view: Sequence[Device]) -> list[Device]:
    """The devices of a view that a choice could take if nobody else had any."""
    mine = [device for device in view if not claim.vendor or device.kind == claim.vendor]
    if choice is not None:
        # "1g.10gb+me" is a "1g.10gb" that also has the GPU's media engines.
        named = [device for device in mine if device.model == choice.name]
        mine = [device for device in named if device.slice.partition("+")[0] == choice.slice]
    elif any(_is_whole(device) for device in mine):
        mine = [device for device in mine if _is_whole(device)]
    elif claim.count > 1:
        return []
    if claim.share:
        return [device for device in mine if _memory(device) >= claim.memory]
    # A driver keeps some of a chip's memory to itself: a K80 sold with 12 GB tells of 11.997.
    return [device for device in mine if max(device.memory, _sold(device)) >= claim.memory]


def _most(devices: Iterable[Device]) -> int:
    return max(Counter(device.kind for device in devices).values(), default=0)


def _is_whole(device: Device) -> bool:
    return not device.slice and not device.parent


def _memory(device: Device) -> int:
    return device.memory or _sold(device)


def _sold(device: Device) -> int:
    """The memory in bytes that a device is sold with, at least; 0 for a model that is not known."""
    known = MODELS.get(device.model)
    if known is None:
        return 0
    profile = device.slice.partition("+")[0]
    if profile:
        return Accelerator(name=device.model, slice=profile).memory if profile in known.slices else 0
    return known.memory[0]


# Who has what.


@attrs.define
class _Board:
    """Who has what while a decision is made: it changes as those in the line are given devices or keep them."""

    parents: Mapping[str, str]
    uses: Mapping[str, Sequence[Occupant]]
    holders: dict[str, list[Ticket]] = attrs.field(factory=dict)
    kept: dict[str, Ticket] = attrs.field(factory=dict)

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
        """Whoever has a slice also stands in the way of its whole GPU."""
        for uuid in ticket.devices:
            for name in {uuid, self.parents.get(uuid, uuid)}:
                self.holders.setdefault(name, []).append(ticket)

    def on(self, device: Device) -> list[Ticket]:
        """Those whose leases touch a device: its own, its slices', and one of the whole GPU that it is cut from."""
        found = self.holders.get(device.uuid, [])
        if device.parent:
            whole = [one for one in self.holders.get(device.parent, ()) if device.parent in one.devices]
            return found + whole
        return found

    def strangers(self, device: Device, ticket: Ticket) -> list[Occupant]:
        """The processes on a device that belong neither to those who hold it nor to the one who asks."""
        uses = self.uses.get(device.uuid)
        if not uses:
            return []
        holders = self.on(device)
        pids = {holder.holder.pid for holder in holders} | {ticket.holder.pid}
        return [use for use in uses if not (pids & use.family if use.family else holders)]


def _obstacle(board: _Board, device: Device, ticket: Ticket, claim: Claim) -> str:
    """What keeps a device from a ticket now, as it stands behind a number of such devices; empty if it can have it."""
    if not device.exclusive:
        return ""
    holders = board.on(device)
    whole = [one for one in holders if not claim.share or not one.memory or device.uuid not in one.devices]
    if whole:
        return _leased(whole, ticket)
    strangers = board.strangers(device, ticket)
    if strangers and _is_filled(device, claim, strangers):
        return _used(strangers)
    if claim.share and _left(device, holders, strangers) < claim.memory:
        return f"shared with {memory_text(max(0, _left(device, holders, strangers)))} left"
    first = board.kept.get(device.uuid)
    if first is None:
        return ""
    whose = "another step of this run" if first.holder.run == ticket.holder.run else f"run {first.holder.run}"
    return f"kept for {whose}, which came first"


def _is_filled(device: Device, claim: Claim, strangers: Sequence[Occupant]) -> bool:
    """Whether strangers leave less of a device than a claim asks for, were it leased to nobody."""
    if not all(use.memory for use in strangers):
        return True
    taken = sum(use.memory for use in strangers)
    if claim.share:
        return _memory(device) - taken < claim.memory
    return taken > min(SLACK, SLACK_PART * (_memory(device) or SLACK / SLACK_PART))


def _left(device: Device, holders: Iterable[Ticket], strangers: Iterable[Occupant]) -> int:
    """Bytes of a device that is shared or free."""
    return _memory(device) - sum(one.memory for one in holders) - sum(use.memory for use in strangers)


def _keep(board: _Board, ticket: Ticket, claim: Claim) -> None:
    """Keep from those behind it every device that a ticket could use once leases end."""
    for choice in _choices(claim):
        usable = [device for device in _fitting(claim, choice, ticket.view) if _usable(board, device, ticket, claim)]
        kinds = Counter(device.kind for device in usable)
        for device in usable:
            if kinds[device.kind] >= _count(claim, choice):
                board.kept.setdefault(device.uuid, ticket)


def _usable(board: _Board, device: Device, ticket: Ticket, claim: Claim) -> bool:
    strangers = board.strangers(device, ticket)
    return not device.exclusive or not strangers or not _is_filled(device, claim, strangers)


# Which of those that are free.


def _given(board: _Board, ticket: Ticket, claim: Claim) -> tuple[Device, ...]:
    """The devices that a ticket can take now, by its first choice that can be had; none if it must wait."""
    for choice in _choices(claim):
        fitting = _fitting(claim, choice, ticket.view)
        free = [device for device in fitting if not _obstacle(board, device, ticket, claim)]
        count = _count(claim, choice)
        if _most(free) < count:
            continue
        if not claim.share:
            return best(free, count, tight=bool(claim.memory))
        return _packed(board, ticket, free, count)
    return ()


def _packed(board: _Board, ticket: Ticket, free: Sequence[Device], count: int) -> tuple[Device, ...]:
    """Devices to take a part of: shared ones before untouched ones, and of these where the least is left."""

    def key(device: Device) -> tuple[bool, int]:
        holders = board.on(device) if device.exclusive else []
        return not holders, _left(device, holders, board.strangers(device, ticket))

    order = sorted(free, key=key)
    kind = next(one.kind for one in order if sum(other.kind == one.kind for other in order) >= count)
    return tuple([device for device in order if device.kind == kind][:count])


# In words.


def _waits(board: _Board, ticket: Ticket, claim: Claim) -> str:
    texts = []
    for choice in _choices(claim):
        fitting = _fitting(claim, choice, ticket.view)
        if _most(fitting) < _count(claim, choice):
            continue
        obstacles = Counter(_obstacle(board, device, ticket, claim) or "free" for device in fitting)
        what = "GPUs" if all(VENDORS.load(device.kind).noun == "GPU" for device in fitting) else "accelerators"
        if choice is not None:
            what = str(attrs.evolve(choice, count=None))
        share = f"{memory_text(claim.memory)} of " if claim.share else ""
        listed = ", ".join(f"{count} {text}" for text, count in obstacles.items())
        texts.append(f"{share}{_count(claim, choice)} of {len(fitting)} {what}: {listed}")
    return "waiting for " + ("; or for ".join(texts) or f"{claim_text(claim)}: not here any more")


def _leased(holders: Iterable[Ticket], ticket: Ticket) -> str:
    runs = sorted({one.holder.run for one in holders})
    return "leased to " + " and ".join("this run" if run == ticket.holder.run else f"run {run}" for run in runs)


def _used(strangers: Sequence[Occupant]) -> str:
    pids = sorted({use.pid for use in strangers})
    memory = sum(use.memory for use in strangers)
    told = f" ({memory_text(memory)})" if memory else ""
    return f"in use by pid{'' if len(pids) == 1 else 's'} {', '.join(map(str, pids))}{told}"


SEEDS: Final = 32
"""Devices from which sets are grown to find linked ones; real machines have 16 at most."""


def best(devices: Sequence[Device], count: int, *, tight: bool = False) -> tuple[Device, ...]:
    """So many of some free devices: of one model, with the most links among them, and the fewest cut.

    `tight`: rather those with less memory, for a claim that says how much it needs. The first in order if all else is
    the same. At least one kind must have so many.
    """
    groups: dict[str, list[Device]] = {}
    for device in devices:
        groups.setdefault(f"{device.kind} {device.model} {device.slice}", []).append(device)
    if max(map(len, groups.values())) < count:
        groups = {}
        for device in devices:
            groups.setdefault(device.kind, []).append(device)
    place = {device.uuid: number for number, device in enumerate(devices)}
    chosen: tuple[tuple[float, ...], list[Device]] | None = None
    for group in groups.values():
        if len(group) < count:
            continue
        inside, found = _linked(sorted(group, key=lambda one: one.memory) if tight else group, count)
        key = (-inside, sum(one.memory for one in found) if tight else 0, min(place[one.uuid] for one in found))
        if chosen is None or key < chosen[0]:
            chosen = (key, found)
    assert chosen is not None  # one kind has enough
    return tuple(sorted(chosen[1], key=lambda one: place[one.uuid]))


def _linked(devices: Sequence[Device], count: int) -> tuple[int, list[Device]]:
    """(pairs that are linked, the devices): sets grown from each device, the best of them.

    Begins with those that have the fewest free neighbours, so that what is left stays together.
    """
    free = {device.uuid for device in devices}
    links = {device.uuid: free.intersection(device.links) - {device.uuid} for device in devices}
    order = sorted(devices, key=lambda device: len(links[device.uuid]))
    degrees = sorted((min(len(found), count - 1) for found in links.values()), reverse=True)
    most = sum(degrees[:count]) // 2
    chosen: tuple[int, list[Device]] = (-1, [])
    for seed in order[:SEEDS]:
        found, inside = [seed], 0
        ties = {device.uuid: int(device.uuid in links[seed.uuid]) for device in order if device is not seed}
        rest = {device.uuid: device for device in order if device is not seed}
        while len(found) < count:
            # max takes the first of equals: the one with the fewest free neighbours.
            nearest = max(rest, key=lambda uuid: ties[uuid])
            inside += ties[nearest]
            found.append(rest.pop(nearest))
            for uuid in links[nearest]:
                if uuid in rest:
                    ties[uuid] += 1
        if inside > chosen[0]:
            chosen = (inside, found)
        if inside >= most:
            break
    return chosen
