"""The command line of a program: the options that every run has, and the program's own options and parameters.

`python train.py --lr 1`, `python flow.py run --lr 1` and `stoker run FILE --lr 1` all read their words here, so that
they agree. Which program is called is known only when the script calls it: until then the words of `stoker run` wait in
`COMMAND_LINE`.
"""

from __future__ import annotations

import os
import re
import sys
from contextvars import ContextVar
from typing import Any, Callable, Collection, Final, Iterable, Mapping, Sequence

import attrs

from stoker.core.errors import ParameterError, StokerError
from stoker.core.request import REQUEST, NotTheDriver, RunOption, RunRequest
from stoker.core.values import define, lazy_pattern
from stoker.report.streams import echo, say
from stoker.run.program import Program

Apply = Callable[[RunRequest, Any], RunRequest]
Options = Mapping[str, Any]
"""Given options by name: True for a flag, a list where it may be given many times."""


def field(name: str) -> Apply:
    """What an option does whose value is a field of the request."""
    return lambda request, value: attrs.evolve(request, **{name: value})


def texts(name: str) -> Apply:
    """The same of an option that may be given again."""
    return lambda request, values: field(name)(request, (*getattr(request, name), *values))


def setting(key: str) -> Apply:
    """What an option does that is a short way to write a `--set`."""
    return lambda request, value: attrs.evolve(request, assignments=(*request.assignments, f"{key}={value}"))


RUN_OPTIONS: Final = (
    RunOption(
        name="stack",
        value="NAME",
        help="where to run and to keep things, from stoker.toml",
        apply=field("stack"),
    ),
    RunOption(
        name="with",
        value="BACKEND",
        many=True,
        help="run every step there, with its settings and resources: slurm:partition=gpu,gpu=2",
        apply=texts("attached"),
    ),
    RunOption(name="config", value="FILE", help="a YAML file with parameters and settings", apply=field("run_file")),
    RunOption(
        name="set",
        value="KEY=VALUE",
        many=True,
        help="a setting, such as steps.train.resources.gpu_count=2",
        apply=texts("assignments"),
    ),
    RunOption(
        name="environment",
        value="KIND",
        help="packages of steps: of this Python (local), or made for them by pypi, conda or uv",
        apply=field("environment"),
    ),
    RunOption(name="tag", value="TAG", many=True, help="a tag to find the run by", apply=texts("tags")),
    RunOption(name="name", value="NAME", help="a name for the run instead of the pipeline's", apply=field("name")),
    RunOption(
        name="failure-mode",
        value="MODE",
        help="fail_fast, or continue with what does not depend on a failure",
        apply=setting("failure_mode"),
    ),
    RunOption(
        name="no-cache",
        help="run every step, also those whose results are known",
        apply=lambda request, given: attrs.evolve(request, cache=False if given else None),
    ),
    RunOption(
        name="debug",
        help="run every step in this process, one by one, so that breakpoint() works",
        apply=field("debug"),
    ),
    RunOption(
        name="detach",
        help="plan and check, then let the run go on by itself: the terminal can be closed",
        apply=field("detach"),
    ),
    RunOption(
        name="simulate",
        value="DEVICES",
        help='pretend that this machine has "4xH100-80GB,1xA10", for example',
        apply=field("simulate"),
    ),
    RunOption(
        name="require-proof",
        help="refuse the plan where a step's accelerators are not proved to fit",
        apply=lambda request, given: setting("require_proof")(request, "true") if given else request,
    ),
    RunOption(name="quiet", help="show the summary only", apply=field("quiet")),
)
"""The options of every run, however it is started, in the order of `--help`."""
HELP: Final = RunOption(name="help", help="show this and run nothing")
_PARSERS: Final = lazy_pattern(r"\b(argv|argparse|parse_args|click|typer|fire|absl|hydra|tyro|docopt)\b")
"""Words of a script that reads its command line itself."""


