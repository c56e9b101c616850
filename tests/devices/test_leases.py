"""The ledger of devices: what it says, who is believed to live, and what becomes of a file that is damaged."""

from __future__ import annotations

import contextlib
import os
import sqlite3
import stat
import subprocess
import sys
from pathlib import Path

import attrs
import psutil
import pytest
from tests.devices.ledgers import edit, leased, ledger_of, me, waiting

from stoker.core.accelerators import Accelerator
from stoker.core.devices import Claim, Device, Devices, Inventory, Lease, Process
from stoker.core.errors import BackendError
from stoker.devices import leases
from stoker.devices.leases import Ledger
from stoker.devices.probe import parse_simulation

GB = 10**9


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the ledgers are, for this process and for those that it starts."""
    monkeypatch.setenv("STOKER_LEASES", str(tmp_path / "leases"))
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    return tmp_path / "leases"


@pytest.fixture
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """No answer stands for a while: who died and what strangers do is asked each time."""
    monkeypatch.setattr(leases, "LOOK_SECONDS", 0.0)


def test_claim_answer_release(folder: Path) -> None:
    ledger: Devices = ledger_of("2xH100,1xA10")
    assert isinstance(ledger, Ledger)
    assert ledger.entries() == () and not folder.exists()
    first = ledger.claim(Claim(count=2, choices=(Accelerator.parse("H100:2"),)), me("one"))
    second = ledger.claim(Claim(count=1, memory=40 * GB), me("two", attempt=3))
    lease = leased(ledger, first)
    assert (lease.ticket, [device.index for device in lease.devices], lease.memory) == (first, [0, 1], 0)
    assert lease.devices == ledger.inventory().devices[:2]
    assert waiting(ledger, second) == "waiting for 1 of 2 GPUs: 2 leased to run one"
    held, waits = ledger.entries()
    assert (held.ticket, held.holder.run, held.devices, held.waits) == (
        first,
        "one",
        tuple(device.uuid for device in lease.devices),
        "",
    )
    assert held.claim == Claim(count=2, choices=(Accelerator.parse("H100:2"),))
    assert (waits.holder, waits.claim, waits.devices) == (me("two", attempt=3), Claim(count=1, memory=40 * GB), ())
    assert waits.waits == "waiting for 1 of 2 GPUs: 2 leased to run one"
    assert leased(ledger, first) == lease
    ledger.release(first)
    ledger.release(first)
    ledger.release("nobody's")
    assert leased(ledger, second).devices == lease.devices[:1]
    assert [entry.ticket for entry in ledger.entries()] == [second]
    with pytest.raises(BackendError, match="there is no ticket"):
        ledger.answer(first)


def test_a_share(folder: Path) -> None:
    ledger = ledger_of("1xH100")
    tickets = [ledger.claim(Claim(count=1, memory=30 * GB, share=True), me(str(number))) for number in range(3)]
    assert [leased(ledger, ticket).memory for ticket in tickets[:2]] == [30 * GB] * 2
    assert waiting(ledger, tickets[2]) == "waiting for 30 GB of 1 of 1 GPUs: 1 shared with 20 GB left"
    assert [entry.memory for entry in ledger.entries()] == [30 * GB, 30 * GB, 0]


def test_an_impossible_claim_is_refused(folder: Path) -> None:
    ledger = ledger_of("1xA10")
    assert ledger.impossible(Claim(count=1)) == ""
    assert "this machine has 1 × A10" in ledger.impossible(Claim(count=2))
    with pytest.raises(BackendError, match=r"2 GPUs were asked for.*\n  fix: "):
        ledger.claim(Claim(count=2), me())
    assert ledger_of(Inventory()).impossible(Claim(count=1)) == "this machine has no GPU"


def test_simulated_machines_have_ledgers_of_their_own(folder: Path) -> None:
    same, again, other = ledger_of("2xH100"), ledger_of("2xH100;driver=535.104.05"), ledger_of("2xH200")
    real = ledger_of(attrs.evolve(parse_simulation("2xH100"), simulated=False))
    assert same.path == again.path
    assert len({same.path, other.path, real.path}) == 3 and real.path.name.startswith("devices")
    for one in (same, other, real):
        leased(one, one.claim(Claim(count=2), me()))
    assert isinstance(again.answer(again.claim(Claim(count=1), me())), str)


def test_a_pid_that_is_used_again(folder: Path, at_once: None) -> None:
    ledger = ledger_of("1xH100")
    first = ledger.claim(Claim(count=1), me("first"))
    leased(ledger, first)
    waits = ledger.claim(Claim(count=1), me("second"))
    # As the clock is set, the start of a process seems to move; what the kernel counts does not.
    edit(ledger, "UPDATE tickets SET started = started - 3600 WHERE run = 'first'")
    assert waiting(ledger, waits)
    edit(ledger, "UPDATE tickets SET birth = birth || '1' WHERE run = 'first'")
    assert leased(ledger, waits)
    # Where the kernel does not tell, seconds do, and are rounded.
    edit(ledger, "UPDATE tickets SET birth = '', started = started + 0.4")
    third = ledger.claim(Claim(count=1), me("third"))
    assert waiting(ledger, third)
    edit(ledger, "UPDATE tickets SET started = started - 60 WHERE run = 'second'")
    assert leased(ledger, third)


def test_a_process_that_has_ended_cannot_claim(folder: Path) -> None:
    ledger = ledger_of("1xH100")
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    holder = attrs.evolve(me(), pid=child.pid, started=psutil.Process(child.pid).create_time())
    ledger.release(ledger.claim(Claim(count=1), holder))
    with pytest.raises(BackendError, match="has ended"):
        ledger.claim(Claim(count=1), attrs.evolve(holder, started=holder.started - 60))
    child.communicate(b"\n")
    with pytest.raises(BackendError, match="has ended"):
        ledger.claim(Claim(count=1), holder)
    assert ledger.entries() == []


def test_users_who_see_different_devices(folder: Path, at_once: None) -> None:
    whole = attrs.evolve(parse_simulation("4xH100"), simulated=False)
    everything, left = ledger_of(whole), ledger_of(attrs.evolve(whole, devices=whole.devices[:2]))
    middle = ledger_of(attrs.evolve(whole, devices=whole.devices[1:3]))
    first = leased(left, left.claim(Claim(count=1), me("left")))
    assert first.devices == whole.devices[:1]
    # It waits for both of those that it sees, and the one who sees more leaves it the other.
    both = left.claim(Claim(count=2), me("both"))
    assert waiting(left, both) == "waiting for 2 of 2 GPUs: 1 leased to run left, 1 free"
    one = middle.claim(Claim(count=1), me("middle"))
    assert leased(middle, one).devices == whole.devices[2:3]
    rest = everything.claim(Claim(count=2), me("all"))
    assert waiting(everything, rest) == (
        "waiting for 2 of 4 GPUs: 1 leased to run left, 1 kept for run both, which came first, "
        "1 leased to run middle, 1 free"
    )
    left.release(first.ticket)
    # Whoever comes now learns from the file what the others see.
    assert ledger_of(whole).entries()[-1].waits.startswith("waiting for 2 of 4 GPUs: ")
    assert leased(left, both).devices == whole.devices[:2]
    middle.release(one)
    assert leased(everything, rest).devices == whole.devices[2:]
    assert {entry.holder.run for entry in left.entries()} == {"both", "all"}


def test_strangers_on_devices_that_only_another_sees_are_known(folder: Path, at_once: None) -> None:
    whole = attrs.evolve(parse_simulation("2xH100"), simulated=False)
    asked: list[tuple[Device, ...]] = []

    def running(inventory: Inventory) -> tuple[Process, ...]:
        asked.append(inventory.devices)
        return (Process(uuid=whole.devices[1].uuid, pid=1, memory=40 * GB),)

    everything = Ledger(lambda: whole, running)
    narrow = Ledger(lambda: attrs.evolve(whole, devices=whole.devices[:1]), running)
    both = everything.claim(Claim(count=2), me("both"))
    assert waiting(everything, both) == "waiting for 2 of 2 GPUs: 1 free, 1 in use by pid 1 (40 GB)"
    one = narrow.claim(Claim(count=1), me("one"))
    assert narrow.entries()[0].waits == waiting(everything, both)
    assert leased(narrow, one).devices == whole.devices[:1]
    assert len(asked[0]) == 2 and len(asked[-1]) == 2


def test_our_own_processes_are_no_strangers(folder: Path, at_once: None) -> None:
    inventory = parse_simulation("1xH100")
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    stranger = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    try:
        step = Process(uuid=inventory.devices[0].uuid, pid=child.pid, memory=30 * GB)
        ledger = ledger_of(inventory, step)
        part = Claim(count=1, memory=30 * GB, share=True)
        leased(ledger, ledger.claim(part, me("one")))
        leased(ledger, ledger.claim(part, me("two")))
        # For somebody else on the same machine, too: the child is its holder's.
        other = attrs.evolve(me("three"), pid=stranger.pid, started=psutil.Process(stranger.pid).create_time())
        third = ledger.claim(attrs.evolve(part, memory=20 * GB), other)
        assert leased(ledger, third).memory == 20 * GB
        for entry in ledger.entries():
            ledger.release(entry.ticket)
        assert waiting(ledger, ledger.claim(Claim(count=1), other)) == (
            f"waiting for 1 of 1 GPUs: 1 in use by pid {child.pid} (30 GB)"
        )
    finally:
        for process in (child, stranger):
            process.communicate(b"\n")


def test_answers_are_cheap_while_nothing_changes(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leases, "LOOK_SECONDS", 3600.0)
    found = parse_simulation("1xH100")
    asked: list[Inventory] = []
    ledger = Ledger(lambda: found, lambda inventory: asked.append(inventory) or ())  # type: ignore[func-returns-value]
    leased(ledger, first := ledger.claim(Claim(count=1), me("first")))
    tickets = [ledger.claim(Claim(count=1), me(str(number))) for number in range(50)]
    os.utime(ledger.path, (1.0, 1.0))
    told = [waiting(ledger, ticket) for ticket in tickets]
    with contextlib.closing(sqlite3.connect(ledger.path, isolation_level=None)) as connection:
        # Whoever holds the ledger now would be waited for, were it asked.
        connection.execute("BEGIN EXCLUSIVE")
        assert [waiting(ledger, ticket) for ticket in tickets] == told
        assert leased(ledger, first)
    assert len(asked) == 1
    # A change is seen at once.
    ledger.release(first)
    assert leased(ledger, tickets[0])


def test_a_damaged_file_is_mended(folder: Path, at_once: None) -> None:
    ledger = ledger_of("2xH100")
    held = ledger.claim(Claim(count=1), me("held"))
    leased(ledger, held)
    both = ledger.claim(Claim(count=2), me("both"))
    assert waiting(ledger, both)
    ledger.path.write_bytes(b"nothing that SQLite knows" * 1000)
    # Nothing could be saved: whoever asks joins again, and whoever has its lease gives it back as before.
    assert len(leased(ledger, both).devices) == 2
    assert ledger.path.with_suffix(".damaged").exists()
    ledger.release(held)
    ledger.release(both)
    assert list(ledger.entries()) == []


def test_what_can_be_read_of_a_damaged_file_is_saved(folder: Path, at_once: None) -> None:
    ledger = ledger_of("2xH100")
    held = ledger.claim(Claim(count=2), me("held"))
    leased(ledger, held)
    waits = [ledger.claim(Claim(count=1), me(f"w{number:02}")) for number in range(40)]
    before = ledger.entries()
    with contextlib.closing(sqlite3.connect(ledger.path)) as connection:
        name = "sqlite_autoindex_tickets_1"
        (root,) = connection.execute("SELECT rootpage FROM sqlite_master WHERE name = ?", (name,)).fetchone()
        (size,) = connection.execute("PRAGMA page_size").fetchone()
    with ledger.path.open("r+b") as file:
        file.seek((root - 1) * size)
        file.write(b"\xff" * size)
    # Who joins meets the damage.
    last = ledger.claim(Claim(count=1), me("last"))
    assert ledger.path.with_suffix(".damaged").exists()
    after = ledger.entries()
    assert list(after[:-1]) == list(before) and after[-1].ticket == last
    ledger.release(held)
    assert [isinstance(ledger.answer(ticket), Lease) for ticket in (*waits[:3], last)] == [True, True, False, False]


def test_a_lost_file_is_made_again(folder: Path, at_once: None) -> None:
    ledger = ledger_of("1xH100")
    leased(ledger, ledger.claim(Claim(count=1), me("held")))
    waits = ledger.claim(Claim(count=1), me("waits"))
    assert waiting(ledger, waits)
    ledger.path.unlink()
    assert leased(ledger, waits)


def test_damaged_lines_harm_nobody(folder: Path, at_once: None) -> None:
    ledger, other = ledger_of("2xH100"), ledger_of("2xH100")
    held = ledger.claim(Claim(count=1), me("held"))
    leased(ledger, held)
    strange = ledger.claim(Claim(count=2), me("strange"))
    edit(ledger, 'UPDATE tickets SET claim = \'{"count": "two"}\'')
    edit(ledger, "UPDATE views SET devices = '[7'")
    assert leased(other, other.claim(Claim(count=1), me("other")))
    assert [entry.waits for entry in other.entries()][2:] == ["waiting for what another version of Stoker knows"]
    assert waiting(ledger, strange)


def test_a_ledger_of_another_version(folder: Path) -> None:
    ledger = ledger_of("1xH100")
    ledger.claim(Claim(count=1), me())
    edit(ledger, "PRAGMA user_version = 9")
    with pytest.raises(BackendError, match="has version 9; this Stoker knows version 1"):
        ledger.entries()


def test_a_folder_that_cannot_be_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STOKER_LEASES", str(tmp_path / "file" / "leases"))
    (tmp_path / "file").write_text("")
    with pytest.raises(BackendError, match=r"cannot be used(.|\n)*fix: set STOKER_LEASES to a folder"):
        ledger_of("1xH100").claim(Claim(count=1), me())


@pytest.mark.skipif(os.geteuid() == 0 and not hasattr(os, "seteuid"), reason="root may write anywhere")
def test_a_folder_that_may_not_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    closed = tmp_path / "closed"
    closed.mkdir()
    monkeypatch.setenv("STOKER_LEASES", str(closed / "leases"))
    ledger = ledger_of("1xH100")
    holder = me()
    above = [path for path in tmp_path.parents if path.stat().st_uid == os.geteuid() and path != Path("/")]
    modes = [(path, stat.S_IMODE(path.stat().st_mode)) for path in above]
    user = os.geteuid()
    try:
        if user == 0:
            for path, mode in modes:
                path.chmod(mode | 0o011)
            os.seteuid(65534)
        else:
            closed.chmod(0o500)
        with pytest.raises(BackendError, match=r"cannot be used(.|\n)*fix: set STOKER_LEASES to a folder"):
            ledger.claim(Claim(count=1), holder)
    finally:
        if user == 0:
            os.seteuid(0)
            for path, mode in modes:
                path.chmod(mode)
        closed.chmod(0o700)


@pytest.mark.parametrize(("mode", "file"), [(None, 0o600), (0o755, 0o600), (0o2770, 0o660), (0o777, 0o666)])
def test_who_may_write_the_folder_may_write_the_ledger(folder: Path, mode: int | None, file: int) -> None:
    if mode is not None:
        folder.mkdir()
        folder.chmod(mode)
    ledger = ledger_of("1xH100")
    ledger.claim(Claim(count=1), me())
    assert stat.S_IMODE(folder.stat().st_mode) == (0o700 if mode is None else mode)
    assert stat.S_IMODE(ledger.path.stat().st_mode) == file


DRIVER = """
import sys

