"""An index and a registry whose certificates an authority of one's own has signed, as the guide says."""

from __future__ import annotations

import json
import shutil
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.servers.authority import Certificate, certificate
from tests.servers.containers import Engine, running_registry
from tests.servers.packageindex import running_index

STACK = """
stack = "engine"
[stacks.engine]
container_registry = "REGISTRY/team"
orchestrator = {flavor = "docker", network = "host"}
"""
TRAIN = """
    from stoker import pipeline, step
    from stoker.config import DockerSettings

    docker = DockerSettings(
        parent_image="team/python:1",
        requirements=["trainer"],
        target_repository="train",
        python_package_installer="pip",
        python_package_installer_args={"index-url": "URL", "retries": 0},
        MORE
    )

    @step(settings={"docker": docker}, cache=False)
    def train() -> str:
        import trainer

        return trainer.version

    @pipeline
    def training():
        train()

    if __name__ == "__main__":
        training()
"""
IN_THE_IMAGE = 'environment={"PIP_CERT": "/authority.pem", "SSL_CERT_FILE": "/authority.pem"},'


@pytest.fixture
def address() -> str:
    """An address of this machine that is not loopback, which engines take for one without TLS."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
        try:
            sender.connect(("192.0.2.254", 9))  # nothing is sent
        except OSError:
            pytest.skip("this machine has no address but loopback")
        found = str(sender.getsockname()[0])
    if found.startswith("127."):
        pytest.skip("this machine has no address but loopback")
    return found


@pytest.fixture
def signed(tmp_path: Path, address: str) -> Certificate:
    return certificate(tmp_path, "127.0.0.1", address)


@pytest.fixture
def registry(tmp_path: Path, address: str, signed: Certificate, engine: Engine) -> Iterator[str]:
    """A registry with the certificate."""
    del engine  # where there is none, there is no registry
    (tmp_path / "registry").mkdir()
    with running_registry(tmp_path / "registry", host=address, certificate=signed) as name:
        yield name


@pytest.mark.slow
def test_a_build_installs_and_pushes_with_an_authority_of_ones_own(
    project: Any,
    engine: Engine,
    base_image: str,
    registry: str,
    signed: Certificate,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    monkeypatch.setenv("DOCKER_HOST", engine.socket)
    monkeypatch.delenv("STOKER_OFFLINE")
    context = tmp_path / "context"
    context.mkdir()
    shutil.copy(signed.authority, context)
    (context / "Dockerfile").write_text(f"FROM {base_image}\nCOPY authority.pem /authority.pem\n")
    engine.run("build", "--tag=team/python:1", str(context))
    known = Path("/etc/docker/certs.d", registry)
    with running_index(tmp_path / "index", signed.server()) as index:
        index.put_what_the_worker_needs()
        index.put("trainer", "1.0")
        text = TRAIN.replace("URL", index.url)
        project.write({"stoker.toml": STACK.replace("REGISTRY", registry), "train.py": text.replace("MORE", "")})
        # The registry is asked first: nothing is built that cannot be pushed.
        refused = project.stoker("build", "train.py", code=None)
        assert refused.returncode != 0 and f"{known}/ca.crt" in refused.stderr, refused.stderr
        try:
            known.mkdir(parents=True)
            shutil.copy(signed.authority, known / "ca.crt")
            refused = project.stoker("build", "train.py", code=None)
            assert refused.returncode != 0 and '"PIP_CERT": "/path/in/image.pem"' in refused.stderr, refused.stderr
            # This machine has an index's authority in the variables of pip and uv; the image as the advice says.
            project.write({"train.py": text.replace("MORE", IN_THE_IMAGE)})
            here = {"PIP_CERT": str(signed.authority), "SSL_CERT_FILE": str(signed.authority)}
            locked = project.stoker("plan", "train.py", "--lock", env=here)
            assert "trainer==1.0" in locked.stdout
            built = project.stoker("build", "train.py", "--json", env=here)
            (image,) = json.loads(built.stdout)
            assert image["reference"].startswith(f"{registry}/team/train@sha256:")
            engine.run("rmi", "--force", image["reference"], image["tag"])
            code = "import trainer; print(trainer.version)"
            ran = engine.run("run", "--rm", "--network", "none", image["reference"], "python3", "-c", code)
            assert ran.stdout == "1.0\n", "it is pulled, and what it needs is installed"
            # uv reads the second variable.
            uv = ("--set", "docker.python_package_installer=uv")
            if shutil.which("uv"):
                planned = project.stoker("plan", "train.py", "--lock", *uv, env=here)
                assert "trainer==1.0" in planned.stdout
        finally:
            shutil.rmtree(known, ignore_errors=True)
            for parent in (known.parent, known.parent.parent):
                if parent.is_dir() and not list(parent.iterdir()):
                    parent.rmdir()
