"""A whole project of ZenML's or Metaflow's: which files there are, how each is migrated, and which pipelines it has.

Where Stoker's own words say all that the project says, its files get them. Otherwise ZenML's names stay, and their
imports move to `stoker.integrations.zenml`: in all files, because steps and pipelines of one kind belong together.
Pure: it is given texts by path.
"""

from __future__ import annotations

import ast
import re
from pathlib import PurePosixPath
from typing import Any, Final, Iterable, Iterator, Literal, Mapping, Sequence

import attrs
import yaml

from stoker.core.docker import DockerSettings
from stoker.core.errors import SourceError, StokerError
from stoker.core.settings import COMPONENTS
from stoker.migrate import zenml
from stoker.migrate.names import Level, MigrationNote
from stoker.migrate.rewrite import migrate_source
from stoker.migrate.served import Moved, move_imports, move_notebook, move_requirements
from stoker.settings.options import OPTIONS

Kind = Literal["module", "notebook", "requirements", "configuration"]
SKIPPED: Final = frozenset({"__pycache__", "node_modules", "site-packages", "venv", "env", "build", "dist"})
"""Folders that hold nothing of the project's own; so do those whose names begin with a dot."""
_CONFIGURED: Final = re.compile(r"^(parameters|steps|settings|model|extra|enable_cache|schedule|build):", re.MULTILINE)
_ZENML: Final = re.compile(r"^\s*(?:from|import)\s+(?:stoker\.integrations\.)?zenml\b", re.MULTILINE)
_ONLY_SERVED: Final = frozenset({"step_operator", "settings", "config_path", "on_failure", "on_success"})
"""Keywords that mean more in ZenML: what a local stack leaves out, a file with parameters of steps, and hooks that get
the exception."""


@attrs.frozen(kw_only=True)
class ProjectFile:
    """A file of the project before and after."""

    path: str
    """Relative to the project's folder."""
    kind: Kind
    before: bytes = attrs.field(repr=False)
    after: bytes = attrs.field(repr=False)
    notes: Sequence[MigrationNote] = ()
    frameworks: Sequence[str] = ()

    @property
    def changed(self) -> bool:
        """Whether anything changes."""
        return self.before != self.after

    @property
    def by_hand(self) -> Sequence[MigrationNote]:
        """The notes about lines that a person must change before the file runs."""
        return [note for note in self.notes if note.level == "by hand"]


@attrs.frozen(kw_only=True)
class PipelineCall:
    """A pipeline of the project, and a value for each parameter that it must be given."""

    path: str
    name: str
    arguments: Mapping[str, str]


def kind_of(path: str) -> Kind | None:
    """What a file is by its name; None for one that no migration concerns."""
    name = PurePosixPath(path).name
    if any(part in SKIPPED or part.startswith(".") for part in PurePosixPath(path).parts):
        return None
    if name.endswith(".py"):
        return "module"
    if name.endswith(".ipynb"):
        return "notebook"
    if name.endswith((".yaml", ".yml")):
        return "configuration"
    if name == "pyproject.toml" or (name.endswith((".txt", ".in")) and "requirements" in path):
        return "requirements"
    return None


def migrate_project(texts: Mapping[str, bytes]) -> list[ProjectFile]:
    """The files that a migration changes or says something of, in the order of their paths."""
    modules = {path: text for path, text in texts.items() if kind_of(path) == "module"}
    ours = {path: text for path, text in modules.items() if _ZENML.search(text.decode("utf-8", "replace"))}
    configurations = [path for path, text in texts.items() if _is_configuration(path, text)]
    notebooks = [path for path, text in texts.items() if kind_of(path) == "notebook" and b"zenml" in text]
    own = {} if configurations or notebooks else _own_words(ours)
    files = []
    for path, text in sorted(texts.items()):
        kind = kind_of(path)
        if kind is None:
            continue
        try:
            made = _migrated(path, kind, text, own, served=path in ours)
        except SourceError as error:
            note = MigrationNote(line=1, level="by hand", name=PurePosixPath(path).name, message=error.message)
            made = ProjectFile(path=path, kind=kind, before=text, after=text, notes=[note])
        if made is not None and (made.changed or made.notes):
            files.append(made)
    return files


def _migrated(
    path: str, kind: Kind, text: bytes, own: Mapping[str, ProjectFile], *, served: bool
) -> ProjectFile | None:
    if path in own:
        return own[path]
    if kind == "module" and served:
        moved = move_imports(text, path)
        return ProjectFile(
            path=path, kind=kind, before=text, after=moved.after, notes=moved.notes, frameworks=("ZenML",)
        )
    if kind == "module":
        return _own(path, text) if b"metaflow" in text else None
    if kind == "configuration":
        if not _is_configuration(path, text):
            return None
        moved = move_configuration(text, path)
        return ProjectFile(path=path, kind=kind, before=text, after=moved.after, notes=moved.notes)
    if b"zenml" not in text:
        return None
    moved = move_notebook(text, path) if kind == "notebook" else move_requirements(text)
    return ProjectFile(path=path, kind=kind, before=text, after=moved.after, notes=moved.notes)


