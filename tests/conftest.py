"""What every test gets: a store of its own, a home that is not yours, and `project`, a folder to run programs in.

Nothing of Stoker is imported here, so that a broken module fails its own tests only.
"""

from __future__ import annotations

import gc
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import textwrap
from collections.abc import Generator, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from tests import forks
from tests.servers.containers import base_image, engine, registry  # noqa: F401  # fixtures: a real container engine
from tests.times import pytest_runtest_makereport, pytest_runtest_protocol  # noqa: F401  # hooks: what each test costs
from tests.wheels import made_wheels, used_home  # noqa: F401  # fixtures: what travels, made once
from tests.workers import (  # noqa: F401  # hooks: how tests are dealt out to several workers, and what is said of them
    pytest_collection_modifyitems,
    pytest_configure_node,
    pytest_runtest_setup,
    pytest_runtest_teardown,
    pytest_terminal_summary,
    pytest_xdist_make_scheduler,
)

# How long examples take says nothing on a machine that does other work too.
settings.register_profile("stoker", deadline=None, suppress_health_check=[HealthCheck.too_slow], max_examples=40)
settings.register_profile("long", settings.get_profile("stoker"), max_examples=400)
settings.load_profile("stoker")

STOKER = str(Path(sys.executable).with_name("stoker"))
REPOSITORY = Path(__file__).resolve().parents[1]
"""The checkout; tests that look at its files use the fixture `repository`."""


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Collect without the garbage collector, which would go through nine thousand tests again and again."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()
        gc.freeze()


def pytest_addoption(parser: pytest.Parser) -> None:
    """The switches for what `make test-all` adds to the tests, `make check` leaves out and `make test-times` notes."""
    parser.addoption("--long", action="store_true", help="run storms, large runs and drawn inputs in their long form")
    parser.addoption("--cheap", action="store_true", help="leave out what is slow, shared or runs programs")
    parser.addoption("--times", metavar="FILE", help="append what each test costs to a file, a line of JSON each")


def pytest_configure(config: pytest.Config) -> None:
    """With `--long` hypothesis draws ten times as many examples."""
    if config.getoption("--long"):
        settings.load_profile("long")


@pytest.fixture(scope="session")
def long_form(request: pytest.FixtureRequest) -> bool:
    """Whether tests that draw what they do draw as much as they can: with `--long`, as `make test-all` has it."""
    return bool(request.config.getoption("--long"))


@pytest.fixture(scope="session")
def repository() -> Path:
    """The root of the checkout."""
    return REPOSITORY


@pytest.fixture(scope="session", autouse=True)
def _strange_home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """HOME is an empty folder, and Stoker leaves nothing in it when STOKER_HOME says where to write."""
    home = tmp_path_factory.mktemp("home")
    # Started in the background or by nohup, pytest ignores Ctrl-C or the end of its terminal, and all that tests start
    # would, too. A handler is not handed down.
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
        signal.signal(signal.SIGHUP, lambda number, frame: None)
    with pytest.MonkeyPatch.context() as patch:
        for name in [name for name in os.environ if name.startswith(("STOKER_", "XDG_")) and name != "STOKER_SYSTEM"]:
            patch.delenv(name)
        # Workers of pytest-xdist have it; what a program writes into a pipe is whole without it.
        patch.delenv("COLUMNS", raising=False)
        patch.setenv("HOME", str(home))
        patch.setenv("MPLBACKEND", "agg")
        # No plan of a test asks an index that is not the test's own.
        patch.setenv("STOKER_OFFLINE", "1")
        # A loaded machine is no reason why a plan of a test does not know what a server here says.
        patch.setenv("STOKER_PLAN_SECONDS", "60")
        # Torch and numpy in several processes at once: a thread pool in each would only get in the others' way.
        patch.setenv("OMP_NUM_THREADS", "1")
        yield home
        assert not (home / ".stoker").exists(), "a test wrote to the home folder instead of STOKER_HOME"


@pytest.fixture(autouse=True)
def stoker_home(tmp_path: Path) -> Iterator[Path]:
    """The test's own store, for this process and for all that it starts; the working folder must be left as found."""
    home = tmp_path / "stoker-home"
    before = os.getcwd()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("STOKER_HOME", str(home))
        patch.setenv("STOKER_LEASES", str(tmp_path / "stoker-leases"))
        yield home
    after = os.getcwd()
    os.chdir(before)
    assert after == before, f"the test left the process in {after}"


class Project:
    """A folder of somebody's code, run as they would run it: in processes of their own, with this Python."""

    def __init__(self, folder: Path, home: Path) -> None:
        self.folder = folder
        self.home = home
        folder.mkdir(parents=True, exist_ok=True)

    def write(self, files: Mapping[str, str]) -> Project:
        """Write files by relative path; their text is dedented."""
        for name, text in files.items():
            path = self.folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(textwrap.dedent(text).lstrip("\n"), encoding="utf-8")
        return self

    def run(self, script: str, *arguments: str, **options: Any) -> subprocess.CompletedProcess[str]:
        """`python script arguments…` in the folder; options as for `command`."""
        return self.command([sys.executable, script, *arguments], **options)

    def stoker(self, *arguments: str, **options: Any) -> subprocess.CompletedProcess[str]:
        """`stoker arguments…` in the folder; options as for `command`."""
        return self.command([STOKER, *arguments], **options)

    def command(
        self,
        argv: list[str],
        *,
        code: int | None = 0,
        env: Mapping[str, str] | None = None,
        input: str | None = None,
        timeout: float = 200.0,
    ) -> subprocess.CompletedProcess[str]:
        """Run a command to its end and expect an exit code (None: any); its output is shown if another one comes.

        Scripts and `stoker` are forked from an interpreter that has imported Stoker, where that makes no difference.
        """
        variables = {**os.environ, "STOKER_HOME": str(self.home), **(env or {})}
        words = [sys.executable, *argv] if argv[0] == STOKER else argv
        finished = None
        if words[0] == sys.executable and words[1].endswith((".py", STOKER)):
            finished = forks.run(words, cwd=self.folder, env=variables, input=input or "", timeout=timeout)
        finished = finished or subprocess.run(
            argv,
            cwd=self.folder,
            env=variables,
            input=input,
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
        )
        if code is not None and finished.returncode != code:
            pytest.fail(
                f"{' '.join(argv)}\nended with {finished.returncode} instead of {code}\n"
                f"--- stdout\n{finished.stdout}\n--- stderr\n{finished.stderr}"
            )
        return finished

    def rows(self, query: str, *values: Any) -> list[dict[str, Any]]:
        """What a query finds in the store's database, read beside Stoker, as an outsider would."""
        # By their names: reading a file and closing it would take the locks of this process's own connections to it.
        databases = [path for path in self.home.rglob("*.db") if path.is_file()]
        assert len(databases) == 1, f"expected one database in {self.home}, found {databases}"
        connection = sqlite3.connect(databases[0])
        try:
            connection.row_factory = sqlite3.Row
            return [dict(row) for row in connection.execute(query, values)]
        finally:
            connection.close()

    def client(self) -> Any:
        """`stoker.Client()` in this process, on the same store as the project's runs."""
        import stoker

        return stoker.Client()


@pytest.fixture
def project(tmp_path: Path, stoker_home: Path) -> Iterator[Project]:
    """An empty `Project`: `project.write({"train.py": "…"}).run("train.py")`."""
    folder = tmp_path / "project"
    yield Project(folder, stoker_home)
    shutil.rmtree(folder, ignore_errors=True)
