"""How often the cluster's controller is asked. An hour of a cluster cannot be waited for: the clock is the test's."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import attrs
import pytest
from tests.slurm.test_script import SITE

from stoker.backends.slurm import backend as slurm
from stoker.backends.slurm.queue import Controller
from stoker.backends.slurm.task import SlurmJob


@pytest.mark.parametrize("poll", [2, 25])
def test_the_controller_is_asked_as_often_as_poll_says(
    poll: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 0.0
    asked: list[float] = []

    def rows(self: Controller, ids: Any) -> dict[str, Any]:
        asked.append(now)
        return {}

    monkeypatch.setattr(slurm, "time", SimpleNamespace(monotonic=lambda: now))
    monkeypatch.setattr(Controller, "rows", rows)
    monkeypatch.setattr(Controller, "details", lambda self, ids: {})
    platform = slurm.SlurmPlatform(attrs.evolve(SITE, scratch=str(tmp_path)), {"poll": poll})
    task = SlurmJob(id="1", folder=str(tmp_path), job_folder=str(tmp_path), nodes=1, memory=0, batch=True)
    for second in range(50):
        now = float(second)
        platform.look({"run1/train/1": task})
    platform.close()
    assert asked == [float(second) for second in range(0, 50, poll)]
