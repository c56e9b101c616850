"""What a run's driver and its worker do, counted: `python -m benchmarks.counted SHAPE N`, one process a run.

Prints a line of JSON with numbers that no other work on the machine changes: calls of Python functions, of C functions,
SQL statements and commits, messages and their bytes, modules. Steps of a chain count what their worker does.
"""

from __future__ import annotations

import json
import sys
import threading
from collections import Counter
from typing import Any

FOUND: Counter[str] = Counter()
_SQL = frozenset({"execute", "executemany"})


def count(frame: Any, event: str, argument: Any) -> None:
    """A profile function that adds to `FOUND`."""
    if event == "call":
        FOUND["python calls"] += 1
    elif event == "c_call":
        FOUND["C calls"] += 1
        if argument.__name__ in _SQL:
            FOUND["SQL statements"] += 1
    elif event == "return" and argument is not None and frame.f_code.co_name == "packed":
        FOUND["messages"] += 1
        FOUND["bytes"] += len(argument)


def begin() -> None:
    """Count from now on, in this process."""
    FOUND.clear()
    threading.setprofile(count)
    sys.setprofile(count)


def end() -> dict[str, int]:
    """What was counted."""
    sys.setprofile(None)
    threading.setprofile(None)  # type: ignore[arg-type]
    return dict(FOUND)


def main() -> None:
    """Run a shape twice where it is to be cached, and count the last time."""
    shape, size = sys.argv[1], int(sys.argv[2])
    if shape == "start":
        begin()
    from benchmarks import countedsteps

    if shape == "start":
        countedsteps.chain(size)
        print(json.dumps({"driver": {**end(), "modules": len(sys.modules)}}))
        return
    if shape == "cached":
        countedsteps.plain_chain(size)
        begin()
        countedsteps.plain_chain(size)
        print(json.dumps({"driver": end()}))
        return
    begin()
    run = getattr(countedsteps, shape)(size)
    found = {"driver": end()}
    if shape == "chain":
        found["worker"] = run.steps["told"].output.load()
    print(json.dumps(found))


if __name__ == "__main__":
    main()
