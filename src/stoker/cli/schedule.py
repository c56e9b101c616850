"""`stoker schedule`: when pipelines are to run, what starts them, and what became of that."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import sys
import time
from datetime import datetime, timezone
from typing import Any, Final, Mapping

import attrs
import click

from stoker import stacks
from stoker.backends.base.backend import Timer, TimerJob
from stoker.backends.base.messages import credentials
from stoker.backends.base.timers import MACHINE, PLATFORM, PREFIX, local_zone
from stoker.backends.registry import BACKENDS
from stoker.cli import target as targets
from stoker.cli.output import json_option, print_json, stack_option, table
from stoker.cli.rerun import Unparsed
from stoker.client import Client
from stoker.client.schedules import Occasion, Schedule, schedules_of
from stoker.core.cron import Cron, check_zone
from stoker.core.errors import StokerError, UsageError, nearest
from stoker.core.request import RunOption
from stoker.core.words import count_text
from stoker.report.streams import echo, say
from stoker.run import commandline
from stoker.run.commandline import HELP
from stoker.run.firing import Command, FiringStarter, PlatformStart, bring_code
from stoker.store.access import make_folders
from stoker.store.hashing import digest_of
from stoker.store.registry import author
from stoker.store.schedules import OVERLAPS, ScheduleRow, Schedules

_NAME: Final = re.compile(r"[a-z0-9]([a-z0-9-]{0,30}[a-z0-9])?")
"""What also names objects of Kubernetes, whose names of CronJobs have 52 characters at most."""
_CARRIED: Final = ("PATH", "STOKER_HOME", "STOKER_STACKS", "VIRTUAL_ENV")
"""Variables that hold for the runs of a schedule as they do where it is added: cron gives next to none."""
OPTIONS: Final = (
    RunOption(name="name", value="NAME", help="what the schedule is called; the pipeline's name if not given"),
    RunOption(name="stack", value="NAME", help="where it runs, and whose store keeps it"),
    RunOption(name="zone", value="ZONE", help="the time zone, such as Europe/Berlin; this machine's if not given"),
    RunOption(
        name="on",
        value="WHAT",
        help="what starts it: crontab or systemd of this machine, or the stack's platform, which is usual if it can",
    ),
    RunOption(
        name="overlap",
        value="HOW",
        help="while the run before goes on: skip (usual), queue, or allow",
    ),
    HELP,
)
_USAGE: Final = 'Usage: stoker schedule add [OPTIONS] ["MINUTE HOUR DAY MONTH WEEKDAY"] FILE[:PIPELINE] [PARAMETERS]'


@click.group("schedule")
def command() -> None:
    """Run pipelines at set times: by crontab, systemd, Kubernetes, Slurm or EventBridge, as the stack decides."""


@command.command("add", cls=Unparsed, add_help_option=False)
def add(words: list[str]) -> None:
    """Add a schedule, or change the one of its name."""
    options, rest = commandline.split(words, OPTIONS)
    if options.get("help") or not rest:
        echo(
            "\n".join(
                [_USAGE, "", "  Without times, those of the flow's @schedule.", "", commandline.options_text(OPTIONS)]
            )
        )
        if options.get("help"):
            return
        raise UsageError("no file is named", fix='stoker schedule add "0 6 * * 1-5" train.py, for example')
    cron_text = rest.pop(0) if rest[0].startswith("@") or " " in rest[0].strip() else ""
    if not rest:
        raise UsageError("no file is named", fix=f'stoker schedule add "{cron_text}" train.py, for example')
    if cron_text:
        Cron.parse(cron_text)  # said before the file is imported, which may take long
    row = described(rest[0], rest[1:], cron_text, options)
    added(row)


def described(file: str, words: list[str], cron_text: str, options: Mapping[str, Any]) -> ScheduleRow:
    """The schedule that a command line describes; its file and parameters are checked."""
    overlap = options.get("overlap", "skip")
    if overlap not in OVERLAPS:
        known = "; ".join(f"{name}: {text}" for name, text in OVERLAPS.items())
        raise UsageError(f"--overlap {overlap}{nearest(overlap, OVERLAPS)}", fix=f"write one of these: {known}")
    target = targets.parse(file)
    program = targets.choose(targets.load(target), target)
    program, request = commandline.read(program, words)
    zone = options.get("zone", "")
    if not cron_text:
        found = program.schedule
        if found is None:
            raise UsageError(
                f"no times are given, and {program.name} has no @schedule",
                fix=f'stoker schedule add "0 6 * * 1-5" {file}, for example',
            )
        cron_text, zone = found[0], zone or found[1]
    stack = stacks.load(options.get("stack") or request.stack or program.stack)
    name = options.get("name") or re.sub(r"[^a-z0-9]+", "-", program.name.lower()).strip("-")[:32].strip("-")
    if not _NAME.fullmatch(name):
        raise UsageError(f"'{name}' cannot name a schedule", fix="--name with small letters, digits and -, up to 32")
    now = time.time()
    return ScheduleRow(
        name=name,
        cron=Cron.parse(cron_text).text,
        zone=check_zone(zone or local_zone()),
        file=f"{target.path}:{target.pipeline}" if target.pipeline else target.path,
        words=tuple(words),
        folder=os.getcwd(),
        stack=stack.name,
        target=_target(options.get("on"), stack),
        overlap=overlap,
        since=now,
        created=now,
        author=author(),
    )


def _target(wanted: str | None, stack: stacks.Stack) -> str:
    own = BACKENDS.load(stack.orchestrator.flavor).timer is not None
    if wanted is None:
        return PLATFORM if own else "crontab" if shutil.which("crontab") else "systemd"
    known = (*MACHINE, PLATFORM)
    if wanted not in known:
        raise UsageError(f"--on {wanted}{nearest(wanted, known)}", fix="leave it out, and the stack decides")
    if wanted == PLATFORM and not own:
        title = BACKENDS.load(stack.orchestrator.flavor).title
        raise UsageError(f"{title} starts nothing by itself", fix="--on crontab, or --on systemd")
    return wanted


def added(row: ScheduleRow) -> None:
    """Write a schedule down and have it started; what is refused leaves nothing behind."""
    client = Client(row.stack)
    schedules = Schedules(client.store.records.database)
    before = schedules.find(row.name)
    if before is not None:
        _keep_missed(client, schedules, before)
        row = attrs.evolve(row, created=before.created)
    where, code = _entered(client, row, before)
    schedules.put(attrs.evolve(row, code=code))
    upcoming = Schedule(client.store, row, time.time()).next()
    assert upcoming is not None
    say(f"'{row.name}' is {'changed' if before else 'added'}: {where}")
    say(f"next: {_local(upcoming)}" + (f" ({upcoming:%Y-%m-%d %H:%M} {row.zone})" if row.zone != local_zone() else ""))


def _entered(client: Client, row: ScheduleRow, before: ScheduleRow | None = None) -> tuple[str, str]:
    """Write a schedule's entry: (where it is, the digest of the code that travels)."""
    stack = stacks.load(row.stack)
    job = job_of(client, row)
    start = PlatformStart(client.store, row, stack, job)
    job = attrs.evolve(job, start=start)
    timer = timer_of(row, stack)
    timer.check(job)
    if before is not None and before.target != row.target:
        timer_of(before, stack).remove(job.mark)
    if row.target in MACHINE:
        _keep_variables(client, row, stack)
    return timer.put(job), start.code


