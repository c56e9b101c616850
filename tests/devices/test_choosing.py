"""Who gets which devices: the rules, on states of the ledger that are written down."""

from __future__ import annotations

from typing import Any

import attrs
import pytest

from stoker.core.accelerators import Accelerator
from stoker.core.devices import Claim, Device, Holder
from stoker.devices.choosing import SLACK, Occupant, Ticket, best, decide, impossible
from stoker.devices.probe import parse_simulation

GB = 10**9


def machine(text: str) -> tuple[Device, ...]:
    return parse_simulation(text).devices


def claim(count: int = 1, *choices: str, **fields: Any) -> Claim:
    named = tuple(Accelerator.parse(choice) for choice in choices)
    return Claim(count=count, choices=tuple(attrs.evolve(one, count=one.count or count) for one in named), **fields)


class Line:
    """A ledger in the making: `line.holds("a", 0, 1)` and `line.asks("b", claim(2))`, in order."""

    def __init__(self, devices: tuple[Device, ...]) -> None:
        self.devices = devices
        self.tickets: list[Ticket] = []
        self.uses: list[Occupant] = []

    def holds(self, run: str, *numbers: int, memory: int = 0) -> Line:
        uuids = tuple(self.devices[number].uuid for number in numbers)
        return self._add(run, claim(len(uuids), memory=memory, share=bool(memory)), uuids, memory, self.devices)

    def asks(self, run: str, wanted: Claim | None, view: tuple[Device, ...] | None = None) -> Line:
        return self._add(run, wanted, (), 0, self.devices if view is None else view)

    def used(self, number: int, pid: int, memory: int, *family: int, seen: bool = True) -> Line:
        pids = frozenset((pid, *family)) if seen else frozenset()
        self.uses.append(Occupant(uuid=self.devices[number].uuid, pid=pid, memory=memory, family=pids))
        return self

    def _add(
        self, run: str, wanted: Claim | None, uuids: tuple[str, ...], memory: int, view: tuple[Device, ...]
    ) -> Line:
        number = len(self.tickets)
        # Each run has a process of its own.
        pid = 1000 + list(dict.fromkeys([*(ticket.holder.run for ticket in self.tickets), run])).index(run)
        holder = Holder(run=run, key="train", attempt=1, pid=pid, started=1.0)
        self.tickets.append(
            Ticket(id=f"t{number}", holder=holder, claim=wanted, view=view, devices=uuids, memory=memory)
        )
        return self

    def decided(self) -> list[list[int] | str]:
        """For each that waits: the numbers of the devices that it may take, or why it waits."""
        place = {device.uuid: number for number, device in enumerate(self.devices)}
        outcomes = decide(self.tickets, self.uses).values()
        return [one if isinstance(one, str) else [place[device.uuid] for device in one] for one in outcomes]


def test_whole_devices_are_held_by_one_alone() -> None:
    line = Line(machine("4xL4")).holds("a", 0).asks("b", claim()).asks("c", claim(2)).asks("d", claim())
    assert line.decided() == [
        [1],
        [2, 3],
        "waiting for 1 of 4 GPUs: 1 leased to run a, 1 leased to run b, 2 leased to run c",
    ]


def test_the_reason_names_runs_and_strangers() -> None:
    line = Line(machine("4xH100")).holds("7f2", 0, 1).holds("7f2", 2).used(3, 4711, 12 * GB).asks("9ab", claim(2))
    assert line.decided() == ["waiting for 2 of 4 GPUs: 3 leased to run 7f2, 1 in use by pid 4711 (12 GB)"]
    line = Line(machine("3xH100")).holds("a", 0).used(1, 8, 0).used(1, 7, 12 * GB).asks("a", claim(2))
    assert line.decided() == [
        "waiting for 2 of 3 GPUs: 1 leased to this run, 1 in use by pids 7, 8 (12 GB), 1 free",
    ]
    line = Line(machine("2xtrainium")).holds("a", 0, 1).asks("b", claim())
    assert line.decided() == ["waiting for 1 of 2 accelerators: 2 leased to run a"]


