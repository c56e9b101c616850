"""Wheels that are made for one CUDA each: CuPy, RAPIDS, XGBoost and CatBoost, ONNX Runtime and its like.

LightGBM's wheels compute on the CPU, or on any GPU by OpenCL, and so have no part in a proof:
https://lightgbm.readthedocs.io/en/stable/GPU-Tutorial.html.
"""

from __future__ import annotations

import re
from functools import partial
from typing import Final, Iterator, Mapping, Sequence

import attrs

from stoker.core.findings import Finding
from stoker.core.receipt import UnknownFact
from stoker.plan.components.base import USES_DEVICES, Evidence, ProofComponent, problem_finding
from stoker.plan.components.cudalibraries import provided, requirements_known
from stoker.plan.components.releases import (
    NO_COMPILER,
    OTHER_VENDOR,
    Release,
    check_releases,
    judge_release,
    releases_component,
)
from stoker.plan.rules import PlanFacts, StepDistribution, distributions
from stoker.vendors.builds import Version

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


XGBOOST_SOURCE: Final = (
    "https://xgboost.readthedocs.io/en/stable/install.html, and the fatbins of libxgboost.so in the wheel"
)
CATBOOST_SOURCE: Final = (
    "https://catboost.ai/docs/en/features/training-on-gpu, and the fatbins of _catboost.so in the wheel"
)


def _xgboost(versions: str, cuda: int, archs: str) -> Release:
    return Release(versions=versions, source=XGBOOST_SOURCE, cuda=(cuda,), archs=archs, optional=True)


TREES_TABLE: Final[Mapping[str, Sequence[Release]]] = {
    "xgboost": (
        _xgboost(">=1.7,<2", 11, "50 60 70 80 PTX80"),
        _xgboost(">=2.0,<2.1", 11, "50 60 70 80 90 PTX90"),
        _xgboost(">=2.1,<2.1.2", 12, "50 60 70 80 90 PTX90"),
        _xgboost(">=2.1.4,<=3.2.0", 12, "50 60 70 80 90 100 120 PTX120"),
    ),
    "catboost": (
        Release(
            versions=">=1.2.5,<1.2.10",
            source=CATBOOST_SOURCE,
            cuda=(11,),
            archs="35 52 60 61 70 80 86 89 90 PTX61",
            optional=True,
        ),
        Release(
            versions="==1.2.10",
            source=CATBOOST_SOURCE,
            cuda=(11,),
            archs="61 70 75 80 86 89 90 PTX60 PTX90",
            optional=True,
        ),
    ),
}
TREES: Final = releases_component("trees", TREES_TABLE)


ONNX_SOURCE: Final = (
    "https://onnxruntime.ai/docs/execution-providers/CUDA-ExecutionProvider.html#requirements, "
    "and the fatbins of libonnxruntime_providers_cuda.so in the wheel"
)
CTRANSLATE2_SOURCE: Final = (
    "https://opennmt.net/CTranslate2/installation.html and CHANGELOG.md, "
    "and the fatbins of libctranslate2.so in the wheel"
)
PADDLE_SOURCE: Final = (
    "https://www.paddlepaddle.org.cn/documentation/docs/en/install/pip/linux-pip_en.html, "
    "and the fatbins of libpaddle.so in the wheel"
)
MXNET_SOURCE: Final = "https://mxnet.apache.org/versions/1.9.1/get_started, and the fatbins of libmxnet.so in the wheel"
Pythons = tuple[Version, Version]

_ONNX_TO_80: Final = "52 60 61 70 75 80 PTX80"
_ONNX_TO_90: Final = "60 70 75 80 86 90 PTX90"
_CT2_TO_86: Final = "53 60 61 70 75 80 86 PTX86"
_ONNX_EXTRAS: Final = frozenset({"cuda", "cudnn"})


def _release(
    source: str,
    versions: str,
    cuda: int,
    cudnn: int,
    archs: str,
    pythons: Pythons | None = None,
    *,
    extras: bool = False,
) -> Release:
    """Wheels that load CUDA's libraries from outside; `extras`: those that bring them exist."""
    return Release(
        versions=versions,
        source=source,
        cuda=(cuda,),
        cudnn=cudnn,
        archs=archs,
        pythons=pythons,
        libraries="outside",
        bringing=_ONNX_EXTRAS if extras else frozenset(),
    )


