"""`stoker show RUN`, `stoker watch RUN`, `stoker why RUN STEP`: a run's steps, why it failed, and its outputs; how it
goes on, from another terminal; why a step ran or was cached, and what of its cache key changed since when."""

from __future__ import annotations

import json
import sys
from typing import Any, Collection, Final, Iterable, Iterator, Mapping, Sequence

import attrs
import click

from stoker.cli.metrics import metric_row, with_curves
from stoker.cli.output import folded, json_option, paint, print_json, run_argument, stack_option, status_text, table
from stoker.client import Client, Run, Step
from stoker.client.keys import element_of
from stoker.client.placements import Placement
from stoker.client.runs import Placements, element_counts, run_document, running_keys, step_status, wait_reasons
from stoker.client.why import KeyChange, StepReason, why
from stoker.core.errors import EXIT_FAILED, EXIT_INTERRUPTED
from stoker.core.ladder import Change
from stoker.core.receipt import Receipt, summary_of
from stoker.core.status import STEP_GOOD
from stoker.core.words import attempts_text, count_text, memory_text, short, time_text, took_text
from stoker.report.live import pending_texts
from stoker.report.streams import echo, say
from stoker.worker.failure import explanation_lines

_CHANGES_SHOWN: Final = 20
"""Changes of requests that are printed; a fan-out's elements may have thousands."""
_METRICS_SHOWN: Final = 20
"""Metrics that are printed; `stoker metrics` prints all of them."""
_FAILURES_SHOWN: Final = 10
"""Failed steps that are printed with their tracebacks; the others are a count."""


@attrs.frozen(kw_only=True)
class _Beside:
    """What is known of a run's steps and elements beside their rows, by key."""

    receipts: Mapping[str, Sequence[Receipt]]
    """What was proved of their accelerators; of a fan-out, the receipts of its elements."""
    placements: Placements
    """Their jobs on a platform with a queue."""
    running: Collection[str]
    """Those that run."""
    waits: Mapping[str, str]
    """What those that have not begun wait for."""


@click.command("show")
@run_argument
@click.option("--elements", is_flag=True, help="Also every element of the fan-outs.")
@click.option("--stacks", is_flag=True, help="Of ranks that hung: where each of them stood.")
@click.option(
    "--diff", is_flag=True, help="Print how the files differed from the commit, as a patch, and nothing else."
)
@stack_option
@json_option
def show(*, run_id: str, elements: bool, stacks: bool, diff: bool, client: Client, as_json: bool) -> None:
    """Show a run: its steps, why it failed, what it made."""
    run = client.run(run_id)
    run.find_lost_driver()
    if diff and as_json:
        print_json({"diff": run.diff})
    elif diff:
        echo(run.diff.rstrip("\n")) if run.has_diff else say(f"run {run.id} keeps no difference from a commit")
    elif as_json:
        print_json(run_document(run, elements=elements))
    else:
        echo("\n".join(run_lines(run, elements=elements, stacks=stacks)))


