"""CPU time and memory that steps and attempts used."""

from __future__ import annotations

from typing import Any, Iterable, Mapping

import attrs

from stoker.core.words import memory_text, time_text


@attrs.frozen(kw_only=True)
class Usage:
    """What a step used; None for what was not measured."""

    cpu: float | None = None
    """Seconds of CPU time."""
    peak_memory: int | None = None
    """Bytes."""

    def as_dict(self) -> dict[str, Any]:
        """The figures as JSON."""
        return {"cpu": self.cpu, "peak_memory": self.peak_memory}

    def __str__(self) -> str:
        facts = [] if self.cpu is None else [f"cpu {time_text(self.cpu)}"]
        facts += [] if self.peak_memory is None else [f"peak {memory_text(self.peak_memory)}"]
        return ", ".join(facts)


def usage_of(recorded: Mapping[str, Any]) -> Usage:
    """The usage in a row's document."""
    cpu, peak = recorded.get("cpu"), recorded.get("peak")
    return Usage(cpu=None if cpu is None else float(cpu), peak_memory=None if peak is None else int(peak))


def total_usage(parts: Iterable[Usage]) -> Usage:
    """The usage of several that may have run at once: the sum of their CPU time, the largest memory of one."""
    usages = list(parts)
    times = [part.cpu for part in usages if part.cpu is not None]
    peaks = [part.peak_memory for part in usages if part.peak_memory is not None]
    return Usage(cpu=sum(times) if times else None, peak_memory=max(peaks, default=None))
