"""A flow's parameters: `Parameter`, `JSONType`, `IncludeFile` and `Config`, and what a text on a command line means.

They are constants: set before the first step, the same in every task. Values are parsed and checked before anything
runs; files are read then, too. A `Config` is known earlier, so that decorators can have its values (`config_expr`).
"""

from __future__ import annotations

import copy
import getpass
import json
import os
import sys
from typing import Any, Callable, Final, Mapping, Sequence

import attrs

from stoker.core.codec import parse_json
from stoker.core.errors import ParameterError, SettingsError, StokerError, UsageError, nearest
from stoker.core.secret import Secret
from stoker.core.units import UNSET
from stoker.core.usercode import caller
from stoker.core.words import shown
from stoker.flows.instance import TASK, parameters_of
from stoker.pipelines import params

_PLAIN: Final = (bool, int, float, str)
_SHORT_BOOLEANS: Final[Mapping[str, str]] = {"t": "true", "y": "true", "f": "false", "n": "false"}
"""Words of Metaflow's for a yes or no that only flows take."""
VARIABLES: Final = ("STOKER_RUN_", "METAFLOW_RUN_")
"""Prefixes of the environment variables that give a parameter or an option of `run`; the first one wins."""
_RESERVED: Final = frozenset(
    {"name", "input", "index", "next", "foreach_stack", "merge_artifacts", "params", "parameters"}
    | {"with", "tag", "help", "max-workers", "max_workers", "run-id-file", "run_id_file", "namespace"}
)
"""Words that the flow itself or the command line of every run has."""


_OPTION_WORDS: Final = ("envvar", "is_flag", "hidden", "metavar")


class JSONType:
    """The type of a parameter that is written as JSON: `Parameter("grid", type=JSONType)`."""

    def __repr__(self) -> str:
        return "JSON"


JSONTypeClass = JSONType


@attrs.frozen
class ParameterContext:
    """The argument of a `default` that is a function."""

    flow_name: str
    user_name: str
    parameter_name: str
    logger: Callable[[str], object] = lambda text: sys.stderr.write(f"{text}\n")
    """Prints a line."""
    ds_type: str = "local"
    """Where Metaflow would keep artifacts."""
    configs: Mapping[str, Any] | None = None
    """The flow's configs by name, also as attributes; None for a default of a config."""


