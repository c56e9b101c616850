"""What is known of an image from its configuration and its name, and where each fact comes from.

Nothing is guessed: what neither says stays unknown. How the configuration got here is `registry` and `engine`'s.
"""

from __future__ import annotations

import re
from typing import Any, Final, Iterable, Mapping

import attrs

from stoker.core.imagefacts import ImageFacts
from stoker.core.imagenames import cuda_of_tag, named

NAMED: Final = "name"
"""The source of a fact that only the image's name tells."""
TOLD: Final = ("cuda", "cudnn", "rocm", "neuron", "python")
"""Facts of `ImageFacts` that may be unknown."""


@attrs.frozen(kw_only=True)
class Reading:
    """An image's facts and where each was read: "env CUDA_VERSION", "label …", "history", "name"; what else is told."""

    facts: ImageFacts
    sources: Mapping[str, str]
    architecture: str = ""
    """That of the image which the facts describe, where the reference has several."""
    folder: str = ""
    created: str = ""


# Environment of NVIDIA's images: https://gitlab.com/nvidia/container-images/cuda; of NGC's, `docker inspect` of
# nvcr.io/nvidia/pytorch; PYTHON_VERSION of Docker's official Python images:
# https://github.com/docker-library/python/blob/master/Dockerfile-linux.template
_VARIABLES: Final[tuple[tuple[str, str], ...]] = (
    ("cuda", "CUDA_VERSION"),
    ("cuda", "NV_CUDA_CUDART_VERSION"),
    ("cudnn", "CUDNN_VERSION"),
    ("cudnn", "NV_CUDNN_VERSION"),
    ("rocm", "ROCM_VERSION"),
    ("python", "PYTHON_VERSION"),
    ("torch", "PYTORCH_VERSION"),
    ("torch", "PYTORCH_BUILD_VERSION"),
    ("tensorflow", "TENSORFLOW_VERSION"),
    ("jax", "JAX_VERSION"),
)
_LABEL_FRAMEWORKS: Final[Mapping[str, str]] = {"pytorch": "torch", "tensorflow": "tensorflow", "mxnet": "mxnet"}
"""The label `framework` of AWS's deep learning containers → the package.
https://github.com/aws/deep-learning-containers/blob/master/pytorch/training/docker"""
_VERSION: Final = re.compile(r"\d+(?:\.\d+)+[\w.+-]*")
_ARGUMENT: Final = re.compile(r"(?:^ARG |\s)PYTHON_VERSION=[\"']?(\d+\.\d+(?:\.\d+)?)")
_INSTALLED: Final = re.compile(r"(?:^|[\s\"'])(torch|tensorflow|jax|deepspeed|accelerate)==([\w.+!-]+)")
_INSTALLS: Final = re.compile(r"\b(?:pip3?|uv pip|python3? -m pip|conda|mamba)\b[^;&|]*\binstall\b([^;&|]*)")


def read(
    reference: str,
    config: Mapping[str, Any],
    *,
    digest: str = "",
    architectures: Iterable[str] = (),
    size: int | None = None,
    base: str = "registry",
) -> Reading:
    """What an image's configuration and its name say.

    `config` is the document that the registry keeps (https://github.com/opencontainers/image-spec/blob/main/config.md);
    what an engine answers to `inspect` is brought into its form first.
    """
    inner = config.get("config") or {}
    env = dict(text.partition("=")[::2] for text in inner.get("Env") or ())
    labels = {str(name): str(value) for name, value in (inner.get("Labels") or {}).items()}
    history = [str(entry.get("created_by", "")) for entry in config.get("history") or ()]
    found: dict[str, tuple[str, str]] = {}
    for name, told, source in (*_of_env(env), *_of_labels(labels), *_of_history(history), *_of_name(reference)):
        if told:
            found.setdefault(name, (told, source))
    local = re.search(r"\+cu(\d{3})\b", found.get("torch", ("", ""))[0])
    if local is not None:
        found.setdefault("cuda", (cuda_of_tag(local[1]), found["torch"][1]))

    def value(name: str) -> str:
        return found.get(name, ("", ""))[0]

    architecture = str(config.get("architecture", ""))
    facts = ImageFacts(
        reference=reference,
        digest=digest,
        architectures=tuple(architectures) or ((architecture,) if architecture else ()),
        os=str(config.get("os", "")),
        env=env,
        labels=labels,
        size=size,
        cuda=value("cuda"),
        cudnn=value("cudnn"),
        rocm=value("rocm"),
        neuron=value("neuron"),
        python=value("python"),
        frameworks={name: version for name, (version, _) in sorted(found.items()) if name not in TOLD},
        entrypoint=_words(inner.get("Entrypoint")),
        command=_words(inner.get("Cmd")),
        user=str(inner.get("User") or ""),
        base=base,
        unknown=tuple(name for name in TOLD if name not in found),
    )
    return Reading(
        facts=facts,
        sources={name: source for name, (_, source) in sorted(found.items())},
        architecture=architecture,
        folder=str(inner.get("WorkingDir") or ""),
        created=str(config.get("created") or ""),
    )


def _of_env(env: Mapping[str, str]) -> Iterable[tuple[str, str, str]]:
    for name, variable in _VARIABLES:
        match = _VERSION.match(env.get(variable, ""))
        if match is not None:
            # Debian's revisions: 9.1.0.70-1 is cuDNN 9.1.0.70.
            yield name, match[0].partition("-")[0], f"env {variable}"


def _of_labels(labels: Mapping[str, str]) -> Iterable[tuple[str, str, str]]:
    # org.opencontainers.image.version is not read: images inherit it from Ubuntu's, whose version it then is.
    package = _LABEL_FRAMEWORKS.get(labels.get("framework", "").lower())
    if package and "framework_version" in labels:
        yield package, labels["framework_version"], "label framework_version"
    version = labels.get("com.nvidia.cudnn.version", "")
    yield "cudnn", version, "label com.nvidia.cudnn.version"


def _of_history(history: Iterable[str]) -> Iterable[tuple[str, str, str]]:
    """What the last stage's instructions installed by name; the last one wins, as it did in the image."""
    for line in reversed(list(history)):
        for installed in _INSTALLS.findall(line):
            for package, version in _INSTALLED.findall(installed):
                yield package, version, "history"
        argument = _ARGUMENT.search(line)
        if argument is not None:
            yield "python", argument[1], "history"


def _of_name(reference: str) -> Iterable[tuple[str, str, str]]:
    said = named(reference)
    for name in TOLD:
        yield name, getattr(said, name), NAMED
    for package, version in said.frameworks.items():
        yield package, version, NAMED


def _words(value: Any) -> tuple[str, ...]:
    if isinstance(value, str):
        return (value,)
    return tuple(str(word) for word in value or ())