_onnx = partial(_release, ONNX_SOURCE)
_translate = partial(_release, CTRANSLATE2_SOURCE)
_CT2_CUDA_11: Final = "35 50 53 60 61 70 75 80 86 PTX86"
INFERENCE_TABLE: Final[Mapping[str, Sequence[Release]]] = {
    "onnxruntime-gpu": (
        _onnx(">=1.9,<1.15", 11, 8, _ONNX_TO_80),
        _onnx(">=1.15,<1.17", 11, 8, _ONNX_TO_80, ((3, 8), (3, 11))),
        _onnx(">=1.17,<1.19", 11, 8, _ONNX_TO_80, ((3, 8), (3, 12))),
        _onnx(">=1.19,<1.20", 12, 9, _ONNX_TO_80, ((3, 8), (3, 12))),
        _onnx(">=1.20,<1.21", 12, 9, _ONNX_TO_80, ((3, 10), (3, 13))),
        _onnx(">=1.21,<1.24", 12, 9, _ONNX_TO_90, ((3, 10), (3, 13)), extras=True),
        _onnx(">=1.24,<1.27", 12, 9, _ONNX_TO_90, ((3, 11), (3, 14)), extras=True),
        _onnx(">=1.27,<1.29", 13, 9, "75 80 86 89 90 100 120 PTX120", ((3, 11), (3, 14)), extras=True),
        _onnx(">=1.29,<=1.31.1", 13, 9, "75 80 86 89 90 120", ((3, 11), (3, 14)), extras=True),
    ),
    "ctranslate2": (
        _translate(">=3.24,<4", 11, 8, _CT2_CUDA_11, ((3, 8), (3, 12))),
        _translate(">=4.0,<4.5", 12, 8, _CT2_TO_86, ((3, 8), (3, 12))),
        _translate(">=4.5,<4.6", 12, 9, _CT2_TO_86, ((3, 8), (3, 12))),
        _translate(">=4.6,<4.6.3", 12, 9, _CT2_TO_86),
        _translate(">=4.6.3,<=4.8.5", 12, 0, _CT2_TO_86, ((3, 9), (3, 14))),
    ),
    # It requires ctranslate2, of which an installer takes the newest that fits: <4 to 0.10, <5 from 1.0 on.
    "faster-whisper": (
        _translate(">=0.10,<1", 11, 8, _CT2_CUDA_11),
        _translate(">=1.0,<=1.2.1", 12, 0, _CT2_TO_86),
    ),
    "paddlepaddle-gpu": (_release(PADDLE_SOURCE, ">=2.5,<=2.6.2", 11, 8, "61 70 75 80 86"),),
    "mxnet-cu112": (_release(MXNET_SOURCE, ">=1.8,<=1.9.1", 11, 8, "50 60 70 80 86"),),
}


def check_inference(facts: PlanFacts, items: Sequence[StepDistribution]) -> Iterator[Evidence]:
    """What is known of each release; of faster-whisper that of the CTranslate2 that is there, if one is."""
    names = {item.name for item in items}
    for item in items:
        if item.name == "faster-whisper" and "ctranslate2" in names:
            continue
        if item.name == "onnxruntime":
            yield from _cpu_build(facts, item, "onnxruntime-gpu" in names)
        else:
            yield from check_releases(facts, [item], INFERENCE_TABLE)


def _cpu_build(facts: PlanFacts, item: StepDistribution, both: bool) -> Iterator[UnknownFact | Finding]:
    """What onnxruntime, which computes on the CPU, means for a step with devices."""
    if both:
        reason = "onnxruntime and onnxruntime-gpu have one module: which of them is imported is not known"
        yield UnknownFact(component=item.name, reason=reason)
    elif facts.packages or any(one.name in USES_DEVICES - {"onnxruntime", "spacy"} for one in distributions(facts)):
        return  # another package computes on the device
    elif requirements_known(facts):
        what = f"{item.title} computes on the CPU, and no other package is known to use the device"
        yield problem_finding(facts, OTHER_VENDOR, what, fix="require onnxruntime-gpu in its place")
    else:
        yield UnknownFact(component=item.name, reason=f"{item.title} computes on the CPU")


INFERENCE: Final = ProofComponent(
    name="inference", distributions=frozenset({*INFERENCE_TABLE, "onnxruntime"}), check=check_inference
)
