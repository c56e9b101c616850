"""The container engine that builds images on this machine, by its command line: docker, podman or buildah.

All three take the same Dockerfiles; their differences are handled here. The engine builds and inspects images;
backends run containers.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from typing import Any, Final, Iterator, Literal, Mapping, Sequence

from stoker.core.errors import BackendError
from stoker.core.questions import NoAnswer, Questions
from stoker.images.facts import MACHINES, ImageInspection, read
from stoker.images.layers import LayerContents, saved_layers
from stoker.images.registries import parse

EngineKind = Literal["docker", "podman", "buildah"]
ENGINE_KINDS: Final[tuple[EngineKind, ...]] = ("docker", "podman", "buildah")
SECONDS: Final = 60.0
"""Seconds that an engine may take to answer; a machine that pulls images is slow."""
ENGINE_SECONDS: Final = 120.0
"""How long a plan remembers which engine answered, or that none did."""


class ImageEngine:
    """A container engine that answers."""

    def __init__(
        self,
        kind: EngineKind,
        program: Sequence[str],
        *,
        version: str,
        platform: str,
        buildkit: bool = False,
        network: str = "",
        environ: Mapping[str, str] | None = None,
    ) -> None:
        self.kind: EngineKind = kind
        self.program = tuple(program)
        self.version = version
        self.platform = platform
        """The platform that it builds for by default, such as "linux/amd64"."""
        self.buildkit = buildkit
        """Whether Docker has its newer builder, which supports `RUN --mount`; podman and buildah always do."""
        self.network = network
        """The network that builds must name; empty if the engine has a default."""
        self.environ = dict(os.environ if environ is None else environ)

    def __repr__(self) -> str:
        return f"ImageEngine({self.kind} {self.version}, {self.platform})"

    def with_environ(self, environ: Mapping[str, str]) -> ImageEngine:
        """The same engine for commands with another environment, such as one with another login."""
        return ImageEngine(
            self.kind,
            self.program,
            version=self.version,
            platform=self.platform,
            buildkit=self.buildkit,
            network=self.network,
            environ=environ,
        )

    @property
    def mounts(self) -> bool:
        """Whether the engine supports `RUN --mount`."""
        return self.buildkit or self.kind != "docker"

    def has(self, reference: str) -> str | None:
        """The digest of an image, by its registry or else its id; None if the engine does not have the image."""
        document = self.document(reference)
        return None if document is None else _digest(document, reference)

    def digests(self, reference: str) -> tuple[str, ...]:
        """All digests that the reference's repository has for an image of the engine; several for one of an index."""
        document = self.document(reference)
        return () if document is None else _digests(document, reference)

    def read(self, reference: str) -> ImageInspection | None:
        """The facts of an image; None if the engine does not have it."""
        document = self.document(reference)
        if document is None:
            return None
        # The engine's "Size" is that of the unpacked layers, which is another figure than a registry's.
        return read(reference, _configuration(document), digest=_digest(document, reference), base="engine")

    def layers(self, reference: str, deadline: float = 0.0) -> tuple[LayerContents, ...]:
        """The contents of an image's layers, lowest first, from the engine's own archive of it.

        Raises `BackendError` where the engine makes none, and after `deadline`, a time of `time.monotonic` unless 0.
        """
        if self.kind == "buildah":
            raise BackendError("buildah exports no images as a stream", where=reference)
        options = ("--format", "docker-archive") if self.kind == "podman" else ()
        with subprocess.Popen(
            [*self.program, "image", "save", *options, reference],
            env=self.environ,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        ) as process:
            assert process.stdout is not None
            try:
                return saved_layers(process.stdout, deadline)
            finally:
                process.kill()

    def size(self, reference: str) -> int | None:
        """Bytes of an image's unpacked layers; None if not known."""
        document = self.document(reference)
        size = None if document is None else document.get("Size")
        return size if type(size) is int and size > 0 else None

    def id(self, reference: str) -> str | None:
        """The id of an image in this engine: `sha256:…` of its configuration; None if it does not have the image."""
        document = self.document(reference)
        return None if document is None else _id(document)

    def document(self, reference: str) -> Mapping[str, Any] | None:
        """The answer of the engine's `inspect`, in Docker's format; None if it does not have the image."""
        if self.kind == "buildah":
            result = self.ask("inspect", "--type", "image", reference)
            return _from_buildah(json.loads(result.stdout)) if result.returncode == 0 else None
        result = self.ask("image", "inspect", reference)
        if result.returncode == 0:
            documents = json.loads(result.stdout)
            return documents[0] if documents else None
        if re.search(r"no such image|image not known|not found", result.stderr, re.IGNORECASE):
            return None
        raise BackendError(f"{self.kind} does not answer: {result.stderr.strip()}", where=reference)

    def ask(self, *arguments: str, seconds: float = SECONDS) -> subprocess.CompletedProcess[str]:
        """Run a short command; raises if it takes longer than `seconds`."""
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


