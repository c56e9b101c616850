"""The builds of frameworks that a step's image will have, from its requirements and the image's contents. Pure.

What a plain `torch==2.13.0` brings depends on the index, the processor and the release; the tables list it.

Which torch the releases of other packages require is read from the Requires-Dist of each release's wheel. An installer
that is asked for one of them installs just that torch, also over one that the image has.
"""

from __future__ import annotations

import re
from typing import Final, Iterator, Literal, Mapping, Sequence

import attrs
from packaging.specifiers import SpecifierSet

from stoker.core.docker import ImageFacts
from stoker.core.imagenames import TENSORFLOW_CUDA, cuda_of_tag
from stoker.plan.requirements import Release, Requirement, Requirements, numbers, same_version, satisfies
from stoker.vendors.builds import Build, Version
from stoker.vendors.nvidia.builds import torch_archs

PINS_SOURCE: Final = "Requires-Dist in the metadata of its wheel"

VLLM_TORCH: Final[Sequence[tuple[str, str]]] = (
    (">=0.2.6,<0.4.1", "2.1.2"),
    ("==0.4.1", "2.2.1"),
    (">=0.4.2,<0.5.2", "2.3.0"),
    (">=0.5.2,<0.5.4", "2.3.1"),
    (">=0.5.4,<0.6.4", "2.4.0"),
    (">=0.6.4,<0.8", "2.5.1"),
    (">=0.8,<0.9", "2.6.0"),
    (">=0.9,<0.10", "2.7.0"),
    (">=0.10,<0.10.2", "2.7.1"),
    (">=0.10.2,<0.11.1", "2.8.0"),
    (">=0.11.1,<0.14", "2.9.0"),
    (">=0.14,<0.17", "2.9.1"),
    (">=0.17,<0.20", "2.10.0"),
    (">=0.20,<0.27", "2.11.0"),
    (">=0.27,<0.33", "2.13.0"),
    ("==0.33.0", "2.14.0"),
)
"""Releases of vLLM → the torch that they require."""
XFORMERS_TORCH: Final[Sequence[tuple[str, str]]] = (
    (">=0.0.20,<0.0.22.post1", "2.0.1"),
    ("==0.0.22.post7", "2.1.0"),
    ("==0.0.23", "2.1.1"),
    ("==0.0.23.post1", "2.1.2"),
    ("==0.0.24", "2.2.0"),
    ("==0.0.25", "2.2.1"),
    ("==0.0.25.post1", "2.2.2"),
    ("==0.0.26.post1", "2.3.0"),
    ("==0.0.27", "2.3.1"),
    (">=0.0.27.post1,<0.0.28", "2.4.0"),
    (">=0.0.28,<0.0.28.post2", "2.4.1"),
    ("==0.0.28.post2", "2.5.0"),
    (">=0.0.28.post3,<0.0.29.post2", "2.5.1"),
    (">=0.0.29.post2,<0.0.30", "2.6.0"),
    (">=0.0.30,<0.0.31", "2.7.0"),
    (">=0.0.31,<0.0.32", "2.7.1"),
    (">=0.0.32.post1,<0.0.33", "2.8.0"),
    (">=0.0.33,<0.0.33.post2", "2.9.0"),
    ("==0.0.33.post2", "2.9.1"),
    ("==0.0.34", "2.10.0"),
)
"""Releases of xFormers → the torch that they require."""
TORCH_PINS: Final[Mapping[str, Sequence[tuple[str, str]]]] = {"vllm": VLLM_TORCH, "xformers": XFORMERS_TORCH}
"""Distribution → its releases, as a specifier, and the one version of torch that they require."""


# The CUDA of the builds without a suffix, which the usual index serves for Linux on x86_64: Requires-Dist in the
# metadata of the wheels, https://github.com/pytorch/pytorch/blob/main/RELEASE.md#release-compatibility-matrix.
TORCH_DEFAULTS: Final[Sequence[tuple[Release, Release, Version]]] = (
    ((1, 4), (1, 4), (10, 1)),
    ((1, 5), (1, 12), (10, 2)),
    ((1, 13), (2, 0), (11, 7)),
    ((2, 1), (2, 4), (12, 1)),
    ((2, 5), (2, 6), (12, 4)),
    ((2, 7), (2, 7), (12, 6)),
    ((2, 8), (2, 10), (12, 8)),
    ((2, 11), (2, 14), (13, 0)),
    ((2, 15), (2, 15), (13, 2)),
)
"""First and last release of a range, and its CUDA."""
ARM_DEFAULTS_FROM: Final = (2, 11)
"""The first release whose wheels for aarch64 use CUDA; older ones require none of NVIDIA's packages there."""

