"""Stacks: named sets of where steps run and where things are kept, from `stoker.toml`.

    stack = "gpu-cluster"                        # the stack that is used when nobody names one
    run.pipeline = "train.py"                    # or FILE:PIPELINE; what `stoker run` runs when nobody names a file

    [stacks.gpu-cluster]
    orchestrator = "local"                       # a flavor, or {flavor = "local", max_workers = 4}
    step_operators.big = {flavor = "local"}      # @step(step_operator="big")
    database = "postgresql://me:${DB_PASSWORD}@db/stoker"
    artifact_store = "file:///data/artifacts"    # or a path, seen from this file; or "ssh://login/scratch/me/artifacts"
    container_registry = "ghcr.io/team"          # or {uri = "…", user = "…", password = "secret:env:NAME"}
    image_builder = "local"                      # or {flavor = "kaniko", context = "s3://…"}
    shared = true                                # the home is its group's, not its owner's alone
    reconnect = "10m"                            # how long a run waits for its database server when that is away
    secrets = "secretsmanager:team/"             # where `secret:named:NAME` is, in place of this machine
    retention = {older_than = "90d", keep = 20}  # which finished runs `stoker gc` deletes
    prices = {date = "2026-11-01", source = "our contract", H100 = 2.5}  # US dollars an hour

    [stacks.gpu-cluster.settings]                # defaults for every step: whatever @pipeline takes
    resources.cpu_count = 2
    timeout = "2h"

The file is the nearest `stoker.toml`, or `pyproject.toml` with `[tool.stoker]`, from the working directory upwards;
below it comes `~/.stoker/stoker.toml`, whose stacks are known everywhere; `STOKER_STACKS` names a file that is read in
place of both. The stack is the one named in the call, by
`STOKER_STACK`, by the nearest `stack =`, or "local", which always exists.

State is kept in the home: `STOKER_HOME`, or the project's `.stoker` where that folder exists, or `~/.stoker`. SQLite's
URIs are those of SQLAlchemy: `sqlite:///a.db` is a path seen from this file, `sqlite:////data/a.db` an absolute one.
"""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any, Callable, Final, Iterable, Mapping, TypeVar

import attrs

from stoker.core.errors import NotFound, SettingsError, UsageError, nearest
from stoker.core.settings import Layer
from stoker.core.units import duration
from stoker.core.values import frozen, lazy_pattern
from stoker.settings.options import (
    checked_flavor,
    complete_store,
    component_settings,
    default_store,
    is_backend,
    layer_from,
)

if TYPE_CHECKING:
    from stoker.backends.aws.secrets import SecretsManagerSettings
    from stoker.core.costs import PriceList
    from stoker.images.builders import BuilderChoice
    from stoker.images.registries import ContainerRegistry

T = TypeVar("T")

FILE: Final = "stoker.toml"
PYPROJECT: Final = "pyproject.toml"
PREFIXES: Final[Mapping[str, tuple[str, ...]]] = {FILE: (), PYPROJECT: ("tool", "stoker")}
"""Name of a file of stacks → the keys above its own."""
NAMED: Final = "STOKER_STACK"
"""The variable that names the stack; the steps of a run on this machine have their run's in it."""
ONLY: Final = "STOKER_STACKS"
"""The variable that names a file of stacks which is read in place of all others."""
DEFAULT: Final = "local"
"""The stack that always exists."""
ORCHESTRATOR: Final = "orchestrator"
"""The name under which steps call the stack's orchestrator; step operators have names of their own."""
THIS_MACHINE: Final = "local"
"""The backend of a stack that names none."""
TOP_KEYS: Final = ("stack", "stacks", "run")
RUN_KEYS: Final = ("pipeline",)
STACK_KEYS: Final = (
    "orchestrator",
    "step_operators",
    "artifact_store",
    "database",
    "container_registry",
    "image_builder",
    "prices",
    "reconnect",
    "retention",
    "secrets",
    "settings",
    "keep_diff",
    "shared",
)
RECONNECT: Final = 600.0
"""Ten minutes: a server's restart takes seconds, its upgrade or its failover to another machine minutes."""
_VARIABLE = lazy_pattern(r"\$\{([^}]*)\}")
_PASSWORD = lazy_pattern(r"(://[^/@:]*):[^/]*@")
_SECRET_QUERY = lazy_pattern(r"([?&][^=&]*(?:password|token|secret|key)[^=&]*=)[^&]*", re.IGNORECASE)


