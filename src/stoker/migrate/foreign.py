"""Which files are for other schedulers, and what translates each."""

from __future__ import annotations

import re
from typing import Callable, Final, Mapping

from stoker.core.errors import SourceError
from stoker.migrate import kfp, sbatch, skyfile, submitit
from stoker.migrate.scripts import Translation

Translate = Callable[[str, str], Translation]

_IMPORTS: Final = re.compile(r"^\s*(?:from\s+|import\s+(?:[\w., ]*\s)?)(submitit|kfp)\b", re.MULTILINE)
_PROGRAMS: Final[Mapping[str, Translate]] = {"submitit": submitit.translate, "kfp": kfp.translate}
"""Package that a Python program imports → what translates it."""


def translation_of(source: bytes, path: str) -> Translation | None:
    """The file in Stoker's words, if it is for a scheduler that is known here; None for any other file."""
    try:
        text = source.decode("utf-8")
    except UnicodeDecodeError:
        return None
    translate = _translator(text, path)
    if translate is None:
        return None
    made = translate(text, path)
    try:
        compile(made.text, path, "exec", dont_inherit=True)
    except SyntaxError as error:
        raise SourceError(f"was not migrated: it would be no Python: {error.msg}", where=path) from error
    return made


def _translator(text: str, path: str) -> Translate | None:
    if path.endswith(".py"):
        match = _IMPORTS.search(text)
        return None if match is None else _PROGRAMS[match[1]]
    if path.endswith((".yaml", ".yml")):
        return skyfile.translate if skyfile.is_task(text) else None
    return sbatch.translate if sbatch.is_sbatch(text) else None
