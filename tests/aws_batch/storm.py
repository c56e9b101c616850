"""Drivers that are killed at random moments while their run goes on at AWS Batch: `make storm-batch SEED=1 N=20`.

moto runs the containers, with our double before it; every second run has calls that AWS throttles. No job with Stoker's
tag may go on.
"""

from __future__ import annotations

import random
import sys
import tempfile
import time
import uuid
from pathlib import Path
from typing import Any

from tests.aws_batch.cluster import BatchAccount, running
from tests.servers.containers import import_base, running_engine
from tests.servers.storms import StormRun, options, storm, summary


def one(folder: Path, account: BatchAccount, kills: int, chance: random.Random, *, unlucky: bool) -> dict[str, Any]:
    """One run with so many killed drivers at most; what of it was wrong."""
    shared = folder / "shared"
    shared.mkdir()
    stack = account.stack(f"b-{uuid.uuid4().hex[:12]}")
    run = StormRun(
        folder=folder,
        stack=stack.replace("host_volumes = {", f'host_volumes = {{"{shared}" = "{shared}", '),
        lines=shared / "lines",
        environment=account.environment,
        links=2,
        parts=3,
        seconds=(1.0, 15.0),
    )
    outcome = run.play(kills, chance, lambda: unlucky and account.control(faults=chance.randrange(6)))
    account.control(faults=0)
    end = time.monotonic() + 60.0
    while account.live() and time.monotonic() < end:
        time.sleep(0.2)
    outcome["wrong"] += [f"goes on: {row['jobName']}" for row in account.live()]
    return outcome


def main() -> None:
    """Storm until so many drivers are killed."""
    given = options(20)
    with tempfile.TemporaryDirectory() as scratch, running_engine() as engine:
        import_base(engine)
        with running(Path(scratch), engine) as account:
            outcome = storm(
                given.kills,
                given.seed,
                Path(scratch) / "runs",
                lambda folder, kills, chance, number: one(folder, account, kills, chance, unlucky=number % 2 == 1),
            )
    sys.exit(summary(outcome))


if __name__ == "__main__":
    main()