class Parameter:
    """A value that `python flow.py run --lr 0.1` may give; in every task it is an attribute that nobody can set."""

    is_flow_parameter = True

    def __init__(
        self,
        name: str,
        default: Any = UNSET,
        type: Any = None,
        help: str = "",
        required: bool | None = None,
        show_default: bool | None = True,
        separator: str | None = None,
        multiple: bool = False,
        **words: Any,
    ) -> None:
        """`words` are those of click's options that mean something here: envvar, is_flag, hidden and metavar."""
        self.where = caller()
        unknown = next((word for word in words if word not in _OPTION_WORDS), None)
        if unknown is not None:
            raise ParameterError(
                f"parameter '{name}' takes no {unknown}={nearest(unknown, _OPTION_WORDS)}", where=self.where
            )
        envvar, is_flag = words.get("envvar") or (), bool(words.get("is_flag"))
        if not str(name).replace("-", "_").isidentifier():
            fix = 'name it by letters, digits, "-" and "_", and not by a digit first'
            if isinstance(self, IncludeFile) and default is UNSET:
                fix = f'{fix}; the file is its default: IncludeFile("data", default={str(name)!r})'
            raise ParameterError(f"{name!r} cannot be a parameter's name", where=self.where, fix=fix)
        if name in _RESERVED:
            raise ParameterError(f"a parameter cannot be called '{name}'", where=self.where, fix="give another name")
        if separator is not None and type not in (None, str):
            raise ParameterError(f"parameter '{name}': separator= is for texts", where=self.where, fix="leave type out")
        if is_flag and type not in (None, bool):
            raise ParameterError(f"parameter '{name}': is_flag= is for a bool", where=self.where, fix="leave type out")
        self.name = name
        self.help = help
        self.attribute = name
        self.separator = separator
        self.variables = (envvar,) if isinstance(envvar, str) else tuple(envvar)
        self.is_flag = is_flag
        self.is_hidden = bool(words.get("hidden"))
        self._metavar: str | None = words.get("metavar")
        self.multiple = multiple
        self.show_default = show_default
        if is_flag:
            default, type = (False if default is UNSET else default), bool
        self.default = UNSET if default is None else default
        self._written_type = type
        self.type = _type_of(type, UNSET if isinstance(default, (DeferredValue, Config)) else default, name, self.where)
        self.required = bool(required) and self.default is UNSET

    def with_configs(self, configs: Mapping[str, Any]) -> Parameter:
        """The parameter with the values of configs in its default: `Parameter("lr", default=config.lr)`."""
        if not isinstance(self.default, (DeferredValue, Config)):
            return self
        resolved = copy.copy(self)
        value = fill_configs(self.default, configs)
        resolved.default = UNSET if value is None else value
        resolved.type = _type_of(self._written_type, resolved.default, self.name, self.where)
        return resolved

    def __set_name__(self, owner: type, name: str) -> None:
        self.attribute = name

    def __get__(self, instance: Any, owner: type) -> Any:
        if instance is None:
            return self
        task = instance.__dict__.get(TASK)
        value = UNSET if task is None else task.parameter(self.name)
        if value is UNSET:
            raise AttributeError(f"parameter '{self.name}' has a value only while a task runs")
        return self.value_for_step(value)

    def __set__(self, instance: Any, value: Any) -> None:
        raise AttributeError(f"parameter '{self.name}' cannot be set: it is the same in every task")

    @property
    def flag(self) -> str:
        """As it is written on a command line."""
        return "--" + self.name

    @property
    def kind(self) -> str:
        """Its type in a word, for the help."""
        if self._metavar is not None:
            return self._metavar
        return "JSON" if self.type is JSONType else getattr(self.type, "__name__", str(self.type))

    @property
    def lacks_file(self) -> bool:
        """Whether its default is a file that is not there."""
        return False

    def value_for_step(self, value: Any) -> Any:
        """The value as a step sees it."""
        return value

    def resolve_default(self, flow: str, configs: Mapping[str, Any] | None = None) -> Any:
        """The default's value; of a function, what it returns. `configs` are the flow's by name."""
        value = self.default
        if is_computed(value):
            known = None if configs is None else ConfigValue(configs)
            value = value(ParameterContext(flow, username(), self.name, configs=known))
            try:
                return self.parse_value(value)
            except ParameterError as error:
                fix = f"let its default return that, or write type={type(value).__name__}"
                raise ParameterError(error.message, where=self.where, fix=fix) from None
        if value is UNSET:
            return None
        return self.parse_value(value)

    def parse_value(self, value: Any) -> Any:
        """The value that a text, or a value from code, means; `ParameterError` says what was expected."""
        if value is None:
            return None
        if self.multiple and isinstance(value, (list, tuple)):
            return [self._parse_item(item) for item in value]
        element = self._parse_item(value)
        return [element] if self.multiple else element

    def _parse_item(self, value: Any) -> Any:
        if self.separator is not None and isinstance(value, str):
            return value.split(self.separator) if value else value  # as in Metaflow
        if self.type is JSONType:
            return _json(value, self.name)
        if self.type is bool and isinstance(value, str):
            value = _SHORT_BOOLEANS.get(value.lower(), value)
        if self.type is float and type(value) is int:
            return float(value)
        try:
            return params.from_document(value, self.type)
        except ParameterError as error:
            raise ParameterError(f"parameter '{self.name}': {error.message}", where=self.where) from None

    def record_value(self, value: Any) -> Any:
        """The value as the run's record shows it."""
        return value

    def __repr__(self) -> str:
        return f"<{type(self).__name__} '{self.name}'>"


