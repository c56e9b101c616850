"""Packages that compute beside torch: compiled against one release of it (torchvision, torchaudio and triton among
them), for its CUDA, with code of their own.

Packages that only call torch, such as transformers or lightning, have no part in a proof: torch decides.
"""

from __future__ import annotations

import re
from typing import Final, Iterator, Mapping, Sequence

import attrs
from packaging.specifiers import SpecifierSet

from stoker.core.imagenames import cuda_of_tag
from stoker.core.receipt import Fact, UnknownFact
from stoker.core.units import value_or
from stoker.plan.components.base import Evidence, ProofComponent, no_facts, problem_finding
from stoker.plan.components.cudalibraries import provided
from stoker.plan.components.releases import (
    LIBRARIES,
    NO_COMPILER,
    OTHER_TORCH,
    Release,
    chips_fit,
    other_vendor,
    releases_component,
)
from stoker.plan.packages import PINS_SOURCE, VLLM_TORCH, XFORMERS_TORCH, FrameworkPackage, torch_default
from stoker.plan.requirements import numbers, satisfies
from stoker.plan.rules import PlanFacts, StepDistribution
from stoker.vendors.builds import Version, dotted

VLLM_SOURCE: Final = f"https://docs.vllm.ai/en/latest/getting_started/installation, {PINS_SOURCE}, and its fatbins"
XFORMERS_SOURCE: Final = (
    f"https://github.com/facebookresearch/xformers#installing-xformers, {PINS_SOURCE}, and its fatbins"
)
BITSANDBYTES_SOURCE: Final = (
    "https://huggingface.co/docs/bitsandbytes/installation, and the fatbins of libbitsandbytes_cuda*.so in the wheel"
)
ENGINE_SOURCE: Final = (
    "https://docs.nvidia.com/deeplearning/transformer-engine/user-guide/installation.html, "
    "and the fatbins of libtransformer_engine.so in the wheel"
)
FLASH_SOURCE: Final = (
    "https://github.com/Dao-AILab/flash-attention#nvidia-cuda-support, setup.py and .github/workflows/publish.yml"
)
DEEPSPEED_SOURCE: Final = "https://www.deepspeed.ai/tutorials/advanced-install"
ENGINE_TORCH_SOURCE: Final = "https://docs.nvidia.com/deeplearning/transformer-engine/user-guide/installation.html"
EXTENSIONS_SOURCE: Final = "https://docs.pytorch.org/docs/stable/cpp_extension.html"
GEOMETRIC_SOURCE: Final = "https://pytorch-geometric.readthedocs.io/en/latest/install/installation.html"
XLA_SOURCE: Final = "https://docs.pytorch.org/xla/master/learn/xla-overview.html"

_VLLM_TO_90: Final = "70 75 80 86 89 90"
_VLLM_TO_120: Final = "70 75 80 89 90 100 120"
_VLLM_FROM_75: Final = "75 80 86 89 90 100 120"
_VLLM_CODE: Final[Sequence[tuple[str, str]]] = (
    ("<0.9", _VLLM_TO_90),
    (">=0.9,<0.20", _VLLM_TO_120),
    (">=0.20", _VLLM_FROM_75),
)
_BNB_TO_90: Final = "50 60 70 75 80 86 89 90 PTX90"
_BNB_FROM_60: Final = "60 70 75 80 86 89 90 PTX90"
_BNB_FROM_70: Final = "70 75 80 86 89 90 100 120 PTX120"
_BNB_FROM_75: Final = "75 80 86 89 90 100 120 PTX120"


def _vllm_rows() -> Iterator[Release]:
    for versions, torch in VLLM_TORCH:
        first = re.match(r"[=>]=([\d.]+)", versions)
        archs = [code for releases, code in _VLLM_CODE if first and satisfies(first[1], SpecifierSet(releases))]
        if archs:
            least: Version = (7, 5) if archs[0] is _VLLM_FROM_75 else (7, 0)
            yield Release(
                versions=versions,
                source=VLLM_SOURCE,
                archs=archs[0],
                least=least,
                torch=f"=={torch}",
                libraries="torch",
            )


def _xformers_rows() -> Iterator[Release]:
    for versions, torch in XFORMERS_TORCH:
        minor = numbers(torch)[:2]
        archs = "50 60 61 70 75 80 90 PTX80" if minor < (2, 2) else "60 70 75 80 PTX80"
        if minor >= (2, 8):
            archs = "75 80 90 PTX80"
        cuda: Version = (11,) if minor == (2, 0) else (12,)
        yield Release(
            versions=versions,
            source=XFORMERS_SOURCE,
            archs=archs,
            cuda=cuda,
            torch=f"=={torch}",
            libraries="torch",
        )


