"""What goes into a build as one digest, and a person's build options as words of a command line. Pure but for reading
the files whose digest is asked for.
"""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path
from typing import Any, Callable, Final, Iterator, Mapping

from stoker.core.errors import SettingsError, nearest
from stoker.images.dockerfile import ImageSpec

FORMAT: Final = 1
"""Goes into every digest; a higher one builds everything anew."""
TAG_LENGTH: Final = 24
"""Characters of the digest in a tag: 96 bits, so that two of a team's images never meet by chance."""
_CHUNK: Final = 1 << 20


def digest(
    text: str,
    context: Mapping[str, bytes | Path],
    *,
    parents: Mapping[str, str],
    platform: str,
    spec: ImageSpec,
) -> str:
    """sha256 of all that decides what an image holds; names of tags and the values of secrets are not among it."""
    document = {
        "format": FORMAT,
        "text": text,
        "files": {name: _content(name, content) for name, content in sorted(context.items())},
        "parents": dict(sorted(parents.items())),
        "platform": platform,
        "options": {name: _effect(name, value) for name, value in sorted(spec.options.items()) if name not in _NEUTRAL},
    }
    encoded = json.dumps(document, sort_keys=True, ensure_ascii=False, separators=(",", ":"), default=str)
    return "sha256:" + hashlib.sha256(encoded.encode("utf-8", "surrogateescape")).hexdigest()


def tag_of(inputs: str) -> str:
    """The tag of an image with these inputs."""
    return inputs.partition(":")[2][:TAG_LENGTH]


def option_words(options: Mapping[str, Any]) -> list[str]:
    """`build_config`'s options as flags; docker, podman and buildah have the same."""
    words: list[str] = []
    for name, value in options.items():
        form = _OPTIONS.get(name)
        if form is None:
            raise SettingsError(f"build_config has no option '{name}'{nearest(name, _OPTIONS)}")
        try:
            words += form(value)
        except (AttributeError, TypeError, ValueError) as error:
            raise SettingsError(f"build_config's option '{name}' cannot be {value!r}: {error}") from error
    return words


def _content(name: str, content: bytes | Path) -> list[Any]:
    if isinstance(content, bytes):
        return [hashlib.sha256(content).hexdigest(), False]
    if content.is_symlink():
        return ["link", os.readlink(content)]
    hashing = hashlib.sha256()
    try:
        with content.open("rb") as file:
            while chunk := file.read(_CHUNK):
                hashing.update(chunk)
        executable = bool(content.stat().st_mode & 0o111)
    except OSError as error:
        raise SettingsError(
            f"{content} cannot be read for the build's context: {error.strerror}",
            fix="leave it out in .dockerignore, or let yourself read it",
        ) from error
    return [hashing.hexdigest(), executable]


def _effect(name: str, value: Any) -> Any:
    """What of an option decides about the image; of secrets only their names."""
    return sorted(value) if name == "secrets" and isinstance(value, Mapping) else value


def _flag(flag: str) -> Callable[[Any], list[str]]:
    def words(value: Any) -> list[str]:
        if value is not None and not isinstance(value, bool):
            raise ValueError("it is True or False")
        return [flag] if value else []

    return words


def _text(flag: str) -> Callable[[Any], list[str]]:
    def words(value: Any) -> list[str]:
        return [] if value is None else [flag, str(value)]

    return words


def _pairs(flag: str, between: str = "=") -> Callable[[Any], list[str]]:
    def words(value: Any) -> list[str]:
        return [word for key, inner in value.items() for word in (flag, f"{key}{between}{inner}")]

    return words


def _many(flag: str) -> Callable[[Any], list[str]]:
    def words(value: Any) -> list[str]:
        texts = [value] if isinstance(value, str) else list(value)
        return [word for text in texts for word in (flag, str(text))]

    return words


def _secrets(value: Mapping[str, str]) -> list[str]:
    """`{"netrc": "~/.netrc"}`; a name in capitals after a dollar sign is a variable."""
    return list(_secret_words(value))


def _secret_words(value: Mapping[str, str]) -> Iterator[str]:
    for name, source in value.items():
        yield "--secret"
        if source.startswith("$"):
            yield f"id={name},env={source[1:].strip('{}')}"
        else:
            yield f"id={name},src={os.path.expanduser(source)}"


# Names as ZenML takes them, which are those of the Docker SDK's `build`:
# https://docker-py.readthedocs.io/en/stable/images.html; flags: https://docs.docker.com/reference/cli/docker/buildx/build/.
_OPTIONS: Final[Mapping[str, Callable[[Any], list[str]]]] = {
    "build_args": _pairs("--build-arg"),
    "buildargs": _pairs("--build-arg"),
    "labels": _pairs("--label"),
    "extra_hosts": _pairs("--add-host", ":"),
    "cache_from": _many("--cache-from"),
    "nocache": _flag("--no-cache"),
    "pull": _flag("--pull"),
    "squash": _flag("--squash"),
    "target": _text("--target"),
    "shm_size": _text("--shm-size"),
    "network": _text("--network"),
    "network_mode": _text("--network"),
    "platform": _text("--platform"),
    "secrets": _secrets,
}
_NEUTRAL: Final = frozenset({"nocache", "pull", "cache_from", "network", "network_mode", "extra_hosts", "shm_size"})
"""Options that say how to build, not what."""
