"""`python flow.py COMMAND`: the command line of a flow, by Metaflow's words; `stoker run flow.py` runs it, too.

Exit codes are those of `stoker`: 0, 1 when a step failed, 2 for wrong usage, 3 when the plan was refused.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Callable, Iterator, Mapping, Sequence

import attrs

from stoker.core.errors import NotFound, ParameterError, StokerError, UsageError, nearest
from stoker.core.request import NotTheDriver, RunRequest
from stoker.core.version import VERSION
from stoker.flows.cli_words import ALL, COMMANDS, ELSEWHERE, LOOK, OPTIONS, RUN, TWO, Option, help_text
from stoker.flows.definition import FlowDefinition
from stoker.flows.spec import FlowSpec, parameters_of
from stoker.pipelines.arguments import COMMAND_LINE, CommandLine
from stoker.run import start

if TYPE_CHECKING:
    from stoker.client import Client, Run


def main(kind: type[FlowSpec], argv: Sequence[str] | None = None) -> None:
    """Called by `FlowSpec()`: the command line of the program, or of `stoker run flow.py`."""
    line = COMMAND_LINE.get()
    if line is not None and argv is None:
        _under_stoker(kind, line)
        return
    words = list(sys.argv[1:] if argv is None else argv)
    try:
        code = command(kind, words, f"python {os.path.basename(sys.argv[0])}")
    except StokerError as error:
        sys.stdout.flush()
        sys.stderr.write(f"error: {error}\n")
        code = error.exit_code
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = 141
    if argv is None:
        sys.exit(code)


def _under_stoker(kind: type[FlowSpec], line: CommandLine) -> None:
    flow = FlowDefinition(kind)
    if line.wanted and flow.name != line.wanted:
        raise NotTheDriver
    if line.planning:
        options, rest = _split(list(line.arguments), {**ALL, **RUN})
        definition = _definition(kind, options)
        given, line.arguments = _parameters(definition.kind, rest)
        line.calls.append((definition, given))
        raise NotTheDriver
    line.calls.append((flow, {}))
    run_from_stoker(flow, line)


def run_from_stoker(flow: FlowDefinition, line: CommandLine) -> Run:
    """Run a flow with the command line of `stoker run`, whose own options are taken off already."""
    options, rest = _split(list(line.arguments), {**ALL, **RUN})
    for name, value in line.options.items():
        if name == "failure-mode" or name in RUN or name in ALL:
            options.setdefault(name, value)
    definition = _definition(flow.written, options)
    given, rest = _parameters(definition.kind, rest)
    if rest:
        raise ParameterError(f"unexpected argument {rest[0]!r}", fix="write --parameter value")
    request = _request(definition, options)
    request = attrs.evolve(
        request,
        cache=False if line.options.get("no-cache") else None,
        run_file=line.options.get("config"),
        name=line.options.get("name"),
        quiet=bool(line.options.get("quiet") or options.get("quiet")),
    )
    return start.run(definition, given, request)


def command(kind: type[FlowSpec], words: Sequence[str], usage: str) -> int:
    """Run one command; its exit code."""
    early, words = _leading(list(words))
    if not words or words[0] in ("help", "--help", "-h"):
        print(help_text(_as_run(kind), usage))
        return 0
    name, rest = words[0], list(words[1:])
    if name in ELSEWHERE:
        raise UsageError(f"there is no command '{name}' here", fix=ELSEWHERE[name])
    if name not in COMMANDS:
        raise UsageError(f"there is no command '{name}'{nearest(name, COMMANDS)}", fix=f"{usage} help")
    if "--help" in rest:
        print(help_text(_as_run(kind), usage, name))
        return 0
    if name == "version":
        print(f"stoker {VERSION}")
        return 0
    if name in LOOK:
        from stoker.flows import cli_show as flowlook

        return flowlook.command(name, FlowDefinition(kind), rest)
    return _start(kind, name, rest, early)


def _as_run(kind: type[FlowSpec]) -> type[FlowSpec]:
    """The class as its mutators make it; as it is written where they cannot, say for want of a config."""
    try:
        return FlowDefinition(kind).kind
    except StokerError:
        return kind


def _start(kind: type[FlowSpec], name: str, words: list[str], early: Mapping[str, Any]) -> int:
    known = {**ALL, **OPTIONS[name]}
    options, rest = _split(words, known)
    for key, value in early.items():
        options[key] = [*value, *options.get(key, ())] if known[key].many else options.get(key, value)
    flow = _definition(kind, options)
    if name == "resume":
        return _resume(flow, options, rest)
    if name == "spin":
        from stoker.flows import cli_spin as flowspin  # nearly all there is to import

        return flowspin.command(flow, rest, options, _request(flow, options))
    given, rest = _parameters(flow.kind, rest)
    if rest:
        raise UsageError(f"unexpected argument {rest[0]!r}", fix="write --parameter value")
    if name == "check":
        return _check(flow, given, options)
    start.run(flow, given, _request(flow, options))
    return 0


def _check(flow: FlowDefinition, given: Mapping[str, Any], options: Mapping[str, Any]) -> int:
    from stoker.core import findings as checks
    from stoker.run import driver

    steps = flow.graph.steps
    print(f"{flow.name}: {len(steps)} steps, from '{flow.graph.start}' to '{flow.graph.end}'")
    required = [found for found in parameters_of(flow.kind).values() if found.required and found.name not in given]
    if required:
        # Parameters that must be given are not what is checked.
        given = {**given, **{found.name: _some(found) for found in required}}
    made = driver.plan(flow, given, _request(flow, options))
    for line in (*flow.said, *(finding.text() for finding in made.findings)):
        print(line)
    if checks.errors(made.findings):
        return 3
    print("checked: it can run")
    return 0


def _some(parameter: Any) -> Any:
    """A value of a parameter's type."""
    kind = parameter.type
    return kind() if isinstance(kind, type) and kind in (int, float, str, bool) and parameter.kind != "FILE" else None


