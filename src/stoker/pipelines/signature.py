"""What a step's or a pipeline's function takes and gives, read from its signature once."""

from __future__ import annotations

import functools
import typing
from typing import Any, Callable, Final, Mapping, Sequence

from stoker.core.errors import GraphError, ParameterError, UsageError, nearest
from stoker.core.graph import StepInput, StepOutput
from stoker.core.registry import Artifact
from stoker.core.units import UNSET
from stoker.core.values import frozen
from stoker.pipelines.params import convert, is_unknown, resolve, text_of

OUTPUT: Final = "output"
"""The name of a step's only output, where it has none of its own."""
_GENERATOR: Final = 0x20 | 0x200
_COROUTINE: Final = 0x80
"""inspect.CO_GENERATOR, CO_ASYNC_GENERATOR, CO_COROUTINE."""


@frozen(kw_only=True, eq=False)
class FunctionParameter:
    """One parameter of a step's or a pipeline's function."""

    name: str
    annotation: Any = Any
    """Its type; `Any` where there is none."""
    default: Any = UNSET
    """Its default; `UNSET` where there is none."""
    keyword_only: bool = False
    """Whether it is taken by keyword only."""

    @property
    def required(self) -> bool:
        """Whether a call must give it."""
        return self.default is UNSET


@frozen(kw_only=True, eq=False)
class FunctionSignature:
    """A function's parameters and outputs."""

    owner: str
    """What it is the signature of, for messages: "step 'train'"."""
    parameters: Mapping[str, FunctionParameter]
    others: Any
    """The annotation of `**kwargs`; `UNSET` without them."""
    outputs: tuple[StepOutput, ...]
    """The outputs' names and types as text."""
    results: tuple[Any, ...]
    """The outputs' types."""
    unpack: bool
    """Whether the function returns a tuple of its outputs."""
    complete: bool
    """Whether every name in the annotations was found; if not, a later reading may find more."""

    @property
    def inputs(self) -> tuple[StepInput, ...]:
        """The parameters as the graph knows them."""
        return tuple(
            StepInput(name=parameter.name, type=text_of(parameter.annotation), required=parameter.required)
            for parameter in self.parameters.values()
        )

    def annotation(self, name: str) -> Any:
        """The type of a parameter, also of one that `**kwargs` takes."""
        parameter = self.parameters.get(name)
        return self.others if parameter is None else parameter.annotation

    def is_default(self, name: str, value: Any) -> bool:
        """Whether a value is the parameter's default, which is the author's own business: `x: str = None` is common."""
        parameter = self.parameters.get(name)
        return parameter is not None and value is parameter.default

    @functools.cached_property
    def _positional(self) -> tuple[str, ...]:
        return tuple(name for name, parameter in self.parameters.items() if not parameter.keyword_only)

    def bind_arguments(self, args: Sequence[Any], kwargs: Mapping[str, Any], where: str) -> dict[str, Any]:
        """Arguments by name, as the call gave them; `ParameterError` for what the function does not take."""
        names = self._positional
        if len(args) > len(names):
            takes = f"{len(names)} argument{'s' * (len(names) != 1)} by position"
            raise ParameterError(f"{self.owner} takes {takes} ({', '.join(names)}), {len(args)} given", where=where)
        arguments = dict(zip(names, args))
        for name, value in kwargs.items():
            if name in arguments:
                raise ParameterError(f"{self.owner} got {name} twice, by position and by name", where=where)
            if name not in self.parameters and self.others is UNSET:
                raise ParameterError(
                    f"{self.owner} has no parameter '{name}'{nearest(name, self.parameters)}", where=where
                )
            arguments[name] = value
        return arguments

    def complete_with_defaults(self, arguments: Mapping[str, Any], where: str) -> dict[str, Any]:
        """All arguments in the function's order, defaults filled in; `ParameterError` for a missing one."""
        completed: dict[str, Any] = {}
        missing = []
        for name, parameter in self.parameters.items():
            value = arguments.get(name, parameter.default)
            if value is UNSET:
                missing.append(name)
            # A default is the author's own business: `lr: float = None` is common and meant.
            completed[name] = convert(value, parameter.annotation)
        if missing:
            needed = ", ".join(f"{name}: {text_of(self.parameters[name].annotation)}" for name in missing)
            raise ParameterError(
                f"{self.owner} needs {needed}",
                where=where,
                fix=f"give {missing[0]}=…" if where else f"add --{missing[0]} …",
            )
        if self.others is not UNSET:
            completed.update((name, value) for name, value in arguments.items() if name not in completed)
        return completed


