"""The docker backend, as it is registered."""

from __future__ import annotations

import os
import shutil
import socket
from pathlib import Path
from typing import Any, Final, Iterable, Iterator, Mapping, Sequence

from stoker.backends.base.backend import Backend, Leftover, RunningBackend, Services, Sweep
from stoker.backends.docker.settings import ContainerSettings
from stoker.core.findings import Check
from stoker.core.plan import Site

ENGINES: Final = ("docker", "podman", "buildah")
SLOW: Final = 2.0
"""Seconds after which a socket counts as not answering; one on this machine takes none."""


def open_docker(site: Site, options: Mapping[str, Any], services: Services) -> RunningBackend:
    """Runs jobs in containers of one engine."""
    from stoker.backends.docker.backend import DockerBackend

    return DockerBackend(site, options, services)


def engine_address(options: Mapping[str, Any]) -> str:
    """Where the engine is that these settings mean: images are built there."""
    from stoker.backends.docker import engines

    return engines.engine_address(options)


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


def leftovers(parts: Sequence[Mapping[str, Any]], sweep: Sweep) -> Iterable[Leftover]:
    """Containers of steps that are over and images that no plan names, on the engines of all stacks."""
    if not parts:
        return ()
    from stoker.backends.docker.leftovers import sweep_engines

    return sweep_engines(dict.fromkeys(map(engine_address, parts)), sweep)


DOCKER: Final = Backend(
    name="docker",
    title="Docker",
    settings=ContainerSettings,
    open=open_docker,
    image_engine=engine_address,
    doctor=doctor,
    leftovers=leftovers,
)
