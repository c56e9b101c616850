"""A rendered job, pasted on a login node, runs on the cluster."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from tests.cli.byhand import code, paste, result, scripts
from tests.servers.slurm import Cluster
from tests.waiting import until


def test_a_script_is_submitted_by_hand(clustered: Any, cluster: Cluster) -> None:
    clustered.write({"train.py": code("environment={'MY_TOKEN': 'secret-1'}")})
    load, total = scripts(clustered)
    assert "#!/bin/bash\n#SBATCH --job-name=training/load\n" in load
    done = paste(load, clustered.folder, MY_TOKEN="x")
    job = re.search(r"Submitted batch job (\d+)", done.stdout)
    assert job is not None, done.stderr
    until(lambda: cluster.jobs()[-1]["state"] in ("COMPLETED", "FAILED"))
    here = re.search(r"its output: (\S+)", done.stdout)
    assert here is not None and "loading 3" in Path(here[1]).read_text()
    assert result(done)["outputs"]["output"]["i"] == "[0,1,2]"
    assert "missing: the inputs numbers of total" in paste(total, clustered.folder).stderr
    elsewhere = paste(load, clustered.folder, MY_TOKEN="x", PATH="/bin")
    assert "missing: sbatch: paste this on a login node" in elsewhere.stderr or "Submitted" in elsewhere.stdout
