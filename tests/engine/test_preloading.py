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
def fresh():
    first = plain(0)
    plain.with_options(after=first, id="again")(1)
    careful(0)
    told()
    held()

if __name__ == "__main__":
    fresh()
"""


def test_a_fresh_process_finds_what_its_step_imported_before(lab: Any) -> None:
    """From the second process of a step on; never where the step sets variables before it imports."""
    lab.write("fresh.py", FRESH)
    seen: list[dict[str, Any]] = []
    for content in (None, None, '["nonsense"]', '{"a": 1, "b": ["os"]}'):
        if content is not None:
            (Path(lab.home) / "imports.json").write_text(content)
        lab.run("fresh.py", env={"STOKER_SIMULATE": "1xH100"})
        steps = lab["fresh"].steps
        seen.append({name: steps[name].output.load() for name in ("plain", "again", "careful", "told", "held")})
    first, second, *damaged = seen
    assert first == {"plain": False, "again": True, "careful": [False, 1], "told": [False, 1], "held": [[], False]}
    assert second == {**first, "plain": True, "held": [["numpy", "torch"], False]}
    assert damaged == [first, first], "what is damaged in the file is learned again"
    kept = json.loads((Path(lab.home) / "imports.json").read_text())
    assert sorted(kept.values()) == [["numpy"], ["numpy", "torch"]]
