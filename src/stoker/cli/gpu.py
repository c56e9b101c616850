"""`stoker gpu RUN [STEP]`: the receipts of steps, what they did with their accelerators; also of running steps."""

from __future__ import annotations

import shutil
import sys
from typing import Any, Final, Iterable, Iterator, Mapping, Sequence

import click

from stoker.cli.output import json_option, paint, print_json, run_argument, stack_option, table
from stoker.client import Client, Run, Step
from stoker.client.keys import element_of
from stoker.core import receipt as words
from stoker.core.codec import to_json
from stoker.core.errors import UsageError
from stoker.core.receipt import Receipt
from stoker.core.words import time_text
from stoker.report.charts import BLOCKS, glyphs_for
from stoker.report.receipts import (
    COLOURS,
    MAX_WIDTH,
    StepReceipt,
    accelerator_request,
    attempt_receipt,
    newest_receipt,
    receipt_lines,
    run_receipts,
)
from stoker.report.streams import echo

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
_REASONS_SHOWN: Final = 10
"""Reasons that are printed below the table; `stoker gpu RUN STEP` prints that of any step."""
_STEPS_NAMED: Final = 5
"""Steps that are named for one reason; the others are a count."""
_ASCII: Final[Mapping[int, str]] = str.maketrans({"×": "x", "…": "...", "°": "", "·": "-", "–": "-", "µ": "u"})
"""Replacements of our own characters for ASCII output."""


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
        _print_overview(run, run_receipts(client.store, run), elements=elements, as_json=as_json)
        return
    selected = run.steps[step]
    if selected.count is None:
        _print_receipt(client, run, selected, attempt, as_json=as_json)
        return
    if attempt is not None:
        raise UsageError(f"'{step}' is a fan-out: its elements have attempts", fix=f'stoker gpu {run_id} "{step}[0]" …')
    receipts = [
        element_receipt
        for element_receipt in run_receipts(client.store, run)
        if element_of(element_receipt.key)[0] == step
    ]
    _print_overview(run, receipts, elements=True, as_json=as_json, nothing=f"no element of '{step}' held accelerators")


def _print_overview(
    run: Run,
    receipts: Sequence[StepReceipt],
    *,
    elements: bool,
    as_json: bool,
    nothing: str = "no step held accelerators",
) -> None:
    if as_json:
        print_json({"run": run.id, "steps": [document(receipt) for receipt in receipts]})
    elif receipts:
        echo_lines(overview(receipts, elements=elements))
    else:
        echo_lines([f"{nothing} in run {run.id}"])


def _print_receipt(client: Client, run: Run, step: Step, number: int | None, *, as_json: bool) -> None:
    receipt = newest_receipt(client.store, step) if number is None else attempt_receipt(client.store, step, number)
    why = "" if receipt is not None else missing_reason(step, number, accelerator_request(client.store, step))
    if as_json:
        empty: dict[str, Any] = {"step": step.key, "attempt": number, "running": False, "receipt": None, "tracks": []}
        details = empty if receipt is None else {**document(receipt), "tracks": to_json(receipt.tracks)}
        print_json({"run": run.id, **details, "why": why})
    elif receipt is None:
        echo_lines([why])
    else:
        echo_lines(full_lines(run.id, receipt, width=shutil.get_terminal_size().columns))
        if balance := step.usage.imbalance_text:
            echo_lines([f"  ranks: {balance}"])


def document(step_receipt: StepReceipt) -> dict[str, Any]:
    """A step's receipt as JSON, without its tracks."""
    return {
        "step": step_receipt.key,
        "attempt": step_receipt.number,
        "running": step_receipt.running,
        "receipt": to_json(step_receipt.receipt),
    }


def overview(receipts: Sequence[StepReceipt], *, elements: bool) -> Iterator[str]:
    """A line for each step, a fan-out's elements in one line unless `elements` is set, and remarks."""
    groups: dict[str, list[StepReceipt]] = {}
    for receipt in receipts:
        groups.setdefault(receipt.key if elements else element_of(receipt.key)[0], []).append(receipt)
    rows = [_row(key, group) for key, group in groups.items()]
    # Empty columns are left out.
    columns = [column for column in range(len(HEADERS)) if any(row[column] for row in rows)]
    yield table(
        [HEADERS[column] for column in columns], [[row[column] for column in columns] for row in rows], right=RIGHT
    )
    if len(receipts) > 1:
        yield "together: " + total_text([receipt.receipt for receipt in receipts])
    yield from remarks(receipts)