class IncludeFile(Parameter):
    """A file whose content every task has as an attribute; `is_text=False` for bytes."""

    def __init__(
        self,
        name: str,
        default: Any = UNSET,
        is_text: bool = True,
        encoding: str = "utf-8",
        help: str = "",
        required: bool | None = None,
        show_default: bool = True,
        parser: Callable[[Any], Any] | None = None,
    ) -> None:
        super().__init__(name, default=default, type=str, help=help, required=required, show_default=show_default)
        self._is_text = is_text
        self._encoding = encoding
        self._parser = parser

    @property
    def kind(self) -> str:
        """Its type in a word."""
        return "FILE"

    @property
    def lacks_file(self) -> bool:
        """Whether its default is a file that is not there."""
        return isinstance(self.default, (str, os.PathLike)) and not os.path.exists(os.path.expanduser(self.default))

    def _parse_item(self, value: Any) -> Any:
        path = os.path.expanduser(os.fspath(value))
        try:
            if not self._is_text:
                with open(path, "rb") as file:
                    return file.read()
            with open(path, encoding=self._encoding) as text_file:
                return text_file.read()
        except (OSError, UnicodeError, LookupError) as error:
            fix = "name a file that is there and may be read"
            if isinstance(error, UnicodeError):
                fix = f"is_text=False for its bytes, or encoding= of a text that is not {self._encoding}"
            elif isinstance(error, LookupError):
                fix = 'encoding="utf-8", or another one that Python knows'
            raise ParameterError(
                f"parameter '{self.name}': the file {path} cannot be read: {error}", where=self.where, fix=fix
            ) from None

    def value_for_step(self, value: Any) -> Any:
        """The file's content, parsed where a parser was given."""
        return value if value is None or self._parser is None else self._parser(value)

    def record_value(self, value: Any) -> Any:
        """How long it is: the content may be megabytes."""
        return None if value is None else f"<file of {len(value)} {'characters' if self._is_text else 'bytes'}>"


def is_computed(default: Any) -> bool:
    """Whether a default is a function that computes it."""
    return callable(default) and not isinstance(default, type)


def _type_of(annotation: Any, default: Any, name: str, where: str) -> Any:
    if annotation is JSONType or isinstance(annotation, JSONType):
        return JSONType
    if annotation is not None:
        if not isinstance(annotation, type) and not hasattr(annotation, "__origin__"):
            raise ParameterError(
                f"parameter '{name}': type={annotation!r} is no type", where=where, fix="write type=int"
            )
        return annotation
    if default is UNSET or default is None or callable(default) or type(default) is Secret:
        return str
    kind = type(default)
    if kind in _PLAIN:
        return kind
    if kind in (list, dict):
        return JSONType
    raise ParameterError(
        f"parameter '{name}': its default is a {kind.__name__}", where=where, fix="give type=, such as type=JSONType"
    )


def _json(value: Any, name: str) -> Any:
    if not isinstance(value, str):
        try:
            return json.loads(json.dumps(value))
        except (TypeError, ValueError, RecursionError) as error:
            raise ParameterError(f"parameter '{name}' is not JSON: {error}") from None
    try:
        return parse_json(value)
    except SettingsError as error:
        raise ParameterError(f"parameter '{name}': {shown(value)}: {error.message}", fix='write {"a": 1}') from None


def username() -> str:
    """Who runs this."""
    try:
        return os.environ.get("METAFLOW_USER") or os.environ.get("STOKER_USER") or getpass.getuser()
    except (KeyError, OSError):  # a container's user without a name
        return "unknown"


def missing_parameter(flow: str, parameter: Parameter) -> ParameterError:
    """That a parameter without a default was not given."""
    flag = "--config" if isinstance(parameter, Config) else f"--{parameter.name}"
    more = f"{parameter.name} FILE" if flag == "--config" else "…"
    return ParameterError(
        f"flow {flow}: parameter '{parameter.name}' is missing", where=parameter.where, fix=f"add {flag} {more}"
    )


def resolved_parameters(kind: type, configs: Mapping[str, Any] | None) -> list[Parameter]:
    """A flow's parameters with the values of configs in their defaults; as they are written where `configs` is None."""
    parameters = list(parameters_of(kind).values())
    return parameters if configs is None else [parameter.with_configs(configs) for parameter in parameters]


class Configs(dict[str, Any]):
    """The content of a flow's configs by attribute; `named` has them by their names, which expressions use."""

    def __init__(self, kind: type, values: Mapping[str, Any]) -> None:
        super().__init__(values)
        self.named = {one.name: values[word] for word, one in parameters_of(kind).items() if word in values}


