"""`python flow.py COMMAND`: the command line of a flow, by Metaflow's words; `stoker run flow.py` runs it, too.

Exit codes are those of `stoker`: 0, 1 when a step failed, 2 for wrong usage, 3 when the plan was refused. The options
of `run` are those of every run (`run.commandline`) and those of flows (`flows.options`).
"""

from __future__ import annotations

import contextlib
import importlib
import inspect
import os
import shlex
import sys
import traceback
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Final, Mapping, Sequence

import attrs

from stoker.core import findings as checks
from stoker.core.errors import NotFound, StokerError, UsageError, nearest
from stoker.core.request import RunOption, RunRequest
from stoker.core.standins import METAFLOW
from stoker.core.version import VERSION
from stoker.flows import options as flowoptions
from stoker.flows import parameters
from stoker.flows.decorators import notes_of
from stoker.flows.definition import FlowDefinition
from stoker.flows.instance import FlowInstance, parameters_of
from stoker.report.streams import echo, say
from stoker.run import commandline, start
from stoker.run.commandline import COMMAND_LINE, columns, split

if TYPE_CHECKING:
    from stoker.client import Client, Run
    from stoker.core.request import RunRequest
    from stoker.flows.instance import FlowInstance

EARLY: Final = frozenset(
    {"quiet", "no-pylint", "metadata", "datastore", "environment", "with", "without", "stack", "config", "config-value"}
    | {"branch", "production", "event-logger", "monitor", "pylint", "no-quiet", "namespace", "tag"}
)
"""Options that may stand before the command."""
_SPIN: Final = EARLY | {"run-id-file", "runner-attribute-file", "max-log-size", "simulate", "debug", "set"}
RESUME: Final = (
    RunOption(
        name="origin-run-id",
        value="RUN",
        help="the run to repeat; the newest of this flow without it",
    ),
    RunOption(name="resume-identifier", value="ID", help="taken for Metaflow's sake: each resume is one driver's"),
)
NOT_RESUMED: Final[Mapping[str, str]] = {
    "--clone-only": "a run whose tasks are only copied computes nothing; read the origin itself",
    "--run-id": "Stoker gives a run its id; --run-id-file FILE has it as soon as the run begins",
    "--reentrant": "each `resume` starts a run of its own; `stoker resume RUN` lets one driver of several go on",
}
"""Options of Metaflow's `resume` that are refused, and what to do instead."""
SPIN: Final = (
    RunOption(
        name="artifacts-module",
        value="FILE",
        help="a Python file whose dict ARTIFACTS has other values for artifacts",
    ),
    RunOption(name="persist", help="keep what it makes and writes, as a run of NAME.spin"),
    RunOption(name="no-persist", help="keep nothing of it, as without --persist"),
    RunOption(name="skip-decorators", help="leave all decorators of the step out"),
    RunOption(name="no-skip-decorators", help="leave only those out that are of no use to a task on its own"),
    RunOption(name="namespace", value="NAME", help="where the newest run is looked for; --namespace= is everybody's"),
)
_HERE: Final = ("run", "resume", "check")
STARTS: Final = (*_HERE, "spin")
"""Commands that start something."""
LOOK: Final = ("show", "dump", "logs", "tag", "output-dot", "card")
COMMANDS: Final[Mapping[str, str]] = {
    "run": "run the flow",
    "resume": "a new run with the results of an earlier one, from where it stopped or from a step on: resume [STEP]",
    "spin": "run one task of an earlier run on its own, as the code is now: spin [RUN/]STEP[/TASK]",
    "check": "check the flow: its steps, and what they ask for",
    "show": "show the steps and where they go",
    "dump": "print what tasks made: dump [RUN/]STEP[/TASK]",
    "logs": "print what tasks wrote: logs [RUN/]STEP[/TASK]",
    "schedule": "have it run at the times of its @schedule: schedule create [--on crontab|systemd] [PARAMETERS]",
    "card": "pages of tasks: card list|view|get [RUN/]STEP[/TASK] [--output FILE]",
    "tag": "list, add, remove or replace the tags of a run",
    "output-dot": "print the graph for Graphviz",
    "version": "print the version",
    "help": "print this",
}
ELSEWHERE: Final[Mapping[str, str]] = {
    "environment": "environments are made where a run needs them; `stoker plan FILE` says what steps ask for",
    "package": "code is read where it is; there is no package",
    "kubernetes": "`stoker runs` lists runs on every platform, and `stoker cancel RUN` ends one",
    "batch": "`stoker runs` lists runs on every platform, and `stoker cancel RUN` ends one",
    "argo-workflows": "there is no deployer; start `python flow.py run`, or `schedule create` at its @schedule",
    "step-functions": "there is no deployer; start `python flow.py run`, or `schedule create` at its @schedule",
    "airflow": "there is no deployer; start `python flow.py run`, or `schedule create` at its @schedule",
    "init": "tasks start by themselves",
    "step": "tasks start by themselves; `spin STEP` runs one of an earlier run on its own",
}
"""Commands of Metaflow's that are not here, and what to do."""

