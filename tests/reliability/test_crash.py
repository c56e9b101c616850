"""A driver that is killed at any moment loses at most what was running; its run goes on and comes to the same end.

The moments are of two kinds: after a time, from the first instruction of the process on, and before or after a call
that the driver makes of the operating system or the database, counted by a profiler. Both are drawn from a seed.
"""

from __future__ import annotations

import inspect
import itertools
import os
import random
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import attrs
import pytest

from stoker.cli.main import invoke
from stoker.client import Client
from stoker.store.store import Store

SEED = 20250101
KILLS = 6
"""How many drivers are killed at least."""
KILLS_OF_THE_LONG_FORM = 200
KILLS_OF_A_RUN = 4
SIDE_BY_SIDE = 2
"""Runs at once: a little more than the machine has cores, so that they disturb each other."""

WIDTH = 12
LARGE = 3000
"""Numbers in a value that is too large for a row."""


def expected() -> int:
    """What the pipeline's last step must return, by plain Python."""
    numbers = [7]
    for _ in range(5):
        numbers = [sum(numbers)] if len(numbers) > 1 else [numbers[0] + 1] * LARGE
    start = sum(numbers) % 1000
    elements = [[(start + index) * 2] * (LARGE if index % 3 == 0 else 1) for index in range(WIDTH)]
    return sum(map(sum, elements)) + 2 * LARGE


FLOW = f"""
import os, subprocess, time
from stoker import pipeline, step

WIDTH, LARGE = {WIDTH}, {LARGE}

{inspect.getsource(expected)}
"""
FLOW += """

def note(what, name):
    line = f"{what} {name} {os.environ['CRASH_SESSION']} {os.getpid()}\\n"
    descriptor = os.open(os.environ["CRASH_NOTES"], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(descriptor, line.encode())
    os.close(descriptor)

def worked(name, value):
    note("begins", name)
    time.sleep(0.005)
    print(name, "made", len(value), "numbers")
    note("ended", name)
    return value

@step
def link(numbers: list[int], name: str) -> list[int]:
    # One number in a row, and many in a file, by turns.
    return worked(name, [sum(numbers)] if len(numbers) > 1 else [numbers[0] + 1] * LARGE)

@step
def family(numbers: list[int]) -> list[int]:
    child = subprocess.Popen(["sleep", "600"], start_new_session=True)
    try:
        time.sleep(0.02)
        return worked("family", numbers)
    finally:
        child.kill()
        child.wait()

@step
def parts(numbers: list[int]) -> list[list[int]]:
    start = sum(numbers) % 1000
    return worked("parts", [[start + index] * (LARGE if index % 3 == 0 else 1) for index in range(WIDTH)])

def tries(name):
    with open(os.environ["CRASH_NOTES"]) as file:
        return file.read().count(f"tried {name} ")

@step(retry=1)
def element(part: list[int]) -> list[int]:
    name = f"element {part[0] % WIDTH}"
    if part[0] % WIDTH == 5:
        note("tried", name)
        if tries(name) == 1:
            raise ValueError("not at the first time")
    return worked(name, [number * 2 for number in part])

@step(retry=2)
def flaky(numbers: list[int]) -> list[int]:
    note("tried", "flaky")
    time.sleep(0.01)
    if tries("flaky") < 3:
        raise ValueError("not yet")
    return worked("flaky", numbers)

@step
def total(elements: list[list[int]], numbers: list[int]) -> int:
    worked("total", elements)
    return sum(map(sum, elements)) + sum(numbers)

def body():
    numbers = [7]
    for index in range(5):
        numbers = link.with_options(id=f"link-{index}")(numbers, name=f"link-{index}")
    return total(element.map(parts(family(flaky(numbers)))), link.with_options(id="side")([1], name="side"))

@pipeline
def static():
    body()

@pipeline(dynamic=True)
def grown():
    assert body() == expected()
"""
STEPS = 6 + 4 + WIDTH
"""`link` six times, `flaky`, `family`, `parts` and `total`, and the elements. The fan-out itself runs nothing."""

