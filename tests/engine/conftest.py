"""`lab`: a folder whose script is run once for all tests of a module, so that many behaviours share a few processes."""

from __future__ import annotations

import contextlib
import io
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

PATIENCE = 200.0
"""Seconds until a script counts as hanging, on a machine that is busy with other tests."""
LOOKS = frozenset({"artifacts", "gc", "logs", "metrics", "models", "runs", "show", "why"})
"""Commands that execute no program of the folder: they are called in this process."""


class Driver:
    """A script that still runs: what it writes, line by line, and a way to signal it."""

    def __init__(self, argv: list[str], folder: Path, env: dict[str, str]) -> None:
        self.process = subprocess.Popen(
            argv, cwd=folder, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace"
        )
        self.lines: list[str] = []
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.lines.append(line.rstrip("\n"))

    def signal(self, number: int = signal.SIGINT) -> None:
        self.process.send_signal(number)

    def until(self, what: Callable[[], Any], seconds: float = PATIENCE) -> Any:
        """Wait until something is so, while the script runs; what it wrote is shown if that never comes."""
        deadline = time.monotonic() + seconds
        while True:
            found = what()
            if found:
                return found
            assert time.monotonic() < deadline, "it never came\n" + self.text()
            assert self.process.poll() is None or what(), "the script ended before\n" + self.text()
            time.sleep(0.01)

    def until_written(self, text: str) -> None:
        self.until(lambda: any(text in line for line in self.lines))

    def wait(self, code: int | None = 0, seconds: float = PATIENCE) -> str:
        """All that it wrote, once it ended with `code` (None: any)."""
        try:
            ended = self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            self.process.kill()
            raise
        self._reader.join()
        assert code is None or ended == code, f"ended with {ended} instead of {code}\n{self.text()}"
        return self.text()

    def text(self) -> str:
        return "\n".join(self.lines)

    def close(self) -> None:
        """End it whatever it does, its fork server and workers by its death."""
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        self._reader.join()
        assert self.process.stdout is not None
        self.process.stdout.close()


class Lab:
    """A folder of somebody's code with a store of its own, and words for running it and looking at its runs."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "project"
        self.folder.mkdir()
        self.home = folder / "home"
        self._drivers: list[Driver] = []
        self._client: Any = None

    def write(self, name: str, text: str) -> Lab:
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(textwrap.dedent(text).lstrip("\n"), encoding="utf-8")
        return self

    def start(self, *argv: str, env: dict[str, str] | None = None) -> Driver:
        """`python argv…` in the folder, without waiting for it; "stoker" as the first word is that program."""
        program = [sys.executable]
        if argv[0] == "stoker":
            program, argv = [str(Path(sys.executable).with_name("stoker"))], argv[1:]
        whole = {**os.environ, "STOKER_HOME": str(self.home), "PYTHONUNBUFFERED": "1", **(env or {})}
        driver = Driver([*program, *argv], self.folder, whole)
        self._drivers.append(driver)
        return driver

    def run(self, *argv: str, code: int | None = 0, env: dict[str, str] | None = None) -> str:
        """`python argv…` to its end; what it wrote on both streams."""
        if argv[0] == "stoker" and argv[1] in LOOKS and not env:
            return self.look(*argv[1:], code=code)
        return self.start(*argv, env=env).wait(code)

    def look(self, *words: str, code: int | None = 0) -> str:
        """What a command of Stoker's wrote that is called in this process."""
        from stoker.cli.main import invoke

        written = io.StringIO()
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("STOKER_HOME", str(self.home))
            patch.chdir(self.folder)
            with contextlib.redirect_stdout(written), contextlib.redirect_stderr(written):
                ended = invoke(words)
        assert code is None or ended == code, f"ended with {ended} instead of {code}\n{written.getvalue()}"
        return written.getvalue()

    @property
    def client(self) -> Any:
        """`stoker.Client()` on the folder's store."""
        if self._client is None:
            import stoker

            with pytest.MonkeyPatch.context() as patch:
                patch.setenv("STOKER_HOME", str(self.home))
                client = stoker.Client()
                client.store.records  # noqa: B018 opened here, while the variable is set
            self._client = client
        return self._client

    def __getitem__(self, pipeline: str) -> Any:
        """The newest run of a pipeline."""
        runs = self.client.runs(pipeline=pipeline, limit=1)
        assert runs, f"no run of '{pipeline}' in {self.client.runs()}"
        return runs[0]

    def read(self, name: str) -> list[str]:
        """The lines of a file in the folder; none where there is no file."""
        path = self.folder / name
        return path.read_text().splitlines() if path.exists() else []

    def close(self) -> None:
        for driver in self._drivers:
            driver.close()
        if self._client is not None:
            self._client.close()


@pytest.fixture(scope="module")
def module_lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    """A lab for all tests of a module."""
    lab = Lab(tmp_path_factory.mktemp("lab"))
    yield lab
    lab.close()


@pytest.fixture(scope="module")
def module_lab_of(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], Lab]]:
    """Makes labs for the tests of a module, each with a name."""
    made: list[Lab] = []

    def make(name: str) -> Lab:
        made.append(Lab(tmp_path_factory.mktemp(name)))
        return made[-1]

    yield make
    for lab in made:
        lab.close()


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[Lab]:
    """A lab for one test."""
    lab = Lab(tmp_path)
    yield lab
    lab.close()


@pytest.fixture
def gone() -> Callable[[int], bool]:
    """Whether a process is no more, or soon; a zombie that init has yet to reap counts as gone."""

    def look(pid: int) -> bool:
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            try:
                if psutil.Process(pid).status() == psutil.STATUS_ZOMBIE:
                    return True
            except psutil.NoSuchProcess:
                return True
            time.sleep(0.01)
        return False

    return look
