"""What an image's reference says by itself: its parts, and what well-known families write into their tags. Pure.

A tag is what its publisher says of an image; what the image's configuration says goes before it (`merge_facts`). The
families and the page of each stand in `imagenames.ini`. What a publisher puts into each release stands there, too, or
in the tables at the end, by the part of a tag that decides; a release that is not there is unknown.
"""

from __future__ import annotations

import functools
import re
from typing import Any, Callable, Final, Mapping, NamedTuple, Sequence

import attrs

from stoker.core.docker import ImageFacts

HUB: Final = "docker.io"
ECR_HOST: Final = (
    r"(?P<account>\d+)\.dkr[.-]ecr(?:-fips)?\.(?P<region>[\w-]+)\.(?:amazonaws\.(?:com(?:\.cn)?|eu)"
    r"|on\.(?:aws|amazonwebservices\.com\.cn)|sc2s\.sgov\.gov|c2s\.ic\.gov|cloud\.adc-e\.uk|csp\.hci\.ic\.gov)"
)
"""The host of a registry of Amazon's: by each suffix of botocore's partitions, for FIPS, and for both families of
addresses (https://docs.aws.amazon.com/AmazonECR/latest/userguide/ecr-requests.html)."""
MOVING: Final = frozenset({"", "latest", "stable", "nightly", "main", "master", "dev", "devel", "edge", "lts"})
"""Tags that are made to be moved from image to image; none at all stands for "latest"."""

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
    for family in families():
        match = re.fullmatch(family.pattern, text)
        if match is not None:
            words = {name: value for name, value in match.groupdict().items() if value is not None}
            facts = attrs.evolve(facts, **family.read(words))
            break
    if is_plain(reference) and not facts.libc:
        facts = attrs.evolve(facts, libc="musl" if _MUSL.search(text) else "glibc")
    return facts


def is_plain(reference: str) -> bool:
    """Whether an image is of a family that holds no accelerator's libraries."""
    parts = parse(reference)
    return parts is not None and parts.registry in _MIRRORS and _hub_name(parts) in PLAIN


def is_for_arm(reference: str) -> bool:
    """Whether an image is of a family that is made for x86_64 and for ARM (arm64) under the same names."""
    parts = parse(reference)
    return parts is not None and parts.registry in _MIRRORS and _hub_name(parts) in _FOR_ARM


def has_no_gate(reference: str) -> bool:
    """Whether an image is of a family whose configuration has no NVIDIA_REQUIRE_CUDA, since its parent has none."""
    parts = parse(reference)
    if parts is None:
        return False
    return is_plain(reference) or (parts.name == "pytorch/pytorch" and parts.tag.endswith("-runtime"))


def has_known_name(reference: str) -> bool:
    """Whether the name says what its publisher puts into the image."""
    parts = parse(reference)
    text = "" if parts is None else f"{parts.name}:{parts.tag}" if parts.tag else parts.name
    return any(re.fullmatch(family.pattern, text) for family in families())


def merge_facts(facts: ImageFacts | None, reference: str) -> ImageFacts:
    """All facts of an image: those of its configuration, completed by those of its name."""
    words = facts_of_name(reference)
    if facts is None:
        return words
    # What was read of the layers is all that there is.
    frameworks = facts.frameworks if facts.distributions is not None else {**words.frameworks, **facts.frameworks}
    filled = {
        name: getattr(facts, name) or getattr(words, name)
        for name in ("digest", "cuda", "cudnn", "python", "rocm", "neuron", "architectures", "libc", "archs")
    }
    return attrs.evolve(facts, frameworks=frameworks, **filled)


def cuda_of_tag(digits: str) -> str:
    """`"124"` as `"12.4"`, `"118"` as `"11.8"`: a tag's CUDA has two digits for its first number since CUDA 10."""
    return f"{digits[:2]}.{digits[2:]}" if len(digits) > 2 else digits


def python_of_tag(digits: str) -> str:
    """`"311"` as `"3.11"`; with a dot it stays as it is."""
    return digits if "." in digits or len(digits) < 2 else f"{digits[0]}.{digits[1:]}"


# The row "Supported architectures" of each repository's page: https://hub.docker.com/_/python.
_FOR_ARM: Final = frozenset({"alpine", "amazonlinux", "debian", "fedora", "pypy", "python", "rockylinux", "ubuntu"})

# Registries that carry copies of Docker Hub's official images under the same names.
_MIRRORS: Final = (HUB, "public.ecr.aws", "mirror.gcr.io", "quay.io", "ghcr.io")


def _hub_name(parts: Reference) -> str:
    return parts.repository.removeprefix("docker/").removeprefix("library/")


