"""What an image's reference says by itself: its parts, and what well-known families write into their tags. Pure.

A tag is what its publisher says of an image; what the image's configuration says goes before it (`merge_facts`). The
families, with the page of each:

    pytorch/pytorch:2.4.0-cuda12.4-cudnn9-runtime                      https://hub.docker.com/r/pytorch/pytorch/tags
    nvidia/cuda:12.4.1-cudnn-devel-ubuntu22.04                         https://hub.docker.com/r/nvidia/cuda
    nvcr.io/nvidia/pytorch:25.03-py3                                   https://docs.nvidia.com/deeplearning/frameworks
    ACCOUNT.dkr.ecr.REGION.amazonaws.com/pytorch-training:2.4.0-gpu-py311-cu124-ubuntu22.04-ec2
                                                                       https://github.com/aws/deep-learning-containers
    us-docker.pkg.dev/deeplearning-platform-release/gcr.io/pytorch-cu124.2-4.py310
                                                       https://cloud.google.com/deep-learning-containers/docs/choosing
    mcr.microsoft.com/aifx/acpt/stable-ubuntu2204-cu124-py310-torch250
    mcr.microsoft.com/azureml/openmpi4.1.0-cuda11.8-cudnn8-ubuntu22.04     https://github.com/Azure/AzureML-Containers
    tensorflow/tensorflow:2.17.0-gpu                             https://hub.docker.com/r/tensorflow/tensorflow/tags
    rocm/pytorch:rocm6.2_ubuntu22.04_py3.10_pytorch_release_2.3.0           https://hub.docker.com/r/rocm/pytorch/tags
    rayproject/ray:2.44.0-py311-cu124                        https://docs.ray.io/en/latest/ray-overview/installation.html
    python:3.11-slim, ubuntu, debian, condaforge/miniforge3 and their like: without any accelerator's libraries
"""

from __future__ import annotations

import re
from typing import Any, Callable, Final, Mapping, Sequence

import attrs

from stoker.core.imagefacts import ImageFacts

HUB: Final = "docker.io"
MOVING: Final = frozenset({"", "latest", "stable", "nightly", "main", "master", "dev", "devel", "edge", "lts"})
"""Tags that are made to be moved from image to image; none at all stands for "latest"."""

# nvidia's release notes and https://github.com/triton-inference-server/server/blob/main/docs/introduction/compatibility.md
# give the CUDA of each monthly release of NGC's images.
_NGC: Final[Mapping[str, str]] = {
    "26.07": "13.3.0",
    "26.06": "13.3.0",
    "26.05": "13.2.1",
    "26.04": "13.2.1",
    "26.03": "13.2.0",
    "26.02": "13.1.1",
    "26.01": "13.1.1",
    "25.12": "13.1.0",
    "25.11": "13.0.2",
    "25.10": "13.0.2",
    "25.09": "13.0.1",
    "25.06": "12.9.1",
    "25.05": "12.9.0",
    "25.04": "12.9.0",
    "25.03": "12.8.1",
    "25.02": "12.8.0",
    "25.01": "12.8.0",
    "24.12": "12.6.3",
    "24.11": "12.6.3",
    "24.10": "12.6.2",
    "24.09": "12.6.1",
    "24.08": "12.6.0",
    "24.07": "12.5.1",
    "24.06": "12.5.0",
    "24.05": "12.4.1",
    "24.04": "12.4.1",
}

# https://www.tensorflow.org/install/source#gpu, the tested build configurations.
TENSORFLOW_CUDA: Final[Mapping[tuple[int, int], tuple[int, int]]] = {
    (2, 10): (11, 2),
    (2, 11): (11, 2),
    (2, 12): (11, 8),
    (2, 13): (11, 8),
    (2, 14): (11, 8),
    (2, 15): (12, 2),
    (2, 16): (12, 3),
    (2, 17): (12, 3),
    (2, 18): (12, 5),
    (2, 19): (12, 5),
    (2, 20): (12, 5),
    (2, 21): (12, 5),
}
"""release of TensorFlow → the CUDA that it is built for"""

