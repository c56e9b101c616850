"""`stoker why RUN STEP`: why a step ran or was cached, and what of its cache key changed since when."""

from __future__ import annotations

from typing import Iterator

import click

from stoker.cli.options import json_option, run_argument, stack_option
from stoker.cli.output import paint, print_json, status_text
from stoker.client import Client
from stoker.client.why import KeyChange, StepReason, why
from stoker.report.streams import echo


@click.command("why")
@run_argument
@click.argument("step")
@click.option("--against", metavar="RUN", help="Compare with this run, not with the newest earlier result.")
@stack_option
@json_option
def command(*, run_id: str, step: str, against: str | None, client: Client, as_json: bool) -> None:
    """Say why a step ran or was cached: which code, input, package or setting changed, and since when.

    STEP is a step's key; "train[3]" is one element of a fan-out.
    """
    other = client.run(against).id if against else ""
    answer = why(client.store, client.run(run_id).id, step, against=other)
    if as_json:
        print_json(answer.as_dict())
    else:
        echo("\n".join(_lines(answer)))


def _lines(answer: StepReason) -> Iterator[str]:
    yield f"{paint(answer.step, '1')} of run {answer.run}: {status_text(answer.status)}"
    yield f"  {answer.text}"
    if answer.changes and answer.compared_with:
        when = f" of {answer.since:%Y-%m-%d %H:%M:%S}" if answer.since is not None else ""
        yield f"  compared with {answer.compared_with}{when}"
    for change in answer.changes:
        yield ""
        yield "  " + _headline(change)
        yield from (f"    {paint(line, _colour(line))}" for line in change.diff.splitlines())


def _headline(change: KeyChange) -> str:
    kind = paint(change.kind, "1")
    if change.kind == "code":
        verb = "is new" if not change.before else "is gone" if not change.after else "changed"
        return f"{kind} {change.name} {verb}" + (f"  {change.where}" if change.where else "")
    source = f" (from {change.upstream})" if change.upstream else ""
    return f"{kind} {change.name}{source}: {change.before or 'none'} → {change.after or 'none'}"


def _colour(line: str) -> str:
    return "32" if line.startswith("+") else "31" if line.startswith("-") else ""
