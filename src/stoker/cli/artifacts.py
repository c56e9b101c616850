"""`stoker artifacts`: the outputs of a run's steps, or the steps that produced an artifact."""

from __future__ import annotations

import re
from typing import Final, Iterator

import click

from stoker.cli.options import json_option, stack_option
from stoker.cli.output import print_json, table
from stoker.client import Client, Output
from stoker.core.preview import Preview
from stoker.core.words import memory_text
from stoker.report.streams import echo, say

DIGEST: Final = re.compile(r"[0-9a-f]{64}")


@click.command("artifacts")
@click.argument("which", metavar="RUN|DIGEST")
@click.argument("step", required=False)
@stack_option
@json_option
def command(*, which: str, step: str | None, client: Client, as_json: bool) -> None:
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
