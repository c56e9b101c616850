"""What is known of a run while it goes on: a row for each step, what waits and why, devices, numbers, and which lines
of a distributed step are shown meanwhile.

Views are made of it: a terminal's (`report.terminal`, `report.live`) and a notebook's (`report.notebook`). It is told
what happens as a `core.observer.Observer` is, by the engine or by who follows a run in the store, and writes nothing.

All ranks write much the same. Of ranks other than 0 only lines that look like errors are shown, with whole tracebacks;
the log has everything. Warnings are left out, because every rank writes the same ones.
"""

from __future__ import annotations

import re
import time
from typing import Any, Final, Iterable, Literal, Mapping, Sequence

import attrs

from stoker.core.plan import LogLine, Plan, StepPlan
from stoker.core.values import define, frozen, lazy_pattern
from stoker.core.words import EXPECTED_START

RECENT: Final = 20
"""Lines of a piece of output that are searched for complaints: a step may write thousands a second."""
_CURVE: Final = 64
"""Values of a curve; where there are more, each stands for several."""
_INSPECTED: Final = 1000
"""Characters of a line: errors say so early, and lines may have thousands."""

_RANK_PREFIX: Final = lazy_pattern(r"(?:\[\w+\]: ?)+")
"""The rank's prefix on each line: torch's hook for exceptions writes "[rank3]: ", torchrun's --tee "[default3]:".

https://github.com/pytorch/pytorch/blob/v2.9.0/torch/distributed/distributed_c10d.py (`_distributed_excepthook`),
https://github.com/pytorch/pytorch/blob/v2.9.0/torch/distributed/elastic/multiprocessing/tail_log.py
"""

_NCCL_WARN: Final = "NCCL WARN"
"""NCCL's word for errors. It writes to stdout by default.

https://github.com/NVIDIA/nccl/blob/master/src/debug.cc (`ncclDebugFile`, `ncclParamDebugLevel`)
"""

