"""`stoker config schema`: the JSON schema of `stoker.toml`, for an editor's completion and checks.

Everything in it comes from what reads the file: the keys of `stacks`, the table of options, the classes of settings
with their types and their documentation.
"""

from __future__ import annotations

import ast
import builtins
import collections.abc
import inspect
import textwrap
import types
import typing
from typing import Any, Final, Literal, Mapping

import attrs
import click

from stoker import stacks
from stoker.backends.registry import BACKENDS
from stoker.cli.output import print_json
from stoker.core.settings import COMPONENTS, PipelineSettings, StepSettings
from stoker.settings.options import OPTIONS

Schema = dict[str, Any]
"""A schema, or a part of one, as JSON has it."""
_TEXT: Final[Schema] = {"type": "string"}
_FLAG: Final[Schema] = {"type": "boolean"}
_TIME: Final[Schema] = {"type": ["string", "number"]}
_PLACE: Final[Schema] = {"type": ["string", "object"]}
_FURTHER: Final[Mapping[str, Schema]] = {
    "database": {**_TEXT, "description": "A path, or postgresql://…, with ${VARIABLES} for passwords."},
    "artifact_store": {**_TEXT, "description": "A path, seen from this file, or s3://…, ssh://…, pvc://CLAIM."},
    "container_registry": {**_PLACE, "description": "Where images go that are built for steps on other machines."},
    "image_builder": {**_PLACE, "description": "Who builds images; the engine of this machine if nobody is named."},
    "prices": {"type": "object", "description": "What machines cost in US dollars an hour, with date and source."},
    "reconnect": {**_TIME, "description": "How long a run waits for its database server when that is away."},
    "retention": {"type": "object", "description": "Which finished runs `stoker gc` deletes."},
    "secrets": {**_PLACE, "description": "Where secrets by name are, in place of this machine."},
    "keep_diff": {
        **_FLAG,
        "description": "Whether a run keeps how the files differ from the commit that is checked out (true).",
    },
    "shared": {**_FLAG, "description": "Whether the home is its group's, not its owner's alone."},
}
"""Keys of a stack that are no class of settings."""
_WORDS: Final[Mapping[str, Schema]] = {
    "launch": {"type": ["string", "object"], "description": "How ranks are started: a launcher's name, or its fields."},
    "environment": {"type": "object", "description": "Variables of the step's process."},
    "cache_key": {"description": "A value that is part of the cache key."},
    "cache": {"enum": [True, False, "strict"]},
    "track": {"type": ["string", "array"]},
    "max_parallel": {"type": ["integer", "string"]},
    **dict.fromkeys(("checkpoint_every", "deadline"), _TIME),
}
"""Options whose written form is another one than the resolved value's type."""


@click.group("config")
def command() -> None:
    """Say what stoker.toml may contain."""


@command.command("schema")
def schema_command() -> None:
    """Print the JSON schema of stoker.toml, which editors take for completion and checks."""
    print_json(schema())


def schema() -> Schema:
    """The JSON schema of `stoker.toml`."""
    backends = [name for name in BACKENDS.names() if name in BACKENDS.builtin]
    definitions: Schema = {"settings": _settings(backends), "component": _component(backends)}
    definitions |= {f"backend.{name}": of_class(BACKENDS.load(name).settings) for name in backends}
    component: Schema = {"$ref": "#/definitions/component"}
    stack = {
        "orchestrator": {**component, "description": "Where steps run."},
        "step_operators": {
            **_mapping(component),
            "description": "Where single steps run, by the names under which they call it.",
        },
        **_FURTHER,
        "settings": {"$ref": "#/definitions/settings", "description": "Defaults of every step and run."},
    }
    return {
        "$schema": "http://json-schema.org/draft-07/schema#",
        "title": "stoker.toml",
        **_object(
            {
                "stack": {**_TEXT, "description": "The stack that is used when nobody names one."},
                "run": {
                    **_object({"pipeline": {**_TEXT, "description": "FILE, or FILE:PIPELINE."}}),
                    "description": "What `stoker run` takes where no file is named.",
                },
                "stacks": _mapping(_object({name: stack[name] for name in stacks.STACK_KEYS})),
            }
        ),
        "definitions": definitions,
    }