def parse(
    kind: type, words: Sequence[str], flags: Sequence[str], configs: Mapping[str, Any]
) -> tuple[dict[str, Any], list[str]]:
    """The flow's own parameters from `--lr 0.1`, `--lr=0.1`, and for a yes or no only `--fast`."""
    parameters = {candidate.name.replace("_", "-"): candidate for candidate in resolved_parameters(kind, configs)}
    values: dict[str, Any] = {}
    arguments: list[str] = []
    line = list(words)
    while line:
        word = line.pop(0)
        flag, equals, value = word.partition("=")
        if not flag.startswith("--"):
            arguments.append(word)
            continue
        parameter = parameters.get(flag.removeprefix("--").replace("_", "-"))
        if parameter is None:
            near = nearest(flag, [*(candidate.flag for candidate in parameters.values()), *flags])
            raise UsageError(f"flow {kind.__name__} has no parameter for {flag}{near}")
        if not equals:
            if parameter.is_flag or (parameter.type is bool and (not line or line[0].startswith("--"))):
                value = "true"
            elif not line:
                raise UsageError(f"{flag} needs a value", fix=f"write {flag} {parameter.kind}")
            else:
                value = line.pop(0)
        if parameter.multiple:
            values.setdefault(parameter.name, []).append(value)
        else:
            values[parameter.name] = value
    return values, arguments


def rows(kind: type, configs: Mapping[str, Any] | None) -> list[tuple[str, str]]:
    """For the help: each parameter as it is written, with its help and its default."""
    lines = []
    for parameter in resolved_parameters(kind, configs):
        value = None if parameter.default is UNSET else parameter.default
        default = "required" if parameter.required else f"default: {value!r}"
        default_text = "" if parameter.show_default is False else default
        text = "  ".join(part for part in (parameter.help, default_text) if part)
        if not parameter.is_hidden:
            lines.append((f"{parameter.flag} {parameter.kind}", text))
    return lines


def bind(kind: type, arguments: Mapping[str, Any], configs: Mapping[str, Any]) -> dict[str, Any]:
    """All parameters of a flow by name: what is given, what environment variables say, and the defaults of the rest."""
    return _bind(kind, {}, arguments, configs)


def rebind(
    kind: type, recorded: Mapping[str, Any], changes: Mapping[str, Any], configs: Mapping[str, Any]
) -> dict[str, Any]:
    """All parameters of a flow by name: the values of an earlier run, what is given anew, parsed, and for parameters
    that the earlier run did not have what `bind` takes."""
    return _bind(kind, recorded, changes, configs)


def _bind(
    kind: type, recorded: Mapping[str, Any], arguments: Mapping[str, Any], configs: Mapping[str, Any]
) -> dict[str, Any]:
    parameters = {parameter.name: parameter for parameter in resolved_parameters(kind, configs)}
    by_word = {name.replace("-", "_"): name for name in parameters}
    values = {name: value for name, value in recorded.items() if name in parameters}
    for word, value in arguments.items():
        name = by_word.get(word.replace("-", "_"))
        if name is None:
            raise ParameterError(f"flow {kind.__name__} has no parameter '{word}'{nearest(word, parameters)}")
        values[name] = parameters[name].parse_value(value)
    for name, parameter in parameters.items():
        if name in values:
            continue
        variable, text = variable_of(name, parameter.variables)
        if variable and not isinstance(parameter, Config):
            try:
                values[name] = parameter.parse_value(text.split() if parameter.multiple else text)
            except ParameterError as error:
                fix = f"set {variable} to a value of the parameter's type, or unset it"
                raise ParameterError(f"{error.message}, from {variable}", where=error.where, fix=fix) from None
            continue
        if parameter.required:
            raise missing_parameter(kind.__name__, parameter)
        try:
            values[name] = parameter.resolve_default(kind.__name__, named(configs))
        except StokerError:
            raise
        except Exception as error:  # the user's function for a default
            raise ParameterError(
                f"parameter '{name}': its default failed: {type(error).__name__}: {error}", where=parameter.where
            ) from error
    return values


def variable_of(name: str, others: Sequence[str] = ()) -> tuple[str, str]:
    """The environment variable that gives a parameter or an option of `run`, and its text; both "" without one.

    `--q-dash` is `STOKER_RUN_Q_DASH`, or `METAFLOW_RUN_Q_DASH`, or one of `others`, which come first.
    """
    for variable in (*others, *(prefix + name.replace("-", "_").upper() for prefix in VARIABLES)):
        if variable in os.environ:
            return variable, os.environ[variable]
    return "", ""


