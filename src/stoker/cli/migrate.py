"""`stoker migrate PATH`: a file, or a whole project, of ZenML's or Metaflow's with Stoker's names; or a file for
another scheduler as a pipeline, which `migrate.foreign` makes.

How code is changed is `migrate.rewrite`, and of a folder `migrate.project`, which need the package libcst and are
loaded here only.
"""

from __future__ import annotations

import contextlib
import difflib
import os
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Iterator, Sequence

import attrs
import click

from stoker.cli.output import json_option, paint, print_json
from stoker.core.errors import EXIT_FAILED, EXIT_SUCCEEDED, NotFound, SourceError, StokerError, UsageError
from stoker.core.plugins import resolve
from stoker.report.streams import echo, say

if TYPE_CHECKING:
    from stoker.migrate.names import MigrationNote
    from stoker.migrate.project import PipelineCall, ProjectFile
    from stoker.migrate.rewrite import Migration
    from stoker.migrate.scripts import Translation

_LARGEST: Final = 4 * 2**20
"""Bytes of a file that is looked into: notebooks with pictures are this large."""
_AT_ONCE: Final = 4
"""Pipelines that are planned at the same time, each in a process of its own."""
_ROOTS: Final = ("run.py", "requirements.txt", "pyproject.toml", "setup.py", "src")
"""What lies in the folder from which a project's files are run."""


@click.command("migrate")
@click.argument("file", type=click.Path(path_type=Path), metavar="PATH")
@click.option("--write", is_flag=True, help="Change the files. Without it the changes are only shown.")
@click.option("--diff", is_flag=True, help="Show the changes, with --write, --json and for a folder, too.")
@click.option("--plan/--no-plan", default=True, help="For a folder: plan its pipelines once it is migrated.")
@click.option("--output", type=click.Path(path_type=Path), metavar="FILE", help="The Python file that --write makes.")
@json_option
def command(*, file: Path, write: bool, diff: bool, plan: bool, output: Path | None, as_json: bool) -> int:
    """Rewrite a file, or all files of a folder, from ZenML or Metaflow to Stoker.

    An sbatch script, a program that uses submitit or KFP and a task of SkyPilot's become a Python file with a pipeline,
    which --write puts beside them.

    Shows what would change, and says of which lines somebody has to look after. With --write each file is replaced as a
    whole, or not at all; then the pipelines of a folder are planned, each with values of the right types. Ends with 1
    where something is left to do by hand, and where a pipeline does not plan.
    """
    if file.is_dir():
        return _migrate_folder(file, write=write, diff=diff, plan=plan, as_json=as_json)
    source = _read(file)
    translation: Translation | None = resolve("stoker.migrate.foreign:translation_of")(source, str(file))
    if translation is not None:
        return _translated(file, translation, output, write=write, as_json=as_json)
    migration: Migration = resolve("stoker.migrate.rewrite:migrate_file", extra="migrate")(source, str(file))
    changed = migration.before != migration.after
    if write and changed:
        replace(file, migration.after, expected=source)
    if as_json:
        print_json(document(file, migration, written=write and changed, diff=diff))
    else:
        _show(file, migration, write=write, diff=diff)
    return EXIT_FAILED if migration.by_hand else EXIT_SUCCEEDED


def _translated(file: Path, made: Translation, output: Path | None, *, write: bool, as_json: bool) -> int:
    """Show or write the pipeline that a file for another scheduler becomes, and say what it does not carry."""
    target = output or file.with_suffix(".py")
    if write:
        try:
            with target.open("x", encoding="utf-8") as stream:
                stream.write(made.text)
        except FileExistsError:
            fix = f"stoker migrate {file} --write --output FILE"
            raise UsageError("there is such a file already", where=str(target), fix=fix) from None
        except OSError as error:
            raise UsageError(f"cannot be written: {error.strerror or error}", where=str(target)) from error
    left = sum(note.level == "by hand" for note in made.notes)
    if as_json:
        notes = [_note(note) for note in made.notes]
        print_json({"file": str(file), "from": [made.framework], "written": write, "notes": notes, "text": made.text})
    else:
        if not write:
            echo(made.text.rstrip("\n"))
        for note in sorted(made.notes, key=lambda one: one.line):
            say(f"{file}:{note.line}: {note.level}: {note.name}: {note.message}")
        done = f"written from {made.framework}; `stoker plan {target}` shows it" if write else "--write writes it"
        say(f"{target}: {done}; {left or 'nothing'} left to do by hand")
    return EXIT_FAILED if left else EXIT_SUCCEEDED