def _own_words(modules: Mapping[str, bytes]) -> dict[str, ProjectFile]:
    """The project's modules in Stoker's own words; empty where these do not say all that it says."""
    files = {}
    for path, text in modules.items():
        try:
            if _needs_served(ast.parse(text)):
                return {}
            made = _own(path, text)
        except (StokerError, SyntaxError, ValueError):
            return {}
        if made.by_hand:
            return {}
        files[path] = made
    return files


def _own(path: str, text: bytes) -> ProjectFile:
    if b"stoker.integrations.zenml" in text:
        raise StokerError("has ZenML's names already", where=path)
    made = migrate_source(text, path)
    return ProjectFile(
        path=path, kind="module", before=text, after=made.after, notes=made.notes, frameworks=made.frameworks
    )


def _needs_served(tree: ast.Module) -> bool:
    """Whether a module says what only ZenML's names say: it waits for steps of other modules, or has settings of a
    stack's components."""
    own_steps = {name for name, kinds in _decorated(tree) if "step" in kinds}
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call):
            continue
        keywords = {keyword.arg for keyword in node.keywords}
        if keywords & _ONLY_SERVED:
            return True
        if {"after", "id"} & keywords and isinstance(node.func, ast.Name) and node.func.id not in own_steps:
            return True
    return False


def _is_configuration(path: str, text: bytes) -> bool:
    return kind_of(path) == "configuration" and len(_CONFIGURED.findall(text.decode("utf-8", "replace"))) > 0


# The pipelines


def pipelines_of(texts: Mapping[str, bytes]) -> Iterator[PipelineCall]:
    """The pipelines at the top of modules, with values by the types of what they must be given."""
    for path, text in sorted(texts.items()):
        if kind_of(path) != "module":
            continue
        try:
            tree = ast.parse(text)
        except (SyntaxError, ValueError):
            continue
        for node in tree.body:
            if isinstance(node, ast.FunctionDef) and any(_last(one) == "pipeline" for one in node.decorator_list):
                required = node.args.args[: len(node.args.args) - len(node.args.defaults)]
                required += [
                    arg for arg, default in zip(node.args.kwonlyargs, node.args.kw_defaults) if default is None
                ]
                yield PipelineCall(path=path, name=node.name, arguments=dict(_arguments(required)))


_VALUES: Final[Mapping[str, str]] = {
    "int": "1",
    "float": "0.5",
    "bool": "true",
    "dict": "{}",
    "list": "[]",
    "UUID": "00000000-0000-4000-8000-000000000000",
}


def _arguments(required: Iterable[ast.arg]) -> Iterator[tuple[str, str]]:
    for arg in required:
        kind = "str" if arg.annotation is None else ast.unparse(arg.annotation)
        if arg.annotation is None or "Callable" in kind:
            continue  # an old pipeline's step, which a plan has a stand-in for
        word = next((word for word in re.findall(r"\w+", kind) if word not in ("Optional", "Annotated", "typing")), "")
        yield arg.arg, _VALUES.get(word, _VALUES.get(word.lower(), "text"))


def _decorated(tree: ast.Module) -> Iterator[tuple[str, list[str]]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef):
            yield node.name, [_last(one) for one in node.decorator_list]


def _last(node: ast.expr) -> str:
    """The last part of a decorator's name."""
    while isinstance(node, ast.Call):
        node = node.func
    return node.attr if isinstance(node, ast.Attribute) else getattr(node, "id", "")


_KNOWN: Final = frozenset(
    {"parameters", "steps", "model", "extra", "substitutions", *zenml.OPTIONS, *zenml.OPTIONS.values()}
    | zenml.KEPT_OPTIONS
    | zenml.DROPPED_OPTIONS.keys()
)
"""Keys of a run configuration that mean something here."""
_OTHER: Final[Mapping[str, str]] = {
    **{name: zenml.instead_of(name) for name in zenml.MISSING_OPTIONS},
    "build": "an image is built when its settings or files have changed; docs/guide/containers.md",
}
_MODEL: Final = frozenset({"name", "version", "tags", "description", "save_models_to_registry"})
_MODES: Final[Mapping[str, str]] = {"continue_on_failure": "continue", "stop_on_failure": "fail_fast"}


def move_configuration(source: bytes, where: str) -> Moved:
    """The run configuration in Stoker's words; a file that has other keys, too, is the project's own and stays."""
    try:
        text = source.decode("utf-8")
        root = yaml.compose(text, yaml.SafeLoader)
    except (UnicodeDecodeError, yaml.YAMLError) as error:
        message = f"cannot be read, and stays as it is: {' '.join(str(error).split())}"
        return Moved(before=source, after=source, notes=[_note_at(1, "hint", PurePosixPath(where).name, message)])
    if not isinstance(root, yaml.MappingNode):
        return Moved(before=source, after=source)
    keys = {key.value for key, _ in root.value}
    edits = _ConfigurationEdits(text)
    if keys <= _KNOWN | _OTHER.keys():
        edits.options(root, step=False)
    return Moved(before=source, after=edits.result().encode("utf-8"), notes=sorted(edits.notes, key=_line))


