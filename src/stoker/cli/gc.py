"""`stoker gc`: delete old runs if asked to, and then everything that no run needs."""

from __future__ import annotations

import os
import re
import time
from pathlib import Path
from typing import Any, Callable, Final, Mapping, Sequence

import attrs
import click

from stoker import stacks
from stoker.backends.base.backend import Leftover, Sweep
from stoker.backends.registry import BACKENDS
from stoker.cli.options import json_option, stack_option
from stoker.cli.output import print_json
from stoker.client import Client
from stoker.client.liveness import shown_status
from stoker.core import units
from stoker.core.words import count_text, memory_text
from stoker.images import environments
from stoker.store import sweep as artifact_sweep
from stoker.store.records import RunFilter
from stoker.store.rows import RunRow
from stoker.store.store import Store

PAGE: Final = 500
"""Runs that are read in one query."""
_DIGEST: Final = re.compile(r"(?<![0-9a-f])[0-9a-f]{64}(?![0-9a-f])")
SCRATCH_AGE: Final = 86400.0
"""Seconds after which a scratch file of a dead driver is deleted."""


@click.command("gc")
@click.option("--older-than", metavar="TIME", help="Delete finished runs that ended this long ago, such as 30d.")
@click.option("--keep", type=click.IntRange(min=0), help="Delete finished runs but the newest N of each pipeline.")
@click.option("--dry-run", is_flag=True, help="Say what would go and delete nothing.")
@stack_option
@json_option
def command(*, older_than: str | None, keep: int | None, dry_run: bool, client: Client, as_json: bool) -> None:
    """Remove old runs and what nothing needs any more.

    Without --older-than and --keep no run is deleted. With both, a run goes if both say so. Environments of steps go
    by --older-than alone, by when a step used them last.
    """
    store = client.store
    now = time.time()
    before = None if older_than is None else now - units.duration(older_than)
    runs = all_runs(store)
    old = [] if before is None and keep is None else old_runs(runs, before=before, keep=keep)
    checkpoints = sum(store.checkpoints.size(run.id) for run in old)
    document: dict[str, Any] = {"dry_run": dry_run, "runs": [run.id for run in old], "checkpoint_bytes": checkpoints}
    if dry_run:
        blobs = artifact_sweep.unreferenced(store)
        document.update(artifacts=len(blobs), bytes=sum(map(store.blobs.size, blobs)) + checkpoints)
    else:
        for run in old:
            # Checkpoints first: an interruption leaves a run that the next call finds again.
            store.checkpoints.delete(run.id)
            store.records.delete_run(run.id)
            store.logs.delete(run.id)
        artifacts = artifact_sweep.sweep(store, now=now)
        document.update(artifacts=artifacts.blobs, bytes=artifacts.bytes + checkpoints)
    running = any(shown_status(run) == "running" for run in runs)
    stale = [] if running else stale_scratch(Path(store.home) / "scratch", now - SCRATCH_AGE)
    for path in () if dry_run else stale:
        path.unlink(missing_ok=True)
    document["scratch_files"] = len(stale)
    unused, size = environments.sweep(Path(store.home), before=before, dry_run=dry_run)
    document.update(environments=unused, environment_bytes=size)
    gone = set(document["runs"])
    swept = sweep_platforms(
        Sweep(
            scratch=str(Path(store.home) / "scratch"),
            running={run.id for run in runs if shown_status(run) == "running"},
            known={run.id for run in runs if run.id not in gone},
            ours={run.id for run in runs},
            needed=lambda: {digest for text in store.records.references() for digest in _DIGEST.findall(text)},
            now=now,
            dry_run=dry_run,
            say=lambda text: click.echo(text, err=True),
        )
    )
    document.update({one.kind: one.count for one in swept})
    document.update({f"{one.noun}_bytes": one.size for one in swept if one.size is not None})
    if as_json:
        print_json(document)
    else:
        click.echo(summary(document, swept))