def read(function: Callable[..., Any], owner: str, where: str, *, outputs: bool = True) -> FunctionSignature:
    """A function's signature; what a step or a pipeline cannot have is a `UsageError`."""
    import inspect

    try:
        raw = inspect.signature(function)
    except (TypeError, ValueError) as error:
        raise UsageError(f"{owner} has no signature that can be read: {error}", where=where) from None
    scope = _scope(inspect.unwrap(function))
    parameters: dict[str, FunctionParameter] = {}
    extra: Any = UNSET
    for parameter in raw.parameters.values():
        annotation = Any if parameter.annotation is parameter.empty else resolve(parameter.annotation, scope)
        if parameter.kind is parameter.VAR_KEYWORD:
            extra = annotation
            continue
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.POSITIONAL_ONLY):
            how = (
                f"*{parameter.name}"
                if parameter.kind is parameter.VAR_POSITIONAL
                else f"{parameter.name} by position only"
            )
            raise UsageError(
                f"{owner} takes {how}; its arguments must have names, by which they are kept",
                where=where,
                fix="name every parameter, or take a list",
            )
        parameters[parameter.name] = FunctionParameter(
            name=parameter.name,
            annotation=annotation,
            default=UNSET if parameter.default is parameter.empty else parameter.default,
            keyword_only=parameter.kind is parameter.KEYWORD_ONLY,
        )
    returns = Any if raw.return_annotation is raw.empty else resolve(raw.return_annotation, scope)
    step_outputs, results, unpack = _outputs(returns, owner, where) if outputs else ((), (), False)
    return FunctionSignature(
        owner=owner,
        parameters=parameters,
        others=extra,
        outputs=step_outputs,
        results=results,
        unpack=unpack,
        complete=not any(map(is_unknown, [*(p.annotation for p in parameters.values()), returns])),
    )


def check_function(function: Any, decorator: str) -> None:
    """Refuse what a decorator cannot make a step or a pipeline of, and say what to do instead."""
    fix = f"put {decorator} on a function (def) at module level"
    if isinstance(function, type):
        raise UsageError(f"{decorator} on class {function.__qualname__}", fix=fix)
    if isinstance(function, (staticmethod, classmethod, property)):
        raise UsageError(f"{decorator} on a method", fix=f"{fix}, and hand over what it needs as parameters")
    code = getattr(function, "__code__", None)
    if not callable(function) or code is None or not hasattr(function, "__qualname__"):
        raise UsageError(f"{decorator} on {type(function).__name__}, which is no Python function", fix=fix)
    outer = function.__qualname__.rpartition(".")[0]
    if outer and not outer.endswith("<locals>"):
        raise UsageError(
            f"{decorator} on a method, {function.__qualname__}",
            fix=f"{fix}, and hand over what it needs of self as parameters",
        )
    flags = code.co_flags
    if flags & _GENERATOR:
        raise UsageError(
            f"{decorator} on {function.__name__}, a generator: what it yields could not be kept",
            fix="collect it into a list and return that",
        )
    if flags & _COROUTINE:
        raise UsageError(
            f"{decorator} on {function.__name__}, an async function",
            fix="write a plain function that calls asyncio.run(…) inside",
        )


def _scope(function: Any) -> Mapping[str, Any]:
    """The names that a function's annotations may use: the module's, and those that it encloses."""
    code = getattr(function, "__code__", None)
    names = dict(getattr(function, "__globals__", {}))
    for name, cell in zip(getattr(code, "co_freevars", ()), getattr(function, "__closure__", None) or ()):
        try:
            names[name] = cell.cell_contents
        except ValueError:  # not assigned yet
            continue
    return names


def _outputs(returns: Any, owner: str, where: str) -> tuple[tuple[StepOutput, ...], tuple[Any, ...], bool]:
    """Names and types of the outputs that a return annotation declares, and whether a tuple of them is returned."""
    if returns is None or returns is type(None):
        return (), (), False
    args = typing.get_args(returns)
    # tuple[int, ...] and tuple are values like others; tuple[()] has nothing to name.
    several = typing.get_origin(returns) is tuple and bool(args) and args[-1] is not Ellipsis
    types = args if several else (returns,)
    names = [_name(one) or (f"{OUTPUT}_{index}" if several else OUTPUT) for index, one in enumerate(types)]
    for index, name in enumerate(names):
        if not name.strip():
            raise GraphError(f"{owner}: an output has an empty name", where=where, fix='write Annotated[…, "name"]')
        if name in names[:index]:
            raise GraphError(f"{owner}: two outputs are called '{name}'", where=where, fix="give one another name")
    declared = (StepOutput(name=name, type=text_of(one), artifact=_artifact(one)) for name, one in zip(names, types))
    return tuple(declared), tuple(types), several


def _name(annotation: Any) -> str:
    """The name in `Annotated[T, "name"]`; the first text counts, a name of blanks is not left out. Without a text it is
    that of the artifact."""
    if typing.get_origin(annotation) is not typing.Annotated:
        return ""
    name = next((item for item in annotation.__metadata__ if isinstance(item, str)), None)
    if name is None:
        artifact = _artifact(annotation)
        return "" if artifact is None else artifact.name
    return name or " "


def _artifact(annotation: Any) -> Artifact | None:
    """The name beyond the run in `Annotated[T, Artifact("name")]`."""
    if typing.get_origin(annotation) is not typing.Annotated:
        return None
    return next((item for item in annotation.__metadata__ if isinstance(item, Artifact)), None)
