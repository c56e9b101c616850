"""Containers that take several steps: each step as in a container of its own, and nothing of it for the next."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import attrs
import pytest
from tests.containers.bench import CODE, Bench, names
from tests.containers.test_docker_backend import (  # noqa: F401  # the same tests, with this file's bench
    test_a_container_that_somebody_removes_is_lost,
    test_an_image_without_a_worker_is_refused_with_what_it_said,
    test_cancel_asks_first,
    test_cancel_insists_when_the_grace_is_over,
    test_closing_leaves_no_container,
    test_memory_is_a_limit_and_its_end_has_a_cause,
    test_submitting_twice_starts_once,
)
from tests.servers.containers import Engine

from stoker.backends.base.machine import machine_capacity
from stoker.backends.docker.jobfiles import (
    CHECKPOINTS_LABEL,
    CONTAINER_LABEL,
    LABELS,
    empty,
    job_files,
    make_folders_of,
    put_job,
    settle,
    warm_files,
    warm_name,
)
from stoker.core.orders import PoolSpec
from stoker.core.settings import ResourceSettings
from stoker.store import artifacts
from stoker.store.blobs import Blobs
from stoker.store.checkpoints import Checkpoints

TRACES = '''
import hashlib, subprocess

from stoker.worker.context import context


def traces(root, word):
    """Leaves what a step can leave: files, a process, checkpoints, an output."""
    for place in ("/tmp", "/var/tmp", "/dev/shm"):
        os.makedirs(f"{place}/left", exist_ok=True)
        open(f"{place}/left/file", "w").close()
    open("/tmp/left-file", "w").close()
    subprocess.Popen(["sleep", "600"], start_new_session=True)
    (context.checkpoint_dir / "weights").write_text(word[:3])
    return "x" * 5000


def talks():
    for number in range(20):
        print("out", number, flush=True)
        time.sleep(0.01)
        print("error", number, file=sys.stderr, flush=True)
        time.sleep(0.01)
    print("the last one without a newline", end="", file=sys.stderr)


def sees(root, word, parts):
    """What is there of others, and what of what it only reads can be changed."""
    rows = sorted(
        os.path.relpath(os.path.join(parent, name), root)
        for parent, folders, names in os.walk(root) for name in folders + names
    )
    temporary = [name for place in ("/tmp", "/var/tmp", "/dev/shm") for name in os.listdir(place)]
    attacks = []
    for path in (path for path in rows if "artifacts/inputs/" in path or path.endswith(("/orders", "/pool.json"))):
        for attack in (lambda: os.chmod(path, 0o777), lambda: open(path, "ab"), lambda: os.unlink(path)):
            path = os.path.join(root, path)
            try:
                attack()
                attacks.append(path)
            except OSError:
                pass
    commands = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            commands.append(open(f"/proc/{pid}/cmdline").read().replace("\\0", " "))
        except OSError:
            pass
    return {"rows": rows, "temporary": temporary, "attacks": attacks, "commands": commands, "big": "y" * 5000,
            "parts": [len(part) for part in parts]}
'''


@pytest.fixture
def bench(bench: Bench) -> Bench:
    del bench.options["reuse"]
    return bench


def add(bench: Bench, backend: Any, number: int, **settings: Any) -> Any:
    job = bench.job("add", key=f"add[{number}]", inputs={"a": number, "b": 1}, **settings)
    status = bench.over(backend, job)
    assert status.state == "succeeded", (status, bench.lines)
    assert bench.texts(job) == [f"adding {number} 1"]
    assert bench.texts(job, "stderr") == ["to stderr"]
    assert any(one.started for one in bench.news[job.name])
    return bench.output(status)


def test_steps_follow_each_other_in_one_container_until_the_run_ends(bench: Bench, engine: Engine) -> None:
    backend = bench.backend()
    ids = set()
    for number in range(4):
        assert add(bench, backend, number) == number + 1
        assert names(engine) == [warm_name("r1", 1)]
        ids.add(engine.run("ps", "--quiet", "--no-trunc").stdout)
    assert len(ids) == 1
    assert not list(Path(bench.blobs.uri, "jobs", warm_name("r1", 1), "inputs").iterdir())
    backend.close()
    bench.made.remove(backend)
    assert names(engine) == []
    assert not list(Path(bench.site.scratch, "containers").iterdir())
    assert not list(Path(bench.blobs.uri, "jobs").iterdir())


def test_nothing_of_a_step_is_there_for_the_next(bench: Bench, engine: Engine) -> None:
    (bench.code / "steps.py").write_text(CODE + TRACES)
    root = Path(bench.site.scratch).parent
    backend = bench.backend(mounts=None)
    first = bench.job("traces", inputs={"root": str(root), "word": "w" * 9000})
    step = attrs.evolve(first.step, outputs=bench.job("add").step.outputs)
    status = bench.over(backend, attrs.evolve(first, step=step))
    assert status.state == "succeeded", (status, bench.lines)
    assert bench.output(status) == "x" * 5000
    checkpoints = Checkpoints(bench.site.checkpoints).path("r1", "traces")
    assert (checkpoints / "weights").read_text() == "www"

    second = bench.job("sees", inputs={"root": str(root), "word": "v" * 9000})
    parts = artifacts.save_split(["j" * 9000, "k" * 8000], bench.blobs).wire()
    second = attrs.evolve(second, inputs={**second.inputs, "parts": {"value": parts}})
    status = bench.over(backend, second)
    assert status.state == "succeeded", (status, bench.lines)
    seen = bench.output(status)
    assert names(engine) == [warm_name("r1", 1)], "both ran in it"
    assert seen["parts"] == [9000, 8000]
    assert seen["attacks"] == []
    assert not [command for command in seen["commands"] if "sleep" in command]
    assert [name for name in seen["temporary"] if name.startswith("left")] == []
    own = f"scratch/containers/{warm_name('r1', 1)}"
    inputs = [row for row in seen["rows"] if row.startswith("artifacts/inputs/")]
    assert len(inputs) == 3, "its word and the two elements of its list"
    mounted = {row for row in seen["rows"] if row.split("/")[0] != "code"} - set(inputs)
    expected = {
        *("artifacts", "artifacts/inputs", "checkpoints", "checkpoints/r1", "checkpoints/r1/sees"),
        *("scratch", "scratch/containers", own, f"{own}/pool", f"{own}/pool/claims"),
        *(f"{own}/pool/claims/{number}" for number in (0, 1)),
        *(f"{own}/pool/{name}" for name in ("journal-worker", "orders", "pool.json", "wake-worker", "job")),
        *(f"{own}/pool/job/{name}" for name in ("job.json", "labels.json", "output")),
    }
    assert mounted == expected


def test_lines_of_both_streams_come_whole_and_in_the_order_of_their_times(bench: Bench) -> None:
    (bench.code / "steps.py").write_text(CODE + TRACES)
    job = bench.job("talks")
    assert bench.over(bench.backend(), job).state == "succeeded"
    lines = [(line.stream, line.text) for line in bench.lines[job.name]]
    assert lines[-1] == ("stderr", "the last one without a newline")
    assert sorted(lines[:-1]) == sorted(
        (stream, f"{word} {number}")
        for number in range(20)
        for stream, word in (("stdout", "out"), ("stderr", "error"))
    )
    times = [line.time for line in bench.lines[job.name]]
    assert times == sorted(times)


def test_elements_run_beside_each_other_and_shapes_apart(bench: Bench, engine: Engine) -> None:
    backend = bench.backend()
    flags = [bench.flags / f"flag-{number}" for number in range(3)]
    waiting = [bench.job("waits", key=f"waits[{n}]", inputs={"path": str(flags[n])}) for n in range(3)]
    for job in waiting:
        backend.submit(job)
    bench.until(backend, lambda: all("waiting" in bench.texts(job) for job in waiting))
    assert len(names(engine)) == 3
    for flag in flags:
        flag.write_text("")
    for job in waiting:
        assert bench.output(bench.end(backend, job)) == "seen"
    before = set(names(engine))
    assert add(bench, backend, 1) == 2
    assert set(names(engine)) == before, "one of the three took it"
    assert add(bench, backend, 2, resources=ResourceSettings(memory="300MiB")) == 3
    other = set(names(engine)) - before
    assert len(other) == 1, "a limit is a container's own"
    assert add(bench, backend, 3, environment={"WORD": "x"}) == 4
    assert len(set(names(engine)) - before - other) == 1


def test_a_container_goes_with_a_step_that_ended_badly_and_not_with_one_that_raised(
    bench: Bench, engine: Engine
) -> None:
    backend = bench.backend()
    assert bench.over(backend, bench.job("fails")).cause == "user-error"
    assert names(engine) == [warm_name("r1", 1)]
    assert bench.over(backend, bench.job("leaves")).exit_code == 7
    assert names(engine) == []
    assert add(bench, backend, 1) == 2
    assert names(engine) == [warm_name("r1", 2)]


def test_a_container_that_left_is_replaced(bench: Bench, engine: Engine) -> None:
    backend = bench.backend(idle_after="100ms")
    assert add(bench, backend, 1) == 2
    bench.until(backend, lambda: engine.run("ps", "--quiet").stdout == "")
    assert add(bench, backend, 2) == 3
    # It leaves while it is given the next step, or just before.
    backend = bench.backend(idle_after="1h")
    assert add(bench, backend, 3) == 4
    (name,) = engine.run("ps", "--filter", "status=running", "--format", "{{.Names}}").stdout.split()
    engine.run("kill", "--signal", "TERM", name)
    assert add(bench, backend, 4) == 5


def test_a_step_that_is_cancelled_before_a_worker_has_it_never_runs(bench: Bench, engine: Engine) -> None:
    backend = bench.backend()
    assert add(bench, backend, 1) == 2
    engine.run("pause", warm_name("r1", 1))
    job = bench.job("add", inputs={"a": 5, "b": 5})
    backend.submit(job)
    orders = Path(bench.site.scratch, "containers", warm_name("r1", 1), "pool/orders")
    bench.until(backend, lambda: len(orders.read_text().splitlines()) == 2)
    backend.cancel(job.name, grace=30.0)
    assert bench.end(backend, job).cause == "cancelled"
    assert bench.texts(job) == []


def test_idle_containers_make_room_for_another_shape(bench: Bench, engine: Engine) -> None:
    backend = bench.backend()
    most = machine_capacity().memory
    assert add(bench, backend, 1, resources=ResourceSettings(memory=int(most * 0.6))) == 2
    assert add(bench, backend, 2, resources=ResourceSettings(memory=int(most * 0.5))) == 3
    assert names(engine) == [warm_name("r1", 2)]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may run containers as another user without asking the engine")
def test_a_container_of_another_user_takes_several(bench: Bench, engine: Engine) -> None:
    backend = bench.backend(user="4711:4711")
    for number in range(3):
        assert add(bench, backend, number) == number + 1
    assert bench.output(bench.over(backend, bench.job("surroundings")))["user"] == "4711:4711"
    assert names(engine) == [warm_name("r1", 1)]
    stored = [path for path in Path(bench.blobs.uri, "objects").rglob("*") if path.is_file()]
    assert {path.stat().st_uid for path in stored} == {os.getuid()}


def test_a_result_survives_whoever_is_killed_while_it_is_saved(tmp_path: Path) -> None:
    """What `settle` has done so far, when it is killed and called again: nothing, or the blobs are moved."""
    blobs = Blobs(str(tmp_path / "store"))
    for interrupted in (False, True):
        name = warm_name("r9", int(interrupted))
        place = {"scratch": str(tmp_path / "scratch"), "store": blobs.folder}
        files = warm_files(name, checkpoints=str(tmp_path / "checkpoints"), **place)
        own = job_files(f"stoker-r9-step-{interrupted}", **place)
        labels = {CONTAINER_LABEL: os.path.basename(own.notes), CHECKPOINTS_LABEL: f"{files.place}/r9/step"}
        make_folders_of(files, {"stoker": "pool"}, PoolSpec())
        digest = blobs.put(b"an input")
        assert put_job(files, {"input": digest}, labels, [digest], blobs)
        assert os.listdir(files.job.inputs) == [digest]
        Path(files.job.outputs, "output").write_text("of the step")
        Path(files.checkpoints, "r9", "step", "weights").write_text(str(interrupted))
        Path(files.job.notes, "result.json").write_text("{}")
        Path(files.output).write_text("a line\n")
        if interrupted:
            os.rename(files.blobs, own.blobs)
        settle(files, place["scratch"])
        assert Path(own.outputs, "output").read_text() == "of the step"
        assert Path(own.notes, "result.json").exists()
        assert Path(own.output).read_text() == "a line\n", "its driver read nothing more of it"
        assert Path(files.place, "r9", "step", "weights").read_text() == str(interrupted)
        assert not os.path.exists(files.root) and not os.path.exists(files.blobs)


def test_a_container_whose_driver_was_killed_amid_a_job_is_emptied(tmp_path: Path) -> None:
    blobs = Blobs(str(tmp_path / "store"))
    files = warm_files(warm_name("r9", 1), scratch=str(tmp_path), store=blobs.folder, checkpoints="")
    make_folders_of(files, {}, PoolSpec())
    digest = blobs.put(b"an input")
    for _ in range(2):
        assert put_job(files, {"input": digest}, {}, [digest], blobs)
        Path(files.job.notes, LABELS).unlink()
        Path(files.job.outputs, "objects", "ab").mkdir(parents=True)
        empty(files)
        assert not os.path.exists(files.job.notes)
        assert os.listdir(files.job.inputs) == [] and os.listdir(files.job.outputs) == ["inputs"]
