"""`stoker runs`, `stoker artifacts`, `stoker pull RUN [STEP]`: the runs of a store, what their steps made, and how to
get it here."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final, Iterable, Iterator

import attrs
import click

from stoker.cli.output import json_option, print_json, run_argument, stack_option, table
from stoker.client import Client, Output, Run
from stoker.client.leftjobs import SHOWN_STATUSES
from stoker.core.artifact import Preview, StoredArtifact
from stoker.core.errors import EXIT_INFRASTRUCTURE, EXIT_SUCCEEDED, DamagedArtifact
from stoker.core.registry import ARTIFACT, MODEL
from stoker.core.words import count_text, memory_text, time_text
from stoker.report.streams import echo, say
from stoker.store import artifacts
from stoker.store.rows import OutputRow
from stoker.store.store import Store


@click.command("runs")
@click.option("--pipeline", metavar="NAME", help="Only runs of this pipeline.")
@click.option("--status", metavar="STATUS", help=f"Only runs that stand so: {', '.join(SHOWN_STATUSES)}.")
@click.option("--tag", metavar="TAG", help="Only runs with this tag.")
@click.option("--user", metavar="USER[@HOST]", help="Only runs that this user started.")
@click.option("--since", metavar="TIME", help="Only runs of the last while, such as 2h or 7d.")
@click.option("--limit", type=click.IntRange(min=0), default=20, show_default=True, help="How many; 0 is all.")
@stack_option
@json_option
def runs(
    *,
    pipeline: str | None,
    status: str | None,
    tag: str | None,
    user: str | None,
    since: str | None,
    limit: int,
    client: Client,
    as_json: bool,
) -> None:
    """List runs, newest first.

    RUN of other commands is an id, the beginning of one, or "latest", or "last".
    """
    runs = client.runs(pipeline=pipeline, status=status, tag=tag, author=user, since=since, limit=limit or None)
    if as_json:
        print_json([run.as_dict(steps=False) for run in runs])
        return
    if not runs:
        which = "like that" if pipeline or status or tag or user or since else "yet"
        say(f"no runs {which} in {client.store.records.database.label}")
        return
    headers = ("run", "pipeline", "status", "created", "took", "stack", "tags")
    echo(table(headers, [_row(run) for run in runs], right=("took",)))


def _row(run: Run) -> tuple[str, ...]:
    created = run.created.strftime("%Y-%m-%d %H:%M:%S")
    took = time_text(run.active_seconds) if run.active_seconds is not None else ""
    tags = ", ".join(run.tags) + (f" (unreadable: {run.damage})" if run.damage else "")
    return run.id, run.pipeline, run.status, created, took, run.stack, tags


DIGEST: Final = re.compile(r"[0-9a-f]{64}")


@click.command("artifacts")
@click.argument("which", metavar="RUN|DIGEST")
@click.argument("step", required=False)
@stack_option
@json_option
def artifacts_command(*, which: str, step: str | None, client: Client, as_json: bool) -> None:
    """List what a run's steps made, or who made the artifact with a digest; with a step, what it looks like, too."""
    produced_by = DIGEST.fullmatch(which) is not None and step is None
    outputs = client.artifact(which).producers if produced_by else list(_outputs(client, which, step))
    if as_json:
        print_json([output.as_dict() for output in outputs])
        return
    if not outputs:
        say("no artifacts")
        return
    if produced_by:
        producers = [
            (output.run_id, output.step, output.name, output.type, memory_text(output.size)) for output in outputs
        ]
        echo(table(("run", "step", "output", "type", "size"), producers, right=("size",)))
        return
    rows = [
        (output.step, output.name, output.type, _shape(output), memory_text(output.size), output.digest)
        for output in outputs
    ]
    echo(table(("step", "output", "type", "shape", "size", "digest"), rows, right=("size",)))
    for output in outputs if step is not None else ():
        lines = preview_lines(output.preview())
        if lines:
            echo("\n".join(["", f"{output.name}:", *lines]))


def preview_lines(preview: Preview) -> list[str]:
    """A preview as a terminal shows it; a picture is in words."""
    lines = [preview.words, preview.text]
    if preview.rows:
        lines.append(table(preview.headers, preview.rows))
    if preview.picture is not None:
        lines.append(f"a picture of {memory_text(len(preview.picture.data))}: stoker report or stoker ui shows it")
    lines.append(f"… {preview.more}" if preview.more else "")
    return [line for line in lines if line]


def _outputs(client: Client, run_id: str, step: str | None) -> Iterator[Output]:
    run = client.run(run_id)
    for selected in [run.steps[step]] if step is not None else run.steps.values():
        yield from selected.outputs.values()


def _shape(output: Output) -> str:
    shape = "×".join(map(str, output.shape)) if output.shape is not None else ""
    return f"{shape} {output.dtype or ''}".strip()


THREADS: Final = 4
"""Artifacts that are fetched at a time: each costs a round trip, and a login node takes ten sessions of a connection.
https://man.openbsd.org/sshd_config#MaxSessions"""


