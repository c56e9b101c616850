"""What a chart of 100,000 samples costs: `python -m benchmarks.charts`.

Prints a line of JSON for each figure, in milliseconds, medians of nine. The floor is one look at every value.
"""

from __future__ import annotations

import json
import math
import random
import statistics
import time
from typing import Callable

from stoker.report.svg import Drawing, Line, chart

SAMPLES = 100_000
ROUNDS = 9


def median(work: Callable[[], object]) -> float:
    """Milliseconds of a piece of work."""
    took = []
    for _ in range(ROUNDS):
        began = time.perf_counter()
        work()
        took.append((time.perf_counter() - began) * 1000)
    return statistics.median(took)


def main() -> None:
    """Measure, and print a line for each figure."""
    source = random.Random(1)
    values = [50.0 + source.random() for _ in range(SAMPLES)]
    line = Line(places=[float(place) for place in range(SAMPLES)], values=values)
    say("a look at every sample", median(lambda: [value for value in values if math.isfinite(value)]))
    say("a chart of them", median(lambda: chart([line], label="loss", drawing=Drawing(high=100))))


def say(what: str, value: float) -> None:
    """Print a figure."""
    print(json.dumps({"what": what, "milliseconds": round(value, 2)}), flush=True)


if __name__ == "__main__":
    main()
