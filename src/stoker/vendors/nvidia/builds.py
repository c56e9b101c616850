"""Which build of a framework runs on which of NVIDIA's drivers and chips: tables of facts, and rules over them.

Pure: `devices.builds` reads what is installed, `vendors.nvidia.gate` what the driver reports. An unknown fact refuses
nothing.
"""

from __future__ import annotations

import re
from typing import Final, Iterator, Mapping, Sequence

from stoker.core.status import DRIVER_TOO_OLD, NO_GPU_BUILD, NO_KERNEL_IMAGE
from stoker.vendors.builds import Build, Hardware, Problem, Version, dotted, numbers
from stoker.vendors.nvidia.chips import CUDA_OF_BRANCH, cuda_of_driver

# https://docs.nvidia.com/deploy/cuda-compatibility/minor-version-compatibility.html, table 1. Before CUDA 11 each
# toolkit needed the driver that it came with: https://docs.nvidia.com/cuda/cuda-toolkit-release-notes, table 3.
FLOORS: Final[Mapping[int, str]] = {13: "580", 12: "525.60.13", 11: "450.80.02"}
"""first number of CUDA's version → the oldest driver that runs every program built for it"""
FIRST_MINOR_COMPATIBLE: Final = 11

# Chips whose code does not run on others of their generation, nor the other way round.
# https://docs.nvidia.com/cuda/cuda-c-programming-guide/#binary-compatibility
INTEGRATED: Final = frozenset({(5, 3), (6, 2), (7, 2), (8, 7), (10, 1), (11, 0)})

_TO_70: Final = "37 50 60 70"
_TO_80: Final = f"{_TO_70} 75 80"
_TO_86: Final = "37 50 60 70 75 80 86"
_TO_90: Final = "50 60 70 75 80 86 90"
_TO_120: Final = "75 80 86 90 100 120"
_70_TO_120: Final = f"70 {_TO_120}"
_ARM: Final = "80 90 100 110 120 PTX120"

# Release builds of PyTorch. The lists stand in .ci/manywheel/build_cuda.sh of https://github.com/pytorch/pytorch (to
# 2.5 in manywheel/build.sh or build_cuda.sh of the branches release/1.9 to release/2.5 and lts/release/1.8 of
# https://github.com/pytorch/builder), and those of the builds without a suffix were read from the wheels. Which CUDAs a
# release was built for: https://pytorch.org/get-started/previous-versions. The builds of the conda channel, which the
# images pytorch/pytorch to 2.5 have, are for the same chips, and also for 6.1 and 7.5, which run code for 6.0 and 7.0
# (conda/pytorch-nightly/build.sh of the same branches). Their PTX of 3.7 is left out: cuDNN and cuBLAS of these CUDAs
# have nothing for chips that are newer than they, and torch itself warns that such a chip "is not compatible with the
# current PyTorch installation" (torch/cuda/__init__.py).
TORCH: Final[Mapping[str, Sequence[tuple[Version, Version, Version, str]]]] = {
    "x86_64": (
        ((9, 2), (1, 5), (1, 7), _TO_70),
        ((10, 1), (1, 4), (1, 8), _TO_70),
        ((10, 2), (1, 5), (1, 12), _TO_70),
        ((11, 0), (1, 7), (1, 7), _TO_80),
        ((11, 1), (1, 8), (1, 10), _TO_86),
        ((11, 3), (1, 10), (1, 12), _TO_86),
        ((11, 5), (1, 11), (1, 11), _TO_86),
        ((11, 6), (1, 12), (1, 13), _TO_86),
        ((11, 7), (1, 13), (2, 0), _TO_86),
        ((11, 8), (2, 0), (2, 7), f"37 {_TO_90}"),
        ((12, 1), (2, 1), (2, 5), _TO_90),
        ((12, 4), (2, 4), (2, 6), _TO_90),
        ((12, 6), (2, 6), (2, 14), _TO_90),
        ((12, 8), (2, 7), (2, 7), f"{_TO_120} PTX120"),
        ((12, 8), (2, 8), (2, 10), _70_TO_120),
        ((12, 8), (2, 11), (2, 11), _TO_120),
        ((12, 9), (2, 8), (2, 8), f"{_70_TO_120} PTX120"),
        ((13, 0), (2, 9), (2, 15), _TO_120),
        ((13, 2), (2, 12), (2, 15), _TO_120),
    ),
    "aarch64": (
        ((12, 6), (2, 8), (2, 14), "80 90"),
        ((12, 8), (2, 8), (2, 11), "80 90 100 120"),
        ((12, 9), (2, 8), (2, 8), "80 90 100 120"),
        ((13, 0), (2, 9), (2, 15), _ARM),
        ((13, 2), (2, 12), (2, 15), _ARM),
    ),
}
"""processor → CUDA, first and last version of torch that was built for it, and the chips that it has code for"""


