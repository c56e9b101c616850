"""What one code object does and names, from its bytecode: computed once in a process for each code object.

Names are read as paths (`helpers.scale` is one), imports as what they name. Look-ups by name, such as
`getattr(helpers, "scale")` and `importlib.import_module("helpers")`, count as paths and imports where the name is a
literal; where it is not, they are listed, because nothing can say before a run which code they reach.

Names that a script gets from its main block are found, too: where steps run, `if __name__ == "__main__":` is not true.
A step that reads such a name would find another value than the driver has, or none, and its cache key would hold the
driver's. What is certain is told: the main block assigns the name itself, or by a function that only it calls, and the
value is not the one that the rest of the module gives.
"""

from __future__ import annotations

import ast
import bisect
import contextlib
import dis
import functools
import hashlib
import linecache
import os
import types
from types import CodeType
from typing import Any, Callable, Final, Iterable, Iterator, Mapping

from stoker.core.values import frozen

_SKIPPED: Final = frozenset({"NOP", "CACHE", "RESUME", "EXTENDED_ARG", "PRECALL", "NOT_TAKEN"})
_IGNORED_STORES: Final = frozenset({"__doc__", "__firstlineno__"})
_LOOKUPS: Final = frozenset({"LOAD_GLOBAL", "LOAD_NAME", "LOAD_FROM_DICT_OR_GLOBALS"})
_LOCALS: Final = frozenset({"LOAD_FAST", "LOAD_FAST_BORROW", "LOAD_FAST_CHECK", "LOAD_DEREF"})
_ATTRIBUTES: Final = frozenset({"LOAD_ATTR", "LOAD_METHOD"})
_CALLS: Final = frozenset({"CALL", "CALL_FUNCTION", "CALL_METHOD"})
_JUMPS: Final = frozenset({*dis.hasjrel, *dis.hasjabs})
_CONSTANTS: Final = frozenset(dis.hasconst)
_NAMED: Final = frozenset({*dis.hasname, *dis.haslocal, *dis.hasfree})
_ATTRIBUTE_READERS: Final = frozenset({"getattr", "hasattr"})
_EVALUATORS: Final = frozenset({"eval", "exec"})
_FILE_LOADERS: Final = frozenset({"spec_from_file_location", "run_path", "run_module", "resolve_name"})
"""Functions of importlib, runpy and pkgutil that load code by a path or a name."""
_ARGUMENT_READERS: Final = frozenset(
    {"argv", "parse_args", "parse_known_args", "parse_intermixed_args", "parse_known_intermixed_args"}
)
"""`sys.argv`, and the methods of argparse and its like that read it."""
_IMPORTERS: Final = frozenset({"import_module", "__import__"})

NamePath = tuple[str, ...]
Import = tuple[int, str, tuple[str, ...]]
"""(level, module, names that are imported from it) of an import statement."""


@frozen
class LookupSite:
    """A place where code is looked up by a name that no literal gives."""

    code: CodeType
    line: int
    name: str
    """The function or table that looks it up, as it is written: `importlib.import_module`."""

    @property
    def text(self) -> str:
        """The line of source; the name alone where the source is not to be had."""
        return linecache.getline(self.code.co_filename, self.line).strip() or self.name


@frozen(kw_only=True, eq=False)
class CodeReading:
    """What a code object, with those inside it, does and names."""

    digest: bytes
    """Changes when what the code does changes: not with comments, layout, annotations, docstrings or line numbers."""
    paths: tuple[NamePath, ...]
    """Names that are looked up in the module, with the attributes that are read from them, sorted. A name alone is used
    as a value."""
    imports: tuple[Import, ...]
    whole_module: bool
    """Whether it takes names from `globals()` that no literal gives, so that any code of its module may be used."""
    computed: tuple[NamePath, ...]
    """Names of which an attribute is read that no literal names: `getattr(helpers, name)`."""
    arguments: bool
    """Whether it reads the program's command line."""
    lookups: tuple[LookupSite, ...]
    code: CodeType
    """The code object, kept alive so that its id stays unique."""


_readings: dict[int, CodeReading] = {}