def run_lines(run: Run, *, elements: bool, stacks: bool = False) -> Iterator[str]:
    """The run as text."""
    steps = list(run.steps.values())
    yield f"{paint(run.id, '1')}  {run.pipeline}  {status_text(run.status)}"
    yield from (f"  {name:<10} {text}" for name, text in _facts(run) if text)
    if run.parameters:
        yield "\nparameters"
        yield from (f"  {name} = {_value(value)}" for name, value in run.parameters.items())
    if steps:
        placements = run.placements
        beside = _Beside(
            receipts=_receipts_by_step(run),
            placements=placements,
            running=running_keys(run, placements),
            waits=pending_texts(run, placements),
        )
        rows = [row for step in steps for row in _rows(step, beside, elements=elements)]
        headers = ("step", "status", "took", "cpu", "peak", "attempts", "")
        yield "\n" + table(headers, rows, right=("took", "cpu", "peak", "attempts"), indent="  ", folds=True)
        placed = [_placement(key, one) for key, one in _placed(steps, placements, elements=elements)]
        if placed:
            heads = ("step", "job", "node", "partition", "waited", "sent", "")
            yield "\n" + table(heads, placed, right=("waited",), indent="  ")
    left_out = [
        (one.place, one.kind, one.cause, f"{one.step} #{one.attempt}", short(one.message)) for one in run.left_out
    ]
    if left_out:
        yield "\n" + table(("left out", "", "because of", "in", ""), left_out, indent="  ")
    changes = list(_changes(run))
    if changes:
        titles = ("step", "attempt", "after", "changed", "rung")
        yield "\n" + table(titles, changes[:_CHANGES_SHOWN], right=("attempt",), indent="  ")
    if len(changes) > _CHANGES_SHOWN:
        yield f"  … and {count_text(len(changes) - _CHANGES_SHOWN, 'change')} more"
    failed = [step for step in steps if step.status == "failed"]
    for step in failed[:_FAILURES_SHOWN]:
        yield from _failure(step, stacks=stacks)
    if len(failed) > _FAILURES_SHOWN:
        yield f"\n… and {count_text(len(failed) - _FAILURES_SHOWN, 'step')} more failed"
    if any(step.status == "cached" for step in steps) and not failed:
        yield f"\n  why a step ran or was cached: stoker why {run.id} STEP"
    logged = [(key, metric) for key, one in run.metrics.items() for metric in one.values()]
    if logged:
        names = ("step", "metric", "last", "lowest", "highest", "values", "")
        shown = logged[:_METRICS_SHOWN]
        words = [(key, metric.name, *metric_row(metric)) for key, metric in shown]
        rows = with_curves(names, words, [metric for _, metric in shown], indent="  ")
        yield "\n" + table(names, rows, right=names[2:6], indent="  ")
    if len(logged) > _METRICS_SHOWN:
        yield f"  … and {count_text(len(logged) - _METRICS_SHOWN, 'metric')} more: stoker metrics {run.id}"
    outputs = [row for step in steps for row in _outputs(step)]
    if outputs:
        yield "\n" + table(("output", "type", "shape", "size"), outputs, right=("size",), indent="  ")


def _facts(run: Run) -> Iterator[tuple[str, str]]:
    yield "created", run.created.strftime("%Y-%m-%d %H:%M:%S")
    yield "took", took_text(run.active_seconds, run.queue_seconds) if run.active_seconds is not None else ""
    yield "defined", run.source
    yield "stack", run.stack
    yield "tags", ", ".join(run.tags)
    yield "started by", run.cause
    yield "author", run.author
    yield "commit", run.commit_words + (f": stoker show {run.id} --diff" if run.has_diff else "")
    yield "repeats", run.origin or ""
    yield "sessions", str(run.sessions) if run.sessions > 1 else ""
    yield "driver", _driver_text(run)
    yield "error", run.error
    yield "unreadable", run.damage
    if run.status in ("failed", "cancelled", "interrupted"):
        yield "go on", f"stoker resume {run.id}"


def _driver_text(run: Run) -> str:
    """The state of a driver that has not started, or that another start follows; empty for one that drives the run."""
    if run.status == "interrupted" and run.restarted_by:
        return f"is gone; {run.restarted_by} drives the run as soon as the platform starts it again"
    if run.status == "running" and run.awaits and run.sessions:
        return f"goes on as soon as it is started again: {run.awaits}"
    state = {"running": "has not begun yet", "interrupted": "ended before it began"}.get(run.status, "never began")
    return f"{state}: {run.awaits}" if run.awaits else ""


def _receipts_by_step(run: Run) -> Mapping[str, Sequence[Receipt]]:
    """The receipts of each step and each element; those of a fan-out are its elements'."""
    receipts: dict[str, list[Receipt]] = {}
    for key, receipt in run.receipts.items():
        for name in {key, element_of(key)[0]}:
            receipts.setdefault(name, []).append(receipt)
    return receipts


def _placed(steps: Sequence[Step], placements: Placements, *, elements: bool) -> Iterator[tuple[str, Placement]]:
    """The last placements of steps and, if asked for, of elements; those of a fan-out's elements are many."""
    for step in steps:
        keys: Iterable[str] = (f"{step.key}[{index}]" for index in range(step.count if elements and step.count else 0))
        for key in [step.key] if step.count is None else keys:
            placed = [one for one in placements.get(key, ()) if _has_job(one)]
            if placed:
                yield key, placed[-1]


def _has_job(placement: Placement) -> bool:
    """Whether an attempt has a job or may still get one. One that was refused before it had any may be known by words
    for a job to come: "a step that waits for a job"."""
    waits = placement.ended is None
    return placement.started is not None or (bool(placement.job) and (waits or not placement.job.startswith("a ")))


