"""How cost grows: with steps, with drivers at once, and with runs in a store. `python -m benchmarks.growth [--write]`.

Counted where that is possible, since other work on the machine changes no count: calls of functions and SQL statements
of the driver; for a store, also instructions of SQLite's virtual machine, and for drivers on one PostgreSQL the seconds
of CPU of all of them and of the server. The exponent is the slope of cost over size in logarithms, fitted to all sizes
but the smallest, whose cost is taken off first: it is that of the start. `--write` writes `growth.json` and the plot in
`docs/guide/pictures/growth.svg`.
"""

from __future__ import annotations

import argparse
import json
import math
import multiprocessing
import resource
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import psutil

from benchmarks import counted
from benchmarks.ledger import measure
from stoker.cli.store import all_runs, old_runs
from stoker.client import Client
from stoker.stacks import Retention
from stoker.store import check
from stoker.store.batch import RowBatch
from stoker.store.rows import RunRow, StepRow
from stoker.store.store import Store, open_store
from stoker.store.writer import RunWriter

HERE: Final = Path(__file__).parent
PLOT: Final = HERE.parent / "docs" / "guide" / "pictures" / "growth.svg"
STEPS: Final = (10, 100, 1_000, 10_000, 100_000)
DRIVERS: Final = (1, 2, 4, 8, 16, 32, 64)
RUNS: Final = (100, 1_000, 10_000, 100_000)
COMMITS: Final = 50
"""Steps that each driver writes, each a transaction of its own, as in a chain."""
ALLOWED: Final = 1.05
_INSTRUCTIONS: Final = 100
"""SQLite tells of its instructions in hundreds."""

Curve = dict[int, float]
"""size → cost"""


def exponent(curve: Mapping[int, float]) -> float:
    """The slope in logarithms, without the cost of the smallest size; 0 for a cost that does not grow."""
    smallest = min(curve)
    points = [
        (math.log(size - smallest), math.log(cost - curve[smallest]))
        for size, cost in curve.items()
        if size > smallest and cost > curve[smallest]
    ]
    if len(points) < 2:
        return 0.0
    middle = [sum(point[axis] for point in points) / len(points) for axis in (0, 1)]
    above = sum((x - middle[0]) * (y - middle[1]) for x, y in points)
    return above / sum((x - middle[0]) ** 2 for x, _ in points)


def of_steps(sizes: Sequence[int]) -> Iterator[tuple[str, Curve]]:
    """What the driver of one run does, by its number of steps."""
    for shape, name in (("chain", "steps of a chain"), ("fan_out", "elements of a fan-out")):
        found = {}
        for size in sizes:
            found[size] = measure(shape, size)
            print(shape, size, found[size], file=sys.stderr, flush=True)
        yield (
            f"{name}: calls",
            {size: row["driver python calls"] + row["driver C calls"] for size, row in found.items()},
        )
        if shape == "chain":
            yield f"{name}: SQL statements", {size: row["driver SQL statements"] for size, row in found.items()}


def fill(store: Store, first: int, last: int) -> None:
    """Add runs of ten pipelines and users, each with three steps of which one has an output."""
    database, now = store.records.database, time.time() - 1e6
    with database.transaction() as cursor:
        for number in range(first, last):
            run = RunRow(
                id=f"run{number:08d}",
                pipeline=f"pipeline{number % 10}",
                status="succeeded",
                created=now + number,
                started=now + number,
                ended=now + number + 1,
                author=f"user{number % 10}@host",
            )
            cursor.execute(store.records._sql["runs"], _columns(run))
            for place in range(3):
                step = StepRow(
                    run_id=run.id, key=f"step{place}", name=f"step{place}", position=place, status="succeeded"
                )
                cursor.execute(store.records._sql["steps"], _columns(step))
    database.rows("ANALYZE")


def _columns(row: Any) -> tuple[Any, ...]:
    from stoker.store import rows

    return (rows.RUNS if isinstance(row, RunRow) else rows.STEPS).tuple_of(row)


