"""Which lines of a distributed step are worth a person's look while it runs: rank 0's, and complaints of the others.

All ranks write much the same. Of ranks other than 0 only what looks like an error is shown, with the whole traceback;
all that they wrote is in the log. Warnings are not among it, because every rank gives the same ones.
"""

from __future__ import annotations

import re
from typing import Final, Iterable, Literal, Mapping

import attrs

from stoker.core.plan import LogLine

_LOOKED_AT: Final = 1000
"""Characters of a line: who complains says so early, and lines may have thousands."""

_SPEAKER: Final = re.compile(r"(?:\[\w+\]: ?)+")
"""Who speaks, before each line: torch's hook for exceptions writes "[rank3]: ", torchrun's --tee "[default3]:".

https://github.com/pytorch/pytorch/blob/v2.9.0/torch/distributed/distributed_c10d.py (`_distributed_excepthook`),
https://github.com/pytorch/pytorch/blob/v2.9.0/torch/distributed/elastic/multiprocessing/tail_log.py
"""

_NCCL_WARN: Final = "NCCL WARN"
"""NCCL's word for errors. It writes to stdout unless told otherwise.

https://github.com/NVIDIA/nccl/blob/master/src/debug.cc (`ncclDebugFile`, `ncclParamDebugLevel`)
"""

_COMPLAINT: Final = re.compile(
    r"""
      (?:Error|Exception)\b                                  # ValueError, c10::Error, ChildFailedError
    | \b(?:ERROR|FATAL|CRITICAL|NCCL\ WARN)\b                # levels of loggers
    | \b(?:error|fatal|exception|panic)\s*:                  # compilers, C libraries
    | ^\[[EF](?:\d{4})?\s | ^[EF]\d{4}\ \d\d:\d\d:\d\d       # glog and c10: [E1122 15:04:05 …
    | ^\d{4}-\d\d-\d\d\ [\d:.]+:\ [EF]\s                     # XLA
    | \b(?:CUDA|cu(?:DNN|BLAS)|HIP|[NR]CCL|nccl|[Gg]loo|UCX|MPI)\b.{0,60}\b(?:error|fail(?:ed|ure)|timed\ out|abort)
    | \bnccl[A-Z]\w*Error\b
    | ^During\ handling\ of\ the\ above | ^The\ above\ exception\ was
    | \bAssertion\b.+\bfailed\b
    | [Oo]ut\ of\ memory
    | [Ss]egmentation\ fault | Bus\ error | Illegal\ instruction | core\ dumped
    | ^Killed$ | ^Aborted\b | \bterminate\ called\b | \bpanicked\ at\b
    | Connection\ (?:refused|reset|closed) | No\ space\ left\ on\ device
    """,
    re.VERBOSE,
)
_WARNING: Final = re.compile(r":\d+: \w*Warning: ")
"""`warnings` wrote it, whatever it warns of: https://docs.python.org/3/library/warnings.html#warnings.formatwarning"""

Kind = Literal["traceback", "group", "stack"]
_BEGINS: Final[tuple[tuple[str, Kind], ...]] = (
    ("Exception Group Traceback (most recent call last):", "group"),
    ("Traceback (most recent call last):", "traceback"),
    ("(most recent call first):", "stack"),  # faulthandler's, and those of torch's C++
)
_IN_GROUP: Final = re.compile(r"\s*[|+]")


@attrs.frozen(kw_only=True, slots=True)
class Block:
    """A traceback that has begun and not ended: what of, and how far its first line stands from the margin."""

    kind: Kind
    indent: int = 0


def worth_showing(lines: Iterable[LogLine], blocks: Mapping[int, Block]) -> tuple[list[LogLine], dict[int, Block]]:
    """The lines to show of all ranks, and which ranks are inside a traceback after them; `blocks` is that before."""
    shown: list[LogLine] = []
    now = dict(blocks)
    for line in lines:
        if not line.rank:  # rank 0, and the launcher
            shown.append(line)
            continue
        if line.stream != "stderr":
            if _NCCL_WARN in line.text[:_LOOKED_AT]:
                shown.append(line)
            continue
        wanted, block = judged(line.text, now.pop(line.rank, None))
        if block is not None:
            now[line.rank] = block
        if wanted:
            shown.append(line)
    return shown, now


def judged(text: str, block: Block | None = None) -> tuple[bool, Block | None]:
    """Whether a line complains or belongs to a traceback that does, and the traceback in which the next one stands."""
    text = _SPEAKER.sub("", text[:_LOOKED_AT], count=1) if text.startswith("[") else text[:_LOOKED_AT]
    indent = len(text) - len(text.lstrip())
    for words, kind in _BEGINS:
        if words in text:
            return True, Block(kind=kind, indent=indent)
    if block is not None:
        if _goes_on(text, indent, block):
            return True, block
        if block.kind == "traceback":  # its last line says what was raised, whatever that is called
            return bool(text.strip()), None
    return complains(text), None


def complains(text: str) -> bool:
    """Whether a line by itself looks like an error."""
    return _COMPLAINT.search(text) is not None and _WARNING.search(text) is None


def _goes_on(text: str, indent: int, block: Block) -> bool:
    if block.kind == "group":
        return _IN_GROUP.match(text) is not None
    if block.kind == "stack" and text.startswith("frame #"):
        return True
    return indent > block.indent and indent < len(text)
