"""Options by any way in, refusals in the words that help, and the values that a resolved step has."""

from __future__ import annotations

import inspect
from typing import Any

import attrs
import pytest

from stoker.backends.local.settings import LocalSettings
from stoker.core.errors import SettingsError, UsageError
from stoker.core.settings import (
    NO_RETRY,
    UNSET,
    DockerSettings,
    PipelineSettings,
    ResourceSettings,
    Retry,
    StepSettings,
    fields_given,
)
from stoker.settings.options import OPTIONS, checked_flavor, component_settings, layer_from, layer_of, step_settings


def test_only_what_was_given_is_in_a_layer() -> None:
    layer = layer_of(
        "train.py:14 @step",
        {"resources": ResourceSettings(gpu_count=2, memory="16GB"), "docker": {"parent_image": "cuda"}},
        retry=Retry(3, on=["crashed"]),
        timeout="2h",
        cache=False,
        isolation=UNSET,
    )
    assert layer.origin == "train.py:14 @step"
    assert layer.values == {
        "resources": {"gpu_count": 2, "memory": 16 * 10**9},
        "docker": {"parent_image": "cuda"},
        "retry": {"times": 3, "on": ["crashed"]},
        "timeout": 7200.0,
        "cache": False,
    }


@pytest.mark.parametrize(
    ("settings", "options"),
    [
        ({"resources": ResourceSettings(accelerators="H100:2")}, {}),
        ({"resources": {"accelerators": ["H100:2"]}}, {}),
        ({}, {"resources": ResourceSettings(accelerators=["H100:2"])}),
        ({}, {"resources": {"accelerators": {"H100": 2}}}),
    ],
)
def test_every_way_in_makes_the_same_layer(settings: Any, options: Any) -> None:
    assert layer_of("x", settings, **options).values == {"resources": {"accelerators": ["H100:2"]}}


@pytest.mark.parametrize(
    ("option", "written", "plain"),
    [
        ("retry", 3, {"times": 3}),
        ("retry", "3", {"times": 3}),
        ("retry", {"times": 2, "delay": "1m"}, {"times": 2, "delay": 60.0}),
        ("retry", None, None),
        ("timeout", None, None),
        ("timeout", 90, 90.0),
        ("cache_expires", "7d", 604800.0),
        ("cache_key", {"data": (1, 2)}, {"data": [1, 2]}),
        ("isolation", "fresh", "fresh"),
        ("environment", {"OMP_NUM_THREADS": 4, "HOME": None}, {"OMP_NUM_THREADS": "4", "HOME": None}),
        ("step_operator", "big", "big"),
        ("step_operator", True, True),
        ("step_operator", False, None),
        ("failure_mode", "continue", "continue"),
        ("max_parallel", "4", 4),
        ("orchestrator", {"max_workers": 2}, None),
    ],
)
def test_options(option: str, written: Any, plain: Any) -> None:
    if option == "orchestrator":
        assert layer_of("x", {option: written}).values == {"orchestrator.*": written}
    else:
        assert layer_of("x", **{option: written}).values == {option: plain}


@pytest.mark.parametrize(
    ("settings", "values"),
    [
        ({"orchestrator": LocalSettings(max_workers=2)}, {"orchestrator.local": {"max_workers": 2}}),
        ({"orchestrator.local": {"memory": "8GB"}}, {"orchestrator.local": {"memory": 8 * 10**9}}),
        ({"orchestrator": {"local": {"cpus": 2}}}, {"orchestrator.local": {"cpus": 2.0}}),
        ({"step_operator": {"queue": "gpu"}}, {"step_operator.*": {"queue": "gpu"}}),
        (
            {"orchestrator": {"local": {"cpus": 2}, "max_workers": 3}},
            {"orchestrator.local": {"cpus": 2.0}, "orchestrator.*": {"max_workers": 3}},
        ),
    ],
)
def test_settings_of_parts_of_the_stack(settings: Any, values: Any) -> None:
    assert layer_of("x", settings).values == values


def test_a_step_operator_has_a_name_and_settings() -> None:
    layer = layer_of("x", {"step_operator": {"queue": "gpu"}}, step_operator="big")
    assert layer.values == {"step_operator.*": {"queue": "gpu"}, "step_operator": "big"}