@define
class CommandLine:
    """The words of `stoker run` for the program that its script will call, and the calls that were made."""

    words: Sequence[str] = ()
    """The words that the command does not take itself."""
    before: int = 0
    """How many of them stand before the file: they are never the script's."""
    shared: bool = False
    """Whether the script reads the words, too."""
    wanted: str = ""
    """The name of the program to run; the script is left where it calls another one."""
    planning: bool = False
    """Whether the script is left at its first call, because only the plan is needed."""
    run_id: str = ""
    """The id that the first run gets; empty for one that is drawn."""
    began: Callable[[str], None] | None = None
    """Called with the id of each run that begins."""
    taken: Collection[str] = ()
    """Options that the command took, which no program may have for parameters."""
    calls: list[tuple[Program, Mapping[str, Any]]] = attrs.field(factory=list)
    """The programs that the script called, each with its arguments."""

    def give_script(self, file: str) -> list[str]:
        """The words for `sys.argv` of the script: those behind `--`, and all but a run's options if it reads its
        command line itself."""
        words = list(self.words)
        if "--" in words:
            at = words.index("--")
            self.words = words[:at]
            return words[at + 1 :]
        text = _text(file)
        kinds = {match[1] for match in _PARSERS.finditer(text)}
        self.shared = bool(kinds)
        if not self.shared:
            return []
        options, own_words = split(words[self.before :], RUN_OPTIONS)
        for name in options:
            if f'"--{name}"' in text or f"'--{name}'" in text:
                raise ParameterError(
                    f"--{name} is an option of every run, and {os.path.basename(file)} has one of that name",
                    fix=f"write the script's own behind `--`: FILE -- --{name} …, and a run's before the file",
                )
        flags = [word.partition("=")[0] for word in own_words if word.startswith("--")]
        if flags and not any(f'"{flag}"' in text or f"'{flag}'" in text for flag in flags):
            # argparse's options are spelled. Who looks into `sys.argv` by position takes what no parameter is named.
            names = {flag.strip("-").replace("-", "_") for flag in flags}
            if "add_argument" in text or (kinds == {"argv"} and names & set(re.findall(r"\w+", text))):
                self.shared = False
                return []
        return own_words

    def read(self, program: Program, arguments: Mapping[str, Any]) -> tuple[Program, RunRequest]:
        """What the words ask of a program that is called with some arguments.

        Of words that the script reads, too, only those count that name a parameter which its call leaves open.
        """
        for name in self.taken:
            if name in program.signature.parameters:
                raise _both(name, program)
        program, request = self._read(program, arguments)
        id, self.run_id = self.run_id, ""
        return program, attrs.evolve(request, id=id, began=self.began or request.began)

    def _read(self, program: Program, arguments: Mapping[str, Any]) -> tuple[Program, RunRequest]:
        if not self.shared:
            return read(program, self.words)
        written, words = split(self.words, options_of(program))
        open_names = {name for name in program.signature.parameters if name not in arguments}
        kept, following = [], False
        for word in words:
            if word.startswith("--"):
                name = word.partition("=")[0].removeprefix("--").replace("-", "_")
                following = name in open_names or name.removeprefix("no_") in open_names
            if following:
                kept.append(word)
        accepted, options = options_of(program), program.complete_options(written)
        program = program.apply_options(options)
        return program, request(program, accepted, options, kept)


COMMAND_LINE: ContextVar[CommandLine | None] = ContextVar("stoker_command_line", default=None)


def read_call(program: Program, arguments: Mapping[str, Any]) -> tuple[Program, RunRequest]:
    """What the command line asks of a program that is being called with some arguments.

    In a script that was started by itself, `--help` and a mistake end the program, as a command line's do.
    """
    line = COMMAND_LINE.get()
    if line is not None:
        return take_call(program, arguments, line)
    there = REQUEST.get()
    words = script_words(program) if there is None else None
    if words is None:
        return program, there or RunRequest()
    try:
        options, _ = split(words, (HELP,))
        if not options.get("help"):
            return read(program, words)
    except StokerError as error:
        say(f"error: {error}")
        raise SystemExit(error.exit_code) from None
    echo(help_text(program, f"python {sys.argv[0]}"))
    raise SystemExit(0)


def take_call(program: Program, arguments: Mapping[str, Any], line: CommandLine) -> tuple[Program, RunRequest]:
    """What `stoker run` asks of a program that its script calls; `NotTheDriver` where the call is not to run."""
    if line.wanted and program.name != line.wanted:
        raise NotTheDriver
    line.calls.append((program, arguments))
    if line.planning:
        raise NotTheDriver
    return line.read(program, arguments)


def read(program: Program, words: Sequence[str]) -> tuple[Program, RunRequest]:
    """The program and the request that a command line makes; `ParameterError` for what neither takes."""
    accepted = options_of(program)
    written, remaining = split(words, accepted)
    options = program.complete_options(written)
    program = program.apply_options(options)
    return program, request(program, accepted, options, remaining)


def request(program: Program, accepted: Sequence[RunOption], options: Options, words: Sequence[str]) -> RunRequest:
    """The request of options that are taken off, and of the words that are left; `known` are those of the command."""
    own_names = {option.name for option in program.run_options()}
    for name in options:
        if name in own_names:
            continue
        key = name.replace("-", "_")
        key = key if key in program.signature.parameters else key.removeprefix("no_")
        if key in program.signature.parameters:
            raise _both(name, program)
    parameters, remaining = program.parse(words, [option.flag for option in accepted])
    if remaining:
        raise ParameterError(f"unexpected argument {remaining[0]!r}", fix="write --parameter value")
    return apply_run_options(accepted, options, RunRequest(parameters=parameters))


