"""Drivers on one PostgreSQL server that is stopped, started, frozen, cut off and replaced at random moments.

    python -m tests.reliability.database_storm --seed 1 --drivers 100 --restarts 10

Each step appends a line to a file of its own, so that a step that is executed twice shows; and every run's rows must be
those of a run that was left alone. `make storm-database SEED=… DRIVERS=… RESTARTS=…` is the same. With `--kills`,
drivers get SIGKILL at random moments besides, and `stoker resume` takes the place of each: a step that they had begun
may be executed again then, once for each kill.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import attrs
import psycopg
from tests.servers import postgres

REPLACED: Final = frozenset({"promoted", "demoted"})
"""Outages after which a replica takes the server's place, which crashed or only reads; once in a storm."""
PATIENCE: Final = 600.0
"""Seconds after which a driver that has not ended counts as lost."""

SILENCE: Final = 5
"""Seconds after which a driver takes its connection for lost when the server says nothing."""

PIPELINE: Final = """
import os
import sys
import time

from stoker import pipeline, step

PLACE, WHO = os.environ["STORM_PLACE"], os.environ["STORM_WHO"]


def note(name):
    file = os.open(os.path.join(PLACE, f"{WHO}-{name}"), os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    os.write(file, b"executed\\n")
    os.close(file)


@step
def first(who: str) -> list[int]:
    note("first")
    return list(range(6))


@step
def element(number: int, who: str) -> int:
    note(f"element-{number}")
    time.sleep(0.3 * (number + 1))
    return number * number


@step(cache=False)
def longest(who: str, seconds: float) -> bytes:
    note("longest")
    time.sleep(seconds)
    return b"weights" * 1000


@step(cache=False)
def link(previous: int, number: int) -> int:
    note(f"link-{number}")
    time.sleep(0.2)
    return previous + number


@step
def last(parts: list[int], weights: bytes, chain: int) -> int:
    note("last")
    return sum(parts) + len(weights) + chain


@pipeline(failure_mode="continue")
def storm(who: str, seconds: float, links: int):
    chain = 0
    for number in range(links):
        chain = link(chain, number)
    last(element.map(first(who), who=who), longest(who, seconds), chain)


if __name__ == "__main__":
    storm(WHO, float(sys.argv[1]), int(sys.argv[2]))
"""

_TABLES: Final = {
    "steps": "key, name, position, parent, idx, status, cause, message, cached_from, attempts, count",
    "outputs": "key, name, digest, serializer, type, size, meta, inline, place",
    "attempts": "key, number, status, cause, message, error, exit_code, changes",
    "cache": "step_key, outputs",
}
"""Table → its columns that are the same in equal runs."""


@attrs.frozen(kw_only=True)
class StormResult:
    """What a storm did, and what was wrong after it."""

    drivers: int
    outages: Sequence[str]
    seen: int
    """How many drivers told that the database was away."""
    killed: int
    problems: Sequence[str]


@attrs.frozen(kw_only=True)
class _Driver:
    number: int
    process: subprocess.Popen[bytes]
    output: Path
    began: float


