"""Parts that can be added, by name: Stoker's own from a table, those of other distributions by entry point.

A part is named `"module:attribute"` and imported when first asked for. Entry points are looked up only for names that
the table lacks, because scanning the installed distributions costs tens of milliseconds.
"""

from __future__ import annotations

import functools
import importlib
import os
import sys
from typing import TYPE_CHECKING, Any, Generic, Iterator, Mapping, TypeVar, cast

import attrs

from stoker.core.errors import MissingPackage, UsageError, nearest
from stoker.core.values import frozen

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

Part = TypeVar("Part")


@frozen(kw_only=True)
class Registry(Generic[Part]):
    """The parts of one kind by name: Stoker's own from a table, those of other distributions by entry point.

    A table maps a name to `"module:attribute"` and the extra that brings the packages of that module; the module is
    imported when its part is asked for. Entry points are read once a process, and only for a name that the table lacks
    or when all parts are listed: scanning the installed distributions costs tens of milliseconds.
    """

    group: str
    """The group of entry points, such as "stoker.backends"."""
    noun: str
    """What one part is called in messages, such as "backend"."""
    kind: type[Any]
    """The class of every part."""
    builtin: Mapping[str, tuple[str, str]]
    """name → ("module:attribute", extra)"""
    aliases: Mapping[str, str] = attrs.field(factory=dict)
    """Another spelling of a name → the name, which is the only one that is shown and kept."""

    def canonical(self, name: str) -> str:
        """The name that another spelling stands for; any other text as it is."""
        return self.aliases.get(name, name)

    def load(self, name: str) -> Part:
        """The part called `name`.

        Raises `UsageError` for an unknown name and for a part of another class, `MissingPackage` where the part needs
        a package that is not installed.
        """
        if name in self.builtin:
            target, extra = self.builtin[name]
            return cast("Part", resolve(target, extra=extra))
        for entry in entry_points(self.group):
            if entry.name == name:
                return self._load_entry(entry)
        raise UsageError(f"there is no {self.noun} called '{name}'{nearest(name, self.names())}")

    def __contains__(self, name: str) -> bool:
        """Whether there is a part of this name; looks at other distributions only for one that the table lacks."""
        return name in self.builtin or name in self.names()

    def names(self) -> tuple[str, ...]:
        """The names of all parts: Stoker's own in the table's order, then those of other distributions."""
        return (*self.builtin, *(entry.name for entry in entry_points(self.group) if entry.name not in self.builtin))

    def parts(self) -> Iterator[tuple[str, Part]]:
        """Every part with its name, each loaded; see `load` for what is raised."""
        for name in self.names():
            yield name, self.load(name)

    def third_party_parts(self) -> Iterator[tuple[str, Part]]:
        """The parts of other distributions with their names, each loaded."""
        for entry in entry_points(self.group):
            if entry.name not in self.builtin:
                yield entry.name, self._load_entry(entry)

    def _load_entry(self, entry: EntryPoint) -> Part:
        try:
            part = entry.load()
        except (ImportError, AttributeError) as error:
            raise UsageError(
                f"the {self.noun} '{entry.name}' of {_distribution(entry)} cannot be loaded: {error}",
                where=entry.value,
                fix=f"mend or uninstall {_distribution(entry)}",
            ) from error
        if not isinstance(part, self.kind):
            raise UsageError(
                f"the {self.noun} '{entry.name}' of {_distribution(entry)} is of class "
                f"{type(part).__name__}, not {self.kind.__name__}",
                where=entry.value,
                fix=f"let the entry point in the group '{self.group}' name an object of that class",
            )
        return cast("Part", part)


@functools.cache
def entry_points(group: str) -> tuple[EntryPoint, ...]:
    """The entry points that installed distributions offer in a group, read once a process."""
    if not _is_declared(group):
        return ()
    from importlib import metadata

    return tuple(metadata.entry_points(group=group))


def _is_declared(group: str) -> bool:
    """Whether any file of entry points on `sys.path` names a group.

    Every run asks for the rules and causes of other distributions, and nearly none has any. `importlib.metadata` takes
    about 25 ms to import and another 10 to read 150 distributions; looking for the word in their files takes 2. What is
    not a folder, such as a zip file, may hold distributions that only `importlib.metadata` can read.
    """
    section = f"[{group}]".encode()
    for entry in sys.path:
        try:
            folders = [one.path for one in os.scandir(entry or ".") if one.name.endswith((".dist-info", ".egg-info"))]
        except NotADirectoryError:
            return True
        except OSError:
            continue
        for folder in folders:
            try:
                with open(os.path.join(folder, "entry_points.txt"), "rb") as file:
                    if section in file.read():
                        return True
            except OSError:
                continue
    return False


def _distribution(entry: EntryPoint) -> str:
    return "an installed package" if entry.dist is None else f"the package '{entry.dist.name}'"


def resolve(target: str, *, extra: str = "") -> Any:
    """The object at `"module:attribute"`; a package that is not installed is named together with its extra."""
    module_name, _, attribute = target.partition(":")
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        missing = error.name or ""
        if missing.partition(".")[0] == "stoker" or not extra:
            raise
        raise MissingPackage(
            f"{module_name} needs the package '{missing}'", fix=f"pip install 'stoker[{extra}]'"
        ) from error
    return getattr(module, attribute)
