"""DockerSettings by the names that people know from ZenML: each field is honoured, or says what to write instead."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import attrs
import pytest

from stoker.core.codec import from_json, to_json
from stoker.core.docker import DockerSettings
from stoker.core.errors import SettingsError
from stoker.images.build import input_digest
from stoker.images.context import listed_files
from stoker.images.dockerfile import dockerfile, requirement_files
from stoker.images.spec import context_files, spec_of
from stoker.settings.options import checked_fields

# https://sdkdocs.zenml.io/latest/core_code_docs/core-config.html#zenml.config.docker_settings.DockerSettings
HONOURED: dict[str, Any] = {
    "parent_image": "python:3.11-slim",
    "image_tag": "latest",
    "dockerfile": "Dockerfile",
    "build_context_root": ".",
    "skip_build": False,
    "prevent_build_reuse": True,
    "target_repository": "team/images",
    "python_package_installer": "pip",
    "python_package_installer_args": {"system": None},
    "replicate_local_python_environment": True,
    "pyproject_path": "pyproject.toml",
    "pyproject_export_command": ["uv", "export"],
    "requirements": ["numpy"],
    "local_project_install_command": "pip install .",
    "apt_packages": ["git"],
    "environment": {"A": "1"},
    "runtime_environment": {"A": "1"},
    "user": "me",
    "build_config": {"options": {"labels": {"team": "a"}}},
}
REFUSED: dict[str, tuple[Any, str]] = {
    "required_integrations": (["pytorch"], "requirements"),
    "install_stack_requirements": (True, "remove it"),
    "install_deployment_requirements": (True, "remove it"),
    "disable_automatic_requirements_detection": (True, "remove it"),
    "parent_image_build_config": ({}, "build_config"),
    "build_options": ({"pull": True}, 'build_config={"options"'),
    "dockerignore": (".dockerignore", 'build_config={"dockerignore"'),
    "python_package_installer_cache_mount": ("/cache", "remove it"),
    "allow_including_files_in_images": (True, "artifact store"),
    "allow_download_from_code_repository": (True, "artifact store"),
    "allow_download_from_artifact_store": (True, "artifact store"),
    "copy_files": (True, "artifact store"),
    "source_files": ("include", "artifact store"),
    "copy_global_config": (True, "remove it"),
    "required_hub_plugins": (["x"], "remove it"),
}


@pytest.mark.parametrize("name", HONOURED)
def test_a_field_that_is_honoured_is_kept_and_written(name: str) -> None:
    settings = DockerSettings(**{name: HONOURED[name]})
    assert from_json(DockerSettings, to_json(settings), strict=True) == settings
    assert checked_fields(DockerSettings, {name: HONOURED[name]}).keys() == {name}


@pytest.mark.parametrize("name", REFUSED)
def test_a_field_that_is_not_says_what_to_write_instead(name: str) -> None:
    value, instead = REFUSED[name]
    for make in (lambda: DockerSettings(**{name: value}), lambda: checked_fields(DockerSettings, {name: value})):
        with pytest.raises(SettingsError, match=f"DockerSettings has no field '{name}'") as error:
            make()
        assert instead in error.value.fix
    assert name in DockerSettings.INSTEAD and name not in {field.name for field in attrs.fields(DockerSettings)}


def test_the_two_tables_are_all_that_there_is() -> None:
    assert set(REFUSED) == set(DockerSettings.INSTEAD)


def lines_of(folder: Path, **docker: Any) -> tuple[list[str], tuple[str, ...]]:
    spec = spec_of(DockerSettings(**docker), root=folder, python="3.11")
    return [line for group in spec.requirements for line in group.lines], spec.left_out


def test_a_command_exports_the_projects_requirements(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text("[tool.poetry]\nname = 'p'\n")
    (tmp_path / "locked.txt").write_text("numpy==2.0.0 ; python_version >= '3.9' \\\n    --hash=sha256:00\n# end\n")
    show = "import pathlib, sys; print(pathlib.Path(sys.argv[1], 'locked.txt').read_text())"
    command = [sys.executable, "-c", show, "{directory}"]
    found, _ = lines_of(tmp_path, pyproject_export_command=command)
    assert [line.partition(" ")[0] for line in found] == ["numpy==2.0.0"]
    assert lines_of(tmp_path, pyproject_path="pyproject.toml", pyproject_export_command=command)[0] == found
    text = DockerSettings(pyproject_export_command="poetry export --format 'requirements.txt'")
    assert text.pyproject_export_command == ("poetry", "export", "--format", "requirements.txt")
    for words, problem in (
        ([sys.executable, "-c", "import sys; sys.exit('no lock')"], "no lock"),
        (["no-such-program-here"], "no-such-program-here"),
        ([sys.executable, "-c", "print('-e .')"], "path of this machine"),
    ):
        with pytest.raises(SettingsError, match=problem):
            lines_of(tmp_path, pyproject_export_command=words)
    with pytest.raises(SettingsError, match="required_extras: pyproject_export_command"):
        lines_of(tmp_path, pyproject_export_command=command, required_extras=["gpu"])


def test_a_command_replicates_the_environment_and_says_what_it_leaves_out(tmp_path: Path) -> None:
    show = "print('numpy==2.0.0'); print('-e /home/me/mine'); print('other @ file:///home/me/other')"
    found, left_out = lines_of(tmp_path, replicate_local_python_environment=[sys.executable, "-c", show])
    assert found == ["numpy==2.0.0"]
    assert [text.partition(":")[0] for text in left_out] == ["-e /home/me/mine", "other @ file"]
    assert DockerSettings(replicate_local_python_environment="pip_freeze").replicate_local_python_environment is True
    exported = DockerSettings(replicate_local_python_environment="poetry_export").replicate_local_python_environment
    assert isinstance(exported, tuple) and exported[:2] == ("poetry", "export")


def test_an_ignore_file_of_its_own_decides_what_the_build_sees(tmp_path: Path) -> None:
    for name in ("Dockerfile", "kept.txt", "left.txt"):
        (tmp_path / name).write_text("FROM python:3.11-slim\n")
    (tmp_path / "own.ignore").write_text("left.txt\n")
    settings = DockerSettings(
        dockerfile="Dockerfile", build_context_root=".", build_config={"dockerignore": "own.ignore"}
    )
    files = context_files(spec_of(settings, root=tmp_path, python="3.11"), root=tmp_path)
    assert "kept.txt" in files and "left.txt" not in files
    assert "left.txt" in set(listed_files(tmp_path, ignored=tmp_path / ".dockerignore", docker=True))


def test_tag_repository_and_reuse_are_the_builds_and_change_no_contents(tmp_path: Path) -> None:
    plain = spec_of(DockerSettings(requirements=["numpy"]), root=tmp_path, python="3.11")
    named = DockerSettings(
        requirements=["numpy"], image_tag="v1", target_repository="team/images", prevent_build_reuse=True
    )
    spec = spec_of(named, root=tmp_path, python="3.11")
    assert (spec.image_tag, spec.target_repository, spec.prevent_build_reuse) == ("v1", "team/images", True)
    digests = {
        input_digest(dockerfile(one), requirement_files(one), parents={}, platform="linux/amd64", spec=one)
        for one in (plain, spec)
    }
    assert len(digests) == 1
