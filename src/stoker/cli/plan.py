"""`stoker plan FILE`: everything that is decided before a run, without running it."""

from __future__ import annotations

import contextlib
import importlib
from typing import Any, Callable, Final, Iterator, Mapping

import click

from stoker import stacks
from stoker.cli import target as targets
from stoker.cli.output import paint, print_json
from stoker.cli.run import OPTIONS, Unparsed, command_line, help_for
from stoker.core import findings as checks
from stoker.core.codec import to_json
from stoker.core.errors import EXIT_PREFLIGHT
from stoker.core.plan import Plan, StepPlan
from stoker.core.request import RunOption, RunRequest
from stoker.core.resources import describe
from stoker.core.retry import Retry
from stoker.core.settings import StepSettings
from stoker.core.units import duration_text, size_text
from stoker.core.words import count_text
from stoker.plan.planner import ORCHESTRATOR
from stoker.run import commandline, driver
from stoker.run.commandline import CommandLine
from stoker.run.program import Program
from stoker.run.session import Session

PLAN_OPTIONS: Final = (
    *OPTIONS,
    RunOption(name="explain", help="every setting, and where it comes from"),
    RunOption(name="render", help="also what would be sent for each step: Dockerfiles, requests, messages"),
    RunOption(name="json", help="the plan as JSON on stdout"),
)
TOLD: Final = "Shows what a run would do: each step's settings, backend and inputs, and what the backends say of them."
_SHOWN: Final = 60
"""Characters of a constant that are shown; of a longer one its type."""
_WORDS: Final[Mapping[str, Callable[[Any], str]]] = {
    **dict.fromkeys(("memory", "gpu_memory", "shared_memory", "disk"), size_text),
    **dict.fromkeys(("timeout", "cache_expires", "delay", "max_delay"), duration_text),
}
"""Settings that are kept as bytes or seconds."""


@click.command("plan", cls=Unparsed, add_help_option=False)
def command(words: list[str]) -> int:
    """Show what a run would do, and with which settings, without running it."""
    found, line, options = command_line(words, PLAN_OPTIONS)
    if found is None or options.get("help"):
        click.echo(help_for(found, "plan", PLAN_OPTIONS, TOLD))
        return 0
    as_json = bool(options.get("json"))
    with _first_call(found, line) as (pipeline, given, request):
        made = driver.plan(pipeline, given, request)
        if not as_json:
            stack = stacks.load(made.stack)
            flavors = {ORCHESTRATOR: stack.orchestrator, **stack.step_operators}
            where = {name: f"{name} ({component.flavor})" for name, component in flavors.items()}
            click.echo("\n".join(plan_lines(made, where, explain=bool(options.get("explain")))))
        document = to_json(made)
        if options.get("render"):
            rendering: Any = importlib.import_module("stoker.cli.rendering")  # it brings all that images need
            sent = rendering.rendered(made, Session(request, stack=pipeline.stack))
            document["rendered"] = to_json(sent)
            if not as_json and sent:
                click.echo("\n".join(rendering.lines(sent)))
        if as_json:
            print_json(document)
    return EXIT_PREFLIGHT if checks.errors(made.findings) else 0


def planned(found: targets.Target, line: CommandLine) -> Plan:
    """The plan of the pipeline that running the file would call first, with the arguments of that call."""
    with _first_call(found, line) as (pipeline, given, request):
        return driver.plan(pipeline, given, request)


@contextlib.contextmanager
def _first_call(found: targets.Target, line: CommandLine) -> Iterator[tuple[Program, Mapping[str, Any], RunRequest]]:
    """The pipeline, its arguments and the request of the call, while the file still is the program."""
    line.planning = True
    with targets.executed(found, line) as main:
        program, given = line.calls[0] if line.calls else (targets.choose(main, found), {})
        program, request = commandline.read(program, line.words)
        yield program, given, request


def plan_lines(made: Plan, where: Mapping[str, str], *, explain: bool) -> Iterator[str]:
    """The plan as a person reads it; `where` has words for each backend."""
    steps = "dynamic" if made.dynamic else count_text(len(made.steps), "step")
    head = f"{made.pipeline}: {steps} on stack '{made.stack}'"
    yield paint(head, "1") + (f"  {made.where}" if made.where else "")
    if made.dynamic:
        yield "  its body decides while it runs which steps there are; they cannot be shown before"
    if made.failure_mode != "fail_fast":
        yield f"  failure_mode {made.failure_mode}"
    for step in made.steps:
        yield ""
        yield f"{paint(step.key, '1')}  {step.where}"
        rows = [*step_facts(step, where.get(step.backend, step.backend))]
        yield from (f"  {name:<9} {text}" for name, text in rows)
        if explain:
            yield from (f"    {line}" for line in explained(step))
    for finding in made.findings:
        yield ""
        yield paint(finding.text(), "31" if finding.level == "error" else "")