def masked(uri: str) -> str:
    """The URI with stars for its password."""
    return _SECRET_QUERY.sub(r"\1***", _PASSWORD.sub(r"\1:***@", uri))


def _shown(uri: str) -> str:
    return repr(masked(uri))


def _names_only(options: Mapping[str, Any]) -> str:
    return f"<{', '.join(options)}>"


@frozen(kw_only=True)
class Component:
    """An orchestrator or a step operator: its backend's flavor and options, and where each option is written."""

    flavor: str
    options: Mapping[str, Any] = attrs.field(factory=dict, repr=_names_only)
    origins: Mapping[str, str] = attrs.field(factory=dict, repr=False)
    usual: bool = False
    """Whether no file names it: a run asked for its backend, which has its usual settings."""


@frozen(kw_only=True)
class Retention:
    """Which finished runs `stoker gc` deletes: those for which both limits say so; none without a limit."""

    older_than: float | None = None
    """Seconds since a run's end."""
    keep: int | None = None
    """The newest runs of each pipeline that stay."""
    tags: tuple[str, ...] = ()
    """Runs with one of these stay."""
    pipelines: Mapping[str, Retention] = attrs.field(factory=dict)
    """Pipelines with limits of their own, in place of these."""


@frozen(kw_only=True)
class Stack:
    """Where steps run and where things are kept. `layer` has the default settings, `path` the file it is written in."""

    name: str
    orchestrator: Component = Component(flavor=THIS_MACHINE)
    step_operators: Mapping[str, Component] = attrs.field(factory=dict)
    database: str = attrs.field(default="", repr=_shown)
    artifact_store: str = attrs.field(default="", repr=_shown)
    container_registry: ContainerRegistry | None = None
    """Where images go that are built for steps on other machines."""
    image_builder: BuilderChoice | None = None
    """Who builds images; None for the engine of this machine."""
    reconnect: float = RECONNECT
    """Seconds for which a run waits for the server of its database; 0 ends it at the first lost connection."""
    secrets: SecretsManagerSettings | None = None
    """Where secrets by name are; None for this machine."""
    shared: bool = False
    """Whether a home that is made is its group's, not its owner's alone."""
    keep_diff: bool = True
    """Whether a run keeps how the files differ from the commit that is checked out."""
    retention: Retention = Retention()
    """What becomes of runs that have ended."""
    prices: PriceList | None = None
    """What machines cost; None where only their platform says."""
    layer: Layer = attrs.field(factory=lambda: Layer(origin="stack"), repr=False)
    home: Path = Path("~/.stoker")
    path: Path | None = None

    @property
    def parts(self) -> dict[str, Component]:
        """The orchestrator and the step operators, by the names under which steps call them."""
        return {ORCHESTRATOR: self.orchestrator, **self.step_operators}

    def part(self, name: str) -> Component:
        """The part that steps of a run call by a name, also a backend that no file names; `NotFound` for one that was
        removed from the file."""
        part = self.with_usual((name,)).parts.get(name)
        if part is None:
            where = str(self.path or "")
            raise NotFound(f"stack '{self.name}' has no step operator called '{name}' any more", where=where)
        return part

    def with_usual(self, names: Iterable[str]) -> Stack:
        """The stack with a step operator for each of these backends that it has no part called so: one with the
        backend's usual settings, by the backend's name. Names of no backend are left out."""
        missing = [name for name in dict.fromkeys(names) if name not in self.parts and is_backend(name)]
        if not missing:
            return self
        operators = {name: Component(flavor=name, usual=True) for name in missing}
        return attrs.evolve(self, step_operators={**self.step_operators, **operators})


