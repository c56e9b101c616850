"""ONNX Runtime, CTranslate2, PaddlePaddle and MXNet: wheels that load CUDA's libraries from outside."""

from __future__ import annotations

from functools import partial
from typing import Final, Iterator, Mapping, Sequence

from stoker.core.findings import Finding
from stoker.core.proof import UnknownFact
from stoker.plan.components.base import Evidence, ProofComponent, problem_finding
from stoker.plan.components.cudalibraries import requirements_known
from stoker.plan.components.known import USES_DEVICES
from stoker.plan.components.releases import OTHER_VENDOR, Release, check_releases
from stoker.plan.distributions import StepDistribution, distributions
from stoker.plan.rules import PlanFacts
from stoker.vendors.builds import Version

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
TABLE: Final[Mapping[str, Sequence[Release]]] = {
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


def check(facts: PlanFacts, items: Sequence[StepDistribution]) -> Iterator[Evidence]:
    """What is known of each release; of faster-whisper that of the CTranslate2 that is there, if one is."""
    names = {item.name for item in items}
    for item in items:
        if item.name == "faster-whisper" and "ctranslate2" in names:
            continue
        if item.name == "onnxruntime":
            yield from _cpu_build(facts, item, "onnxruntime-gpu" in names)
        else:
            yield from check_releases(facts, [item], TABLE)


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


INFERENCE: Final = ProofComponent(name="inference", distributions=frozenset({*TABLE, "onnxruntime"}), check=check)
