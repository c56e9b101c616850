"""Disks that are full or may not be written, and stores of another version: a clear word, and nothing is broken."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from stoker.client import Client, Run
from stoker.core.errors import EXIT_FAILED, EXIT_INFRASTRUCTURE
from stoker.store.store import Store

SIZE = 4 * 2**20
"""Bytes of the small disk."""

FLOW = """
import os, resource, sys
from stoker import pipeline, step

LARGE = 8 * 2**20

@step
def small() -> int:
    return 7

@step
def large(number: int) -> bytes:
    print("large begins", flush=True)
    limit = os.environ.get("FILE_LIMIT")
    if limit:
        resource.setrlimit(resource.RLIMIT_FSIZE, (int(limit), int(limit)))
    return bytes([number]) * LARGE

@step
def size(data: bytes) -> int:
    return len(data)

@step
def talk(number: int) -> int:
    for _ in range(200_000):
        print("x" * 60)
    return number + 1

@pipeline
def heavy():
    size(large(small()))

@pipeline
def loud():
    size_of(talk(small()))

@step
def size_of(number: int) -> int:
    return number

@pipeline
def light():
    size_of(small())
"""

AS_ANYBODY = """
import ctypes, os, sys
# CAP_DAC_OVERRIDE and CAP_DAC_READ_SEARCH leave the bounding set: a root that is started now must heed permissions.
for capability in (1, 2):
    ctypes.CDLL(None).prctl(24, capability, 0, 0, 0)
os.execv(sys.argv[1], sys.argv[1:])
"""


@pytest.fixture
def flow(project: Any) -> Any:
    return project.write({"flow.py": FLOW, "as_anybody.py": AS_ANYBODY})


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of a few megabytes; only root may mount one, and not everywhere."""
    folder = tmp_path / "small"
    folder.mkdir()
    mounted = os.geteuid() == 0 and sys.platform == "linux"
    if mounted:
        command = ["mount", "-t", "tmpfs", "-o", f"size={SIZE},mode=0755", "tmpfs", str(folder)]
        mounted = subprocess.run(command, capture_output=True, check=False).returncode == 0
    if not mounted:
        pytest.skip("nothing may be mounted here")
    yield folder
    subprocess.run(["umount", "--lazy", str(folder)], check=True)


def fill(folder: Path, *, leave: int = 0) -> Path:
    """A file that takes all of a disk, but for some bytes."""
    path = folder / "ballast"
    with open(path, "wb", buffering=0) as file:
        try:
            while True:
                file.write(bytes(4096))
        except OSError:
            size = file.tell()
        file.truncate(max(0, size - leave))
    return path


def stoker(flow: Any, *arguments: str, home: Path, code: int, anybody: bool = False, **env: str) -> str:
    """What a command of Stoker's says, run as somebody who must heed permissions, if wanted."""
    argv = [str(Path(sys.executable).with_name("stoker")), *arguments]
    if anybody:
        argv = [sys.executable, "as_anybody.py", sys.executable, *argv]
    finished = flow.command(argv, code=code, env={"STOKER_HOME": str(home), **env})
    assert "Traceback" not in finished.stderr
    return str(finished.stdout + finished.stderr)


def failed_step(run: Run, key: str) -> Any:
    """The failure of the one step that failed; what came before it is kept, what comes after it was skipped."""
    assert run.status == "failed"
    assert {step.status for step in run.steps.values()} <= {"succeeded", "failed", "skipped"}
    assert [step.key for step in run.steps.values() if step.status == "failed"] == [key]
    return run.steps[key].failure


def test_a_full_disk_for_artifacts(
    flow: Any, small_disk: Path, stoker_home: Path, opened: Callable[[Path], Store], wrong_in: Callable[[Path], Any]
) -> None:
    stoker_home.mkdir()
    (small_disk / "artifacts").mkdir()
    (stoker_home / "artifacts").symlink_to(small_disk / "artifacts")
    told = stoker(flow, "run", "flow.py:heavy", home=stoker_home, code=EXIT_FAILED)
    assert "is full" in told
    run = Client(store=opened(stoker_home)).run("latest")
    failure = failed_step(run, "large")
    assert "is full" in failure.message and "stoker gc" in failure.message
    assert not list((stoker_home / "artifacts" / "tmp").iterdir())
    assert not wrong_in(stoker_home)
    subprocess.run(["mount", "-o", f"remount,size={16 * SIZE}", str(small_disk)], check=True)
    stoker(flow, "resume", run.id, home=stoker_home, code=0)
    assert run.refresh().status == "succeeded"
    assert run.steps["size"].output.load() == 8 * 2**20
    assert run.steps["small"].attempt_count == 1
    assert not wrong_in(stoker_home)


