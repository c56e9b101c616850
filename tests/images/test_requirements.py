"""Lists of requirements: files as pip reads them, projects, and this Python; what a spec makes of them."""

from __future__ import annotations

import json
import os
import sys
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest

from stoker.core.docker import DockerSettings
from stoker.core.errors import SettingsError
from stoker.images import parents
from stoker.images.dockerfile import ImageSpec, dockerfile, final_parent
from stoker.images.requirements import from_file, from_project, installed, listed
from stoker.images.spec import spec_of


def spec(root: Path, **settings: Any) -> ImageSpec:
    return spec_of(DockerSettings(**settings), root=root, python="3.11", worker="stoker-1+g0-py3-none-any.whl")


def lines(made: ImageSpec) -> list[tuple[str, ...]]:
    return [group.lines for group in made.requirements]


def test_a_file_as_pip_reads_it(tmp_path: Path) -> None:
    (tmp_path / "deep").mkdir()
    (tmp_path / "requirements.txt").write_text(
        "# a comment\n"
        "--extra-index-url https://download.example.org/whl   # another\n"
        "numpy>=1.26  # why\n"
        "pandas[parquet]==2.2.0 \\\n"
        "    --hash=sha256:aaaa \\\n"
        "    --hash=sha256:bbbb\n"
        "\n"
        "-r deep/more.txt\n"
        "--constraint=limits.txt\n"
        "thing @ git+https://example.org/thing.git@v1#egg=thing\n"
        "numpy>=1.26\n",
        encoding="utf-8",
    )
    (tmp_path / "deep" / "more.txt").write_text("-r other.txt\nscipy ; python_version >= '3.10'\n")
    (tmp_path / "deep" / "other.txt").write_text("\ufeffrich\n", encoding="utf-8")
    (tmp_path / "limits.txt").write_text("scipy<2\n")
    found = from_file(tmp_path / "requirements.txt")
    assert [" ".join(line.split()) for line in found.lines] == [
        "--extra-index-url https://download.example.org/whl",
        "numpy>=1.26",
        "pandas[parquet]==2.2.0 --hash=sha256:aaaa --hash=sha256:bbbb",
        "rich",
        "scipy ; python_version >= '3.10'",
        "thing @ git+https://example.org/thing.git@v1#egg=thing",
    ]
    assert found.constraints == ("scipy<2",)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("-e .", r"requirements.txt:1: '-e \.' is a path of this machine"),
        ("./wheels/x.whl", "local_project_install_command"),
        ("x @ file:///home/me/x", "path of this machine"),
        ("--no-such-option", "no option for a list"),
        ("-r missing.txt", "cannot be read"),
        ("-r requirements.txt", "includes itself"),
        ("https://me:word@host/x.whl", "has a password"),
        (">=1.0", "is not a requirement"),
        ("numpy=1.26", "requirements.txt:1: 'numpy=1.26' is not a requirement"),
        ("numpy 1.26", "is not a requirement"),
        ("numpy>=1.*", "is not a requirement"),
        ("numpy==new", "is not a requirement"),
        ("torch>=2.1+cu121", "is not a requirement"),
        ("numpy[a", "is not a requirement"),
        ("numpy >= 1 < 2", "is not a requirement"),
        ("x ; sys_platform = 'linux'", "is not a requirement"),
        ("x ; (os_name == 'posix'", "is not a requirement"),
        ("torch#foo", "is not a requirement"),
        ("_x", "is not a requirement"),
        ("numpy==1.0 \\ \nscipy", "is not a requirement"),
        ("wheels/x-1.zip", "path of this machine"),
        ("-rmissing.txt", "cannot be read"),
    ],
)
def test_refused(text: str, words: str, tmp_path: Path) -> None:
    (tmp_path / "requirements.txt").write_text(text + "\n")
    with pytest.raises(SettingsError, match=words):
        spec(tmp_path, requirements="requirements.txt")


def test_a_password_from_the_builds_environment_is_none(tmp_path: Path) -> None:
    line = "--index-url https://me:${INDEX_PASSWORD}@host/simple"
    assert listed([line, "x"], where="requirements", folder=tmp_path).lines == (line, "x")


@pytest.mark.parametrize(
    "line", ["stoker", "zenml", "ZenML==0.98.0", "stoker>=0.1 ; python_version > '3'", "zenml[server]"]
)
def test_ours_does_no_harm(line: str, tmp_path: Path) -> None:
    made = spec(tmp_path, requirements=[line, "numpy"])
    assert lines(made) == [("numpy",)]
    assert made.left_out == (f"{line}: Stoker puts itself into the image, in the version that runs here",)
    assert spec(tmp_path, requirements=[line]).requirements == ()


