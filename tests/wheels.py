"""Stoker's worker as it travels, made once for all tests of a session: a home makes it in two seconds of CPU time."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def made_wheels(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A home's folder `wheels` after runs in containers and on Kubernetes; the workers of pytest-xdist share it."""
    from stoker.backends.kubernetes.request.jobs import worker_parts
    from stoker.images.wheel import compile_bundle, worker_bundle

    base = tmp_path_factory.getbasetemp()
    folder = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "wheels"
    folder.mkdir(mode=0o700, exist_ok=True)
    with open(folder / ".lock", "w", encoding="utf-8") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        bundle = worker_bundle(folder)
        compile_bundle(bundle)
        worker_parts(str(bundle))
    return folder


@pytest.fixture
def used_home(stoker_home: Path, made_wheels: Path) -> Path:
    """The test's home, in which there was a run before that sent Stoker's worker somewhere."""
    stoker_home.mkdir(mode=0o700)
    (stoker_home / "wheels").symlink_to(made_wheels)
    return stoker_home


@pytest.fixture(autouse=True)
def all_in_used_homes(used_home: Path) -> None:
    """For the folders of tests whose steps run elsewhere: each test has a used home."""
