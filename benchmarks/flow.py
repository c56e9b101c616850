"""A flow of trivial tasks as a program: a foreach over `BENCH_TASKS` elements, and three steps around it.

The same text runs with Metaflow's package instead of ours where `BENCH_PEER` says so.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING or not os.environ.get("BENCH_PEER"):
    from stoker.flow import FlowSpec, step
else:
    from metaflow import FlowSpec, step


class Bench(FlowSpec):
    """As many tasks as are asked for."""

    @step
    def start(self) -> None:
        self.items = list(range(int(os.environ.get("BENCH_TASKS", "3"))))
        self.next(self.square, foreach="items")

    @step
    def square(self) -> None:
        self.squared = self.input**2
        self.next(self.join)

    @step
    def join(self, inputs: Any) -> None:
        self.total = sum(found.squared for found in inputs)
        self.next(self.end)

    @step
    def end(self) -> None:
        assert self.total > 0


if __name__ == "__main__":
    Bench()