def test_extras_of_ours_are_kept(tmp_path: Path) -> None:
    made = spec(tmp_path, requirements=["stoker[postgres, accelerate]"])
    assert made.worker_extras == ("accelerate", "postgres")
    assert "'stoker[accelerate,postgres] @ file:///opt/stoker/stoker-1+g0-py3-none-any.whl'" in dockerfile(made)


PROJECT = """
[project]
name = "my-model"
dependencies = ["numpy>=1.26", "stoker"]

[project.optional-dependencies]
train = ["torch==2.8.0", "my_model[plots]"]
plots = ["matplotlib"]
"""


def test_a_project_without_a_lock(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text(PROJECT)
    assert lines(spec(tmp_path, pyproject_path="pyproject.toml")) == [("numpy>=1.26",)]
    made = spec(tmp_path, pyproject_path=".", required_extras=["train"])
    assert lines(made) == [("numpy>=1.26", "torch==2.8.0", "matplotlib")]
    assert lines(spec(tmp_path, required_extras=["plots"])) == [("numpy>=1.26", "matplotlib")]
    with pytest.raises(SettingsError, match="no extra 'trian', did you mean 'train'"):
        from_project(tmp_path, ["trian"])


def test_a_project_with_a_lock_goes_through_uv(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "pyproject.toml").write_text(PROJECT)
    (tmp_path / "uv.lock").write_text("version = 1\n")
    uv = tmp_path / "bin" / "uv"
    uv.parent.mkdir()
    uv.write_text(
        f'#!/bin/sh\necho "$@" > {tmp_path}/asked\nprintf "numpy==1.26.4\\n    # via my-model\\nrich==13.0\\n"\n'
    )
    uv.chmod(0o755)
    monkeypatch.setenv("PATH", str(uv.parent), prepend=":")
    assert lines(spec(tmp_path, pyproject_path=".", required_extras=["train"])) == [("numpy==1.26.4", "rich==13.0")]
    asked = (tmp_path / "asked").read_text().split()
    assert asked[:2] == ["export", "--frozen"] and asked[-2:] == ["--extra", "train"]
    uv.write_text("#!/bin/sh\necho 'error: the lock is broken' >&2\nexit 2\n")
    with pytest.raises(SettingsError, match="the lock is broken"):
        from_project(tmp_path)


def test_the_real_uv(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("uv", reason="uv is not installed")
    monkeypatch.setenv("PATH", os.path.dirname(sys.executable), prepend=os.pathsep)
    (tmp_path / "pyproject.toml").write_text('[project]\nname="x"\nversion="1"\nrequires-python=">=3.10"\n')
    (tmp_path / "uv.lock").write_text(
        'version = 1\nrevision = 2\nrequires-python = ">=3.10"\n\n[[package]]\nname = "x"\nversion = "1"\n'
        'source = { virtual = "." }\n'
    )
    assert from_project(tmp_path).lines == ()


def site(folder: Path, name: str, version: str, **files: str) -> None:
    info = folder / f"{name}-{version}.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    for file, text in files.items():
        (info / file.replace("__", ".")).write_text(text)


def test_this_python_frozen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = json.dumps({"url": "file:///src/mine", "dir_info": {"editable": True}})
    git = json.dumps({"url": "https://example.org/x", "vcs_info": {"vcs": "git", "commit_id": "abc"}})
    site(tmp_path, "Plain", "1.0")
    site(tmp_path, "mine", "2.0", direct_url__json=folder)
    site(tmp_path, "frommamba", "3.0", direct_url__json=folder, INSTALLER="conda\n")
    site(tmp_path, "fromgit", "4.0", direct_url__json=git)
    site(tmp_path, "pip", "23.0")
    site(tmp_path, "zenml", "0.98")
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    found, left_out = installed()
    assert found.lines == ("fromgit @ git+https://example.org/x@abc", "frommamba==3.0", "Plain==1.0")
    assert left_out == ("mine: installed here from a folder of this machine; its code is not in the image",)


def test_what_is_asked_for_later_wins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    site(tmp_path / "site", "numpy", "1.26.0")
    site(tmp_path / "site", "torch", "2.8.0+cu126")
    monkeypatch.setattr(sys, "path", [str(tmp_path / "site"), *sys.path])
    monkeypatch.setattr(
        metadata, "distributions", lambda: metadata.Distribution.discover(path=[str(tmp_path / "site")])
    )
    made = spec(tmp_path, replicate_local_python_environment=True, requirements=["NumPy>=2"])
    assert lines(made) == [("torch==2.8.0+cu126",), ("NumPy>=2",)]
    assert made.wheels == "cu126" and "--torch-backend=cu126" in dockerfile(made)


def test_pip_takes_torch_from_its_own_index(tmp_path: Path) -> None:
    made = spec(tmp_path, accelerator="cuda12.6", python_package_installer="pip", requirements=["torch", "numpy"])
    assert [(group.lines, group.index) for group in made.requirements] == [
        (("torch",), "https://download.pytorch.org/whl/cu126"),
        (("numpy",), ""),
    ]


def test_arguments(tmp_path: Path) -> None:
    arguments = {
        "system": None,
        "pre": True,
        "no_build": False,
        "index-strategy": "unsafe-best-match",
        "extra-index-url": ["a", "b"],
    }
    made = spec(tmp_path, python_package_installer_args=arguments, requirements=["numpy"])
    assert made.arguments == (
        "--extra-index-url=a",
        "--extra-index-url=b",
        "--index-strategy=unsafe-best-match",
        "--pre",
        "--system",
    )
    text = dockerfile(made)
    assert (
        "uv pip install --extra-index-url=a --extra-index-url=b --index-strategy=unsafe-best-match --pre --system -r"
        in text
    )
    # Stoker's own wheel takes no pre-releases because the person's requirements do.
    assert "--index-strategy=unsafe-best-match --system 'stoker @" in text
    assert (
        spec(tmp_path, python_package_installer="pip", python_package_installer_args={"system": None}).arguments == ()
    )


@pytest.mark.parametrize(
    ("accelerator", "python", "image", "interpreter", "wheels"),
    [
        ("cuda12.4", "3.10", "nvidia/cuda:12.4.1-cudnn-runtime-ubuntu22.04", "distribution", "cu124"),
        ("cuda12.4", "3.12", "nvidia/cuda:12.4.1-cudnn-runtime-ubuntu22.04", "uv", "cu124"),
        ("CUDA 12.8", "3.12", "nvidia/cuda:12.8.1-cudnn-runtime-ubuntu24.04", "distribution", "cu128"),
        ("cu118", "3.11", "nvidia/cuda:11.8.0-cudnn8-runtime-ubuntu22.04", "uv", "cu118"),
        ("cuda12.6.0", "3.10", "nvidia/cuda:12.6.0-cudnn-runtime-ubuntu22.04", "distribution", "cu126"),
        ("cpu", "3.11", "python:3.11-slim", "parent", "cpu"),
        ("rocm7.1", "3.12", "rocm/pytorch:rocm7.1_ubuntu24.04_py3.12_pytorch_release_2.8.0", "parent", ""),
    ],
)
def test_parents(accelerator: str, python: str, image: str, interpreter: str, wheels: str) -> None:
    found = parents.parent_for(accelerator, python=python)
    assert (found.image, found.interpreter, found.wheels) == (image, interpreter, wheels)


def test_every_known_accelerator_has_a_parent() -> None:
    for name in parents.accelerators():
        assert parents.parent_for(name, python="3.11").image
    with pytest.raises(SettingsError, match=r"no official image for 'cuda12\.7' in the table, did you mean 'cuda12"):
        parents.parent_for("cuda12.7", python="3.11")


@pytest.mark.parametrize(
    ("image", "interpreter"),
    [
        ("nvidia/cuda:12.8.1-cudnn-runtime-ubuntu24.04", "uv"),
        ("debian:12-slim", "distribution"),
        ("docker.io/library/debian:bookworm", "distribution"),
        ("ubuntu:noble@sha256:0", "uv"),
        ("python:3.11", "parent"),
        ("nvcr.io/nvidia/pytorch:25.06-py3", "parent"),
        ("nvidia/cuda:13.0.2-base-ubi9", "parent"),
    ],
)
def test_bare_images_get_a_python(image: str, interpreter: str, tmp_path: Path) -> None:
    assert parents.interpreter_of(image, python="3.11") == interpreter
    assert spec(tmp_path, parent_image=image).interpreter == interpreter
    assert spec(tmp_path, parent_image=image, apt_packages=["python3.11"]).interpreter == "parent"


@pytest.mark.parametrize(
    ("text", "parent"),
    [
        ("FROM a:1\n", "a:1"),
        ("ARG V=2\nFROM --platform=linux/amd64 a:$V AS x\nFROM b\nFROM x\n", "a:2"),
        ("from a:${V:-3} \\\n as y\n", "a:3"),
    ],
)
def test_the_parent_of_a_persons_dockerfile(text: str, parent: str, tmp_path: Path) -> None:
    assert final_parent(text) == parent
    (tmp_path / "Dockerfile").write_text(text)
    assert spec(tmp_path, dockerfile="Dockerfile").parent == parent