PLAIN: Final = frozenset(
    [
        "alpine",
        "amazonlinux",
        "almalinux",
        "busybox",
        "continuumio/anaconda3",
        "continuumio/miniconda3",
        "condaforge/mambaforge",
        "condaforge/miniforge3",
        "debian",
        "fedora",
        "mambaorg/micromamba",
        "python",
        "pypy",
        "redhat/ubi8",
        "redhat/ubi9",
        "rockylinux",
        "ubuntu",
    ]
)
"""Repositories whose images hold an operating system or Python, and no accelerator's libraries"""


@attrs.frozen(kw_only=True)
class Reference:
    """The parts of a reference, with Docker's own defaults written out: "python:3" is docker.io/library/python:3."""

    registry: str
    repository: str
    tag: str = ""
    digest: str = ""

    @property
    def name(self) -> str:
        """Registry and repository as a person writes them: without Docker Hub's own words."""
        if self.registry == HUB:
            return self.repository.removeprefix("library/")
        return f"{self.registry}/{self.repository}"

    @property
    def pinned(self) -> bool:
        """Whether the reference stands for one image for ever."""
        return bool(self.digest)

    @property
    def moving(self) -> bool:
        """Whether the tag is one that is made to be moved to newer images."""
        return not self.digest and self.tag.lower() in MOVING


def parse(reference: str) -> Reference | None:
    """The parts of a reference; None for a text that is none.

    https://github.com/distribution/reference/blob/main/reference.go: the first part is a registry if it has a dot or a
    colon, or is "localhost".
    """
    undigested, _, digest = reference.strip().partition("@")
    head, slash, tail = undigested.partition("/")
    registry, path = (head, tail) if slash and (re.search(r"[.:]", head) or head == "localhost") else (HUB, undigested)
    if registry in ("index.docker.io", "registry-1.docker.io"):
        registry = HUB
    match = re.fullmatch(r"([a-z0-9]+(?:(?:\.|_|__|-+|/)[a-z0-9]+)*)(?::([\w][\w.-]{0,127}))?", path)
    if match is None or (digest and not re.fullmatch(r"[a-z0-9]+(?:[+._-][a-z0-9]+)*:[0-9a-fA-F]{32,}", digest)):
        return None
    repository = match[1] if registry != HUB or "/" in match[1] else f"library/{match[1]}"
    return Reference(registry=registry, repository=repository, tag=match[2] or "", digest=digest)


def facts_of_name(reference: str) -> ImageFacts:
    """What a reference's own words say of the image; nothing where its family is not known."""
    parts = parse(reference)
    facts = ImageFacts(reference=reference, base="name")
    if parts is None:
        return facts
    facts = attrs.evolve(facts, digest=parts.digest)
    text = f"{parts.name}:{parts.tag}" if parts.tag else parts.name
    for pattern, read in _FAMILIES:
        match = re.fullmatch(pattern, text)
        if match is not None:
            return attrs.evolve(facts, **read({name: value for name, value in match.groupdict().items() if value}))
    return facts


def is_plain(reference: str) -> bool:
    """Whether an image is of a family that holds no accelerator's libraries."""
    parts = parse(reference)
    return parts is not None and parts.registry in _MIRRORS and _hub_name(parts) in PLAIN


def merge_facts(facts: ImageFacts | None, reference: str) -> ImageFacts:
    """All facts of an image: those of its configuration, completed by those of its name."""
    words = facts_of_name(reference)
    if facts is None:
        return words
    frameworks = {**words.frameworks, **facts.frameworks}
    filled = {
        name: getattr(facts, name) or getattr(words, name)
        for name in ("digest", "cuda", "cudnn", "python", "rocm", "neuron", "architectures")
    }
    return attrs.evolve(facts, frameworks=frameworks, **filled)


