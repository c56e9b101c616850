"""`stoker logs RUN [STEP]`: the output of steps."""

from __future__ import annotations

import itertools
import json
import os
import shlex
import sys
import time
from collections import Counter, deque
from datetime import datetime, timezone
from typing import Callable, Final, Iterable, Iterator, Sequence

import click

from stoker.cli.output import json_option, paint, run_argument, stack_option
from stoker.client import Client, Run
from stoker.client import logs as client_logs
from stoker.client.keys import element_of
from stoker.client.logs import STREAMS, LogFilter, require_ranks
from stoker.core.errors import UsageError
from stoker.core.plan import LogLine
from stoker.core.printable import printable_json
from stoker.core.protocol import JOB
from stoker.core.status import STEP_DONE
from stoker.core.words import EXPECTED_START
from stoker.report.streams import echo, step_text
from stoker.store.logs import LAUNCHER, Rank
from stoker.store.rows import EventRow
from stoker.store.store import Store

POLL: Final = 0.3
"""Seconds between two reads of the logs of a followed run."""

Lines = Iterator[tuple[str, LogLine]]


def ranks_option(ctx: click.Context, param: click.Parameter, values: Sequence[str]) -> list[Rank] | None:
    """Parse the values of `--rank`: a number, several separated by commas, or "launcher"."""
    ranks: list[Rank] = []
    for word in (word.strip() for value in values for word in value.split(",")):
        if word == LAUNCHER:
            ranks.append(LAUNCHER)
        elif word.isdecimal():
            ranks.append(int(word))
        else:
            raise click.BadParameter(f"'{word}' is no rank; write a number, several as in 0,3, or {LAUNCHER}")
    return ranks or None


@click.command("logs")
@run_argument
@click.argument("step", required=False)
@click.option("--attempt", type=click.IntRange(min=0), help="Of a step: this attempt, not the last; 0 is its hooks.")
@click.option("--stream", type=click.Choice(STREAMS), help="Only one of the two.")
@click.option(
    "--rank",
    "ranks",
    multiple=True,
    metavar="N",
    callback=ranks_option,
    help="Of a distributed step: only this process's lines; 0,3 for several; launcher for those of none.",
)
@click.option("--follow", "-f", is_flag=True, help="Go on with new lines until it is over.")
@click.option("--tail", type=click.IntRange(min=0), metavar="N", help="Only the last N lines, and what follows them.")
@click.option("--timestamps", "-t", is_flag=True, help="The time before each line.")
@click.option("--raw", is_flag=True, help="Only what was written, with control characters as they are.")
@stack_option
@json_option
def command(
    *,
    run_id: str,
    step: str | None,
    attempt: int | None,
    stream: str | None,
    ranks: list[Rank] | None,
    follow: bool,
    tail: int | None,
    timestamps: bool,
    raw: bool,
    client: Client,
    as_json: bool,
) -> None:
    """Print what steps wrote.

    STEP is a step's key, such as train, or that of a fan-out's element, such as "train[3]". Without it: the lines of
    all steps by time. Before a line of a distributed step stands its rank, as in "[3] …", unless one --rank is asked
    for. With --json each line is one object. On a terminal, control characters are shown as text unless --raw is given,
    and colours pass with STOKER_STEP_COLOURS=1; a file gets what was written. That a step is pending, and why, stands
    on stderr; with --follow each change once.
    """
    if raw and as_json:
        raise UsageError("--raw and --json are two ways to print a line", fix="leave one of them out")
    run = client.run(run_id)
    if step is None and attempt is not None:
        raise UsageError("an attempt is one of a step", fix=f"stoker logs {run_id} STEP --attempt {attempt}")
    single = step is not None and run.steps[step].count is None
    waits = WaitingSteps(client.store, run.id, step or "")
    if not follow and run.status == "running":
        _print_waits(waits)
    lines: Lines
    if step is not None and single:
        cached_from = run.steps[step].cached_from
        if cached_from:
            source_run, _, source_step = cached_from.partition("/")
            computed = f"stoker logs {source_run} {shlex.quote(source_step)}"
            echo(f"step '{step}' is cached; run {source_run} computed it: {computed}", err=True)
        if follow and run.steps[step].status not in STEP_DONE:
            log_lines = client_logs.follow_lines(
                client.store,
                run.id,
                step,
                attempt,
                log_filter=LogFilter.parse(stream, ranks),
                tail=tail,
                before_look=lambda: _print_waits(waits),
            )
        else:
            log_lines = run.steps[step].logs(attempt, stream=stream, rank=ranks, tail=tail)
        lines = ((step, line) for line in log_lines)
    elif attempt is not None:
        raise UsageError(
            f"'{step}' is a fan-out: its elements have attempts", fix=f'stoker logs {run_id} "{step}[0]" …'
        )
    else:
        steps = run.steps
        if steps and all(one.status == "cached" for one in ([steps[step]] if step is not None else steps.values())):
            what = f"every step of run {run.id}" if step is None else f"step '{step}'"
            echo(f"{what} is cached; `stoker show {run.id}` says which runs computed it", err=True)
        lines = _many_lines(
            client.store, run, step, waits, log_filter=LogFilter.parse(stream, ranks), follow=follow, tail=tail
        )
    several = ranks is None or len(set(ranks)) > 1
    _print(lines, named=not single, ranked=several, timestamps=timestamps, as_json=as_json, raw=raw, at_once=follow)


