"""Dockerfiles: every setting to the byte, hostile values quoted, and the same spec the same text."""

from __future__ import annotations

import json
import shlex
import string
from pathlib import Path
from typing import Any

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stoker.core.codec import from_json, to_json
from stoker.core.docker import DockerSettings
from stoker.core.errors import SettingsError
from stoker.images.dockerfile import ImageSpec, RequirementList, assignment, command, dockerfile, requirement_files
from stoker.images.spec import context_files, spec_of

EXPECTED = Path(__file__).with_name("expected")
WORKER = "stoker-0.1.0+g0123456789ab-py3-none-any.whl"

CASES: dict[str, dict[str, Any]] = {
    "nothing": {},
    "seed": {
        "parent_image": "pytorch/pytorch:2.1.0-cuda12.1-cudnn8-runtime",
        "requirements": ["zenml", "accelerate", "torchvision"],
        "python_package_installer_args": {"system": None},
    },
    "pip": {"python_package_installer": "pip", "requirements": ["numpy>=1.26", "pandas[parquet]"]},
    "everything": {
        "parent_image": "nvidia/cuda:12.4.1-cudnn-runtime-ubuntu22.04",
        "requirements": ["numpy>=1.26"],
        "apt_packages": ["git", "libgl1=1.6.0-1"],
        "conda_packages": ["ffmpeg>=6"],
        "environment": {"http_proxy": "http://proxy:3128", "Pip_Timeout": "60"},
        "runtime_environment": {"HF_HOME": "/data/it's", "OMP_NUM_THREADS": 4},
        "user": "trainer",
        "build_config": {"options": {"build_args": {"B": "2", "A": "1"}, "secrets": {"netrc": "~/.netrc", "key": "k"}}},
        "local_project_install_command": "uv pip install --system .",
        "platform": "linux/amd64",
    },
    "cuda_with_the_distributions_python": {"accelerator": "cuda12.8", "python": "3.12", "requirements": ["torch"]},
    "cuda_with_uvs_python": {"accelerator": "cuda12.4", "requirements": ["torch"]},
    "cuda_with_pip": {
        "accelerator": "cu124",
        "python_package_installer": "pip",
        "requirements": ["torch", "numpy"],
    },
    "another_python": {"python_version": "3.12", "requirements": ["six==1.15.0"]},
    "another_python_in_a_distribution": {"parent_image": "ubuntu:22.04", "python_version": "3.12.3"},
    "conda_of_channels": {
        "conda_packages": ["ffmpeg>=6", "bioconda::samtools==1.20"],
        "conda_channels": ["bioconda", "conda-forge"],
        "python_version": "3.10",
    },
    "own": {"dockerfile": "Dockerfile", "requirements": ["numpy"]},
    "numeric_user": {"user": "1000:1000"},
    "without_build": {"parent_image": "pytorch/pytorch:2.8.0-cuda12.8-cudnn9-runtime", "skip_build": True},
}
OWN = """\
ARG BASE=python:3.11-slim
FROM ${BASE} AS tools
USER nobody
FROM tools
RUN echo one && \\
    echo two
USER app
"""


def spec(root: Path, **settings: Any) -> ImageSpec:
    (root / "Dockerfile").write_text(OWN)
    python = settings.pop("python", "3.11")
    return spec_of(DockerSettings(**settings), root=root, python=python, worker=WORKER)


@pytest.mark.parametrize("name", CASES)
def test_expected(name: str, tmp_path: Path) -> None:
    assert dockerfile(spec(tmp_path, **CASES[name])) == (EXPECTED / f"{name}.Dockerfile").read_text()


def test_nothing_but_the_cases_is_expected() -> None:
    assert {path.stem for path in EXPECTED.glob("*.Dockerfile")} == {*CASES, "without_cache_mounts"}


def test_without_cache_mounts(tmp_path: Path) -> None:
    """The older builder of Docker knows no RUN --mount, and then no cache may stay behind in a layer."""
    text = dockerfile(spec(tmp_path, requirements=["numpy"], apt_packages=["git"]), cache_mounts=False)
    assert text == (EXPECTED / "without_cache_mounts.Dockerfile").read_text()
    assert "--mount" not in text


FIELDS: dict[str, Any] = {
    "parent_image": "debian:12",
    "dockerfile": "Dockerfile",
    "build_context_root": "context",
    "requirements": ["numpy"],
    "pyproject_path": "pyproject.toml",
    "pyproject_export_command": ["echo", "numpy==1.26.4"],
    "required_extras": ["train"],
    "replicate_local_python_environment": True,
    "apt_packages": ["git"],
    "conda_packages": ["ffmpeg"],
    "conda_channels": ["bioconda"],
    "python_version": "3.12",
    "environment": {"A": "1"},
    "runtime_environment": {"A": "1"},
    "user": "me",
    "skip_build": True,
    "prevent_build_reuse": True,
    "target_repository": "team/train",
    "image_tag": "v1",
    "build_config": {"options": {"labels": {"a": "b"}}},
    "python_package_installer": "pip",
    "python_package_installer_args": {"system": None},
    "local_project_install_command": "pip install .",
    "platform": "linux/arm64",
    "accelerator": "cuda12.4",
}
BESIDE: dict[str, dict[str, Any]] = {
    "build_context_root": {"dockerfile": "Dockerfile"},
    "conda_channels": {"conda_packages": ["ffmpeg"]},
    "skip_build": {"parent_image": "debian:12"},
}
"""Settings without which a field means nothing."""


