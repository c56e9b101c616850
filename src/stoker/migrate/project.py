"""A whole project of ZenML's or Metaflow's: which files there are, how each is migrated, and which pipelines it has.

Where Stoker's own words say all that the project says, its files get them. Otherwise ZenML's names stay, and their
imports move to `stoker.integrations.zenml`: in all files, because steps and pipelines of one kind belong together.
Pure: it is given texts by path.
"""

from __future__ import annotations

import ast
import re
from pathlib import PurePosixPath
from typing import Final, Iterable, Iterator, Literal, Mapping, Sequence

import attrs

from stoker.core.errors import SourceError, StokerError
from stoker.migrate.configurations import move_configuration
from stoker.migrate.names import MigrationNote
from stoker.migrate.rewrite import migrate_source
from stoker.migrate.served import move_imports, move_notebook, move_requirements

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