def _resume(flow: FlowDefinition, options: Mapping[str, Any], rest: Sequence[str]) -> int:
    from stoker.client import Client

    if len(rest) > 1:
        raise UsageError(f"unexpected argument {rest[1]!r}", fix="write resume [STEP]; parameters stay as they were")
    again: tuple[str, ...] = ()
    if rest:
        again = tuple(following(flow, rest[0]))
    client = Client(options.get("stack"))
    wanted = options.get("origin-run-id")
    run = client.run(str(wanted).rpartition("/")[2]) if wanted else _newest(client, flow, bool(again))
    if run.pipeline != flow.name:
        raise UsageError(f"run {run.id} is of '{run.pipeline}', not of '{flow.name}'", fix="name one of this flow")
    request = attrs.evolve(_request(flow, options), again=again)
    if request.began is not None:
        request.began(run.id)
    if run.status == "succeeded" and not again:
        sys.stderr.write(f"run {run.id} has succeeded: nothing is left to do; `resume STEP` runs a step again\n")
        return 0
    from stoker.run import driver  # half of what there is to import: not for a run that is done

    driver.resume(run.id, request, flow=flow)
    return 0


def following(flow: FlowDefinition, name: str) -> list[str]:
    """A step and all that can come after it."""
    if name not in flow.graph.steps:
        raise UsageError(f"flow {flow.name} has no step '{name}'{nearest(name, flow.graph.steps)}")
    found = [name]
    for one in found:
        found += [target for target in flow.graph.steps[one].targets if target not in found]
    return found


def _newest(client: Client, flow: FlowDefinition, also_good: bool) -> Run:
    for run in client.runs(pipeline=flow.name, limit=20):
        if run.status not in ("running", "succeeded") or (also_good and run.status == "succeeded"):
            return run
    raise NotFound(f"no run of {flow.name} stopped before its end", fix="name one: --origin-run-id RUN")


# Reading a command line


def _leading(words: list[str]) -> tuple[dict[str, Any], list[str]]:
    """Options that stand before the command, as in `python flow.py --no-pylint run`."""
    early: dict[str, Any] = {}
    while words and words[0].startswith("--") and words[0] != "--help":
        flag, equals, _ = words[0].partition("=")
        name = flag.removeprefix("--").replace("_", "-")
        if name not in ALL:
            raise UsageError(f"{flag} stands before the command", fix=f"write it behind: run {flag} …")
        taken = 1 if equals or not ALL[name].value else 3 if name in TWO else 2
        found, _ = _split(words[:taken], ALL)
        for key, value in found.items():
            early[key] = [*early.get(key, ()), *value] if isinstance(value, list) else value
        words = words[taken:]
    return early, words


def _split(words: list[str], known: Mapping[str, Option]) -> tuple[dict[str, Any], list[str]]:
    """Options by name, and the words that are none of them; `-` and `_` in a name are the same."""
    found: dict[str, Any] = {}
    rest: list[str] = []
    line = iter(words)
    for word in line:
        flag, equals, value = word.partition("=")
        name = flag.removeprefix("--").replace("_", "-")
        option = known.get(name) if flag.startswith("--") else None
        if option is None:
            rest.append(word)
        elif not option.value:
            found[name] = not equals or value.lower() != "false"
        else:
            if not equals:
                value = next(line, "")
                if not value or value.startswith("--"):
                    raise UsageError(f"{flag} needs a value", fix=f"write {flag} {option.value}")
            if name in TWO and not equals:
                value = f"{value}={next(line, '')}"
            if option.many:
                found.setdefault(name, []).append(value)
            else:
                found[name] = value
    return found, rest


