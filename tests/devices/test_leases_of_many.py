"""The ledger, shared by real processes that are killed: no device is leased twice, and nobody waits forever."""

from __future__ import annotations

import contextlib
import random
import signal
import sqlite3
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.devices.ledgers import Worker, leased, ledger_of, me, waiting

from stoker.core.devices import Claim
from stoker.devices import leases
from stoker.devices.leases import Ledger
from stoker.devices.probe import parse_simulation, processes

GB = 10**9


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the ledgers are, for this process and for those that it starts."""
    monkeypatch.setenv("STOKER_LEASES", str(tmp_path / "leases"))
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    return tmp_path / "leases"


@pytest.fixture
def worker(folder: Path, tmp_path: Path) -> Iterator[Callable[..., Worker]]:
    """`worker("name", "4xH100")`: another process on the same ledger; ended with the test."""
    made: list[Worker] = []
    locks = tmp_path / "locks"
    locks.mkdir()

    def start(name: str, text: str, look: float = 0.0) -> Worker:
        made.append(Worker(name, text, locks, look))
        return made[-1]

    yield start
    for one in made:
        one.end()


@pytest.fixture
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """No answer stands for a while: who died and what strangers do is asked each time."""
    monkeypatch.setattr(leases, "LOOK_SECONDS", 0.0)


def test_a_holder_that_dies_holds_nothing(worker: Callable[..., Worker], at_once: None) -> None:
    ledger = ledger_of("2xH100")
    one, two = worker("one", "2xH100"), worker("two", "2xH100")
    one.do(one.claim(2), ["answer", 1])
    two.do(two.claim(1), ["answer", 1])
    assert one.holds and two.waits
    ticket = ledger.claim(Claim(count=2), me())
    told = "waiting for 2 of 2 GPUs: 2 leased to run one"
    assert waiting(ledger, ticket) == told
    # One that is a zombie, as nobody has asked how it ended, is as dead as one that is gone.
    one.process.send_signal(signal.SIGKILL)
    deadline = time.monotonic() + 60
    while waiting(ledger, ticket) == told:
        assert time.monotonic() < deadline
    # The one that waits comes first; then it dies too.
    assert "kept" not in waiting(ledger, ticket) and "run two" in waiting(ledger, ticket)
    two.kill()
    assert len(leased(ledger, ticket).devices) == 2
    assert [entry.holder.run for entry in ledger.entries()] == ["mine"]
    with contextlib.closing(sqlite3.connect(ledger.path)) as connection:
        assert connection.execute("SELECT run FROM tickets").fetchall() == [("mine",)]
        assert connection.execute("SELECT count(*) FROM views").fetchone() == (1,)


def test_a_death_is_noticed_although_answers_stand_for_a_while(worker: Callable[..., Worker]) -> None:
    ledger = ledger_of("1xH100")
    one = worker("one", "1xH100")
    one.do(one.claim(1), ["answer", 1])
    ticket = ledger.claim(Claim(count=1), me())
    assert waiting(ledger, ticket)
    one.kill()
    deadline = time.monotonic() + 60
    while isinstance(ledger.answer(ticket), str):
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_a_big_claim_is_served_although_small_ones_keep_coming(worker: Callable[..., Worker]) -> None:
    text = "4xH100"
    many, big = worker("many", text), worker("big", text)
    many.do(*(many.claim(1) for _ in range(8)))
    many.do(*(["answer", number] for number in sorted(many.waits)))
    assert len(many.holds) == 4
    big.do(big.claim(4), ["answer", 1])
    for _ in range(40):
        # Each round one ends, and another comes; without its place in the line, the big one would never see four.
        ended = min(many.holds, default=None)
        many.do(*([["release", ended]] if ended else []), many.claim(1))
        many.do(*(["answer", number] for number in sorted(many.waits)))
        big.do(["answer", 1])
        if big.holds:
            break
    assert len(big.holds[1][0]) == 4 and not many.holds
    # The eight that came before it had their turn first; nobody after it had.
    assert min(many.waits) == 9
    big.do(["release", 1])
    many.do(*(["answer", number] for number in sorted(many.waits)))
    assert sorted(many.holds) == [9, 10, 11, 12]


MACHINE = "3xH100,1xA10,2xA100-80GB/1g.10gb"
SHAPES: list[dict[str, Any]] = [
    {"count": 1},
    {"count": 2},
    {"count": 4},
    {"count": 3, "choices": ("H100",)},
    {"count": 1, "choices": ("A10", "H100")},
    {"count": 2, "choices": ("A100-80GB/1g.10gb",)},
    {"count": 1, "choices": ("A100-80GB/1g.10gb", "A10")},
    {"count": 1, "memory": 40 * GB},
    {"count": 1, "memory": 10 * GB, "share": True},
    {"count": 1, "memory": 35 * GB, "share": True},
]


def check(workers: list[Worker]) -> None:
    """No device is held whole by two, or whole and in part, and its parts fit into it. (Its holder locks it, too.)"""
    memory = {device.uuid: device.memory for device in parse_simulation(MACHINE).devices}
    parts: dict[str, list[int]] = {}
    for one in workers:
        for uuids, part in one.holds.values():
            for uuid in uuids:
                parts.setdefault(uuid, []).append(part)
    for uuid, held in parts.items():
        assert len(held) == 1 or all(held), f"{uuid} is leased twice: {held}"
        assert sum(held) <= memory[uuid], f"{uuid}: {held}"


def commands(one: Worker, rng: random.Random, count: int) -> list[list[Any]]:
    """Some things that a worker does next, each allowed by what it had before; whoever waits may give up."""
    chosen: list[list[Any]] = []
    held, waits = sorted(one.holds), sorted(one.waits)
    for _ in range(count):
        draw = rng.random()
        if draw < 0.3 and held:
            chosen.append(["release", held.pop(rng.randrange(len(held)))])
        elif draw < 0.35 and waits:
            chosen.append(["release", waits.pop(rng.randrange(len(waits)))])
        elif draw < 0.7 and waits:
            chosen.append(["answer", rng.choice(waits)])
        elif len(waits) < 2:
            chosen.append(one.claim(**rng.choice(SHAPES)))
            waits.append(one.count)
        else:
            chosen.append(["answer", waits[0]])
    return chosen


@pytest.mark.slow
def test_thousands_of_steps_of_processes_that_are_killed(worker: Callable[..., Worker], long_form: bool) -> None:
    steps = 10_000 if long_form else 3_000
    rng = random.Random(4711)
    # Two of them go by answers that stand for a while, as everybody does outside of tests.
    look = [0.0, 0.0, leases.LOOK_SECONDS, leases.LOOK_SECONDS]
    workers = [worker(f"w{place}", MACHINE, look[place]) for place in range(4)]
    done = grants = kills = 0
    spare = worker("spare", MACHINE)
    while done < steps:
        for one in workers:
            one.send(commands(one, rng, 10))
            done += 10
        doomed = rng.randrange(4) if rng.random() < 0.12 else None
        for place, one in enumerate(workers):
            if place == doomed:
                one.kill()
                grants += one.grants
                kills += 1
                workers[place], spare = spare, worker(f"w{done}", MACHINE, look[place])
            else:
                one.receive()
        check(workers)
    # Nobody waits forever: those who hold give back, and everybody who waits is served in the end.
    deadline = time.monotonic() + 120
    while any(one.waits or one.holds for one in workers):
        for one in workers:
            one.do(*(["release", number] for number in sorted(one.holds)))
            one.do(*(["answer", number] for number in sorted(one.waits)))
        check(workers)
        assert time.monotonic() < deadline, [one.waits for one in workers]
    assert kills > steps / 700 and grants + sum(one.grants for one in workers) > steps / 20
    assert list(Ledger(lambda: parse_simulation(MACHINE), processes).entries()) == []
