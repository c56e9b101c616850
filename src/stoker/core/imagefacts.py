"""What is known of a container image, as far as it is known: read by `images.registry`, judged by `plan.preflight`.

An empty field means that it is not known, never that the image lacks it. What was looked for and could not be told is
named in `unknown`.
"""

from __future__ import annotations

from typing import Mapping

import attrs


@attrs.frozen(kw_only=True)
class ImageFacts:
    """An image's configuration in the words of the checks.

    `reference` is as a person wrote it, `digest` ("sha256:…") that of the manifest or index behind it now.
    `architectures` are as registries write them ("amd64", "arm64"); of an index all that it has. `cuda`, `cudnn`,
    `python`, `rocm` and `neuron` are versions ("12.4.1"), "?" for one that is there and not told. `frameworks` maps a
    distribution's name to its version, with a local part where it is known (`{"torch": "2.4.0+cu124"}`). `env` is the
    configuration's environment. `size` is that of the compressed layers in bytes. `base` says what the configuration is
    made from: "registry", "engine", or "name" where only the reference's words are known. `unreadable` is why neither
    could be read; `refused` means that the registry answered so (there is no such image, or it may not be read), rather
    than that it was not reached.
    """

    reference: str
    digest: str = ""
    architectures: tuple[str, ...] = ()
    os: str = ""
    cuda: str = ""
    cudnn: str = ""
    python: str = ""
    frameworks: Mapping[str, str] = attrs.field(factory=dict)
    env: Mapping[str, str] = attrs.field(factory=dict)
    labels: Mapping[str, str] = attrs.field(factory=dict)
    rocm: str = ""
    neuron: str = ""
    size: int | None = None
    entrypoint: tuple[str, ...] = ()
    command: tuple[str, ...] = ()
    user: str = ""
    base: str = "registry"
    unreadable: str = ""
    refused: bool = False
    unknown: tuple[str, ...] = ()