def remarks(receipts: Sequence[StepReceipt]) -> Iterator[str]:
    """The reasons of verdicts other than "used"; steps with the same reason share a line."""
    reasons: dict[tuple[str, str], list[str]] = {}
    for step_receipt in receipts:
        receipt = step_receipt.receipt
        if receipt.verdict != "used":
            facts = (*(receipt.evidence[:1] or (receipt.fallback,)), receipt.stopped or receipt.left_idle)
            reason = "; ".join(filter(None, facts)) or "nothing is known"
            reasons.setdefault((receipt.verdict, reason), []).append(step_receipt.key)
    for (verdict, reason), keys in [*reasons.items()][:_REASONS_SHOWN]:
        names = ", ".join(keys[:_STEPS_NAMED]) + (
            f", … {len(keys) - _STEPS_NAMED:,} more" if len(keys) > _STEPS_NAMED else ""
        )
        yield f"{names}: {paint(verdict, COLOURS.get(verdict, ''))}: {reason}"
    if len(reasons) > _REASONS_SHOWN:
        yield f"… and {sum(map(len, [*reasons.values()][_REASONS_SHOWN:])):,} more that did not use theirs"


def total_text(receipts: Sequence[Receipt]) -> str:
    """The totals of receipts: devices times time, and energy."""
    device_seconds = sum(receipt.seconds * len(receipt.devices) for receipt in receipts)
    energy = words.energy_text(words.totals(receipts).energy)
    simulated = all(receipt.simulated for receipt in receipts)
    facts = [f"{time_text(device_seconds)} of accelerator time", energy, "simulated" if simulated else ""]
    return ", ".join(fact for fact in facts if fact)


def full_lines(run_id: str, step_receipt: StepReceipt, *, width: int) -> Iterator[str]:
    """One receipt in full."""
    state = "  so far" if step_receipt.running else ""
    yield f"{paint(step_receipt.key, '1')}  run {run_id}  attempt {step_receipt.number}{state}"
    glyphs = glyphs_for(sys.stdout.encoding)
    yield from receipt_lines(
        step_receipt.receipt,
        step_receipt.tracks,
        width=min(width, MAX_WIDTH),
        running=step_receipt.running,
        glyphs=glyphs,
        paint=paint,
    )


def missing_reason(step: Step, number: int | None, asked: str | None) -> str:
    """Why a step or an attempt has no receipt; `asked` is its request in words, None if it is not known."""
    if step.status == "cached":
        origin, _, key = step.cached_from.partition("/")
        return f"step '{step.key}' did not run: its result is from {step.cached_from}; `stoker gpu {origin} {key}`"
    if asked == "":
        return f"step '{step.key}' asked for no accelerators"
    request = f"it asked for {asked}" if asked else "it held no accelerators"
    if step.status in ("pending", "running"):
        return f"step '{step.key}' is {step.status} and holds no accelerators yet" + (f": {request}" if asked else "")
    if not step.attempts:
        return f"step '{step.key}' is {step.status} and has not run" + (f": {request}" if asked else "")
    attempt = f"attempt {number or step.attempts[-1].number} of step '{step.key}'"
    numbers = [str(other.number) for other in step.attempts if other.receipt is not None]
    hint = f"; attempt {', '.join(numbers)} left one: --attempt {numbers[-1]}" if numbers else ""
    return f"{attempt} left no receipt: {request}{hint}"


def echo_lines(lines: Iterable[str]) -> None:
    """Print lines, with ASCII characters only if the output has no others."""
    encoding = sys.stdout.encoding or "ascii"
    for line in lines:
        plain = glyphs_for(encoding) is not BLOCKS
        echo(line.translate(_ASCII).encode(encoding, "replace").decode(encoding) if plain else line)


def _row(key: str, group: Sequence[StepReceipt]) -> tuple[str, ...]:
    receipts = [shown.receipt for shown in group]
    totals = words.totals(receipts)
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
        words.percent_text(totals.utilization_mean),
        words.percent_text(totals.utilization_peak),
        words.memory_of_text(totals.memory_peak, totals.memory),
        words.energy_text(totals.energy),
        words.text_or_empty(totals.first_use, time_text),
        words.text_or_empty(totals.longest_idle, time_text),
        time_text(totals.seconds),
    )