def _keep_variables(client: Client, row: ScheduleRow, stack: stacks.Stack) -> None:
    """Keep what opens the stack's database and artifact store here, for its owner alone: an entry of this machine is
    started without the variables of a shell, and shows its command line to others."""
    values = {**credentials(client.store.blobs.uri, os.environ), **stacks.table_of(stack)[1]}
    if client.store.database_uri.startswith("postgresql"):
        values.update({name: text for name, text in os.environ.items() if name.startswith("PG")})
    path = _variables_of(row.name)
    with contextlib.suppress(FileNotFoundError):
        os.unlink(path)
    if values:
        make_folders(os.path.dirname(path))
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)  # also in a home that is shared
        with open(descriptor, "w", encoding="utf-8") as file:
            json.dump(values, file)


def _variables_of(name: str) -> str:
    return os.path.join(stacks.home(), "schedules", f"{name}.json")


def timer_of(row: ScheduleRow, stack: stacks.Stack) -> Timer:
    """What starts a schedule."""
    if row.target in MACHINE:
        return MACHINE[row.target]()
    timer = BACKENDS.load(stack.orchestrator.flavor).timer
    if timer is None:
        raise UsageError(
            f"stack '{stack.name}' has another platform now than '{row.name}' was added for, which starts nothing",
            fix=f"stoker schedule add --name {row.name} … anew",
        )
    return timer(stack.orchestrator.options)