OF_FILES: Final = frozenset({"plan", "build"})
OF_RUNS: Final = frozenset(
    {"runs", "watch", "why", "gpu", "metrics", "report", "artifacts", "pull", "cancel", "rerun", "ui", "top", "exec"}
)
"""Commands of `stoker` that people look for here: about a file of steps, and about runs."""


def main(kind: type[FlowInstance], argv: Sequence[str] | None = None) -> None:
    """Called by `FlowSpec()`: the command line of the program, or of `stoker run flow.py`."""
    line = COMMAND_LINE.get()
    if line is not None and argv is None:
        flow, request = commandline.take_call(FlowDefinition(kind), {}, line)
        with _calling_hooks(kind, request) as request:
            start.run(flow, {}, request)
        return
    words = list(sys.argv[1:] if argv is None else argv)
    try:
        code = command(kind, words, f"{METAFLOW.program()} {os.path.basename(sys.argv[0])}")
    except StokerError as error:
        sys.stdout.flush()
        say(f"error: {error}")
        code = error.exit_code
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = 141
    if argv is None:
        sys.exit(code)


def command(kind: type[FlowInstance], words: Sequence[str], usage: str) -> int:
    """Run one command; its exit code."""
    flow = FlowDefinition(kind)
    early, words = _split_leading_options(flow, list(words))
    if not words or words[0] in ("help", "--help", "-h"):
        echo(help_text(flow, usage))
        return 0
    name, arguments = words[0], list(words[1:])
    if name in ELSEWHERE:
        raise UsageError(f"there is no command '{name}' here", fix=ELSEWHERE[name])
    if name in OF_FILES | OF_RUNS:
        file = [usage.rpartition(" ")[2]] if name in OF_FILES else []
        raise UsageError(f"there is no command '{name}' here", fix=shlex.join(["stoker", name, *file, *arguments]))
    if name not in COMMANDS:
        raise UsageError(f"there is no command '{name}'{nearest(name, COMMANDS)}", fix=f"{usage} help")
    if "--help" in arguments:
        echo(help_text(flow, usage, name))
        return 0
    if name == "version":
        echo(f"stoker {VERSION}")
        return 0
    if name == "schedule":
        return _schedule(flow, arguments)
    if name in LOOK:
        from stoker.flows import cli_show

        return cli_show.command(name, flow, arguments, quiet="--quiet" in early)
    return _start(flow, name, [*early, *arguments])


@contextlib.contextmanager
def _calling_hooks(kind: type[FlowInstance], request: RunRequest) -> Iterator[RunRequest]:
    """The request to start a run of a flow with; when the body is left, the hooks for how the run ended are called.

    A run that goes on elsewhere, as with `--detach`, calls none.
    """
    notes = [note for note in notes_of(kind) if note.name == "exit_hook"]
    if not notes or request.detach:
        yield request
        return
    begun: list[str] = []

    def began(id: str) -> None:
        begun.append(id)
        if request.began is not None:
            request.began(id)

    succeeded = False
    try:
        yield attrs.evolve(request, began=began)
        succeeded = True
    finally:
        if begun:
            word = "on_success" if succeeded else "on_error"
            for hook in (hook for note in notes for hook in note.values[word]):
                _call_hook(kind, hook, begun[0])


