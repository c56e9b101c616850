"""`mypy --strict` over the package, with the settings of pyproject.toml."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.slow  # half a minute without its cache
@pytest.mark.xdist_group("mypy")
def test_types(repository: Path) -> None:
    finished = subprocess.run(
        [sys.executable, "-m", "mypy", "--no-error-summary"],
        cwd=repository,
        capture_output=True,
        text=True,
        check=False,
    )
    assert finished.returncode == 0, finished.stdout + finished.stderr
