"""CPU time and memory that steps and attempts used."""

from __future__ import annotations

from typing import Any, Final, Mapping, Sequence

import attrs

from stoker.core.values import frozen, lazy_pattern
from stoker.core.words import memory_text, time_text

_RANK: Final = lazy_pattern(r"[0-9]{1,9}")
_TELLING: Final = 0.1
"""The share of a rank's time below which waiting for others is not worth a word."""
_MOST: Final = 1e18
"""Seconds and bytes above it are no measurement."""


@frozen(kw_only=True)
class LostTime:
    """What failures cost a step."""

    work: float | None = None
    """Seconds of work after the last checkpoint, which was to be done again; None where that is not known."""
    restarting: float = 0.0
    """Seconds from failures until ranks, or another attempt, began again: waiting for a retry and in a queue count."""

    def __str__(self) -> str:
        parts = [f"{time_text(self.work)} of work"] if self.work else []
        parts += [f"{time_text(self.restarting)} to restart"] if self.restarting else []
        return f"lost {' and '.join(parts)}" if parts else ""


@frozen(kw_only=True)
class Usage:
    """What a step used; None for what was not measured."""

    cpu: float | None = None
    """Seconds of CPU time."""
    peak_memory: int | None = None
    """Bytes: the most that all processes of the step held at one time; of several nodes, the sum of their peaks."""
    rank_peaks: Mapping[int, int] = attrs.field(factory=dict)
    """Of a step with a launcher: the peak of each rank with what it started, in bytes, by rank."""

    rank_waits: Mapping[int, float] = attrs.field(factory=dict)
    """Of a step with a launcher: the share of its time that each rank spent in collective operations of
    `torch.distributed`, and waited for others in backward passes of DistributedDataParallel, by rank. Empty where no
    rank was in any."""

    lost: float | None = None
    """Seconds of work after the last checkpoint that failures ended: restarted ranks, or the next attempt, do it
    again. None where nothing failed, or the checkpoints are not to be seen from the driver."""
    restarting: float | None = None
    """Seconds from the failure of ranks until their launcher had started them again; None where it did not."""

    def as_dict(self) -> dict[str, Any]:
        """The figures as JSON."""
        ranks: dict[str, Any] = {}
        for name, figures in (("rank_peaks", self.rank_peaks), ("rank_waits", self.rank_waits)):
            ranks |= {name: {str(rank): figure for rank, figure in figures.items()}} if figures else {}
        costs = {"lost": self.lost, "restarting": self.restarting}
        ranks |= {name: seconds for name, seconds in costs.items() if seconds is not None}
        return {"cpu": self.cpu, "peak_memory": self.peak_memory, **ranks}

    @property
    def rank_text(self) -> str:
        """The peaks of the ranks from the smallest to the largest: "1.2 GB" or "1.1 to 1.3 GB"."""
        sizes = [memory_text(peak) for peak in (min(self.rank_peaks.values()), max(self.rank_peaks.values()))]
        return " to ".join(dict.fromkeys(sizes))

    @property
    def imbalance(self) -> tuple[int, float]:
        """The slowest rank, which waited least for others, and how much more of its time another one waited, from 0 to
        1. Rank 0 and 0 where that is not known."""
        if len(self.rank_waits) < 2:
            return 0, 0.0
        slowest = min(self.rank_waits, key=lambda rank: (self.rank_waits[rank], rank))
        return slowest, max(self.rank_waits.values()) - self.rank_waits[slowest]

    @property
    def imbalance_text(self) -> str:
        """The same in words; empty below a tenth."""
        slowest, share = self.imbalance
        return f"rank {slowest} slowest, others waited up to {share:.0%} for it" if share >= _TELLING else ""

    def __str__(self) -> str:
        facts = [] if self.cpu is None else [f"cpu {time_text(self.cpu)}"]
        facts += [] if self.peak_memory is None else [f"peak {memory_text(self.peak_memory)}"]
        facts += [f"{self.rank_text} a rank"] if self.rank_peaks else []
        facts += [self.imbalance_text] if self.imbalance_text else []
        facts += [text] if (text := str(LostTime(work=self.lost, restarting=self.restarting or 0.0))) else []
        return ", ".join(facts)


def usage_of_document(document: Mapping[str, Any]) -> Usage:
    """The usage in what `Usage.as_dict` made."""
    peaks = {int(rank): int(peak) for rank, peak in document.get("rank_peaks", {}).items()}
    waits = {int(rank): float(share) for rank, share in document.get("rank_waits", {}).items()}
    return Usage(
        cpu=document.get("cpu"),
        peak_memory=document.get("peak_memory"),
        rank_peaks=peaks,
        rank_waits=waits,
        lost=document.get("lost"),
        restarting=document.get("restarting"),
    )


def usage_of(recorded: Mapping[str, Any]) -> Usage:
    """The usage in a row's document."""
    cpu, peak = (_figure(recorded.get(name)) for name in ("cpu", "peak"))
    sizes, waits = (_of_ranks(recorded.get(name)) for name in ("ranks", "waits"))
    return Usage(
        cpu=cpu,
        peak_memory=None if peak is None else int(peak),
        rank_peaks={rank: int(size) for rank, size in sizes.items()},
        rank_waits=waits,
        lost=_figure(recorded.get("lost")),
        restarting=_figure(recorded.get("restarting")),
    )


def _of_ranks(figures: Any) -> dict[int, float]:
    """The figures of ranks in a document, as far as they are figures, and of ranks."""
    known = {rank: _figure(size) for rank, size in (figures if isinstance(figures, dict) else {}).items()}
    return {int(rank): size for rank, size in known.items() if size is not None and _RANK.fullmatch(rank)}


def _figure(value: Any) -> float | None:
    """A number of a document; None for what is none."""
    return float(value) if isinstance(value, (int, float)) and 0 <= value < _MOST else None


def total_usage(recorded: Sequence[Mapping[str, Any]]) -> Usage:
    """The usage in the documents of several that may have run at once: the sum of their CPU time, the largest peak."""
    times = [cpu for one in recorded if (cpu := _figure(one.get("cpu"))) is not None]
    peaks = [peak for one in recorded if (peak := _figure(one.get("peak"))) is not None]
    return Usage(cpu=sum(times) if times else None, peak_memory=int(max(peaks)) if peaks else None)