_COMPLAINT: Final = lazy_pattern(
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
_WARNING: Final = lazy_pattern(r":\d+: \w*Warning: ")
"""The format of the module `warnings`: https://docs.python.org/3/library/warnings.html#warnings.formatwarning"""

Kind = Literal["traceback", "group", "stack"]
_BEGINS: Final[tuple[tuple[str, Kind], ...]] = (
    ("Exception Group Traceback (most recent call last):", "group"),
    ("Traceback (most recent call last):", "traceback"),
    ("(most recent call first):", "stack"),  # faulthandler's, and those of torch's C++
)
_IN_GROUP: Final = lazy_pattern(r"\s*[|+]")


@define
class Curve:
    """The course of one number that a step logs, in at most `_CURVE` values."""

    name: str
    values: list[float] = attrs.field(factory=list)
    last: float = 0.0
    stride: int = 1
    """Logged values for each value that is kept."""
    left: int = 0
    """Values still to come before the next one is kept."""

    def add(self, value: float) -> None:
        """Add a value."""
        self.last = value
        if self.left:
            self.left -= 1
            return
        self.values.append(value)
        if len(self.values) > _CURVE:
            self.values = self.values[::2]
            self.stride *= 2
        self.left = self.stride - 1


@define
class ProgressRow:
    """A step, or all elements of a fan-out together."""

    name: str
    status: str = "pending"
    statuses: dict[str, int] = attrs.field(factory=dict)
    """Status → elements of a fan-out that ended with it."""
    count: int | None = None
    """Elements of a fan-out; None for a step."""
    seconds: float = 0.0
    cpu: float = 0.0
    """Seconds of CPU time, of all elements."""
    peak: float = 0.0
    """Bytes: the largest memory of one element."""
    attempts: int = 0
    """The most attempts of one element."""
    receipts: dict[str, int] = attrs.field(factory=dict)
    """Line about accelerators → elements that have it."""
    needs: tuple[str, ...] = ()
    """The steps that must succeed first."""
    wants: int = 0
    """Accelerators of a node that it asks for."""
    running: dict[str, float] = attrs.field(factory=dict)
    """Key of the step or of an element that was sent or runs → since when, by the monotonic clock."""
    waits: dict[str, str] = attrs.field(factory=dict)
    """Key of the step or of an element that waits → why, or "sent"; it is among those in `running`, too."""
    reasons: dict[str, int] = attrs.field(factory=dict)
    """Why elements wait → how many do, without the starts that their platform expects."""
    devices: dict[str, Sequence[Mapping[str, Any]]] = attrs.field(factory=dict)
    """Key of the step or of an element → the documents of its devices."""
    again: tuple[float, str] | None = None
    """When the next attempt begins, by the monotonic clock, and why the last one ended."""
    complaint: str = ""
    """The last line that looks like an error, with the element and rank that wrote it."""
    curve: Curve | None = None
    """The loss, or the first number that the step logged."""

    @property
    def is_group(self) -> bool:
        """Whether it stands for elements."""
        return self.count is not None or bool(self.statuses)

    @property
    def finished(self) -> int:
        """Elements that have ended."""
        return sum(self.statuses.values())


def planned_row(step: StepPlan) -> ProgressRow:
    """The row of a step that has not begun."""
    return ProgressRow(step.key, needs=step.needs, wants=step.settings.resources.gpus_per_node)


class Progress:
    """A run as it goes on. Times are of the monotonic clock."""

    def __init__(self, *, live: bool) -> None:
        self.live = live
        """Whether somebody looks on: curves and complaints are kept only then."""
        self.run = ""
        self.pipeline = ""
        self.started = 0.0
        self.rows: dict[str, ProgressRow] = {}
        self.failures: list[tuple[str, Mapping[str, Any]]] = []
        self.warnings: list[str] = []
        self.waited = 0.0
        """Seconds in which steps only waited for a place; known when the run is over."""
        self._blocks: dict[tuple[str, int | None], Block] = {}

    def begin(self, run: str, plan: Plan, *, started: float | None = None) -> None:
        """Note the steps in their order; `started` is when the run began, in seconds since the epoch."""
        self.run, self.pipeline, self.started = run, plan.pipeline, _moment(started)
        for step in plan.steps:
            self.rows[step.key] = planned_row(step)

    def change(self, key: str, status: str, facts: Mapping[str, Any]) -> ProgressRow:
        """Note a step's new status; returns its row."""
        parent = facts.get("parent", "")
        name = parent or key
        row = self.rows.get(name)
        if row is None:
            row = self.rows[name] = ProgressRow(name)
        if status == "expanded":
            row.count = facts["count"]
            row.status = "running"
        elif status == "sent":
            self._wait(row, key, "sent")
            self._start(row, key, facts)
        elif status == "waiting":
            self._wait(row, key, facts["message"])
        elif status == "leased":
            self._wait(row, key, "")
            row.devices[key] = facts["devices"]
            self._start(row, key, facts)  # time that it waited for devices does not count
        elif status == "running":
            self._wait(row, key, "")
            self._start(row, key, facts)
            row.status = "running"
        elif status == "retrying":
            self._forget(row, key)
            row.again = (time.monotonic() + facts["wait"], facts["cause"])
        elif status == "caught":
            self._catch(row, element=bool(parent))
        else:
            self._end(row, key, status, facts, element=bool(parent))
        return row

    def log(self, key: str, rows: Sequence[Sequence[Any]]) -> None:
        """Note numbers that a step logged (`core.metrics.Row`); those of elements and of ranks but 0 have no curve."""
        step = self.rows.get(key)
        if step is None or not self.live:
            return
        for _, rank, at, numbers in rows:
            if rank or at is None:
                continue
            for name in numbers:
                curve = step.curve
                better = curve is None or ("loss" in name.lower() and "loss" not in curve.name.lower())
                if better:
                    step.curve = curve = Curve(name)
                if curve is not None and curve.name == name and isinstance(numbers[name], (int, float)):
                    curve.add(float(numbers[name]))

    def note_lines(self, key: str, lines: Sequence[LogLine]) -> None:
        """Look for complaints among lines that a step or an element wrote."""
        row = self.rows.get(key) or self.rows.get(key.rpartition("[")[0])
        if row is None or not self.live:
            return

        for line in lines[-RECENT:]:
            before = self._blocks.pop((key, line.rank), None)
            complaint, block = classify(line.text, before)
            if block is not None:
                self._blocks[key, line.rank] = block
            elif complaint and line.text.strip():  # of a traceback its last line, which names the exception
                element = key[len(row.name) :] if key != row.name else ""
                rank = f"[{line.rank}]" if line.rank is not None else ""
                head = f"{element} {rank}".strip()
                row.complaint = f"{head} {line.text.strip()}".strip()

    def leave(self, key: str, parent: str) -> None:
        """Note that a step or an element no longer waits or runs; how it ended is known otherwise."""
        row = self.rows.get(parent or key)
        if row is not None:
            self._forget(row, key)

    def count(self, key: str, statuses: Mapping[str, int]) -> None:
        """Note how many elements of a fan-out ended in which way, where that is known as a whole."""
        self.rows.setdefault(key, ProgressRow(key)).statuses = dict(statuses)

    def end(self, seconds: float | None, waited: float) -> None:
        """Note how many seconds the run took, if the record says, and how many it waited for a place besides."""
        if seconds is not None:
            self.started = time.monotonic() - seconds - waited
        self.waited = waited

    def _start(self, row: ProgressRow, key: str, facts: Mapping[str, Any]) -> None:
        row.running[key] = _moment(facts.get("started"))
        row.again = None

    def _wait(self, row: ProgressRow, key: str, reason: str) -> None:
        """Note why a step waits, or that it does no longer."""
        before = row.waits.pop(key, None)
        if before is not None:
            text = before.partition(EXPECTED_START)[0]
            row.reasons[text] -= 1
            if not row.reasons[text]:
                del row.reasons[text]
        if reason:
            row.waits[key] = reason
            text = reason.partition(EXPECTED_START)[0]
            row.reasons[text] = row.reasons.get(text, 0) + 1

    def _forget(self, row: ProgressRow, key: str) -> None:
        self._wait(row, key, "")
        row.running.pop(key, None)
        row.devices.pop(key, None)

    def _catch(self, row: ProgressRow, *, element: bool) -> None:
        """Count a failure that the user's code caught as a success; it stays among the failures to show."""
        if not element:
            row.status = "succeeded"
        elif row.statuses.get("failed"):
            row.statuses["failed"] -= 1
            row.statuses["succeeded"] = row.statuses.get("succeeded", 0) + 1
            row.statuses = {status: number for status, number in row.statuses.items() if number}
        row.complaint = ""

    def _end(self, row: ProgressRow, key: str, status: str, facts: Mapping[str, Any], *, element: bool) -> None:
        self._forget(row, key)
        if facts.get("receipt"):
            row.receipts[facts["receipt"]] = row.receipts.get(facts["receipt"], 0) + 1
        if facts.get("warning"):
            self.warnings.append(f"{key}: {facts['warning']}")
        if element:
            row.statuses[status] = row.statuses.get(status, 0) + 1
        else:
            row.status = status
            row.again = None
            row.seconds = facts.get("seconds") or 0.0
            if status != "failed":
                row.complaint = ""
        if "cpu" in facts:
            row.cpu += facts["cpu"] or 0.0
        if "peak" in facts:
            row.peak = max(row.peak, facts["peak"] or 0.0)
        if "attempt" in facts:
            row.attempts = max(row.attempts, facts["attempt"] or 0)
        if status == "failed" and (element or row.count is None):
            self.failures.append((key, facts))
            row.complaint = row.complaint or _first_line(f"{facts.get('cause', '')}: {facts.get('message', '')}")


def _moment(epoch: float | None) -> float:
    """A time in seconds since the epoch by the monotonic clock; now, without one."""
    return time.monotonic() if epoch is None else time.monotonic() - max(0.0, time.time() - epoch)


def _first_line(text: str) -> str:
    return text.strip(": \n").partition("\n")[0]


@frozen(kw_only=True, slots=True)
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
