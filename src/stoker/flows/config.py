"""`Config`: a file that is read before the flow runs, whose values decorators and steps can use.

config = Config("config", default="config.json")
@resources(cpu=config.cpu)          # read when the flow is looked at, also from `--config config other.json`
"""

from __future__ import annotations

import json
from typing import Any, Callable, Final, Iterator, Mapping

from stoker.core.errors import ParameterError, StokerError
from stoker.core.units import UNSET
from stoker.flows.parameters import JSONType, Parameter

_TEXTS: Final = "a JSON object, or a file with one"


class ConfigValue(Mapping[str, Any]):
    """A config's content: a mapping whose keys are attributes, too."""

    def __init__(self, values: Mapping[str, Any]) -> None:
        self._values = dict(values)

    def __getitem__(self, key: str) -> Any:
        return _wrapped(self._values[key])

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") or name not in self._values:
            raise AttributeError(f"the config has no '{name}'")
        return self[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def to_dict(self) -> dict[str, Any]:
        """The content as a plain dict."""
        return dict(self._values)

    def __repr__(self) -> str:
        return f"ConfigValue({self._values!r})"


class Later:
    """A place in a config, or an expression over configs, whose value is known when the flow is looked at."""

    def __init__(self, shown: str, look: Callable[[Mapping[str, Any]], Any]) -> None:
        self._shown = shown
        self._look = look

    def value(self, configs: Mapping[str, Any]) -> Any:
        """What it is, with the configs by attribute."""
        try:
            found = self._look(configs)
        except StokerError:
            raise
        except Exception as error:  # the user's expression, or a key that the file lacks
            raise ParameterError(
                f"{self._shown}: {type(error).__name__}: {error}", fix="see the config's file"
            ) from None
        return found.to_dict() if isinstance(found, ConfigValue) else found

    def __getattr__(self, name: str) -> Later:
        if name.startswith("_"):
            raise AttributeError(name)
        return Later(f"{self._shown}.{name}", lambda configs: _inside(self._look(configs), name))

    def __getitem__(self, key: Any) -> Later:
        return Later(f"{self._shown}[{key!r}]", lambda configs: _inside(self._look(configs), key))

    def __repr__(self) -> str:
        return f"<{self._shown}>"


class Config(Parameter):
    """A parameter whose value is a file's content, known before the flow runs; `--config NAME FILE` names another."""

    is_flow_config = True

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

    def resolved(self, flow: str) -> Any:
        """The content of the default file, or the default value."""
        if self._file is not UNSET and self._file is not None:
            return self.read(str(self._file))
        return None if self._value is UNSET else self.parsed(self._value)

    def read(self, path: str) -> Any:
        """A file's content."""
        try:
            with open(path, encoding="utf-8") as file:
                return self.parsed(file.read())
        except (OSError, UnicodeDecodeError) as error:
            raise ParameterError(f"config '{self.name}' cannot be read: {error}", where=self.where) from None

    def parsed(self, value: Any) -> Any:
        """The content of a text, by the parser or as JSON."""
        if value is None or not isinstance(value, str):
            return value
        if self._parser is None:
            try:
                return json.loads(value)
            except ValueError as error:
                raise ParameterError(f"config '{self.name}' is not JSON: {error}", where=self.where) from None
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
        return value if self._plain else _wrapped(value)

    def __getattr__(self, name: str) -> Later:
        if name.startswith("_"):
            raise AttributeError(name)
        return Later(f"{self.name}.{name}", lambda configs: _inside(configs[self.attribute], name))

    def __getitem__(self, key: Any) -> Later:
        return Later(f"{self.name}[{key!r}]", lambda configs: _inside(configs[self.attribute], key))


def config_expr(expression: str) -> Later:
    """A Python expression over the flow's configs, for a decorator: `@resources(cpu=config_expr("config.cpu * 2"))`."""
    code = compile(expression, "<config_expr>", "eval")
    return Later(expression, lambda configs: eval(code, {"__builtins__": {}}, dict(configs)))


def filled(value: Any, configs: Mapping[str, Any]) -> Any:
    """A decorator's argument with the values of configs in it, also inside of lists and dicts."""
    if isinstance(value, Config):
        value = configs[value.attribute]
        return value.to_dict() if isinstance(value, ConfigValue) else value
    if isinstance(value, Later):
        return value.value(configs)
    if isinstance(value, dict):
        return {key: filled(found, configs) for key, found in value.items()}
    if isinstance(value, list):
        return [filled(found, configs) for found in value]
    if type(value) is tuple:
        return tuple(filled(found, configs) for found in value)
    return value


def waits(value: Any) -> bool:
    """Whether an argument has a config's value in it."""
    if isinstance(value, dict):
        return any(map(waits, value.values()))
    if isinstance(value, (list, tuple)):
        return any(map(waits, value))
    return isinstance(value, (Later, Config))


def _wrapped(value: Any) -> Any:
    return ConfigValue(value) if isinstance(value, dict) else value


def _inside(value: Any, key: Any) -> Any:
    if value is None:
        raise KeyError(key)
    return _wrapped(value[key])