def _parts(cudas: str, archs: str) -> dict[str, str]:
    return dict.fromkeys(cudas.split(), archs)


def _bitsandbytes(versions: str, parts: Mapping[str, str], *, others: bool = False, nearest: bool = False) -> Release:
    return Release(
        versions=versions,
        source=BITSANDBYTES_SOURCE,
        archs_by_cuda=parts,
        nearest=nearest,
        libraries="torch",
        vendors=("nvidia", "amd", "intel", "gaudi") if others else ("nvidia",),
    )


_TO_12_6: Final = "11.8 12.0 12.1 12.2 12.3 12.4 12.5 12.6"
BITSANDBYTES_ROWS: Final[Sequence[Release]] = (
    _bitsandbytes(
        "==0.42.0",
        _parts("11.0 11.1 11.4 11.5 11.7", "50 52 60 61 70 75 80 86")
        | _parts("11.8 12.0 12.1 12.2 12.3", "50 52 60 61 70 75 80 86 89 90"),
    ),
    _bitsandbytes(
        "==0.43.1",
        _parts("11.7", "50 60 70 75 80 86 PTX86")
        | _parts("11.8", "50 60 70 75 80 86 89 PTX89")
        | _parts("12.0 12.1 12.2 12.3 12.4", _BNB_TO_90),
    ),
    _bitsandbytes(
        ">=0.43.2,<0.45",
        _parts("11.7", "50 60 70 75 80 86 PTX86")
        | _parts("11.8", "50 60 70 75 80 86 89 PTX89")
        | _parts("12.0 12.1 12.2 12.3 12.4 12.5", _BNB_TO_90),
    ),
    _bitsandbytes(">=0.45,<0.45.5", _parts("11.7", "50 60 70 75 80 86 PTX86") | _parts(_TO_12_6, _BNB_TO_90)),
    _bitsandbytes(
        "==0.45.5",
        _parts("11.7", "50 60 70 75 80 86 PTX86") | _parts(_TO_12_6, _BNB_TO_90) | _parts("12.8", _BNB_FROM_70),
    ),
    _bitsandbytes(">=0.46,<0.47", _parts(_TO_12_6, _BNB_TO_90) | _parts("12.8", _BNB_FROM_75)),
    _bitsandbytes(">=0.47,<0.48", _parts(_TO_12_6, _BNB_TO_90) | _parts("12.8 12.9", _BNB_FROM_70)),
    _bitsandbytes(
        ">=0.48,<0.49",
        _parts(_TO_12_6, _BNB_FROM_60) | _parts("12.8 12.9", _BNB_FROM_70) | _parts("13.0", _BNB_FROM_75),
    ),
    _bitsandbytes(
        ">=0.49,<0.50",
        _parts(_TO_12_6, _BNB_FROM_60) | _parts("12.8 12.9", _BNB_FROM_70) | _parts("13.0", _BNB_FROM_75),
        others=True,
    ),
    _bitsandbytes(
        ">=0.50,<=0.50.2",
        _parts("11.8 12.1 12.4 12.6", _BNB_FROM_60) | _parts("12.8", _BNB_FROM_70) | _parts("13.0 13.2", _BNB_FROM_75),
        others=True,
        nearest=True,
    ),
)


def _engine(versions: str, cuda: int, archs: str) -> Release:
    return Release(versions=versions, source=ENGINE_SOURCE, cuda=(cuda,), archs=archs, libraries="torch")


TABLE: Final[Mapping[str, Sequence[Release]]] = {
    "vllm": tuple(_vllm_rows()),
    "xformers": tuple(_xformers_rows()),
    "bitsandbytes": BITSANDBYTES_ROWS,
    "transformer-engine-cu12": (
        _engine(">=1.13,<2", 12, "70 80 89 90 PTX90"),
        _engine(">=2.8,<2.20", 12, "70 80 89 90 100 103 120 PTX120"),
        _engine("==2.20.2", 12, "70 80 89 90 100 103 120"),
    ),
    "transformer-engine-cu13": (_engine("==2.20.2", 13, "75 80 89 90 100 103 107 120"),),
}
TORCH_PARTS: Final = releases_component("torch-parts", TABLE)


