"""`stoker explain STK203`: what a finding means and how to fix it, without a network.

The texts come from docs/findings.md and from rules of other distributions. The file beside this module is a link to the
page, which a wheel contains as a file.
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
from stoker.report.streams import echo

PAGE: Final = "findings.md"
_SECTION: Final = re.compile(r"^## (STK\d{3})$", re.MULTILINE)
_LEVEL: Final = re.compile(r"\*\*(error|warning|translated|info): ")


@click.command("explain")
@click.argument("code", required=False)
@json_option
def command(*, code: str | None, as_json: bool) -> int:
    """Explain a finding by its code, such as STK203; without one, list them all."""
    findings = all_findings()
    if code is None:
        _list(findings, as_json=as_json)
        return 0
    name = code_of(code)
    if name not in findings:
        fix = "`stoker explain` lists them"
        raise NotFound(f"there is no finding '{code}'{nearest(name, findings)}", fix=fix)
    if as_json:
        print_json({"code": name, "level": level(findings[name]), "text": findings[name]})
    else:
        echo(f"{name}\n\n{findings[name]}")
    return 0


def page() -> str:
    """The page of findings of this version of Stoker."""
    return (Path(__file__).parent / PAGE).read_text(encoding="utf-8")


def all_findings() -> dict[str, str]:
    """Code → its text, of Stoker's findings and those of other distributions' rules."""
    texts = sections(page())
    for rule in third_party_rules():
        for code, text in rule.explains.items():
            texts.setdefault(code, text.strip())
    return texts


def sections(text: str) -> dict[str, str]:
    """Code → its section of the page, without the heading."""
    parts = _SECTION.split(text)
    return {name: body.strip() for name, body in zip(parts[1::2], parts[2::2])}


def code_of(text: str) -> str:
    """The code in its full form: "203" and "stk203" are STK203."""
    code = text.strip().upper()
    return f"STK{code}" if code.isdecimal() else code


def level(section: str) -> str:
    """The level of a finding, from the beginning of its section."""
    match = _LEVEL.match(section)
    return match[1] if match is not None else ""


def headline(section: str) -> str:
    """The sentence in bold at a section's beginning, without the level, on one line."""
    match = re.match(r"\*\*\w+: (.*?)\*\*", section, re.DOTALL)
    return " ".join(match[1].split()).rstrip(".") if match is not None else ""


def _list(findings: Mapping[str, str], *, as_json: bool) -> None:
    if as_json:
        print_json([{"code": name, "level": level(text), "what": headline(text)} for name, text in findings.items()])
        return
    for name, text in findings.items():
        echo(f"{name}  {level(text):<10}  {headline(text)}")