def _call_hook(kind: type[FlowInstance], hook: Callable[..., Any] | str, id: str) -> None:
    """Call one hook; its failure changes nothing."""
    try:
        function = hook if callable(hook) else _hook_function(kind, hook)
        takes = inspect.signature(function).parameters
        if "run" in takes or any(one.kind is one.VAR_KEYWORD for one in takes.values()):
            from stoker.client import Client
            from stoker.flows.client import view_of

            function(run=view_of(Client().run(id)))
        else:
            function()
    except Exception:  # the user's own function
        name = hook if isinstance(hook, str) else hook.__name__
        sys.stderr.write(f"exit hook {name} of run {id} failed:\n{traceback.format_exc()}")


def _hook_function(kind: type[FlowInstance], name: str) -> Callable[..., Any]:
    """The function of the flow's module, or of another one, that a name means."""
    module, _, attribute = name.rpartition(".")
    home = importlib.import_module(module) if module else sys.modules[kind.__module__]
    return getattr(home, attribute)  # type: ignore[no-any-return]


def _schedule(flow: FlowDefinition, words: Sequence[str]) -> int:
    from stoker.cli import schedule

    if words[:1] != ["create"]:
        fix = "write schedule create; stoker schedule list, pause, resume, rm, history do the rest"
        raise UsageError(f"'{' '.join(('schedule', *words[:1]))}' is no command here", fix=fix)
    options, rest = split(words[1:], schedule.OPTIONS)
    schedule.added(schedule.described(f"{os.path.abspath(sys.argv[0])}:{flow.name}", rest, "", options))
    return 0


def _start(flow: FlowDefinition, name: str, words: list[str]) -> int:
    accepted = options_of(flow, name)
    options, arguments = split(words, accepted)
    if name in ("run", "check"):
        options = flow.complete_options(options)
        flow = flow.apply_options(options)
        request = commandline.request(flow, accepted, options, arguments)
        if name == "check":
            return _check(flow, request)
        with _calling_hooks(flow.written, request) as request:
            start.run(flow, {}, request)
        return 0
    flow = flow.apply_options(options)
    request = commandline.apply_run_options(accepted, options, RunRequest())
    if name == "resume":
        with _calling_hooks(flow.written, request) as request:
            return _resume(flow, request, options.get("origin-run-id"), arguments)
    from stoker.flows import spin as cli_spin  # nearly all there is to import

    return cli_spin.command(flow, arguments, options, request, [option.flag for option in accepted])


def options_of(flow: FlowDefinition, name: str) -> tuple[RunOption, ...]:
    """The options of a command that starts something."""
    every = commandline.options_of(flow)
    if name == "resume":
        return (*RESUME, *every)
    if name == "spin":
        return (*SPIN, *(option for option in every if option.name in _SPIN))
    return every


def _check(flow: FlowDefinition, request: RunRequest) -> int:
    from stoker.run import driver

    steps = flow.graph.steps
    echo(f"{flow.name}: {len(steps)} steps, from '{flow.graph.start}' to '{flow.graph.end}'")
    if flow.project is not None:
        echo(f"project {flow.project.name}, branch {flow.project.branch}")
    # Parameters that must be given are not what is checked.
    free = [one for one in parameters_of(flow.kind).values() if one.name not in request.parameters]
    required = [one for one in free if one.required or one.lacks_file]
    for one in required:
        if one.lacks_file:
            echo(f"{one.flag} FILE must be given: there is no {one.default}")
    values = {one.name: _sample_value(one) for one in required}
    plan = driver.plan(flow, values, request)
    for line in (*flow.messages, *(finding.text() for finding in plan.findings)):
        echo(line)
    if checks.errors(plan.findings):
        return 3
    echo("checked: it can run")
    return 0