# https://github.com/pytorch/pytorch/blob/main/RELEASE.md#release-compatibility-matrix; experimental ones count.
TORCH_PYTHONS: Final[Mapping[Release, tuple[Release, Release | None]]] = {
    (1, 4): ((3, 5), (3, 8)),
    (1, 5): ((3, 5), (3, 8)),
    (1, 6): ((3, 6), (3, 8)),
    (1, 7): ((3, 6), (3, 9)),
    (1, 8): ((3, 6), (3, 9)),
    (1, 9): ((3, 6), (3, 9)),
    (1, 10): ((3, 6), (3, 10)),
    (1, 11): ((3, 7), (3, 10)),
    (1, 12): ((3, 7), (3, 10)),
    (1, 13): ((3, 7), (3, 11)),
    (2, 0): ((3, 8), (3, 11)),
    (2, 1): ((3, 8), (3, 11)),
    (2, 2): ((3, 8), (3, 12)),
    (2, 3): ((3, 8), (3, 12)),
    (2, 4): ((3, 8), (3, 12)),
    (2, 5): ((3, 8), (3, 13)),
    (2, 6): ((3, 9), (3, 13)),
    (2, 7): ((3, 9), (3, 13)),
    (2, 8): ((3, 9), (3, 13)),
    (2, 9): ((3, 10), (3, 14)),
    (2, 10): ((3, 10), (3, 14)),
    (2, 11): ((3, 10), None),
    (2, 12): ((3, 10), None),
    (2, 13): ((3, 10), None),
    (2, 14): ((3, 10), None),
    (2, 15): ((3, 11), None),
}
"""Release of torch → the oldest and the newest Python that it has wheels for; None if the newest is not known."""

NEEDS_TORCH: Final = frozenset(
    """accelerate bitsandbytes deepspeed fastai flash-attn kornia lightning open-clip-torch peft pytorch-lightning
    sentence-transformers timm torchaudio torchmetrics torchvision trl ultralytics vllm xformers""".split()  # noqa: SIM905
)
"""Distributions that require torch, so that it is installed with them."""
HARMLESS: Final = frozenset(
    """attrs boto3 cattrs certifi cffi charset-normalizer click cloudpickle contourpy cycler dill einops filelock
    fonttools fsspec gcsfs h5py httpx idna imageio jinja2 joblib kiwisolver loguru markdown-it-py markupsafe
    matplotlib mdurl mlflow narwhals networkx nltk numpy nvidia-ml-py omegaconf openpyxl optuna orjson packaging
    pandas pillow plotly polars protobuf psutil pyarrow pydantic pygments pyparsing pytest python-dateutil pytz
    pyyaml regex requests rich s3fs safetensors scikit-image scikit-learn scipy seaborn sentencepiece six sqlalchemy
    stoker sympy tabulate tensorboard threadpoolctl tiktoken tokenizers tomli tqdm typer typing-extensions tzdata
    urllib3 wandb zenml""".split()  # noqa: SIM905
)
"""Distributions that bring neither CUDA nor a framework, and restrict no framework's version."""
DEVICE_CODE: Final = frozenset({"xgboost"})
"""Distributions whose wheels for Linux have code for GPUs and its libraries: https://xgboost.readthedocs.io/en/stable/install.html"""
CPU_TWINS: Final[Mapping[str, tuple[str, str]]] = {
    "tensorflow-cpu": ("tensorflow", "tensorflow[and-cuda]"),
    "tensorflow-cpu-aws": ("tensorflow", "tensorflow[and-cuda]"),
    "paddlepaddle": ("paddlepaddle", "paddlepaddle-gpu"),
}
"""Distribution for the CPU only → its framework, and what to require instead."""

_COMPILED_FOR_A_CHIP: Final = frozenset({"text-embeddings-inference"})
"""Programs whose images are built for single chips."""

Origin = Literal["requirement", "image", "here"]
"""Whether something is installed on request, is in the image, or is installed in the Python that makes the plan."""


