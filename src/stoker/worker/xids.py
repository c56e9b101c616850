"""What the NVIDIA driver tells of its GPUs while a step runs, in the kernel's log and to whoever watches them: rows of
the table of failures, mostly by XID numbers.

The numbers and what to do first: docs.nvidia.com/deploy/xid-errors/analyzing-xid-catalog.html. Left out are those that
only announce another one (45, 63, 154 on its own) or that no step feels.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final, Iterable, Mapping

from stoker.core import status
from stoker.worker.signatures import Signature, own_rows

if TYPE_CHECKING:
    from stoker.devices.samples import Line

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
