"""The facts of a container image: `images.registry` reads them, `plan.preflight` checks them.

An empty field means that a fact is not known, never that the image lacks something.
"""

from __future__ import annotations

from typing import Mapping

import attrs


@attrs.frozen(kw_only=True)
class ImageFacts:
    """An image's configuration in the words of the checks."""

    reference: str
    """As a person wrote it."""
    digest: str = ""
    """"sha256:…" of the manifest or index behind the reference now."""
    architectures: tuple[str, ...] = ()
    """As registries write them ("amd64", "arm64"); of an index all that it has."""
    os: str = ""
    cuda: str = ""
    """A version ("12.4.1"), as of `cudnn`, `python`, `rocm` and `neuron`; "?" for one of unknown version."""
    cudnn: str = ""
    python: str = ""
    frameworks: Mapping[str, str] = attrs.field(factory=dict)
    """Distribution → version, with a local part where it is known: `{"torch": "2.4.0+cu124"}`."""
    distributions: Mapping[str, str] | None = None
    """All installed Python distributions: canonical name → version; None if nobody read the image's layers."""
    env: Mapping[str, str] = attrs.field(factory=dict)
    """The configuration's environment."""
    labels: Mapping[str, str] = attrs.field(factory=dict)
    rocm: str = ""
    neuron: str = ""
    libc: str = ""
    """The C library: "glibc" or "musl", for which most wheels with code for devices are not made."""
    archs: tuple[str, ...] = ()
    """The chips for which the image's own framework was built, as frameworks list them ("sm_90", "compute_90")."""
    size: int | None = None
    """Bytes of the compressed layers."""
    entrypoint: tuple[str, ...] = ()
    command: tuple[str, ...] = ()
    user: str = ""
    base: str = "registry"
    """Where the facts come from: "registry", "engine", or "name" where only the reference's own words are known."""
    unreadable: str = ""
    """Why neither registry nor engine could be read."""
    refused: bool = False
    """The registry answered that there is no such image or that it may not be read; else it was not reached."""
    unknown: tuple[str, ...] = ()
    """Facts that were looked for and could not be determined."""
