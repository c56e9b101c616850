"""`stoker store check`: read every artifact of a store and compare it with its digest."""

from __future__ import annotations

from typing import Final

import attrs
import click

from stoker.cli.options import json_option, stack_option
from stoker.cli.output import paint, print_json
from stoker.client import Client
from stoker.core.errors import EXIT_INFRASTRUCTURE
from stoker.core.words import count_text, memory_text
from stoker.report.streams import echo
from stoker.store.check import COPY, Damage, StoreCheck, check_store

SHOWN: Final = 5
"""Outputs that are named for each damaged artifact."""


@click.group("store")
def command() -> None:
    """Look after the store."""


@command.command("check")
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
