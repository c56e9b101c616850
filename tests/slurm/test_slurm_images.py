"""A stack's registry from outside: what a person writes, plans and builds, and what the registry has afterwards."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path
from typing import Any

import pytest
from tests.images.test_registry import HTPASSWD, login
from tests.images.tokenserver import token_registry
from tests.servers.containers import Engine, running_registry
from tests.servers.slurm import Cluster

from stoker.images.registry import digest_of

STACK = """
stack = "cluster"
[stacks.cluster]
orchestrator = "local"
step_operators.far = {{flavor = "slurm", container = "{container}", setup = ["{setup}"]}}
image_builder = {builder}
[stacks.cluster.container_registry]
uri = "{registry}/ml"
{login}
"""
PIPELINE = """
from stoker import pipeline, step
from stoker.config import DockerSettings

docker = DockerSettings(parent_image={base!r}, environment={{"WHERE": "far"}}, python_package_installer="pip")

@step(docker=docker, step_operator="far")
def train() -> int:
    import os
    print("runs in", os.environ["WHERE"], os.path.exists("/.dockerenv"))
    return 1

@pipeline
def training():
    train()

if __name__ == "__main__":
    training()
"""
LOGIN = 'user = "trainer"\npassword = "secret:env:TEAM_PASSWORD"'


APPTAINER = """#!{python}
# Apptainer by an engine: the image is pulled from its registry by the name that the job has, and run.
import os, sys
words = sys.argv[2:]
mounts = [word.replace("--bind=", "--volume=") for word in words if word.startswith("--bind=")]
at = next(at for at, word in enumerate(words) if word.startswith("docker://"))
variables = [f"--env={{name}}" for name in os.environ if name.startswith(("SLURM", "STOKER"))]
with open("{log}", "a") as log:
    print(words[at], file=log)
image = words[at].removeprefix("docker://")
os.execvp("docker", ["docker", "run", "--rm", "--network=host", *mounts, *variables, image, *words[at + 1:]])
"""


def write(project: Any, base: str, registry: str, **words: str) -> None:
    words = {"container": "apptainer", "builder": '"local"', "login": "", "setup": "true", **words}
    project.write({"stoker.toml": STACK.format(registry=registry, **words), "train.py": PIPELINE.format(base=base)})


def findings(project: Any, env: dict[str, str]) -> dict[str, dict[str, Any]]:
    shown = project.stoker("plan", "train.py", "--json", env=env, code=None)
    return {one["code"]: one for one in json.loads(shown.stdout)["findings"]}


def test_images_for_other_machines_are_pushed_and_used_by_digest(
    project: Any, engine: Engine, base_image: str, cluster: Cluster, tmp_path: Path
) -> None:
    with running_registry(tmp_path, htpasswd=HTPASSWD) as registry:
        write(project, base_image, registry, login=LOGIN)
        nobody = {**engine.environment, "DOCKER_CONFIG": str(tmp_path / "none"), "TEAM_PASSWORD": "wrong"}
        wrong = findings(project, nobody)
        assert "as 'trainer' (from the stack's container_registry)" in wrong["STK220"]["what"]
        assert f"a push to {registry}/ml/stoker needs the permission to push" in wrong["STK220"]["why"]
        env = {**nobody, "TEAM_PASSWORD": "secret"}
        good = findings(project, env)
        assert "STK220" not in good and "STK157" not in good
        # What pulls on the nodes has no login yet: the stack's is not theirs.
        assert "apptainer on the cluster's nodes may not pull" in good["STK247"]["what"]
        assert "without a login" in good["STK247"]["what"] and "apptainer registry login" in good["STK247"]["fix"]
        env |= {"APPTAINER_DOCKER_USERNAME": "trainer", "APPTAINER_DOCKER_PASSWORD": "secret"}
        assert not {"STK220", "STK247", "STK248"} & findings(project, env).keys()
        built = project.stoker("build", "train.py", "--json", env=env)
        (image,) = json.loads(built.stdout)
        account = login(tmp_path, registry)
        assert image["reference"] == f"{registry}/ml/stoker@{digest_of(image['tag'], account)}" and not image["reused"]
        seen_by_skopeo(image, registry)
        # A second build finds it, also where the cluster does not answer, which a run needs.
        away = {**env, "PATH": str(Path(sys.executable).parent) + ":" + without_slurm(tmp_path)}
        assert json.loads(project.stoker("build", "train.py", "--json", env=away).stdout)[0]["reused"]
        assert "STK171" in project.stoker("run", "train.py", env=away, code=3).stderr
        assert json.loads(project.stoker("build", "train.py", "--json", env=env).stdout)[0]["reused"]
        log = tmp_path / "apptainer.log"
        program = tmp_path / "apptainer"
        program.write_text(APPTAINER.format(python=sys.executable, log=log))
        program.chmod(0o755)
        exports = f"export PATH={tmp_path}:$PATH DOCKER_CONFIG={tmp_path} DOCKER_HOST={engine.socket}"
        write(project, base_image, registry, login=LOGIN, setup=exports)
        engine.run("rmi", "--force", image["tag"], image["reference"])
        ran = project.stoker("run", "train.py", env=env)
        assert "runs in far True" in ran.stdout + ran.stderr
        assert log.read_text().splitlines() == [f"docker://{image['reference']}"], "by digest, and once"
        everything = [*project.folder.rglob("*"), *Path(project.home).rglob("*")]
        texts = [path.read_bytes() for path in everything if path.is_file() and path.stat().st_size < 1 << 20]
        assert not any(b"trainer:secret" in text for text in texts)


def without_slurm(folder: Path) -> str:
    """A folder with the programs of a build, and none of Slurm's."""
    (folder / "programs").mkdir()
    for name in ("docker", "git", "uv"):
        program = shutil.which(name)
        if program is not None:
            (folder / "programs" / name).symlink_to(program)
    return str(folder / "programs")