def _placement(key: str, placement: Placement) -> tuple[str, ...]:
    waited = placement.queue_seconds
    return (
        key,
        placement.job,
        placement.node,
        placement.partition,
        time_text(waited) if waited is not None else "",
        placement.sent.strftime("%H:%M:%S") if placement.sent is not None else "",
        placement.url,
    )


def _rows(step: Step, beside: _Beside, *, elements: bool) -> Iterator[tuple[str, ...]]:
    title = step.key if step.count is None else f"{step.key} ×{step.count:,}"
    yield _row(step, title, beside)
    if elements and step.count:
        for element in step:
            yield _row(element, f"  {element.key}", beside)


def _waits(step: Step, placements: Placements) -> list[str]:
    """Why elements of a fan-out wait in a platform's queue, in words."""
    return [f"{number:,} waits: {short(reason)}" for reason, number in wait_reasons(step, placements).items()]


def _row(step: Step, title: str, beside: _Beside) -> tuple[str, ...]:
    usage = step.usage
    return (
        title,
        step_status(step, beside.running),
        time_text(step.seconds) if step.seconds is not None and step.status != "cached" else "",
        time_text(usage.cpu) if usage.cpu is not None else "",
        memory_text(usage.peak_memory) if usage.peak_memory else "",
        attempts_text(step.attempt_count, of_elements=step.count is not None),
        "; ".join(filter(None, (beside.waits.get(step.key, ""), _remark(step, beside)))),
    )


def _remark(step: Step, beside: _Beside) -> str:
    """A step's remark: the states of a fan-out's elements, a cached result's origin, the accelerators, the cause."""
    words = []
    if step.count:
        tally = element_counts(step, beside.running)
        if set(tally) != {step.status}:
            words.append(", ".join(f"{number:,} {status}" for status, number in tally.items()))
        if kept := step.caught_failures:
            words.append(f"{kept:,} failed, and the failure is kept")
        words += _waits(step, beside.placements)
    elif step.status in STEP_GOOD and step.message:  # a failure that was caught
        words.append(short(step.message))
    if step.cached_from:
        words.append(f"from {step.cached_from}")
    if step.count is None and step.usage.rank_peaks:
        words += [f"{step.usage.rank_text} a rank", *filter(None, [step.usage.imbalance_text])]
    if (step.attempt_count > 1 or step.usage.restarting is not None) and (cost := str(step.lost)):
        words.append(cost)
    if receipts := beside.receipts.get(step.key, ()):
        words.append(summary_of(receipts))
    if step.damage:
        words.append(f"unreadable: {step.damage}")
    if step.status == "pending" and step.message:
        words.append(f"waits: {short(step.message)}")
    if step.cause:
        words.append(f"{step.cause}: {short(step.message)}".rstrip(": "))
    return "; ".join(words)


def _changes(run: Run) -> Iterator[tuple[str, ...]]:
    """The changes of requests that ran out of memory: for which attempt, and why."""
    for event in run.events:
        if event.kind != "escalated":
            continue
        data = event.data
        try:
            change = Change(what=str(data["what"]), old=data["old"], new=data["new"])
            remembered = data["cause"] == "remembered"
            why = f"worked in {data['run']}; --no-cache asks anew" if remembered else str(data["cause"])
            attempt = "first" if remembered else str(data["attempt"] + 1)
            yield event.key, attempt, why, str(change), str(data["rung"])
        except (KeyError, TypeError, ValueError):
            yield event.key, "", "", "unreadable", ""


def _failure(step: Step, *, stacks: bool) -> Iterator[str]:
    failure = step.failure
    if failure is None:
        return
    where = f" on {failure.where}" if failure.where else ""
    position = f" at {failure.place}" if failure.place else ""
    yield "\n" + paint(f"{step.key} failed{where}{position}: {failure.cause}", "1;31")
    body = (failure.traceback or failure.message).rstrip()
    yield body
    explanation = explanation_lines(
        why=failure.why,
        advice=failure.advice,
        evidence=failure.evidence,
        whole=failure.whole,
        earlier=failure.earlier,
        body=body,
    )
    yield from (folded(line.strip(), "  ", indent="       ") for line in explanation.splitlines())
    if failure.stacks and not stacks:
        yield f"  stacks: of {count_text(len(failure.stacks), 'rank')}: stoker show {step.run_id} --stacks"
    for rank, text in failure.stacks.items() if stacks else ():
        yield "\n" + paint(f"rank {rank} stood in", "1")
        yield text.rstrip()