# Packages that are compiled against torch when they are installed, unless a wheel for that torch is required.

_FROM_BLACKWELL: Final = "80 90 100 120"
COMPILED: Final[Mapping[str, Sequence[Release]]] = {
    "flash-attn": (
        Release(versions=">=2.0,<2.8", source=FLASH_SOURCE, least=(8, 0), archs="80 90", compiled=True),
        Release(
            versions=">=2.8,<=2.8.3.post1", source=FLASH_SOURCE, least=(8, 0), archs=_FROM_BLACKWELL, compiled=True
        ),
    ),
    **{
        name: (Release(versions=">=0", source=GEOMETRIC_SOURCE, compiled=True),)
        for name in ("torch-scatter", "torch-sparse", "torch-cluster", "torch-spline-conv", "pyg-lib")
    },
    # With the extra "pytorch" it requires transformer-engine-torch, which is published as source.
    **{
        name: (Release(versions=">=1", source=ENGINE_TORCH_SOURCE, least=(7, 0), compiled=True),)
        for name in ("transformer-engine", "transformer-engine-torch")
    },
    **{
        name: (Release(versions=">=0", source=EXTENSIONS_SOURCE, compiled=True),)
        for name in ("mamba-ssm", "causal-conv1d", "pytorch3d")
    },
}
# The matrices of .github/workflows/publish.yml at each tag: its setup takes the wheel of its own releases for torch's
# first two numbers, which is built against just one release of them.
FLASH_WHEELS: Final[Sequence[tuple[str, str, Version, Version]]] = (
    (">=2.5.7,<2.5.9", "2.0.1 2.1.2 2.2.2 2.3.0", (3, 8), (3, 11)),
    (">=2.5.9,<2.6", "2.0.1 2.1.2 2.2.2 2.3.0", (3, 8), (3, 12)),
    (">=2.6,<2.6.2", "2.0.1 2.1.2 2.2.2 2.3.1", (3, 8), (3, 12)),
    (">=2.6.2,<2.7", "2.0.1 2.1.2 2.2.2 2.3.1 2.4.0", (3, 8), (3, 12)),
    (">=2.7.0,<2.7.4", "2.1.2 2.2.2 2.3.1 2.4.0 2.5.1", (3, 9), (3, 12)),
    ("==2.7.4.post1", "2.2.2 2.3.1 2.4.0 2.5.1 2.6.0", (3, 9), (3, 13)),
    (">=2.8.1,<2.8.2", "2.4.0 2.5.1 2.6.0 2.7.1", (3, 9), (3, 13)),
    (">=2.8.3,<=2.8.3.post1", "2.4.0 2.5.1 2.6.0 2.7.1 2.8.0", (3, 9), (3, 13)),
)
"""Releases of flash-attn → the torches that its wheels were built against, the oldest and the newest Python."""
_WHEEL_OF: Final = re.compile(r"(?:pt(?P<pyg>\d+)cu(?P<pygcuda>\d+)|cu(?P<cuda>\d+)torch(?P<torch>\d+\.\d+).*)")
"""The local version of a wheel for one torch: 2.1.2+pt24cu121 of PyG's, 2.6.3+cu123torch2.4cxx11abiFALSE of others'."""


def check_compiled(facts: PlanFacts, items: Sequence[StepDistribution]) -> Iterator[Evidence]:
    """Whether a package fits the torch that it is compiled against, or whose wheel it is."""
    torch = facts.package("torch")
    for item in items:
        row = next(
            (
                row
                for row in COMPILED[item.name]
                if not item.version or satisfies(item.version, SpecifierSet(row.versions))
            ),
            None,
        )
        if row is None:
            yield no_facts(item)
            continue
        others = [held for held in facts.targets if held.kind != "nvidia"]
        if others:
            yield UnknownFact(component=item.name, reason=f"no facts for {item.title} on devices other than NVIDIA's")
            continue
        if row.least or row.archs:
            # Compiled here, it has code for newer chips, too; which ones is not known before.
            yield from chips_fit(facts, item, row if item.version else attrs.evolve(row, archs=""))
        match = _WHEEL_OF.fullmatch(item.version.partition("+")[2].replace("_", "."))
        if match is not None:
            yield from _wheel_for_torch(facts, item, row, match, torch)
        elif item.origin == "image" and torch is not None and torch.origin == "image":
            text = f"{item.title} is in {facts.reference} beside torch {torch.build.version}"
            yield Fact(component=item.name, fact=text, source="the image's layers")
        elif item.origin == "here":
            text = f"{item.title} is installed here beside torch"
            yield Fact(component=item.name, fact=text, source="this Python's distributions")
        else:
            yield from _compiles(facts, item, row, torch)