@attrs.frozen(kw_only=True)
class FrameworkPackage:
    """A framework as the step will find it."""

    build: Build
    text: str
    """The requirement, the image, or the file that it comes from."""
    origin: Origin = "requirement"
    older: tuple[Build, ...] = ()
    """Builds that may be installed instead of `build` if another package restricts the version."""
    sure: bool = True
    """Whether no other package can restrict the version."""


def packages(
    wanted: Requirements, image: ImageFacts | None, *, machine: str, python: Release = ()
) -> tuple[FrameworkPackage, ...]:
    """The frameworks that the image will have once the requirements are installed."""
    image_frameworks = dict(image.frameworks) if image is not None else {}
    reference = image.reference if image is not None else ""
    frameworks: list[FrameworkPackage] = []
    for name, read in _FRAMEWORKS.items():
        package = read(wanted, image_frameworks.get(name, ""), machine, python)
        if package is not None:
            frameworks.append(package)
        elif image is not None and name in image_frameworks:
            build = _image_build(image, name, machine)
            frameworks.append(FrameworkPackage(build=build, text=reference, origin="image"))
    if image is not None and image.archs:
        for name in sorted(image_frameworks.keys() - _FRAMEWORKS.keys()):
            if name in _COMPILED_FOR_A_CHIP:
                build = _image_build(image, name, machine)
                frameworks.append(FrameworkPackage(build=build, text=reference, origin="image"))
    return tuple(frameworks)


def _image_build(image: ImageFacts, name: str, machine: str) -> Build:
    """The build of a framework that an image brings; its publisher may say for which chips it was built."""
    build = build_of(name, image.frameworks[name], machine)
    if not image.archs or build.target:
        return build
    return attrs.evolve(build, cuda=numbers(image.cuda)[:2] or None, archs=image.archs, how="its publisher's own build")


def build_of(framework: str, version: str, machine: str) -> Build:
    """The build that a version's local part names; without one, only the version is known."""
    tag = version.partition("+")[2]
    return _build_of_tag(framework, version, tag, machine) if tag else Build(framework=framework, version=version)


def torch_default(release: Release, machine: str) -> Version | None:
    """The CUDA of a release's build without a suffix; (0,) for none, None if it is not known."""
    minor = release[:2]
    if machine in ("aarch64", "arm64") and minor < ARM_DEFAULTS_FROM:
        return (0,)
    return next((cuda for first, last, cuda in TORCH_DEFAULTS if first <= minor <= last), None)


def brings_cuda(wanted: Requirements) -> bool | None:
    """Whether requirements bring CUDA's libraries; None if they may."""
    names = {item.name for item in wanted.items}
    if any(re.match(r"nvidia-(?:cuda|cudnn|nccl|cublas)|cuda-toolkit", name) for name in names) or names & DEVICE_CODE:
        return True
    return None if may_bring_cuda(wanted) else False


def may_bring_cuda(wanted: Requirements) -> list[str]:
    """The requirements, and the files that could not be read, of which it is not known whether they bring CUDA."""
    known = HARMLESS | CPU_TWINS.keys() | {"torch", "jax", "jaxlib", "tensorflow"}
    return [*dict.fromkeys(item.name for item in wanted.items if item.name not in known), *wanted.unread]


def channel(wanted: Requirements, item: Requirement | None) -> tuple[str, bool]:
    """The suffix of PyTorch's builds that would be installed ("cu121", "cpu", "" for none), and whether it is sure.

    A version with a local part is newer than the same without one, so that an index beside the usual one wins:
    https://packaging.python.org/en/latest/specifications/version-specifiers/#local-version-identifiers.
    """
    if item is not None and (item.local or item.wheel is not None):
        return item.local, True
    if wanted.backend and wanted.backend != "auto":
        return wanted.backend, True
    tags = {match[1] for index in wanted.indexes if (match := re.search(r"/(cpu|cu\d+|rocm[\d.]+|xpu)/?$", index))}
    if len(tags) == 1:
        return tags.pop(), True
    return "", not tags and not wanted.instead and wanted.backend != "auto"


