"""`stoker store check|migrate`, `stoker gc`: read every artifact and compare it with its digest; copy the database into
one of another kind; remove old runs, and what no run needs."""

from __future__ import annotations

import json
import os
import re
import time
from pathlib import Path
from typing import Any, Callable, Collection, Final, Mapping, Sequence

import attrs
import click

from stoker import stacks
from stoker.backends.base.backend import LeftJob, Leftover, Sweep
from stoker.backends.registry import BACKENDS
from stoker.cli.output import json_option, paint, print_json, stack_option
from stoker.client import Client
from stoker.client.leftjobs import left_jobs, parts_by_backend, shown_status
from stoker.core import units
from stoker.core.errors import EXIT_INFRASTRUCTURE, BackendError, UsageError
from stoker.core.words import count_text, memory_text
from stoker.images import environments
from stoker.images.layers import LayerCache
from stoker.report.streams import echo, say
from stoker.run.left import names, recorded_jobs
from stoker.stacks import Retention
from stoker.store import check as artifact_sweep
from stoker.store.check import COPY, Damage, StoreCheck, check_store
from stoker.store.database import Database
from stoker.store.moving import copy_database
from stoker.store.rows import RunRow
from stoker.store.store import Store
from stoker.worker import survivors

SHOWN: Final = 5
"""Outputs that are named for each damaged artifact."""


@click.group("store")
def store() -> None:
    """Look after the store."""


@store.command("check")
@click.option("--repair", is_flag=True, help="Set damaged files aside, and forget cached results that need them.")
@stack_option
@json_option
def check(*, repair: bool, client: Client, as_json: bool) -> int:
    """Read everything in the store; exit code 4 if an artifact, a receipt or the database is damaged or lost.

    Artifacts are outputs, cached results, and what plans name: arguments of runs and packages of code.

    With --repair, a damaged file moves into the folder `quarantine`, is fetched again where the artifacts are in an
    object store, and no cached result needs it any more: the next run computes it again. The exit code is 0 only if
    nothing is damaged or lost any more.
    """
    result = check_store(client.store, repair=repair)
    if as_json:
        print_json({"whole": result.whole, **attrs.asdict(result)})
    else:
        for line in lines(result, repair=repair):
            echo(line)
    return 0 if result.whole else EXIT_INFRASTRUCTURE


@store.command("migrate")
@click.argument("database", metavar="URI")
@stack_option
@json_option
def migrate(*, database: str, client: Client, as_json: bool) -> None:
    """Copy the store's database into an empty one: sqlite:///path/stoker.db or postgresql://user@host/name.

    Runs, steps, results in rows, cache, metrics, names, models, schedules: every row, as it is at one moment, or none.
    What was copied is read again and compared. The database that is there stays, and so do artifacts, logs and
    checkpoints: the stack names the new database from then on.
    """
    records = client.store.records
    running = [run.id for run in all_runs(client.store) if shown_status(run) == "running"]
    if running:
        raise UsageError(
            f"{count_text(len(running), 'run')} would go on in the old database: {', '.join(running[:SHOWN])}",
            fix="wait until they have ended, or `stoker cancel RUN`",
        )
    target = Database(database)
    try:
        counts = copy_database(records.database, target, lambda name, rows: say(f"{name}: {count_text(rows, 'row')}"))
    finally:
        target.close()
    if as_json:
        print_json({"database": target.label, "rows": counts})
        return
    echo(f"copied {count_text(sum(counts.values()), 'row')} to {target.label}, and compared them")
    echo(f"to use it, the stack says: database = {json.dumps(target.label)}")


def lines(result: StoreCheck, *, repair: bool) -> list[str]:
    """The result in words."""
    texts = [_line(damage) for damage in result.damages]
    if result.database:
        texts.append(f"{paint('✗', '31')} the database is damaged: {result.database}")
    texts += [f"{paint('✗', '31')} a receipt of {place} cannot be read" for place in result.receipts]
    read = f"{count_text(result.blobs, 'artifact')} ({memory_text(result.bytes)})"
    texts.append(f"read {read} and {count_text(result.values, 'value')} in rows; {result.unneeded} that nothing names")
    if repair:
        moved, forgotten = count_text(len(result.aside), "file"), count_text(result.forgotten, "cached result")
        texts.append(f"moved {moved} aside, forgot {forgotten}")
    wrong = sum(not damage.repaired for damage in result.damages)
    if result.whole:
        texts.append(f"{paint('✓', '32')} nothing is damaged or lost")
    elif wrong:
        fix = "run the steps again that made them" if repair else "`stoker store check --repair`"
        texts.append(f"{count_text(wrong, 'artifact')} damaged or lost\n  fix: {fix}")
    return texts


