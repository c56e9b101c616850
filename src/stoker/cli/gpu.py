"""`stoker gpu RUN [STEP]`: what steps did with their accelerators: the receipts, also of steps that still run."""

from __future__ import annotations

import shutil
import sys
from typing import Any, Final, Iterable, Iterator, Mapping, Sequence

import click

from stoker.cli.options import json_option, run_argument, stack_option
from stoker.cli.output import paint, print_json, table
from stoker.cli.receipts import Shown, asked_for, newest, of_attempt, of_run
from stoker.client import Client, Run, Step
from stoker.client.order import element_of
from stoker.core import receipt_words as words
from stoker.core.codec import to_json
from stoker.core.errors import UsageError
from stoker.core.receipt import Receipt
from stoker.core.words import time_text
from stoker.report.charts import BLOCKS, glyphs_for
from stoker.report.receipts import COLOURS, MAX_WIDTH, receipt_lines

HEADERS: Final = (
    "step",
    "verdict",
    "devices",
    "utilisation",
    "peak",
    "memory",
    "energy",
    "first use",
    "longest idle",
    "took",
)
RIGHT: Final = HEADERS[3:]
_EXPLAINED: Final = 10
"""Reasons that are told below the table; STEP shows that of any step."""
_NAMED: Final = 5
"""Steps that are named for one reason."""
_PLAIN: Final[Mapping[int, str]] = str.maketrans({"×": "x", "…": "...", "°": "", "·": "-", "–": "-", "µ": "u"})
"""Our own words where the output is ASCII."""


@click.command("gpu")
@run_argument
@click.argument("step", required=False)
@click.option("--attempt", type=click.IntRange(min=1), metavar="N", help="Of a step: this attempt, not the last.")
@click.option("--elements", is_flag=True, help="Every element of the fan-outs, not all of one together.")
@stack_option
@json_option
def command(
    *, run_id: str, step: str | None, attempt: int | None, elements: bool, client: Client, as_json: bool
) -> None:
    """Show what steps did with their accelerators.

    STEP is a step's key, such as train, or that of a fan-out's element, such as "train[3]": its receipt in full, with
    charts. Without it: a line for each step that held accelerators or asked for some.
    """
    run = client.run(run_id)
    if step is None:
        if attempt is not None:
            raise UsageError("an attempt is one of a step", fix=f"stoker gpu {run_id} STEP --attempt {attempt}")
        _many(run, of_run(client.store, run), elements=elements, as_json=as_json)
        return
    one = run.steps[step]
    if one.count is None:
        _one(client, run, one, attempt, as_json=as_json)
        return
    if attempt is not None:
        raise UsageError(f"'{step}' is a fan-out: its elements have attempts", fix=f'stoker gpu {run_id} "{step}[0]" …')
    inside = [shown for shown in of_run(client.store, run) if element_of(shown.key)[0] == step]
    _many(run, inside, elements=True, as_json=as_json, nothing=f"no element of '{step}' held accelerators")


def _many(
    run: Run, found: Sequence[Shown], *, elements: bool, as_json: bool, nothing: str = "no step held accelerators"
) -> None:
    if as_json:
        print_json({"run": run.id, "steps": [document(shown) for shown in found]})
    elif found:
        echo(overview(found, elements=elements))
    else:
        echo([f"{nothing} in run {run.id}"])


def _one(client: Client, run: Run, step: Step, number: int | None, *, as_json: bool) -> None:
    found = newest(client.store, step) if number is None else of_attempt(client.store, step, number)
    why = "" if found is not None else why_none(step, number, asked_for(client.store, step))
    if as_json:
        empty: dict[str, Any] = {"step": step.key, "attempt": number, "running": False, "receipt": None, "tracks": []}
        told = empty if found is None else {**document(found), "tracks": to_json(found.tracks)}
        print_json({"run": run.id, **told, "why": why})
    elif found is None:
        echo([why])
    else:
        echo(full(run.id, found, width=shutil.get_terminal_size().columns))


def document(shown: Shown) -> dict[str, Any]:
    """A step's receipt as JSON, without its tracks."""
    return {
        "step": shown.key,
        "attempt": shown.number,
        "running": shown.running,
        "receipt": to_json(shown.receipt),
    }


def overview(found: Sequence[Shown], *, elements: bool) -> Iterator[str]:
    """A line for each step, all elements of a fan-out together unless they are wanted, and what is worth a look."""
    groups: dict[str, list[Shown]] = {}
    for shown in found:
        groups.setdefault(shown.key if elements else element_of(shown.key)[0], []).append(shown)
    rows = [_row(key, group) for key, group in groups.items()]
    # A column in which nothing stands is left out.
    kept = [place for place in range(len(HEADERS)) if any(row[place] for row in rows)]
    yield table([HEADERS[place] for place in kept], [[row[place] for place in kept] for row in rows], right=RIGHT)
    if len(found) > 1:
        yield "together: " + together([shown.receipt for shown in found])
    yield from remarks(found)


