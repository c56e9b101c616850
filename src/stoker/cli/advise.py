"""`stoker advise RUN [STEP]`: what steps might ask for by what they used, and a patch of the files that ask."""

from __future__ import annotations

import ast
import difflib
import os
import re
from typing import Any, Final, Iterator, Mapping, NamedTuple, Sequence

import attrs
import click

from stoker import stacks
from stoker.cli.output import json_option, print_json, run_argument, stack_option, table
from stoker.client import Client
from stoker.core.errors import NotFound, StokerError, nearest
from stoker.core.plan import Plan
from stoker.core.resources import ResourceSettings
from stoker.core.units import duration, duration_text, size_text
from stoker.plan import plandoc
from stoker.report.sizing import LOOK_BACK, Sizing, origin_of, sizings
from stoker.report.streams import echo, say

_ORIGIN: Final = re.compile(r"(?P<file>.+):(?P<line>\d+)(?: .*)?")
_FLOW_NAMES: Final[Mapping[str, str]] = {"cpu_count": "cpu", "gpu_count": "gpu"}
"""Fields of resources → what a flow's `@resources` calls them."""
_MEGABYTE: Final = 10**6
_HEADS: Final = ("step", "setting", "asked", "used", "suggested", "saves each run", "given at")


@click.command("advise")
@run_argument
@click.argument("step", required=False)
@click.option("--patch", is_flag=True, help="Print the changes of your files as a diff, which `git apply` takes.")
@stack_option
@json_option
def command(*, run_id: str, step: str | None, patch: bool, client: Client, as_json: bool) -> None:
    """Show what steps might ask for instead, by what they used in their last successful runs.

    Memory, cores, accelerators and timeouts are compared with the peaks of up to 10 successful runs of the pipeline's
    steps. Savings need a price list (`prices` in stoker.toml).
    """
    run = client.run(run_id)
    plan = plandoc.load(client.store.records.plan(run.id))
    keys = [one.key for one in plan.steps]
    if step is not None and step not in keys:
        raise NotFound(f"run {run.id} has no step '{step}'{nearest(step, keys)}")
    try:
        prices = stacks.load(run.stack).prices
    except StokerError:  # the stack is of another folder, or gone: its prices are not known
        prices = None
    found = list(sizings(client.store, run, plan, prices, step))
    if as_json:
        print_json({"run": run.id, "settings": [attrs.asdict(one) for one in found]})
    elif patch:
        changed, left = edited(found, plan)
        for text in left:
            say(text)
        echo("".join(diff_lines(changed)).rstrip("\n"))
    elif found:
        echo(table(_HEADS, [_row(one) for one in found]))
        echo("a diff of your files: stoker advise RUN --patch")
    else:
        echo(f"run {run.id}: nothing to change by what its steps used, in up to {LOOK_BACK} successful runs of each")


def _row(one: Sizing) -> tuple[str, ...]:
    saves = [f"{one.device_hours:.3g} device hours"] if one.device_hours is not None else []
    if one.setting != "timeout":
        saves.append("unknown in USD" if one.saving is None else f"{one.saving:.3g} USD")
    of = f"{one.text(one.used)} ({one.how} of {one.runs})"
    words = (one.text(one.asked), of, one.text(one.suggested), ", ".join(saves))
    return (one.step, one.setting, *words, one.origin)


class Edit(NamedTuple):
    """A literal of a file, from one place in its text to another, and what it becomes."""

    start: int
    end: int
    text: str


def edited(found: Sequence[Sizing], plan: Plan) -> tuple[dict[str, tuple[str, str]], list[str]]:
    """File → its text before and after the suggestions; and what was not changed, with the reason."""
    files: dict[str, list[Edit]] = {}
    texts: dict[str, str] = {}
    left = []
    for (origin, setting), same in _by_place(found).items():
        largest = max(same, key=lambda one: one.suggested)
        match = _ORIGIN.fullmatch(origin)
        file = "" if match is None or origin.startswith("--set") else match["file"]
        keys = [one.step for one in same]
        others = [one.key for one in plan.steps if origin_of(one, setting) == origin and one.key not in keys]
        try:
            if others:
                raise ValueError(f"it is also for {', '.join(others)}, for which nothing less is known to do")
            if not os.path.isfile(file):
                raise ValueError("it is given by no file that is here")
            text = texts.setdefault(file, _read(file))
            line = int(match["line"]) if match is not None else 0
            find = _in_toml if file.endswith(".toml") else _in_python
            if not file.endswith((".py", ".toml")):
                raise ValueError("only Python and TOML are changed")
            edit = find(text, line, largest)
        except (ValueError, OSError, StokerError) as problem:
            left.append(f"not changed: {origin}: {setting} of {', '.join(keys)}: {problem}")
            continue
        files.setdefault(file, []).append(edit)
    changed = {}
    for file, edits in files.items():
        after = texts[file]
        for edit in sorted(edits, reverse=True):
            after = after[: edit.start] + edit.text + after[edit.end :]
        changed[file] = (texts[file], after)
    return changed, left


def _by_place(found: Sequence[Sizing]) -> dict[tuple[str, str], list[Sizing]]:
    places: dict[tuple[str, str], list[Sizing]] = {}
    for one in found:
        places.setdefault((one.origin, one.setting), []).append(one)
    return places


