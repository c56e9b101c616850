"""The docker backend, as it is registered."""

from __future__ import annotations

import os
import shutil
import socket
from pathlib import Path
from typing import Any, Final, Iterator, Mapping

from stoker.backends.base.backend import Backend, FlowDecorator, ProbeRequest, later, of_parts
from stoker.backends.docker.settings import ContainerSettings
from stoker.core.errors import StokerError
from stoker.core.findings import Check
from stoker.core.words import memory_text

ENGINES: Final = ("docker", "podman", "buildah")
SLOW: Final = 2.0
"""Seconds after which a socket counts as not answering; one on this machine takes none."""


def doctor() -> Iterator[Check]:
    """What can build and run containers."""
    programs = [name for name in ENGINES if shutil.which(name)]
    if "docker" in programs:
        address = docker_socket()
        silent = not answers(address)
        fix = "start Docker, and see that the user is in the group docker, if steps are to run in containers"
        state = f"docker, whose socket {address} does not answer" if silent else f"docker at {address}"
        yield Check(name="docker", found=state, fix=fix if silent else "")
    others = [name for name in programs if name != "docker"]
    if others or not programs:
        yield Check(name="containers", found=", ".join(others) or f"none of {', '.join(ENGINES)} (optional)")


def docker_socket() -> str:
    """Where Docker is asked: DOCKER_HOST, the user's own socket, or the system's."""
    own = Path(os.environ.get("XDG_RUNTIME_DIR", "/nonexistent"), "docker.sock")
    path = own if own.exists() else Path("/var/run/docker.sock")
    return os.environ.get("DOCKER_HOST") or f"unix://{path}"


def answers(address: str) -> bool:
    """Whether somebody listens at "unix:///path" or "tcp://host:port"; of other addresses nothing is known: yes."""
    scheme, _, rest = address.partition("://")
    try:
        if scheme == "unix":
            with socket.socket(socket.AF_UNIX) as connection:
                connection.settimeout(SLOW)
                connection.connect(rest)
        elif scheme == "tcp":
            host, _, port = rest.rpartition(":")
            socket.create_connection((host.strip("[]"), int(port)), timeout=SLOW).close()
    except (OSError, ValueError):
        return False
    return True


def probe(options: Mapping[str, Any], request: ProbeRequest) -> Iterator[Check]:
    """Whether the engine answers, and what it is."""
    from stoker.backends.docker import engines

    engine = None
    try:
        engines.need_package()
        address = engines.engine_address(options)
        engine = engines.Engine(address)
        info = engine.info()
    except StokerError as error:
        yield Check(name="engine", found="", problem=error.message, fix=error.fix)
        return
    finally:
        if engine is not None:
            engine.close()
    yield Check(name="engine", found=f"{address}, version {info.get('ServerVersion') or '?'}")
    cpus, memory = engines.room_of(info, "NCPU"), engines.room_of(info, "MemTotal")
    room = (f"{cpus or 'an unknown number of'} CPUs", memory_text(memory) if memory else "unknown memory")
    yield Check(name="room", found=", ".join(room))
    runtimes = sorted(name for name in info.get("Runtimes") or {} if name in ("nvidia", "amd", "habana"))
    yield Check(name="devices", found=", ".join(runtimes) or "no runtime for accelerators (optional)")


DOCKER: Final = Backend(
    name="docker",
    title="Docker",
    settings=ContainerSettings,
    open=later("stoker.backends.docker.backend:DockerBackend"),
    image_engine=later("stoker.backends.docker.engines:engine_address"),
    doctor=doctor,
    probe=probe,
    decorator=FlowDecorator(
        name="docker",
        title="Docker",
        settings=ContainerSettings,
        help="Run the step in a container: `@docker(gpu=1, network='host')`.",
    ),
    left_jobs=of_parts("stoker.backends.docker.leftovers:left_jobs", folder="containers"),
    end_left=of_parts("stoker.backends.docker.leftovers:end_left", folder="containers"),
    leftovers=of_parts("stoker.backends.docker.leftovers:sweep_engines", folder="containers"),
    beside=later("stoker.backends.docker.byhand:places"),
)
