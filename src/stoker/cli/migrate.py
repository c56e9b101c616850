"""`stoker migrate FILE`: a pipeline of ZenML's or a flow of Metaflow's with Stoker's names.

How code is changed is `migrate.rewrite`, which needs the package libcst and is loaded here only.
"""

from __future__ import annotations

import contextlib
import difflib
import os
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from stoker.cli.output import json_option, paint, print_json
from stoker.core.errors import EXIT_FAILED, EXIT_SUCCEEDED, NotFound, SourceError, StokerError, UsageError
from stoker.core.plugins import resolve
from stoker.report.streams import echo, say

if TYPE_CHECKING:
    from stoker.migrate.names import MigrationNote
    from stoker.migrate.rewrite import Migration


@click.command("migrate")
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--write", is_flag=True, help="Change the file. Without it the changes are only shown.")
@click.option("--diff", is_flag=True, help="With --write or --json: show the changes, too.")
@json_option
def command(*, file: Path, write: bool, diff: bool, as_json: bool) -> int:
    """Rewrite a file's imports and settings from ZenML or Metaflow to Stoker.

    Shows what would change, and says of which lines somebody has to look after. With --write the file is replaced as a
    whole, or not at all. Ends with 1 where something is left to do by hand.
    """
    source = _read(file)
    migration: Migration = resolve("stoker.migrate.rewrite:migrate_source", extra="migrate")(source, str(file))
    changed = migration.before != migration.after
    if write and changed:
        replace(file, migration.after, expected=source)
    if as_json:
        print_json(document(file, migration, written=write and changed, diff=diff))
    else:
        _show(file, migration, write=write, diff=diff)
    return EXIT_FAILED if migration.by_hand else EXIT_SUCCEEDED


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
    lines = difflib.unified_diff(
        _text(migration.before), _text(migration.after), fromfile=str(file), tofile=f"{file} (migrated)", lineterm=""
    )
    return "\n".join(lines)


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
    except IsADirectoryError:
        raise SourceError("is a folder", where=str(file), fix="name its files one by one") from None
    except OSError as error:
        raise SourceError(f"cannot be read: {error.strerror or error}", where=str(file)) from None


def _show(file: Path, migration: Migration, *, write: bool, diff: bool) -> None:
    """The diff on stdout, what to say of it on stderr."""
    changed = migration.before != migration.after
    if changed and (diff or not write):
        for line in difference(file, migration).split("\n"):
            echo(paint(line, {"+": "32", "-": "31", "@": "36"}.get(line[:1], "")))
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
