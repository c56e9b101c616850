"""Packages that steps ask for: refused where they are missing here, or had in environments that are really made."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.flows import indexes

FLOW = """
import os, sys
from stoker.flow import FlowSpec, current, pypi, pypi_base, retry, step

@pypi_base(packages={"six": "1.14.0"}, python="PYTHON")
class Packed(FlowSpec):
    @step
    def start(self):
        import six
        self.base = six.__version__
        self.place = sys.prefix
        self.parts = [1, 2, 3]
        self.next(self.each, foreach="parts")

    @retry(times=1)
    @pypi(packages={"six": "1.15.0"})
    @step
    def each(self):
        import six
        if self.input == 2 and current.retry_count == 0:
            os.kill(os.getpid(), 9)
        self.own = six.__version__
        self.scripts = os.environ["PATH"].partition(os.pathsep)[0]
        print("task", self.input, six.__version__)
        self.next(self.join)

    @pypi(disabled=True)
    @step
    def join(self, inputs):
        self.merge_artifacts(inputs, include=["base", "place", "own"])
        self.driver = sys.prefix
        if os.path.exists("fail"):
            raise ValueError("not yet")
        self.next(self.end)

    @pypi(disabled=True)
    @step
    def end(self):
        pass

if __name__ == "__main__":
    Packed()
""".replace("PYTHON", f"{sys.version_info.major}.{sys.version_info.minor}")

STEPS = """
import os, sys
from stoker import pipeline, step

@step(packages=PACKAGES)
def look() -> list:
    import tiny
    print("found", tiny.__file__)
    return [tiny.VERSION, sys.prefix, "%d.%d" % sys.version_info[:2]]

@pipeline
def looking():
    look()

if __name__ == "__main__":
    run = looking()
    print(run.steps["look"].output.load())