def of_runs(sizes: Sequence[int]) -> Iterator[tuple[str, Curve]]:
    """What questions cost, by the number of runs in a store on SQLite."""
    questions: Mapping[str, Callable[[Store], object]] = {
        "list of runs": lambda store: Client(store=store).runs(limit=20),
        "list of a user's runs": lambda store: Client(store=store).runs(author="user3", limit=20),
        "a run shown": lambda store: [step.as_dict() for step in Client(store=store).run("run00000050").steps.values()],
        "why a step ran": lambda store: store.records.earlier_steps("pipeline3", "step1", before=time.time()),
        "what gc deletes": lambda store: old_runs(
            all_runs(store), Retention(keep=10), now=time.time(), status=lambda run: run.status
        ),
        "what nothing needs": check.unreferenced,
    }
    found: dict[str, Curve] = {name: {} for name in questions}
    with tempfile.TemporaryDirectory() as home:
        store, there = open_store(home=home), 0
        store.blobs.put(b"x" * 100_000)
        for size in sizes:
            fill(store, there, size)
            there = size
            for name, question in questions.items():
                found[name][size] = _cost(store, lambda question=question: question(store))  # type: ignore[misc]
                print(name, size, found[name][size], file=sys.stderr, flush=True)
        store.close()
    for name, curve in found.items():
        yield f"runs in a store: {name}", curve


def _cost(store: Store, question: Callable[[], object]) -> float:
    """Calls of functions, and SQLite's instructions."""
    question()  # whatever is imported for it, is now
    instructions = 0

    def more() -> int:
        nonlocal instructions
        instructions += _INSTRUCTIONS
        return 0

    connection = store.records.database.cursor().connection
    connection.set_progress_handler(more, _INSTRUCTIONS)
    counted.begin()
    question()
    calls = counted.end()
    connection.set_progress_handler(None, 0)
    return calls["python calls"] + calls["C calls"] + instructions


def of_drivers(sizes: Sequence[int]) -> Iterator[tuple[str, Curve]]:
    """What drivers at once cost on one PostgreSQL."""
    from tests.servers import postgres

    programs = postgres.binaries()
    if programs is None:
        print("no PostgreSQL server is installed: drivers are left out", file=sys.stderr)
        return
    seconds: Curve = {}
    for size in sizes:
        server = postgres.Server(programs, connections=2 * max(sizes))
        server.start()
        try:
            open_store(server.uri, home=tempfile.mkdtemp()).close()
            seconds[size] = _together(server, size)
        finally:
            server.kill()
    yield "drivers on one PostgreSQL: seconds of CPU", seconds


def _together(server: Any, size: int) -> float:
    context = multiprocessing.get_context("spawn")
    ready, go, over = context.Barrier(size + 1), context.Event(), context.Barrier(size + 1)
    queue: multiprocessing.Queue[Any] = context.Queue()
    drivers = [
        context.Process(target=_driver, args=(server.uri, number, ready, go, over, queue)) for number in range(size)
    ]
    for driver in drivers:
        driver.start()
    ready.wait(600)
    with_server = server.processes()
    before, began = _cpu(with_server), time.perf_counter()
    go.set()
    told = [queue.get(timeout=600) for _ in drivers]
    took = time.perf_counter() - began
    used = _cpu(with_server) - before + sum(cpu for _, cpu in told)
    over.wait()
    for driver in drivers:
        driver.join()
    every = sorted(one for latencies, _ in told for one in latencies)
    figures = {"drivers": size, "commits a second": round(len(every) / took)}
    figures |= {f"p{part} ms": round(1000 * every[int(len(every) * part / 100)], 1) for part in (50, 95, 99)}
    print(json.dumps(figures), flush=True)
    return used


def _driver(uri: str, number: int, ready: Any, go: Any, over: Any, queue: Any) -> None:
    store = open_store(uri, home=tempfile.mkdtemp())
    run = f"run{number}"
    store.records.create_run(RunRow(id=run, pipeline="growth", token="token"))
    writer = RunWriter(store, run=run, token="token")
    ready.wait()
    go.wait()
    latencies, before = [], resource.getrusage(resource.RUSAGE_SELF)
    for place in range(COMMITS):
        batch = RowBatch()
        batch.step(StepRow(run_id=run, key=f"step{place}", name="step", position=place, status="succeeded"))
        began = time.perf_counter()
        writer.write(batch)
        latencies.append(time.perf_counter() - began)
    after = resource.getrusage(resource.RUSAGE_SELF)
    queue.put((latencies, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime))
    over.wait()
    store.close()


