"""The program that takes jobs one after another, as processes: each order once, each in a process of its own."""

from __future__ import annotations

import itertools
import json
import os
import select
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.containers.box import Box
from tests.waiting import until

from stoker.core.codec import to_json
from stoker.core.orders import (
    CLAIMS,
    DRIVER,
    ORDERS,
    SPEC,
    PoolNote,
    PoolOrder,
    PoolSpec,
    documents,
    journal_of,
    line,
    wake_of,
)
from stoker.core.protocol import MARK
from stoker.images import context
from stoker.system import system
from stoker.worker.ahead import NextProgram
from stoker.worker.pool import OrderFile, claim

PATIENCE = 120.0


class Pool:
    """A pool, with the driver's half of it."""

    def __init__(self, box: Box) -> None:
        self.box = box
        self.folder = box.folder / "pool"
        (self.folder / CLAIMS).mkdir(parents=True)
        self.number = 0
        self.workers: list[subprocess.Popen[str]] = []

    def start(self, *names: str, **spec: Any) -> None:
        (self.folder / SPEC).write_text(json.dumps(to_json(PoolSpec(**spec))))
        (self.folder / ORDERS).touch()
        for name in names:
            process = subprocess.Popen(
                [sys.executable, "-m", "stoker.worker.pool", str(self.folder), name],
                env={**os.environ, "TMPDIR": str(self.box.folder)},
                stderr=subprocess.PIPE,
                text=True,
            )
            self.workers.append(process)

    def tell(self, order: PoolOrder) -> None:
        with open(self.folder / ORDERS, "ab") as file:
            file.write(line(order))

    def order(self, function: str, *, seconds: float = 0.0, **more: Any) -> str:
        """Order a job; returns the name of its folder."""
        number, place = self.number, f"job-{self.number}"
        self.number += 1
        spec = self.box.spec(function, place=place, **more)
        out, err = (str(spec.parent / name) for name in ("out-0", "err-0"))
        self.tell(PoolOrder(number=number, spec=str(spec), out=out, err=err, seconds=seconds))
        return place

    def notes(self, name: str) -> list[PoolNote]:
        path = self.folder / journal_of(name)
        return list(documents(PoolNote, path.read_bytes())) if path.exists() else []

    def out(self, place: str) -> str:
        path = self.box.folder / place / "out-0"
        return path.read_text() if path.exists() else ""

    def wait(self) -> list[int]:
        return [process.wait(timeout=PATIENCE) for process in self.workers]


@pytest.fixture
def pool(tmp_path: Path) -> Iterator[Pool]:
    pool = Pool(Box(tmp_path))
    yield pool
    for process in pool.workers:
        process.kill()
        process.communicate()


def test_one_worker_takes_jobs_in_processes_of_their_own(pool: Pool) -> None:
    first, second = pool.order("fine"), pool.order("fails")
    pool.start("0")
    until(lambda: len(pool.notes("0")) >= 5)
    third, fourth, fifth = pool.order("dies"), pool.order("leaves_a_child"), pool.order("fine")
    until(lambda: len(pool.notes("0")) >= 11)
    pool.tell(PoolOrder(close=True))
    assert pool.wait() == [0]
    notes = pool.notes("0")
    assert notes[0].up and notes[0].pid == pool.workers[0].pid
    assert [note.claimed for note in notes if note.claimed >= 0] == [0, 1, 2, 3, 4]
    assert [(note.over, note.code) for note in notes if note.over >= 0] == [
        (0, 0), (1, 1), (2, 128 + signal.SIGABRT), (3, 0), (4, 0),
    ]  # fmt: skip
    assert notes[-1].closed == "told" and [note.time for note in notes] == sorted(note.time for note in notes)
    assert [pool.box.result(place)["ok"] for place in (first, second, fourth, fifth)] == [True, False, True, True]
    assert pool.box.result(third)["exited"]["signal"] == signal.SIGABRT and pool.box.result(fourth)["left"] == 1
    assert "fine" in pool.out(first).splitlines() and "fine" not in pool.out(second).splitlines()
    assert pool.out(fifth).startswith('\x1estoker {"kind":"up"')
    assert not list(pool.box.folder.glob("stoker-code-*")), "the unpacked code was left behind"


def test_each_order_is_run_once_however_many_workers_there_are(pool: Pool) -> None:
    names = ["a", "b", "c"]
    places = [pool.order("fine") for _ in range(12)]
    assert claim(str(pool.folder), 5, DRIVER), "the driver takes one back"
    pool.start(*names, idle_after=1.0)
    assert pool.wait() == [0, 0, 0]
    claimed = [note.claimed for name in names for note in pool.notes(name) if note.claimed >= 0]
    assert sorted(claimed) == [number for number in range(12) if number != 5]
    assert all(pool.box.result(place)["ok"] for place in places if place != "job-5")
    assert not (pool.box.folder / "job-5" / "result.json").exists()
    assert {pool.notes(name)[-1].closed for name in names} == {"idle"}
    assert (pool.folder / CLAIMS / "5").read_text() == DRIVER


