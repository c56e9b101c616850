"""The engine of this machine, or the one that DOCKER_HOST names: `images.build` runs it."""

from __future__ import annotations

from typing import Final

from stoker.images.builders.base import ImageBuilder

LOCAL: Final = ImageBuilder(name="local", title="the container engine of this machine", mounts=True)
