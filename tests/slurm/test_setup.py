"""`stoker stacks setup slurm` and `stoker doctor --stack`, on a real cluster behind a real SSH server."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.servers.slurm import Cluster
from tests.servers.sshd import ALIAS, Sshd

OLD = """#!/bin/sh
case "$2" in *version_info*) echo 3.6.15 ;; *) echo "SyntaxError" >&2; exit 1 ;; esac
"""
EARLIER = '# mine\n[stacks.other]\norchestrator = "local"   # here\n'


@pytest.fixture
def far(project: Any, login_node: Sshd, slurm_cluster: Cluster, tmp_path: Path, monkeypatch: Any) -> Iterator[Any]:
    """A project on a machine that has nothing of the cluster but a way to log in."""
    monkeypatch.setenv("STOKER_SSH_CONFIG", str(login_node.config))
    monkeypatch.setenv("STOKER_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("STOKER_STACK", "")
    yield project
    slurm_cluster.end_jobs()
    (login_node.home / ".profile").unlink(missing_ok=True)


@pytest.mark.timeout(300)
def test_from_a_host_to_a_first_step(far: Any, login_node: Sshd, tmp_path: Path) -> None:
    """The nodes' `python3` is too old; another one that they have is found and taken. It has no package at all."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", f"{tmp_path}/bare"], check=True)
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "python3").write_text(OLD)
    (tmp_path / "bin" / "python3").chmod(0o755)
    (tmp_path / "bin" / "python3.13").symlink_to(tmp_path / "bare" / "bin" / "python")
    (login_node.home / ".profile").write_text(f"echo a message of the day\nexport PATH={tmp_path}/bin:$PATH\n")
    far.write({"stoker.toml": EARLIER})

    made = far.stoker("stacks", "setup", "slurm", "--host", ALIAS, "--yes")
    assert "python3 is Python 3.6.15; a step needs 3.10 or later" in made.stdout
    assert 'python = "python3.13" is taken instead' in made.stderr
    assert "8 × gpu:h100" in made.stdout and "as seen from n" in made.stdout
    assert "hello from n" in made.stdout and "wrote the stack 'login'" in made.stderr
    written = (Path(far.folder) / "stoker.toml").read_text()
    assert EARLIER in written and 'stack = "login"' in written and 'python = "python3.13"' in written

    again = far.stoker("stacks", "setup", "slurm", "--host", ALIAS, "--yes", code=2)
    assert "there is a stack called 'login' already" in again.stderr
    assert (Path(far.folder) / "stoker.toml").read_text() == written

    words = ["--yes", "--force", "--no-hello", "--python", str(tmp_path / "bin" / "python3")]
    refused = far.stoker("stacks", "setup", "slurm", "--host", ALIAS, *words, code=4)
    assert "nothing was written" in refused.stderr, "what is given is not replaced"
    assert (Path(far.folder) / "stoker.toml").read_text() == written

    folder = login_node.home / ".stoker" / "slurm"
    before = {path.name for path in folder.glob("artifacts/objects/*/*")}
    report = json.loads(far.stoker("doctor", "--stack", "login", "--json").stdout)
    assert report["ok"] and {"ssh", "controller", "partition", "folder", "clock", "job", "shared folder"} <= {
        check["name"] for check in report["checks"]
    }
    assert not list(folder.glob("probe-*")), "nothing of a probe stays"
    assert {path.name for path in folder.glob("artifacts/objects/*/*")} == before


@pytest.mark.parametrize(
    ("options", "problem", "fix"),
    [
        ('host = "ssh://login", partition = "nope"', "there is no partition 'nope'", "partition = one of main"),
        ('host = "ssh://login", folder = "/proc/nope"', "/proc/nope", "give a folder that you may write to"),
        ('host = "ssh://login", reservation = "no"', "sbatch refuses a job of one minute", "the QOS"),
        ('host = "ssh://login", setup = ["echo ok", "conda activate x"]', "conda activate x", "mend `modules`"),
        ('host = "ssh://login", python = "/no/python"', "/no/python does not run", "python = "),
        ('host = "ssh://127.0.0.1:9"', "127.0.0.1", "ssh -p 9 127.0.0.1 true"),
    ],
    ids=["partition", "folder", "reservation", "setup", "python", "host"],
)
@pytest.mark.timeout(120)
def test_what_is_wrong_with_a_stack(far: Any, options: str, problem: str, fix: str) -> None:
    far.write({"stoker.toml": f'[stacks.far]\norchestrator = {{ flavor = "slurm", {options} }}\n'})
    report = json.loads(far.stoker("doctor", "--stack", "far", "--json", code=4).stdout)
    problems = [check for check in report["checks"] if check["problem"]]
    assert problem in problems[0]["problem"], problems
    assert fix in problems[0]["fix"], problems
    assert not any("resume" in check["fix"] for check in problems), "no run has begun"


def test_a_node_that_is_not_free(far: Any, slurm_cluster: Cluster) -> None:
    slurm_cluster.run("sbatch", "--nodelist=n1", "--exclusive", "--output=/dev/null", "--wrap", "sleep 300")
    options = 'flavor = "slurm", host = "ssh://login", nodelist = "n1"'
    far.write({"stoker.toml": f"[stacks.far]\norchestrator = {{ {options} }}\n"})
    report = json.loads(far.stoker("doctor", "--stack", "far", "--json", "--wait", "2", code=4).stdout)
    problems = [check["problem"] for check in report["checks"] if check["problem"]]
    assert len(problems) == 1 and "did not start within 2 s" in problems[0]
    assert slurm_cluster.run("squeue", "--noheader", "--name=stoker/probe").stdout == "", "it waits no more"


def test_questions_need_somebody_to_answer(far: Any) -> None:
    refused = far.stoker("stacks", "setup", "slurm", code=2)
    assert "--host is missing" in refused.stderr and "stoker stacks setup slurm --host" in refused.stderr
    assert 'flavor = "local"' in far.stoker("stacks", "setup", "local", code=2).stderr
    assert "did you mean 'slurm'" in far.stoker("stacks", "setup", "Slrum", code=2).stderr
    help_text = far.stoker("stacks", "setup", "slurm", "--help").stdout
    assert all(f"--{name}" in help_text for name in ("host", "partition", "account", "folder", "python", "yes"))


def test_a_stack_of_this_machine(project: Any) -> None:
    report = json.loads(project.stoker("doctor", "--stack", "local", "--json").stdout)
    assert report["ok"] and [check["name"] for check in report["checks"]] == ["room", "worker", "artifact store"]
    gone = 'step_operators.c = { flavor = "docker", host = "tcp://127.0.0.1:9" }\n'
    ray = 'step_operators.r = { flavor = "ray", address = "http://127.0.0.1:9" }\n'
    project.write({"stoker.toml": f"[stacks.mixed]\n{gone}{ray}"})
    report = json.loads(project.stoker("doctor", "--stack", "mixed", "--json", code=4).stdout)
    wrong = {check["name"]: check["fix"] for check in report["checks"] if check["problem"]}
    assert set(wrong) == {"engine of c", "dashboard of r"} and all(wrong.values())
