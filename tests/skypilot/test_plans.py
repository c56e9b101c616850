"""`stoker plan` with catalogs of SkyPilot's that tell less, or what nobody understands: they refuse no step."""

from __future__ import annotations

import csv
import io
import json
import os
import random
from typing import Any

import pytest
from tests.servers.programs import ORDINARY, asking
from tests.skypilot.conftest import Double
from tests.skypilot.test_grammars import CUDO, GCP, LAMBDA, VAST

STACK = """
stack = "sky"
[stacks.sky]
artifact_store = "s3://bucket/store"
orchestrator = { flavor = "skypilot" }
"""


def thinned(text: str, dice: random.Random) -> str:
    """A catalog without some of its columns, without some of its fields, and with words that are no numbers."""
    rows = list(csv.DictReader(io.StringIO(text)))
    names = [name for name in rows[0] if dice.random() > 0.3]
    out = io.StringIO()
    writer = csv.DictWriter(out, [*names, "OfANewerRelease"], extrasaction="ignore")
    writer.writeheader()
    writer.writerows([{name: dice.choice([value, value, "", "n/a"]) for name, value in row.items()} for row in rows])
    return out.getvalue()


@pytest.mark.parametrize("seed", [1, "bytes", *(pytest.param(seed, marks=pytest.mark.long) for seed in (None, 2))])
def test_a_catalog_that_tells_less_refuses_nothing(project: Any, double: Double, tmp_path: Any, seed: Any) -> None:
    for cloud, text in {"lambda": LAMBDA, "vast": VAST, "gcp": GCP, "cudo": CUDO}.items():
        file = tmp_path / ".sky/catalogs/v8" / cloud / "vms.csv"
        file.parent.mkdir(parents=True)
        data = (thinned(text, random.Random(seed)) if isinstance(seed, int) else text).encode()
        file.write_bytes(data[:200] + b"\xff\x00," + data[200:] if seed == "bytes" else data)
    program = asking(*ORDINARY, 'accelerators="trainium:16", nodes=2', 'cpu_count=8, spot=True, disk="200GB"')
    project.write({"train.py": program, "stoker.toml": STACK})
    path = {"PATH": f"{double.command.parent}:{os.environ['PATH']}"}
    done = project.stoker("plan", "train.py", "--json", code=None, env=path)
    errors = [one for one in json.loads(done.stdout)["findings"] if one["level"] == "error"]
    assert (done.returncode, errors) == (0, []), done.stderr