def read_code(code: CodeType) -> CodeReading:
    """The reading of a code object; made once in a process, since code objects do not change."""
    reading = _readings.get(id(code))
    if reading is None:
        reading = _readings[id(code)] = _Reader(code).reading()
    return reading


class _Reader:
    """Reads one code object."""

    def __init__(self, code: CodeType) -> None:
        self._code = code
        self._paths: set[NamePath] = set()
        self._imports: list[Import] = []
        self._whole_module = False
        self._computed: set[NamePath] = set()
        self._arguments = False
        self._lookups: list[LookupSite] = []
        # Constants count where they are used, not in their table, which a docstring shifts; NOPs are left by layouts.
        instructions = [item for item in dis.get_instructions(code) if item.opname not in _SKIPPED]
        self._instructions = _without_docstring(instructions)
        self._named = [item for item in self._instructions if item.opname != "PUSH_NULL"]

    def reading(self) -> CodeReading:
        digest = self._digest()
        self._read_names()
        return CodeReading(
            digest=digest,
            paths=tuple(sorted(self._paths)),
            imports=tuple(self._imports),
            whole_module=self._whole_module,
            computed=tuple(sorted(self._computed)),
            arguments=self._arguments,
            lookups=tuple(self._lookups),
            code=self._code,
        )

    def _add(self, nested: CodeType) -> bytes:
        reading = read_code(nested)
        self._paths.update(reading.paths)
        self._imports.extend(reading.imports)
        self._whole_module |= reading.whole_module
        self._computed.update(reading.computed)
        self._arguments |= reading.arguments
        self._lookups.extend(reading.lookups)
        return reading.digest

    def _digest(self) -> bytes:
        code = self._code
        # A jump's target is the number of the instruction that it leads to, or of the next one that is not skipped.
        offsets = [instruction.offset for instruction in self._instructions]
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
        for instruction in self._instructions:
            arguments = _argument_bytes(instruction, code, offsets, self._add)
            hasher.update(instruction.opname.encode() + b" " + arguments + b"\n")
        if getattr(code, "co_exceptiontable", b""):
            # Which instructions a try covers; empty before 3.11, where instructions say it.
            for entry in dis.Bytecode(code).exception_entries:  # type: ignore[attr-defined]
                bounds = [bisect.bisect_left(offsets, offset) for offset in (entry.start, entry.end, entry.target)]
                hasher.update(f"{bounds} {entry.depth} {entry.lasti};".encode())
        return hasher.digest()

    # Names

    def _read_names(self) -> None:
        attributes = {item.argval for item in self._named if item.opname in _ATTRIBUTES}
        self._arguments |= not _ARGUMENT_READERS.isdisjoint(attributes)
        index = 0
        while index < len(self._named):
            instruction = self._named[index]
            if instruction.opname == "IMPORT_NAME":
                level, names = self._named[index - 2].argval, self._named[index - 1].argval
                self._imports.append((level or 0, str(instruction.argval), tuple(names or ())))
                self._arguments |= instruction.argval == "sys" and "argv" in (names or ())
            elif instruction.opname in _ATTRIBUTES and instruction.argval == "__subclasses__":
                self._note((str(instruction.argval),), index)  # of what no name says
            path, following = self._path(index)
            index = self._follow(path, index, following) if path else index + 1

    def _path(self, index: int) -> tuple[NamePath, int]:
        """The path that begins at an instruction, empty if none does, and the index behind it."""
        instruction = self._at(index)
        if instruction is None or not (
            instruction.opname in _LOOKUPS
            or (instruction.opname in _LOCALS and instruction.argval in ("importlib", "sys", "import_module"))
        ):
            return (), index
        path = [str(instruction.argval)]
        index += 1
        while (following := self._at(index)) is not None and following.opname in _ATTRIBUTES:
            path.append(str(following.argval))
            index += 1
        return tuple(path), index

    def _follow(self, path: NamePath, index: int, following: int) -> int:
        """Note what a path reads; returns the index of the next instruction to look at."""
        if self._named[index].opname in _LOOKUPS:
            self._paths.add(path)
        if path[-1] in _IMPORTERS:
            self._follow_importer(path, index, following)
        elif path[-1] in _FILE_LOADERS or (len(path) == 1 and path[0] in _EVALUATORS):
            self._follow_evaluator(path, index, following)
        elif path[:2] == ("sys", "modules"):
            self._follow_loaded_modules(path, index, following)
        elif path == ("globals",):
            return self._follow_globals(following)
        elif len(path) == 1 and path[0] in _ATTRIBUTE_READERS:
            target, behind = self._path(following)
            name = self._text(behind)
            if target and name is not None:
                self._paths.add((*target, name))
                return behind + 1
            if target and self._named[following].opname in _LOOKUPS:
                self._computed.add(target)
        return following

    def _follow_importer(self, path: NamePath, index: int, following: int) -> None:
        name = self._text(following)
        if name is None:
            if self._is_used(following):
                self._note(path, index)
            return
        level = len(name) - len(name.lstrip("."))
        package = self._at(following + 1)
        if level and package is not None and isinstance(package.argval, str) and package.opname == "LOAD_CONST":
            base = package.argval.split(".")
            name, level = ".".join([*base[: len(base) - level + 1], name.lstrip(".")]), 0
        self._imports.append((level, name.lstrip("."), ()))

    def _follow_evaluator(self, path: NamePath, index: int, following: int) -> None:
        text = self._text(following) if path[0] in _EVALUATORS else None
        if text is None:
            if self._is_used(following):
                self._note(path, index)
            return
        try:
            # The text is compiled to be read, not run.
            self._add(compile(text, self._code.co_filename, path[0], dont_inherit=True))
        except (SyntaxError, ValueError):  # the step's own problem
            self._note(path, index)

    def _follow_loaded_modules(self, path: NamePath, index: int, following: int) -> None:
        if path not in (("sys", "modules"), ("sys", "modules", "get")):
            return
        name = self._text(following)
        after = self._at(following + 1)
        reads = path[-1] == "get" or (after is not None and _is_subscript(after))
        if name is not None:
            if reads:
                self._imports.append((0, name, ()))
            return
        key = self._at(following)
        if key is None or key.opname in ("CONTAINS_OP", "STORE_FAST", "POP_TOP", "GET_ITER", "RETURN_VALUE"):
            return
        if key.opname in _LOOKUPS and key.argval == "__name__":
            self._whole_module = True
        elif path[-1] == "get" or self._subscript_follows(following):
            self._note(path, index)

    def _follow_globals(self, following: int) -> int:
        call = self._at(following)
        if call is None or call.opname not in _CALLS:
            return following
        behind = following + 1
        after = self._at(behind)
        gets = after is not None and after.opname in _ATTRIBUTES and after.argval == "get"
        name = self._text(behind + 1 if gets else behind)
        if name is None:
            self._whole_module = True
            return behind
        self._paths.add((name,))
        return behind + 1

    def _note(self, path: NamePath, index: int) -> None:
        instruction = self._named[index]
        positions = getattr(instruction, "positions", None)
        line = positions.lineno if positions is not None else self._line_of(index)
        self._lookups.append(LookupSite(self._code, line or self._code.co_firstlineno, ".".join(path)))

    def _line_of(self, index: int) -> int:
        starts = [item.starts_line for item in self._named[: index + 1] if item.starts_line]
        return int(starts[-1]) if starts else self._code.co_firstlineno

    def _is_used(self, following: int) -> bool:
        """Whether a function that was loaded is called or handed on, not stored, returned or dropped."""
        after = self._at(following)
        return after is not None and not after.opname.startswith(("STORE_", "POP_TOP", "RETURN_"))

    def _subscript_follows(self, index: int) -> bool:
        """Whether an expression that begins here is soon the key of a subscript that is read."""
        for item in self._named[index : index + 12]:
            if item.opname.startswith(("STORE_", "POP_TOP")) or item.opname in ("CONTAINS_OP", "IS_OP"):
                return False
            if _is_subscript(item):
                return True
        return False

    def _at(self, index: int) -> dis.Instruction | None:
        return self._named[index] if index < len(self._named) else None

    def _text(self, index: int) -> str | None:
        """The text that an instruction loads; None for everything else."""
        instruction = self._at(index)
        loads = instruction is not None and instruction.opname == "LOAD_CONST" and isinstance(instruction.argval, str)
        return str(instruction.argval) if instruction is not None and loads else None


