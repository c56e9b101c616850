"""A Docker engine and an image registry of the tests' own, and a base image in the engine.

The engine is Debian's `docker.io` with its socket and all its data below a temporary folder; the registry is Debian's
`docker-registry` on a free port of loopback. `make test` installs both where it may. The engine has no default network:
containers and builds that need one use the host's (`--network host`) or networks that they make.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import attrs
import psutil
import pytest
from tests.servers import baseimage
from tests.servers.authority import Certificate
from tests.servers.postgres import free_port

BASE_IMAGE = "localhost/stoker-base:1"
START_SECONDS = 180.0
"""An engine is up in one second; a machine that is busy with other tests may take much longer."""
MEMORY = 6 << 30
"""Bytes that must be free in memory for an engine to have its data there; a session's images take a third of it."""
_SBIN = ("/usr/sbin", "/sbin", "/usr/local/sbin")

# With a program of this name on its PATH dockerd registers its "nvidia" device driver: `--gpus 2` then sets
# NVIDIA_VISIBLE_DEVICES in the container, as on a machine with GPUs. The program itself is never called without one.
# https://github.com/moby/moby/blob/v20.10.24/daemon/nvidia_linux.go
GPU_HOOK = "nvidia-container-runtime-hook"


PODMAN = """
[containers]
{more}
log_driver = "k8s-file"
default_ulimits = ["nofile=1024:1024", "nproc=1024:1024"]
[engine]
runtime = "runc"
cgroup_manager = "cgroupfs"
events_logger = "file"
"""


@attrs.frozen(kw_only=True)
class Engine:
    """A running engine."""

    socket: str
    """Its address, as `DOCKER_HOST` has it."""
    environment: dict[str, str]
    """What to add to the environment of a program that is to use it."""
    client: str

    def run(self, *arguments: str, check: bool = True, input: bytes | None = None) -> subprocess.CompletedProcess[str]:
        """`docker ARGUMENTS`."""
        done = subprocess.run(
            [self.client, *arguments],
            env={**os.environ, **self.environment},
            input=input,
            capture_output=True,
            check=False,
        )
        stdout, stderr = done.stdout.decode(), done.stderr.decode()
        assert not check or done.returncode == 0, f"docker {' '.join(arguments)}\n{stdout}\n{stderr}"
        return subprocess.CompletedProcess(done.args, done.returncode, stdout, stderr)


def absence() -> str:
    """Why no engine can be started here; "" where one can."""
    if os.getuid() != 0:
        return "a container engine is started by root only"
    missing = [name for name in ("dockerd", "docker", "containerd", "runc", "docker-registry") if not program(name)]
    if missing:
        return f"not installed: {', '.join(missing)} (Debian: apt-get install docker.io docker-registry busybox-static)"
    return ""


def program(name: str) -> str | None:
    """Where a program is, also outside a user's PATH."""
    return shutil.which(name, path=os.pathsep.join([os.environ.get("PATH", ""), *_SBIN]))


@contextlib.contextmanager
def running_engine() -> Iterator[Engine]:
    """An engine that lives as long as the block."""
    folder = engine_folder("engine")
    (folder / "bin").mkdir()
    hook = folder / "bin" / GPU_HOOK
    hook.write_text("#!/bin/sh\nexit 0\n")
    hook.chmod(0o755)
    socket = f"unix://{folder}/docker.sock"
    command = [
        *(program("dockerd") or "dockerd", "--host", socket, "--pidfile", str(folder / "docker.pid")),
        *("--data-root", str(folder / "root"), "--exec-root", str(folder / "exec")),
        # It changes nothing of the machine's own network.
        *("--bridge=none", "--host-gateway-ip=127.0.0.1", "--iptables=false", "--ip6tables=false"),
    ]
    path = os.pathsep.join([str(folder / "bin"), os.environ.get("PATH", ""), *_SBIN])
    client = Engine(socket=socket, environment={"DOCKER_HOST": socket}, client=program("docker") or "docker")
    try:
        with _started(command, folder / "dockerd.log", {"PATH": path, "TMPDIR": str(folder)}, timeout=30) as alive:
            _await(lambda: client.run("version", check=False).returncode == 0, alive, folder / "dockerd.log")
            try:
                yield client
            finally:
                containers = client.run("ps", "--all", "--quiet", check=False).stdout.split()
                if containers:
                    client.run("rm", "--force", *containers, check=False)
    finally:
        _clear(folder)