def _note(note: MigrationNote) -> dict[str, Any]:
    return {"line": note.line, "level": note.level, "name": note.name, "told": note.message}


@attrs.frozen(kw_only=True)
class _Planned:
    """How a pipeline of the project planned."""

    call: PipelineCall
    code: int
    output: str

    @property
    def why(self) -> str:
        """Why it does not plan, in a line."""
        lines = [line.strip() for line in self.output.splitlines() if line.strip()]
        named = [line for line in lines if line.startswith(("error: ", "STK")) or " error: " in line]
        return next(iter(named), lines[-1] if lines else f"exit code {self.code}").removeprefix("error: ")


def _migrate_folder(folder: Path, *, write: bool, diff: bool, plan: bool, as_json: bool) -> int:
    """Migrate all files of a project, and say what is left in the order in which it is to be done."""
    texts = dict(_texts(folder))
    files: Sequence[ProjectFile] = resolve("stoker.migrate.project:migrate_project", extra="migrate")(texts)
    if write:
        for one in files:
            if one.changed:
                replace(folder / one.path, one.after, expected=one.before)
    plans = []
    if plan and (write or not any(one.changed for one in files)):
        calls: Iterator[PipelineCall] = resolve("stoker.migrate.project:pipelines_of")(dict(_texts(folder)))
        with ThreadPoolExecutor(_AT_ONCE) as pool:
            plans = list(pool.map(partial(_planned, folder), calls))
    left = sum(len(one.by_hand) for one in files)
    failing = [one for one in plans if one.code]
    if as_json:
        print_json(_folder_document(folder, files, plans, written=write, diff=diff))
    else:
        _show_folder(files, plans, write=write, diff=diff, left=left)
    return EXIT_FAILED if left or failing else EXIT_SUCCEEDED


def _texts(folder: Path) -> Iterator[tuple[str, bytes]]:
    """The files of a folder that a migration may concern, by path."""
    kind_of: Any = resolve("stoker.migrate.project:kind_of", extra="migrate")
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder).as_posix()
        if kind_of(name) is None or path.is_symlink() or not path.is_file() or path.stat().st_size > _LARGEST:
            continue
        yield name, _read(path)


def _planned(folder: Path, call: PipelineCall) -> _Planned:
    """Plan a pipeline in a process of its own, from the folder from which its project is run."""
    path = folder / call.path
    inside = [one for one in path.parents if one == folder or folder in one.parents]
    root = next((one for one in inside if any((one / name).exists() for name in _ROOTS)), folder)
    words = [word for name, value in call.arguments.items() for word in (f"--{name.replace('_', '-')}", value)]
    target = f"{path.relative_to(root)}:{call.name}"
    argv = [sys.executable, "-m", "stoker", "plan", target, *words, "--offline"]
    done = subprocess.run(argv, cwd=root, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL)
    return _Planned(call=call, code=done.returncode, output=done.stdout + done.stderr)


def _folder_document(
    folder: Path, files: Sequence[ProjectFile], plans: Sequence[_Planned], *, written: bool, diff: bool
) -> dict[str, Any]:
    return {
        "folder": str(folder),
        "files": [
            {
                "file": one.path,
                "kind": one.kind,
                "from": list(one.frameworks),
                "changed": one.changed,
                "written": written and one.changed,
                "notes": [_note(note) for note in one.notes],
                **({"diff": _difference(one.path, one.before, one.after)} if diff else {}),
            }
            for one in files
        ],
        "plans": [
            {
                "file": one.call.path,
                "pipeline": one.call.name,
                "plans": not one.code,
                "why": one.why if one.code else "",
            }
            for one in plans
        ],
    }