def _is_subscript(instruction: dis.Instruction) -> bool:
    return instruction.opname == "BINARY_SUBSCR" or (
        instruction.opname == "BINARY_OP" and instruction.argrepr == "[]"  # from 3.14 on
    )


def _without_docstring(instructions: list[dis.Instruction]) -> list[dis.Instruction]:
    """The instructions without those that store the docstring and the line number of a class or module."""
    remaining: list[dis.Instruction] = []
    for instruction in instructions:
        if instruction.opname == "STORE_NAME" and instruction.argval in _IGNORED_STORES and remaining:
            remaining.pop()
        else:
            remaining.append(instruction)
    return remaining


def _argument_bytes(
    instruction: dis.Instruction, code: CodeType, offsets: list[int], inner: Callable[[CodeType], bytes]
) -> bytes:
    if instruction.opname == "KW_NAMES" and instruction.arg is not None:  # dis leaves its value out
        return _constant_token(code.co_consts[instruction.arg], inner)
    if instruction.opcode in _CONSTANTS:
        return _constant_token(instruction.argval, inner)
    if instruction.opcode in _JUMPS:
        return b"%d" % bisect.bisect_left(offsets, instruction.argval)
    if instruction.opcode in _NAMED:
        return repr(instruction.argval).encode()
    return repr(instruction.arg).encode()