def load(name: str | None = None, start: Path | None = None) -> Stack:
    """The stack called `name`, or the one that is meant when nobody says; `start` is where the search begins."""
    files = _files(start)
    wanted = name or os.environ.get(NAMED) or next((file.stack for file in files if file.stack), DEFAULT)
    for file in files:
        if wanted in file.stacks:
            return _stack(wanted, file, home(start))
    if wanted == DEFAULT:
        return _builtin(home(start))
    known = [DEFAULT, *(name for file in files for name in file.stacks)]
    raise NotFound(
        f"there is no stack called '{wanted}'{nearest(wanted, known)}",
        where=_namer(name, files),
        fix=f"write [stacks.{wanted}] in {FILE}",
    )


def usual_pipeline(start: Path | None = None) -> tuple[str, str]:
    """FILE[:PIPELINE] that the nearest file names for `stoker run`, complete, and the place that names it; both empty
    where none does."""
    for file in _files(start):
        if file.pipeline:
            return str(file.path.parent / file.pipeline), file.where("run", "pipeline")
    return "", ""


def stacks(start: Path | None = None) -> list[Stack]:
    """Every known stack by name, the nearest file's first where two have one name."""
    found: dict[str, Stack] = {}
    for file in _files(start):
        for name in file.stacks:
            if name not in found:
                found[name] = _stack(name, file, home(start))
    found.setdefault(DEFAULT, _builtin(home(start)))
    return [found[name] for name in sorted(found)]


def table_of(stack: Stack) -> tuple[dict[str, Any], dict[str, str]]:
    """A stack of a file as the table that it is written as, its places complete; and the values of the variables of the
    environment that the table names. The built-in stack has neither."""
    if stack.path is None:
        return {}, {}
    file = _read(stack.path, PREFIXES.get(stack.path.name, ()))
    if file is None or stack.name not in file.stacks:
        raise UsageError(f"{stack.path} has no stack '{stack.name}' any more")
    places = {"database": stack.database, "artifact_store": stack.artifact_store}
    # Paths are seen from the file, or are the usual ones.
    paths = {key: place for key, place in places.items() if place.startswith(("sqlite:", "file:"))}
    table = {**file.stacks[stack.name], **paths}
    names = _VARIABLE.findall(json.dumps(table, default=str))
    return table, {name: os.environ[name] for name in names if name in os.environ}


def toml_text(name: str, table: Mapping[str, Any]) -> str:
    """A file with one stack, from its table."""
    pairs = "".join(f"{_toml_value(key)} = {_toml_value(value)}\n" for key, value in table.items() if value is not None)
    return f"[stacks.{_toml_value(name)}]\n{pairs}"


def _toml_value(value: Any) -> str:
    """A value as TOML has it; a text's escapes are those of JSON. https://toml.io/en/v1.0.0#string"""
    if isinstance(value, Mapping):
        pairs = (f"{_toml_value(key)} = {_toml_value(part)}" for key, part in value.items() if part is not None)
        return f"{{{', '.join(pairs)}}}"
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(map(_toml_value, value))}]"
    if isinstance(value, (bool, int, float)):
        return str(value).lower()
    return json.dumps(str(value), ensure_ascii=False).replace("\x7f", "\\u007f")


def home(start: Path | None = None) -> Path:
    """The folder that state is kept in."""
    named = os.environ.get("STOKER_HOME")
    if named:
        return Path(named).expanduser().absolute()
    for folder in _upwards(start):
        if any((folder / file).is_file() for file in (FILE, PYPROJECT)) and (folder / ".stoker").is_dir():
            return folder / ".stoker"
    return Path.home() / ".stoker"


@frozen(kw_only=True)
class _File:
    """A file that was read: its stacks, and the line of every key in it."""

    path: Path
    shown: str
    stack: str
    pipeline: str
    stacks: Mapping[str, Mapping[str, Any]]
    lines: Mapping[tuple[str, ...], int]
    prefix: tuple[str, ...]

    def where(self, *keys: str) -> str:
        """The place of a key, or of the nearest table around it."""
        path = (*self.prefix, *keys)
        for length in range(len(path), 0, -1):
            if path[:length] in self.lines:
                return f"{self.shown}:{self.lines[path[:length]]}"
        return self.shown


