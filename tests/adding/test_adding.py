"""The pages of docs/dev/adding, followed: what each adds is added as it says, and used."""

from __future__ import annotations

from collections.abc import Callable

from tests.engine.conftest import Lab

Follow = Callable[[str], Lab]


def test_a_serializer(follow: Follow) -> None:
    lab = follow("serializer")
    text = lab.run("draw.py")
    assert "shapes-polygon Polygon(corners=((0.0, 0.0), (1.0, 0.0), (0.0, 1.0))) 3" in text


def test_a_rule(follow: Follow) -> None:
    lab = follow("rule")
    text = lab.run("stoker", "run", "forecast.py", "--simulate", "1xL4", code=3)
    assert "WEA101 error" in text
    assert "asks for 1 GPUs and does not say how long it may take" in text
    assert 'fix: add timeout="2h"' in text
    lab.run("stoker", "run", "forecast.py", "--simulate", "1xL4", "--set", "steps.predict.timeout=2h")
    assert "a step with GPUs has no timeout" in lab.run("stoker", "explain", "WEA101")
    assert "WEA101" in lab.run("stoker", "explain")


def test_a_cause(follow: Follow) -> None:
    lab = follow("cause")
    lab.run("simulate.py")
    first, second = lab["forecast"].steps["simulate"].attempts
    assert (first.failure.cause, first.failure.retryable) == ("license-taken", "here")
    assert first.failure.why == "every license of weathersim is taken"
    assert "weathersim licenses" in first.failure.advice
    assert first.failure.evidence == "simulate.LicenseError: no license of weathersim is free"
    assert second.status == "succeeded"
