"""What a step's cache key is made of beside its inputs, as a document that is kept once and named by its digest.

`stoker why` compares the recipes of two results: which function, class or constant of which file differs, and how. A
document has the source text of each part, so that it can be shown when the files have changed since. It is made only
when its digest is new, from what this process has read for the code's digest.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import linecache
import os
import sys
import types
from typing import Any, Final, Mapping, Sequence

from stoker.core.plan import StepPlan, uses_cache
from stoker.core.secret import looks_secret
from stoker.core.usercode import INSTALLED
from stoker.plan.cachekey import ENVIRONMENTS, KeyParts
from stoker.plan.digest import CodePart, FunctionCode

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
    for name, identity in key.environment.items():
        if name not in ENVIRONMENTS:
            # Files without a distribution are shown by the version that they give themselves.
            version = _version(name) if identity.startswith("files ") else identity
            parts[name] = {"digest": identity, "kind": "package", "text": f"{name} {version}".rstrip()}
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
    if INSTALLED.isdisjoint(str(file).split(os.sep)):
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
