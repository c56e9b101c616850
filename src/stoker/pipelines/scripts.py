"""A pipeline as a script: its parameters on a command line (`--lr 0.01`, `--rates 1 2`, `--fast`, `--no-fast`), and its
end: `python train.py` ends as `stoker run train.py` does.

An error of Stoker's that nothing catches is a message and an exit code, not a traceback, and so is Ctrl-C in a call of
Stoker's.

What a word means is the signature's business. The options that every run has are `run.commandline`'s.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import sys
import typing
from collections import abc
from types import TracebackType
from typing import Any, Final, Sequence

from stoker.core.errors import (
    EXIT_INFRASTRUCTURE,
    EXIT_INTERRUPTED,
    EXIT_USAGE,
    ParameterError,
    SettingsError,
    StokerError,
    nearest,
)
from stoker.core.printable import printable
from stoker.core.units import UNSET
from stoker.core.usercode import (
    is_user_file,
    raised_by_user,
    replaced_functions,
    replaced_text,
    source_line,
    user_traceback,
)
from stoker.pipelines import params
from stoker.pipelines.params import UNIONS, bare, element_of, text_of
from stoker.pipelines.signature import FunctionParameter, FunctionSignature

_exit_code = 0
_MANY: Final = (abc.Sequence, abc.Set)


def watch_script() -> None:
    """In a script with Python's own way of showing errors, show ours as `stoker run` does and leave with its code."""
    file = getattr(sys.modules.get("__main__"), "__file__", None)
    if sys.excepthook is sys.__excepthook__ and file and is_user_file(file):
        sys.excepthook = _uncaught
        atexit.register(_leave)


