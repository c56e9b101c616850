"""`stoker pull RUN [STEP]`: fetch what steps made to this machine."""

from __future__ import annotations

import attrs
import click

from stoker.cli.options import json_option, run_argument, stack_option
from stoker.cli.output import print_json
from stoker.client import Client
from stoker.client.pulling import Pulled, pull
from stoker.core.errors import EXIT_INFRASTRUCTURE, EXIT_SUCCEEDED
from stoker.core.words import count_text, memory_text
from stoker.report.streams import say


@click.command("pull")
@run_argument
@click.argument("step", required=False)
@stack_option
@json_option
def command(*, run_id: str, step: str | None, client: Client, as_json: bool) -> int:
    """Fetch what a run's steps made from a store elsewhere, so that loading it needs no connection.

    STEP is a step's key, such as train, or that of a fan-out's element. What is here already is not fetched again, and
    what is fetched is compared with its digest. Exit code 4 if something is lost or damaged.
    """
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
