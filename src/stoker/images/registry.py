"""Facts of an image, read from its registry without pulling it; and whether a push is allowed there.

A manifest and the image's configuration are a few kilobytes. Layers are read as streams, once, as far as a
`LayerReading` allows. An `engine` that has the image is asked first: that image
is the one that is built from or run, whatever the registry has by now.
"""

from __future__ import annotations

import contextlib
import hashlib
import re
import urllib.parse
from typing import IO, Any, Callable, Final, Iterable, Iterator, Mapping, Protocol, Sequence, cast

import attrs

from stoker.core.codec import from_json, to_json
from stoker.core.docker import ImageFacts
from stoker.core.errors import BackendError, StokerError, nearest
from stoker.core.findings import Finding
from stoker.core.imagenames import facts_of_name
from stoker.core.questions import NoAnswer, Questions
from stoker.core.units import size_text
from stoker.images.credentials import Credentials, needed
from stoker.images.facts import ImageInspection, architecture_of, read, with_contents
from stoker.images.layers import CHUNK, LayerContents, LayerReading, contents_of, read_layer
from stoker.images.registries import BAD_NAME, ImageReference, parse, registry_flavor
from stoker.images.transport import Connection, RegistryAnswer, RegistryRefused, RegistryUnreachable

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
TAG_SECONDS: Final = 600.0
"""How long a plan takes what a registry said of a tag, which may be moved."""
FIXED_SECONDS: Final = 30 * 86400.0
"""How long of a digest, which says the same for ever."""
_SHA256: Final = re.compile(r"sha256:[0-9a-f]{64}")
_TAGS_SHOWN: Final = 1000
"""How many tags are listed to suggest a similar one."""


class ImageSource(Protocol):
    """What has images and their facts, such as an engine."""

    def read(self, reference: str) -> ImageInspection | None:
        """The facts of an image; None if it does not have the image."""

    def id(self, reference: str) -> str | None:
        """The id of an image; None if it does not have the image."""

    def size(self, reference: str) -> int | None:
        """Bytes of an image's unpacked layers; None if not known."""

    def layers(self, reference: str, deadline: float = 0.0) -> tuple[LayerContents, ...]:
        """The contents of an image's layers, lowest first."""


def inspect(
    reference: str,
    *,
    engine: ImageSource | None = None,
    platform: str = "",
    environ: Mapping[str, str] | None = None,
    layers: LayerReading | None = None,
) -> ImageFacts:
    """The facts of an image; `platform`, such as "linux/arm64", chooses one of several.

    Without `platform` the facts are those of linux/amd64, or of the only platform.
    """
    return examine(reference, engine=engine, platform=platform, environ=environ, layers=layers).facts


def image_facts(
    reference: str,
    *,
    engine: ImageSource | None = None,
    platform: str = "",
    environ: Mapping[str, str] | None = None,
    layers: LayerReading | None = None,
    questions: Questions | None = None,
) -> ImageFacts:
    """`inspect` that does not raise: an image that cannot be read has the facts of its name, and the reason.

    With `questions` a registry is asked as a plan asks, and what it answered is remembered.
    """
    try:
        name = parse(reference)
        if questions is not None and (engine is None or engine.id(reference) is None):
            return _asked(name, reference, questions, platform=platform, environ=environ, layers=layers)
        return inspect(reference, engine=engine, platform=platform, environ=environ, layers=layers)
    except StokerError as error:
        refused = isinstance(error, RegistryRefused) and error.status in (401, 403, 404)
        return attrs.evolve(facts_of_name(reference), unreadable=error.message, refused=refused)


