"""Facts of an image, read from its registry without pulling layers; and whether a push is allowed there.

A manifest and the image's configuration are a few kilobytes. An `engine` that has the image is asked first: that image
is the one that is built from or run, whatever the registry has by now.
"""

from __future__ import annotations

import hashlib
import urllib.parse
from typing import Any, Final, Iterable, Mapping, Protocol

import attrs

from stoker.core.errors import BackendError, StokerError, nearest
from stoker.core.findings import Finding
from stoker.core.imagefacts import ImageFacts
from stoker.core.imagenames import facts_of_name
from stoker.images.credentials import login, needed
from stoker.images.facts import ImageInspection, read
from stoker.images.reference import ImageReference, parse
from stoker.images.transport import Connection, RegistryAnswer, RegistryRefused

PUSH_REFUSED: Final = "STK220"
"""Finding: the registry refuses the image."""
# https://github.com/opencontainers/image-spec/blob/main/media-types.md and
# https://distribution.github.io/distribution/spec/manifest-v2-2/
INDEXES: Final = (
    "application/vnd.oci.image.index.v1+json",
    "application/vnd.docker.distribution.manifest.list.v2+json",
)
MANIFESTS: Final = (
    "application/vnd.oci.image.manifest.v1+json",
    "application/vnd.docker.distribution.manifest.v2+json",
)
_TAGS_SHOWN: Final = 1000
"""How many tags are listed to suggest a similar one."""


class ImageSource(Protocol):
    """What has images and their facts, such as an engine."""

    def read(self, reference: str) -> ImageInspection | None:
        """The facts of an image; None if it does not have the image."""


def inspect(
    reference: str,
    *,
    engine: ImageSource | None = None,
    platform: str = "",
    environ: Mapping[str, str] | None = None,
) -> ImageFacts:
    """The facts of an image; `platform`, such as "linux/arm64", chooses one of several.

    Without `platform` the facts are those of linux/amd64, or of the only platform.
    """
    return examine(reference, engine=engine, platform=platform, environ=environ).facts


def image_facts(
    reference: str, *, engine: ImageSource | None = None, platform: str = "", environ: Mapping[str, str] | None = None
) -> ImageFacts:
    """`inspect` that does not raise: an image that cannot be read has the facts of its name, and the reason."""
    try:
        return inspect(reference, engine=engine, platform=platform, environ=environ)
    except StokerError as error:
        refused = isinstance(error, RegistryRefused) and error.status in (401, 403, 404)
        return attrs.evolve(facts_of_name(reference), unreadable=error.message, refused=refused)


def examine(
    reference: str,
    *,
    engine: ImageSource | None = None,
    platform: str = "",
    environ: Mapping[str, str] | None = None,
) -> ImageInspection:
    """`inspect`, with the source of each fact."""
    name = parse(reference)
    if engine is not None:
        inspection = engine.read(reference)
        if inspection is not None:
            return inspection
    connection = Connection(name, "pull", environ)
    answer = _manifest(connection, name.digest or name.tag)
    digest = _digest(answer)
    document = _document(answer, name)
    architectures: tuple[str, ...] = ()
    if "manifests" in document:
        entries = _platforms(document["manifests"])
        architectures = tuple(dict.fromkeys(architecture for (_, architecture), _ in entries))
        document = _document(_manifest(connection, _choose_platform(entries, platform, name)), name)
    if not isinstance(document.get("config"), dict) or "layers" not in document:
        kind = document.get("mediaType") or f"schema version {document.get('schemaVersion')}"
        raise BackendError(f"this is no image that can be run: {kind}", where=reference, fix="name an image")
    config = _blob(connection, document["config"], name)
    size = sum(int(layer.get("size", 0)) for layer in document["layers"])
    return read(reference, config, digest=digest, architectures=architectures, size=size)


def digest_of(reference: str, environ: Mapping[str, str] | None = None) -> str | None:
    """The digest of a name at its registry now; None if the registry does not have the name."""
    name = parse(reference)
    connection = Connection(name, "pull", environ)
    accept = ", ".join((*INDEXES, *MANIFESTS))
    # HEAD does not count against Docker Hub's limit: https://docs.docker.com/docker-hub/usage/pulls/.
    answer = connection.ask("HEAD", f"manifests/{name.digest or name.tag}", accept=accept, missing_ok=True)
    if answer is None:
        return None
    return answer.headers.get("Docker-Content-Digest") or _digest(_manifest(connection, name.digest or name.tag))