def test_who_came_later_takes_nothing_that_an_earlier_one_could_use() -> None:
    line = Line(machine("2xH100,2xA10")).holds("a", 0).asks("big", claim(2, "H100"))
    line.asks("small", claim(1, "H100")).asks("other", claim(1, "A10")).asks("any", claim())
    assert line.decided() == [
        "waiting for 2 of 2 H100: 1 leased to run a, 1 free",
        "waiting for 1 of 2 H100: 1 leased to run a, 1 kept for run big, which came first",
        [2],
        [3],
    ]
    # Enough for both: nobody has to wait for the other to be asked.
    line = Line(machine("4xH100")).asks("big", claim(3)).asks("small", claim()).asks("late", claim())
    assert line.decided()[:2] == [[0, 1, 2], [3]]


def test_many_that_ask_for_the_same() -> None:
    line = Line(machine("2xH100")).holds("a", 0)
    for _ in range(5):
        line.asks("b", claim(2))
    first, *others = line.decided()
    assert first == "waiting for 2 of 2 GPUs: 1 leased to run a, 1 free"
    assert set(map(str, others)) == {
        "waiting for 2 of 2 GPUs: 1 leased to run a, 1 kept for another step of this run, which came first"
    }


def test_a_share_is_kept_from_those_behind_too() -> None:
    line = Line(machine("1xH100")).holds("a", 0, memory=60 * GB).asks("b", claim(memory=40 * GB, share=True))
    line.asks("c", claim(memory=10 * GB, share=True))
    assert line.decided() == [
        "waiting for 40 GB of 1 of 1 GPUs: 1 shared with 20 GB left",
        "waiting for 10 GB of 1 of 1 GPUs: 1 kept for run b, which came first",
    ]


def test_one_whom_no_release_could_help_keeps_nothing() -> None:
    line = Line(machine("2xH100")).used(0, 4711, 40 * GB).asks("both", claim(2)).asks("one", claim())
    assert line.decided() == ["waiting for 2 of 2 GPUs: 1 in use by pid 4711 (40 GB), 1 free", [1]]
    # Once the stranger is gone, whoever slipped in is waited for, and nobody else passes.
    line = Line(machine("2xH100")).holds("one", 1).asks("both", claim(2)).asks("later", claim())
    assert isinstance(line.decided()[1], str)


def test_alternatives_in_order() -> None:
    wanted = claim(2, "H100", "A10", "L4")
    # No L4 is here; that choice is skipped.
    assert Line(machine("2xA10,2xH100")).asks("a", wanted).decided() == [[2, 3]]
    assert Line(machine("2xA10,2xH100")).holds("x", 3).asks("a", wanted).decided() == [[0, 1]]
    line = Line(machine("2xA10,2xH100")).holds("x", 3).holds("y", 0).asks("a", wanted).asks("b", claim())
    assert line.decided() == [
        "waiting for 2 of 2 H100: 1 free, 1 leased to run x; or for 2 of 2 A10: 1 leased to run y, 1 free",
        "waiting for 1 of 4 GPUs: 1 leased to run y, 2 kept for run a, which came first, 1 leased to run x",
    ]
    # Each choice has a count of its own.
    assert Line(machine("1xH100,4xA10")).asks("a", claim(2, "H100:2", "A10:4")).decided() == [[1, 2, 3, 4]]


def pairs(devices: tuple[Device, ...], *linked: tuple[int, int]) -> tuple[Device, ...]:
    """The same devices with links between these only."""
    joined = {
        number: [b for a, b in linked if a == number] + [a for a, b in linked if b == number]
        for number in range(len(devices))
    }
    return tuple(
        attrs.evolve(device, links=tuple(devices[other].uuid for other in joined[number]))
        for number, device in enumerate(devices)
    )