def _asked(
    name: ImageReference,
    reference: str,
    questions: Questions,
    *,
    platform: str,
    environ: Mapping[str, str] | None,
    layers: LayerReading | None,
) -> ImageFacts:
    def ask() -> dict[str, Any]:
        try:
            inspection = examine(reference, platform=platform, environ=environ, layers=layers)
        except RegistryUnreachable as error:
            raise NoAnswer(error.message) from None
        return {"facts": to_json(inspection.facts), "layers": inspection.layers}

    def valid(answer: Mapping[str, Any]) -> float:
        if answer["layers"].startswith("not read"):
            return 0.0  # there may be more time, or room, for them
        return FIXED_SECONDS if name.digest else TAG_SECONDS

    answer = questions.ask(
        name.server,
        ask,
        key=["image", reference, platform, layers is not None],
        place=["registry", name.server],
        valid=valid,
        nearby=name.loopback and not questions.strict,
    )
    return from_json(ImageFacts, answer["facts"], strict=False)


def examine(
    reference: str,
    *,
    engine: ImageSource | None = None,
    platform: str = "",
    environ: Mapping[str, str] | None = None,
    layers: LayerReading | None = None,
) -> ImageInspection:
    """`inspect`, with the source of each fact, and with the contents of the layers as far as `layers` allows."""
    name = parse(reference)
    if engine is not None:
        with _as_documents("the container engine", reference, "look at what `docker image inspect` prints of it"):
            inspection = engine.read(reference)
        if inspection is not None:
            return inspection if layers is None else _with_exported(inspection, engine, layers)
    connection = Connection(name, "pull", environ)
    fix = "look at what is behind this address: a proxy, or a page that asks for a login"
    with _as_documents(name.registry, reference, fix):
        return _examine(connection, reference, platform, layers)


@contextlib.contextmanager
def _as_documents(who: str, reference: str, fix: str) -> Iterator[None]:
    """Turn what goes wrong with a document of another form into an error that says so."""
    try:
        yield
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        words = f"{who} did not answer as registries do: {type(error).__name__}: {error}"
        raise BackendError(words, where=reference, fix=fix) from error


def _examine(connection: Connection, reference: str, platform: str, layers: LayerReading | None) -> ImageInspection:
    name = connection.reference
    answer = _manifest(connection, name.digest or name.tag)
    digest = _digest(answer, name)
    document = _document(answer, name)
    architectures: list[str] = []
    if "manifests" in document:
        entries = _platforms(document["manifests"])
        architectures = list(dict.fromkeys(architecture for (_, architecture), _ in entries))
        document = _document(_manifest(connection, _choose_platform(entries, platform, name)), name)
    if not isinstance(document.get("config"), dict) or "layers" not in document:
        kind = document.get("mediaType") or f"schema version {document.get('schemaVersion')}"
        raise BackendError(f"this is no image that can be run: {kind}", where=reference, fix="name an image")
    config = _blob(connection, document["config"], name)
    size = _size(document["layers"])
    if "" in architectures:  # what it has besides is for the processor of the image that is read, as far as is known
        architectures.append(architecture_of(config.get("architecture")))
    named = dict.fromkeys(filter(None, architectures))
    inspection = read(reference, config, digest=digest, architectures=named, size=size)
    return inspection if layers is None else _with_downloaded(inspection, connection, document["layers"], layers)


def digest_of(reference: str, environ: Mapping[str, str] | None = None) -> str | None:
    """The digest of a name at its registry now; None if the registry does not have the name."""
    name = parse(reference)
    connection = Connection(name, "pull", environ)
    accept = ", ".join((*INDEXES, *MANIFESTS))
    # HEAD does not count against Docker Hub's limit: https://docs.docker.com/docker-hub/usage/pulls/.
    answer = connection.ask("HEAD", f"manifests/{name.digest or name.tag}", accept=accept, missing_ok=True)
    if answer is None:
        return None
    digest = answer.headers.get("Docker-Content-Digest", "")
    return digest if _SHA256.fullmatch(digest) else _digest(_manifest(connection, name.digest or name.tag), name)