def _wheel_for_torch(
    facts: PlanFacts, item: StepDistribution, row: Release, match: re.Match[str], torch: FrameworkPackage | None
) -> Iterator[Evidence]:
    digits = match["pyg"] or ""
    release: Version = (int(digits[0]), int(digits[1:])) if digits else numbers(match["torch"])
    cuda = numbers(cuda_of_tag(match["cuda"] or match["pygcuda"]))
    if torch is None or not torch.build.version or not torch.build.cuda:
        yield UnknownFact(
            component=item.name, reason=f"{item.title} is for torch {dotted(release)}, which is not known"
        )
        return
    fits_release, fits_cuda = numbers(torch.build.version)[:2] == release[:2], torch.build.cuda[0] == cuda[0]
    if fits_release and fits_cuda:
        text = f"{item.title} is a wheel for torch {dotted(release)} and CUDA {cuda[0]}, and there is torch "
        yield Fact(component=item.name, fact=text + torch.build.version, source=row.source)
    elif not torch.sure:
        reason = f"{item.title} is for torch {dotted(release)}, and which one will be installed is not known"
        yield UnknownFact(component=item.name, reason=reason)
    else:
        what = f"{item.title} is a wheel for torch {dotted(release)} and CUDA {dotted(cuda)}, and there is torch "
        what += f"{torch.build.version} for CUDA {dotted(torch.build.cuda)}"
        code = LIBRARIES if fits_release else OTHER_TORCH
        yield problem_finding(facts, code, what, fix=f"take the wheel of {item.name} for torch {torch.build.release}")


def _compiles(
    facts: PlanFacts, item: StepDistribution, row: Release, torch: FrameworkPackage | None
) -> Iterator[Evidence]:
    """Whether the image has the compiler of torch's CUDA; torch's extensions refuse another first number of CUDA."""
    nvcc = provided(facts).nvcc
    if nvcc == () and item.name != "flash-attn":  # its setup takes a wheel from its own releases, if there is one
        what = f"{item.text or item.title} is compiled when it is installed, and {facts.reference} has no nvcc"
        fix = f"take a parent image with nvcc (a devel one), or require the wheel of {item.name} for this torch"
        yield problem_finding(facts, NO_COMPILER, what, why=f"source: {row.source}", fix=fix)
    elif nvcc and nvcc[0] and torch is not None and torch.build.cuda and torch.sure and nvcc[0] != torch.build.cuda[0]:
        what = f"{item.text or item.title} is compiled by nvcc of CUDA {dotted(nvcc)} in {facts.reference}, and torch "
        what += f"{torch.build.version} is built for CUDA {dotted(torch.build.cuda)}"
        fix = f"take a parent image with nvcc of CUDA {torch.build.cuda[0]}"
        yield problem_finding(facts, NO_COMPILER, what, why=f"source: {row.source}", fix=fix)
    elif item.name == "flash-attn" and _has_wheel(facts, item, torch):
        text = f"{item.title} has a wheel that is built against torch {torch.build.release if torch else ''}"
        yield Fact(component=item.name, fact=text, source=row.source)
    else:
        reason = f"{item.text or item.title} is compiled when it is installed, and for what is not known before"
        if item.name == "flash-attn":
            reason += "; with no-build-isolation it takes a wheel of its own releases, if there is one for this torch"
        yield UnknownFact(component=item.name, reason=reason)


def _has_wheel(facts: PlanFacts, item: StepDistribution, torch: FrameworkPackage | None) -> bool:
    """Whether flash-attn's setup will take a wheel that is built against just this torch.

    It has to see torch to find it, and so not to be built in isolation; NVIDIA's own builds of torch are others.
    """
    arguments = value_or(facts.docker.python_package_installer_args, {})
    isolated = not any(name.strip("-").replace("_", "-") == "no-build-isolation" for name in arguments)
    if isolated or torch is None or not torch.sure or torch.build.cuda is None or facts.machine not in ("", "x86_64"):
        return False
    if torch.origin == "image" and not facts.reference.startswith("pytorch/pytorch:"):
        return False
    return any(
        bool(item.version)
        and satisfies(item.version, SpecifierSet(versions))
        and torch.build.release in releases.split()
        and oldest <= facts.python[:2] <= newest
        for versions, releases, oldest, newest in FLASH_WHEELS
    )


