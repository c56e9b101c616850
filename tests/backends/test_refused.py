"""Platforms without a backend are refused in one sentence wherever a person may name them, with the way that works."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from stoker.backends.registry import BACKENDS, PAGE, refusal
from stoker.core.errors import SettingsError, UsageError
from stoker.core.request import RunRequest
from stoker.flows.settings import parse_note
from stoker.migrate.zenml import advice
from stoker.run.attached import attached_settings
from stoker.settings.options import checked_flavor, layer_from

NAMES = {
    "vertex": ("Vertex AI", "GKE"),
    "vertex_ai": ("Vertex AI", "GKE"),
    "azureml": ("Azure ML", "AKS"),
    "azure-ml": ("Azure ML", "AKS"),
    "modal": ("Modal", "SkyPilot"),
    "Modal": ("Modal", "SkyPilot"),
}


@pytest.mark.parametrize("name", NAMES)
def test_everywhere(name: str) -> None:
    said = refusal(name)
    for words in (*NAMES[name], "kubernetes", "skypilot", PAGE):
        assert words in said
    for refused in (
        lambda: checked_flavor(name),  # a stack's file, and settings by their full names
        lambda: layer_from("run.yaml", [{f"orchestrator.{name}": {"region": "x"}}]),
        lambda: layer_from("--set", [{"orchestrator": {"local": {"cpus": 2}, name: {"region": "x"}}}]),
        lambda: attached_settings(RunRequest(attached=(f"{name}:gpu=1",))),
        lambda: parse_note(f"{name}:gpu=1"),
    ):
        with pytest.raises((SettingsError, UsageError)) as caught:
            refused()
        assert said in caught.value.message


def test_the_way_that_works_is_there(repository: Path) -> None:
    for flavor in re.findall(r"flavor '(\w+)'", " ".join(map(refusal, NAMES))):
        assert flavor in BACKENDS
    assert (repository / PAGE).exists()
    assert not any(map(refusal, BACKENDS.names())), "what there is is not refused"
    assert refusal("vertexx") == ""


def test_what_zenml_has() -> None:
    for name in ("VertexStepOperatorSettings", "AzureMLOrchestratorSettings", "ModalStepOperatorSettings"):
        assert "there is no backend for" in advice(name, "zenml.integrations.x")
    assert "ResourceSettings" in advice("TektonOrchestratorSettings", "zenml.integrations.tekton")
    assert "SagemakerSettings" in advice("SagemakerStepOperatorSettings", "zenml.integrations.aws.flavors")


def test_from_the_command_line(project: Any) -> None:
    flow = "from stoker.flow import FlowSpec, step, modal\n"
    stack = 'stack = "g"\n[stacks.g]\norchestrator = { flavor = "vertex", region = "europe-west4" }\n'
    project.write({"flow.py": flow, "stoker.toml": stack})
    done = project.run("flow.py", "run", code=2)
    assert done.stderr == f"error: {refusal('modal')}\n"
    done = project.stoker("stacks", "setup", "azureml", code=None)
    assert done.returncode == 2 and refusal("azureml") in done.stderr
    done = project.stoker("stacks", code=None)
    assert refusal("vertex") in done.stdout + done.stderr