def check_name(reference: str) -> Finding | None:
    """Why a registry would take no repository of this name; None if it would."""
    name = parse(reference)
    flavor = registry_flavor(name)
    problem = flavor.check_name(name)
    if problem is None:
        return None
    what, fix = problem
    return Finding(
        code=BAD_NAME,
        level="error",
        what=f"{flavor.title} takes no repository '{name.repository}': {what}",
        where=name.repository,
        why="the image that is built has to be pushed there",
        fix=fix,
    )


def check_pull(
    reference: str, account: Callable[[ImageReference], Credentials | None], environ: Mapping[str, str] | None = None
) -> RegistryRefused | None:
    """The refusal with which an image's registry answers a login that pulls it; None if the login may pull it.

    `account` finds the login. Raises what else goes wrong: `RegistryUnreachable`, another `BackendError`. A repository
    that is not there yet is no refusal to a login that may read it.
    """
    name = parse(reference)
    connection = Connection(name, "pull", environ, account=account)
    try:
        connection.ask("HEAD", f"manifests/{name.digest or name.tag}", accept=", ".join((*INDEXES, *MANIFESTS)))
    except RegistryRefused as refusal:
        return refusal if refusal.status in (401, 403) else None
    return None


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


def _with_exported(inspection: ImageInspection, engine: ImageSource, layers: LayerReading) -> ImageInspection:
    """The inspection with the contents of the layers that an engine has."""
    reference = inspection.facts.reference
    image_id = engine.id(reference) or ""
    contents, done = layers.cache.layers(image_id) if image_id else None, "read before"
    if contents is None:
        size = engine.size(reference)
        if layers.largest_export is not None and (size is None or size > layers.largest_export):
            return _unread(inspection, f"{_amount(size)} would have to be exported")
        try:
            contents, done = engine.layers(reference, layers.deadline), "read"
        except BackendError as error:
            return _unread(inspection, error.message)
        if image_id:
            layers.cache.put(image_id, *contents)
    return with_contents(inspection, contents_of(contents, inspection.facts.env.get("PATH", "")), done)


def _with_downloaded(
    inspection: ImageInspection, connection: Connection, descriptors: Sequence[Mapping[str, Any]], layers: LayerReading
) -> ImageInspection:
    """The inspection with the contents of the layers that a registry has; those of a digest are read once."""
    digests = [str(layer.get("digest", "")) for layer in descriptors]
    contents = {digest: layers.cache.get(digest) for digest in digests}
    unread = [layer for layer in descriptors if contents[str(layer.get("digest", ""))] is None]
    size = _size(unread)
    if layers.largest_download is not None and (size is None or size > layers.largest_download):
        return _unread(inspection, f"{_amount(size)} would have to be downloaded")
    deadline = layers.deadline
    try:
        for layer in reversed(unread):  # the newest are those that other images do not have
            digest = str(layer.get("digest", ""))
            contents[digest] = downloaded = _download(connection, digest, deadline)
            layers.cache.put(digest, downloaded)
    except BackendError as error:
        return _unread(inspection, error.message)
    ordered = [one for digest in digests if (one := contents[digest]) is not None]
    done = "read" if unread else "read before"
    return with_contents(inspection, contents_of(ordered, inspection.facts.env.get("PATH", "")), done)


def _download(connection: Connection, digest: str, deadline: float) -> LayerContents:
    with connection.stream(f"blobs/{digest}") as body:
        hashed = _Hashed(body, digest)
        contents = read_layer(cast("IO[bytes]", hashed), deadline)
        while hashed.read(CHUNK):
            pass
    if hashed.digest != digest:
        raise BackendError(f"{connection.reference.registry} answered something else than {digest}")
    return contents


class _Hashed:
    """A stream that computes the digest of what is read."""

    def __init__(self, stream: IO[bytes], digest: str) -> None:
        self._stream, self._algorithm = stream, digest.partition(":")[0]
        self._hash = hashlib.new(self._algorithm if self._algorithm in ("sha256", "sha512") else "sha256")

    def read(self, size: int = -1) -> bytes:
        part = self._stream.read(size)
        self._hash.update(part)
        return part

    @property
    def digest(self) -> str:
        """`sha256:…` of all that was read."""
        return f"{self._algorithm}:{self._hash.hexdigest()}"