def _sample_value(parameter: Any) -> Any:
    """A value of a parameter's type."""
    kind = parameter.type
    return kind() if isinstance(kind, type) and kind in (int, float, str, bool) and parameter.kind != "FILE" else None


def _resume(flow: FlowDefinition, request: RunRequest, origin: str | None, arguments: Sequence[str]) -> int:
    from stoker.client import Client

    for word in arguments:
        flag = word.partition("=")[0].replace("_", "-")
        if flag.replace("--no-", "--") in NOT_RESUMED:
            raise UsageError(f"resume has no {flag} here", fix=NOT_RESUMED[flag.replace("--no-", "--")])
    if len(arguments) > 1 or arguments[:1] == ["--"] or (arguments and arguments[0].startswith("--")):
        raise UsageError(
            f"unexpected argument {arguments[-1]!r}",
            fix="write resume [STEP]; parameters stay as they were, and `stoker rerun RUN` takes others",
        )
    step = arguments[0] if arguments else ""
    if step and step not in flow.graph.steps:
        raise UsageError(f"flow {flow.name} has no step '{step}'{nearest(step, flow.graph.steps)}")
    client = Client(request.stack)
    run = client.run(origin.rpartition("/")[2]) if origin else _newest(client, flow)
    if run.pipeline != flow.name:
        raise UsageError(f"run {run.id} is of '{run.pipeline}', not of '{flow.name}'", fix="name one of this flow")
    if run.status == "interrupted":
        say(f"run {run.id} did not end, and stays as it is: `stoker resume {run.id}` would let it go on itself")
    from stoker.run import rerun

    earlier = rerun.earlier_run(run.id, client.store)
    rerun.rerun(earlier, flow, request, start=step, reuse=True)
    return 0


def _newest(client: Client, flow: FlowDefinition) -> Run:
    """The newest run that is over, however it ended."""
    run = next((run for run in client.runs(pipeline=flow.name, limit=20) if run.status != "running"), None)
    if run is None:
        raise NotFound(f"no run of {flow.name} is over yet", fix="start one, or name one: --origin-run-id RUN")
    return run


def _split_leading_options(flow: FlowDefinition, words: list[str]) -> tuple[list[str], list[str]]:
    """Options that stand before the command, as in `python flow.py --no-pylint run`, and the rest."""
    accepted = {option.name: option for option in commandline.options_of(flow) if option.name in EARLY}
    early: list[str] = []
    while words and words[0].startswith("--") and words[0] != "--help":
        flag, equals, _ = words[0].partition("=")
        option = accepted.get(flag.removeprefix("--").replace("_", "-"))
        if option is None and flag in flowoptions.NOT_HERE:
            raise UsageError(f"there is no option {flag} here", fix=flowoptions.NOT_HERE[flag])
        if option is None:
            raise UsageError(f"{flag} stands before the command", fix=f"write it behind: run {flag} …")
        count = 1 if equals or not option.value else 2
        if count == 2 and option.pair is not None and len(words) > 1 and option.pair(words[1]):
            count = 3
        early, words = [*early, *words[:count]], words[count:]
    return early, words


def help_text(flow: FlowDefinition, usage: str, name: str = "") -> str:
    """What the command line takes."""
    lines = [f"Usage: {usage} {name or 'COMMAND'} [OPTIONS]", ""]
    summary = commandline.first_line(flow)
    if summary:
        lines += [f"  {summary}", ""]
    if not name:
        lines += ["Commands:", *columns(list(COMMANDS.items())), ""]
    rows = _parameter_rows(flow) if name in _HERE or not name else []
    if rows:
        lines += ["Parameters:", *columns(rows), ""]
    if name in STARTS or not name:
        lines.append(commandline.options_text(options_of(flow, name or "run")))
    return "\n".join(lines).rstrip()


def _parameter_rows(flow: FlowDefinition) -> list[tuple[str, str]]:
    """Parameters as its mutators make them; as they are written where these cannot, say for want of a config."""
    try:
        return flow.parameter_rows()
    except StokerError:
        return parameters.rows(flow.written, None)