"""


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> indexes.Index:
    """An index of Python packages in a folder, with two versions of `tiny`."""
    found = indexes.Index(tmp_path_factory.mktemp("index"))
    for version in ("1.0", "2.0"):
        found.put("tiny", version, f"VERSION = {version!r}\n")
    return found


def program(index: indexes.Index, **packages: Any) -> str:
    """A pipeline whose step asks for packages of the index."""
    asked = {"pypi": {"tiny": "1.0"}, "environment": "pypi", "index_url": index.url, **packages}
    return STEPS.replace("PACKAGES", repr(asked))


@pytest.fixture
def local(project: Any, index: indexes.Index) -> Callable[..., Any]:
    """Writes such a pipeline."""
    return lambda **packages: project.write({"train.py": program(index, **packages)})


@pytest.fixture(scope="module")
def drivers(module_project: Any, index: indexes.Index) -> tuple[Any, list[tuple[str, str]]]:
    """A project, and what two drivers said that needed its environment at once."""
    module_project.write({"train.py": program(index)})
    started = [
        subprocess.Popen(
            [sys.executable, "train.py"],
            cwd=module_project.folder,
            env={**os.environ, "STOKER_HOME": str(module_project.home)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for _ in range(2)
    ]
    said = [driver.communicate(timeout=200) for driver in started]
    assert [driver.returncode for driver in started] == [0, 0], said
    return module_project, said


@pytest.fixture
def made(drivers: tuple[Any, Any], index: indexes.Index, within: Callable[[Any], Any]) -> Any:
    """That project, whose environment is there."""
    return within(drivers[0].write({"train.py": program(index)}))


def environments(project: Any) -> list[Path]:
    return sorted(path for path in (project.home / "environments").glob("*") if path.is_dir())


def without(*programs: str) -> str:
    """PATH without the folders that have one of these programs."""
    folders = os.environ["PATH"].split(os.pathsep)
    return os.pathsep.join(folder for folder in folders if not any(Path(folder, name).exists() for name in programs))


def test_without_the_flag_what_is_missing_stops_the_run(project: Any) -> None:
    project.write({"packed.py": FLOW})
    for words in (["run"], ["run", "--environment=local"], ["check"]):
        refused = project.run("packed.py", *words, code=3)
        said = refused.stdout + refused.stderr
        assert "STK114" in said and "step 'each': asks for six==1.15.0 (packed.py:15 @pypi); here is" in said
        assert "--environment=pypi" in said and "pip install 'six==1.15.0'" in said, "both ways on are named"
    assert not environments(project) and not project.client().runs()
    wrong = project.run("packed.py", "run", "--environment=pipy", code=2)
    assert "'pipy' is not one of local, pypi, conda, uv" in wrong.stderr


@pytest.mark.slow
def test_a_flow_with_packages_of_the_index(project: Any) -> None:
    project.write({"packed.py": FLOW, "fail": ""})
    planned = project.stoker("plan", "packed.py", "--environment=pypi").stdout
    assert "six==1.15.0, in environment " in planned, planned
    failed = project.run("packed.py", "run", "--environment=pypi", code=1)
    assert failed.stderr.count("made the environment of step") == 2, failed.stderr
    assert failed.stderr.index("made the environment of step 'each'") < failed.stderr.index("start succeeded")
    (project.folder / "fail").unlink()
    resumed = project.run("packed.py", "resume")
    assert "made the environment" not in resumed.stderr, "each is made once, and resuming keeps --environment"
    run = project.client().runs()[0]
    found = {name: run.steps["join"].outputs[name].load() for name in ("base", "own", "place", "driver")}
    assert (found["base"], found["own"], found["driver"]) == ("1.14.0", "1.15.0", sys.prefix)
    assert Path(found["place"]) in environments(project) and len(environments(project)) == 2
    failed_run = project.client().run(run.origin)
    tasks = [failed_run.steps[f"each[{number}]"] for number in range(3)]
    assert [len(task.attempts) for task in tasks] == [1, 2, 1]
    assert [line.text for line in tasks[2].logs()] == ["task 3 1.15.0"]
    assert tasks[0].outputs["scripts"].load() in {str(path / "bin") for path in environments(project)}


def test_two_drivers_at_once_make_it_once(drivers: tuple[Any, list[tuple[str, str]]]) -> None:
    project, said = drivers
    assert all("1.0" in out for out, _ in said)
    assert sum(err.count("made the environment of step 'look'") for _, err in said) == 1, said
    assert environments(project)


def test_half_of_one_is_never_used(local: Any) -> None:
    project = local()
    driver = subprocess.Popen(
        [sys.executable, "train.py"], cwd=project.folder, stderr=subprocess.DEVNULL, start_new_session=True
    )
    end = time.monotonic() + 100
    while not any((place / "bin" / "python").exists() for place in environments(project)):
        assert driver.poll() is None and time.monotonic() < end
        time.sleep(0.01)
    os.killpg(driver.pid, signal.SIGKILL)
    driver.wait()
    (half,) = environments(project)
    if (half / "made.json").exists():
        pytest.skip("it was quicker than the signal")
    (half / "left").touch()
    swept = json.loads(project.stoker("gc", "--dry-run", "--json").stdout)
    assert swept["environments"] == [half.name]
    done = project.run("train.py")
    assert "made the environment" in done.stderr and str(half) in done.stdout and not (half / "left").exists()


def test_what_the_installer_says_comes_through_before_anything_runs(local: Any) -> None:
    project = local(pypi={"tiny": "1.0", "absent-of-all": "9.9"})
    failed = project.run("train.py", code=4, env={"PATH": without("uv")})
    assert "step 'look': its environment cannot be made" in failed.stderr
    assert "No matching distribution found for absent-of-all==9.9" in failed.stderr
    assert not project.client().runs() and not environments(project)


def test_gc_leaves_one_that_is_in_use(made: Any) -> None:
    path = made.folder / "train.py"
    path.write_text(
        path.read_text()
        .replace("import os, sys", "import os, sys, time")
        .replace(
            "    return [",
            "    open('runs', 'w').close()\n    while os.path.exists('busy'): time.sleep(0.02)\n    return [",
        )
    )
    (made.folder / "busy").touch()
    driver = subprocess.Popen(
        [sys.executable, "train.py"], cwd=made.folder, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    end = time.monotonic() + 150
    while not (made.folder / "runs").exists():
        assert driver.poll() is None and time.monotonic() < end
        time.sleep(0.02)
    (place,) = environments(made)
    os.utime(place / "made.json", (1.0, 1.0))
    swept = json.loads(made.stoker("gc", "--older-than", "1h", "--json").stdout)
    (made.folder / "busy").unlink()
    out, err = driver.communicate(timeout=100)
    assert driver.returncode == 0 and str(place) in out, err
    assert swept["environments"] == []


def test_devices_gangs_and_dynamic_pipelines_in_an_environment(made: Any) -> None:
    path = made.folder / "train.py"
    path.write_text(
        path.read_text()
        .replace("@step(", "from stoker.config import ResourceSettings\n@step(resources=RESOURCES, ")
        .replace("RESOURCES", "ResourceSettings(gpu_count=1, nodes=2)")
        .replace("    return [", "    print('node', os.environ['STOKER_NODE_RANK'])\n    return [")
        .replace("@pipeline", "@pipeline(dynamic=True)")
    )
    done = made.run("train.py", env={"STOKER_SIMULATE": "2xH100-80GB"})
    assert str(environments(made)[0]) in done.stdout
    lines = {line.text for line in made.client().runs()[0].steps["look"].logs()}
    assert {"node 0", "node 1"} <= lines


def test_the_cache_tells_environments_apart_and_gc_removes_them(made: Any) -> None:
    (place,) = environments(made)
    asked = made.run("train.py", env={"PYTHONPATH": "", "PIP_NO_INPUT": "1"})
    assert "cached" in asked.stderr, "how it was made does not matter"
    text = (made.folder / "train.py").read_text()
    (made.folder / "train.py").write_text(text.replace("'tiny': '1.0'", "'tiny': '>=1,<3'"))
    assert "'2.0'" in made.run("train.py").stdout
    (other,) = {*environments(made)} - {place}
    young = json.loads(made.stoker("gc", "--older-than", "1h", "--json").stdout)
    assert young["environments"] == [] and other.exists()
    for note in (place / "made.json", other / "made.json"):
        os.utime(note, (1.0, 1.0))
    assert not json.loads(made.stoker("gc", "--json").stdout)["environments"], "only --older-than says what is old"
    made.run("train.py")
    assert (other / "made.json").stat().st_mtime > 1.0, "whoever uses it says so"
    said = made.stoker("gc", "--older-than", "1h", "--dry-run").stdout
    assert "would delete 1 environment" in said and place.exists()
    assert "deleted 1 environment" in made.stoker("gc", "--older-than", "1h").stdout
    assert environments(made) == [other]
    assert not [path for path in other.parent.iterdir() if place.name in path.name], "its lock is gone, too"


def test_what_is_installed_here_needs_no_environment(local: Any) -> None:
    import attrs

    project = local(pypi={"attrs": attrs.__version__, "click": ">=8"})
    path = project.folder / "train.py"
    path.write_text(
        path.read_text().replace("tiny.VERSION", "0").replace("tiny.__file__", "0").replace("tiny", "attrs")
    )
    done = project.run("train.py")
    assert sys.prefix in done.stdout and not environments(project)


def test_debug_makes_none(local: Any) -> None:
    project = local()
    refused = project.stoker("run", "train.py", "--debug", code=3)
    assert "STK114" in refused.stderr and "'inline' has only the driver's own" in refused.stderr


def other_python() -> tuple[str, str]:
    """Another Python of this machine, "3.12", and the folder that it is in; skips where there is none."""
    folders = [*os.environ["PATH"].split(os.pathsep), *map(str, Path(sys.base_prefix).parent.glob("*/bin"))]
    for minor in (10, 11, 12, 13):
        for folder in folders if minor != sys.version_info.minor else ():
            program = os.path.join(folder, f"python3.{minor}")
            runs = (
                os.path.exists(program)
                and not subprocess.run([program, "-V"], capture_output=True, check=False).returncode
            )
            if runs:
                return f"3.{minor}", folder
    pytest.skip("there is no other Python here")


def test_another_python(local: Any) -> None:
    version, folder = other_python()
    project = local(python=version)
    path = os.pathsep.join([folder, without("uv")])
    done = project.run("train.py", env={"PATH": path})
    assert f"'{version}'" in done.stdout, done.stdout
    path = project.folder / "train.py"
    path.write_text(path.read_text().replace(repr(version), "'3.99'"))
    missing = project.run("train.py", code=3, env={"PATH": without("uv")})
    assert "STK115" in missing.stderr and "no python3.99 on PATH" in missing.stderr


@pytest.fixture(scope="session")
def uv(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The folder of a real uv; skips where it cannot be had."""
    found = shutil.which("uv")
    if found:
        return os.path.dirname(found)
    folder = tmp_path_factory.mktemp("uv")
    argv = [sys.executable, "-m", "pip", "install", "--quiet", "--target", str(folder), "uv"]
    if subprocess.run(argv, capture_output=True, check=False).returncode:
        pytest.skip("uv is neither here nor on the index")
    return str(folder / "bin")