DRIVE = """
import os, signal, sys, threading

CALLS = frozenset(
    "execute executemany fetchone fetchall send sendall sendmsg send_fds recv recvmsg read write open replace rename "
    "unlink mkdir utime select poll fork_exec close".split()
)

def armed(limit, moment, names):
    count = 0
    def watch(frame, event, function):
        nonlocal count
        if event == moment and function.__name__ in names:
            count += 1
            if count == limit:
                os.kill(os.getpid(), signal.SIGKILL)
    threading.setprofile(watch)
    sys.setprofile(watch)
    return lambda: count

limit, moment, names = os.environ["CRASH_CALL"].split(":")
names = CALLS if names == "any" else frozenset(names.split(","))
made = armed(int(limit), moment, names) if int(limit) else None

if sys.argv[1] == "start":
    import flow
    getattr(flow, sys.argv[2])()
elif sys.argv[1] == "resume":
    from stoker.core.request import RunRequest
    from stoker.run.driver import resume
    resume(sys.argv[2], RunRequest())
else:
    from stoker.cli.main import main
    main(sys.argv[2:])

sys.setprofile(None)
if made is not None:
    print(made())
"""

Kind = tuple[str, str]
KINDS: list[Kind] = [("c_call", "any"), ("c_return", "any"), ("c_call", "execute"), ("c_return", "execute")]
"""Before or after a call, and which calls count: whatever leaves the process, or the database's statements only."""


@attrs.define
class Recorded:
    """What the database said of a run after a kill."""

    run: str = ""
    status: str = ""
    sessions: int = 0
    good: frozenset[str] = frozenset()
    outputs: Mapping[tuple[str, str], str] = attrs.field(factory=dict)
    attempts: Mapping[tuple[str, int], tuple[Any, ...]] = attrs.field(factory=dict)


def recorded(home: Path) -> Recorded:
    """Read beside Stoker, and read-only, so that the next driver finds the database as the killed one left it."""
    if not (home / "stoker.db").exists():
        return Recorded()
    connection = sqlite3.connect(f"file:{home / 'stoker.db'}?mode=ro", uri=True)
    try:
        found = connection.execute("SELECT id, status, sessions FROM runs").fetchall()
        steps = connection.execute("SELECT key FROM steps WHERE status = 'succeeded' AND count IS NULL").fetchall()
        outputs = connection.execute("SELECT key, name, digest FROM outputs").fetchall()
        attempts = connection.execute("SELECT key, number, status, started, ended, cause FROM attempts").fetchall()
    except sqlite3.OperationalError:
        return Recorded()  # killed before there was a table
    finally:
        connection.close()
    assert len(found) <= 1, f"one run became several: {found}"
    if not found:
        return Recorded()
    return Recorded(
        run=found[0][0],
        status=found[0][1],
        sessions=found[0][2],
        good=frozenset(key for (key,) in steps),
        outputs={(key, name): digest for key, name, digest in outputs},
        attempts={(key, number): tuple(rest) for key, number, *rest in attempts},
    )


def named(key: str, start: int) -> str:
    """What a step of this key calls itself in its notes."""
    if not key.startswith("element["):
        return key
    return f"element {(start + int(key[len('element[') : -1])) % WIDTH}"


