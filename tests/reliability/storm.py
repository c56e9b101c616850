"""The storm: runs whose processes are killed by a seeded schedule, and the proof that nothing of them is left.

    python -m tests.reliability.storm --seed 1 --count 500 [--jobs 2] [--user UID] [--results FILE]

Each schedule starts a driver on simulated devices, with a step that holds both of them by one launcher and does its
best to survive, then kills and signals its processes, and ends the run. Afterwards nothing that bears the schedule's
mark may live, and a second run must get the devices. Each rank locks a file for each device that it holds: a second
holder cannot, and says so. Schedules that are in the file of results are not run again.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Callable, Final, Iterator

import attrs
import psutil

DEVICES: Final = "2xH100-80GB"
READY: Final = 120.0
"""Seconds until the ranks run: launchers import torch, on a machine that is busy."""
OVER: Final = 90.0
"""Seconds until a driver has ended that was asked to, or whose step lost its processes; its own grace is 30."""
GRACE: Final = 30.0
"""Seconds until nothing may be left."""
LAUNCHERS: Final = {"none": 6, "command": 7, "torchrun": 2, "accelerate": 1, "mpi": 2}
"""Launcher → how often it is drawn: torch takes seconds to import, and three launchers do it."""
BEHAVIOURS: Final = ("sleep", "native", "deaf", "setsid", "fork", "scrubbed", "hydra")
VICTIMS: Final = ("rank", "watcher", "launcher", "monitor", "agent", "server", "supervisor")
ENDS: Final = ("kill", "interrupt", "interrupts", "cancel", "terminate", "hang up")

SCRIPT: Final = '''
import ctypes, fcntl, os, signal, sys, time

from stoker import context, pipeline, step
from stoker.config import MPI, Accelerate, Command, Monitor, Torchrun

FOLDER = os.environ["STORM_FOLDER"]
BEHAVIOUR = os.environ["STORM_BEHAVIOUR"]
LAUNCH = {
    "none": None,
    "command": Command([sys.executable, "spawn.py"], num_processes=2),
    "torchrun": Torchrun(nproc_per_node=2),
    "accelerate": Accelerate(cpu=True, num_processes=2),
    "mpi": MPI(np=2, oversubscribe=True, bind_to="none"),
}[os.environ["STORM_LAUNCHER"]]
HELD = []


def note(name):
    open(os.path.join(FOLDER, name), "w").close()


def hold():
    devices = os.environ["CUDA_VISIBLE_DEVICES"].split(",")
    for device in devices if LAUNCH is None else [devices[context.local_rank]]:
        HELD.append(os.open(os.path.join(FOLDER, device), os.O_RDWR | os.O_CREAT, 0o666))
        try:
            fcntl.flock(HELD[-1], fcntl.LOCK_EX | fcntl.LOCK_NB)  # kept until the last process that inherits it ends
        except BlockingIOError:
            note(f"double-{device}")
            raise SystemExit(9)


def escaped(session):
    """Fork twice; True in the grandchild, whose parent ends at once."""
    child = os.fork()
    if child:
        os.waitpid(child, 0)
        return False
    if session:
        os.setsid()
    if os.fork():
        os._exit(0)
    if session:
        os.setsid()
    note(f"escaped-{os.getpid()}")
    return True


def sleep():
    while True:
        time.sleep(0.05)


def behave():
    if BEHAVIOUR in ("setsid", "fork") and escaped(BEHAVIOUR == "setsid"):
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        sleep()
    if BEHAVIOUR == "scrubbed" and escaped(True):
        os.execve("/bin/sleep", ["sleep", "100000"], {})
    if BEHAVIOUR == "hydra" and escaped(True):
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        while True:  # a new process every 20 ms, whose parent ends
            time.sleep(0.02)
            if os.fork():
                os._exit(0)
            os.setsid()
    if BEHAVIOUR == "deaf":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
    note(f"ready-{context.rank if LAUNCH else 0}-{os.getpid()}")
    if BEHAVIOUR == "native":
        signal.pthread_sigmask(signal.SIG_BLOCK, set(signal.valid_signals()))
        library = ctypes.PyDLL(None)  # with Python's lock held: no other thread of it runs either
        while True:
            library.sleep(1000)
    sleep()


@step(resources={"gpu_count": 2}, launch=LAUNCH, cache=False, monitor=Monitor(0.05))
def train() -> None:
    hold()
    behave()


@step(resources={"gpu_count": 2}, cache=False, monitor=Monitor(0.05))
def after() -> None:
    for device in os.environ["CUDA_VISIBLE_DEVICES"].split(","):
        HELD.append(os.open(os.path.join(FOLDER, device), os.O_RDWR | os.O_CREAT, 0o666))
        try:
            fcntl.flock(HELD[-1], fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            note(f"double-{device}")
            raise


@pipeline
def storm():
    train()


@pipeline
def next():
    after()


if __name__ == "__main__":
    {"storm": storm, "next": next}[sys.argv[1]]()
'''

SPAWN: Final = """
import os, subprocess, sys