def test_ends_reach_jobs_that_run_and_that_wait(pool: Pool) -> None:
    pool.start("0")
    slow, waiting, last = pool.order("slow"), pool.order("fine"), pool.order("slow")
    until(lambda: "slow" in pool.out(slow).splitlines())
    pool.tell(PoolOrder(number=1, end=True, grace=30.0))
    pool.tell(PoolOrder(number=0, end=True, grace=30.0))
    until(lambda: "slow" in pool.out(last).splitlines())
    assert pool.box.result(slow)["cause"] == "cancelled" and "ended" in pool.out(slow).splitlines()
    assert not pool.out(waiting)
    pool.tell(PoolOrder(number=2, end=True))
    notes = until(lambda: [note for note in pool.notes("0") if note.over == 2])
    assert notes[0].code == -signal.SIGKILL and "ended" not in pool.out(last).splitlines()
    assert not (pool.box.folder / last / "result.json").exists()


def test_a_signal_ends_the_job_and_then_the_worker(pool: Pool) -> None:
    pool.start("0")
    slow, never = pool.order("slow"), pool.order("fine")
    until(lambda: "slow" in pool.out(slow).splitlines())
    pool.workers[0].send_signal(signal.SIGTERM)
    assert pool.wait() == [0]
    assert pool.box.result(slow)["cause"] == "cancelled"
    assert pool.notes("0")[-1].closed == "signal" and not pool.out(never)


def test_a_job_that_does_not_fit_into_what_is_left_is_for_another_worker(pool: Pool) -> None:
    pool.start("0", lifetime=3600.0)
    first = pool.order("fine", seconds=3600.0)
    until(lambda: any(note.over == 0 for note in pool.notes("0")))
    long = pool.order("fine", seconds=3600.0)
    assert pool.wait() == [0]
    assert pool.notes("0")[-1].closed == "lifetime"
    assert pool.box.result(first)["ok"] and not pool.out(long)
    pool.start("1", lifetime=3600.0, idle_after=0.5)
    pool.workers[1].wait(timeout=PATIENCE)
    assert pool.box.result(long)["ok"]


def test_a_killed_worker_leaves_no_process_of_its_job(pool: Pool) -> None:
    pool.start("0")
    slow = pool.order("slow")
    until(lambda: "slow" in pool.out(slow).splitlines())
    pool.workers[0].kill()
    pool.wait()
    mine = str(pool.box.folder).encode()

    def remaining() -> list[str]:
        pids = [entry for entry in os.listdir("/proc") if entry.isdecimal()]
        return [pid for pid in pids if _environment(pid).find(mine) >= 0 and _state(pid) != "Z"]

    until(lambda: not remaining())


def _environment(pid: str) -> bytes:
    try:
        return Path("/proc", pid, "environ").read_bytes()
    except OSError:
        return b""


