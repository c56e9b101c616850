"""Which layer wins, where each value says it is from, and what run files and --set may say."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stoker.backends.local.settings import LocalSettings
from stoker.config import Component, Stack
from stoker.core.errors import SettingsError
from stoker.core.settings import NO_RETRY, ResourceSettings, StepSettings
from stoker.plan.layers import RunFile, assignments, merge, resolve, resolve_pipeline, run_file
from stoker.settings.options import layer_from, layer_of

STACK = Stack(
    name="team",
    orchestrator=Component(flavor="local", options={"max_workers": 4}, origins={"max_workers": "stoker.toml:3"}),
    step_operators={"big": Component(flavor="local", options={"cpus": 8.0})},
)
BARE = Stack(name="bare")


def _layer(origin: str, settings: Any = None, **options: Any) -> Any:
    return layer_of(origin, settings, **options)


def test_nothing_asked() -> None:
    assert resolve([], BARE) == (StepSettings(), {})


def test_the_stronger_layer_wins_field_by_field() -> None:
    layers = [
        _layer("stoker.toml:7", resources={"gpu_count": 1, "cpu_count": 2}, timeout="1h"),
        _layer("train.py:30 @pipeline", {"docker": {"environment": {"A": "1", "B": "2"}, "apt_packages": ["git"]}}),
        _layer("train.py:14 @step", {"resources": ResourceSettings(gpu_count=2)}, retry=2),
        _layer("train.py:40 with_options", {"docker": {"environment": {"B": "3"}, "apt_packages": ["gcc"]}}),
        _layer("run.yaml", retry={"delay": "5s"}),
        _layer("--set", resources={"gpu_count": 4}, timeout=None),
    ]
    settings, origins = resolve(layers, BARE)
    assert settings.resources == ResourceSettings(gpu_count=4, cpu_count=2)
    assert settings.docker is not None
    assert settings.docker.environment == {"A": "1", "B": "3"}
    assert settings.docker.apt_packages == ("gcc",)
    assert settings.retry == attrs.evolve(NO_RETRY, times=2, delay=5.0)
    assert settings.timeout is None
    assert origins == {
        "resources.gpu_count": "--set  (over train.py:14 @step, stoker.toml:7)",
        "resources.cpu_count": "stoker.toml:7",
        "docker.environment.A": "train.py:30 @pipeline",
        "docker.environment.B": "train.py:40 with_options  (over train.py:30 @pipeline)",
        "docker.apt_packages": "train.py:40 with_options  (over train.py:30 @pipeline)",
        "retry.times": "train.py:14 @step",
        "retry.delay": "run.yaml",
        "timeout": "--set  (over stoker.toml:7)",
    }


def test_none_takes_back_what_weaker_layers_say() -> None:
    layers = [
        _layer("a", {"docker": {"parent_image": "cuda", "user": "me"}}, retry=3, environment={"A": "1", "B": "2"}),
        _layer("b", docker=None, retry=None, environment={"A": None}, resources={"memory": None}),
    ]
    settings, origins = resolve(layers, BARE)
    assert settings == StepSettings(environment={"B": "2"})
    assert origins["docker"] == "b  (over a)"
    assert origins["environment.A"] == "b  (over a)"
    again, origins = resolve([*layers, _layer("c", docker={"user": "you"})], BARE)
    assert again.docker is not None
    assert again.docker.user == "you"
    assert origins["docker.user"] == "c  (over b, a)"
    assert "docker" not in origins


def test_a_cache_key_is_one_value() -> None:
    layers = [_layer("a", cache_key={"data": 1}), _layer("b", cache_key={"code": 2})]
    settings, origins = resolve(layers, BARE)
    assert settings.cache_key == {"code": 2}
    assert origins == {"cache_key": "b  (over a)"}


def test_finer_places_of_a_file() -> None:
    layer = layer_from(
        "stoker.toml:5",
        ({"resources": {"gpu_count": 1, "memory": "1GB"}, "orchestrator": {"cpus": 2}},),
        origins={
            "resources": "stoker.toml:6",
            "resources.memory": "stoker.toml:7",
            "orchestrator.cpus": "stoker.toml:9",
        },
    )
    _, origins = resolve([layer], STACK)
    assert origins == {
        "orchestrator.max_workers": "stoker.toml:3",
        "resources.gpu_count": "stoker.toml:6",
        "resources.memory": "stoker.toml:7",
        "orchestrator.cpus": "stoker.toml:9",
    }


@pytest.mark.parametrize("key", ["orchestrator", "orchestrator.local"])
def test_the_orchestrators_settings(key: str) -> None:
    layers = [_layer("a", {key: {"max_workers": 2}}), _layer("b", {"orchestrator": LocalSettings(memory="1GB")})]
    settings, origins = resolve(layers, STACK)
    assert settings.backend == {"orchestrator": {"max_workers": 2, "memory": 10**9}}
    assert origins["orchestrator.max_workers"] == "a  (over stoker.toml:3)"
    whole, _ = resolve_pipeline(layers, STACK)
    operators = {name: one.options for name, one in STACK.step_operators.items()}
    assert whole.backend == {**settings.backend, **operators}, "every backend's options, by the name that steps call"


@pytest.mark.parametrize("asked", ["big", True])
def test_a_step_operator(asked: Any) -> None:
    layers = [
        _layer("a", {"orchestrator": {"max_workers": 2}, "step_operator": {"memory": "1GB"}}),
        _layer("b", step_operator=asked),
    ]
    settings, origins = resolve(layers, STACK)
    assert settings.step_operator == "big"
    assert settings.backend == {"step_operator": {"cpus": 8.0, "memory": 10**9}}
    assert origins["step_operator.memory"] == "a"
    back, _ = resolve([*layers, _layer("c", step_operator=None)], STACK)
    assert back.step_operator is None
    assert back.backend == {"orchestrator": {"max_workers": 2}}


@pytest.mark.parametrize(
    ("layers", "stack", "words", "fix"),
    [
        (
            [_layer("a", step_operator="bigg")],
            STACK,
            "no step operator called 'bigg', did you mean 'big'",
            "stoker.toml",
        ),
        ([_layer("a", step_operator=True)], BARE, "stack 'bare' has no step operators, not one", "[stacks.bare]"),
        (
            [_layer("a", step_operator=True)],
            attrs.evolve(STACK, step_operators={"x": Component(flavor="local"), "y": Component(flavor="local")}),
            "stack 'team' has 2 step operators",
            "x, y",
        ),
        (
            [_layer("a", {"step_operator.local": {"cpus": 1}})],
            BARE,
            "settings for 'step_operator.local', which stack 'bare' does not have; its step operators: none",
            "another stack",
        ),
        ([_layer("a", {"step_operator": {"cpus": 1}})], BARE, "settings for 'step_operator', which stack 'bare'", ""),
        (
            [_layer("a", {"orchestrator.local": {"cpus": 1}})],
            attrs.evolve(BARE, orchestrator=Component(flavor="slurm")),
            "settings for 'orchestrator.local', which stack 'bare' does not have; its orchestrator is 'slurm'",
            "--stack",
        ),
        (
            [_layer("a", {"orchestrator": {"cpus": 1}, "orchestrator.local": {"cpus": 2}})],
            BARE,
            "'orchestrator.local' and 'orchestrator' speak of the same part",
            "keep one",
        ),
        ([_layer("a", {"orchestrator": {"cpu": 1}})], BARE, "orchestrator: LocalSettings has no field 'cpu'", ""),
        (
            [layer_of("a", {"step_operator": {"cpus": 1}}, level="step")],
            STACK,
            "settings for 'step_operator', but the step runs on the stack's orchestrator",
            "give step_operator=",
        ),
        (
            [layer_of("a", {"orchestrator": {"x": 1}}, level="step", step_operator="big")],
            STACK,
            "settings for 'orchestrator', but the step runs on a step operator of 'local'",
            "remove step_operator=",
        ),
        (
            [layer_of("a", {"orchestrator": {"max_workers": 1}}, level="step")],
            STACK,
            "'orchestrator' is for a whole run, not for one step",
            "@pipeline",
        ),
    ],
)
def test_settings_that_the_stack_cannot_honour(layers: Any, stack: Stack, words: str, fix: str) -> None:
    with pytest.raises(SettingsError) as caught:
        resolve(layers, stack)
    assert words in caught.value.message
    assert fix in caught.value.fix
    assert caught.value.where == "a"


def test_layers_that_disagree_are_both_named() -> None:
    layers = [
        _layer("stoker.toml:7", resources={"gpu_count": 1}),
        _layer("a.py:3 @step", resources={"accelerators": "H100:8"}),
    ]
    with pytest.raises(SettingsError, match="gpu_count=1 and accelerators='H100:8' disagree") as caught:
        resolve(layers, BARE)
    assert "gpu_count: stoker.toml:7; accelerators: a.py:3 @step" in caught.value.message


def test_pipeline_settings() -> None:
    layers = [_layer("a", failure_mode="continue", max_parallel=3, cache=False), _layer("b", max_parallel=None)]
    settings, origins = resolve_pipeline(layers, BARE)
    assert (settings.failure_mode, settings.max_parallel, settings.backend) == ("continue", None, {})
    assert origins == {"failure_mode": "a", "max_parallel": "b  (over a)"}
    assert resolve(layers, BARE)[0] == StepSettings(cache=False)


_LEAVES = st.none() | st.booleans() | st.integers() | st.lists(st.integers(), max_size=2)
_TREES = st.fixed_dictionaries(
    {},
    optional={
        "timeout": _LEAVES,
        "cache_key": st.dictionaries(st.sampled_from("ab"), st.integers()),
        "resources": st.dictionaries(st.sampled_from("abc"), _LEAVES),
        "docker": st.fixed_dictionaries(
            {}, optional={"x": _LEAVES, "y": st.dictionaries(st.sampled_from("ab"), _LEAVES)}
        ),
    },
)


@given(_TREES, _TREES, _TREES)
def test_merging_is_associative(first: Any, second: Any, third: Any) -> None:
    assert merge(merge(first, second), third) == merge(first, merge(second, third))


@given(_TREES, _TREES)
def test_merging_keeps_the_strong_and_changes_neither(weak: Any, strong: Any) -> None:
    before = repr((weak, strong))
    merged = merge(weak, strong)
    assert merge(merged, strong) == merged
    assert merge(weak, {}) == weak
    assert merged.keys() == weak.keys() | strong.keys()
    assert repr((weak, strong)) == before


RUN = """\
parameters:
  lr: 1e-3
  names: [a, no, 010]