def test_linked_devices_are_preferred() -> None:
    bridged = pairs(machine("4xA100"), (0, 2), (1, 3))
    assert Line(bridged).asks("a", claim(2)).decided() == [[0, 2]]
    assert Line(bridged).holds("x", 0).asks("a", claim(2)).decided() == [[1, 3]]
    # A single one is not torn from a pair that is still whole.
    assert Line(bridged).holds("x", 1).asks("a", claim()).decided() == [[3]]
    assert Line(bridged).holds("x", 0, 1).asks("a", claim(2)).decided() == [[2, 3]]
    # The cube of eight V100: 0-3 and 4-7 are joined all to all, and each to one of the others.
    quads = [(a, b) for base in (0, 4) for a in range(base, base + 4) for b in range(a + 1, base + 4)]
    cube = pairs(machine("8xV100"), *quads, (0, 4), (1, 5), (2, 6), (3, 7))
    assert Line(cube).holds("x", 0).asks("a", claim(4)).decided() == [[4, 5, 6, 7]]


def test_near_devices_are_preferred_among_equals() -> None:
    """Eight H100 are joined all to all by NVSwitch, four next to each of two processors."""
    every = [(a, b) for a in range(8) for b in range(a + 1, 8)]
    joined = pairs(machine("8xH100"), *every)
    switched = tuple(attrs.evolve(device, numa=number % 2) for number, device in enumerate(joined))
    assert Line(joined).asks("a", claim(2)).decided() == [[0, 1]]
    assert Line(switched).asks("a", claim(2)).decided() == [[0, 2]]
    assert Line(switched).holds("x", 0, 2).asks("a", claim(4)).decided() == [[1, 3, 5, 7]]
    assert Line(switched).holds("x", 0, 1).asks("a", claim(4)).decided() == [[2, 3, 4, 6]]
    bridged = pairs(switched, (0, 1), (2, 3))
    assert Line(bridged).asks("a", claim(2)).decided() == [[0, 1]], "a link goes before nearness"


def test_one_model_is_preferred_and_one_vendor_demanded() -> None:
    assert Line(machine("1xA10,1xL4,2xT4")).asks("a", claim(2)).decided() == [[2, 3]]
    assert Line(machine("1xA10,1xL4,2xT4")).holds("x", 2).asks("a", claim(3)).decided() == [[0, 1, 3]]
    mixed = machine("1xL4,1xMI300X")
    assert impossible(claim(2), mixed) == "2 GPUs were asked for, and this machine has 1 × L4, 1 × MI300X"
    assert Line(mixed).asks("a", claim(vendor="amd")).decided() == [[1]]
    assert "of amd" in impossible(claim(2, vendor="amd"), mixed)


def test_memory_is_a_minimum_and_the_smallest_that_fits_is_taken() -> None:
    devices = machine("1xH100,1xA10,1xA40")
    assert Line(devices).asks("a", claim(memory=24 * GB)).decided() == [[1]]
    assert Line(devices).asks("a", claim(memory=25 * GB)).decided() == [[2]]
    assert Line(devices).asks("a", claim()).decided() == [[0]]
    assert impossible(claim(memory=81 * GB), devices).startswith("1 GPU with 81 GB was asked for, and this machine")
    # What the driver keeps to itself is no reason to refuse; a driver that tells nothing leaves what was sold.
    small = (attrs.evolve(machine("1xK80")[0], memory=11_996_758_016),)
    assert not impossible(claim(memory=12 * GB), small)
    silent = (attrs.evolve(machine("1xGB10")[0], memory=0),)
    assert not impossible(claim(memory=128 * GB), silent) and impossible(claim(memory=129 * GB), silent)
    unknown = (attrs.evolve(silent[0], model="GPU of tomorrow"),)
    assert not impossible(claim(memory=GB), unknown), "what nobody tells refuses nothing"
    assert impossible(claim(memory=GB, share=True), unknown), "and is no part of it that is free"