def test_every_field_is_tried() -> None:
    assert set(FIELDS) == {field.name for field in attrs.fields(DockerSettings)}


@pytest.mark.parametrize("field", FIELDS)
def test_every_field_counts(field: str, tmp_path: Path) -> None:
    (tmp_path / "context").mkdir()
    (tmp_path / "pyproject.toml").write_text(
        '[project]\nname="x"\ndependencies=["numpy"]\n[project.optional-dependencies]\ntrain=["torch"]\n'
    )
    beside = BESIDE.get(field, {})
    without, having = spec(tmp_path, **beside), spec(tmp_path, **beside, **{field: FIELDS[field]})
    assert without != having
    if field not in {"build_context_root", "prevent_build_reuse", "target_repository", "image_tag", "build_config"}:
        assert (dockerfile(without), requirement_files(without)) != (dockerfile(having), requirement_files(having))


@pytest.mark.parametrize("image", ["pytorch/pytorch:2.8.0", "python:3.11-slim", "docker.io/library/python:3.11.4"])
def test_a_python_that_the_parent_does_not_have_is_refused(image: str, tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="python_version"):
        spec(tmp_path, parent_image=image, python_version="3.12")


def test_a_python_that_the_parent_has_or_gets(tmp_path: Path) -> None:
    for image in ("python:3.12-slim", "python:3.12.4@sha256:" + "0" * 64, "debian:12"):
        assert spec(tmp_path, parent_image=image, python_version="3.12").python == "3.12"
    conda = {"conda_packages": ["numpy"], "parent_image": "team/image"}
    assert "python=3.12 pip" in dockerfile(spec(tmp_path, python_version="3.12", **conda))
    with pytest.raises(SettingsError, match="python_version"):
        spec(tmp_path, dockerfile="Dockerfile", python_version="3.12")


def test_files_are_those_that_are_copied(tmp_path: Path) -> None:
    (tmp_path / "setup.py").write_text("")
    wheel = tmp_path / WORKER
    wheel.write_bytes(b"wheel")
    made = spec(tmp_path, requirements=["numpy", "-c limits.txt"] if (tmp_path / "limits.txt").exists() else ["numpy"])
    files = context_files(made, root=tmp_path, wheel=wheel)
    assert files == {"stoker-build/requirements-1-listed.txt": b"numpy\n", f"stoker-build/{WORKER}": wheel}
    for settings in CASES.values():
        made = spec(tmp_path, **settings)
        files = context_files(made, root=tmp_path, wheel=wheel)
        copied = [
            word
            for line in dockerfile(made).splitlines()
            if line.startswith("COPY ") and "--from" not in line
            for word in line.split()[1:-1]
        ]
        assert all(word in files or any(name.startswith(word) for name in files) for word in copied), copied


def test_constraints_go_along(tmp_path: Path) -> None:
    (tmp_path / "limits.txt").write_text("numpy<2\n")
    made = spec(tmp_path, requirements=["numpy", "-c limits.txt"])
    assert requirement_files(made)["stoker-build/constraints-1-listed.txt"] == b"numpy<2\n"
    assert "-r /opt/stoker/requirements-1-listed.txt -c /opt/stoker/constraints-1-listed.txt" in dockerfile(made)


# What Docker's parser makes of a double-quoted word: a backslash takes back the meaning of ", $ and itself.
def docker_value(line: str) -> str:
    name, _, quoted = line.partition("=")
    assert name == "NAME" and quoted[0] == quoted[-1] == '"'
    value, rest = "", quoted[1:-1]
    while rest:
        if rest[0] == "\\" and rest[1:2] in ('"', "$", "\\"):
            value, rest = value + rest[1], rest[2:]
        else:
            assert rest[0] not in ('"', "$"), "the word would end, or a variable would be put in"
            value, rest = value + rest[0], rest[1:]
    return value


@given(st.text(st.characters(blacklist_characters="\r\n\0", blacklist_categories=("Cs",))))
def test_any_value_survives(value: str) -> None:
    assert docker_value(assignment("NAME", value)) == value


@given(st.text(st.characters(blacklist_categories=("Cs",))))
def test_any_command_is_one_instruction(text: str) -> None:
    line = command("echo " + shlex.quote(text))
    assert line.startswith("RUN ") and "\n" not in line and "\r" not in line
    if line.startswith("RUN ["):
        assert json.loads(line[4:]) == ["/bin/sh", "-ec", "echo " + shlex.quote(text)]
    else:
        assert shlex.split(line) == ["RUN", "echo", text]


