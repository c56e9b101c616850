"""The digest of a function's code and of all code of the user's own that it reaches: part of its results' cache key.

What is reached forms a graph: functions, classes and modules are its nodes, names are its edges, values hang on them.
The digest is that of the graph as it is seen from the function, whatever its nodes are called: a step or a file may be
renamed, and a file may run as a script. Code counts by its bytecode, values by their pickle with references to nodes in
place of functions and classes, modules without importing them. Of other packages the names count here, and
`FunctionCode.packages` lists them: their versions are the environment's part of a cache key.
"""

from __future__ import annotations

import builtins
import copyreg
import enum
import functools
import hashlib
import os
import sys
import types
import typing
import weakref
from collections import deque
from contextvars import ContextVar
from types import CodeType, ModuleType
from typing import Any, Callable, Final, Iterable, Mapping, Sequence, Union

import attrs

from stoker.core.usercode import is_own_package, is_user_class, is_user_file, is_user_module
from stoker.core.values import frozen
from stoker.plan.codereading import CodeReading, LookupSite, NamePath, read_code
from stoker.plan.modulecode import imported_label, module_code, module_label, package_of, package_root, patches
from stoker.plan.objects import (
    CONTAINERS,
    PARTIALS,
    SIMPLE,
    HashingFile,
    HashingPickler,
    PartKind,
    annotation_classes,
    annotations_of,
    attributes_of,
    closure_of,
    current_value,
    hides_state,
    is_logger,
    is_made_dataclass,
    is_own_callable,
    is_plain_or_own,
    is_user_function,
    label_of,
    own_attribute,
    source_lines,
    unwrapped,
)

FORMAT: Final = b"stoker-code-2"
"""Version of the digests' computation."""
_MODULE_ATTRIBUTES: Final = frozenset(
    {
        "__name__",
        "__file__",
        "__doc__",
        "__spec__",
        "__loader__",
        "__package__",
        "__builtins__",
        "__path__",
        "__cached__",
        "__dict__",
    }
)
"""Attributes that Python sets on a module; they say where it is, not what it does."""
_CLASS_ATTRIBUTES: Final = frozenset(
    {
        "__module__",
        "__qualname__",
        "__doc__",
        "__dict__",
        "__weakref__",
        "__slotnames__",
        "__annotations__",
        "__annotate__",
        "__annotate_func__",
        "__annotations_cache__",
        "__firstlineno__",
        "__static_attributes__",
        "__parameters__",
        "__orig_bases__",
        "__abstractmethods__",
        "__signature__",
        "__subclasshook__",
        "__protocol_attrs__",
        "__non_callable_proto_members__",
        "__dataclass_fields__",
        "__dataclass_params__",
        "__attrs_attrs__",
        "__attrs_props__",
        "__attrs_own_setattr__",
    }
)
"""Attributes that Python, dataclasses and attrs set on a class, derived from what counts by itself."""
_FIELD_TABLES: Final = ("__dataclass_fields__", "__attrs_attrs__", "__pydantic_fields__", "model_fields")
"""Class attributes in which libraries keep the fields of a class with their defaults."""
_FIELD_ATTRIBUTES: Final = ("default", "default_factory", "validator", "converter", "on_setattr", "metadata")
_BAGS: Final = frozenset({("argparse", "Namespace"), ("types", "SimpleNamespace")})
"""Types of objects that do nothing but have attributes."""
_STATE_DEPTH: Final = 3
"""Levels of attributes that are read of an object that cannot be pickled."""
_ABSENT: Final = object()

Piece = Union[bytes, "_Node"]
Pieces = Sequence[Piece]


@frozen(kw_only=True)
class CodePart:
    """One part of the code that a function reaches; two readings' parts show which code differs."""

    label: str
    """Its name, independent of the folder of its file: `helpers.scale`, `train.fit → LR`, `import helpers`. Two
    parts of one name are numbered: `helpers.make.<locals>.inner#2`."""
    digest: str
    """Sixteen hexadecimal characters that change with the part."""
    kind: PartKind
    """`value` is a global's value; `module` is a module of which all code counts."""
    file: str
    """The source file's path; empty for values, and for code that is in no file."""
    first_line: int
    """The first line of the source, decorators included; 0 without a file, and for a module."""
    last_line: int
    """The last line of the source; 0 without a file, and for a module."""


