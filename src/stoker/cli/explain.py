"""`stoker explain STK203`: what a finding means and how to mend it, without a network or the documentation at hand.

The texts are those of docs/findings.md, to which the file beside this module is a link that a wheel has as a file, and
those that rules of other distributions bring.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final, Mapping

import click

from stoker.cli.options import json_option
from stoker.cli.output import print_json
from stoker.core.errors import NotFound, nearest
from stoker.plan.preflight import third_party_rules

PAGE: Final = "findings.md"
_SECTION: Final = re.compile(r"^## (STK\d{3})$", re.MULTILINE)
_LEVEL: Final = re.compile(r"\*\*(error|translated|info): ")


@click.command("explain")
@click.argument("code", required=False)
@json_option
def command(*, code: str | None, as_json: bool) -> int:
    """Explain a finding by its code, such as STK203; without one, list them all."""
    known = explained()
    if code is None:
        _list(known, as_json=as_json)
        return 0
    name = code_of(code)
    if name not in known:
        fix = "`stoker explain` lists them"
        raise NotFound(f"there is no finding '{code}'{nearest(name, known)}", fix=fix)
    if as_json:
        print_json({"code": name, "level": level(known[name]), "text": known[name]})
    else:
        click.echo(f"{name}\n\n{known[name]}")
    return 0


def page() -> str:
    """The page of findings that this Stoker was made with."""
    return (Path(__file__).parent / PAGE).read_text(encoding="utf-8")


def explained() -> dict[str, str]:
    """code → its text, of Stoker's own findings and of those that rules of other distributions bring."""
    texts = sections(page())
    for rule in third_party_rules():
        for code, text in rule.explains.items():
            texts.setdefault(code, text.strip())
    return texts


def sections(text: str) -> dict[str, str]:
    """code → its section, without the heading."""
    parts = _SECTION.split(text)
    return {name: body.strip() for name, body in zip(parts[1::2], parts[2::2])}


def code_of(text: str) -> str:
    """The code that is meant: "203" and "stk203" are STK203."""
    plain = text.strip().upper()
    return f"STK{plain}" if plain.isdecimal() else plain


def level(section: str) -> str:
    """How serious the finding is, as its section begins."""
    match = _LEVEL.match(section)
    return match[1] if match is not None else ""


def headline(section: str) -> str:
    """The sentence in bold, without its level, on one line."""
    match = re.match(r"\*\*\w+: (.*?)\*\*", section, re.DOTALL)
    return " ".join(match[1].split()).rstrip(".") if match is not None else ""


def _list(known: Mapping[str, str], *, as_json: bool) -> None:
    if as_json:
        print_json([{"code": name, "level": level(text), "what": headline(text)} for name, text in known.items()])
        return
    for name, text in known.items():
        click.echo(f"{name}  {level(text):<10}  {headline(text)}")
