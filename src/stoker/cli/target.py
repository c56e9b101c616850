"""FILE[:PIPELINE] on a command line: parse it, load the file without running it, and run it as `python FILE` does."""

from __future__ import annotations

import ast
import contextlib
import importlib.util
import os
import sys
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any, Final, Iterator

import attrs

from stoker import stacks
from stoker.cli.output import ScriptFailed
from stoker.core import request
from stoker.core.errors import SettingsError, StokerError, UsageError, nearest
from stoker.core.request import NotTheDriver, RunOption
from stoker.core.standins import METAFLOW, ZENML
from stoker.core.usercode import raised_by_user, user_traceback
from stoker.pipelines.scripts import line_of_settings
from stoker.run.commandline import COMMAND_LINE, CommandLine
from stoker.run.program import Program, programs_of

_INIT: Final = "__init__.py"
_ELSEWHERE: Final = {
    "zenml": "`stoker migrate FILE` rewrites it for Stoker, with --write in the file itself",
    "metaflow": "`python -m stoker.flow FILE run` runs it as it is, and `stoker migrate FILE` rewrites it for Stoker, "
    "with --write in the file itself",
    "kfp": "`stoker migrate FILE` makes a pipeline of it, with --write --output in a file beside it",
}
"""A framework whose programs people bring, which a file imports and this Python lacks → what to do."""


OPTIONS: Final = (RunOption(name="pipeline", value="NAME", help="which pipeline of the file; also FILE:NAME"),)
CI: Final = (
    RunOption(name="junit", value="FILE", help="for CI: write the steps as test cases into a JUnit file"),
    RunOption(
        name="summary",
        value="FILE",
        optional=True,
        help="for CI: write a summary in Markdown, to $GITHUB_STEP_SUMMARY where there is one, else to stdout",
    ),
    RunOption(
        name="compare",
        value="BRANCH",
        help="say how the run differs from the last one of its pipeline that succeeded on this branch, such as main",
    ),
)
PLAN_OPTIONS: Final = (
    *OPTIONS,
    RunOption(name="explain", help="every setting, and where it comes from"),
    RunOption(
        name="render",
        value="STEP",
        optional=True,
        help="also what would be sent for each step, or for STEP alone: Dockerfiles, requests, messages",
    ),
    RunOption(
        name="lock",
        value="FILE",
        optional=True,
        help="also the exact packages that images would get; with FILE, such as stoker.lock, write them there",
    ),
    RunOption(name="where", help="also what each stack could give each step, and at what price an hour"),
    RunOption(name="upgrade", help="look for newer packages than those of the lock"),
    RunOption(name="offline", help="ask nothing of an index, registry, cluster or cloud; what was remembered counts"),
    RunOption(name="json", help="the plan as JSON on stdout"),
)
BUILD_OPTIONS: Final = (
    *OPTIONS,
    RunOption(name="push", value="REPOSITORY", help="push them there, such as ghcr.io/team/images"),
    RunOption(name="render", help="build nothing: print what the stack's image builder would be told"),
    RunOption(name="output", value="FOLDER", help="with --render: write that and the packed context there"),
    RunOption(name="json", help="only JSON on stdout"),
)
SIMULATE_OPTIONS: Final = (
    *OPTIONS,
    RunOption(name="cluster", value="FILE", help="the TOML file with the nodes, the queue and what is known of steps"),
    RunOption(name="seeds", value="N", help="how many runs to simulate, 20 if not given"),
    RunOption(name="json", help="all runs as JSON on stdout"),
)
FILE_COMMANDS: Final = {
    "run": (*OPTIONS, *CI),
    "plan": PLAN_OPTIONS,
    "simulate": SIMULATE_OPTIONS,
    "build": BUILD_OPTIONS,
}
"""The commands that take FILE, whose own words click does not parse → their options besides those of every run."""


