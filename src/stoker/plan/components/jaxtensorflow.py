"""JAX and TensorFlow: the CUDA, cuDNN and drivers that their releases need, and the chips that they have code for."""

from __future__ import annotations

from typing import Final, Iterator, Mapping, Sequence

import attrs

from stoker.core.receipt import Fact, UnknownFact
from stoker.plan.components.base import Evidence, ProofComponent, no_facts, problem_finding
from stoker.plan.components.releases import (
    LIBRARIES,
    Release,
    chips_fit,
    driver_fits,
    libraries_fit,
    python_fits,
    release_of,
    releases_component,
)
from stoker.plan.requirements import numbers
from stoker.plan.rules import PlanFacts, StepDistribution
from stoker.vendors.builds import Version, dotted

INSTALLATION: Final = "https://docs.jax.dev/en/latest/installation.html, and the fatbins of the plugin's _linalg.so"


def _plugin(versions: str, cuda: int, archs: str) -> Release:
    return Release(versions=versions, source=INSTALLATION, cuda=(cuda,), archs=archs, cudnn=9, libraries="outside")


PLUGINS: Final[Mapping[int, Sequence[Release]]] = {
    12: (
        _plugin(">=0.4.30,<0.6", 12, "50 60 70 80 90 PTX90"),
        _plugin(">=0.6,<0.10", 12, "50 60 70 80 90 100 120 PTX120"),
        _plugin(">=0.10,<=0.12.0.1", 12, "50 60 70 80 90 100 101 120 PTX120"),
    ),
    13: (
        _plugin(">=0.7.2,<0.10", 13, "75 80 90 100 120 PTX120"),
        _plugin(">=0.10,<=0.12.0.1", 13, "75 80 90 100 110 120 PTX120"),
    ),
}
"""Major version of CUDA → the releases of its plugin. cuDNN: Requires-Dist of the plugin with its extra `with-cuda`."""
PYTHONS: Final[Sequence[tuple[Version, Version]]] = (
    ((0, 12), (3, 12)),
    ((0, 7), (3, 11)),
    ((0, 4, 31), (3, 10)),
    ((0, 4, 14), (3, 9)),
)
"""First release of JAX → the oldest Python that it supports: Requires-Python of the wheels."""
NEWEST_PYTHONS: Final[Sequence[tuple[Version, Version]]] = (
    ((0, 7, 1), (3, 14)),
    ((0, 4, 34), (3, 13)),
    ((0, 4, 17), (3, 12)),
    ((0, 4, 6), (3, 11)),
)
"""First release of JAX → the newest Python that jaxlib has wheels for: the tags of the wheels."""
_NAMES: Final = frozenset(
    {"jax", "jaxlib", *(f"jax-cuda{major}-{part}" for major in PLUGINS for part in ("plugin", "pjrt"))}
)


def check(facts: PlanFacts, items: Sequence[StepDistribution]) -> Iterator[Evidence]:
    """Whether JAX's backend is one for the step's devices, and runs on its driver and chips."""
    package = facts.package("jax")
    named = {item.name: item for item in items}
    item = named.get("jax") or named.get("jaxlib") or items[0]
    if package is None:
        yield no_facts(item)
        return
    build = package.build
    kinds = {held.kind for held in facts.targets}
    if kinds == {"tpu"} and build.tpu:
        yield Fact(component="jax", fact=f"{package.text} brings libtpu", source=INSTALLATION)
        return
    if not build.cuda or kinds - {"nvidia"}:
        target = build.target or "devices that are not known"
        yield UnknownFact(component="jax", reason=f"jax {build.version} is for {target}".replace("  ", " "))
        return
    row = release_of(facts, item, PLUGINS.get(build.cuda[0], ()))
    if row is None:
        yield no_facts(item, f"with CUDA {dotted(build.cuda)}")
        return
    floor = next((low for first, low in PYTHONS if numbers(item.version) >= first), None)
    if floor is not None:
        ceiling = next((high for first, high in NEWEST_PYTHONS if numbers(item.version) >= first), floor)
        yield from python_fits(facts, item, (floor, ceiling), INSTALLATION)
    yield from chips_fit(facts, item, row)
    yield from driver_fits(facts, item, row.cuda)
    if _brings_libraries(items, row.cuda[0]):
        text = f"{item.title} brings the libraries of CUDA {dotted(row.cuda)} by its extra"
        yield Fact(component="jax", fact=text, source=INSTALLATION)
        yield from _cudnn_fits(facts, item, row)
    else:
        yield from libraries_fit(facts, item, row)


