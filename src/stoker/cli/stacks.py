"""`stoker stacks`: the stacks, where runs can run and where things are kept.

`stoker stacks setup FLAVOR`: make a stack: ask, probe, write it down, and run a first step on it. It is written into a
file of stacks of which every other byte stays as it is.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, Callable, Final, Mapping

import click

from stoker import stacks
from stoker.backends.base.backend import Backend
from stoker.backends.registry import BACKENDS, refusal
from stoker.cli.doctor import PATIENCE, WIDTH, print_check, stack_checks
from stoker.cli.output import json_option, print_json, table
from stoker.core.errors import EXIT_INFRASTRUCTURE, EXIT_SUCCEEDED, SettingsError, UsageError, nearest
from stoker.core.findings import Check
from stoker.core.words import time_text
from stoker.report.streams import echo, say
from stoker.settings.options import component_settings

HELLO: Final = '''"""A first step: says where it runs."""

import os
import platform

from stoker import pipeline, step


@step
def hello() -> str:
    return f"hello from {platform.node()}, Python {platform.python_version()}, {os.cpu_count()} CPUs"


@pipeline
def first():
    return hello()


if __name__ == "__main__":
    print(first().steps["hello"].output.load())
'''


HELLO_DEVICE: Final = '''"""A first step with an accelerator: says which one it got."""

from stoker import context, pipeline, step


@step(**{options!r})
def hello() -> str:
    return f"hello from {{', '.join(device.model for device in context.devices)}}"


@pipeline
def first_device():
    return hello()


if __name__ == "__main__":
    print(first_device().steps["hello"].output.load())
'''


class Flavors(click.Group):
    """A command for each backend that a person can make a stack of, with an option for each question."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """The backends with questions."""
        return [name for name, backend in BACKENDS.parts() if backend.setup is not None]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """The command of a backend; `UsageError` for one without questions."""
        if refusal(cmd_name) and cmd_name not in BACKENDS:
            raise UsageError(refusal(cmd_name))
        if cmd_name not in BACKENDS:
            names = self.list_commands(ctx)
            raise UsageError(f"there is no setup of '{cmd_name}'{nearest(cmd_name, names)}")
        if BACKENDS.load(cmd_name).setup is None:
            fix = f'write `orchestrator = {{ flavor = "{cmd_name}" }}` below [stacks.NAME] of {stacks.FILE}'
            raise UsageError(f"there is no setup of '{cmd_name}'", fix=f"{fix}, then call `stoker doctor --stack NAME`")
        return flavor_command(BACKENDS.load(cmd_name))


def flavor_command(backend: Backend) -> click.Command:
    """`stoker stacks setup FLAVOR`."""
    assert backend.setup is not None
    questions = backend.setup.questions
    options: list[click.Parameter] = [
        click.Option([f"--{field.replace('_', '-')}", field], metavar="TEXT", help=f"{words}.")
        for field, words in questions.items()
    ]
    if backend.setup.store:
        options.append(click.Option(["--artifact-store", "store"], metavar="URI", help=f"{backend.setup.store}."))
    options += [
        click.Option([f"--{field.replace('_', '-')}", field], metavar="TEXT", help=f"{words}.")
        for field, words in backend.setup.store_questions.items()
    ]
    options += [
        click.Option(["--name"], metavar="NAME", help="The stack's name; without it that of the first answer."),
        click.Option(["--yes", "-y"], is_flag=True, help="Ask nothing: take what is usual for what is not given."),
        click.Option(["--force"], is_flag=True, help="Replace a stack of this name."),
        click.Option(["--hello/--no-hello"], default=True, help="Run a first step on the stack (by default)."),
        click.Option(
            ["--wait", "patience"],
            type=click.FloatRange(min=1),
            default=PATIENCE,
            metavar="SECONDS",
            help="How long to wait until the platform starts a small job.",
        ),
    ]

    def callback(
        *,
        name: str | None,
        yes: bool,
        force: bool,
        hello: bool,
        patience: float,
        store: str | None = None,
        **answers: str | None,
    ) -> int:
        given = {field: text for field, text in answers.items() if text is not None}
        return set_up(
            backend,
            given,
            name=name or "",
            yes=yes,
            force=force,
            hello=hello,
            patience=patience,
            store=store or "",
        )

    return click.Command(
        backend.name,
        params=options,
        callback=callback,
        help=f"Make a stack of {backend.title}: asks what is not given, probes, writes the stack into {stacks.FILE}, "
        "and runs a first step. Nothing is written while something is wrong; exit code 4 then.",
    )


def set_up(
    backend: Backend,
    given: Mapping[str, str],
    *,
    name: str,
    yes: bool,
    force: bool,
    hello: bool,
    patience: float,
    store: str = "",
) -> int:
    """Make a stack; returns the exit code. With `yes` nothing is asked, and what must be made is made."""
    assert backend.setup is not None
    begun = time.monotonic()
    ask = not yes and sys.stdin.isatty()
    given_details = {field: given[field] for field in backend.setup.store_questions if field in given}
    given = {field: text for field, text in given.items() if field not in given_details}
    path, prefix = target_file(Path.cwd())
    text = path.read_text(encoding="utf-8") if path.exists() else ""

    if name and not force:
        refuse_taken(text, prefix, name)

    def named(first: str) -> None:
        """Name the stack by the first answer where no name was given, and refuse one that is taken."""
        nonlocal name
        if not name:
            name = _name_by(backend, first)
            if not force:
                refuse_taken(text, prefix, name)

    settings = answered(backend, given, ask=ask, named=named)
    if backend.setup.store:
        usual = backend.setup.usual_store
        store = store or (_asked(backend.setup.store, usual) if ask else usual)
        if not store:
            raise UsageError(
                "--artifact-store is missing", fix=f"stoker stacks setup {backend.name} --artifact-store URI"
            )
        settings = dict(backend.setup.with_store(settings, store))
    details = {
        field: given_details.get(field) or (_asked(backend.setup.store_questions[field], text) if ask else text)
        for field, text in backend.setup.store_details(store).items()
    }

    def document() -> str:
        return with_stack(text, prefix, name, {"flavor": backend.name, **settings}, replace=force, store=store)

    document()  # what the file refuses is said before anything is asked of a platform
    if not _prepared(backend, settings, store, details, ask=ask, yes=yes):
        return EXIT_INFRASTRUCTURE
    for attempt in range(2):
        checks = _printed(backend, settings, patience, store)
        better = {field: value for check in checks for field, value in check.sets.items() if field not in given}
        if attempt or not better:
            break
        for field, value in better.items():
            say(f'{field} = "{value}" is taken instead; once more:')
        settings = {**settings, **better}
    problems = [check for check in checks if check.problem]
    if problems:
        say(f"nothing was written: {len(problems)} of {len(checks)} checks found a problem")
        return EXIT_INFRASTRUCTURE
    write_whole(path, document())
    say(f"wrote the stack '{name}' into {path}")
    current = stacks.load().name
    flag = "" if current == name else f" --stack {name}"
    if hello and not _hello(document(), prefix, name, HELLO):
        say(f"the stack is written; see why its first step failed: stoker logs last{flag}")
        return EXIT_INFRASTRUCTURE
    options = backend.setup.device_step(settings) if hello else None
    if options is not None and not _hello(document(), prefix, name, HELLO_DEVICE.format(options=dict(options))):
        say(f"the stack is written, and runs steps; see why one with an accelerator failed: stoker logs last{flag}")
        return EXIT_INFRASTRUCTURE
    say(f"done in {time_text(time.monotonic() - begun)}; run yours: stoker run FILE{flag}")
    return EXIT_SUCCEEDED


def answered(backend: Backend, given: Mapping[str, str], *, ask: bool, named: Callable[[str], None]) -> dict[str, str]:
    """The settings: what was given, what is answered, or what is usual; checked by the backend's class. `named` is told
    the first one, which may name the stack, before anything else is asked."""
    assert backend.setup is not None
    first, *others = backend.setup.questions
    answers = dict(given)
    if first not in answers:
        usual_first = backend.setup.usual() if backend.setup.usual is not None else ""
        if not ask and not usual_first:
            raise UsageError(f"--{first} is missing", fix=f"stoker stacks setup {backend.name} --{first} NAME")
        answers[first] = _asked(backend.setup.questions[first], usual_first) if ask else usual_first
    answers[first] = backend.setup.complete(answers[first])
    _checked(backend, {first: answers[first]})
    named(answers[first])
    if any(field not in answers for field in others):
        usual = backend.setup.suggest(answers)
        for field in others:
            if field not in answers:
                words = backend.setup.questions[field]
                answers[field] = _asked(words, usual.get(field, "")) if ask else usual.get(field, "")
    settings = {field: answers[field] for field in (first, *others) if answers[field]}
    _checked(backend, settings)
    return settings


def _checked(backend: Backend, settings: Mapping[str, str]) -> None:
    component_settings(backend.name, settings)


def _asked(words: str, usual: str) -> str:
    answer: str = click.prompt(words, default=usual, show_default=bool(usual), err=True)
    return answer.strip()


def _name_by(backend: Backend, first: str) -> str:
    """A stack's name by the first answer of its setup."""
    assert backend.setup is not None
    return _name_of(first) if backend.setup.name is None else backend.setup.name(first)