@attrs.frozen(kw_only=True)
class Pulled:
    """One artifact that was to be fetched."""

    step: str
    output: str
    """The first of the outputs that it belongs to."""
    digest: str
    size: int
    here: bool = False
    """Whether it was here already."""
    problem: str = ""
    """Why it could not be fetched; empty if it is here now."""


def pull(store: Store, run: str, step: str | None = None) -> Iterator[Pulled]:
    """Fetch every artifact that steps of a run made, or one step and its elements; each once, as they arrive.

    Lost and damaged artifacts are reported, and do not keep others back. Raises `StoreError` where the store is not
    reached.
    """
    from concurrent.futures import ThreadPoolExecutor

    lists: list[tuple[OutputRow, StoredArtifact]] = []
    values: dict[str, tuple[OutputRow, StoredArtifact]] = {}
    for row in _rows(store, run, step):
        if row.artifact.serializer == "list":
            lists.append((row, row.artifact))
        else:
            values.setdefault(row.artifact.digest, (row, row.artifact))
    while lists:
        row, artifact = lists.pop()
        if artifact.inline is None:
            yield _pulled(store, row, artifact)
        try:
            parts = artifacts.items(artifact, store.blobs)
        except DamagedArtifact:
            continue  # reported above
        for part in parts:
            if part.serializer == "list":
                lists.append((row, part))
            else:
                values.setdefault(part.digest, (row, part))
    wanted = [(row, artifact) for row, artifact in values.values() if artifact.inline is None]
    with ThreadPoolExecutor(THREADS) as pool:
        yield from pool.map(lambda pair: _pulled(store, *pair), wanted)


def _rows(store: Store, run: str, step: str | None) -> Iterable[OutputRow]:
    for row in store.records.all_steps(run):
        if step is None or step in (row.key, row.parent):
            yield from store.records.outputs(run, row.key)


def _pulled(store: Store, row: OutputRow, artifact: StoredArtifact) -> Pulled:
    here = store.blobs.has_size(artifact.digest, artifact.size)
    problem = ""
    try:
        store.blobs.path(artifact.digest, artifact.size)
    except DamagedArtifact as error:
        problem = error.message
    return Pulled(step=row.key, output=row.name, digest=artifact.digest, size=artifact.size, here=here, problem=problem)


@click.command("pull")
@run_argument
@click.argument("step", required=False, metavar="[STEP|DIR]")
@click.option("--force", is_flag=True, help="Write over what is in the folder.")
@stack_option
@json_option
def pull_command(*, run_id: str, step: str | None, force: bool, client: Client, as_json: bool) -> int:
    """Fetch what a run's steps made from a store elsewhere, so that loading it needs no connection.

    STEP is a step's key, such as train, or that of a fan-out's element. What is here already is not fetched again, and
    what is fetched is compared with its digest. Exit code 4 if something is lost or damaged.

    With artifact:NAME@VERSION or model:NAME@VERSION for RUN, and a folder for STEP, write the named artifact, or the
    artifacts of the model's version, into the folder: files and folders as they were, other values as they are stored.
    """
    if run_id.startswith((ARTIFACT, MODEL)):
        from stoker.client import exchange

        written = exchange.pull(client, run_id, Path(step or "."), force=force)
        if as_json:
            print_json({"ok": True, "files": [str(path) for path in written]})
        else:
            echo("\n".join(map(str, written)))
        return EXIT_SUCCEEDED
    run = client.run(run_id)
    if step is not None:
        step = run.steps[step].key
    store = client.store
    parts: list[Pulled] = []
    for part in pull(store, run.id, step):
        parts.append(part)
        if part.problem:
            say(f"{part.step}.{part.output}: {part.problem}")
        elif not part.here and not as_json:
            say(f"{part.step}.{part.output}  {memory_text(part.size)}")
    problems = [part for part in parts if part.problem]
    if as_json:
        print_json(
            {"ok": not problems, "folder": store.blobs.folder, "artifacts": [attrs.asdict(part) for part in parts]}
        )
    elif not store.blobs.is_remote:
        say(f"nothing to fetch: the artifacts lie in {store.blobs.folder}")
    else:
        fetched = [part for part in parts if not part.here and not part.problem]
        here = sum(part.here and not part.problem for part in parts)
        text = f"fetched {count_text(len(fetched), 'artifact')}, {memory_text(sum(part.size for part in fetched))}"
        if not parts:
            say("nothing to fetch: the values are small, and lie in the database")
        elif fetched or problems:
            say(f"{text}{f'; {here} were here' if here else ''} ({store.blobs.folder})")
        else:
            already = "1 artifact is" if here == 1 else f"{count_text(here, 'artifact')} are"
            say(f"nothing to fetch: {already} here already ({store.blobs.folder})")
    return EXIT_INFRASTRUCTURE if problems else EXIT_SUCCEEDED