@attrs.frozen(kw_only=True)
class ProgramFile:
    """A Python file with a program."""

    path: str
    root: str
    """The folder that is put on `sys.path`."""
    module: str = ""
    """The dotted name of the file if it runs as part of a package."""
    package_root: str = ""
    """The folder from which a script may import its own package, which Python alone does not find."""
    pipeline: str = ""
    """The name of the pipeline that is meant; empty for the only one."""
    text: str = ""
    """The file as the command line names it."""

    @property
    def stem(self) -> str:
        """The name under which the file is imported if it is not the program."""
        return self.module or Path(self.path).stem


def parse(text: str, pipeline: str = "") -> ProgramFile:
    """Find the file that a text such as "train.py", "train.py:training" or "package.train" names."""
    name, colon, after = text.rpartition(":")
    if colon and after.isidentifier():
        if pipeline and pipeline != after:
            raise UsageError(f"two pipelines are named, '{after}' and '{pipeline}'", fix="name one")
        text, pipeline = name, after
    if text.endswith(".py") or os.sep in text or os.path.exists(text):
        target = _parse_file(text)
    else:
        target = _parse_module(text)
    return attrs.evolve(target, pipeline=pipeline, text=text)


def usual(command: str) -> str:
    """The file that is meant where none is named: the one of `[run]` in `stoker.toml`, or the only one here that has a
    pipeline or a flow."""
    named, where = stacks.usual_pipeline()
    if named:
        if not os.path.isfile(named) and not os.path.isfile(named.rpartition(":")[0]):
            raise UsageError(f"there is no file {named}", where=where, fix="name the file of the pipeline")
        return os.path.relpath(named)
    found = [path.name for path in sorted(Path().glob("*.py")) if _has_program(path)]
    if len(found) == 1:
        return found[0]
    if not found:
        fix = f"write `stoker {command} train.py`, for example; `stoker init` makes a project"
        raise UsageError("no file is named, and no file here has a pipeline", fix=fix)
    fix = f'write `stoker {command} {found[0]}`, or pipeline = "{found[0]}" below [run] in {stacks.FILE}'
    raise UsageError(f"no file is named, and several have a pipeline: {', '.join(found)}", fix=fix)


def _has_program(path: Path) -> bool:
    """Whether a file defines a pipeline or a flow, by its text."""
    try:
        tree = ast.parse(path.read_bytes())
    except (OSError, SyntaxError, ValueError):
        return False
    for node in tree.body:
        if isinstance(node, ast.ClassDef) and any(_last_name(base) == "FlowSpec" for base in node.bases):
            return True
        if isinstance(node, ast.FunctionDef) and any(_last_name(one) == "pipeline" for one in node.decorator_list):
            return True
    return False


def _last_name(node: ast.expr) -> str:
    node = node.func if isinstance(node, ast.Call) else node
    return node.attr if isinstance(node, ast.Attribute) else getattr(node, "id", "")


def load(target: ProgramFile) -> ModuleType:
    """Import the file under another name than `__main__`: its main block does not run, and no pipeline either."""
    _target_on_path(target)
    _install_stand_ins(target)
    name = target.stem
    loaded = sys.modules.get(name)
    if loaded is not None and not _same_file(loaded, target.path):
        name = f"{name}_"  # a script with the name of a module that is already imported
    spec = importlib.util.spec_from_file_location(name, target.path)
    if spec is None or spec.loader is None:
        raise UsageError(f"{target.text} is not a Python file")
    module = importlib.util.module_from_spec(spec)
    was_worker, request.WORKER = request.WORKER, True
    argv, sys.argv = sys.argv, [target.path]
    sys.modules[name] = module
    try:
        with _report_user_errors():
            if target.module:
                importlib.import_module(target.module.rpartition(".")[0])
            spec.loader.exec_module(module)
    except NotTheDriver:
        pass  # a pipeline is called outside a main block: the module is complete up to there
    finally:
        request.WORKER, sys.argv = was_worker, argv
    return module


