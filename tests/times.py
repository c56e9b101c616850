"""What each test costs and which ones are flaky: `--times FILE`, and what `make test-times` prints.

Where tests spend most of their time waiting, the seconds of a clock say little of what a suite costs: the CPU time of a
test and of all that it has started and waited for says it. A server that outlives its tests is in nobody's figure.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Generator, Sequence
from pathlib import Path
from typing import Any

import pytest
from tests import forks

FAILED = pytest.StashKey[bool]()


def spent() -> float:
    """Seconds of CPU time of this process, of the children that it has waited for, and of what was forked for it."""
    return sum(os.times()[:4]) + forks.cpu()


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """Append a line to the file of `--times` for a test that has ended, in one write: workers share the file."""
    file = item.config.getoption("times")
    if file is None:
        return (yield)
    begun, before = time.monotonic(), spent()
    result = yield
    row = {
        "test": item.nodeid,
        "seconds": round(time.monotonic() - begun, 2),
        "cpu": round(spent() - before, 2),
        "failed": item.stash.get(FAILED, False),
    }
    with open(file, "a", encoding="utf-8") as lines:
        lines.write(json.dumps(row) + "\n")
    return result


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Note that a test has failed, also where it passes when it runs once more."""
    report = yield
    item.stash[FAILED] = item.stash.get(FAILED, False) or report.failed
    return report


def main(argv: Sequence[str]) -> int:
    """Run the tests `--runs` times with the arguments that follow, and print the dearest and the flaky ones."""
    parser = argparse.ArgumentParser(prog="python -m tests.times", description=__doc__.partition("\n")[0])
    parser.add_argument("--runs", type=int, default=1, help="how many times")
    parser.add_argument("--count", type=int, default=30, help="how many of the dearest are shown")
    options, arguments = parser.parse_known_args(argv)
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory(prefix="stoker-times-") as folder:
        for number in range(options.runs):
            file = Path(folder, str(number))
            file.touch()
            subprocess.run([sys.executable, "-m", "pytest", *arguments, "--times", str(file)], check=False)
            rows += map(json.loads, file.read_text(encoding="utf-8").splitlines())
    print("\n".join(summary(rows, options.count)))
    return 0


def summary(rows: Sequence[dict[str, Any]], count: int) -> list[str]:
    """Folders by CPU time, the `count` dearest tests, each by the mean of its runs, and those that failed sometimes."""
    tests: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for row in rows:
        tests[row["test"]].append(row)

    def mean(test: str, figure: str) -> float:
        return sum(row[figure] for row in tests[test]) / len(tests[test])

    folders: dict[str, list[str]] = defaultdict(list)
    for test in tests:
        folders[test.partition("::")[0].rpartition("/")[0]].append(test)
    totals = {
        folder: [sum(mean(test, figure) for test in inside) for figure in ("cpu", "seconds")]
        for folder, inside in folders.items()
    }
    lines = ["", f"{'CPU s':>8} {'clock s':>8}  folder"]
    lines += [
        f"{cpu:8.1f} {seconds:8.1f}  {folder} ({len(folders[folder])} tests)"
        for folder, (cpu, seconds) in sorted(totals.items(), key=lambda one: -one[1][0])
    ]
    lines += ["", f"{'CPU s':>8} {'clock s':>8}  test"]
    dearest = sorted(tests, key=lambda test: -mean(test, "cpu"))[:count]
    lines += [f"{mean(test, 'cpu'):8.1f} {mean(test, 'seconds'):8.1f}  {test}" for test in dearest]
    for test, runs in tests.items():
        failures = sum(row["failed"] for row in runs)
        if 0 < failures < len(runs):
            lines.append(f"flaky: failed in {failures} of {len(runs)} runs: {test}")
    return lines


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
