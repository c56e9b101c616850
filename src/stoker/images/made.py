"""From a step's docker settings to its image: everything of this room put together, for whoever runs steps."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Final

import attrs

from stoker.core.docker import DockerSettings
from stoker.images.build import Built, Progress, made
from stoker.images.dockerfile import ImageSpec, dockerfile
from stoker.images.engine import Engine
from stoker.images.registry import known
from stoker.images.spec import context_files, spec_of
from stoker.images.wheel import worker_wheel

PYTHON: Final = f"{sys.version_info.major}.{sys.version_info.minor}"
"""This process's Python, whose pickles the image's has to read."""


def image_of(
    settings: DockerSettings | None,
    *,
    root: Path,
    folder: Path,
    engine: Engine | None,
    progress: Progress,
    push: str = "",
) -> Built:
    """The image of a step with these settings, built and pushed if it is not there.

    `root` is the folder of the user's code, `folder` one of Stoker's own, in which a wheel of Stoker is kept. It is
    pushed to `push`, or to the settings' own `target_repository`.
    """
    spec, wheel = specified(settings, root=root, folder=folder, engine=engine)
    files = {} if spec.skip_build else context_files(spec, root=root, wheel=wheel)
    repository = push or spec.target_repository
    return made(spec, dockerfile(spec), files, engine=engine, progress=progress, push=repository)


def specified(
    settings: DockerSettings | None, *, root: Path, folder: Path, engine: Engine | None
) -> tuple[ImageSpec, Path | None]:
    """What the image is made of, and the wheel of Stoker that goes into it; none into one that is used as it is."""
    spec = spec_of(settings, root=root, python=PYTHON)
    if spec.skip_build:
        return spec, None
    folder.mkdir(parents=True, exist_ok=True)
    wheel = worker_wheel(folder)
    spec = spec_of(settings, root=root, python=PYTHON, worker=wheel.name)
    # Whose processes the parent's are is kept for the image, and only the parent's configuration tells it.
    environ = None if engine is None else engine.environ
    user = "" if spec.own else known(spec.parent, engine=engine, platform=spec.platform, environ=environ).user
    return attrs.evolve(spec, parent_user=user), wheel
