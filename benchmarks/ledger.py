"""The ledger: what a step costs in calls, statements, messages and bytes, which no other work on the machine changes.

`python -m benchmarks.ledger` prints it beside what is written in `ledger.json`; `tests/gates/test_ledger.py` refuses a
number that has risen by more than 3 %. `--write` writes smaller ones; one that rises is written with `--why "reason"`.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, Final, Iterable, Mapping

ROOT: Final = Path(__file__).parents[1]
LEDGER: Final = Path(__file__).with_name("ledger.json")
ALLOWED: Final = 1.03
"""By how much a number may exceed the ledger's. Two runs of the same code differ by up to 1 %."""
ROWS: Final[Mapping[str, tuple[str, int, int]]] = {
    "three steps from nothing": ("start", 0, 3),
    "one more step in a chain": ("chain", 50, 250),
    "one more cached step": ("cached", 50, 250),
    "one more element of a fan-out": ("fan_out", 100, 500),
}
"""row → the shape of `benchmarks.counted`, and two sizes, whose difference is what one more costs; 0 is no run"""
UNSTEADY: Final = frozenset(
    {("fan_out", "SQL statements"), ("fan_out", "bytes"), ("start", "C calls"), ("start", "bytes")}
)
"""What follows the moments at which results come, or the length of a folder's name, more than the code: left out."""
PYTHON: Final = (3, 11)
"""The version whose calls the ledger counts: another one's standard library makes others."""

Numbers = dict[str, dict[str, float]]
"""row → `"driver C calls"` and its like → for one more step, or for the whole"""


def measure(shape: str, size: int) -> dict[str, float]:
    """What one run counts, in a home of its own."""
    with tempfile.TemporaryDirectory() as home:
        environment = {**os.environ, "STOKER_HOME": home, "PYTHONHASHSEED": "0", "PYTHONPATH": str(ROOT)}
        command = [sys.executable, "-m", "benchmarks.counted", shape, str(size)]
        done = subprocess.run(command, cwd=home, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)} failed:\n{done.stdout}\n{done.stderr}")
    found: dict[str, dict[str, int]] = json.loads(done.stdout.splitlines()[-1])
    return {
        f"{who} {what}": number
        for who, numbers in found.items()
        for what, number in numbers.items()
        if (shape, what) not in UNSTEADY
    }


def measure_all(rows: Iterable[str] = ROWS) -> Numbers:
    """What is counted for these rows, by one run of each size."""
    found: Numbers = {}
    for row in rows:
        shape, small, large = ROWS[row]
        low, high = measure(shape, small) if small else {}, measure(shape, large)
        more = large - small if small else 1
        found[row] = {what: round((number - low.get(what, 0)) / more, 1) for what, number in sorted(high.items())}
    return found


def measure_again(found: Numbers, lines: Iterable[str]) -> Numbers:
    """The same with the least of what was found before and of another run, for the rows of these lines.

    On a busy machine a process wakes up once more, which is not the code's.
    """
    rows = {line.partition(",")[0] for line in lines}
    again = measure_all(sorted(rows))
    least = {row: {what: min(number, again[row][what]) for what, number in found[row].items()} for row in rows}
    return {**found, **least}


def written() -> dict[str, dict[str, dict[str, Any]]]:
    """The ledger: row → what → `number`, and `why` where it once rose."""
    found: dict[str, dict[str, dict[str, Any]]] = json.loads(LEDGER.read_text(encoding="utf-8"))
    return found


def risen(found: Numbers, ledger: Mapping[str, Mapping[str, Mapping[str, Any]]]) -> list[str]:
    """A line for each number that exceeds the ledger's by more than is allowed."""
    return [
        f"{row}, {what}: {number} where the ledger has {ledger.get(row, {}).get(what, {'number': 0})['number']}"
        for row, numbers in found.items()
        for what, number in numbers.items()
        if number > ledger.get(row, {}).get(what, {"number": 0})["number"] * ALLOWED + 0.05
    ]


def main() -> None:
    """Print the ledger, and write it where that is asked for."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.ledger", description=__doc__)
    parser.add_argument("--write", action="store_true", help="write what was found")
    parser.add_argument("--why", default="", help="why numbers rise")
    options = parser.parse_args()
    found, ledger = measure_all(), written() if LEDGER.exists() else {}
    if ledger:
        found = measure_again(found, risen(found, ledger))
    for row, numbers in found.items():
        print(row)
        for what, number in numbers.items():
            print(f"  {what:<22} {number:>10,.1f}   ledger {ledger.get(row, {}).get(what, {}).get('number', '–')}")
    lines = risen(found, ledger) if ledger else []
    if lines and not (options.write and options.why):
        raise SystemExit("\n".join(["", *lines, "", 'say why: --write --why "…"']))
    if options.write:
        before = {f"{row}, {what}": entry.get("why") for row in ledger for what, entry in ledger[row].items()}
        rising = {line.partition(":")[0] for line in lines}
        document = {
            row: {
                what: {"number": number, **({"why": why} if why else {})}
                for what, number in numbers.items()
                for why in [options.why if f"{row}, {what}" in rising else before.get(f"{row}, {what}")]
            }
            for row, numbers in found.items()
        }
        LEDGER.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