def _upwards(start: Path | None) -> list[Path]:
    try:
        folder = (start or Path.cwd()).absolute()
    except FileNotFoundError:
        raise UsageError("the working directory does not exist any more", fix="cd to a folder that does") from None
    folder = folder if folder.is_dir() else folder.parent
    return [folder, *folder.parents]


def _files(start: Path | None) -> list[_File]:
    """The project's file and the person's own, nearest first; or the one that `STOKER_STACKS` names."""
    found: list[_File] = []
    only = os.environ.get(ONLY)
    if only:
        file = _read(Path(only), ())
        if file is None:
            raise NotFound(f"there is no file {only}", where=ONLY)
        return [file]
    for folder in _upwards(start):
        file = _read(folder / FILE, ()) or _read(folder / PYPROJECT, PREFIXES[PYPROJECT])
        if file is not None:
            found.append(file)
            break
    own = Path.home() / ".stoker" / FILE
    if not any(file.path == own for file in found):
        file = _read(own, ())
        found += [file] if file is not None else []
    return found


def _read(path: Path, prefix: tuple[str, ...]) -> _File | None:
    """The file at `path`, or None if it is not there or says nothing of Stoker."""
    try:
        text = path.read_text(encoding="utf-8")
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, UnicodeDecodeError) as error:
        raise SettingsError(f"cannot be read: {error}", where=str(path)) from None
    if prefix and ".".join(prefix) not in text:
        return None
    document = _toml(text, path)
    for part in prefix:
        document = document.get(part, {})
    if prefix and not document:
        return None
    file = _File(path=path, shown=_relative(path), stack="", pipeline="", stacks={}, lines=_lines(text), prefix=prefix)
    for key in document:
        if key not in TOP_KEYS:
            raise SettingsError(f"there is no key '{key}'{nearest(key, TOP_KEYS)}", where=file.where(key))
    named = document.get("stack", "")
    if not isinstance(named, str):
        raise SettingsError(f"stack = {named!r} is not a name", where=file.where("stack"))
    tables = document.get("stacks", {})
    if not isinstance(tables, dict) or not all(isinstance(table, dict) for table in tables.values()):
        raise SettingsError(
            "stacks holds a table for each stack", where=file.where("stacks"), fix="write [stacks.name]"
        )
    run = document.get("run", {})
    for key in run if isinstance(run, dict) else {"run": run}:
        if key not in RUN_KEYS:
            raise SettingsError(f"[run] has no key '{key}'{nearest(key, RUN_KEYS)}", where=file.where("run", key))
    pipeline = run.get("pipeline", "")
    if not isinstance(pipeline, str):
        where = file.where("run", "pipeline")
        raise SettingsError(f"pipeline = {pipeline!r} names no file", where=where, fix='write "train.py"')
    return attrs.evolve(file, stack=named, pipeline=pipeline, stacks=tables)


def parse_toml(text: str, path: str = FILE) -> dict[str, Any]:
    """A document of TOML; a `SettingsError` for what is none."""
    return _toml(text, Path(path))


def _toml(text: str, path: Path) -> dict[str, Any]:
    try:
        import tomllib
    except ModuleNotFoundError:  # Python 3.10
        import tomli as tomllib  # type: ignore[no-redef, import-not-found, unused-ignore]

    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        line = re.search(r"at line (\d+)", str(error))
        where = f"{_relative(path)}:{line[1]}" if line else _relative(path)
        raise SettingsError(f"is not TOML: {error}", where=where) from None
    except RecursionError:
        raise SettingsError("it is nested too deeply", where=_relative(path)) from None
    except ValueError as error:  # a number with more digits than Python converts
        raise SettingsError(f"is not TOML: {error}", where=_relative(path)) from None


def _relative(path: Path) -> str:
    try:
        return str(path.relative_to(Path.cwd()))
    except ValueError:
        return str(path)


