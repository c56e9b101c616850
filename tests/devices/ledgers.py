"""Ledgers of devices for tests, and processes that claim, ask and release as they are told."""

from __future__ import annotations

import contextlib
import json
import os
import sqlite3
import subprocess
import sys
from pathlib import Path
from typing import Any

import psutil

from stoker.core.devices import Holder, Inventory, Lease, Process
from stoker.devices.leases import Ledger
from stoker.devices.probe import parse_simulation

WORKER = """
import fcntl, json, os, sys

import psutil

from stoker.core.devices import Claim, Holder, Lease
from stoker.core.accelerators import Accelerator
from stoker.devices import leases
from stoker.devices.probe import processes
from stoker.devices.probe import parse_simulation

name, text, folder, look, user = sys.argv[1:]
leases.LOOK_SECONDS = float(look)
ledger = leases.Ledger(lambda: parse_simulation(text), processes)
if user:
    # A rehearsal, with what is read when it is first needed: that user may not be able to read it.
    import encodings.ascii, pwd, shutil, tempfile
    from pathlib import Path

    scratch = tempfile.mkdtemp()
    rehearsal = leases.Ledger(lambda: parse_simulation(text), processes, folder=Path(scratch))
    for _ in range(2):
        holder = Holder(run="", key="", attempt=1, pid=os.getpid(), started=psutil.Process().create_time())
        rehearsal.answer(rehearsal.claim(Claim(count=len(rehearsal.inventory().devices)), holder))
    shutil.rmtree(scratch)
    os.setgroups([])
    os.setgid(int(user))
    os.setuid(int(user))
started = psutil.Process().create_time()
tickets, locks = {}, {}


def claim(number, count, choices, memory, share):
    named = tuple(Accelerator.parse(choice) for choice in choices)
    holder = Holder(run=name, key="train", attempt=number, pid=os.getpid(), started=started)
    tickets[number] = ledger.claim(Claim(count=count, choices=named, memory=memory, share=share), holder)


def answer(number):
    # The kernel's locks go with the process, just as its leases must: a device that is held twice cannot be locked.
    found = ledger.answer(tickets[number])
    if isinstance(found, str):
        return found
    if number not in locks:
        locks[number] = []
        for device in found.devices:
            descriptor = os.open(os.path.join(folder, device.uuid), os.O_RDWR | os.O_CREAT)
            fcntl.flock(descriptor, (fcntl.LOCK_SH if found.memory else fcntl.LOCK_EX) | fcntl.LOCK_NB)
            locks[number].append(descriptor)
    return [[device.uuid for device in found.devices], found.memory]


def release(number):
    for descriptor in locks.pop(number, ()):
        os.close(descriptor)
    ledger.release(tickets[number])


for line in sys.stdin:
    results = [globals()[command](*arguments) for command, *arguments in json.loads(line)]
    print(json.dumps(results), flush=True)
"""


class Worker:
    """A process that claims, asks and releases as it is told, and may be killed at any moment."""

    def __init__(self, name: str, text: str, folder: Path, look: float = 0.0, user: int | None = None) -> None:
        self.name = name
        self.waits: set[int] = set()
        self.holds: dict[int, tuple[list[str], int]] = {}
        self.count = self.grants = 0
        self.process = subprocess.Popen(
            [sys.executable, "-c", WORKER, name, text, str(folder), str(look), "" if user is None else str(user)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def send(self, commands: list[list[Any]]) -> None:
        self.sent = commands
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(commands) + "\n")
        self.process.stdin.flush()

    def receive(self) -> list[Any]:
        """What the commands gave; what is held and waited for is noted."""
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, f"worker {self.name} died of an error"
        results = json.loads(line)
        for (command, number, *_), result in zip(self.sent, results, strict=True):
            if command == "claim":
                self.waits.add(number)
            elif command == "release":
                self.waits.discard(number)
                self.holds.pop(number, None)
            elif isinstance(result, list):
                self.grants += number in self.waits
                self.waits.discard(number)
                self.holds[number] = (result[0], result[1])
        return list(results)

    def do(self, *commands: list[Any]) -> list[Any]:
        self.send(list(commands))
        return self.receive()

    def claim(self, count: int = 1, choices: tuple[str, ...] = (), memory: int = 0, share: bool = False) -> list[Any]:
        """The command of another claim."""
        self.count += 1
        return ["claim", self.count, count, choices, memory, share]

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def end(self) -> None:
        for stream in (self.process.stdin, self.process.stdout):
            assert stream is not None
            with contextlib.suppress(BrokenPipeError):
                stream.close()
        self.process.wait(timeout=60)


def me(run: str = "mine", attempt: int = 1) -> Holder:
    return Holder(run=run, key="train", attempt=attempt, pid=os.getpid(), started=psutil.Process().create_time())


def ledger_of(inventory: Inventory | str, *running: Process) -> Ledger:
    found = parse_simulation(inventory) if isinstance(inventory, str) else inventory
    return Ledger(lambda: found, lambda _: running)


def leased(ledger: Ledger, ticket: str) -> Lease:
    found = ledger.answer(ticket)
    assert isinstance(found, Lease), found
    return found


def waiting(ledger: Ledger, ticket: str) -> str:
    found = ledger.answer(ticket)
    assert isinstance(found, str), found
    return found


def edit(ledger: Ledger, statement: str, *values: Any) -> None:
    with contextlib.closing(sqlite3.connect(ledger.path)) as connection, connection:
        connection.execute(statement, values)