stack: team
cache: false
failure_mode: continue
settings:
  resources:
    memory: 8GB
  orchestrator.local: {max_workers: 2}
steps:
  train:
    resources: {gpu_count: 4}
    settings:
      docker:
        parent_image: cuda
    retry:
      times: 2
      on: [crashed]
"""


def test_a_run_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("run.yaml").write_text(RUN)
    found = run_file("run.yaml")
    assert found.parameters == {"lr": 0.001, "names": ["a", "no", "010"]}
    assert found.stack == "team"
    (every,) = found.layers
    assert every.values == {
        "cache": False,
        "failure_mode": "continue",
        "resources": {"memory": 8 * 10**9},
        "orchestrator.local": {"max_workers": 2},
    }
    assert list(found.steps) == ["train"]
    settings, origins = resolve([every, *found.steps["train"]], STACK)
    assert settings.resources == ResourceSettings(memory="8GB", gpu_count=4)
    assert settings.retry == attrs.evolve(NO_RETRY, times=2, on=("crashed",))
    assert origins == {
        "cache": "run.yaml:5",
        "failure_mode": "run.yaml:6",
        "resources.memory": "run.yaml:9",
        "orchestrator.max_workers": "run.yaml:10  (over stoker.toml:3)",
        "resources.gpu_count": "run.yaml:13",
        "docker.parent_image": "run.yaml:16",
        "retry.times": "run.yaml:18",
        "retry.on": "run.yaml:19",
    }


@pytest.mark.parametrize("text", ["", "# nothing\n", "parameters:\nsteps:\n"])
def test_an_empty_run_file(tmp_path: Path, text: str) -> None:
    path = tmp_path / "run.yaml"
    path.write_text(text)
    assert run_file(path) == RunFile(origin=str(path))


@pytest.mark.parametrize(
    ("text", "line", "words"),
    [
        ("a: [\n", ":2", "is not YAML"),
        ("- a\n", "", "the run file is not a mapping"),
        ("stepz:\n  train: {}\n", ":1", "there is no setting 'stepz', did you mean 'steps'"),
        ("cache: true\nparameter: {}\n", ":2", "did you mean 'parameters'"),
        ("cache: true\ncache: false\n", ":2", "cache is written twice, first in line 1"),
        ("cache: yes\n", ":1", "cache: 'yes' is neither true nor false"),
        ("parameters: 3\n", ":1", "parameters is not a mapping"),
        ("stack: 3\n", ":1", "stack: 3 is not a name"),
        ("steps:\n  train: 4\n", ":2", "steps.train is not a mapping"),
        ("steps:\n  train:\n    settings: 4\n", ":2", "steps.train is not a mapping"),
        ("steps:\n  train:\n    timout: 4\n", ":3", "there is no setting 'timout'"),
        ("steps:\n  train:\n    failure_mode: continue\n", ":3", "failure_mode is for a whole pipeline"),
        ("steps:\n  a:\n    resources:\n      nodes: 1\n      gpus: 1\n", ":5", "has no field 'gpus'"),
        ("settings:\n  resources:\n    memory: x\n", ":3", "memory: 'x' is not a size"),
        ("timeout: 1h\nsettings:\n  timeout: 2h\n", ":3", "timeout is given twice"),
        ("level: 3\n", ":1", "there is no setting 'level'"),
    ],
)
def test_a_run_file_is_refused_with_its_line(tmp_path: Path, text: str, line: str, words: str) -> None:
    path = tmp_path / "run.yaml"
    path.write_text(text)
    with pytest.raises(SettingsError) as caught:
        run_file(path)
    assert words in caught.value.message
    assert caught.value.where == f"{path}{line}"


def test_no_run_file(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="cannot be read"):
        run_file(tmp_path / "run.yaml")


def test_assignments() -> None:
    found = assignments(
        [
            "steps.train.resources.gpu_count=4",
            "resources.memory=8GB",
            "timeout=2h",
            "resources.accelerators=[H100:8, A100-80GB:8]",
            "orchestrator.local.max_workers=2",
            "parameters.lr=1e-4",
            "parameters.name=a=b",
            "stack=team",
            "timeout=null",
        ]
    )
    assert found.parameters == {"lr": 0.0001, "name": "a=b"}
    assert found.stack == "team"
    assert found.layers[0].values == {
        "resources": {"memory": 8 * 10**9, "accelerators": ["H100:8", "A100-80GB:8"]},
        "timeout": None,
        "orchestrator.local": {"max_workers": 2},
    }
    assert found.steps["train"][0].values == {"resources": {"gpu_count": 4}}
    _, origins = resolve(found.layers, BARE)
    assert origins["resources.memory"] == "--set resources.memory"
    assert origins["orchestrator.max_workers"] == "--set orchestrator.local.max_workers"
    assert assignments([]) == RunFile(origin="--set")


@pytest.mark.parametrize(
    ("texts", "where", "words"),
    [
        (["timeout"], "--set", "'timeout' is not an assignment"),
        (["timeout="], "--set", "'timeout=' is not an assignment"),
        (["=4"], "--set", "'=4' is not an assignment"),
        (["resources..memory=4"], "--set", "is not an assignment"),
        (["timeout=[1"], "--set timeout", "is not YAML"),
        (["cache=1", "cache.x=2"], "--set cache.x", "cache is set to a value and to fields"),
        (["timout=4"], "--set timout", "there is no setting 'timout', did you mean 'timeout'"),
        (["steps.train=4"], "--set steps.train", "steps.train is not a mapping"),
        (["steps.a.resources.gpus=4"], "--set steps.a.resources.gpus", "has no field 'gpus'"),
        (["resources.gpu_count=0.5"], "--set resources.gpu_count", "0.5 is not a whole number"),
        (["steps.a.max_parallel=4"], "--set steps.a.max_parallel", "max_parallel is for a whole pipeline"),
    ],
)
def test_assignments_refused(texts: list[str], where: str, words: str) -> None:
    with pytest.raises(SettingsError) as caught:
        assignments(texts)
    assert words in caught.value.message
    assert caught.value.where == where
