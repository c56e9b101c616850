"""`stoker plan FILE`: print everything that is decided before a run, without running it; and what each stack could give
a step (`--where`), the requests (`--render`), the locks (`--lock`)."""

from __future__ import annotations

import base64
import contextlib
import importlib
import json
from pathlib import Path
from typing import Any, Callable, Final, Iterator, Mapping, Sequence

import attrs
import click

from stoker import stacks
from stoker.backends.registry import BACKENDS
from stoker.cli import target as targets
from stoker.cli.output import paint, print_json
from stoker.cli.rerun import Unparsed, command_line, help_for
from stoker.core import findings as checks
from stoker.core.codec import to_json
from stoker.core.errors import EXIT_PREFLIGHT, StokerError, UsageError, nearest
from stoker.core.packages import Lock
from stoker.core.plan import Plan, StepPlan, lookup_text, reporter_of, uses_cache, without_secrets
from stoker.core.receipt import proof_text
from stoker.core.request import RunRequest
from stoker.core.resources import describe
from stoker.core.secret import MASK, looks_secret
from stoker.core.settings import Retry, StepSettings
from stoker.core.units import duration_text
from stoker.core.words import count_text
from stoker.images import context
from stoker.images.dockerfile import is_definition
from stoker.images.resolving import file_text, parse, read_file
from stoker.plan.plandoc import given_settings
from stoker.report.streams import echo, say
from stoker.run import driver
from stoker.run.building import package_lines
from stoker.run.commandline import CommandLine
from stoker.run.program import Program
from stoker.run.rendering import RenderedStep
from stoker.run.session import Session

SUMMARY: Final = (
    "Shows what a run would do: each step's settings, backend and inputs, and what the backends say of them."
)
_LONGEST: Final = 60
"""Characters of the longest constant that is printed; a longer one is shown by its type."""


@click.command("plan", cls=Unparsed, add_help_option=False)
def command(words: list[str]) -> int:
    """Show what a run would do, and with which settings, without running it."""
    target, line, options = command_line(words, targets.PLAN_OPTIONS)
    if target is None or options.get("help"):
        echo(help_for(target, "plan", targets.PLAN_OPTIONS, SUMMARY))
        return 0
    as_json = bool(options.get("json"))
    with first_call(target, line) as (pipeline, arguments, request):
        upgrade, offline = bool(options.get("upgrade")), bool(options.get("offline"))
        plan = driver.plan(pipeline, arguments, attrs.evolve(request, upgrade=upgrade, offline=offline))
        if not as_json:
            stack = stacks.load(plan.stack).with_usual(step.backend for step in plan.steps)
            backends = {
                name: component.flavor if component.usual else f"{name} ({component.flavor})"
                for name, component in stack.parts.items()
            }
            echo("\n".join(plan_lines(plan, backends, explain=bool(options.get("explain")))))
        views: Any = None
        if {"lock", "where", "render"} & options.keys():
            views = importlib.import_module("stoker.cli.plan")  # imports what resolves requirements, and images
        if options.get("lock"):
            views.show_locks(plan, options["lock"], as_json=as_json)
        document = to_json(without_secrets(plan))
        if options.get("where"):
            answers = views.ask_stacks(lambda name: driver.plan(pipeline, arguments, attrs.evolve(request, stack=name)))
            document["where"] = views.where_document(answers)
            if not as_json:
                echo("\n".join(views.where_lines(plan.steps, answers)))
        if options.get("render"):
            requested: Any = importlib.import_module("stoker.run.rendering")
            packages: list[Any] = []
            session = Session(request, stack=pipeline.stack)
            session.hint(pipeline)
            requests = _of_step(requested.render_plan(plan, session, packages.append), options["render"])
            document["rendered"] = to_json(requests)
            if not as_json and requests:
                code = [line for package in packages for line in views.code_lines(package)]
                echo("\n".join([*code, *views.request_lines(requests)]))
        if as_json:
            print_json(document)
    return EXIT_PREFLIGHT if checks.errors(plan.findings) else 0


