"""Arguments of a step's call become the graph's bindings, and are checked against the step's annotations on the way."""

from __future__ import annotations

from collections import abc
from typing import Any, Iterable, Mapping

from stoker.core.errors import GraphError, ParameterError
from stoker.core.graph import Binding, Constant, Entries, Many
from stoker.core.registry import ArtifactRef
from stoker.pipelines.handles import Each, Future, Handles, Origin, StepHandle, origins_of
from stoker.pipelines.params import check, describe, element_of, incompatible, is_iterable, text_of, value_of
from stoker.pipelines.signature import FunctionSignature

_HANDLES = (StepHandle, Future, Each, ArtifactRef)
"""What a container is looked through for: outputs of steps, and versions of named artifacts."""
_DEEP = 50
"""Containers inside containers beyond which nobody looks for outputs: also what ends a list that holds itself."""


class Binder:
    """Binds the arguments of one call: `where` is its place, `trace` the one whose outputs it may use."""

    def __init__(self, signature: FunctionSignature, where: str, trace: object) -> None:
        self._signature = signature
        self._where = where
        self._trace = trace

    def bind(self, arguments: Mapping[str, Any]) -> dict[str, Binding]:
        """The bindings of a call's arguments."""
        return {
            name: self._bind_value(name, value, self._signature.annotation(name)) for name, value in arguments.items()
        }

    def bind_mapped(self, arguments: Mapping[str, Any], mapped: Iterable[str]) -> dict[str, Binding]:
        """The bindings of a `.map(…)`: those named in `mapped` are lists of what the function takes."""
        bindings: dict[str, Binding] = {}
        lengths: dict[str, int] = {}
        for name, value in arguments.items():
            annotation = self._signature.annotation(name)
            if name not in mapped or isinstance(value, ArtifactRef):
                bindings[name] = self._bind_value(name, value, annotation)
                continue
            origins = origins_of(value)
            if origins:
                bindings[name] = self._bind_iterated(name, origins, annotation)
                continue
            items = self._items(name, value)
            lengths[name] = len(items)
            item_bindings = [self._bind_value(name, item, annotation) for item in items]
            bindings[name] = _merge_items(item_bindings)
        if len(set(lengths.values())) > 1:
            sizes = ", ".join(f"{name} has {length}" for name, length in lengths.items())
            raise ParameterError(
                f"{self._owner}: the lists to map over differ in length: {sizes}",
                where=self._where,
                fix="make them equally long, or hand the one that is the same for all elements over by keyword",
            )
        return bindings

    @property
    def _owner(self) -> str:
        return self._signature.owner

    def _bind_value(self, name: str, value: Any, annotation: Any) -> Binding:
        if isinstance(value, ArtifactRef):
            return Constant(value=value)
        origins = origins_of(value)
        if origins and not isinstance(value, Handles) and len(origins) == 1:
            return self._link(name, origins[0], annotation)
        if origins:
            self._check_several(name, origins, annotation)
            return Many(items=tuple(self._source(origin) for origin in origins))
        if isinstance(value, Each):
            raise ParameterError(
                f"{self._owner}: {name}=each(…) in a plain call", where=self._where, fix="call .map(…) instead"
            )
        if _holds_output(value, 0):
            return self._bind_container(name, value, annotation)
        problem = None if self._signature.is_default(name, value) else check(value, annotation)
        if problem is not None:
            raise ParameterError(f"{self._owner}: {name} {problem}", where=self._where)
        return Constant(value=_copy(value, 0))

    def _source(self, origin: Origin) -> Binding:
        if origin.trace is not self._trace:
            raise GraphError(
                f"{self._owner} is given {origin.words} of another pipeline's run",
                where=self._where,
                fix="call that step in this pipeline too, or load the other run's output with Client()",
            )
        if not origin.output:
            raise GraphError(
                f"{self._owner} is given {origin.words}, which returns nothing",
                where=self._where,
                fix="use .with_options(after=…) to wait for it, or return something from it",
            )
        return origin.source

    def _link(self, name: str, origin: Origin, annotation: Any) -> Binding:
        source = self._source(origin)
        produced = list[origin.annotation] if origin.mapped else origin.annotation  # type: ignore[name-defined]
        self._check_link(name, origin, produced, annotation)
        return source

    def _check_link(self, name: str, origin: Origin, produced: Any, annotation: Any) -> None:
        if incompatible(produced, annotation):
            raise GraphError(
                f"{self._owner} takes {name}: {text_of(annotation)}, "
                f"step '{origin.step}' gives {origin.output}: {text_of(produced)}",
                where=self._where,
                fix="change one of the two annotations, or put a step between them that converts",
            )

    def _check_several(self, name: str, origins: tuple[Origin, ...], annotation: Any) -> None:
        if incompatible(tuple, annotation) and incompatible(list, annotation):
            names = ", ".join(origin.output for origin in origins)
            raise GraphError(
                f"{self._owner} takes {name}: {text_of(annotation)}, step '{origins[0].step}' gives {len(origins)} "
                f"outputs ({names})",
                where=self._where,
                fix=f'hand over one of them, such as result["{origins[0].output}"]',
            )

    def _bind_container(self, name: str, value: Any, annotation: Any) -> Binding:
        """A list, tuple or dict with outputs in it."""
        if isinstance(value, abc.Set):
            raise GraphError(
                f"{self._owner}: {name} is a set with a step's output in it", where=self._where, fix="use a list"
            )
        kind = dict if isinstance(value, dict) else list
        if incompatible(kind, annotation) and incompatible(type(value), annotation):
            raise ParameterError(
                f"{self._owner}: {name} takes {text_of(annotation)}, got a {kind.__name__} of outputs",
                where=self._where,
            )
        if isinstance(value, dict):
            wrong = [key for key in value if not isinstance(key, str)]
            if wrong:
                raise GraphError(
                    f"{self._owner}: {name} is a dict of outputs with the key {wrong[0]!r}",
                    where=self._where,
                    fix="use texts as keys",
                )
            kinds = value_of(annotation)
            return Entries(
                items={key: self._bind_value(f"{name}[{key!r}]", item, kinds) for key, item in value.items()}
            )
        kinds = element_of(annotation)
        return Many(items=tuple(self._bind_value(f"{name}[{index}]", item, kinds) for index, item in enumerate(value)))

    def _bind_iterated(self, name: str, origins: tuple[Origin, ...], annotation: Any) -> Binding:
        if len(origins) > 1:
            # The outputs of one call are the items: train.map(split()).
            return Many(items=tuple(self._link(name, origin, annotation) for origin in origins))
        (origin,) = origins
        source = self._source(origin)
        if origin.mapped:
            self._check_link(name, origin, origin.annotation, annotation)
            return source
        if not is_iterable(origin.annotation):
            raise GraphError(
                f"{self._owner} is mapped over {origin.words}, which is {text_of(origin.annotation)} and no list",
                where=self._where,
                fix="hand it over by keyword, or return a list from that step",
            )
        self._check_link(name, origin, element_of(origin.annotation), annotation)
        return source

    def _items(self, name: str, value: Any) -> list[Any]:
        if isinstance(value, (str, bytes, abc.Mapping)) or not isinstance(value, abc.Iterable):
            raise ParameterError(
                f"{self._owner} is mapped over {name}, which is no list but {describe(value)}",
                where=self._where,
                fix="give a list; what is the same for all elements goes by keyword",
            )
        return list(value)


def _merge_items(items: list[Binding]) -> Binding:
    """One list as a binding: a constant where none of its items is an output."""
    values = [item.value for item in items if isinstance(item, Constant) and not isinstance(item.value, ArtifactRef)]
    return Constant(value=values) if len(values) == len(items) else Many(items=tuple(items))


def _holds_output(value: Any, depth: int) -> bool:
    if isinstance(value, _HANDLES):
        return True
    if depth == _DEEP:
        return False
    if isinstance(value, (list, tuple, set, frozenset)):
        return any(_holds_output(item, depth + 1) for item in value)
    if isinstance(value, dict):
        return any(_holds_output(item, depth + 1) for item in value.values())
    return False


def _copy(value: Any, depth: int) -> Any:
    """A copy of plain containers, so that what the body does to a list afterwards does not reach this call."""
    kind = type(value)
    if kind not in (list, dict, set, tuple) or depth == _DEEP:
        return value
    if kind is dict:
        return {key: _copy(item, depth + 1) for key, item in value.items()}
    if kind is set:
        return set(value)
    items = [item if type(item) not in (list, dict, set, tuple) else _copy(item, depth + 1) for item in value]
    return items if kind is list else tuple(items)
