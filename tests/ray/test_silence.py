"""A Ray cluster that does not answer: it is said, and the driver can be stopped all the same."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

from tests.ray.test_runs import programs  # noqa: F401  # a fixture
from tests.servers.drivers import LEAVES, Driver
from tests.servers.raycluster import RayCluster


def test_a_silent_cluster_is_said_and_left(programs: Any, ray_cluster: RayCluster, tmp_path: Path) -> None:  # noqa: F811
    driver = Driver(programs, "train.py", str(tmp_path / "never"))
    driver.says("waiting")
    run = json.loads(programs.stoker("runs", "--json").stdout)[0]["id"]
    with ray_cluster.silent_dashboard():
        assert "GET /api/jobs/" in driver.says(f"the Ray cluster at {ray_cluster.dashboard} has not answered since")
        driver.interrupt()
        driver.says("asked to end as soon as it answers", "again")
        began = time.monotonic()
        driver.interrupt()
        code = driver.end()
        assert time.monotonic() - began < LEAVES, driver.text
        assert code == 130, driver.text
        assert "step 0 of the Ray job" in driver.says("without waiting for the Ray cluster", "(wait) may still run")
        assert f"stoker cancel {run}" in driver.text
        ending = Driver(programs, "-m", "stoker", "cancel", run)
        ending.says("has not answered since", "asked again")
    assert ending.end() == 0, ending.text
    # The note that asks the step to end lies in the shared folder: its program may have read it meanwhile.
    assert "ended the Ray job" in ending.text or "nothing of it runs any more" in ending.text
