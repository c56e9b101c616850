"""The wheel, installed as people install it: on each Python, with each extra alone, with the oldest packages it allows.

`python -m tests.distributions pythons|extras|lowest`. Each environment is new, below build/distributions, made by uv
from the wheel. Every program of Stoker's runs with warnings as errors.
"""

from __future__ import annotations

import importlib.metadata
import json
import os
import shutil
import subprocess
import sys
import textwrap
from collections.abc import Iterable
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[1]
FOLDER = REPOSITORY / "build" / "distributions"
PYTHONS = ("3.10", "3.11", "3.12", "3.13", "3.14")
"""The Pythons that Stoker is made for."""
SUITE = ("tests/core", "tests/pipelines", "tests/engine", "tests/flows")
"""The tests that run with each Python whole; of all others, those that cost little."""
_UV = str(Path(sys.executable).with_name("uv"))
BARE = "nothing but the wheel"
FLOW = """
from stoker.flow import FlowSpec, step

class Squares(FlowSpec):
    @step
    def start(self):
        self.items = [1, 2, 3]
        self.next(self.square, foreach="items")

    @step
    def square(self):
        self.value = self.input ** 2
        self.next(self.join)

    @step
    def join(self, inputs):
        self.total = sum(one.value for one in inputs)
        self.next(self.end)

    @step
    def end(self):
        print("total", self.total)

if __name__ == "__main__":
    Squares()
"""
FAILS_ONCE = """
from pathlib import Path
from stoker import pipeline, step

@step
def first() -> int:
    return 20

@step
def second(value: int) -> int:
    if not Path("mended").exists():
        raise ValueError("not yet")
    return value * 2

@pipeline
def resumed():
    second(first())

if __name__ == "__main__":
    resumed()
"""
MODULES = """
import importlib, json, pkgutil, stoker

missing = {}
for module in pkgutil.walk_packages(stoker.__path__, "stoker.", onerror=lambda name: None):
    if not module.name.endswith("__main__"):
        try:
            importlib.import_module(module.name)
        except ImportError as error:
            missing[module.name] = (error.name or str(error)).partition(".")[0]
print(json.dumps(missing))
"""
"""Prints which of Stoker's modules lack which package."""


def interpreters() -> dict[str, str]:
    """Version → an interpreter of it on PATH or among pyenv's."""
    found = {}
    versions = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    for version in PYTHONS:
        on_path = [shutil.which(f"python{version}", path=folder) for folder in os.get_exec_path()]
        for path in filter(None, [*on_path, *map(str, versions.glob(f"{version}*/bin/python"))]):
            command = [path, "-c", "import sys; print(sys.version)"]
            asked = subprocess.run(command, check=False, capture_output=True, text=True)
            if asked.stdout.startswith(f"{version}."):  # pyenv's shims are there for what they do not start
                found[version] = path
                break
    return found


def wheel() -> Path:
    """The wheel of this checkout, built now."""
    shutil.rmtree(FOLDER, ignore_errors=True)
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(FOLDER)]
    subprocess.run(command, cwd=REPOSITORY, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    return next(FOLDER.glob("*.whl"))


def environment(name: str, python: str, *install: str) -> Path:
    """The `bin` of a new environment with what `uv pip install` takes."""
    folder = FOLDER / name
    subprocess.run([_UV, "--quiet", "venv", "--no-python-downloads", "--python", python, folder], check=True)
    subprocess.run([_UV, "--quiet", "pip", "install", "--python", folder / "bin" / "python", *install], check=True)
    return folder / "bin"


def program(binaries: Path, *words: str, code: int = 0, folder: Path | None = None) -> str:
    """What a program of an environment prints; its exit code must be the expected one, and it must not warn."""
    home = binaries.parent / "home"
    env = {**os.environ, "STOKER_HOME": str(home), "PYTHONWARNINGS": "error", "PYTHONPATH": ""}
    command, place = [binaries / words[0], *words[1:]], folder or binaries.parent
    done = subprocess.run(command, check=False, env=env, cwd=place, capture_output=True, text=True)
    if done.returncode != code or "Warning" in done.stderr:
        raise SystemExit(f"{' '.join(words)} in {binaries.parent}: {done.returncode}\n{done.stdout}{done.stderr}")
    return done.stdout + done.stderr


def works(binaries: Path) -> None:
    """A new project runs, a flow runs, a failed run is resumed, and the commands answer."""
    place = binaries.parent
    (place / "squares.py").write_text(textwrap.dedent(FLOW))
    (place / "resumed.py").write_text(textwrap.dedent(FAILS_ONCE))
    program(binaries, "stoker", "init", "mine")
    program(binaries, "stoker", "run", folder=place / "mine")
    assert "total 14" in program(binaries, "python", "squares.py", "run")
    program(binaries, "python", "resumed.py", code=1)
    (place / "mended").touch()
    assert "succeeded" in program(binaries, "stoker", "resume", "last")
    for command in (["runs"], ["show", "last"], ["--version"], ["devices"], ["plan", "resumed.py"]):
        program(binaries, "stoker", *command)


def suite(binaries: Path, *arguments: str) -> None:
    """Tests of the checkout, with the environment's Stoker."""
    command = [binaries / "python", "-m", "pytest", "-q", "-n", str(os.cpu_count() or 2), "--dist", "loadgroup"]
    subprocess.run([*command, *arguments], cwd=REPOSITORY, check=True)


def pythons() -> None:
    """On each Python that is found."""
    built, found = wheel(), interpreters()
    for version, python in found.items():
        works(environment(f"bare-{version}", python, str(built)))
        binaries = environment(version, python, f"{built}[test]")
        suite(binaries, "--cheap")
        suite(binaries, *SUITE)
    print("proved on", ", ".join(found), "· not found:", ", ".join(sorted({*PYTHONS} - {*found})) or "none")


def extras() -> None:
    """With each extra that is for users alone, and with none: all works, and modules lack at most other packages."""
    built = wheel()
    lacking: dict[str, dict[str, str]] = {}
    for extra in (BARE, *_extras_of_users()):
        requirement = str(built) if extra == BARE else f"{built}[{extra}]"
        binaries = environment(extra.partition(" ")[0], sys.executable, requirement)
        works(binaries)
        missing = lacking[extra] = json.loads(program(binaries, "python", "-c", MODULES))
        own = {name: package for name, package in missing.items() if package == "stoker"}
        assert not own, f"with {extra}: {own}"
        assert missing.items() <= lacking[BARE].items(), f"with {extra}, modules lack more than without"
        print(extra, "· modules that lack another package:", len(missing))


def lowest() -> None:
    """With the oldest packages that pyproject.toml allows, on the oldest Python that is found; later ones lack wheels
    of them."""
    version, python = next(iter(interpreters().items()))
    built, project = wheel(), str(REPOSITORY / "pyproject.toml")
    extras = [word for extra in _extras_of_users() for word in ("--extra", extra)]
    for name, words in (("lowest", []), ("lowest-with-extras", extras)):
        binaries = environment(name, python, "--resolution", "lowest-direct", "-r", project, *words)
        subprocess.run([_UV, "--quiet", "pip", "install", "--python", binaries / "python", built], check=True)
        works(binaries)
    print("proved with the oldest packages on", version)


def _extras_of_users() -> Iterable[str]:
    ours = importlib.metadata.metadata("stoker").get_all("Provides-Extra") or []
    return sorted({*ours} - {"bench", "demo", "docs", "test"})


if __name__ == "__main__":
    {"pythons": pythons, "extras": extras, "lowest": lowest}[sys.argv[1]]()