def find(environ: Mapping[str, str] | None = None) -> ImageEngine | None:
    """The engine to build with: docker if it answers, else podman, else buildah; None if none answers.

    With DOCKER_HOST only the engine at that address counts.
    """
    return next((candidate for _, candidate in _candidates(environ) if isinstance(candidate, ImageEngine)), None)


def find_again(questions: Questions, environ: Mapping[str, str]) -> ImageEngine | None:
    """`find` for a plan, which takes the engine that answered a moment ago for the one that answers."""

    def ask() -> dict[str, Any]:
        engine = find(environ)
        if engine is None:
            return {}
        settings = {"version": engine.version, "platform": engine.platform, "buildkit": engine.buildkit}
        return {"kind": engine.kind, "program": list(engine.program), "network": engine.network, **settings}

    host = environ.get("DOCKER_HOST", "")
    nearby = not questions.strict or not host or host.startswith("unix:")
    where = ["engine", host, environ.get("PATH", "")]
    try:
        answer = questions.ask(
            "the container engine", ask, key=where, place=where, valid=lambda _: ENGINE_SECONDS, nearby=nearby
        )
    except NoAnswer:
        return None
    if not answer:
        return None
    own = {name: value for name, value in answer.items() if name not in ("kind", "program")}
    return ImageEngine(answer["kind"], answer["program"], environ=environ, **own)  # the answer is others', too


def need(environ: Mapping[str, str] | None = None) -> ImageEngine:
    """`find`, or an error with the reason for each engine."""
    reasons = []
    for kind, candidate in _candidates(environ):
        if isinstance(candidate, ImageEngine):
            return candidate
        reasons.append(f"{kind}: {candidate}")
    raise BackendError(
        "no container engine answers: " + "; ".join(reasons),
        fix="start docker or podman (a service that runs, and a user who may use it), or name one in DOCKER_HOST",
    )


def _candidates(environ: Mapping[str, str] | None) -> Iterator[tuple[EngineKind, ImageEngine | str]]:
    environ = dict(os.environ if environ is None else environ)
    host = environ.get("DOCKER_HOST", "")
    for kind in ENGINE_KINDS:
        program = shutil.which(kind, path=environ.get("PATH"))
        if program is None:
            yield kind, "not installed"
        elif kind == "docker":
            yield kind, _docker(program, environ)
        elif kind == "buildah" and host:
            yield kind, "it builds on this machine only, and DOCKER_HOST names an engine"
        else:
            remote = ["--remote", "--url", host] if kind == "podman" and host else []
            yield kind, _podman_or_buildah(kind, [program, *remote], environ)


def _docker(program: str, environ: dict[str, str]) -> ImageEngine | str:
    engine = ImageEngine("docker", [program], version="", platform="", environ=environ)
    result = engine.ask("version", "--format", "{{json .}}")
    try:
        document = json.loads(result.stdout)
        server, client = document["Server"], document["Client"]
        platform = f"{server['Os']}/{MACHINES.get(server['Arch'], server['Arch'])}"
    except (ValueError, KeyError, TypeError):
        return _last_line(result.stderr or result.stdout) or "it answers without a version"
    buildkit = _has_buildkit(engine, str(client.get("Version", "")), server)
    return ImageEngine(
        "docker",
        [program],
        version=str(server["Version"]),
        platform=platform,
        buildkit=buildkit,
        # With `dockerd --bridge none`, as in engines inside containers, BuildKit refuses every RUN.
        network="" if engine.ask("network", "inspect", "bridge").returncode == 0 or _is_podman(server) else "host",
        environ={**environ, "DOCKER_BUILDKIT": "1" if buildkit else "0"},
    )