def _constant_token(value: Any, code_token: Callable[[CodeType], bytes]) -> bytes:
    """A constant of a code object as bytes that are the same in every process."""
    if isinstance(value, CodeType):
        return b"code:" + code_token(value)
    if isinstance(value, tuple):
        return b"(" + b",".join(_constant_token(item, code_token) for item in value) + b")"
    if isinstance(value, frozenset):
        # Its order follows the process's hash seed.
        return b"{" + b",".join(sorted(_constant_token(item, code_token) for item in value)) + b"}"
    return f"{type(value).__name__}:{value!r}".encode("utf-8", "surrogatepass")


_STORES: Final = frozenset({"STORE_NAME", "STORE_GLOBAL"})
_LOADS: Final = frozenset({"LOAD_NAME", "LOAD_GLOBAL"})


@frozen(kw_only=True)
class _Block:
    """What a script's main block does to the names of the module."""

    stored: Mapping[str, int]
    """Name → the first line of the block that says it, of names that the block itself assigns."""
    declared: Mapping[str, str]
    """Name → the function that assigns it, after `global`, and that only the block calls."""
    elsewhere: Mapping[str, Any]
    """Names that the rest of the module assigns → the value, where that is one literal; `_UNKNOWN` otherwise."""


_UNKNOWN: Final = object()
_NOTHING: Final = _Block(stored={}, declared={}, elsewhere={})


def names_of_main_block(functions: Iterable[types.FunctionType]) -> Iterator[str]:
    """Names that functions read and a script's main block sets, each with its place: `RATE (train.py:13)`.

    Functions of a module that is not the program of this process have none.
    """
    found: dict[str, str] = {}
    for function in functions:
        scope = function.__globals__
        if scope.get("__name__") != "__main__":
            continue
        block = _block_of(function.__code__.co_filename)
        for name in sorted({path[0] for path in read_code(function.__code__).paths}):
            place = _place(name, block, scope, os.path.basename(function.__code__.co_filename))
            if place:
                found.setdefault(name, f"{name} ({place})")
    yield from found.values()


