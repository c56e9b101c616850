"""Facts of an image, from its configuration, its layers and its name, with the source of each.

Nothing is guessed: a fact that neither states stays unknown. `registry` and `engine` read the configuration.
"""

from __future__ import annotations

import re
from typing import Any, Final, Iterable, Mapping

import attrs

from stoker.core.docker import ImageFacts
from stoker.core.imagenames import archs_of_list, cuda_of_tag, facts_of_name
from stoker.images.layers import ImageContents

FROM_NAME: Final = "name"
"""The source of a fact that only the image's name states."""
VERSION_FACTS: Final = ("cuda", "cudnn", "rocm", "neuron", "python")
"""Fields of `ImageFacts` that have a version, or are unknown."""


@attrs.frozen(kw_only=True)
class ImageInspection:
    """An image's facts, and where each was read."""

    facts: ImageFacts
    sources: Mapping[str, str]
    """Fact → its source: "env CUDA_VERSION", "label …", "history", "name"."""
    architecture: str = ""
    """The architecture of the image that the facts describe, which may be one of several of the reference."""
    folder: str = ""
    """The working directory."""
    created: str = ""
    """The time of the build, in ISO 8601."""
    layers: str = ""
    """What was done about its layers: "read", "read before", or why they were not read; empty if nobody asked."""


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


# https://github.com/containerd/platforms/blob/main/database.go
MACHINES: Final[Mapping[str, str]] = {
    **dict.fromkeys(("x86_64", "x86-64"), "amd64"),
    "aarch64": "arm64",
    **dict.fromkeys(("armhf", "armel", "armv6l", "armv7l"), "arm"),
    **dict.fromkeys(("i386", "i486", "i586", "i686"), "386"),
}
"""What `uname -m` and others call a processor → what images call it."""
# `go tool dist list` of Go 1.25, which the image specification refers to; those of Linux.
ARCHITECTURES: Final = frozenset(
    "386 amd64 arm arm64 loong64 mips mips64 mips64le mipsle ppc64 ppc64le riscv64 s390x wasm".split()  # noqa: SIM905
)
_CREATED: Final = re.compile(r"(?P<year>[0-9]{4})-[0-9]{2}-[0-9]{2}[Tt][0-9]{2}:[0-9]{2}:[0-9]{2}.*")
_FIRST_YEAR: Final = 2013
"""The year of the first images: an earlier time is Go's zero time (0001), or that of builds that hide theirs (1970)."""


def architecture_of(word: object) -> str:
    """A processor as images call it; empty for what is none."""
    name = MACHINES.get(str(word).lower(), str(word).lower())
    return name if name in ARCHITECTURES else ""


def created_of(word: object) -> str:
    """When an image was made, in ISO 8601; empty where that is not said."""
    match = _CREATED.fullmatch(word) if isinstance(word, str) else None
    return match[0] if match is not None and int(match["year"]) >= _FIRST_YEAR else ""


def read(
    reference: str,
    config: Mapping[str, Any],
    *,
    digest: str = "",
    architectures: Iterable[str] = (),
    size: int | None = None,
    base: str = "registry",
) -> ImageInspection:
    """The facts in an image's configuration and its name.

    `config` is the document that registries keep (https://github.com/opencontainers/image-spec/blob/main/config.md);
    an engine's answer is converted to it first.
    """
    inner = config.get("config") or {}
    env = dict(text.partition("=")[::2] for text in inner.get("Env") or () if "=" in text)
    labels = {str(name): str(value) for name, value in (inner.get("Labels") or {}).items()}
    history = [str(entry.get("created_by", "")) for entry in config.get("history") or ()]
    values: dict[str, tuple[str, str]] = {}
    for name, told, source in (
        *_env_facts(env),
        *_label_facts(labels),
        *_history_facts(history),
        *_name_facts(reference),
    ):
        if told:
            values.setdefault(name, (told, source))
    local = re.search(r"\+cu(\d{3})\b", values.get("torch", ("", ""))[0])
    if local is not None:
        values.setdefault("cuda", (cuda_of_tag(local[1]), values["torch"][1]))

    def value(name: str) -> str:
        return values.get(name, ("", ""))[0]

    architecture = architecture_of(config.get("architecture"))
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
        frameworks={name: version for name, (version, _) in sorted(values.items()) if name not in VERSION_FACTS},
        entrypoint=_words(inner.get("Entrypoint")),
        command=_words(inner.get("Cmd")),
        user=str(inner.get("User") or ""),
        base=base,
        archs=archs_of_list(env.get("TORCH_CUDA_ARCH_LIST", "")) if "NVIDIA_PYTORCH_VERSION" in env else (),
        unknown=tuple(name for name in VERSION_FACTS if name not in values),
    )
    return ImageInspection(
        facts=facts,
        sources={name: source for name, (_, source) in sorted(values.items())},
        architecture=architecture,
        folder=str(inner.get("WorkingDir") or ""),
        created=created_of(config.get("created")),
    )


