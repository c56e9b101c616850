"""The container engine of this machine, by its command line: docker, podman or buildah, whichever there is.

All three take the same Dockerfiles; what differs between them is in the tables here. Whether an image runs is not asked
here: builds and looks only.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from typing import Any, Final, Iterator, Literal, Mapping, Sequence

from stoker.core.errors import BackendError
from stoker.images.facts import Reading, read
from stoker.images.reference import parse

Kind = Literal["docker", "podman", "buildah"]
KINDS: Final[tuple[Kind, ...]] = ("docker", "podman", "buildah")
SECONDS: Final = 60.0
"""How long an engine may take to answer a question; a machine that pulls images is slow to answer."""
# What `uname -m` says, as engines of the podman family report it in places, → what images call it.
# https://github.com/containerd/platforms/blob/main/database.go
MACHINES: Final[Mapping[str, str]] = {"x86_64": "amd64", "aarch64": "arm64", "armv7l": "arm", "i686": "386"}


class Engine:
    """An engine that answers."""

    def __init__(
        self,
        kind: Kind,
        program: Sequence[str],
        *,
        version: str,
        platform: str,
        buildkit: bool = False,
        network: str = "",
        environ: Mapping[str, str] | None = None,
    ) -> None:
        self.kind: Kind = kind
        self.program = tuple(program)
        self.version = version
        self.platform = platform
        """What it builds for when nothing is said, such as "linux/amd64"."""
        self.buildkit = buildkit
        """Whether Docker's newer builder is there, which knows `RUN --mount`; the others' builders know it too."""
        self.network = network
        """What builds have to be given for a network, where the engine has none that it gives by itself."""
        self.environ = dict(os.environ if environ is None else environ)

    def __repr__(self) -> str:
        return f"Engine({self.kind} {self.version}, {self.platform})"

    @property
    def mounts(self) -> bool:
        """Whether a Dockerfile's `RUN --mount` is understood."""
        return self.buildkit or self.kind != "docker"

    def has(self, reference: str) -> str | None:
        """The digest of an image that is here: its registry's where it came from one, otherwise the image's id."""
        found = self.document(reference)
        return None if found is None else _digest(found, reference)

    def digests(self, reference: str) -> tuple[str, ...]:
        """All digests under which the reference's repository has an image that is here; several for one of an index."""
        found = self.document(reference)
        return () if found is None else _digests(found, reference)

    def read(self, reference: str) -> Reading | None:
        """What is known of an image that is here."""
        found = self.document(reference)
        if found is None:
            return None
        # The engine's "Size" is that of the unpacked layers, which is another figure than a registry's.
        return read(reference, _configuration(found), digest=_digest(found, reference), base="engine")

    def size(self, reference: str) -> int | None:
        """Bytes that an image's unpacked layers take here; None where that is not known."""
        found = self.document(reference)
        return int(found["Size"]) if found is not None and found.get("Size") else None

    def id(self, reference: str) -> str | None:
        """The name that this engine alone knows an image by: `sha256:…` of its configuration."""
        found = self.document(reference)
        return None if found is None else _id(found)

    def document(self, reference: str) -> Mapping[str, Any] | None:
        """What the engine's `inspect` answers, in Docker's words; None where the image is not here."""
        if self.kind == "buildah":
            done = self.ask("inspect", "--type", "image", reference)
            return _of_buildah(json.loads(done.stdout)) if done.returncode == 0 else None
        done = self.ask("image", "inspect", reference)
        if done.returncode == 0:
            found = json.loads(done.stdout)
            return found[0] if found else None
        if re.search(r"no such image|image not known|not found", done.stderr, re.IGNORECASE):
            return None
        raise BackendError(f"{self.kind} does not answer: {done.stderr.strip()}", where=reference)

    def ask(self, *arguments: str, seconds: float = SECONDS) -> subprocess.CompletedProcess[str]:
        """A short command to its end."""
        try:
            return subprocess.run(
                [*self.program, *arguments],
                env=self.environ,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                errors="replace",
                timeout=seconds,
                check=False,
            )
        except subprocess.TimeoutExpired:
            raise BackendError(
                f"{self.kind} has not answered for {seconds:.0f} s",
                where=" ".join([*self.program, *arguments[:2]]),
                fix=f"look at its state with `{self.kind} info`",
            ) from None


def find(environ: Mapping[str, str] | None = None) -> Engine | None:
    """The engine to build with: docker if it answers, else podman, else buildah; None if none is there.

    With DOCKER_HOST only the engine behind it is meant.
    """
    return next((found for _, found in _tried(environ) if isinstance(found, Engine)), None)


def need(environ: Mapping[str, str] | None = None) -> Engine:
    """`find`, or an error that says what is wrong with each."""
    reasons = []
    for kind, found in _tried(environ):
        if isinstance(found, Engine):
            return found
        reasons.append(f"{kind}: {found}")
    raise BackendError(
        "no container engine answers: " + "; ".join(reasons),
        fix="start docker or podman (a service that runs, and a user who may use it), or name one in DOCKER_HOST",
    )


