"""Where something stands in the user's code, as a person reads it: "train.py:14"."""

from __future__ import annotations

import os
import sys
from types import CodeType, FrameType
from typing import Any, Final

from stoker.core.usercode import is_user_file

_OURS: Final = os.path.join(os.path.dirname(os.path.dirname(__file__)), "")
_COMMANDS: Final = "click"
"""The library that calls Stoker's commands: nothing below it is the user's, the installed script included."""
_shown: dict[tuple[str, str], str] = {}


def source_line(filename: str, line: int) -> str:
    """A file, relative to the working directory where it lies below it, and a line."""
    folder = _folder()
    name = _shown.get((folder, filename))
    if name is None:
        name = _shown[folder, filename] = _readable(filename, folder)
    return f"{name}:{line}"


def definition_line(function: Any) -> str:
    """Where a function is defined; its first decorator's line where it has one."""
    code = getattr(function, "__code__", None)
    return source_line(code.co_filename, code.co_firstlineno) if isinstance(code, CodeType) else caller()


def caller() -> str:
    """Where the user's code called into Stoker; empty where a command line did."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        file = frame.f_code.co_filename
        if not file.startswith(_OURS):
            if frame.f_globals.get("__name__", "").partition(".")[0] == _COMMANDS:
                return ""
            if is_user_file(file):
                return source_line(file, frame.f_lineno)
        frame = frame.f_back
    return ""


def _folder() -> str:
    try:
        return os.getcwd()
    except FileNotFoundError:  # it was removed
        return ""


def _readable(filename: str, folder: str) -> str:
    if filename.startswith("<"):
        return filename
    whole = os.path.abspath(filename) if folder else filename
    prefix = os.path.join(folder, "")
    return whole[len(prefix) :] if folder and whole.startswith(prefix) else os.path.basename(filename)