def _name_of(address: str) -> str:
    """A stack's name by its host's."""
    host = address.partition("://")[2].rpartition("@")[2].partition(":")[0].partition(".")[0]
    return host or "cluster"


def _prepared(
    backend: Backend, settings: Mapping[str, str], store: str, details: Mapping[str, str], *, ask: bool, yes: bool
) -> bool:
    """Show and make what the platform lacks for the stack; whether nothing is missing then."""
    assert backend.setup is not None
    preparation = None
    if backend.setup.prepare is not None:
        preparation = backend.setup.prepare(settings, store, details)
    if preparation is None:
        return True
    echo(preparation.text.rstrip())
    if preparation.apply is None:
        say(f"nothing was written: this needs {preparation.what}, which you may not make; give it to an administrator")
        return False
    if not yes and not (ask and click.confirm(f"Make {preparation.what} on the platform?", err=True)):
        say(f"nothing was written: this needs {preparation.what}; --yes makes it")
        return False
    preparation.apply()
    say(f"made {preparation.what}")
    return True


def _printed(backend: Backend, settings: Mapping[str, Any], patience: float, store: str) -> list[Check]:
    """The checks of a stack that is not written yet, printed as they come."""
    with tempfile.TemporaryDirectory(prefix="stoker-setup-") as folder:
        file = Path(folder, stacks.FILE)
        file.write_text(
            with_stack("", "", "new", {"flavor": backend.name, **settings}, replace=False, store=store),
            encoding="utf-8",
        )
        stack = stacks.load("new", Path(folder))
    checks = []
    for check in stack_checks(stack, patience):
        print_check(check, WIDTH)
        checks.append(check)
    return checks