def job_of(client: Client, row: ScheduleRow) -> TimerJob:
    """What is to be started at the times of a schedule: `stoker schedule fire`."""
    store = client.store
    output = os.path.join(store.home, "schedules", f"{row.name}.log")
    make_folders(os.path.dirname(output))
    environment = {name: os.environ[name] for name in _CARRIED if os.environ.get(name)}
    return TimerJob(
        mark=f"{PREFIX}{row.name}-{digest_of([store.records.database.label.encode()])[:8]}",
        title=f"stoker schedule '{row.name}' of {row.author}: {os.path.basename(row.file)}",
        cron=Cron.parse(row.cron),
        zone=row.zone,
        words=(sys.executable, "-m", "stoker", "schedule", "fire", row.name, "--stack", row.stack),
        folder=row.folder,
        environment={**environment, "STOKER_HOME": str(store.home)},
        output=output,
        paused=row.paused,
    )


@command.command("list")
@stack_option
@json_option
def list_schedules(*, client: Client, as_json: bool) -> None:
    """List schedules: when they are due next, what became of the last time, and what was missed."""
    found = schedules_of(client, time.time())
    if as_json:
        print_json([{**one.as_dict(), "trouble": _trouble(client, one.row)} for one in found])
        return
    if not found:
        say(f'no schedules in {client.store.records.database.label}: stoker schedule add "0 6 * * 1-5" train.py')
        return
    rows, remarks = [], []
    for one in found:
        row, upcoming, missed = one.row, one.next(), one.missed()
        last = one.history(1)
        rows.append(
            (
                row.name,
                row.cron,
                row.zone,
                "paused" if upcoming is None else _local(upcoming),
                _words(last[0]) if last else "",
                str(len(missed) or ""),
                f"{os.path.basename(row.file)} {' '.join(row.words)}".strip(),
                row.target if row.author == author() else f"{row.target} of {row.author}",
            )
        )
        if missed:
            times = count_text(len(missed), "time")
            remarks.append(
                f"'{row.name}' missed {times}, the last {_local(missed[-1])}: stoker schedule history {row.name}; "
                f"stoker schedule run-now {row.name} makes up for it"
            )
        trouble = _trouble(client, row)
        if trouble:
            remarks.append(f"'{row.name}': {trouble}")
    echo(table(("name", "cron", "zone", "next", "last", "missed", "runs", "on"), rows, right=("missed",)))
    for remark in remarks:
        say(remark)


def _trouble(client: Client, row: ScheduleRow) -> str:
    """Why a schedule will not be started although it should; empty where it will, and where nobody can be asked."""
    if row.paused or (row.target in MACHINE and row.author != author()):
        return ""  # what starts it is another person's, or on another machine
    try:
        marks = timer_of(row, stacks.load(row.stack)).marks()
    except StokerError as error:
        return f"whether it will be started is not known: {error.message}"
    if job_of(client, row).mark in marks:
        return ""
    return (
        f"nothing starts it any more: {row.target} does not have it; stoker schedule resume {row.name} writes it again"
    )


