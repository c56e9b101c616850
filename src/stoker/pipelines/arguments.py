"""A command line for a pipeline: `--lr 0.01` for its parameters, and the options that every run has.

`stoker run train.py --lr 0.01` and `python train.py --lr 0.01` both read their arguments here, so that they agree.
Which pipeline is called is known only when the script calls it: until then the arguments wait in `COMMAND_LINE`.
"""

from __future__ import annotations

import re
import sys
import typing
from collections import abc
from contextvars import ContextVar
from typing import Any, Final, Mapping, Protocol, Sequence

import attrs

from stoker.core.errors import ParameterError, StokerError, nearest
from stoker.core.request import REQUEST, NotTheDriver, RunRequest
from stoker.core.units import UNSET
from stoker.pipelines import params
from stoker.pipelines.annotations import UNIONS, bare, element_of, text_of
from stoker.pipelines.signature import Parameter, Signature


class Called(Protocol):
    """What is asked of a pipeline here."""

    @property
    def name(self) -> str:
        """What the pipeline goes by."""

    @property
    def signature(self) -> Signature:
        """Its parameters."""


@attrs.frozen(kw_only=True)
class RunOption:
    """An option of every run: `value` is what its value is called in the help, empty for a flag."""

    name: str
    help: str
    value: str = ""
    many: bool = False

    @property
    def flag(self) -> str:
        """As it is written: "--no-cache"."""
        return "--" + self.name


RUN_OPTIONS: Final = (
    RunOption(name="stack", value="NAME", help="where to run and to keep things, from stoker.toml"),
    RunOption(name="config", value="FILE", help="a YAML file with parameters and settings"),
    RunOption(name="set", value="KEY=VALUE", many=True, help="a setting, such as steps.train.resources.gpu_count=2"),
    RunOption(name="tag", value="TAG", many=True, help="a tag to find the run by"),
    RunOption(name="name", value="NAME", help="a name for the run instead of the pipeline's"),
    RunOption(name="failure-mode", value="MODE", help="fail_fast, or continue with what does not depend on a failure"),
    RunOption(name="no-cache", help="run every step, also those whose results are known"),
    RunOption(name="debug", help="run every step in this process, one by one, so that breakpoint() works"),
    RunOption(name="detach", help="plan and check, then let the run go on by itself: the terminal can be closed"),
    RunOption(name="simulate", value="DEVICES", help='pretend that this machine has "4xH100-80GB,1xA10", for example'),
    RunOption(name="quiet", help="show the summary only"),
    RunOption(name="help", help="show this and run nothing"),
)
_PARSERS: Final = re.compile(r"\b(argv|argparse|parse_args|click|typer|fire|absl|hydra|tyro|docopt)\b")
"""Words of a script that reads its command line itself."""
_MANY: Final = (abc.Sequence, abc.Set)

Options = Mapping[str, Any]
"""Given options by name: True for a flag, a list where it may be given many times."""


@attrs.define
class CommandLine:
    """What `stoker run` was given for the pipeline that the script will call, and the calls that were made.

    `wanted`: only the pipeline of this name is meant; the script is left where it calls another one. `planning`: it is
    left at the first call, because only what would be run is asked.
    """

    options: Options
    arguments: Sequence[str]
    wanted: str = ""
    planning: bool = False
    calls: list[tuple[Called, Mapping[str, Any]]] = attrs.field(factory=list)


COMMAND_LINE: ContextVar[CommandLine | None] = ContextVar("stoker_command_line", default=None)


def request_for(pipeline: Called, given: Mapping[str, Any]) -> RunRequest:
    """What the command line asks of a pipeline that is being called with some arguments.

    In a script that was started by itself, `--help` and a mistake end the program, as a command line's do.
    """
    line = COMMAND_LINE.get()
    if line is not None:
        if line.wanted and pipeline.name != line.wanted:
            raise NotTheDriver
        line.calls.append((pipeline, given))
        if line.planning:
            raise NotTheDriver
        return request(pipeline, line.options, line.arguments)
    found = REQUEST.get()
    arguments = script_arguments(pipeline) if found is None else None
    if arguments is None:
        return found or RunRequest()
    try:
        options, rest = split(arguments)
        if not options.get("help"):
            return request(pipeline, options, rest)
    except StokerError as error:
        sys.stderr.write(f"error: {error}\n")
        raise SystemExit(error.exit_code) from None
    sys.stdout.write(help_text(pipeline, f"python {sys.argv[0]}") + "\n")
    raise SystemExit(0)


def script_arguments(pipeline: Called) -> list[str] | None:
    """The arguments of `python train.py --lr 0.01` if they are the pipeline's: it is called by the script itself, which
    does not read its command line; None otherwise."""
    main = sys.modules.get("__main__")
    file = getattr(main, "__file__", None)
    arguments = sys.argv[1:]
    if not file or not any(argument.startswith("--") for argument in arguments) or not _called_by(vars(main)):
        return None
    try:
        with open(file, encoding="utf-8", errors="replace") as script:
            return None if _PARSERS.search(script.read()) else arguments
    except OSError:
        return None


