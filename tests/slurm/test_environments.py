"""The environment that a step's job makes: conda or venv, on a real cluster, with Pythons other than the driver's.

conda cannot be installed by the tests: `CONDA` is a stand-in, which answers `shell.bash hook` with shell functions that
call each other and leave by `\\return` as conda's own do, and knows environments by name or path.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import attrs
import pytest
from tests.slurm.bench import Bench

from stoker.backends.slurm.check import TWO_ENVIRONMENTS, check
from stoker.backends.slurm.settings import SlurmSettings
from stoker.core.settings import DockerSettings

CONDA = """#!/bin/bash
# "conda shell.bash hook" defines a function; "conda shell.posix activate ENV" prints what it evaluates.
if [ "$1 $2" = "shell.bash hook" ]; then
  cat <<'END'
__conda_activate() {
  \\local ask
  ask="$(CONDA_PROGRAM shell.posix "$@")" || \\return
  \\eval "$ask"
}
conda() {
  \\local cmd="${1-__missing__}"
  case "$cmd" in
    activate|deactivate) __conda_activate "$@" ;;
    *) CONDA_PROGRAM "$@" ;;
  esac
}
END
elif [ "$1 $2" = "shell.posix activate" ]; then
  case $3 in /*) place=$3 ;; *) place=ROOT/envs/$3 ;; esac
  [ -d "$place" ] || { echo "EnvironmentNameNotFound: Could not find conda environment: $3" >&2; exit 1; }
  echo "export CONDA_PREFIX='$place' PATH='$place/bin':\\"\\$PATH\\""
fi
"""


def other_python(*versions: str) -> str:
    """A Python of this machine of one of these minor versions."""
    for version in versions:
        # Beside the interpreter that runs the tests, a tool such as pyenv keeps others.
        beside = Path(sys.base_prefix).parent
        found = [shutil.which(f"python{version}") or ""]
        found += map(str, sorted(beside.glob(f"{version}.*/bin/python{version}")))
        for path in filter(None, found):
            if subprocess.run([path, "-c", ""], capture_output=True, check=False).returncode == 0:
                return path
    pytest.skip(f"there is no Python {' or '.join(versions)} here")


def virtual(folder: Path, python: str) -> Path:
    subprocess.run([python, "-m", "venv", "--without-pip", str(folder)], check=True)
    return folder


@pytest.fixture
def conda(tmp_path: Path) -> Path:
    """The folder of a conda, with environments below `envs`."""
    root = tmp_path / "conda"
    (root / "bin").mkdir(parents=True)
    program = root / "bin" / "conda"
    program.write_text(CONDA.replace("CONDA_PROGRAM", str(program)).replace("ROOT", str(root)))
    program.chmod(0o755)
    return root


def test_a_step_runs_on_the_python_of_its_environment(bench: Bench, conda: Path, tmp_path: Path) -> None:
    other = other_python("3.12", "3.13", "3.10")
    environment = virtual(tmp_path / "venv", other)
    shutil.copytree(environment, conda / "envs" / "torch", symlinks=True)
    path = f"export PATH={conda}/bin:$PATH"
    ways = {
        "venv": {"venv": str(environment)},
        "name": {"conda": "torch", "setup": [path]},
        "path": {"conda": str(conda / "envs" / "torch"), "setup": [f"export CONDA_EXE={conda}/bin/conda"]},
    }
    jobs = {key: bench.job("python", key=key, run=key) for key in ways}
    backends = {key: bench.backend(**options) for key, options in ways.items()}
    for key, job in jobs.items():
        backends[key].submit(job)
    expected = {"venv": environment, "name": conda / "envs" / "torch", "path": conda / "envs" / "torch"}
    for key, job in jobs.items():
        version, prefix = bench.output(bench.end(backends[key], job))
        assert (version, prefix) == (other.rpartition("python")[2], str(expected[key])), key