@frozen(kw_only=True)
class UnresolvedLookup:
    """A place in the user's own code that finds code by a name which is known only when it runs."""

    file: str
    line: int
    expression: str
    """The line of source."""

    def __str__(self) -> str:
        return f"{os.path.basename(self.file)}:{self.line}"


class FunctionCode:
    """The code of a function, or of several objects, and all code of the user's own that they reach."""

    def __init__(
        self, digest: str, nodes: Sequence[_Node], packages: Iterable[str], sites: Iterable[LookupSite]
    ) -> None:
        self.digest = digest
        """The hexadecimal SHA-256; the versions of packages are no part of it."""
        self.packages: tuple[str, ...] = tuple(sorted({package_root(name) for name in packages} - {""}))
        """The packages that the code names, and extension modules of the user's own; `installed.identity` of each is
        part of the environment."""
        self._nodes = nodes
        self._sites = sites

    @functools.cached_property
    def values(self) -> Mapping[str, Any]:
        """The object of each part, by its label; a module's is its code."""
        values = {f"{node.label} → {name}": value for node in self._nodes for name, value in node.objects.items()}
        return {**values, **{node.label: node.value for node in self._nodes}}

    @functools.cached_property
    def lookups(self) -> tuple[UnresolvedLookup, ...]:
        """Where the code looks up code by name, so that the digest cannot know which."""
        sites = {(site.code.co_filename, site.line): site for site in self._sites}
        return tuple(
            UnresolvedLookup(file=file, line=line, expression=site.text) for (file, line), site in sorted(sites.items())
        )

    @functools.cached_property
    def lookup_places(self) -> tuple[str, ...]:
        """The same places as texts."""
        return tuple(map(str, self.lookups))

    @functools.cached_property
    def of_main_block(self) -> tuple[str, ...]:
        """Names that the code reads and the main block of the program sets, each with its place."""
        from stoker.plan.codereading import names_of_main_block  # a module's functions have none

        functions = (node.value for node in self._nodes if isinstance(node.value, types.FunctionType))
        return tuple(names_of_main_block(functions))

    @functools.cached_property
    def parts(self) -> tuple[CodePart, ...]:
        """The function itself, then what it reaches, sorted by label; source lines are looked up on first use."""
        parts = [part for node in self._nodes for part in node.parts()]
        first, rest = parts[:1], sorted(parts[1:], key=lambda part: (part.label, part.digest))
        numbers: dict[str, int] = {}
        unique = []
        for part in (*first, *rest):
            number = numbers[part.label] = numbers.get(part.label, 0) + 1
            unique.append(part if number == 1 else attrs.evolve(part, label=f"{part.label}#{number}"))
        return tuple(unique)


def read_function_code(function: Callable[..., Any]) -> FunctionCode:
    """Read a function's code and what it reaches."""
    return read_code_of({"": function})


def read_code_of(roots: Mapping[str, Any]) -> FunctionCode:
    """Read the code of several objects and what they reach, as one; their names count, their order does not."""
    walk = _Walk()
    content: list[Piece] = []
    for name in sorted(roots):
        content.append(_pack("root", name))
        content.extend(walk.pieces(roots[name]))
    return _finished(walk, content)


def _finished(walk: _Walk, content: Sequence[Piece]) -> FunctionCode:
    root = _Node("", None, "value")
    root.content.extend(content)
    walk.finish(root)
    order = [root]
    root.number = 0
    hasher = hashlib.sha256(FORMAT)
    for node in order:  # grows while it is iterated over
        for piece in node.pieces():
            if isinstance(piece, bytes):
                hasher.update(piece)
                continue
            if piece.number is None:
                piece.number = len(order)
                order.append(piece)
            hasher.update(b"#%d;" % piece.number)
        hasher.update(b"|")
    return FunctionCode(hasher.hexdigest(), order[1:], walk.packages, walk.sites)


