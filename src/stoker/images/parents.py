"""The official image that an accelerator's platform stands for: `accelerator="cuda12.4"` is looked up, never guessed.

cuda12.4  nvidia/cuda:12.4.1-cudnn-runtime-ubuntu22.04, and the driver's Python put into it
rocm7.1   rocm/pytorch, with the Python and the torch that are in it
neuron2.30  AWS's deep learning container, with the Python and the torch that are in it
cpu       python:3.11-slim, as without an accelerator, and torch's wheels for the CPU
"""

from __future__ import annotations

import re
from typing import Final, Mapping

import attrs

from stoker.core.errors import SettingsError, nearest
from stoker.images.dockerfile import Python
from stoker.vendors.registry import VENDORS

PYTHONS: Final[Mapping[str, str]] = {
    # https://packages.ubuntu.com/search?keywords=python3 and https://packages.debian.org/search?keywords=python3
    "ubuntu22.04": "3.10",
    "ubuntu24.04": "3.12",
    "debian12": "3.11",
    "debian13": "3.13",
}
"""Distribution → the Python that its packages bring."""
_NAMES: Final[Mapping[str, str]] = {
    "jammy": "22.04",
    "noble": "24.04",
    "focal": "20.04",
    "bookworm": "12",
    "trixie": "13",
    "bullseye": "11",
}
# Images that hold a bare distribution, by the grammar of their tags: https://hub.docker.com/_/ubuntu,
# https://hub.docker.com/_/debian, https://hub.docker.com/r/nvidia/cuda.
_BARE: Final = (
    re.compile(r"(?:docker\.io/(?:library/)?)?(?P<name>ubuntu|debian):(?P<release>[a-z0-9.]+?)(?:-slim|-\d+)*(?:@.*)?"),
    re.compile(r"(?:docker\.io/|nvcr\.io/)?nvidia/cuda:[^@]*-(?P<name>ubuntu)(?P<release>[\d.]+)(?:@.*)?"),
)
_OFFICIAL: Final = re.compile(r"(?:docker\.io/(?:library/)?)?python:(?P<version>\d+\.\d+(?:\.\d+)?)(-[^@]*)?(@.*)?")


@attrs.frozen(kw_only=True)
class Parent:
    """A parent image."""

    image: str
    interpreter: Python = "parent"
    """Where its Python comes from."""
    wheels: str = ""
    """The platform of torch's wheels for it; empty for the usual index."""


def plain(python: str) -> Parent:
    """The default parent: Docker's official image of the driver's Python."""
    return Parent(image=f"python:{python}-slim")  # https://hub.docker.com/_/python


def parent_for(accelerator: str, *, python: str) -> Parent:
    """The parent for `accelerator` and a Python such as "3.11"; a `SettingsError` for what the table lacks."""
    platform = accelerator.strip().lower()
    if platform == "cpu":
        return attrs.evolve(plain(python), wheels="cpu")
    official = next((one for _, vendor in VENDORS.parts() if (one := vendor.platforms.find(platform))), None)
    if official is None:
        raise SettingsError(
            f"accelerator: there is no official image for {accelerator!r} in the table"
            f"{nearest(platform, accelerators())}",
            fix="take one of these, or name an image: parent_image=",
        )
    if not official.releases:
        return Parent(image=official.image, wheels=official.wheels)
    same_python = [release for release in official.releases if PYTHONS.get(f"ubuntu{release}") == python]
    image = official.image.format(ubuntu=[*same_python, *official.releases][0])
    return Parent(image=image, interpreter=interpreter_of(image, python=python), wheels=official.wheels)


def interpreter_of(image: str, *, python: str) -> Python:
    """Where an image's Python comes from: "parent", unless the image is known to have a bare distribution."""
    for pattern in _BARE:
        match = pattern.fullmatch(image)
        if match is not None:
            name, release = match["name"], _NAMES.get(match["release"], match["release"])
            release = release.partition(".")[0] if name == "debian" else release
            return "distribution" if PYTHONS.get(name + release) == python else "uv"
    return "parent"


def is_official(image: str) -> bool:
    """Whether an image is one of Docker's official images of Python, by its name."""
    return _OFFICIAL.fullmatch(image) is not None


def check_python(image: str, python: str) -> None:
    """Refuse a Python other than the one that an image brings, or that its name does not state.

    The names of Docker's official images of Python state it: https://hub.docker.com/_/python.
    """
    match = _OFFICIAL.fullmatch(image)
    if match is None:
        raise SettingsError(
            f"python_version: {image} brings a Python of its own, so that it cannot be {python}",
            fix="remove python_version, or take an image without a Python, such as ubuntu:24.04",
        )
    image_python, requested = match["version"].split("."), python.split(".")
    if image_python[: len(requested)] != requested[: len(image_python)]:
        raise SettingsError(
            f"python_version: {image} has Python {match['version']}, not {python}", fix=f"take python:{python}-slim"
        )


def accelerators() -> list[str]:
    """Every accelerator that has an official image, as settings name it."""
    return [*(name for _, vendor in VENDORS.parts() for name in vendor.platforms.names), "cpu"]
