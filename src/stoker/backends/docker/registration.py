"""The docker backend, as it is registered."""

from __future__ import annotations

import os
import shutil
import socket
from pathlib import Path
from typing import Any, Collection, Final, Iterable, Iterator, Mapping, Sequence

from stoker.backends.base.backend import (
    Backend,
    FlowDecorator,
    LeftJob,
    Leftover,
    ProbeRequest,
    RunningBackend,
    Services,
    Sweep,
)
from stoker.backends.base.beside import Beside, RunningAttempt
from stoker.backends.docker.settings import ContainerSettings
from stoker.core.errors import StokerError
from stoker.core.findings import Check
from stoker.core.plan import Site
from stoker.core.words import memory_text

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


def leftovers(parts: Sequence[Mapping[str, Any]], sweep: Sweep) -> Iterable[Leftover]:
    """Containers of steps that are over and images that no plan names, on the engines of all stacks."""
    if not parts and not os.path.isdir(f"{sweep.scratch}/containers"):
        return ()
    from stoker.backends.docker.leftovers import sweep_engines

    return sweep_engines([engine_address(part) for part in parts], sweep)


def left_jobs(parts: Sequence[Mapping[str, Any]], scratch: str, runs: Collection[str]) -> Iterable[LeftJob]:
    """Containers that runs without a driver left, and results of containers that are gone."""
    if not parts and not os.path.isdir(f"{scratch}/containers"):
        return ()
    from stoker.backends.docker import leftovers as containers

    return containers.left_jobs([engine_address(part) for part in parts], scratch, runs)


def end_left(parts: Sequence[Mapping[str, Any]], scratch: str, run: str, grace: float) -> Iterable[LeftJob]:
    """End the containers that a run without a driver left."""
    if not parts and not os.path.isdir(f"{scratch}/containers"):
        return ()
    from stoker.backends.docker import leftovers as containers

    return containers.end_left([engine_address(part) for part in parts], scratch, run, grace)


def beside(options: Mapping[str, Any], attempt: RunningAttempt) -> Iterator[Beside]:
    """The containers in which the step may be."""
    from stoker.backends.docker.beside import places

    return places(options, attempt)


DOCKER: Final = Backend(
    name="docker",
    title="Docker",
    settings=ContainerSettings,
    open=open_docker,
    image_engine=engine_address,
    doctor=doctor,
    probe=probe,
    decorator=FlowDecorator(
        name="docker",
        title="Docker",
        settings=ContainerSettings,
        help="Run the step in a container: `@docker(gpu=1, network='host')`.",
    ),
    left_jobs=left_jobs,
    end_left=end_left,
    leftovers=leftovers,
    beside=beside,
)