class Case:
    """One run of the pipeline in a store of its own, killed and resumed until it ends."""

    def __init__(self, number: int, folder: Path, mark: Callable[[str], Any], lives: Mapping[Any, float]) -> None:
        self.number = number
        self.random = random.Random(f"{SEED}/{number}")
        self.folder = folder / f"case-{number}"
        self.home = self.folder / "home"
        self.folder.mkdir()
        (self.folder / "flow.py").write_text(FLOW)
        (self.folder / "drive.py").write_text(DRIVE)
        self.notes = self.folder / "notes"
        self.pipeline = self.random.choice(["static", "static", "grown"])
        self.mark = mark(f"case-{number}")
        self.lives = lives
        self.kills = 0
        self.before: list[Recorded] = []
        self.told = ""
        self.history: list[str] = []

    def session(self, arguments: list[str], *, delay: float | None = None, call: str = "0::any") -> bool:
        """One driver, killed after a delay or by itself before a call; whether it was."""
        self.history.append(f"{arguments} delay={delay} call={call}")
        with open(self.folder / "output", "w+") as output:
            process = subprocess.Popen(
                [sys.executable, "drive.py", *arguments],
                cwd=self.folder,
                env={
                    **self.mark.environment,
                    "STOKER_HOME": str(self.home),
                    "CRASH_NOTES": str(self.notes),
                    "CRASH_SESSION": str(len(self.before)),
                    "CRASH_CALL": call,
                },
                stdout=output,
                stderr=subprocess.STDOUT,
            )
            try:
                process.wait(delay)
            except subprocess.TimeoutExpired:
                process.kill()
            code = process.wait()
            output.seek(0)
            self.told = output.read()
        if code == -signal.SIGKILL:
            self.kills += 1
            return True
        assert code == 0, f"the driver left with {code}\n{self.told}"
        return False

    def moment(self) -> dict[str, Any]:
        """When the next driver dies."""
        if self.random.random() < 0.4:
            # A third of these in the first third of its life: before there is a run, or while one is taken over.
            part = self.random.choice([0.33, 1.0, 1.0])
            return {"delay": self.random.uniform(0.0, part * self.lives["seconds"])}
        kind = self.random.choice(KINDS)
        limit = self.random.randint(1, int(self.lives[kind]))
        return {"call": f"{limit}:{kind[0]}:{kind[1]}"}

    @contextmanager
    def explained(self) -> Iterator[None]:
        """What fails inside says which case it was."""
        try:
            yield
        except AssertionError as error:
            told = "\n".join(self.history)
            raise AssertionError(f"case {self.number} of seed {SEED}\n{told}\n{self.told}\n{error}") from error

    def play(self) -> None:
        """Kill and resume until the run is over; what was recorded must stay, and no process may."""
        with self.explained():
            while self.again():
                pass

    def again(self) -> bool:
        """One more driver; whether it was killed."""
        last = self.kills >= KILLS_OF_A_RUN
        run = self.before[-1].run if self.before else ""
        again = self.random.choice([["resume"], ["stoker", "--traceback", "resume"]])
        arguments = [*again, run] if run else ["start", self.pipeline]
        killed = self.session(arguments, **({} if last else self.moment()))
        left = self.mark.gone()
        assert not left, f"these outlived their driver: {left}"
        found = recorded(self.home)
        if self.before:
            self.is_kept(self.before[-1], found)
        self.before.append(found)
        return killed

    def is_kept(self, before: Recorded, after: Recorded) -> None:
        """Whatever was recorded once stays as it was."""
        assert before.good <= after.good, f"forgotten: {before.good - after.good}"
        for name in ("outputs", "attempts"):
            was, now = getattr(before, name), getattr(after, name)
            changed = {key: (value, now.get(key)) for key, value in was.items() if now.get(key) != value}
            assert not changed, f"{name} that were recorded have changed: {changed}"

    def executions(self) -> list[tuple[str, str, int]]:
        """(tried, begins or ended; step; session) of every note."""
        lines = self.notes.read_text().splitlines()
        return [(line.split(" ")[0], " ".join(line.split(" ")[1:-2]), int(line.split(" ")[-2])) for line in lines]

    def ran_again(self, start: int) -> list[str]:
        """Steps that ran in a session although an earlier one had recorded their success."""
        executions = self.executions()
        wrong = []
        for number, found in enumerate(self.before):
            good = {named(key, start) for key in found.good}
            wrong += [f"{name} in {session}" for _, name, session in executions if name in good and session > number]
        return wrong


def checked(case: Case, store: Store, wrong_in: Callable[[Path], list[str]]) -> None:
    """All that must be true of a run once it is over, however often its driver was killed."""
    final = case.before[-1]
    assert final.status == "succeeded", final
    run = Client(store=store).run(final.run)
    assert run.status == "succeeded"
    assert run.steps["total"].output.load() == expected()
    assert {step.status for step in run.steps.values()} == {"succeeded"}
    assert [step.status for step in run.steps["element"]] == ["succeeded"] * WIDTH
    assert not run.error
    start = run.steps["parts"].output.load()[0][0]
    assert not case.ran_again(start)
    ended = [name for what, name, _ in case.executions() if what == "ended"]
    assert len(set(ended)) == STEPS
    assert final.sessions <= case.kills + 1
    succeeded = [key for (key, _), facts in final.attempts.items() if facts[0] == "succeeded"]
    assert sorted(succeeded) == sorted(final.good), "every success has exactly one attempt that succeeded"
    assert not wrong_in(case.home)


