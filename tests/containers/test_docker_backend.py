"""Steps in real containers of a real engine: what goes in, what comes out, and how they end."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

import attrs
from tests.containers.bench import Bench, names
from tests.servers.containers import Engine

from stoker.backends.docker.backend import DockerBackend
from stoker.core.settings import ResourceSettings


def test_a_step_runs_in_a_container_and_its_output_and_lines_come_out(bench: Bench, engine: Engine) -> None:
    backend = bench.backend()
    job = bench.job("add", inputs={"a": 2, "b": 3})
    status = bench.over(backend, job)
    assert status.state == "succeeded", (status.message, bench.lines)
    assert bench.output(status) == 5
    assert bench.texts(job) == ["adding 2 3"]
    assert bench.texts(job, "stderr") == ["to stderr"]
    assert any(one.started for one in bench.news[job.name])
    assert names(engine) == []
    assert not list(Path(bench.site.scratch, "containers").iterdir())


def test_an_error_of_the_step_is_told_with_its_place(bench: Bench) -> None:
    backend = bench.backend()
    status = bench.over(backend, bench.job("fails"))
    assert status.state == "failed"
    assert status.result is not None
    assert status.cause == "user-error"
    assert status.result.error.message == "no such thing"
    assert f"{bench.code}/steps.py" in status.result.error.place


def test_an_exit_code_survives(bench: Bench) -> None:
    status = bench.over(bench.backend(), bench.job("leaves"))
    assert (status.state, status.exit_code, status.cause) == ("failed", 7, "")


def test_memory_is_a_limit_and_its_end_has_a_cause(bench: Bench) -> None:
    job = bench.job("hungry", resources=ResourceSettings(memory="200MiB"))
    status = bench.over(bench.backend(), job)
    assert status.state == "failed"
    assert status.cause == "host-oom", status
    assert "200MiB" in status.message


def test_a_child_killed_for_memory_does_not_make_a_step_fail_that_goes_on(bench: Bench) -> None:
    job = bench.job("child_dies", resources=ResourceSettings(memory="200MiB"))
    status = bench.over(bench.backend(), job)
    assert status.state == "succeeded", status
    assert bench.output(status) == "went on"


def test_what_a_container_gets(bench: Bench, tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setenv("STOKER_TEST_TOKEN", "s3cret")
    data = tmp_path / "data"
    data.mkdir()
    (data / "table.csv").write_text("1")
    backend = bench.backend(
        user="4711:4711",
        network="none",
        mounts=[f"{data}:/mnt/data:ro"],
        secrets={"token": "env:STOKER_TEST_TOKEN"},
        run_options={"extra_hosts": {"elsewhere": "10.0.0.1"}},
    )
    job = bench.job(
        "surroundings", environment={"WORD": "a b"}, resources=ResourceSettings(shared_memory="300MiB", cpu_count=1)
    )
    assert "s3cret" not in json.dumps(backend.render(job))
    status = bench.over(backend, job)
    assert status.state == "succeeded", (status.message, bench.lines)
    found = bench.output(status)
    assert found["user"] == "4711:4711"
    assert found["environment"]["WORD"] == "a b"
    assert found["environment"]["NVIDIA_VISIBLE_DEVICES"] == "void"
    assert found["environment"]["CUDA_VISIBLE_DEVICES"] == ""
    assert os.path.basename(found["environment"]["HOME"]) == "home-4711"
    assert "s3cret" not in json.dumps(found["environment"])
    assert found["secret"] == "s3cret"
    assert found["shm"] == 300 << 20
    assert found["mounted"] == ["table.csv"]
    assert found["network"] == ["lo"]
    stored = [path for path in Path(bench.blobs.uri).rglob("*") if path.is_file()]
    assert {path.stat().st_uid for path in stored} == {os.getuid()}


def test_cancel_asks_first(bench: Bench) -> None:
    backend = bench.backend()
    job = bench.job("slow")
    backend.submit(job)
    bench.until(backend, lambda: "slow begins" in bench.texts(job))
    backend.cancel(job.name, grace=30.0)
    began = time.monotonic()
    status = bench.end(backend, job)
    assert time.monotonic() - began < 20
    assert status.cause == "cancelled"
    assert "slow was asked to end" in bench.texts(job)


def test_cancel_insists_when_the_grace_is_over(bench: Bench, engine: Engine) -> None:
    backend = bench.backend()
    job = bench.job("deaf")
    backend.submit(job)
    bench.until(backend, lambda: "deaf begins" in bench.texts(job))
    backend.cancel(job.name, grace=1.0)
    status = bench.end(backend, job)
    assert status.state == "failed"
    assert status.exit_code in (137, -9)
    assert names(engine) == []


def test_submitting_twice_starts_once(bench: Bench, tmp_path: Path, engine: Engine) -> None:
    backend = bench.backend()
    flag = bench.flags / "flag"
    job = bench.job("waits", inputs={"path": str(flag)})
    backend.submit(job)
    backend.submit(job)
    bench.until(backend, lambda: "waiting" in bench.texts(job))
    assert len(names(engine)) == 1
    flag.write_text("")
    assert bench.output(bench.end(backend, job)) == "seen"


def test_an_image_that_is_not_there_is_named(bench: Bench) -> None:
    backend = bench.backend(pull="never")
    bench.image = "localhost/nobody/has-this:1"
    status = bench.over(backend, bench.job("add", inputs={"a": 1, "b": 2}))
    assert (status.state, status.cause) == ("failed", "refused")
    assert "localhost/nobody/has-this:1" in status.message


def test_an_image_without_a_worker_is_refused_with_what_it_said(bench: Bench, engine: Engine) -> None:
    backend = bench.backend(python="/bin/sh")
    status = bench.over(backend, bench.job("add", inputs={"a": 1, "b": 2}))
    assert (status.state, status.cause) == ("failed", "refused")
    assert "before Stoker's worker began" in status.message
    assert names(engine) == []


def test_a_container_that_somebody_removes_is_lost(bench: Bench, engine: Engine) -> None:
    backend = bench.backend()
    job = bench.job("slow")
    backend.submit(job)
    bench.until(backend, lambda: "slow begins" in bench.texts(job))
    engine.run("rm", "--force", *names(engine))
    status = bench.end(backend, job)
    assert status.cause == "worker-lost"
    assert "removed" in status.message


def test_closing_leaves_no_container(bench: Bench, engine: Engine) -> None:
    backend = bench.backend()
    job = bench.job("slow")
    backend.submit(job)
    bench.until(backend, lambda: "slow begins" in bench.texts(job))
    backend.close()
    bench.made.remove(backend)
    assert names(engine) == []


def test_failed_containers_are_kept_on_demand(bench: Bench, engine: Engine) -> None:
    status = bench.over(bench.backend(keep=True), bench.job("fails"))
    assert status.state == "failed"
    assert names(engine) == ["stoker-r1-fails-1"]
    engine.run("rm", "--force", *names(engine))


# Orphans: the first backend is dropped without a word, as by a driver that is killed.


def dropped(bench: Bench, backend: DockerBackend) -> None:
    for attempt in backend._attempts.values():
        vars(attempt)["_clear"] = lambda keep: None
    bench.drop(backend)


def test_a_running_orphan_is_adopted(bench: Bench, engine: Engine, tmp_path: Path) -> None:
    flag = bench.flags / "flag"
    inputs = {"path": str(flag)}
    dead = bench.backend()
    first = bench.job("waits", inputs=inputs)
    dead.submit(first)
    bench.until(dead, lambda: "waiting" in bench.texts(first))
    dropped(bench, dead)
    backend = bench.backend()
    second = bench.job("waits", attempt=2, inputs=inputs)
    backend.submit(second)
    bench.until(backend, lambda: "waiting" in bench.texts(second))
    assert [event.data for status in bench.news[second.name] for event in status.events] == [{"attempt": 1}]
    assert names(engine) == ["stoker-r1-waits-1"]
    flag.write_text("")
    assert bench.output(bench.end(backend, second)) == "seen"
    bench.until(backend, lambda: names(engine) == [])


def test_the_result_of_an_orphan_that_is_over_is_taken(bench: Bench, engine: Engine, tmp_path: Path) -> None:
    flag = bench.flags / "flag"
    inputs = {"path": str(flag)}
    dead = bench.backend()
    first = bench.job("waits", inputs=inputs)
    dead.submit(first)
    bench.until(dead, lambda: "waiting" in bench.texts(first))
    dropped(bench, dead)
    flag.write_text("")
    bench.until(dead, lambda: engine.run("ps", "--format", "{{.Names}}").stdout == "")
    flag.unlink()  # whoever ran it again would wait for ever
    backend = bench.backend()
    status = bench.over(backend, bench.job("waits", attempt=2, inputs=inputs))
    assert bench.output(status) == "seen"


def test_an_orphan_with_other_inputs_is_removed(bench: Bench, engine: Engine, tmp_path: Path) -> None:
    dead = bench.backend()
    first = bench.job("waits", inputs={"path": str(tmp_path / "never")})
    dead.submit(first)
    bench.until(dead, lambda: "waiting" in bench.texts(first))
    dropped(bench, dead)
    flag = bench.flags / "now"
    flag.write_text("")
    status = bench.over(bench.backend(), bench.job("waits", attempt=2, inputs={"path": str(flag)}))
    assert bench.output(status) == "seen"
    assert names(engine) == []


def test_an_orphan_of_a_step_that_does_not_come_again_goes_with_the_run(
    bench: Bench, engine: Engine, tmp_path: Path
) -> None:
    dead = bench.backend()
    first = bench.job("waits", inputs={"path": str(tmp_path / "never")})
    dead.submit(first)
    bench.until(dead, lambda: "waiting" in bench.texts(first))
    dropped(bench, dead)
    backend = bench.backend()
    bench.over(backend, bench.job("add", inputs={"a": 1, "b": 2}))
    backend.close()
    bench.made.remove(backend)
    assert names(engine) == []


# Gangs


def test_a_gang_whose_node_fails_ends_together(bench: Bench, engine: Engine) -> None:
    job = bench.job("fails", resources=ResourceSettings(nodes=2))
    status = bench.over(bench.backend(), job)
    assert status.state == "failed"
    assert names(engine) == []


def test_a_gang_gets_a_network_of_its_own(bench: Bench, engine: Engine) -> None:
    del bench.options["network"]
    backend = bench.backend()
    job = bench.job("surroundings", resources=ResourceSettings(nodes=2))
    request = backend.render(job)
    assert request["network"] == "stoker-r1-surroundings-1-net"
    status = bench.over(backend, job)
    assert status.state == "succeeded", (status.message, bench.lines)
    assert bench.output(status)["environment"]["STOKER_HEAD_ADDR"].endswith("-0")
    assert request["network"] not in engine.run("network", "ls", "--format", "{{.Name}}").stdout.split()


def test_what_stands_behind_another_job_waits_for_a_container(bench: Bench, engine: Engine, tmp_path: Path) -> None:
    backend = bench.backend()
    flag = bench.flags / "flag"
    first = bench.job("waits", inputs={"path": str(flag)})
    backend.submit(first)
    bench.until(backend, lambda: "waiting" in bench.texts(first))
    behind = [attrs.evolve(bench.job("add", key=f"add[{n}]", inputs={"a": n, "b": 1}), behind=True) for n in range(3)]
    for job in behind:
        backend.submit(job)
    backend.cancel(behind[1].name, grace=1.0)
    assert len(names(engine)) == 1
    flag.write_text("")
    assert bench.output(bench.end(backend, behind[0])) == 1
    assert bench.end(backend, behind[1]).cause == "cancelled"
    assert bench.output(bench.end(backend, behind[2])) == 3
