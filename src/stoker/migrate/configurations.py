"""Rewrites a run configuration of ZenML's (YAML): what Stoker has another word for, and lines that only ZenML needs.

Comments and layout stay. What has no equivalent stays, too, and is reported with its line. Pure: bytes in, bytes and
notes out.
"""

from __future__ import annotations

from pathlib import PurePosixPath
from typing import Any, Final, Iterator, Mapping

import yaml

from stoker.core.docker import DockerSettings
from stoker.core.settings import COMPONENTS
from stoker.migrate import zenml
from stoker.migrate.names import Level, MigrationNote
from stoker.migrate.served import Moved
from stoker.settings.options import OPTIONS

_KNOWN: Final = frozenset(
    {"parameters", "steps", "model", "extra", "substitutions", *zenml.OPTIONS, *zenml.OPTIONS.values()}
    | zenml.KEPT_OPTIONS
    | zenml.DROPPED_OPTIONS.keys()
)
"""Keys of a run configuration that mean something here."""
_OTHER: Final[Mapping[str, str]] = {
    **{name: zenml.instead_of(name) for name in zenml.MISSING_OPTIONS},
    "build": "an image is built when its settings or files have changed; docs/guide/containers.md",
}
_MODEL: Final = frozenset({"name", "version", "tags", "description", "save_models_to_registry"})
_MODES: Final[Mapping[str, str]] = {"continue_on_failure": "continue", "stop_on_failure": "fail_fast"}


def move_configuration(source: bytes, where: str) -> Moved:
    """The run configuration in Stoker's words; a file that has other keys, too, is the project's own and stays."""
    try:
        text = source.decode("utf-8")
        root = yaml.compose(text, yaml.SafeLoader)
    except (UnicodeDecodeError, yaml.YAMLError) as error:
        message = f"cannot be read, and stays as it is: {' '.join(str(error).split())}"
        return Moved(before=source, after=source, notes=[_note_at(1, "hint", PurePosixPath(where).name, message)])
    if not isinstance(root, yaml.MappingNode):
        return Moved(before=source, after=source)
    keys = {key.value for key, _ in root.value}
    edits = _ConfigurationEdits(text)
    if keys <= _KNOWN | _OTHER.keys():
        edits.options(root, step=False)
    return Moved(before=source, after=edits.result().encode("utf-8"), notes=sorted(edits.notes, key=_line))


class _ConfigurationEdits:
    """The edits of one file, by where they are in its text."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._edits: list[tuple[int, int, str]] = []
        self.notes: list[MigrationNote] = []

    def result(self) -> str:
        """The text with all edits."""
        text = self._text
        for start, end, replacement in sorted(self._edits, reverse=True):
            text = text[:start] + replacement + text[end:]
        return text

    def options(self, node: Any, *, step: bool) -> None:
        """The options of the pipeline, or of a step."""
        for key, value in _pairs(node):
            name = key.value
            if name in zenml.OPTIONS:
                self._replace(key, zenml.OPTIONS[name])
                if value.value in _MODES:
                    self._replace(value, _MODES[value.value])
            elif name in zenml.DROPPED_OPTIONS:
                self._remove(node, key, value)
            elif name == "settings":
                self._settings(value)
            elif name == "retry":
                for field, _ in _pairs(value):
                    self._replace(field, zenml.RETRY_FIELDS.get(field.value, field.value))
            elif name == "model":
                for field, _ in _pairs(value):
                    if field.value not in _MODEL:
                        self._note(field, "is not kept: log_metadata keeps facts of a model")
            elif name == "steps" and not step:
                for _, options in _pairs(value):
                    self.options(options, step=True)
            elif name in _OTHER and name not in _KNOWN:
                self._note(key, f"is left out: {_OTHER[name]}")
            elif name not in _KNOWN:
                self._note(key, "is no option of a step: its parameters stand below `parameters:`")

    def _settings(self, node: Any) -> None:
        for key, value in _pairs(node):
            component, _, flavor = key.value.partition(".")
            if key.value == "docker":
                self._docker(value)
            elif component in COMPONENTS:
                if not zenml.fits(flavor, [field.value for field, _ in _pairs(value)]):
                    self._note(key, f"is left out: {zenml.PLATFORM}")
            elif key.value not in OPTIONS:
                self._note(key, f"is left out: {zenml.PLATFORM}")

    def _docker(self, node: Any) -> None:
        for key, value in _pairs(node):
            if key.value in DockerSettings.INSTEAD:
                self._note(key, f"is left out: {DockerSettings.INSTEAD[key.value].removeprefix('remove it: ')}")
            if key.value == "requirements" and isinstance(value, yaml.SequenceNode):
                own = [item for item in value.value if zenml.ITSELF.fullmatch(str(item.value).strip())]
                if len(own) == len(value.value):
                    self._remove(node, key, value)
                else:
                    for item in own:
                        self._remove(value, item, item)

    def _replace(self, node: Any, text: str) -> None:
        if node.value != text:
            self._edits.append((node.start_mark.index, node.end_mark.index, text))

    def _remove(self, around: Any, key: Any, value: Any) -> None:
        """Take a pair or an item out: the whole line, or, between braces and brackets, the text up to the next one."""
        start, end = key.start_mark.index, _end(value)
        if not around.flow_style:
            if len(around.value) == 1:
                return  # a block that is empty would be null
            start = self._text.rindex("\n", 0, start) + 1 if "\n" in self._text[:start] else 0
            newline = self._text.find("\n", end)
            end = len(self._text) if newline < 0 else newline + 1
        else:
            items = [pair[0] if isinstance(pair, tuple) else pair for pair in around.value]
            later = [item.start_mark.index for item in items if item.start_mark.index > start]
            if later:
                end = later[0]
            elif len(items) > 1:
                start = self._text.rindex(",", 0, start)
        self._edits.append((start, end, ""))

    def _note(self, node: Any, message: str) -> None:
        self.notes.append(_note_at(node.start_mark.line + 1, "differs", str(node.value), message))


def _pairs(node: Any) -> Iterator[tuple[Any, Any]]:
    """The keys and values of a mapping; none of what is no mapping."""
    for key, value in node.value if isinstance(node, yaml.MappingNode) else ():
        if isinstance(key, yaml.ScalarNode):
            yield key, value


def _end(node: Any) -> int:
    """Where a value ends in the text: that of a block ends with its last item."""
    if isinstance(node, yaml.CollectionNode) and not node.flow_style and node.value:
        last = node.value[-1]
        return _end(last[1] if isinstance(last, tuple) else last)
    return int(node.end_mark.index)


def _note_at(line: int, level: Level, name: str, message: str) -> MigrationNote:
    return MigrationNote(line=line, level=level, name=name, message=message)


def _line(note: MigrationNote) -> int:
    return note.line
