"""The builders of images by name: Stoker's own, and those of other distributions (entry points `stoker.builders`)."""

from __future__ import annotations

from typing import Final

from stoker.core.plugins import Registry
from stoker.images.builders.base import ImageBuilder

BUILDERS: Final[Registry[ImageBuilder]] = Registry(
    group="stoker.builders",
    noun="image builder",
    kind=ImageBuilder,
    builtin={
        "local": ("stoker.images.builders.base:LOCAL", ""),
        "kaniko": ("stoker.images.builders.kaniko:KANIKO", ""),
        "remote-buildkit": ("stoker.images.builders.buildkit:REMOTE_BUILDKIT", ""),
        "cloud": ("stoker.images.builders.cloud:CLOUD", ""),
    },
)
