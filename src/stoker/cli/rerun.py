"""`stoker run FILE`, `stoker rerun RUN`, `stoker resume RUN`, `stoker cancel RUN`.

The file is run as `python FILE` does, with the command line for its pipeline; a new run is like another one, changed as
asked; a run goes on where it stopped; a run's driver, on whichever machine it is, is asked to stop it.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from typing import Any, Final, Iterator, Mapping

import attrs
import click

from stoker.backends.base.backend import RESTARTED_BY
from stoker.cli import target as targets
from stoker.cli.output import run_argument, stack_option
from stoker.client import Client, Run
from stoker.core.errors import NotFound, StokerError, UsageError
from stoker.core.request import RunOption, RunRequest
from stoker.core.words import count_text
from stoker.report.streams import echo, say
from stoker.run import commandline, detaching, driver, rerun, start
from stoker.run.commandline import HELP, RUN_OPTIONS, CommandLine, apply_run_options
from stoker.run.detaching import Detachment
from stoker.run.firing import RUN_ID
from stoker.run.left import end_recorded_jobs, names, recorded_jobs
from stoker.store.store import Store

SUMMARY: Final = "GITHUB_STEP_SUMMARY"
"""The variable with the file of a job's summary:
https://docs.github.com/en/actions/reference/workflows-and-actions/workflow-commands#adding-a-job-summary"""
USAGE: Final = "[OPTIONS] FILE[:PIPELINE] [PARAMETERS]"


class Unparsed(click.Command):
    """A command whose words are not parsed by click: the pipeline's signature decides which are options."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Keep the words unparsed."""
        ctx.params["words"] = list(args)
        ctx.args = []
        return []


def command_line(
    words: list[str], extra: tuple[RunOption, ...]
) -> tuple[targets.ProgramFile | None, CommandLine, dict[str, Any]]:
    """(the file, None if none is named; the command line for its program; the command's own options)."""
    options, rest = commandline.split(words, (*extra, HELP))
    before, rest = _before_the_file(rest)
    pipeline = options.get("pipeline", "")
    if not rest and options.get("help") and not pipeline:
        return None, CommandLine(), options
    if not rest or rest[0].startswith("-"):
        named = next((word for word in rest if word.partition(":")[0].endswith(".py")), "")
        if named:
            raise UsageError(f"{rest[0]} stands before the file", fix=f"write {named} {rest[0]} …")
        rest = [targets.usual(click.get_current_context().info_name or "run"), *rest]
    target = targets.parse(rest[0], pipeline)
    return target, CommandLine(words=[*before, *rest[1:]], before=len(before), wanted=target.pipeline), options


def _before_the_file(words: list[str]) -> tuple[list[str], list[str]]:
    """Split the words into the run's options before the file, and the rest."""
    options = {option.flag: option for option in RUN_OPTIONS}
    position = 0
    while position < len(words):
        flag, equals, _ = words[position].partition("=")
        option = options.get(flag.replace("_", "-"))
        if option is None:
            break
        position += 2 if option.value and not equals else 1
    return words[:position], words[position:]


def help_for(target: targets.ProgramFile | None, verb: str, extra: tuple[RunOption, ...], summary: str) -> str:
    """The help of a command that takes a file; with a file, also the help of its pipeline."""
    if target is None:
        options = commandline.options_text((*extra, *RUN_OPTIONS, HELP))
        return "\n".join([f"Usage: stoker {verb} {USAGE}", "", f"  {summary}", "", options])
    program = targets.choose(targets.load(target), target)
    return commandline.help_text(program, f"stoker {verb} {target.text}", extra)


@click.command("run", cls=Unparsed, add_help_option=False)
def command(words: list[str]) -> None:
    """Run a pipeline of a file, as `python FILE` would."""
    accepted = targets.FILE_COMMANDS["run"]
    target, line, options = command_line(words, accepted)
    if target is None or options.get("help"):
        summary = "Runs a pipeline; `stoker run FILE --help` lists its parameters."
        echo(help_for(target, "run", accepted, summary))
        return
    line.run_id = os.environ.pop(RUN_ID, "")
    reporting = any(option.name in options for option in targets.CI) or bool(os.environ.get(SUMMARY))
    report = _reported(line, options, target.text) if reporting else contextlib.nullcontext()
    with report, targets.execute(target, line) as main:
        if not line.calls:
            program, request = line.read(targets.choose(main, target), {})
            start.run(program, {}, request)


@contextlib.contextmanager
def _reported(line: CommandLine, options: Mapping[str, Any], name: str) -> Iterator[None]:
    """Write what CI is to get, however the program ends."""
    from stoker.cli import ci  # brings the comparison of runs, and with it their charts

    ids: list[str] = []
    line.began = ids.append
    line.taken = [option.name for option in targets.CI if option.name in options]
    problem: BaseException | None = None
    try:
        yield
    except BaseException as error:  # raised again
        problem = error
        raise
    finally:
        words, _ = commandline.split(line.words, RUN_OPTIONS)
        stacks = [words.get("stack"), *(program.stack for program, _ in line.calls)]
        try:
            wanted = ci.Wanted.of(options, os.environ.get(SUMMARY, ""))
            ci.write(wanted, Client(next(filter(None, stacks), None)), ids, problem, name=name)
        except StokerError as error:
            if problem is None:
                raise
            say(f"error: {error}")  # why the run failed decides the exit code


