"""The table of failures: how each looks, what it means and what to do about it, and what is said of the rest.

The table is `causes.ini` beside this module: configparser reads it with any Python and leaves regular expressions as
they are. It is read when something has failed: that would cost a start some milliseconds. Rows of other distributions
stand before Stoker's own, since they are the most specific.
"""

from __future__ import annotations

import configparser
import functools
import logging
import re
from pathlib import Path
from typing import Final, Mapping, Sequence

import attrs

from stoker.core import status
from stoker.core.errors import UsageError
from stoker.core.plugins import Registry
from stoker.core.status import RETRYABLE, Retryable

log = logging.getLogger(__name__)

TABLE: Final = Path(__file__).with_name("causes.ini")
_GENERAL: Final = "cause "
"""Begins the names of sections that say of a cause what no row says better."""
_LONGEST: Final = 240
"""Characters of a line that are shown as evidence; torch's out-of-memory message has some 600, the facts come first."""


@attrs.frozen(kw_only=True)
class Signature:
    """How a known failure looks, what it means, and what to do about it: one row of the table."""

    name: str
    cause: str
    """A word of `core.status`, or of another distribution's own: then it is the name of the row's entry point."""
    why: str
    advice: str
    pattern: str
    """Searched in "type: message" of what was raised, lines and all."""
    printed: bool = False
    """Whether the pattern is searched in any line, too, that a process wrote before it died. Only for what nobody
    prints and survives: on a machine without a GPU, frameworks log that they found no driver, and go on."""
    retryable: Retryable = "here"
    """Where another attempt may succeed after a cause of another distribution; of Stoker's own causes
    `core.status.RETRYABLE` says it."""

    def seen_in(self, text: str) -> str:
        """The line that shows this failure, empty if none does."""
        # Compiled when the first failure is explained, not when a worker starts: sixty patterns take 20 ms.
        match = re.search(self.pattern, text, re.MULTILINE)
        if match is None:
            return ""
        start, end = text.rfind("\n", 0, match.start()) + 1, text.find("\n", match.start())
        line = text[start : end if end >= 0 else len(text)].strip()
        return line if len(line) <= _LONGEST else line[: _LONGEST - 1] + "…"


@functools.cache
def _sections() -> Mapping[str, Mapping[str, str]]:
    """The table's sections, each with its texts; patterns keep their lines."""
    parser = configparser.RawConfigParser(delimiters=("=",))
    parser.read_string(TABLE.read_text(encoding="utf-8"))
    return parser


@functools.cache
def own_rows() -> tuple[Signature, ...]:
    """Stoker's own rows."""
    return tuple(
        Signature(
            name=name,
            cause=section["cause"],
            why=_sentence(section["why"]),
            advice=_sentence(section["advice"]),
            pattern=section["pattern"].strip().replace("\n", "|"),
            printed=section.get("printed") == "yes",
        )
        for name, section in _sections().items()
        if "pattern" in section
    )


@functools.cache
def general_words() -> Mapping[str, tuple[str, str]]:
    """Cause → why and advice, where no row says more; causes that only rows or platforms give are not among them."""
    return {
        name[len(_GENERAL) :]: (_sentence(section["why"]), _sentence(section.get("advice", "")))
        for name, section in _sections().items()
        if name.startswith(_GENERAL)
    }


def _sentence(text: str) -> str:
    return text.replace("\n", " ")


CAUSES: Final[Registry[Signature]] = Registry(group="stoker.causes", noun="cause", kind=Signature, builtin={})
"""Rows of other distributions, each under the cause that it gives."""


@functools.cache
def third_party_rows() -> tuple[Signature, ...]:
    """The rows of other distributions, read once a process. One that cannot be loaded is passed over with a warning:
    the failure that is to be explained is the one that counts."""
    rows = []
    for name in CAUSES.names():
        try:
            row = CAUSES.load(name)
        except UsageError as error:
            log.warning("%s", error)
            continue
        if row.cause in status.CAUSES or row.cause == name:
            rows.append(row)
        else:
            log.warning("the row '%s' gives the cause '%s': its entry point must be called so", name, row.cause)
    return tuple(rows)


def retryable_of(cause: str) -> Retryable:
    """Where another attempt may succeed after a cause."""
    if cause in RETRYABLE:
        return RETRYABLE[cause]
    return next((row.retryable for row in third_party_rows() if row.cause == cause), "here")


def find_signature(raised: Sequence[str], printed: str) -> tuple[Signature, str] | None:
    """The first row that matches what was raised (each "type: message") or printed, and the line that shows it."""
    for row in (*third_party_rows(), *own_rows()):
        for text in raised:
            if line := row.seen_in(text):
                return row, line
        if row.printed and (line := row.seen_in(printed)):
            return row, line
    return None


def general(cause: str) -> tuple[str, str]:
    """Why and advice for a cause of which no more than its name is known."""
    if cause in general_words():
        return general_words()[cause]
    # Of several rows the last is the plainest.
    row = next((row for row in reversed((*own_rows(), *third_party_rows())) if row.cause == cause), None)
    return (row.why, row.advice) if row is not None else ("", "")