def _outputs(step: Step) -> Iterator[tuple[str, ...]]:
    if step.status not in STEP_GOOD or step.count == 0:
        return
    # The first element of a fan-out is the example: assembling the list of all is expensive.
    example = step if step.count is None else step[0]
    for output in example.outputs.values():
        shape = "×".join(map(str, output.shape)) if output.shape is not None else ""
        title = f"{step.key}.{output.name}" + ("" if step.count is None else f" ×{step.count}")
        yield title, output.type, f"{shape} {output.dtype or ''}".strip(), memory_text(output.size)


def _value(value: Any) -> str:
    return short(json.dumps(value, ensure_ascii=False), 100)


EXIT_CODES: Final = {"succeeded": 0, "cancelled": EXIT_INTERRUPTED}
"""The run's status → the command's exit code; of any other that of a failed step."""


@click.command("watch")
@run_argument
@stack_option
def watch(*, run_id: str, client: Client) -> int:
    """Show a run as it goes on.

    The view is the one of the terminal that the run was started in; a detached run has one in this way. It shows what
    steps write from now on (`stoker logs` has all). In a pipe it is a line for each change. Ctrl-C leaves the run
    alone. The exit code is that of the run: 0 if it succeeded, 1 if not, 130 if it was cancelled.
    """
    from stoker.report.following import RunWatch
    from stoker.report.terminal import Terminal

    run = client.run(run_id)
    if run.find_lost_driver() or (run.status != "running" and not run.restarted_by):
        echo("\n".join(run_lines(run, elements=False)))
        return EXIT_CODES.get(run.status, EXIT_FAILED)
    terminal = Terminal(sys.stdout)
    watch = RunWatch(client.store, run, terminal)
    try:
        watch.begin()
        status = watch.follow()
    except KeyboardInterrupt:
        terminal.leave_terminal()
        say(f"\nrun {run.id} goes on: `stoker watch {run.id}` shows it again, `stoker cancel {run.id}` ends it")
        return EXIT_INTERRUPTED
    terminal.ended(status)
    if status == "interrupted":
        say(f"the driver of run {run.id} is gone: `stoker resume {run.id}` goes on with what was done")
    return EXIT_CODES.get(status, EXIT_FAILED)


@click.command("why")
@run_argument
@click.argument("step")
@click.option("--against", metavar="RUN", help="Compare with this run, not with the newest earlier result.")
@stack_option
@json_option
def why_command(*, run_id: str, step: str, against: str | None, client: Client, as_json: bool) -> None:
    """Say why a step ran or was cached: which code, input, package or setting changed, and since when.

    STEP is a step's key; "train[3]" is one element of a fan-out.
    """
    other = client.run(against).id if against else ""
    answer = why(client.store, client.run(run_id).id, step, against=other)
    if as_json:
        print_json(answer.as_dict())
    else:
        echo("\n".join(_lines(answer)))


def _lines(answer: StepReason) -> Iterator[str]:
    yield f"{paint(answer.step, '1')} of run {answer.run}: {status_text(answer.status)}"
    yield f"  {answer.text}"
    if answer.changes and answer.compared_with:
        when = f" of {answer.since:%Y-%m-%d %H:%M:%S}" if answer.since is not None else ""
        yield f"  compared with {answer.compared_with}{when}"
    for change in answer.changes:
        yield ""
        yield "  " + _headline(change)
        yield from (f"    {paint(line, _colour(line))}" for line in change.diff.splitlines())


def _headline(change: KeyChange) -> str:
    kind = paint(change.kind, "1")
    if change.kind == "code":
        verb = "is new" if not change.before else "is gone" if not change.after else "changed"
        return f"{kind} {change.name} {verb}" + (f"  {change.where}" if change.where else "")
    source = f" (from {change.upstream})" if change.upstream else ""
    return f"{kind} {change.name}{source}: {change.before or 'none'} → {change.after or 'none'}"


def _colour(line: str) -> str:
    return "32" if line.startswith("+") else "31" if line.startswith("-") else ""