@pytest.mark.parametrize(
    "text", ["a\nb", "cat <<EOF", "[ -f x ] && y", "--flag", "ends with \\", "# nothing", "a \\\n b"]
)
def test_what_a_dockerfile_would_misread_goes_to_the_shell(text: str) -> None:
    assert json.loads(command(text).removeprefix("RUN ")) == ["/bin/sh", "-ec", text]


NAMES = st.text(string.ascii_letters, min_size=1, max_size=8)
SPECS = st.builds(
    ImageSpec,
    parent=st.sampled_from(["debian:12", "a/b@sha256:" + "0" * 64]),
    python=st.sampled_from(["3.10", "3.12"]),
    interpreter=st.sampled_from(["parent", "distribution", "uv"]),
    environment=st.dictionaries(NAMES, st.text(string.printable.replace("\n", "").replace("\r", ""))),
    runtime_environment=st.dictionaries(NAMES, NAMES),
    apt_packages=st.lists(NAMES).map(tuple),
    conda_packages=st.lists(NAMES).map(tuple),
    installer=st.sampled_from(["uv", "pip"]),
    requirements=st.lists(st.builds(RequirementList, name=NAMES, lines=st.lists(NAMES, min_size=1).map(tuple))).map(
        tuple
    ),
    user=st.sampled_from(["", "me", "1000"]),
)


@given(SPECS)
def test_the_same_spec_gives_the_same_text(made: ImageSpec) -> None:
    turned = attrs.evolve(made, environment=dict(reversed(made.environment.items())))
    assert dockerfile(made) == dockerfile(turned) == dockerfile(from_json(ImageSpec, to_json(made), strict=True))
    allowed = ("FROM ", "USER ", "ARG ", "ENV ", "RUN ", "COPY ", "WORKDIR ")
    # Whatever the values hold, no line begins that Stoker did not write.
    assert all(line.startswith(allowed) for line in dockerfile(made).split("\n")[:-1])


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"parent_image": "a b"}, "parent_image: 'a b'"),
        ({"parent_image": "x\nRUN evil"}, "cannot be put into a Dockerfile"),
        ({"parent_image": "Foo Bar:latest"}, "'Foo Bar:latest' does not name an image"),
        ({"apt_packages": ["git; rm -rf /"]}, "apt_packages"),
        ({"apt_packages": ["-o=Evil"]}, "apt_packages"),
        ({"conda_packages": ["$(evil)"]}, "conda_packages"),
        ({"user": "me\nRUN evil"}, "user"),
        ({"platform": "linux/amd64 evil"}, "platform"),
        ({"environment": {"A": "x\nRUN evil"}}, "line break"),
        ({"environment": {"A B": "x"}}, "no name for a variable"),
        ({"environment": {"HF_TOKEN": "hf_abc"}}, "looks like a secret"),
        ({"environment": {"PIP_INDEX_URL": "https://me:pass@host/simple"}}, "has a password"),
        ({"python_package_installer_args": {"index-url": "https://me:pass@host/simple"}}, "netrc"),
        ({"python_package_installer_args": {"system; evil": None}}, "name of a flag"),
        ({"requirements": ["numpy --index-url https://me:pass@host/simple"]}, "has a password"),
        ({"build_config": {"options": {"build_args": {"a b": "1"}}}}, "build argument"),
        ({"accelerator": "cuda9.1"}, "no official image"),
        ({"skip_build": True}, "needs a parent_image"),
        ({"skip_build": True, "parent_image": "x", "requirements": ["numpy"]}, "requirements would be ignored"),
        ({"build_context_root": "."}, "nothing would be taken"),
        ({"dockerfile": "missing"}, "cannot be read"),
    ],
)
def test_refused(settings: dict[str, Any], words: str, tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=words.replace("(", r"\(").replace(")", r"\)")):
        spec(tmp_path, **settings)


def test_uv_and_the_worker_are_installed_from_where_the_requirements_are() -> None:
    where = ("--default-index=https://index.example/simple", "--allow-insecure-host=index.example", "--no-binary=a")
    text = dockerfile(ImageSpec(parent="x", python="3.11", installer="uv", arguments=where, worker="stoker.whl"))
    words = "pip install --index-url=https://index.example/simple --trusted-host=index.example uv"
    assert words in text
    worker = next(line for line in text.splitlines() if "stoker.whl'" in line)
    assert where[0] in worker and where[1] in worker and where[2] not in worker
    own = ("--cert=/etc/own.pem", "--proxy=proxy:3128")
    text = dockerfile(ImageSpec(parent="x", python="3.11", installer="pip", arguments=own, worker="stoker.whl"))
    assert all(word in line for line in text.splitlines() if "pip install" in line for word in own)