def _hello(text: str, prefix: str, name: str, program: str) -> bool:
    """Run a first step on a stack, in a folder with nothing but it; whether it succeeded."""
    with tempfile.TemporaryDirectory(prefix="stoker-setup-") as folder:
        Path(folder, "hello.py").write_text(program, encoding="utf-8")
        Path(folder, stacks.PYPROJECT if prefix else stacks.FILE).write_text(text, encoding="utf-8")
        finished = subprocess.run(
            [sys.executable, "-m", "stoker", "run", "hello.py", "--stack", name],
            cwd=folder,
            env={**os.environ, "STOKER_HOME": str(stacks.home())},
            stdout=subprocess.PIPE,
            text=True,
            check=False,
        )
    echo(finished.stdout.rstrip())
    return finished.returncode == 0


@click.group("stacks", invoke_without_command=True)
@json_option
@click.pass_context
def stacks_command(ctx: click.Context, *, as_json: bool) -> None:
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


@stacks_command.group("setup", cls=Flavors)
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
        "secrets": stacks.table_of(stack)[0].get("secrets"),
        "shared": stack.shared,
        "keep_diff": stack.keep_diff,
        "defined": str(stack.path) if stack.path is not None else "built in",
    }


def _component(component: stacks.Component) -> dict[str, Any]:
    return {"flavor": component.flavor, "options": dict(component.options)}


def _component_text(document: dict[str, Any]) -> str:
    options = ", ".join(f"{name}={value}" for name, value in document["options"].items())
    return f"{document['flavor']} ({options})" if options else str(document["flavor"])


_HEADER: Final = re.compile(r"\s*\[\[?\s*([^\[\]]+?)\s*\]\]?\s*(?:#.*)?$")
_BARE: Final = re.compile(r"[A-Za-z0-9_-]+")


def target_file(start: Path) -> tuple[Path, str]:
    """The file that a new stack is written to, and what stands before its keys: the nearest file of stacks, or a new
    stoker.toml in `start`."""
    for folder in (start, *start.parents):
        if (folder / stacks.FILE).is_file():
            return folder / stacks.FILE, ""
        pyproject = folder / stacks.PYPROJECT
        if pyproject.is_file() and "[tool.stoker" in pyproject.read_text(encoding="utf-8"):
            return pyproject, "tool.stoker."
    return start / stacks.FILE, ""


