"""Fixtures of the tests with SkyPilot: a double of its command, whose machines are processes."""

from __future__ import annotations

import contextlib
import json
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import attrs
import psutil
import pytest
from tests.servers import skydouble
from tests.servers.s3 import s3_server  # noqa: F401  # a fixture
from tests.wheels import all_in_used_homes  # noqa: F401  # a fixture for every test


@attrs.frozen
class Double:
    """SkyPilot's double: its command, and the folder of its state."""

    command: Path
    state: Path

    def clusters(self) -> dict[str, dict[str, Any]]:
        """The clusters that there are, by name."""
        documents = []
        for path in sorted((self.state / "clusters").glob("*.json")):
            with contextlib.suppress(FileNotFoundError):  # it has just been taken down
                documents.append(json.loads(path.read_text()))
        return {one["name"]: one for one in documents}

    def jobs(self) -> list[dict[str, Any]]:
        """All managed jobs."""
        return [json.loads(path.read_text()) for path in sorted((self.state / "jobs").glob("*.json"))]

    def calls(self, words: str) -> list[str]:
        """The calls that begin with these words."""
        path = self.state / "calls.log"
        lines = path.read_text().splitlines() if path.exists() else []
        return [line for line in lines if line.startswith(words)]

    def reclaim(self, name: str) -> None:
        """Have the cloud take a machine away."""
        (self.state / f"reclaim-{name}").touch()

    def processes(self) -> list[psutil.Process]:
        """What it still runs."""
        found = []
        for one in psutil.process_iter():
            try:
                if "supervise" in one.cmdline() and one.environ().get("SKY_DOUBLE") == str(self.state):
                    found.append(one)
            except psutil.Error:
                continue
        return found

    def is_empty(self) -> bool:
        """Whether nothing billable is left."""
        active = [one for one in self.jobs() if one["status"] in (*skydouble.IN_FLIGHT, "CANCELLING")]
        return not self.clusters() and not active and not self.processes()


@pytest.fixture
def double(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Double]:
    """The double on the PATH as `sky`; what it has started is ended."""
    state, bin = tmp_path / "sky", tmp_path / "bin"
    state.mkdir()
    bin.mkdir()
    command = bin / "sky"
    program = shlex.join([sys.executable, str(Path(skydouble.__file__))])
    command.write_text(f'#!/bin/sh\nexec {program} "$@"\n')
    command.chmod(0o755)
    monkeypatch.setenv("SKY_DOUBLE", str(state))
    monkeypatch.setenv("SKY_RUNTIME_DIR", str(tmp_path))
    running = Double(command=command, state=state)
    yield running
    for path in (state / "clusters").glob("*.json"):
        path.unlink()
    for one in running.processes():
        for process in [*one.children(recursive=True), one]:
            process.kill()


@pytest.fixture
def python() -> str:
    """The machines' Python."""
    return sys.executable
