"""The table of failures: how each looks, what it means and what to do about it, and what is said of the rest.

The table is `causes.ini` beside this module: configparser reads it with any Python and leaves regular expressions as
they are. It is read when something has failed: that would cost a start some milliseconds. Rows of other distributions
stand before Stoker's own, since they are the most specific.

What the NVIDIA driver tells of its GPUs, in the kernel's log and to whoever watches them, has rows by XID numbers. The
numbers and what to do first: docs.nvidia.com/deploy/xid-errors/analyzing-xid-catalog.html. Left out are those that only
announce another one (45, 63, 154 on its own) or that no step feels.
"""

from __future__ import annotations

import configparser
import functools
import logging
import re
from pathlib import Path
from typing import TYPE_CHECKING, Final, Iterable, Mapping, Sequence

import attrs

from stoker.core import status
from stoker.core.errors import UsageError
from stoker.core.plugins import Registry
from stoker.core.status import RETRYABLE, Retryable

if TYPE_CHECKING:
    from stoker.devices.samples import Line

log = logging.getLogger(__name__)

TABLE: Final = Path(__file__).with_name("causes.ini")
_GENERAL: Final = "cause "
"""Begins the names of sections that say of a cause what no row says better."""
_LONGEST: Final = 240
"""Characters of a line that are shown as evidence; torch's out-of-memory message has some 600, the facts come first."""
_XID_LINE: Final = re.compile(r"NVRM: Xid \(([^)]*)\): (\d+)\b")

_RESET: Final = (
    "run the step on another GPU; this one has to be reset (`nvidia-smi --gpu-reset`), replaced if it recurs"
)
_REBOOT: Final = "run the step on another machine; this one has to be restarted, and the GPU replaced if it recurs"
_LINK: Final = "run the step on another machine; have the NVLink connections of this one checked"
_AGAIN: Final = "run the step again; if the number comes back on this GPU, have it tested"
_CODE: Final = (
    "look for the kernel's fault with compute-sanitizer; if it only ever happens on one GPU, have that one tested"
)

XIDS: Final[Mapping[int, tuple[str, str, str]]] = {
    13: (status.ILLEGAL_MEMORY_ACCESS, "a kernel made the GPU's engine fail: an illegal address or instruction", _CODE),
    31: (status.ILLEGAL_MEMORY_ACCESS, "a kernel touched GPU memory that is not mapped", _CODE),
    43: (status.ILLEGAL_MEMORY_ACCESS, "the driver stopped the step's work on the GPU after a fault in it", _CODE),
    46: (status.GPU_HARDWARE, "the GPU stopped processing", _RESET),
    48: (status.GPU_HARDWARE, "the GPU's memory had an error of two bits, which cannot be corrected", _RESET),
    62: (status.GPU_HARDWARE, "the GPU's own controller stopped", _RESET),
    64: (status.GPU_HARDWARE, "the GPU could not put a good row of memory in a bad one's place", _RESET),
    74: (status.GPU_HARDWARE, "the NVLink connection of the GPU failed", _LINK),
    79: (status.GPU_HARDWARE, "the GPU fell off the bus", _REBOOT),
    92: (status.GPU_HARDWARE, "the GPU's memory needs correcting unusually often", _RESET),
    94: (status.GPU_HARDWARE, "the GPU's memory had an error that was kept within this step", _AGAIN),
    95: (status.GPU_HARDWARE, "the GPU's memory had an error that may have touched others too", _RESET),
    109: (status.GPU_HARDWARE, "the GPU did not change from one program to another in time", _RESET),
    119: (status.GPU_HARDWARE, "the GPU's system processor no longer answered the driver", _RESET),
    120: (status.GPU_HARDWARE, "the GPU's system processor failed", _RESET),
    136: (status.GPU_HARDWARE, "an NVLink connection could not be set up", _LINK),
    140: (status.GPU_HARDWARE, "the GPU's memory had an error that was not corrected", _RESET),
    143: (status.GPU_HARDWARE, "the GPU could not be started", _RESET),
    **dict.fromkeys(range(144, 151), (status.GPU_HARDWARE, "the NVLink connection of the GPU failed", _LINK)),
    158: (status.GPU_HARDWARE, "the GPU did not come back from an operation", _RESET),
    171: (status.GPU_HARDWARE, "the GPU's memory had an error that cannot be corrected", _RESET),
    172: (status.GPU_HARDWARE, "the GPU's caches had an error that cannot be corrected", _RESET),
}
"""number → (cause, what it says, what to do)"""


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


def xid_in(lines: Iterable[str]) -> tuple[Signature, str] | None:
    """The row of the gravest XID among lines of the kernel's log, and its line: hardware before a program's fault."""
    rows: list[tuple[Signature, str]] = []
    for line in lines:
        match = _XID_LINE.search(line)
        if match is not None and (row := of_xid(int(match[2]))) is not None:
            rows.append((row, line[match.start() :]))
    return min(rows, key=_gravity, default=None)


def reported(events: Iterable[Line]) -> tuple[Signature, str] | None:
    """The row of the gravest event that a monitor has recorded of a step's devices, and a sentence that names the
    device. The driver tells them to every user, in containers too, where the kernel's log mostly cannot be read.
    """
    ecc, lost = (next(row for row in own_rows() if row.name == name) for name in ("ecc", "gpu-lost"))
    rows: list[tuple[Signature, str]] = []
    for event in events:
        if "xid" in event and (row := of_xid(event["xid"])) is not None:
            rows.append((row, f"the driver reported Xid {event['xid']} of {event.get('uuid', '')}"))
        elif "ecc" in event:
            rows.append((ecc, f"the driver reported a memory error of {event['ecc']} that cannot be corrected"))
        elif "failed" in event and re.search(lost.pattern, str(event.get("why", ""))):
            rows.append((lost, f"the driver reported of {event['failed']}: {event['why']}"))
    return min(rows, key=lambda found: (_gravity(found), found[0] is lost), default=None)


def _gravity(found: tuple[Signature, str]) -> bool:
    return found[0].cause != status.GPU_HARDWARE


def of_xid(number: int) -> Signature | None:
    """The row of an XID, if it is one that ends steps."""
    if number not in XIDS:
        return None
    cause, why, advice = XIDS[number]
    return Signature(
        name=f"xid-{number}", cause=cause, why=why, advice=advice, pattern=rf"NVRM: Xid \([^)]*\): {number}\b"
    )
