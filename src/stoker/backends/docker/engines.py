"""A container engine as this process speaks with it: Docker's API, by way of the `docker` package.

The only module of the backends that imports it. Errors leave it as ours: `EngineGone` where the engine does not answer,
`Refused` where it says no. Knows containers, not jobs.
"""

from __future__ import annotations

import contextlib
import importlib.util
import io
import os
import struct
import tarfile
import threading
import time
from typing import Any, Callable, Final, Iterator, Mapping

import attrs

from stoker.backends.docker.settings import ContainerSettings
from stoker.core.errors import BackendError, MissingPackage

SOCKETS: Final = (
    "/var/run/docker.sock",
    "{runtime}/docker.sock",
    "{runtime}/podman/podman.sock",
    "/run/podman/podman.sock",
)
"""Where engines listen when nobody says otherwise, in the order in which they are tried; `runtime` is
XDG_RUNTIME_DIR. https://docs.docker.com/engine/security/rootless/, https://docs.podman.io/en/latest/markdown/podman-system-service.1.html"""
TIMEOUT: Final = 120.0
"""Seconds that an engine may take for an answer; one that is pulling on a slow disk takes tens."""
_CONNECTIONS: Final = 64
_FRAME: Final = struct.Struct(">BxxxL")
"""Before each piece of a container's output: 1 or 2, and its length.
https://docs.docker.com/reference/api/engine/version/v1.41/#tag/Container/operation/ContainerAttach"""
_STREAMS: Final = {1: "stdout", 2: "stderr"}
_ENDED: Final = ("exited", "dead", "stopped")
"""States of a container that is over; the last one is podman's. A state that is none of an engine's is no end."""


class EngineGone(BackendError):
    """The engine does not answer: it is not running, or it went away."""


class Refused(BackendError):
    """The engine said no; `status` is the code of its answer."""

    def __init__(self, message: str, *, status: int = 0, fix: str = "") -> None:
        super().__init__(message, fix=fix)
        self.status = status


@attrs.frozen(kw_only=True)
class End:
    """A container as the engine describes it now. `oom` is what it says of the kernel's killer."""

    running: bool
    code: int | None
    """None where the engine does not say it: that is no success."""
    oom: bool
    error: str = ""

    @property
    def text(self) -> str:
        """How it ended, in words."""
        return "an exit code that the engine does not say" if self.code is None else f"exit code {self.code}"


def engine_address(options: Mapping[str, Any]) -> str:
    """Where the engine is that these settings of the backend mean."""
    return address(ContainerSettings(**options).get("host"), os.environ)


def address(setting: str | None, environment: Mapping[str, str]) -> str:
    """Where the engine is: as a setting says, DOCKER_HOST, or the first socket that is there; else Docker's own."""
    if setting or environment.get("DOCKER_HOST"):
        return setting or environment["DOCKER_HOST"]
    runtime = environment.get("XDG_RUNTIME_DIR") or f"/run/user/{os.getuid()}"
    for pattern in SOCKETS:
        path = pattern.format(runtime=runtime)
        if os.path.exists(path):
            return f"unix://{path}"
    return f"unix://{SOCKETS[0]}"


def room_of(info: Mapping[str, Any], name: str) -> int | None:
    """How many CPUs (`NCPU`) or bytes (`MemTotal`) an engine's machine has; None where the engine does not say."""
    count = info.get(name)
    return count if type(count) is int and count > 0 else None


def need_package() -> None:
    """Refuse to go on where the package that speaks with engines is not installed."""
    spec = importlib.util.find_spec("docker")
    if spec is None or spec.origin is None:  # a folder called "docker", as many projects have one, is not it
        raise MissingPackage(
            "containers need the package 'docker', which is not installed", fix="pip install 'stoker[docker]'"
        )