def unfit(build: Build, hardware: Hardware) -> Problem | None:
    """Why a build cannot use the devices; None where it can, or where that is not known."""
    return _no_cuda(build, hardware) or _too_old(build, hardware) or _no_code(build, hardware)


def notes(build: Build, hardware: Hardware) -> Iterator[str]:
    """What a person should know of a build that fits."""
    if build.cuda and hardware.cuda and tuple(build.cuda) > tuple(hardware.cuda):
        yield f"the driver is for CUDA {dotted(hardware.cuda)}: it runs this, but compiles no newer PTX"


def runs(cuda: Version, driver: str, newest: Version | None) -> bool:
    """Whether a driver, whose newest CUDA is `newest`, runs what was built for a CUDA. True where that is not known."""
    floor = FLOORS.get(cuda[0])
    if newest is not None and newest[0] >= cuda[0]:
        if newest >= cuda or not driver or floor is None:
            return newest >= cuda or cuda[0] >= FIRST_MINOR_COMPATIBLE
        return numbers(driver) >= numbers(floor)
    if driver and floor:
        return numbers(driver) >= numbers(floor)
    return newest is None


# "New Features" of https://docs.nvidia.com/cuda/archive, each release's notes: support of an architecture.
FIRST_CUDA: Final[Mapping[int, Version]] = {
    7: (9, 0),
    8: (11, 0),
    9: (11, 8),
    10: (12, 8),
    11: (13, 0),
    12: (12, 8),
}
"""First number of a compute capability → the first CUDA whose libraries (cuBLAS, cuDNN …) have code for it. The driver
compiles older PTX for such a chip, but the libraries beside it stay the older ones."""


def covers(archs: Sequence[str], chip: tuple[int, int], cuda: Version | None = None) -> str:
    """How code for some chips runs on one: "code", "ptx" (if the driver compiles it), or "" for not at all.

    https://docs.nvidia.com/cuda/cuda-c-programming-guide/#application-compatibility: code for X.y runs on X.z with
    z ≥ y, PTX on everything newer; code with the suffix "a" on that chip only, with "f" within X.
    """
    way = ""
    for arch in archs:
        match = re.fullmatch(r"(sm|compute)_(\d+)(\d)([af]?)", arch)
        if match is None:
            continue
        code, exact = (int(match[2]), int(match[3])), match[4]
        is_separate = chip in INTEGRATED or code in INTEGRATED
        # From CUDA 13.2 on, code is also shared with integrated chips: its release notes.
        is_separate = is_separate and code != chip and (cuda is None or cuda < (13, 2))
        same = code[0] == chip[0] and code[1] <= chip[1]
        if match[1] == "sm" and same and not is_separate and (exact != "a" or code == chip):
            return "code"
        if match[1] == "compute" and (code == chip if exact == "a" else same if exact == "f" else code <= chip):
            way = "ptx"
    return way


def torch_archs(version: str, cuda: Version, machine: str) -> tuple[str, ...]:
    """The chips that a release build of torch has code for; empty for one that the table lacks."""
    minor = numbers(version)[:2]
    for built, first, last, listed in TORCH.get(machine, ()):
        if built == cuda[:2] and first <= minor <= last:
            return archs_of(listed)
    return ()


def archs_of(listed: str) -> tuple[str, ...]:
    """`"80 90 PTX90"` as a framework lists it: `("sm_80", "sm_90", "compute_90")`."""
    return tuple(
        f"compute_{item.removeprefix('PTX')}" if item.startswith("PTX") else f"sm_{item}" for item in listed.split()
    )


def forward_compatible(driver: str, loaded: Version | None) -> bool:
    """Whether the loaded CUDA library is newer than its driver's own: CUDA's compat package.

    https://docs.nvidia.com/deploy/cuda-compatibility/forward-compatibility.html
    """
    if loaded is None or not driver or numbers(driver)[0] > max(CUDA_OF_BRANCH):
        return False  # the table does not have the driver: its CUDA is not known
    driver_cuda = cuda_of_driver(driver)
    return driver_cuda is not None and tuple(loaded) > driver_cuda