def with_stack(
    text: str, prefix: str, name: str, orchestrator: Mapping[str, str], *, replace: bool, store: str = ""
) -> str:
    """The file's text with a stack; the stack is the one that is meant when nobody says, if the file names none.

    `store` is the URI of its artifact store, empty for the usual one.
    Raises `UsageError` where the file has the stack and `replace` is False, or where it stands in a way that cannot be
    replaced without touching other lines.
    """
    if not replace:
        refuse_taken(text, prefix, name)
    document = stacks.parse_toml(text)
    own = _table(document, prefix)
    if name in own.get("stacks", {}):
        text = _without(text, f"{prefix}stacks.{name}")
        if name in _table(stacks.parse_toml(text), prefix).get("stacks", {}):
            raise UsageError(
                f"the stack '{name}' is not written as tables of its own",
                fix="remove it by hand, or give another --name",
            )
    lines = [f"[{prefix}stacks.{_key(name)}]", f"artifact_store = {_quoted(store)}", ""] if store else []
    lines.append(f"[{prefix}stacks.{_key(name)}.orchestrator]")
    lines += [f"{field} = {_quoted(value)}" for field, value in orchestrator.items()]
    body = text.rstrip("\n")
    result = f"{body}\n\n" if body else ""
    result += "\n".join(lines) + "\n"
    if "stack" not in own:
        result = _with_default(result, prefix, name)
    _require_same(document, stacks.parse_toml(result), prefix, name)
    return result


def refuse_taken(text: str, prefix: str, name: str) -> None:
    """Raise `UsageError` where a file's text has a stack of this name."""
    if name in _table(stacks.parse_toml(text), prefix).get("stacks", {}):
        raise UsageError(f"there is a stack called '{name}' already", fix="give another --name, or --force")


def write_whole(path: Path, text: str) -> None:
    """Write a file beside its name, then rename it; a link stays one, and the mode what it was."""
    path = path.resolve()
    descriptor, beside = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}-")
    try:
        with open(descriptor, "w", encoding="utf-8") as file:
            file.write(text)
        umask = os.umask(0)
        os.umask(umask)
        os.chmod(beside, path.stat().st_mode & 0o777 if path.exists() else 0o666 & ~umask)
        os.replace(beside, path)
    except OSError:
        os.unlink(beside)
        raise


def _table(document: Mapping[str, Any], prefix: str) -> Mapping[str, Any]:
    for part in filter(None, prefix.split(".")):
        document = document.get(part, {})
    return document


def _without(text: str, dotted: str) -> str:
    """The text without the tables of this name and those below it."""
    parts = dotted.split(".")
    kept, inside = [], False
    for line in text.splitlines(keepends=True):
        header = _HEADER.match(line)
        if header is not None:
            names = [part.strip().strip("\"'") for part in header[1].split(".")]
            inside = names[: len(parts)] == parts
        if not inside:
            kept.append(line)
    return "".join(kept)


def _with_default(text: str, prefix: str, name: str) -> str:
    """The text with the name of the stack that is meant when nobody says; such a key stands before all tables."""
    line = f"stack = {_quoted(name)}\n"
    if not prefix:
        return f"{line}\n{text}"
    header = re.search(r"^\[tool\.stoker\][ \t]*(?:#.*)?\n", text, re.MULTILINE)
    if header is not None:
        return text[: header.end()] + line + text[header.end() :]
    return f"{text}\n[tool.stoker]\n{line}"


def _require_same(before: Mapping[str, Any], after: Mapping[str, Any], prefix: str, name: str) -> None:
    """Refuse a text in which anything else than the stack and the default has changed."""

    def rest(document: Mapping[str, Any]) -> Any:
        own = _table(document, prefix)
        others = {key: value for key, value in own.get("stacks", {}).items() if key != name}
        around = {key: value for key, value in document.items() if not prefix or key != "tool"}
        tools = {key: value for key, value in document.get("tool", {}).items() if key != "stoker"} if prefix else {}
        mine = {key: value for key, value in own.items() if key not in ("stack", "stacks")}
        return others, mine, tools, {} if not prefix else around

    if rest(before) != rest(after):
        raise SettingsError("the stack cannot be added without changing others", fix="add it by hand")


def _key(name: str) -> str:
    return name if _BARE.fullmatch(name) else _quoted(name)


def _quoted(value: str) -> str:
    """A basic string: https://toml.io/en/v1.0.0#string"""
    escaped = value.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'