# Alpine's C library: https://wiki.musl-libc.org/projects-using-musl.html. Its images, and those of others on top of it,
# have the word in their name.
_MUSL: Final = re.compile(r"alpine")


def _torch(words: Mapping[str, str]) -> dict[str, Any]:
    cuda = words["cuda"]
    local = f"+cu{cuda.replace('.', '')}"
    return {"cuda": cuda, "cudnn": words["cudnn"], "frameworks": {"torch": words["torch"] + local}, "libc": "glibc"}


def _cuda(words: Mapping[str, str]) -> dict[str, Any]:
    facts = {name: words[name] for name in ("cuda", "cudnn") if words.get(name)}
    if "cudnn" in words and not words["cudnn"]:
        facts["cudnn"] = "9"  # the tags name the number up to 8 and of the first images with 9
    return facts


def _ngc(words: Mapping[str, str]) -> dict[str, Any]:
    release = words["release"]
    row = ngc_releases().get(release)
    facts: dict[str, Any] = {"cuda": row.cuda if row is not None else "", "libc": "glibc"}
    facts["env"] = {"NVIDIA_REQUIRE_CUDA": NGC_GATE}
    if words["repo"] == "pytorch":
        facts["python"] = ngc_python(release)
        if "-igpu" in words["rest"]:
            facts["architectures"] = ("arm64",)  # for Jetson
        elif row is not None and row.torch:
            facts["frameworks"] = {"torch": row.torch}
            facts["archs"] = ngc_archs(release)
    return facts


def _aws(words: Mapping[str, str]) -> dict[str, Any]:
    repository = words["repo"]
    facts: dict[str, Any] = {"python": python_of_tag(words.get("py", "")), "libc": "glibc"}
    kind = words.get("acc", "")
    if kind.startswith("neuron"):
        facts["neuron"] = words.get("sdk", "?")
    if "cu" in words:
        facts["cuda"] = cuda_of_tag(words["cu"])
    if repository.endswith("-arm64"):
        facts["architectures"] = ("arm64",)
    frameworks: dict[str, str] = {}
    # AWS builds TensorFlow itself; its PyTorch has a local version only of what its own index serves.
    cuda_build = f"+cu{words['cu']}" if "cu" in words else ""
    if "pytorch" in repository:
        frameworks["torch"] = words["ver"] + ("+cpu" if kind == "cpu" else cuda_build)
    elif "tensorflow" in repository:
        frameworks["tensorflow"] = words["ver"] + ("+cpu" if kind == "cpu" else "")
    elif repository == "vllm":
        frameworks["vllm"] = words["ver"]
    if frameworks and "transformers" in words:
        frameworks["transformers"] = words["transformers"]
    if frameworks:
        facts["frameworks"] = frameworks
    return facts


def _google(words: Mapping[str, str]) -> dict[str, Any]:
    facts: dict[str, Any] = {"python": python_of_tag(words.get("py", "")), "libc": "glibc"}
    version = words.get("ver", "").replace("-", ".")
    suffix = "+cpu" if words["acc"] == "cpu" else ""
    if "cu" in words:
        facts["cuda"], suffix = cuda_of_tag(words["cu"]), f"+cu{words['cu']}"
    if version and words["framework"] == "pytorch":
        facts["frameworks"] = {"torch": version + suffix}
    elif version and words["framework"] in ("tf", "tf2"):
        facts["frameworks"] = {"tensorflow": version + ("+cpu" if suffix == "+cpu" else "")}
        if words["acc"] == "gpu":
            facts["cuda"] = _tensorflow_cuda(version)
    return facts


def _acpt(words: Mapping[str, str]) -> dict[str, Any]:
    digits = words["torch"]
    release = ".".join(digits) if len(digits) == 3 else f"{digits[0]}.{digits[1:]}"
    local = f"+cu{words['cu']}"
    return {
        "cuda": cuda_of_tag(words["cu"]),
        "python": python_of_tag(words["py"]),
        "frameworks": {"torch": release + local},
        "libc": "glibc",
    }


def _curated(words: Mapping[str, str]) -> dict[str, Any]:
    cuda = words["cuda"]
    return {"cuda": cuda, "frameworks": {"torch": f"{words['torch']}+cu{cuda.replace('.', '')}"}, "libc": "glibc"}


def _tensorflow(words: Mapping[str, str]) -> dict[str, Any]:
    version = words["ver"]
    if "gpu" not in words:
        # The tags without it have the package tensorflow-cpu.
        return {"frameworks": {"tensorflow": f"{version}+cpu"}, "libc": "glibc"}
    return {"frameworks": {"tensorflow": version}, "cuda": _tensorflow_cuda(version), "libc": "glibc"}


