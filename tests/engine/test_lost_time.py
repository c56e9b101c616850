"""What failures cost: the work after the last checkpoint, and the time until a step runs again."""

from __future__ import annotations

import pytest
from tests.engine.conftest import Lab

SCRIPT = """
import os, time
from stoker import context, pipeline, step
from stoker.config import ResourceSettings, Retry

def work(saves):
    time.sleep(0.3)
    if saves:
        (context.checkpoint_dir / "epoch").mkdir(exist_ok=True)
        (context.checkpoint_dir / "epoch" / "state").write_text("half")
    time.sleep(0.4)
    if context.attempt == 1:
        os.kill(os.getpid(), 9)

@step(cache=False, retry=Retry(1, delay=0.2), resources=ResourceSettings(gpu_count=1))
def saves() -> None:
    work(True)

@step(cache=False, retry=1)
def saves_nothing() -> None:
    work(False)

@step(cache=False)
def goes_well() -> None:
    time.sleep(0.1)

@pipeline
def costs():
    saves()
    saves_nothing()
    goes_well()

costs()
"""


def test_a_failure_costs_the_work_after_the_last_checkpoint(lab: Lab) -> None:
    lab.write("script.py", SCRIPT)
    lab.run("script.py", "--simulate", "1xH100-80GB")
    steps = lab["costs"].steps
    first, second = steps["saves"].attempts
    assert 0.4 <= first.usage.lost <= first.seconds - 0.3, "what was before the checkpoint is not lost"
    assert second.usage.lost is None
    gap = (second.started - first.ended).total_seconds()
    assert (steps["saves"].lost.work, steps["saves"].lost.restarting) == (first.usage.lost, pytest.approx(gap))
    assert gap >= 0.2 and str(steps["saves"].lost) in lab.run("stoker", "show", "latest")
    assert first.receipt.lost_seconds == first.usage.lost and second.receipt.lost_seconds is None
    assert "of work after the last checkpoint" in lab.run("stoker", "gpu", "latest", "saves", "--attempt", "1")
    whole = steps["saves_nothing"].attempts[0]
    assert whole.usage.lost == pytest.approx(whole.seconds, abs=0.01)
    assert (steps["goes_well"].lost.work, str(steps["goes_well"].lost)) == (None, "")