def cuda_of_tag(digits: str) -> str:
    """`"124"` as `"12.4"`, `"118"` as `"11.8"`: a tag's CUDA has two digits for its first number since CUDA 10."""
    return f"{digits[:2]}.{digits[2:]}" if len(digits) > 2 else digits


def python_of_tag(digits: str) -> str:
    """`"311"` as `"3.11"`; with a dot it stays as it is."""
    return digits if "." in digits or len(digits) < 2 else f"{digits[0]}.{digits[1:]}"


# Registries that carry copies of Docker Hub's official images under the same names.
_MIRRORS: Final = (HUB, "public.ecr.aws", "mirror.gcr.io", "quay.io", "ghcr.io")


def _hub_name(parts: Reference) -> str:
    return parts.repository.removeprefix("docker/").removeprefix("library/")


def _torch(words: Mapping[str, str]) -> dict[str, Any]:
    cuda = words["cuda"]
    local = f"+cu{cuda.replace('.', '')}"
    return {"cuda": cuda, "cudnn": words["cudnn"], "frameworks": {"torch": words["torch"] + local}}


def _cuda(words: Mapping[str, str]) -> dict[str, Any]:
    return {name: words[name] for name in ("cuda", "cudnn") if name in words}


def _ngc(words: Mapping[str, str]) -> dict[str, Any]:
    return {"cuda": _NGC.get(words["release"], "")}


def _aws(words: Mapping[str, str]) -> dict[str, Any]:
    framework = words["repo"].partition("-")[0].replace("pytorch", "torch")
    facts: dict[str, Any] = {"python": python_of_tag(words.get("py", ""))}
    kind = words["acc"]
    if kind.startswith("neuron"):
        facts["neuron"] = words.get("sdk", "?")
    if "cu" in words:
        facts["cuda"] = cuda_of_tag(words["cu"])
    if framework in ("torch", "tensorflow"):
        # AWS builds TensorFlow itself; its PyTorch has a local version only of what its own index serves.
        local = "+cpu" if framework == "torch" and kind == "cpu" else ""
        local = f"+cu{words['cu']}" if framework == "torch" and "cu" in words else local
        facts["frameworks"] = {framework: words["ver"] + local}
    return facts


def _google(words: Mapping[str, str]) -> dict[str, Any]:
    facts: dict[str, Any] = {}
    if "cu" in words:
        facts["cuda"] = cuda_of_tag(words["cu"])
    if "py" in words:
        facts["python"] = python_of_tag(words["py"])
    return facts


def _acpt(words: Mapping[str, str]) -> dict[str, Any]:
    digits = words["torch"]
    release = ".".join(digits) if len(digits) == 3 else f"{digits[0]}.{digits[1:]}"
    local = f"+cu{words['cu']}"
    return {
        "cuda": cuda_of_tag(words["cu"]),
        "python": python_of_tag(words["py"]),
        "frameworks": {"torch": release + local},
    }


def _tensorflow(words: Mapping[str, str]) -> dict[str, Any]:
    version = words["ver"]
    major, minor = (int(part) for part in version.split(".")[:2])
    cuda = TENSORFLOW_CUDA.get((major, minor)) if "gpu" in words else None
    return {
        "frameworks": {"tensorflow": version},
        "cuda": f"{cuda[0]}.{cuda[1]}" if cuda else "",
    }


def _rocm(words: Mapping[str, str]) -> dict[str, Any]:
    frameworks = {"torch": f"{words['torch']}+rocm{words['rocm']}"} if "torch" in words else {}
    return {"rocm": words["rocm"], "python": words.get("py", ""), "frameworks": frameworks}


def _ray(words: Mapping[str, str]) -> dict[str, Any]:
    return {
        "cuda": cuda_of_tag(words["cu"]) if "cu" in words else "",
        "python": python_of_tag(words.get("py", "")),
        "frameworks": {"ray": words["ray"]},
    }


def _python(words: Mapping[str, str]) -> dict[str, Any]:
    return {"python": words.get("py", "")}