def _of_step(requests: Sequence[Any], step: str | bool) -> Sequence[Any]:
    """The requests of one step, where `--render=STEP` names it."""
    if isinstance(step, bool):
        return requests
    names = [one.step for one in requests]
    named = step if step in names else step.partition("[")[0]  # an element is sent what the first one is
    if named not in names:
        what = f"--render: there is no step '{step}' in this pipeline{nearest(step, names)}"
        raise UsageError(what, fix="--render alone prints what would be sent for each step")
    return [one for one in requests if one.step == named]


def plan_first_call(target: targets.ProgramFile, line: CommandLine) -> Plan:
    """The plan of the first call of a pipeline in a file, with the arguments of that call."""
    with first_call(target, line) as (pipeline, arguments, request):
        return driver.plan(pipeline, arguments, request)


@contextlib.contextmanager
def first_call(
    target: targets.ProgramFile, line: CommandLine
) -> Iterator[tuple[Program, Mapping[str, Any], RunRequest]]:
    """The pipeline, its arguments and the run's request of the first call, while the file is `__main__`."""
    line.planning = True
    with targets.execute(target, line) as main:
        program, arguments = line.calls[0] if line.calls else (targets.choose(main, target), {})
        program, request = line.read(program, arguments)
        yield program, arguments, request


def plan_lines(plan: Plan, backends: Mapping[str, str], *, explain: bool) -> Iterator[str]:
    """The plan as text; `backends` has the description of each backend."""
    steps = "dynamic" if plan.dynamic else count_text(len(plan.steps), "step")
    head = f"{plan.pipeline}: {steps} on stack '{plan.stack}'"
    yield paint(head, "1") + (f"  {plan.where}" if plan.where else "")
    if plan.dynamic:
        yield "  its body decides while it runs which steps there are; they cannot be shown before"
    if plan.failure_mode != "fail_fast":
        yield f"  failure_mode {plan.failure_mode}"
    for step in plan.steps:
        yield ""
        yield f"{paint(step.key, '1')}  {step.where}"
        rows = [*step_facts(step, backends.get(step.backend, step.backend))]
        yield from (f"  {name:<9} {text}" for name, text in rows)
        if explain:
            yield from (f"    {line}" for line in (*evidence_lines(step), *setting_lines(step)))
    for finding in checks.merged(plan.findings):
        yield ""
        yield paint(finding.text(), "31" if finding.level == "error" else "")


def step_facts(step: StepPlan, backend: str) -> Iterator[tuple[str, str]]:
    """(title, text) of a step's needs, backend, settings and inputs; default settings are left out."""
    settings = step.settings
    yield "needs", describe(settings.resources)
    yield "on", backend + ("" if settings.isolation == "warm" else f", {settings.isolation} process")
    if settings.docker is not None:
        yield "image", _image(settings)
    elif settings.packages is not None and not settings.packages.empty:
        location = f"in environment {step.environment}" if step.environment else "of this Python"
        yield "packages", f"{settings.packages.text}, {location}"
    if step.proof is not None:
        yield "proof", proof_text(step.proof)
    if settings.retry.times:
        yield "retry", _retry_text(settings.retry)
    if settings.timeout is not None:
        yield "timeout", duration_text(settings.timeout)
    if settings.checkpoint_every is not None:
        fixed = settings.checkpoint_every != "auto" and f"every {duration_text(settings.checkpoint_every)}"
        yield "checkpoint", fixed or f"as often as is best for {step.losses}"
    yield "cache", _cache_text(step)
    if settings.environment:
        yield "variables", ", ".join(sorted(settings.environment))
    if step.inputs:
        yield "inputs", ", ".join(_input_text(name, tree, step) for name, tree in step.inputs.items())
    if step.after:
        yield "after", ", ".join(step.after)


def evidence_lines(step: StepPlan) -> Iterator[str]:
    """A line for each fact of the step's proof with its source, for each refusal, and for all that is not known."""
    proof = step.proof
    if proof is None:
        return
    for fact in proof.facts:
        yield f"{fact.component}: {fact.fact}   ({fact.source})"
    for unknown in proof.unknown:
        yield f"{unknown.component}: not known: {unknown.reason}"
    for refusal in proof.refused:
        yield f"{refusal.code}: {refusal.what}"


