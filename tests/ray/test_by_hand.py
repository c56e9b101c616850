"""A rendered Ray job, pasted into a shell, runs on the cluster."""

from __future__ import annotations

import json
import re
import urllib.request
from pathlib import Path
from typing import Any

import pytest
from tests.cli.byhand import code, paste, scripts
from tests.servers.raycluster import TOKEN, RayCluster
from tests.waiting import until

from stoker.backends.ray.orders import GONE


def test_a_job_is_submitted_by_hand(project: Any, ray_cluster: RayCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    part = f'{{flavor = "ray", address = "{ray_cluster.dashboard}", token = "env:TOKEN_OF_RAY"}}'
    stack = f'stack = "far"\n[stacks.far]\norchestrator = {part}\n'
    monkeypatch.setenv("TOKEN_OF_RAY", TOKEN)
    # Longer than a program waits for a file of orders that is missing.
    slow = code().replace(
        'print("loading", count)', f'print("loading", count)\n    import time; time.sleep({GONE + 1})'
    )
    project.write({"stoker.toml": stack, "train.py": slow})
    load, total = scripts(project)
    done = paste(load, project.folder)
    submission = re.search(r"its output: (\S+)/logs, its journal: (\S+)", done.stdout)
    assert submission is not None, done.stderr
    status: dict[str, Any] = {}

    def over() -> bool:
        asked = urllib.request.Request(submission[1], headers={"Authorization": f"Bearer {TOKEN}"})
        with urllib.request.urlopen(asked) as answer:
            status.update(json.load(answer))
        return status["status"] in ("SUCCEEDED", "FAILED")

    until(over)
    journal = Path(submission[2]).read_text()
    assert status["status"] == "SUCCEEDED", f"{status['message']}\n{journal}"
    assert "loading 3" in journal
    assert "missing: the inputs numbers of total" in paste(total, project.folder).stderr
    far = scripts(project, "--set", "orchestrator.ray.shares_files=false")[0]
    assert "missing: Stoker's worker in the cluster" in paste(far, project.folder).stderr
