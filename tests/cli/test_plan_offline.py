"""A plan that may ask nobody: registries elsewhere are left alone, and what is not known for it is said."""

from __future__ import annotations

import json
from typing import Any

import pytest

STACK = """
stack = "cluster"
[stacks.cluster]
container_registry = "registry.invalid/team"
orchestrator = {flavor = "docker"}
"""
TRAIN = """
    from stoker import pipeline, step
    from stoker.config import DockerSettings

    @step(settings={"docker": DockerSettings(parent_image="registry.invalid/base:1", target_repository="train")})
    def train() -> int:
        return 1

    @pipeline
    def training():
        train()
"""


def findings(project: Any, **environment: str) -> dict[str, dict[str, Any]]:
    shown = project.stoker("plan", "train.py", "--json", env=environment, code=None)
    return {one["code"]: one for one in json.loads(shown.stdout)["findings"]}


def test_offline_asks_no_registry_elsewhere(project: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DOCKER_HOST", "unix:///nowhere/docker.sock")
    project.write({"stoker.toml": STACK, "train.py": TRAIN})
    asked = findings(project, STOKER_OFFLINE="")
    assert "registry.invalid does not answer" in asked["STK218"]["what"] or "STK220" in asked
    said = findings(project, STOKER_OFFLINE="1")
    assert "registry.invalid is not asked: STOKER_OFFLINE is set" in said["STK218"]["what"]
    assert "not checked: whether registry.invalid/team/train takes the image" in said["STK246"]["what"]
    assert "STK220" not in said and said["STK246"]["level"] == "info"