def swept(case: Case, store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """`stoker gc` leaves nothing of what the killed processes had begun, and all that the run needs."""
    old = time.time() - 3 * 86400
    for path in case.home.rglob("*"):
        if path.is_file() and "stoker.db" not in path.name:
            os.utime(path, (old, old))
    monkeypatch.setenv("STOKER_HOME", str(case.home))
    assert invoke(["gc"]) == 0
    for name in ("artifacts/tmp", "scratch"):
        folder = case.home / name
        assert not folder.exists() or not list(folder.iterdir())
    run = Client(store=store).run("latest")
    assert run.steps["total"].output.load() == expected()
    assert [len(one.output.load()) for one in run.steps["element"]] == [
        LARGE if i % 3 == 0 else 1 for i in range(WIDTH)
    ]


def lives(folder: Path, mark: Callable[[str], Any]) -> dict[Any, float]:
    """How many seconds, and how many calls of each kind, a driver lives that nobody kills."""
    folder.mkdir()
    case = Case(0, folder, mark, {})
    started = time.monotonic()
    case.session(["start", "static"])
    found: dict[Any, float] = {"seconds": time.monotonic() - started}
    for number, (moment, names) in enumerate(KINDS, start=1):
        case = Case(number, folder, mark, {})
        assert not case.session(["start", "static"], call=f"{10**9}:{moment}:{names}")
        found[moment, names] = int(case.told.split()[-1])
    return found


def missed(cases: list[Case]) -> list[str]:
    """The parts of a run's life into which no kill fell."""
    seen = [found for case in list(cases) for found in case.before]
    running = [found for found in seen if found.status == "running"]
    parts = {
        "before there is a run": any(not found.run for found in seen),
        "before the first step is done": any(not found.good for found in running),
        "when most steps are done": any(len(found.good) > STEPS // 2 for found in running),
    }
    return [part for part, hit in parts.items() if not hit]


@pytest.mark.slow
def test_killed_drivers(
    tmp_path: Path,
    mark: Callable[[str], Any],
    opened: Callable[[Path], Store],
    wrong_in: Callable[[Path], list[str]],
    monkeypatch: pytest.MonkeyPatch,
    long_form: bool,
) -> None:
    wanted = KILLS_OF_THE_LONG_FORM if long_form else KILLS
    measured = lives(tmp_path / "unharmed", mark)
    cases: list[Case] = []
    numbers = itertools.count()

    def enough() -> bool:
        return sum(case.kills for case in cases) >= wanted and not missed(cases)

    def play() -> None:
        while not enough():
            case = Case(next(numbers), tmp_path, mark, measured)
            cases.append(case)
            case.play()

    with ThreadPoolExecutor(SIDE_BY_SIDE) as threads:
        for thread in [threads.submit(play) for _ in range(SIDE_BY_SIDE)]:
            thread.result()
    assert sum(case.kills for case in cases) >= wanted
    for case in cases:
        store = opened(case.home)
        with case.explained():
            checked(case, store, wrong_in)
            swept(case, store, monkeypatch)
            assert not wrong_in(case.home)
    assert not missed(cases)


FOREVER = """
import subprocess, time
from stoker import pipeline, step

@step
def family(number: int) -> int:
    children = [subprocess.Popen(["sleep", "600"], start_new_session=own) for own in (True, False)]
    time.sleep(600)
    return len(children)

@step(isolation="fresh")
def alone() -> int:
    time.sleep(600)
    return 0

@pipeline
def forever():
    alone()
    family.map(list(range(40)))

if __name__ == "__main__":
    forever()
"""


@pytest.mark.parametrize(
    "number", [*range(2), *(pytest.param(number, marks=pytest.mark.long) for number in range(2, 8))]
)
def test_nothing_outlives_a_killed_driver(number: int, tmp_path: Path, mark: Callable[[str], Any]) -> None:
    """Steps that would go on for minutes, and their children, also those that made themselves independent."""
    (tmp_path / "flow.py").write_text(FOREVER)
    marked = mark("forever")
    environment = {**marked.environment, "STOKER_HOME": str(tmp_path / "home")}
    process = subprocess.Popen(
        [sys.executable, "flow.py"], cwd=tmp_path, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    delay = random.Random(f"{SEED}/forever/{number}")
    if number % 2:
        # Once steps run: the driver, the fork server, a worker, and a child of it at least.
        while len(marked.processes()) < 4:
            assert process.poll() is None
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(delay.uniform(0.0, 0.5))
    process.kill()
    process.wait()
    assert not marked.gone()