def pinning(wanted: Requirements) -> tuple[Requirement, str] | None:
    """The requirement whose release pins torch, and the version that it pins: vllm==0.6.3 requires torch 2.4.0."""
    for item in wanted.items:
        for versions, torch in TORCH_PINS.get(item.name, ()) if item.pinned else ():
            if satisfies(item.pinned, SpecifierSet(versions)):
                return item, torch
    return None


def _torch(wanted: Requirements, image_version: str, machine: str, python: Release) -> FrameworkPackage | None:
    item = wanted.get("torch")
    dependent = next((one for one in wanted.items if one.name in NEEDS_TORCH), None)
    if item is None and dependent is None:
        return None
    pin = pinning(wanted)
    stays = bool(image_version) and (item is None or _stays_installed(item, image_version))
    if stays and (pin is None or same_version(image_version, pin[1])):
        return None  # an installer keeps an installed version that fits
    tag, sure = channel(wanted, item)
    if not sure:
        return None
    if pin is not None and (item is None or not item.pinned):
        return FrameworkPackage(
            build=_torch_build(pin[1], tag, machine), text=f"{pin[0].text}, which requires torch {pin[1]}"
        )
    text = item.text if item is not None else f"{dependent.name if dependent else ''}, which requires torch"
    if item is not None and item.pinned:
        build = _torch_build(item.pinned, tag, machine)
        return FrameworkPackage(build=build, text=text)
    minors = [
        release
        for release, (low, high) in TORCH_PYTHONS.items()
        if (not python or (low <= python[:2] and (high is None or python[:2] <= high)))
        and (item is None or any(item.allows(".".join(map(str, (*release, patch)))) for patch in range(3)))
        and _has_build(release, tag, machine)
    ]
    if not minors:
        return None
    builds = [_torch_build(".".join(map(str, release)), tag, machine) for release in sorted(minors, reverse=True)]
    unknown_names = {one.name for one in wanted.items} - HARMLESS - {"torch"}
    free = not unknown_names and not wanted.unread and item is not None
    return FrameworkPackage(build=builds[0], text=text, older=tuple(builds[1:]), sure=free)


def _stays_installed(item: Requirement, version: str) -> bool:
    """Whether an installer keeps an installed version: 2.4.0+cu124 satisfies "==2.4.0"."""
    return not item.url and item.allows(version)


def _has_build(release: Release, tag: str, machine: str) -> bool:
    """Whether a release has a build with a suffix; every release is taken to have CPU and ROCm builds."""
    if not tag.startswith("cu"):
        return True
    return bool(torch_archs(".".join(map(str, release)), numbers(cuda_of_tag(tag[2:])), _processor(machine)))


def _torch_build(version: str, tag: str, machine: str) -> Build:
    if tag:
        return _build_of_tag("torch", version, tag, machine)
    cuda = torch_default(numbers(version), machine)
    how = "the build without a suffix"
    if cuda == (0,):
        return Build(framework="torch", version=version, cpu=True, how=how)
    archs = torch_archs(version, cuda, _processor(machine)) if cuda else ()
    return Build(framework="torch", version=version, cuda=cuda, archs=archs, how=how)


def _build_of_tag(framework: str, version: str, tag: str, machine: str) -> Build:
    match = re.match(r"(cpu|cu|rocm)(?:da)?(\d*(?:\.\d+)*)", tag)
    if match is None:
        return Build(framework=framework, version=version)
    kind, digits = match.groups()
    if kind == "cpu":
        return Build(framework=framework, version=version, cpu=True, how=f"+{tag}")
    if kind == "rocm":
        return Build(framework=framework, version=version, rocm=digits or "?", how=f"+{tag}")
    cuda = numbers(digits if "." in digits else cuda_of_tag(digits)) or None
    archs = torch_archs(version, cuda, _processor(machine)) if cuda and framework == "torch" else ()
    return Build(framework=framework, version=version, cuda=cuda, archs=archs, how=f"+{tag}")


