"""`stoker report RUN`: the whole run as one HTML file; with `--gpu`, what one step did with its accelerators."""

from __future__ import annotations

import re
from typing import Final

import click

from stoker.cli.card import STDOUT, write
from stoker.cli.card import page as step_page
from stoker.cli.gpu import missing_reason
from stoker.cli.options import run_argument, stack_option
from stoker.client import Client
from stoker.core.errors import NotFound, UsageError
from stoker.report.stepreceipts import accelerator_request

_UNSAFE: Final = re.compile(r"[^\w.\[\]#-]+")


@click.command("report")
@run_argument
@click.argument("step", required=False)
@click.option("--gpu", is_flag=True, help="Of the step: only what it did with its accelerators, in full.")
@click.option("--output", "-o", metavar="FILE", help=f"Where the page goes; {STDOUT} is stdout.")
@stack_option
def command(*, run_id: str, step: str | None, gpu: bool, output: str | None, client: Client) -> None:
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
