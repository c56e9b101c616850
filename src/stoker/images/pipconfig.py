"""Pip's configuration in uv's words: its file, its variables and its flags.

https://pip.pypa.io/en/stable/topics/configuration/ has the rules.

Uv reads none of pip's configuration, and has most of its options; what it lacks is named, and pip resolves itself.
"""

from __future__ import annotations

import configparser
import os
import re
from typing import Final, Iterable, Iterator, Mapping

import attrs

from stoker.core.errors import SettingsError

_SHORT: Final = {"i": "index-url", "f": "find-links", "c": "constraint", "constraints": "constraint"}
_SECTIONS: Final = ("global", "install")
"""The parts of the file that `pip install` reads; the later one wins."""
_ONE: Final = {"index-url": "--index-url"}
_SEVERAL: Final = {
    "extra-index-url": "--extra-index-url",
    "find-links": "--find-links",
    "trusted-host": "--allow-insecure-host",
    "constraint": "--constraint",
    "no-binary": "--no-binary",
    "only-binary": "--only-binary",
    "config-settings": "--config-setting",
}
_SWITCHES: Final = {
    "no-index": "--no-index",
    "pre": "--prerelease=allow",
    "no-deps": "--no-deps",
    "no-build-isolation": "--no-build-isolation",
}
_VARIABLES: Final = {"cert": "SSL_CERT_FILE", "client-cert": "SSL_CLIENT_CERT", "proxy": "ALL_PROXY"}
"""https://docs.astral.sh/uv/reference/environment/"""
_COMMAS: Final = frozenset({"no-binary", "only-binary"})
_DECIDES: Final = frozenset(
    {"require-hashes", "use-deprecated", "use-pep517", "no-use-pep517", "platform", "python-version", "abi"}
    | {"implementation", "ignore-requires-python", "requirement", "editable", "uploaded-prior-to", "build-constraint"}
)
"""What decides, beside the options above, which versions pip chooses."""
_FALSE: Final = frozenset({"0", "false", "no", "off", "n", "f", ""})


@attrs.frozen(kw_only=True)
class UvWords:
    """What uv is given instead of pip's configuration."""

    flags: tuple[str, ...] = ()
    variables: Mapping[str, str] = attrs.field(factory=dict)
    lacking: tuple[str, ...] = ()
    """Pip's options that uv has nothing for."""


def uv_words(file: str, variables: Mapping[str, str], arguments: Iterable[str]) -> UvWords:
    """The words for a `pip.conf` (or none: ""), pip's variables and its flags, of which the later ones go first."""
    options: dict[str, list[str]] = {}
    for name, text in (*_of_file(file), *_of_variables(variables)):
        options[name] = [text]
    given: dict[str, list[str]] = {}
    for word in arguments:
        name, equals, text = word.lstrip("-").partition("=")
        given.setdefault(_SHORT.get(name, name), []).append(text if equals else "1")
    options |= given
    flags: list[str] = []
    ways: dict[str, str] = {}
    lacking = []
    for name, texts in options.items():
        if name in _ONE:
            flags.append(f"{_ONE[name]}={texts[-1]}")
        elif name in _SEVERAL:
            parts = [part for text in texts for part in re.split(r"[\s,]+" if name in _COMMAS else r"\s+", text)]
            flags += [f"{_SEVERAL[name]}={part}" for part in parts if part]
        elif name in _SWITCHES:
            flags += [_SWITCHES[name]] if texts[-1].lower() not in _FALSE else []
        elif name in _VARIABLES:
            # A certificate's file that only the image has is not this machine's way to the index.
            if name == "proxy" or os.path.exists(texts[-1]):
                ways[_VARIABLES[name]] = texts[-1]
        elif name == "keyring-provider" and texts[-1] == "subprocess":
            flags.append("--keyring-provider=subprocess")
        elif name in _DECIDES or (name == "keyring-provider" and texts[-1] == "import"):
            lacking.append(name)
    return UvWords(flags=tuple(flags), variables=ways, lacking=tuple(lacking))


def _of_file(path: str) -> Iterator[tuple[str, str]]:
    if not path:
        return
    parser = configparser.RawConfigParser()
    try:
        parser.read(path, encoding="utf-8")
    except (configparser.Error, UnicodeDecodeError) as error:
        raise SettingsError(f"{path} is no configuration of pip: {' '.join(str(error).split())}") from None
    for section in _SECTIONS:
        if parser.has_section(section):
            for name, text in parser.items(section):
                plain = name.replace("_", "-").removeprefix("--")
                yield _SHORT.get(plain, plain), text


def _of_variables(variables: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    for name, text in variables.items():
        if name.startswith("PIP_") and text:
            plain = name[4:].lower().replace("_", "-")
            yield _SHORT.get(plain, plain), text