def test_an_environment_that_cannot_run_a_step_is_the_cause(bench: Bench, conda: Path, tmp_path: Path) -> None:
    old = virtual(tmp_path / "old", other_python("3.8", "3.9", "3.7"))
    (conda / "envs" / "empty" / "bin").mkdir(parents=True)
    (tmp_path / "rc").write_text("(exit 3) || true\nload() { echo no such tool >&2; false; }\nload cuda\n")
    ancient = tmp_path / "python3"  # it cannot even read the worker's first line, as RHEL 8's 3.6
    ancient.write_text("#!/bin/sh\necho 'SyntaxError: future feature annotations is not defined' >&2\nexit 1\n")
    ancient.chmod(0o755)
    path = f"export PATH={conda}/bin:$PATH"
    ways: dict[str, tuple[dict[str, Any], str, str]] = {
        "gone": ({"conda": "nothing", "setup": [path]}, "`conda activate nothing`", "EnvironmentNameNotFound"),
        "absent": ({"conda": "torch"}, "`conda activate torch`", "conda: command not found"),
        "empty": ({"conda": "empty", "setup": [path]}, "`python_fits python", "is not of the environment"),
        "old": ({"venv": str(old)}, "no worker started", "Python"),
        "away": ({"venv": "/nowhere/env"}, "`. /nowhere/env/bin/activate`", "No such file"),
        "sourced": ({"setup": ["true", ". /missing/env.sh"]}, "`. /missing/env.sh`", "No such file"),
        "unset": ({"setup": [": ${MISSING:?is not set}"]}, "`: ${MISSING:?is not set}`", "MISSING: is not set"),
        "leaves": ({"setup": ["exit 0"]}, "`exit 0`", "failed in job"),
        "read": ({"setup": [f". {tmp_path}/rc"]}, f"`. {tmp_path}/rc`", "no such tool"),
        "inside": ({"setup": [path, 'eval "$(conda shell.bash hook)"', "conda activate x"]}, "`conda activate x`", "x"),
        "module": ({"modules": ["cuda/99"]}, "`module load cuda/99` failed", "module: command not found"),
        "missing": ({"python": "/no/python3"}, "no /no/python3 (No such file", "the setting `python`"),
        "ancient": ({"python": str(ancient)}, "is 3.6 or older", "the setting `python`"),
    }
    jobs = {key: bench.job("python", key=key, run=key) for key in ways}
    backends = {key: bench.backend(**options) for key, (options, _, _) in ways.items()}
    for key, job in jobs.items():
        backends[key].submit(job)
    for key, (_, line, words) in ways.items():
        status = bench.end(backends[key], jobs[key])
        assert status.cause == "setup-failed", (key, status)
        assert line in status.message and words in status.message, (key, status.message)
        assert status.message.count("before the step began") <= 1, (key, status.message)
        assert status.message.count("module: command not found") <= 1, "what the shell said of it, once"


def test_a_pickled_step_on_another_python_is_refused_there(bench: Bench, tmp_path: Path) -> None:
    environment = virtual(tmp_path / "venv", other_python("3.12", "3.13", "3.10"))
    job = bench.job("python", key="pickled")
    source = attrs.evolve(job.step.source, kind="pickled", path="", root="", digest="0" * 64)
    job = attrs.evolve(job, step=attrs.evolve(job.step, source=source))
    status = bench.over(bench.backend(venv=str(environment)), job)
    assert status.cause == "setup-failed", status
    assert f"the step is sent as a pickle of Python {sys.version_info[0]}.{sys.version_info[1]}" in status.message


@pytest.mark.parametrize(
    ("options", "docker", "what"),
    [
        ({"conda": "a", "venv": "/b"}, None, "has conda=a and venv=/b"),
        ({"conda": "a", "container": "apptainer"}, "reg/x:1", "runs in an image, and has conda=a"),
        ({"venv": "/b", "python": "/usr/bin/python3"}, None, "has venv=/b and python=/usr/bin/python3"),
        ({"conda": "a", "python": "python3.12"}, None, ""),
    ],
)
def test_one_environment_for_a_step(options: dict[str, Any], docker: str | None, what: str, bench: Bench) -> None:
    image = {"docker": DockerSettings(parent_image=docker, skip_build=True)} if docker else {}
    step = bench.job("python", **image).step
    findings = [one for one in check(step, SlurmSettings(**options), bench.site) if one.code == TWO_ENVIRONMENTS]
    assert [one.level for one in findings] == (["error"] if what else []), os.fspath(bench.site.scratch)
    assert not what or what in findings[0].what
