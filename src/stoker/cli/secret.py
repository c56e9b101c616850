"""`stoker secret`: keep values by name, list and remove them. No value stands on a command line or is printed."""

from __future__ import annotations

import json
import os
import sys
from typing import Mapping, Sequence

import attrs
import click

from stoker import stacks
from stoker.cli.output import completes, json_option, print_json, table, when
from stoker.client.namedsecrets import PLACES, VALUE, NamedSecrets, checked_name
from stoker.core.codec import parse_object
from stoker.core.errors import SettingsError, UsageError
from stoker.report.streams import echo, say

_STACK = click.option(
    "--stack",
    metavar="NAME",
    help="Whose secrets; the current stack's if not given.",
    shell_complete=completes("stacks"),
)
_FIX = "leave it out to be asked, or give it with - (stdin) or --file PATH"


@click.group("secret")
def command() -> None:
    """Keep secrets by name, for `Secret.named("NAME")`, `secret:named:NAME` and `Client().secret("NAME")`."""


@command.command("set")
@click.argument("name")
@click.argument("source", metavar="[-]", required=False)
@click.option("--field", "fields", metavar="FIELD", multiple=True, help="A field of it, not its one value; repeatable.")
@click.option("--file", "path", metavar="PATH", help="Read the value from this file.")
@click.option("--place", type=click.Choice(PLACES), help="Where on this machine; the keyring where there is one.")
@_STACK
def set_secret(
    *, name: str, source: str | None, fields: tuple[str, ...], path: str | None, place: str | None, stack: str | None
) -> None:
    """Keep a secret's value, which is asked for; with - it is read from stdin, with --file from a file.

    The line break at its end is left out. With --field, the value is that field's, and other fields stay; several are
    asked for one by one, or read as a JSON object.
    """
    for one in (name, *fields):
        checked_name(one)
    if len(set(fields)) < len(fields):
        raise UsageError("a --field is named twice", fix="name each once")
    if source is not None and source != "-":
        what = "a value does not stand on the command line: others see it in the list of processes, and shells keep it"
        raise UsageError(what, fix=_FIX)
    if source is not None and path is not None:
        raise UsageError("the value is either on stdin or in a file", fix="leave out - or --file")
    secrets = NamedSecrets(stacks.load(stack), place=place)
    if source is None and path is None:
        values = _asked(name, fields)
    else:
        values = _values_of(_text(path), fields, "stdin" if path is None else path)
    for field, value in values.items():
        if not value:
            raise UsageError(f"the value of '{f'{name}.{field}' if field else name}' is empty, and nothing is set")
    where = secrets.set(name, values)
    say(f"'{name}' is kept in {where}")


@command.command("list")
@_STACK
@json_option
def list_secrets(*, stack: str | None, as_json: bool) -> None:
    """List the names of secrets that are kept, where, and when they were set; never values."""
    listed = NamedSecrets(stacks.load(stack)).listed()
    if as_json:
        print_json([attrs.asdict(secret) for secret in listed])
    elif listed:
        rows = [(one.name, ", ".join(one.fields), one.where, when(one.set_at)) for one in listed]
        echo(table(("NAME", "FIELDS", "WHERE", "SET"), rows))
    else:
        say("no secrets are kept here: stoker secret set NAME")


@command.command("rm")
@click.argument("name")
@click.option("--yes", "-y", is_flag=True, help="Do not ask.")
@_STACK
def remove(*, name: str, yes: bool, stack: str | None) -> None:
    """Remove a secret with all its fields."""
    secrets = NamedSecrets(stacks.load(stack))
    secrets.check(name)
    if not yes:
        if not sys.stdin.isatty():
            raise UsageError(f"nobody can be asked whether to remove '{name}'", fix=f"stoker secret rm {name} --yes")
        click.confirm(f"Remove '{name}' from {secrets.label}?", abort=True, err=True)
    secrets.remove(name)
    say(f"'{name}' is removed")


def _asked(name: str, fields: Sequence[str]) -> Mapping[str, str]:
    """The values that a person types, twice each and not shown."""
    if not sys.stdin.isatty():
        raise UsageError(f"nobody can be asked for the value of '{name}': stdin is no terminal", fix=_FIX)
    return {
        field: click.prompt(f"{name}.{field}" if field else name, hide_input=True, confirmation_prompt=True, err=True)
        for field in fields or (VALUE,)
    }


def _text(path: str | None) -> str:
    """What stdin or a file has, without the line break at its end."""
    try:
        if path is None:
            data = sys.stdin.buffer.read()
        else:
            with open(os.path.expanduser(path), "rb") as file:
                data = file.read()
        return data.decode().rstrip("\r\n")
    except OSError as error:
        raise UsageError(f"the value cannot be read: {error.strerror}: {path or 'stdin'}") from error
    except UnicodeDecodeError:
        what = f"what {path or 'stdin'} has is no text in UTF-8"
        raise UsageError(what, fix="encode bytes first, such as with base64") from None


def _values_of(text: str, fields: Sequence[str], where: str) -> Mapping[str, str]:
    if len(fields) < 2:
        return {(fields or (VALUE,))[0]: text}
    try:
        values = parse_object(text)
    except SettingsError:  # whose message has the text
        values = {}
    if values.keys() != set(fields) or not all(isinstance(value, str) for value in values.values()):
        example = json.dumps(dict.fromkeys(fields, "…"), ensure_ascii=False)
        raise UsageError(f"{where} is no JSON object with a text for each --field", fix=f"write {example}")
    return values