def engine_folder(name: str) -> Path:
    """A new folder for the data of an engine: in memory where that has room, since engines wait for the disk at each
    step of a build and at each container's start, and that takes half of their time."""
    # Not pytest's folder: a socket's path may have 107 characters, and images would stay for three sessions.
    memory = "/dev/shm"
    with contextlib.suppress(OSError):
        state = os.statvfs(memory)
        if state.f_bavail * state.f_frsize >= MEMORY and not state.f_flag & os.ST_NOEXEC:
            return Path(tempfile.mkdtemp(prefix=f"stoker-{name}-", dir=memory))
    return Path(tempfile.mkdtemp(prefix=f"stoker-{name}-"))


@contextlib.contextmanager
def running_registry(
    folder: Path, *, htpasswd: str = "", host: str = "127.0.0.1", certificate: Certificate | None = None
) -> Iterator[str]:
    """`host:port` of a registry that lives as long as the block; with `htpasswd` it asks for a name and a password."""
    port = free_port()
    lines = ["version: 0.1", "log: {level: warn}", f"storage: {{filesystem: {{rootdirectory: '{folder}/images'}}}}"]
    tls = f", tls: {{certificate: '{certificate.file}', key: '{certificate.key}'}}" if certificate else ""
    lines += [f"http: {{addr: '{host}:{port}'{tls}}}"]
    scheme, context = ("https", certificate.client()) if certificate else ("http", None)
    if htpasswd:
        (folder / "htpasswd").write_text(htpasswd)
        lines += [f"auth: {{htpasswd: {{realm: tests, path: '{folder}/htpasswd'}}}}"]
    (folder / "registry.yml").write_text("\n".join(lines) + "\n")
    command = [program("docker-registry") or "docker-registry", "serve", str(folder / "registry.yml")]

    def answers() -> bool:
        try:
            with urllib.request.urlopen(f"{scheme}://{host}:{port}/v2/", timeout=5, context=context) as answer:
                return bool(answer.status == 200)
        except urllib.error.HTTPError as error:
            error.close()
            return error.code == 401
        except OSError:
            return False

    with _started(command, folder / "registry.log", {}, timeout=10) as alive:
        _await(answers, alive, folder / "registry.log")
        yield f"{host}:{port}"


@contextlib.contextmanager
def running_podman(
    folder: Path,
    storage: str,
    *,
    before: Sequence[str] = (),
    environment: Mapping[str, str] | None = None,
    more: str = "",
) -> Iterator[Engine]:
    """A podman service with all of its data below a folder, which is removed.

    `storage` is its storage.conf, `more` what stands in the first part of its containers.conf besides; `before` are the
    words before its command, and `environment` all of its variables.
    """
    (folder / "containers.conf").write_text(PODMAN.format(more=more))
    (folder / "storage.conf").write_text(storage.format(folder=folder))
    socket = f"unix://{folder}/podman.sock"
    variables = {
        "CONTAINERS_CONF": str(folder / "containers.conf"),
        "CONTAINERS_STORAGE_CONF": str(folder / "storage.conf"),
    }
    podman = [*before, program("podman") or "podman"]
    environment = {**(os.environ if environment is None else environment), **variables}
    tried = subprocess.run([*podman, "info"], env=environment, cwd=folder, capture_output=True, text=True, check=False)
    if before and tried.returncode:
        shutil.rmtree(folder, ignore_errors=True)
        pytest.skip(f"no namespaces for users here: {tried.stderr.strip().splitlines()[-1]}")
    client = Engine(socket=socket, environment={"DOCKER_HOST": socket}, client=program("docker") or "docker")
    with (folder / "log").open("wb") as log:
        service = subprocess.Popen(
            [*podman, "system", "service", "--time=0", socket],
            env=environment,
            stdout=log,
            stderr=log,
            cwd=folder,
            start_new_session=True,
        )
    try:
        end = time.monotonic() + 60
        while client.run("version", check=False).returncode:
            assert service.poll() is None and time.monotonic() < end, (folder / "log").read_text()
            time.sleep(0.05)
        yield client
    finally:
        remaining = client.run("ps", "--all", "--quiet", check=False).stdout.split()
        if remaining:
            client.run("rm", "--force", *remaining, check=False)
        service.terminate()
        service.wait(30)
        for mount in Path("/proc/self/mountinfo").read_text().splitlines():
            place = mount.split()[4]
            if place.startswith(f"{folder}/"):
                subprocess.run(["umount", "--lazy", place], check=False, capture_output=True)
        shutil.rmtree(folder, ignore_errors=True)


