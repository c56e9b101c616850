"""The same steps on podman, through the socket by which it speaks Docker's language."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import pytest
from tests.containers.bench import Bench
from tests.containers.test_docker_backend import (  # noqa: F401  # tests to run once more, with this module's engine
    test_a_gang_gets_a_network_of_its_own,
    test_a_step_runs_in_a_container_and_its_output_and_lines_come_out,
    test_cancel_asks_first,
    test_the_result_of_an_orphan_that_is_over_is_taken,
    test_what_a_container_gets,
)
from tests.containers.test_docker_devices import REAL, leasing
from tests.servers.containers import Engine, engine_folder, import_base, program, running_podman

from stoker.backends.base.backend import Services
from stoker.core.settings import ResourceSettings

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
    with running_podman(engine_folder("podman"), STORAGE_CONF) as client:
        yield client


@pytest.fixture(scope="module")
def base_image(engine: Engine) -> str:
    """The base image, in podman."""
    return import_base(engine)


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