def _place(name: str, block: _Block, scope: Mapping[str, Any], file: str) -> str:
    """Where the main block, or what it calls, sets a name; empty if the module's own value holds."""
    if name not in scope:
        return ""
    value = block.elsewhere.get(name, _UNKNOWN)
    if value is not _UNKNOWN and type(value) is type(scope[name]) and value == scope[name]:
        return ""
    if name in block.stored:
        # A module that is imported in both places is one module.
        same = isinstance(scope[name], types.ModuleType) and name in block.elsewhere
        return "" if same else f"{file}:{block.stored[name]}"
    if name in block.declared and (name not in block.elsewhere or value is not _UNKNOWN):
        return f"{file}, {block.declared[name]}()"
    return ""


def _block_of(file: str) -> _Block:
    try:
        status = os.stat(file)
        return _read(file, status.st_mtime_ns, status.st_size)
    except (SyntaxError, OSError, ValueError):
        return _NOTHING


@functools.lru_cache(maxsize=16)
def _read(file: str, mtime: int, size: int) -> _Block:
    with open(file, "rb") as source:
        tree = ast.parse(source.read(), file)
    inside: list[ast.stmt] = []
    outside: list[ast.stmt] = []
    for statement in tree.body:
        if isinstance(statement, ast.If) and _asks_for_main(statement.test):
            inside += statement.body
            outside += statement.orelse
        else:
            outside.append(statement)
    if not inside:
        return _NOTHING
    main, rest = _compiled(inside, file), _compiled(outside, file)
    stored = {name: _line_of(name, inside) for name in _names(main, _STORES)}
    bodies = {one.co_name: one for one in rest.co_consts if isinstance(one, types.CodeType)}
    at_import = _called(_names(rest, _LOADS), bodies)
    by_main = _called(_names(main, _LOADS), bodies) - at_import
    declared = {name: function for function in sorted(by_main) for name in _names(bodies[function], {"STORE_GLOBAL"})}
    return _Block(stored=stored, declared=declared, elsewhere=_values(outside, rest))


def _asks_for_main(test: ast.expr) -> bool:
    """Whether an expression is `__name__ == "__main__"`, either way round."""
    if not (isinstance(test, ast.Compare) and len(test.ops) == 1 and isinstance(test.ops[0], ast.Eq)):
        return False
    sides = (test.left, test.comparators[0])
    return any(isinstance(side, ast.Name) and side.id == "__name__" for side in sides) and any(
        isinstance(side, ast.Constant) and side.value == "__main__" for side in sides
    )


def _compiled(statements: list[ast.stmt], file: str) -> types.CodeType:
    return compile(ast.Module(body=statements, type_ignores=[]), file, "exec", dont_inherit=True)


def _names(code: types.CodeType, operations: Iterable[str]) -> list[str]:
    """The names in a code object's own instructions of some kinds; not of the code inside it."""
    return [str(item.argval) for item in dis.get_instructions(code) if item.opname in operations]


def _line_of(name: str, statements: list[ast.stmt]) -> int:
    """The first line at which statements say a name; the line of the first, if they say it in another form."""
    nodes = (node for statement in statements for node in ast.walk(statement))
    lines = [node.lineno for node in nodes if isinstance(node, ast.Name) and node.id == name]
    return min(lines, default=statements[0].lineno)


def _called(names: Iterable[str], bodies: Mapping[str, types.CodeType]) -> set[str]:
    """The functions of a module among some names, and those that these name in turn."""
    reached: set[str] = set()
    remaining = list(names)
    while remaining:
        name = remaining.pop()
        if name in bodies and name not in reached:
            reached.add(name)
            remaining += [path[0] for path in read_code(bodies[name]).paths]
    return reached


def _values(statements: list[ast.stmt], code: types.CodeType) -> Mapping[str, Any]:
    """Names that statements assign → the value, where the name is assigned once and that is a literal."""
    names = _names(code, _STORES)
    values: dict[str, Any] = dict.fromkeys(names, _UNKNOWN)
    for statement in statements:
        if isinstance(statement, ast.Assign):
            targets, value = statement.targets, statement.value
        elif isinstance(statement, ast.AnnAssign) and statement.value is not None:
            targets, value = [statement.target], statement.value
        else:
            continue
        for target in targets:
            if isinstance(target, ast.Name) and names.count(target.id) == 1:
                with contextlib.suppress(ValueError):
                    values[target.id] = ast.literal_eval(value)
    return values
