"""The pages of docs/dev/adding, followed: what each adds is added as it says, and used."""

from __future__ import annotations

import json
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


def test_a_component(follow: Follow) -> None:
    lab = follow("component")
    text = lab.run("stoker", "plan", "forecast.py", "--simulate", "1xL4;driver=550.54.15", "--explain")
    assert "weather: weather 1.0 has code for sm_89 (L4)   (https://weather.example.com/releases)" in text
    text = lab.run("stoker", "plan", "forecast.py", "--simulate", "1xT4;driver=550.54.15")
    assert "weather 1.0 has no kernels for T4 (sm_75): it needs sm_80 or later" in text


def test_a_cause(follow: Follow) -> None:
    lab = follow("cause")
    lab.run("simulate.py")
    first, second = lab["forecast"].steps["simulate"].attempts
    assert (first.failure.cause, first.failure.retryable) == ("license-taken", "here")
    assert first.failure.why == "every license of weathersim is taken"
    assert "weathersim licenses" in first.failure.advice
    assert first.failure.evidence == "simulate.LicenseError: no license of weathersim is free"
    assert second.status == "succeeded"


def test_a_kind_of_container_registry(follow: Follow) -> None:
    lab = follow("registry")
    stack = '[stacks.team]\ncontainer_registry = {flavor = "harbour", uri = "%s"}\n'
    lab.write("stoker.toml", stack % "harbour.example.com/vision")
    (team,) = [one for one in json.loads(lab.run("stoker", "stacks", "--json")) if one["name"] == "team"]
    assert team["container_registry"] == "harbour.example.com/vision"
    lab.write("stoker.toml", stack % "ghcr.io/vision")
    assert "ghcr.io is not the team's harbour" in lab.run("stoker", "stacks", code=2)


def test_an_image_builder(follow: Follow) -> None:
    lab = follow("builder")
    stack = '[stacks.team]\nimage_builder = {flavor = "foundry", %s = "gpu"}\n'
    lab.write("stoker.toml", stack % "queue")
    (team,) = [one for one in json.loads(lab.run("stoker", "stacks", "--json")) if one["name"] == "team"]
    assert team["image_builder"] == "foundry"
    lab.write("stoker.toml", stack % "queu")
    assert "the team's foundry has no 'queu', did you mean 'queue'" in lab.run("stoker", "stacks", code=2)