def read_module_code(name: str) -> FunctionCode | None:
    """Read all code of a module of the user's own, without importing it; None for any other module."""
    walk = _Walk()
    node = walk.imported_module(name)
    return None if node is None else _finished(walk, [node])


class _Edges(dict[str, "Pieces"]):
    """What the names of a node stand for."""

    def __init__(self) -> None:
        super().__init__()
        self.objects: dict[str, Any] = {}
        """The objects that the names stand for, of globals and attributes of modules."""


class _Node:
    """A function, a class or a module of the user's own, with what its code says and the names that it uses."""

    __slots__ = ("content", "edges", "kind", "label", "number", "objects", "value")

    def __init__(self, label: str, value: Any, kind: PartKind) -> None:
        self.label = label
        self.value = value
        """The object, kept alive so that its id stays unique; a module's code."""
        self.kind = kind
        self.content: list[Piece] = []
        self.edges: list[tuple[str, Pieces]] = []
        self.objects: Mapping[str, Any] = {}
        self.number: int | None = None
        """Its place in the order in which the digest comes to it, which is the same in every process."""

    def pieces(self) -> Iterable[Piece]:
        """What the digest is computed from."""
        yield from self.content
        for name, pieces in self.edges:
            yield _pack("edge", name)
            yield from pieces

    def parts(self) -> Iterable[CodePart]:
        """The node as a part, without its names' values, and each of these as a part of its own."""
        own: list[Piece] = list(self.content)
        values = []
        for name, pieces in self.edges:
            if len(pieces) == 1 and isinstance(pieces[0], _Node):
                own += [_pack("edge", name), *pieces]
            else:
                values.append(self._part(f"{self.label} → {name}", pieces, "value", "", (0, 0)))
        file, lines = source_lines(self.value, self.kind)
        yield self._part(self.label, own, self.kind, file, lines)
        yield from values

    def _part(self, label: str, pieces: Pieces, kind: PartKind, file: str, lines: tuple[int, int]) -> CodePart:
        hasher = hashlib.sha256()
        for piece in pieces:
            hasher.update(piece if isinstance(piece, bytes) else _pack("node", piece.label))
        digest = hasher.hexdigest()[:16]
        return CodePart(label=label, digest=digest, kind=kind, file=file, first_line=lines[0], last_line=lines[1])


