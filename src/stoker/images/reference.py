"""The reference of an image: the checked parts of its name, and the server of its registry.

`core.imagenames` parses names; here a text that is no image's name is an error.
"""

from __future__ import annotations

import re
from typing import Final

import attrs

from stoker.core import imagenames
from stoker.core.errors import SettingsError
from stoker.core.imagenames import HUB

HUB_SERVER: Final = "registry-1.docker.io"
"""Docker Hub's server; https://github.com/distribution/reference/blob/main/normalize.go has the names."""
_LOOPBACK: Final = re.compile(r"(?:localhost|127(?:\.\d+){3}|\[::1\])(?::\d+)?")


@attrs.frozen(kw_only=True)
class ImageReference:
    """`registry/path:tag@digest`; a name without tag and digest has the tag "latest"."""

    registry: str
    path: str
    tag: str = ""
    digest: str = ""

    @property
    def repository(self) -> str:
        """The full name without tag and digest."""
        return f"{self.registry}/{self.path}"

    @property
    def server(self) -> str:
        """The host that serves the registry."""
        return HUB_SERVER if self.registry == HUB else self.registry

    @property
    def loopback(self) -> bool:
        """Whether the registry is on this machine; engines then use HTTP, too."""
        return _LOOPBACK.fullmatch(self.registry) is not None

    def at(self, digest: str) -> str:
        """The name of this repository's image with a digest."""
        return f"{self.repository}@{digest}"

    def __str__(self) -> str:
        tag = f":{self.tag}" if self.tag else ""
        return f"{self.repository}{tag}" + (f"@{self.digest}" if self.digest else "")


def parse(text: str) -> ImageReference:
    """Parse a name such as "pytorch/pytorch:2.1.0-cuda12.1-cudnn8-runtime"; a `SettingsError` if it is none."""
    parts = imagenames.parse(text)
    if parts is None:
        capital = text.partition("@")[0].rpartition(":")[0] or text
        why = ": a repository has no capital letters" if capital != capital.lower() else ""
        raise SettingsError(
            f"'{text}' does not name an image{why}", fix="write repository:tag, such as python:3.11-slim"
        )
    tag = parts.tag or ("" if parts.digest else "latest")
    return ImageReference(registry=parts.registry, path=parts.repository, tag=tag, digest=parts.digest)
