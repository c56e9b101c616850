"""What runs on Kubeflow left in the artifact store: their mailboxes, and Stoker's worker for the pods."""

from __future__ import annotations

from typing import Any, Iterator, Mapping, Sequence

from stoker.backends.base.backend import Leftover, Sweep
from stoker.backends.kubeflow.requests import folder_of
from stoker.core.words import dashed_name
from stoker.store import notes


def sweep_store(parts: Sequence[Mapping[str, Any]], sweep: Sweep) -> Iterator[Leftover]:
    """Remove the folders of runs of this database that nobody continues, and with the last of all runs the worker."""
    folder = folder_of(sweep.artifacts)
    over = {dashed_name(run) for run in sweep.ours} - {dashed_name(run) for run in sweep.kept}
    names = notes.names(folder)
    runs = [name for name in names if name in over]
    workers = [name for name in names if name.endswith(".zip")]
    others = len(names) > len(runs) + len(workers)
    if not sweep.dry_run:
        for name in runs:
            notes.remove_tree(f"{folder}/{name}")
        for name in () if others else workers:
            notes.remove(f"{folder}/{name}")
    yield Leftover(kind="kubeflow_runs", noun="folder", rest="of runs on Kubeflow", count=len(runs))