_FROM: Final = RunOption(
    name="from",
    value="STEP",
    help="run this step and what comes after it; results of the steps before are the other run's",
)
_CODE: Final = RunOption(
    name="code", value="WHICH", help="current (default): the code as it is now; original: as it was for the other run"
)
_BEST: Final = RunOption(
    name="best", help="of each sweep its best trial alone; `stoker rerun best` is that of the latest run"
)
_USAGE: Final = "Usage: stoker rerun RUN [OPTIONS] [PARAMETERS]"
_SUMMARY: Final = "Starts a new run with the parameters and settings of another one; what is given here replaces them."


@click.command("rerun", cls=Unparsed, add_help_option=False)
def rerun_command(words: list[str]) -> None:
    """Start a new run with the parameters and settings of another one, changed as asked."""
    options, rest = commandline.split(words, (_FROM, _CODE, _BEST, HELP, RUN_OPTIONS[0]))
    if options.get("help") or not rest:
        echo(
            "\n".join([_USAGE, "", f"  {_SUMMARY}", "", commandline.options_text((_FROM, _CODE, _BEST, *RUN_OPTIONS))])
        )
        if options.get("help"):
            return
        raise UsageError("no run is named", fix="write `stoker rerun latest`, for example")
    if rest[0].startswith("-"):
        raise UsageError(f"{rest[0]} stands before the run", fix=f"write stoker rerun RUN {rest[0]} …")
    code = options.get("code", "current")
    if code not in ("current", "original"):
        raise UsageError(f"--code {code}: neither current nor original", fix="write --code original")
    client = Client(options.get("stack"))
    best = bool(options.get("best")) or rest[0] == "best"
    earlier = rerun.earlier_run(client.run("latest" if rest[0] == "best" else rest[0]).id, client.store)
    trials = rerun.best_params(earlier, client.store) if best else None
    if code == "original":
        earlier = rerun.with_original_code(earlier, client.store)
    program, request = commandline.read(rerun.program_in(earlier), rest[1:])
    request = attrs.evolve(request, stack=options.get("stack"))
    start = options.get("from", "")
    rerun.rerun(earlier, program, request, start=start, reuse=bool(start), trials=trials)


_OPTIONS: Final = tuple(
    option
    for option in RUN_OPTIONS
    if option.name in ("stack", "config", "set", "no-cache", "debug", "simulate", "quiet")
)
"""The options of every run that a run takes which goes on."""


def _run_options(resume_command: Any) -> Any:
    for option in reversed(_OPTIONS):
        help = f"{option.help[:1].upper()}{option.help[1:]}{'; may be given again' if option.many else ''}."
        resume_command = click.option(
            option.flag, metavar=option.value or None, is_flag=not option.value, multiple=option.many, help=help
        )(resume_command)
    return resume_command


@click.command("resume")
@run_argument
@_run_options
def resume_command(*, run_id: str, **given: Any) -> None:
    """Go on with a run where it stopped, with the code of its steps as it is now.

    What `@step(…)` says of them counts as it was when the run began; change it with --set. `stoker rerun` takes all of
    the program as it is now.
    """
    options = {name.replace("_", "-"): value for name, value in given.items() if value}
    request = apply_run_options(_OPTIONS, options, RunRequest())
    # Nobody whom this process starts is a run's driver.
    token, job = os.environ.pop(detaching.TOKEN, ""), os.environ.pop(RESTARTED_BY, "")
    if job:
        signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background process ignores it
    try:
        before = Client(request.stack).run(run_id)
        if not token and before.status == "succeeded":
            say(f"run {before.id} has succeeded: nothing is left to do; `stoker rerun {before.id}` runs it once more")
        run = driver.resume(before.id, request, detachment=Detachment(token=token, job=job))
    except NotFound:
        if not token:
            raise
        say(f"run {run_id} is not there any more: nothing is left to do")
        return
    if token and run.status != "succeeded":
        say(f"run {run.id} is {run.status}: somebody was first, and nothing is left to do")


LEAVES: Final = 10.0
"""Seconds that a driver gets to end at once, before what it may leave is looked for."""


@click.command("cancel")
@run_argument
@click.option("--now", is_flag=True, help="Without giving steps time to leave.")
@stack_option
def cancel(*, run_id: str, now: bool, client: Client) -> None:
    """Ask a run to stop.

    Its driver looks for this every second, asks the steps that run to end, and ends them after a while; with --now at
    once. A run that is over already is fine. Where the driver was killed, the jobs that it left on a platform are
    ended from here. Jobs that a driver left on a platform that did not answer are ended, too: the platform is asked
    until it answers, or until Ctrl-C; the cancel may be repeated, from any machine.
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
