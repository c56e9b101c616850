"""`stoker stacks`: the stacks, where runs can run and where things are kept."""

from __future__ import annotations

from typing import Any

import click

from stoker import stacks
from stoker.cli.options import json_option
from stoker.cli.output import print_json, table
from stoker.cli.setup import Flavors
from stoker.report.streams import echo


@click.group("stacks", invoke_without_command=True)
@json_option
@click.pass_context
def command(ctx: click.Context, *, as_json: bool) -> None:
    """List where runs can run and where things are kept; `stoker stacks setup` makes one."""
    if ctx.invoked_subcommand is not None:
        return
    current = stacks.load().name
    documents = [stack_document(stack, current=current) for stack in stacks.stacks()]
    if as_json:
        print_json(documents)
        return
    rows = [
        (
            "*" if document["current"] else "",
            document["name"],
            _component_text(document["orchestrator"]),
            ", ".join(f"{name}: {_component_text(one)}" for name, one in document["step_operators"].items()),
            document["database"],
            document["artifact_store"],
            document["defined"],
        )
        for document in documents
    ]
    headers = ("", "stack", "orchestrator", "step operators", "database", "artifacts", "defined in")
    echo(table(headers, rows))


@command.group("setup", cls=Flavors)
def setup() -> None:
    """Make a stack: answer questions, or give all by options, see what a probe finds, and run a first step."""


def stack_document(stack: stacks.Stack, *, current: str) -> dict[str, Any]:
    """A stack as JSON, without passwords."""
    return {
        "name": stack.name,
        "current": stack.name == current,
        "orchestrator": _component(stack.orchestrator),
        "step_operators": {name: _component(operator) for name, operator in stack.step_operators.items()},
        "database": stacks.masked(stack.database),
        "artifact_store": stacks.masked(stack.artifact_store),
        "container_registry": stack.container_registry.uri if stack.container_registry is not None else None,
        "image_builder": stack.image_builder.flavor if stack.image_builder is not None else None,
        "reconnect": stack.reconnect,
        "shared": stack.shared,
        "defined": str(stack.path) if stack.path is not None else "built in",
    }


def _component(component: stacks.Component) -> dict[str, Any]:
    return {"flavor": component.flavor, "options": dict(component.options)}


def _component_text(document: dict[str, Any]) -> str:
    options = ", ".join(f"{name}={value}" for name, value in document["options"].items())
    return f"{document['flavor']} ({options})" if options else str(document["flavor"])