def _read(file: str) -> str:
    with open(file, encoding="utf-8", newline="") as opened:
        return opened.read()


def diff_lines(changed: Mapping[str, tuple[str, str]]) -> Iterator[str]:
    """A unified diff, with paths seen from the working directory."""
    for file, (before, after) in changed.items():
        name = os.path.relpath(file).replace(os.sep, "/")
        old, new = before.splitlines(keepends=True), after.splitlines(keepends=True)
        for line in difflib.unified_diff(old, new, f"a/{name}", f"b/{name}"):
            yield line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n"


def _in_python(text: str, line: int, one: Sizing) -> Edit:
    """The literal of a setting in the call that a line of Python is part of; `ValueError` says why there is none."""
    tree = ast.parse(text)
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call) and _spans(node, line)]
    names = one.setting.split(".")
    for call in sorted(calls, key=lambda node: (node.lineno, node.col_offset)):
        flow = _name_of(call.func) == names[0] and len(names) > 1
        node = _keyword(call, [_FLOW_NAMES.get(names[1], names[1])]) if flow else _keyword(call, names)
        if node is None:
            node = None if flow else _keyword(call, ["settings", *names])
        if node is None:
            continue
        if not isinstance(node, ast.Constant):
            raise ValueError(f"{ast.unparse(node)} is computed, or has a name")  # noqa: TRY004  # about the user's text
        flow = flow and "memory" in names
        if _value(node.value, one, flow) != one.asked:
            raise ValueError(f"it says {ast.unparse(node)} now, not what the run had")
        start, end = (_place(text, *at) for at in (_start(node), _end(node)))
        return Edit(start, end, _literal(text[start:end], node.value, one, flow))
    if any(keyword.arg is None for call in calls for keyword in call.keywords):
        raise ValueError("it comes in by **")
    raise ValueError("no literal of it is there")


def _spans(node: ast.Call, line: int) -> bool:
    return node.lineno <= line <= (node.end_lineno or node.lineno)


def _name_of(node: ast.expr) -> str:
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""


def _keyword(node: ast.expr | None, names: Sequence[str]) -> ast.expr | None:
    """What a call or a dict has under nested names."""
    for name in names:
        found = None
        if isinstance(node, ast.Call):
            found = next((keyword.value for keyword in node.keywords if keyword.arg == name), None)
        elif isinstance(node, ast.Dict):
            pairs = zip(node.keys, node.values)
            found = next((value for key, value in pairs if isinstance(key, ast.Constant) and key.value == name), None)
        elif node is not None:
            return node  # a name that stands for all of it
        node = found
    return node


def _start(node: ast.Constant) -> tuple[int, int]:
    return node.lineno, node.col_offset


def _end(node: ast.Constant) -> tuple[int, int]:
    return node.end_lineno or node.lineno, node.end_col_offset or node.col_offset


def _place(text: str, line: int, column: int) -> int:
    """Where a place of a tree, whose columns count bytes of UTF-8, is in the text."""
    lines = text.splitlines(keepends=True)
    before = lines[line - 1].encode()[:column].decode()
    return sum(map(len, lines[: line - 1])) + len(before)


_TOML: Final = r"(?<![\w.\"-])(?:[\w.]+\.)?{}\s*=\s*(?P<value>\"[^\"\\]*\"|'[^']*'|[0-9][0-9_.]*)"


def _in_toml(text: str, line: int, one: Sizing) -> Edit:
    """The literal of a setting in a line of TOML."""
    lines = text.splitlines(keepends=True)
    pattern = _TOML.format(re.escape(one.setting.rpartition(".")[2]))
    matches = list(re.finditer(pattern, lines[line - 1])) if line <= len(lines) else []
    if len(matches) != 1:
        raise ValueError("no literal of it is there, or several")
    literal, start = matches[0]["value"], sum(map(len, lines[: line - 1])) + matches[0].start("value")
    value = literal[1:-1] if literal[0] in "\"'" else float(literal)
    if _value(value, one, flow=False) != one.asked:
        raise ValueError(f"it says {literal} now, not what the run had")
    return Edit(start, start + len(literal), _literal(literal, value, one, flow=False))


def _value(value: Any, one: Sizing, flow: bool) -> Any:
    """What a literal asks for, as the run's plan has it."""
    name = one.setting.rpartition(".")[2]
    if name == "timeout":
        return duration(value)
    if name == "accelerators":
        return ResourceSettings(accelerators=value).gpus_per_node
    if flow and not isinstance(value, str):
        value = value * _MEGABYTE
    return ResourceSettings(**{name: value}).get(name)


def _literal(before: str, value: Any, one: Sizing, flow: bool) -> str:
    """The suggestion in the manner of the literal that it replaces: its quotes, its unit."""
    name, amount = one.setting.rpartition(".")[2], one.suggested
    if not isinstance(value, str):
        return str(round(amount / _MEGABYTE)) if flow else f"{amount:.0f}"
    quote = before[0] if before[0] in "\"'" else '"'
    if name == "accelerators":
        return f"{quote}{value.rpartition(':')[0] or value}:{amount:.0f}{quote}"
    words = duration_text(amount) if name == "timeout" else f"{amount:.0f}"
    return f"{quote}{size_text(round(amount)) if name == 'memory' else words.replace(' ', '')}{quote}"