def _line(damage: Damage) -> str:
    needed = ", ".join(damage.users[:SHOWN]) + (", …" if len(damage.users) > SHOWN else "") or "no output"
    mark = paint("✓", "32") if damage.repaired else paint("✗", "31")
    if damage.users == (COPY,):
        repair = "was damaged and is removed; a step that needs it makes it again" if damage.repaired else "is damaged"
        return f"{mark} the copy that was unpacked from {damage.digest} {repair}"
    state = "was damaged and is fetched again" if damage.repaired else f"is {damage.state}"
    return f"{mark} {damage.digest} {state}; needed by {needed}"


_DIGEST: Final = re.compile(r"(?<![0-9a-f])[0-9a-f]{64}(?![0-9a-f])")
SCRATCH_AGE: Final = 86400.0
"""Seconds after which a scratch file of a dead driver is deleted."""


@click.command("gc")
@click.option("--older-than", metavar="TIME", help="Delete finished runs that ended this long ago, such as 30d.")
@click.option("--keep", type=click.IntRange(min=0), help="Delete finished runs but the newest N of each pipeline.")
@click.option(
    "--force",
    is_flag=True,
    help="Remove also what belongs to runs that can be resumed, and end what still runs of them.",
)
@click.option("--dry-run", is_flag=True, help="Say what would go and delete nothing.")
@stack_option
@json_option
def gc(*, older_than: str | None, keep: int | None, force: bool, dry_run: bool, client: Client, as_json: bool) -> None:
    """Remove old runs and what nothing needs any more.

    With --older-than and --keep, a run goes if both say so. Without either, the stack's `retention` says which; a stack
    without it deletes no run. Environments of steps go by --older-than alone, by when a step used them last.

    What the jobs of an interrupted run are doing or have done stays until the run is resumed or deleted. With --force
    jobs that still run are ended; results are kept also then.
    """
    store = client.store
    now = time.time()
    before = None if older_than is None else now - units.duration(older_than)
    runs = all_runs(store)
    rules = stacks.load(client.stack).retention if older_than is None and keep is None else Retention(keep=keep)
    old = old_runs(runs, rules if before is None else attrs.evolve(rules, older_than=now - before), now=now)
    status = {run.id: shown_status(run) for run in runs}
    resumable = {id for id, shown in status.items() if shown in ("interrupted", "failed", "cancelled")}
    left, unknown = ([], "") if not resumable else left_jobs_or_reason(store.home, resumable)
    if unknown:
        say(f"not looked into: {unknown}")
    waiting = {job.run for job in left}
    for run in [] if force else [run for run in old if run.id in waiting]:
        old.remove(run)
        say(f"run {run.id} stays: jobs of it run or wait to be adopted; --force deletes it with them")
    sizes = [store.checkpoints.size(run.id) for run in old]
    checkpoints = sum(size or 0 for size in sizes)
    document: dict[str, Any] = {
        "dry_run": dry_run,
        "runs": [run.id for run in old],
        "checkpoint_bytes": None if None in sizes else checkpoints,
    }
    if dry_run:
        blobs = artifact_sweep.unreferenced(store, more=[job.result for job in left])
        document.update(artifacts=len(blobs), bytes=sum(map(store.blobs.size, blobs)) + checkpoints)
    else:
        for run in old:
            # Checkpoints first: an interruption leaves a run that the next call finds again.
            store.checkpoints.delete(run.id)
            store.records.delete_run(run.id)
            store.logs.delete(run.id)
        if unknown and store.blobs.is_remote:
            say("artifacts stay: results of runs that can be resumed may name them")
            document.update(artifacts=0, bytes=checkpoints)
        else:
            artifacts = artifact_sweep.sweep(store, now=now, more=[job.result for job in left])
            document.update(artifacts=artifacts.blobs, bytes=artifacts.bytes + checkpoints)
    running = "running" in status.values()
    stale = [] if running else stale_scratch(Path(store.home) / "scratch", now - SCRATCH_AGE)
    for path in () if dry_run else stale:
        path.unlink(missing_ok=True)
    document["scratch_files"] = len(stale)
    if not dry_run:
        survivors.sweep()
    unused, size = environments.sweep(Path(store.home), before=before, dry_run=dry_run)
    document.update(environments=unused, environment_bytes=size)
    layers, size = LayerCache(Path(store.home)).sweep(before=before, dry_run=dry_run)
    document.update(image_layers=layers, image_layer_bytes=size)
    gone = set(document["runs"])
    recorded = {
        run: names(job for part in parts.values() for job in part) for run, parts in recorded_jobs(store).items()
    }
    document["left_jobs"] = recorded
    for run_id, jobs in recorded.items():
        say(f"run {run_id} may have left {', '.join(jobs)}, which did not end with it: stoker cancel {run_id} ends it")
    swept = sweep_platforms(
        store.home,
        Sweep(
            scratch=str(Path(store.home) / "scratch"),
            artifacts=store.blobs.uri,
            running={id for id, shown in status.items() if shown == "running"},
            interrupted={id for id, shown in status.items() if shown == "interrupted"} - gone,
            resumable=resumable - gone,
            force=force,
            known={run.id for run in runs if run.id not in gone},
            ours={run.id for run in runs},
            needed=lambda: {digest for text in store.records.references() for digest in _DIGEST.findall(text)},
            now=now,
            dry_run=dry_run,
            say=say,
        ),
    )
    document.update({one.kind: one.count for one in swept})
    document.update({f"{one.noun}_bytes": one.size for one in swept if one.size is not None})
    if as_json:
        print_json(document)
    else:
        echo(summary(document, swept))


