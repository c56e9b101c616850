"""Where flows are looked for, and paths such as "Train/1qge…/start": what the client's views of flows stand on."""

from __future__ import annotations

import getpass
import json
import os
from typing import Final, Mapping

from stoker.client.client import Client
from stoker.client.runs import Run as StoredRun
from stoker.core.artifact import Artifact, from_wire
from stoker.core.errors import NotFound, UsageError
from stoker.store.rows import StepRow

SPUN: Final = ".spin"
"""What the name of a flow ends in, for runs of one task on its own that were kept."""
_here: dict[str, str | None] = {}
"""The namespace that was chosen in this process, if one was."""


def default_namespace() -> str:
    """Go back to one's own namespace, `user:` and the name; returns it."""
    _here.clear()
    return str(get_namespace())


def get_namespace() -> str | None:
    """The namespace in which flows and runs are looked for; None is everybody's."""
    if "namespace" in _here:
        return _here["namespace"]
    try:
        name = os.environ.get("METAFLOW_USER") or os.environ.get("STOKER_USER") or getpass.getuser()
    except (KeyError, OSError):  # a container's user without a name
        name = "unknown"
    return f"user:{name}"


def namespace(ns: str | None) -> str | None:
    """Look in another namespace from now on; None is everybody's."""
    if ns == "":
        raise UsageError("an empty text is no namespace", fix='write namespace("user:ann") or namespace(None)')
    _here["namespace"] = ns
    return get_namespace()


def parts_of(pathspec: str, count: int, kind: str) -> list[str]:
    """The names in a path; one with too few or too many is refused."""
    parts = pathspec.split("/")
    if len(parts) != count or not all(parts):
        example = "/".join(("Flow", "RUN", "step", "task", "artifact")[:count])
        raise UsageError(f"{pathspec!r} names no {kind}", fix=f"write {kind}('{example}')")
    return parts


def stored_run(flow: str, id: str) -> StoredRun:
    """A run by its path, if it is in the namespace; also a task's that was run on its own, by the flow's name."""
    run = Client().run(id)
    if run.pipeline not in (flow, flow + SPUN):
        raise NotFound(f"run {id} is of '{run.pipeline}', not of '{flow}'")
    wanted = get_namespace()
    if wanted and wanted not in run.tags:
        fix = "namespace(None) looks everywhere, or name another"
        raise NotFound(f"run {id} is not in namespace '{wanted}'", fix=fix)
    return run


def rows_by_step(run: StoredRun) -> dict[str, list[StepRow]]:
    """The rows of a run by the step's name, in the order of the flow."""
    rows: dict[str, list[StepRow]] = {}
    for row in run._store.records.all_steps(run.id):
        rows.setdefault(row.name, []).append(row)
    return dict(sorted(rows.items(), key=lambda item: (item[1][0].position, item[0])))


def constants_of(run: StoredRun) -> Mapping[str, Artifact]:
    """A run's parameters, which every task has."""
    text = run._store.records.plan(run.id)
    found = json.loads(text).get("parameters", {}) if text else {}
    return {name: from_wire(wire) for name, wire in found.items()}