FRAMEWORKS: Final = frozenset(
    """accelerate cupy-cuda11x cupy-cuda12x cupy-cuda13x deepspeed flax jax jaxlib keras onnxruntime onnxruntime-gpu
    paddlepaddle paddlepaddle-gpu ray tensorflow tensorflow-rocm torch transformers vllm""".split()  # noqa: SIM905
)
"""Distributions that are shown, and named in `ImageFacts.frameworks`, if they are in an image's layers."""
FROM_LAYERS: Final = "its layers"
"""The source of a fact that the layers state."""


def with_contents(inspection: ImageInspection, contents: ImageContents, done: str) -> ImageInspection:
    """The inspection with what the layers hold, which replaces what history and name say of installed packages."""
    facts, sources = inspection.facts, dict(inspection.sources)
    frameworks = {name: version for name, version in contents.distributions.items() if name in FRAMEWORKS}
    if "tensorflow" not in frameworks and "tensorflow-cpu" in contents.distributions:
        frameworks["tensorflow"] = contents.distributions["tensorflow-cpu"] + "+cpu"
    for name in (*facts.frameworks, *frameworks):
        sources.pop(name, None)
    sources |= dict.fromkeys(frameworks, FROM_LAYERS)
    values = {name: str(getattr(facts, name)) for name in VERSION_FACTS}
    for name, found in (
        ("cuda", contents.cuda),
        ("cudnn", contents.cudnn),
        ("rocm", contents.rocm),
        ("python", contents.python),
    ):
        # The environment is more exact where both agree; a name goes after what is really there.
        agrees = not found or values[name] == found or values[name].startswith(f"{found}.")
        if not agrees and (not values[name] or name == "python" or sources.get(name) == FROM_NAME):
            values[name], sources[name] = found, FROM_LAYERS
    facts = attrs.evolve(
        facts,
        cuda=values["cuda"],
        cudnn=values["cudnn"],
        rocm=values["rocm"],
        python=values["python"],
        distributions=contents.distributions,
        frameworks=frameworks,
        libc=contents.libc or facts.libc,
        unknown=tuple(name for name in VERSION_FACTS if not values[name]),
    )
    return attrs.evolve(inspection, facts=facts, sources=sources, layers=done)


def _env_facts(env: Mapping[str, str]) -> Iterable[tuple[str, str, str]]:
    for name, variable in _VARIABLES:
        match = _VERSION.match(env.get(variable, ""))
        if match is not None:
            # Debian's revisions: 9.1.0.70-1 is cuDNN 9.1.0.70.
            yield name, match[0].partition("-")[0], f"env {variable}"


def _label_facts(labels: Mapping[str, str]) -> Iterable[tuple[str, str, str]]:
    # org.opencontainers.image.version is not read: images inherit it from Ubuntu's, whose version it then is.
    package = _LABEL_FRAMEWORKS.get(labels.get("framework", "").lower())
    for name, label in ((package, "framework_version"), ("cudnn", "com.nvidia.cudnn.version")):
        match = _VERSION.fullmatch(labels.get(label, ""))
        if name and match is not None:
            yield name, match[0], f"label {label}"


def _history_facts(history: Iterable[str]) -> Iterable[tuple[str, str, str]]:
    """The packages that the last stage's instructions installed by name, the last instruction first."""
    for line in reversed(list(history)):
        for installed in _INSTALLS.findall(line):
            for package, version in _INSTALLED.findall(installed):
                yield package, version, "history"
        argument = _ARGUMENT.search(line)
        if argument is not None:
            yield "python", argument[1], "history"


def _name_facts(reference: str) -> Iterable[tuple[str, str, str]]:
    facts = facts_of_name(reference)
    for name in VERSION_FACTS:
        yield name, getattr(facts, name), FROM_NAME
    for package, version in facts.frameworks.items():
        yield package, version, FROM_NAME


def _words(value: Any) -> tuple[str, ...]:
    if isinstance(value, str):
        return (value,)
    return tuple(str(word) for word in value or ())
