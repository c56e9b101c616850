"""The same steps on podman, through the socket by which it speaks Docker's language."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.containers.bench import Bench
from tests.containers.test_docker_backend import (  # noqa: F401  # tests to run once more, with this module's engine
    test_a_gang_gets_a_network_of_its_own,
    test_a_running_orphan_is_adopted,
    test_a_step_runs_in_a_container_and_its_output_and_lines_come_out,
    test_an_error_of_the_step_is_told_with_its_place,
    test_an_image_that_is_not_there_is_named,
    test_cancel_asks_first,
    test_memory_is_a_limit_and_its_end_has_a_cause,
    test_the_result_of_an_orphan_that_is_over_is_taken,
    test_what_a_container_gets,
)
from tests.containers.test_docker_devices import REAL, leasing
from tests.servers import baseimage
from tests.servers.containers import BASE_IMAGE, Engine, program

from stoker.backends.base.backend import Services
from stoker.core.settings import ResourceSettings

CONTAINERS_CONF = """
[containers]
log_driver = "k8s-file"
default_ulimits = ["nofile=20000:20000", "nproc=32768:32768"]
[engine]
runtime = "runc"
cgroup_manager = "cgroupfs"
events_logger = "file"
"""
STORAGE_CONF = """
[storage]
driver = "overlay"
graphroot = "{folder}/graph"
runroot = "{folder}/run"
"""


@pytest.fixture(scope="module")
def engine() -> Iterator[Engine]:
    """A podman service of the tests' own, with all of its data below a temporary folder."""
    missing = [name for name in ("podman", "runc", "docker") if not program(name)]
    if os.getuid() != 0 or missing:
        pytest.skip(f"podman is started by root only, and needs: {', '.join(missing) or 'root'}")
    folder = Path(tempfile.mkdtemp(prefix="stoker-podman-"))
    (folder / "containers.conf").write_text(CONTAINERS_CONF)
    (folder / "storage.conf").write_text(STORAGE_CONF.format(folder=folder))
    socket = f"unix://{folder}/podman.sock"
    variables = {
        "CONTAINERS_CONF": str(folder / "containers.conf"),
        "CONTAINERS_STORAGE_CONF": str(folder / "storage.conf"),
    }
    client = Engine(socket=socket, environment={"DOCKER_HOST": socket}, client=program("docker") or "docker")
    with (folder / "log").open("wb") as log:
        service = subprocess.Popen(
            [program("podman") or "podman", "system", "service", "--time=0", socket],
            env={**os.environ, **variables},
            stdout=log,
            stderr=log,
            cwd=folder,
            start_new_session=True,
        )
    try:
        end = time.monotonic() + 60
        while client.run("version", check=False).returncode:
            assert service.poll() is None and time.monotonic() < end, (folder / "log").read_text()
            time.sleep(0.05)
        yield client
    finally:
        remaining = client.run("ps", "--all", "--quiet", check=False).stdout.split()
        if remaining:
            client.run("rm", "--force", *remaining, check=False)
        service.terminate()
        service.wait(30)
        for mount in Path("/proc/self/mountinfo").read_text().splitlines():
            place = mount.split()[4]
            if place.startswith(f"{folder}/"):
                subprocess.run(["umount", "--lazy", place], check=False, capture_output=True)
        with contextlib.suppress(OSError):
            shutil.rmtree(folder)


@pytest.fixture(scope="module")
def base_image(engine: Engine, tmp_path_factory: pytest.TempPathFactory) -> str:
    """The base image, in podman."""
    archive = tmp_path_factory.mktemp("base") / "base.tar"
    baseimage.write(archive)
    changes = [word for change in baseimage.changes() for word in ("--change", change)]
    engine.run("import", *changes, str(archive), BASE_IMAGE)
    return BASE_IMAGE


def test_the_gate_notices_that_podman_ignores_a_request_for_devices(bench: Bench) -> None:
    backend = bench.backend(services=Services(leasing=leasing(bench, REAL)))
    status = bench.over(backend, bench.job("surroundings", resources=ResourceSettings(gpu_count=1)))
    assert status.state == "failed"
    assert status.cause in ("no-driver", "no-gpu"), status


def test_a_child_killed_for_memory_is_told_by_the_program_inside(bench: Bench) -> None:
    """Podman's own OOMKilled stays False."""
    status: Any = bench.over(bench.backend(), bench.job("hungry", resources=ResourceSettings(memory="200MiB")))
    assert status.cause == "host-oom"
    assert "oom_kill" in status.message
