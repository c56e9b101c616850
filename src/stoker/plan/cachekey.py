"""The key of a step's result in the cache: code, inputs, outputs, environment, and the step's own `cache_key`.

The environment's part is one mapping from an `Environment`, so that what is installed here, a lock and an image take
the same place in a key and the other parts do not know of them.

What a key is made of beside the inputs is its *recipe*, a document that is kept once and named by its digest.
`stoker why` compares the recipes of two results: which function, class or constant of which file differs, and how. A
document has the source text of each part, so that it can be shown when the files have changed since. It is made only
when its digest is new, from what this process has read for the code's digest.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import linecache
import sys
import types
from types import ModuleType
from typing import Any, Callable, Final, Iterable, Mapping, Protocol, Sequence

from stoker.core.plan import StepPlan, uses_cache
from stoker.core.secret import looks_secret
from stoker.core.usercode import is_package_file, script_module
from stoker.core.values import frozen
from stoker.plan.digest import CodePart, FunctionCode, read_code_of, read_module_code
from stoker.plan.modulecode import identity

FORMAT: Final = 2
"""Version of the key's computation; keys of another version never match."""

ENVIRONMENTS: Final = ("python", "image", "packages")
"""Names in `KeyParts.environment` that are no package's."""
DATA: Final = "data "
"""Begins the names there of what is brought to the step (`core.data`)."""

_canonical: Final = json.JSONEncoder(sort_keys=True, separators=(",", ":"), ensure_ascii=True).encode


class Environment(Protocol):
    """The packages that a step finds where it runs."""

    def identities(self, packages: Iterable[str]) -> Mapping[str, str]:
        """What identifies the environment, as far as results of code that names these packages depend on it."""


@frozen
class InstalledEnvironment:
    """What is installed in this Python: its implementation and minor version, and the packages that the code names.

    Patch releases of Python do not count.
    """

    def identities(self, packages: Iterable[str]) -> Mapping[str, str]:
        """The identity of each package, and of Python."""
        version = f"{sys.implementation.name}-{sys.version_info.major}.{sys.version_info.minor}"
        return {"python": version, **{name: identity(name) for name in packages}}


@frozen
class FixedEnvironment:
    """An environment that one name identifies with Python and all packages: the digest of an image or a lock."""

    kind: str
    """"image" or "packages"."""
    name: str

    def identities(self, packages: Iterable[str]) -> Mapping[str, str]:
        """The environment's name; packages do not count once more by what happens to be installed here."""
        return {self.kind: self.name}


@frozen(kw_only=True)
class KeyParts:
    """Everything that a result depends on; two of them show why a cache key differs."""

    code: str
    """The digest of the step's code."""
    inputs: Mapping[str, str]
    """Parameter → the digests of its values in their structure."""
    input_code: Mapping[str, str]
    """Class or function of the user's own that a value refers to, as "module:name" → the digest of its code as it is
    now."""
    outputs: Sequence[str]
    """The outputs' names, in order, and how they are split."""
    environment: Mapping[str, str]
    """`Environment.identities`: "python" and packages with their versions, or "image" with its digest."""
    extra: Any
    """The step's `cache_key=`, a JSON value."""

    @property
    def key(self) -> str:
        """The hexadecimal SHA-256 of all parts."""
        document = [
            FORMAT,
            self.code,
            dict(self.inputs),
            dict(self.input_code),
            list(self.outputs),
            dict(self.environment),
            self.extra,
        ]
        return hashlib.sha256(_canonical(document).encode("ascii")).hexdigest()

    def differs_in_inputs_only(self, other: KeyParts) -> bool:
        """Whether two keys of one step differ in nothing but inputs, or not at all."""
        return (
            self.environment == other.environment
            and self.input_code == other.input_code
            and self.outputs == other.outputs
            and self.extra == other.extra
            and self.code == other.code
        )


_LONGEST: Final = 65_536
"""Characters of the longest source text that is kept; a longer one is generated, and shown by its digest alone."""
_LONGEST_VALUE: Final = 2_000
"""Characters of the longest value that is kept."""
_PLAIN: Final = (bool, int, float, complex, str, bytes, type(None), list, tuple, dict, set, frozenset)

_read: dict[str, tuple[Sequence[FunctionCode], Mapping[str, str]]] = {}


def remember_code(digest: str, readings: Sequence[FunctionCode], more: Mapping[str, str] | None = None) -> str:
    """Remember what a code digest was made of, for the recipes of this process; returns the digest.

    `more` are parts that are no code: label → text.
    """
    _read.setdefault(digest, (readings, more or {}))
    return digest


def recipe_key(step: StepPlan, parts: KeyParts) -> tuple[Any, ...]:
    """What a recipe is made of, to be compared and hashed."""
    environment, input_code = (tuple(sorted(part.items())) for part in (parts.environment, parts.input_code))
    return (
        step.code,
        environment,
        input_code,
        tuple(parts.outputs),
        repr(parts.extra),
        step.settings.cache,
        uses_cache(step),
    )


def recipe_digest(key: tuple[Any, ...]) -> str:
    """The name of a recipe: 32 hexadecimal characters."""
    return hashlib.sha256(repr(key).encode("utf-8", "surrogatepass")).hexdigest()[:32]