def _size(descriptors: Iterable[Mapping[str, Any]]) -> int | None:
    """Bytes of layers; None where one of them does not say its own.

    https://github.com/opencontainers/image-spec/blob/main/descriptor.md#properties
    """
    sizes = [layer.get("size") for layer in descriptors]
    known = [size for size in sizes if type(size) is int and size >= 0]
    return sum(known) if len(known) == len(sizes) else None


def _amount(size: int | None) -> str:
    return "an unknown number of bytes" if size is None else size_text(size)


def _unread(inspection: ImageInspection, why: str) -> ImageInspection:
    return attrs.evolve(inspection, layers=f"not read: {why}")


def _push_finding(name: ImageReference, refusal: RegistryRefused) -> Finding:
    permission, what, fix = needed(name, "push"), refusal.message, refusal.fix
    if refusal.status == 404:
        what = f"{name.registry} has no repository '{name.path}', and does not make it when an image is pushed"
        command = registry_flavor(name).create(name)
        fix = f"make the repository there first{f' ({command})' if command else ''}, or write another one into "
        fix += "target_repository"
    elif refusal.status == 405:
        what, fix = f"{name.registry} takes no images: it is read-only", "write another one into target_repository"
    return Finding(
        code=PUSH_REFUSED,
        level="error",
        what=what,
        where=name.repository,
        why=f"the image has to be pushed there; a push to {name.repository} needs {permission}",
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
    if algorithm not in ("sha256", "sha512") or hashlib.new(algorithm, body).hexdigest() != expected:
        raise BackendError(f"{name.registry} answered something else than {digest}", where=str(name))


def _digest(answer: RegistryAnswer, name: ImageReference) -> str:
    """The digest of a manifest; an error if the registry names another one for it."""
    digest = answer.headers.get("Docker-Content-Digest") or "sha256:" + hashlib.sha256(answer.body).hexdigest()
    _verify(answer.body, digest, name)
    return digest


def _document(answer: RegistryAnswer, name: ImageReference) -> Mapping[str, Any]:
    try:
        document = answer.json()
    except ValueError as error:
        raise BackendError(f"{name.registry} did not answer as registries do: {error}", where=str(name)) from error
    return document if isinstance(document, dict) else {}


def _platforms(entries: Iterable[Mapping[str, Any]]) -> list[tuple[tuple[str, str], str]]:
    """((os, architecture), digest) of an index's images, without BuildKit's attestations, whose platform is "unknown".

    A platform is optional, and empty where it is not said:
    https://github.com/opencontainers/image-spec/blob/main/image-index.md
    """
    platforms = []
    for entry in entries:
        platform, digest = entry.get("platform") or {}, str(entry.get("digest", ""))
        os, architecture = str(platform.get("os") or ""), architecture_of(platform.get("architecture"))
        if os == "unknown" or "vnd.docker.reference.type" in (entry.get("annotations") or {}):
            continue
        variant = platform.get("variant")
        # arm64's only variant is v8; 32-bit ARM's are different machines.
        full = f"{architecture}/{variant}" if variant and architecture == "arm" else architecture
        platforms.append(((os, full) if os and full else ("", ""), digest))
    return platforms


def _choose_platform(entries: list[tuple[tuple[str, str], str]], platform: str, name: ImageReference) -> str:
    required = tuple(platform.partition("/")[::2]) if platform else ("linux", "amd64")
    for kind, digest in entries:
        if kind == required:
            return digest
    unnamed = [digest for kind, digest in entries if not kind[1]] or [digest for _, digest in entries if not platform]
    if unnamed:
        return unnamed[0]
    available = ", ".join("/".join(kind) for kind, _ in entries) or "nothing that can be run"
    raise BackendError(
        f"there is no image for {platform or 'linux/amd64'}", where=str(name), fix=f"there is {available}"
    )
