"""The same builds by podman's and buildah's command lines, which need no server, in a storage of the tests' own."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.servers import baseimage
from tests.servers.containers import absence, refuse

from stoker.images import engine as engines
from stoker.images.build import BuildFailed, BuiltImage, build_image
from stoker.images.dockerfile import ImageSpec, RequirementList, dockerfile, requirement_files
from stoker.images.registry import digest_of, inspect

BASE = "localhost/stoker-base:1"
# Limits may not be raised in every container that tests run in, and not everywhere is there a cgroup v2 for crun.
CONTAINERS = """\
[containers]
netns = "host"
log_driver = "k8s-file"
default_ulimits = ["nofile=1024:1024", "nproc=1024:1024"]
[engine]
runtime = "runc"
cgroup_manager = "cgroupfs"
events_logger = "file"
"""


class Workshop:
    """Builds by one of the command lines."""

    def __init__(self, kind: str, folder: Path) -> None:
        (folder / "containers.conf").write_text(CONTAINERS)
        places = f'graphroot = "{folder}/root"\nrunroot = "{folder}/run"\n'
        (folder / "storage.conf").write_text(f'[storage]\ndriver = "overlay"\n{places}')
        names = {"CONTAINERS_CONF": "containers.conf", "CONTAINERS_STORAGE_CONF": "storage.conf"}
        self.environ = {**os.environ, **{name: str(folder / file) for name, file in names.items()}}
        self.environ.pop("DOCKER_HOST", None)
        # Only this one of them is on the PATH, so that it is the one that is found.
        (folder / "bin").mkdir()
        program = shutil.which(kind)
        assert program is not None
        (folder / "bin" / kind).symlink_to(program)
        found = engines.find({**self.environ, "PATH": str(folder / "bin")})
        assert found is not None, engines.need
        found.environ["PATH"] = os.environ["PATH"]
        self.engine = found
        self.said: list[str] = []
        self.spec = ImageSpec(parent=BASE, python="3.11", installer="pip")
        self._import(folder)

    def _import(self, folder: Path) -> None:
        context = folder / "context"
        context.mkdir()
        baseimage.write(context / "base.tar")
        (context / "Dockerfile").write_text("\n".join(["FROM scratch", "ADD base.tar /", *baseimage.changes()]) + "\n")
        self.run("build", "--tag", BASE, str(context))
        shutil.rmtree(context)

    def run(self, *arguments: str) -> None:
        done = subprocess.run(
            [*self.engine.program, *arguments], env=self.environ, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, f"{arguments}\n{done.stdout}\n{done.stderr}"

    def made(self, text: str, files: Any = None, *, push: str = "") -> BuiltImage:
        self.said.clear()
        return build_image(self.spec, text, files or {}, engine=self.engine, progress=self.said.append, push=push)


@pytest.fixture(scope="module", params=["podman", "buildah"])
def workshop(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Workshop]:
    """A workshop of each, with the base image in it."""
    missing = "" if shutil.which(request.param) else f"{request.param} is not installed"
    refuse(absence() or missing)
    folder = tmp_path_factory.mktemp(request.param)
    found = Workshop(request.param, folder)
    yield found
    found.run("rmi", "--all", "--force")
    mounts = [line.split()[4] for line in Path("/proc/self/mountinfo").read_text().splitlines()]
    for mount in sorted((mount for mount in mounts if mount.startswith(f"{folder}/")), reverse=True):
        subprocess.run(["umount", "--lazy", mount], check=False, capture_output=True)
    shutil.rmtree(folder, ignore_errors=True)


def test_what_is_known_of_an_image_here(workshop: Workshop) -> None:
    assert workshop.engine.kind in ("podman", "buildah") and workshop.engine.mounts
    assert workshop.engine.platform.startswith("linux/")
    assert workshop.engine.has("localhost/nobody:1") is None
    found = inspect(BASE, engine=workshop.engine)
    assert found.base == "engine" and found.python == baseimage.ENVIRONMENT["PYTHON_VERSION"]
    assert found.digest == workshop.engine.id(BASE) and found.command == ("/bin/sh",)


def test_built_once(workshop: Workshop) -> None:
    import attrs

    spec = attrs.evolve(workshop.spec, requirements=(RequirementList(name="listed", lines=("--no-index",)),))
    text = dockerfile(spec)
    assert "--mount=type=cache" in text
    first = workshop.made(text, requirement_files(spec))
    assert not first.reused and first.reference.startswith("sha256:")
    assert any("pip install" in line for line in workshop.said)
    again = workshop.made(text, requirement_files(spec))
    assert again.reused and again.reference == first.reference and not workshop.said


def test_a_failed_instruction_is_shown(workshop: Workshop) -> None:
    with pytest.raises(BuildFailed) as caught:
        workshop.made(f"FROM {BASE}\nRUN echo fine\nRUN echo first words; exit 3\n")
    assert caught.value.instruction == "RUN echo first words; exit 3"
    assert "first words" in caught.value.output and "fine" not in caught.value.output


def test_pushed_and_found_again(workshop: Workshop, registry: str) -> None:
    repository = f"{registry}/by/{workshop.engine.kind}"
    text = f"FROM {BASE}\nENV PUSHED=1\n"
    first = workshop.made(text, push=repository)
    assert first.reference == f"{repository}@{digest_of(first.tag)}"
    assert inspect(first.reference).env["PUSHED"] == "1"
    assert workshop.made(text, push=repository).reused


def test_a_parent_of_a_registry(workshop: Workshop, registry: str) -> None:
    tag = f"{registry}/parents/{workshop.engine.kind}:1"
    workshop.run("tag", BASE, tag)
    workshop.run("push", "--tls-verify=false", tag)
    workshop.run("rmi", tag)
    text = f"FROM {tag}\nENV FROM_REGISTRY=1\n"
    assert not workshop.made(text).reused
    assert workshop.made(text).reused, "that the parent is here now changes nothing"
