"""The worker's wheel and its bundle: made of this checkout, without a network, and really used."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
import sys
import venv
import zipfile
from email.parser import Parser
from pathlib import Path

import pytest

from stoker.images import wheel
from stoker.images.wheel import VENDORED, compile_bundle, driver_bundle, worker_bundle, worker_wheel

CLEAN = ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV")


@pytest.fixture(scope="session")
def bundle(made_wheels: Path) -> Path:
    """The bundle that the session's other tests use, compiled."""
    return worker_bundle(made_wheels)


@pytest.fixture(scope="module")
def bare(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The Python of an environment in which nothing is installed but pip."""
    folder = tmp_path_factory.mktemp("bare")
    venv.create(folder, with_pip=True, symlinks=True)
    return folder / "bin" / "python"


def run(python: Path, *arguments: str, path: str = "") -> str:
    environment = {name: value for name, value in os.environ.items() if name not in CLEAN}
    environment.update({"PYTHONPATH": path} if path else {})
    finished = subprocess.run([python, *arguments], env=environment, capture_output=True, text=True, check=False)
    assert finished.returncode == 0, finished.stdout + finished.stderr
    return finished.stdout


def test_the_wheel_is_the_same_every_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = worker_wheel(tmp_path / "one"), worker_wheel(tmp_path / "two")
    assert first.name == second.name and first.read_bytes() == second.read_bytes()
    before = first.stat()
    assert worker_wheel(tmp_path / "one").stat() == before  # it is not written again
    assert re.fullmatch(r"stoker-[\d.]+\+g[0-9a-f]{12}-py3-none-any\.whl", first.name)
    files = dict(wheel._package_files())
    monkeypatch.setattr(wheel, "_package_files", lambda: iter({**files, "core/new.py": b"x = 1\n"}.items()))
    assert worker_wheel(tmp_path / "one").name != first.name


def test_the_wheel_is_whole(tmp_path: Path, repository: Path) -> None:
    with zipfile.ZipFile(worker_wheel(tmp_path)) as archive:
        assert archive.testzip() is None
        names = archive.namelist()
        info = next(name.partition("/")[0] for name in names if name.endswith("/RECORD"))
        listed = [line.rsplit(",", 2) for line in archive.read(f"{info}/RECORD").decode().splitlines()]
        about = Parser().parsestr(archive.read(f"{info}/METADATA").decode())
        for name, _, size in listed:
            assert size == "" if name.endswith("RECORD") else int(size) == len(archive.read(name))
    assert [row[0] for row in listed] == names and len(set(names)) == len(names)
    source = repository / "src" / "stoker"
    there = {path.relative_to(source).as_posix() for path in source.rglob("*.py")}
    assert there == {name.removeprefix("stoker/") for name in names if name.endswith(".py")}
    assert not [name for name in names if "__pycache__" in name]
    assert any(line.startswith("attrs>=") for line in about.get_all("Requires-Dist"))
    assert info == f"stoker-{about['Version']}.dist-info"


def test_the_wheel_installs_offline_and_works(tmp_path: Path, bare: Path) -> None:
    made = worker_wheel(tmp_path)
    run(bare, "-m", "pip", "install", "--no-index", "--no-deps", "--no-compile", "--quiet", str(made))
    version = made.name.split("-")[1]
    asked = "import importlib.metadata as m, stoker, pathlib; print(m.version('stoker'), pathlib.Path(stoker.__file__))"
    said, place = run(bare, "-c", asked).split()
    assert said == version and Path(place).is_relative_to(bare.parents[1])
    # What it declares is what is installed here: with that beside it, the worker and the command line start.
    here = next(path for path in sys.path if path.endswith("site-packages"))
    run(bare, "-c", "import stoker.worker.worker, stoker.cli.main", path=here)
    command = subprocess.run(
        [bare.with_name("stoker"), "--version"],
        env={**os.environ, "PYTHONPATH": here},
        capture_output=True,
        text=True,
        check=False,
    )
    assert command.returncode == 0, command.stderr
    run(bare, "-m", "pip", "uninstall", "--quiet", "--yes", "stoker")


def test_the_bundle_needs_nothing_installed(bundle: Path, bare: Path) -> None:
    program = (
        "import stoker.worker.worker, stoker.worker.agent, stoker.backends.base.messages, stoker.store.remote\n"
        "import attr, fsspec, cloudpickle, pynvml, sys\n"
        "from stoker.core.codec import from_json\n"
        "from stoker.core.docker import DockerSettings\n"
        "print(from_json(DockerSettings, {'user': 'me'}, strict=True).user, attr.__file__)\n"
    )
    user, place = run(bare, "-c", program, path=str(bundle)).split()
    assert user == "me" and place.startswith(f"{bundle}/{VENDORED}/")
    assert run(bare, "-c", "import importlib.metadata as m; print(m.version('stoker'))", path=str(bundle)).strip()


def test_a_driver_runs_from_its_bundle(tmp_path: Path, bare: Path) -> None:
    """Without psutil and other compiled packages; transports of artifacts are found, too."""
    bundle = driver_bundle(tmp_path / "wheels")
    assert driver_bundle(tmp_path / "wheels") == bundle
    assert not [path for path in bundle.rglob("*") if path.suffix in wheel.COMPILED]
    assert run(bare, "-m", "stoker", "runs", "--json", path=str(bundle)).strip() == "[]"
    program = "import stoker, yaml, stoker.run.driver, stoker.backends.kubernetes.backend, sys; "
    program += "from stoker.store.transport import *; from importlib import metadata as m; "
    program += "print([p.name for p in m.entry_points(group='stoker.transports')], 'psutil' in sys.modules)"
    assert run(bare, "-c", program, path=str(bundle)).strip() == "['pvc'] False"


def test_the_images_own_packages_go_first(tmp_path: Path, bundle: Path, bare: Path) -> None:
    own = tmp_path / "own"
    (own / "fsspec").mkdir(parents=True)
    (own / "fsspec" / "__init__.py").write_text("mine = True\n")
    # An environment's own packages come after PYTHONPATH, and still before what the bundle brings.
    program = f"import sys; sys.path.append({str(own)!r}); import stoker, fsspec; print(fsspec.mine)"
    assert run(bare, "-c", program, path=str(bundle)).strip() == "True"


def test_the_bundle_is_made_once(tmp_path: Path) -> None:
    first = worker_bundle(tmp_path)
    before = (first / "stoker" / "__init__.py").stat()
    assert worker_bundle(tmp_path) == first
    assert (first / "stoker" / "__init__.py").stat() == before
    assert [path.name for path in tmp_path.iterdir()] == [first.name]
    assert worker_bundle(tmp_path / "other").name == first.name
    assert first.stat().st_mode & 0o755 == 0o755
    assert not [path for path in first.rglob("*") if path.suffix in (".so", ".pyd", ".pyc")], "it is pure Python"


def test_the_bundle_is_compiled_once_and_an_import_finds_it(tmp_path: Path, bundle: Path) -> None:
    bundle = shutil.copytree(bundle, tmp_path / "bundle")
    compiled = Path(importlib.util.cache_from_source(str(bundle / "stoker" / "worker" / "pool.py")))
    words = [sys.executable, "-v", "-c", "import stoker.worker.pool"]
    environment = {"PATH": os.environ["PATH"], "PYTHONPATH": str(bundle)}
    done = subprocess.run(words, env=environment, capture_output=True, text=True, check=True, cwd=tmp_path)
    assert f"# {compiled} matches {bundle / 'stoker/worker/pool.py'}" in done.stderr
    compiled.unlink()
    compile_bundle(bundle)
    assert not compiled.exists(), "it was compiled already"


def test_the_bundle_refuses_an_old_python_in_words(bundle: Path) -> None:
    program = "import sys; sys.version_info = (3, 9, 18); import stoker"
    path = {"PYTHONPATH": str(bundle)}
    refused = subprocess.run(
        [sys.executable, "-S", "-c", program], env=path, capture_output=True, text=True, check=False
    )
    assert refused.returncode == 1
    assert refused.stderr == f"{sys.executable} is Python 3.9: a step needs Python 3.10 or later\n"


def test_a_compiled_package_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wheel, "DEPENDENCIES", ("psutil",))
    with pytest.raises(Exception, match=r"psutil is installed here with compiled parts"):
        worker_bundle(tmp_path)
