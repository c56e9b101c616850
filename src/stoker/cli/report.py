"""`stoker report RUN`, `stoker card RUN STEP`: a run, or one step, as one HTML file; with `--gpu`, what a step did with
its accelerators."""

from __future__ import annotations

import contextlib
import logging
import os
import re
import sys
from pathlib import Path
from typing import Final

import click

from stoker.cli.gpu import missing_reason
from stoker.cli.output import run_argument, stack_option
from stoker.client import Client, Run, Step
from stoker.client.keys import element_of
from stoker.client.logs import last_attempt
from stoker.client.variants import element_variants
from stoker.core import receipt as words
from stoker.core.errors import NotFound, UsageError
from stoker.core.plan import LogLine
from stoker.plan.plandoc import given_settings
from stoker.report import cards
from stoker.report.cards import components
from stoker.report.figures import View, elements_part, metrics_part
from stoker.report.markup import NOTHING
from stoker.report.receipts import accelerator_request, newest_receipt, run_receipts
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
        cards.Card(
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


def file_name(run: Run, key: str) -> str:
    """The default name of a page's file."""
    return _UNSAFE.sub("-", f"{run.pipeline}-{run.id}-{key}.html")


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
        write(run_report(client.store, run), output, name=_file_name(run.pipeline, run.id))
        return
    if not gpu:
        write(step_page(client.store, run, step), output, name=_file_name(run.pipeline, run.id, step))
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
    write(page, output, name=_file_name(run.pipeline, run.id, step, "gpu"))


def _file_name(*parts: str) -> str:
    return _UNSAFE.sub("-", f"{'-'.join(parts)}.html")
