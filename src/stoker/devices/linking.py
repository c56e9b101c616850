"""Which of several devices that would all do are best together: alike, and joined by fast links. Pure."""

from __future__ import annotations

from typing import Final, Sequence

from stoker.core.devices import Device

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