def _both(name: str, program: Program) -> ParameterError:
    key = name.replace("-", "_")
    key = key if key in program.signature.parameters else key.removeprefix("no_")
    return ParameterError(
        f"--{name} is an option of every run, and {program.signature.owner} has a parameter '{key}'",
        fix=f"write --set parameters.{key}=… for the parameter, or give it another name",
    )


def apply_run_options(accepted: Iterable[RunOption], options: Options, start: RunRequest) -> RunRequest:
    """A request with what the given options make of it."""
    for option in accepted:
        if option.name in options and option.apply is not None:
            start = option.apply(start, options[option.name])
    return start


def options_of(program: Program) -> tuple[RunOption, ...]:
    """The options of a program's runs: its own, and those of every run that it does not have by the same name."""
    own_options = program.run_options()
    hidden = {option.name for option in own_options}
    return (*own_options, *(option for option in RUN_OPTIONS if option.name not in hidden))


def split(words: Sequence[str], accepted: Iterable[RunOption]) -> tuple[dict[str, Any], list[str]]:
    """The known options among the words, and the words that are left; `-` and `_` in a name are the same."""
    by_name = {option.name: option for option in accepted}
    options: dict[str, Any] = {}
    remaining: list[str] = []
    line = iter(words)
    for word in line:
        flag, equals, value = word.partition("=")
        name = flag.removeprefix("--").replace("_", "-")
        option = by_name.get(name) if flag.startswith("--") else None
        if word == "--":
            return options, [*remaining, word, *line]
        if option is None:
            remaining.append(word)
        elif not option.value:
            if equals and value.lower() not in ("true", "false"):
                raise ParameterError(f"{flag} takes no value, got {value!r}", fix=f"write {flag} alone")
            options[name] = not equals or value.lower() == "true"
        elif option.optional and not equals:
            options[name] = True
        else:
            if not equals:
                value = next(line, "--")
                if not value or value.startswith("--"):
                    raise ParameterError(f"{flag} needs a value", fix=f"write {flag} {option.value}")
                if option.pair is not None and option.pair(value):
                    value = f"{value}={next(line, '')}"
            if option.many:
                options.setdefault(name, []).append(value)
            else:
                options[name] = value
    return options, remaining


def script_words(program: Program) -> list[str] | None:
    """The words of `python train.py --lr 0.1` if they are the program's: it is called by the script itself, which does
    not read its command line; None otherwise."""
    main = sys.modules.get("__main__")
    file = getattr(main, "__file__", None)
    words = sys.argv[1:]
    if not file or not any(word.startswith("--") for word in words) or not _called_by(vars(main)):
        return None
    text = _text(file)
    return words if text and _PARSERS.search(text) is None else None


def _text(file: str) -> str:
    """The text of a script; empty if it cannot be read."""
    try:
        with open(file, encoding="utf-8", errors="replace") as script:
            return script.read()
    except OSError:
        return ""


def help_text(program: Program, usage: str, extra: Sequence[RunOption] = ()) -> str:
    """The program's parameters with types and defaults, and the options of a run, as a person reads them."""
    lines = [f"Usage: {usage} [OPTIONS] [PARAMETERS]"]
    summary = first_line(program)
    if summary:
        lines += ["", f"  {summary}"]
    rows = program.parameter_rows()
    title = f"Parameters of {program.signature.owner}:" if rows else f"{_capital(program.signature.owner)} takes none."
    return "\n".join([*lines, "", title, *columns(rows), "", options_text((*extra, *options_of(program), HELP))])


def options_text(options: Sequence[RunOption]) -> str:
    """Options as the help lists them."""
    again = {True: "; may be given again", False: ""}
    rows = [(_usage(option), option.help + again[option.many]) for option in options]
    return "\n".join(["Options:", *columns(rows)])


def _usage(option: RunOption) -> str:
    """How an option is written: `--stack NAME`, `--lock[=FILE]`, `--quiet`."""
    if option.optional:
        return f"{option.flag}[={option.value}]"
    return f"{option.flag} {option.value}".rstrip()


def columns(rows: Sequence[tuple[str, str]]) -> list[str]:
    """Rows of the help, with the second column below each other."""
    width = max((len(first) for first, _ in rows if len(first) <= 32), default=0)
    return [f"  {first:<{width}}  {second}".rstrip() for first, second in rows]


def first_line(program: Program) -> str:
    """The first line of what the author wrote about the program."""
    lines = (getattr(program.function, "__doc__", None) or "").strip().splitlines()
    return lines[0].strip() if lines else ""


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]


def _called_by(names: Mapping[str, Any]) -> bool:
    """Whether the first frame outside Stoker is that of a module with these names."""
    frame = sys._getframe(1)
    while frame.f_back is not None and str(frame.f_globals.get("__name__", "")).partition(".")[0] == "stoker":
        frame = frame.f_back
    return frame.f_globals is names
