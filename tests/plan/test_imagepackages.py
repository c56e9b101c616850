"""Packages of a step that runs in an image: what they come to in its docker settings, and what contradicts them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from stoker.config import Component, Stack
from stoker.core.docker import DockerSettings
from stoker.core.errors import SettingsError
from stoker.images.dockerfile import dockerfile, requirement_files
from stoker.images.spec import spec_of
from stoker.plan.layers import resolve
from stoker.plan.planner import environment_name
from stoker.settings.options import layer_of

pytest.importorskip("docker")
STACK = Stack(
    name="box",
    orchestrator=Component(flavor="docker"),
    step_operators={"here": Component(flavor="local")},
)


def docker(*layers: Any) -> DockerSettings:
    settings, _ = resolve(layers, STACK)
    assert settings.docker is not None
    assert environment_name(settings) == "", "what an image has is made nowhere else"
    return settings.docker


def refused(*layers: Any) -> str:
    with pytest.raises(SettingsError) as caught:
        resolve(layers, STACK)
    return str(caught.value)


def test_the_image_has_what_the_step_asks_for(tmp_path: Path) -> None:
    packages = {
        "pypi": {"six": "1.15.0", "Requests[security]": ">=2,<3", "tiny": ""},
        "conda": {"ffmpeg": "6.1.1"},
        "channels": ["bioconda", "conda-forge"],
        "python": "3.12",
        "index_url": "https://index.example/simple",
        "extra_index_urls": ["https://more.example/simple"],
    }
    found, origins = resolve([layer_of("flow.py:3 @pypi", packages=packages)], STACK)
    assert origins["docker.requirements"] == "flow.py:3 @pypi"
    spec = spec_of(found.docker, root=tmp_path, python="3.11")
    listed = b"".join(requirement_files(spec).values()).decode().split()
    assert listed == ["requests[security]>=2,<3", "six==1.15.0", "tiny"]
    text = dockerfile(spec)
    assert text.startswith("FROM python:3.12-slim\n")
    assert "-c bioconda -c conda-forge --override-channels python=3.12 ffmpeg==6.1.1" in text
    assert "--index-url=https://index.example/simple" in text
    assert "--extra-index-url=https://more.example/simple" in text


@pytest.mark.parametrize("options", [{}, {"step_operator": "here"}])
def test_a_version_that_no_installer_reads_is_refused_at_its_place(options: dict[str, Any]) -> None:
    words = refused(
        layer_of("a", packages={"pypi": {"six": "1"}}), layer_of("b", packages={"pypi": {"six": "new"}}, **options)
    )
    assert (
        words.startswith("b  (over a): packages.pypi: 'new' is not a version of six") and 'fix: write "1.26.4"' in words
    )


def test_docker_settings_stay_and_packages_come_to_them() -> None:
    found = docker(
        layer_of("a", docker={"requirements": ["numpy==1.26.4", "Six == 1.15.0"], "apt_packages": ["git"]}),
        layer_of(
            "b", docker={"conda_packages": ["ffmpeg"], "python_package_installer_args": {"index_url": "https://i"}}
        ),
        layer_of(
            "c", packages={"pypi": {"six": "1.15.0", "tiny": "1"}, "conda": {"other": ""}, "index_url": "https://i"}
        ),
    )
    assert found.requirements == ("numpy==1.26.4", "Six == 1.15.0", "tiny==1")
    assert found.conda_packages == ("ffmpeg", "other") and found.apt_packages == ("git",)
    assert found.python_package_installer_args == {"index_url": "https://i"}
    file = docker(layer_of("a", docker={"requirements": "needs.txt"}, packages={"pypi": {"tiny": "1"}}))
    assert file.requirements == ("-r needs.txt", "tiny==1")


@pytest.mark.parametrize(
    ("asked", "of_docker", "words"),
    [
        ({"pypi": {"six": "1.15.0"}}, {"requirements": ["six==1.16.0"]}, ("six==1.16.0", "six==1.15.0")),
        ({"conda": {"ffmpeg": "6"}}, {"conda_packages": ["ffmpeg==5"]}, ("ffmpeg==5", "ffmpeg==6")),
        ({"python": "3.12"}, {"python_version": "3.11"}, ("3.11", "3.12")),
        ({"python": "3.12"}, {"parent_image": "python:3.11-slim"}, ("python:3.11-slim has Python 3.11",)),
        ({"python": "3.12"}, {"parent_image": "team/image"}, ("team/image brings a Python of its own",)),
        ({"pypi": {"six": ""}}, {"parent_image": "team/image", "skip_build": True}, ("used as it is",)),
        (
            {"pypi": {"six": ""}, "index_url": "https://a"},
            {"python_package_installer_args": {"index-url": "https://b"}},
            ("https://a", "https://b"),
        ),
        (
            {"conda": {"a": ""}, "channels": ["one"]},
            {"conda_packages": ["b"], "conda_channels": ["two"]},
            ("one", "two"),
        ),
    ],
)
def test_contradictions_are_refused_with_both_places(asked: Any, of_docker: Any, words: tuple[str, ...]) -> None:
    layers = [layer_of("train.py:4 @pipeline", docker=of_docker), layer_of("train.py:9 @step", packages=asked)]
    message = refused(*layers)
    assert all(word in message for word in words), message
    assert "train.py:4 @pipeline" in message and "train.py:9 @step" in message
    both = refused(layer_of("train.py:9 @step", docker=of_docker, packages=asked))
    assert "train.py:9 @step" in both


def test_a_stronger_layer_of_docker_wins() -> None:
    asked = layer_of("step", packages={"pypi": {"six": "1.15.0", "tiny": "1"}, "python": "3.12"})
    found = docker(asked, layer_of("--set", docker={"requirements": ["six==1.16.0"], "python_version": "3.11"}))
    assert found.requirements == ("six==1.16.0", "tiny==1") and found.python_version == "3.11"
    parent = docker(asked, layer_of("--set", docker={"parent_image": "team/image"}))
    assert parent.parent_image == "team/image" and not parent.python_version
    assert docker(asked, layer_of("--set", packages={"pypi": {"six": None}})).requirements == ("tiny==1",)


def test_disabled_and_elsewhere_nothing_changes() -> None:
    asked = layer_of("step", packages={"pypi": {"six": "1.15.0"}})
    assert resolve([asked, layer_of("b", packages={"disabled": True})], STACK)[0].docker is None
    assert resolve([asked, layer_of("b", packages=None)], STACK)[0].docker is None
    assert resolve([asked, layer_of("b", step_operator="here")], STACK)[0].docker is None


def test_uv_brings_the_project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "inner").mkdir()
    monkeypatch.chdir(tmp_path / "inner")
    asked = layer_of("--environment=uv", packages={"environment": "uv"})
    assert "no pyproject.toml" in refused(asked)
    (tmp_path / "pyproject.toml").write_text("[project]\nname='x'\nversion='1'\ndependencies=['tiny', 'six==1.16.0']\n")
    found = docker(asked, layer_of("step", packages={"pypi": {"six": "1.15.0"}}))
    assert found.pyproject_path == str(tmp_path / "pyproject.toml")
    listed = requirement_files(spec_of(found, root=tmp_path, python="3.11"))
    assert list(listed.values()) == [b"tiny\n", b"six==1.15.0\n"], "the step's own word goes before the project's"
    assert docker(asked, layer_of("step", docker={"pyproject_path": "other"})).pyproject_path == "other"
