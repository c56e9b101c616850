"""`stoker report RUN`, `stoker card RUN STEP`, `stoker gpu RUN [STEP]`: a run, or one step, as one HTML file, and the
receipts of steps: what they did with their accelerators; also of running steps."""

from __future__ import annotations

import contextlib
import logging
import os
import re
import shutil
import sys
from pathlib import Path
from typing import Any, Final, Iterable, Iterator, Mapping, Sequence

import click

from stoker.cli.output import json_option, paint, print_json, run_argument, stack_option, table
from stoker.client import Client, Run, Step
from stoker.client.keys import element_of
from stoker.client.logs import last_attempt
from stoker.client.variants import element_variants
from stoker.core import receipt as words
from stoker.core.codec import to_json
from stoker.core.errors import NotFound, UsageError
from stoker.core.plan import LogLine
from stoker.core.receipt import Receipt
from stoker.core.words import time_text
from stoker.plan.plandoc import given_settings
from stoker.report import cards
from stoker.report.cards import components
from stoker.report.charts import BLOCKS, glyphs_for
from stoker.report.figures import View, elements_part, metrics_part
from stoker.report.markup import NOTHING
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
from stoker.report.runreport import code_span, output_parts, plan_of
from stoker.report.streams import echo
from stoker.report.streams import write as write_stream
from stoker.store.store import Store

log = logging.getLogger(__name__)

LINES: Final = 200
"""Lines of a step's log on a page; `stoker logs` prints all of them."""
RESULTS: Final = 12
"""Results of a step with a preview."""
STDOUT: Final = "-"
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


@click.command("card")
@run_argument
@click.argument("step")
@click.option("--output", "-o", metavar="FILE", help=f"Where the page goes; {STDOUT} is stdout.")
@stack_option
def card(*, run_id: str, step: str, output: str | None, client: Client) -> None:
    """Make a page of a step: how it went, what its accelerators did, what it made and wrote.

    STEP is a step's key, such as train, or that of a fan-out's element, such as "train[3]". The page is one HTML file
    that needs no network and no script. Without --output it is written here, and its name is printed.
    """
    run = client.run(run_id)
    write(step_page(client.store, run, step), output, name=file_name(run, step))


def step_page(store: Store, run: Run, key: str, *, node: int | None = None) -> str:
    """The page of a step, or of one node of a `num_parallel`."""
    step = run.steps[key]
    step_receipt = newest_receipt(store, step)
    plan = plan_of(store, run)
    plans = {one.key: one for one in plan.steps} if plan is not None else {}
    step_plan = plans.get(key) or plans.get(element_of(key)[0])
    return cards.page(
        cards.StepCard(
            run=run.as_dict(steps=False),
            step=step.as_dict() if node is None else {**step.as_dict(), "key": f"{key}[{node}]"},
            components=components(store, run.id, key, node=node),
            lines=_lines(store, run.id, step, node),
            receipt=None if step_receipt is None else step_receipt.receipt,
            tracks=() if step_receipt is None else step_receipt.tracks,
            running=step_receipt is not None and step_receipt.running,
            remark=_fan_out_remark(store, run, step),
            span=(None, None) if step_receipt is None else code_span(step, step_receipt.number),
            metrics=metrics_part(step.metrics),
            elements=elements_part(element_variants(store, step), View(title="elements")) if step.count else NOTHING,
            results=output_parts(store, step, most=RESULTS)[0],
            settings=given_settings(step_plan) if step_plan is not None else (),
        )
    )


def write(text: str, output: str | None, *, name: str) -> None:
    """Write a page to a file, atomically, and print its path; or print the page if `output` is "-"."""
    if output == STDOUT:
        write_stream(text, sys.stdout)
        return
    path = Path(output or name)
    partial = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        partial.write_text(text, encoding="utf-8")
        partial.replace(path)
    except OSError as error:
        with contextlib.suppress(OSError):
            partial.unlink(missing_ok=True)
        raise UsageError(
            f"the page cannot be written to {path}: {error.strerror}", fix="name another: --output FILE"
        ) from error
    echo(str(path))


def _lines(store: Store, run: str, step: Step, node: int | None) -> list[LogLine]:
    if not store.logs.attempts(run, step.key):
        return []
    return list(store.logs.lines(run, step.key, last_attempt(store, run, step.key), rank=node, tail=LINES))


def _fan_out_remark(store: Store, run: Run, step: Step) -> str:
    """A summary of what a fan-out's elements did with their accelerators; empty if there is none."""
    if step.count is None:
        return ""
    receipts = [
        step_receipt.receipt for step_receipt in run_receipts(store, run) if element_of(step_receipt.key)[0] == step.key
    ]
    return f"accelerators: {words.summary_of(receipts)}" if receipts else ""


_UNSAFE: Final = re.compile(r"[^\w.\[\]#-]+")


@click.command("report")
@run_argument
@click.argument("step", required=False)
@click.option("--gpu", is_flag=True, help="Of the step: only what it did with its accelerators, in full.")
@click.option("--output", "-o", metavar="FILE", help=f"Where the page goes; {STDOUT} is stdout.")
@stack_option
def report(*, run_id: str, step: str | None, gpu: bool, output: str | None, client: Client) -> None:
    """Make a page of a run: its graph, times, parameters, failures, metrics, results, accelerators and logs.

    The page is one HTML file that needs no network and no script: it can be mailed, printed, and kept in a bucket. Of a
    run that goes on it shows what is known until now. With STEP, such as train or "train[3]", it is a page of that
    step, as `stoker card` makes it. Without --output it is written here, and its name is printed.
    """
    run = client.run(run_id)
    if step is None:
        if gpu:
            raise UsageError(
                "--gpu is about one step", fix=f"stoker report {run_id} STEP --gpu; `stoker gpu {run_id}` lists them"
            )
        from stoker.report.runreport import run_report

        run.find_lost_driver()
        write(run_report(client.store, run), output, name=file_name(run))
        return
    if not gpu:
        write(step_page(client.store, run, step), output, name=file_name(run, step))
        return
    from stoker.report.runreport import gpu_profile

    page = gpu_profile(client.store, run, step)
    if page is None:
        shown = run.steps[step]
        if shown.count is not None:
            raise NotFound(
                f"'{step}' is a fan-out: its elements have receipts", fix=f'stoker report {run_id} "{step}[0]" --gpu'
            )
        raise NotFound(
            missing_reason(shown, None, accelerator_request(client.store, shown)),
            fix=f"`stoker gpu {run_id}` lists the steps that held some",
        )
    write(page, output, name=file_name(run, step, "gpu"))


def file_name(run: Run, *parts: str) -> str:
    """The default name of a page's file."""
    return _UNSAFE.sub("-", f"{'-'.join((run.pipeline, run.id, *parts))}.html")


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
