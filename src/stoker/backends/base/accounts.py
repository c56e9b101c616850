"""What runs without a driver left in accounts of a cloud, for `Backend`: found and ended by a module of the backend
that is imported when it is first needed, and never for stacks without a part of that backend."""

from __future__ import annotations

from typing import Any, Callable, Collection, Iterable, Mapping, Protocol, Sequence

import attrs

from stoker.backends.base.backend import LeftJob, Leftover, Sweep

Parts = Sequence[Mapping[str, Any]]
"""The settings of every part of a stack that is of one backend."""


class AccountModule(Protocol):
    """The functions of such a module: those of `Backend` with the same names, for accounts alone."""

    def left_jobs(self, parts: Parts, runs: Collection[str]) -> Iterable[LeftJob]:
        """The jobs of runs that go on, and those whose results wait."""

    def end_left(self, parts: Parts, run: str) -> Iterable[LeftJob]:
        """End the jobs of a run that go on."""

    def end_recorded(self, options: Mapping[str, Any], jobs: Parts) -> Sequence[str]:
        """End jobs that a driver left, as it recorded them; the names of those that were there."""

    def sweep_accounts(self, parts: Parts, sweep: Sweep) -> Iterable[Leftover]:
        """End what runs left that nobody continues."""


@attrs.frozen
class CloudAccounts:
    """The fields of `Backend` that find and end what was left in accounts."""

    module: Callable[[], AccountModule]

    def leftovers(self, parts: Parts, sweep: Sweep) -> Iterable[Leftover]:
        """For `stoker gc`."""
        return self.module().sweep_accounts(parts, sweep) if parts else ()

    def left_jobs(self, parts: Parts, scratch: str, runs: Collection[str]) -> Iterable[LeftJob]:
        """The jobs that runs without a driver left; nothing of them is on this machine."""
        return self.module().left_jobs(parts, runs) if parts else ()

    def end_left(self, parts: Parts, scratch: str, run: str, grace: float) -> Iterable[LeftJob]:
        """End the jobs that a run without a driver left; the platform gives them their time to leave."""
        return self.module().end_left(parts, run) if parts else ()

    def end_recorded(self, options: Mapping[str, Any], jobs: Parts) -> Sequence[str]:
        """End jobs that a driver left."""
        return self.module().end_recorded(options, jobs)
