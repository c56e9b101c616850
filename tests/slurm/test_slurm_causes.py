"""Why a job ended that never came to its step: what stands before the worker failed, or the shared folder is full."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest
from tests.slurm.bench import Bench


def test_a_shared_folder_that_is_full_is_the_cause(bench: Bench, small: Path) -> None:
    backend = bench.backend(folder=str(small / "jobs"), options={"hold": True})
    held = bench.job("add", key="held", inputs={"a": 1, "b": 2})
    backend.submit(held)
    bench.until(backend, lambda: bool(bench.messages(held)))
    with pytest.raises(OSError, match="No space left"), (small / "ballast").open("wb") as file:
        while file.write(bytes(4096)):
            file.flush()
    refused = bench.job("add", key="refused", inputs={"a": 1, "b": 2})
    backend.submit(refused)
    bench.cluster.run("scontrol", "release", bench.cluster.jobs()[-1]["id"])
    for job in (refused, held):
        status = bench.end(backend, job)
        assert status.cause == "disk-full", status
        assert str(small) in status.message


def test_commands_that_print_nonsense_are_asked_again(
    bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    backend = bench.backend()
    job = bench.job("waits", inputs={"path": str(tmp_path / "flag")})
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    for name in ("sbatch", "squeue"):
        shim = tmp_path / name
        real = shutil.which(name)
        # Nonsense for as long as the file is there; sbatch does its work and hides the id.
        shim.write_text(f'#!/bin/sh\n[ -e "{tmp_path}/{name}.bad" ] || exec {real} "$@"\n')
        shim.chmod(0o755)
    (tmp_path / "sbatch.bad").touch()
    with (tmp_path / "sbatch").open("a") as file:
        file.write(f'{shutil.which("sbatch", path="/usr/bin:/usr/sbin:/bin")} "$@" >/dev/null; echo "Job created"\n')
    with (tmp_path / "squeue").open("a") as file:
        file.write("echo '<<<%%%'; exit 1\n")
    backend.submit(job)
    bench.until(backend, lambda: "waiting" in bench.texts(job))
    (tmp_path / "squeue.bad").touch()
    bench.until(backend, lambda: "squeue printed" in backend.silence())
    assert bench.ended(job) is None, "the job goes on, and so does the watch over it"
    (tmp_path / "squeue.bad").unlink()
    (tmp_path / "flag").touch()
    assert bench.output(bench.end(backend, job))
    assert len(bench.jobs()) == 1, "the job of which sbatch hid the id is found by its comment"


def test_a_folder_that_the_nodes_do_not_see_is_the_cause(bench: Bench, tmp_path: Path) -> None:
    folder = tmp_path / "own"
    folder.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "tmpfs", str(folder)], capture_output=True, check=False)
    if mounted.returncode:
        pytest.skip(f"no disk can be mounted here: {mounted.stderr.decode().strip()}")
    try:
        status = bench.over(bench.backend(folder=str(folder / "jobs"), reuse=False), bench.job("add", key="unseen"))
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)
    assert status.cause == "setup-failed", status
    assert "cannot open the folder of its output" in status.message and "the setting folder" in status.message