_KEY = lazy_pattern(r"""\s*((?:"[^"]*"|'[^']*'|[A-Za-z0-9_-]+)(?:\s*\.\s*(?:"[^"]*"|'[^']*'|[A-Za-z0-9_-]+))*)\s*=""")
_TABLE = lazy_pattern(r"\s*\[\[?([^\[\]]+)\]\]?\s*(?:#.*)?$")
_PART = lazy_pattern(r""""([^"]*)"|'([^']*)'|([A-Za-z0-9_-]+)""")
_MULTILINE = lazy_pattern(r"\"\"\"|\'\'\'")


def _lines(text: str) -> dict[tuple[str, ...], int]:
    """The line of each table and key. A scan, not a parse: what is inside an inline table has its table's line."""
    found: dict[tuple[str, ...], int] = {}
    table: tuple[str, ...] = ()
    quote = ""
    for number, line in enumerate(text.splitlines(), 1):
        inside, quote = quote, _open_quote(line, quote)
        if inside:
            continue
        header = _TABLE.match(line)
        key = _KEY.match(line)
        if header is not None:
            table = _keys(header[1])
        path = table if header is not None else (*table, *_keys(key[1])) if key is not None else ()
        for length in range(1, len(path) + 1):
            found.setdefault(path[:length], number)
        if header is not None:
            found[path] = number
    return found


def _open_quote(line: str, quote: str) -> str:
    """Which multi-line text is still open after a line."""
    for mark in _MULTILINE.findall(line):
        if not quote:
            quote = mark
        elif mark == quote:
            quote = ""
    return quote


def _keys(dotted: str) -> tuple[str, ...]:
    return tuple(next(filter(None, match), "") for match in _PART.findall(dotted))


def _builtin(folder: Path) -> Stack:
    return Stack(
        name=DEFAULT,
        database=f"sqlite:///{folder / 'stoker.db'}",
        artifact_store=f"file://{folder / 'artifacts'}",
        reconnect=_reconnect(None, ""),
        shared=_flag("shared", None, ""),
        keep_diff=_flag("keep_diff", None, "", usual=True),
        layer=Layer(origin="stack 'local'"),
        home=folder,
    )


def _stack(name: str, file: _File, folder: Path) -> Stack:
    table = file.stacks[name]
    for key in table:
        if key not in STACK_KEYS:
            where = file.where("stacks", name, key)
            fix = f"settings of runs and steps stand below [stacks.{name}.settings]"
            raise SettingsError(f"a stack has no key '{key}'{nearest(key, STACK_KEYS)}", where=where, fix=fix)
    builtin = _builtin(folder)
    orchestrator = _component(file, ("stacks", name, "orchestrator"), table.get("orchestrator", THIS_MACHINE))
    operators = table.get("step_operators", {})
    if not isinstance(operators, dict):
        where = file.where("stacks", name, "step_operators")
        raise SettingsError("step_operators holds a table for each", where=where, fix="write step_operators.name = …")
    return Stack(
        name=name,
        orchestrator=orchestrator,
        step_operators={
            operator: _component(file, ("stacks", name, "step_operators", operator), entry)
            for operator, entry in operators.items()
        },
        database=_location(file, name, "database", table.get("database")) or builtin.database,
        artifact_store=complete_store(
            orchestrator.flavor,
            orchestrator.options,
            _location(file, name, "artifact_store", table.get("artifact_store"))
            or default_store(orchestrator.flavor, orchestrator.options)
            or builtin.artifact_store,
        ),
        container_registry=_part(file, name, "container_registry", table.get("container_registry"), _registry),
        image_builder=_part(file, name, "image_builder", table.get("image_builder"), _builder),
        reconnect=_reconnect(table.get("reconnect"), file.where("stacks", name, "reconnect")),
        retention=_retention(table.get("retention", {}), file, ("stacks", name, "retention")),
        secrets=_part(file, name, "secrets", table.get("secrets"), _secrets),
        prices=_prices(table.get("prices"), file.where("stacks", name, "prices")),
        shared=_flag("shared", table.get("shared"), file.where("stacks", name, "shared")),
        keep_diff=_flag("keep_diff", table.get("keep_diff"), file.where("stacks", name, "keep_diff"), usual=True),
        layer=_defaults(file, name, table.get("settings", {})),
        home=folder,
        path=file.path,
    )