def split(argv: Sequence[str], extra: Sequence[RunOption] = ()) -> tuple[dict[str, Any], list[str]]:
    """The options of a run, those of one way to start it included, and the arguments that are left for the pipeline."""
    known = {option.flag: option for option in (*RUN_OPTIONS, *extra)}
    options: dict[str, Any] = {}
    rest: list[str] = []
    words = iter(argv)
    for word in words:
        flag, equals, value = word.partition("=")
        option = known.get(flag)
        if option is None:
            rest.append(word)
        elif not option.value:
            if equals:
                raise ParameterError(f"{flag} takes no value, got {value!r}")
            options[option.name] = True
        else:
            if not equals:
                value = next(words, "--")
                if value.startswith("--"):
                    raise ParameterError(f"{flag} needs a value", fix=f"write {flag} {option.value}")
            if option.many:
                options.setdefault(option.name, []).append(value)
            else:
                options[option.name] = value
    return options, rest


def request(pipeline: Called, options: Options, arguments: Sequence[str]) -> RunRequest:
    """The request that options and arguments make for a pipeline; `ParameterError` for what it does not take."""
    for flag in options:
        key = _key(flag)
        if key in pipeline.signature.parameters or key.removeprefix("no_") in pipeline.signature.parameters:
            key = key if key in pipeline.signature.parameters else key.removeprefix("no_")
            raise ParameterError(
                f"--{flag} is an option of every run, and pipeline '{pipeline.name}' has a parameter '{key}'",
                fix=f"write --set parameters.{key}=… for the parameter, or give it another name",
            )
    parameters, rest = parse(pipeline.signature, arguments)
    if rest:
        raise ParameterError(f"unexpected argument {rest[0]!r}", fix="write --parameter value")
    assignments = list(options.get("set", ()))
    if "failure-mode" in options:
        assignments.append(f"failure_mode={options['failure-mode']}")
    return RunRequest(
        stack=options.get("stack"),
        parameters=parameters,
        cache=False if options.get("no-cache") else None,
        debug=bool(options.get("debug")),
        simulate=options.get("simulate"),
        run_file=options.get("config"),
        assignments=tuple(assignments),
        tags=tuple(options.get("tag", ())),
        name=options.get("name"),
        quiet=bool(options.get("quiet")),
        detach=bool(options.get("detach")),
    )


def parse(signature: Signature, argv: Sequence[str]) -> tuple[dict[str, Any], list[str]]:
    """Parameters by name from `--lr 0.01`, `--lr=0.01`, `--fast`, `--no-fast`; and what is no option."""
    found: dict[str, Any] = {}
    rest: list[str] = []
    words = list(argv)
    while words:
        word = words.pop(0)
        if word == "--":
            return found, rest + words
        if not word.startswith("--"):
            rest.append(word)
            continue
        flag, equals, text = word.partition("=")
        parameter, negated = _parameter(signature, flag)
        texts = [text] if equals else _values(words, parameter, negated=negated)
        if negated:
            if texts:
                raise ParameterError(f"{flag} takes no value, got {texts[0]!r}")
            value: Any = False
        elif not texts:
            if not _is_flag(parameter):
                raise _needs_value(signature.owner, flag, parameter, words)
            value = True
        else:
            value = _value(flag, texts, parameter)
            if parameter.name in found and _is_many(parameter):
                value = type(value)([*found[parameter.name], *value])
        found[parameter.name] = value
    return found, rest


def help_text(pipeline: Called, usage: str, extra: Sequence[RunOption] = ()) -> str:
    """The pipeline's parameters with types and defaults, and the options of a run, as a person reads them."""
    lines = [f"Usage: {usage} [OPTIONS] [PARAMETERS]"]
    summary = first_line(pipeline)
    if summary:
        lines += ["", f"  {summary}"]
    parameters = list(pipeline.signature.parameters.values())
    lines += [
        "",
        f"Parameters of pipeline '{pipeline.name}':" if parameters else f"Pipeline '{pipeline.name}' takes none.",
    ]
    lines += _columns([(_written(parameter), _told(parameter)) for parameter in parameters])
    if pipeline.signature.others is not UNSET:
        lines.append("  and any other --name value")
    return "\n".join([*lines, "", options_text(extra)])


def options_text(extra: Sequence[RunOption] = ()) -> str:
    """The options of a run, and those of one way to start it."""
    rows = [
        (f"{option.flag} {option.value}".rstrip(), option.help + _again(option)) for option in (*extra, *RUN_OPTIONS)
    ]
    return "\n".join(["Options:", *_columns(rows)])


