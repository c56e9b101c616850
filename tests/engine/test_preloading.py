"""What steps with a process of their own were seen to import is there from the start of the next one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

FRESH = """
import os, sys
from stoker import pipeline, step
from stoker.config import ResourceSettings

@step(isolation="fresh")
def plain(number: int) -> bool:
    there = "numpy" in sys.modules
    import numpy
    return there

@step(isolation="fresh")
def careful(number: int) -> list:
    there = "numpy" in sys.modules
    os.environ["OPENBLAS_NUM_THREADS"] = "1"
    import numpy
    return [there, len(os.listdir("/proc/self/task"))]

@step(isolation="fresh", environment={"OPENBLAS_NUM_THREADS": "1"})
def told() -> list:
    there = "numpy" in sys.modules
    import numpy
    return [there, len(os.listdir("/proc/self/task"))]

@step(isolation="fresh")
def broken() -> None:
    import numpy
    raise ValueError("no result")

@step(resources=ResourceSettings(accelerators="H100"))
def held() -> list:
    there = [name for name in ("numpy", "torch") if name in sys.modules]
    import numpy, torch
    return [there, torch.cuda.is_initialized()]

@pipeline(cache=False)
def fresh(holds: bool = True):
    first = plain(0)
    plain.with_options(after=first, id="again")(1)
    if holds:
        careful(0)
        told()
        held()

if __name__ == "__main__":
    fresh(holds="--holds" in sys.argv)
"""


def test_a_fresh_process_finds_what_its_step_imported_before(lab: Any) -> None:
    """From the second process of a step on; never where the step sets variables before it imports."""
    lab.write("fresh.py", FRESH)

    def seen(*words: str) -> dict[str, Any]:
        lab.run("fresh.py", *words, env={"STOKER_SIMULATE": "1xH100"})
        return {key: step.output.load() for key, step in lab["fresh"].steps.items()}

    learned = {"plain": False, "again": True}
    first = {**learned, "careful": [False, 1], "told": [False, 1], "held": [[], False]}
    assert seen("--holds") == first
    assert seen("--holds") == {**first, "plain": True, "held": [["numpy", "torch"], False]}
    file = Path(lab.home) / "imports.json"
    assert sorted(json.loads(file.read_text()).values()) == [["numpy"], ["numpy", "torch"]]
    for damaged in ('["nonsense"]', '{"a": 1, "b": ["os"]}'):
        file.write_text(damaged)
        assert seen() == learned, "what is damaged in the file is learned again"
    assert ["numpy"] in json.loads(file.read_text()).values()
