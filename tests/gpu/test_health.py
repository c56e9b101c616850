"""The health check on a real GPU: it passes, once for a run, and what it does there is not the step's work."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from tests.gpu.conftest import Machine, Note

pytestmark = pytest.mark.gpu

CHECKED = """
    import time

    from stoker import pipeline, step
    from stoker.config import ResourceSettings


    @step(resources=ResourceSettings(gpu_count=1), health_check="quick", on_idle_gpu="ignore", cache=False)
    def rest(after: int) -> int:
        time.sleep(5)
        return after


    @pipeline
    def training():
        rest(rest(1))


    if __name__ == "__main__":
        training()
"""


def test_a_healthy_gpu(whole: Machine, done: Callable[..., Any], note: Note) -> None:
    """Memory and products are exercised by torch; the receipt of a step that rests says that it was idle."""
    before = whole.used()
    first, second = done(CHECKED).steps.values()
    fact = first.receipt.proved["health"]
    assert "memory, matrices of 1; checked in " in fact, fact
    assert second.receipt.proved["health"] == "checked earlier in this run"
    assert first.receipt.verdict == second.receipt.verdict == "idle", first.receipt.evidence
    assert whole.used() < before + 2**28, "the check's process has given its memory back"
    note("health", first_seconds=first.seconds, second_seconds=second.seconds, fact=fact)
