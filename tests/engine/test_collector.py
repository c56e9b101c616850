"""The garbage collector runs seldom while Stoker makes a plan, and as its user set it where user code runs."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

SCRIPT = """
import gc
import os
from stoker import pipeline, step

DYNAMIC = "DYNAMIC" in os.environ
gc.set_threshold(*map(int, os.environ["THRESHOLDS"].split(",")))

@step(cache=False)
def threshold() -> int:
    return gc.get_threshold()[0] if gc.isenabled() else 0

@pipeline(dynamic=DYNAMIC)
def training():
    print("body", gc.get_threshold()[0])
    threshold()

if __name__ == "__main__":
    run = training()
    print("step", run.steps["threshold"].output.load())
    print("after", *gc.get_threshold())
"""


def lines(folder: Path, **variables: str) -> list[str]:
    script = folder / "train.py"
    script.write_text(SCRIPT, encoding="utf-8")
    environment = {"STOKER_HOME": str(folder / "home"), "PATH": "/usr/bin:/bin", **variables}
    finished = subprocess.run(
        [sys.executable, str(script)], cwd=folder, env=environment, capture_output=True, text=True, check=False
    )
    assert finished.returncode == 0, finished.stderr
    return finished.stdout.splitlines()


def test_the_collector_is_left_as_its_user_set_it(tmp_path: Path) -> None:
    assert lines(tmp_path, THRESHOLDS="600,9,8") == ["body 20000", "step 600", "after 600 9 8"]
    assert lines(tmp_path, THRESHOLDS="500,9,8", DYNAMIC="1") == ["body 500", "step 500", "after 500 9 8"]
    assert lines(tmp_path, THRESHOLDS="0,9,8")[-1] == "after 0 9 8"
