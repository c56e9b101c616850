"""`stoker show RUN`: a run's steps, why it failed, and its outputs."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any, Final, Iterator, Mapping, Sequence

import click

from stoker.cli.options import json_option, run_argument, stack_option
from stoker.cli.output import paint, print_json, short, status_text, table
from stoker.client import Client, Run, Step
from stoker.client.keys import element_of
from stoker.core.ladder import Change
from stoker.core.receipt import Receipt
from stoker.core.receipt_words import summary_of
from stoker.core.status import STEP_GOOD
from stoker.core.words import count_text, memory_text, time_text
from stoker.worker.failure import explanation_lines

Receipts = Mapping[str, Sequence[Receipt]]

_CHANGES_SHOWN: Final = 20
"""Changes of requests that are printed; a fan-out's elements may have thousands."""
_FAILURES_SHOWN: Final = 10
"""Failed steps that are printed with their tracebacks; the others are a count."""


@click.command("show")
@run_argument
@click.option("--elements", is_flag=True, help="Also every element of the fan-outs.")
@click.option("--stacks", is_flag=True, help="Of ranks that hung: where each of them stood.")
@stack_option
@json_option
def command(*, run_id: str, elements: bool, stacks: bool, client: Client, as_json: bool) -> None:
    """Show a run: its steps, why it failed, what it made."""
    run = client.run(run_id)
    if as_json:
        print_json(run_document(run, elements=elements))
    else:
        click.echo("\n".join(run_lines(run, elements=elements, stacks=stacks)))


def run_document(run: Run, *, elements: bool) -> dict[str, Any]:
    """The run as JSON, with the attempts and outputs of its steps."""
    document = run.as_dict(steps=False)
    steps = [step.as_dict() for step in run.steps.values()]
    for step in steps if not elements else ():
        step.pop("elements", None)
    document["steps"] = steps
    return document


def run_lines(run: Run, *, elements: bool, stacks: bool = False) -> Iterator[str]:
    """The run as text."""
    steps = list(run.steps.values())
    yield f"{paint(run.id, '1')}  {run.pipeline}  {status_text(run.status)}"
    yield from (f"  {name:<10} {text}" for name, text in _facts(run) if text)
    if run.parameters:
        yield "\nparameters"
        yield from (f"  {name} = {_value(value)}" for name, value in run.parameters.items())
    if steps:
        receipts = _receipts_by_step(run)
        rows = [row for step in steps for row in _rows(step, receipts, elements=elements)]
        headers = ("step", "status", "took", "cpu", "peak", "attempts", "")
        yield "\n" + table(headers, rows, right=("took", "cpu", "peak", "attempts"), indent="  ")
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
    outputs = [row for step in steps for row in _outputs(step)]
    if outputs:
        yield "\n" + table(("output", "type", "shape", "size"), outputs, right=("size",), indent="  ")


def _facts(run: Run) -> Iterator[tuple[str, str]]:
    yield "created", run.created.strftime("%Y-%m-%d %H:%M:%S")
    yield "took", time_text(run.seconds) if run.seconds is not None else ""
    yield "defined", run.source
    yield "stack", run.stack
    yield "tags", ", ".join(run.tags)
    yield "sessions", str(run.sessions) if run.sessions > 1 else ""
    yield "driver", _driver_text(run)
    yield "error", run.error
    if run.status in ("failed", "cancelled", "interrupted"):
        yield "go on", f"stoker resume {run.id}"


def _driver_text(run: Run) -> str:
    """The state of a driver that has not started; empty if it has."""
    state = {"running": "has not begun yet", "interrupted": "ended before it began"}.get(run.status, "never began")
    return f"{state}: {run.awaits}" if run.awaits else ""


def _receipts_by_step(run: Run) -> Receipts:
    """The receipts of each step and each element; those of a fan-out are its elements'."""
    receipts: dict[str, list[Receipt]] = {}
    for key, receipt in run.receipts.items():
        for name in {key, element_of(key)[0]}:
            receipts.setdefault(name, []).append(receipt)
    return receipts


def _rows(step: Step, receipts: Receipts, *, elements: bool) -> Iterator[tuple[str, ...]]:
    title = step.key if step.count is None else f"{step.key} ×{step.count}"
    yield _row(step, title, receipts)
    if elements and step.count:
        for element in step:
            yield _row(element, f"  {element.key}", receipts)


def _row(step: Step, title: str, receipts: Receipts) -> tuple[str, ...]:
    usage = step.usage
    return (
        title,
        step.status,
        time_text(step.seconds) if step.seconds is not None and step.status != "cached" else "",
        time_text(usage.cpu) if usage.cpu is not None else "",
        memory_text(usage.peak_memory) if usage.peak_memory else "",
        str(step.attempt_count) if step.attempt_count > 1 else "",
        _remark(step, receipts.get(step.key, ())),
    )


def _remark(step: Step, receipts: Sequence[Receipt]) -> str:
    """A step's remark: the states of a fan-out's elements, a cached result's origin, the accelerators, the cause."""
    words = []
    if step.count:
        tally = Counter(element.status for element in step)
        if len(tally) > 1:
            words.append(", ".join(f"{number:,} {status}" for status, number in tally.items()))
    if step.cached_from:
        words.append(f"from {step.cached_from}")
    if receipts:
        words.append(summary_of(receipts))
    if step.cause:
        words.append(f"{step.cause}: {short(step.message)}".rstrip(": "))
    return "; ".join(words)


def _changes(run: Run) -> Iterator[tuple[str, ...]]:
    """The changes of requests that ran out of memory: for which attempt, and why."""
    for event in run.events:
        if event.kind != "escalated":
            continue
        data = event.data
        change = Change(what=data["what"], old=data["old"], new=data["new"])
        remembered = data["cause"] == "remembered"
        why = f"worked in {data['run']}; --no-cache asks anew" if remembered else data["cause"]
        yield event.key, "first" if remembered else str(data["attempt"] + 1), why, str(change), data["rung"]


def _failure(step: Step, *, stacks: bool) -> Iterator[str]:
    failure = step.failure
    if failure is None:
        return
    where = f" on {failure.where}" if failure.where else ""
    position = f" at {failure.place}" if failure.place else ""
    yield "\n" + paint(f"{step.key} failed{where}{position}: {failure.cause}", "1;31")
    body = (failure.traceback or failure.message).rstrip()
    yield body
    explanation = explanation_lines(why=failure.why, advice=failure.advice, evidence=failure.evidence, body=body)
    yield from explanation.splitlines()
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
