"""One argument of a launcher's own command: the values it takes, and how it is written on the command line.

Launchers have tables of these by Python name. Arguments of newer versions are read from the launcher's own `argparse`
parser.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Callable, Final, Iterable, Literal, Mapping, cast

import attrs

from stoker.core import units
from stoker.core.errors import MissingPackage, SettingsError
from stoker.core.plugins import resolve
from stoker.core.units import FLAG_FIX, not_one_of
from stoker.core.words import table_lines

if TYPE_CHECKING:
    import argparse

Kind = Literal["flag", "switch", "truth", "yesno", "yesnos", "int", "float", "text", "texts", "names", "pairs", "each"]
"""How a value is written.

flag: `--x` or nothing. switch: `--x`, or `off` for no. truth: `--x=True`, or `--x=` for no, where the launcher takes
any text that is not empty for true. yesno: `--x=true` or `--x=false`. yesnos: several of these, by commas. int, float,
text: `--x=4`. texts: `--x=a --x=b`. names: `--x=a,b`. pairs: `--x=a=1,b=2`. each: `--x a 1 --x b 2`.
"""
Common = Literal["num_processes", "processes_per_node", "nodes", ""]


@attrs.frozen
class Argument:
    """One argument."""

    kind: Kind = "text"
    """How its value is written."""
    choices: tuple[str, ...] = ()
    """The values that it takes; empty for any."""
    flag: str = attrs.field(default="", kw_only=True)
    """The option on the command line, where that is not `--` and its name."""
    off: str = attrs.field(default="", kw_only=True)
    """The option that turns a switch off."""
    least: float | None = attrs.field(default=None, kw_only=True)
    """The smallest number that it takes; None for any."""
    most: float | None = attrs.field(default=None, kw_only=True)
    """The largest one."""
    means: Common = attrs.field(default="", kw_only=True)
    """Stoker's own option with the same meaning; empty for none."""
    owned: str = attrs.field(default="", kw_only=True)
    """Why only Stoker may give it, as a sentence; empty for an argument that users give."""


def argument_table(file: str) -> Mapping[str, Argument]:
    """The table in a file of this folder, by Python name: `accelerate.txt` says how its lines are read."""
    reasons: dict[str, str] = {}
    table = {}
    for line in table_lines(__file__, file):
        if line.startswith("owned "):
            name, _, reason = line.removeprefix("owned ").partition(": ")
            reasons[name] = reason
        else:
            name, kind, *words = line.split(" ")
            given: dict[str, Any] = dict(word.split("=", 1) for word in words)
            given.update((bound, float(given[bound])) for bound in ("least", "most") if bound in given)
            choices = tuple(filter(None, given.pop("choices", "").split(",")))
            owned = reasons[given.pop("owned")] if "owned" in given else ""
            table[name] = Argument(cast(Kind, kind), choices, owned=owned, **given)
    return table


def argument_value(argument: Argument, value: Any) -> Any:
    """Parse a value that a person wrote; None stays None."""
    return None if value is None else _in_range(argument, _PARSE[argument.kind](argument, value))


def argument_words(name: str, argument: Argument, value: Any) -> list[str]:
    """The words of an argument on a command line; none for None.

    Option and value are one word with "=", so that no value is taken for another option.
    """
    flag = argument.flag or f"--{name}"
    if value is None:
        return []
    if argument.kind in {"flag", "switch"}:
        return [flag] if value else [argument.off] if argument.off else []
    if argument.kind == "truth":
        return [f"{flag}=True" if value else f"{flag}="]
    if argument.kind == "texts":
        return [f"{flag}={item}" for item in value]
    if argument.kind == "each":
        return [word for key, item in value.items() for word in (flag, key, str(item))]
    return [f"{flag}={_text(argument.kind, value)}"]


def _in_range(argument: Argument, value: Any) -> Any:
    least, most = argument.least, argument.most
    if value is not None and ((least is not None and value < least) or (most is not None and value > most)):
        bounds = f"{least:g} or more" if most is None else f"from {least or 0:g} to {most:g}"
        raise SettingsError(f"{value!r} is out of range", fix=f"write a number {bounds}")
    return value


def _text(kind: Kind, value: Any) -> str:
    if kind == "yesno" and isinstance(value, bool):
        return str(value).lower()
    if kind == "yesnos":
        return ",".join(str(item).lower() for item in value)
    if kind == "names":
        return ",".join(value)
    if kind == "pairs":
        return ",".join(f"{key}={item}" for key, item in value.items())
    return str(value)


def _truth(argument: Argument, value: Any) -> bool:
    truth = _TRUTHS.get(value.strip().lower()) if isinstance(value, str) else value
    if isinstance(truth, bool):
        return truth
    raise SettingsError(f"{value!r} is neither true nor false", fix=FLAG_FIX)


def _yesno(argument: Argument, value: Any) -> Any:
    # Some take further words: `--fsdp_reshard_after_forward=FULL_SHARD` of version 1.
    if isinstance(value, str) and value.strip().lower() not in _TRUTHS and argument.choices:
        return _parse_choice(argument, value)
    return _truth(argument, value)


def _yesnos(argument: Argument, value: Any) -> list[bool]:
    return [_truth(argument, item) for item in _parse_list(value)]