def _settings(backends: list[str]) -> Schema:
    """The options of a stack's `settings`."""
    hints = {**_hints(PipelineSettings), **_hints(StepSettings)}
    words = {**documentation(PipelineSettings), **documentation(StepSettings)}
    found: Schema = {}
    for name, option in OPTIONS.items():
        if name in _WORDS:
            found[name] = dict(_WORDS[name])
        elif option.kind is not None:
            found[name] = {"anyOf": [of_class(option.kind), {"type": ["string", "number"]}]}
            found[name]["description"] = (option.kind.__doc__ or "").partition("\n")[0]
        else:
            found[name] = of_type(hints[name])
        if words.get(name):
            found[name]["description"] = words[name]
    of_backend = {name: {"$ref": f"#/definitions/backend.{name}"} for name in backends}
    for name in COMPONENTS:
        fields = {"type": "object", "properties": of_backend}
        found[name] = {"anyOf": [fields, _TEXT], "description": "Settings of backends, by their names."}
    return _object(found)


def _component(backends: list[str]) -> Schema:
    """An orchestrator or a step operator: a backend's name, or a table with it and its settings."""
    tables = []
    for name in backends:
        fields = of_class(BACKENDS.load(name).settings)
        names = [name, *(short for short, full in BACKENDS.aliases.items() if full == name)]
        fields["properties"] = {"flavor": {"enum": names}, **fields["properties"]}
        tables.append({**fields, "required": ["flavor"]})
    other = {"type": "object", "required": ["flavor"], "properties": {"flavor": {"not": {"enum": _names(backends)}}}}
    return {"anyOf": [{"type": "string", "examples": backends}, *tables, other]}


def _names(backends: list[str]) -> list[str]:
    return [*backends, *BACKENDS.aliases]


def of_class(kind: type[Any]) -> Schema:
    """The schema of a class of settings: its fields, with their types and what is written below them."""
    hints, words = _hints(kind), documentation(kind)
    fields = {
        field.name: {
            **of_type(hints[field.name]),
            **({"description": words[field.name]} if field.name in words else {}),
        }
        for field in attrs.fields(kind)
    }
    for short, name in getattr(kind, "ALIASES", {}).items():
        if name in fields:
            fields[short] = {**fields[name], "description": f"The same as {name}."}
    return _object(fields)


class _ModuleNames(dict[str, Any]):
    """The names of a module; one that it imports for type checkers only may be anything."""

    def __missing__(self, name: str) -> Any:
        return getattr(builtins, name, Any)


def _hints(kind: type[Any]) -> dict[str, Any]:
    """The types of a class's fields."""
    names = _ModuleNames(vars(inspect.getmodule(kind)))
    written = {field.name: field.type for field in attrs.fields(kind)}
    return {name: eval(hint, {}, names) if isinstance(hint, str) else hint for name, hint in written.items()}


def of_type(hint: Any) -> Schema:
    """The schema of what may be written for a type: numbers and times may be texts with units."""
    origin, parts = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        kinds = [of_type(part) for part in parts if part is not type(None)]
        return kinds[0] if len(kinds) == 1 else {} if {} in kinds else {"anyOf": kinds}
    if origin is Literal:
        return {"enum": list(parts)}
    if hint is bool:
        return dict(_FLAG)
    if hint in (int, float):
        return {"type": ["number" if hint is float else "integer", "string"]}
    if hint is str:
        return dict(_TEXT)
    if origin in (tuple, list, collections.abc.Sequence):
        inner = of_type(parts[0]) if parts else {}
        return {"anyOf": [{"type": "array", "items": inner}, inner]} if inner else {}
    if origin in (dict, collections.abc.Mapping):
        return {"type": "object"}
    return {"type": ["string", "object"]} if isinstance(hint, type) and attrs.has(hint) else {}


def documentation(kind: type[Any]) -> dict[str, str]:
    """What stands below each field of a class, and of those that it takes fields from."""
    words: dict[str, str] = {}
    for one in reversed([one for one in kind.__mro__ if attrs.has(one)]):
        body = ast.parse(textwrap.dedent(inspect.getsource(one))).body[0]
        assert isinstance(body, ast.ClassDef)
        for field, below in zip(body.body, body.body[1:]):
            if isinstance(field, ast.AnnAssign) and isinstance(below, ast.Expr):
                assert isinstance(field.target, ast.Name) and isinstance(below.value, ast.Constant)
                words[field.target.id] = " ".join(str(below.value.value).split())
    return words


def _object(fields: Mapping[str, Schema]) -> Schema:
    return {"type": "object", "properties": dict(fields), "additionalProperties": False}


def _mapping(value: Mapping[str, Schema]) -> Schema:
    return {"type": "object", "additionalProperties": dict(value)}
