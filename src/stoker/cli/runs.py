"""`stoker runs`: the runs, newest first."""

from __future__ import annotations

import click

from stoker.cli.options import json_option, stack_option
from stoker.cli.output import print_json, table
from stoker.client import Client, Run
from stoker.client.liveness import SHOWN_STATUSES
from stoker.core.words import time_text
from stoker.report.streams import echo, say


@click.command("runs")
@click.option("--pipeline", metavar="NAME", help="Only runs of this pipeline.")
@click.option("--status", metavar="STATUS", help=f"Only runs that stand so: {', '.join(SHOWN_STATUSES)}.")
@click.option("--tag", metavar="TAG", help="Only runs with this tag.")
@click.option("--since", metavar="TIME", help="Only runs of the last while, such as 2h or 7d.")
@click.option("--limit", type=click.IntRange(min=0), default=20, show_default=True, help="How many; 0 is all.")
@stack_option
@json_option
def command(
    *,
    pipeline: str | None,
    status: str | None,
    tag: str | None,
    since: str | None,
    limit: int,
    client: Client,
    as_json: bool,
) -> None:
    """List runs, newest first.

    RUN of other commands is an id, the beginning of one, or "latest", or "last".
    """
    runs = client.runs(pipeline=pipeline, status=status, tag=tag, since=since, limit=limit or None)
    if as_json:
        print_json([run.as_dict(steps=False) for run in runs])
        return
    if not runs:
        which = "like that" if pipeline or status or tag or since else "yet"
        say(f"no runs {which} in {client.store.records.database.label}")
        return
    headers = ("run", "pipeline", "status", "created", "took", "stack", "tags")
    echo(table(headers, [_row(run) for run in runs], right=("took",)))


def _row(run: Run) -> tuple[str, ...]:
    created = run.created.strftime("%Y-%m-%d %H:%M:%S")
    took = time_text(run.active_seconds) if run.active_seconds is not None else ""
    tags = ", ".join(run.tags) + (f" (unreadable: {run.damage})" if run.damage else "")
    return run.id, run.pipeline, run.status, created, took, run.stack, tags
