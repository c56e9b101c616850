"""Jobs that runs without a driver left on the platforms of all stacks: looked up, and ended."""

from __future__ import annotations

from typing import Any, Collection, Mapping

from stoker import stacks
from stoker.backends.base.backend import LeftJob
from stoker.backends.registry import BACKENDS


def left_jobs(home: str, runs: Collection[str]) -> list[LeftJob]:
    """The jobs of these runs that go on, or whose results wait to be adopted.

    Raises `BackendError` where a platform does not answer.
    """
    options = parts_by_backend()
    jobs: list[LeftJob] = []
    for name, backend in BACKENDS.parts():
        if backend.left_jobs is not None:
            jobs += backend.left_jobs(options.get(name, []), f"{home}/scratch", runs)
    return jobs


def end_left_jobs(home: str, run: str, *, grace: float) -> list[LeftJob]:
    """End the jobs of a run that go on, with so many seconds to leave; returns them. Results are kept."""
    options = parts_by_backend()
    jobs: list[LeftJob] = []
    for name, backend in BACKENDS.parts():
        if backend.end_left is not None:
            jobs += backend.end_left(options.get(name, []), f"{home}/scratch", run, grace)
    return jobs


def parts_by_backend() -> dict[str, list[Mapping[str, Any]]]:
    """The settings of every part of a stack, by its backend."""
    options: dict[str, list[Mapping[str, Any]]] = {}
    for stack in stacks.stacks():
        for component in (stack.orchestrator, *stack.step_operators.values()):
            options.setdefault(component.flavor, []).append(component.options)
    return options