def follow_lines(
    store: Store,
    run: Run,
    step: str | None,
    waits: WaitingSteps,
    *,
    tail: int | None = None,
    accepts: Callable[[LogLine], bool] = lambda line: True,
) -> Lines:
    """The lines of many steps as they are written, until the run is over."""
    sizes: dict[str, int] = {}
    counts: dict[str, int] = {}
    first = True
    while True:
        finished = run.refresh().status != "running"
        if not finished:
            _print_waits(waits)
        new_lines = (pair for pair in _new_lines(store, run, step, sizes, counts) if accepts(pair[1]))
        ordered = sorted(new_lines, key=lambda pair: pair[1].time)
        yield from ordered if tail is None or not first else deque(ordered, maxlen=tail)
        first = False
        if finished:
            return
        time.sleep(POLL)


def _many_lines(
    store: Store,
    run: Run,
    step: str | None,
    waits: WaitingSteps,
    *,
    log_filter: LogFilter,
    follow: bool,
    tail: int | None,
) -> Lines:
    if not follow or run.status != "running":  # a rank that wrote nothing yet may still
        logs = ((key, attempt) for key in _keys(run, step) for attempt in store.logs.attempts(run.id, key))
        require_ranks(store, run.id, logs, log_filter, where=f"run {run.id}" if step is None else f"step '{step}'")
    if follow:
        return follow_lines(store, run, step, waits, tail=tail, accepts=log_filter.matches)
    lines = ((key, line) for key, line in run.logs(step) if log_filter.matches(line))
    return lines if tail is None else iter(deque(lines, maxlen=tail))


def _new_lines(store: Store, run: Run, step: str | None, sizes: dict[str, int], counts: dict[str, int]) -> Lines:
    """The lines since the last read; a file that did not grow is not read."""
    for key in _keys(run, step):
        for attempt in store.logs.attempts(run.id, key):
            path = store.logs.path(run.id, key, attempt)
            size = os.stat(path).st_size
            if size <= sizes.get(path, 0):
                continue
            sizes[path] = size
            for line in itertools.islice(store.logs.lines(run.id, key, attempt), counts.get(path, 0), None):
                counts[path] = counts.get(path, 0) + 1
                yield key, line


def _keys(run: Run, step: str | None) -> Iterator[str]:
    for selected in [run.steps[step]] if step is not None else run.steps.values():
        if selected.count is None:
            yield selected.key
        else:
            yield from (f"{selected.key}[{index}]" for index in range(selected.count))


def _print_waits(waits: WaitingSteps) -> None:
    """Say on stderr which steps wait and why, each change once: it is nothing that a step wrote."""
    for line in waits.news():
        echo(line, err=True)