def _component(file: _File, keys: tuple[str, ...], entry: Any) -> Component:
    where = file.where(*keys)
    options = dict(entry) if isinstance(entry, dict) else {"flavor": entry}
    flavor = options.pop("flavor", None)
    if not isinstance(flavor, str):
        raise SettingsError(
            f"{keys[-1]} names no flavor",
            where=where,
            fix=f'write {".".join(keys[2:])} = {{flavor = "{THIS_MACHINE}"}}',
        )
    origins = {name: file.where(*keys, name) for name in options}
    try:
        flavor = checked_flavor(flavor)
        return Component(flavor=flavor, options=component_settings(flavor, options), origins=origins)
    except SettingsError as error:
        place = next((origins[name] for name in options if f"'{name}'" in error.message), where)
        named = error.message.partition(":")[0]
        raise SettingsError(error.message, where=origins.get(named, place), fix=error.fix) from None


def _part(file: _File, name: str, key: str, value: Any, parse: Callable[[Any], T]) -> T | None:
    """A part that is a text or a table of texts, with `${VARIABLES}` filled in."""
    if value is None:
        return None
    if isinstance(value, dict):
        filled: Any = {
            option: _text(file, name, f"{key}.{option}", text) if isinstance(text, str) and text else text
            for option, text in value.items()
        }
    else:
        filled = _text(file, name, key, value)
    try:
        return parse(filled)
    except (SettingsError, UsageError) as error:
        raise SettingsError(error.message, where=file.where("stacks", name, key), fix=error.fix) from None


def _registry(value: Any) -> ContainerRegistry:
    from stoker.images.registries import ContainerRegistry

    return ContainerRegistry.parse(value)


def _builder(value: Any) -> BuilderChoice:
    from stoker.images.builders import BUILDERS, choose

    return choose(value, BUILDERS.load)


def _secrets(value: Any) -> SecretsManagerSettings:
    from stoker.backends.aws.secrets import SecretsManagerSettings

    return SecretsManagerSettings.parse(value)


def _text(file: _File, name: str, key: str, value: Any) -> str | None:
    """A text with `${VARIABLES}` filled in."""
    if value is None:
        return None
    where = file.where("stacks", name, *key.split("."))
    if not isinstance(value, str) or not value:
        raise SettingsError(f"{key} = {value!r} is not a text", where=where)

    def variable(match: re.Match[str]) -> str:
        found = os.environ.get(match[1])
        if found is None:
            raise SettingsError(f"{key} needs the environment variable {match[1]}", where=where, fix="set it")
        return found

    return _VARIABLE.sub(variable, value)


def _location(file: _File, name: str, key: str, value: Any) -> str | None:
    """A URI; paths are seen from the file and become absolute."""
    text = _text(file, name, key, value)
    if text is None:
        return None
    here = file.path.parent
    scheme, mark, rest = text.partition("://")
    if not mark:
        path = here / Path(text).expanduser()
        return f"sqlite:///{path}" if key == "database" else f"file://{path}"
    if scheme == "sqlite" and not rest.startswith("//"):
        return f"sqlite:///{here / rest.removeprefix('/')}"
    if scheme == "ssh":
        from stoker.core.hosts import folder_elsewhere

        try:
            folder_elsewhere(text)
        except SettingsError as error:
            raise SettingsError(error.message, where=file.where("stacks", name, key), fix=error.fix) from None
    if scheme == "file" and not rest.startswith("/"):
        fix = f'write "file:///absolute/{rest}", or the path alone'
        raise SettingsError(f"{key} = '{text}' is no file URI", where=file.where("stacks", name, key), fix=fix)
    return text


