"""Ledgers of several users: they respect each other's leases, and nobody can take over or hold up another's."""

from __future__ import annotations

import json
import os
import shutil
import stat
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from tests.devices.ledgers import Worker, leased, ledger_of, me, waiting

from stoker.core.devices import Claim
from stoker.core.errors import BackendError
from stoker.devices import leases
from stoker.devices.leases import Ledger
from stoker.devices.neighbours import birth_of

OTHER = 65534
"""Another user of the machine."""
needs_another_user = pytest.mark.skipif(os.geteuid() != 0, reason="only root can start processes of another user")


@pytest.fixture
def shared(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The machine's folder of temporary files; this user's home is beside it."""
    above = Path(tempfile.mkdtemp())
    above.chmod(0o755)
    folder = above / "tmp"
    folder.mkdir()
    folder.chmod(0o1777)
    (above / "home").mkdir(mode=0o700)
    monkeypatch.delenv("STOKER_LEASES")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setenv("TMPDIR", str(folder))
    monkeypatch.setenv("HOME", str(above / "home"))
    monkeypatch.setattr(tempfile, "tempdir", None)
    monkeypatch.setattr(leases, "LOOK_SECONDS", 0.0)
    yield folder
    shutil.rmtree(above)


@pytest.fixture
def worker(shared: Path) -> Iterator[Callable[..., Worker]]:
    """`worker("name", "2xH100", user=OTHER)`: a process of a user, ended with the test."""
    workers: list[Worker] = []
    locks = shared.parent / "locks"
    locks.mkdir()
    locks.chmod(0o777)

    def start(name: str, text: str, user: int | None = None) -> Worker:
        for device in ledger_of(text).inventory().devices:
            (locks / device.uuid).touch()
            (locks / device.uuid).chmod(0o666)
        workers.append(Worker(name, text, locks, user=user))
        return workers[-1]

    yield start
    for one in workers:
        one.end()


def own_folder(shared: Path) -> Path:
    """This user's folder, where nobody is in the way."""
    return shared / f"stoker-leases-{os.geteuid()}"


def test_only_its_user_can_open_a_ledger(shared: Path) -> None:
    ledger = ledger_of("2xH100")
    assert ledger.entries() == () and not os.listdir(shared)
    lease = leased(ledger, ledger.claim(Claim(count=1), me()))
    folder = own_folder(shared)
    assert ledger.path.parent == folder
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in (folder, *folder.iterdir())}
    published = ledger.path.with_suffix(".leases.json")
    assert modes == {folder.name: 0o711, ledger.path.name: 0o600, published.name: 0o644}
    (row,) = json.loads(published.read_text())["leases"]
    assert (row["devices"], row["run"], row["pid"]) == (lease.devices[0].uuid, "mine", os.getpid())
    ledger.release(lease.ticket)
    assert json.loads(published.read_text())["leases"] == []


@needs_another_user
def test_users_respect_each_others_leases(worker: Callable[..., Worker]) -> None:
    ledger = ledger_of("1xH100")
    ticket = ledger.claim(Claim(count=1), me())
    assert leased(ledger, ticket)
    other = worker("theirs", "1xH100", OTHER)
    assert other.do(other.claim(1), ["answer", 1])[1] == (
        f"waiting for 1 of 1 GPUs: 1 leased to run mine of {'root' if os.geteuid() == 0 else ''}"
    )
    ledger.release(ticket)
    other.do(["answer", 1])
    assert other.holds
    again = ledger.claim(Claim(count=1), me())
    assert "1 leased to run theirs of" in waiting(ledger, again)
    assert [(entry.holder.run.split()[0], entry.waits == "") for entry in ledger.entries()] == [
        ("theirs", True),
        ("mine", False),
    ]
    other.kill()
    assert leased(ledger, again)


@needs_another_user
def test_no_device_is_leased_to_two_users(worker: Callable[..., Worker]) -> None:
    """Each worker locks what it gets: one that gets what another has dies of it."""
    workers = [worker("one", "2xH100"), worker("two", "2xH100", OTHER), worker("three", "2xH100", OTHER - 1)]
    for _ in range(60):
        for one in workers:
            ends = [["release", number] for number in list(one.holds)]
            claims = [] if one.waits else [one.claim(1 + one.count % 2)]
            one.send([*ends, *claims, *(["answer", number] for number in sorted(one.waits) or [one.count])])
        for one in workers:
            one.receive()
        held = [uuid for one in workers for uuids, _ in one.holds.values() for uuid in uuids]
        assert len(held) == len(set(held)) <= 2
    assert all(one.grants for one in workers), [one.grants for one in workers]


def as_other(work: Callable[[], Any]) -> None:
    """Do something as another user."""
    os.seteuid(OTHER)
    try:
        work()
    finally:
        os.seteuid(0)


def hostile(kind: str, place: Path, victim: Path) -> Callable[[], Any]:
    """What another user puts where this user's folder should be."""
    return {
        "folder": lambda: (place.mkdir(), place.chmod(0o777)),
        "link": lambda: place.symlink_to(victim),
        "link to nothing": lambda: place.symlink_to(victim / "nothing"),
        "file": lambda: place.write_text("{}"),
        "pipe": lambda: os.mkfifo(place),
    }[kind]