count = int(os.environ["STOKER_PROCESSES_PER_NODE"])
ranks = []
for rank in range(count):
    place = {"RANK": str(rank), "WORLD_SIZE": str(count), "LOCAL_RANK": str(rank), "LOCAL_WORLD_SIZE": str(count),
             "GROUP_RANK": "0"}
    ranks.append(subprocess.Popen(sys.argv[1:], env={**os.environ, **place}, start_new_session=True))
sys.exit(max(abs(rank.wait()) for rank in ranks))
"""


@attrs.frozen(kw_only=True)
class Schedule:
    """What happens to one run; follows from the seed alone."""

    seed: int
    launcher: str
    behaviour: str
    waits: bool
    """Whether the second run waits for the devices from the start, or comes when the first is over."""
    kills: tuple[tuple[float, str], ...]
    """(seconds after the one before, whom), each by SIGKILL."""
    end: str
    """How the run ends then: one of `ENDS`."""
    pause: float
    """Seconds before it."""

    @property
    def at_once(self) -> bool:
        """Whether everybody who cleans up is killed within moments: then the next run's look does it."""
        return self.end == "kill" and {"server", "supervisor"} <= {whom for _, whom in self.kills}


def schedule_of(seed: int, launchers: dict[str, int]) -> Schedule:
    """The schedule of a seed."""
    dice = random.Random(f"storm/{seed}")
    launcher = dice.choices([*launchers], [*launchers.values()])[0]
    there = VICTIMS if launcher != "none" else VICTIMS[VICTIMS.index("monitor") :]
    victims = dice.sample(there, dice.choice((0, 1, 2, *range(3, len(there) + 1), len(there), len(there))))
    if "launcher" in victims and dice.random() < 0.5:  # it hardly outlives the others
        victims.sort(key=lambda whom: whom != "launcher")
    return Schedule(
        seed=seed,
        launcher=launcher,
        behaviour=dice.choice(BEHAVIOURS),
        waits=dice.random() < 0.5,
        kills=tuple(
            (dice.choice((0.0, 0.0, 0.0, dice.uniform(0.0, 0.05), dice.uniform(0.0, 0.5))), who) for who in victims
        ),
        end=dice.choices(ENDS, (5, 1, 1, 1, 1, 1))[0],
        pause=dice.choice((0.0, dice.uniform(0.0, 0.3))),
    )