def _print(
    lines: Iterable[tuple[str, LogLine]],
    *,
    named: bool,
    ranked: bool,
    timestamps: bool,
    as_json: bool,
    raw: bool,
    at_once: bool,
) -> None:
    for key, line in lines:
        if raw:
            sys.stdout.buffer.write(line.text.encode("utf-8", "surrogateescape") + b"\n")
        elif as_json:
            document = {
                "step": key,
                "time": line.time,
                "stream": line.stream,
                "rank": line.rank,
                "text": line.text,
            }
            echo(printable_json(json.dumps(document, ensure_ascii=False)))
        else:
            head = paint(f"{_clock(line.time)} ", "2") if timestamps else ""
            head += paint(f"{key} │ ", "2") if named else ""
            head += paint(f"[{line.rank}] ", "2") if ranked and line.rank is not None else ""
            echo(head + step_text(line.text))
        if at_once:
            sys.stdout.flush()


def _clock(seconds: float) -> str:
    moment = datetime.fromtimestamp(seconds, tz=timezone.utc).astimezone()
    return moment.isoformat(sep=" ", timespec="milliseconds")


WAITING: Final = "waiting"
SENT: Final = "it was sent; its platform has not looked at it yet"
NOT_SENT: Final = "it has not been sent yet: the steps before it come first"


class WaitingSteps:
    """Which steps of a run wait, or one step or the elements of one fan-out, `step`."""

    def __init__(self, store: Store, run: str, step: str = "") -> None:
        self._store = store
        self._run = run
        self._step = step
        self._last = -1
        self._reasons: dict[str, str] = {}
        self._starts: dict[str, str] = {}
        self._running: set[str] = set()
        self._reported: dict[str, frozenset[str]] = {}

    def news(self) -> Iterator[str]:
        """A line for each step whose reason is new since the last call, and for each that waited and now runs."""
        begun = []
        for event in self._store.records.events(self._run, after=self._last):
            self._last = event.seq
            if self._step in ("", event.key, element_of(event.key)[0]) and self._note(event):
                begun.append(event)
        if self._last < 0 and self._step and not self._reported:
            row = self._store.records.step(self._run, self._step)
            if row is None or row.status == "pending":
                self._reported[self._step] = frozenset()
                yield f"{self._step} is pending: {NOT_SENT}"
        by_step: dict[str, list[str]] = {}
        for key in self._reasons:
            by_step.setdefault(element_of(key)[0], []).append(key)
        for step, keys in by_step.items():
            reasons = Counter(self._reasons[key] for key in keys)
            if set(reasons) <= self._reported.get(step, frozenset()):
                continue
            self._reported[step] = self._reported.get(step, frozenset()) | set(reasons)
            yield from self._lines(step, keys, reasons)
        for event in begun:
            if event.key not in self._reasons and element_of(event.key)[1] is None and event.key in self._reported:
                yield f"{event.key} runs{_place(event)}"

    def _note(self, event: EventRow) -> bool:
        """Note an event; whether the step began."""
        state = event.data.get("state") if event.kind == JOB else ""
        if event.kind == WAITING or state == "sent":
            message = str(event.data.get("message", "")) or SENT
            self._running.discard(event.key)
            self._reasons[event.key], mark, start = message.partition(EXPECTED_START)
            self._starts[event.key] = mark + start
        elif state in ("running", "ended") or event.kind in ("leased", "retry", "cancel"):
            self._reasons.pop(event.key, None)
            if state == "running":
                self._running.add(event.key)
            return state == "running"
        return False

    def _lines(self, step: str, keys: list[str], reasons: Counter[str]) -> Iterator[str]:
        if keys == [step]:
            yield f"{step} is pending: {self._reasons[step]}{self._starts[step]}"
            return
        running = sum(element_of(key)[0] == step for key in self._running)
        parts = [f"{number:,} pending: {reason}" for reason, number in reasons.items()]
        yield f"{step}: {'; '.join([*parts, *([f'{running:,} running'] if running else [])])}"


def _place(event: EventRow) -> str:
    job, node = str(event.data.get("job", "")), str(event.data.get("node", ""))
    return (f" as {job}" if job else "") + (f" on {node}" if node else "")
