"""What `stoker plan` shows besides the plan: what each stack could give a step (`--where`), requests (`--render`),
locks (`--lock`)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Callable, Final, Iterator, Sequence

import attrs

from stoker import stacks
from stoker.backends.registry import BACKENDS
from stoker.cli.output import paint
from stoker.core.codec import to_json
from stoker.core.errors import StokerError
from stoker.core.lock import Lock
from stoker.core.plan import Plan, StepPlan, reporter_of
from stoker.core.resources import describe
from stoker.core.words import count_text
from stoker.images import context
from stoker.images.definition import is_definition
from stoker.images.locks import file_text, parse, read_file
from stoker.report.streams import echo, say
from stoker.run.building import package_lines
from stoker.run.rendering import RenderedStep

PRICED: Final = "STK323"
"""The finding that has the choice of a platform and its price."""
NO_PRICE: Final = "no price is known"


@attrs.frozen(kw_only=True)
class StackAnswer:
    """What one stack could give a step."""

    stack: str
    fits: bool
    backend: str
    """The flavor that the step would run on; empty where the stack has no plan."""
    text: str
    """The machine and its price, why there is no price, or why the step cannot run there."""
    fix: str = ""
    """What makes the step fit there, or lets the platform be asked."""


def ask_stacks(plan_on: Callable[[str], Plan]) -> dict[str, list[StackAnswer]]:
    """The answers of all stacks by step; `plan_on` plans on a stack of this name."""
    answers: dict[str, list[StackAnswer]] = {}
    failures: list[StackAnswer] = []
    for stack in stacks.stacks():
        try:
            plan = plan_on(stack.name)
        except StokerError as error:
            failures.append(StackAnswer(stack=stack.name, fits=False, backend="", text=error.message, fix=error.fix))
            continue
        for step in plan.steps:
            flavor = stack.part(step.backend).flavor
            answers.setdefault(step.key, []).append(_answer(plan, step, stack.name, flavor))
    for rows in answers.values():
        rows.extend(failures)
    return answers


def _answer(plan: Plan, step: StepPlan, stack: str, flavor: str) -> StackAnswer:
    where = reporter_of(step).where
    mine = [finding for finding in plan.findings if where in finding.where]
    errors = [finding for finding in mine if finding.level == "error"]
    if errors:
        text = "; ".join(f"{finding.what} ({finding.code})" for finding in errors)
        fix = "; ".join(dict.fromkeys(finding.fix for finding in errors if finding.fix))
        return StackAnswer(stack=stack, fits=False, backend=flavor, text=text, fix=fix)
    priced = next((finding.what for finding in mine if finding.code == PRICED), NO_PRICE)
    unasked = BACKENDS.load(flavor).unasked
    silent = next((finding for finding in mine if finding.code in unasked), None)
    if silent is None:
        return StackAnswer(stack=stack, fits=True, backend=flavor, text=priced)
    text = f"{priced}; {silent.what}: {silent.why} ({silent.code})"
    return StackAnswer(stack=stack, fits=True, backend=flavor, text=text, fix=silent.fix)


def where_lines(steps: Sequence[StepPlan], answers: dict[str, list[StackAnswer]]) -> Iterator[str]:
    """The answers as text."""
    for step in steps:
        yield ""
        yield f"{paint(step.key, '1')} where: needs {describe(step.settings.resources)}"
        rows = answers.get(step.key, [])
        width = max((len(row.stack) for row in rows), default=0)
        for row in rows:
            answer = f"{row.backend}: {row.text}" if row.fits else paint(f"no: {row.text}", "31")
            yield f"  {row.stack:<{width}}  {answer}"
            if row.fix:
                yield f"  {'':<{width}}  fix: {row.fix}"


def where_document(answers: dict[str, list[StackAnswer]]) -> dict[str, Any]:
    """The answers as JSON."""
    return {key: [attrs.asdict(row) for row in rows] for key, rows in answers.items()}


def request_lines(requests: Sequence[RenderedStep]) -> Iterator[str]:
    """The requests as text; a Dockerfile that several steps share is printed once."""
    dockerfiles: dict[tuple[str, ...], str] = {}
    for request in requests:
        yield ""
        each = f"  once for each of {', '.join(request.times)}" if request.times else ""
        yield f"{paint(request.step, '1')}  would be sent to {request.backend}{each}"
        if request.dockerfile:
            texts = {"Dockerfile": request.dockerfile, **request.files}
            first = dockerfiles.setdefault((*texts, *texts.values()), request.step)
            if first != request.step:
                yield f"  Dockerfile: that of {first}"
                texts = {}
            for name, text in texts.items():
                yield f"  {name}"
                yield from (f"    {line}".rstrip() for line in text.rstrip().splitlines())
        elif request.image and not is_definition(request.image):
            yield f"  no Dockerfile: {request.image} is used as it is"
        if request.script:
            yield "  by hand: paste from ( to ) into a shell"
            yield from request.script.splitlines()
            continue
        yield "  request"
        text = json.dumps(to_json(request.request), indent=2, ensure_ascii=False)
        yield from (f"    {line}" for line in text.splitlines())


def code_lines(package: context.CodePackage) -> Iterator[str]:
    """How much code travels, and what of the folder does not."""
    yield ""
    yield from package_lines(package)
    yield from (f"  stays behind: {path}" for path in package.left_out)
    yield from (f"  left out: {name}, which is being written" for name in package.changing)


def show_locks(plan: Plan, file: str | bool, *, as_json: bool) -> None:
    """Print the locks of a plan, or write them into a file, beside those that it has of other plans."""
    locks = {digest: parse(document) for digest, document in plan.locks.items()}
    if isinstance(file, str):
        path = Path(file)
        others = read_file(path)
        path.write_text(file_text({**others, **locks}.values()), encoding="utf-8")
        say(f"{path} has {count_text(len(others | locks), 'lock')}, {len(locks)} of them of this plan")
    elif not as_json:
        echo("\n".join(lock_lines(plan, locks)))


def lock_lines(plan: Plan, locks: dict[str, Lock]) -> Iterator[str]:
    """The packages of each lock as a requirements file has them, below what they are for."""
    for digest, lock in locks.items():
        steps = list(dict.fromkeys(step.name for step in plan.steps if step.lock == digest))
        yield ""
        yield (
            f"{paint(', '.join(steps), '1')}  {count_text(len(lock.lines), 'package')} for Python {lock.python} on "
            f"{lock.platform}, by {lock.resolver} on {lock.made}"
        )
        if lock.kept:
            yield f"  of the parent image: {', '.join(f'{name} {text}' for name, text in sorted(lock.kept.items()))}"
        if not lock.whole:
            yield "  predicted: what else the parent image has is not known, and the build chooses beside it"
        yield from (f"  {line}" for line in lock.lines)
