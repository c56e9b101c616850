"""What a test costs is told per folder and test, and a test that fails sometimes is called flaky."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from tests.times import summary

TESTS = """
import os
import subprocess
import sys

def test_good():
    subprocess.run([sys.executable, "-c", "sum(range(30_000_000))"], check=True)

def test_bad():
    assert os.path.exists(os.environ["THERE"])
"""


def test_what_is_dear_and_what_is_flaky(tmp_path: Path) -> None:
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    (tmp_path / "conftest.py").write_text(
        "from tests.times import *\n\ndef pytest_addoption(parser):\n    parser.addoption('--times')\n"
    )
    (tmp_path / "test_some.py").write_text(TESTS)
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    environment = {**kept, "PYTHONPATH": str(Path(__file__).parents[2]), "THERE": str(tmp_path / "there")}
    for code in (1, 0):
        argv = [sys.executable, "-m", "pytest", "--times", "rows"]
        done = subprocess.run(argv, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == code, done.stdout + done.stderr
        (tmp_path / "there").touch()
    rows = [json.loads(line) for line in (tmp_path / "rows").read_text().splitlines()]
    good = [row["cpu"] for row in rows if row["test"] == "test_some.py::test_good"]
    assert len(rows) == 4 and min(good) > 0, "a child's time counts"
    told = summary(rows, 1)
    assert "flaky: failed in 1 of 2 runs: test_some.py::test_bad" in told
    (first,) = [line for line in told if line.endswith("::test_good")]
    assert float(first.split()[0]) > 0 and not [line for line in told if line.endswith("s  test_some.py::test_bad")]