def step_facts(step: StepPlan, where: str) -> Iterator[tuple[str, str]]:
    """What a step needs, where it runs and what it gets; only what is not the usual."""
    settings = step.settings
    yield "needs", describe(settings.resources)
    yield "on", where + ("" if settings.isolation == "warm" else f", {settings.isolation} process")
    if settings.docker is not None:
        yield "image", _image(settings)
    elif settings.packages is not None and not settings.packages.empty:
        place = f"in environment {step.environment}" if step.environment else "of this Python"
        yield "packages", f"{settings.packages.text}, {place}"
    if settings.retry.times:
        yield "retry", _retry_text(settings.retry)
    if settings.timeout is not None:
        yield "timeout", duration_text(settings.timeout)
    yield "cache", _cache_text(settings)
    if settings.environment:
        yield "variables", ", ".join(sorted(settings.environment))
    if step.inputs:
        yield "inputs", ", ".join(_input_text(name, tree, step) for name, tree in step.inputs.items())
    if step.after:
        yield "after", ", ".join(step.after)


def explained(step: StepPlan) -> Iterator[str]:
    """Every setting that somebody gave: `resources.gpu_count = 2   train.py:14 @step  (over stoker.toml:7)`."""
    values: Mapping[str, Any] = to_json(step.settings)
    rows = [(path, _value_text(path, _at(values, path)), place) for path, place in sorted(step.origins.items())]
    if not rows:
        yield "no setting was given"
    width = max((len(f"{path} = {value}") for path, value, _ in rows), default=0)
    for path, value, place in rows:
        yield f"{f'{path} = {value}':<{width}}   {place}"


def _image(settings: StepSettings) -> str:
    docker = to_json(settings.docker)
    named = docker.get("parent_image") or docker.get("dockerfile")
    requirements = docker.get("requirements") or ()
    also = f" with {', '.join(requirements)}" if isinstance(requirements, list) and requirements else ""
    return f"{named or 'built for the step'}{also}"


def _retry_text(retry: Retry) -> str:
    text = count_text(retry.times, "time")
    if retry.delay:
        text += f", {duration_text(retry.delay)} later"
    if retry.delay and retry.backoff != 1:
        text += f", each wait {retry.backoff:g} × the last"
    text += f", on {', '.join(sorted(retry.on))}" if retry.on else ""
    return text + (f", out of memory: {', then '.join(map(str, retry.on_oom))}" if retry.on_oom else "")


def _cache_text(settings: StepSettings) -> str:
    if not settings.cache:
        return "no"
    return "yes" if settings.cache_expires is None else f"yes, for {duration_text(settings.cache_expires)}"


def _input_text(name: str, tree: Mapping[str, Any], step: StepPlan) -> str:
    each = "each of " if name in step.mapped else ""
    return f"{name} ← {each}{_tree_text(tree)}"


def _tree_text(tree: Mapping[str, Any]) -> str:
    if "step" in tree:
        return tree["step"] if tree["output"] == "output" else f"{tree['step']}.{tree['output']}"
    if "list" in tree:
        return f"[{', '.join(map(_tree_text, tree['list']))}]"
    if "dict" in tree:
        return "{" + ", ".join(f"{key}: {_tree_text(item)}" for key, item in tree["dict"].items()) + "}"
    wire = tree["value"]
    inline = wire.get("i")
    if wire["s"] == "str" and inline is not None:
        inline = repr(inline)
    if wire["s"] in ("json", "str") and inline is not None and len(inline) <= _SHOWN:
        return str(inline)
    return str(wire["t"])


def _at(values: Mapping[str, Any], path: str) -> Any:
    """The value of a dotted field; a part of the stack has its settings under "backend"."""
    found: Any = values
    head, _, rest = path.partition(".")
    keys = ["backend", head] if rest and head in values.get("backend", {}) else [head]
    for key in keys:
        found = found.get(key) if isinstance(found, Mapping) else None
    while rest and isinstance(found, Mapping):
        if rest in found:
            return found[rest]
        head, _, rest = rest.partition(".")
        found = found.get(head)
    return found


def _value_text(path: str, value: Any) -> str:
    import json

    words = _WORDS.get(path.rpartition(".")[2])
    if words is not None and isinstance(value, (int, float)):
        return words(value)
    return json.dumps(value, ensure_ascii=False)