def seen_by_skopeo(image: dict[str, Any], registry: str) -> None:
    """The same digest by a program that is not ours, where there is one."""
    program = shutil.which("skopeo")
    if program is None:
        return
    words = [program, "inspect", "--tls-verify=false", "--creds=trainer:secret", "--format={{.Digest}}"]
    shown = subprocess.run([*words, f"docker://{image['tag']}"], capture_output=True, text=True, check=True)
    assert image["reference"].endswith(f"@{shown.stdout.strip()}")


def test_a_login_that_only_reads_is_found_before_the_build(project: Any, tmp_path: Path) -> None:
    with token_registry({"reader:read-only": "pull"}) as registry:
        write(project, "example.invalid/base:1", registry.address, container="pyxis")
        (tmp_path / "config.json").write_text(
            json.dumps({"auths": {registry.address: {"username": "reader", "password": "read-only"}}})
        )
        enroot = tmp_path / "enroot"
        enroot.mkdir()
        env = {"DOCKER_CONFIG": str(tmp_path), "ENROOT_CONFIG_PATH": str(enroot), "DOCKER_HOST": "unix:///nowhere.sock"}
        (enroot / ".credentials").write_text(f"machine {registry.address} login reader password read-only\n")
        said = findings(project, env)
        # Whether the image is there cannot be known: its parent cannot be read. That it cannot be pushed can.
        assert "STK220" in said or "STK246" in said
        assert "STK247" not in said
        (enroot / ".credentials").write_text(f"machine {registry.address} login reader password gone\n")
        assert "enroot on the cluster's nodes may not pull" in findings(project, env)["STK247"]["what"]
        (enroot / ".credentials").write_text(f"machine {registry.address} login reader password $WORD\n")
        unseen = findings(project, env)["STK248"]
        assert unseen["what"].startswith("not checked: ") and "is what a command prints" in unseen["what"]


def test_another_builder_is_told_and_its_image_is_found(
    project: Any, engine: Engine, base_image: str, registry: str, cluster: Cluster
) -> None:
    del cluster  # a plan asks it
    builder = '{flavor = "kaniko", context = "s3://builds", namespace = "ml"}'
    write(project, base_image, registry, builder=builder)
    env = engine.environment
    said = findings(project, env)
    assert "STK249" in said, said
    assert "`stoker build FILE --render --output FOLDER`" in said["STK249"]["fix"]
    folder = project.folder / "told"
    shown = project.stoker("build", "train.py", "--render", "--output", str(folder), env=env).stdout
    assert "is not there yet" in shown and "kubectl apply --filename kaniko.json" in shown
    (inside,) = folder.iterdir()
    tag = f"{registry}/ml/stoker:{inside.name}"
    job = json.loads((inside / "kaniko.json").read_text())
    assert f"--destination={tag}" in job["spec"]["template"]["spec"]["containers"][0]["args"]
    assert "--mount" not in (inside / "Dockerfile").read_text()
    context = inside / "context"
    with tarfile.open(inside / "context.tar.gz") as tar:
        tar.extractall(context, filter="data")
    # What kaniko would do with it.
    engine.run("build", "--network", "host", "--tag", tag, str(context))
    engine.run("push", tag)
    assert "STK249" not in findings(project, env)
    (image,) = json.loads(project.stoker("build", "train.py", "--json", env=env).stdout)
    assert image["reused"] and image["reference"] == f"{registry}/ml/stoker@{digest_of(tag)}"


def test_a_registry_that_stoker_toml_may_not_name(project: Any) -> None:
    write(project, "base:1", "ghcr.io", login='user = "me"\npassword = "ghp_0123456789"')
    refused = project.stoker("plan", "train.py", code=None)
    assert refused.returncode == 2 and "plain text" in refused.stderr and "stoker.toml:" in refused.stderr
    assert "ghp_0123456789" not in refused.stderr


@pytest.mark.parametrize("host", ["", 'host = "ssh://login.example"'])
def test_whose_rights_are_asked(host: str) -> None:
    from stoker.backends.slurm.environment import puller_of

    options = {"container": "apptainer", **({"host": "ssh://login.example"} if host else {})}
    puller = puller_of(options)
    assert puller is not None and (puller.account is None) == bool(host) and bool(puller.unseen) == bool(host)
    assert puller_of({}) is None