@needs_another_user
@pytest.mark.parametrize("kind", ["folder", "link", "link to nothing", "file", "pipe"])
def test_a_place_that_somebody_else_took_is_passed_over(shared: Path, worker: Callable[..., Worker], kind: str) -> None:
    victim = shared.parent / "victim"
    victim.mkdir(mode=0o700)
    (victim / "precious").write_text("precious")
    as_other(hostile(kind, own_folder(shared), victim))
    ledger = ledger_of("2xH100")
    assert leased(ledger, ledger.claim(Claim(count=1), me()))
    assert ledger.path.is_relative_to(shared.parent / "home")
    assert stat.S_IMODE(ledger.path.stat().st_mode) == 0o600
    assert [path.name for path in victim.iterdir()] == ["precious"]
    if kind == "folder":
        assert not os.listdir(own_folder(shared))
    # Other users' leases are respected as before, and a second process of this user finds the same ledger.
    other, second = worker("theirs", "2xH100", OTHER), worker("second", "2xH100")
    other.do(other.claim(1), ["answer", 1])
    assert other.holds
    second.do(second.claim(2), ["answer", 1])
    assert second.waits and len(ledger.entries()) == 3


@needs_another_user
def test_no_place_at_all(shared: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    as_other(own_folder(shared).mkdir)
    home = shared.parent / "file"
    home.write_text("")
    monkeypatch.setenv("HOME", str(home))
    with pytest.raises(BackendError, match=r"no place for the ledger(.|\n)*fix: set STOKER_LEASES"):
        ledger_of("1xH100").claim(Claim(count=1), me())


def row_of(process: psutil.Process, **changes: Any) -> dict[str, Any]:
    """A row of a list, of a process that lives."""
    device = ledger_of("1xH100").inventory().devices[0].uuid
    started = float(process.create_time())
    row = {"ticket": "t", "run": "r", "key": "k", "attempt": 1, "pid": process.pid, "started": started}
    return {**row, "birth": birth_of(process.pid, started), "devices": device, "memory": 0, **changes}


def list_of(*rows: Any) -> str:
    """A list with these rows."""
    return json.dumps({"version": 1, "leases": rows})


@pytest.fixture
def listed(shared: Path) -> Path:
    """The list of another ledger, empty as yet: its folder is of this user, and has another name."""
    folder = shared / "stoker-leases-of-another"
    folder.mkdir(mode=0o755)
    return folder / ledger_of("1xH100").path.with_suffix(".leases.json").name


def free(ledger: Ledger) -> bool:
    """Whether the device can be leased; gives it back."""
    ticket = ledger.claim(Claim(count=1), me())
    answer = ledger.answer(ticket)
    ledger.release(ticket)
    return not isinstance(answer, str)


def test_a_list_is_read_with_care(listed: Path) -> None:
    ledger, mine = ledger_of("1xH100"), row_of(psutil.Process())
    assert free(ledger)
    listed.write_text(list_of(mine))
    assert not free(ledger), "a lease of a process that lives"
    listed.write_text(list_of({**mine, "run": "\x1b[31mred", "key": "\x00" * 5000}))
    text = waiting(ledger, ledger.claim(Claim(count=1), me()))
    assert "?" in text and "\x1b" not in text
    for entry in ledger.entries():
        ledger.release(entry.ticket)
    bad: list[str | bytes] = [
        "",
        "[1]",
        "{",
        "[" * 100_000,
        b"\xff\xfe",
        json.dumps({"version": 2, "leases": [mine]}),
        json.dumps({"version": 1, "leases": 5}),
        list_of(5, None, [], {}),
        list_of({**mine, "pid": 2**40}),
        list_of({**mine, "pid": -1}),
        list_of({**mine, "birth": "another boot 1"}),
        list_of({**mine, "started": "now"}),
        list_of({**mine, "devices": None}),
        list_of(mine) + " " * 1_000_001,
    ]
    for content in bad:
        listed.write_bytes(content if isinstance(content, bytes) else content.encode())
        assert free(ledger), content[:100]
    # What is no file, or not in a folder that one user alone can write.
    listed.unlink()
    listed.symlink_to(listed.parent / "elsewhere")
    (listed.parent / "elsewhere").write_text(list_of(mine))
    assert free(ledger)
    listed.unlink()
    os.mkfifo(listed)
    assert free(ledger)
    listed.unlink()
    listed.write_text(list_of(mine))
    listed.parent.chmod(0o777)
    assert free(ledger)


@needs_another_user
def test_a_user_can_only_speak_for_his_own_processes(shared: Path) -> None:
    ledger = ledger_of("1xH100")
    assert free(ledger)
    folder = shared / f"stoker-leases-{OTHER}"
    listed = folder / ledger.path.with_suffix(".leases.json").name
    lies = list_of(row_of(psutil.Process()), row_of(psutil.Process(1)))
    as_other(lambda: (folder.mkdir(mode=0o755), listed.write_text(lies)))
    assert free(ledger)
    # A list of one user in the folder of another speaks for nobody.
    listed.unlink()
    listed.write_text(list_of(row_of(psutil.Process())))
    assert free(ledger)
