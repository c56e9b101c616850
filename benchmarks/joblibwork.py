"""The same work with joblib, as a program: `python -m benchmarks.joblibwork NAME N`, one process a run.

`chain` calls a function N times whose results joblib keeps in $STOKER_HOME; in a second process with the same folder it
reads them. `array` hands N MiB of numbers from one such function to the next. `fresh` sends N calls to a worker that
joblib keeps, each of which imports NumPy. `three` is three such functions from nothing, as a whole process.
"""

from __future__ import annotations

import json
import os
import sys
import time
from typing import Any, Callable


def memory() -> Any:
    from joblib import Memory

    return Memory(os.environ["STOKER_HOME"], verbose=0)


def one() -> int:
    return 1


def plus(x: int) -> int:
    return x + 1


def gibibyte(n: int) -> Any:
    import numpy as np

    return np.random.default_rng(0).random(n * (1 << 18), dtype=np.float32)


def summed(array: Any) -> float:
    return float(array.sum())


def with_numpy(x: int) -> int:
    import numpy

    return x + len(numpy.zeros(1))


def chain(n: int) -> None:
    kept = memory()
    first, more = kept.cache(one), kept.cache(plus)
    value = first()
    for _ in range(n - 1):
        value = more(value)


def array(n: int) -> None:
    from joblib import Memory

    kept = Memory(os.environ["STOKER_HOME"], mmap_mode="r", verbose=0)
    kept.cache(summed)(kept.cache(gibibyte)(n))


def fresh(n: int) -> None:
    from joblib import Parallel, delayed

    with Parallel(n_jobs=2, batch_size=1) as workers:
        value = 0
        for _ in range(n):  # one after the other, as the steps of a chain
            (value,) = workers([delayed(with_numpy)(value)])


WORK: dict[str, Callable[[int], None]] = {"chain": chain, "array": array, "fresh": fresh, "three": lambda n: chain(3)}


def main() -> None:
    name, n = sys.argv[1], int(sys.argv[2])
    started = time.perf_counter()
    WORK[name](n)
    print(json.dumps({"seconds": time.perf_counter() - started}))


if __name__ == "__main__":
    main()