def _state(pid: str) -> str:
    try:
        return Path("/proc", pid, "stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return "Z"


def test_a_process_forked_ahead_runs_the_next_job_as_one_forked_for_it(pool: Pool) -> None:
    pool.start("0")
    places, waiting = [], 0

    def run(**more: Any) -> None:
        places.append(pool.order("tells_its_variables", **more))
        until(lambda: len(pool.notes("0")) == 1 + 2 * len(places))

    run(environment={"MINE": "first"})
    for more in ({}, {"environment": {"MINE": "third"}}):
        [waiting] = until(lambda last=waiting: [pid for pid in system.children_of(pool.workers[0].pid) if pid != last])
        until(lambda: list(pool.box.folder.glob("stoker-code-*/*/inner")))  # a copy of the code is ready, too
        run(**more)
    [waiting] = until(lambda: [pid for pid in system.children_of(pool.workers[0].pid) if pid != waiting])
    os.kill(waiting, signal.SIGKILL)
    until(lambda: not system.children_of(pool.workers[0].pid))
    run(environment={"MINE": "fourth"})
    pool.tell(PoolOrder(close=True))
    assert pool.wait() == [0]
    lines = [[line for line in pool.out(place).split("\n") if line and not line.startswith(MARK)] for place in places]
    assert lines == [["first"], ["None"], ["third"], ["fourth"]]
    assert not list(pool.box.folder.glob("stoker-code-*")), "the unpacked code was left behind"


def test_the_copy_of_a_worker_that_was_killed_is_removed_by_the_next_one(pool: Pool) -> None:
    place = pool.order("fine")
    pool.start("first")
    until(lambda: (pool.box.folder / place / "result.json").exists())
    until(lambda: list(pool.box.folder.glob("stoker-code-*/*/inner")))
    [worker] = pool.workers
    family = system.children_of(worker.pid)
    worker.kill()
    worker.wait()
    until(lambda: not any(os.path.exists(f"/proc/{pid}") for pid in family))
    assert list(pool.box.folder.glob("stoker-code-*")), "nobody was there to remove it"
    later = pool.order("fine")
    pool.start("second")
    until(lambda: (pool.box.folder / later / "result.json").exists())
    pool.tell(PoolOrder(close=True))
    assert pool.wait() == [-signal.SIGKILL, 0]
    assert not list(pool.box.folder.glob("stoker-code-*"))


_MEDDLING = (
    "",
    "open(top + '/added', 'w').close(); os.mkdir(top + '/more'); open(top + '/more/file', 'w').close()",
    "os.symlink('data.txt', top + '/inner/link')",
    "at = os.stat(f := top + '/data.txt').st_mtime; open(f, 'w').write('DATA'); os.utime(f, (at, at))",
    "os.chmod(top + '/data.txt', 0o600)",
    "os.unlink(top + '/data.txt')",
    "os.rename(top + '/data.txt', top + '/moved')",
    "os.rename(top + '/inner', top + '/moved'); os.mkdir(top + '/inner')",
    "os.link(top + '/data.txt', top + '/../../kept')",
    "os.chmod(top, 0)",
    "os.rename(top, top + '-moved')",
)


def test_jobs_share_a_copy_of_the_code_that_none_of_them_changes(pool: Pool) -> None:
    pool.start("0")
    places = []
    for what in (*_MEDDLING, "", ""):
        places.append(pool.order("tells_its_code", environment={"DO": what}))
        until(lambda: len(pool.notes("0")) == 1 + 2 * len(places))
        assert pool.box.result(places[-1])["ok"], pool.box.result(places[-1])
    pool.tell(PoolOrder(close=True))
    assert pool.wait() == [0]
    lines = [line for place in places for line in pool.out(place).split("\n") if line and not line.startswith(MARK)]
    folders, rest = zip(*(line.split(" ", 1) for line in lines))
    assert len(rest) == len(places) and set(rest) == {"['data.txt', 'inner', 'inner/steps.py'] data"}
    # The first job has a copy for itself; one that adds to the copy leaves it to the next, as one that changes nothing.
    shared = [one == other for one, other in itertools.pairwise(folders)]
    assert shared == [False, True, True, *([False] * 8), True], shared
    (pool.box.folder / "kept").unlink()
    assert not list(pool.box.folder.glob("stoker-code-*")), "the unpacked code was left behind"


def test_a_copy_of_the_code_is_of_one_package_and_goes_where_processes_remain(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    box = Box(tmp_path)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    first, blobs = box.package.digest, box.blobs.uri
    (box.code / "data.txt").write_text("other")
    package = context.package(box.code)
    with box.blobs.writer() as writer:
        context.write(package, writer)  # type: ignore[arg-type]  # it has what is written to
    following = NextProgram(system.libc(), lambda: None)
    following._code.prepare(first, blobs)
    folder = following._code.folder_for(first)
    assert folder and following.place == os.path.dirname(folder) and not following._code.folder_for(package.digest)
    following._code.prepare(first, blobs)
    following.over(remains=False)
    assert following._code.folder_for(first) == folder
    for digest, text in ((package.digest, "other"), (first, "data")):
        following._code.prepare(digest, blobs)
        assert Path(following._code.folder_for(digest), "data.txt").read_text() == text
    following._code.prepare("0" * 64, blobs)
    assert not following.place, "a package that is not there is left to the job"
    following._code.prepare(first, blobs)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "elsewhere"))
    assert not following._code.folder_for(first), "a job with other temporary files has a copy among them"
    following.over(remains=True)
    assert not following.place and not list(tmp_path.glob("stoker-code-*"))


def test_half_a_line_is_not_an_order_yet(tmp_path: Path) -> None:
    first, second = line(PoolOrder(number=3, spec="x")), line(PoolOrder(number=4, spec="y"))
    path = tmp_path / ORDERS
    orders = OrderFile(str(path))
    path.write_bytes(first + second[:9])
    assert [order.number for order in orders.read()] == [3]
    assert orders.read() == []
    path.write_bytes(first + second)
    assert [order.number for order in orders.read()] == [4]
    assert orders.read() == []


def test_what_is_no_pool_is_refused(tmp_path: Path) -> None:
    ran = subprocess.run(
        [sys.executable, "-m", "stoker.worker.pool", str(tmp_path), "0"], check=False, capture_output=True, text=True
    )
    assert ran.returncode == 2 and "pool.json cannot be read" in ran.stderr


def test_a_byte_in_its_fifo_wakes_a_worker_which_keeps_folders_as_they_were(pool: Pool) -> None:
    fifo, place = pool.folder / wake_of("0"), pool.folder / "place"
    os.mkfifo(fifo)
    place.mkdir()
    (place / "before").touch()
    pool.start("0", emptied=[str(place), str(pool.folder / "nowhere")])
    until(lambda: pool.notes("0"))
    descriptor = os.open(fifo, os.O_RDWR | os.O_NONBLOCK)
    try:
        os.write(descriptor, b"\n")
        until(lambda: not select.select([descriptor], [], [], 0)[0])
    finally:
        os.close(descriptor)
    slow = pool.order("slow")
    until(lambda: "slow" in pool.out(slow).splitlines())
    (place / "left").mkdir()
    (place / "left" / "file").touch()
    (place / "link").symlink_to(place / "before")
    pool.tell(PoolOrder(number=0, end=True))
    until(lambda: any(note.over == 0 for note in pool.notes("0")))
    assert [path.name for path in place.iterdir()] == ["before"]