@pytest.mark.slow
def test_uv_where_it_is_installed(local: Any, uv: str, index: indexes.Index) -> None:
    project = local(environment="uv", pypi={"tiny": "1.0"})
    path = {"PATH": os.pathsep.join([uv, os.environ["PATH"]])}
    index.put("helper", "1.5", "WORD = 'from the project'\n")
    project.write({"pyproject.toml": "[project]\nname = 'ours'\nversion = '1'\ndependencies = ['helper', 'tiny>=2']\n"})
    script = project.folder / "train.py"
    script.write_text(
        script.read_text().replace("    return [", "    import helper\n    print(helper.WORD)\n    return [")
    )
    done = project.run("train.py", env=path)
    assert "'1.0'" in done.stdout and "from the project" in done.stderr, "the step's own word goes before the project's"
    (place,) = environments(project)
    assert "uv" in (place / "pyvenv.cfg").read_text()
    failed = project.run("train.py", code=3, env={"PATH": without("uv")})
    assert "STK115" in failed.stderr and "uv is not on PATH" in failed.stderr


MICROMAMBA = """#!{python}
import json, os, subprocess, sys
words = sys.argv[1:]
with open({log!r}, "w") as file:
    json.dump(words, file)
prefix = words[words.index("-p") + 1]
subprocess.run([sys.executable, "-m", "venv", "--without-pip", prefix], check=True)
library = os.path.join(prefix, "lib", "python%d.%d" % sys.version_info[:2], "site-packages")
with open(os.path.join(library, "tiny.py"), "w") as file:
    file.write("VERSION = 'of conda'")
"""


def test_conda_by_its_program(local: Any, index: indexes.Index, tmp_path: Path) -> None:
    programs = ("micromamba", "mamba", "conda")
    project = local(
        conda={"tiny": "7.0", "bioconda::other": ">=2"}, pypi={}, environment="conda", channels=["one", "two"]
    )
    refused = project.run("train.py", code=3, env={"PATH": without(*programs)})
    assert "STK115" in refused.stderr and "install micromamba" in refused.stderr
    folder, log = tmp_path / "programs", tmp_path / "log"
    folder.mkdir()
    (folder / "micromamba").write_text(MICROMAMBA.format(python=sys.executable, log=str(log)))
    (folder / "micromamba").chmod(0o755)
    path = {"PATH": os.pathsep.join([str(folder), without(*programs)])}
    done = project.run("train.py", env=path)
    assert "of conda" in done.stdout
    (place,) = environments(project)
    python = f"python={sys.version_info.major}.{sys.version_info.minor}"
    wanted = ["create", "-y", "-p", str(place), "-c", "one", "-c", "two", "--override-channels", python, "pip"]
    assert json.loads(log.read_text()) == [*wanted, "bioconda::other>=2", "tiny==7.0"]