class ConfigValue(dict[str, Any]):
    """A config's content: a dict that nobody can change, whose keys are attributes, too."""

    def __init__(self, values: Mapping[str, Any]) -> None:
        super().__init__({key: _wrap(value) for key, value in values.items()})

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name not in self:
            raise AttributeError(f"the config has no '{name}'{nearest(name, self)}")
        return self[name]

    def __dir__(self) -> list[str]:
        return [*super().__dir__(), *(key for key in self if str(key).isidentifier())]

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.to_dict(),)

    def copy(self) -> ConfigValue:
        """The same content."""
        return ConfigValue(self)

    def to_dict(self) -> dict[str, Any]:
        """The content as a plain dict."""
        return {key: _unwrap(value) for key, value in self.items()}

    def __repr__(self) -> str:
        return f"ConfigValue({self.to_dict()!r})"


def _refuse(self: ConfigValue, *args: Any, **options: Any) -> Any:
    raise TypeError("a config is the same in every task: take to_dict(), and change that")


for _method in (
    *("__setattr__", "__setitem__", "__delattr__", "__delitem__", "__ior__"),
    *("clear", "update", "setdefault", "pop", "popitem"),
):
    setattr(ConfigValue, _method, _refuse)


_UNPACKED: Final = "_unpacked_config_"
"""How the words begin that stand for all words of a config: `@resources(**config.resources)`."""


def is_unpacked(word: str) -> bool:
    """Whether a decorator's word stands for all that a config has there."""
    return word.startswith(_UNPACKED)


class DeferredValue:
    """A place in a config, or an expression over configs, whose value is known when the flow is looked at."""

    def __init__(self, expression: str, look: Callable[[Mapping[str, Any]], Any]) -> None:
        self._shown = expression
        self._look = look

    def value(self, configs: Mapping[str, Any]) -> Any:
        """What it is, with the configs by attribute."""
        try:
            value = self._look(configs)
        except StokerError:
            raise
        except Exception as error:  # the user's expression, or a key that the file lacks
            raise ParameterError(
                f"{self._shown}: {type(error).__name__}: {error}", fix="see the config's file"
            ) from None
        return _unwrap(value)

    def __getattr__(self, name: str) -> DeferredValue:
        if name.startswith("_"):
            raise AttributeError(name)
        return DeferredValue(f"{self._shown}.{name}", lambda configs: _look_up(self._look(configs), name))

    def __getitem__(self, key: Any) -> DeferredValue:
        if isinstance(key, str) and is_unpacked(key):
            return self
        return DeferredValue(f"{self._shown}[{key!r}]", lambda configs: _look_up(self._look(configs), key))

    def keys(self) -> list[str]:
        """One word for all that it has: for `**`."""
        return [f"{_UNPACKED}{id(self)}"]

    def __repr__(self) -> str:
        return f"<{self._shown}>"


