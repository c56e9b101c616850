"""Planned steps, and jobs of functions of one file for benches that use a backend without an engine of runs."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from stoker.core.artifact import from_wire
from stoker.core.graph import StepOutput
from stoker.core.plan import Job, JobStatus, StepPlan
from stoker.core.protocol import FunctionSource
from stoker.core.settings import StepSettings
from stoker.store import artifacts
from stoker.store.blobs import Blobs


def planned_step(settings: StepSettings | None = None, **fields: Any) -> StepPlan:
    """A step called "train" with no inputs and no outputs, but for these fields."""
    plain: dict[str, Any] = {
        "key": "train",
        "name": "train",
        "source": FunctionSource(kind="module", module="m", qualname="train"),
        "outputs": (),
        "unpack": False,
        "inputs": {},
        "backend": "orchestrator",
        "code": "",
    }
    return StepPlan(settings=settings or StepSettings(), **{**plain, **fields})


def source_in(code: Path, function: str) -> FunctionSource:
    """A function of steps.py in a folder."""
    return FunctionSource(kind="script", module="steps", qualname=function, path=str(code / "steps.py"), root=str(code))


def job_in(
    code: Path,
    blobs: Blobs,
    function: str,
    *,
    values: tuple[str, ...],
    attempt: int = 1,
    run: str = "r1",
    key: str = "",
    inputs: Mapping[str, Any] | None = None,
    image: str = "",
    **settings: Any,
) -> Job:
    """An attempt at a function of steps.py in a folder; one of `values` has an output."""
    step = StepPlan(
        key=key or function,
        name=function,
        source=source_in(code, function),
        outputs=(StepOutput(name="output"),) if function in values else (),
        unpack=False,
        inputs={},
        settings=StepSettings(**settings),
        backend="orchestrator",
        code="code",
        image=image,
    )
    saved = {name: {"value": artifacts.save(value, blobs).wire()} for name, value in (inputs or {}).items()}
    return Job(name=f"{run}/{step.key}/{attempt}", run=run, key=step.key, attempt=attempt, step=step, inputs=saved)


def output_of(status: JobStatus | None, blobs: Blobs) -> Any:
    """What an attempt that succeeded has returned."""
    assert status is not None and status.result is not None, status
    assert status.result.ok, status.result
    return artifacts.load(from_wire(status.result.outputs["output"]), blobs)