def check_push(reference: str, environ: Mapping[str, str] | None = None) -> Finding | None:
    """Why a push of this name would be refused; None if it is allowed.

    An upload is started, as a push does, and cancelled: nothing is left at the registry.
    """
    name = parse(reference)
    connection = Connection(name, "push", environ)
    try:
        upload = connection.ask("POST", "blobs/uploads/")
    except RegistryRefused as refusal:
        return _push_finding(name, refusal)
    except BackendError as error:
        return Finding(
            code=PUSH_REFUSED, level="error", what=error.message, where=error.where or reference, fix=error.fix
        )
    location = upload.headers.get("Location", "") if upload is not None else ""
    if upload is not None and location:
        try:
            connection.ask("DELETE", urllib.parse.urljoin(upload.url, location), missing_ok=True)
        except BackendError:
            pass  # several registries cannot cancel; an upload without bytes expires
    return None


def _push_finding(name: ImageReference, refusal: RegistryRefused) -> Finding:
    permission, what, fix = needed(name, "push"), refusal.message, refusal.fix
    if refusal.status == 404:
        what = f"{name.registry} has no repository '{name.path}', and does not make it when an image is pushed"
        fix = f"make the repository there first, or write another one into target_repository; see also: {login(name)}"
    elif refusal.status == 405:
        what, fix = f"{name.registry} takes no images: it is read-only", "write another one into target_repository"
    return Finding(
        code=PUSH_REFUSED,
        level="error",
        what=what,
        where=name.repository,
        why=f"the image has to be pushed there, which needs {permission}",
        fix=fix,
    )


def _manifest(connection: Connection, name: str) -> RegistryAnswer:
    try:
        answer = connection.ask("GET", f"manifests/{name}", accept=", ".join((*INDEXES, *MANIFESTS)))
    except RegistryRefused as refusal:
        if refusal.status != 404 or "NAME_UNKNOWN" in refusal.codes or ":" in name:
            raise
        raise _suggest_tag(connection, refusal) from refusal
    assert answer is not None  # only `missing_ok` makes it None
    if ":" in name:
        _verify(answer.body, name, connection.reference)
    return answer


def _suggest_tag(connection: Connection, refusal: RegistryRefused) -> RegistryRefused:
    """The same refusal with a similar tag."""
    reference = connection.reference
    try:
        answer = connection.ask("GET", f"tags/list?n={_TAGS_SHOWN}", accept="application/json", missing_ok=True)
        tags = [str(tag) for tag in (answer.json().get("tags") or ())] if answer is not None else []
    except (BackendError, ValueError, AttributeError):
        return refusal
    if not tags:
        return refusal
    return RegistryRefused(
        f"{reference.repository} has no tag '{reference.tag}'{nearest(reference.tag, tags)}",
        status=refusal.status,
        codes=refusal.codes,
        where=str(reference),
        fix=f"name a tag that is there; all are listed at {reference.registry}",
    )


def _blob(connection: Connection, descriptor: Mapping[str, Any], name: ImageReference) -> Mapping[str, Any]:
    digest = str(descriptor.get("digest", ""))
    answer = connection.ask("GET", f"blobs/{digest}")
    assert answer is not None  # only `missing_ok` makes it None
    _verify(answer.body, digest, name)
    return _document(answer, name)


def _verify(body: bytes, digest: str, name: ImageReference) -> None:
    """Raise an error if a body does not have its digest."""
    algorithm, _, expected = digest.partition(":")
    if algorithm in ("sha256", "sha512") and hashlib.new(algorithm, body).hexdigest() != expected:
        raise BackendError(f"{name.registry} answered something else than {digest}", where=str(name))


def _digest(answer: RegistryAnswer) -> str:
    return answer.headers.get("Docker-Content-Digest") or "sha256:" + hashlib.sha256(answer.body).hexdigest()


def _document(answer: RegistryAnswer, name: ImageReference) -> Mapping[str, Any]:
    try:
        document = answer.json()
    except ValueError as error:
        raise BackendError(f"{name.registry} did not answer as registries do: {error}", where=str(name)) from error
    return document if isinstance(document, dict) else {}


def _platforms(entries: Iterable[Mapping[str, Any]]) -> list[tuple[tuple[str, str], str]]:
    """((os, architecture), digest) of an index's images, without BuildKit's attestations, which have no platform."""
    platforms = []
    for entry in entries:
        platform = entry.get("platform") or {}
        os, architecture = str(platform.get("os", "")), str(platform.get("architecture", ""))
        if os and os != "unknown" and architecture:
            variant = platform.get("variant")
            # arm64's only variant is v8; 32-bit ARM's are different machines.
            full = f"{architecture}/{variant}" if variant and architecture == "arm" else architecture
            platforms.append(((os, full), str(entry.get("digest", ""))))
    return platforms


def _choose_platform(entries: list[tuple[tuple[str, str], str]], platform: str, name: ImageReference) -> str:
    required = tuple(platform.partition("/")[::2]) if platform else ("linux", "amd64")
    for kind, digest in entries:
        if kind == required:
            return digest
    if entries and not platform:
        return entries[0][1]
    available = ", ".join("/".join(kind) for kind, _ in entries) or "nothing that can be run"
    raise BackendError(
        f"there is no image for {platform or 'linux/amd64'}", where=str(name), fix=f"there is {available}"
    )
