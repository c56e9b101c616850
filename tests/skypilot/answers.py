"""What SkyPilot's command prints for `-o json`, by the models that it prints (`schemas/answers.json`)."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

ANSWERS: Final[Mapping[str, Any]] = json.loads((Path(__file__).parent / "schemas" / "answers.json").read_text())
_KINDS: Final[Mapping[str, tuple[type, ...]]] = {
    "int": (int,),
    "float": (int, float),
    "str": (str,),
    "bool": (bool,),
    "list": (list,),
    "dict": (dict,),
}


def unlike(record: Mapping[str, Any], kind: str) -> Iterator[str]:
    """What SkyPilot's model says against a record: it prints every field, those without a value as null."""
    fields: Mapping[str, str] = ANSWERS["models"][kind]
    yield from (f"{kind}.{name} is not in the model" for name in record if name not in fields)
    for name, type_name in fields.items():
        optional = type_name.endswith("?")
        states = ANSWERS["states"].get(type_name.rstrip("?"))
        if name not in record:
            yield f"{kind}.{name} is missing"
        elif record[name] is None:
            yield from () if optional else (f"{kind}.{name} is null",)
        elif states is not None and record[name] not in states:
            yield f"{kind}.{name} is {record[name]!r}"
        elif states is None and type(record[name]) not in _KINDS[type_name.rstrip("?")]:
            yield f"{kind}.{name} is no {type_name}: {record[name]!r}"


def thinned(record: Mapping[str, Any], kind: str, dice: random.Random) -> dict[str, Any]:
    """A record of an older or a newer release: without some optional fields, and with others, in another order."""
    fields: Mapping[str, str] = ANSWERS["models"][kind]
    left = {name: value for name, value in record.items() if not fields[name].endswith("?") or dice.random() > 0.4}
    names = [*left, "of_a_newer_release"]
    dice.shuffle(names)
    return {name: left.get(name, {"any": [None]}) for name in names}