class _ConfigurationEdits:
    """The edits of one run configuration, by where they are in its text, so that comments and layout stay.

    What has no equivalent stays, too, and is reported with its line.
    """

    def __init__(self, text: str) -> None:
        self._text = text
        self._edits: list[tuple[int, int, str]] = []
        self.notes: list[MigrationNote] = []

    def result(self) -> str:
        """The text with all edits."""
        text = self._text
        for start, end, replacement in sorted(self._edits, reverse=True):
            text = text[:start] + replacement + text[end:]
        return text

    def options(self, node: Any, *, step: bool) -> None:
        """The options of the pipeline, or of a step."""
        for key, value in _pairs(node):
            name = key.value
            if name in zenml.OPTIONS:
                self._replace(key, zenml.OPTIONS[name])
                if value.value in _MODES:
                    self._replace(value, _MODES[value.value])
            elif name in zenml.DROPPED_OPTIONS:
                self._remove(node, key, value)
            elif name == "settings":
                self._settings(value)
            elif name == "retry":
                for field, _ in _pairs(value):
                    self._replace(field, zenml.RETRY_FIELDS.get(field.value, field.value))
            elif name == "model":
                for field, _ in _pairs(value):
                    if field.value not in _MODEL:
                        self._note(field, "is not kept: log_metadata keeps facts of a model")
            elif name == "steps" and not step:
                for _, options in _pairs(value):
                    self.options(options, step=True)
            elif name in _OTHER and name not in _KNOWN:
                self._note(key, f"is left out: {_OTHER[name]}")
            elif name not in _KNOWN:
                self._note(key, "is no option of a step: its parameters stand below `parameters:`")

    def _settings(self, node: Any) -> None:
        for key, value in _pairs(node):
            component, _, flavor = key.value.partition(".")
            if key.value == "docker":
                self._docker(value)
            elif component in COMPONENTS:
                if not zenml.fits(flavor, [field.value for field, _ in _pairs(value)]):
                    self._note(key, f"is left out: {zenml.PLATFORM}")
            elif key.value not in OPTIONS:
                self._note(key, f"is left out: {zenml.PLATFORM}")

    def _docker(self, node: Any) -> None:
        for key, value in _pairs(node):
            if key.value in DockerSettings.INSTEAD:
                self._note(key, f"is left out: {DockerSettings.INSTEAD[key.value].removeprefix('remove it: ')}")
            if key.value == "requirements" and isinstance(value, yaml.SequenceNode):
                own = [item for item in value.value if zenml.ITSELF.fullmatch(str(item.value).strip())]
                if len(own) == len(value.value):
                    self._remove(node, key, value)
                else:
                    for item in own:
                        self._remove(value, item, item)

    def _replace(self, node: Any, text: str) -> None:
        if node.value != text:
            self._edits.append((node.start_mark.index, node.end_mark.index, text))

    def _remove(self, around: Any, key: Any, value: Any) -> None:
        """Take a pair or an item out: the whole line, or, between braces and brackets, the text up to the next one."""
        start, end = key.start_mark.index, _end(value)
        if not around.flow_style:
            if len(around.value) == 1:
                return  # a block that is empty would be null
            start = self._text.rindex("\n", 0, start) + 1 if "\n" in self._text[:start] else 0
            newline = self._text.find("\n", end)
            end = len(self._text) if newline < 0 else newline + 1
        else:
            items = [pair[0] if isinstance(pair, tuple) else pair for pair in around.value]
            later = [item.start_mark.index for item in items if item.start_mark.index > start]
            if later:
                end = later[0]
            elif len(items) > 1:
                start = self._text.rindex(",", 0, start)
        self._edits.append((start, end, ""))

    def _note(self, node: Any, message: str) -> None:
        self.notes.append(_note_at(node.start_mark.line + 1, "differs", str(node.value), message))


def _pairs(node: Any) -> Iterator[tuple[Any, Any]]:
    """The keys and values of a mapping; none of what is no mapping."""
    for key, value in node.value if isinstance(node, yaml.MappingNode) else ():
        if isinstance(key, yaml.ScalarNode):
            yield key, value


def _end(node: Any) -> int:
    """Where a value ends in the text: that of a block ends with its last item."""
    if isinstance(node, yaml.CollectionNode) and not node.flow_style and node.value:
        last = node.value[-1]
        return _end(last[1] if isinstance(last, tuple) else last)
    return int(node.end_mark.index)


def _note_at(line: int, level: Level, name: str, message: str) -> MigrationNote:
    return MigrationNote(line=line, level=level, name=name, message=message)


def _line(note: MigrationNote) -> int:
    return note.line