def _tensorflow_cuda(version: str) -> str:
    major, minor = (int(part) for part in version.split(".")[:2])
    cuda = TENSORFLOW_CUDA.get((major, minor))
    return f"{cuda[0]}.{cuda[1]}" if cuda else ""


def _rocm(words: Mapping[str, str]) -> dict[str, Any]:
    frameworks = {}
    if "torch" in words:
        frameworks["torch"] = f"{words['torch']}+rocm{words['rocm']}"
    if "tf" in words:
        frameworks["tensorflow-rocm"] = words["tf"]
    return {"rocm": words["rocm"], "python": words.get("py", ""), "frameworks": frameworks, "libc": "glibc"}


def _ray(words: Mapping[str, str]) -> dict[str, Any]:
    return {
        "cuda": cuda_of_tag(words["cu"]) if "cu" in words else "",
        "python": python_of_tag(words.get("py", "")),
        "frameworks": {"ray": words["ray"]},
        "libc": "glibc",
        "architectures": ("arm64",) if "arm" in words else (),
    }


def _vllm(words: Mapping[str, str]) -> dict[str, Any]:
    version = words["ver"]
    major, minor, patch = (int(part) for part in version.split("."))
    row = vllm_release((major, minor, patch))
    frameworks = {"vllm": version}
    if row is not None:
        frameworks["torch"] = row.torch
    return {"cuda": row.cuda if row is not None else "", "frameworks": frameworks, "libc": "glibc"}


def _mosaic(words: Mapping[str, str]) -> dict[str, Any]:
    cuda = cuda_of_tag(words["cu"]) if "cu" in words else ""
    local = f"+cu{words['cu']}" if "cu" in words else "+cpu"
    return {
        "cuda": cuda,
        "python": words["py"],
        "frameworks": {"torch": words["torch"] + local},
        "libc": "glibc",
    }


def _embeddings(words: Mapping[str, str]) -> dict[str, Any]:
    return {
        "frameworks": {"text-embeddings-inference": words["ver"]},
        "archs": (TEXT_EMBEDDINGS[words["chip"]],),
        "architectures": ("amd64",),
        "libc": "glibc",
    }


def _l4t(words: Mapping[str, str]) -> dict[str, Any]:
    row = l4t_release(words["l4t"])
    frameworks = {name: words[word] for name, word in (("torch", "torch"), ("tensorflow", "tf")) if words.get(word)}
    return {
        "cuda": row.cuda if row is not None else "",
        "archs": row.archs if row is not None and frameworks else (),
        "frameworks": frameworks,
        "architectures": ("arm64",),
        "libc": "glibc",
    }


def _cupy(words: Mapping[str, str]) -> dict[str, Any]:
    return {"frameworks": {"cupy": words["ver"]}, "libc": "glibc"}


def _conda(words: Mapping[str, str]) -> dict[str, Any]:
    return {"python": python_of_tag(words.get("py", ""))}


def _python(words: Mapping[str, str]) -> dict[str, Any]:
    return {"python": words.get("py", "")}


class _Family(NamedTuple):
    """Images that one publisher names by one pattern."""

    pattern: str
    """Of registry, repository and tag."""
    read: Callable[[Mapping[str, str]], dict[str, Any]]
    """Fields of `ImageFacts` from the pattern's words."""
    source: str
    """Where its tags are described or listed."""


_READERS: Final = {
    read.__name__.removeprefix("_"): read
    for read in (
        *(_torch, _cuda, _ngc, _aws, _google, _acpt, _curated, _tensorflow, _rocm, _ray, _vllm, _mosaic, _embeddings),
        *(_l4t, _cupy, _conda, _python),
    )
}


@functools.cache
def _table() -> Mapping[str, Mapping[str, str]]:
    """The sections of `imagenames.ini`; read when the name of an image is first asked about."""
    import configparser  # it takes milliseconds, and few runs have an image

    table = configparser.ConfigParser(interpolation=None, delimiters=("=",))
    with open(f"{__file__.rpartition('.')[0]}.ini", encoding="utf-8") as file:
        table.read_file(file)
    return table


@functools.cache
def families() -> Sequence[_Family]:
    """Families of images; the first whose pattern fits an image's name is asked."""
    return [
        _Family(row["pattern"].replace("\n", ""), _READERS[name.split()[0]], row["source"])
        for name, row in _table().items()
        if "pattern" in row
    ]


