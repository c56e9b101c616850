"""Runtime environments on a real cluster: what the worker's Python has, the step's has, too."""

from __future__ import annotations

import zipfile
from pathlib import Path
from typing import Any

from tests.ray.bench import Bench

from stoker.core.settings import ResourceSettings
from stoker.core.status import REFUSED

SMALL = ResourceSettings(cpu_count=0.2)


def archive(path: Path, **modules: str) -> str:
    """A zip with modules in a folder of its own, as Ray wants packages; its URI."""
    with zipfile.ZipFile(path, "w") as file:
        for name, text in modules.items():
            file.writestr(f"top/{name}.py", text)
    return f"file://{path}"


def test_what_ray_cannot_make_is_refused_in_its_words(bench: Bench, tmp_path: Path) -> None:
    environments: dict[str, dict[str, Any]] = {
        "modules": {"py_modules": [f"file://{tmp_path}/missing.zip"]},
        "conda": {"conda": "no-such-environment"},
    }
    jobs = [
        bench.job(
            "imports", key=key, inputs={"name": "json"}, resources=SMALL, backend={"orchestrator": {"runtime_env": one}}
        )
        for key, one in environments.items()
    ]
    modules, conda = bench.all_over(bench.backend(), jobs)
    assert (modules.cause, conda.cause) == (REFUSED, REFUSED)
    assert "RuntimeEnvSetupError" in modules.message and "missing.zip" in modules.message, modules.message
    assert "Traceback" not in conda.message and "'conda'" in conda.message, conda.message


def test_folders_and_variables(bench: Bench, tmp_path: Path) -> None:
    runtime_env = {
        "working_dir": archive(tmp_path / "work.zip", in_working_dir="VALUE = 'w'\n"),
        "py_modules": [archive(tmp_path / "modules.zip", in_py_modules="VALUE = 'm'\n")],
        "env_vars": {"STEP_WORD": "a b"},
    }
    own = {"backend": {"orchestrator": {"runtime_env": runtime_env}}}
    names = ["in_working_dir", "in_py_modules"]
    jobs = [bench.job("imports", key=name, inputs={"name": name}, resources=SMALL, **own) for name in names]
    word = bench.job("variable", inputs={"name": "STEP_WORD"}, resources=SMALL, **own)
    *imported, status = bench.all_over(bench.backend(), [*jobs, word])
    assert [bench.output(one)[0] for one in imported] == ["w", "m"]
    assert bench.output(status) == "a b"
