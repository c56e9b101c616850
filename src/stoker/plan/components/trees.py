"""XGBoost and CatBoost: wheels with their own CUDA, which compute on the GPU if they are told to.

LightGBM's wheels compute on the CPU, or on any GPU by OpenCL, and so have no part in a proof:
https://lightgbm.readthedocs.io/en/stable/GPU-Tutorial.html.
"""

from __future__ import annotations

from typing import Final, Mapping, Sequence

from stoker.plan.components.releases import Release, releases_component

XGBOOST_SOURCE: Final = (
    "https://xgboost.readthedocs.io/en/stable/install.html, and the fatbins of libxgboost.so in the wheel"
)
CATBOOST_SOURCE: Final = (
    "https://catboost.ai/docs/en/features/training-on-gpu, and the fatbins of _catboost.so in the wheel"
)


def _xgboost(versions: str, cuda: int, archs: str) -> Release:
    return Release(versions=versions, source=XGBOOST_SOURCE, cuda=(cuda,), archs=archs, optional=True)


TABLE: Final[Mapping[str, Sequence[Release]]] = {
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
TREES: Final = releases_component("trees", TABLE)
