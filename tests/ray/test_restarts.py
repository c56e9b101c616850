"""A head that was restarted: the end of the run's program is noticed in seconds, whatever Ray says of its job."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import attrs
import pytest
from tests.ray.test_requests import SITE, job, other  # noqa: F401  # a fixture

from stoker.backends.ray import platform as rayplatform
from stoker.backends.ray.jobs import Jobs
from stoker.backends.ray.platform import RayPlatform
from stoker.backends.ray.settings import RaySettings
from stoker.core.status import WORKER_LOST


class Dashboard(Jobs):
    """A client whose dashboard starts whatever it is sent."""

    def job(self, id: str) -> None:
        """None is known before."""

    def submit(self, body: Any) -> None:
        """Nothing: what runs is what the test answers."""


@pytest.fixture
def started(other: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:  # noqa: F811
    """A platform with a program that has taken a step, the step's handle, and the dashboard's answers."""
    address, answers = other
    monkeypatch.setattr(rayplatform, "NODE", 0.2)
    monkeypatch.setattr(rayplatform, "ASK", (0.05, 0.1, 0.1))
    site = attrs.evolve(SITE, scratch=str(tmp_path), artifacts=str(tmp_path))
    settings = {"address": address}
    platform = RayPlatform(site, settings, Dashboard(RaySettings(address=address), {}), shares=True)
    answers["/api/jobs/"] = []
    wanted = job()
    handle = platform.send([wanted])[wanted.name]
    row = {"submission_id": handle.program.id, "type": "SUBMISSION", "status": "RUNNING", "driver_node_id": "n0"}
    answers["/api/jobs/"] = [row]
    answers["/api/v0/nodes"] = {"data": {"result": {"result": [{"node_id": "n0", "state": "ALIVE"}]}}}
    records = [{"up": {}}, {"taken": 0, "token": "", "first": 0, "steps": [{}]}, {"step": 0, "node": 0, "on": "host"}]
    Path(handle.program.folder, "journal").write_text("".join(json.dumps(one) + "\n" for one in records))
    yield platform, handle, answers
    platform.close()


def status_of(platform: RayPlatform, handle: Any, *, seconds: float = 30.0) -> Any:
    """How the step ended; None where it has not."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        report = platform.look({"a": handle}).get("a")
        if report is not None and report.status is not None:
            return report.status
        time.sleep(0.02)
    return None


def test_a_head_that_forgot_the_job(started: Any) -> None:
    platform, handle, answers = started
    assert status_of(platform, handle, seconds=1.0) is None, "its node is alive, and its job is listed"
    answers["/api/jobs/"] = []
    status = status_of(platform, handle)
    assert status.cause == WORKER_LOST and "remembers no job without fault tolerance" in status.message


def test_a_head_that_remembers_the_job_and_lost_its_node(started: Any) -> None:
    platform, handle, answers = started
    answers["/api/v0/nodes"] = {"data": {"result": {"result": [{"node_id": "n0", "state": "DEAD"}]}}}
    status = status_of(platform, handle)
    assert status.cause == WORKER_LOST and "node n0 is gone: was the head restarted?" in status.message