def test_slices_are_devices_of_their_own() -> None:
    devices = machine("1xA100-80GB,2xA100-80GB/1g.10gb,1xA100-80GB/3g.40gb")
    assert Line(devices).asks("a", claim(2, "A100-80GB/1g.10gb")).decided() == [[1, 2]]
    assert Line(devices).asks("a", claim(1, "A100-80GB")).decided() == [[0]]
    # Without a name: whole devices, and a slice only where nothing else is.
    line = Line(devices).asks("a", claim()).asks("b", claim())
    assert line.decided() == [[0], "waiting for 1 of 1 GPUs: 1 leased to run a"]
    sliced = devices[1:]
    assert Line(sliced).asks("a", claim()).asks("b", claim(memory=20 * GB)).decided() == [[0], [2]]
    assert "asked for by name, as in 'A100-80GB/1g.10gb:2'" in impossible(claim(2), sliced)
    media = (attrs.evolve(devices[1], slice="1g.10gb+me"),)
    assert not impossible(claim(1, "A100-80GB/1g.10gb"), media)


def test_a_slice_and_the_gpu_that_it_is_cut_from() -> None:
    """MIG was switched after somebody looked: the two are in different views, and one chip all the same."""
    sliced = machine("2xA100-80GB/1g.10gb")
    whole = attrs.evolve(machine("1xA100-80GB")[0], uuid=sliced[0].parent)
    line = Line((*sliced, whole)).holds("a", 0).asks("b", claim(1, "A100-80GB"))
    assert line.decided() == ["waiting for 1 of 1 A100-80GB: 1 leased to run a"]
    line = Line((*sliced, whole)).holds("a", 2).asks("b", claim(1, "A100-80GB/1g.10gb"))
    assert line.decided() == ["waiting for 1 of 2 A100-80GB/1g.10gb: 2 leased to run a"]
    # A sister slice is no obstacle.
    assert Line(sliced).holds("a", 0).asks("b", claim(1, "A100-80GB/1g.10gb")).decided() == [[1]]


def test_shares_are_packed() -> None:
    part = claim(memory=20 * GB, share=True)
    devices = machine("4xH100")
    assert Line(devices).asks("a", part).decided() == [[0]]
    # Where others share, and of these where the least is left.
    line = Line(devices).holds("x", 1, memory=10 * GB).holds("y", 2, memory=50 * GB).holds("z", 3, memory=70 * GB)
    assert line.asks("a", part).asks("b", part).decided() == [[2], [1]]
    # As many as there is room for, and not one more.
    line = Line(machine("1xH100"))
    for number in range(5):
        line.asks(f"r{number}", part)
    assert line.decided() == [[0], [0], [0], [0], "waiting for 20 GB of 1 of 1 GPUs: 1 shared with 0 B left"]
    assert Line(machine("1xH100")).holds("x", 0).asks("a", part).decided() == [
        "waiting for 20 GB of 1 of 1 GPUs: 1 leased to run x"
    ]
    assert Line(machine("1xH100")).holds("x", 0, memory=GB).asks("a", claim()).decided() == [
        "waiting for 1 of 1 GPUs: 1 leased to run x"
    ]
    assert impossible(claim(memory=81 * GB, share=True), devices).startswith("81 GB of one GPU was asked for")
    assert "does not say how much memory" in impossible(claim(share=True), devices)