def _tried(environ: Mapping[str, str] | None) -> Iterator[tuple[Kind, Engine | str]]:
    environ = dict(os.environ if environ is None else environ)
    host = environ.get("DOCKER_HOST", "")
    for kind in KINDS:
        program = shutil.which(kind, path=environ.get("PATH"))
        if program is None:
            yield kind, "not installed"
        elif kind == "docker":
            yield kind, _docker(program, environ)
        elif kind == "buildah" and host:
            yield kind, "it builds on this machine only, and DOCKER_HOST names an engine"
        else:
            remote = ["--remote", "--url", host] if kind == "podman" and host else []
            yield kind, _others(kind, [program, *remote], environ)


def _docker(program: str, environ: dict[str, str]) -> Engine | str:
    trial = Engine("docker", [program], version="", platform="", environ=environ)
    done = trial.ask("version", "--format", "{{json .}}")
    try:
        document = json.loads(done.stdout)
        server, client = document["Server"], document["Client"]
        platform = f"{server['Os']}/{MACHINES.get(server['Arch'], server['Arch'])}"
    except (ValueError, KeyError, TypeError):
        return _last_line(done.stderr or done.stdout) or "it answers without a version"
    buildkit = _buildkit(trial, str(client.get("Version", "")), server)
    return Engine(
        "docker",
        [program],
        version=str(server["Version"]),
        platform=platform,
        buildkit=buildkit,
        # `dockerd --bridge none`, as engines inside containers have it: BuildKit would refuse every RUN.
        network="" if trial.ask("network", "inspect", "bridge").returncode == 0 or _podman(server) else "host",
        environ={**environ, "DOCKER_BUILDKIT": "1" if buildkit else "0"},
    )


def _podman(server: Mapping[str, Any]) -> bool:
    """Whether it is podman that answers to docker's command line."""
    return "podman" in json.dumps(server.get("Components") or "").lower()


def _buildkit(engine: Engine, client: str, server: Mapping[str, Any]) -> bool:
    """Whether `docker build` can use BuildKit: up to 22 it is in the command line, since 23 it is the plugin buildx.

    https://docs.docker.com/engine/release-notes/23.0/
    """
    if _podman(server):
        return False  # podman's service does not speak BuildKit's protocol; it builds with its own builder
    major = int(match[0]) if (match := re.match(r"\d+", client)) else 0
    if 18 < major < 23:
        return True
    return engine.ask("buildx", "version").returncode == 0


def _others(kind: Kind, program: list[str], environ: dict[str, str]) -> Engine | str:
    trial = Engine(kind, program, version="", platform="", environ=environ)
    done = trial.ask("info", *(("--format", "json") if kind == "podman" else ()))
    try:
        document = json.loads(done.stdout)
        host = document["host"]
        machine = str(host["arch"])
        version = str((document.get("version") or {}).get("Version") or "")
    except (ValueError, KeyError, TypeError):
        return _last_line(done.stderr or done.stdout) or "it answers without a version"
    if not version:
        found = re.search(r"version (\S+)", trial.ask("--version").stdout)
        version = found[1] if found else ""
    return Engine(
        kind, program, version=version, platform=f"{host['os']}/{MACHINES.get(machine, machine)}", environ=environ
    )


def _configuration(found: Mapping[str, Any]) -> dict[str, Any]:
    """An engine's answer in the form of the document that a registry keeps; podman's answers have a history."""
    return {
        "architecture": found.get("Architecture", ""),
        "os": found.get("Os", ""),
        "created": found.get("Created", ""),
        "config": found.get("Config") or found.get("ContainerConfig") or {},
        "history": found.get("History") or (),
    }


def _of_buildah(found: Mapping[str, Any]) -> dict[str, Any]:
    """buildah's answer, which has the image's documents as they are kept."""
    config = found.get("OCIv1") or found.get("Docker") or {}
    return {
        "Id": f"sha256:{found.get('FromImageID', '')}",
        "RepoDigests": [found["FromImageDigest"]] if "@" in str(found.get("FromImageDigest", "")) else [],
        "Architecture": config.get("architecture", ""),
        "Os": config.get("os", ""),
        "Created": config.get("created", ""),
        "Config": config.get("config") or {},
        "History": config.get("history") or (),
        "Size": 0,
    }


def _id(found: Mapping[str, Any]) -> str:
    text = str(found.get("Id", ""))
    return text if ":" in text or not text else f"sha256:{text}"  # podman leaves the algorithm out


def _digest(found: Mapping[str, Any], reference: str) -> str:
    """The digest under which the reference's own repository has the image, if it came from there or went there."""
    return next(iter(_digests(found, reference)), "") or _id(found)


def _digests(found: Mapping[str, Any], reference: str) -> tuple[str, ...]:
    if reference.startswith("sha256:"):
        return ()
    repository = parse(reference).repository
    pairs = [str(text).partition("@")[::2] for text in found.get("RepoDigests") or ()]
    # podman gives a digest also to what it builds, which no registry knows; those are below "localhost".
    own = {digest for name, digest in pairs if digest and parse(name).repository == repository}
    return () if parse(reference).registry == "localhost" else tuple(sorted(own))


def _last_line(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1] if lines else ""
