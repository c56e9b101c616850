"""Several workers: what is expensive is made once, and what one worker finds is what is told at the end."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests import workers

pytest.importorskip("xdist")

CONFTEST = """
import os
from pathlib import Path

import pytest

MADE = Path(os.environ["MADE"])

def made(name):
    with open(MADE, "a") as file:
        print(name, os.getpid(), file=file)

@pytest.fixture(scope="session", autouse=True)
def _everybodys():
    made("everybody's")
    yield

@pytest.fixture(scope="session")
def server():
    made("server")
    yield "server"
    made("ended")

@pytest.fixture(scope="session")
def behind(server):
    made("behind")
    yield server

@pytest.fixture
def noted():
    made("alone")

@pytest.fixture(scope="module")
def of_the_file():
    made("file")
"""
SHARING = """
import pytest

@pytest.mark.parametrize("number", range(6))
def test_one({fixture}, number):
    pass
"""
ALONE = """
import pytest

@pytest.mark.parametrize("number", range(20))
def test_alone(number, noted):
    assert number != {wrong}
"""


@pytest.fixture
def files(tmp_path: Path, repository: Path) -> dict[str, str]:
    """Tests that share in four ways, and some that share nothing; the environment to run them with."""
    folder = tmp_path / "tests" / "some"
    folder.mkdir(parents=True)
    (tmp_path / "pytest.ini").write_text("[pytest]\naddopts = --import-mode=importlib\n")
    (folder / "conftest.py").write_text(CONFTEST)
    for name, fixture in (("one", "server"), ("two", "behind"), ("three", "of_the_file"), ("four", "of_the_file")):
        (folder / f"test_{name}.py").write_text(SHARING.format(fixture=fixture))
    (folder / "test_alone.py").write_text(ALONE.format(wrong=None))
    names = [name for name in os.environ if name.startswith("PYTEST_")]
    kept = {name: value for name, value in os.environ.items() if name not in names}
    return {**kept, "MADE": str(tmp_path / "made"), "PYTHONPATH": str(repository)}


def run(folder: Path, environment: dict[str, str], *arguments: str) -> subprocess.CompletedProcess[str]:
    """Two workers on the files, with the repository's hooks."""
    argv = [sys.executable, "-m", "pytest", "-p", "tests.workers", "-n", "2", "--dist", "loadgroup", *arguments]
    return subprocess.run(argv, cwd=folder, env=environment, capture_output=True, text=True, check=False, timeout=200)


def test_what_is_shared_is_made_once(files: dict[str, str], tmp_path: Path) -> None:
    done = run(tmp_path, files)
    assert done.returncode == 0 and "44 passed" in done.stdout, done.stdout + done.stderr
    made = [line.split() for line in Path(files["MADE"]).read_text().splitlines()]
    counts = {name: sum(words[0] == name for words in made) for name in ("everybody's", "server", "behind", "file")}
    assert counts == {"everybody's": 2, "server": 1, "behind": 1, "file": 2}
    assert len({words[1] for words in made if words[0] in ("server", "behind")}) == 1, "one leans on the other"


def test_a_server_ends_when_its_tests_are_done(files: dict[str, str], tmp_path: Path) -> None:
    done = run(tmp_path, files, "-n1")
    assert done.returncode == 0 and "44 passed" in done.stdout, done.stdout + done.stderr
    order = [line.split()[0] for line in Path(files["MADE"]).read_text().splitlines()]
    assert order.count("ended") == 1 and order.index("behind") < order.index("ended") < order.index("alone")


def test_a_failure_in_a_worker_is_the_verdict(files: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "tests" / "some" / "test_alone.py").write_text(ALONE.format(wrong=7))
    done = run(tmp_path, files, "-ra")
    assert done.returncode == 1
    assert "FAILED tests/some/test_alone.py::test_alone[7]" in done.stdout
    assert "1 failed, 43 passed" in done.stdout


def test_chosen_tests_need_no_workers(files: dict[str, str], tmp_path: Path) -> None:
    done = run(tmp_path, files, "-n0", "-v", "tests/some/test_two.py")
    assert done.returncode == 0 and "6 passed" in done.stdout, done.stdout + done.stderr
    assert "worker" not in done.stdout


def test_a_server_of_many_tests_runs_in_several_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workers, "COPIES", {"many": 2})
    queue, servers = ["a", "b", "c", "d", "alone", "e"], dict.fromkeys("abcde", "many")
    holders: dict[str, set[str]] = {"many": set()}
    for worker, scope in (("1", "a"), ("2", "b"), ("3", "alone"), ("1", "c"), ("2", "d"), ("3", "e")):
        assert workers.next_scope(queue, servers, holders, worker) == scope, (
            "nobody is without work while there is some"
        )
        queue.remove(scope)
        if scope in servers:
            holders["many"].add(worker)


def test_the_servers_of_several_workers_are_there() -> None:
    for server in workers.COPIES:
        module, _, name = server.rpartition(".")
        assert hasattr(importlib.import_module(module), name), server