class Engine:
    """One engine. May be used by many threads."""

    def __init__(self, address: str) -> None:
        self.address = address
        self._client: Any = None
        self._closed = False
        self._lock = threading.Lock()

    @property
    def _api(self) -> Any:
        with self._lock:
            if self._closed:
                raise EngineGone(f"the connection to the container engine at {self.address} is closed")
            if self._client is None:
                self._client = self._connect()
            return self._client

    def _connect(self, version: str = "auto") -> Any:
        import docker

        with self._translate_errors("connect"):
            return docker.DockerClient.from_env(
                version=version,
                timeout=TIMEOUT,
                max_pool_size=_CONNECTIONS,
                environment={**os.environ, "DOCKER_HOST": self.address},
            ).api

    def close(self) -> None:
        """Hang up."""
        with self._lock:
            self._closed = True
            if self._client is not None:
                self._client.close()

    def info(self) -> Mapping[str, Any]:
        """What the engine says of itself and of its machine."""
        with self._translate_errors("describe itself"):
            description: Mapping[str, Any] = self._api.info()
            return description

    # Images and networks

    def has(self, image: str) -> bool:
        """Whether an image is there."""
        try:
            with self._translate_errors("look for an image"):
                self._api.inspect_image(image)
        except Refused as error:
            if error.status != 404:
                raise
            return False
        return True

    def user_of(self, image: str) -> str:
        """The user that an image names (`USER`); empty for none, and for an image that is not here."""
        try:
            with self._translate_errors("look at an image"):
                return str((self._api.inspect_image(image).get("Config") or {}).get("User") or "")
        except Refused as error:
            if error.status != 404:
                raise
            return ""

    def pull(self, image: str, report: Callable[[str], None]) -> None:
        """Fetch an image; what it is doing is said once a second."""
        last = time.monotonic()
        with self._translate_errors(f"pull {image}"):
            name, mark, digest = image.partition("@")
            for event in self._api.pull(name, tag=digest or None, stream=True, decode=True):
                if "error" in event:
                    raise Refused(
                        f"the engine cannot pull {name}{mark}{digest}: {event['error']}",
                        fix=f"docker pull {image}; where a registry asks who you are, docker login first",
                    )
                if time.monotonic() - last > 1.0:
                    last = time.monotonic()
                    report(f"pulling {image}: {event.get('status', '')} {event.get('progress', '')}".rstrip())

    def images(self, label: str) -> list[Mapping[str, Any]]:
        """Images that have a label, each as `Id`, `Created` (seconds since the epoch), `Size` and `RepoTags`."""
        with self._translate_errors("list images"):
            images: list[Mapping[str, Any]] = self._api.images(filters={"label": label})
            return images

    def remove_image(self, id: str) -> bool:
        """Take an image away with its names; False where something still needs it."""
        try:
            with self._translate_errors("remove an image"):
                self._api.remove_image(id, force=True)
        except Refused as error:
            return error.status == 404
        return True

    def networks(self, labels: Mapping[str, str]) -> list[tuple[str, Mapping[str, str]]]:
        """Networks that have these labels: their ids and all their labels."""
        filters = [f"{name}={text}" for name, text in labels.items()]
        with self._translate_errors("list networks"):
            return [(str(one["Id"]), one.get("Labels") or {}) for one in self._api.networks(filters={"label": filters})]

    def make_network(self, name: str, labels: Mapping[str, str]) -> None:
        """A network of its own for a gang; one that is there is taken."""
        with self._translate_errors("make a network"):
            if not self._api.networks(names=[name]):
                self._api.create_network(name, driver="bridge", labels=dict(labels), check_duplicate=True)

    def remove_network(self, name: str) -> None:
        """Take a network away; one that is gone, or still in use, is fine."""
        try:
            with self._translate_errors("remove a network"):
                self._api.remove_network(name)
        except Refused as error:
            if error.status not in (403, 404, 409, 500):  # Docker says 403 of one that is in use, podman 409 or 500
                raise

    # Containers

    def create(self, name: str, body: Mapping[str, Any]) -> str:
        """Make a container and say its id; `Refused` with status 409 where the name is taken."""
        with self._translate_errors(f"make the container {name}"):
            return str(self._api.create_container_from_config(dict(body), name=name)["Id"])

    def start(self, id: str) -> None:
        """Start a container; one that runs already is fine."""
        with self._translate_errors("start the container"):
            self._api.start(id)

    def kill(self, id: str, signal: str) -> None:
        """Signal a container's first process; one that is over or gone is fine."""
        try:
            with self._translate_errors("signal the container"):
                self._api.kill(id, signal)
        except Refused as error:
            if error.status not in (404, 409, 500):  # podman says 500 of one that has ended
                raise

    def remove(self, id: str) -> None:
        """Take a container away, running or not; one that is gone, or being removed already, is fine."""
        try:
            with self._translate_errors("remove the container"):
                self._api.remove_container(id, force=True, v=True)
        except Refused as error:
            if error.status not in (404, 409):
                raise

    def find(self, labels: Mapping[str, str]) -> list[Mapping[str, Any]]:
        """Containers that have these labels, also ended ones, each as `Id`, `Labels`, `State` and `Names`."""
        filters = [f"{name}={text}" if text else name for name, text in labels.items()]
        with self._translate_errors("list containers"):
            containers: list[Mapping[str, Any]] = self._api.containers(all=True, filters={"label": filters})
            return containers

    def look(self, id: str) -> Mapping[str, Any] | None:
        """All that the engine knows of a container; None where it is gone."""
        try:
            with self._translate_errors("describe the container"):
                description: Mapping[str, Any] = self._api.inspect_container(id)
                return description
        except Refused as error:
            if error.status == 404:
                return None
            raise

    def end(self, id: str) -> End | None:
        """How a container stands; None where it is gone."""
        description = self.look(id)
        if description is None:
            return None
        state = description["State"]
        code, status = state.get("ExitCode"), state.get("Status")
        return End(
            running=status not in _ENDED if status else state.get("Running") is not False,
            code=code if type(code) is int else None,
            oom=bool(state.get("OOMKilled")),
            error=str(state.get("Error") or ""),
        )

    def pid(self, id: str) -> int:
        """The number of a container's first process on the engine's machine; 0 where it has none."""
        description = self.look(id)
        return 0 if description is None else int(description["State"].get("Pid") or 0)

    def wait(self, id: str) -> int:
        """Wait for a container's end; its exit code."""
        with self._translate_errors("wait for the container"):
            return int(self._api.wait(id)["StatusCode"])

    def output(self, id: str) -> Iterator[tuple[str, bytes]]:
        """A container's output from its beginning, as it comes, until the container is over or the engine is gone."""
        # A connection of its own, which may wait for days: the package's own call mixes the two streams.
        client = self._connect(self._api.api_version)
        url = f"{client.base_url}/v{client.api_version}/containers/{id}/logs"
        parameters = {"stdout": 1, "stderr": 1, "follow": 1}
        with (
            self._translate_errors("read the container's output"),
            contextlib.closing(client),
            client.get(url, params=parameters, stream=True, timeout=(TIMEOUT, None)) as answer,
        ):
            if answer.status_code != 200:
                text = f"the engine does not give the container's output: {answer.text.strip()}"
                raise Refused(text, status=answer.status_code)
            while len(header := answer.raw.read(_FRAME.size)) == _FRAME.size:
                stream, length = _FRAME.unpack(header)
                yield _STREAMS.get(stream, "stdout"), answer.raw.read(length)

    def put(self, id: str, archive: bytes) -> None:
        """Unpack a tar archive over a container's file system."""
        with self._translate_errors("put files into the container"):
            self._api.put_archive(id, "/", archive)

    def get(self, id: str, path: str) -> bytes | None:
        """A file of a container, also of an ended one; None where there is none."""
        try:
            with self._translate_errors("get a file from the container"):
                chunks, _ = self._api.get_archive(id, path)
                data = b"".join(chunks)
        except Refused as error:
            if error.status == 404:
                return None
            raise
        with tarfile.open(fileobj=io.BytesIO(data)) as archive:
            for member in archive:
                file = archive.extractfile(member) if member.isfile() else None
                if file is not None:
                    return file.read()
        return None

    # Errors

    @staticmethod
    def _errors() -> Any:
        import docker.errors

        return docker.errors

    @contextlib.contextmanager
    def _translate_errors(self, doing: str) -> Iterator[None]:
        """Turn the package's errors into ours."""
        import requests
        import urllib3

        errors = self._errors()
        try:
            yield
        except errors.APIError as error:
            status = int(error.status_code or 0)
            raise Refused(f"the engine refuses to {doing}: {error.explanation or error}", status=status) from error
        except (requests.RequestException, urllib3.exceptions.HTTPError, OSError, errors.DockerException) as error:
            raise EngineGone(
                f"the container engine at {self.address} does not answer (to {doing}): {_reason(error)}",
                fix="start it, or say where it is with DOCKER_HOST; `docker version` shows whether it answers",
            ) from error


def _reason(error: BaseException) -> str:
    """The system's own words below the exceptions of the package and of HTTP; the exception's if there are none."""
    cause: BaseException | None = error
    seen: set[int] = set()
    reason = str(error)
    while cause is not None and id(cause) not in seen:
        seen.add(id(cause))
        if isinstance(cause, OSError) and cause.strerror:
            reason = cause.strerror
        cause = cause.__cause__ or cause.__context__
    return reason
