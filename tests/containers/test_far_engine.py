"""An engine that does not see this machine's folders: everything goes through its API, blobs through a remote store."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import attrs
import pytest
from tests.containers.bench import Bench
from tests.servers.containers import Engine

from stoker.core.settings import ResourceSettings
from stoker.images import context
from stoker.store.blobs import Blobs


@pytest.fixture
def far(bench: Bench, tmp_path: Path, monkeypatch: Any) -> Bench:
    """The bench with an engine that is told to see nothing of this machine."""
    monkeypatch.setenv("STOKER_CACHE", str(tmp_path / "cache"))
    made = bench
    # A store that is remote to Stoker: fsspec's own protocol for folders. Both sides see it under one name.
    store = tmp_path / "store"
    store.mkdir()
    made.blobs = Blobs(f"local://{store}")
    package = context.package(made.code)
    with made.blobs.writer() as writer:
        context.write(package, writer)  # type: ignore[arg-type]  # it has what is written to
    made.site = attrs.evolve(
        made.site, artifacts=made.blobs.uri, package=package.digest, code_root=str(package.root), path=()
    )
    made.options = {"network": "host", "shares_files": False, "mounts": [f"{store}:{store}"]}
    return made


def test_a_step_runs_where_nothing_of_this_machine_is_mounted(far: Bench, engine: Engine) -> None:
    backend = far.backend()
    job = far.job("surroundings")
    request = backend.render(job)["containers"][0]["request"]
    assert [mount["Source"] for mount in request["HostConfig"]["Mounts"]] == [far.blobs.uri.removeprefix("local://")]
    status = far.over(backend, job)
    assert status.state == "succeeded", (status, far.lines)
    assert far.output(status)["environment"]["PYTHONPATH"] == "/run/stoker/worker"
    assert engine.run("ps", "--all", "--quiet").stdout == ""


def test_an_error_names_the_file_as_the_person_knows_it(far: Bench) -> None:
    status = far.over(far.backend(), far.job("fails"))
    assert status.result is not None
    assert f"{far.code}/steps.py" in status.result.error.place


def test_a_death_is_explained_there_too(far: Bench) -> None:
    status = far.over(far.backend(), far.job("hungry", resources=ResourceSettings(memory="200MiB")))
    assert status.cause == "host-oom"


def test_a_gang_meets_in_the_store(far: Bench) -> None:
    status = far.over(far.backend(), far.job("surroundings", resources=ResourceSettings(nodes=2)))
    assert status.state == "succeeded", (status, far.lines)


def test_what_such_an_engine_cannot_do_is_found_before_the_run(far: Bench) -> None:
    far.site = attrs.evolve(far.site, artifacts="/somewhere/here")
    job = far.job("surroundings", resources=ResourceSettings(gpu_count=1))
    codes = [finding.code for finding in far.backend().check(job.step) if finding.level == "error"]
    assert codes == ["STK141", "STK142"]
