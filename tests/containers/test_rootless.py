"""Builds and steps on an engine of a user without rights: podman in a user namespace of its own."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import attrs
import pytest
from tests.containers.bench import Bench
from tests.servers.containers import Engine, engine_folder, import_base, program, running_podman

from stoker.images import context
from stoker.images import engine as engines
from stoker.images.build import build_image
from stoker.images.spec import ImageSpec
from stoker.store.blobs import Blobs

NOBODY = 65534
# Without ids of its own in /etc/subuid the user has one id in its namespace, that of root there.
STORAGE_CONF = """
[storage]
driver = "vfs"
graphroot = "{folder}/graph"
runroot = "{folder}/run"
[storage.options]
ignore_chown_errors = "true"
[storage.options.vfs]
ignore_chown_errors = "true"
"""


@pytest.fixture(scope="module")
def engine() -> Iterator[Engine]:
    """A podman service that runs as nobody, with all of its data below a temporary folder."""
    missing = [name for name in ("podman", "runc", "docker", "setpriv") if not program(name)]
    if os.getuid() != 0 or missing:
        pytest.skip(f"this needs root, who becomes nobody, and: {', '.join(missing) or 'root'}")
    folder = engine_folder("rootless")
    os.chown(folder, NOBODY, NOBODY)
    variables = {"HOME": str(folder), "XDG_RUNTIME_DIR": str(folder), "TMPDIR": str(folder), "PATH": os.environ["PATH"]}
    nobody = ["setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups"]
    with running_podman(folder, STORAGE_CONF, before=nobody, environment=variables, more='netns = "host"') as client:
        yield client


@pytest.fixture(scope="module")
def base_image(engine: Engine) -> str:
    """The base image in it."""
    return import_base(engine)


def test_an_image_is_built_there_and_found_again(engine: Engine, base_image: str) -> None:
    found = engines.need({**os.environ, **engine.environment})
    spec = ImageSpec(parent=base_image, python="3.11", installer="pip")
    text = f"FROM {base_image}\nRUN id -u | grep -qx 0 && touch /built\n"
    said: list[str] = []
    built = build_image(spec, text, {}, engine=found, progress=said.append)
    assert not built.reused and build_image(spec, text, {}, engine=found, progress=said.append).reused
    assert engine.run("image", "inspect", "--format", "{{.Id}}", built.tag).stdout.strip().endswith(built.reference[7:])
    assert engine.run("ps", "--all", "--quiet").stdout == "", "no lock is left"


@pytest.fixture
def store() -> Iterator[Path]:
    """A folder that everybody may write, outside of pytest's, into which nobody else may look."""
    folder = Path(tempfile.mkdtemp(prefix="stoker-rootless-store-"))
    folder.chmod(0o777)
    yield folder
    shutil.rmtree(folder)


def test_a_step_runs_there_without_rights_on_this_machine(bench: Bench, engine: Engine, store: Path) -> None:
    bench.blobs = Blobs(f"local://{store}")
    package = context.package(bench.code)
    with bench.blobs.writer() as writer:
        context.write(package, writer)  # type: ignore[arg-type]  # it has what is written to
    bench.site = attrs.evolve(
        bench.site, artifacts=bench.blobs.uri, package=package.digest, code_root=str(package.root), path=()
    )
    bench.options = {"network": "host", "shares_files": False, "mounts": [f"{store}:{store}"]}
    for path in store.rglob("*"):
        path.chmod(0o777 if path.is_dir() else 0o666)
    status = bench.over(bench.backend(), bench.job("surroundings"))
    assert status.state == "succeeded", (status.message, bench.lines)
    owners = {path.stat().st_uid for path in store.rglob("*") if path.is_file()}
    assert owners == {0, NOBODY}, "what the step wrote is the engine's user's"
    assert engine.run("ps", "--all", "--quiet").stdout == ""
