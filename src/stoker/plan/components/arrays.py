"""CuPy, spaCy's extras for GPUs, and RAPIDS: the CUDA of each distribution, and the chips that it has code for."""

from __future__ import annotations

import re
from typing import Final, Iterator, Mapping, Sequence

import attrs

from stoker.core.proof import UnknownFact
from stoker.plan.components.base import Evidence, ProofComponent, problem_finding
from stoker.plan.components.cudalibraries import provided
from stoker.plan.components.releases import NO_COMPILER, Release, check_releases, judge_release, releases_component
from stoker.plan.distributions import StepDistribution
from stoker.plan.rules import PlanFacts

CUPY_SOURCE: Final = (
    "https://docs.cupy.dev/en/stable/install.html, and the fatbins of cub.so and thrust.so in the wheel"
)
RAPIDS_SOURCE: Final = "https://docs.rapids.ai/install/#system-req, and the fatbins of libcudf.so in its wheel"
NUMBA_SOURCE: Final = "https://nvidia.github.io/numba-cuda/user/installation.html"
_CUDA_12: Final = "50 52 60 61 70 75 80 86 89 90"
_CTK: Final = frozenset({"ctk"})


def _cupy(versions: str, cuda: int, archs: str, *, extra: bool = False) -> Release:
    return Release(
        versions=versions,
        source=CUPY_SOURCE,
        cuda=(cuda,),
        archs=archs,
        libraries="outside",
        bringing=_CTK if extra else frozenset(),
    )


CUPY_TABLE: Final[Mapping[str, Sequence[Release]]] = {
    "cupy-cuda11x": (_cupy(">=11.3,<=13.6.0", 11, "35 37 50 52 60 61 70 75 80 86 89 90 PTX90"),),
    "cupy-cuda12x": (
        _cupy(">=11.5,<13.4", 12, f"{_CUDA_12} PTX90"),
        _cupy(">=13.4,<14", 12, f"{_CUDA_12} 100 120 PTX100"),
        _cupy(">=14,<=14.2.0", 12, f"{_CUDA_12} 100 120 PTX100", extra=True),
    ),
    "cupy-cuda13x": (
        _cupy(">=13.6,<14", 13, "75 80 86 89 90 100 120 PTX120"),
        _cupy(">=14,<=14.2.0", 13, "75 80 86 89 90 100 120 PTX120", extra=True),
    ),
}
_RAPIDS: Final = ("cudf", "dask-cudf", "pylibcudf", "libcudf", "cuml", "libcuml", "cugraph", "rmm", "librmm", "cuvs")


def _rapids(versions: str, cuda: int, archs: str, least: tuple[int, int]) -> Release:
    return Release(versions=versions, source=RAPIDS_SOURCE, cuda=(cuda,), archs=archs, least=least)


RAPIDS_TABLE: Final[Mapping[str, Sequence[Release]]] = {
    **{
        f"{name}-cu12": (
            _rapids(">=24.2,<25.2", 12, "70 75 80 86 90 PTX90", (7, 0)),
            _rapids(">=25.10,<=26.10.2", 12, "70 75 80 86 90 100 120 PTX120", (7, 0)),
        )
        for name in _RAPIDS
    },
    **{f"{name}-cu13": (_rapids(">=25.10,<=26.10.2", 13, "75 80 86 90 100 120 PTX120", (7, 5)),) for name in _RAPIDS},
}


def check(facts: PlanFacts, items: Sequence[StepDistribution]) -> Iterator[Evidence]:
    """What is known of each CuPy, and of the CuPy that spaCy requires by an extra."""
    wheels = [item for item in items if item.name in CUPY_TABLE]
    for item in items:
        if item.name == "cupy":
            yield from _from_source(facts, item)
        elif item.name == "spacy":
            if not wheels:
                yield from _of_spacy(facts, item)
        else:
            yield from check_releases(facts, [item], CUPY_TABLE)


def _from_source(facts: PlanFacts, item: StepDistribution) -> Iterator[Evidence]:
    """`cupy` itself is source, which is compiled with the image's nvcc when it is installed."""
    nvcc = provided(facts).nvcc
    if item.origin == "requirement" and nvcc == ():
        what = f"{item.text or item.title} is compiled when it is installed, and {facts.reference} has no nvcc"
        fix = "require the wheel for the image's CUDA, such as cupy-cuda12x, or take a parent image with nvcc"
        yield problem_finding(facts, NO_COMPILER, what, why=f"source: {CUPY_SOURCE}", fix=fix)
        return
    yield UnknownFact(component="cupy", reason=f"for which CUDA and chips {item.title} was compiled is not known")


def _of_spacy(facts: PlanFacts, item: StepDistribution) -> Iterator[Evidence]:
    """spaCy computes on the CPU, or by the CuPy that one of its extras requires: below 13.0."""
    for extra in sorted(item.extras):
        match = re.fullmatch(r"cuda(\d\d)x", extra)
        rows = CUPY_TABLE.get(f"cupy-{extra}", ())
        if match is not None and rows:
            cupy = attrs.evolve(item, name=f"cupy-{extra}", version="12.3.0", extras=frozenset())
            yield from judge_release(facts, cupy, rows[0])
        elif extra.startswith("cuda"):
            yield UnknownFact(component="spacy", reason=f"no facts for the CuPy that {item.text} requires")


NUMBA_TABLE: Final[Mapping[str, Sequence[Release]]] = {
    # It compiles for the chip when it is called; of CUDA 12 the compiler begins with sm_50, of CUDA 13 with sm_75.
    "numba-cuda": (Release(versions=">=0.4,<=0.30.4", source=NUMBA_SOURCE, least=(7, 5), optional=True),),
}
NUMBA: Final = releases_component("numba-cuda", NUMBA_TABLE)
CUPY: Final = ProofComponent(name="cupy", distributions=frozenset({*CUPY_TABLE, "cupy", "spacy"}), check=check)
RAPIDS: Final = releases_component("rapids", RAPIDS_TABLE)
