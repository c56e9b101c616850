"""Stacks: where they are found, what wins, what is refused at which line, and what a repr may show."""

from __future__ import annotations

import textwrap
from pathlib import Path
from typing import Any

import pytest

from stoker import config, stacks
from stoker.core.errors import NotFound, SettingsError, UsageError


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A person's home and, in it, the project they are in."""
    monkeypatch.setenv("HOME", str(tmp_path / "me"))
    monkeypatch.delenv("STOKER_HOME")
    project = tmp_path / "me" / "project"
    project.mkdir(parents=True)
    monkeypatch.chdir(project)
    return project


def _write(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(textwrap.dedent(text).lstrip("\n"), encoding="utf-8")
    return path


FULL = """
    stack = "team"

    [stacks.team]
    orchestrator = {flavor = "local", max_workers = 4}
    step_operators.big = {flavor = "local", memory = "8GB"}
    database = "postgresql://me:secret@db/stoker"
    artifact_store = "file:///data/artifacts"
    container_registry = "registry.example.com/ml"
    image_builder = "local"

    [stacks.team.settings]
    # a comment = "no key"
    resources.cpu_count = 2
    resources.memory = "4GB"
    timeout = "2h"

    [stacks.team.settings.environment]
    TEXT = \"\"\"
    timeout = "not a key"
    \"\"\"
    LEVEL = "info"
"""


def test_without_any_file_there_is_local(folder: Path) -> None:
    stack = config.load()
    home = folder.parent / ".stoker"
    assert (stack.name, stack.orchestrator.flavor, stack.home, stack.path) == ("local", "local", home, None)
    assert stack.database == f"sqlite:///{home}/stoker.db"
    assert stack.artifact_store == f"file://{home}/artifacts"
    assert stack.layer.values == {}
    assert [one.name for one in config.stacks()] == ["local"]
    assert not home.exists()


def test_a_whole_stack(folder: Path) -> None:
    path = _write(folder / "stoker.toml", FULL)
    stack = config.load()
    assert stack.name == "team"
    assert stack.path == path
    assert stack.orchestrator.options == {"max_workers": 4}
    assert stack.orchestrator.origins == {"max_workers": "stoker.toml:4"}
    assert stack.step_operators["big"].options == {"memory": 8 * 10**9}
    assert stack.database == "postgresql://me:secret@db/stoker"
    assert stack.artifact_store == "file:///data/artifacts"
    assert stack.container_registry is not None and stack.image_builder is not None
    assert (stack.container_registry.uri, stack.image_builder.flavor) == ("registry.example.com/ml", "local")
    assert stack.layer.values["resources"] == {"cpu_count": 2.0, "memory": 4 * 10**9}
    assert stack.layer.values["timeout"] == 7200.0


def test_every_default_knows_its_line(folder: Path) -> None:
    _write(folder / "stoker.toml", FULL)
    layer = config.load().layer
    assert layer.origin == "stoker.toml:11"
    assert layer.origins["resources.cpu_count"] == "stoker.toml:13"
    assert layer.origins["resources.memory"] == "stoker.toml:14"
    assert layer.origins["timeout"] == "stoker.toml:15"
    assert layer.origins["environment.TEXT"] == "stoker.toml:18"
    assert layer.origins["environment.LEVEL"] == "stoker.toml:21"


def test_pyproject_and_the_nearest_file(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _write(folder / "pyproject.toml", '[project]\nname = "x"\n[tool.stoker]\nstack = "a"\n[tool.stoker.stacks.a]\n')
    assert config.load().name == "a"
    below = folder / "deep" / "er"
    below.mkdir(parents=True)
    assert config.load(start=below).path == folder / "pyproject.toml"
    _write(folder / "deep" / "stoker.toml", 'stack = "b"\n[stacks.b]\n')
    monkeypatch.chdir(below)
    assert config.load().name == "b"
    assert [one.name for one in config.stacks()] == ["b", "local"]


def test_a_pyproject_that_says_nothing_of_stoker_is_passed(folder: Path) -> None:
    _write(folder / "stoker.toml", "[stacks.a]\n")
    _write(folder / "inner" / "pyproject.toml", "[tool.other]\nx = 1\n")
    assert config.load("a", start=folder / "inner").name == "a"


def test_the_persons_own_file_comes_below(folder: Path) -> None:
    _write(folder.parent / ".stoker" / "stoker.toml", '[stacks.mine]\n[stacks.team]\nimage_builder = "mine"\n')
    _write(folder / "stoker.toml", FULL)
    assert [one.name for one in config.stacks()] == ["local", "mine", "team"]
    builder = config.load("team").image_builder
    assert builder is not None and builder.flavor == "local"
    assert config.load("mine").path == folder.parent / ".stoker" / "stoker.toml"


@pytest.mark.parametrize(
    ("named", "environment", "chosen"), [(None, None, "a"), (None, "b", "b"), ("c", "b", "c"), ("local", "b", "local")]
)
def test_which_stack(
    folder: Path, monkeypatch: pytest.MonkeyPatch, named: str | None, environment: str | None, chosen: str
) -> None:
    _write(folder / "stoker.toml", 'stack = "a"\n[stacks.a]\n[stacks.b]\n[stacks.c]\n')
    if environment:
        monkeypatch.setenv("STOKER_STACK", environment)
    assert config.load(named).name == chosen


def test_homes(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own = folder.parent / ".stoker"
    (folder / ".stoker").mkdir()
    assert stacks.home() == own  # no file of a project is beside it
    _write(folder / "pyproject.toml", "[project]\n")
    assert stacks.home() == folder / ".stoker"
    assert config.load().database.endswith("project/.stoker/stoker.db")
    monkeypatch.setenv("STOKER_HOME", str(folder / "elsewhere"))
    assert config.load().home == folder / "elsewhere"


@pytest.mark.parametrize(
    ("key", "written", "found"),
    [
        ("database", "sqlite:///x/a.db", "sqlite:///{here}/x/a.db"),
        ("database", "sqlite:////x/a.db", "sqlite:////x/a.db"),
        ("database", "data/a.db", "sqlite:///{here}/data/a.db"),
        ("artifact_store", "data", "file://{here}/data"),
        ("artifact_store", "/data", "file:///data"),
        ("artifact_store", "s3://bucket/x", "s3://bucket/x"),
        ("database", "postgresql://me:${PASSWORD}@db/x", "postgresql://me:hidden@db/x"),
    ],
)
def test_locations(folder: Path, monkeypatch: pytest.MonkeyPatch, key: str, written: str, found: str) -> None:
    monkeypatch.setenv("PASSWORD", "hidden")
    _write(folder / "stoker.toml", f'[stacks.a]\n{key} = "{written}"\n')
    assert getattr(config.load("a"), key) == found.format(here=folder)


def test_no_secret_is_shown(folder: Path) -> None:
    _write(
        folder / "stoker.toml",
        """
        [stacks.a]
        database = "postgresql://me:hunter2@db/x?sslpassword=hunter3"
        artifact_store = "s3://id:hunter4@bucket?secret_key=hunter5&region=eu"
        orchestrator = {flavor = "local", max_workers = 31337}
        """,
    )
    shown = repr(config.load("a"))
    assert "hunter" not in shown
    assert "postgresql://me:***@db/x" in shown
    assert "region=eu" in shown
    assert "31337" not in shown
    assert "max_workers" in shown


@pytest.mark.parametrize(
    ("text", "where", "words"),
    [
        ('stak = "a"\n', "stoker.toml:1", "there is no key 'stak', did you mean 'stack'"),
        ("stack = 3\n[stacks.a]\n", "stoker.toml:1", "stack = 3 is not a name"),
        ("stacks = 3\n", "stoker.toml:1", "stacks holds a table"),
        ("# x\n[stacks.a]\norchestrater = 1\n", "stoker.toml:3", "no key 'orchestrater', did you mean 'orchestrator'"),
        ('[stacks.a]\norchestrator = "locl"\n', "stoker.toml:2", "no backend called 'locl', did you mean 'local'"),
        ("[stacks.a]\norchestrator = {x = 1}\n", "stoker.toml:2", "orchestrator names no flavor"),
        (
            '[stacks.a.orchestrator]\nflavor = "local"\nmax_worker = 1\n',
            "stoker.toml:3",
            "no field 'max_worker', did you mean 'max_workers'",
        ),
        (
            '[stacks.a.step_operators.big]\nflavor = "local"\nmemory = "x"\n',
            "stoker.toml:3",
            "memory: 'x' is not a size",
        ),
        ("[stacks.a]\nstep_operators = 4\n", "stoker.toml:2", "step_operators holds a table"),
        ("[stacks.a]\ndatabase = 4\n", "stoker.toml:2", "database = 4 is not a text"),
        ('[stacks.a]\ndatabase = "x://${NOT_SET}"\n', "stoker.toml:2", "environment variable NOT_SET"),
        ('[stacks.a]\nartifact_store = "file://x"\n', "stoker.toml:2", "is no file URI"),
        ("[stacks.a]\nsettings = 4\n", "stoker.toml:2", "settings is not a table"),
        (
            "[stacks.a.settings]\nresources.nodes = 1\nresources.gpu_cout = 2\n",
            "stoker.toml:3",
            "no field 'gpu_cout', did you mean 'gpu_count'",
        ),
        ('[stacks.a.settings]\nresources.memory = "x"\n', "stoker.toml:2", "resources: memory: 'x' is not a size"),
        ("[stacks.a.settings]\n\ntimout = 2\n", "stoker.toml:3", "no setting 'timout', did you mean 'timeout'"),
        ("[stacks.a]\nx = = 1\n", "stoker.toml:2", "is not TOML"),
    ],
)
def test_refused_with_the_line(folder: Path, text: str, where: str, words: str) -> None:
    _write(folder / "stoker.toml", text)
    with pytest.raises(SettingsError) as caught:
        config.load("a")
    assert words in caught.value.message
    assert caught.value.where == where


@pytest.mark.parametrize(
    ("named", "environment", "where"),
    [("tea", None, ""), (None, "tea", "STOKER_STACK"), (None, None, "stoker.toml:1")],
)
def test_no_such_stack(
    folder: Path, monkeypatch: pytest.MonkeyPatch, named: str | None, environment: str | None, where: str
) -> None:
    _write(folder / "stoker.toml", 'stack = "tea"\n[stacks.team]\n')
    if environment:
        monkeypatch.setenv("STOKER_STACK", environment)
    with pytest.raises(NotFound, match="no stack called 'tea', did you mean 'team'") as caught:
        config.load(named)
    assert caught.value.where == where
    assert "[stacks.tea]" in caught.value.fix


@pytest.mark.parametrize(
    ("text", "lines"),
    [
        ("[a]\nb.c = 1\n", {("a",): 1, ("a", "b"): 2, ("a", "b", "c"): 2}),
        ('["x.y"] # table\n"k l" = 1\n', {("x.y",): 1, ("x.y", "k l"): 2}),
        ("a = '''\nb = 1\n'''\nc = 2\n", {("a",): 1, ("c",): 4}),
        ('a = """one"""\nb = 1\n', {("a",): 1, ("b",): 2}),
        ("[a.b]\n[a]\nc = 1\n", {("a",): 2, ("a", "b"): 1, ("a", "c"): 3}),
        ("x = [\n  1,\n]\ny = 1\n", {("x",): 1, ("y",): 4}),
    ],
)
def test_lines_of_keys(text: str, lines: Any) -> None:
    assert stacks._lines(text) == lines


def test_the_names_that_settings_need_are_here() -> None:
    assert config.ResourceSettings(gpu_count=2).gpus_per_node == 2
    assert all(hasattr(config, name) for name in config.__all__)


def test_a_working_directory_that_is_gone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def gone() -> Path:
        raise FileNotFoundError

    monkeypatch.setattr(Path, "cwd", gone)
    with pytest.raises(UsageError, match="the working directory does not exist any more"):
        config.load()