@pytest.mark.parametrize(
    ("settings", "options", "words", "fix"),
    [
        ({"resorces": {}}, {}, "there is no setting 'resorces', did you mean 'resources'", ""),
        ({}, {"timout": "2h"}, "there is no setting 'timout', did you mean 'timeout'", ""),
        ({"resources": {"gpus": 2}}, {}, "resources: ResourceSettings has no field 'gpus'", ""),
        ({"resources": {"memory": "x"}}, {}, "resources: memory: 'x' is not a size", "16GB"),
        ({"resources": {}}, {"resources": {}}, "resources is given twice", "remove one"),
        ({"resources": DockerSettings()}, {}, "DockerSettings stands under 'resources'", "under 'docker'"),
        ({"docker": ResourceSettings()}, {}, "ResourceSettings stands under 'docker'", "under 'resources'"),
        ({"orchestrator": ResourceSettings()}, {}, "ResourceSettings stands under 'orchestrator'", "'resources'"),
        ({"resources": LocalSettings()}, {}, "LocalSettings stands under 'resources'", "under 'orchestrator.local'"),
        ({"resources": 8}, {}, "resources: 8 is not ResourceSettings", "ResourceSettings(…)"),
        ({"docker": "image"}, {}, "docker: 'image' is not DockerSettings", ""),
        ({"docker": {"requirements": 3}}, {}, "requirements: 3 is not a list of texts", ""),
        ({"docker": {"apt_packages": "git"}}, {}, "apt_packages: 'git' is not a list", "write ['git']"),
        ({"docker": {"parent_img": "x"}}, {}, "no field 'parent_img', did you mean 'parent_image'", ""),
        ({"docker": {"build_config": {"dockerignor": "x"}}}, {}, "build_config has no key 'dockerignor'", ""),
        ({"docker": {"python_package_installer": "conda"}}, {}, "'conda' is not one of uv and pip", ""),
        ({"docker": {"environment": {"A=B": "x"}}}, {}, "'A=B' is not a name for an environment variable", ""),
        ({"docker": {"user": " "}}, {}, "user: ' ' is not a text", ""),
        ({"docker": {"skip_build": 1}}, {}, "skip_build: 1 is neither true nor false", ""),
        ({"orchestrator.locl": {}}, {}, "there is no backend called 'locl', did you mean 'local'", ""),
        ({"orchestrator.local": {"max_worker": 1}}, {}, "no field 'max_worker', did you mean 'max_workers'", ""),
        ({"orchestrator.local": {"max_workers": 0}}, {}, "max_workers: 0 is less than 1", ""),
        ({"orchestrator": 4}, {}, "4 holds no settings for 'orchestrator'", "mapping"),
        ({"step_operator": 4}, {}, "4 holds no settings for 'step_operator'", ""),
        ({}, {"retry": {"on": ["crashd"]}}, "there is no cause 'crashd', did you mean 'crashed'", ""),
        ({}, {"retry": {"on": "cancelled", "times": 1}}, "'cancelled' is never tried again", "remove it"),
        ({}, {"retry": {"backoff": 0.5}}, "backoff: 0.5 would make each wait shorter", "1 or more"),
        ({}, {"retry": {"jitter": 2}}, "jitter: 2 is not a part", "from 0 to 1"),
        ({}, {"retry": -1}, "times: -1 is less than 0", ""),
        ({}, {"timeout": 0}, "timeout: 0 leaves no time at all", ""),
        ({}, {"cache": "no"}, "cache: 'no' is neither true nor false", "write true or false"),
        ({}, {"cache": None}, "None is neither true nor false", ""),
        ({}, {"cache_key": object}, "cannot be written as JSON", ""),
        ({}, {"cache_key": float("nan")}, "cannot be written as JSON", ""),
        ({}, {"isolation": "cold"}, "isolation: 'cold' is not one of warm, fresh", ""),
        ({}, {"environment": {"DEBUG": True}}, "DEBUG=True is not a text", 'write "true" in quotes'),
        ({}, {"environment": ["A=1"]}, "does not map names to values", ""),
        ({}, {"failure_mode": "stop"}, "'stop' is not one of fail_fast, continue", ""),
        ({}, {"max_parallel": 0}, "max_parallel: 0 is less than 1", ""),
    ],
)
def test_refused(settings: Any, options: Any, words: str, fix: str) -> None:
    with pytest.raises(SettingsError) as caught:
        layer_of("train.py:14 @step", settings, **options)
    assert words in caught.value.message
    assert fix in caught.value.fix
    assert caught.value.where == "train.py:14 @step"
    assert "not one of" not in words or "known:" not in caught.value.message, "the words are listed once"


