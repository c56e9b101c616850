"""What stands for a step's output while nothing has run yet, and what a person must not do with it."""

from __future__ import annotations

from typing import Any, Callable, Final, Generic, Iterator, Mapping, NoReturn, Protocol, TypeVar, overload

from stoker.core.errors import GraphError
from stoker.core.graph import FromStep
from stoker.core.usercode import caller
from stoker.core.values import frozen

R_co = TypeVar("R_co", covariant=True)


@frozen(kw_only=True, eq=False)
class Origin:
    """One output of one call in a trace."""

    trace: object
    """The trace that the call belongs to."""
    key: str
    """The call's key in the run."""
    step: str
    """The step's name."""
    output: str
    """The name of the output; "" for a step that returns nothing."""
    annotation: Any = Any
    """The type of the output."""
    mapped: bool = False
    """Whether the call is a `.map(…)`."""

    @property
    def source(self) -> FromStep:
        """The output as the graph knows it."""
        return FromStep(node=self.key, output=self.output)

    @property
    def words(self) -> str:
        """The output in an error."""
        return f"output '{self.output}' of step '{self.key}'" if self.output else f"the end of step '{self.key}'"


class StepHandle:
    """One output of a step in a pipeline that is traced: goes into other steps, and has no value yet."""

    __slots__ = ("_origin",)
    _origin: Origin

    def __init__(self, origin: Origin) -> None:
        object.__setattr__(self, "_origin", origin)

    def __repr__(self) -> str:
        return f"<{self._origin.words}: not known before the pipeline runs>"

    def __hash__(self) -> int:
        return id(self)

    def __getattr__(self, name: str) -> NoReturn:
        if name.startswith("_"):  # asked for by copy, numpy, notebooks, …
            raise AttributeError(name)
        raise _refusal(self, f"has no attribute '{name}' yet")

    def __setattr__(self, name: str, value: object) -> NoReturn:
        raise _refusal(self, "cannot be changed")

    def __reduce_ex__(self, protocol: object) -> NoReturn:
        raise _refusal(self, "cannot be put inside an object: only lists, tuples and dicts of outputs are understood")


class Handles(tuple[StepHandle, ...]):
    """The outputs of a step that has several: unpacked, or taken by position or by name."""

    __slots__ = ()

    @overload  # type: ignore[override]
    def __getitem__(self, which: int | str) -> StepHandle: ...
    @overload
    def __getitem__(self, which: slice) -> tuple[StepHandle, ...]: ...
    def __getitem__(self, which: int | str | slice) -> StepHandle | tuple[StepHandle, ...]:
        if isinstance(which, str):
            return tuple.__getitem__(
                self, _index(which, [handle._origin.output for handle in self], self[0]._origin.key)
            )
        return tuple.__getitem__(self, which)


class ValueLoader(Protocol):
    """Where a future's values come from."""

    def load(self, origin: Origin) -> Any:
        """The value of an output, once it is there."""


class Future(Generic[R_co]):
    """A step that runs in a dynamic pipeline: `result()` waits for its value; other steps take it as it is."""

    def __init__(self, origins: tuple[Origin, ...], loader: ValueLoader, *, several: bool) -> None:
        self._origins = origins
        self._loader = loader
        self._several = several

    def result(self) -> R_co:
        """The step's value (a tuple for several outputs, a list for a mapped step); raises if the step failed."""
        values: Any = tuple(self._loader.load(origin) for origin in self._origins)
        if not self._several:
            return values[0]  # type: ignore[no-any-return]
        return list(zip(*values)) if self._origins[0].mapped else values  # type: ignore[return-value]

    def __getitem__(self, which: int | str) -> Future[Any]:
        names = [origin.output for origin in self._origins]
        index = _index(which, names, self._origins[0].key) if isinstance(which, str) else which
        return Future((self._origins[index],), self._loader, several=False)

    def __iter__(self) -> Iterator[Future[Any]]:
        if not self._several:
            raise GraphError(
                f"step '{self._origins[0].key}' has one output; its future cannot be iterated over",
                where=caller(),
                fix="iterate over .result()",
            )
        return iter([self[index] for index in range(len(self._origins))])

    def __repr__(self) -> str:
        return f"<future of {', '.join(origin.words for origin in self._origins)}>"


@frozen
class Each:
    """Marks an argument of `.map(…)` that is iterated over, by keyword or by position."""

    items: Any


def each(items: Any) -> Any:
    """In `step.map(lr=each([0.1, 0.01]), data=data)`: one call for each item."""
    return Each(items)


def origins_of(value: Any) -> tuple[Origin, ...]:
    """The outputs that a value stands for: none for a plain value, several for a step with several."""
    if isinstance(value, StepHandle):
        return (value._origin,)
    if isinstance(value, Handles):
        return tuple(handle._origin for handle in value)
    if isinstance(value, Future):
        return value._origins
    return ()


def _index(name: str, names: list[str], key: str) -> int:
    if name in names:
        return names.index(name)
    from stoker.core.errors import nearest

    raise GraphError(f"step '{key}' has no output '{name}'{nearest(name, names)}", where=caller())


_ARITHMETIC: Final = (
    *("add", "sub", "mul", "truediv", "floordiv", "mod", "divmod", "pow"),
    *("matmul", "lshift", "rshift", "and", "or", "xor"),
)

# Whatever would need the value, and how a person calls that.
_REFUSED: Final[Mapping[str, str]] = {
    **dict.fromkeys(("__iter__", "__next__", "__reversed__", "__contains__"), "cannot be iterated over"),
    "__bool__": "cannot decide an if or a while",
    "__len__": "has no length yet",
    "__getitem__": "cannot be indexed",
    "__call__": "cannot be called",
    "__format__": "cannot be put into a text",
    **dict.fromkeys(("__int__", "__float__", "__index__", "__complex__", "__round__"), "is no number yet"),
    **dict.fromkeys(("__eq__", "__ne__", "__lt__", "__le__", "__gt__", "__ge__"), "cannot be compared"),
    **dict.fromkeys(
        [f"__{side}{name}__" for name in _ARITHMETIC for side in ("", "r")],
        "cannot be calculated with",
    ),
    **dict.fromkeys(("__neg__", "__pos__", "__abs__", "__invert__"), "cannot be calculated with"),
    **dict.fromkeys(("__enter__", "__exit__"), "cannot be used in a with"),
}


def _refuse_with(reason: str) -> Callable[..., NoReturn]:
    def refuse(self: StepHandle, *args: object) -> NoReturn:
        raise _refusal(self, reason)

    return refuse


def _refusal(handle: StepHandle, reason: str) -> GraphError:
    return GraphError(
        f"{handle._origin.words} {reason}: its value is not known while the pipeline is traced",
        where=caller(),
        fix="do it inside a step, call .map(…) for one call for each element, or write @pipeline(dynamic=True)",
    )


for _name, _what in _REFUSED.items():
    setattr(StepHandle, _name, _refuse_with(_what))