def storm(
    folder: Path,
    programs: Path,
    *,
    seed: int,
    drivers: int,
    outages: Sequence[str],
    at_once: int = 25,
    seconds: float = 12.0,
    links: int = 30,
    kills: int = 0,
) -> StormResult:
    """Run `drivers` processes, at most `at_once` at a time, through `outages` and `kills`.

    `seconds` and `links` say how long each run takes: that of its longest step, and the number of steps in its chain.
    """
    draw = random.Random(seed)
    place = folder / "lines"
    place.mkdir()
    (folder / "storm.py").write_text(PIPELINE)
    servers = [postgres.Server(programs, connections=at_once + at_once // 5 + 10)]
    server = servers[0]
    server.start()
    if REPLACED & {*outages}:
        servers.append(server.replica())
    hosts = ",".join(each.address for each in servers)
    # A server that hangs counts as away after a few seconds, not after the half minute that is the default.
    uri = f"postgresql://stoker@{hosts}/postgres?target_session_attrs=read-write&tcp_user_timeout={1000 * SILENCE}"
    (folder / "stoker.toml").write_text(f'stack = "storm"\n[stacks.storm]\ndatabase = "{uri}"\n')
    running: list[_Driver] = []
    ended: list[tuple[_Driver, str]] = []
    killed: Counter[int] = Counter()
    try:
        reference = _start(folder, place, 0, 1.0, links)
        _wait([reference], ended)
        number, left = 1, list(outages)
        next_outage = next_kill = time.monotonic()
        while number <= drivers or running:
            # Nobody starts while an outage is due: a driver that finds no server at its start ends at once.
            due = bool(left) and bool(running) and time.monotonic() >= next_outage
            while not due and number <= drivers and len(running) < at_once:
                running.append(_start(folder, place, number, seconds * draw.uniform(0.5, 1.5), links))
                number += 1
            begun = _count_runs(server.uri)
            if due and begun >= number:  # all of them, and the reference
                server = _outage(servers, server, left.pop(0), draw)
                next_outage = time.monotonic() + draw.uniform(1.0, 8.0)
            elif running and begun >= number and killed.total() < kills and time.monotonic() >= next_kill:
                victim = running.pop(draw.randrange(len(running)))
                killed[victim.number] += _kill(victim)
                running.append(_start_again(folder, place, victim, server.uri))
                next_kill = time.monotonic() + draw.uniform(0.1, 2.0)
            _reap(running, ended)
            time.sleep(0.05)
        return StormResult(
            drivers=drivers,
            outages=outages[: len(outages) - len(left)],
            seen=sum("is away" in driver.output.read_text() for driver, _ in ended),
            killed=killed.total(),
            problems=[*(text for _, text in ended if text), *_differences(server.uri, place, drivers, links, killed)],
        )
    finally:
        for driver in running:
            driver.process.kill()
            driver.process.wait()
        for each in servers:
            each.kill()


def drawn_outages(seed: int, count: int) -> list[str]:
    """Kinds of outages, each as often as the others, in random order."""
    kinds = ["immediate", "fast", "stopped-30s", "terminated", "frozen-20s"]
    outages = [kinds[number % len(kinds)] for number in range(count)]
    random.Random(seed).shuffle(outages)
    return outages


def _start(folder: Path, place: Path, number: int, seconds: float, links: int) -> _Driver:
    return _started(folder, place, number, "storm.py", str(seconds), str(links))


def _kill(driver: _Driver) -> int:
    """Kill a driver; 0 where it had ended before."""
    driver.process.kill()
    return int(driver.process.wait() == -signal.SIGKILL)


def _start_again(folder: Path, place: Path, driver: _Driver, uri: str) -> _Driver:
    with psycopg.connect(uri, autocommit=True) as connection:
        wanted = f'%"who{driver.number}"%'
        row = connection.execute("SELECT id FROM runs WHERE parameters LIKE %s", (wanted,)).fetchone()
    assert row is not None
    return _started(folder, place, driver.number, "-m", "stoker", "resume", row[0])


def _started(folder: Path, place: Path, number: int, *words: str) -> _Driver:
    output = folder / f"output-{number}"
    environment = {
        **os.environ,
        "STOKER_HOME": str(folder / "home"),
        "STORM_PLACE": str(place),
        "STORM_WHO": f"who{number}",
    }
    with output.open("ab") as file:
        process = subprocess.Popen(
            [sys.executable, *words], cwd=folder, env=environment, stdout=file, stderr=subprocess.STDOUT
        )
    return _Driver(number=number, process=process, output=output, began=time.monotonic())


def _reap(running: list[_Driver], ended: list[tuple[_Driver, str]]) -> None:
    for driver in list(running):
        problem = ""
        if driver.process.poll() is None:
            if time.monotonic() < driver.began + PATIENCE:
                continue
            driver.process.kill()
            problem = f"driver {driver.number} did not end\n"
        code = driver.process.wait()
        if code:
            problem += f"driver {driver.number} ended with {code}: {driver.output.read_text()[-2000:]}"
        running.remove(driver)
        ended.append((driver, problem))


def _wait(running: list[_Driver], ended: list[tuple[_Driver, str]]) -> None:
    while running:
        _reap(running, ended)
        time.sleep(0.05)


def _count_runs(uri: str) -> int:
    with psycopg.connect(uri, autocommit=True) as connection:
        row = connection.execute("SELECT count(*) FROM runs").fetchone()
    return int(row[0]) if row else 0


def _outage(
    servers: Sequence[postgres.Server], server: postgres.Server, kind: str, draw: random.Random
) -> postgres.Server:
    """Do it, and return the server that takes writes afterwards."""
    if kind in REPLACED:
        if kind == "demoted":  # it goes on, and answers, as where a name of the network moves
            server.set("default_transaction_read_only", "on")
        else:
            server.stop("immediate")
        time.sleep(draw.uniform(0.0, 2.0))
        servers[1].promote()
        return servers[1]
    if kind == "terminated":
        with psycopg.connect(server.uri, autocommit=True) as connection:
            connection.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid <> pg_backend_pid()")
        return server
    name, _, away = kind.partition("-")
    if name == "frozen":
        server.freeze()
        time.sleep(float(away.removesuffix("s")))
        server.thaw()
        return server
    server.stop("fast" if name == "stopped" else name)
    time.sleep(float(away.removesuffix("s")) if away else draw.uniform(0.0, 3.0))
    server.start()
    return server


def _differences(uri: str, place: Path, drivers: int, links: int, killed: Mapping[int, int]) -> list[str]:
    """How runs and their steps differ from what they must be: the rows and lines of the run that was left alone."""
    problems = []
    names = ["first", "longest", "last", *(f"element-{n}" for n in range(6)), *(f"link-{n}" for n in range(links))]
    for number in range(drivers + 1):
        for name in names:
            file = place / f"who{number}-{name}"
            lines = file.read_text().splitlines() if file.exists() else []
            if not 1 <= len(lines) <= 1 + killed.get(number, 0):
                problems.append(f"driver {number}: its step {name} was executed {len(lines)} times")
    with psycopg.connect(uri, autocommit=True) as connection:
        ids = connection.execute("SELECT id, status, error, parameters FROM runs ORDER BY parameters").fetchall()
        if len(ids) != drivers + 1:
            problems.append(f"there are {len(ids)} runs of {drivers + 1} drivers")
        reference = next(id for id, _, _, parameters in ids if '"who0"' in parameters)
        wanted = _rows(connection, reference)
        for id, status, error, parameters in ids:
            if status != "succeeded" or error:
                problems.append(f"run {id} ({parameters}) is recorded as {status} {error}")
            rows = _rows(connection, id)
            who = int(json.loads(parameters)["who"].removeprefix("who"))
            # A driver that was killed leaves attempts that were interrupted, and fewer steps that it began at once.
            for table in ("outputs", "cache") if killed.get(who) else _TABLES:
                if rows[table] != wanted[table]:
                    extra = [row for row in rows[table] if row not in wanted[table]]
                    missing = [row for row in wanted[table] if row not in rows[table]]
                    problems.append(f"run {id} ({parameters}): {table} differ: {extra} instead of {missing}"[:2000])
    return problems


def _rows(connection: psycopg.Connection[Any], run: str) -> dict[str, list[tuple[Any, ...]]]:
    return {
        table: connection.execute(f"SELECT {columns} FROM {table} WHERE run_id = %s ORDER BY 1, 2", (run,)).fetchall()
        for table, columns in _TABLES.items()
    }


def main() -> int:
    """Run a storm as the command line asks, and print what it came to."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--drivers", type=int, default=100)
    parser.add_argument("--restarts", type=int, default=10)
    parser.add_argument("--at-once", type=int, default=25)
    parser.add_argument("--seconds", type=float, default=30.0)
    parser.add_argument("--kills", type=int, default=0)
    parser.add_argument("--replaced", choices=sorted(REPLACED), default="", help="the last outage of all")
    options = parser.parse_args()
    programs = postgres.binaries()
    if programs is None:
        print("no PostgreSQL server is installed (Debian: apt-get install postgresql)", file=sys.stderr)
        return 2
    with tempfile.TemporaryDirectory(prefix="storm-") as folder:
        began = time.monotonic()
        result = storm(
            Path(folder),
            programs,
            seed=options.seed,
            drivers=options.drivers,
            outages=[*drawn_outages(options.seed, options.restarts), *filter(None, [options.replaced])],
            kills=options.kills,
            at_once=options.at_once,
            seconds=options.seconds,
        )
    print(f"seed {options.seed}: {result.drivers} drivers, outages: {', '.join(result.outages)}")
    print(f"{result.seen} drivers saw the database away, {result.killed} were killed; {time.monotonic() - began:.0f} s")
    print("\n".join(result.problems) or "no driver was lost, nothing was executed twice, all rows are complete")
    return 1 if result.problems else 0


if __name__ == "__main__":
    sys.exit(main())