def _reconnect(value: Any, where: str) -> float:
    """Seconds to wait for a database server, by `STOKER_RECONNECT`, else by the stack's file."""
    named = os.environ.get("STOKER_RECONNECT")
    value, where = (named, "STOKER_RECONNECT") if named else (value, where)
    if value is None:
        return RECONNECT
    if isinstance(value, bool) or not isinstance(value, (int, float, str)):
        raise SettingsError(f"reconnect = {value!r} is not a duration", where=where, fix='write reconnect = "10m"')
    try:
        return duration(value)
    except SettingsError as error:
        raise SettingsError(error.message, where=where, fix=error.fix) from None


def _flag(name: str, value: Any, where: str, *, usual: bool = False) -> bool:
    """A key that is true or false, by `STOKER_NAME`, else by the stack's file."""
    variable = f"STOKER_{name.upper()}"
    named = os.environ.get(variable)
    if named:
        value, where = {"1": True, "true": True, "0": False, "false": False}.get(named.lower(), named), variable
    if value is not None and not isinstance(value, bool):
        raise SettingsError(f"{name} = {value!r} is neither true nor false", where=where, fix=f"write {name} = true")
    return usual if value is None else value


def _prices(table: Any, where: str) -> PriceList | None:
    if table is None:
        return None
    from stoker.core.costs import PriceList

    try:
        return attrs.evolve(PriceList.parse(table), where=where)
    except SettingsError as error:
        raise SettingsError(error.message, where=where, fix=error.fix) from None


def _retention(table: Any, file: _File, keys: tuple[str, ...], *, inner: bool = False) -> Retention:
    """The rules of `stoker gc`. Raises `SettingsError`: what is misunderstood here would delete runs."""
    known = [field.name for field in attrs.fields(Retention)][: -1 if inner else None]
    if not isinstance(table, dict):
        raise SettingsError(f"{keys[-1]} is not a table", where=file.where(*keys), fix='write {older_than = "90d"}')
    for key, value in table.items():
        where = file.where(*keys, key)
        if key not in known:
            fix = f"write one of {', '.join(known)}"
            raise SettingsError(f"{keys[-1]} has no key '{key}'{nearest(key, known)}", where=where, fix=fix)
        if key == "keep" and (isinstance(value, bool) or not isinstance(value, int) or value < 0):
            raise SettingsError(f"keep = {value!r} is not a number of runs", where=where, fix="write keep = 20")
        if key == "older_than" and not isinstance(value, str):
            raise SettingsError(f"older_than = {value!r} has no unit", where=where, fix='write older_than = "90d"')
        if key == "tags" and not (isinstance(value, list) and all(isinstance(tag, str) for tag in value)):
            raise SettingsError(f"tags = {value!r} is not a list of tags", where=where, fix='write tags = ["release"]')
    try:
        older_than = duration(table["older_than"]) if "older_than" in table else None
    except SettingsError as error:
        raise SettingsError(error.message, where=file.where(*keys, "older_than"), fix=error.fix) from None
    return Retention(
        older_than=older_than,
        keep=table.get("keep"),
        tags=tuple(table.get("tags", ())),
        pipelines={
            pipeline: _retention(rules, file, (*keys, "pipelines", pipeline), inner=True)
            for pipeline, rules in table.get("pipelines", {}).items()
        },
    )


def _defaults(file: _File, name: str, values: Any) -> Layer:
    keys = ("stacks", name, "settings")
    where = file.where(*keys)
    if not isinstance(values, dict):
        raise SettingsError("settings is not a table", where=where, fix=f"write [stacks.{name}.settings]")
    origins = {".".join(path): file.where(*keys, *path) for path in _paths(values)}
    return layer_from(where, (values,), origins=origins)


def _paths(values: Mapping[str, Any], base: tuple[str, ...] = ()) -> Iterable[tuple[str, ...]]:
    for key, value in values.items():
        yield (*base, key)
        if isinstance(value, dict):
            yield from _paths(value, (*base, key))


def _namer(name: str | None, files: Iterable[_File]) -> str:
    """Who asked for a stack that is not there."""
    if name:
        return ""
    if os.environ.get(NAMED):
        return NAMED
    return next((file.where("stack") for file in files if file.stack), "")