def test_a_file_that_must_not_grow(
    flow: Any, stoker_home: Path, opened: Callable[[Path], Store], wrong_in: Callable[[Path], Any]
) -> None:
    """What a quota, or a limit of the shell's, does to the artifact of a step."""
    told = stoker(flow, "run", "flow.py:heavy", home=stoker_home, code=EXIT_FAILED, FILE_LIMIT="100000")
    assert "cannot be written" in told
    run = Client(store=opened(stoker_home)).run("latest")
    failure = failed_step(run, "large")
    assert "File too large" in failure.message and "artifacts" in failure.message
    assert not list((stoker_home / "artifacts" / "tmp").iterdir())
    assert not wrong_in(stoker_home)
    stoker(flow, "resume", run.id, home=stoker_home, code=0)
    assert run.refresh().steps["size"].output.load() == 8 * 2**20
    assert not wrong_in(stoker_home)


def test_a_full_disk_for_logs_and_rows(
    flow: Any, small_disk: Path, mark: Callable[[str], Any], opened: Callable[[Path], Store], wrong_in: Any
) -> None:
    """The run cannot be recorded any more: it ends, its workers too, and goes on once there is room."""
    home = small_disk / "home"
    marked = mark("loud")
    told = stoker(
        flow,
        "run",
        "flow.py:loud",
        home=home,
        code=EXIT_INFRASTRUCTURE,
        RELIABILITY_MARK=marked.value,
    )
    assert "is full" in told and "fix:" in told
    assert not marked.gone()
    subprocess.run(["mount", "-o", f"remount,size={16 * SIZE}", str(small_disk)], check=True)
    run = Client(store=opened(home)).run("latest")
    assert run.status in ("failed", "interrupted")
    assert run.steps["small"].status == "succeeded"
    assert run.steps["talk"].status != "succeeded"
    stoker(flow, "resume", run.id, home=home, code=0)
    assert run.refresh().steps["size_of"].output.load() == 8
    assert not wrong_in(home)


def test_a_full_disk_from_the_start(flow: Any, small_disk: Path) -> None:
    ballast = fill(small_disk)
    told = stoker(flow, "run", "flow.py:light", home=small_disk / "home", code=EXIT_INFRASTRUCTURE)
    assert "is full" in told or "No space left" in told
    assert "fix:" in told
    ballast.unlink()
    stoker(flow, "run", "flow.py:light", home=small_disk / "home", code=0)


def may_not(path: Path) -> None:
    """Take the right to write from a folder and all in it."""
    for found in [*path.rglob("*"), path]:
        found.chmod(found.stat().st_mode & ~(stat.S_IWUSR | stat.S_IWGRP | stat.S_IWOTH))


@pytest.fixture
def permissions_count(flow: Any, tmp_path: Path) -> Iterator[None]:
    """Skips where even the careful root writes what may not be written; gives the rights back at the end."""
    (tmp_path / "closed").mkdir(mode=0o555)
    probe = [sys.executable, "as_anybody.py", "/bin/sh", "-c", f"touch {tmp_path}/closed/probe"]
    if sys.platform != "linux" or flow.command(probe, code=None).returncode == 0:
        pytest.skip("permissions do not keep this user from writing")
    yield
    for found in [tmp_path, *tmp_path.rglob("*")]:
        if not found.is_symlink() and found.exists():
            found.chmod(found.stat().st_mode | stat.S_IRWXU)


@pytest.mark.usefixtures("permissions_count")
def test_a_home_that_may_not_be_written(flow: Any, tmp_path: Path) -> None:
    closed = tmp_path / "closed"
    told = stoker(flow, "run", "flow.py:light", home=closed / "home", code=EXIT_INFRASTRUCTURE, anybody=True)
    assert f"{closed}/home" in told and "Permission denied" in told and "fix:" in told


@pytest.mark.usefixtures("permissions_count")
def test_a_database_that_may_not_be_written(flow: Any, stoker_home: Path) -> None:
    stoker(flow, "run", "flow.py:light", home=stoker_home, code=0)
    may_not(stoker_home)
    told = stoker(flow, "run", "flow.py:light", "--no-cache", home=stoker_home, code=EXIT_INFRASTRUCTURE, anybody=True)
    assert "stoker.db" in told and "cannot be written" in told and "fix: check the permissions" in told


@pytest.mark.usefixtures("permissions_count")
def test_artifacts_that_may_not_be_written(flow: Any, stoker_home: Path, opened: Callable[[Path], Store]) -> None:
    stoker(flow, "run", "flow.py:heavy", home=stoker_home, code=0)
    may_not(stoker_home / "artifacts")
    blob = next(path for path in (stoker_home / "artifacts" / "objects").rglob("*") if path.is_file())
    blob.parent.chmod(0o755)
    blob.unlink()
    blob.parent.chmod(0o555)
    told = stoker(flow, "run", "flow.py:heavy", "--no-cache", home=stoker_home, code=EXIT_FAILED, anybody=True)
    assert "Permission denied" in told
    failure = failed_step(Client(store=opened(stoker_home)).run("latest"), "large")
    assert "artifacts cannot be written" in failure.message and "fix: check the folder's permissions" in failure.message
