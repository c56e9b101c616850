"""Packages of a runtime environment on a real Ray: `make packages-ray`.

Not among the tests of `make test`: Ray copies the environment that it runs in for each set of packages, with all that
the tests need, which takes minutes.
"""

from __future__ import annotations

import zipfile
from pathlib import Path

import pytest
from tests.ray.bench import Bench

from stoker.core.settings import ResourceSettings
from stoker.core.status import REFUSED

SMALL = ResourceSettings(cpu_count=0.2)
PATIENCE = 600.0
"""Seconds for an environment: three copies, where its packages are missing."""


def wheel(folder: Path, name: str) -> str:
    """A wheel of a package with one module, so that no index is asked for it."""
    path = folder / f"{name}-1.5-py3-none-any.whl"
    info = f"{name}-1.5.dist-info"
    files = {
        f"{name}.py": "VALUE = 'from the wheel'\n",
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.5\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: tests\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    with zipfile.ZipFile(path, "w") as archive:
        for file, text in files.items():
            archive.writestr(file, text)
        archive.writestr(f"{info}/RECORD", "".join(f"{file},,\n" for file in [*files, f"{info}/RECORD"]))
    return str(path)


@pytest.mark.parametrize("key", ["pip", "uv"])
def test_packages(key: str, bench: Bench, tmp_path: Path) -> None:
    name = f"stoker_{key}_{tmp_path.name.replace('-', '_')}"
    own = {"backend": {"orchestrator": {"runtime_env": {key: [wheel(tmp_path, name)]}}}}
    backend, job = bench.backend(), bench.job("imports", inputs={"name": name}, resources=SMALL, **own)
    backend.submit(job)
    value, prefix = bench.output(bench.end(backend, job, seconds=PATIENCE))
    assert value == "from the wheel" and "runtime_resources" in prefix


def test_a_package_that_is_missing(bench: Bench, tmp_path: Path) -> None:
    own = {"backend": {"orchestrator": {"runtime_env": {"pip": [str(tmp_path / "missing-1.0-py3-none-any.whl")]}}}}
    backend, job = bench.backend(), bench.job("imports", inputs={"name": "json"}, resources=SMALL, **own)
    backend.submit(job)
    status = bench.end(backend, job, seconds=PATIENCE)
    assert status.cause == REFUSED and "missing-1.0" in status.message, status
    waits = [one.message for one in bench.news[job.name] if one.state == "queued"]
    assert any("its runtime environment (pip) is being made" in one for one in waits), waits