@contextlib.contextmanager
def execute(target: ProgramFile, line: CommandLine) -> Iterator[ModuleType]:
    """Run the file as the program, with a command line for the pipeline that it calls.

    Inside the context the file is `__main__`; afterwards the process is as before.
    """
    main = ModuleType("__main__")
    argv, path, before = sys.argv, list(sys.path), sys.modules.get("__main__")
    _target_on_path(target)  # first: a package's modules are found from there
    _install_stand_ins(target)
    spec = _spec(target)
    main.__dict__.update(
        __file__=target.path,
        __spec__=spec,
        __package__=spec.parent if spec is not None else None,
        __loader__=spec.loader if spec is not None else None,
        __cached__=None,
        __builtins__=__builtins__,
    )
    sys.argv = [target.path, *line.give_script(target.path)]
    sys.modules["__main__"] = main
    token = COMMAND_LINE.set(line)
    try:
        with _report_user_errors():
            try:
                exec(_code(target.path), main.__dict__)
            except NotTheDriver:
                pass  # another pipeline than the wanted one was called, or it is only to be planned
        yield main
    finally:
        COMMAND_LINE.reset(token)
        sys.argv, sys.path[:] = argv, path
        if before is not None:
            sys.modules["__main__"] = before


def choose(module: ModuleType, target: ProgramFile) -> Program:
    """The pipeline or flow that the command line names, or the only one of the file."""
    programs = programs_of(vars(module))
    own_programs = {name: one for name, one in programs.items() if one.function.__module__ == module.__name__}
    if target.pipeline:
        for name, program in {**programs, **{one.name: one for one in programs.values()}}.items():
            if name == target.pipeline:
                return program
        raise UsageError(f"{target.text} has no pipeline '{target.pipeline}'{nearest(target.pipeline, programs)}")
    names = {program.function: name for name, program in (own_programs or programs).items()}
    if len(names) == 1:
        return programs[next(iter(names.values()))]
    if not names:
        raise UsageError(f"{target.text} has no pipeline", fix="put @pipeline on a function that calls steps")
    named = sorted(names.values())
    nouns = " and ".join(sorted({f"{program.noun}s" for program in (own_programs or programs).values()}, reverse=True))
    raise UsageError(
        f"{target.text} has several {nouns}: {', '.join(named)}", fix=f"name one: {target.text}:{named[0]}"
    )


def _parse_file(text: str) -> ProgramFile:
    path = Path(os.path.abspath(os.path.expanduser(text)))
    if path.is_dir():
        raise UsageError(f"{text} is a folder", fix="name a Python file in it")
    if not path.is_file():
        scripts = [entry.name for entry in path.parent.glob("*.py")] if path.parent.is_dir() else []
        raise UsageError(f"there is no file {text}{nearest(path.name, scripts)}")
    root, parts = path.parent, [path.stem]
    while (root / _INIT).is_file() and root.name.isidentifier():
        parts.insert(0, root.name)
        root = root.parent
    if len(parts) == 1 or path.name == _INIT:
        # A file in a folder of the project imports what lies beside that folder, as `python -m` lets it.
        below = Path.cwd() in root.parents and root.name.isidentifier()
        return ProgramFile(path=str(path), root=str(root), package_root=os.getcwd() if below else "")
    if _imports_relatively(path):
        return ProgramFile(path=str(path), root=str(root), module=".".join(parts))
    # `python FILE` looks at no __init__.py beside FILE: modules are found from FILE's own folder.
    return ProgramFile(path=str(path), root=str(path.parent), package_root=str(root))


def _imports_relatively(path: Path) -> bool:
    """Whether a file has a `from .module import …`, which works only in a package."""
    try:
        tree = ast.parse(path.read_bytes())
    except (SyntaxError, ValueError):
        return False  # executing the file reports it
    return any(isinstance(node, ast.ImportFrom) and node.level for node in ast.walk(tree))