class NgcRelease(NamedTuple):
    """One month's images of nvcr.io/nvidia."""

    cuda: str
    torch: str = ""
    """The release of nvcr.io/nvidia/pytorch's torch, which NVIDIA builds itself from a commit of its own."""


@functools.cache
def ngc_releases() -> Mapping[str, NgcRelease]:
    """month → its images"""
    return {month: NgcRelease(*facts.split()) for month, facts in _table()["table ngc"].items()}


NGC_GATE: Final = "cuda>=9.0"
"""NVIDIA_REQUIRE_CUDA of all of them, whatever their CUDA; their start looks at the driver and prints what it finds."""

# TORCH_CUDA_ARCH_LIST of nvcr.io/nvidia/pytorch's configuration, for which its torch was built. From 25.08 on the
# images for arm64 have another list than those for amd64, which is not known by a name.
NGC_TORCH_ARCHS: Final[Sequence[tuple[str, str, str]]] = (
    ("23.06", "24.12", "5.2 6.0 6.1 7.0 7.2 7.5 8.0 8.6 8.7 9.0+PTX"),
    ("25.01", "26.03", "7.5 8.0 8.6 9.0 10.0 12.0+PTX"),
)
"""First and last month, and the list."""

# "Contents" of the release notes above; months in which the release of Ubuntu changed are left out.
NGC_PYTHONS: Final[Sequence[tuple[str, str, str]]] = (
    ("23.06", "24.09", "3.10"),
    ("24.12", "26.03", "3.12"),
)
"""First and last month, and the Python."""


class VllmRelease(NamedTuple):
    """The images vllm/vllm-openai of some releases."""

    cuda: str
    """That of the image, nvidia/cuda, whose NVIDIA_REQUIRE_CUDA the driver must satisfy."""
    torch: str


class L4tRelease(NamedTuple):
    """Jetson Linux, which its images are made for."""

    cuda: str
    archs: tuple[str, ...]
    """The chips of the modules that it runs on."""


# JetPack's release notes: https://developer.nvidia.com/embedded/jetpack-archive
L4T: Final[Mapping[str, L4tRelease]] = {
    "32": L4tRelease("10.2", ("sm_53", "sm_62", "sm_72")),
    "34": L4tRelease("11.4", ("sm_72", "sm_87")),
    "35": L4tRelease("11.4", ("sm_72", "sm_87")),
    "36.2": L4tRelease("12.2", ("sm_87",)),
    "36.3": L4tRelease("12.2", ("sm_87",)),
    "36.4": L4tRelease("12.6", ("sm_87",)),
}
"""The first numbers of a release → its row."""

# https://huggingface.co/docs/text-embeddings-inference/supported_models#supported-hardware
TEXT_EMBEDDINGS: Final[Mapping[str, str]] = {
    "turing-": "sm_75",
    "": "sm_80",
    "86-": "sm_86",
    "89-": "sm_89",
    "hopper-": "sm_90",
}
"""The beginning of the tag → the chip that the image was built for."""


def ngc_archs(release: str) -> tuple[str, ...]:
    """The chips that the torch of a month's nvcr.io/nvidia/pytorch for amd64 has code for; none if not known."""
    for first, last, listed in NGC_TORCH_ARCHS:
        if first <= release <= last:
            return archs_of_list(listed)
    return ()


def ngc_python(release: str) -> str:
    """The Python of a month's images; empty if not known."""
    return next((python for first, last, python in NGC_PYTHONS if first <= release <= last), "")


def vllm_release(version: tuple[int, int, int]) -> VllmRelease | None:
    """The row of a release of vLLM; None if not known."""
    for releases, facts in _table()["table vllm"].items():
        first, last = (tuple(map(int, release.split("."))) for release in releases.split())
        if first <= version <= last:
            return VllmRelease(*facts.split())
    return None


def l4t_release(version: str) -> L4tRelease | None:
    """The row of a release of Jetson Linux such as "35.2.1"; None if not known."""
    major, _, rest = version.partition(".")
    return L4T.get(f"{major}.{rest.partition('.')[0]}") or L4T.get(major)


def archs_of_list(listed: str) -> tuple[str, ...]:
    """`"8.0 9.0+PTX"`, as TORCH_CUDA_ARCH_LIST has it, as `("sm_80", "sm_90", "compute_90")`."""
    archs: list[str] = []
    for item in listed.replace(";", " ").split():
        number = item.removesuffix("+PTX").replace(".", "")
        if not number[:-1].isdecimal():
            return ()  # a name such as "Ampere"
        archs.append(f"sm_{number}")
        if item.endswith("+PTX"):
            archs.append(f"compute_{number}")
    return tuple(archs)
