"""Data that a step asks for: where it lies, what it was when the run was planned, and a node's folder that keeps it.

Values only: `plan.data` asks for what lies there, `nodecache` brings it to the node where the step runs.
"""

from __future__ import annotations

import posixpath
from typing import Any, ClassVar, Final, Iterable, Literal, Mapping

import attrs

from stoker.core.errors import SettingsError, nearest
from stoker.core.units import UNSET, parse_size, parse_text, parse_texts, strict
from stoker.core.values import frozen, lazy_pattern
from stoker.core.words import shown

HUB: Final = "hf"
"""The scheme of the Hugging Face Hub, as its own file system has it: hf://[datasets/]ORG/NAME[@REVISION][/PATH]."""
_KINDS: Final[Mapping[str, Literal["model", "dataset", "space"]]] = {
    "models": "model",
    "datasets": "dataset",
    "spaces": "space",
}
_COMMIT: Final = lazy_pattern(r"[0-9a-f]{40}")
_SCHEME: Final = lazy_pattern(r"[A-Za-z][A-Za-z0-9+.-]*")
_NAME: Final = lazy_pattern(r"[A-Za-z0-9_](?:[A-Za-z0-9._+-]*[A-Za-z0-9_])?")
"""An owner's, a repository's, or a part of a revision's: https://huggingface.co/docs/huggingface_hub/package_reference/utilities#validators"""
_FIELDS: Final = ("uri", "include", "exclude")
_FIX: Final = 'write "s3://bucket/folder/", "hf://org/model@revision", "hf://datasets/org/name", or an absolute path'


@frozen(kw_only=True)
class StepData:
    """One thing that a step asks for by name, and what it was when the run was planned."""

    COMPACT: ClassVar = True
    uri: str
    include: tuple[str, ...] = ()
    """Patterns of the files that are brought, as `fnmatch` has them; none is every file."""
    exclude: tuple[str, ...] = ()
    """Patterns of files that are not."""
    identity: str = ""
    """The digest of what is brought: all names with the sizes and digests of their bytes; empty where it is not
    known."""
    revision: str = ""
    """The commit of a hub's repository; empty for others, and where it is not known."""
    size: int | None = None
    """Bytes; None where it is not known."""
    files: int | None = None

    @property
    def name(self) -> str:
        """The address for a person, with the commit that a revision was."""
        return f"{self.uri} (commit {self.revision[:8]})" if self.revision else self.uri

    @property
    def is_folder(self) -> bool:
        """Whether it is a path of the node's own."""
        return is_folder(self.uri)


@frozen(kw_only=True)
class HubPlace:
    """What an address of the hub names."""

    kind: Literal["model", "dataset", "space"]
    repository: str
    revision: str
    path: str
    """A file or folder in the repository; empty for all of it."""

    @property
    def is_commit(self) -> bool:
        """Whether the revision is a commit, which never changes."""
        return _COMMIT.fullmatch(self.revision) is not None


@strict
@frozen(kw_only=True)
class DataCache:
    """The folder of a node in which data is kept for later steps, and how large it may become."""

    folder: str | None = attrs.field(default=UNSET, converter=parse_text)
    """Where it is on the node; `~` and variables such as `$SCRATCH` are the node's."""
    size: int | None = attrs.field(default=UNSET, converter=parse_size)
    """Bytes beyond which what was used longest ago is removed; None is the room that the disk has."""


def is_folder(uri: str) -> bool:
    """Whether an address is a path of the node's own."""
    return "://" not in uri


def hub_place(uri: str) -> HubPlace | None:
    """What an address of the hub names; None for another address, `SettingsError` for a wrong one."""
    scheme, separator, rest = uri.partition("://")
    if scheme != HUB or not separator:
        return None
    from urllib.parse import unquote  # it takes milliseconds, and few steps have data

    first, _, more = rest.partition("/")
    kind = _KINDS.get(first, "model")
    words = (more if first in _KINDS else rest).strip("/").split("/")
    at = next((number for number, word in enumerate(words[:2]) if "@" in word), min(1, len(words) - 1))
    name, _, revision = words[at].partition("@")
    parts, revision = [*words[:at], name], unquote(revision) or "main"
    if not all(_NAME.fullmatch(part) for part in (*parts, *revision.split("/"))):
        raise SettingsError(f"{shown(uri)} names no repository and revision of the hub", fix=_FIX)
    path = "/".join(words[at + 1 :])
    return HubPlace(kind=kind, repository="/".join(parts), revision=revision, path=path)


def parse_data(value: Any) -> dict[str, Mapping[str, Any]]:
    """What a step asks for, by the names under which `stoker.data` finds it."""
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise SettingsError(f"{shown(value)} is no mapping of names to addresses", fix='write {"corpus": "s3://…"}')
    found = {}
    for name, one in value.items():
        if not isinstance(name, str) or not name.isidentifier():
            raise SettingsError(f"{shown(name)} is no name of data", fix="write letters, digits and underscores")
        try:
            found[name] = _parse_one(one)
        except SettingsError as error:
            raise SettingsError(f"{name}: {error.message}", fix=error.fix) from None
    return found


def _parse_one(value: Any) -> Mapping[str, Any]:
    fields: Mapping[str, Any] = value if isinstance(value, Mapping) else {"uri": value}
    for field in fields:
        if field not in _FIELDS:
            raise SettingsError(f"there is no '{field}'{nearest(str(field), _FIELDS)}")
    return {
        "uri": _parse_uri(fields.get("uri")),
        "include": list(_patterns(fields.get("include"))),
        "exclude": list(_patterns(fields.get("exclude"))),
    }


def _patterns(value: str | Iterable[str] | None) -> tuple[str, ...]:
    texts = parse_texts([value] if isinstance(value, str) else value) or ()
    return tuple(f"{text}*" if text.endswith("/") else text for text in texts)


def _parse_uri(value: Any) -> str:
    uri = value if isinstance(value, str) else getattr(value, "__fspath__", lambda: "")()
    scheme, separator, place = uri.partition("://")
    if scheme == "file" and separator:
        uri = place
    elif separator:
        if not place.strip("/") or not _SCHEME.fullmatch(scheme):
            raise SettingsError(f"{shown(value)} is no address of data", fix=_FIX)
        hub_place(uri)
        return str(uri)
    if not uri.startswith("/"):
        raise SettingsError(f"{shown(value)} is no address of data", fix=_FIX)
    return posixpath.normpath(uri)
