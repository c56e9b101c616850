"""A code object as bytes that change when what it does changes, and only then.

Comments, layout, annotations, docstrings, file names and line numbers are not in it. Constants stand where they are
used, not in their table, because a docstring shifts the table; `NOP`s, which some layouts leave behind, are left out.
"""

from __future__ import annotations

import dis
import hashlib
from types import CodeType
from typing import Any, Callable, Final

import attrs

_SKIPPED: Final = frozenset({"NOP", "CACHE", "RESUME", "EXTENDED_ARG", "PRECALL", "NOT_TAKEN"})
_UNTOLD: Final = frozenset({"__doc__", "__firstlineno__"})
_LOOKUPS: Final = frozenset({"LOAD_GLOBAL", "LOAD_NAME", "LOAD_FROM_DICT_OR_GLOBALS"})
_JUMPS: Final = frozenset({*dis.hasjrel, *dis.hasjabs})
_CONSTANTS: Final = frozenset(dis.hasconst)
_NAMED: Final = frozenset({*dis.hasname, *dis.haslocal, *dis.hasfree})


@attrs.frozen(kw_only=True, eq=False)
class Reading:
    """What a code object does (`digest`), and what it names: `globals`, `names` (attributes, too), and its own imports.

    `imports`: (level, module, names taken from it).
    """

    digest: bytes
    globals: frozenset[str]
    names: frozenset[str]
    imports: tuple[tuple[int, str, tuple[str, ...]], ...]
    code: CodeType


_readings: dict[int, Reading] = {}


def read(code: CodeType) -> Reading:
    """The reading of a code object and of those inside it; made once a process, for code never changes."""
    found = _readings.get(id(code))
    if found is None:
        found = _readings[id(code)] = _read(code)  # holds the code, so that no other gets its id
    return found


def constant_token(value: Any, code_token: Callable[[CodeType], bytes]) -> bytes:
    """A constant of code as bytes that are the same in every process."""
    if isinstance(value, CodeType):
        return b"code:" + code_token(value)
    if isinstance(value, tuple):
        return b"(" + b",".join(constant_token(item, code_token) for item in value) + b")"
    if isinstance(value, frozenset):
        # Its order follows the process's hash seed.
        return b"{" + b",".join(sorted(constant_token(item, code_token) for item in value)) + b"}"
    return f"{type(value).__name__}:{value!r}".encode("utf-8", "surrogatepass")


def _read(code: CodeType) -> Reading:
    names = set(code.co_names)
    looked_up: set[str] = set()
    imports: list[tuple[int, str, tuple[str, ...]]] = []

    def inner(found: CodeType) -> bytes:
        reading = read(found)
        names.update(reading.names)
        looked_up.update(reading.globals)
        imports.extend(reading.imports)
        return reading.digest

    instructions = _told([found for found in dis.get_instructions(code) if found.opname not in _SKIPPED])
    # A jump's target is the number of the instruction that it leads to, or of the next one that is not skipped.
    offsets = [found.offset for found in instructions]
    hasher = hashlib.sha256()
    for value in (
        code.co_argcount,
        code.co_kwonlyargcount,
        code.co_posonlyargcount,
        # How the function is called and what it is; not the flags of __future__ imports.
        code.co_flags & 0x3FF,
        code.co_freevars,
        code.co_cellvars,
        code.co_varnames[: code.co_argcount + code.co_kwonlyargcount],
    ):
        hasher.update(f"{value!r};".encode())
    for index, found in enumerate(instructions):
        hasher.update(found.opname.encode() + b" " + _argument(found, offsets, inner) + b"\n")
        if found.opname in _LOOKUPS:
            looked_up.add(found.argval)
        if found.opname == "IMPORT_NAME":
            level, taken = instructions[index - 2].argval, instructions[index - 1].argval
            imports.append((level or 0, str(found.argval), tuple(taken or ())))
    # Which instructions a try covers; empty before 3.11, where instructions say it.
    hasher.update(getattr(code, "co_exceptiontable", b""))
    return Reading(
        digest=hasher.digest(),
        globals=frozenset(looked_up),
        names=frozenset(names),
        imports=tuple(imports),
        code=code,
    )


def _told(instructions: list[dis.Instruction]) -> list[dis.Instruction]:
    """Without those by which a class's or module's body keeps its docstring and its line number."""
    found: list[dis.Instruction] = []
    for instruction in instructions:
        if instruction.opname == "STORE_NAME" and instruction.argval in _UNTOLD and found:
            found.pop()
        else:
            found.append(instruction)
    return found


def _argument(found: dis.Instruction, offsets: list[int], inner: Callable[[CodeType], bytes]) -> bytes:
    if found.opcode in _CONSTANTS:
        return constant_token(found.argval, inner)
    if found.opcode in _JUMPS:
        import bisect

        return b"%d" % bisect.bisect_left(offsets, found.argval)
    if found.opcode in _NAMED:
        return repr(found.argval).encode()
    return repr(found.arg).encode()
