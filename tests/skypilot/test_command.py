"""SkyPilot's command: who is asked, and what its failures mean."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from tests.servers import skydouble
from tests.skypilot.answers import ANSWERS, unlike
from tests.skypilot.conftest import Double

from stoker.backends.base.platforms import Away
from stoker.backends.skypilot import command
from stoker.backends.skypilot.command import ENDPOINT, SkyCommand, error_of, plain_text
from stoker.backends.skypilot.settings import SkypilotSettings
from stoker.core.errors import BackendError
from stoker.core.status import NODE_LOST, PREEMPTED, QUOTA, REFUSED, SETUP_FAILED


def test_which_server_is_asked(tmp_path: Path) -> None:
    command = tmp_path / "sky"
    command.write_text(f'#!/bin/sh\necho "a line before"; echo "[{{\\"name\\": \\"${ENDPOINT}\\"}}]"\n')
    command.chmod(0o755)
    sky = SkyCommand(SkypilotSettings(sky=str(command), api_server="https://sky.example.org"), os.environ)
    assert sky.clusters() == [{"name": "https://sky.example.org"}]


def test_no_server_is_connected(tmp_path: Path) -> None:
    """What SkyPilot 0.14.1 prints of `sky api info -o json` before it has started a server."""
    command = tmp_path / "sky"
    command.write_text('#!/bin/sh\necho "No SkyPilot API server is connected"; echo "└── sky api login"\n')
    command.chmod(0o755)
    with pytest.raises(BackendError, match="no JSON: No SkyPilot API server") as caught:
        SkyCommand(SkypilotSettings(sky=str(command)), os.environ).json("api", "info")
    assert "`sky api start`" in caught.value.fix


def test_a_command_that_is_not_here() -> None:
    with pytest.raises(BackendError, match="is not here") as caught:
        SkyCommand(SkypilotSettings(sky="no-such-sky"), os.environ).clusters()
    assert "pip install" in caught.value.fix
    with pytest.raises(BackendError, match=f"'sky/bin/sky' is not here, below {os.getcwd()}"):
        SkyCommand(SkypilotSettings(sky="sky/bin/sky"), os.environ).clusters()


def test_a_server_that_does_not_answer(double: Double) -> None:
    (double.state / "away").touch()
    sky = SkyCommand(SkypilotSettings(sky=str(double.command)), os.environ)
    with pytest.raises(Away, match="Could not connect"):
        sky.clusters()
    assert sky.answers.silence(0.0) is None  # one question is no silence yet
    (double.state / "away").unlink()
    assert sky.clusters() == [] and sky.managed_jobs() == []
    sky.down(["none-of-this-name"])
    sky.cancel_jobs("none-of-this-name")


@pytest.mark.parametrize(
    ("text", "cause"),
    [
        ("ResourcesUnavailableError: Failed to provision all possible launchable resources.", QUOTA),
        ("botocore: VcpuLimitExceeded: You have requested more vCPU capacity", QUOTA),
        ("sky.exceptions.NoCloudAccessError: Cloud access is not set up. Run: sky check", REFUSED),
        ("Catalog does not contain any instances satisfying the request: 8x(H100:9)", REFUSED),
        ("Job setup failed with code 3", SETUP_FAILED),
        ("Failed to setup with return code list: [1]", SETUP_FAILED),
    ],
)
def test_causes_of_failed_launches(text: str, cause: str) -> None:
    assert command.cause_of_launch(text)[0] == cause


def test_what_to_do_without_a_cloud() -> None:
    """As SkyPilot 0.14.1 printed it."""
    assert "sky check" in command.cause_of_launch("sky.exceptions.NoCloudAccessError: Cloud access is not set up.")[1]


@pytest.mark.parametrize(
    ("record", "state", "cause"),
    [
        (None, command.GONE, NODE_LOST),
        ({"status": "UP"}, command.UP, ""),
        ({"status": "INIT", "init_kind": "launching"}, command.WAITING, ""),
        (
            {"status": "INIT", "init_kind": "unhealthy", "init_status_reason": "node terminated"},
            command.GONE,
            NODE_LOST,
        ),
        ({"status": "STOPPED", "resources_str": "1x(gpus=V100:1)[Spot]"}, command.GONE, PREEMPTED),
    ],
)
def test_states_of_clusters(record: Any, state: str, cause: str) -> None:
    assert command.state_of_cluster(record)[:2] == (state, cause)


def test_states_of_managed_jobs() -> None:
    assert command.state_of_managed({"status": "RECOVERING"})[0] == command.WAITING
    assert command.state_of_managed({"status": "RUNNING"}) == (command.UP, "", "")
    state, cause, words = command.state_of_managed({"status": "FAILED_NO_RESOURCE", "failure_reason": "no V100"})
    assert (state, cause, words) == (command.GONE, QUOTA, "its managed job is FAILED_NO_RESOURCE: no V100")
    assert command.state_of_managed(None)[:2] == (command.GONE, NODE_LOST)


def test_colours_and_overwritten_lines_are_left_out() -> None:
    assert plain_text(b"\x1b[33mone\x1b[0m\rtwo\nthree\r\n") == "two\nthree\n"
    assert error_of("sky status", 1, "x").message == "sky status failed with 1: x"


def test_the_double_prints_what_skypilots_models_have(double: Double) -> None:
    task = {"resources": {}, "num_nodes": 2}
    states = ANSWERS["states"]["ClusterStatus"]
    for status in states:
        document = {"name": status.lower(), "status": status, "task": task}
        skydouble.write(double.state / "clusters" / f"{status}.json", document)
    skydouble.write(double.state / "jobs" / "1.json", {"job_id": 1, "job_name": "j", "status": "RUNNING", "task": task})
    sky = SkyCommand(SkypilotSettings(sky=str(double.command)), os.environ)
    rows = {"StatusResponse": sky.clusters(), "ManagedJobRecord": sky.managed_jobs()}
    assert [line for kind, records in rows.items() for one in records for line in unlike(one, kind)] == []
    assert [len(records) for records in rows.values()] == [len(states), 1]
    (double.state / "thin").write_text("1")
    assert list(sky.clusters()[0]) != list(rows["StatusResponse"][0])
    assert set(sky.json("api", "info")) == {"client", "server", "user"}
