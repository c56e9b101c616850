"""A plan of a step in a container: what it asks the first time, the second time, offline, and of who never answers."""

from __future__ import annotations

import json
import socket
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.servers.packageindex import PackageIndex, running_index

TRAIN = """
    from stoker import pipeline, step
    from stoker.config import DockerSettings

    docker = DockerSettings(
        parent_image="{image}",
        requirements=["trainer"],
        python_package_installer="{installer}",
        python_package_installer_args={{"index-url": "{index}"}},
    )

    @step
    def train() -> int:
        return 1

    @pipeline(settings={{"docker": docker}})
    def training():
        train()
"""


class Deaf:
    """A server on loopback that accepts connections and never answers; counts them."""

    def __init__(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self.connections: list[socket.socket] = []
        self._thread = threading.Thread(target=self._accept)
        self._thread.start()

    def _accept(self) -> None:
        try:
            while True:
                self.connections.append(self._listener.accept()[0])
        except OSError:
            return

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)  # which ends `accept`
        self._thread.join()
        self._listener.close()
        for connection in self.connections:
            connection.close()


@pytest.fixture
def deaf() -> Iterator[Deaf]:
    deaf = Deaf()
    yield deaf
    deaf.close()


@pytest.fixture
def index(tmp_path: Path) -> Iterator[PackageIndex]:
    with running_index(tmp_path / "index") as index:
        index.put_what_the_worker_needs()
        index.put("trainer", "1.0", requires=["torch==2.4.0"])
        index.put("torch", "2.4.0")
        yield index


@pytest.fixture(autouse=True)
def asks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("STOKER_OFFLINE")
    monkeypatch.setenv("PATH", str(Path(sys.executable).parent))  # no engine, which would be asked each time


def plan(project: Any, *words: str) -> tuple[dict[str, str], list[str]]:
    """(finding's code → what it says, the locked packages) of the plan."""
    shown = project.stoker("plan", "train.py", "--with", "docker", "--json", *words)
    document = json.loads(shown.stdout)
    lines = [line for lock in document["locks"].values() for part in lock["lists"] for line in part["lines"]]
    return {one["code"]: one["what"] for one in document["findings"]}, lines


def test_a_budget_that_is_no_time_is_an_error(project: Any) -> None:
    project.write({"train.py": TRAIN.format(image="python:3.11", index="", installer="pip")})
    for text in ("ten", "0", "-1", "inf"):
        said = project.stoker("plan", "train.py", env={"STOKER_PLAN_SECONDS": text}, code=2)
        assert "STOKER_PLAN_SECONDS" in said.stderr and "write a duration" in said.stderr, said.stderr


@pytest.mark.parametrize("installer", ["uv", "pip"])
def test_the_second_plan_asks_nobody_and_offline_knows_what_was_known(
    project: Any, index: PackageIndex, deaf: Deaf, installer: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STOKER_PLAN_SECONDS", "8")
    image = f"{deaf.address}/team/python:3.11-slim"
    project.write({"train.py": TRAIN.format(image=image, installer=installer, index=index.url)})
    nobody = plan(project, "--offline")
    assert deaf.connections == [] and index.asked == []
    assert f"{deaf.address} is not asked: --offline" in nobody[0]["STK218"]
    project.write({"train.py": TRAIN.format(image="python:3.11-slim", installer=installer, index=index.url)})
    assert "the package index is not asked: --offline" in plan(project, "--offline")[0]["STK233"]
    assert index.asked == []
    findings, packages = plan(project)
    assert any(line.startswith("torch==2.4.0") for line in packages) and "STK233" not in findings
    asked = len(index.asked)
    assert plan(project)[1] == plan(project, "--offline")[1] == packages
    assert len(index.asked) == asked


def test_who_never_answers_is_said_and_asked_once(project: Any, deaf: Deaf, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STOKER_PLAN_SECONDS", "1.5")
    deaf_index = f"http://{deaf.address}/simple"
    project.write({"train.py": TRAIN.format(image="python:3.11-slim", installer="uv", index=deaf_index)})
    findings, packages = plan(project)
    assert "the package index had no answer after 1.5 s" in findings["STK233"] and packages == []
    asked = len(deaf.connections)
    assert asked and plan(project)[0]["STK233"] == findings["STK233"] and len(deaf.connections) == asked
    image = f"{deaf.address}/team/image:1"
    project.write({"train.py": TRAIN.format(image=image, installer="uv", index=deaf_index)})
    assert f"{deaf.address} had no answer after 1.5 s" in plan(project)[0]["STK218"]
    asked = len(deaf.connections)
    assert f"{deaf.address} had no answer after 1.5 s" in plan(project)[0]["STK218"]
    assert len(deaf.connections) == asked