def _no_cuda(build: Build, hardware: Hardware) -> Problem | None:
    if not (build.cpu or (build.cuda is None and (build.rocm or build.tpu))):
        return None
    return Problem(
        cause=NO_GPU_BUILD,
        sentence=f"{build.words}, and the step holds NVIDIA GPUs",
        fix=_fitting_install(build, hardware),
    )


def _too_old(build: Build, hardware: Hardware) -> Problem | None:
    if build.cuda is None or runs(build.cuda, hardware.driver, hardware.cuda):
        return None
    driver = f"driver {hardware.driver}" if hardware.driver else "the driver"
    supported = f" (CUDA {dotted(hardware.cuda)})" if hardware.cuda else ""
    floor = FLOORS.get(build.cuda[0])
    needs = f": CUDA {build.cuda[0]} needs driver {floor} or later" if floor else ""
    return Problem(
        cause=DRIVER_TOO_OLD,
        sentence=f"{driver}{supported} is too old for {build.framework} {build.version}, "
        f"built for {build.target}{needs}",
        fix=f"{_fitting_install(build, hardware)}; or have the driver updated, or run the step on a machine with a "
        "newer one",
    )


def _no_code(build: Build, hardware: Hardware) -> Problem | None:
    for chip, name in hardware.chips.items():
        coverage = covers(build.archs, chip, build.cuda) if build.archs else "code"
        if coverage == "code":
            continue
        archs = " ".join(build.archs)
        what = f"sm_{chip[0]}{chip[1]} ({name}) is not in the list of {build.framework} {build.version}"
        if not coverage:
            sentence = f"{what}, built for {build.target}: {archs}"
            return Problem(cause=NO_KERNEL_IMAGE, sentence=sentence, fix=_fitting_install(build, hardware))
        if build.cuda and hardware.cuda and tuple(hardware.cuda) < tuple(build.cuda):
            sentence = (
                f"{what} ({archs}): the driver would have to compile its PTX, which is newer "
                f"(CUDA {dotted(build.cuda)}) than the driver (CUDA {dotted(hardware.cuda)})"
            )
            return Problem(cause=DRIVER_TOO_OLD, sentence=sentence, fix=_fitting_install(build, hardware))
    return None


def _fitting_install(build: Build, hardware: Hardware) -> str:
    """The command that installs a build that fits, or advice where the tables have none."""
    name, release = build.framework, build.release
    if name == "torch":
        return _fitting_torch(release, hardware)
    fitting = [major for major in (13, 12, 11) if runs((major,), hardware.driver, hardware.cuda)]
    if name == "jax":
        # The extra for CUDA 13 begins with 0.7.2: https://docs.jax.dev/en/latest/changelog.html.
        majors = [major for major in fitting if major == 12 or (major == 13 and numbers(release) >= (0, 7, 2))]
        if majors:
            return f'pip install "jax[cuda{majors[0]}]=={release}"'
    elif name == "tensorflow":
        return f'pip install "tensorflow[and-cuda]=={release}"'
    elif name == "cupy" and fitting:
        return f"pip uninstall the CuPy that is there, and pip install cupy-cuda{fitting[0]}x"
    newest = f" {hardware.cuda[0]} or older" if hardware.cuda else ""
    return f"install {name} in a build for CUDA{newest}"


def _fitting_torch(release: str, hardware: Hardware) -> str:
    minor = numbers(release)[:2]
    fitting = [
        (last, cuda, first <= minor <= last)
        for cuda, first, last, listed in TORCH.get(hardware.machine, ())
        if runs(cuda, hardware.driver, hardware.cuda)
        and all(covers(archs_of(listed), chip, cuda) for chip in hardware.chips)
    ]
    same_release = [cuda for _, cuda, same in fitting if same]
    if same_release:
        tag = f"cu{max(same_release)[0]}{max(same_release)[1]}"
        return f"pip install torch=={release}+{tag}, with --index-url set to PyTorch's own index for {tag}"
    if fitting:
        last, cuda, _ = max(fitting)
        tag = f"cu{cuda[0]}{cuda[1]}"
        return (
            f'no build of torch {dotted(minor)} fits; pip install "torch=={dotted(last)}.*", with --index-url set to '
            f"PyTorch's own index for {tag}"
        )
    return "no release of torch fits this driver and chip: use another machine, or a build of your own"