class Storm:
    """One schedule on this machine. `user`: a uid without rights, which its processes get."""

    def __init__(self, schedule: Schedule, folder: Path, user: int | None) -> None:
        self.schedule = schedule
        self.folder = folder
        self.user = user
        self.mark = f"STORM_MARK={os.getpid()}-{time.monotonic_ns()}-{schedule.seed}"
        self.began = time.time()
        self.killed: Counter[str] = Counter()
        (folder / "script.py").write_text(SCRIPT)
        (folder / "spawn.py").write_text(SPAWN)
        os.chmod(folder, 0o777)

    def run(self) -> dict[str, Any]:
        """What happened; `wrong` is empty where all held."""
        row = {**attrs.asdict(self.schedule), "user": self.user}
        drivers: list[subprocess.Popen[bytes]] = []
        try:
            wrong = self._run(drivers)
        finally:
            for driver in drivers:
                driver.kill()
                driver.wait()
            self._end_all()
        row.update(wrong=wrong, killed=dict(self.killed), seconds=round(time.time() - self.began, 1))
        return row

    def _run(self, drivers: list[subprocess.Popen[bytes]]) -> list[str]:
        first = self._start("storm", drivers)
        ranks = 1 if self.schedule.launcher == "none" else 2
        ready = lambda: len({path.name.split("-")[1] for path in self.folder.glob("ready-*")}) == ranks  # noqa: E731
        if not _until(lambda: ready() or first.poll() is not None, READY) or not ready():
            return [f"the run did not begin: {self._log('storm')}"]
        second = self._start("next", drivers) if self.schedule.waits else None
        chain = self._chain(first)
        for pause, whom in self.schedule.kills:
            time.sleep(pause)
            self._kill(chain.get(whom, []), whom)
        time.sleep(self.schedule.pause)
        self._end(first)
        if not _until(lambda: first.poll() is not None, OVER):
            return [f"the driver did not end: {self._log('storm')}"]
        wrong = [] if self.schedule.at_once else self._survivors("after the driver's end", drivers)
        second = second or self._start("next", drivers)
        if not _until(lambda: second.poll() is not None, OVER) or second.returncode != 0:
            wrong.append(f"the next run did not get the devices: {self._log('next')}")
        wrong += self._survivors("after the next run", drivers)
        wrong += [f"{path.name}: held by two" for path in self.folder.glob("double-*")]
        return wrong

    def _start(self, pipeline: str, drivers: list[subprocess.Popen[bytes]]) -> subprocess.Popen[bytes]:
        name, _, value = self.mark.partition("=")
        environment = {
            **os.environ,
            name: value,
            "STORM_FOLDER": str(self.folder),
            "STORM_LAUNCHER": self.schedule.launcher,
            "STORM_BEHAVIOUR": self.schedule.behaviour,
            "STOKER_HOME": str(self.folder / f"home-{pipeline}"),
            "STOKER_LEASES": str(self.folder / "leases"),
            "STOKER_SIMULATE": DEVICES,
            "OMPI_ALLOW_RUN_AS_ROOT": "1",
            "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
            "HOME": str(self.folder),
        }
        argv = [sys.executable, "script.py", pipeline]
        if self.user is not None:
            argv = ["setpriv", f"--reuid={self.user}", f"--regid={self.user}", "--clear-groups", *argv]
        with open(self.folder / f"{pipeline}.log", "wb") as log:
            process = subprocess.Popen(
                argv,
                cwd=self.folder,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        drivers.append(process)
        return process

    def _chain(self, driver: subprocess.Popen[bytes]) -> dict[str, list[psutil.Process]]:
        """The processes of the run by what they are."""
        pids = [int(path.name.split("-")[2]) for path in self.folder.glob("ready-*")]
        chain: dict[str, list[psutil.Process]] = {"driver": [psutil.Process(driver.pid)]}
        for pid in pids:
            with _gone():
                rank = psutil.Process(pid)
                above = []
                for parent in rank.parents():
                    if parent.pid == driver.pid:
                        break
                    above.append(parent)
                if self.schedule.launcher == "none":
                    above = [rank, *above]
                else:
                    chain.setdefault("rank", []).append(rank)
                    chain.setdefault("watcher", []).append(above[0])
                *_, agent, server, supervisor = above
                if self.schedule.launcher != "none" and len(above) > 4:
                    chain["launcher"] = [above[-4]]
                chain.update(agent=[agent], server=[server], supervisor=[supervisor])
                chain["monitor"] = [child for child in server.children() if child != agent]
        return chain

    def _kill(self, victims: list[psutil.Process], whom: str) -> None:
        for victim in victims:
            with _gone():
                if victim.is_running() and victim.status() != psutil.STATUS_ZOMBIE:
                    victim.kill()
                    self.killed[whom] += 1

    def _end(self, driver: subprocess.Popen[bytes]) -> None:
        end = self.schedule.end
        if driver.poll() is not None:
            return
        if end == "kill":
            driver.kill()
            self.killed["driver"] += 1
        elif end == "cancel":
            home = str(self.folder / "home-storm")
            subprocess.run(
                [sys.executable, "-m", "stoker", "cancel", "latest"],
                env={**os.environ, "STOKER_HOME": home},
                cwd=self.folder,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                check=False,
            )
        else:
            number = {"terminate": signal.SIGTERM, "hang up": signal.SIGHUP}.get(end, signal.SIGINT)
            driver.send_signal(number)
            if end == "interrupts":
                time.sleep(0.3)
                driver.send_signal(number)

    def _survivors(self, when: str, drivers: list[subprocess.Popen[bytes]]) -> list[str]:
        """Processes of the schedule that live when the grace is over; the second run's own are none of them."""
        if not _until(lambda: not self._living(drivers), GRACE):
            return [f"{when}: {words}" for words in sorted(_words(pid) for pid in self._living(drivers))]
        return []

    def _living(self, drivers: list[subprocess.Popen[bytes]]) -> set[int]:
        ours = set(self._marked())
        for path in self.folder.glob("escaped-*"):
            pid = int(path.name.partition("-")[2])
            with _gone():
                process = psutil.Process(pid)
                if process.create_time() >= self.began - 2 and process.status() != psutil.STATUS_ZOMBIE:
                    ours.add(pid)
        for driver in drivers[1:]:
            with _gone():
                if driver.poll() is None:
                    other = psutil.Process(driver.pid)
                    ours -= {driver.pid, *(child.pid for child in other.children(recursive=True))}
        return ours

    def _marked(self) -> Iterator[int]:
        wanted = self.mark.encode()
        for name in os.listdir("/proc"):
            if not name.isdigit() or int(name) == os.getpid():
                continue
            try:
                with open(f"/proc/{name}/environ", "rb") as file:
                    marked = wanted in file.read().split(b"\0")
                with open(f"/proc/{name}/stat") as file:
                    ended = file.read().rpartition(")")[2].split()[0] in "ZX"
            except OSError:
                continue
            if marked and not ended:
                yield int(name)

    def _end_all(self) -> None:
        deadline = time.monotonic() + 10
        while (left := self._living([])) and time.monotonic() < deadline:
            for pid in left:
                with _gone():
                    psutil.Process(pid).kill()
            time.sleep(0.02)

    def _log(self, pipeline: str) -> str:
        return (self.folder / f"{pipeline}.log").read_text(errors="replace")[-1500:]


class _gone:  # noqa: N801  a context manager, as contextlib's are
    """Passes over processes that ended meanwhile."""

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> bool:
        return isinstance(error, (psutil.NoSuchProcess, ProcessLookupError, IndexError))


def _words(pid: int) -> str:
    try:
        process = psutil.Process(pid)
        return f"{' '.join(process.cmdline())[:120]} ({process.name()}, parent {process.ppid()}, {process.status()})"
    except psutil.NoSuchProcess:
        return "gone by now"


def _until(condition: Callable[[], bool], seconds: float) -> bool:
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True


def available() -> dict[str, int]:
    """The launchers of this machine, by how often they are drawn."""
    return {name: weight for name, weight in LAUNCHERS.items() if name != "mpi" or shutil.which("mpirun") is not None}


def play(schedule: Schedule, *, scratch: Path, user: int | None = None) -> dict[str, Any]:
    """Run one schedule in a folder of its own, which is removed if all held."""
    folder = Path(tempfile.mkdtemp(prefix=f"storm-{schedule.seed}-", dir=scratch))
    row = Storm(schedule, folder, user).run()
    if not row["wrong"]:
        shutil.rmtree(folder, ignore_errors=True)
    return row


def summary(rows: list[dict[str, Any]]) -> str:
    """The figures of a file of results, as a table of Markdown."""
    kills: Counter[str] = Counter()
    for row in rows:
        kills.update(row["killed"])
    lines = ["| | schedules | wrong |", "|---|---:|---:|"]
    for field in ("launcher", "behaviour", "end", "user"):
        for value in sorted({str(row[field]) for row in rows}):
            chosen = [row for row in rows if str(row[field]) == value]
            lines.append(f"| {field} {value} | {len(chosen)} | {sum(bool(row['wrong']) for row in chosen)} |")
    lines.append(f"| all | {len(rows)} | {sum(bool(row['wrong']) for row in rows)} |")
    lines.append("")
    lines.append(f"{kills.total()} kills: " + ", ".join(f"{name} {count}" for name, count in kills.most_common()))
    return "\n".join(lines)


def main() -> int:
    """Run the schedules that the file of results lacks; exit code 1 where something did not hold."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--count", type=int, default=500)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--user", type=int)
    parser.add_argument("--results", type=Path, default=Path(".stoker", "storm.jsonl"))
    options = parser.parse_args()
    signal.signal(signal.SIGHUP, signal.SIG_DFL)  # nohup ignores it, and a schedule sends it
    options.results.parent.mkdir(parents=True, exist_ok=True)
    text = options.results.read_text() if options.results.exists() else ""
    rows = [json.loads(line) for line in text.splitlines()]
    over = {(row["seed"], row["user"]) for row in rows}
    seeds = [seed for seed in range(options.seed, options.seed + options.count) if (seed, options.user) not in over]
    scratch = Path(tempfile.mkdtemp(prefix="stoker-storm-"))
    scratch.chmod(0o755)

    def one(seed: int) -> dict[str, Any]:
        return play(schedule_of(seed, available()), scratch=scratch, user=options.user)

    with ThreadPoolExecutor(options.jobs) as pool, open(options.results, "a") as results:
        for row in pool.map(one, seeds):
            rows.append(row)
            results.write(json.dumps(row) + "\n")
            results.flush()
            if row["wrong"]:
                print(json.dumps(row, indent=2), flush=True)
    print(summary(rows))
    return 1 if any(row["wrong"] for row in rows) else 0


if __name__ == "__main__":
    sys.exit(main())
