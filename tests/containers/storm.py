"""Drivers that are killed at random moments while steps run in containers that take several.

    python -m tests.containers.storm --seed 1 --kills 30

No container and no folder of one may be left.
"""

from __future__ import annotations

import random
import sys
import tempfile
from pathlib import Path
from typing import Any

from tests.servers.containers import Engine, import_base, running_engine
from tests.servers.storms import StormRun, options, storm, summary

STACK = """
stack = "engine"
[stacks.engine]
orchestrator = {{flavor = "docker", network = "host", mounts = ["{flags}"]}}
[stacks.engine.settings.docker]
parent_image = "{image}"
skip_build = true
"""


def one(folder: Path, engine: Engine, image: str, kills: int, chance: random.Random) -> dict[str, Any]:
    """One run with so many killed drivers at most; what of it was wrong."""
    flags = folder / "flags"
    flags.mkdir()
    stack = STACK.format(flags=flags, image=image)
    run = StormRun(
        folder=folder, stack=stack, lines=flags / "lines", environment=engine.environment, seconds=(0.3, 3.0)
    )
    outcome = run.play(kills, chance)
    run.stoker("gc")  # of a driver that was killed after it had recorded the run's success
    left = engine.run("ps", "--all", "--format", "{{.Names}}").stdout.split()
    left += [
        str(path) for name in ("scratch/containers", "artifacts/jobs") for path in (folder / "home" / name).iterdir()
    ]
    outcome["wrong"] += [f"left: {name}" for name in left]
    return outcome


def main() -> None:
    """Storm until so many drivers are killed."""
    given = options(30)
    with running_engine() as engine, tempfile.TemporaryDirectory(prefix="stoker-storm-") as folder:
        image = import_base(engine)
        outcome = storm(
            given.kills,
            given.seed,
            Path(folder),
            lambda folder, kills, chance, number: one(folder, engine, image, kills, chance),
        )
    sys.exit(summary(outcome))


if __name__ == "__main__":
    main()