def _uncaught(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    global _exit_code
    if (
        isinstance(error, KeyboardInterrupt)
        and _passes_through_stoker(trace)
        and not os.environ.get("STOKER_TRACEBACK")
    ):
        sys.stderr.write("interrupted\n")
        _exit_code = EXIT_INTERRUPTED
        return
    through_stoker = _passes_through_stoker(trace)
    if isinstance(error, StokerError) and not os.environ.get("STOKER_TRACEBACK"):
        if isinstance(error, SettingsError):
            error.where = error.where or line_of_settings(trace)
        sys.stderr.write(printable(f"error: {error}\n"))
    elif through_stoker and raised_by_user(error) and not os.environ.get("STOKER_TRACEBACK"):
        sys.stderr.write(printable(f"{user_traceback(error)}\n"))
    elif through_stoker and not os.environ.get("STOKER_TRACEBACK") and (replaced := replaced_functions()):
        sys.stderr.write(printable(f"error: {replaced_text(error, replaced)}\n"))
    else:
        sys.__excepthook__(kind, error, trace)
    if isinstance(error, StokerError):
        _exit_code = error.exit_code
    elif through_stoker:  # in a pipeline's body, for example; what a script does by itself ends as it always does
        _exit_code = EXIT_USAGE if raised_by_user(error) or replaced_functions() else EXIT_INFRASTRUCTURE


def line_of_settings(trace: TracebackType | None) -> str:
    """The user's line that makes settings, such as `ResourceSettings(…)` or `Torchrun(…)`; empty if an error comes from
    elsewhere."""
    line = ""
    while trace is not None:
        frame, number, trace = trace.tb_frame, trace.tb_lineno, trace.tb_next
        package, _, rest = str(frame.f_globals.get("__name__", "")).partition(".")
        if package != "stoker":
            line = source_line(frame.f_code.co_filename, number)
        elif rest.partition(".")[0] not in ("core", "launchers"):
            line = ""
    return line


def _passes_through_stoker(trace: TracebackType | None) -> bool:
    package = __name__.partition(".")[0]
    while trace is not None:
        if trace.tb_frame.f_globals.get("__name__", "").partition(".")[0] == package:
            return True
        trace = trace.tb_next
    return False


def _leave() -> None:
    """Python always exits with 1 after an uncaught error; called after nearly all else that is called at exit."""
    if _exit_code:
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(OSError, ValueError, AttributeError):  # its reader is gone, or it was closed
                stream.flush()
        os._exit(_exit_code)


def parse(
    signature: FunctionSignature, argv: Sequence[str], flags: Sequence[str] = ()
) -> tuple[dict[str, Any], list[str]]:
    """Parameters by name from `--lr 0.01`, `--lr=0.01`, `--fast`, `--no-fast`; and what is no option.

    `flags` are other words that may have been meant by one that is no parameter's.
    """
    values: dict[str, Any] = {}
    positional: list[str] = []
    words = list(argv)
    while words:
        word = words.pop(0)
        if word == "--":
            return values, positional + words
        if not word.startswith("--"):
            positional.append(word)
            continue
        flag, equals, text = word.partition("=")
        parameter, negated = _parameter(signature, flag, flags)
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
            if parameter.name in values and _is_many(parameter):
                value = type(value)([*values[parameter.name], *value])
        values[parameter.name] = value
    return values, positional


def rows(signature: FunctionSignature) -> list[tuple[str, str]]:
    """For the help: each parameter as it is written, and its default."""
    lines = [(_flag_text(parameter), _default_note(parameter)) for parameter in signature.parameters.values()]
    return lines if signature.others is UNSET else [*lines, ("and any other --name value", "")]


def _parameter(signature: FunctionSignature, flag: str, flags: Sequence[str]) -> tuple[FunctionParameter, bool]:
    """The parameter that a flag names, and whether the flag takes it back."""
    key = flag.removeprefix("--").replace("-", "_")
    exact = signature.parameters.get(key)
    if exact is not None:
        return exact, False
    positive = signature.parameters.get(key.removeprefix("no_"))
    if positive is not None and _is_flag(positive):
        return positive, True
    if signature.others is not UNSET and key.isidentifier():
        return FunctionParameter(name=key, annotation=signature.others), False
    known_flags = [f"--{name.replace('_', '-')}" for name in signature.parameters]
    close = nearest(flag, [*known_flags, *flags])
    hint = close if "did you mean" in close else nearest(flag, known_flags)
    raise ParameterError(f"{signature.owner} has no parameter for {flag}{hint}")


def _values(words: list[str], parameter: FunctionParameter, *, negated: bool) -> list[str]:
    """The words behind a flag that are its values; they are taken off."""
    if negated or not words or words[0].startswith("--"):
        return []
    if _is_flag(parameter):
        return [words.pop(0)] if words[0].lower() in params.TRUE | params.FALSE else []
    texts = [words.pop(0)]
    while _is_many(parameter) and words and not words[0].startswith("--"):
        texts.append(words.pop(0))
    return texts


def _needs_value(owner: str, flag: str, parameter: FunctionParameter, words: Sequence[str]) -> ParameterError:
    fix = f"write {flag}={words[0]} if that is the value" if words else f"write {flag} {_kind(parameter)}"
    return ParameterError(f"{owner}: {flag} needs a value", fix=fix)


def _value(flag: str, texts: Sequence[str], parameter: FunctionParameter) -> Any:
    annotation = _annotation(parameter)
    try:
        if len(texts) == 1:
            return params.parse(texts[0], annotation)
        element = next(element_of(option) for option in _options(annotation) if _holds_many(option))
        return params.from_document([params.parse(text, element) for text in texts], annotation)
    except ParameterError as error:
        raise ParameterError(f"{flag}: {error.message}", where=error.where, fix=error.fix) from None


def _annotation(parameter: FunctionParameter) -> Any:
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


def _is_flag(parameter: FunctionParameter) -> bool:
    return _options(_annotation(parameter)) == (bool,)


def _is_many(parameter: FunctionParameter) -> bool:
    return any(map(_holds_many, _options(_annotation(parameter))))


def _holds_many(option: Any) -> bool:
    kind = typing.get_origin(option) or option
    return isinstance(kind, type) and issubclass(kind, _MANY) and not issubclass(kind, (str, bytes))


def _kind(parameter: FunctionParameter) -> str:
    annotation = _annotation(parameter)
    return "VALUE" if annotation is Any else text_of(annotation)


def _flag_text(parameter: FunctionParameter) -> str:
    name = parameter.name.replace("_", "-")
    return f"--{name} / --no-{name}" if _is_flag(parameter) else f"--{name} {_kind(parameter)}"


def _default_note(parameter: FunctionParameter) -> str:
    return "required" if parameter.required else f"default: {_default_text(parameter.default)}"


def _default_text(value: Any) -> str:
    import enum

    if isinstance(value, enum.Enum):
        return value.name
    text = value if isinstance(value, str) and value else repr(value)
    return text if len(text) <= 60 else text[:59] + "…"