def import_base(engine: Engine) -> str:
    """Make the base image in an engine; its reference."""
    with tempfile.TemporaryDirectory(prefix="stoker-base-") as folder:
        archive = Path(folder, "base.tar")
        baseimage.write(archive)
        changes = [word for change in baseimage.changes() for word in ("--change", change)]
        engine.run("import", *changes, str(archive), BASE_IMAGE)
    return BASE_IMAGE


@pytest.fixture(scope="session")
def engine() -> Iterator[Engine]:
    """A Docker engine of the tests' own: `engine.socket` for DOCKER_HOST, `engine.environment` to pass on."""
    refuse(absence())
    with running_engine() as client:
        yield client


@pytest.fixture(scope="session")
def base_image(engine: Engine) -> str:
    """An image in the engine with this Python, pip and a shell."""
    return import_base(engine)


@pytest.fixture(scope="session")
def registry(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """`host:port` of an image registry that everybody may read and write."""
    refuse(absence())
    with running_registry(tmp_path_factory.mktemp("registry")) as address:
        yield address


def refuse(reason: str) -> None:
    """Skip where there can be no engine; on CI, where there must be one, fail."""
    if reason and os.environ.get("CI", "").lower() in ("true", "1"):
        pytest.fail(f"CI must have a container engine: {reason}")
    if reason:
        pytest.skip(reason)


@contextlib.contextmanager
def _started(
    command: Sequence[str], log: Path, environment: dict[str, str], *, timeout: float
) -> Iterator[Callable[[], bool]]:
    """A server that ends with the block; the value says whether it still lives."""
    with log.open("wb") as output:
        server = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env={**os.environ, **environment},
            start_new_session=True,
        )
    try:
        yield lambda: server.poll() is None
    finally:
        family: list[psutil.Process] = []
        with contextlib.suppress(psutil.NoSuchProcess):
            family = psutil.Process(server.pid).children(recursive=True)
        server.send_signal(signal.SIGTERM)
        try:
            server.wait(timeout)
        except subprocess.TimeoutExpired:
            server.kill()
            server.wait()
        for process in psutil.wait_procs(family, timeout=timeout)[1]:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()


def _await(ready: Callable[[], bool], alive: Callable[[], bool], log: Path) -> None:
    end = time.monotonic() + START_SECONDS
    while not ready():
        text = log.read_text(errors="replace")[-3000:]
        assert alive(), f"the server ended:\n{text}"
        assert time.monotonic() < end, f"the server is not ready:\n{text}"
        time.sleep(0.05)


def _clear(folder: Path) -> None:
    """Remove an engine's folder: first what still runs from it, then what is mounted in it, then the files."""
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if any(str(folder) in word for word in process.cmdline()) and process.pid != os.getpid():
                process.kill()
                process.wait(10)
    mounts = [line.split()[4] for line in Path("/proc/self/mountinfo").read_text().splitlines()]
    for mount in sorted((mount for mount in mounts if mount.startswith(f"{folder}/")), reverse=True):
        subprocess.run(["umount", "--lazy", mount], check=False, capture_output=True)
    shutil.rmtree(folder, ignore_errors=True)
