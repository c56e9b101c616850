"""Computes the cache keys of many programs, each in a process of its own that is forked from this one.

Reads rows of JSON from stdin, each with a program's folder; writes for each a row with the key of `flow.train`.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import sys
import traceback
from pathlib import Path
from typing import Any

LIBRARIES = ("numpy", "pandas", "sklearn.preprocessing", "torch.utils.data")
PRELOADED = (
    "attrs",
    "stoker.engine.inputs",
    "stoker.plan.cachekey",
    "stoker.store.artifacts",
    "stoker.store.serializers.arrays",
    "stoker.store.serializers.frames",
    "stoker.store.serializers.pickles",
)
"""Imported once, before the processes are forked; the libraries, too, for programs that need them."""


def main() -> None:
    """Answer rows until stdin ends."""
    for name in (*PRELOADED, *(LIBRARIES if "--libraries" in sys.argv else ())):
        importlib.import_module(name)
    gc.freeze()  # the forked processes copy less
    for line in sys.stdin:
        reading, writing = os.pipe()
        child = os.fork()
        if child == 0:
            os.close(reading)
            with os.fdopen(writing, "w") as answer:
                try:
                    json.dump(key_of(json.loads(line)), answer)
                except BaseException:
                    json.dump({"error": traceback.format_exc()}, answer)
            os._exit(0)
        os.close(writing)
        with os.fdopen(reading) as answer:
            print(answer.read(), flush=True)
        os.waitpid(child, 0)


def key_of(row: dict[str, Any]) -> dict[str, Any]:
    """The key of a program's step and what it is made of; or the step's input, as a step before it saves it."""
    from stoker.core.graph import StepOutput
    from stoker.core.plan import StepPlan
    from stoker.core.protocol import FunctionSource
    from stoker.core.settings import StepSettings
    from stoker.engine.inputs import key_parts
    from stoker.plan.cachekey import InputCode, InstalledEnvironment
    from stoker.plan.digest import read_function_code
    from stoker.store import artifacts
    from stoker.store.blobs import Blobs

    folder = Path(row["folder"])
    os.chdir(folder)
    sys.path[:0] = [str(folder), str(folder / "src"), str(folder / "site-packages")]
    sys.dont_write_bytecode = True
    flow = importlib.import_module("flow")
    if row["make"]:
        save = artifacts.save_split if row["split"] else artifacts.save
        return {"inputs": {"x": {"value": save(flow.make(), Blobs(str(folder / "blobs"))).wire()}}}
    inputs = row["inputs"]
    code = read_function_code(flow.train)
    step = StepPlan(
        key="train",
        name="train",
        source=FunctionSource(kind="module", module="flow", qualname="train", path="flow.py", root="."),
        outputs=(StepOutput(name="output"),),
        unpack=False,
        inputs={},
        settings=StepSettings(),
        backend="orchestrator",
        code=code.digest,
        packages=code.packages,
    )
    parts = key_parts(step, inputs, InstalledEnvironment(), InputCode())
    labels = {part.label: part.digest for part in code.parts}
    shown = {"parts": labels, "inputs": dict(parts.inputs), "more": {**parts.input_code, **parts.environment}}
    lookups = [f"{os.path.basename(lookup.file)}:{lookup.line}" for lookup in code.lookups]
    return {"key": parts.key, "of": shown, "lookups": lookups}


if __name__ == "__main__":
    main()
