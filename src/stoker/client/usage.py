"""What steps and attempts used of the machine that they ran on."""

from __future__ import annotations

from typing import Any, Iterable, Mapping

import attrs

from stoker.core.words import memory_text, time_text


@attrs.frozen(kw_only=True)
class Usage:
    """What was used, where it was measured: `cpu` in seconds, `peak_memory` in bytes."""

    cpu: float | None = None
    peak_memory: int | None = None

    def as_dict(self) -> dict[str, Any]:
        """The figures as JSON."""
        return {"cpu": self.cpu, "peak_memory": self.peak_memory}

    def __str__(self) -> str:
        facts = [] if self.cpu is None else [f"cpu {time_text(self.cpu)}"]
        facts += [] if self.peak_memory is None else [f"peak {memory_text(self.peak_memory)}"]
        return ", ".join(facts)


def usage(recorded: Mapping[str, Any]) -> Usage:
    """The figures of a row."""
    cpu, peak = recorded.get("cpu"), recorded.get("peak")
    return Usage(cpu=None if cpu is None else float(cpu), peak_memory=None if peak is None else int(peak))


def usage_of_all(parts: Iterable[Usage]) -> Usage:
    """The figures of several that may have run side by side: their time together, the largest memory of one."""
    known = list(parts)
    times = [part.cpu for part in known if part.cpu is not None]
    peaks = [part.peak_memory for part in known if part.peak_memory is not None]
    return Usage(cpu=sum(times) if times else None, peak_memory=max(peaks, default=None))