def setting_lines(step: StepPlan) -> Iterator[str]:
    """A line for each given setting: `resources.gpu_count = 2   train.py:14 @step  (over stoker.toml:7)`."""
    rows = given_settings(step)
    if not rows:
        yield "no setting was given"
    width = max((len(f"{path} = {value}") for path, value, _ in rows), default=0)
    for path, value, origin in rows:
        yield f"{f'{path} = {value}':<{width}}   {origin}"


def _image(settings: StepSettings) -> str:
    docker = to_json(settings.docker)
    source = docker.get("parent_image") or docker.get("dockerfile")
    requirements = docker.get("requirements") or ()
    also = f" with {', '.join(requirements)}" if isinstance(requirements, list) and requirements else ""
    return f"{source or 'built for the step'}{also}"


def _retry_text(retry: Retry) -> str:
    text = count_text(retry.times, "time")
    if retry.delay:
        text += f", {duration_text(retry.delay)} later"
    if retry.delay and retry.backoff != 1:
        text += f", each wait {retry.backoff:g} × the last"
    text += f", on {', '.join(sorted(retry.on))}" if retry.on else ""
    return text + (f", out of memory: {', then '.join(map(str, retry.on_oom))}" if retry.on_oom else "")


def _cache_text(step: StepPlan) -> str:
    settings = step.settings
    if not settings.cache:
        return "no"
    if not uses_cache(step):
        return f"no: {lookup_text(step)}"
    if settings.cache == "strict":
        return "strict" if settings.cache_expires is None else f"strict, for {duration_text(settings.cache_expires)}"
    return "yes" if settings.cache_expires is None else f"yes, for {duration_text(settings.cache_expires)}"


def _input_text(name: str, tree: Mapping[str, Any], step: StepPlan) -> str:
    each = "each of " if name in step.mapped else ""
    text = _tree_text(tree)
    wire = tree.get("value", {})
    if wire.get("s") == "str" and looks_secret(name, wire.get("i")):
        text = MASK
    return f"{name} ← {each}{text}"


def _tree_text(tree: Mapping[str, Any]) -> str:
    if "step" in tree:
        return tree["step"] if tree["output"] == "output" else f"{tree['step']}.{tree['output']}"
    if "list" in tree:
        return f"[{', '.join(map(_tree_text, tree['list']))}]"
    if "dict" in tree:
        return "{" + ", ".join(f"{key}: {_tree_text(item)}" for key, item in tree["dict"].items()) + "}"
    wire = tree["value"]
    text = wire.get("i")
    if wire["s"] == "secret" and text is not None:
        return base64.b64decode(text).decode()
    if wire["s"] == "str" and text is not None:
        text = repr(text)
    if wire["s"] in ("json", "str") and text is not None and len(text) <= _LONGEST:
        return str(text)
    return str(wire["t"])


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
    price: float | None = None
    """US dollars an hour of one attempt; None where that is not known."""
    priced: str = ""
    """The day of the price, as ISO 8601 has it."""
    source: str = ""
    """Where the price is from."""


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
    priced = [finding for finding in mine if finding.price is not None]
    facts: dict[str, Any] = {"stack": stack, "fits": True, "backend": flavor}
    text = "; ".join(finding.what for finding in priced) or NO_PRICE
    if priced:
        facts |= {"price": step.price, "priced": priced[-1].priced, "source": priced[-1].why}
    unasked = BACKENDS.load(flavor).unasked
    silent = next((finding for finding in mine if finding.code in unasked), None)
    if silent is None:
        return StackAnswer(**facts, text=text)
    return StackAnswer(**facts, text=f"{text}; {silent.what}: {silent.why} ({silent.code})", fix=silent.fix)


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
            if row.source:
                yield f"  {'':<{width}}  price: {row.source}"
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
