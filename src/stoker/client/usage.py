"""CPU time and memory that steps and attempts used."""

from __future__ import annotations

from typing import Any, Final, Mapping, Sequence

import attrs

from stoker.core.values import frozen, lazy_pattern
from stoker.core.words import memory_text, time_text

_RANK: Final = lazy_pattern(r"[0-9]{1,9}")
_MOST: Final = 1e18
"""Seconds and bytes above it are no measurement."""


@frozen(kw_only=True)
class Usage:
    """What a step used; None for what was not measured."""

    cpu: float | None = None
    """Seconds of CPU time."""
    peak_memory: int | None = None
    """Bytes: the most that all processes of the step held at one time; of several nodes, the sum of their peaks."""
    rank_peaks: Mapping[int, int] = attrs.field(factory=dict)
    """Of a step with a launcher: the peak of each rank with what it started, in bytes, by rank."""

    def as_dict(self) -> dict[str, Any]:
        """The figures as JSON."""
        ranks = {"rank_peaks": {str(rank): peak for rank, peak in self.rank_peaks.items()}} if self.rank_peaks else {}
        return {"cpu": self.cpu, "peak_memory": self.peak_memory, **ranks}

    @property
    def rank_text(self) -> str:
        """The peaks of the ranks from the smallest to the largest: "1.2 GB" or "1.1 to 1.3 GB"."""
        sizes = [memory_text(peak) for peak in (min(self.rank_peaks.values()), max(self.rank_peaks.values()))]
        return " to ".join(dict.fromkeys(sizes))

    def __str__(self) -> str:
        facts = [] if self.cpu is None else [f"cpu {time_text(self.cpu)}"]
        facts += [] if self.peak_memory is None else [f"peak {memory_text(self.peak_memory)}"]
        facts += [f"{self.rank_text} a rank"] if self.rank_peaks else []
        return ", ".join(facts)


def usage_of_document(document: Mapping[str, Any]) -> Usage:
    """The usage in what `Usage.as_dict` made."""
    peaks = {int(rank): int(peak) for rank, peak in document.get("rank_peaks", {}).items()}
    return Usage(cpu=document.get("cpu"), peak_memory=document.get("peak_memory"), rank_peaks=peaks)


def usage_of(recorded: Mapping[str, Any]) -> Usage:
    """The usage in a row's document."""
    cpu, peak = (_figure(recorded.get(name)) for name in ("cpu", "peak"))
    ranks = recorded.get("ranks")
    sizes = {rank: _figure(size) for rank, size in (ranks if isinstance(ranks, dict) else {}).items()}
    return Usage(
        cpu=cpu,
        peak_memory=None if peak is None else int(peak),
        rank_peaks={int(rank): int(size) for rank, size in sizes.items() if size is not None and _RANK.fullmatch(rank)},
    )


def _figure(value: Any) -> float | None:
    """A number of a document; None for what is none."""
    return float(value) if isinstance(value, (int, float)) and 0 <= value < _MOST else None


def total_usage(recorded: Sequence[Mapping[str, Any]]) -> Usage:
    """The usage in the documents of several that may have run at once: the sum of their CPU time, the largest peak."""
    times = [cpu for one in recorded if (cpu := _figure(one.get("cpu"))) is not None]
    peaks = [peak for one in recorded if (peak := _figure(one.get("peak"))) is not None]
    return Usage(cpu=sum(times) if times else None, peak_memory=int(max(peaks)) if peaks else None)