class _Walk:
    """Follows objects to everything that they reach; nodes are filled from a queue, so that recursion ends."""

    def __init__(self) -> None:
        self.packages: set[str] = set()
        self.sites: list[LookupSite] = []
        self._nodes: dict[int, _Node] = {}
        self._modules: dict[str, _Node | None] = {}
        self._queue: deque[tuple[_Node, Callable[[_Node], None]]] = deque()
        self._in_progress: dict[int, int] = {}
        self._values: dict[int, tuple[Any, Pieces]] = {}
        self._homes: dict[str, ModuleType] = {}
        self._kinds_checked: set[int] = set()

    def finish(self, root: _Node) -> None:
        """Fill all nodes; what the user's modules changed in packages becomes part of the root."""
        self._empty_queue()
        changed: dict[str, Pieces] = {}
        for path, value in patches(self._homes.values()):
            if callable(value) and not is_own_callable(value):
                continue  # an attribute that the code can change, and did not
            changed[".".join(path)] = self.pieces(value)
        root.edges = sorted((f"changed {path}", pieces) for path, pieces in changed.items())
        self._empty_queue()

    def _empty_queue(self) -> None:
        while self._queue:
            node, fill = self._queue.popleft()
            fill(node)

    def pieces(self, value: Any) -> Pieces:
        """What stands for an object: a node, or bytes with the nodes that they refer to."""
        value = unwrapped(value)
        kind = type(value)
        if kind in SIMPLE:
            return (_pack(kind.__name__, repr(value)),)
        if kind is types.FunctionType and is_user_function(value):
            return (self._node(label_of(value), value, "function", self._fill_function),)
        if isinstance(value, type) and (is_user_class(value) or is_made_dataclass(value)):
            return (self._node(label_of(value), value, "class", self._fill_class),)
        cached = self._values.get(id(value))
        if cached is not None:
            return cached[1]
        depth = self._in_progress.get(id(value))
        if depth is not None:
            return (_pack("again", str(len(self._in_progress) - depth)),)
        self._in_progress[id(value)] = len(self._in_progress)
        try:
            pieces = _joined(self._other_pieces(value, kind))
        finally:
            del self._in_progress[id(value)]
        self._values[id(value)] = (value, pieces)  # the value is kept alive, so that its id stays unique
        return pieces

    def _node(self, label: str, value: Any, kind: PartKind, fill: Callable[[_Node], None]) -> _Node:
        node = self._nodes.get(id(value))
        if node is None:
            node = self._nodes[id(value)] = _Node(label, value, kind)
            self._queue.append((node, fill))
        return node

    def _add_home(self, name: str | None) -> None:
        module = sys.modules.get(name or "")
        if module is not None and name is not None and name not in self._homes:
            self._homes[name] = module

    # Functions

    def _fill_function(self, node: _Node) -> None:
        function: types.FunctionType = node.value
        scope = function.__globals__
        reading = read_code(function.__code__)
        self._add_home(scope.get("__name__"))
        node.content += [_pack("function"), reading.digest]
        for part in (function.__defaults__ or (), function.__kwdefaults__ or {}):
            node.content += self.pieces(part)
        for name, value in sorted(closure_of(function), key=lambda item: item[0]):
            node.content.append(_pack("cell", name))
            node.content += self.pieces(value)
        attributes = {name: value for name, value in vars(function).items() if not name.startswith("__stoker")}
        if attributes:
            node.content += self.pieces(attributes)
        edges = _Edges()
        self._follow_reading(reading, scope, edges)
        for kind in annotation_classes(function.__annotations__, scope):
            edges[f"annotation {kind.__qualname__}"] = self.pieces(kind)
        node.edges, node.objects = sorted(edges.items(), key=lambda edge: edge[0]), edges.objects

    def _follow_reading(self, reading: CodeReading, scope: dict[str, Any], edges: _Edges) -> None:
        for path in reading.paths:
            self._follow_path(path, scope, edges)
            if path[-1] == "__subclasses__":
                self._follow_subclasses(path, scope, edges)
        for path in reading.computed:
            self._follow_computed(path, scope, edges)
        package = scope.get("__package__") or ""
        for imported in reading.imports:
            self._follow_import(*imported, package, edges)
        if reading.whole_module:
            self._follow_own_module(scope, edges)
        if reading.arguments:
            edges["sys.argv"] = _argument_pieces()
        # A function of the user's own may be called eval or import_module.
        self.sites += [site for site in reading.lookups if not is_own_callable(scope.get(site.name.partition(".")[0]))]

    def _follow_path(self, path: NamePath, scope: dict[str, Any], edges: _Edges) -> None:
        """Follow a name of the module and the attributes that are read from it, as far as they are modules."""
        name = path[0]
        if name in _MODULE_ATTRIBUTES:
            return
        if name not in scope:
            replaced = vars(builtins).get(name)
            if is_own_callable(replaced):
                edges[name] = self.pieces(replaced)
            return
        value = scope[name]
        kind = type(value)
        if (kind.__module__, kind.__qualname__) in _BAGS and len(path) > 1 and path[1] in vars(value):
            # Of arguments that a script has parsed those count that the code reads.
            label, value = f"{name}.{path[1]}", vars(value)[path[1]]
            edges[label], edges.objects[label] = self.pieces(value), value
            return
        if value is sys.argv:
            edges[name] = _argument_pieces()
            return
        if not isinstance(value, ModuleType):
            if name not in edges:
                edges[name], edges.objects[name] = self.pieces(value), value
                self._check_kind(value, name, edges)
            return
        label = name
        for attribute in path[1:]:
            own = is_user_module(value)
            edges[label] = (_pack("module", "" if own else value.__name__),)
            if not own:
                self._add_package(value.__name__)
            contents = vars(value)
            if attribute in _MODULE_ATTRIBUTES:
                if attribute == "__dict__" and own:
                    edges[f"{label}.*"] = self._whole_module(value)
                return
            following = contents.get(attribute, _ABSENT)
            label = f"{label}.{attribute}"
            if following is _ABSENT:
                self._follow_absent(value, attribute, label, edges)
                return
            value = following
            if not isinstance(value, ModuleType):
                # What a package keeps in its own attributes counts by the package's version, unless it was replaced.
                if own or is_own_callable(value):
                    edges[label], edges.objects[label] = self.pieces(value), value
                self._check_kind(value, label, edges)
                return
        edges[label] = self.pieces(value)

    def _follow_absent(self, module: ModuleType, attribute: str, label: str, edges: _Edges) -> None:
        """Follow an attribute that a module's `__getattr__` makes, or a submodule that is not imported yet."""
        if not is_user_module(module):
            return
        maker = vars(module).get("__getattr__")
        if maker is not None:
            edges[f"{label} by __getattr__"] = self.pieces(maker)
        inner = self.imported_module(f"{module.__name__}.{attribute}")
        if inner is not None:
            edges[label] = (inner,)

    def _follow_subclasses(self, path: NamePath, scope: dict[str, Any], edges: _Edges) -> None:
        """Follow the user's classes that `Base.__subclasses__()` finds now."""
        value = _value_of(path[:-1], scope)
        remaining = [value] if isinstance(value, type) else []
        while remaining:
            found: list[type] = type.__subclasses__(remaining.pop())
            for kind in found:
                remaining.append(kind)
                if is_user_class(kind):
                    edges[f"{path[-2]} > {label_of(kind)}"] = self.pieces(kind)

    def _follow_computed(self, path: NamePath, scope: dict[str, Any], edges: _Edges) -> None:
        """Follow what `getattr(module, name)` may find beside the module's own code: submodules of the user's, and
        what was put into the module."""
        module = _value_of(path, scope)
        if not isinstance(module, ModuleType):
            return
        label = ".".join(path)
        for name, value in vars(module).items():
            if is_own_callable(value) and getattr(unwrapped(value), "__module__", None) != module.__name__:
                edges[f"{label}.{name}"] = self.pieces(value)
        if is_user_module(module):
            import pkgutil

            for found in pkgutil.iter_modules(getattr(module, "__path__", ())):
                self._follow_absent(module, found.name, f"{label}.{found.name}", edges)

    def _check_kind(self, value: Any, label: str, edges: _Edges) -> None:
        """Follow methods that the user put into another package's class."""
        if isinstance(value, type) and not is_user_class(value) and id(value) not in self._kinds_checked:
            self._kinds_checked.add(id(value))
            members = ((base, *item) for base in value.__mro__ for item in vars(base).items())
            for base, name, member in members:
                if (
                    isinstance(member, types.FunctionType)
                    and is_user_file(member.__code__.co_filename)
                    and is_own_callable(member)
                    and base.__module__ != member.__module__
                ):
                    edges[f"{label}.{name}"] = self.pieces(member)

    # Modules

    def _whole_module(self, module: ModuleType) -> Pieces:
        """A module of the user's own all of whose code counts, because it is used as a value."""
        node = self.imported_module(module.__name__, module)
        if node is not None:
            return (node,)
        file = getattr(module, "__file__", None)
        if file and is_user_file(file):  # an extension module
            self.packages.add(module.__name__)
            return (_pack("module", module_label(module)),)
        if not file and not hasattr(module, "__path__"):  # made by hand, or typed into a notebook
            own = {name: item for name, item in vars(module).items() if is_own_callable(item)}
            return [piece for name in sorted(own) for piece in (_pack("name", name), *self.pieces(own[name]))]
        return (_pack("module", module_label(module)),)

    def _follow_own_module(self, scope: dict[str, Any], edges: _Edges) -> None:
        module = sys.modules.get(scope.get("__name__") or "")
        if module is not None and vars(module) is scope:
            edges["globals()"] = self._whole_module(module)
        else:
            own = {name: item for name, item in scope.items() if is_own_callable(item)}
            edges.update({name: self.pieces(item) for name, item in own.items()})

    def _follow_import(self, level: int, module: str, names: Iterable[str], package: str, edges: _Edges) -> None:
        """Follow an import inside a function: a module of the user's own counts as a whole, loaded or not."""
        if level:
            parts = package.split(".")
            base = ".".join(parts[: len(parts) - level + 1])
            module = f"{base}.{module}" if module and base else module or base
        parts = module.split(".")
        parents = [".".join(parts[:count]) for count in range(1, len(parts))]
        for name in (*parents, module, *(f"{module}.{item}" for item in names)):
            node = self.imported_module(name)
            if node is not None:
                edges[f"import {name}"] = (node,)

    def imported_module(self, name: str, module: ModuleType | None = None) -> _Node | None:
        """The node of a module of the user's own as a whole; None for any other, which is noted as a package."""
        if name in self._modules:
            return self._modules[name]
        code = module_code(name, module)
        if code is None:
            self._modules[name] = None
            self._add_package(name)
            return None
        node = self._modules[name] = _Node(f"import {imported_label(name, module)}", code, "module")
        self._queue.append((node, functools.partial(self._fill_module, package=package_of(name, module))))
        return node

    def _fill_module(self, node: _Node, package: str) -> None:
        reading = read_code(node.value)
        node.content += [_pack("module"), reading.digest]
        edges = _Edges()
        for imported in reading.imports:
            self._follow_import(*imported, package, edges)
        if reading.arguments:
            edges["sys.argv"] = _argument_pieces()
        node.edges, node.objects = sorted(edges.items(), key=lambda edge: edge[0]), edges.objects
        self.sites += reading.lookups

    def _add_package(self, name: str) -> None:
        if not is_own_package(name):
            self.packages.add(name)

    # Classes

    def _fill_class(self, node: _Node) -> None:
        kind: type = node.value
        self._add_home(kind.__module__)
        content = node.content
        content.append(_pack("class", kind.__qualname__))
        for base in kind.__bases__:
            content += self.pieces(base)
        if type(kind) is not type:
            content += self.pieces(type(kind))
        members: Mapping[str, Any] | None = kind.__members__ if isinstance(kind, enum.EnumMeta) else None
        for name, value in sorted(vars(kind).items()):
            if name in _CLASS_ATTRIBUTES or name.startswith(("_abc_", "__pydantic_", "_pydantic_")):
                continue
            if members is not None and name.startswith("_") and not callable(value):
                continue
            if isinstance(value, (types.GetSetDescriptorType, types.MemberDescriptorType)):
                content.append(_pack("slot", name))
                continue
            content.append(_pack("member", name))
            content += self.pieces(members[name].value if members is not None and name in members else value)
        has_fields = False
        for table in _FIELD_TABLES:
            fields = vars(kind).get(table)
            if fields and not isinstance(fields, (property, classmethod)):
                has_fields = True
                content += self._field_pieces(fields)
        if has_fields or type(kind) is not type or hasattr(kind, "_fields"):
            # Libraries read what such a class's annotations say.
            for name, annotation in annotations_of(kind).items():
                content.append(_pack("annotation", name))
                content += self.pieces(annotation)

    def _field_pieces(self, fields: Any) -> list[Piece]:
        """What a dataclass's, attrs class's or pydantic model's fields say."""
        rows = fields.items() if isinstance(fields, dict) else [(field.name, field) for field in fields]
        pieces: list[Piece] = []
        for name, field in rows:
            pieces.append(_pack("field", name))
            for attribute in _FIELD_ATTRIBUTES:
                value = getattr(field, attribute, None)
                if attribute == "metadata" and not value:
                    continue
                # A library's own mark for "none" has no value of interest.
                is_mark = type(value).__name__.upper().startswith(("_MISSING", "MISSING", "_NOTHING"))
                if value is not None and not is_mark:
                    pieces += [_pack(attribute), *self.pieces(value)]
        return pieces

    # Everything else

    def _other_pieces(self, value: Any, kind: type) -> Iterable[Piece]:
        if kind in CONTAINERS:
            return self._container_pieces(value, kind)
        if isinstance(value, types.FunctionType):
            return self._external_function(value)
        if isinstance(value, type):
            return (self._external(value),)
        if isinstance(value, ModuleType):
            if is_user_module(value):
                return self._whole_module(value)
            self._add_package(value.__name__)
            return (_pack("module", value.__name__),)
        if isinstance(value, types.MethodType):
            return [_pack("method"), *self.pieces(value.__func__), *self.pieces(value.__self__)]
        if isinstance(value, (staticmethod, classmethod)):
            return [_pack(kind.__name__), *self.pieces(value.__func__)]
        if isinstance(value, property):
            functions = (value.fget, value.fset, value.fdel)
            return [_pack("property"), *(piece for part in functions for piece in self.pieces(part))]
        if isinstance(value, PARTIALS):
            rest = (getattr(value, "args", ()), getattr(value, "keywords", {}))
            return [_pack(kind.__name__), *(piece for part in (value.func, *rest) for piece in self.pieces(part))]
        if isinstance(value, types.BuiltinFunctionType):
            return self._builtin_pieces(value)
        return self._object_pieces(value, kind)

    def _object_pieces(self, value: Any, kind: type) -> Iterable[Piece]:
        wrapped = own_attribute(value, "__wrapped__")
        if wrapped is not None and callable(value) and not is_user_class(kind):
            return [_pack("wrapper"), self._external(kind), *self.pieces(wrapped)]
        if isinstance(value, (list, tuple, set, frozenset, dict)):
            base = next(base for base in (list, tuple, set, frozenset, dict) if isinstance(value, base))
            extras = {"attributes": attributes_of(value), "factory": getattr(value, "default_factory", None)}
            return [*self.pieces(kind), *self._container_pieces(value, base), *self.pieces(extras)]
        if is_logger(value):
            return (_pack("logger"),)  # named after its module, which is `__main__` in a script
        if isinstance(value, ContextVar):
            return [_pack("context variable", value.name), *self.pieces(current_value(value))]
        if isinstance(value, CodeType):
            return (read_code(value).digest,)
        if isinstance(value, memoryview):
            return (_pack("memoryview", value.tobytes()),)
        if isinstance(value, weakref.ref):
            return [_pack("reference"), *self.pieces(value())]
        if isinstance(value, typing.TypeVar):
            return [_pack("type variable", value.__name__), *self.pieces(value.__bound__)]
        arguments = typing.get_args(value)
        if arguments:
            parts = (typing.get_origin(value), *arguments, getattr(value, "__metadata__", ()))
            return [_pack("type"), *(piece for part in parts for piece in self.pieces(part))]
        return self._pickle_pieces(value, kind)

    def _container_pieces(self, value: Any, kind: type) -> list[Piece]:
        pieces: list[Piece] = [_pack(kind.__name__, str(len(value)))]
        if kind in (list, tuple):
            return pieces + [piece for item in value for piece in self.pieces(item)]
        if kind in (set, frozenset):
            # Its order follows the process's hash seed.
            items = sorted((list(self.pieces(item)) for item in value), key=_sort_key)
            return pieces + [piece for item in items for piece in item]
        # The order of a dict's keys is part of what it does.
        return pieces + [piece for item in value.items() for part in item for piece in self.pieces(part)]

    def _external_function(self, function: types.FunctionType) -> list[Piece]:
        """A function of a package; of a decorator's what it wraps and was given."""
        # Wrappers copy the name and the module of what they wrap; their code and globals are their own.
        module = str(function.__globals__.get("__name__", ""))
        self._add_package(module)
        pieces: list[Piece] = [_pack("external", module, function.__code__.co_name)]
        for name, value in sorted(closure_of(function), key=lambda item: item[0]):
            if is_plain_or_own(value):
                pieces += [_pack("cell", name), *self.pieces(value)]
        wrapped = vars(function).get("__wrapped__")
        return pieces if wrapped is None else [*pieces, *self.pieces(wrapped)]

    def _builtin_pieces(self, value: Any) -> list[Piece]:
        owner = getattr(value, "__self__", None)
        if owner is None or isinstance(owner, ModuleType):
            return [self._external(value)]
        return [_pack("method", value.__name__), *self.pieces(owner)]

    def _external(self, value: Any) -> bytes:
        module = str(getattr(value, "__module__", "") or "")
        self._add_package(module)
        return _pack("external", module, getattr(value, "__qualname__", type(value).__qualname__))

    def _pickle_pieces(self, value: Any, kind: type) -> list[Piece]:
        if not is_user_class(kind):
            self._add_package(kind.__module__)
        for fast in (True, False):  # an object that contains itself needs the memo
            file, references = HashingFile(), list[Any]()
            try:
                HashingPickler(file, value, references, fast=fast).dump(value)
            except Exception:  # the object's own pickling code runs here, and many objects cannot be pickled
                continue
            pieces: list[Piece] = [_pack("pickle", file.sha256.digest())]
            for reference in references:
                pieces += self.pieces(reference)
            return [*pieces, *self._state_pieces(value, kind)] if hides_state(kind) else pieces
        return self._state_pieces(value, kind)

    def _state_pieces(self, value: Any, kind: type) -> list[Piece]:
        """An object that cannot be pickled: its class, and its attributes as far as they are plain or the user's."""
        pieces: list[Piece] = [_pack("object"), *self.pieces(kind)]
        if len(self._in_progress) > _STATE_DEPTH * 4:
            return pieces
        slots = {name: getattr(value, name, None) for name in copyreg._slotnames(kind)}  # type: ignore[attr-defined]
        for name, item in sorted({**attributes_of(value), **slots}.items()):
            if is_plain_or_own(item):
                pieces += [_pack("attribute", name), *self.pieces(item)]
        return pieces


