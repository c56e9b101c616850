"""`Secret`: a value by reference. What is written down anywhere is the reference; `worker.secrets` reads the value."""

from __future__ import annotations

import re
from typing import Any, Final, Sequence

from stoker.core.errors import ParameterError
from stoker.core.values import frozen, lazy_pattern

PREFIX: Final = "secret:"
"""How the text of a reference begins."""
_REFERENCE: Final = lazy_pattern(r"secret:(?P<kind>[a-z][a-z0-9_-]*):(?P<name>[^\s#]+)(?:#(?P<version>[\w.-]+))?")
_KINDS: Final = "secret:env:NAME, secret:file:PATH, secret:keyring:SERVICE/USER or secret:named:NAME"


@frozen(repr=False)
class Secret:
    """A parameter, an argument of a step or an environment variable whose value is written down nowhere.

    The step gets the value, a `str`. Plan, database, cache key, job scripts and JSON output have the reference, which
    is also what `str(secret)`, `repr(secret)` and f-strings give.
    """

    kind: str
    """Where the value is: "named", "env", "file", "keyring", or a kind of another distribution."""
    name: str
    """Which one it is there: "name" or "name.field", the name of a variable, a path, "service/user"."""
    version: str = ""
    """A word of your own that the cache key contains: change it when the value has changed and results depend on it."""

    def __attrs_post_init__(self) -> None:
        if _REFERENCE.fullmatch(self.reference) is None:
            raise ParameterError(
                f"{self.reference!r} is no reference to a secret: names have no spaces and no '#'",
                fix=f"write {_KINDS}",
            )

    @classmethod
    def named(cls, name: str, field: str = "", *, version: str = "") -> Secret:
        """The value, or one field, that `stoker secret set NAME` keeps."""
        return cls("named", f"{name}.{field}" if field else name, version)

    @classmethod
    def env(cls, name: str, *, version: str = "") -> Secret:
        """The value of an environment variable of the process that drives the run."""
        return cls("env", name, version)

    @classmethod
    def file(cls, path: str, *, version: str = "") -> Secret:
        """The content of a file on the driver's machine, without the line break at its end; `~` is your home."""
        return cls("file", str(path), version)

    @classmethod
    def keyring(cls, service: str, user: str, *, version: str = "") -> Secret:
        """A password of the driver's keyring; needs the package `keyring`: `pip install 'stoker[keyring]'`."""
        return cls("keyring", f"{service}/{user}", version)

    @classmethod
    def parse(cls, text: str) -> Secret:
        """The secret of a text such as "secret:env:HF_TOKEN"; `ParameterError` for another text."""
        match = _REFERENCE.fullmatch(text)
        if match is None:
            raise ParameterError(f"{text!r} is no reference to a secret", fix=f"write {_KINDS}")
        return cls(match["kind"], match["name"], match["version"] or "")

    @property
    def reference(self) -> str:
        """As it is written in settings and on a command line: "secret:env:HF_TOKEN"."""
        return f"{PREFIX}{self.kind}:{self.name}" + (f"#{self.version}" if self.version else "")

    def __str__(self) -> str:
        return self.reference

    def __repr__(self) -> str:
        return self.reference


def is_reference(text: Any) -> bool:
    """Whether a text is the reference of a secret."""
    return isinstance(text, str) and text.startswith(PREFIX) and _REFERENCE.fullmatch(text) is not None


_TOKENS_OF_TEXT: Final = "pad|eos|bos|unk|cls|sep|mask|special|start|end|stop|image|audio|video|new|next|last"
SECRET_WORDS: Final = (
    rf"(?!(?:\w*_)?(?:{_TOKENS_OF_TEXT})_token\b)"
    r"(?:\w*_)?(?:token|password|passwd|passphrase|secret|credentials?|(?:secret|api|access|private)_?key)"
)
"""A pattern, in either case, of names of variables and parameters whose values are secrets; tokens of a tokenizer, such
as `pad_token`, are none."""
SECRET_NAME: Final = lazy_pattern(SECRET_WORDS, re.IGNORECASE)
"""`SECRET_WORDS` for a whole name."""
MASK: Final = "***"
"""What is shown in place of a secret."""
_SHORTEST_PLAIN: Final = 8
"""Characters: a shorter text under such a name is a choice, such as "none" or "basic"."""


def looks_secret(name: str, value: Any) -> bool:
    """Whether a plain value looks like a secret by the name it has."""
    if not isinstance(value, str) or is_reference(value) or SECRET_NAME.fullmatch(name.replace("-", "_")) is None:
        return False
    return len(value) >= _SHORTEST_PLAIN and not any(character.isspace() for character in value)


def mask_words(words: Sequence[str]) -> tuple[str, ...]:
    """A command line with what looks like a secret masked: `--token VALUE` and `--token=VALUE`."""
    shown: list[str] = []
    for word in words:
        flag, equals, value = word.partition("=")
        before = shown[-1] if shown else ""
        if equals and looks_secret(flag.lstrip("-"), value):
            shown.append(f"{flag}={MASK}")
        else:
            shown.append(MASK if before.startswith("-") and looks_secret(before.lstrip("-"), word) else word)
    return tuple(shown)
