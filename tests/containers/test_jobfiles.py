"""Rights of the files that containers get."""

from __future__ import annotations

import os
import threading
from pathlib import Path

from stoker.backends.docker.jobfiles import open_to_all


def test_stokers_code_is_opened_while_somebody_compiles_it(tmp_path: Path) -> None:
    code = tmp_path / "boot.py"
    code.write_text("")
    code.chmod(0o600)
    over = threading.Event()

    def compile_again_and_again() -> None:
        while not over.is_set():
            for number in range(50):
                beside = tmp_path / f"boot.pyc.{number}"
                beside.touch()
                os.replace(beside, tmp_path / f"boot-{number}.pyc")

    compiling = threading.Thread(target=compile_again_and_again)
    compiling.start()
    try:
        for _ in range(200):
            open_to_all(str(tmp_path))
    finally:
        over.set()
        compiling.join()
    assert code.stat().st_mode & 0o777 == 0o644