def recipe_document(step: StepPlan, key: KeyParts) -> dict[str, Any]:
    """The recipe as JSON; without parts where this process did not read the code."""
    readings, more = _read.get(step.code, ((), {}))
    for digest in key.input_code.values():
        readings = (*readings, *_read.get(digest, ((), {}))[0])
    parts: dict[str, dict[str, Any]] = {}
    for reading in readings:
        values = reading.values
        for part in reading.parts:
            parts.setdefault(part.label, _part_document(part, values.get(part.label)))
    for label, text in more.items():
        digest = hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:16]
        parts[label] = {"digest": digest, "kind": "value"}
        if len(text) <= _LONGEST_VALUE and not looks_secret(label.rpartition(".")[2], text):
            parts[label]["text"] = text
    for name, installed in key.environment.items():
        if name.startswith(DATA):
            parts[name] = {"digest": installed, "kind": "value", "text": step.data[name.removeprefix(DATA)].name}
        elif name not in ENVIRONMENTS:
            # Files without a distribution are shown by the version that they give themselves.
            version = _version(name) if installed.startswith("files ") else installed
            parts[name] = {"digest": installed, "kind": "package", "text": f"{name} {version}".rstrip()}
    return {
        "code": step.code,
        "environment": " ".join(key.environment[name] for name in ENVIRONMENTS if name in key.environment),
        "outputs": list(key.outputs),
        "cache_key": json.loads(json.dumps(step.settings.cache_key, default=repr)),
        "cache": step.settings.cache,
        **({} if uses_cache(step) or not step.settings.cache else {"lookups": list(step.lookups)}),
        "parts": parts,
    }


def _part_document(part: CodePart, value: Any) -> dict[str, Any]:
    document: dict[str, Any] = {"digest": part.digest, "kind": part.kind}
    package = _package_of(part, value)
    if package:
        document.update(kind="package", text=f"{package} {_version(package)}".rstrip())
    elif part.file and part.first_line:
        lines = linecache.getlines(part.file)
        # A module is kept as a whole; its code object begins at its first line as well.
        last = part.last_line if part.kind != "module" else len(lines)
        text = "".join(lines[part.first_line - 1 : last])
        document.update(file=part.file, line=part.first_line)
        if len(text) <= _LONGEST:
            document["text"] = text
    elif isinstance(value, _PLAIN) and not looks_secret(part.label.rpartition(" ")[2].rpartition(".")[2], value):
        text = repr(value)
        if len(text) <= _LONGEST_VALUE:
            document["text"] = text
    return document


def _package_of(part: CodePart, value: Any) -> str:
    """The installed package that a part is of, by its import name; empty for the user's own code and values."""
    file = part.file or getattr(value, "__file__", None) or ""
    if not file and callable(value):
        module = sys.modules.get(str(getattr(value, "__module__", "")))
        file = getattr(module, "__file__", None) or ""
    if not file or not is_package_file(str(file)):
        return ""
    name = value.__name__ if isinstance(value, types.ModuleType) else str(getattr(value, "__module__", ""))
    return name.partition(".")[0]


def _version(package: str) -> str:
    version = getattr(sys.modules.get(package), "__version__", None)
    if version is None:
        import importlib.metadata  # it imports email, csv and zipfile, and most packages say their version

        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            version = importlib.metadata.version(package)
    return str(version or "")


def _warn(text: str) -> None:
    import logging  # little is told

    logging.getLogger(__name__).warning(text)


MISSING: Final = "missing"
"""The digest of a name that leads nowhere."""


@frozen
class NamedCode:
    """What a name stands for."""

    digest: str
    """The digest of its code and of what that reaches; `MISSING` if the name leads nowhere any more."""
    packages: tuple[str, ...] = ()
    """The packages that the code names."""


class InputCode:
    """Finds and reads the code of names; each once in a run.

    `report` is told each name that leads nowhere any more.
    """

    def __init__(self, report: Callable[[str], None] = _warn) -> None:
        self._report = report
        self._readings: dict[str, NamedCode] = {}

    def read(self, name: str) -> NamedCode:
        """The code of "module:qualified.name"; of a module that is not imported here, all of the module's code."""
        reading = self._readings.get(name)
        if reading is None:
            reading = self._readings[name] = _named_code(name)
            if reading.digest == MISSING:
                code = name.replace(":", ".")
                self._report(f"an input refers to {code}, which cannot be found any more: steps that take it run again")
        return reading


def _named_code(name: str) -> NamedCode:
    module_name, _, qualname = name.partition(":")
    module = _loaded(module_name)
    if module is None:
        code = read_module_code(module_name)
        if code is None:
            return NamedCode(digest=MISSING)
        return _named(code)
    value: Any = module
    for part in qualname.split("."):
        value = vars(value).get(part) if hasattr(value, "__dict__") else None
        if value is None:
            return NamedCode(digest=MISSING)
    return _named(read_code_of({"": value}))


def _named(code: FunctionCode) -> NamedCode:
    remember_code(code.digest, (code,))
    return NamedCode(digest=code.digest, packages=code.packages)


def _loaded(name: str) -> ModuleType | None:
    module = sys.modules.get(name)
    if module is None:
        main = sys.modules.get("__main__")
        file = getattr(main, "__file__", None)
        if main is not None and file and script_module(file) == name:
            return main
    return module