def _parameters(kind: type[FlowSpec], words: list[str]) -> tuple[dict[str, Any], list[str]]:
    """The flow's own parameters from `--lr 0.1`, `--lr=0.1`, and for a yes or no only `--fast`."""
    known = {found.name.replace("_", "-"): found for found in parameters_of(kind).values()}
    given: dict[str, Any] = {}
    rest: list[str] = []
    line = list(words)
    while line:
        word = line.pop(0)
        flag, equals, value = word.partition("=")
        if not flag.startswith("--"):
            rest.append(word)
            continue
        parameter = known.get(flag.removeprefix("--").replace("_", "-"))
        if parameter is None:
            flags = [found.flag for found in known.values()] + [f"--{name}" for name in (*ALL, *RUN)]
            raise UsageError(f"flow {kind.__name__} has no parameter for {flag}{nearest(flag, flags)}")
        if not equals:
            if parameter.type is bool and (not line or line[0].startswith("--")):
                value = "true"
            elif not line:
                raise UsageError(f"{flag} needs a value", fix=f"write {flag} {parameter.kind}")
            else:
                value = line.pop(0)
        if parameter.multiple:
            given.setdefault(parameter.name, []).append(value)
        else:
            given[parameter.name] = value
    return given, rest


def _definition(kind: type[FlowSpec], options: Mapping[str, Any]) -> FlowDefinition:
    for name in ("metadata", "datastore"):
        if options.get(name, "local") != "local":
            raise UsageError(
                f"--{name}={options[name]}: only 'local' is taken; where things are kept is the stack's to say",
                fix="write artifact_store and database into stoker.toml, and --stack NAME",
            )
    splits = options.get("max-num-splits")
    return FlowDefinition(
        kind,
        attached=tuple(options.get("with", ())),
        without=tuple(options.get("without", ())),
        max_splits=None if splits is None else _number("max-num-splits", splits),
        namespace=options.get("namespace"),
        configs=dict(_configs(kind, options)),
        environment=options.get("environment"),
    )


def _configs(kind: type[FlowSpec], options: Mapping[str, Any]) -> Iterator[tuple[str, Callable[[Any], Any]]]:
    """Configs by name, each with how its content is found."""
    known = [found.name for found in parameters_of(kind).values() if hasattr(type(found), "is_flow_config")]
    for option in TWO:
        for text in options.get(option, ()):
            name, _, value = str(text).partition("=")
            if name not in known or not value:
                raise UsageError(f"--{option} {text}: no such Config{nearest(name, known)}", fix=f"--{option} NAME …")
            yield name, _ConfigText(value, of_file=option == "config")


@attrs.frozen
class _ConfigText:
    """How a config's content is found: in a file, or as it is written."""

    text: str
    of_file: bool

    def __call__(self, config: Any) -> Any:
        return config.read(self.text) if self.of_file else config.parsed(self.text)


def _request(flow: FlowDefinition, options: Mapping[str, Any]) -> RunRequest:
    assignments = list(options.get("set", ()))
    if "max-workers" in options:
        assignments.append(f"max_parallel={_number('max-workers', options['max-workers'])}")
    if "failure-mode" in options:
        assignments.append(f"failure_mode={options['failure-mode']}")
    return RunRequest(
        stack=options.get("stack"),
        debug=bool(options.get("debug")),
        simulate=options.get("simulate"),
        quiet=bool(options.get("quiet")),
        assignments=tuple(assignments),
        tags=tuple(options.get("tag", ())),
        began=_began(flow, options),
        detach=bool(options.get("detach")),
    )


def _number(name: str, text: Any) -> int:
    if not str(text).isdecimal() or int(text) < 1:
        raise UsageError(f"--{name} {text}: not a number from 1 up", fix=f"write --{name} 4")
    return int(text)


def _began(flow: FlowDefinition, options: Mapping[str, Any]) -> Callable[[str], None] | None:
    ids, told = options.get("run-id-file"), options.get("runner-attribute-file")
    if ids is None and told is None:
        return None

    def write(run: str) -> None:
        import json

        texts = ((ids, run), (told, json.dumps({"flow_name": flow.name, "run_id": run})))
        for name, text in texts:
            if name is not None:
                path = Path(name)
                beside = path.with_name(f".{path.name}.{os.getpid()}")
                beside.write_text(text, encoding="utf-8")
                beside.replace(path)

    return write
