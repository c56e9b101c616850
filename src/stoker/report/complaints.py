"""Selects the lines of a distributed step to show while it runs: those of rank 0, and errors of the other ranks.

All ranks write much the same. Of ranks other than 0 only lines that look like errors are shown, with whole tracebacks;
the log has everything. Warnings are left out, because every rank writes the same ones.
"""

from __future__ import annotations

import re
from typing import Final, Iterable, Literal, Mapping

import attrs

from stoker.core.plan import LogLine

_INSPECTED: Final = 1000
"""Characters of a line: errors say so early, and lines may have thousands."""

_RANK_PREFIX: Final = re.compile(r"(?:\[\w+\]: ?)+")
"""The rank's prefix on each line: torch's hook for exceptions writes "[rank3]: ", torchrun's --tee "[default3]:".

https://github.com/pytorch/pytorch/blob/v2.9.0/torch/distributed/distributed_c10d.py (`_distributed_excepthook`),
https://github.com/pytorch/pytorch/blob/v2.9.0/torch/distributed/elastic/multiprocessing/tail_log.py
"""

_NCCL_WARN: Final = "NCCL WARN"
"""NCCL's word for errors. It writes to stdout by default.

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
"""The format of the module `warnings`: https://docs.python.org/3/library/warnings.html#warnings.formatwarning"""

Kind = Literal["traceback", "group", "stack"]
_BEGINS: Final[tuple[tuple[str, Kind], ...]] = (
    ("Exception Group Traceback (most recent call last):", "group"),
    ("Traceback (most recent call last):", "traceback"),
    ("(most recent call first):", "stack"),  # faulthandler's, and those of torch's C++
)
_IN_GROUP: Final = re.compile(r"\s*[|+]")


@attrs.frozen(kw_only=True, slots=True)
class Block:
    """A traceback that has begun and not ended."""

    kind: Kind
    indent: int = 0
    """Columns before its first line."""


def lines_to_show(lines: Iterable[LogLine], blocks: Mapping[int, Block]) -> tuple[list[LogLine], dict[int, Block]]:
    """The lines to show, and the traceback that each rank is inside of after them; `blocks` is that before them."""
    selected: list[LogLine] = []
    open_blocks = dict(blocks)
    for line in lines:
        if not line.rank:  # rank 0, and the launcher
            selected.append(line)
            continue
        if line.stream != "stderr":
            if _NCCL_WARN in line.text[:_INSPECTED]:
                selected.append(line)
            continue
        complaint, block = classify(line.text, open_blocks.pop(line.rank, None))
        if block is not None:
            open_blocks[line.rank] = block
        if complaint:
            selected.append(line)
    return selected, open_blocks


def classify(text: str, block: Block | None = None) -> tuple[bool, Block | None]:
    """Whether a line is an error or part of a traceback, and the traceback that the next line is in."""
    text = _RANK_PREFIX.sub("", text[:_INSPECTED], count=1) if text.startswith("[") else text[:_INSPECTED]
    indent = len(text) - len(text.lstrip())
    for words, kind in _BEGINS:
        if words in text:
            return True, Block(kind=kind, indent=indent)
    if block is not None:
        if _continues(text, indent, block):
            return True, block
        if block.kind == "traceback":  # its last line names the exception, which may have any name
            return bool(text.strip()), None
    return complains(text), None


def complains(text: str) -> bool:
    """Whether a line by itself looks like an error."""
    return _COMPLAINT.search(text) is not None and _WARNING.search(text) is None


def _continues(text: str, indent: int, block: Block) -> bool:
    if block.kind == "group":
        return _IN_GROUP.match(text) is not None
    if block.kind == "stack" and text.startswith("frame #"):
        return True
    return indent > block.indent and indent < len(text)