def left_jobs_or_reason(home: str, runs: Collection[str]) -> tuple[list[LeftJob], str]:
    """The jobs that runs left, and why not all of them are known; empty where they are."""
    try:
        return left_jobs(home, runs), ""
    except BackendError as error:
        return [], str(error)


def all_runs(store: Store) -> list[RunRow]:
    """Every run, newest first."""
    return list(store.records.every_run())


def old_runs(
    runs: Sequence[RunRow], rules: Retention, *, now: float, status: Callable[[RunRow], str] = shown_status
) -> list[RunRow]:
    """The runs that rules let go; `runs` is newest first."""
    counts: dict[str, int] = {}
    old = []
    for run in runs:
        counts[run.pipeline] = counts.get(run.pipeline, 0) + 1
        rule = rules.pipelines.get(run.pipeline, rules)
        if rule.older_than is None and rule.keep is None:
            continue
        if not {*rules.tags, *rule.tags}.isdisjoint(run.tags):
            continue
        # A run whose driver died has no end; its last heartbeat counts.
        ended = run.ended or run.heartbeat or run.created
        is_old = rule.older_than is None or ended < now - rule.older_than
        if is_old and (rule.keep is None or counts[run.pipeline] > rule.keep) and status(run) != "running":
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


def sweep_platforms(home: str, sweep: Sweep) -> list[Leftover]:
    """Remove what earlier runs left on the backends' platforms; returns what was removed, by kind."""
    options = parts_by_backend(home)
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
        size += ", and checkpoints of unknown size," if checkpoints is None else ""
        text = f"deleted {count_text(runs, 'run')} and {count_text(artifacts, 'artifact')}: {size} are free again"
        return "\n".join([text, *_environment_lines(document, "deleted"), *_platform_lines(swept, "deleted")])
    size = memory_text(document["bytes"] - (checkpoints or 0))
    lines = [f"would delete {count_text(runs, 'run')}"]
    lines += [f"  {id}" for id in document["runs"]]
    if checkpoints is None:
        lines.append("would delete their checkpoints, of unknown size")
    elif checkpoints:
        lines.append(f"would delete {memory_text(checkpoints)} of their checkpoints")
    lines.append(
        f"would delete {count_text(artifacts, 'artifact')} that no run needs, {size}, unless put within the hour"
    )
    lines += ["and those that only these runs need"] if runs else []
    return "\n".join([*lines, *_environment_lines(document, "would delete"), *_platform_lines(swept, "would delete")])


def _environment_lines(document: Mapping[str, Any], verb: str) -> list[str]:
    """Lines about deleted environments of steps, and about what was known of images; none if there are none."""
    count, size = len(document["environments"]), memory_text(document["environment_bytes"])
    lines = [f"{verb} {count_text(count, 'environment')} that no step used since, {size}"] if count else []
    layers, size = document["image_layers"], memory_text(document["image_layer_bytes"])
    return [*lines, f"{verb} {count_text(layers, 'list')} of what images have, {size}"] if layers else lines


def _platform_lines(swept: Sequence[Leftover], verb: str) -> list[str]:
    """Lines about what was removed from platforms."""
    return [
        f"{verb} {count_text(one.count, one.noun)} {one.rest}"
        + ("" if one.size is None else f", {memory_text(one.size)} with what they share")
        for one in swept
        if one.count
    ]