def test_settings_must_be_a_mapping() -> None:
    with pytest.raises(SettingsError, match="settings=ResourceSettings is not a mapping"):
        layer_of("x", ResourceSettings())  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("asked", "words", "fix"),
    [
        ({"failure_mode": "continue"}, "failure_mode is for a whole pipeline", "@pipeline"),
        ({"max_parallel": 2}, "max_parallel is for a whole pipeline", "@pipeline"),
        ({"orchestrator.local": {"max_workers": 2}}, "'orchestrator.local' is for a whole run", "@pipeline"),
    ],
)
def test_what_one_step_cannot_have(asked: Any, words: str, fix: str) -> None:
    assert layer_of("x", asked, level="pipeline").values
    with pytest.raises(SettingsError) as caught:
        layer_of("x", asked, level="step")
    assert words in caught.value.message
    assert fix in caught.value.fix


def test_an_error_has_the_finest_place() -> None:
    places = {"resources": "stoker.toml:3", "resources.memory": "stoker.toml:4"}
    with pytest.raises(SettingsError, match=r"^stoker\.toml:4: resources: memory"):
        layer_from("stoker.toml", ({"resources": {"memory": "x"}},), origins=places)
    with pytest.raises(SettingsError, match=r"^stoker\.toml:3: resources: ResourceSettings has no field"):
        layer_from("stoker.toml", ({"resources": {"x": "x"}},), origins=places)
    with pytest.raises(SettingsError, match="did you mean 'steps'"):
        layer_from("run.yaml", ({"stepz": {}},), also=("steps",))


def test_retry_takes_its_times_by_position() -> None:
    assert Retry(3) == Retry(times=3)
    assert fields_given(Retry(3, delay="1s", max_delay="1h")) == {"times": 3, "delay": 1.0, "max_delay": 3600.0}
    assert Retry(3).delay is UNSET
    with pytest.raises(SettingsError, match="Retry has no field 'time'"):
        Retry(time=3)  # type: ignore[call-arg]
    assert list(inspect.signature(Retry).parameters)[:2] == ["times", "on"]


def test_docker_settings_keep_what_was_given() -> None:
    found = DockerSettings(
        requirements=["torch"], python_package_installer_args={"system": None}, environment={"N": 4}, apt_packages=()
    )
    assert fields_given(found) == {
        "requirements": ["torch"],
        "python_package_installer_args": {"system": None},
        "environment": {"N": "4"},
        "apt_packages": [],
    }
    assert DockerSettings(requirements="requirements.txt").requirements == "requirements.txt"


def test_nothing_asked_is_the_default() -> None:
    assert step_settings({}) == StepSettings()
    found = StepSettings()
    assert (found.retry, found.timeout, found.cache, found.isolation, found.docker) == (
        NO_RETRY, None, True, "warm", None,
    )  # fmt: skip
    assert all(getattr(NO_RETRY, field.name) is not UNSET for field in attrs.fields(Retry))


def test_resolved_values() -> None:
    found = step_settings(
        {
            "resources": {"gpu_count": 2, "memory": None},
            "docker": {"parent_image": "cuda", "user": None},
            "retry": {"times": 3, "delay": 5.0},
            "environment": {"A": "1", "B": None},
            "cache": False,
            "timeout": 60.0,
            "failure_mode": "continue",
        },
        {"orchestrator": {"max_workers": 2}},
    )
    assert found == StepSettings(
        resources=ResourceSettings(gpu_count=2),
        docker=DockerSettings(parent_image="cuda"),
        retry=attrs.evolve(NO_RETRY, times=3, delay=5.0),
        environment={"A": "1"},
        cache=False,
        timeout=60.0,
        backend={"orchestrator": {"max_workers": 2}},
    )


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"retry": {"on": ["crashed"]}}, "it says after what, but not how often"),
        ({"resources": {"share": True}}, "how much of a GPU"),
        ({"resources": {"gpu_count": 2, "accelerators": ["H100:8"]}}, "disagree"),
    ],
)
def test_resolved_values_that_make_no_sense(values: Any, words: str) -> None:
    with pytest.raises(SettingsError, match=words):
        step_settings(values)


def test_every_option_is_a_field_of_a_step_or_of_a_pipeline() -> None:
    fields = {field.name for field in attrs.fields(StepSettings)} - {"backend"}
    assert {name for name, option in OPTIONS.items() if option.level == "step"} == fields
    fields = {field.name for field in attrs.fields(PipelineSettings)} - {"backend"}
    assert {name for name, option in OPTIONS.items() if option.level == "pipeline"} == fields


def test_flavors() -> None:
    checked_flavor("local")
    assert component_settings("local", {"cpus": "2"}) == {"cpus": 2.0}
    with pytest.raises(UsageError, match="no backend called 'theirs'"):
        component_settings("theirs", {"anything": 1})
    with pytest.raises(SettingsError, match="no backend called 'lokal', did you mean 'local'"):
        checked_flavor("lokal")