_FAMILIES: Final[Sequence[tuple[str, Callable[[Mapping[str, str]], dict[str, Any]]]]] = (
    (
        r"pytorch/pytorch:(?P<torch>\d+\.\d+(?:\.\d+)?)-cuda(?P<cuda>\d+\.\d+)-cudnn(?P<cudnn>\d+)-(?:runtime|devel)",
        _torch,
    ),
    (
        (
            r"(?:nvcr\.io/)?nvidia/cuda:(?P<cuda>\d+\.\d+(?:\.\d+)?)(?:-cudnn(?P<cudnn>\d+)?)?"
            r"-(?:base|runtime|devel)(?:-[a-z]+[\d.]+)?"
        ),
        _cuda,
    ),
    (
        (
            r"nvcr\.io/nvidia/(?:pytorch|tensorflow|jax|cuda-dl-base|tritonserver|nemo|pyg|dgl):"
            r"(?P<release>\d{2}\.\d{2})[\w.-]*"
        ),
        _ngc,
    ),
    (
        (
            r"(?:\d{12}\.dkr\.ecr\.[\w-]+\.amazonaws\.com(?:\.cn)?|public\.ecr\.aws/deep-learning-containers)/"
            r"(?P<repo>[\w-]+):(?P<ver>\d+\.\d+(?:\.\d+)?)(?:-transformers[\d.]+)?-(?P<acc>cpu|gpu|neuronx?)-py(?P<py>\d+)"
            r"(?:-cu(?P<cu>\d+))?(?:-sdk(?P<sdk>[\d.]+))?(?:-[a-z]+[\d.]+)?(?:-(?:ec2|sagemaker))?(?:-v[\d.-]+)?"
        ),
        _aws,
    ),
    (
        (
            r"(?:gcr\.io/deeplearning-platform-release|(?:us|europe|asia)-docker\.pkg\.dev/"
            r"deeplearning-platform-release/gcr\.io)/[a-z0-9]+-(?:cpu|gpu|cu(?P<cu>\d+))(?:\.\d+-\d+)?"
            r"(?:\.py(?P<py>\d+))?(?::[\w.-]+)?"
        ),
        _google,
    ),
    (
        r"mcr\.microsoft\.com/aifx/acpt/\w+-ubuntu\d{4}-cu(?P<cu>\d+)-py(?P<py>\d+)-torch(?P<torch>\d+)(?::[\w.-]+)?",
        _acpt,
    ),
    (
        (
            r"mcr\.microsoft\.com/azureml/openmpi[\d.]+-(?:cuda(?P<cuda>[\d.]+)-cudnn(?P<cudnn>\d+)-)?ubuntu[\d.]+"
            r"(?::[\w.-]+)?"
        ),
        _cuda,
    ),
    (r"tensorflow/tensorflow:(?P<ver>\d+\.\d+\.\d+)(?P<gpu>-gpu)?(?:-jupyter)?", _tensorflow),
    (
        (
            r"rocm/pytorch(?:-training|-nightly)?:rocm(?P<rocm>\d+\.\d+(?:\.\d+)?)_ubuntu[\d.]+_py(?P<py>[\d.]+)"
            r"_pytorch_(?:release_)?(?P<torch>\d+\.\d+\.\d+)"
        ),
        _rocm,
    ),
    (r"rocm/[\w-]+:(?:rocm)?(?P<rocm>\d+\.\d+(?:\.\d+)?)[\w.-]*", _rocm),
    (
        r"rayproject/ray(?:-ml|-llm)?:(?P<ray>\d+\.\d+\.\d+)(?:\.\w+)?(?:-py(?P<py>\d+))?(?:-(?:cu(?P<cu>\d+)|gpu))?",
        _ray,
    ),
    (r"(?:[\w.]+/(?:docker/)?(?:library/)?)?python:(?P<py>\d+\.\d+(?:\.\d+)?)(?:[a-z]\w*)?(?:-[\w.-]+)?", _python),
)
"""a pattern of registry, repository and tag, and what its words say of the image"""