def _pack(*parts: bytes | str) -> bytes:
    """Parts as bytes that no other parts have."""
    data = [part.encode("utf-8", "surrogatepass") if isinstance(part, str) else part for part in parts]
    return b"".join(b"%d:" % len(part) + part for part in data) + b";"


def _argument_pieces() -> Pieces:
    """The command line, without the script's path."""
    return (_pack("arguments", *map(str, sys.argv[1:])),)


def _joined(pieces: Iterable[Piece]) -> Pieces:
    """Pieces without nodes as one digest."""
    pieces = list(pieces)
    if len(pieces) > 1 and all(isinstance(piece, bytes) for piece in pieces):
        return (_pack("digest", hashlib.sha256(b"".join(pieces)).digest()),)  # type: ignore[arg-type]
    return pieces


def _sort_key(pieces: list[Piece]) -> bytes:
    """The order of a set's items: by what they are, and functions and classes by name and code."""
    keys = []
    for piece in pieces:
        if isinstance(piece, bytes):
            keys.append(piece)
            continue
        code = getattr(piece.value, "__code__", None)
        keys.append(_pack(piece.label, read_code(code).digest if code is not None else b""))
    return b"".join(keys)


def _value_of(path: NamePath, scope: Mapping[str, Any]) -> Any:
    """What a path of a module leads to through modules; None if it leads nowhere."""
    value = scope.get(path[0])
    for attribute in path[1:]:
        value = vars(value).get(attribute) if isinstance(value, ModuleType) else None
    return value