def remarks(found: Sequence[Shown]) -> Iterator[str]:
    """Why a verdict is not the one that everybody wants; steps of which the same is to be said have one line."""
    said: dict[tuple[str, str], list[str]] = {}
    for shown in found:
        receipt = shown.receipt
        if receipt.verdict != "used":
            facts = (*(receipt.evidence[:1] or (receipt.fallback,)), receipt.stopped or receipt.left_idle)
            told = "; ".join(filter(None, facts)) or "nothing is known"
            said.setdefault((receipt.verdict, told), []).append(shown.key)
    for (verdict, told), keys in [*said.items()][:_EXPLAINED]:
        named = ", ".join(keys[:_NAMED]) + (f", … {len(keys) - _NAMED:,} more" if len(keys) > _NAMED else "")
        yield f"{named}: {paint(verdict, COLOURS.get(verdict, ''))}: {told}"
    if len(said) > _EXPLAINED:
        yield f"… and {sum(map(len, [*said.values()][_EXPLAINED:])):,} more that did not use theirs"


def together(receipts: Sequence[Receipt]) -> str:
    """How much of the accelerators was taken: devices times time, and energy."""
    held = sum(receipt.seconds * len(receipt.devices) for receipt in receipts)
    energy = words.energy_text(words.totals(receipts).energy)
    simulated = all(receipt.simulated for receipt in receipts)
    facts = [f"{time_text(held)} of accelerator time", energy, "simulated" if simulated else ""]
    return ", ".join(fact for fact in facts if fact)


def full(run_id: str, shown: Shown, *, width: int) -> Iterator[str]:
    """One receipt with everything in it."""
    state = "  so far" if shown.running else ""
    yield f"{paint(shown.key, '1')}  run {run_id}  attempt {shown.number}{state}"
    glyphs = glyphs_for(sys.stdout.encoding)
    yield from receipt_lines(
        shown.receipt, shown.tracks, width=min(width, MAX_WIDTH), running=shown.running, glyphs=glyphs, paint=paint
    )


def why_none(step: Step, number: int | None, asked: str | None) -> str:
    """Why there is no receipt of a step, or of one attempt; `asked` is what it asked for, None where nobody knows."""
    if step.status == "cached":
        origin, _, key = step.cached_from.partition("/")
        return f"step '{step.key}' did not run: its result is from {step.cached_from}; `stoker gpu {origin} {key}`"
    if asked == "":
        return f"step '{step.key}' asked for no accelerators"
    wanted = f"it asked for {asked}" if asked else "it held no accelerators"
    if step.status in ("pending", "running"):
        return f"step '{step.key}' is {step.status} and holds no accelerators yet" + (f": {wanted}" if asked else "")
    if not step.attempts:
        return f"step '{step.key}' is {step.status} and has not run" + (f": {wanted}" if asked else "")
    which = f"attempt {number or step.attempts[-1].number} of step '{step.key}'"
    others = [str(one.number) for one in step.attempts if one.receipt is not None]
    more = f"; attempt {', '.join(others)} left one: --attempt {others[-1]}" if others else ""
    return f"{which} left no receipt: {wanted}{more}"


def echo(lines: Iterable[str]) -> None:
    """Print, also where the output knows no other letters than ASCII."""
    encoding = sys.stdout.encoding or "ascii"
    for line in lines:
        plain = glyphs_for(encoding) is not BLOCKS
        click.echo(line.translate(_PLAIN).encode(encoding, "replace").decode(encoding) if plain else line)


def _row(key: str, group: Sequence[Shown]) -> tuple[str, ...]:
    receipts = [shown.receipt for shown in group]
    known = words.totals(receipts)
    single = group[0].key == key and len(group) == 1
    running = sum(shown.running for shown in group)
    verdict = words.verdicts_text(receipts)
    if running:
        verdict += " so far" if single else f" ({running:,} so far)"
    devices = words.devices_text(use for receipt in receipts for use in receipt.devices)
    return (
        key if single else f"{key} ×{len(group)}",
        verdict,
        devices or "none",
        words.percent_text(known.utilization_mean),
        words.percent_text(known.utilization_peak),
        words.memory_of_text(known.memory_peak, known.memory),
        words.energy_text(known.energy),
        words.text_or_empty(known.first_use, time_text),
        words.text_or_empty(known.longest_idle, time_text),
        time_text(known.seconds),
    )