def _parse_module(text: str) -> ProgramFile:
    _on_path(os.getcwd())
    with _report_user_errors():
        try:
            spec = importlib.util.find_spec(text)
            if spec is not None and spec.submodule_search_locations is not None:
                spec = importlib.util.find_spec(f"{text}.__main__")
        except (ModuleNotFoundError, ValueError):
            spec = None
    if spec is None or not spec.origin or not spec.origin.endswith(".py"):
        scripts = [entry.name for entry in Path().glob("*.py")]
        raise UsageError(f"there is no file and no module {text}{nearest(f'{text}.py', scripts)}")
    root = Path(spec.origin).parents[spec.name.count(".")]
    return ProgramFile(path=spec.origin, root=str(root), module=spec.name if "." in spec.name else "")


def _target_on_path(target: ProgramFile) -> None:
    """Put the file's root, and then the folder of its package, on `sys.path`."""
    _on_path(target.root)
    if target.package_root and target.package_root not in sys.path:
        sys.path.insert(1, target.package_root)


def _on_path(folder: str) -> None:
    """Put a folder first on `sys.path`, in place of the folder of the `stoker` program."""
    if sys.path[:1] == [folder]:
        return
    command = os.path.dirname(os.path.abspath(sys.argv[0])) if sys.argv[:1] != [""] else ""
    if sys.path and command and sys.path[0] == command and os.path.basename(sys.argv[0]) == "stoker":
        sys.path[0] = folder
    else:
        sys.path.insert(0, folder)


def _install_stand_ins(target: ProgramFile) -> None:
    """Let `metaflow` be `stoker.flow` for a file with a flow of Metaflow's, `zenml` what stands for it for one with a
    pipeline of ZenML's, and both where there is no such package to import.

    A pipeline that reads Metaflow's results by the installed package goes on to do so.
    """
    try:
        tree = ast.parse(Path(target.path).read_bytes())
    except (SyntaxError, ValueError):
        return  # executing the file reports it
    nodes = list(ast.walk(tree))
    for stand_in, program in ((METAFLOW, "FlowSpec"), (ZENML, "pipeline")):
        names = {name for node in nodes for name in _names_of(stand_in.name, node)}
        if program in names or (names and not stand_in.is_there()):
            stand_in.install()
    ZENML.offer()  # a `run.py` imports pipelines from modules of its own


def _names_of(package: str, node: ast.AST) -> list[str]:
    """What a piece of code uses of a package; the package's name for the module itself."""
    if isinstance(node, ast.ImportFrom) and not node.level and (node.module or "").partition(".")[0] == package:
        return [alias.name for alias in node.names]
    if isinstance(node, ast.Import):
        return [root for alias in node.names if (root := alias.name.partition(".")[0]) == package]
    if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == package:
        return [node.attr]
    return []


def _spec(target: ProgramFile) -> ModuleSpec | None:
    if not target.module:
        return None
    with _report_user_errors():
        return importlib.util.find_spec(target.module)


def _code(path: str) -> Any:
    with open(path, "rb") as file:
        return compile(file.read(), path, "exec", dont_inherit=True)


def _same_file(module: ModuleType, path: str) -> bool:
    file = getattr(module, "__file__", None)
    return file is not None and os.path.realpath(file) == os.path.realpath(path)


@contextlib.contextmanager
def _report_user_errors() -> Iterator[None]:
    """Turn errors of the user's code into `ScriptFailed`, with the traceback that `python FILE` shows; settings that
    are refused where the file makes them say in which line that is."""
    try:
        yield
    except SettingsError as error:
        error.where = error.where or line_of_settings(error.__traceback__)
        raise
    except StokerError:
        raise
    except Exception as error:  # the user's file
        if not raised_by_user(error):
            raise
        text = user_traceback(error)
        missing = error.name if isinstance(error, ModuleNotFoundError) else None
        fix = _ELSEWHERE.get((missing or "").partition(".")[0], "")
        raise ScriptFailed(text + (f"\n  fix: {fix}" if fix else "")) from error