EXTENSIONS: Final = ProofComponent(name="extensions", distributions=frozenset(COMPILED), check=check_compiled)


def check_deepspeed(facts: PlanFacts, items: Sequence[StepDistribution]) -> Iterator[Evidence]:
    """Whether the image has the compiler for DeepSpeed's operators, which it compiles when they are first used."""
    nvcc, torch = provided(facts).nvcc, facts.package("torch")
    for item in items:
        if nvcc and nvcc[0] and torch is not None and torch.build.cuda and nvcc[0] == torch.build.cuda[0]:
            text = f"{item.title} compiles its operators by nvcc of CUDA {dotted(nvcc)}, that of torch"
            yield Fact(component=item.name, fact=text, source=DEEPSPEED_SOURCE)
        elif item.origin == "here":
            text = f"{item.title} is installed here beside torch"
            yield Fact(component=item.name, fact=text, source="this Python's distributions")
        elif nvcc == () and item.origin == "requirement" and torch is not None and torch.build.cuda:
            what = f"{item.title} looks for nvcc when it is imported, and {facts.reference} has none"
            fix = "take a parent image with nvcc of torch's CUDA, such as a devel one of pytorch/pytorch"
            yield problem_finding(facts, NO_COMPILER, what, why=f"source: {DEEPSPEED_SOURCE}", fix=fix)
        else:
            have = f"{facts.reference} has none" if nvcc == () else "which one there is is not known"
            have = f"there is that of CUDA {dotted(nvcc)}" if nvcc and nvcc[0] else have
            reason = f"{item.title} compiles the operators that are used by nvcc of torch's CUDA, and {have}"
            yield UnknownFact(component=item.name, reason=reason)


DEEPSPEED: Final = ProofComponent(name="deepspeed", distributions=frozenset({"deepspeed"}), check=check_deepspeed)


def check_xla(facts: PlanFacts, items: Sequence[StepDistribution]) -> Iterator[Evidence]:
    """Whether torch-xla is there for TPUs, and belongs to torch."""
    [item] = items
    torch = facts.package("torch")
    if any(held.kind != "tpu" for held in facts.targets):
        yield other_vendor(facts, item, Release(versions=">=2", source=XLA_SOURCE, vendors=("tpu",)), [*facts.targets])
    elif not item.version or torch is None:
        yield no_facts(item)
    elif numbers(item.version)[:2] != numbers(torch.build.version)[:2]:
        what = f"{item.title} belongs to torch {dotted(numbers(item.version)[:2])}, and there is torch "
        what += torch.build.version
        yield problem_finding(facts, OTHER_TORCH, what, fix=f"require torch=={dotted(numbers(item.version)[:2])}.*")
    elif "tpu" in item.extras or item.origin != "requirement":
        text = f"{item.title} brings TPUs to torch {torch.build.version}"
        yield Fact(component=item.name, fact=text, source=XLA_SOURCE)
    else:
        yield UnknownFact(component=item.name, reason=f"{item.title} finds TPUs by libtpu: require torch-xla[tpu]")


XLA: Final = ProofComponent(name="torch-xla", distributions=frozenset({"torch-xla"}), check=check_xla)


STRANGERS: Final = "STK206"
VISION_SOURCE: Final = "https://github.com/pytorch/vision#installation"
AUDIO_SOURCE: Final = "https://docs.pytorch.org/audio/stable/installation.html#compatibility-matrix"
TRITON_SOURCE: Final = "Requires-Dist in the metadata of torch's wheels for Linux on x86_64"

_VISION_BEHIND: Final = 15
"""torchvision 0.15 belongs to torch 2.0, 0.16 to 2.1, and so on."""
VISION_UNPINNED: Final = (0, 29, 2)
"""The first torchvision whose wheel requires no single release of torch: its Requires-Dist takes 2.14 and 2.15."""
_VISION_1: Final = {(0, minor): (1, minor - 1) for minor in range(5, 15)}
"""Release of torchvision → that of torch."""

