"""TensorFlow: the CUDA and cuDNN of each release's tested configuration, and the chips that its wheel has code for."""

from __future__ import annotations

from typing import Final, Mapping, Sequence

import attrs

from stoker.plan.components.releases import Release, releases_component
from stoker.vendors.builds import Version

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