def _int(argument: Argument, value: Any) -> int | None:
    if value in argument.choices:
        # `nproc_per_node="gpu"` means one for each GPU, which is the default.
        return None
    try:
        sign, text = (-1, value.strip()[1:]) if isinstance(value, str) and value.strip()[:1] == "-" else (1, value)
        number = sign * units.count(text) if isinstance(text, str) else text
    except SettingsError:
        number = value
    if isinstance(number, bool) or not isinstance(number, (int, float)) or number != number // 1:
        raise SettingsError(f"{value!r} is not a whole number", fix="write a whole number, such as 2")
    return int(number)


def _float(argument: Argument, value: Any) -> float:
    try:
        number = float(value) if isinstance(value, str) else value
    except ValueError:
        number = value
    if isinstance(number, bool) or not isinstance(number, (int, float)) or not math.isfinite(number):
        raise SettingsError(f"{value!r} is not a number", fix="write a number, such as 0.5")
    return float(number)


def _words(argument: Argument, value: Any) -> str:
    # The launcher takes texts where people write numbers: `fsdp_version=2`, `gpu_ids=0`.
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        value = str(value)
    if not isinstance(value, str) or "\0" in value:
        raise SettingsError(f"{value!r} is not a text")
    return _parse_choice(argument, value)


def _parse_choice(argument: Argument, value: str) -> str:
    if not argument.choices or value in argument.choices:
        return value
    matches = [choice for choice in argument.choices if choice.lower() == value.lower()]
    if matches:
        return matches[0]
    if len(argument.choices) > 1:
        raise not_one_of(value, argument.choices)
    raise SettingsError(f"{value!r} is not {argument.choices[0]!r}, the only one there is")


def _texts(argument: Argument, value: Any) -> list[str]:
    if isinstance(value, Mapping):
        return [f"{key}={_words(argument, item)}" for key, item in value.items()]
    return [_words(argument, item) for item in ([value] if isinstance(value, str) else _parse_list(value))]


def _names(argument: Argument, value: Any) -> list[str]:
    items = _parse_list(value) if not isinstance(value, int) or isinstance(value, bool) else [value]
    names = [_words(argument, item).strip() for item in items]
    for name in names:
        if not name or "," in name:
            raise SettingsError(f"{name!r} in the list is not a name", fix="write a list of names")
    return names


def _pairs(argument: Argument, value: Any) -> dict[str, Any]:
    if isinstance(value, str):
        parts = [part.partition("=") for part in value.split(",") if part.strip()]
        if not all(equals and key.strip() for key, equals, _ in parts):
            raise SettingsError(f"{value!r} is not a list of names and values", fix='write "timeout=60,keep=1"')
        return {key.strip(): item.strip() for key, _, item in parts}
    if not isinstance(value, Mapping):
        raise SettingsError(f"{value!r} does not map names to values", fix='write {"timeout": 60}')
    pairs: dict[str, Any] = {}
    for key, item in value.items():
        if isinstance(item, bool) or not isinstance(item, (str, int, float)):
            raise SettingsError(f"{key}={item!r} is neither a text nor a number")
        if not isinstance(key, str) or not key or "=" in key or (argument.kind == "pairs" and "," in f"{key}{item}"):
            raise SettingsError(f"{key}={item!r} cannot be written on a command line")
        pairs[key] = item
    return pairs


def _parse_list(value: Any) -> list[Any]:
    if isinstance(value, str):
        return value.split(",")
    if isinstance(value, Mapping) or not isinstance(value, Iterable):
        raise SettingsError(f"{value!r} is not a list", fix=f"write [{value!r}]")
    return list(value)


_TRUTHS: Final[Mapping[str, bool]] = {"true": True, "false": False}
_PARSE: Final[Mapping[Kind, Callable[[Argument, Any], Any]]] = {
    "flag": _truth,
    "switch": _truth,
    "truth": _truth,
    "yesno": _yesno,
    "yesnos": _yesnos,
    "int": _int,
    "float": _float,
    "text": _words,
    "texts": _texts,
    "names": _names,
    "pairs": _pairs,
    "each": _pairs,
}


KINDS: Final[Mapping[Any, Kind]] = {int: "int", float: "float", bool: "truth", str: "text", None: "text"}
"""The type of an option in an `argparse` parser → how its value is written"""


def installed_arguments(target: str, extra: str) -> Mapping[str, Argument]:
    """The arguments of the parser that the function at `target` returns; none where its package is not installed."""
    try:
        make: Callable[[], argparse.ArgumentParser] = resolve(target, extra=extra)
    except (MissingPackage, ImportError, AttributeError):
        return {}
    return arguments_of(make())


def arguments_of(parser: argparse.ArgumentParser) -> dict[str, Argument]:
    """Every option of a parser by Python name. Positional ones are left out: they are the program, Stoker's worker."""
    arguments: dict[str, Argument] = {}
    for action in parser._actions:
        if action.option_strings and action.dest not in {"help", *arguments}:
            arguments[action.dest] = _argument(action)
    return arguments


def _argument(action: argparse.Action) -> Argument:
    import argparse

    flag = next((flag for flag in action.option_strings if flag.startswith("--")), action.option_strings[0])
    choices = tuple(str(choice) for choice in action.choices or ())
    if action.nargs == 0:
        return Argument("flag", flag=flag)
    if isinstance(action, argparse._AppendAction) or action.nargs in {"*", "+"} or isinstance(action.nargs, int):
        return Argument("texts", choices, flag=flag)
    kind: Kind = KINDS.get(action.type, "text")
    if kind == "text" and not choices and action.default in ("true", "false"):
        kind = "yesno"
    return Argument(kind, choices, flag=flag)
