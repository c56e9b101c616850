"""A mistake in a decorator ends a script as `stoker run` ends: with a message and exit code 2, without a traceback."""

from __future__ import annotations

from typing import Any

import pytest


@pytest.mark.parametrize(
    ("decorators", "message"),
    [
        ("@step(timeuot='2h')", "did you mean 'timeout'"),
        ("@step(timeout='soon')", "mistake.py:4 @step"),
        ("@step(settings={'resources': {'gpu_cuont': 1}})", "did you mean 'gpu_count'"),
        ("@step\n@step", "remove one @step"),
        ("@pipeline(failure_mod='continue')", "did you mean 'failure_mode'"),
        ("@pipeline\n@step", "remove one of the two decorators"),
    ],
)
def test_a_mistake_in_a_decorator(project: Any, decorators: str, message: str) -> None:
    project.write({"mistake.py": f"from stoker import pipeline, step\n\n\n{decorators}\ndef train() -> None: ...\n"})
    finished = project.run("mistake.py", code=2)
    assert finished.stderr.startswith("error: ")
    assert message in finished.stderr
    assert "Traceback" not in finished.stderr
    shown = project.run("mistake.py", code=2, env={"STOKER_TRACEBACK": "1"})
    assert "Traceback" in shown.stderr
