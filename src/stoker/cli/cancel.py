"""`stoker cancel RUN`: ask the run's driver, on whichever machine it is, to stop the run."""

from __future__ import annotations

import time
from typing import Final

import click

from stoker.cli.options import run_argument, stack_option
from stoker.client import Client, Run
from stoker.core.words import count_text
from stoker.report.streams import say
from stoker.run.left import end_recorded_jobs, names, recorded_jobs
from stoker.store.store import Store

LEAVES: Final = 10.0
"""Seconds that a driver gets to end at once, before what it may leave is looked for."""


@click.command("cancel")
@run_argument
@click.option("--now", is_flag=True, help="Without giving steps time to leave.")
@stack_option
def command(*, run_id: str, now: bool, client: Client) -> None:
    """Ask a run to stop.

    Its driver looks for this every second, asks the steps that run to end, and ends them after a while; with --now at
    once. A run that is over already is fine. Where the driver was killed, the jobs that it left on a platform are
    ended from here. Jobs that a driver left on a platform that did not answer are ended, too: the platform is asked
    until it answers, or until Ctrl-C; the command may be repeated, from any machine.
    """
    run = client.run(run_id)
    if run.status == "interrupted":
        ended = run.end_left_jobs(now)
        jobs = "nothing of it runs any more" if not ended else f"ended {count_text(ended, 'job')} that it left running"
        say(f"the driver of run {run.id} is gone: {jobs}; `stoker resume {run.id}` goes on with what was done")
        if run.restarted_by:
            say(f"{run.restarted_by} would have driven it again, and does nothing now")
        _end_recorded(client.store, run)
        return
    asked = run.cancel(now)
    if asked and run.awaits and run.refresh().status == "cancelled":
        say(f"run {run.id} is cancelled: {_waited(run, now)}")
    elif asked:
        say(f"run {run.id} is asked to stop{' now' if now else ''}")
        if now:
            _await_end(run)
    if not _end_recorded(client.store, run) and not asked:
        say(f"run {run.id} does not run any more: {run.refresh().status}")


def _waited(run: Run, now: bool) -> str:
    """That no driver had the run, and what became of the jobs that an earlier one left."""
    if not run.sessions:
        return "its driver had not begun"
    ended = run.end_left_jobs(now)
    jobs = "nothing of it runs any more" if not ended else f"ended {count_text(ended, 'job')} that it left running"
    return f"it waited for its driver to go on, {jobs}"


def _end_recorded(store: Store, run: Run) -> bool:
    """End the jobs that a driver recorded as left; False where there are none."""
    recorded = [job for jobs in recorded_jobs(store, run.id).get(run.id, {}).values() for job in jobs]
    if not recorded or run.refresh().status == "running":
        return False
    say(f"run {run.id} may have left {_listed(names(recorded))}: it is ended now")
    ended = end_recorded_jobs(store, run.id, say)
    say(f"ended {_listed(ended)}" if ended else "nothing of it runs any more")
    return True


def _await_end(run: Run) -> None:
    """Wait a few seconds for a run's end."""
    deadline = time.monotonic() + LEAVES
    while run.refresh().status == "running" and time.monotonic() < deadline:
        time.sleep(0.2)


def _listed(jobs: list[str]) -> str:
    """Names of jobs, the first of many."""
    return ", ".join(jobs[:5]) + (f" and {len(jobs) - 5:,} more" if len(jobs) > 5 else "")