TRITON: Final[Mapping[str, str]] = {
    "2.0.0": "2.0.0",
    "2.0.1": "2.0.0",
    "2.1.0": "2.1.0",
    "2.1.2": "2.1.0",
    "2.2.0": "2.2.0",
    "2.2.2": "2.2.0",
    "2.3.0": "2.3.0",
    "2.3.1": "2.3.1",
    "2.4.0": "3.0.0",
    "2.4.1": "3.0.0",
    "2.5.0": "3.1.0",
    "2.5.1": "3.1.0",
    "2.6.0": "3.2.0",
    "2.7.0": "3.3.0",
    "2.7.1": "3.3.1",
    "2.8.0": "3.4.0",
    "2.9.0": "3.5.0",
    "2.9.1": "3.5.1",
    "2.10.0": "3.6.0",
    "2.11.0": "3.6.0",
    "2.12.0": "3.7.0",
    "2.12.1": "3.7.1",
    "2.13.0": "3.7.1",
}
"""Release of torch → the one of triton that its wheels require."""


def vision_and_audio(facts: PlanFacts, items: Sequence[StepDistribution]) -> Iterator[Evidence]:
    """Whether torchvision and torchaudio belong to the step's torch, and to its CUDA's major version.

    Releases that do not are findings of `rules_packages.companions`. Each is compiled for the same chips as the torch
    that it belongs to.
    """
    torch = facts.package("torch")
    for item in items:
        if not item.version or torch is None or not torch.build.version:
            yield no_facts(item)
            continue
        release, built_for = numbers(torch.build.version)[:2], _torch_of(item)
        name = f"torch {torch.build.version}"
        if built_for is None:
            yield no_facts(item)
        elif release != built_for:
            reason = f"{item.title} belongs to torch {dotted(built_for)}, and not to {name}"
            yield UnknownFact(component=item.name, reason=reason)
        elif item.origin != torch.origin or _cuda_of(item, facts)[:1] != (torch.build.cuda or ())[:1]:
            reason = f"whether {item.title} is built for the CUDA of {name} is not known"
            yield UnknownFact(component=item.name, reason=reason)
        else:
            source = VISION_SOURCE if item.name == "torchvision" else AUDIO_SOURCE
            yield Fact(component=item.name, fact=f"{item.title} belongs to {name}", source=source)


def triton(facts: PlanFacts, items: Sequence[StepDistribution]) -> Iterator[Evidence]:
    """Whether triton is the one that the step's torch requires."""
    torch = facts.package("torch")
    [item] = items
    version = "" if torch is None else torch.build.release
    required = TRITON.get(version)
    if not item.version or torch is None or required is None:
        yield no_facts(item, f"beside torch {version}" if version else "")
    elif item.version.partition("+")[0] == required:
        text = f"{item.title} is what torch {version} requires"
        yield Fact(component="triton", fact=text, source=TRITON_SOURCE)
    elif item.origin == "requirement" and torch.origin == "requirement" and torch.sure:
        what = f"torch {version} requires triton=={required}, and {item.text} is required: no installer satisfies both"
        fix = f"remove {item.text}: torch brings its own"
        yield problem_finding(facts, STRANGERS, what, why=f"torch is from {torch.text}", fix=fix)
    else:
        reason = f"torch {version} requires triton {required}, and the step has {item.version}"
        yield UnknownFact(component="triton", reason=reason)


def _torch_of(item: StepDistribution) -> tuple[int, ...] | None:
    """The release of torch that torchvision or torchaudio belongs to; None if the tables do not have it."""
    release = numbers(item.version)[:2]
    if item.name == "torchaudio":
        return release if release[0] == 2 else (1, release[1]) if release[0] == 0 and release[1] >= 4 else None
    if release in _VISION_1:
        return _VISION_1[release]
    if numbers(item.version) >= VISION_UNPINNED:
        return None
    return (2, release[1] - _VISION_BEHIND) if release[0] == 0 and release[1] >= _VISION_BEHIND else None


def _cuda_of(item: StepDistribution, facts: PlanFacts) -> Version:
    """The CUDA for which a distribution was built; empty if it is not known or none."""
    local = item.version.partition("+")[2]
    if local.startswith("cu"):
        return numbers(cuda_of_tag(local[2:]))
    torch = facts.package("torch")
    if local or torch is None:
        return ()
    if torch.build.cuda and (facts.requirements.backend or facts.requirements.indexes or item.origin != "requirement"):
        return tuple(torch.build.cuda)  # both come from the same index
    return tuple(torch_default(numbers(torch.build.version), facts.machine) or ())


VISION_AND_AUDIO: Final = ProofComponent(
    name="companions", distributions=frozenset({"torchaudio", "torchvision"}), check=vision_and_audio
)
TRITON_COMPONENT: Final = ProofComponent(name="triton", distributions=frozenset({"triton"}), check=triton)
