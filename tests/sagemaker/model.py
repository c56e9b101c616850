"""What botocore's model of SageMaker says against a request: types and required fields, and also the patterns, lengths
and words that botocore itself does not check and the service does."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from botocore.model import Shape
from botocore.validate import ParamValidator
from tests.servers.awsmodel import service

CLASSES = {r"\p{L}": r"\w", r"\p{Z}": r"\s", r"\p{N}": r"\d", r"\p{Alnum}": "a-zA-Z0-9"}
"""Java's classes of characters → Python's."""


MODEL = service("sagemaker")


def problems(operation: str, body: Any) -> list[str]:
    """All that is wrong with the arguments of an operation."""
    if operation not in MODEL.operation_names:
        return [f"there is no operation {operation}"]
    shape = MODEL.operation_model(operation).input_shape
    report = ParamValidator().validate(body, shape)
    return [*([report.generate_report()] if report.has_errors() else []), *_finer(body, shape, operation)]


def _finer(value: Any, shape: Shape, place: str) -> Iterator[str]:
    limits: dict[str, Any] = shape.metadata
    if shape.type_name == "structure":
        for name, part in value.items():
            if name in shape.members:
                yield from _finer(part, shape.members[name], f"{place}.{name}")
    elif shape.type_name == "list":
        yield from _size(len(value), limits, place)
        for number, part in enumerate(value):
            yield from _finer(part, shape.member, f"{place}[{number}]")
    elif shape.type_name == "map":
        yield from _size(len(value), limits, place)
        for key, part in value.items():
            yield from _finer(key, shape.key, f"{place}: {key}")
            yield from _finer(part, shape.value, f"{place}[{key}]")
    elif shape.type_name == "string":
        yield from _size(len(value), limits, place)
        if shape.enum and value not in shape.enum:
            yield f"{place}: {value!r} is none of its words"
        pattern = limits.get("pattern", "")
        for java, python in CLASSES.items():
            pattern = pattern.replace(java, python)
        if pattern and not re.fullmatch(pattern, value):
            yield f"{place}: {value!r} does not fit {pattern}"
    elif isinstance(value, (int, float)) and not isinstance(value, bool):
        yield from _size(value, limits, place)


def _size(size: float, limits: dict[str, Any], place: str) -> Iterator[str]:
    if not limits.get("min", size) <= size <= limits.get("max", size):
        yield f"{place}: {size} is not between {limits.get('min')} and {limits.get('max')}"
