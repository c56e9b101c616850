"""Packages that a fork server imports before it forks a fresh process, and what a step was seen to import.

A process of its own imports numpy anew in each step, which takes longer than the process itself. What a step imported
is reported with its result; the next process for the same step is forked from a server that has imported it already.
"""

from __future__ import annotations

import importlib
import os
import sys
from typing import Final, Iterable, Mapping

from stoker.core.usercode import is_user_module

FORKABLE: Final[Mapping[str, str]] = {
    # OpenBLAS: driver/others/memory.c, `pthread_atfork`; https://numpy.org/doc/stable/reference/global_state.html
    "numpy": "OpenBLAS ends its threads before a fork and starts them again with the next large product",
    "scipy": "its OpenBLAS does what numpy's does, and scipy.fft starts threads when it is called with workers",
    # https://arrow.apache.org/docs/cpp/threading.html: pools are created on first use, and anew after a fork
    "pandas": "it starts no threads; pyarrow, which it imports, makes its pool of threads anew after a fork",
    # https://scikit-learn.org/stable/faq.html: a fork is a problem only after a parallel region of OpenMP was run
    "sklearn": "libgomp starts threads with the first parallel region, and an import runs none",
    # https://docs.pytorch.org/docs/stable/notes/multiprocessing.html: a fork is a problem once CUDA is initialized
    "torch": "no import touches a device, and its pools of threads start with the first parallel operator",
}
"""Package → why processes that are forked after its import compute as if each had imported it.

JAX and TensorFlow start threads when they are imported, which a fork does not copy.
"""

_TUNING: Final = (
    "OMP_", "GOMP_", "KMP_", "MKL_", "OPENBLAS_", "GOTO_", "BLIS_", "VECLIB_", "NUMEXPR_",
    "NPY_", "SCIPY_", "SKLEARN_", "ARROW_", "TORCH_", "PYTORCH_", "ATEN_",
)  # fmt: skip


def tuning(environment: Mapping[str, str]) -> dict[str, str]:
    """The variables that such packages read once, when they are imported: how many threads they start, and the like."""
    return {name: value for name, value in environment.items() if name.startswith(_TUNING)}


def load(names: Iterable[str]) -> tuple[str, ...]:
    """Import packages of `FORKABLE`; returns those that this process had not imported before, and could."""
    loaded: list[str] = []
    for name in names:
        if name in FORKABLE and name not in sys.modules:
            try:
                importlib.import_module(name)
            except Exception:  # a package's own code; the step that imports it meets the same error
                continue
            loaded.append(name)
    return tuple(loaded)


class ImportWatch:
    """What the step of a fresh process imports, counted from the fork. `preloaded` were imported for it before."""

    def __init__(self, preloaded: Iterable[str]) -> None:
        self._before = {name for name in FORKABLE if name in sys.modules}.difference(preloaded)
        self._tuning = tuning(os.environ)

    def seen(self) -> tuple[str, ...]:
        """The packages of `FORKABLE` that a process for this step may find imported.

        None if the step changed a variable that they read when they are imported: it has to import them itself.
        """
        if tuning(os.environ) != self._tuning:
            return ()
        names = [name for name in FORKABLE if name in sys.modules and name not in self._before]
        return tuple(name for name in names if not is_user_module(sys.modules[name]))