@command.command("history")
@click.argument("name")
@click.option("--limit", type=click.IntRange(min=1), default=20, show_default=True, help="How many.")
@stack_option
@json_option
def history(*, name: str, limit: int, client: Client, as_json: bool) -> None:
    """List what became of a schedule's due times, the last first, with those that were missed."""
    row = Schedules(client.store.records.database).get(name)
    found = Schedule(client.store, row, time.time()).history(limit)
    if as_json:
        print_json([one.as_dict() for one in found])
    elif found:
        rows = [(_local(one.due), one.state, one.run_id, "by hand" if one.by_hand else one.note) for one in found]
        echo(table(("due", "state", "run", "note"), rows))
    else:
        say(f"nothing of '{name}' was due yet")


@command.command("pause")
@click.argument("name")
@stack_option
def pause(*, name: str, client: Client) -> None:
    """Have nothing be started until it is resumed; what was missed until now is kept."""
    _set_paused(client, name, paused=True)
    say(f"'{name}' is paused: stoker schedule resume {name}")


@command.command("resume")
@click.argument("name")
@stack_option
def resume(*, name: str, client: Client) -> None:
    """Go on with a paused schedule, or write again what starts one."""
    _set_paused(client, name, paused=False)
    row = Schedules(client.store.records.database).get(name)
    upcoming = Schedule(client.store, row, time.time()).next()
    assert upcoming is not None
    say(f"'{name}' goes on: next {_local(upcoming)}")


def _set_paused(client: Client, name: str, *, paused: bool) -> None:
    schedules = Schedules(client.store.records.database)
    row = schedules.get(name)
    _keep_missed(client, schedules, row)
    _entered(client, attrs.evolve(row, paused=paused))
    schedules.pause(name, paused=paused, now=time.time())


def _keep_missed(client: Client, schedules: Schedules, row: ScheduleRow) -> None:
    """Write down what was missed before the times change."""
    now = time.time()
    schedules.note_missed(row.source, Schedule(client.store, row, now).missed(), now=now)


@command.command("rm")
@click.argument("name")
@stack_option
def remove(*, name: str, client: Client) -> None:
    """Remove a schedule with its history; its runs stay."""
    schedules = Schedules(client.store.records.database)
    row = schedules.get(name)
    timer_of(row, stacks.load(row.stack)).remove(job_of(client, row).mark)
    schedules.remove(name)
    with contextlib.suppress(FileNotFoundError):
        os.unlink(_variables_of(name))
    say(f"'{name}' is removed")


@command.command("run-now")
@click.argument("name")
@stack_option
def run_now(*, name: str, client: Client) -> int:
    """Run what a schedule runs, now and here, whether it is due or paused."""
    return _fire(client, Schedules(client.store.records.database).get(name), manual=True)


@command.command("fire", hidden=True)
@click.argument("name")
@click.option("--code", default="", metavar="DIGEST", help="The package of the code, where the file is not there.")
@click.option("--root", default="", metavar="FOLDER", help="Where it is unpacked.")
@click.option("--stack", metavar="NAME", help="Whose schedule it is.")
def fire(*, name: str, code: str, root: str, stack: str | None) -> int:
    """What crontab, systemd and platforms call: start what is due, once, whoever else is called for it."""
    with contextlib.suppress(FileNotFoundError), open(_variables_of(name), encoding="utf-8") as file:
        os.environ.update(json.load(file))
    client = Client(stack)
    row = Schedules(client.store.records.database).find(name)
    if row is None:
        say(f"schedule '{name}' was removed: nothing is started")
        return 0
    if code and not os.path.exists(row.path):
        bring_code(client.store, code, root)
    return _fire(client, row, manual=False)


def _fire(client: Client, row: ScheduleRow, *, manual: bool) -> int:
    start = Command(file=row.file, words=row.words, folder=row.folder, stack=row.stack).start
    sentence, code = FiringStarter(client.store, start).fire(row, manual=manual)
    say(f"{datetime.now(timezone.utc).isoformat(timespec='seconds')} {sentence}")
    return code


def _words(one: Occasion) -> str:
    return f"{one.state} {one.run_id}".strip()


def _local(moment: datetime) -> str:
    return moment.astimezone().strftime("%Y-%m-%d %H:%M")
