"""A controller that does not answer: it is said, and the driver can be stopped all the same."""

from __future__ import annotations

import json
import os
import shutil
import time
from pathlib import Path
from typing import Any

import psutil
import pytest
from tests.servers.drivers import LEAVES, Driver
from tests.servers.slurm import Cluster
from tests.slurm.test_slurm_runs import LONG
from tests.waiting import until


def test_a_silent_controller_is_said_and_left(clustered: Any, cluster: Cluster, tmp_path: Path) -> None:
    clustered.write({"long.py": LONG})
    driver = Driver(clustered, "long.py", str(tmp_path / "never"))
    until((tmp_path / "never.starts").exists)
    job = cluster.jobs()[-1]["id"]
    run = json.loads(clustered.stoker("runs", "--json").stdout)[0]["id"]
    with cluster.silent_controller():
        said = driver.says("Slurm's controller has not answered since")
        assert "squeue" in said
        driver.interrupt()
        driver.says("asked to end as soon as it answers", "again")
        began = time.monotonic()
        driver.interrupt()
        code = driver.end()
        assert time.monotonic() - began < LEAVES, driver.text
        assert code == 130, driver.text
        assert f"job {job} (wait) may still run" in driver.says("without waiting for Slurm's controller")
        assert f"stoker cancel {run}" in driver.text
        gc = clustered.stoker("gc", "--dry-run")
        assert f"run {run} may have left job {job}" in gc.stdout + gc.stderr
        ending = Driver(clustered, "-m", "stoker", "cancel", run)
        ending.says("has not answered since", "asked again")
    assert ending.end() == 0, ending.text
    assert f"ended job {job}" in ending.text
    until(lambda: cluster.jobs()[-1]["state"] in ("CANCELLED", "FAILED", "COMPLETED"))
    assert "may have left" not in clustered.stoker("gc", "--dry-run").stderr


HANGING = """#!/bin/sh
case " $* " in *--parsable*) ;; *) exec {sbatch} "$@" ;; esac
echo $$ >"{pids}"
exec sleep 300
"""


def test_an_sbatch_that_hangs_is_left_and_ended(
    clustered: Any, cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shim, pids = tmp_path / "bin" / "sbatch", tmp_path / "pid"
    shim.parent.mkdir()
    shim.write_text(HANGING.format(pids=pids, sbatch=shutil.which("sbatch")))
    shim.chmod(0o755)
    monkeypatch.setenv("PATH", f"{shim.parent}:{os.environ['PATH']}")
    clustered.write({"long.py": LONG})
    driver = Driver(clustered, "long.py", str(tmp_path / "never"))
    driver.says("sbatch waits for its answer")
    driver.interrupt()
    driver.says("asked to end as soon as it answers")
    began = time.monotonic()
    driver.interrupt()
    assert driver.end() == 130, driver.text
    assert time.monotonic() - began < LEAVES, driver.text
    driver.says("a submission with the comment", "may still run")
    until(lambda: not psutil.pid_exists(int(pids.read_text())))
    ended = clustered.stoker("cancel", "last")
    assert "nothing of it runs any more" in ended.stderr, "Slurm never got it"