def first_line(pipeline: Called) -> str:
    """The first line of what the author wrote about the pipeline."""
    lines = (getattr(pipeline, "__doc__", None) or "").strip().splitlines()
    return lines[0].strip() if lines else ""


def _called_by(names: Mapping[str, Any]) -> bool:
    """Whether the first frame outside Stoker is that of a module with these names."""
    frame = sys._getframe(1)
    while frame.f_back is not None and str(frame.f_globals.get("__name__", "")).partition(".")[0] == "stoker":
        frame = frame.f_back
    return frame.f_globals is names


def _key(flag: str) -> str:
    return flag.removeprefix("--").replace("-", "_")


def _parameter(signature: Signature, flag: str) -> tuple[Parameter, bool]:
    """The parameter that a flag names, and whether the flag takes it back."""
    key = _key(flag)
    found = signature.parameters.get(key)
    if found is not None:
        return found, False
    positive = signature.parameters.get(key.removeprefix("no_"))
    if positive is not None and _is_flag(positive):
        return positive, True
    if signature.others is not UNSET and key.isidentifier():
        return Parameter(name=key, annotation=signature.others), False
    known = [f"--{name.replace('_', '-')}" for name in signature.parameters]
    close = nearest(flag, [*known, *(option.flag for option in RUN_OPTIONS)])
    hint = close if "did you mean" in close else nearest(flag, known)
    raise ParameterError(f"{signature.owner} has no parameter for {flag}{hint}")


def _values(words: list[str], parameter: Parameter, *, negated: bool) -> list[str]:
    """The words behind a flag that are its values; they are taken off."""
    if negated or not words or words[0].startswith("--"):
        return []
    if _is_flag(parameter):
        return [words.pop(0)] if words[0].lower() in params.TRUE | params.FALSE else []
    taken = [words.pop(0)]
    while _is_many(parameter) and words and not words[0].startswith("--"):
        taken.append(words.pop(0))
    return taken


def _needs_value(owner: str, flag: str, parameter: Parameter, words: Sequence[str]) -> ParameterError:
    fix = f"write {flag}={words[0]} if that is the value" if words else f"write {flag} {_kind(parameter)}"
    return ParameterError(f"{owner}: {flag} needs a value", fix=fix)


def _value(flag: str, texts: Sequence[str], parameter: Parameter) -> Any:
    annotation = _annotation(parameter)
    try:
        if len(texts) == 1:
            return params.parse(texts[0], annotation)
        element = next(element_of(option) for option in _options(annotation) if _holds_many(option))
        return params.from_document([params.parse(text, element) for text in texts], annotation)
    except ParameterError as error:
        raise ParameterError(f"{flag}: {error.message}", where=error.where, fix=error.fix) from None


def _annotation(parameter: Parameter) -> Any:
    """The parameter's type; where none is written, that of its default says as much."""
    default = parameter.default
    plain: tuple[type, ...] = (bool, int, float, str, list, tuple)
    if parameter.annotation is Any and type(default) in plain:
        # `lr=1` without a type may well be given 0.5: only what a text could not mean otherwise is fixed.
        return type(default) if not isinstance(default, (int, float)) or isinstance(default, bool) else Any
    return parameter.annotation


def _options(annotation: Any) -> tuple[Any, ...]:
    """The types of a union that are not None; of another type itself."""
    annotation = bare(annotation)
    options = typing.get_args(annotation) if typing.get_origin(annotation) in UNIONS else (annotation,)
    return tuple(option for option in map(bare, options) if option not in (None, type(None)))


def _is_flag(parameter: Parameter) -> bool:
    return _options(_annotation(parameter)) == (bool,)


def _is_many(parameter: Parameter) -> bool:
    return any(map(_holds_many, _options(_annotation(parameter))))


def _holds_many(option: Any) -> bool:
    kind = typing.get_origin(option) or option
    return isinstance(kind, type) and issubclass(kind, _MANY) and not issubclass(kind, (str, bytes))


def _kind(parameter: Parameter) -> str:
    annotation = _annotation(parameter)
    return "VALUE" if annotation is Any else text_of(annotation)


def _written(parameter: Parameter) -> str:
    name = parameter.name.replace("_", "-")
    return f"--{name} / --no-{name}" if _is_flag(parameter) else f"--{name} {_kind(parameter)}"


def _told(parameter: Parameter) -> str:
    return "required" if parameter.required else f"default: {_default_text(parameter.default)}"


def _default_text(value: Any) -> str:
    import enum

    if isinstance(value, enum.Enum):
        return value.name
    text = value if isinstance(value, str) and value else repr(value)
    return text if len(text) <= 60 else text[:59] + "…"


def _again(option: RunOption) -> str:
    return "; may be given again" if option.many else ""


def _columns(rows: Sequence[tuple[str, str]]) -> list[str]:
    width = max((len(left) for left, _ in rows if len(left) <= 32), default=0)
    return [f"  {left:<{width}}  {right}" for left, right in rows]
