"""What botocore's models of AWS's services say of an answer, and answers with less in them that the models allow, too.

A field that is not required may be missing, also where the service has always had it; a word of an enumeration may be
one that is newer than the model. https://smithy.io/2.0/guides/evolving-models.html
"""

from __future__ import annotations

import functools
import random
from collections.abc import Iterator, Mapping
from typing import Any, Final

from botocore.loaders import Loader
from botocore.model import ServiceModel

NEWER: Final = "NEWER_THAN_THE_MODEL"
_KINDS: Final[Mapping[str, tuple[type, ...]]] = {
    "structure": (dict,),
    "map": (dict,),
    "list": (list,),
    "string": (str,),
    "boolean": (bool,),
    "integer": (int,),
    "long": (int,),
    "float": (int, float),
    "double": (int, float),
    "timestamp": (int, float),
}


@functools.cache
def service(name: str) -> ServiceModel:
    """The model of a service."""
    return ServiceModel(Loader().load_service_model(name, "service-2"), name)


def operation(name: str, path: str) -> str:
    """The operation that a path of a service's REST API means; empty for none."""
    return next((each for each in service(name).operation_names if each.lower() == path), "")


def unlike(value: Any, shape: Any, place: str = "") -> Iterator[str]:
    """What a model says against an answer: names and words that it has not, values of another kind, missing fields."""
    kinds = _KINDS[shape.type_name]
    if type(value) not in kinds:
        yield f"{place} is no {shape.type_name}: {value!r}"
    elif shape.type_name == "structure":
        names = {member.serialization.get("name", name): member for name, member in shape.members.items()}
        yield from (f"{place}.{name} is not in the model" for name in value if name not in names)
        yield from (f"{place}.{name} is required" for name in shape.required_members if name not in value)
        for name, part in value.items():
            if name in names:
                yield from unlike(part, names[name], f"{place}.{name}")
    elif shape.type_name == "map":
        for name, part in value.items():
            yield from unlike(part, shape.value, f"{place}.{name}")
    elif shape.type_name == "list":
        for part in value:
            yield from unlike(part, shape.member, f"{place}[]")
    elif shape.type_name == "string" and shape.enum and value not in shape.enum:
        yield f"{place}: {value!r} is none of {', '.join(shape.enum)}"


def thinned(value: Any, shape: Any, dice: random.Random, *, part: float = 0.4) -> Any:
    """An answer without some of what it need not have, and with words of enumerations that nobody knows yet."""
    if shape.type_name == "structure":
        return {
            name: thinned(inner, shape.members[name], dice, part=part)
            for name, inner in value.items()
            if name in shape.required_members or dice.random() > part
        }
    if shape.type_name == "list":
        return [thinned(inner, shape.member, dice, part=part) for inner in value]
    if shape.type_name == "string" and shape.enum and dice.random() < part / 2:
        return NEWER
    return value


def projected(value: Any, shape: Any) -> Any:
    """What of a value a structure has fields for."""
    if shape.type_name == "structure":
        return {name: projected(part, shape.members[name]) for name, part in value.items() if name in shape.members}
    return [projected(part, shape.member) for part in value] if shape.type_name == "list" else value


def as_the_service(name: str, operation_name: str, body: Any, dice: random.Random | None) -> tuple[Any, str]:
    """What a double answers to an operation, thinned where there are dice; and what the model says against it."""
    shape = service(name).operation_model(operation_name).output_shape
    wrong = "; ".join(unlike(body, shape, operation_name)) if shape is not None else ""
    return (body if dice is None or shape is None else thinned(body, shape, dice)), wrong