def _jax(wanted: Requirements, image_version: str, machine: str, python: Release) -> FrameworkPackage | None:
    item = wanted.get("jax") or wanted.get("jaxlib")
    majors = [int(number) for number, _ in jax_cuda(wanted)]
    if item is None and not majors:
        return None
    if (
        image_version
        and item is not None
        and item.name == "jax"
        and not item.extras
        and _stays_installed(item, image_version)
    ):
        return None
    unknown_names = {one.name for one in wanted.items} - HARMLESS - {"jax", "jaxlib", "flax", "optax"}
    version = item.pinned.partition("+")[0] if item is not None else ""
    extras = item.extras if item is not None else frozenset()
    inside = wanted.get("jaxlib") or item
    local = re.match(r"cuda(\d+)", inside.local) if inside is not None else None
    cuda: Version | None = (max(majors),) if majors else ((int(local[1][:2]),) if local else None)
    rocm = (
        "?" if any("rocm" in extra for extra in extras) or any("jax-rocm" in one.name for one in wanted.items) else ""
    )
    tpu = "tpu" in extras or wanted.get("libtpu") is not None
    neuron = wanted.get("jax-neuronx") is not None
    cpu = not (cuda or rocm or tpu or neuron)
    build = Build(framework="jax", version=version, cuda=cuda, rocm=rocm, tpu=tpu, cpu=cpu, how="its extras")
    return FrameworkPackage(
        build=build, text=item.text if item is not None else "a plugin of JAX", sure=not (unknown_names and cpu)
    )


def jax_cuda(wanted: Requirements) -> Iterator[tuple[str, str]]:
    """(CUDA's major version, requirement) of each extra or plugin with which JAX is required."""
    for item in wanted.items:
        plugin = re.fullmatch(r"jax-cuda(\d+)-(?:plugin|pjrt)", item.name)
        if plugin is not None:
            yield plugin[1], item.text
        if item.name == "jax":
            for extra in sorted(item.extras):
                match = re.match(r"cuda(\d\d)(?!\d)", extra)
                if match is not None:
                    yield match[1], item.text


def _tensorflow(wanted: Requirements, image_version: str, machine: str, python: Release) -> FrameworkPackage | None:
    for name in ("tensorflow-cpu", "tensorflow-cpu-aws"):
        item = wanted.get(name)
        if item is not None:
            build = Build(framework="tensorflow", version=item.pinned, cpu=True, how=name)
            return FrameworkPackage(build=build, text=item.text)
    item = wanted.get("tensorflow")
    if item is None or (image_version and not item.extras and _stays_installed(item, image_version)):
        return None
    if _processor(machine) == "aarch64":
        # https://www.tensorflow.org/install/pip: for ARM on Linux there are packages for the CPU.
        build = Build(framework="tensorflow", version=item.pinned, cpu=True, how="the wheels for aarch64")
        return FrameworkPackage(build=build, text=item.text)
    # The release, and so its CUDA, is known only for a pinned version.
    major, minor, *_ = (*numbers(item.pinned), 0, 0)
    cuda = TENSORFLOW_CUDA.get((major, minor)) if item.pinned else None
    lacks = "" if "and-cuda" in item.extras or not cuda else "no CUDA libraries (tensorflow[and-cuda] brings them)"
    build = Build(framework="tensorflow", version=item.pinned, cuda=cuda, how="the tested configurations", lacks=lacks)
    return FrameworkPackage(build=build, text=item.text)


def _cupy(wanted: Requirements, image_version: str, machine: str, python: Release) -> FrameworkPackage | None:
    for item in wanted.items:
        match = re.fullmatch(r"cupy-cuda(\d{2})(\d?)x?", item.name)
        if match is not None:
            cuda = (int(match[1]), int(match[2])) if match[2] else (int(match[1]),)
            lacks = "" if "ctk" in item.extras else "CUDA's libraries"
            build = Build(framework="cupy", version=item.pinned, cuda=cuda, how=item.name, lacks=lacks)
            return FrameworkPackage(build=build, text=item.text)
    return None


def _paddle(wanted: Requirements, image_version: str, machine: str, python: Release) -> FrameworkPackage | None:
    item = wanted.get("paddlepaddle")
    if item is None:
        return None
    build = Build(framework="paddlepaddle", version=item.pinned, cpu=True, how="paddlepaddle-gpu is the other one")
    return FrameworkPackage(build=build, text=item.text)


def _processor(machine: str) -> str:
    return {"arm64": "aarch64", "amd64": "x86_64", "": "x86_64"}.get(machine, machine)


_FRAMEWORKS: Final = {
    "torch": _torch,
    "jax": _jax,
    "tensorflow": _tensorflow,
    "cupy": _cupy,
    "paddlepaddle": _paddle,
}
