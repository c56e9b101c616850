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
from stoker.store.checkpoints import Checkpoints, step_place


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


def test_a_gang_meets_in_the_store(far: Bench) -> None:
    status = far.over(far.backend(), far.job("surroundings", resources=ResourceSettings(nodes=2)))
    assert status.state == "succeeded", (status, far.lines)


def test_another_attempt_goes_on_from_the_checkpoint_of_a_container_that_is_gone(far: Bench, engine: Engine) -> None:
    saved = f"{step_place(far.blobs.uri, 'r1', 'trains')}/node-0/saved".removeprefix("local://")
    backend = far.backend()
    killed = far.job("trains", inputs={"saved": saved})
    assert far.over(backend, killed).state == "failed"
    assert engine.run("ps", "--all", "--quiet").stdout == ""
    again = far.job("trains", inputs={"saved": saved}, attempt=2)
    assert far.output(far.over(backend, again)) == "by attempt 1"
    assert any("checkpoints restored: 1 files" in text for text in far.texts(again, "stderr"))
    checkpoints = Checkpoints(str(far.site.checkpoints), far.blobs.uri)
    assert checkpoints.size("r1") > 0
    checkpoints.copy("r1", "r2", "trains")  # what `stoker resume` of a flow does
    resumed = far.job("trains", inputs={"saved": saved}, run="r2")
    assert far.output(far.over(backend, resumed)) == "by attempt 1"
    for run in ("r1", "r2"):
        checkpoints.delete(run)
        assert checkpoints.size(run) == 0
    checkpoints.delete("r1")


def test_what_such_an_engine_cannot_do_is_found_before_the_run(far: Bench) -> None:
    far.site = attrs.evolve(far.site, artifacts="/somewhere/here")
    job = far.job("surroundings", resources=ResourceSettings(gpu_count=1))
    codes = [finding.code for finding in far.backend().check(job.step) if finding.level == "error"]
    assert codes == ["STK141", "STK142"]