def all_runs(store: Store) -> list[RunRow]:
    """Every run, newest first."""
    runs: list[RunRow] = []
    while True:
        page = store.records.runs(RunFilter(limit=PAGE, offset=len(runs)))
        runs += page
        if len(page) < PAGE:
            return runs


def old_runs(
    runs: Sequence[RunRow],
    *,
    before: float | None,
    keep: int | None,
    status: Callable[[RunRow], str] = shown_status,
) -> list[RunRow]:
    """The runs to delete: ended before a time, and not the `keep` newest of a pipeline; `runs` is newest first."""
    counts: dict[str, int] = {}
    old = []
    for run in runs:
        counts[run.pipeline] = counts.get(run.pipeline, 0) + 1
        # A run whose driver died has no end; its last heartbeat counts.
        ended = run.ended or run.heartbeat or run.created
        is_old = before is None or ended < before
        if is_old and (keep is None or counts[run.pipeline] > keep) and status(run) != "running":
            old.append(run)
    return old


def stale_scratch(folder: Path, before: float) -> list[Path]:
    """Files of drivers that are gone."""
    if not folder.is_dir():
        return []
    return [
        Path(entry.path)
        for entry in os.scandir(folder)
        if entry.is_file(follow_symlinks=False) and entry.stat(follow_symlinks=False).st_mtime < before
    ]


def sweep_platforms(sweep: Sweep) -> list[Leftover]:
    """Remove what earlier runs left on the backends' platforms; returns what was removed, by kind."""
    options: dict[str, list[Mapping[str, Any]]] = {}
    for stack in stacks.stacks():
        for component in (stack.orchestrator, *stack.step_operators.values()):
            options.setdefault(component.flavor, []).append(component.options)
    kinds: dict[str, Leftover] = {}
    for name, backend in BACKENDS.parts():
        for one in () if backend.leftovers is None else backend.leftovers(options.get(name, []), sweep):
            total = kinds.get(one.kind, attrs.evolve(one, count=0, size=None))
            size = one.size if total.size is None else total.size + (one.size or 0)
            kinds[one.kind] = attrs.evolve(one, count=total.count + one.count, size=size)
    return list(kinds.values())


def summary(document: Mapping[str, Any], swept: Sequence[Leftover]) -> str:
    """What was deleted, as text."""
    runs, artifacts, checkpoints = len(document["runs"]), document["artifacts"], document["checkpoint_bytes"]
    if not document["dry_run"]:
        size = memory_text(document["bytes"])
        text = f"deleted {count_text(runs, 'run')} and {count_text(artifacts, 'artifact')}: {size} are free again"
        return "\n".join([text, *_environment_lines(document, "deleted"), *_platform_lines(swept, "deleted")])
    size = memory_text(document["bytes"] - checkpoints)
    lines = [f"would delete {count_text(runs, 'run')}"]
    lines += [f"  {id}" for id in document["runs"]]
    lines += [f"would delete {memory_text(checkpoints)} of their checkpoints"] if checkpoints else []
    lines.append(
        f"would delete {count_text(artifacts, 'artifact')} that no run needs, {size}, unless put within the hour"
    )
    lines += ["and those that only these runs need"] if runs else []
    return "\n".join([*lines, *_environment_lines(document, "would delete"), *_platform_lines(swept, "would delete")])


def _environment_lines(document: Mapping[str, Any], verb: str) -> list[str]:
    """A line about deleted environments of steps; none if there are none."""
    count, size = len(document["environments"]), memory_text(document["environment_bytes"])
    return [f"{verb} {count_text(count, 'environment')} that no step used since, {size}"] if count else []


def _platform_lines(swept: Sequence[Leftover], verb: str) -> list[str]:
    """Lines about what was removed from platforms."""
    return [
        f"{verb} {count_text(one.count, one.noun)} {one.rest}"
        + ("" if one.size is None else f", {memory_text(one.size)} with what they share")
        for one in swept
        if one.count
    ]