def _show_folder(
    files: Sequence[ProjectFile], plans: Sequence[_Planned], *, write: bool, diff: bool, left: int
) -> None:
    """The changes on stdout; on stderr what is left by hand, what differs, what was done, and what plans."""
    changed = [one for one in files if one.changed]
    for one in changed if diff else ():
        _echo_difference(_difference(one.path, one.before, one.after))
    for level in ("by hand", "differs", "hint"):
        for one in files:
            for note in one.notes:
                if note.level == level:
                    say(f"{one.path}:{note.line}: {level}: {note.name}: {note.message}")
    for one in changed:
        say(f"{one.path}: {'migrated' if write else 'would be migrated; --write does it'}")
    for done in plans:
        where = f"{done.call.path}:{done.call.name}"
        say(f"{where} plans" if not done.code else f"{where} does not plan: {done.why}")
    count = f"{len(changed)} files {'migrated' if write else 'to migrate'}"
    if plans:
        count += f", {sum(not done.code for done in plans)} of {len(plans)} pipelines plan"
    failing = any(done.code for done in plans)
    say(f"{count}; {left} left to do by hand" if left else count if failing else f"{count}; nothing left to do by hand")


def document(file: Path, migration: Migration, *, written: bool, diff: bool) -> dict[str, Any]:
    """A migration as JSON; a note's `line` is that of the file as it was, `new_line` as it is migrated."""
    changed = migration.before != migration.after
    notes = [
        {
            "line": note.line,
            "new_line": migration.new_line(note),
            "level": note.level,
            "name": note.name,
            "told": note.message,
        }
        for note in migration.notes
    ]
    document = {"file": str(file), "from": list(migration.frameworks), "changed": changed, "written": written}
    return {**document, "notes": notes, **({"diff": difference(file, migration)} if diff else {})}


def difference(file: Path, migration: Migration) -> str:
    """The changes as a unified diff."""
    return _difference(str(file), migration.before, migration.after)


def _difference(file: str, before: bytes, after: bytes) -> str:
    lines = difflib.unified_diff(_text(before), _text(after), fromfile=file, tofile=f"{file} (migrated)", lineterm="")
    return "\n".join(lines)


def _echo_difference(text: str) -> None:
    for line in text.split("\n"):
        echo(paint(line, {"+": "32", "-": "31", "@": "36"}.get(line[:1], "")))


def replace(file: Path, content: bytes, *, expected: bytes) -> None:
    """Put the content in the file's place: written beside it, then renamed. A link stays one, and a mode is kept."""
    target = file.resolve()
    beside = ""
    try:
        mode = target.stat().st_mode
        handle, beside = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.", suffix=".migrating")
        with os.fdopen(handle, "wb") as stream:
            stream.write(content)
            stream.flush()
            os.fsync(stream.fileno())
        os.chmod(beside, mode & 0o7777)
        if target.read_bytes() != expected:
            raise StokerError("was changed while it was being migrated", where=str(file), fix="call it again")
        os.replace(beside, target)
        beside = ""
    except OSError as error:
        raise UsageError(f"cannot be written: {error.strerror or error}", where=str(file)) from error
    finally:
        if beside:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(beside)


def _read(file: Path) -> bytes:
    try:
        return file.read_bytes()
    except FileNotFoundError:
        raise NotFound("there is no such file", where=str(file)) from None
    except OSError as error:
        raise SourceError(f"cannot be read: {error.strerror or error}", where=str(file)) from None


def _show(file: Path, migration: Migration, *, write: bool, diff: bool) -> None:
    """The diff on stdout, what to say of it on stderr."""
    changed = migration.before != migration.after
    if changed and (diff or not write):
        _echo_difference(difference(file, migration))
    for note in migration.notes:
        say(_line(file, migration, note, written=write and changed))
    if not migration.frameworks:
        say(f"{file}: nothing of ZenML or Metaflow is imported here")
        return
    what = " and ".join(migration.frameworks)
    if write:
        done = f"migrated from {what}" if changed else f"nothing to change, from {what}"
    else:
        done = f"would be migrated from {what}; --write does it" if changed else f"nothing to change, from {what}"
    left = len(migration.by_hand)
    say(f"{file}: {done}; {left or 'nothing'} left to do by hand")


def _line(file: Path, migration: Migration, note: MigrationNote, *, written: bool) -> str:
    line = migration.new_line(note) if written else note.line
    return f"{file}:{line}: {note.level}: {note.name}: {note.message}"


def _text(content: bytes) -> list[str]:
    return content.decode("utf-8", errors="replace").splitlines()