import psutil

from stoker.core.devices import Claim, Holder
from tests.devices.ledgers import ledger_of

me = psutil.Process()
ledger = ledger_of("1xH100")
holder = Holder(run="one", key="train", attempt=1, pid=me.pid, started=me.create_time())
ticket = ledger.claim(Claim(count=1), holder)
ledger.answer(ticket)
assert ledger.hand_over(ticket, int(sys.argv[1]))
print(ticket)
"""


def test_a_lease_is_handed_over_to_a_process_that_outlives_its_driver(folder: Path, at_once: None) -> None:
    """As a container's first process does: the device is free when that one ends, whoever asked for it."""
    container = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    try:
        driver = subprocess.run(
            [
                sys.executable,
                "-c",
                DRIVER,
                str(container.pid),
            ],
            cwd=Path(__file__).parents[2],
            capture_output=True,
            text=True,
            check=True,
        )
        ticket = driver.stdout.strip()
        ledger = ledger_of("1xH100")
        other = ledger.claim(Claim(count=1), me("two"))
        assert waiting(ledger, other) == "waiting for 1 of 1 GPUs: 1 leased to run one"
        assert ledger.holds(ticket) and not ledger.holds(other)
        assert not ledger.hand_over(other, container.pid), "who waits holds nothing to hand over"
    finally:
        container.kill()
        container.wait()
    assert not ledger.hand_over(ticket, container.pid), "it has ended"
    assert leased(ledger, other).devices
    assert not ledger.holds(ticket)