def _cudnn_fits(facts: PlanFacts, item: StepDistribution, row: Release) -> Iterator[Evidence]:
    """Whether a cuDNN that is pinned beside the extras is one that they allow."""
    pinned = facts.requirements.get(f"nvidia-cudnn-cu{row.cuda[0]}")
    if pinned is None or not pinned.pinned or facts.locked:
        return
    if numbers(pinned.pinned)[0] != row.cudnn:
        what = f"{item.title} requires cuDNN {row.cudnn} by its extra, and the requirements pin {pinned.text}"
        fix = f"leave {pinned.name} out, which the extra brings"
        yield problem_finding(facts, LIBRARIES, what, why=f"source: {INSTALLATION}", fix=fix)
    else:
        reason = f"{item.title} requires cuDNN of its own build or newer, and the requirements pin {pinned.text}"
        yield UnknownFact(component="jax", reason=reason)


def _brings_libraries(items: Sequence[StepDistribution], major: int) -> bool:
    """Whether the extras require CUDA's libraries; those that end in "-local" take what is in the image."""
    wanted = {f"cuda{major}", f"cuda{major}-pip", "with-cuda", *(["cuda"] if major == 12 else [])}
    return any(item.extras & wanted for item in items)


JAX: Final = ProofComponent(name="jax", distributions=_NAMES, check=check)


TESTED: Final = "https://www.tensorflow.org/install/source#gpu, and the fatbins of libtensorflow_cc.so.2 in the wheel"
_TO_70: Final = "35 37 52 60 61 70 PTX70"
_TO_80: Final = "35 50 60 70 75 80 PTX80"
_TO_80_FROM_50: Final = "50 60 70 75 80 PTX80"
_FROM_2_17: Final = "60 70 80 89 90 PTX90"
_AND_CUDA: Final = frozenset({"and-cuda"})
_NEWEST: Final = (9, 0)
"""The newest chip that a release was built for; for newer ones the driver compiles all kernels from PTX, which fails in
places: https://github.com/tensorflow/tensorflow/issues/90291."""


def _row(
    versions: str, cuda: Version, cudnn: int, archs: str, pythons: tuple[Version, Version], *, extra: bool = True
) -> Release:
    return Release(
        versions=versions,
        source=TESTED,
        cuda=cuda,
        cudnn=cudnn,
        archs=archs,
        newest=_NEWEST,
        pythons=pythons,
        libraries="outside",
        bringing=_AND_CUDA if extra else frozenset(),
    )


ROWS: Final[Sequence[Release]] = (
    _row(">=2.1,<2.2", (10, 1), 7, _TO_70, ((3, 5), (3, 7)), extra=False),
    _row(">=2.2,<2.4", (10, 1), 7, _TO_70, ((3, 5), (3, 8)), extra=False),
    _row(">=2.4,<2.5", (11, 0), 8, _TO_80, ((3, 6), (3, 8)), extra=False),
    _row(">=2.5,<2.7", (11, 2), 8, _TO_80, ((3, 6), (3, 9)), extra=False),
    _row(">=2.7,<2.11", (11, 2), 8, _TO_80, ((3, 7), (3, 10)), extra=False),
    _row(">=2.11,<2.12", (11, 2), 8, _TO_80, ((3, 7), (3, 10)), extra=False),
    _row(">=2.12,<2.14", (11, 8), 8, _TO_80, ((3, 8), (3, 11)), extra=False),
    _row(">=2.14,<2.15", (11, 8), 8, _TO_80, ((3, 9), (3, 11))),
    attrs.evolve(
        _row("==2.15.0", (12, 2), 8, _TO_80_FROM_50, ((3, 9), (3, 11))),
        broken_image="https://github.com/tensorflow/tensorflow/issues/62412",
    ),
    _row(">2.15.0,<2.16", (12, 2), 8, _TO_80_FROM_50, ((3, 9), (3, 11))),
    # 2.16.1 does not look for the libraries of its own extra: https://github.com/tensorflow/tensorflow/issues/63362.
    _row(">=2.16,<2.16.2", (12, 3), 8, "50 60 70 80 90 PTX90", ((3, 9), (3, 12)), extra=False),
    _row(">=2.16.2,<2.17", (12, 3), 8, "50 60 70 80 90 PTX90", ((3, 9), (3, 12))),
    _row(">=2.17,<2.18", (12, 3), 8, _FROM_2_17, ((3, 9), (3, 12))),
    _row(">=2.18,<2.20", (12, 5), 9, _FROM_2_17, ((3, 9), (3, 12))),
    _row(">=2.20,<2.21", (12, 5), 9, _FROM_2_17, ((3, 9), (3, 13))),
    _row("==2.21.0", (12, 5), 9, _FROM_2_17, ((3, 10), (3, 13))),
)
TABLE: Final[Mapping[str, Sequence[Release]]] = {"tensorflow": ROWS, "tensorflow-gpu": ROWS[:5]}
"""tensorflow-gpu is the same wheel under another name, to 2.10; later ones only say that it was removed."""
TENSORFLOW: Final = releases_component("tensorflow", TABLE)