class Config(Parameter):
    """A parameter whose value is a file's content, known before the flow runs; `--config NAME FILE` names another."""

    def __init__(
        self,
        name: str,
        default: Any = UNSET,
        default_value: Any = UNSET,
        help: str = "",
        required: bool | None = None,
        parser: Any = None,
        plain: bool = False,
    ) -> None:
        super().__init__(name, default=UNSET, type=JSONType, help=help, required=False)
        self.required = bool(required)
        self._file = default
        self._value = default_value
        self._parser = parser
        self._plain = plain

    @property
    def kind(self) -> str:
        """Its type in a word."""
        return "CONFIG"

    def resolve_default(self, flow: str, configs: Mapping[str, Any] | None = None) -> Any:
        """The content of the default file, or the default value; either may be computed by a function."""
        context = ParameterContext(flow, username(), self.name)
        file, value = (word(context) if is_computed(word) else word for word in (self._file, self._value))
        if file is not UNSET and file is not None:
            return self.read(str(file))
        return None if value is UNSET else self.parse_value(value)

    def read(self, path: str) -> Any:
        """A file's content."""
        try:
            with open(path, encoding="utf-8") as file:
                return self.parse_value(file.read())
        except (OSError, UnicodeDecodeError) as error:
            raise ParameterError(f"config '{self.name}' cannot be read: {error}", where=self.where) from None

    def parse_value(self, value: Any) -> Any:
        """The content of a text, by the parser or as JSON."""
        if value is not None and not isinstance(value, str) and (self._plain or self._parser is not None):
            value = json.dumps(value)  # as it is written in a file
        if value is None or not isinstance(value, str) or (self._plain and self._parser is None):
            return value
        if self._parser is None:
            try:
                return parse_json(value)
            except SettingsError as error:
                raise ParameterError(f"config '{self.name}': {error.message}", where=self.where) from None
        parser = self._parser
        if isinstance(parser, str):
            from stoker.core.plugins import resolve

            module, _, attribute = parser.rpartition(".")
            parser = resolve(f"{module}:{attribute}")
        try:
            return parser(value)
        except Exception as error:  # the user's parser
            raise ParameterError(
                f"config '{self.name}': its parser failed: {type(error).__name__}: {error}", where=self.where
            ) from error

    def value_for_step(self, value: Any) -> Any:
        """The content, with attributes unless it is to be plain."""
        return value if self._plain else _wrap(value)

    def __getattr__(self, name: str) -> DeferredValue:
        if name.startswith("_"):
            raise AttributeError(name)
        return DeferredValue(f"{self.name}.{name}", lambda configs: _look_up(configs[self.attribute], name))

    def __getitem__(self, key: Any) -> Any:
        if isinstance(key, str) and is_unpacked(key):
            return self
        return DeferredValue(f"{self.name}[{key!r}]", lambda configs: _look_up(configs[self.attribute], key))

    def keys(self) -> list[str]:
        """One word for all that it has: for `**`."""
        return [f"{_UNPACKED}{id(self)}"]


def config_expr(expression: str) -> DeferredValue:
    """A Python expression over the flow's configs, for a decorator: `@resources(cpu=config_expr("config.cpu * 2"))`.

    It sees the names of the module that it is written in, too.
    """
    code = compile(expression, "<config_expr>", "eval")
    names = sys._getframe(1).f_globals
    return DeferredValue(expression, lambda configs: eval(code, {**names, **configs, **named(configs)}))


def named(configs: Mapping[str, Any]) -> Mapping[str, Any]:
    """Configs by name, where they are known by attribute."""
    return configs.named if isinstance(configs, Configs) else {}


def fill_configs(value: Any, configs: Mapping[str, Any]) -> Any:
    """A decorator's argument with the values of configs in it, also inside of lists and dicts."""
    if isinstance(value, Config):
        return _unwrap(configs[value.attribute])
    if isinstance(value, DeferredValue):
        return value.value(configs)
    if isinstance(value, dict):
        filled: dict[Any, Any] = {}
        for key, item in value.items():
            content = fill_configs(item, configs)
            filled |= content if isinstance(key, str) and is_unpacked(key) else {key: content}
        return filled
    if isinstance(value, list):
        return [fill_configs(item, configs) for item in value]
    if type(value) is tuple:
        return tuple(fill_configs(item, configs) for item in value)
    return value


def needs_configs(value: Any) -> bool:
    """Whether an argument has a config's value in it."""
    if isinstance(value, dict):
        return any(map(needs_configs, value.values()))
    if isinstance(value, (list, tuple)):
        return any(map(needs_configs, value))
    return isinstance(value, (DeferredValue, Config))


def _wrap(value: Any) -> Any:
    """A config's value with attributes, also inside of lists and tuples."""
    if isinstance(value, dict):
        return value if isinstance(value, ConfigValue) else ConfigValue(value)
    return type(value)(map(_wrap, value)) if type(value) in (list, tuple) else value


def _unwrap(value: Any) -> Any:
    """The same without attributes."""
    if isinstance(value, dict):
        return {key: _unwrap(item) for key, item in value.items()}
    return type(value)(map(_unwrap, value)) if type(value) in (list, tuple) else value


def _look_up(value: Any, key: Any) -> Any:
    if value is None:
        raise KeyError(key)
    return _wrap(value[key])