def test_devices_that_strangers_fill_are_passed_over() -> None:
    devices = machine("2xH100")
    assert Line(devices).used(0, 4711, SLACK + 1).asks("a", claim()).decided() == [[1]]
    assert Line(devices).used(0, 4711, SLACK).asks("a", claim()).decided() == [[0]]
    # A tenth of a small one.
    assert Line(machine("2xP4")).used(0, 4711, 8 * GB // 10 + 1).asks("a", claim()).decided() == [[1]]
    # A process whose memory the driver does not tell may have any.
    assert Line(devices).used(0, 4711, 0).asks("a", claim()).decided() == [[1]]
    # A part only has to fit beside them.
    part = claim(memory=20 * GB, share=True)
    assert Line(devices).used(0, 4711, 60 * GB).asks("a", part).decided() == [[0]]
    assert Line(devices).used(0, 4711, 61 * GB).asks("a", part).decided() == [[1]]


def test_processes_of_holders_are_no_strangers() -> None:
    part = claim(memory=20 * GB, share=True)
    line = Line(machine("1xH100")).holds("x", 0, memory=40 * GB).used(0, 4711, 40 * GB, 99, 1000).asks("a", part)
    assert line.decided() == [[0]]
    # Another's are, on a device that it does not hold.
    line = Line(machine("2xH100")).holds("x", 1).used(0, 4711, 40 * GB, 1000).asks("a", claim())
    assert isinstance(line.decided()[0], str)
    # Whoever asks need not wait for itself, as a notebook that has used the GPU.
    assert Line(machine("1xH100")).used(0, 4711, 40 * GB, 1000).asks("a", claim()).decided() == [[0]]
    # In a container, with the host's pids: on a device that is leased, they are taken for the holders'.
    line = Line(machine("1xH100")).holds("x", 0, memory=40 * GB).used(0, 4711, 40 * GB, seen=False).asks("a", part)
    assert line.decided() == [[0]]
    line = Line(machine("1xH100")).used(0, 4711, 40 * GB, seen=False).asks("a", claim())
    assert line.decided() == ["waiting for 1 of 1 GPUs: 1 in use by pid 4711 (40 GB)"]


def test_what_cannot_be_held_alone_goes_to_everybody() -> None:
    apple = Device(kind="mps", index=0, uuid="mps", name="Apple M3", model="M3", memory=36 * GB, exclusive=False)
    line = Line((apple,)).holds("x", 0).asks("a", claim()).asks("b", claim(memory=8 * GB, share=True))
    assert line.decided() == [[0], [0]]


def test_views_differ() -> None:
    devices = machine("4xH100")
    line = Line(devices).holds("x", 0).asks("left", claim(2), devices[:2]).asks("right", claim(), devices[1:])
    line.asks("first", claim(), devices[1:2])
    assert line.decided() == [
        "waiting for 2 of 2 GPUs: 1 leased to run x, 1 free",
        [2],
        "waiting for 1 of 1 GPUs: 1 kept for run left, which came first",
    ]
    gone = Line(devices).asks("a", claim(2), devices[:1]).decided()
    assert gone == ["waiting for 2 GPUs: not here any more"]


def test_a_claim_of_another_version() -> None:
    line = Line(machine("1xH100")).asks("newer", None).asks("a", claim())
    assert line.decided() == ["waiting for what another version of Stoker knows", [0]]


@pytest.mark.parametrize(
    ("wanted", "text", "said"),
    [
        (claim(2, "H100", "A100"), "1xH100,1xL4", "H100:2 or A100:2 were asked for, and this machine has 1 × H100"),
        (claim(0), "1xL4", "the claim asks for no accelerator"),
        (claim(1, "H100-NVL"), "2xH100", "H100-NVL:1 was asked for, and this machine has 2 × H100"),
        (claim(2, memory=40 * GB), "2xL4", "2 GPUs with 40 GB each were asked for, and this machine has 2 × L4"),
    ],
)
def test_impossible(wanted: Claim, text: str, said: str) -> None:
    assert impossible(wanted, machine(text)).startswith(said)


def test_a_machine_without_any() -> None:
    assert impossible(claim(), ()) == "this machine has no GPU"


def test_the_largest_machine_is_no_trouble() -> None:
    devices = machine("128xH100,128xA10")
    assert len(best(devices, 200)) == 200 and {one.model for one in best(devices, 128)} == {"H100"}