def _cpu(processes: Iterable[psutil.Process]) -> float:
    return sum(sum(process.cpu_times()[:2]) for process in processes)


_COLOURS: Final = ("#4269d0", "#d97706", "#dc2626", "#0f766e", "#16a34a", "#9333ea", "#9a6324", "#475569", "#db2777")


def plot(curves: Mapping[str, Mapping[int, float]]) -> str:
    """The curves as an SVG, both axes in logarithms, cost as a multiple of that of the smallest size."""
    left, top, width, height = 40, 16, 420, 260
    relative = {
        name: {size: cost / curve[min(curve)] for size, cost in curve.items()} for name, curve in curves.items()
    }
    decades = [
        math.ceil(math.log10(max(max(each(curve)) for curve in relative.values()))) for each in (dict.keys, dict.values)
    ]

    def x(size: float) -> float:
        return round(left + width * math.log10(size) / decades[0], 1)

    def y(cost: float) -> float:
        return round(top + height * (1 - math.log10(cost) / decades[1]), 1)

    full = top + height + 24 + 16 * len(curves)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {left + width + 20} {full}" font-family="sans-serif"',
        'font-size="11">',
        f'<rect width="{left + width + 20}" height="{full}" fill="#fff"/>',
    ]
    for decade in range(decades[0] + 1):
        parts.append(f'<path d="M{x(10**decade)} {top}V{top + height}" stroke="#ddd"/>')
        parts.append(f'<text x="{x(10**decade)}" y="{top + height + 14}" text-anchor="middle">{10**decade:,}</text>')
    for decade in range(decades[1] + 1):
        parts.append(f'<path d="M{left} {y(10**decade)}H{left + width}" stroke="#ddd"/>')
        parts.append(f'<text x="{left - 4}" y="{y(10**decade) + 4}" text-anchor="end">10{"⁰¹²³⁴⁵⁶"[decade]}</text>')
    for number, (name, curve) in enumerate(relative.items()):
        colour, line = _COLOURS[number % len(_COLOURS)], top + height + 34 + 16 * number
        points = " ".join(f"{x(size)},{y(max(cost, 1))}" for size, cost in curve.items())
        parts.append(f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="1.5"/>')
        parts.append(f'<path d="M{left} {line - 4}h18" stroke="{colour}" stroke-width="3"/>')
        parts.append(f'<text x="{left + 24}" y="{line}">{name}: exponent {exponent(curves[name]):.2f}</text>')
    return "\n".join([*parts, "</svg>"]) + "\n"


def main() -> None:
    """Measure what is asked for, print exponents, and end with 1 where one is above what is allowed."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.growth", description=__doc__)
    parser.add_argument("--write", action="store_true", help="write growth.json and the plot")
    parser.add_argument("--only", choices=["steps", "drivers", "runs"], action="append")
    parser.add_argument("--most", type=int, default=max(STEPS), help="the largest size")
    options = parser.parse_args()
    kinds = {"steps": (of_steps, STEPS), "drivers": (of_drivers, DRIVERS), "runs": (of_runs, RUNS)}
    document = HERE / "growth.json"
    known = json.loads(document.read_text()) if document.exists() else {}
    curves: dict[str, Curve] = {
        name: {int(size): cost for size, cost in curve.items()} for name, curve in known.items()
    }
    found: dict[str, Curve] = {}
    for kind in options.only or kinds:
        measured, sizes = kinds[kind]
        found.update(measured([size for size in sizes if size <= options.most]))
    for name, curve in found.items():
        print(f"{name:<50} exponent {exponent(curve):.2f}   {curve}")
    if options.write:
        curves.update(found)
        document.write_text(json.dumps(curves, indent=1) + "\n")
        PLOT.write_text(plot(curves))
    above = [name for name, curve in found.items() if exponent(curve) > ALLOWED]
    if above:
        raise SystemExit(f"above {ALLOWED}: {', '.join(above)}")


if __name__ == "__main__":
    main()