def _is_podman(server: Mapping[str, Any]) -> bool:
    """Whether podman answers docker's command line."""
    return "podman" in json.dumps(server.get("Components") or "").lower()


def _has_buildkit(engine: ImageEngine, client: str, server: Mapping[str, Any]) -> bool:
    """Whether `docker build` can use BuildKit: up to 22 it is in the command line, since 23 it is the plugin buildx.

    https://docs.docker.com/engine/release-notes/23.0/
    """
    if _is_podman(server):
        return False  # podman's service has no BuildKit; it builds with its own builder
    major = int(match[0]) if (match := re.match(r"\d+", client)) else 0
    if 18 < major < 23:
        return True
    return engine.ask("buildx", "version").returncode == 0


def _podman_or_buildah(kind: EngineKind, program: list[str], environ: dict[str, str]) -> ImageEngine | str:
    engine = ImageEngine(kind, program, version="", platform="", environ=environ)
    result = engine.ask("info", *(("--format", "json") if kind == "podman" else ()))
    try:
        document = json.loads(result.stdout)
        host = document["host"]
        machine = str(host["arch"])
        version = str((document.get("version") or {}).get("Version") or "")
    except (ValueError, KeyError, TypeError):
        return _last_line(result.stderr or result.stdout) or "it answers without a version"
    if not version:
        match = re.search(r"version (\S+)", engine.ask("--version").stdout)
        version = match[1] if match else ""
    return ImageEngine(
        kind, program, version=version, platform=f"{host['os']}/{MACHINES.get(machine, machine)}", environ=environ
    )


def _configuration(document: Mapping[str, Any]) -> dict[str, Any]:
    """An engine's answer as the configuration that a registry keeps; podman's answers have a history."""
    return {
        "architecture": document.get("Architecture", ""),
        "os": document.get("Os", ""),
        "created": document.get("Created", ""),
        "config": document.get("Config") or document.get("ContainerConfig") or {},
        "history": document.get("History") or (),
    }


def _from_buildah(document: Mapping[str, Any]) -> dict[str, Any]:
    """Buildah's answer, which has the documents of the image format, in Docker's format."""
    config = document.get("OCIv1") or document.get("Docker") or {}
    return {
        "Id": f"sha256:{document.get('FromImageID', '')}",
        "RepoDigests": [document["FromImageDigest"]] if "@" in str(document.get("FromImageDigest", "")) else [],
        "Architecture": config.get("architecture", ""),
        "Os": config.get("os", ""),
        "Created": config.get("created", ""),
        "Config": config.get("config") or {},
        "History": config.get("history") or (),
        "Size": 0,
    }


def _id(document: Mapping[str, Any]) -> str:
    text = str(document.get("Id", ""))
    return text if ":" in text or not text else f"sha256:{text}"  # podman leaves the algorithm out


def _digest(document: Mapping[str, Any], reference: str) -> str:
    """The digest that the reference's repository has for the image; its id if it was neither pulled nor pushed."""
    return next(iter(_digests(document, reference)), "") or _id(document)


def _digests(document: Mapping[str, Any], reference: str) -> tuple[str, ...]:
    if reference.startswith("sha256:"):
        return ()
    repository = parse(reference).repository
    pairs = [str(text).partition("@")[::2] for text in document.get("RepoDigests") or ()]
    # Podman gives a digest also to images that it builds, which no registry knows; they are below "localhost".
    digests = {digest for name, digest in pairs if digest and parse(name).repository == repository}
    return () if parse(reference).registry == "localhost" else tuple(sorted(digests))


def _last_line(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1] if lines else ""
